// Rows of keys and values copied to their slots of a cache.
//
// LANES threads share a token. They walk its units, 16 bytes or one element, through all heads of k and then of v, CHUNKS
// loads in flight each. K_UNITS and V_UNITS are those of one head; ELEMENT is the bytes of an element, VEC the elements of
// a unit, INDEX the bits of a slot.
#include "prelude.h"

#include "_lib/ptx/pdl.h"

#if ELEMENT == 8
typedef uint64_t Element;
#elif ELEMENT == 4
typedef uint32_t Element;
#else
typedef uint16_t Element;
#endif
#if INDEX == 32
typedef int32_t Index;
#else
typedef int64_t Index;
#endif

#if VEC > 1
typedef words<16> Unit;
DEVICE Unit load(const Element* address) { return load_words_once<16>(address); }
DEVICE void store(Element* address, const Unit& value) { store_global(address, value); }
#else
typedef Element Unit;
DEVICE Unit load(const Element* address) { return *address; }
DEVICE void store(Element* address, Unit value) { *address = value; }
#endif

// Steps between heads and between a head's elements, which are neighbours where a unit has several.
DEVICE int64_t place(int unit, int units, int64_t head, int64_t element) {
    const int own = static_cast<unsigned>(unit) / static_cast<unsigned>(units);
    const int column = (unit - own * units) * VEC;
    return own * head + (VEC > 1 ? column : column * element);
}

KERNEL(THREADS)
void kv_cache_write(const Element* k, const Element* v, Element* k_cache, Element* v_cache, const Index* slots,
                    int64_t k_token, int64_t k_head, int64_t k_element, int64_t v_token, int64_t v_head,
                    int64_t v_element, int64_t k_cache_page, int64_t k_cache_place, int64_t k_cache_head,
                    int64_t k_cache_element, int64_t v_cache_page, int64_t v_cache_place, int64_t v_cache_head,
                    int64_t v_cache_element, int64_t slots_token, int tokens, int heads, int page, int places) {
    enter_pdl();
    const int64_t token =
        static_cast<int64_t>(block_x()) * (THREADS / LANES) + static_cast<unsigned>(thread_x()) / LANES;
    if (token >= tokens) return;
    const int64_t slot = slots[token * slots_token];
    if (slot < 0 || slot >= places) return;
    const int at = static_cast<unsigned>(slot) / static_cast<unsigned>(page);
    const int offset = static_cast<int>(slot) - at * page;
    k += token * k_token;
    v += token * v_token;
    k_cache += at * k_cache_page + offset * k_cache_place;
    v_cache += at * v_cache_page + offset * v_cache_place;

    const int k_units = heads * K_UNITS;
    const int units = k_units + heads * V_UNITS;
    for (int base = thread_x() & (LANES - 1); base < units; base += LANES * CHUNKS) {
        Unit held[CHUNKS];
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) {
            const int unit = base + c * LANES;
            if (unit < k_units) {
                held[c] = load(k + place(unit, K_UNITS, k_head, k_element));
            } else if (unit < units) {
                held[c] = load(v + place(unit - k_units, V_UNITS, v_head, v_element));
            }
        }
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) {
            const int unit = base + c * LANES;
            if (unit < k_units) {
                store(k_cache + place(unit, K_UNITS, k_cache_head, k_cache_element), held[c]);
            } else if (unit < units) {
                store(v_cache + place(unit - k_units, V_UNITS, v_cache_head, v_cache_element), held[c]);
            }
        }
    }
}

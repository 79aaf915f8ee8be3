// Rows of keys and values copied to their slots of a cache.
//
// LANES threads share a token. They walk its units, 16 bytes or one element, through all heads of k and then of v, CHUNKS
// loads in flight each. K_UNITS and V_UNITS are those of one head; ELEMENT is the bytes of an element, VEC the elements of
// a unit, INDEX the bits of a slot. With FORMAT the cache has 8 bits (minifloat.h): it gets elements of T over the scale of their
// head.
#include "prelude.h"

#ifdef FORMAT
#include "_lib/minifloat.h"
#endif

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
#else
typedef Element Unit;
DEVICE Unit load(const Element* address) { return *address; }
#endif

// What the cache holds, and a unit of it; `scale` is that of the unit's head.
#ifdef FORMAT
typedef uint8_t Stored;
#define CACHE_SCALES , const float *k_scale, int64_t k_scale_head, const float *v_scale, int64_t v_scale_head
#define K_SCALE(unit) k_scale[static_cast<unsigned>(unit) / K_UNITS * k_scale_head]
#define V_SCALE(unit) v_scale[static_cast<unsigned>(unit) / V_UNITS * v_scale_head]
DEVICE float number(uint32_t bits) { return to_float(T{static_cast<uint16_t>(bits)}); }
DEVICE void store(Stored* address, const Unit& value, float scale) {
    const float inverse = div_rn(1.0f, scale);
#if VEC > 1
    words<VEC> codes;
#pragma unroll
    for (int i = 0; i < VEC / 4; ++i) {
        const uint32_t low = value.w[2 * i], high = value.w[2 * i + 1];
        codes.w[i] = encode4<FORMAT>(number(low) * inverse, number(low >> 16) * inverse, number(high) * inverse,
                                     number(high >> 16) * inverse);
    }
    store_global(address, codes);
#else
    *address = static_cast<Stored>(encode<FORMAT>(number(value) * inverse));
#endif
}
#else
typedef Element Stored;
#define CACHE_SCALES
#define K_SCALE(unit) 1.0f
#define V_SCALE(unit) 1.0f
#if VEC > 1
DEVICE void store(Stored* address, const Unit& value, float) { store_global(address, value); }
#else
DEVICE void store(Stored* address, Unit value, float) { *address = value; }
#endif
#endif

// Steps between heads and between a head's elements, which are neighbours where a unit has several.
DEVICE int64_t place(int unit, int units, int64_t head, int64_t element) {
    const int own = static_cast<unsigned>(unit) / static_cast<unsigned>(units);
    const int column = (unit - own * units) * VEC;
    return own * head + (VEC > 1 ? column : column * element);
}

KERNEL(THREADS)
void kv_cache_write(const Element* k, const Element* v, Stored* k_cache, Stored* v_cache, const Index* slots,
                    int64_t k_token, int64_t k_head, int64_t k_element, int64_t v_token, int64_t v_head,
                    int64_t v_element, int64_t k_cache_page, int64_t k_cache_place, int64_t k_cache_head,
                    int64_t k_cache_element, int64_t v_cache_page, int64_t v_cache_place, int64_t v_cache_head,
                    int64_t v_cache_element, int64_t slots_token, int tokens, int heads, int page, int places CACHE_SCALES) {
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
                store(k_cache + place(unit, K_UNITS, k_cache_head, k_cache_element), held[c], K_SCALE(unit));
            } else if (unit < units) {
                store(v_cache + place(unit - k_units, V_UNITS, v_cache_head, v_cache_element), held[c],
                      V_SCALE(unit - k_units));
            }
        }
    }
}

// The root mean square norm of each head of q and k, then its pairs rotated by the token's angles, in float32, rounded once.
//
// As rope.cu, for heads of pairs alone that the LANES threads of one warp hold whole. Every thread of a warp goes through
// all heads, as the sums of a head go from lane to lane; what it has no token, head or column for counts as zeros.
//
// With CACHED, the bits of a slot of a cache of pages, k's heads go to the token's slot and v's are copied to theirs; a
// token whose slot is not within the cache has neither. V_UNITS are the units of VEC elements of a head of v. With NORM 0
// the heads are rotated as they are, and the weights are null.
#include "_lib/ptx/pdl.h"
#include "rope/heads.h"

#ifndef NORM
#define NORM 1
#endif
#if CACHED == 32
typedef int32_t Slot;
#elif CACHED
typedef int64_t Slot;
#endif

KERNEL(THREADS)
void qk_norm_rope(const T* q, const T* k, const W* cos, const W* sin, const Index* positions, T* q_rotated, T* k_rotated,
                  int64_t q_sequence, int64_t q_token, int64_t q_head, int64_t k_sequence, int64_t k_token,
                  int64_t k_head, int64_t cos_row, int64_t sin_row, int64_t positions_sequence, int64_t positions_token,
                  int tokens, int length, int q_heads, int k_heads, int size, int pairs, const T* q_weight,
                  const T* k_weight, float eps
#if CACHED
                  , const T* v, T* v_cache, const Slot* slots, int64_t v_sequence, int64_t v_token, int64_t v_head,
                  int64_t k_cache_page, int64_t k_cache_place, int64_t k_cache_head, int64_t v_cache_page,
                  int64_t v_cache_place, int64_t v_cache_head, int64_t slots_sequence, int64_t slots_token, int page,
                  int places
#endif
) {
    enter_pdl();
    const int group = row_slot();
    const int64_t wanted = static_cast<int64_t>(block_x()) * TOKENS + group / SLOTS;
    const int64_t token = wanted < tokens ? wanted : tokens - 1;
    const int slot = group % SLOTS;
    const int heads = q_heads + k_heads;
    const int sequence = static_cast<unsigned>(token) / static_cast<unsigned>(length);
    const int place = static_cast<int>(token) - sequence * length;
    int64_t position = place;
#if INDEX
    position = positions[sequence * positions_sequence + place * positions_token];
#endif
#if CACHED
    const int64_t cached = slots[sequence * slots_sequence + place * slots_token];
    const bool kept = cached >= 0 && cached < places;
    const int at = kept ? static_cast<unsigned>(cached) / static_cast<unsigned>(page) : 0;
    const int offset = kept ? static_cast<int>(cached) - at * page : 0;
    T* k_to = k_rotated + at * k_cache_page + offset * k_cache_place;
    const int64_t k_step = k_cache_head;
    if (kept && wanted < tokens) {
        const T* from = v + sequence * v_sequence + place * v_token;
        T* to = v_cache + at * v_cache_page + offset * v_cache_place;
        for (int unit = slot * LANES + row_lane(); unit < k_heads * V_UNITS; unit += SLOTS * LANES) {
            const int head = static_cast<unsigned>(unit) / static_cast<unsigned>(V_UNITS);
            const int column = (unit - head * V_UNITS) * VEC;
            Columns value;
            value.load_streaming(from + head * v_head + column);
            value.store(to + head * v_cache_head + column);
        }
    }
#else
    constexpr bool kept = true;
    T* k_to = k_rotated + token * k_heads * size;
    const int64_t k_step = size;
#endif
    const Heads all = {q + sequence * q_sequence + place * q_token,
                       k + sequence * k_sequence + place * k_token,
                       q_rotated + token * q_heads * size,
                       k_to,
                       q_head,
                       k_head,
                       q_heads,
                       size,
                       k_step};

    const int column = row_lane() * VEC;
    const bool here = wanted < tokens && column < pairs;
    const int first = INTERLEAVED ? 2 * column : column;
    const int second = INTERLEAVED ? 2 * column + VEC : pairs + column;
    Vector<W, VEC> cosine, sine;
    Columns q_low, q_high, k_low, k_high;
    if (here) {
        cosine.load(cos + position * cos_row + column);
        sine.load(sin + position * sin_row + column);
        if constexpr (NORM) {
            q_low.load(q_weight + first);
            q_high.load(q_weight + second);
            k_low.load(k_weight + first);
            k_high.load(k_weight + second);
        }
    }
    for (int base = 0; base < heads; base += SLOTS * CHUNKS) {
        Columns low[CHUNKS], high[CHUNKS];
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) {
            const int head = base + slot + c * SLOTS;
            low[c].clear();
            high[c].clear();
            if (here && head < heads) {
                low[c].load_streaming(all.from(head) + first);
                high[c].load_streaming(all.from(head) + second);
            }
        }
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) {
            const int head = base + slot + c * SLOTS;
            float value[2 * VEC];
            unpack(low[c], high[c], value);
            float squares = 0.0f;
            if constexpr (NORM) {
#pragma unroll
                for (int i = 0; i < 2 * VEC; ++i) squares = math_fma(value[i], value[i], squares);
                squares = reduce_warp<Sum, LANES>(squares);
            }
            if (here && head < heads) {
                if constexpr (NORM) {
                    const float scale = math_rsqrt(squares / static_cast<float>(size) + eps);
#pragma unroll
                    for (int i = 0; i < VEC; ++i) {
                        value[i] = value[i] * scale * (head < q_heads ? q_low[i] : k_low[i]);
                        value[VEC + i] = value[VEC + i] * scale * (head < q_heads ? q_high[i] : k_high[i]);
                    }
                }
                rotate(value, cosine, sine);
                pack(value, low[c], high[c]);
                if (head < q_heads || kept) {
                    low[c].store(all.to(head) + first);
                    high[c].store(all.to(head) + second);
                }
            }
        }
    }
}

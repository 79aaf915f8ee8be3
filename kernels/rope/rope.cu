// Pairs of columns of q and k rotated by a token's angles, in float32, rounded once.
//
// A thread keeps its cosines and sines for all of its heads, so that a token's rows of the tables are read SLOTS times at
// most, within one block. CHUNKS heads are in flight at a time.
//
// With VALUES, heads of v are copied behind those of q and k, as many as k has; the results may lie in one tensor, whose
// tokens are *_row apart, those of k and v from *_first on.
#include "_lib/ptx/pdl.h"
#include "rope/heads.h"

#ifndef VALUES
#define VALUES 0
#endif

#if VALUES
// Those of q, of k and of v, which are not rotated.
struct AllHeads : Heads {
    const T* v;
    T* v_copied;
    int64_t v_stride;
    int rotated;

    DEVICE const T* from(int head) const {
        return head < rotated ? Heads::from(head) : v + (head - rotated) * v_stride;
    }
    DEVICE T* to(int head) const {
        return head < rotated ? Heads::to(head) : v_copied + static_cast<int64_t>(head - rotated) * size;
    }
};
#endif

KERNEL(THREADS)
void rope(const T* q, const T* k, const W* cos, const W* sin, const Index* positions, T* q_rotated, T* k_rotated,
          int64_t q_sequence, int64_t q_token, int64_t q_head, int64_t k_sequence, int64_t k_token, int64_t k_head,
          int64_t cos_row, int64_t sin_row, int64_t positions_sequence, int64_t positions_token, int tokens, int length,
          int q_heads, int k_heads, int size, int pairs
#if VALUES
          , const T* v, T* v_copied, int64_t v_sequence, int64_t v_token, int64_t v_head, int64_t q_row, int64_t k_row,
          int64_t v_row, int64_t k_first, int64_t v_first
#endif
) {
    enter_pdl();
    const int group = row_slot();
    const int64_t token = static_cast<int64_t>(block_x()) * TOKENS + group / SLOTS;
    if (token >= tokens) return;
    const int slot = group % SLOTS;
    const int rotated = q_heads + k_heads;
    const int heads = VALUES ? rotated + k_heads : rotated;
    const int sequence = static_cast<unsigned>(token) / static_cast<unsigned>(length);
    const int place = static_cast<int>(token) - sequence * length;
    int64_t position = place;
#if INDEX
    position = positions[sequence * positions_sequence + place * positions_token];
#endif
#if VALUES
    const AllHeads all = {{q + sequence * q_sequence + place * q_token,
                           k + sequence * k_sequence + place * k_token,
                           q_rotated + token * q_row,
                           k_rotated + k_first + token * k_row,
                           q_head,
                           k_head,
                           q_heads,
                           size,
                           size},
                          v + sequence * v_sequence + place * v_token,
                          v_copied + v_first + token * v_row,
                          v_head,
                          rotated};
#else
    const Heads all = {q + sequence * q_sequence + place * q_token,
                       k + sequence * k_sequence + place * k_token,
                       q_rotated + token * q_heads * size,
                       k_rotated + token * k_heads * size,
                       q_head,
                       k_head,
                       q_heads,
                       size,
                       size};
#endif

    for (int column = row_lane() * VEC; column < pairs; column += CHUNK) {
        Vector<W, VEC> cosine, sine;
        cosine.load(cos + position * cos_row + column);
        sine.load(sin + position * sin_row + column);
        const int first = INTERLEAVED ? 2 * column : column;
        const int second = INTERLEAVED ? 2 * column + VEC : pairs + column;
        for (int head = slot; head < heads; head += SLOTS * CHUNKS) {
            Columns low[CHUNKS], high[CHUNKS];
#pragma unroll
            for (int c = 0; c < CHUNKS; ++c) {
                if (head + c * SLOTS < heads) {
                    const T* from = all.from(head + c * SLOTS);
                    low[c].load_streaming(from + first);
                    high[c].load_streaming(from + second);
                }
            }
#pragma unroll
            for (int c = 0; c < CHUNKS; ++c) {
                if (head + c * SLOTS < heads) {
                    T* to = all.to(head + c * SLOTS);
                    if (!VALUES || head + c * SLOTS < rotated) {
                        float value[2 * VEC];
                        unpack(low[c], high[c], value);
                        rotate(value, cosine, sine);
                        pack(value, low[c], high[c]);
                    }
                    low[c].store(to + first);
                    high[c].store(to + second);
                }
            }
        }
    }
    for (int column = 2 * pairs + row_lane() * VEC; column < size; column += CHUNK) {
        for (int head = slot; head < heads; head += SLOTS) {
            Columns rest;
            rest.load_streaming(all.from(head) + column);
            rest.store(all.to(head) + column);
        }
    }
}

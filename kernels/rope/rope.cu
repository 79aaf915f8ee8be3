// Pairs of columns of q and k rotated by a token's angles, in float32, rounded once.
//
// A thread keeps its cosines and sines for all of its heads, so that a token's rows of the tables are read SLOTS times at
// most, within one block. CHUNKS heads are in flight at a time.
#include "_lib/ptx/pdl.h"
#include "rope/heads.h"

KERNEL(THREADS)
void rope(const T* q, const T* k, const W* cos, const W* sin, const Index* positions, T* q_rotated, T* k_rotated,
          int64_t q_sequence, int64_t q_token, int64_t q_head, int64_t k_sequence, int64_t k_token, int64_t k_head,
          int64_t cos_row, int64_t sin_row, int64_t positions_sequence, int64_t positions_token, int tokens, int length,
          int q_heads, int k_heads, int size, int pairs) {
    enter_pdl();
    const int group = row_slot();
    const int64_t token = static_cast<int64_t>(block_x()) * TOKENS + group / SLOTS;
    if (token >= tokens) return;
    const int slot = group % SLOTS;
    const int heads = q_heads + k_heads;
    const int sequence = static_cast<unsigned>(token) / static_cast<unsigned>(length);
    const int place = static_cast<int>(token) - sequence * length;
    int64_t position = place;
#if INDEX
    position = positions[sequence * positions_sequence + place * positions_token];
#endif
    const Heads all = {q + sequence * q_sequence + place * q_token,
                       k + sequence * k_sequence + place * k_token,
                       q_rotated + token * q_heads * size,
                       k_rotated + token * k_heads * size,
                       q_head,
                       k_head,
                       q_heads,
                       size,
                       size};

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
                    float value[2 * VEC];
                    unpack(low[c], high[c], value);
                    rotate(value, cosine, sine);
                    pack(value, low[c], high[c]);
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

// Gradients of parameters: sums over rows, column by column, without atomics. Persistent blocks walk the rows,
// every `blocks`-th from their own on, keep the sums of their rows in registers and write them to a float32
// workspace; column_sum.cu adds the blocks up in their order.
//
// Defines: STAGES, the rows of two tensors that a block holds or has under way. RING 1: they lie in shared
// memory (row_ring.h), else in registers.
#pragma once

#include "_common/rows.h"

#ifndef RING
#define RING 0
#endif
#ifndef STAGES
#define STAGES 1
#endif

#if RING
#include "_common/row_ring.h"
#else
// Rows of two tensors; stage 0 is the row in hand, and the others' loads are under way.
struct RowPair {
    cell<T, VEC> held[2][STAGES][CHUNKS];
    const T* next[2];    // the lane's place in the row that is loaded next
    int64_t stride[2];
    int64_t step;
    int64_t row;
    int64_t rows;
    int length;

    DEVICE RowPair(const T* first, const T* second, int64_t first_stride, int64_t second_stride, int64_t row,
                   int64_t rows, int64_t step, int length)
        : next{at_lane(first + row * first_stride), at_lane(second + row * second_stride)},
          stride{first_stride, second_stride}, step(step), row(row), rows(rows), length(length) {}

    DEVICE void start() {
#pragma unroll
        for (int i = 0; i < STAGES; ++i) load(i);
    }
    DEVICE void load(int into) {
        const int count = row < rows ? length : 0;
#pragma unroll
        for (int t = 0; t < 2; ++t) {
            load_cells<true>(held[t][into], next[t], 0, count);
            next[t] += step * stride[t];
        }
        row += step;
    }
    template <int AHEAD = 0> DEVICE void wait() const {}
    // The lane's vectors of the first (0) or second (1) tensor.
    template <int AHEAD = 0> DEVICE void read(cell<T, VEC> (&into)[CHUNKS], int which) const {
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) into[c] = held[which][AHEAD][c];
    }
    // All lanes have read the row in hand.
    DEVICE void release() {}
    DEVICE void advance() {
#pragma unroll
        for (int i = 0; i + 1 < STAGES; ++i) {
#pragma unroll
            for (int t = 0; t < 2; ++t) {
#pragma unroll
                for (int c = 0; c < CHUNKS; ++c) held[t][i][c] = held[t][i + 1][c];
            }
        }
        load(STAGES - 1);
    }
};
#endif

// The lane's weights, for all rows.
struct scale_cells {
#ifdef WIDE_SCALE
    float held[CHUNKS][VEC];
    DEVICE void load(const W* weight, int length) {
        if constexpr (!HAS_WEIGHT) return;
        cell<W, VEC> packed[CHUNKS];
        load_cells<false>(packed, at_lane(weight), 0, length);
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) {
#pragma unroll
            for (int i = 0; i < VEC; ++i) held[c][i] = packed[c][i];
        }
    }
#else
    cell<W, VEC> held[CHUNKS];
    DEVICE void load(const W* weight, int length) {
        if constexpr (HAS_WEIGHT) load_cells<false>(held, at_lane(weight), 0, length);
    }
#endif
    DEVICE float times(float g, int c, int i) const { return HAS_WEIGHT ? g * held[c][i] : g; }
    DEVICE float fma(float g, int c, int i, float sum) const {
        return HAS_WEIGHT ? math_fma(g, held[c][i], sum) : g + sum;
    }
};

// Lane l's sum of those of HELD floats whose index is l modulo COUNT.
template <int COUNT, int HELD> DEVICE float fold(const float* partial) {
    const int lane = thread_x() & (WARP - 1);
    float sum = partial[HELD < WARP ? lane % HELD : lane];
#pragma unroll
    for (int i = WARP; i < HELD; i += WARP) sum += partial[i + lane];
#pragma unroll
    for (int mask = COUNT; mask < (HELD < WARP ? HELD : WARP); mask *= 2) sum += shuffle_xor(sum, mask);
    return sum;
}

// Adds COUNT (2 or 4) values over the lanes of a row that all of the block shares, with one barrier. Each of
// the first levels halves what a lane carries: 6 shuffles for 4 values instead of 20. Two of `partial` serve
// in turn; `turn` counts the calls.
template <int COUNT> DEVICE void sum_row(float (&value)[COUNT], RowPartial<COUNT> (&partials)[2], int turn) {
    static_assert(COUNT == 2 || COUNT == 4, "2 or 4 values");
    RowPartial<COUNT>& partial = partials[turn & 1];
    if constexpr (ROWS > 1) {
        reduce_row<Sum, COUNT>(value, partial);
        return;
    }
    const int lane = thread_x() & (WARP - 1);
    const int warp = static_cast<unsigned>(thread_x()) / WARP;
    const bool odd = lane & 1;
    const bool upper = lane & 2;
    float mine = odd ? value[1] : value[0];
    mine += shuffle_xor(odd ? value[0] : value[1], 1);
    if constexpr (COUNT == 4) {
        float other = odd ? value[3] : value[2];
        other += shuffle_xor(odd ? value[2] : value[3], 1);
        const float sent = upper ? mine : other;
        mine = (upper ? other : mine) + shuffle_xor(sent, 2);
    }
#pragma unroll
    for (int mask = COUNT; mask < WARP; mask *= 2) mine += shuffle_xor(mine, mask);
    // Lane l now has the warp's sum of value[l % COUNT].
    if (lane < COUNT) partial.of_warp[warp * COUNT + lane] = mine;
    barrier();
#if CLUSTER > 1
    static_assert(COUNT * CLUSTER <= WARP, "one value per lane");
    if (warp == 0) {
        mine = fold<COUNT, COUNT * WARPS>(partial.of_warp);
        if (lane < COUNT * CLUSTER) {
            send(&partial.of_block[cluster_rank() * COUNT + lane % COUNT], mine, &partial.arrived, lane / COUNT);
        }
    }
    barrier_wait(shared_address(&partial.arrived), turn >> 1 & 1);
    mine = fold<COUNT, COUNT * CLUSTER>(partial.of_block);
    if (thread_x() == 0) partial.expect();
#else
    mine = fold<COUNT, COUNT * WARPS>(partial.of_warp);
#endif
    const float next = shuffle_xor(mine, 1);
    value[0] = odd ? next : mine;
    value[1] = odd ? mine : next;
    if constexpr (COUNT == 4) {
        const float far[2] = {shuffle_xor(value[0], 2), shuffle_xor(value[1], 2)};
        value[2] = upper ? value[0] : far[0];
        value[3] = upper ? value[1] : far[1];
        value[0] = upper ? far[0] : value[0];
        value[1] = upper ? far[1] : value[1];
    }
}

// Floats of shared memory that `write_columns` needs: none where a block holds one row.
constexpr int COLUMN_SCRATCH = ROWS > 1 ? THREADS * CHUNKS * VEC : 1;

// Adds up what the row slots of a block have summed, in slot order, and writes it to `target` (length
// floats). All threads of the block take part.
DEVICE void write_columns(const float (&sum)[CHUNKS][VEC], float (&scratch)[COLUMN_SCRATCH], float* target,
                          int length) {
    if constexpr (ROWS == 1) {
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) {
            const int column = chunk_column(c);
            if constexpr (VEC > 1 && !TAIL) {
                if (column < length) {
#pragma unroll
                    for (int i = 0; i < VEC; i += 4) {
                        store_words(target + column + i,
                                    words<16>{{bits_of(sum[c][i]), bits_of(sum[c][i + 1]),
                                               bits_of(sum[c][i + 2]), bits_of(sum[c][i + 3])}});
                    }
                }
            } else {
#pragma unroll
                for (int i = 0; i < VEC; ++i) {
                    if (inside(column, i, length)) target[column + i] = sum[c][i];
                }
            }
        }
    } else {
        constexpr int WIDTH = LANES * CHUNKS * VEC;
        barrier();
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) {
#pragma unroll
            for (int i = 0; i < VEC; ++i) scratch[row_slot() * WIDTH + chunk_column(c) + i] = sum[c][i];
        }
        barrier();
        for (int column = thread_x(); column < length; column += THREADS) {
            float total = 0.0f;
#pragma unroll 4
            for (int slot = 0; slot < ROWS; ++slot) total += scratch[slot * WIDTH + column];
            target[column] = total;
        }
    }
}

// Gradients of parameters: sums over rows, column by column, without atomics. Persistent blocks process every
// `blocks`-th row, keep the sums of their rows in registers and write them to a float32 workspace; column_sum.cu adds
// the blocks in order.
//
// Defines: STAGES, the rows of two tensors that a block has in registers, loaded or in flight.
#pragma once

#include "rows.h"

#ifndef STAGES
#define STAGES 1
#endif

// Rows of two tensors; stage 0 is the current row, the others' loads are in flight.
struct RowPair {
    Vector<T, VEC> held[2][STAGES][CHUNKS];
    const T* next[2];    // the lane's address in the row that is loaded next
    int64_t stride[2];
    int64_t step;
    int length;

    DEVICE RowPair(const T* first, const T* second, int64_t first_stride, int64_t second_stride, int64_t row,
                   int64_t step, int length)
        : next{lane_ptr(first + row * first_stride), lane_ptr(second + row * second_stride)},
          stride{first_stride, second_stride}, step(step), length(length) {}

    // `left` counts the rows from the block's (first) current row on.
    DEVICE void start(int64_t left) {
#pragma unroll
        for (int i = 0; i < STAGES; ++i) load(i, left - i * step);
    }
    DEVICE void load(int into, int64_t left) {
        const int count = left > row_slot() ? length : 0;
#pragma unroll
        for (int t = 0; t < 2; ++t) {
            load_vectors<true>(held[t][into], next[t], 0, count);
            next[t] += step * stride[t];
        }
    }
    // Waits for the row AHEAD rows after the current one.
    template <int AHEAD = 0> DEVICE void wait() const {}
    // The lane's vectors of the first (0) or second (1) tensor.
    template <int AHEAD = 0> DEVICE void read(Vector<T, VEC> (&into)[CHUNKS], int which) const {
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) into[c] = held[which][AHEAD][c];
    }
    // All lanes have read the current row.
    DEVICE void release(int64_t) {}
    DEVICE void advance(int64_t left) {
#pragma unroll
        for (int i = 0; i + 1 < STAGES; ++i) {
#pragma unroll
            for (int t = 0; t < 2; ++t) {
#pragma unroll
                for (int c = 0; c < CHUNKS; ++c) held[t][i][c] = held[t][i + 1][c];
            }
        }
        load(STAGES - 1, left - STAGES * step);
    }
};

// A norm's weight as it multiplies: with WEIGHT_OFFSET, the bits of a float, plus that.
DEVICE float offset_weight(float weight) {
#ifdef WEIGHT_OFFSET
    return weight + float_of(WEIGHT_OFFSET);
#else
    return weight;
#endif
}

// A normalized value as it meets the weight: with CAST_BEFORE_WEIGHT rounded to T.
DEVICE float before_weight(float value) {
#ifdef CAST_BEFORE_WEIGHT
    return to_float(from_float<T>(value));
#else
    return value;
#endif
}

// The lane's weights, in registers for all rows; ones where there are none.
struct Scale {
    Vector<W, VEC> held[CHUNKS];

    DEVICE void load(const W* weight, int length) {
        if constexpr (HAS_WEIGHT) load_vectors<false>(held, lane_ptr(weight), 0, length);
    }
    DEVICE float times(float g, int c, int i) const { return HAS_WEIGHT ? g * offset_weight(held[c][i]) : g; }
    DEVICE float add(float g, int c, int i, float sum) const {
        return HAS_WEIGHT ? math_fma(g, offset_weight(held[c][i]), sum) : sum + g;
    }
};

#if defined(__AMDGCN__)
// Stores a wave's sums, eight columns a lane, in two instructions that write neighbouring bytes each: of 32 bytes a
// lane, either would touch every cache line. Lane l gets four of lane l / 2, then of 32 + l / 2. All of the wave's lanes
// call it, of neighbouring columns.
template <class Index>
DEVICE void store_in_order(float* target, Index column, Index length, const float (&sum)[VEC]) {
    const int lane = lane_of_wave();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int from = half * WARP / 2 + lane / 2;
        words<16> four;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float low = shuffle(sum[i], from), high = shuffle(sum[4 + i], from);
            four.w[i] = bits_of(lane % 2 ? high : low);
        }
        const int moved = (half * WARP + lane) * 4 - lane * VEC;
        if (column + moved < length) store_words(target + moved, four);
    }
}
#endif

// Stores the sums of VEC columns from `column` on that lie inside the row, 16 bytes at a time where WIDE.
template <bool WIDE, class Index>
DEVICE void store_sums(float* target, Index column, Index length, const float (&sum)[VEC]) {
    constexpr bool VECTORS = WIDE && VEC > 1 && (!TAIL || ALIGN);
#if defined(__AMDGCN__)
    if constexpr (VECTORS && VEC == 8 && !TAIL && THREADS % WARP == 0) return store_in_order(target, column, length, sum);
#endif
    bool whole = false;
    if constexpr (VECTORS) {
        whole = TAIL ? column + VEC <= length : column < length;
        if (whole) {
#pragma unroll
            for (int i = 0; i < VEC; i += 4) {
                store_words(target + i, words<16>{{bits_of(sum[i]), bits_of(sum[i + 1]), bits_of(sum[i + 2]),
                                                   bits_of(sum[i + 3])}});
            }
        }
    }
    if constexpr (!VECTORS || TAIL) {
#pragma unroll
        for (int i = 0; i < VEC; ++i) {
            if (!whole && inside(column, i, length)) target[i] = sum[i];
        }
    }
}

// Floats of shared memory that `write_columns` needs: none where a block holds one row.
constexpr int COLUMN_SCRATCH = ROWS > 1 ? THREADS * CHUNKS * VEC : 1;

// Adds the sums of a block's row slots, in slot order, and writes them to `target` (length floats). All threads of the
// block call it.
DEVICE void write_columns(const float (&sum)[CHUNKS][VEC], float (&scratch)[COLUMN_SCRATCH], float* target,
                          int length) {
    if constexpr (ROWS == 1) {
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) store_sums<true>(target + chunk_column(c), chunk_column(c), length, sum[c]);
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

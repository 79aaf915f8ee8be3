// Elementwise kernels over rows: LANES threads process a row, CHUNKS vectors each; `across` blocks share a long row,
// and a block processes THREADS / LANES short ones. Contiguous tensors are one long row.
#pragma once

#include "rows.h"

// A thread's work: its row, and the columns from `base` on as far as `length` (zero: there is no row).
struct RowSlice {
    int64_t row;
    int64_t base;
    int64_t length;
};

DEVICE RowSlice row_slice(int64_t rows, int64_t length, int across) {
    const unsigned block = static_cast<unsigned>(block_x());
    const unsigned group = block / static_cast<unsigned>(across);
    const int64_t row = static_cast<int64_t>(group) * ROWS + row_slot();
    const int64_t base = static_cast<int64_t>(block - group * across) * TILE;
    return {row, base, row < rows ? length : 0};
}

// Rounds and stores the lane's vectors, element by element through `value(chunk, i)`.
template <class Value> DEVICE void store_values(T* row, const RowSlice& slice, Value value) {
    T* lane_row = lane_ptr(row) + slice.base;
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
        float rounded[VEC];
#pragma unroll
        for (int i = 0; i < VEC; ++i) rounded[i] = value(c, i);
        store_vector(lane_row + c * CHUNK, slice.base + chunk_column(c), slice.length, rounded);
    }
}

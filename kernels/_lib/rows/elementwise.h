// Elementwise kernels over rows: LANES threads walk a row side by side, CHUNKS vectors each; `across` blocks
// share a long row, and a block takes THREADS / LANES short ones. Contiguous tensors come as one long row.
#pragma once

#include "rows.h"

// Where a thread works: its row, and the columns from `base` on as far as `length` (zero: there is no row).
struct Place {
    int64_t row;
    int64_t base;
    int64_t length;
};

DEVICE Place locate(int64_t rows, int64_t length, int across) {
    const unsigned block = static_cast<unsigned>(block_x());
    const unsigned group = block / static_cast<unsigned>(across);
    const int64_t row = static_cast<int64_t>(group) * ROWS + row_slot();
    const int64_t base = static_cast<int64_t>(block - group * across) * TILE;
    return {row, base, row < rows ? length : 0};
}

// Rounds and stores the lane's vectors, element by element through `value(chunk, i)`.
template <class Value> DEVICE void store_values(T* row, const Place& place, Value value) {
    T* lane_row = at_lane(row) + place.base;
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
        float rounded[VEC];
#pragma unroll
        for (int i = 0; i < VEC; ++i) rounded[i] = value(c, i);
        store_cell(lane_row + c * CHUNK, place.base + chunk_column(c), place.length, rounded);
    }
}

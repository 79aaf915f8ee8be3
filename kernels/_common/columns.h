// Sums over rows, column by column, without atomics: every block writes the sums of its own rows to a float32
// workspace, and column_sum.cu adds the blocks up in their order.
#pragma once

#include "_common/rows.h"

// Floats of shared memory that `write_columns` needs: none where a block holds one row.
constexpr int COLUMN_SCRATCH = ROWS > 1 ? THREADS * CHUNKS * VEC : 1;

// Adds up what the row slots of a block have summed, in slot order, and writes it to `target` (length
// floats). All threads of the block take part.
DEVICE void write_columns(const float (&sum)[CHUNKS][VEC], float (&scratch)[COLUMN_SCRATCH], float* target,
                          int length) {
    if constexpr (ROWS == 1) {
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) {
#pragma unroll
            for (int i = 0; i < VEC; ++i) {
                if (inside(chunk_column(c), i, length)) target[chunk_column(c) + i] = sum[c][i];
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

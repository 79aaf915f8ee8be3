// dz = dy * activation'(z), as activation.cu, and the sums of dz over the rows, column by column, before it is
// rounded. A block takes LANES vectors of columns of up to `most` rows, ROWS rows at a time, UNROLL times; it
// writes its sums to a float32 workspace, and column_sum.cu adds the blocks up in their order.
#include "_lib/rows/rows.h"

#include "activation_derivative.h"

constexpr int WIDTH = LANES * CHUNKS * VEC;

KERNEL(THREADS)
void activation_sums(const T* dy, const T* z, T* dz, float* partial, int64_t rows, int64_t length,
                     int64_t dy_stride, int64_t z_stride, int64_t dz_stride, int across, int64_t most) {
    enter_pdl();
    SHARED float scratch[ROWS][WIDTH];
    const unsigned block = static_cast<unsigned>(block_x());
    const unsigned group = block / static_cast<unsigned>(across);
    const int64_t base = static_cast<int64_t>(block - group * across) * WIDTH;
    const int64_t first = group * most;
    const int64_t last = first + most < rows ? first + most : rows;
    dy = lane_ptr(dy) + base;
    z = lane_ptr(z) + base;
    dz = lane_ptr(dz) + base;

    float sum[CHUNKS][VEC] = {};
    for (int64_t row = first + row_slot(); row < last; row += ROWS * UNROLL) {
        Vector<T, VEC> held_dy[UNROLL][CHUNKS], held_z[UNROLL][CHUNKS];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const int64_t at = row + u * ROWS;
            const int64_t there = at < last ? length : 0;  // a row beyond the last adds zeros
#pragma unroll
            for (int c = 0; c < CHUNKS; ++c) {
                const int64_t column = base + chunk_column(c);
                held_dy[u][c] = load_vector<true>(dy + at * dy_stride + c * CHUNK, column, there);
                held_z[u][c] = load_vector<true>(z + at * z_stride + c * CHUNK, column, there);
            }
        }
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const int64_t at = row + u * ROWS;
            const int64_t there = at < last ? length : 0;
#pragma unroll
            for (int c = 0; c < CHUNKS; ++c) {
                float value[VEC];
#pragma unroll
                for (int i = 0; i < VEC; ++i) {
                    value[i] = backward(held_dy[u][c][i], held_z[u][c][i]);
                    sum[c][i] += value[i];
                }
                store_vector(dz + at * dz_stride + c * CHUNK, base + chunk_column(c), there, value);
            }
        }
    }
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
#pragma unroll
        for (int i = 0; i < VEC; ++i) scratch[row_slot()][chunk_column(c) + i] = sum[c][i];
    }
    barrier();
    for (int column = thread_x(); column < WIDTH && base + column < length; column += THREADS) {
        float total = 0.0f;
#pragma unroll 8
        for (int slot = 0; slot < ROWS; ++slot) total += scratch[slot][column];
        partial[group * length + base + column] = total;
    }
}

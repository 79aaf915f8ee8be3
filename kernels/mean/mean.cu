// The mean of each row, in float32, rounded once: one pass over rows of any length. The order of a row's additions
// follows from its length and alignment alone.
#include "_lib/rows/rows.h"

KERNEL(THREADS)
void mean_forward(const T* x, T* y, int64_t rows, int length, int64_t x_stride) {
    enter_pdl();
    SHARED RowPartial<1> partial;
    const int64_t row = static_cast<int64_t>(row_block()) * ROWS + row_slot();
    const int count = row < rows ? length : 0;
    const T* source = lane_ptr(x + row * x_stride);

    float sum[1] = {0.0f};
    for (int base = 0; base < count; base += static_cast<int>(TILE)) {
        Vector<T, VEC> held[CHUNKS];
        load_vectors<true>(held, source, base, count);    // zeros beyond the row
        float added = 0.0f;
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) {
#pragma unroll
            for (int i = 0; i < VEC; ++i) added += held[c][i];
        }
        sum[0] += added;
    }
    sum_row(sum, partial);
    if (row_lane() == 0 && row < rows) y[row] = from_float<T>(div_rn(sum[0], static_cast<float>(length)));
}

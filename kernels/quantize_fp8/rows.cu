// q and a scale of each row: the row in registers, or (_stream) read twice, the second time backwards.
#include "quantize.h"

#define WHOLE 1
#define WHOLE_STREAM 2

#if PASS == WHOLE
KERNEL(THREADS)
void quantize_rows(const T* x, uint8_t* q, float* scale, int64_t rows, int length, int64_t x_stride, int64_t q_stride,
                   float eps) {
    enter_pdl();
    SHARED RowPartial<1> partial;
    const int64_t row = static_cast<int64_t>(row_block()) * ROWS + row_slot();
    const int count = row < rows ? length : 0;
    Vector<T, VEC> held[CHUNKS];
    load_source<true>(held, lane_ptr(x + X_ROWS * row * x_stride), x_stride, 0, count);    // zeros beyond the row
    const float own = scale_of(amax_of<T>(greatest_of_row(greatest(held), partial)), eps);
    const float inverse = div_rn(1.0f, own);
    if (row_lane() == 0 && row < rows) scale[row] = own;
    uint8_t* target = lane_ptr(q + row * q_stride);
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) store_codes(target + c * CHUNK, chunk_column(c), count, held[c], inverse);
}
#endif

#if PASS == WHOLE_STREAM
KERNEL(THREADS)
void quantize_rows_stream(const T* x, uint8_t* q, float* scale, int64_t length, int64_t x_stride, int64_t q_stride,
                          float eps) {
    enter_pdl();
    SHARED RowPartial<1> partial;
    const T* source = lane_ptr(x + X_ROWS * block_x() * x_stride);
    uint8_t* target = lane_ptr(q + block_x() * q_stride);
    uint32_t most = 0;
    int64_t base = 0;
    for (; base < length; base += TILE) {
        Vector<T, VEC> held[CHUNKS];
        load_source<false>(held, source, x_stride, base, length);
        most = Greatest::of(most, greatest(held));
    }
    const float own = scale_of(amax_of<T>(greatest_of_row(most, partial)), eps);
    const float inverse = div_rn(1.0f, own);
    if (row_lane() == 0) scale[block_x()] = own;
    for (base -= TILE; base >= 0; base -= TILE) {
        Vector<T, VEC> held[CHUNKS];
        load_source<true>(held, source, x_stride, base, length);
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) {
            store_codes(target + base + c * CHUNK, base + chunk_column(c), length, held[c], inverse);
        }
    }
}
#endif

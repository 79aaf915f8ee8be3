// q, a scale and, ASYMMETRIC, a zero point of each row: the row in registers, or (_stream) read twice, the second time
// backwards; and q by a scale and a zero point that are given.
#include "codes.h"

#define WHOLE 1
#define WHOLE_STREAM 2
#define ELEMENTS 3

#if PASS == WHOLE || PASS == WHOLE_STREAM
DEVICE void store_row(const Row& row, int64_t number, float* scale, ZeroPoint* zero_point) {
    scale[number] = row.scale;
#if ASYMMETRIC
    zero_point[number] = static_cast<ZeroPoint>(row.zero);
#endif
}
#endif

#if PASS == WHOLE
KERNEL(THREADS)
void quantize_integers(const T* x, Code* q, float* scale, ZeroPoint* zero_point, int64_t rows, int length,
                       int64_t x_stride, int64_t q_stride, float eps) {
    enter_pdl();
    SHARED Row::Partial partial;
    const int64_t number = static_cast<int64_t>(row_block()) * ROWS + row_slot();
    const int count = number < rows ? length : 0;
    Vector<T, VEC> held[CHUNKS];
    load_vectors<true>(held, lane_ptr(x + number * x_stride), 0, count);    // zeros beyond the row
    Row row;
    row.take(held);
    row.finish(partial, eps);
    if (row_lane() == 0 && number < rows) store_row(row, number, scale, zero_point);
    const Codes codes = row.codes();
    Code* target = q + number * q_stride + code_bytes(row_lane() * VEC);
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
        store_codes(target + code_bytes(c * CHUNK), chunk_column(c), count, held[c], codes);
    }
}
#endif

#if PASS == WHOLE_STREAM
KERNEL(THREADS)
void quantize_integers_stream(const T* x, Code* q, float* scale, ZeroPoint* zero_point, int64_t length,
                              int64_t x_stride, int64_t q_stride, float eps) {
    enter_pdl();
    SHARED Row::Partial partial;
    const T* source = lane_ptr(x + block_x() * x_stride);
    Code* target = q + block_x() * q_stride + code_bytes(row_lane() * VEC);
    Row row;
    int64_t base = 0;
    for (; base < length; base += TILE) {
        Vector<T, VEC> held[CHUNKS];
        load_vectors<false>(held, source, base, length);
        row.take(held);
    }
    row.finish(partial, eps);
    if (row_lane() == 0) store_row(row, block_x(), scale, zero_point);
    const Codes codes = row.codes();
    for (base -= TILE; base >= 0; base -= TILE) {
        Vector<T, VEC> held[CHUNKS];
        load_vectors<true>(held, source, base, length);
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) {
            store_codes(target + code_bytes(base + c * CHUNK), base + chunk_column(c), length, held[c], codes);
        }
    }
}
#endif

#if PASS == ELEMENTS
KERNEL(THREADS)
void quantize_int8_elements(const T* x, const float* scale, const int* zero_point, int8_t* q, int64_t rows,
                            int64_t length, int64_t x_stride, int64_t q_stride, int across) {
    enter_pdl();
    const RowSlice slice = row_slice(rows, length, across);
    Vector<T, VEC> held[CHUNKS];
    load_vectors<true>(held, lane_ptr(x + slice.row * x_stride), slice.base, slice.length);
#if ASYMMETRIC
    const int given = *zero_point;
    const int zero = given < -128 ? -128 : given > 127 ? 127 : given;
#else
    const int zero = 0;
#endif
    const Codes codes(*scale, zero, false);
    int8_t* target = lane_ptr(q + slice.row * q_stride) + slice.base;
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
        store_codes(target + c * CHUNK, slice.base + chunk_column(c), slice.length, held[c], codes);
    }
}
#endif

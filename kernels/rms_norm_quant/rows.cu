// q and a scale of each row's rms_norm: the row in registers, or (_stream) read three times, the second time backwards.
//
// The norm is rounded to T, in the place of the row, before its greatest magnitude is taken. HAS_WEIGHT and
// WEIGHT_OFFSET are rms_norm's, FORMAT and POWER_OF_2 quantize.h's. ADD = 1 (fused_add_rms_norm_quant): the row is
// x + residual, rounded to T and stored as new_residual.
#define CENTERED 0
#define HAS_BIAS 0
#include "quantize_fp8/quantize.h"    // before the norm's headers: it says where vectors may lie
#include "_lib/rows/norm_rows.h"
#include "rms_norm/rms.h"

#if PASS == FORWARD
KERNEL(THREADS)
void rms_norm_quant(const T* x, const W* weight, uint8_t* q, float* scale, ADDED_ROWS int64_t rows, int length,
                    int64_t x_stride, int64_t q_stride, ADDED_STRIDES float eps, float scale_eps) {
    enter_pdl();
    SHARED RowPartial<1> squares;
    SHARED RowPartial<1> most;
    const int64_t row = static_cast<int64_t>(row_block()) * ROWS + row_slot();
    const int count = row < rows ? length : 0;

    Vector<T, VEC> held[CHUNKS];
    load_vectors<true>(held, lane_ptr(x + row * x_stride), 0, count);
    const Parameters<int, PREFETCH_PARAMETERS> parameters{lane_ptr(weight), nullptr, 0, count};    // before any wait
#if ADD
    add_rows(held, lane_ptr(residual + row * residual_stride), lane_ptr(new_residual + row * new_residual_stride), 0,
             count);
#endif
    float sum[1] = {lane_squares(held)};
    sum_row(sum, squares);
    rematerialize(held, rows);

    const float r = length > 0 ? inverse_rms(sum[0], length, eps) : 0.0f;    // of no columns there is no mean
    normalize<false>(held, parameters, nullptr, 0, count, 0.0f, r);
    const float own = scale_of(amax_of<T>(greatest_of_row(greatest(held), most)), scale_eps);
    const float inverse = div_rn(1.0f, own);
    if (row_lane() == 0 && row < rows) scale[row] = own;
    uint8_t* target = lane_ptr(q + row * q_stride);
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) store_codes(target + c * CHUNK, chunk_column(c), count, held[c], inverse);
}
#endif

#if PASS == FORWARD_STREAM
KERNEL(THREADS)
void rms_norm_quant_stream(const T* x, const W* weight, uint8_t* q, float* scale, ADDED_ROWS int64_t length,
                           int64_t x_stride, int64_t q_stride, ADDED_STRIDES float eps, float scale_eps) {
    enter_pdl();
    SHARED RowPartial<1> squares;
    SHARED RowPartial<1> partial;
    const T* source = lane_ptr(x + block_x() * x_stride);
    uint8_t* target = lane_ptr(q + block_x() * q_stride);
#if ADD
    const T* other = lane_ptr(residual + block_x() * residual_stride);
    T* sums = lane_ptr(new_residual + block_x() * new_residual_stride);
#endif
    float sum[1] = {0.0f};
    int64_t base = 0;
    for (; base < length; base += TILE) {
        Vector<T, VEC> held[CHUNKS];
        load_vectors<false>(held, source, base, length);
#if ADD
        add_rows(held, other, sums, base, length);
#endif
        sum[0] += lane_squares(held);
    }
    sum_row(sum, squares);
#if ADD
    source = sums;    // every lane reads what it wrote itself
#endif
    const float r = inverse_rms(sum[0], length, eps);

    uint32_t most = 0;
    for (base -= TILE; base >= 0; base -= TILE) {
        Vector<T, VEC> held[CHUNKS];
        load_vectors<false>(held, source, base, length);
        const Parameters<int64_t> parameters{lane_ptr(weight), nullptr, base, length};
        normalize<false>(held, parameters, nullptr, base, length, 0.0f, r);
        most = Greatest::of(most, greatest(held));
    }
    const float own = scale_of(amax_of<T>(greatest_of_row(most, partial)), scale_eps);
    const float inverse = div_rn(1.0f, own);
    if (row_lane() == 0) scale[block_x()] = own;

    for (base = 0; base < length; base += TILE) {
        Vector<T, VEC> held[CHUNKS];
        load_vectors<true>(held, source, base, length);
        const Parameters<int64_t> parameters{lane_ptr(weight), nullptr, base, length};
        normalize<false>(held, parameters, nullptr, base, length, 0.0f, r);
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) {
            store_codes(target + base + c * CHUNK, base + chunk_column(c), length, held[c], inverse);
        }
    }
}
#endif

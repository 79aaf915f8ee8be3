// The reduction of split-K: adds the partial sums of matmul_mfma's parts in the order of k, applies the epilogue and
// stores c. A thread finishes 8 columns of a row of the product; of gate and up, 4 of either.
//
// -DTHREADS: the block's threads. The other defines: output.h, epilogue.h.
#include "matmul/gfx/output.h"

constexpr int RUN = 8;

// `row`: floats from one row of the partial sums to the next, a multiple of RUN; `apart`: from one part's to the next's.
KERNEL(THREADS)
void matmul_splitk_reduce(const float* partials, T* c, Z_PARAMETER(T) const T* bias, int M, int N, int parts,
                          int64_t row, int64_t apart, int64_t c_row, int64_t c_col) {
    T* const before = Z_ARGUMENT;
    const Output output = {c, before, bias, c_row, c_col, M, N};
    const int64_t index = static_cast<int64_t>(block_x()) * THREADS + thread_x();
    const int m = static_cast<int>(index / (row / RUN)), n = static_cast<int>(index % (row / RUN)) * RUN;
    if (m >= M) {
        return;
    }
    const float* from = partials + m * row + n;
    float sums[RUN] = {};
#pragma unroll 4
    for (int part = 0; part < parts; ++part, from += apart) {
        const words<16> low = load_words<16>(from), high = load_words<16>(from + RUN / 2);
#pragma unroll
        for (int i = 0; i < RUN / 2; ++i) {
            sums[i] += __builtin_bit_cast(float, low.w[i]);
            sums[i + RUN / 2] += __builtin_bit_cast(float, high.w[i]);
        }
    }
#if GATED
    float gate[RUN / 2], up[RUN / 2];
    for (int i = 0; i < RUN / 2; ++i) {
        gate[i] = sums[i];
        up[i] = sums[i + RUN / 2];
    }
    store_gated_run(output, m, n / 2, gate, up);
#else
    float values[RUN];
    load_bias(output, n, values);
    store_run(output, m, n, sums, values);
#endif
}

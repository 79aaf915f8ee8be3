// Before sm80/bwd.cu, gfx/bwd.hip and gfx/dbias.hip, per query: lse_log2, its lse in base 2, and
// delta = sum(do * o) - dlse. A query that sees no key gets an infinite lse_log2, with which every P is 0. 16 lanes
// take a row.
//
// Defines: ELEMENT (bf16, f16); COPY_BYTES: 16 where rows are aligned to that, and on AMD, else 2; DLSE; PARAMS_LAYOUT
// (params.h).
#include "prelude.h"

#ifndef __CUDACC_RTC__
#include "_lib/amdgcn/lds.h"
#endif
#include "params.h"
#include "softmax.h"

using T = ELEMENT;
constexpr int THREADS = 256;
constexpr int LANES = 16, ROWS = THREADS / LANES;
constexpr int RUN = COPY_BYTES / sizeof(T);  // elements at a time
// Of a head, `stats` has pairs on NVIDIA, and on AMD every lse_log2 and then every delta: a lane reads those of eight
// neighbours (as pairs dk and dv take up to 6 more registers; gfx950, 2026-11-23).
#ifdef __CUDACC_RTC__
constexpr bool PAIRS = true;
#else
constexpr bool PAIRS = false;
#endif

DEVICE float dot_chunks(const words<16>& a, const words<16>& b) {
    const auto x = __builtin_bit_cast(vec<T, 8>, a), y = __builtin_bit_cast(vec<T, 8>, b);
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) sum = math_fma(to_float(x.v[i]), to_float(y.v[i]), sum);
    return sum;
}

// The sum of RUN products, of which the first `there` exist.
DEVICE float dot(const T* a, const T* b, int there) {
#ifdef __CUDACC_RTC__
    if (RUN == 8 && there >= RUN) return dot_chunks(load_words<16>(a), load_words<16>(b));
    float sum = 0;
    for (int i = 0; i < RUN && i < there; ++i) sum = math_fma(to_float(a[i]), to_float(b[i]), sum);
    return sum;
#else
    return dot_chunks(load_bounded<16>(a, there), load_bounded<16>(b, there));
#endif
}

// NaN as arithmetic makes it: gfx/ rounds gradients of scores as if there were no other (gfx/tiles.h).
DEVICE float plain_nan(float x) {
#ifdef __CUDACC_RTC__
    return x;
#else
    return x != x ? __builtin_nanf("") : x;
#endif
}

// `tiles`: of a head's queries.
KERNEL(THREADS) void attention_bwd_preprocess(const AttentionParams params, int tiles) {
    const AttentionParams& p = params;
    const int heads = p.heads, queries = p.seqlen_q, columns = p.head_dim_v;
    const T *dout = static_cast<const T*>(p.dout), *out = static_cast<const T*>(p.o);
    const int64_t batch_head = block_x() / tiles, batch = batch_head / heads, head = batch_head % heads;
    const int64_t row = block_x() % tiles * ROWS + thread_x() / LANES;
    const int lane = thread_x() % LANES;
    const bool inside = row < queries;
    float sum = 0;
    if (inside) {
        dout += batch * p.dout_batch + head * p.dout_head + row * p.dout_row;
        out += batch * p.o_batch + head * p.o_head + row * p.o_row;
        for (int column = lane * RUN; column < columns; column += LANES * RUN)
            sum += dot(dout + column, out + column, columns - column);
    }
#pragma unroll
    for (int apart = 1; apart < LANES; apart *= 2) sum += shuffle_xor(sum, apart);
    if (inside && lane == 0) {
        const float natural = p.lse[batch * p.lse_batch + head * p.lse_head + row * p.lse_row];
        const float dlse = DLSE ? p.dlse[batch * p.dlse_batch + head * p.dlse_head + row * p.dlse_row] : 0;
        float* const stats = p.stats + batch_head * 2 * queries + row * (PAIRS ? 2 : 1);
        stats[0] = natural == -INF_F ? INF_F : plain_nan(natural * LOG2_E);
        stats[PAIRS ? 1 : queries] = plain_nan(sum - dlse);
    }
}

// Before bwd.hip, per query: lse_log2, its lse in base 2, and delta = sum(do * o) - dlse. A query that sees no key
// gets an infinite lse_log2, with which every P is 0. 16 lanes take a row.
//
// Defines: ELEMENT (bf16, f16); DLSE; PARAMS_LAYOUT (params.h).
#include "_lib/amdgcn/lds.h"
#include "attention/device/params.h"
#include "attention/device/softmax.h"

using T = ELEMENT;
constexpr int THREADS = 256;
constexpr int LANES = 16, ROWS = THREADS / LANES, ELEMENTS = 8;

// `tiles`: of a head's queries.
KERNEL(THREADS)
void attention_bwd_preprocess(const AttentionParams params, float* lse_log2, float* delta, int tiles) {
    const AttentionParams& p = params;
    const int queries = p.seqlen_q, columns = p.head_dim_v;
    const int64_t batch_head = block_x() / tiles, batch = batch_head / p.heads, head = batch_head % p.heads;
    const int64_t row = block_x() % tiles * ROWS + thread_x() / LANES;
    const int lane = thread_x() % LANES;
    const bool inside = row < queries;
    float sum = 0;
    if (inside) {
        const T* const dout = static_cast<const T*>(p.dout) + batch * p.dout_batch + head * p.dout_head + row * p.dout_row;
        const T* const out = static_cast<const T*>(p.o) + batch * p.o_batch + head * p.o_head + row * p.o_row;
        for (int column = lane * ELEMENTS; column < columns; column += LANES * ELEMENTS) {
            const auto d = __builtin_bit_cast(vec<T, ELEMENTS>, load_bounded<16>(dout + column, columns - column));
            const auto o = __builtin_bit_cast(vec<T, ELEMENTS>, load_bounded<16>(out + column, columns - column));
            for (int i = 0; i < ELEMENTS; ++i) {
                sum = math_fma(to_float(d.v[i]), to_float(o.v[i]), sum);
            }
        }
    }
    for (int apart = 1; apart < LANES; apart *= 2) {
        sum += shuffle_xor(sum, apart);
    }
    if (inside && lane == 0) {
        const float natural = p.lse[batch * p.lse_batch + head * p.lse_head + row * p.lse_row];
        const float lse_gradient = DLSE ? p.dlse[batch * p.dlse_batch + head * p.dlse_head + row * p.dlse_row] : 0;
        lse_log2[batch_head * queries + row] = natural == -INF_F ? INF_F : natural * LOG2_E;
        delta[batch_head * queries + row] = sum - lse_gradient;
    }
}

// Before bwd.cu, per query: its lse as a power of two, and delta = sum(do * o) - dlse. A query that sees no
// key gets an infinite lse, with which every weight is 0. 16 lanes take a row.
//
// Defines: ELEMENT (bf16, f16); COPY_BYTES: 16 where rows are aligned to that, else 2; DLSE; PARAMS_LAYOUT
// (params.h).
#include "prelude.h"

#include "attention/device/params.h"
#include "attention/device/softmax.h"
#include "tiles.h"

using T = ELEMENT;
constexpr int THREADS = 256;
constexpr int LANES = 16, ROWS = THREADS / LANES;
constexpr int RUN = COPY_BYTES / 2;  // elements at a time

DEVICE float times(const T* a, const T* b, int there) {
    if (RUN == 8 && there >= RUN) return product_of<T>(load_words<16>(a), load_words<16>(b));
    float sum = 0;
    for (int i = 0; i < RUN && i < there; ++i) sum = math_fma(to_float(a[i]), to_float(b[i]), sum);
    return sum;
}

// `tiles`: of a head's queries.
KERNEL(THREADS) void attention_bwd_preprocess_sm80(const AttentionParams params, int tiles) {
    const AttentionParams& p = params;
    const int heads = p.heads, queries = p.seqlen_q, columns = p.head_dim_v;
    const T *dout = static_cast<const T*>(p.dout), *out = static_cast<const T*>(p.o);
    const int64_t line = block_x() / tiles, batch = line / heads, head = line % heads;
    const int64_t row = block_x() % tiles * ROWS + thread_x() / LANES;
    const int lane = thread_x() % LANES;
    const bool inside = row < queries;
    float sum = 0;
    if (inside) {
        dout += batch * p.dout_batch + head * p.dout_head + row * p.dout_row;
        out += batch * p.o_batch + head * p.o_head + row * p.o_row;
        for (int column = lane * RUN; column < columns; column += LANES * RUN)
            sum += times(dout + column, out + column, columns - column);
    }
#pragma unroll
    for (int apart = 1; apart < LANES; apart *= 2) sum += shuffle_xor(sum, apart);
    if (inside && lane == 0) {
        const float base = p.lse[batch * p.lse_batch + head * p.lse_head + row * p.lse_row];
        const float given = DLSE ? p.dlse[batch * p.dlse_batch + head * p.dlse_head + row * p.dlse_row] : 0;
        float* const to = p.stats + (line * queries + row) * 2;
        to[0] = base == -INF_F ? INF_F : base * LOG2_E;
        to[1] = sum - given;
    }
}

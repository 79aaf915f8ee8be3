// Before bwd.cu and bwd_hdim256.cu: the statistics of each query.
//
// Defines: bwd_seqlen_info.h's; DLSE; DQ_ACCUM: dq is accumulated in float32 by blocks that wait for one another.
#include "bwd_seqlen_info.h"

constexpr int THREADS = 256;

// Per pair of queries: both lse in base 2, less P_SCALE_LOG2, then both delta = (rowsum(do * o) - dlse) * P_UNSCALE. A
// query that sees no key, or is none, gets an lse of +inf, so that its P are 0. With DQ_ACCUM also clears the
// semaphores of dq and, but for VARLEN, the count of claimed tiles.
KERNEL(THREADS) void attention_bwd_preprocess_sm90(
    const __grid_constant__ AttentionParams params, uint32_t* semaphore, uint32_t* claimed, int lines) {
    const AttentionParams& p = params;
    const T *dout = static_cast<const T*>(p.dout), *out = static_cast<const T*>(p.o);
    const float *lse = p.lse, *dlse = p.dlse;
    const int heads = p.heads, columns = p.head_dim_v;
    int queries = p.seqlen_q;
    constexpr int LANES = HEAD / 8;  // of a row, 16 bytes each
    constexpr int ROWS = THREADS / LANES, PASSES = QUERIES / ROWS;
    int query_block;
    int64_t batch, head;
    if constexpr (VARLEN) {
        const int z = sequence_at(p.bounds, p.offsets, block_x() % lines, QUERIES);
        const Sequence own = sequence_of(p.bounds, z, p.offsets);
        query_block = block_x() % lines - line_of(own, z, QUERIES);
        batch = 0, head = block_x() / lines;
        queries = own.queries;
        if (query_block * QUERIES >= queries) return;
        dout += own.first_query * p.dout_row;
        out += own.first_query * p.o_row;
        lse += own.first_query * p.lse_row;
        if (DLSE) dlse += own.first_query * p.dlse_row;
    } else {
        const int blocks = (queries + QUERIES - 1) / QUERIES, line = block_x() / blocks;
        query_block = block_x() % blocks;
        batch = line / heads, head = line % heads;
    }
    const int lane = thread_x() % LANES;
    dout += batch * p.dout_batch + head * p.dout_head + lane * 8;
    out += batch * p.o_batch + head * p.o_head + lane * 8;
    words<16> d[PASSES], o[PASSES];
    float base[PASSES], given[PASSES];
#pragma unroll
    for (int pass = 0; pass < PASSES; ++pass) {
        const int64_t row = query_block * QUERIES + pass * ROWS + thread_x() / LANES;
        if (row < queries && lane * 8 < columns) {
            d[pass] = load_words<16>(dout + row * p.dout_row);
            o[pass] = load_words<16>(out + row * p.o_row);
            base[pass] = lse[batch * p.lse_batch + head * p.lse_head + row * p.lse_row];
            given[pass] = DLSE ? dlse[batch * p.dlse_batch + head * p.dlse_head + row * p.dlse_row] : 0;
        } else {
            d[pass] = o[pass] = {};
            base[pass] = INF_F;
            given[pass] = 0;
        }
    }
    float* const stats = p.stats + static_cast<int64_t>(block_x()) * QUERIES * 2;
#pragma unroll
    for (int pass = 0; pass < PASSES; ++pass) {
        float delta = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const uint32_t x = d[pass].w[i], y = o[pass].w[i];
            delta += to_float(T{static_cast<uint16_t>(x)}) * to_float(T{static_cast<uint16_t>(y)});
            delta += to_float(T{static_cast<uint16_t>(x >> 16)}) * to_float(T{static_cast<uint16_t>(y >> 16)});
        }
#pragma unroll
        for (int apart = 1; apart < LANES; apart *= 2) delta += shuffle_xor(delta, apart);
        const int local = pass * ROWS + thread_x() / LANES;
        if (lane == 0) {
            const float value = base[pass] == -INF_F ? INF_F : base[pass] * LOG2_E - P_SCALE_LOG2;
            float* to = stats + local / 2 * 4 + local % 2;
            to[0] = value;
            to[2] = value == INF_F ? 0 : (delta - given[pass]) * P_UNSCALE;
        }
    }
    if constexpr (DQ_ACCUM) {
        if (!VARLEN && block_x() == 0 && thread_x() == 1) *claimed = 0;
        if (thread_x() == 0) semaphore[block_x()] = 0;
    }
}

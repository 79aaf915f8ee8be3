// Before and after bwd.cu: what it needs of each query, and dq from its float32 sums. Before bwd_hdim256.cu,
// which has no such sums, as well.
//
// Defines: bwd.h's; DLSE; DQ_SUMS: there are sums of dq.
#include "bwd.h"

constexpr int THREADS = 256;

// Per pair of queries: both lse in base 2, less LIFT, then both delta = (rowsum(do * o) - dlse) * LOWERED. A query
// that sees no key, or is none, gets an lse of +inf, so that its probabilities are 0. With DQ_SUMS also clears the turns
// of dq and, but for RAGGED, the count of claimed tiles.
KERNEL(THREADS) void attention_backward_prepare(
    const T* dout, const T* out, const float* lse, const float* dlse, float* stats,
#if DQ_SUMS
    uint32_t* turns, uint32_t* claimed,
#endif
    int queries, int heads, int columns, int64_t dout_batch, int64_t dout_head, int64_t dout_row,
    int64_t out_batch, int64_t out_head, int64_t out_row, int64_t lse_batch, int64_t lse_head, int64_t lse_row,
    int64_t dlse_batch, int64_t dlse_head, int64_t dlse_row
#if RAGGED
    , const int* bounds, int count, int lines
#endif
) {
    constexpr int LANES = HEAD / 8;  // of a row, 16 bytes each
    constexpr int ROWS = THREADS / LANES, PASSES = QUERIES / ROWS;
#if RAGGED
    const int z = sequence_at(bounds, count, block_x() % lines, QUERIES);
    const Sequence own = sequence_of(bounds, z, count);
    const int query_block = block_x() % lines - line_of(own, z, QUERIES);
    const int64_t batch = 0, head = block_x() / lines;
    queries = own.queries;
    if (query_block * QUERIES >= queries) return;
    dout += own.first_query * dout_row;
    out += own.first_query * out_row;
    lse += own.first_query * lse_row;
    dlse += own.first_query * dlse_row;
#else
    const int blocks = (queries + QUERIES - 1) / QUERIES;
    const int query_block = block_x() % blocks, line = block_x() / blocks;
    const int64_t batch = line / heads, head = line % heads;
#endif
    const int lane = thread_x() % LANES;
    dout += batch * dout_batch + head * dout_head + lane * 8;
    out += batch * out_batch + head * out_head + lane * 8;
    words<16> d[PASSES], o[PASSES];
    float base[PASSES], given[PASSES];
#pragma unroll
    for (int pass = 0; pass < PASSES; ++pass) {
        const int64_t row = query_block * QUERIES + pass * ROWS + thread_x() / LANES;
        if (row < queries && lane * 8 < columns) {
            d[pass] = load_words<16>(dout + row * dout_row);
            o[pass] = load_words<16>(out + row * out_row);
            base[pass] = lse[batch * lse_batch + head * lse_head + row * lse_row];
            given[pass] = DLSE ? dlse[batch * dlse_batch + head * dlse_head + row * dlse_row] : 0;
        } else {
            d[pass] = o[pass] = {};
            base[pass] = INF_F;
            given[pass] = 0;
        }
    }
    stats += static_cast<int64_t>(block_x()) * QUERIES * 2;
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
            const float value = base[pass] == -INF_F ? INF_F : base[pass] * 1.44269504088896341f - LIFT;
            float* to = stats + local / 2 * 4 + local % 2;
            to[0] = value;
            to[2] = value == INF_F ? 0 : (delta - given[pass]) * LOWERED;
        }
    }
#if DQ_SUMS
#if !RAGGED
    if (block_x() == 0 && thread_x() == 1) *claimed = 0;
#endif
    if (thread_x() == 0) turns[block_x()] = 0;
#endif
}

#if DQ_SUMS
// dq = scale * its sums, which lie as the threads of a warpgroup held them: float4 c of thread t at
// c * 128 + t.
KERNEL(THREADS) void attention_backward_finish(const float* sums, const uint32_t* turns, T* dq, float scale,
                                               int queries, int heads, int columns, int64_t dq_batch,
                                               int64_t dq_head, int64_t dq_row
#if RAGGED
                                               , const int* bounds, int count, int lines
#endif
) {
    SHARED alignas(1024) char staged[2 * 64 * LINE];
#if RAGGED
    const int z = sequence_at(bounds, count, block_x() % lines, QUERIES);
    const Sequence own = sequence_of(bounds, z, count);
    const int query_block = block_x() % lines - line_of(own, z, QUERIES), line = block_x() / lines;
    queries = own.queries;
    if (query_block * QUERIES >= queries) return;
    dq += own.first_query * dq_row;
#else
    const int blocks = (queries + QUERIES - 1) / QUERIES;
    const int query_block = block_x() % blocks, line = block_x() / blocks;
#endif
    const int part = thread_x() / 128, thread = thread_x() % 128;
    const bool written = turns[block_x()] > 0;  // else no key is seen by any of the queries
    sums += (static_cast<int64_t>(block_x()) * 2 + part) * PART;
    words<16> held[8];
#pragma unroll
    for (int c = 0; c < 8; ++c) {
        if (written) held[c] = load_words<16>(sums + (c * 128 + thread) * 4);
        else held[c] = {};
    }
    uint32_t packed[16];
#pragma unroll
    for (int c = 0; c < 8; ++c) {
#pragma unroll
        for (int down = 0; down < 2; ++down)
            packed[c * 2 + down] = pack2<T>(float_of(held[c].w[down * 2]) * scale,
                                            float_of(held[c].w[down * 2 + 1]) * scale);
    }
    const uint32_t at = shared_address(staged) + part * 64 * LINE;
    stage_block(at, packed, thread_x());
    barrier();
    dq += line / heads * dq_batch + line % heads * dq_head;
    const int first_row = query_block * QUERIES + (HEAD_BLOCKS == 1 ? part * 64 : 0);
    const int col = (HEAD_BLOCKS == 1 ? 0 : part * 64) + thread % 8 * 8;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int local = i * 16 + thread / 8;
        const char* from = staged + part * 64 * LINE + local * LINE + (thread % 8 ^ local % 8) * 16;
        const int64_t row = first_row + local;
        if (row < queries && col < columns) store_words(dq + row * dq_row + col, load_words<16>(from));
    }
}
#endif

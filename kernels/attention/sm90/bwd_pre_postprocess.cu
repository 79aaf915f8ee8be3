// Before bwd.cu and bwd_hdim256.cu the statistics of each query, and for varlen of large heads the places of dS; after
// bwd.cu dq from its float32 accumulator.
//
// Defines: bwd.h's; DLSE; DQ_ACCUM: dq is accumulated in float32 by blocks that wait for one another.
#include "_lib/ptx/shared_address.h"
#include "bwd.h"

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

// dq = scale * its sums, which lie as the threads of a warpgroup held them: float4 c of thread t at
// c * 128 + t.
KERNEL(THREADS) void attention_bwd_postprocess_sm90(const __grid_constant__ AttentionParams params,
                                                    const float* dq_accum, const uint32_t* semaphore, int lines) {
    const AttentionParams& p = params;
    T* dq = static_cast<T*>(p.dq);
    const int heads = p.heads, columns = p.head_dim;
    const float scale = p.scale;
    int queries = p.seqlen_q;
    SHARED alignas(1024) char staged[2 * 64 * SWIZZLE_BYTES];
    int query_block, line;
    if constexpr (VARLEN) {
        const int z = sequence_at(p.bounds, p.offsets, block_x() % lines, QUERIES);
        const Sequence own = sequence_of(p.bounds, z, p.offsets);
        query_block = block_x() % lines - line_of(own, z, QUERIES), line = block_x() / lines;
        queries = own.queries;
        if (query_block * QUERIES >= queries) return;
        dq += own.first_query * p.dq_row;
    } else {
        const int blocks = (queries + QUERIES - 1) / QUERIES;
        query_block = block_x() % blocks, line = block_x() / blocks;
    }
    const int part = thread_x() / 128, thread = thread_x() % 128;
    const bool written = semaphore[block_x()] > 0;  // else no key is seen by any of the queries
    const float* const sums = dq_accum + (static_cast<int64_t>(block_x()) * 2 + part) * PART;
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
    const uint32_t at = shared_address(staged) + part * 64 * SWIZZLE_BYTES;
    stage_block(at, packed, thread_x());
    barrier();
    dq += line / heads * p.dq_batch + line % heads * p.dq_head;
    const int first_row = query_block * QUERIES + (HEAD_BLOCKS == 1 ? part * 64 : 0);
    const int col = (HEAD_BLOCKS == 1 ? 0 : part * 64) + thread % 8 * 8;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int local = i * 16 + thread / 8;
        const char* from = staged + part * 64 * SWIZZLE_BYTES + local * SWIZZLE_BYTES + (thread % 8 ^ local % 8) * 16;
        const int64_t row = first_row + local;
        if (row < queries && col < columns) store_words(dq + row * p.dq_row + col, load_words<16>(from));
    }
}

// --- varlen, heads above 128: where dS of each sequence lies in its workspace, and which chunks it takes; one block ---

// The workspace holds `slots` blocks of dS.
KERNEL(THREADS)
void attention_varlen_workspace_offsets(const __grid_constant__ AttentionParams params, int* workspace_offsets,
                                        int* chunk_layout, int reach, int slots) {
    const AttentionParams& p = params;
    const int kv_heads = p.kv_heads, qheads_per_kvhead = p.qheads_per_kvhead;
    SHARED int line[THREADS];
    const int thread = thread_x(), sequences = p.offsets + 1;
    int all = 0;
    for (int start = 0; start < sequences; start += THREADS) {
        const int z = start + thread;
        int own = 0;
        if (z < sequences) {
            const Sequence found = sequence_of(p.bounds, z, p.offsets);
            own = ds_rows_of(found, reach, p.left, p.right).before((found.keys + KEYS - 1) / KEYS);
        }
        line[thread] = own;
        barrier();
        for (int apart = 1; apart < THREADS; apart *= 2) {
            const int before = thread >= apart ? line[thread - apart] : 0;
            barrier();
            line[thread] += before;
            barrier();
        }
        if (z < sequences) workspace_offsets[z] = all + line[thread] - own;
        all += line[THREADS - 1];
        barrier();
    }
    if (thread != 0) return;
    const int room = slots / qheads_per_kvhead;  // of a query head, with one key head at a time
    if (all <= room) {
        const int fit = all > 0 ? BwdSeqlenInfo::min(kv_heads, room / all) : kv_heads;
        const int chunks = (kv_heads + fit - 1) / fit;
        chunk_layout[0] = (kv_heads + chunks - 1) / chunks;
        chunk_layout[1] = 1;
        chunk_layout[2] = chunk_layout[3] = all;
    } else {
        const int part = room - reach;  // a row that begins in a part ends within a row's length of it
        chunk_layout[0] = 1;
        chunk_layout[1] = (all + part - 1) / part;
        chunk_layout[2] = room;
        chunk_layout[3] = part;
    }
}

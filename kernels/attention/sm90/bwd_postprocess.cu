// After bwd.cu: dq from its float32 accumulator.
//
// Defines: bwd_seqlen_info.h's.
#include "_lib/ptx/shared_address.h"
#include "bwd_epilogue.h"

constexpr int THREADS = 256;

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

// dq for heads above 128: dS from its workspace, transposed, @ k.
//
// A block owns 128 queries of one head, 64 for each of two warpgroups, and walks the chunk's blocks of keys that they
// see; one thread copies. What one chunk leaves in float32 the next one of the same heads goes on from.
//
// Defines: bwd.h's; HEAD_D, the columns of q and k (a multiple of 64); STAGES.
#include "_lib/ptx/registers.h"
#include "_lib/ptx/wgmma.h"
#include "bwd_mainloop.h"

static_assert(KEYS == 64 && QUERIES == 64, "a warpgroup's products have 64 rows");
constexpr int CONSUMERS = 2;
constexpr int THREADS = (1 + CONSUMERS) * 128;
constexpr int K_BYTES = KEYS * HEAD_D * 2;
constexpr int STAGE_BYTES = K_BYTES + CONSUMERS * DS_BYTES;

// The chunk's blocks of keys, from `first` to before `end`, that any of some blocks of queries sees.
struct Span {
    int first, end;

    DEVICE Span(const BwdSeqlenInfo& seqlen, const Chunk& chunk, int query_block, int count) {
        const int from = query_block * QUERIES, to = BwdSeqlenInfo::min(from + count * QUERIES, seqlen.queries) - 1;
        first = BwdSeqlenInfo::max(chunk.block, BwdSeqlenInfo::floor_div(from + seqlen.offset() - seqlen.left, KEYS));
        end = BwdSeqlenInfo::min(chunk.block + chunk.blocks,
                                 BwdSeqlenInfo::floor_div(to + seqlen.offset() + seqlen.right, KEYS) + 1);
        if (from > to || end < first) end = first;
    }
    DEVICE bool holds(int key_block) const { return first <= key_block && key_block < end; }
};

struct Stages {
    uint32_t data, barriers;

    DEVICE uint32_t keys(int stage) const { return data + stage * STAGE_BYTES; }
    DEVICE uint32_t ds(int stage, int consumer) const { return keys(stage) + K_BYTES + consumer * DS_BYTES; }
    DEVICE uint32_t full(int stage) const { return barriers + stage * 16; }
    DEVICE uint32_t empty(int stage) const { return full(stage) + 8; }
    DEVICE uint32_t partial() const { return full(STAGES); }  // filled, but for keys that are not the sequence's own
};

struct Out {
    const TensorMap* map;
    GlobalRows rows;  // varlen
};

// Clears the keys beyond the sequence's end, if they are among those that are walked.
DEVICE void zero_tail(const Stages& stages, const Chunk& chunk, const BwdSeqlenInfo& seqlen, int query_block) {
    const Span all(seqlen, chunk, query_block, CONSUMERS);
    if (all.first == all.end || !seqlen.partial_keys(all.end - 1)) return;
    const int stage = (all.end - 1 - all.first) % STAGES;
    zero_rows<HEAD_D>(stages.keys(stage), seqlen.keys - (all.end - 1) * KEYS, KEYS, stages.partial(), 0,
                      stages.full(stage));
}

DEVICE void load(const Stages& stages, const TensorMap* map_k, T* ds_workspace, const Chunk& chunk,
                 const BwdSeqlenInfo& seqlen, int query_block, int chunk_head, int kv_head, int batch) {
    const Span all(seqlen, chunk, query_block, CONSUMERS);
    int step = 0;
#pragma unroll 1
    for (int block = all.first; block < all.end; ++block, ++step) {
        const int stage = step % STAGES, lowest = seqlen.lowest(block * KEYS);
        uint32_t full = stages.full(stage);
        if (VARLEN && seqlen.partial_keys(block)) full = stages.partial();
        // The blocks of queries that see these keys.
        const int first = BwdSeqlenInfo::max(lowest, query_block);
        const int last = BwdSeqlenInfo::min(seqlen.highest(block * KEYS), query_block + CONSUMERS - 1);
        mbarrier_wait(stages.empty(stage), step / STAGES & 1 ^ 1);
        mbarrier_arrive_expect_tx(full, K_BYTES + BwdSeqlenInfo::max(0, last - first + 1) * DS_BYTES);
        load_rows<HEAD_D, 64>(stages.keys(stage), map_k, full, block * KEYS + seqlen.first_key, kv_head, batch);
        for (int i = first; i <= last; ++i)
            bulk_copy_g2s(stages.ds(stage, i - query_block),
                          ds_block(ds_workspace, chunk, chunk_head, block, i - lowest), DS_BYTES, full);
    }
}

// `sums` are the tile's, float4 c of a warpgroup's thread t at c * 128 + t.
DEVICE void multiply(const Stages& stages, const Out& out, const Chunk& chunk, const BwdSeqlenInfo& seqlen,
                     int query_block, float* sums, int head, int batch, float scale) {
    const int consumer = __shfl_sync(0xffffffffu, reload_thread_idx() / 128 - 1, 0);
    const Span all(seqlen, chunk, query_block, CONSUMERS), own(seqlen, chunk, query_block + consumer, 1);
    float dq[HEAD_D / 2];
    clear<HEAD_D / 2>(dq);
    sums += (consumer * 64 * HEAD_D / 4 + reload_thread_idx() % 128) * 4;
    if (chunk.block > 0) {
#pragma unroll
        for (int c = 0; c < HEAD_D / 8; ++c) {
            const words<16> held = load_words<16>(sums + c * 512);
#pragma unroll
            for (int i = 0; i < 4; ++i) dq[c * 4 + i] = float_of(held.w[i]);
        }
    }
    int step = 0;
    const auto skip = [&](int count) {
#pragma unroll 1
        for (const int until = step + count; step < until; ++step) {
            mbarrier_wait(stages.full(step % STAGES), step / STAGES & 1);
            release(stages.empty(step % STAGES));
        }
    };
    skip(own.first == own.end ? all.end - all.first : own.first - all.first);
#pragma unroll 1
    for (int block = own.first; block < own.end; ++block, ++step) {
        const int stage = step % STAGES;
        mbarrier_wait(stages.full(stage), step / STAGES & 1);
        const uint64_t a = wgmma_descriptor(stages.ds(stage, consumer), 64 * SWIZZLE_BYTES, 1024);
        const uint64_t b = wgmma_descriptor(stages.keys(stage), 64 * SWIZZLE_BYTES, 1024);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < KEYS / 16; ++k)
            Wgmma<HEAD_D>::template run<true, true>(dq, a + (k * 16 * SWIZZLE_BYTES >> 4),
                                                    b + (k * 16 * SWIZZLE_BYTES >> 4), 1);
        wgmma_commit();
        wgmma_wait<0>();
        keep_in_registers<HEAD_D / 2>(dq);
        release(stages.empty(stage));
    }
    skip(all.end - all.first - step);
    if ((chunk.block + chunk.blocks) * KEYS < seqlen.keys) {
#pragma unroll
        for (int c = 0; c < HEAD_D / 8; ++c)
            store_words(sums + c * 512, words<16>{{bits_of(dq[c * 4]), bits_of(dq[c * 4 + 1]), bits_of(dq[c * 4 + 2]),
                                                   bits_of(dq[c * 4 + 3])}});
        return;
    }
    named_barrier_sync(1, CONSUMERS * 128);  // the stages are not read any more
    const int row = (query_block + consumer) * QUERIES;
    if (VARLEN && row < seqlen.queries && row + QUERIES > seqlen.queries)
        return store_tail<HEAD_D>(out.rows, stages.data + consumer * 64 * HEAD_D * 2, dq, scale, 2 + consumer,
                                 row + seqlen.first_query, seqlen.queries - row, head);
    if (row < seqlen.queries)
        store_rows<HEAD_D>(out.map, stages.data + consumer * 64 * HEAD_D * 2, dq, scale, 2 + consumer,
                           row + seqlen.first_query, head, batch);
}

extern "C" __global__ __launch_bounds__(THREADS, 1) void attention_bwd_dq_hdim256(
    const __grid_constant__ TensorMap map_k, const __grid_constant__ TensorMap map_dq,
    const __grid_constant__ AttentionParams params, T* ds_workspace, float* dq_accum, const int* workspace_offsets,
    const int* chunk_layout, int number, int tiles, int reach, int line, int lines, int block, int blocks, int most) {
    extern __shared__ __align__(1024) char bytes[];
    const uint32_t base = shared_address(bytes);
    const Stages stages{base, base + STAGES * STAGE_BYTES};
    const AttentionParams& p = params;
    const int heads = p.heads, qheads_per_kvhead = p.qheads_per_kvhead;
    BwdSeqlenInfo seqlen{p.seqlen_q, p.seqlen_k, p.left, p.right};
    Chunk chunk{line, lines, block, blocks, most};
    int chunk_head, tile, head, batch;
    if constexpr (VARLEN) {
        // Tiles stand in lines as blocks of queries do.
        const WorkspaceOffsets offsets{workspace_offsets, chunk_layout, reach};
        const int place = block_x() % tiles;
        chunk_head = block_x() / tiles;
        if (chunk_head >= chunk_heads(offsets, number, heads / qheads_per_kvhead) * qheads_per_kvhead) return;
        const int z = sequence_at(p.bounds, p.offsets, place, CONSUMERS * QUERIES);
        Sequence own = sequence_of(p.bounds, z, p.offsets);
        if (own.outside) own.keys = 0;
        const int of_place = place - line_of(own, z, CONSUMERS * QUERIES);
        const int last = (own.queries - 1) / (CONSUMERS * QUERIES);
        if (own.queries == 0 || of_place > last) return;
        tile = last - of_place;  // the last queries see most keys
        seqlen = {own.queries, own.keys, p.left, p.right, own.first_query, own.first_key};
        chunk = chunk_of(offsets, number, heads / qheads_per_kvhead, z, own, p.left, p.right);
        if (chunk.blocks == 0 && seqlen.keys > 0) return;
        head = chunk.line * qheads_per_kvhead + chunk_head, batch = 0;
    } else {
        tiles = (seqlen.query_blocks() + CONSUMERS - 1) / CONSUMERS;
        chunk_head = block_x() / tiles;
        tile = tiles - 1 - block_x() % tiles;  // the last queries see most keys
        head = (line * qheads_per_kvhead + chunk_head) % heads, batch = (line * qheads_per_kvhead + chunk_head) / heads;
    }
    const Out out{&map_dq, {static_cast<T*>(p.dq), p.dq_head, p.dq_row, p.head_dim}};

    if (thread_x() == 0) {
        tma_prefetch_descriptor(&map_k);
        for (int stage = 0; stage < STAGES; ++stage) {
            mbarrier_init(stages.full(stage), 1);
            mbarrier_init(stages.empty(stage), CONSUMERS * 4);
        }
        if (VARLEN) mbarrier_init(stages.partial(), 1);
        mbarrier_init_fence();
    }
    barrier();

    if (thread_x() < 128) {
        setmaxnreg_dec<VARLEN ? 40 : 24>();
        if (thread_x() == 0)
            load(stages, &map_k, ds_workspace, chunk, seqlen, tile * CONSUMERS, chunk_head, head / qheads_per_kvhead,
                 batch);
        else if (VARLEN && thread_x() / 32 == 1) zero_tail(stages, chunk, seqlen, tile * CONSUMERS);
    } else {
        setmaxnreg_inc<VARLEN ? 232 : 240>();
        const int64_t own_sums = VARLEN ? block_x() : static_cast<int64_t>(chunk_head) * tiles + tile;
        multiply(stages, out, chunk, seqlen, tile * CONSUMERS, dq_accum + own_sums * (CONSUMERS * QUERIES * HEAD_D),
                 head, batch, p.scale);
    }
}

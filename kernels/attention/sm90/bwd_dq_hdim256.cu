// dq for heads above 128: the kept gradients of scores, transposed, @ k.
//
// A block owns 128 queries of one head, 64 for each of two warpgroups, and walks the turn's blocks of keys that they
// see; one thread copies. What one turn leaves in float32 the next one of the same heads goes on from.
//
// Defines: bwd_hdim256.h's; STAGES.
#include "bwd_hdim256.h"
#if RAGGED
#include "bwd_hdim256_varlen.h"
#endif

constexpr int CONSUMERS = 2;
constexpr int THREADS = (1 + CONSUMERS) * 128;
constexpr int K_BYTES = KEYS * HEAD_D * 2;
constexpr int STAGE_BYTES = K_BYTES + CONSUMERS * SLOPE_BYTES;

// The turn's blocks of keys, from `first` to before `end`, that any of some blocks of queries sees.
struct Span {
    int first, end;

    DEVICE Span(const Sight& sight, const Turn& turn, int query_block, int count) {
        const int from = query_block * QUERIES, to = Sight::min(from + count * QUERIES, sight.queries) - 1;
        first = Sight::max(turn.block, Sight::floor_div(from + sight.offset() - sight.left, KEYS));
        end = Sight::min(turn.block + turn.blocks, Sight::floor_div(to + sight.offset() + sight.right, KEYS) + 1);
        if (from > to || end < first) end = first;
    }
    DEVICE bool holds(int key_block) const { return first <= key_block && key_block < end; }
};

struct Ring {
    uint32_t data, barriers;

    DEVICE uint32_t keys(int stage) const { return data + stage * STAGE_BYTES; }
    DEVICE uint32_t slopes(int stage, int consumer) const { return keys(stage) + K_BYTES + consumer * SLOPE_BYTES; }
    DEVICE uint32_t full(int stage) const { return barriers + stage * 16; }
    DEVICE uint32_t free(int stage) const { return full(stage) + 8; }
#if RAGGED
    DEVICE uint32_t torn() const { return full(STAGES); }  // filled, but for keys that are not the sequence's own
#endif
};

struct Out {
    const TensorMap* map;
#if RAGGED
    Tokens tokens;
#endif
};

#if RAGGED
DEVICE bool torn_keys(const Sight& sight, int key_block) { return (key_block + 1) * KEYS > sight.keys; }

// Clears the keys beyond the sequence's end, if they are among those that are walked.
DEVICE void clear_end(const Ring& ring, const Turn& turn, const Sight& sight, int query_block) {
    const Span all(sight, turn, query_block, CONSUMERS);
    if (all.first == all.end || !torn_keys(sight, all.end - 1)) return;
    const int stage = (all.end - 1 - all.first) % STAGES;
    clear_rows<HEAD_D>(ring.keys(stage), sight.keys - (all.end - 1) * KEYS, ring.torn(), 0, ring.full(stage));
}
#endif

DEVICE void load(const Ring& ring, const TensorMap* map_k, T* kept, const Turn& turn, const Sight& sight,
                 int query_block, int kept_head, int group, int batch) {
    const Span all(sight, turn, query_block, CONSUMERS);
    int step = 0;
#pragma unroll 1
    for (int block = all.first; block < all.end; ++block, ++step) {
        const int stage = step % STAGES, lowest = sight.lowest(block * KEYS);
        uint32_t full = ring.full(stage);
#if RAGGED
        if (torn_keys(sight, block)) full = ring.torn();
#endif
        // The blocks of queries that see these keys.
        const int first = Sight::max(lowest, query_block);
        const int last = Sight::min(sight.highest(block * KEYS), query_block + CONSUMERS - 1);
        mbarrier_wait(ring.free(stage), step / STAGES & 1 ^ 1);
        mbarrier_arrive_expect_tx(full, K_BYTES + Sight::max(0, last - first + 1) * SLOPE_BYTES);
        load_rows<HEAD_D>(ring.keys(stage), map_k, full, block * KEYS + sight.first_key, group, batch);
        for (int i = first; i <= last; ++i)
            bulk_copy_g2s(ring.slopes(stage, i - query_block), kept_block(kept, turn, kept_head, block, i - lowest),
                      SLOPE_BYTES, full);
    }
}

// `sums` are the tile's, float4 c of a warpgroup's thread t at c * 128 + t.
DEVICE void multiply(const Ring& ring, const Out& out, const Turn& turn, const Sight& sight, int query_block,
                     float* sums, int head, int batch, float scale) {
    const int consumer = __shfl_sync(0xffffffffu, reload_thread_idx() / 128 - 1, 0);
    const Span all(sight, turn, query_block, CONSUMERS), own(sight, turn, query_block + consumer, 1);
    float dq[HEAD_D / 2];
    clear<HEAD_D / 2>(dq);
    sums += (consumer * 64 * HEAD_D / 4 + reload_thread_idx() % 128) * 4;
    if (turn.block > 0) {
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
            mbarrier_wait(ring.full(step % STAGES), step / STAGES & 1);
            release(ring.free(step % STAGES));
        }
    };
    skip(own.first == own.end ? all.end - all.first : own.first - all.first);
#pragma unroll 1
    for (int block = own.first; block < own.end; ++block, ++step) {
        const int stage = step % STAGES;
        mbarrier_wait(ring.full(stage), step / STAGES & 1);
        const uint64_t a = wgmma_descriptor(ring.slopes(stage, consumer), 64 * LINE, 1024);
        const uint64_t b = wgmma_descriptor(ring.keys(stage), 64 * LINE, 1024);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < KEYS / 16; ++k)
            Wgmma<HEAD_D>::template run<true, true>(dq, a + (k * 16 * LINE >> 4), b + (k * 16 * LINE >> 4), 1);
        wgmma_commit();
        wgmma_wait<0>();
        keep_in_registers<HEAD_D / 2>(dq);
        release(ring.free(stage));
    }
    skip(all.end - all.first - step);
    if ((turn.block + turn.blocks) * KEYS < sight.keys) {
#pragma unroll
        for (int c = 0; c < HEAD_D / 8; ++c)
            store_words(sums + c * 512, words<16>{{bits_of(dq[c * 4]), bits_of(dq[c * 4 + 1]), bits_of(dq[c * 4 + 2]),
                                                   bits_of(dq[c * 4 + 3])}});
        return;
    }
    named_barrier_sync(1, CONSUMERS * 128);  // the ring is not read any more
    const int row = (query_block + consumer) * QUERIES;
#if RAGGED
    if (row < sight.queries && row + QUERIES > sight.queries)
        return store_end<HEAD_D>(out.tokens, ring.data + consumer * 64 * HEAD_D * 2, dq, scale, 2 + consumer,
                                 row + sight.first_query, sight.queries - row, head);
#endif
    if (row < sight.queries)
        store_rows<HEAD_D>(out.map, ring.data + consumer * 64 * HEAD_D * 2, dq, scale, 2 + consumer,
                           row + sight.first_query, head, batch);
}

extern "C" __global__ __launch_bounds__(THREADS, 1) void attention_backward_wide_dq(
    const __grid_constant__ TensorMap map_k, const __grid_constant__ TensorMap map_dq, T* kept, float* sums,
#if RAGGED
    const int* bounds, const int* places, const int* layout, T* dq, int64_t dq_head, int64_t dq_row, int dq_columns,
    int number, int count, int tiles, int reach,
#else
    int line, int lines, int block, int blocks, int most,
#endif
    int queries, int keys, int heads, int share, int left, int right, float scale) {
    extern __shared__ __align__(1024) char bytes[];
    const uint32_t base = shared_address(bytes);
    const Ring ring{base, base + STAGES * STAGE_BYTES};
#if RAGGED
    // Tiles stand in lines as blocks of queries do.
    const int kept_head = block_x() / tiles, place = block_x() % tiles;
    if (kept_head >= turn_lines({places, layout, reach}, number, heads / share) * share) return;
    const int z = sequence_at(bounds, count, place, CONSUMERS * QUERIES);
    Sequence own = sequence_of(bounds, z, count);
    if (own.outside) own.keys = 0;
    const int of_place = place - line_of(own, z, CONSUMERS * QUERIES);
    const int last = (own.queries - 1) / (CONSUMERS * QUERIES);
    if (own.queries == 0 || of_place > last) return;
    const int tile = last - of_place;  // the last queries see most keys
    const Sight sight{own.queries, own.keys, left, right, own.first_query, own.first_key};
    const Turn turn = turn_of({places, layout, reach}, number, heads / share, z, own, left, right);
    if (turn.blocks == 0 && sight.keys > 0) return;
    const int head = turn.line * share + kept_head, batch = 0;
    const Out out{&map_dq, {dq, dq_head, dq_row, dq_columns}};
#else
    const Sight sight{queries, keys, left, right};
    const int tiles = (sight.query_blocks() + CONSUMERS - 1) / CONSUMERS;
    const Turn turn{line, lines, block, blocks, most};
    const int kept_head = block_x() / tiles;
    const int tile = tiles - 1 - block_x() % tiles;  // the last queries see most keys
    const int head = (line * share + kept_head) % heads, batch = (line * share + kept_head) / heads;
    const Out out{&map_dq};
#endif

    if (thread_x() == 0) {
        tma_prefetch_descriptor(&map_k);
        for (int stage = 0; stage < STAGES; ++stage) {
            mbarrier_init(ring.full(stage), 1);
            mbarrier_init(ring.free(stage), CONSUMERS * 4);
        }
#if RAGGED
        mbarrier_init(ring.torn(), 1);
#endif
        mbarrier_init_fence();
    }
    barrier();

    if (thread_x() < 128) {
        setmaxnreg_dec<RAGGED ? 40 : 24>();
        if (thread_x() == 0)
            load(ring, &map_k, kept, turn, sight, tile * CONSUMERS, kept_head, head / share, batch);
#if RAGGED
        else if (thread_x() / 32 == 1) clear_end(ring, turn, sight, tile * CONSUMERS);
#endif
    } else {
        setmaxnreg_inc<RAGGED ? 232 : 240>();
#if RAGGED
        const int64_t own_sums = block_x();
#else
        const int64_t own_sums = static_cast<int64_t>(kept_head) * tiles + tile;
#endif
        multiply(ring, out, turn, sight, tile * CONSUMERS, sums + own_sums * (CONSUMERS * QUERIES * HEAD_D), head,
                 batch, scale);
    }
}

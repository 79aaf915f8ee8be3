// What fwd.cu does for varlen beyond the dense kernel.
//
// A warp claims the block's tiles, those of the longest sequences first (varlen_tiles.cu), and passes them to the others
// through shared memory. TMA does not know where a sequence ends. Queries and keys beyond it do no harm:
// those queries are not stored, and scores of those keys are replaced. Values would: a P of 0 times a NaN is a NaN. So a
// block of values that crosses the end of its sequence is announced to a warp, which zeros the rows beyond and announces
// it to the consumers.
#pragma once

constexpr int READERS = 2 + CONSUMERS * 4;  // a thread that copies, and warps

// Counted from the tile's first query on, which is `token`: `queries` are left of its sequence, which has `keys`; -1 keys,
// where the tokens are of no sequence. `head` is the first of PACK_GQA; one of -1 ends the tiles.
struct VarlenTile {
    static constexpr int row = 0;
    int head, queries, keys, token, first_key;

    DEVICE int first_query() const { return token; }
    DEVICE int m(const AttentionParams&) const { return queries; }
    DEVICE int n(const AttentionParams&) const { return keys; }
};

DEVICE HeadOutput<T> output_of(const VarlenTile& tile, const AttentionParams& p) {
    const int64_t o = tile.head * p.o_head + tile.token * p.o_row;
    const int64_t lse = tile.head * p.lse_head + tile.token * p.lse_row;
    const float sink = SINKS && tile.keys >= 0 ? p.sinks[tile.head] * LOG2_E : -INF_F;
    return {static_cast<T*>(p.o) + o, p.lse + lse, sink};
}

// In shared memory: the next tile and its barriers, then one barrier for each stage of values.
template <> struct TileSlot<true> {
    uint32_t base;

    static DEVICE TileSlot at(uint32_t base) { return {base}; }
    DEVICE uint32_t full() const { return base; }
    DEVICE uint32_t empty() const { return base + 8; }
    DEVICE uint32_t partial(int stage) const { return base + 16 + stage * 8; }
    DEVICE uint32_t data() const { return base + 16 + STAGES * 8; }
    DEVICE void init() const {
        mbarrier_init(full(), 1);
        mbarrier_init(empty(), READERS);
        for (int i = 0; i < STAGES; ++i) mbarrier_init(partial(i), 1);
    }
};

// Tiles are numbered by their heads, as one is known at a time.
template <> struct TileScheduler<true> {
    using Tile = VarlenTile;

    TileSlot<true> slot;
    bool alone;  // a thread, not a warp
    uint32_t phase = 0;
    VarlenTile found = {};

    DEVICE TileScheduler(const TileSlot<true>& slot, const AttentionParams&, const Schedule&, bool alone = false)
        : slot(slot), alone(alone) {}
    DEVICE uint32_t count() const { return 1u << 31; }
    // Not called again once there is none.
    DEVICE uint32_t next() {
        mbarrier_wait(slot.full(), phase);
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(found.head), "=r"(found.queries), "=r"(found.keys), "=r"(found.token)
                     : "r"(slot.data())
                     : "memory");
        asm volatile("ld.shared.u32 %0, [%1];" : "=r"(found.first_key) : "r"(slot.data() + 16) : "memory");
        if (!alone) __syncwarp();
        if (alone || thread_x() % 32 == 0) mbarrier_arrive(slot.empty());
        phase ^= 1;
        return found.head;
    }
    DEVICE VarlenTile tile(uint32_t) const { return found; }
};

// Of the table; all heads of the same queries follow one another.
DEVICE VarlenTile table_tile(uint32_t index, const AttentionParams& p) {
    const uint32_t head_groups = p.heads / PACK_GQA;
    const int* const found = p.tile_list + index / head_groups * 2;
    const Sequence own = sequence_of(p.bounds, found[0], p.offsets);
    const int before = found[1] * TILE_QUERIES;
    return {static_cast<int>(index % head_groups) * PACK_GQA, own.queries - before, own.outside ? -1 : own.keys,
            own.first_query + before, own.first_key};
}

// A warp, for a tile whose queries see no key.
DEVICE void store_no_keys(VarlenTile tile, const AttentionParams& p) {
    const int lane = thread_x() % 32;
#pragma unroll 1
    for (int last = tile.head + PACK_GQA; tile.head < last; ++tile.head) {
        const HeadOutput<T> place = output_of(tile, p);
#pragma unroll 1
        for (int row = 0; row < min(tile.queries, TILE_QUERIES); ++row) {
            if (lane == 0) place.lse[row * p.lse_row] = place.sink * LN_2;
#pragma unroll 1
            for (int column = lane * 8; column < p.head_dim_v; column += 256)
                store_words(place.o + row * p.o_row + column, words<16>{});
        }
    }
}

// A warp. The first two rounds are dealt out, forwards and backwards, since all blocks begin at once; then whoever
// has room takes the next. A tile without keys is written here and passed on to nobody: consumers ask for the next tile
// before they release a block of keys, so the copying thread must come to every tile that they are passed by what
// they released before.
DEVICE void schedule_tiles(const TileSlot<true>& slot, const AttentionParams& p) {
    const uint32_t all = p.tile_counts[0] * (p.heads / PACK_GQA);
    const int lane = thread_x() % 32;
    uint32_t phase = 1;
#pragma unroll 1
    for (uint32_t round = 0;; ++round) {
        mbarrier_wait(slot.empty(), phase);
        uint32_t index = blockIdx.x;
        if (round == 1) index = 2 * gridDim.x - 1 - index;
        if (round > 1) {
            if (lane == 0) index = 2 * gridDim.x + atomicAdd(p.tile_counts + 1, 1u);
            index = __shfl_sync(0xffffffffu, index, 0);
        }
        VarlenTile tile = {-1, 0, 0, 0, 0};
        if (index < all) {
            tile = table_tile(index, p);
            const KeyBlocks span = key_blocks(tile, p);
            if (span.first >= span.last) {
                store_no_keys(tile, p);
                continue;
            }
        }
        if (lane == 0) {
            asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(slot.data()), "r"(tile.head),
                         "r"(tile.queries), "r"(tile.keys), "r"(tile.token)
                         : "memory");
            asm volatile("st.shared.u32 [%0], %1;" ::"r"(slot.data() + 16), "r"(tile.first_key) : "memory");
            mbarrier_arrive(slot.full());
        }
        if (index >= all) return;
        phase ^= 1;
    }
}

// Zeros for the values beyond their sequence's end; lines are whole, so it does not matter how they are swizzled.
DEVICE void zero_tails(VStages values, const TileSlot<true>& slot, const AttentionParams& p, const Schedule& s) {
    TileScheduler<true> scheduler(slot, p, s);
    uint32_t phases = 0;  // of the stages' barriers
    while (scheduler.next() < scheduler.count()) {
        const VarlenTile tile = scheduler.found;
        const KeyBlocks span = key_blocks(tile, p);
        const int left = tile.keys - (span.last - 1) * TILE_N;
        if (left < TILE_N) {
            mbarrier_wait(slot.partial(values.stage), phases >> values.stage & 1);
            phases ^= 1u << values.stage;
            for (int block = 0; block < HEAD_E / 64; ++block) {
                const uint32_t lines = values.stage_base() + block * TILE_N * 128;
                for (int at = left * 128 + thread_x() % 32 * 16; at < TILE_N * 128; at += 512)
                    asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(lines + at), "r"(0) : "memory");
            }
            fence_proxy_async();
            __syncwarp();
            if (thread_x() % 32 == 0) mbarrier_arrive(values.full_barrier());
        }
        for (int block = span.first; block < span.last; ++block) values.advance();
    }
}

// A dense call has neither.
DEVICE void schedule_tiles(const TileSlot<false>&, const AttentionParams&) {}
DEVICE void zero_tails(VStages, const TileSlot<false>&, const AttentionParams&, const Schedule&) {}

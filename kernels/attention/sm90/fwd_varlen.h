// What fwd.cu does for packed sequences beyond the dense kernel.
//
// A warp claims the block's tiles, those of the longest sequences first (varlen_tiles.cu), and tells the others
// through shared memory. Copies do not know where a sequence ends. Queries and keys beyond it do no harm:
// those queries are not stored, and scores of those keys are replaced. Values would: a weight of 0 times a NaN
// is a NaN. So a block of values that crosses the end of its sequence is announced to a warp, which clears the
// rows beyond and announces it to the consumers.
#pragma once

#include "prelude.h"

#include "attention/device/varlen.h"
#include "fwd_epilogue.h"
#include "fwd_tiles.h"
#include "_lib/ptx/tma.h"

constexpr int READERS = 2 + CONSUMERS * 4;  // a thread that copies, and warps

// In shared memory: the next tile and its barriers, then one barrier for each stage of values.
struct Slot {
    uint32_t base;

    DEVICE uint32_t filled() const { return base; }
    DEVICE uint32_t freed() const { return base + 8; }
    DEVICE uint32_t torn(int stage) const { return base + 16 + stage * 8; }
    DEVICE uint32_t data() const { return base + 16 + STAGES * 8; }
    DEVICE void init() const {
        mbarrier_init(filled(), 1);
        mbarrier_init(freed(), READERS);
        for (int i = 0; i < STAGES; ++i) mbarrier_init(torn(i), 1);
    }
};

// Tiles are numbered by their heads, as one is known at a time; a head of -1 is beyond them all.
DEVICE uint32_t tile_count(const Sizes&) { return 1u << 31; }

struct Walk {
    Slot slot;
    bool alone;  // a thread, not a warp
    uint32_t phase = 0;
    Tile found = {};

    DEVICE explicit Walk(const Slot& slot, bool alone = false) : slot(slot), alone(alone) {}
    // Not asked again once there is none.
    DEVICE uint32_t next(const Sizes&) {
        mbarrier_wait(slot.filled(), phase);
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(found.head), "=r"(found.queries), "=r"(found.keys), "=r"(found.first_query)
                     : "r"(slot.data())
                     : "memory");
        asm volatile("ld.shared.u32 %0, [%1];" : "=r"(found.first_key) : "r"(slot.data() + 16) : "memory");
        if (!alone) __syncwarp();
        if (alone || thread_x() % 32 == 0) mbarrier_arrive(slot.freed());
        phase ^= 1;
        return found.head;
    }
    DEVICE Tile tile(uint32_t, const Sizes&) const { return found; }
};

// What varlen_tiles.cu made; `count` offsets.
struct Table {
    const int* bounds;
    const int* tiles;
    uint32_t* counts;
    int count;

    // All heads of the same queries follow one another.
    DEVICE Tile at(uint32_t index, const Sizes& s) const {
        const uint32_t packs = s.heads / PACK;
        const int* const found = tiles + index / packs * 2;
        const Sequence own = sequence_of(bounds, found[0], count);
        const int before = found[1] * TILE_QUERIES;
        return {static_cast<int>(index % packs) * PACK, own.queries - before, own.outside ? -1 : own.keys,
                own.first_query + before, own.first_key};
    }
};

// A warp, for a tile whose queries see no key.
template <class T> DEVICE void write_nothing(Tile tile, const Outputs<T>& to, const Sizes& s) {
    const int lane = thread_x() % 32;
#pragma unroll 1
    for (int last = tile.head + PACK; tile.head < last; ++tile.head) {
        const Place<T> place = place_of(tile, to, s);
#pragma unroll 1
        for (int row = 0; row < min(tile.queries, TILE_QUERIES); ++row) {
            if (lane == 0) place.lse[row * to.lse_row] = place.sink * LN_2;
#pragma unroll 1
            for (int column = lane * 8; column < s.e; column += 256)
                store_words(place.o + row * to.o_row + column, words<16>{});
        }
    }
}

// A warp. The first two rounds are dealt out, forwards and backwards, since all blocks begin at once; then whoever
// has room takes the next. A tile without keys is written here and told to nobody: consumers ask for the next tile
// before they free a block of keys, so the copying thread must come to every tile that they are told of by what
// they freed before.
template <class T>
DEVICE void claim_tiles(const Slot& slot, const Table& table, const Outputs<T>& to, const Sizes& s) {
    const uint32_t all = table.counts[0] * (s.heads / PACK);
    const int lane = thread_x() % 32;
    uint32_t phase = 1;
#pragma unroll 1
    for (uint32_t round = 0;; ++round) {
        mbarrier_wait(slot.freed(), phase);
        uint32_t index = blockIdx.x;
        if (round == 1) index = 2 * gridDim.x - 1 - index;
        if (round > 1) {
            if (lane == 0) index = 2 * gridDim.x + atomicAdd(table.counts + 1, 1u);
            index = __shfl_sync(0xffffffffu, index, 0);
        }
        Tile tile = {-1, 0, 0, 0, 0};
        if (index < all) {
            tile = table.at(index, s);
            const Span span = span_of(tile, s);
            if (span.first >= span.last) {
                write_nothing(tile, to, s);
                continue;
            }
        }
        if (lane == 0) {
            asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(slot.data()), "r"(tile.head),
                         "r"(tile.queries), "r"(tile.keys), "r"(tile.first_query)
                         : "memory");
            asm volatile("st.shared.u32 [%0], %1;" ::"r"(slot.data() + 16), "r"(tile.first_key) : "memory");
            mbarrier_arrive(slot.filled());
        }
        if (index >= all) return;
        phase ^= 1;
    }
}

// Zeros for the values beyond their sequence's end; lines are whole, so it does not matter how they are swizzled.
DEVICE void clear_ends(VRing values, const Slot& slot, const Sizes& s) {
    Walk walk(slot);
    uint32_t phases = 0;  // of the stages' barriers
    while (walk.next(s) < tile_count(s)) {
        const Tile tile = walk.found;
        const Span span = span_of(tile, s);
        const int left = tile.keys - (span.last - 1) * TILE_N;
        if (left < TILE_N) {
            mbarrier_wait(slot.torn(values.stage), phases >> values.stage & 1);
            phases ^= 1u << values.stage;
            for (int block = 0; block < HEAD_E / 64; ++block) {
                const uint32_t lines = values.data() + block * TILE_N * 128;
                for (int at = left * 128 + thread_x() % 32 * 16; at < TILE_N * 128; at += 512)
                    asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(lines + at), "r"(0) : "memory");
            }
            fence_proxy_async();
            __syncwarp();
            if (thread_x() % 32 == 0) mbarrier_arrive(values.filled());
        }
        for (int block = span.first; block < span.last; ++block) values.advance();
    }
}

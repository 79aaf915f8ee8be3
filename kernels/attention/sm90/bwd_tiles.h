// bwd.cu's blocks: what lies where in shared memory, which tiles a block takes.
//
// Defines: bwd.h's; STAGES, PERSISTENT; HEADS_INSIDE: heads inside blocks of queries.
#pragma once

#include "bwd_walk.h"

static_assert(HEAD_BLOCKS * QUERY_BLOCKS == 2, "each warpgroup computes one block of dq");
static_assert(KEYS == 128, "64 for each of two warpgroups");

constexpr int KEY_BYTES = KEYS * HEAD * 2;
constexpr int QUERY_BYTES = QUERIES * HEAD * 2;
constexpr int DS_BYTES = QUERIES * KEYS * 2;
constexpr int DS_BUFFERS = 2;
constexpr int PART_BYTES = PART * 4;  // of a warpgroup
constexpr int PART_BUFFERS = 2;
constexpr int STATS_BYTES = QUERIES * 8;
constexpr int SUMS = HEAD / 2;       // of a thread: 64 keys by HEAD

struct Shared {
    uint32_t k, v, q, dout, ds, parts, stats, barriers;

    DEVICE explicit Shared(uint32_t base)
        : k(base), v(k + KEY_BYTES), q(v + KEY_BYTES), dout(q + STAGES * QUERY_BYTES),
          ds(dout + STAGES * QUERY_BYTES), parts(ds + DS_BUFFERS * DS_BYTES),
          stats(parts + PART_BUFFERS * 2 * PART_BYTES), barriers(stats + STAGES * STATS_BYTES) {}

    DEVICE uint32_t part(int buffer) const { return parts + buffer * 2 * PART_BYTES; }

    // Barriers of 8 bytes: filled, and free again. `tile` is the number of a claimed tile.
    DEVICE uint32_t k_full() const { return barriers; }
    DEVICE uint32_t k_empty() const { return barriers + 8; }
    DEVICE uint32_t v_full() const { return barriers + 16; }
    DEVICE uint32_t v_empty() const { return barriers + 24; }
    DEVICE uint32_t part_full(int buffer) const { return barriers + 32 + buffer * 16; }
    DEVICE uint32_t part_empty(int buffer) const { return part_full(buffer) + 8; }
    DEVICE uint32_t ds_full(int buffer) const { return barriers + 64 + buffer * 16; }
    DEVICE uint32_t ds_empty(int buffer) const { return ds_full(buffer) + 8; }
    DEVICE uint32_t tile_full(int slot) const { return barriers + 96 + slot * 16; }
    DEVICE uint32_t tile_empty(int slot) const { return tile_full(slot) + 8; }
    DEVICE uint32_t tile(int slot) const { return barriers + 128 + slot * 4; }
    DEVICE uint32_t q_full(int stage) const { return barriers + 144 + stage * 32; }
    DEVICE uint32_t q_empty(int stage) const { return q_full(stage) + 8; }
    DEVICE uint32_t dout_full(int stage) const { return q_full(stage) + 16; }
    DEVICE uint32_t dout_empty(int stage) const { return q_full(stage) + 24; }
    // Varlen: filled, but for the rows that are not the sequence's own.
    DEVICE uint32_t k_partial() const { return q_full(STAGES); }
    DEVICE uint32_t v_partial() const { return k_partial() + 8; }
    DEVICE uint32_t q_partial(int stage) const { return k_partial() + 16 + stage * 16; }
    DEVICE uint32_t dout_partial(int stage) const { return q_partial(stage) + 8; }
};

// Varlen claims no tiles: what follows from a claimed one is not uniform to ptxas, which then keeps all products apart
// (C7520).
static_assert(!VARLEN || !PERSISTENT, "a block has its own tile");

// The tiles of this block: one, or with PERSISTENT those that a thread claims while any is left, in order.
struct Tiles {
    const Shared& shared;
    const BwdSeqlenInfo& seqlen;
    int kv_heads, qheads_per_kvhead, kv_heads_per_band;
    uint32_t all;
    WorkTile only;  // without PERSISTENT: known before the warps' roles part, it lies in uniform registers
    uint32_t count = 0;

    // Does `body(work, seqlen, parity)` for each tile; the thread that claims them tells the others.
    template <class Body> DEVICE void each(uint32_t* claimed, const Body& body) {
        if constexpr (!PERSISTENT) {
            body(only, seqlen, 0u);
        } else {
            for (;; ++count) {
                const int slot = count % 2;
                uint32_t tile;
                if (claimed != nullptr) {
                    mbarrier_wait(shared.tile_empty(slot), count / 2 & 1 ^ 1);
                    tile = atomicAdd(claimed, 1u);
                    asm volatile("st.shared.u32 [%0], %1;" ::"r"(shared.tile(slot)), "r"(tile) : "memory");
                    mbarrier_arrive(shared.tile_full(slot));
                } else {
                    mbarrier_wait(shared.tile_full(slot), count / 2 & 1);
                    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(tile) : "r"(shared.tile(slot)) : "memory");
                    mbarrier_arrive(shared.tile_empty(slot));
                }
                if (tile >= all) return;
                body(work_tile_of(tile, all, seqlen, kv_heads, qheads_per_kvhead, kv_heads_per_band), seqlen, count & 1);
            }
        }
    }
};

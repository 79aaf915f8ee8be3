// wgmma.cu's loads: a block's share of an operand tile, by TMA, to all blocks of the cluster that need it.
#pragma once

#include "prelude.h"

#include "_lib/ptx/tma.h"
#include "wgmma_store.h"

constexpr int TILE_K = 64;  // one 128-byte row

// How the blocks of a cluster share the load of an operand: each loads some of its rows, or, where it is not K-major
// and its rows do not divide into 64s, some k of all rows.
constexpr bool some_k(int rows, bool k_major, int shares) { return !k_major && rows / shares % 64; }

// One box, to this block or, with MULTICAST, to all blocks in `mask`; `policy` counts with STRIP_IN_L2.
template <bool MULTICAST>
DEVICE void load_box(uint16_t mask, uint32_t to, const TensorMap* map, uint32_t barrier, uint64_t policy, int x, int y,
                     int z, int w) {
    if (MULTICAST && STRIP_IN_L2) tma_load_4d_multicast_cached(mask, to, map, barrier, policy, x, y, z, w);
    else if (MULTICAST) tma_load_4d_multicast(mask, to, map, barrier, x, y, z, w);
    else if (STRIP_IN_L2) tma_load_4d_cached(to, map, barrier, policy, x, y, z, w);
    else tma_load_4d(to, map, barrier, x, y, z, w);
}

// Share `share` of SHARES of an operand's ROWS rows from `row` on, step k: one box if K-major, else boxes of 64 rows;
// multicast to all blocks in `mask`, or with LOCAL to this block.
template <int ROWS, bool K_MAJOR, int SHARES, bool LOCAL>
DEVICE void load_share(uint16_t mask, uint32_t to, const TensorMap* map, uint32_t barrier, uint64_t policy, int share,
                       int row, int k, int inner, int outer) {
    constexpr bool SOME_K = some_k(ROWS, K_MAJOR, SHARES);
    constexpr int SHARE = SOME_K ? TILE_K / SHARES : ROWS / SHARES;
    to += share * SHARE * 128;
    (SOME_K ? k : row) += share * SHARE;
#pragma unroll
    for (int i = 0; i < (K_MAJOR ? 1 : SOME_K ? ROWS / 64 : SHARE / 64); ++i) {
        const int x = K_MAJOR ? k : row + i * 64;
        const int y = K_MAJOR ? row : k;
        load_box<SHARES != 1 && !LOCAL>(mask, to + i * BLOCK_BYTES, map, barrier, policy, x, y, inner, outer);
    }
}

// The same of gate's and up's rows from `row` on, ROWS together: of two shares the first is gate's half. A K-major box
// holds both halves where there is one share.
template <int ROWS, bool K_MAJOR, int SHARES>
DEVICE void load_gate_up(uint16_t mask, uint32_t to, const TensorMap* map, uint32_t barrier, uint64_t policy, int share,
                         int row, int k) {
    constexpr int HALF = ROWS / 2;
#pragma unroll
    for (int i = 0; i < (K_MAJOR ? 1 : ROWS / SHARES / 64); ++i) {
        const int line = share * HALF + i * 64;
        const int within = row + line % HALF;
        const int x = K_MAJOR ? k : within;
        const int y = K_MAJOR ? within : k;
        load_box<SHARES != 1>(mask, to + line * 128, map, barrier, policy, x, y, 0, line / HALF);
    }
}

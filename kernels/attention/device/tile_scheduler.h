// Which tiles a block works on, and in which order, on NVIDIA and on AMD.
#pragma once

#include "prelude.h"

#include "params.h"
#include "seqlen_info.h"

#ifdef __CUDACC_RTC__
// --- a tile for each block ---

// TILE_M queries of a head from `first_row` on, counted from the first of their sequence.
template <bool Varlen> struct WorkTile {
    int batch, head, first_row;
    SeqlenInfo<Varlen> seqlen;
};

// Dense: tiles with most keys first where the right is bounded; a head has `tiles`. Varlen: the table's, in its order,
// the heads of a tile one after the other; a block beyond the tiles has no queries.
template <bool Varlen, int TILE_M, bool Right>
DEVICE WorkTile<Varlen> one_tile_a_block(const AttentionParams& p, int tiles) {
    if constexpr (Varlen) {
        const uint32_t at = block_x() / p.heads;
        if (at >= p.tile_counts[0]) return {};
        const int* const tile = p.tile_list + at * 2;
        return {0, block_x() % p.heads, tile[1] * TILE_M, seqlen_of(sequence_of(p.bounds, tile[0], p.offsets))};
    } else {
        const int order = block_x() % tiles, line = block_x() / tiles;
        const int first = (Right ? tiles - 1 - order : order) * TILE_M;
        return {line / p.heads, line % p.heads, first, {p.seqlen_q, p.seqlen_k}};
    }
}

// --- persistent blocks of dense calls ---

// Queries of one head of all batches' from `row` on.
struct DenseTile {
    int row;
    uint32_t head;
    static constexpr int first_key = 0;

    DEVICE int first_query() const { return row; }
    DEVICE int m(const AttentionParams& p) const { return p.seqlen_q; }
    DEVICE int n(const AttentionParams& p) const { return p.seqlen_k; }
};

// The tiles of a block: pairs (`heads_per_band` 0), or one forwards in even rounds and backwards in odd ones, which
// evens out falling costs. `all_heads`: heads times batches.
template <int TILE_M, bool Right> struct StaticTileScheduler {
    uint32_t seqlen_q, all_heads;
    int heads_per_band;
    uint32_t round = 0;

    DEVICE uint32_t tiles_of_head() const { return (seqlen_q + TILE_M - 1) / TILE_M; }
    DEVICE uint32_t count() const {
        return heads_per_band ? tiles_of_head() * all_heads : (tiles_of_head() + 1) / 2 * 2 * all_heads;
    }
    DEVICE uint32_t next() {
        const uint32_t k = round++, block = blockIdx.x;
        if (heads_per_band == 0) return (k / 2 * gridDim.x + block) * 2 + k % 2;
        return k * gridDim.x + (k % 2 ? gridDim.x - 1 - block : block);
    }
    // In pairs the tile with the most keys is followed by the one with the fewest, and so on inwards: all pairs cost
    // the same, and neighbours share a head. Else heads go in bands whose keys and values share L2; in a band the tiles
    // with most keys go first.
    DEVICE DenseTile tile(uint32_t index) const {
        const uint32_t tiles_m = tiles_of_head();
        uint32_t head, tile_m;
        if (heads_per_band == 0) {
            const uint32_t half = (tiles_m + 1) / 2, order = index / 2 % half;
            head = index / 2 / half;
            tile_m = index % 2 ? order : tiles_m - 1 - order;
            if (index % 2 && order == tiles_m - 1 - order) tile_m = tiles_m;  // the middle has no other: no rows
        } else {
            const uint32_t band = index / (heads_per_band * tiles_m) * heads_per_band;
            const uint32_t heads = min(static_cast<uint32_t>(heads_per_band), all_heads - band);
            const uint32_t within = index - band * tiles_m, order = within / heads;
            head = band + within % heads;
            tile_m = Right ? tiles_m - 1 - order : order;
        }
        return {static_cast<int>(tile_m) * TILE_M, head};
    }
};

#else
// --- AMD: a tile for each block, heads by die ---
//
// Consecutive blocks go round robin to the XCDs (dies) of a package, each with an L2 of its own: each XCD gets a
// contiguous range of the heads, so that it holds few keys at a time. Tiles with the most keys or queries to pass come
// first.

#if defined(__gfx942__) || defined(__gfx950__)
constexpr int XCDS = 8;
#else
constexpr int XCDS = 1;
#endif

struct XcdTile {
    int64_t batch, head;
    int tile;
};

// Block `id` of `total`, renumbered so that each XCD has a contiguous range.
DEVICE int remap_xcd(int id, int total) {
    const int xcd = id % XCDS;
    return xcd * (total / XCDS) + min(xcd, total % XCDS) + id / XCDS;
}

// `last_first`: a head's last tile comes first. A varlen table lists its tiles in order, for every head.
template <bool Varlen> DEVICE XcdTile xcd_tile(int blocks, int tiles, int heads, bool last_first) {
    if constexpr (Varlen) {
        return {0, remap_xcd(block_x() % heads, heads), block_x() / heads};
    } else {
        const int id = remap_xcd(block_x(), blocks);
        const int head = id / tiles, tile = id % tiles;
        return {head / heads, head % heads, last_first ? tiles - 1 - tile : tile};
    }
}
#endif

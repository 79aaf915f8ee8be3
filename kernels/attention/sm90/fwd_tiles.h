// Which queries and keys a block of fwd.cu works on, and in which order. The order of RAGGED tiles is in
// fwd_varlen.h.
#pragma once

#include "prelude.h"

constexpr int TILE_M = 64 * CONSUMERS;
constexpr int TILE_QUERIES = TILE_M / PACK;  // of each of the PACK query heads of a tile, which share their keys
static_assert(RAGGED || PACK == 1, "a dense tile is of one head");

struct Sizes {
    int m, n, e, heads, share, left, right, band;
    uint32_t batches;  // of heads
    int steps;         // bits: whether q's, k's, v's map steps by head, by batch
    float scale;       // of scores, times log2(e); with SOFTCAP of what is left after the cap
    float inner;       // SOFTCAP: what the exponent of the cap's tanh takes, 2 log2(e) scale / softcap
};

#if RAGGED
// Counted from the tile's first query on: `queries` are left of its sequence, which has `keys`; -1 keys, where
// the tokens are of no sequence. `head` is the first of PACK.
struct Tile {
    static constexpr int row = 0;
    int head, queries, keys, first_query, first_key;
};
DEVICE int m_of(const Tile& tile, const Sizes&) { return tile.queries; }
DEVICE int n_of(const Tile& tile, const Sizes&) { return tile.keys; }
#else
struct Tile {
    int row;
    uint32_t head;  // of all batches
};
DEVICE int m_of(const Tile&, const Sizes& s) { return s.m; }
DEVICE int n_of(const Tile&, const Sizes& s) { return s.n; }
#endif

// Blocks of keys, the last one excluded.
struct Span {
    int first, last;
};

DEVICE Span span_of(const Tile& tile, const Sizes& s) {
    const int m = m_of(tile, s), n = n_of(tile, s);
    int begin = 0, end = n;
    if (tile.row >= m) end = 0;
    if (LEFT) begin = max(tile.row + n - m - s.left, 0);
    if (RIGHT) end = min(min(tile.row + TILE_QUERIES, m) + n - m + s.right, end);
    const int first = begin / TILE_N;
    return {first, end > begin ? (end + TILE_N - 1) / TILE_N : first};
}

#if !RAGGED
DEVICE uint32_t tiles_of_head(const Sizes& s) { return (static_cast<uint32_t>(s.m) + TILE_M - 1) / TILE_M; }
// With `band` 0 in pairs.
DEVICE uint32_t tile_count(const Sizes& s) {
    return s.band ? tiles_of_head(s) * s.batches : (tiles_of_head(s) + 1) / 2 * 2 * s.batches;
}

// With `band` 0 the tile with the most keys is followed by the one with the fewest, and so on inwards: all pairs
// cost the same, and neighbours share a head. Else heads go in sections of `band`, whose keys and values share
// L2; in a section the tiles with most keys go first.
DEVICE Tile tile_at(uint32_t index, const Sizes& s) {
    const uint32_t tiles_m = tiles_of_head(s);
    uint32_t head, tile_m;
    if (s.band == 0) {
        const uint32_t half = (tiles_m + 1) / 2, order = index / 2 % half;
        head = index / 2 / half;
        tile_m = index % 2 ? order : tiles_m - 1 - order;
        if (index % 2 && order == tiles_m - 1 - order) tile_m = tiles_m;  // the middle has no other: no rows
    } else {
        const uint32_t section = index / (s.band * tiles_m) * s.band;
        const uint32_t heads = min(static_cast<uint32_t>(s.band), s.batches - section);
        const uint32_t within = index - section * tiles_m, order = within / heads;
        head = section + within % heads;
        tile_m = RIGHT ? tiles_m - 1 - order : order;
    }
    return {static_cast<int>(tile_m) * TILE_M, head};
}

// The tiles of a block: pairs, or one forwards in even rounds and backwards in odd ones, which evens out falling
// costs.
struct Slot {};
struct Walk {
    uint32_t round = 0;
    DEVICE explicit Walk(const Slot&, bool = false) {}
    DEVICE uint32_t next(const Sizes& s) {
        const uint32_t k = round++, block = blockIdx.x;
        if (s.band == 0) return (k / 2 * gridDim.x + block) * 2 + k % 2;
        return k * gridDim.x + (k % 2 ? gridDim.x - 1 - block : block);
    }
    DEVICE Tile tile(uint32_t index, const Sizes& s) const { return tile_at(index, s); }
};
#endif

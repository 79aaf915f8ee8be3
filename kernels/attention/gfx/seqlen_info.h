// Which tile of which head a block computes, and where its sequence lies.
//
// Consecutive blocks go to the XCDs (dies) of a package in turn, each with an L2 of its own: each XCD gets a
// contiguous range of the heads, so that it holds few keys at a time. Tiles with the most keys or queries to pass
// come first.
#pragma once

#include "_lib/amdgcn/lds.h"

#include "attention/device/varlen.h"

#if defined(__gfx942__) || defined(__gfx950__)
constexpr int XCDS = 8;
#else
constexpr int XCDS = 1;
#endif

struct WorkTile {
    int64_t batch, head;
    int tile;
};

// Block `id` of `total`, renumbered so that each XCD has a contiguous range.
DEVICE int remap_xcd(int id, int total) {
    const int xcd = id % XCDS;
    return xcd * (total / XCDS) + min(xcd, total % XCDS) + id / XCDS;
}

// `last_first`: a head's last tile comes first. A varlen table lists its tiles in order, for every head.
template <bool IS_VARLEN> DEVICE WorkTile work_tile(int blocks, int tiles, int heads, bool last_first) {
    if constexpr (IS_VARLEN) {
        return {0, remap_xcd(block_x() % heads, heads), block_x() / heads};
    } else {
        const int id = remap_xcd(block_x(), blocks);
        const int head = id / tiles, tile = id % tiles;
        return {head / heads, head % heads, last_first ? tiles - 1 - tile : tile};
    }
}

// The tables of varlen_tiles.cu; `count` offsets.
struct VarlenTables {
    const int *bounds, *tiles, *counts;
    int count;

    DEVICE bool has(int tile) const { return tile < counts[0]; }
    DEVICE Sequence sequence(int tile) const { return sequence_of(bounds, tiles[2 * tile], count); }
    DEVICE int tile_in_sequence(int tile) const { return tiles[2 * tile + 1]; }
};

// The rows of a block of queries and the keys of their sequence, among all tokens. `diagonal` is added to the window's
// bounds; `outside`: the tokens belong to no sequence; without `exists` the block has no tile.
struct SeqlenInfo {
    int first_row, row_end, first_key, key_end, diagonal;
    bool outside, exists;
};

template <bool IS_VARLEN>
DEVICE SeqlenInfo seqlen_info(const VarlenTables& tables, int tile, int tile_rows, int queries, int keys) {
    if constexpr (IS_VARLEN) {
        if (!tables.has(tile)) {
            return {};
        }
        const Sequence own = tables.sequence(tile);
        const int row_end = own.first_query + own.queries, key_end = own.first_key + (own.outside ? 0 : own.keys);
        const int first_row = own.first_query + tables.tile_in_sequence(tile) * tile_rows;
        return {first_row, row_end, own.first_key, key_end, key_end - row_end, own.outside, true};
    } else {
        return {tile * tile_rows, queries, 0, keys, 0, false, true};
    }
}

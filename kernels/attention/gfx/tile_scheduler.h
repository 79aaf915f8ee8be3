// Which tile of which head a block computes.
//
// Consecutive blocks go round robin to the XCDs (dies) of a package, each with an L2 of its own: each XCD gets a
// contiguous range of the heads, so that it holds few keys at a time. Tiles with the most keys or queries to pass
// come first.
#pragma once

#include "prelude.h"

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
template <bool Varlen> DEVICE WorkTile work_tile(int blocks, int tiles, int heads, bool last_first) {
    if constexpr (Varlen) {
        return {0, remap_xcd(block_x() % heads, heads), block_x() / heads};
    } else {
        const int id = remap_xcd(block_x(), blocks);
        const int head = id / tiles, tile = id % tiles;
        return {head / heads, head % heads, last_first ? tiles - 1 - tile : tile};
    }
}

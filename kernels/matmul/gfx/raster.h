// Which tile of c a block computes. -DTILE_M -DTILE_N: the block's tile.
#pragma once

#include "prelude.h"

struct TileCorner {
    int m, n;
};

// The raster: the tile of block `id` of `tiles_m` x `tiles_n`. Consecutive blocks run on the package's XCDs
// round-robin, each with an L2 of its own: each XCD gets a contiguous share (XCD swizzle), which is numbered in groups
// of GROUP_M tile rows, down the columns of a group, so that neighbours share operands.
template <int XCDS> DEVICE TileCorner tile_corner(int id, int tiles_m, int tiles_n) {
    const int total = tiles_m * tiles_n;
    if (XCDS > 1) {
        const int xcd = id % XCDS;
        id = xcd * (total / XCDS) + min(xcd, total % XCDS) + id / XCDS;
    }
    constexpr int GROUP_M = 8;
    const int group = id / (GROUP_M * tiles_n);
    const int height = min(GROUP_M, tiles_m - group * GROUP_M);
    const int rest = id - group * GROUP_M * tiles_n;
    return {(group * GROUP_M + rest % height) * TILE_M, rest / height * TILE_N};
}

// Which tile of which head a block takes.
//
// Consecutive blocks go to the dies of a package in turn, each with an L2 of its own: each die gets a contiguous share
// of the heads, so that it holds few keys at a time. Tiles with most lines to pass by come first.
//
// Defines: RAGGED: packed sequences, with the tables of varlen_tiles.cu.
#pragma once

#include "_lib/amdgcn/lds.h"

#include "attention/device/varlen.h"

#if defined(__gfx942__) || defined(__gfx950__)
constexpr int DIES = 8;
#else
constexpr int DIES = 1;
#endif

struct Place {
    int64_t batch, head;
    int tile;
};

// The `id`-th of `total` where the dies have contiguous shares.
DEVICE int share_of(int id, int total) {
    const int die = id % DIES;
    return die * (total / DIES) + min(die, total % DIES) + id / DIES;
}

// `backwards`: a head's last tile comes first. A table has its tiles in order; those of all heads follow one another.
DEVICE Place place_of(int blocks, int tiles, int heads, bool backwards) {
#if RAGGED
    return {0, share_of(block_x() % heads, heads), block_x() / heads};
#else
    const int id = share_of(block_x(), blocks);
    const int head = id / tiles, tile = id % tiles;
    return {head / heads, head % heads, backwards ? tiles - 1 - tile : tile};
#endif
}

// The tables of varlen_tiles.cu; `count` offsets.
struct Tables {
    const int *bounds, *tiles, *counts;
    int count;

    DEVICE bool has(int tile) const { return tile < counts[0]; }
    DEVICE Sequence sequence(int tile) const { return sequence_of(bounds, tiles[2 * tile], count); }
    DEVICE int number(int tile) const { return tiles[2 * tile + 1]; }  // in its sequence
};

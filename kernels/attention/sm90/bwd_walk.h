// A tile of the kernels of attention's gradient, and which steps it takes.
//
// Defines: bwd.h's.
#pragma once

#include "bwd.h"

// A tile: a block of keys of one key head, and how many blocks of queries see it, down from `highest`; each of the
// `share` query heads takes one step per block.
struct Work {
    int batch, group, key_block, share, highest, blocks;

    DEVICE int first_key() const { return key_block * KEYS; }
    DEVICE int steps() const { return share * blocks; }
};

DEVICE Work work_in(const Sight& sight, int batch, int group, int key_block, int share) {
    Work work;
    work.key_block = key_block;
    work.batch = batch;
    work.group = group;
    work.share = share;
    work.highest = sight.highest(work.first_key());
    const int lowest = sight.lowest(work.first_key());
    work.blocks = work.highest >= lowest ? work.highest - lowest + 1 : 0;
    return work;
}

#if RAGGED
// What varlen_tiles.cu made: `count` offsets; `lines` blocks of queries a head.
struct Table {
    const int* bounds;
    const int* tiles;
    int count, lines;
};

// The sequence that a tile is of; the key heads of a block of keys follow one another.
DEVICE Sight sight_of(uint32_t tile, const Sight& all, const Table& table, int groups) {
    const int z = table.tiles[tile / groups * 2];
    const Sequence own = sequence_of(table.bounds, z, table.count);
    return {own.outside ? 0 : own.queries, own.keys, all.left, all.right, own.first_query, own.first_key,
            line_of(own, z, QUERIES), table.lines};
}
DEVICE Work work_of(uint32_t tile, const Sight& sight, const Table& table, int groups, int share) {
    return work_in(sight, 0, tile % groups, table.tiles[tile / groups * 2 + 1], share);
}
#else
// `together` key heads are walked together, from the first block of keys of each to the last.
DEVICE Work work_of(uint32_t tile, uint32_t all, const Sight& sight, int groups, int share, int together) {
    const uint32_t key_blocks = (sight.keys + KEYS - 1) / KEYS;
    const uint32_t first = tile / (key_blocks * together) * together;
    const uint32_t inside = tile - first * key_blocks;
    const uint32_t width = Sight::min(together, all / key_blocks - first);
    const int line = first + inside % width;
    return work_in(sight, line / groups, line % groups, inside / width, share);
}
#endif

// Walks a block's steps without divisions.
struct Walk {
    int head, query_block, left;
    const Work& work;

    DEVICE explicit Walk(const Work& work)
        : head(work.group * work.share), query_block(work.highest), left(INNER ? work.share : work.blocks), work(work) {}
#if INNER
    // All heads of a block of queries: where the right is bounded, a later block of keys is through with a head
    // sooner, and would wait at the next one for those before it.
    DEVICE void next() {
        ++head;
        if (--left == 0) {
            left = work.share;
            head -= work.share;
            --query_block;
        }
    }
#else
    DEVICE void next() {
        --query_block;
        if (--left == 0) {
            left = work.blocks;
            query_block = work.highest;
            ++head;
        }
    }
#endif
};

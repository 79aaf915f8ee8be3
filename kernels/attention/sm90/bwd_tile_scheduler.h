// A tile of the kernels of attention's gradient, and which steps it takes.
//
// Defines: bwd_seqlen_info.h's; HEADS_INSIDE: heads inside blocks of queries.
#pragma once

#include "bwd_seqlen_info.h"

// A tile: a block of keys of one key head, and how many blocks of queries see it, down from `highest`; each of the
// `qheads_per_kvhead` query heads takes one step per block.
struct WorkTile {
    int batch, kv_head, key_block, qheads_per_kvhead, highest, blocks;

    DEVICE int first_key() const { return key_block * KEYS; }
    DEVICE int steps() const { return qheads_per_kvhead * blocks; }
};

DEVICE WorkTile make_work_tile(const BwdSeqlenInfo& seqlen, int batch, int kv_head, int key_block,
                               int qheads_per_kvhead) {
    WorkTile work;
    work.key_block = key_block;
    work.batch = batch;
    work.kv_head = kv_head;
    work.qheads_per_kvhead = qheads_per_kvhead;
    work.highest = seqlen.highest(work.first_key());
    const int lowest = seqlen.lowest(work.first_key());
    work.blocks = work.highest >= lowest ? work.highest - lowest + 1 : 0;
    return work;
}

// Varlen: a tile of the table.
DEVICE WorkTile work_tile_of(uint32_t tile, const BwdSeqlenInfo& seqlen, const AttentionParams& p, int kv_heads) {
    return make_work_tile(seqlen, 0, tile % kv_heads, p.tile_list[tile / kv_heads * 2 + 1], p.qheads_per_kvhead);
}

// Dense: `kv_heads_per_band` key heads go together, from the first block of keys of each to the last.
DEVICE WorkTile work_tile_of(uint32_t tile, uint32_t all, const BwdSeqlenInfo& seqlen, int kv_heads,
                             int qheads_per_kvhead, int kv_heads_per_band) {
    const uint32_t key_blocks = (seqlen.keys + KEYS - 1) / KEYS;
    const uint32_t first = tile / (key_blocks * kv_heads_per_band) * kv_heads_per_band;
    const uint32_t inside = tile - first * key_blocks;
    const uint32_t width = BwdSeqlenInfo::min(kv_heads_per_band, all / key_blocks - first);
    const int line = first + inside % width;
    return make_work_tile(seqlen, line / kv_heads, line % kv_heads, inside / width, qheads_per_kvhead);
}

// A tile's steps, without divisions.
struct StepIterator {
    int head, query_block, left;
    const WorkTile& work;

    DEVICE explicit StepIterator(const WorkTile& work)
        : head(work.kv_head * work.qheads_per_kvhead), query_block(work.highest),
          left(HEADS_INSIDE ? work.qheads_per_kvhead : work.blocks), work(work) {}
    // With HEADS_INSIDE all heads of a block of queries: where the right is bounded, a later block of keys is through
    // with a head sooner, and would wait at the next one for those before it.
    DEVICE void next() {
        if constexpr (HEADS_INSIDE) {
            ++head;
            if (--left == 0) {
                left = work.qheads_per_kvhead;
                head -= work.qheads_per_kvhead;
                --query_block;
            }
        } else {
            --query_block;
            if (--left == 0) {
                left = work.blocks;
                query_block = work.highest;
                ++head;
            }
        }
    }
};

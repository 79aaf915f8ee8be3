// Which tile of queries a block works on.
#pragma once

#include "prelude.h"

#include "seqlen_info.h"

// TILE_M queries of a head from `first_row` on, counted from the first of their sequence.
template <bool Varlen> struct WorkTile {
    int batch, head, first_row;
    SeqlenInfo<Varlen> seqlen;
};

// A tile for each block. Dense: those with most keys first where the right is bounded; a head has `tiles`. Varlen: the
// table's, in its order, the heads of a tile one after the other; a block beyond the tiles has no queries.
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

// Which queries and keys a block works on: of a dense call all of a batch; of varlen a sequence, a slice of all tokens;
// of a decode a split of a sequence's keys.
// For CUDA and HIP.
#pragma once

#include "prelude.h"

// --- varlen: the tables that varlen_tiles.cu makes ---

// Where a sequence's tokens begin and how many there are. What is `outside` is none: tokens that see no others.
struct Sequence {
    int first_query, queries, first_key, keys;
    bool outside;
};

DEVICE Sequence sequence_of(const int* bounds, int z, int count) {
    const int* const at = bounds + z * 4;
    return {at[0], at[1] - at[0], at[2], at[3] - at[2], z == 0 || z == count};
}

// Blocks of `size` queries of a sequence stand in lines, in which sequence z begins at `line_of`: each has room
// there, however the tokens are cut. `sequence_at` says whose place it is; the sequence may have fewer blocks.
DEVICE int line_of(const Sequence& own, int z, int size) { return own.first_query / size + z; }
DEVICE int sequence_at(const int* bounds, int count, int place, int size) {
    int found = 0;
    for (int end = count + 1; end - found > 1;) {
        const int middle = found + (end - found) / 2;
        if (bounds[middle * 4] / size + middle <= place) found = middle;
        else end = middle;
    }
    return found;
}

// Tile i is tile `tile_in_sequence` of its sequence; `count` offsets.
struct VarlenTables {
    const int *bounds, *tiles;
    const uint32_t* counts;
    int count;

    template <class Params>
    DEVICE explicit VarlenTables(const Params& p)
        : bounds(p.bounds), tiles(p.tile_list), counts(p.tile_counts), count(p.offsets) {}
    DEVICE bool has(uint32_t tile) const { return tile < counts[0]; }
    DEVICE Sequence sequence(int tile) const { return sequence_of(bounds, tiles[2 * tile], count); }
    DEVICE int tile_in_sequence(int tile) const { return tiles[2 * tile + 1]; }
};

// --- a block's queries and keys ---

// `m` queries and `n` keys, from token `first_query` and `first_key` on. Of tokens that no sequence has, `outside`, n
// is 0.
template <bool Varlen> struct SeqlenInfo {
    int m, n;
    static constexpr int first_query = 0, first_key = 0;
    static constexpr bool outside = false;
};
template <> struct SeqlenInfo<true> {
    int m, n, first_query, first_key;
    bool outside;
};

DEVICE SeqlenInfo<true> seqlen_of(const Sequence& own) {
    return {own.queries, own.outside ? 0 : own.keys, own.first_query, own.first_key, own.outside};
}
template <bool Varlen> DEVICE SeqlenInfo<Varlen> seqlen_info(const VarlenTables& tables, int tile, int m, int n) {
    if constexpr (Varlen) return seqlen_of(tables.sequence(tile));
    else return {m, n};
}

// Of a gradient: a block owns the rows from `first` on, below `end` (keys with OwnsKeys, else queries), and streams the
// others from `begin` on, below `stop`. Query i sees key j where low <= j - i <= high.
struct BlockRows {
    int first, end, begin, stop, low, high;
};

// The rows of tile `tile` of ROWS own rows, which exists. With Varlen `low` and `high` count from the diagonal that
// joins the sequence's last query to its last key.
template <bool Varlen, bool OwnsKeys, int ROWS>
DEVICE BlockRows block_rows(int tile, const VarlenTables& tables, int queries, int keys, int low, int high) {
    if constexpr (Varlen) {
        const Sequence own = tables.sequence(tile);
        const int query_end = own.first_query + own.queries, key_end = own.first_key + own.keys;
        const int first = (OwnsKeys ? own.first_key : own.first_query) + tables.tile_in_sequence(tile) * ROWS;
        const int begin = OwnsKeys ? own.first_query : own.first_key, stop = OwnsKeys ? query_end : key_end;
        const int diagonal = key_end - query_end, end = OwnsKeys ? key_end : query_end;
        return {first, end, begin, own.outside ? begin : stop, low + diagonal, high + diagonal};
    } else {
        return {tile * ROWS, OwnsKeys ? keys : queries, 0, OwnsKeys ? queries : keys, low, high};
    }
}

// --- decode: split-KV ---
//
// How a sequence's keys are cut into splits follows from its own length and the GPU alone, so that a sequence gets the
// same bits whatever else is in the batch.

constexpr int SPLIT_ALIGN = 128;

DEVICE int round_up(int count, int unit) { return (count + unit - 1) / unit * unit; }

// How many keys sequence z has: within 0..capacity, whatever stands in `lens`. Without `lens`: capacity.
DEVICE int length_of(const int32_t* lens, int64_t z, int capacity) {
    if (lens == nullptr) {
        return capacity;
    }
    const int length = lens[z];
    return length < 0 ? 0 : length < capacity ? length : capacity;
}

// `count` splits of `size` keys from key `first` on: Chunk keys, or more where that would make more than `most`. Left:
// whether a query sees only `left` keys before its own.
template <int Chunk, bool Left> struct KvSplits {
    int first, size, count;

    DEVICE KvSplits(int length, int queries, int left, int most) : first(0) {
        if (Left) {
            first = length - queries - left;
            first = first < 0 ? 0 : first < length ? first : length;
            first = first / SPLIT_ALIGN * SPLIT_ALIGN;
        }
        const int span = length - first;
        size = round_up((span + most - 1) / most, SPLIT_ALIGN);
        size = size < Chunk ? Chunk : size;
        count = (span + size - 1) / size;
    }
};

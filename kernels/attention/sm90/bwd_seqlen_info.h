// What the kernels of attention's gradient share: tile sizes, and which queries of a sequence see which keys.
//
// Defines: ELEMENT (bf16, f16); HEAD, the head size (64, 128; 256); KEYS, of a block's tile; QUERIES, the rows of a
// step; VARLEN: varlen.
#pragma once

#include "prelude.h"

#include "attention/device/params.h"
#include "attention/device/seqlen_info.h"
#include "attention/device/softmax.h"

using T = ELEMENT;

constexpr int SWIZZLE_BYTES = 128;  // bytes that the swizzle goes by: 64 elements
constexpr int HEAD_BLOCKS = HEAD / 64;
constexpr int QUERY_BLOCKS = QUERIES / 64;
// dq of a step is two blocks of 64 x 64, one for each warpgroup: the halves of the head or of the queries.
constexpr int PART = 64 * 64;
constexpr int P_SCALE_LOG2 = P_SCALE_LOG2_OF<T>;
constexpr float P_UNSCALE = 1.0f / (1 << P_SCALE_LOG2);

// One sequence. Key j is seen by query i where -left <= j - i - offset <= right; offset is N - M.
struct BwdSeqlenInfo {
    int queries, keys, left, right;
    int first_query = 0, first_key = 0;  // varlen: of the sequence among all tokens
    int line = 0, lines = 0;             // varlen: its first block of queries among all, of one head

    // Where a block of queries of a head stands among all.
    DEVICE int64_t place(int64_t head, int query_block) const {
        return VARLEN ? head * lines + line + query_block : head * query_blocks() + query_block;
    }
    DEVICE int offset() const { return keys - queries; }
    DEVICE int query_blocks() const { return (queries + QUERIES - 1) / QUERIES; }
    static DEVICE int floor_div(int x, int by) { return x >= 0 ? x / by : -((by - 1 - x) / by); }

    // The blocks of queries that see any key from `first` on, of KEYS.
    DEVICE int lowest(int first) const { return max(0, floor_div(first - offset() - right, QUERIES)); }
    DEVICE int highest(int first) const {
        const int last = min(first + KEYS, keys) - 1;
        return min(query_blocks() - 1, floor_div(last - offset() + left, QUERIES));
    }
    // How many blocks of keys before `block` come to the same block of queries.
    DEVICE int order(int block, int query_block) const {
        return block - max(0, floor_div(query_block * QUERIES + offset() - left, KEYS));
    }
    // Whether every query of a block sees all KEYS keys.
    DEVICE bool all(int query_block, int first) const {
        const int query = query_block * QUERIES;
        return first + KEYS <= keys && first + KEYS - 1 - query - offset() <= right &&
               first - (query + QUERIES - 1) - offset() >= -left;
    }
    // Varlen: whether a block of keys, or of queries, crosses the end of the sequence.
    DEVICE bool partial_keys(int key_block) const { return (key_block + 1) * KEYS > keys; }
    DEVICE bool partial_queries(int query_block) const { return (query_block + 1) * QUERIES > queries; }

    static DEVICE int max(int a, int b) { return a > b ? a : b; }
    static DEVICE int min(int a, int b) { return a < b ? a : b; }
};

// Varlen: the sequence that a tile of the table is of; the key heads of a block of keys follow one another, and a head
// has `lines` blocks of queries.
DEVICE BwdSeqlenInfo seqlen_at(uint32_t tile, const AttentionParams& p, int kv_heads, int lines) {
    const int z = p.tile_list[tile / kv_heads * 2];
    const Sequence own = sequence_of(p.bounds, z, p.offsets);
    return {own.outside ? 0 : own.queries, own.keys, p.left, p.right, own.first_query, own.first_key,
            line_of(own, z, QUERIES), lines};
}

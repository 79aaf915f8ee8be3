// What the kernels of attention's gradient qheads_per_kvhead: the tile, and which queries see which keys.
//
// Defines: ELEMENT (bf16, f16); HEAD, the head size (64, 128; 256); KEYS, of a block's tile; QUERIES, the rows of a
// step; VARLEN: varlen.
#pragma once

#include "prelude.h"

#include "_lib/ptx/matrix.h"
#include "_lib/ptx/pipeline.h"
#include "_lib/ptx/tma.h"
#include "_lib/ptx/wgmma.h"
#include "attention/device/params.h"
#include "attention/device/softmax_backward.h"
#include "attention/device/varlen.h"

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
    static DEVICE int max(int a, int b) { return a > b ? a : b; }
    static DEVICE int min(int a, int b) { return a < b ? a : b; }
};

// A warpgroup's 64 x 64 sums, packed to 16 bits, as 64 swizzled lines. Word 2 * j + down holds columns
// 8 * j + lane % 4 * 2 and the next one of row lane / 4 + 8 * down of the warp's 16.
DEVICE void stage_block(uint32_t at, const uint32_t* words, int thread) {
    const int lane = thread % 32;
    const int line = thread % 128 / 32 * 16 + lane % 16;
#pragma unroll
    for (int j = 0; j < 8; j += 2)
        stmatrix_x4(at + line * SWIZZLE_BYTES + ((j + lane / 16) ^ line % 8) * 16, words + j * 2);
}

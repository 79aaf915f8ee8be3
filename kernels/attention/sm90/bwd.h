// What the kernels of attention's gradient share: tile sizes, which queries of a sequence see which keys, a tile and the
// steps that it takes, and how a gradient's rows leave registers.
//
// Defines: ELEMENT (bf16, f16); HEAD, the head size (64, 128; 256); KEYS, of a block's tile; QUERIES, the rows of a
// step; VARLEN: varlen; HEADS_INSIDE: heads inside blocks of queries; PARAMS_LAYOUT (params.h).
#pragma once

#include "prelude.h"

#include "_lib/ptx/matrix.h"
#include "_lib/ptx/thread_idx.h"
#include "_lib/ptx/tma.h"
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

// --- the tile scheduler ---

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

// --- chunks of dS ---
//
// For heads above 128, dS goes through a workspace (`ds_workspace`), chunk by chunk: which key heads and blocks of keys
// a chunk is for, and where a block of dS lies in it.
//
// Varlen: a query head's blocks of dS are counted sequence by sequence, and of one by blocks of keys: each takes a row
// of as many as there are blocks of queries that see it. attention_varlen_workspace_offsets counts them, and says how many key
// heads a chunk takes. Where one is too many it takes chunks by parts: those blocks of keys whose rows begin among as
// many blocks of dS.

constexpr int DS_ELEMENTS = KEYS * QUERIES;
constexpr int DS_BYTES = DS_ELEMENTS * 2;

// Varlen: a sequence's rows of blocks of dS, one for each block of keys: `most` long, but where the right alone is
// bounded each after row `late` is one shorter than the one before it.
struct DsRows {
    int most, late;

    // How many blocks stand in the rows before `row`.
    DEVICE int before(int row) const {
        return static_cast<int>(static_cast<int64_t>(row) * most - (missing(row - late) - missing(-late)));
    }

private:
    DEVICE int64_t missing(int64_t rows) const {
        if (rows <= 0) return 0;
        return rows < most ? rows * (rows - 1) / 2 : static_cast<int64_t>(most) * (most - 1) / 2 + (rows - most) * most;
    }
};

// The rows of a sequence's own. A bounded left leaves them as long as most are, `reach` at most.
DEVICE DsRows ds_rows_of(const Sequence& own, int reach, int left, int right) {
    constexpr int UNBOUNDED = 1 << 29;
    const int blocks = own.outside ? 0 : BwdSeqlenInfo::min((own.queries + QUERIES - 1) / QUERIES, reach);
    return {blocks, left < UNBOUNDED ? UNBOUNDED : -BwdSeqlenInfo::floor_div(own.queries - own.keys - right, KEYS)};
}

// What one pair of launches is for: the `lines` key heads from `line` on, of all batches, and of each the `blocks`
// blocks of keys from `block` on. A row of dS holds `most` blocks. Of varlen it is a sequence's own, whose rows would
// begin at `first`; `each` blocks of dS are a query head's.
struct Chunk {
    int line, lines, block, blocks;
    int most = 0;                // dense
    int each = 0, first = 0;     // varlen
    DsRows rows = {};            // varlen
};

// dS of a chunk: per query head and block of keys a row, of the blocks of queries that see it. A block lies as shared
// memory holds it: a line of queries per key, swizzled.
DEVICE T* ds_block(T* ds_workspace, const Chunk& chunk, int head, int key_block, int from_lowest) {
    if constexpr (VARLEN) {
        const int of_head = chunk.first + chunk.rows.before(key_block) + from_lowest;
        return ds_workspace + (static_cast<int64_t>(head) * chunk.each + of_head) * DS_ELEMENTS;
    } else {
        const int64_t row = static_cast<int64_t>(head) * chunk.blocks + key_block - chunk.block;
        return ds_workspace + (row * chunk.most + from_lowest) * DS_ELEMENTS;
    }
}

// Of one head: how many key heads a chunk takes, the parts of one, the blocks of dS of a query head, and those of a
// part.
struct ChunkLayout {
    int lines, parts, each, part;
};

// `places`: of each sequence, the blocks of dS before its own. `reach`: the most blocks of queries in a row.
struct WorkspaceOffsets {
    const int* places;
    const int* layout;
    int reach;
};

// How many key heads chunk `number` is for.
DEVICE int chunk_heads(const WorkspaceOffsets& of, int number, int kv_heads) {
    const int lines = of.layout[0], parts = of.layout[1];
    return BwdSeqlenInfo::max(0, BwdSeqlenInfo::min(lines, kv_heads - number / parts * lines));
}

// What chunk `number` is for, of sequence z.
DEVICE Chunk chunk_of(const WorkspaceOffsets& of, int number, int kv_heads, int z, const Sequence& own, int left,
                      int right) {
    const ChunkLayout layout = {of.layout[0], of.layout[1], of.layout[2], of.layout[3]};
    const int at = number % layout.parts, place = of.places[z];
    const int key_blocks = (own.keys + KEYS - 1) / KEYS;
    Chunk chunk;
    chunk.line = number / layout.parts * layout.lines;
    chunk.lines = chunk_heads(of, number, kv_heads);
    chunk.rows = ds_rows_of(own, of.reach, left, right);
    // The first block of keys of a part.
    const auto begin = [&](int part) {
        int first = 0, end = key_blocks;
        if (part == layout.parts) return end;
        while (part > 0 && first < end) {
            const int middle = first + (end - first) / 2;
            if (place + chunk.rows.before(middle) >= part * layout.part) end = middle;
            else first = middle + 1;
        }
        return first;
    };
    chunk.block = begin(at);
    chunk.blocks = begin(at + 1) - chunk.block;
    chunk.each = layout.each;
    chunk.first = place - at * layout.part;
    return chunk;
}

// --- the epilogue ---
//
// A warpgroup's 64 rows of a gradient leave its registers rounded to shared memory, then by TMA, or row by row where a
// sequence ends among them.

// Varlen: a gradient in memory.
struct GlobalRows {
    T* first;
    int64_t head, row;
    int columns;
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

// The 64 rows of COLUMNS of `acc`, times `factor`, as blocks of 64 columns, `LINES` lines apart.
template <int COLUMNS, int LINES> DEVICE void stage_rows(uint32_t to, const float* acc, float factor) {
#pragma unroll
    for (int block = 0; block < COLUMNS / 64; ++block) {
        uint32_t words[16];
#pragma unroll
        for (int i = 0; i < 16; ++i) {
            const float* pair = acc + block * 32 + i * 2;
            words[i] = pack2<T>(pair[0] * factor, pair[1] * factor);
        }
        stage_block(to + block * LINES * SWIZZLE_BYTES, words, reload_thread_idx());
    }
}

// The first `count` staged rows, as rows `row` and on of a head: TMA would write over the next sequence's.
template <int COLUMNS, int LINES>
DEVICE void store_staged(const GlobalRows& to, uint32_t from, int head, int row, int count) {
    T* const rows = to.first + head * to.head + row * to.row;
#pragma unroll 1
    for (int i = reload_thread_idx() % 128; i < count * (COLUMNS / 8); i += 128) {
        const int line = i / (COLUMNS / 8), column = i % (COLUMNS / 8) * 8;
        words<16> held;
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(held.w[0]), "=r"(held.w[1]), "=r"(held.w[2]), "=r"(held.w[3])
                     : "r"(from + column / 64 * LINES * SWIZZLE_BYTES + line * SWIZZLE_BYTES +
                           (column / 8 % 8 ^ line % 8) * 16)
                     : "memory");
        if (column < to.columns) store_words(rows + line * to.row + column, held);
    }
}

// A warpgroup's 64 rows, times `factor`, through shared memory by TMA.
template <int COLUMNS>
DEVICE void store_rows(const TensorMap* map, uint32_t through, const float* acc, float factor, int bar, int row,
                       int head, int batch) {
    stage_rows<COLUMNS, 64>(through, acc, factor);
    fence_proxy_async();
    named_barrier_sync(bar, 128);
    if (reload_thread_idx() % 128 != 0) return;
#pragma unroll
    for (int block = 0; block < COLUMNS / 64; ++block)
        tma_store_4d(map, through + block * 64 * SWIZZLE_BYTES, block * 64, row, head, batch);
    tma_store_commit();
    tma_store_wait_read<0>();
}

// Varlen: the first `count` of them. What TMA still reads of shared memory has been read then.
template <int COLUMNS>
DEVICE void store_tail(const GlobalRows& to, uint32_t through, const float* acc, float factor, int bar, int row,
                       int count, int head) {
    stage_rows<COLUMNS, 64>(through, acc, factor);
    if (reload_thread_idx() % 128 == 0) tma_store_wait_read<0>();
    named_barrier_sync(bar, 128);
    store_staged<COLUMNS, 64>(to, through, head, row, count);
}

// For heads above 128, dS goes through a workspace (`ds_workspace`), chunk by chunk: which key heads and blocks of keys
// a chunk is for, and where a block of dS lies in it.
//
// Varlen: a query head's blocks of dS are counted sequence by sequence, and of one by blocks of keys: each takes a row
// of as many as there are blocks of queries that see it. varlen_workspace_offsets.cu counts them, and says how many key
// heads a chunk takes. Where one is too many it takes chunks by parts: those blocks of keys whose rows begin among as
// many blocks of dS.
//
// Defines: bwd_seqlen_info.h's.
#pragma once

#include "bwd_seqlen_info.h"

static_assert(KEYS == 64 && QUERIES == 64, "a warpgroup's products have 64 rows");
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

// --- varlen ---

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

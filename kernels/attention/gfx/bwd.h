// What the kernels of attention's gradient share on AMD's matrix units: rows of two tensors on their way to LDS,
// and the lines that a wave owns.
//
// One kernel finds dk and dv, one dq, and both do the same: a block owns lines (keys, or queries of one head), and
// the others pass by, STEP lines at a time. Each side has two tensors, of HEAD_D and of HEAD_E columns: k and v, or
// q and do. Products of the lines that pass by with a wave's own give the scores and their gradients, own lines
// in columns; rounded, these are the second operand of the sums, which are transposed. Gradients of scores make the
// sums of HEAD_D columns (dk, dq), weights those of HEAD_E (dv). Where registers and LDS do not hold dk and dv of large
// heads, each has a launch of its own; that of dv needs no gradients, and so v not at all.
//
// Defines: T (bf16, f16); KEYS: whether keys are owned, else queries; HEAD_D, HEAD_E: the head sizes, as multiples
// of 32; WHOLE_D, WHOLE_E: whether they are exact; SUM_D, SUM_E: which sums are found; STEP; WAVES, GROUPS: a wave owns
// GROUPS * 16 lines; HELD: whether in registers, else in LDS; SOFTCAP, BIAS; RAGGED: packed sequences.
#pragma once

#include "seqlen_info.h"
#include "softmax_backward.h"
#include "stage.h"

constexpr int THREADS = WAVES * WARP;
constexpr int OWN = GROUPS * COLUMNS;  // lines of a wave
constexpr int TILE = WAVES * OWN;
static_assert(STEP % DEPTH == 0 && HEAD_D % 32 == 0 && HEAD_E % 32 == 0, "lines of LDS are whole groups of chunks");

using TileD = LdsTile<HEAD_D>;
using TileE = LdsTile<HEAD_E>;
using TileAcross = LdsTile<STEP>;  // transposed: a line per column
using Sight = SightOf<OWN>;

// --- the lines that pass by ---

struct Pair {
    HeadRows<T> d, e;
};

// STEP rows of a pair. A thread moves RUN rows of SIDE columns of one of the two, so that it can store them both
// ways.
struct PairStage {
    static constexpr int SIDE = 4;
    static constexpr int ACROSS_D = HEAD_D / SIDE;
    static constexpr int ACROSS = ACROSS_D + HEAD_E / SIDE;
    static constexpr int TOTAL = ACROSS * STEP / RUN;
    static constexpr int COUNT = (TOTAL + THREADS - 1) / THREADS;

    words<SIDE * 2> held[COUNT][RUN];
    int thread;

    // The thread, asked again where it is needed: what follows from it takes no registers in between.
    DEVICE void ask() {
        thread = thread_x();
        asm volatile("" : "+v"(thread));
    }
    DEVICE int id(int i) const { return thread + i * THREADS; }
    DEVICE bool exists(int i) const { return TOTAL % THREADS == 0 || id(i) < TOTAL; }
    DEVICE bool is_d(int i) const { return id(i) % ACROSS < ACROSS_D; }
    DEVICE int column(int i) const { return (id(i) % ACROSS - (is_d(i) ? 0 : ACROSS_D)) * SIDE; }

    // Rows `first`.., of which at least one exists; the others become zeros.
    DEVICE void load(const Pair& from, int first) {
        ask();
        for (int i = 0; i < COUNT; ++i) {
            if (!exists(i)) {
                continue;
            }
            const int row = first + id(i) / ACROSS * RUN;
            const int64_t step = is_d(i) ? from.d.step : from.e.step;
            const int there = (is_d(i) ? from.d.width : from.e.width) - column(i);
            const T* const data = (is_d(i) ? from.d.data : from.e.data) + column(i);
            for (int r = 0; r < RUN; ++r) {
                const T* const at = data + min(row + r, from.d.end - 1) * step;
                held[i][r] = WHOLE_D && WHOLE_E ? load_unaligned<SIDE * 2>(at) : load_bounded<SIDE * 2>(at, there);
            }
            if (first + STEP > from.d.end) {
                for (int r = 0; r < RUN; ++r) {
                    if (row + r >= from.d.end) {
                        held[i][r] = {};
                    }
                }
            }
        }
    }

    template <class Tile> DEVICE void store_rows(int i, char* tile) const {
        const int row = id(i) / ACROSS * RUN;
        for (int r = 0; r < RUN; ++r) {
            char* const to = tile + Tile::offset(row + r, column(i) / RUN) + column(i) % RUN * 2;
            store_words<SIDE * 2>(to, held[i][r]);
        }
    }

    DEVICE void store_across(int i, char* tile) const {
        for (int c = 0; c < SIDE; ++c) {
            words<16> line;
            for (int r = 0; r < RUN / 2; ++r) {
                const uint32_t low = held[i][2 * r].w[c / 2], high = held[i][2 * r + 1].w[c / 2];
                line.w[r] = c % 2 == 0 ? (low & 0xffffu) | high << 16 : low >> 16 | (high & 0xffff0000u);
            }
            store_words<16>(tile + TileAcross::offset(column(i) + c, id(i) / ACROSS), line);
        }
    }
};

// The lines that pass by, in LDS: rows, and columns of what the sums are of.
struct Passing {
    char *d, *e, *d_across, *e_across;

    static constexpr int BYTES_E = SUM_D ? TileE::bytes(STEP) : 0;
    static constexpr int BYTES_ACROSS_D = SUM_D ? TileAcross::bytes(HEAD_D) : 0;
    static constexpr int BYTES_ACROSS_E = SUM_E ? TileAcross::bytes(HEAD_E) : 0;
    static constexpr int BYTES = TileD::bytes(STEP) + BYTES_E + BYTES_ACROSS_D + BYTES_ACROSS_E;

    DEVICE explicit Passing(char* lds) {
        d = lds;
        e = d + TileD::bytes(STEP);
        d_across = e + BYTES_E;
        e_across = d_across + BYTES_ACROSS_D;
    }

    DEVICE void store(PairStage& stage) const {
        stage.ask();
        for (int i = 0; i < PairStage::COUNT; ++i) {
            if (!stage.exists(i)) {
                continue;
            }
            if (stage.is_d(i)) {
                stage.store_rows<TileD>(i, d);
                if (SUM_D) {
                    stage.store_across(i, d_across);
                }
            } else {
                if (SUM_D) {
                    stage.store_rows<TileE>(i, e);
                }
                if (SUM_E) {
                    stage.store_across(i, e_across);
                }
            }
        }
    }
};

// --- the lines that a wave owns ---

// This wave's first line of the block's.
DEVICE int own_line() { return __builtin_amdgcn_readfirstlane(thread_x() / WARP) * OWN; }

struct Own {
#if HELD
    static constexpr int BYTES = 0;
    Columns held_d[GROUPS][HEAD_D / DEPTH], held_e[GROUPS][HEAD_E / DEPTH];  // the latter where dS is needed

    DEVICE Own(const Pair& from, int first, char*) {
        for (int g = 0; g < GROUPS; ++g) {
            const int64_t line = min(first + own_line() + g * COLUMNS + lane_column(), from.d.end - 1);
            for (int i = 0; i < HEAD_D / DEPTH; ++i) {
                const int k = i * DEPTH;
                held_d[g][i] = columns_from(from.d.data + line * from.d.step, k, (WHOLE_D ? HEAD_D : from.d.width) - k);
            }
            for (int i = 0; SUM_D && i < HEAD_E / DEPTH; ++i) {
                const int k = i * DEPTH;
                held_e[g][i] = columns_from(from.e.data + line * from.e.step, k, (WHOLE_E ? HEAD_E : from.e.width) - k);
            }
        }
    }
    DEVICE Columns d(int group, int k) const { return held_d[group][k / DEPTH]; }
    DEVICE Columns e(int group, int k) const { return held_e[group][k / DEPTH]; }
#else
    static constexpr int BYTES = TileD::bytes(TILE) + (SUM_D ? TileE::bytes(TILE) : 0);
    const char* lds;

    DEVICE Own(const Pair& from, int first, char* to) {
        RowStage<T, HEAD_D, TILE, THREADS> stage_d;
        stage_d.template load<WHOLE_D>(from.d, first);
        stage_d.store(to);
        if (SUM_D) {
            RowStage<T, HEAD_E, TILE, THREADS> stage_e;
            stage_e.template load<WHOLE_E>(from.e, first);
            stage_e.store(to + TileD::bytes(TILE));
        }
        lds = to;
    }
    DEVICE Columns d(int group, int k) const { return TileD::columns(lds, own_line() + group * COLUMNS, k); }
    DEVICE Columns e(int group, int k) const {
        return TileE::columns(lds + TileD::bytes(TILE), own_line() + group * COLUMNS, k);
    }
#endif
};

// --- which lines a block owns, and which pass by ---

// Own lines from `first` on, below `end`; those that pass by, from `begin` on, below `stop`. Query i sees key j
// where low <= j - i <= high.
struct Span {
    int first, end, begin, stop, low, high;
};

// The span of a tile, nothing where there is none. `low` and `high` count, where sequences are packed, from the
// diagonal that joins the sequence's last query to its last key.
DEVICE Span span_of(int tile, const Tables& tables, int queries, int keys, int low, int high) {
#if RAGGED
    if (!tables.has(tile)) {
        return {};
    }
    const Sequence at = tables.sequence(tile);
    const int query_end = at.first_query + at.queries, key_end = at.first_key + at.keys;
    const int first = (KEYS ? at.first_key : at.first_query) + tables.number(tile) * TILE;
    const int begin = KEYS ? at.first_query : at.first_key, stop = KEYS ? query_end : key_end;
    const int diagonal = key_end - query_end;
    return {first, KEYS ? key_end : query_end, begin, at.outside ? begin : stop, low + diagonal, high + diagonal};
#else
    return {tile * TILE, KEYS ? keys : queries, 0, KEYS ? queries : keys, low, high};
#endif
}

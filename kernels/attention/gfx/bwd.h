// What the kernels of attention's gradient share on AMD's matrix units: copies of two tensors' rows to LDS, and the
// rows that a wave owns.
//
// One kernel computes dk and dv, one dq, and both work alike: a block owns rows (keys, or queries of one head), and
// streams the others, STREAM_ROWS at a time. Each side has two tensors, of HEAD_D and of HEAD_E columns: k and v, or
// q and do. Products of the streamed rows with a wave's own give S and dP, own rows in columns; P and dS, rounded, are
// the second operand of the accumulators, which are transposed. dS makes the accumulators of HEAD_D columns (dk, dq),
// P those of HEAD_E (dv). Where registers and LDS do not hold dk and dv of large heads, each has a launch of its own;
// that of dv needs no dS, and so v not at all.
//
// Defines: T (bf16, f16); OWNS_KEYS: whether blocks own keys, else queries; HEAD_D, HEAD_E: the head sizes, as
// multiples of 32; EVEN_D, EVEN_E: whether they are exact; ACC_D, ACC_E: which accumulators are computed;
// STREAM_ROWS; WAVES, TILES_PER_WAVE: a wave owns TILES_PER_WAVE * 16 rows; OWN_IN_REGISTERS: whether in registers,
// else in LDS; SOFTCAP, BIAS; VARLEN: packed sequences (attention_varlen_backward).
#pragma once

#include "attention/device/mask.h"
#include "attention/device/seqlen_info.h"
#include "attention/device/softmax.h"
#include "copy.h"
#include "tile_scheduler.h"

constexpr int THREADS = WAVES * WARP;
constexpr int WAVE_ROWS = TILES_PER_WAVE * MMA_N;  // own rows of a wave
constexpr int TILE = WAVES * WAVE_ROWS;
static_assert(STREAM_ROWS % MMA_K == 0 && HEAD_D % 32 == 0 && HEAD_E % 32 == 0, "LDS rows are whole swizzle groups");

using TileD = LdsTile<HEAD_D>;
using TileE = LdsTile<HEAD_E>;
using TransposedTile = LdsTile<STREAM_ROWS>;  // a row per column
using Mask = MaskBounds<OWNS_KEYS, WAVE_ROWS>;
constexpr int P_SCALE_LOG2 = OWNS_KEYS ? P_SCALE_LOG2_OF<T> : 0;
constexpr float P_UNSCALE = 1.0f / (1 << P_SCALE_LOG2);

// --- the streamed rows ---

struct TensorPair {
    HeadRows<T> d, e;
};

// STREAM_ROWS rows of a pair. A thread moves ELEMENTS_PER_LANE rows of COLUMNS columns of one of the two, so that it
// can store them both ways.
struct PairCopy {
    static constexpr int COLUMNS = 4;
    static constexpr int THREADS_PER_ROW_D = HEAD_D / COLUMNS;
    static constexpr int THREADS_PER_ROW = THREADS_PER_ROW_D + HEAD_E / COLUMNS;
    static constexpr int TOTAL = THREADS_PER_ROW * STREAM_ROWS / ELEMENTS_PER_LANE;
    static constexpr int COUNT = (TOTAL + THREADS - 1) / THREADS;

    words<COLUMNS * 2> registers[COUNT][ELEMENTS_PER_LANE];
    int thread;

    // Reads the thread index again where it is needed: what is computed from it takes no registers in between.
    DEVICE void reload_thread_idx() {
        thread = thread_x();
        asm volatile("" : "+v"(thread));
    }
    DEVICE int id(int i) const { return thread + i * THREADS; }
    DEVICE bool exists(int i) const { return TOTAL % THREADS == 0 || id(i) < TOTAL; }
    DEVICE bool is_d(int i) const { return id(i) % THREADS_PER_ROW < THREADS_PER_ROW_D; }
    DEVICE int column(int i) const { return (id(i) % THREADS_PER_ROW - (is_d(i) ? 0 : THREADS_PER_ROW_D)) * COLUMNS; }

    // The rows from `first` on, of which at least one exists; the others become zeros.
    DEVICE void load(const TensorPair& from, int first) {
        reload_thread_idx();
        for (int i = 0; i < COUNT; ++i) {
            if (!exists(i)) {
                continue;
            }
            const int row = first + id(i) / THREADS_PER_ROW * ELEMENTS_PER_LANE;
            const int64_t stride = is_d(i) ? from.d.stride : from.e.stride;
            const int remaining = (is_d(i) ? from.d.width : from.e.width) - column(i);
            const T* const data = (is_d(i) ? from.d.data : from.e.data) + column(i);
            for (int r = 0; r < ELEMENTS_PER_LANE; ++r) {
                const T* const address = data + min(row + r, from.d.end - 1) * stride;
                registers[i][r] = EVEN_D && EVEN_E ? load_unaligned<COLUMNS * 2>(address)
                                                   : load_bounded<COLUMNS * 2>(address, remaining);
            }
            if (first + STREAM_ROWS > from.d.end) {
                for (int r = 0; r < ELEMENTS_PER_LANE; ++r) {
                    if (row + r >= from.d.end) {
                        registers[i][r] = {};
                    }
                }
            }
        }
    }

    template <class Tile> DEVICE void store_rows(int i, char* tile) const {
        const int row = id(i) / THREADS_PER_ROW * ELEMENTS_PER_LANE;
        for (int r = 0; r < ELEMENTS_PER_LANE; ++r) {
            char* const to =
                tile + Tile::offset(row + r, column(i) / ELEMENTS_PER_LANE) + column(i) % ELEMENTS_PER_LANE * 2;
            store_words<COLUMNS * 2>(to, registers[i][r]);
        }
    }

    DEVICE void store_transposed(int i, char* tile) const {
        for (int c = 0; c < COLUMNS; ++c) {
            words<16> transposed;
            for (int r = 0; r < ELEMENTS_PER_LANE / 2; ++r) {
                transposed.w[r] =
                    pair_halves(registers[i][2 * r].w[c / 2], registers[i][2 * r + 1].w[c / 2], c % 2);
            }
            store_words<16>(tile + TransposedTile::offset(column(i) + c, id(i) / THREADS_PER_ROW), transposed);
        }
    }
};

// The streamed rows in LDS: as rows, and transposed for the accumulators' products.
struct StreamedTile {
    char *d, *e, *d_transposed, *e_transposed;

    static constexpr int BYTES_E = ACC_D ? TileE::bytes(STREAM_ROWS) : 0;
    static constexpr int BYTES_TRANSPOSED_D = ACC_D ? TransposedTile::bytes(HEAD_D) : 0;
    static constexpr int BYTES_TRANSPOSED_E = ACC_E ? TransposedTile::bytes(HEAD_E) : 0;
    static constexpr int BYTES = TileD::bytes(STREAM_ROWS) + BYTES_E + BYTES_TRANSPOSED_D + BYTES_TRANSPOSED_E;

    DEVICE explicit StreamedTile(char* lds) {
        d = lds;
        e = d + TileD::bytes(STREAM_ROWS);
        d_transposed = e + BYTES_E;
        e_transposed = d_transposed + BYTES_TRANSPOSED_D;
    }

    DEVICE void store(PairCopy& copy) const {
        copy.reload_thread_idx();
        for (int i = 0; i < PairCopy::COUNT; ++i) {
            if (!copy.exists(i)) {
                continue;
            }
            if (copy.is_d(i)) {
                copy.store_rows<TileD>(i, d);
                if (ACC_D) {
                    copy.store_transposed(i, d_transposed);
                }
            } else {
                if (ACC_D) {
                    copy.store_rows<TileE>(i, e);
                }
                if (ACC_E) {
                    copy.store_transposed(i, e_transposed);
                }
            }
        }
    }
};

// --- the rows that a wave owns ---

// This wave's first row of the block's.
DEVICE int wave_row() { return __builtin_amdgcn_readfirstlane(thread_x() / WARP) * WAVE_ROWS; }

// A block's own rows as second operands; `tile` is one of the wave's TILES_PER_WAVE.
template <bool IN_REGISTERS> struct OwnRows;

template <> struct OwnRows<true> {
    static constexpr int BYTES = 0;
    BFragment held_d[TILES_PER_WAVE][HEAD_D / MMA_K], held_e[TILES_PER_WAVE][HEAD_E / MMA_K];  // the latter for dS

    DEVICE OwnRows(const TensorPair& from, int first, char*) {
        for (int t = 0; t < TILES_PER_WAVE; ++t) {
            const int64_t row = min(first + wave_row() + t * MMA_N + lane_column(), from.d.end - 1);
            for (int i = 0; i < HEAD_D / MMA_K; ++i) {
                const int k = i * MMA_K;
                const int remaining = (EVEN_D ? HEAD_D : from.d.width) - k;
                held_d[t][i] = load_b_global(from.d.data + row * from.d.stride, k, remaining);
            }
            for (int i = 0; ACC_D && i < HEAD_E / MMA_K; ++i) {
                const int k = i * MMA_K;
                const int remaining = (EVEN_E ? HEAD_E : from.e.width) - k;
                held_e[t][i] = load_b_global(from.e.data + row * from.e.stride, k, remaining);
            }
        }
    }
    DEVICE BFragment d(int tile, int k) const { return held_d[tile][k / MMA_K]; }
    DEVICE BFragment e(int tile, int k) const { return held_e[tile][k / MMA_K]; }
};

template <> struct OwnRows<false> {
    static constexpr int BYTES = TileD::bytes(TILE) + (ACC_D ? TileE::bytes(TILE) : 0);
    const char* lds;

    DEVICE OwnRows(const TensorPair& from, int first, char* to) {
        TileCopy<T, HEAD_D, TILE, THREADS> copy_d;
        copy_d.template load<EVEN_D>(from.d, first);
        copy_d.store(to);
        if (ACC_D) {
            TileCopy<T, HEAD_E, TILE, THREADS> copy_e;
            copy_e.template load<EVEN_E>(from.e, first);
            copy_e.store(to + TileD::bytes(TILE));
        }
        lds = to;
    }
    DEVICE BFragment d(int tile, int k) const { return TileD::load_b(lds, wave_row() + tile * MMA_N, k); }
    DEVICE BFragment e(int tile, int k) const {
        return TileE::load_b(lds + TileD::bytes(TILE), wave_row() + tile * MMA_N, k);
    }
};

using Own = OwnRows<OWN_IN_REGISTERS>;

// The rows that a gradient's block streams: STREAM_ROWS at a time of two tensors, of HEAD_D and of HEAD_E columns, from
// memory to LDS, and from there as first operands: rows, and columns for the accumulators' products.
//
// `Streamed` is one of three: by loads to their own addresses; on gfx9, where heads allow it, by buffer descriptors; on
// gfx950 the latter keep rows alone, for columns come by loads that transpose.
#pragma once

#include "stream.h"

struct TensorPair {
    HeadRows<T> d, e;
};

#if !BUFFER_LOADS

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
                clear_beyond(registers[i], row, from.d.end);
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

    template <class Tile> DEVICE void store_transposed(int i, char* tile) const {
        for (int c = 0; c < COLUMNS; ++c) {
            const int offset = Tile::offset(column(i) + c, id(i) / THREADS_PER_ROW);
            store_words<16>(tile + offset, transposed_column(registers[i], c));
        }
    }
};

// By loads to their own addresses, as rows and transposed.
class Streamed {
    using TileD = LdsTile<HEAD_D>;
    using TileE = LdsTile<HEAD_E>;
    using TransposedTile = LdsTile<STREAM_ROWS>;  // a row per column

    static constexpr int BYTES_E = ACC_D ? TileE::bytes(STREAM_ROWS) : 0;
    static constexpr int BYTES_TRANSPOSED_D = ACC_D ? TransposedTile::bytes(HEAD_D) : 0;
    static constexpr int BYTES_TRANSPOSED_E = ACC_E ? TransposedTile::bytes(HEAD_E) : 0;

    char *d_rows, *e_rows, *d_transposed, *e_transposed;
    PairCopy copy;
    TensorPair from;
    int next;

  public:
    static constexpr int BYTES = TileD::bytes(STREAM_ROWS) + BYTES_E + BYTES_TRANSPOSED_D + BYTES_TRANSPOSED_E;

    DEVICE explicit Streamed(char* lds) {
        d_rows = lds;
        e_rows = d_rows + TileD::bytes(STREAM_ROWS);
        d_transposed = e_rows + BYTES_E;
        e_transposed = d_transposed + BYTES_TRANSPOSED_D;
    }
    DEVICE void start(const TensorPair& pair, int first, int) {
        from = pair;
        next = first;
    }
    // The next rows, of which at least one exists.
    DEVICE void load() {
        copy.load(from, next);
        next += STREAM_ROWS;
    }
    DEVICE void store() {
        copy.reload_thread_idx();
        for (int i = 0; i < PairCopy::COUNT; ++i) {
            if (!copy.exists(i)) {
                continue;
            }
            if (copy.is_d(i)) {
                copy.store_rows<TileD>(i, d_rows);
                if (ACC_D) {
                    copy.store_transposed<TransposedTile>(i, d_transposed);
                }
            } else {
                if (ACC_D) {
                    copy.store_rows<TileE>(i, e_rows);
                }
                if (ACC_E) {
                    copy.store_transposed<TransposedTile>(i, e_transposed);
                }
            }
        }
    }

    // First operands of an AccumulatorFragment's i-th instruction: rows from `row` on, of their columns from k on; and
    // columns from `column` on, of rows from `row` on.
    DEVICE operand d(int i, int row, int k) const { return TileD::load(d_rows, row + a_row_of_lane(i), k); }
    DEVICE operand e(int i, int row, int k) const { return TileE::load(e_rows, row + a_row_of_lane(i), k); }
    DEVICE operand d_column(int i, int column, int row) const {
        return TransposedTile::load(d_transposed, column + a_row_of_lane(i), row);
    }
    DEVICE operand e_column(int i, int column, int row) const {
        return TransposedTile::load(e_transposed, column + a_row_of_lane(i), row);
    }
    // Undoes the order in which columns come.
    static DEVICE void in_column_order(AccumulatorFragment&) {}
};

#else

static_assert(STREAM_ROWS == MMA_M, "one fragment of rows a step");
typedef char __attribute__((address_space(3)))* lds_pointer;
template <int BYTES> DEVICE words<BYTES> load_lds(lds_pointer from) {
    typedef typename machine_words<BYTES>::type __attribute__((address_space(3))) type;
    return __builtin_bit_cast(words<BYTES>, *(const type*)from);
}
template <int BYTES> DEVICE void store_lds(lds_pointer to, words<BYTES> value) {
    typedef typename machine_words<BYTES>::type type;
    *(type __attribute__((address_space(3)))*)to = __builtin_bit_cast(type, value);
}

DEVICE int wave_of_block() { return __builtin_amdgcn_readfirstlane(thread_x() / WARP); }

// What a wave copies in COUNT turns: parts of the first tensor, PARTS_D of them, and after them of the second.
template <int PARTS_D, int PARTS_E> struct WaveParts {
    static constexpr int COUNT = (PARTS_D + PARTS_E + WAVES - 1) / WAVES;

    static DEVICE int part(int i) { return wave_of_block() + i * WAVES; }
    static DEVICE bool exists(int i) {
        return (PARTS_D + PARTS_E) % WAVES == 0 || part(i) < PARTS_D + PARTS_E;
    }
    static DEVICE bool is_d(int i) {
        return PARTS_D % WAVES == 0 ? i * WAVES < PARTS_D : part(i) < PARTS_D;
    }
    // Where both tensors' parts lie alike, a wave's first KEPT tell where the others do.
    static constexpr bool ALIKE = PARTS_D == PARTS_E && PARTS_D % WAVES == 0;
    static constexpr int KEPT = ALIKE ? COUNT / 2 : COUNT;
    static DEVICE int part_of_tensor(int i) { return part(i) - (is_d(i) ? 0 : PARTS_D); }
};

// The buffers of a pair.
struct PairBuffers {
    RowBuffer d, e;

    DEVICE void start(const TensorPair& pair, int first, int end) {
        d.start(pair.d, first, end);
        e.start(pair.e, first, end);
    }
    DEVICE void advance() {
        d.advance(STREAM_ROWS);
        e.advance(STREAM_ROWS);
    }
};

// A lane's offset of a column of a row, or one that no buffer has, nor with a few rows added.
DEVICE int offset_of(const HeadRows<T>& rows, bool exists, int row, int column) {
    const int offset = offset_in_tile(rows, row, column);
    return exists && offset >= 0 ? offset : -0x7fffffff - 1;
}

#if defined(__gfx950__)

// Rows alone, each chunk as it comes.
class Streamed {
    using TileD = ColumnTile<HEAD_D>;
    using TileE = ColumnTile<HEAD_E>;
    static constexpr int E_AT = TileD::bytes(STREAM_ROWS);

    // A part is a chunk of each lane.
    using Parts = WaveParts<STREAM_ROWS * TileD::CHUNKS / WARP, STREAM_ROWS * TileE::CHUNKS / WARP>;

    RowFragments<HEAD_D> d_rows;
    RowFragments<HEAD_E> e_rows;
    ColumnFragments<HEAD_D> d_columns;
    ColumnFragments<HEAD_E> e_columns;
    // A wave's parts of a tensor of 128 columns: four rows, and the four behind them.
    static constexpr int TURNS = Parts::ALIKE && Parts::KEPT == 2 && TileD::CHUNKS * 4 == WARP ? 2 : 1;
    static constexpr int OFFSETS = Parts::COUNT / TURNS;

    PairBuffers buffers;
    words<16> registers[Parts::COUNT];
    int offsets[OFFSETS];
    LdsAddress to[Parts::KEPT / TURNS];

  public:
    static constexpr int BYTES = E_AT + TileE::bytes(STREAM_ROWS);

    DEVICE explicit Streamed(char* lds) : d_rows(lds), e_rows(lds + E_AT), d_columns(lds), e_columns(lds + E_AT) {
        for (int i = 0; i < Parts::KEPT / TURNS; ++i) {
            const bool is_d = Parts::is_d(i);
            to[i].set(lds + (is_d ? TileD::offset(row_of(i, TileD::CHUNKS), id(i) % TileD::CHUNKS)
                                  : E_AT + TileE::offset(row_of(i, TileE::CHUNKS), id(i) % TileE::CHUNKS)));
        }
    }
    static DEVICE int id(int i) { return Parts::part_of_tensor(i) * WARP + lane_of_wave(); }
    // Rows in an order in which those of a wave's parts are four apart or far, so that their chunks are permuted alike.
    static DEVICE int row_of(int i, int chunks) {
        const int row = id(i) / chunks;
        return (row & 3) | (row >> 2 & 3) << 3 | (row >> 4) << 2;
    }

    DEVICE void start(const TensorPair& pair, int first, int end) {
        buffers.start(pair, first, end);
        for (int i = 0; i < OFFSETS; ++i) {
            const int of = i * TURNS, chunks = Parts::is_d(of) ? TileD::CHUNKS : TileE::CHUNKS;
            const int column = id(of) % chunks * ELEMENTS_PER_LANE;
            offsets[i] = offset_of(Parts::is_d(of) ? pair.d : pair.e, Parts::exists(of), row_of(of, chunks), column);
        }
    }
    DEVICE void load() {
        for (int i = 0; i < Parts::COUNT; ++i) {
            const RowBuffer& buffer = Parts::is_d(i) ? buffers.d : buffers.e;
            const int offset = offsets[i / TURNS] + i % TURNS * 4 * buffer.bytes_of_row();
            registers[i] = __builtin_bit_cast(
                words<16>, __builtin_amdgcn_raw_buffer_load_b128(buffer.descriptor(), offset, 0, 0));
            asm volatile("" : "+v"(offsets[i / TURNS]));  // the others are made anew
        }
        buffers.advance();
    }
    DEVICE void store() {
        for (int i = 0; i < Parts::COUNT; ++i) {
            if (Parts::exists(i)) {
                const int behind = i % TURNS * 4 * TileD::PITCH + i / Parts::KEPT * E_AT;
                to[i % Parts::KEPT / TURNS].store(registers[i], behind);
            }
        }
    }

    // As above.
    DEVICE operand d(int i, int, int k) const { return d_rows.load(i, k); }
    DEVICE operand e(int i, int, int k) const {
        return HEAD_D == HEAD_E ? d_rows.load(i, k, E_AT) : e_rows.load(i, k);
    }
    DEVICE operand d_column(int i, int column, int) const { return d_columns.load_one(i, column, 0); }
    DEVICE operand e_column(int i, int column, int) const {
        return HEAD_D == HEAD_E ? d_columns.load_one(i, column, 0, E_AT) : e_columns.load_one(i, column, 0);
    }
    static DEVICE void in_column_order(AccumulatorFragment& acc) { ::in_column_order(acc); }
};

#else

// A row per column of the streamed rows: an LdsTile<STREAM_ROWS> in which every other four columns trade places with
// their neighbours, so that 16 lanes with all rows of columns c and c + 4 use all banks.
struct TransposedTile {
    using Tile = LdsTile<STREAM_ROWS>;
    static constexpr int bytes(int columns) { return Tile::bytes(columns); }
    static DEVICE int offset(int column, int chunk) { return Tile::offset(column ^ (column >> 2 & 1), chunk); }
};

// As rows and transposed.
class Streamed {
    using TileD = LdsTile<HEAD_D>;
    using TileE = LdsTile<HEAD_E>;
    static constexpr int E_AT = TileD::bytes(STREAM_ROWS);
    static constexpr int D_TRANSPOSED = E_AT + (ACC_D ? TileE::bytes(STREAM_ROWS) : 0);
    static constexpr int E_TRANSPOSED = D_TRANSPOSED + (ACC_D ? TransposedTile::bytes(HEAD_D) : 0);

    // A part is 32 columns, of which a lane has four of four rows: eight lanes have all rows of four columns, so that
    // stores both ways find all banks.
    static constexpr int PART = 32, COLUMNS = 4, ROWS = 4;
    using Parts = WaveParts<HEAD_D / PART, HEAD_E / PART>;

    LdsFragments<HEAD_D> d_rows;
    LdsFragments<HEAD_E> e_rows;
    lds_pointer columns[MMA_INSTRUCTIONS];
    PairBuffers buffers;
    words<COLUMNS * 2> registers[Parts::COUNT][ROWS];
    int offsets[Parts::COUNT];
    lds_pointer to_rows[Parts::KEPT], to_columns[Parts::KEPT];

    static DEVICE int lane_row() { return lane_of_wave() % 8 * ROWS; }
    static DEVICE int lane_columns() { return lane_of_wave() / 8 * COLUMNS; }

    template <class Tile> DEVICE void store_rows(int i) const {
        lds_pointer to = to_rows[i % Parts::KEPT];
        asm volatile("" : "+v"(to));  // the addresses that follow from it are made anew
        for (int r = 0; r < ROWS; ++r) {
            const int turned = Tile::offset(r, 0) - r * HEAD_BYTES<Tile>;
            const int behind = r * HEAD_BYTES<Tile> + i / Parts::KEPT * E_AT;
            store_lds((lds_pointer)((uint32_t)(__UINTPTR_TYPE__)to ^ turned) + behind, registers[i][r]);
        }
    }
    template <class Tile> static constexpr int HEAD_BYTES = Tile::CHUNKS * 16;

    DEVICE void store_columns(int i) const {
        lds_pointer to = to_columns[i % Parts::KEPT];
        asm volatile("" : "+v"(to));
        for (int c = 0; c < COLUMNS; ++c) {
            words<ROWS * 2> column;
            for (int r = 0; r < ROWS / 2; ++r) {
                column.w[r] = pair_halves(registers[i][2 * r].w[c / 2], registers[i][2 * r + 1].w[c / 2], c % 2);
            }
            // c's bits turn those of the column and of its key
            const int at = TransposedTile::offset(c, 0);
            const int behind = i / Parts::KEPT * (E_TRANSPOSED - D_TRANSPOSED);
            store_lds((lds_pointer)((uint32_t)(__UINTPTR_TYPE__)to ^ at) + behind, column);
        }
    }

  public:
    static constexpr int BYTES = E_TRANSPOSED + (ACC_E ? TransposedTile::bytes(HEAD_E) : 0);

    DEVICE explicit Streamed(char* lds) : d_rows(lds), e_rows(lds + E_AT) {
        for (int i = 0; i < MMA_INSTRUCTIONS; ++i) {
            columns[i] = (lds_pointer)lds + TransposedTile::offset(a_row_of_lane(i), lane_part());
            asm("" : "+v"(columns[i]));
        }
        for (int i = 0; i < Parts::KEPT; ++i) {
            const int column = Parts::part_of_tensor(i) * PART + lane_columns(), row = lane_row();
            const int half = column % ELEMENTS_PER_LANE * 2;
            const bool is_d = Parts::is_d(i);
            to_rows[i] = (lds_pointer)lds + half +
                         (is_d ? TileD::offset(row, column / ELEMENTS_PER_LANE)
                               : E_AT + TileE::offset(row, column / ELEMENTS_PER_LANE));
            to_columns[i] = (lds_pointer)lds + (is_d ? D_TRANSPOSED : E_TRANSPOSED) +
                            TransposedTile::offset(column, row / ELEMENTS_PER_LANE) + row % ELEMENTS_PER_LANE * 2;
            asm("" : "+v"(to_rows[i]), "+v"(to_columns[i]));
        }
    }
    // The rows of a head from `first` to before `end`.
    DEVICE void start(const TensorPair& pair, int first, int end) {
        buffers.start(pair, first, end);
        for (int i = 0; i < Parts::COUNT; ++i) {
            const int column = Parts::part_of_tensor(i) * PART + lane_columns();
            offsets[i] = offset_of(Parts::is_d(i) ? pair.d : pair.e, Parts::exists(i), lane_row(), column);
        }
    }
    // The next rows; past the last nothing.
    DEVICE void load() {
        for (int i = 0; i < Parts::COUNT; ++i) {
            const RowBuffer& buffer = Parts::is_d(i) ? buffers.d : buffers.e;
            const __amdgpu_buffer_rsrc_t from = buffer.descriptor();
            asm volatile("" : "+v"(offsets[i]));
            for (int r = 0; r < ROWS; ++r) {
                const int offset = offsets[i] + r * buffer.bytes_of_row();
                registers[i][r] =
                    __builtin_bit_cast(words<COLUMNS * 2>, __builtin_amdgcn_raw_buffer_load_b64(from, offset, 0, 0));
            }
        }
        buffers.advance();
    }
    DEVICE void store() {
        for (int i = 0; i < Parts::COUNT; ++i) {
            if (!Parts::exists(i)) {
                continue;
            }
            if (Parts::is_d(i)) {
                store_rows<TileD>(i);
                if (ACC_D) {
                    store_columns(i);
                }
            } else {
                if (ACC_D) {
                    store_rows<TileE>(i);
                }
                if (ACC_E) {
                    store_columns(i);
                }
            }
        }
    }

    // As above.
    DEVICE operand d(int i, int, int k) const { return d_rows.load_one(i, 0, k); }
    DEVICE operand e(int i, int, int k) const {
        return HEAD_D == HEAD_E ? d_rows.load_one(i, 0, k, E_AT) : e_rows.load_one(i, 0, k);
    }
    DEVICE operand column(int i, int column, int tile) const {
        return load_lds<16>(columns[i] + (tile + TransposedTile::bytes(column)));
    }
    DEVICE operand d_column(int i, int first, int) const { return column(i, first, D_TRANSPOSED); }
    DEVICE operand e_column(int i, int first, int) const { return column(i, first, E_TRANSPOSED); }
    static DEVICE void in_column_order(AccumulatorFragment&) {}
};

#endif
#endif

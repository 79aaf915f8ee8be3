// y = x @ w.T + bias of a weight in codes of 4 bits by AMD's matrix instructions; operands of any alignment. A and B are
// swapped: the weight's rows are a product's rows and x's rows its columns, and a lane's accumulators are neighbours of
// a row of y.
//
// A block computes TILE_N columns of y of TILE_M rows, in steps of STEP_BYTES of a row of x, whose tile goes through
// registers to LDS while the step before is multiplied. Codes go straight from memory to the registers of the lane that
// makes numbers of them, each less its zero point: of a step a lane has neighbours along k. Products are summed from
// zero within a group, and the sum is multiplied by the group's scale in float32. A step is in one group, which takes
// one or more of them, or it has several groups of GROUP_K each (SPANS), and an operand is then in one of these.
//
// Of rows in 16 bits (halves.h): with offsets, `x_sums` [G, rows] are the sums of x over groups (group_sums.hip). Where
// PARTIAL, each of grid_y blocks does `part_groups` groups, and stores float32 sums [parts, rows, padded columns] for
// matmul's splitk_reduce.hip. Of int8 rows (int8.h) `scale_a` is a scale of each row.
//
// Defines: INTEGER, TILE_N, TILE_M, WAVES_N, WAVES_M, SPANS, SINGLE (a step holds whole groups), WHOLE_STEPS (and all of it
// exists), OFFSET_TYPE (of bytes within a tile), ELEMENT (bf16, f16, int8_t: x), SCALE (f32, bf16, f16), RESULT,
// ZERO_POINT, OFFSET, BIAS, PARTIAL, DIES.
#include "prelude.h"

#include "attention/gfx/tiles.h"
#include "matmul/gfx/raster.h"

constexpr int THREADS = WAVES_N * WAVES_M * WARP;
constexpr int WAVE_N = TILE_N / WAVES_N, WAVE_M = TILE_M / WAVES_M;
constexpr int ROW_TILES = WAVE_N / 16, COL_TILES = WAVE_M / 16;  // of products: rows of the weight, rows of x
constexpr int STEP_BYTES = 128;                                // of a row of x
constexpr int STEP_K = STEP_BYTES / sizeof(ELEMENT), SPAN_K = STEP_K / SPANS;
#if defined(__GFX11__)
constexpr int GROUPS = 1;  // both halves of a wave hold all k
#else
constexpr int GROUPS = LANES_PER_COLUMN;
#endif
constexpr int LANE_K = SPAN_K / GROUPS;          // neighbours along k that a lane has of a span
constexpr int SUMS = 256 / WARP;                 // accumulators of a lane: the rows from SUMS * (lane / 16) on

#if INTEGER
#include "int8.h"
#else
#include "halves.h"
#endif
constexpr int PRODUCTS = LANE_K / RUN;  // of a span

// On RDNA two waves share codes, and a lane would hold four or eight times as many as on CDNA.
#define CODES_IN_LDS (WARP == 32)
constexpr int CODE_PITCH = STEP_K / 2 + 8;  // bytes: 16 rows begin at other banks

// The row of the weight that a lane holds of a product's 16: gfx11's accumulators are every other row else.
DEVICE int row_of_lane() {
#if defined(__GFX11__)
    return a_row_of_lane(0);
#else
    return lane_column();
#endif
}
DEVICE int group_of_lane() { return GROUPS == 1 ? 0 : lane_part(); }

// Where a byte of a row of x lies in LDS, of one that is a multiple of 16. Chunks are permuted within a row, so that the
// lanes which these GPUs serve together (lanes 0-3 and 20-23 on CDNA, 0-7 on gfx12) read other banks, whichever of the
// ways in which groups of lanes share a row: found by trying all linear keys of four bits of the row.
DEVICE int place(int row, int byte) { return row * STEP_BYTES + (byte ^ ((row & 7) ^ (row >> 3 & 1) * 5) * 16); }

// The lane's operand of x, from LDS: `own` is its place of byte 0, `byte` the same for all lanes.
DEVICE Operand operand_at(const char* tile, int own, int byte) {
    constexpr int PART = sizeof(Operand) < 16 ? sizeof(Operand) : 16;
    Operand own_words;
#pragma unroll
    for (int part = 0; part < static_cast<int>(sizeof(Operand)) / PART; ++part) {
        const words<PART> some = load_words<PART>(tile + (own ^ byte + part * PART));
#pragma unroll
        for (int e = 0; e < PART / 4; ++e) own_words.w[part * PART / 4 + e] = some.w[e];
    }
    return own_words;
}

// Where a step begins: k is that of the whole row, and `left` counts k to the end of its group, or of the row.
struct Step {
    int group, k, left;
};

// Rows of a step of x or of codes, BYTES of each: from memory into registers, and from there to LDS, a row's chunk of 16
// bytes to at(row, byte). Rows beyond the matrix repeat its last; elements beyond `left` are zeros.
template <class Type, int ROWS, int BYTES> struct RowCopy {
    static constexpr int CHUNKS = BYTES / 16, LINES = THREADS / CHUNKS;
    static constexpr int COUNT = (ROWS + LINES - 1) / LINES;

    const char* base;
    OFFSET_TYPE from[COUNT];
    words<16> held[COUNT];

    static DEVICE int byte() { return thread_x() % CHUNKS * 16; }
    static DEVICE int line(int i) { return thread_x() / CHUNKS + i * LINES; }
    static DEVICE bool exists(int i) { return ROWS % LINES == 0 || line(i) < ROWS; }

    DEVICE RowCopy(const Type* rows, int64_t pitch, int first, int count)
        : base(reinterpret_cast<const char*>(rows + first * pitch)) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            const int row = min(line(i), count - 1 - first);
            from[i] = static_cast<OFFSET_TYPE>(row * pitch * static_cast<int>(sizeof(Type))) + byte();
        }
    }
    // From byte `start` of the rows on, of which `left` exist.
    DEVICE void load(int64_t start, int left) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            if (!exists(i)) continue;
            const Type* const address = reinterpret_cast<const Type*>(base + start + from[i]);
            held[i] = WHOLE_STEPS ? load_unaligned<16>(address)
                                  : load_bounded<16>(address, (left - byte()) / static_cast<int>(sizeof(Type)));
        }
    }
    template <class At> DEVICE void store(At at) const {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            if (exists(i)) at(line(i), byte(), held[i]);
        }
    }
};

#if CODES_IN_LDS
// A lane's codes of a product, from LDS.
struct Codes {
    const char* own;

    DEVICE words<RUN / 2> of(int row, int span, int product) const {
        return load_words<RUN / 2>(own + row * 16 * CODE_PITCH + (span * SPAN_K + product * RUN) / 2);
    }
};
#else
// A lane's codes of a step, of each product's row.
struct Codes {
    static constexpr int BYTES = LANE_K / 2, PART = BYTES < 16 ? BYTES : 16;  // of a span; of a load

    words<PART> held[ROW_TILES][SPANS][BYTES / PART];

    DEVICE words<RUN / 2> of(int row, int span, int product) const {
        words<RUN / 2> codes;
#pragma unroll
        for (int i = 0; i < RUN / 8; ++i) {
            const int byte = product * RUN / 2 + i * 4;
            codes.w[i] = held[row][span][byte / PART].w[byte % PART / 4];
        }
        return codes;
    }
};

struct CodeCopy {
    const uint8_t* base;
    OFFSET_TYPE from[ROW_TILES];
    Codes held;

    DEVICE CodeCopy(const uint8_t* weight, int64_t pitch, int first, int own, int columns) : base(weight + first * pitch) {
#pragma unroll
        for (int i = 0; i < ROW_TILES; ++i) {
            const int row = min(own + i * 16 + row_of_lane(), columns - 1 - first);
            from[i] = static_cast<OFFSET_TYPE>(row * pitch) + group_of_lane() * Codes::BYTES;
        }
    }
    DEVICE void load(int64_t start, int left) {
#pragma unroll
        for (int i = 0; i < ROW_TILES; ++i) {
#pragma unroll
            for (int span = 0; span < SPANS; ++span) {
#pragma unroll
                for (int part = 0; part < Codes::BYTES / Codes::PART; ++part) {
                    const int byte = span * (SPAN_K / 2) + part * Codes::PART;
                    const uint8_t* const address = base + start + from[i] + byte;
                    held.held[i][span][part] =
                        WHOLE_STEPS ? load_unaligned<Codes::PART>(address)
                                    : load_bounded<Codes::PART>(address, left - byte - group_of_lane() * Codes::BYTES);
                }
            }
        }
    }
};
#endif

// A number of each of LINES lines and each of a step's groups, from memory into registers, and from there to LDS as
// float32 [SPANS][LINES]. Those of groups beyond the last are zeros.
template <class Type, int LINES> struct Values {
    static constexpr int TOTAL = SPANS * LINES, COUNT = (TOTAL + THREADS - 1) / THREADS;

    const Type* base;
    int64_t col;
    int64_t from[COUNT];
    Type held[COUNT];

    static DEVICE int id(int i) { return thread_x() + i * THREADS; }
    static DEVICE bool exists(int i) { return TOTAL % THREADS == 0 || id(i) < TOTAL; }

    DEVICE Values(const Type* values, int64_t row, int64_t col, int first, int lines)
        : base(values + first * row), col(col) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) from[i] = min(id(i) % LINES, lines - 1 - first) * row + id(i) / LINES * col;
    }
    DEVICE void load(int group, int groups) {
        const Type* const at = base + group * col;
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            if (!exists(i)) continue;
            held[i] = SPANS == 1 || WHOLE_STEPS || group + id(i) / LINES < groups ? at[from[i]] : Type{};
        }
    }
    DEVICE void store(float* to) const {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            if (exists(i)) to[id(i)] = as_float(held[i]);
        }
    }
    static DEVICE float as_float(uint8_t value) { return value; }
    template <class Other> static DEVICE float as_float(Other value) { return to_float(value); }
};

// What is in LDS for a step.
struct Stage {
    char x[TILE_M * STEP_BYTES];
    char codes[CODES_IN_LDS ? TILE_N * CODE_PITCH : 8];
    float scale[SPANS * TILE_N];
    float zero[ZERO_POINT ? SPANS * TILE_N : 4];
    float offset[OFFSET ? SPANS * TILE_N : 4];
    float x_sum[OFFSET ? SPANS * TILE_M : 4];
};

typedef float totals __attribute__((ext_vector_type(SUMS)));

struct Part {
    totals total[ROW_TILES][COL_TILES];
    Accumulators sum[ROW_TILES][COL_TILES];  // of a group

    // The products of span `span`; FIRST: from zero.
    template <bool FIRST>
    DEVICE void multiply(const Stage& stage, const Codes& codes, int row, int col, int span) {
        Less less[ROW_TILES];
#pragma unroll
        for (int i = 0; i < ROW_TILES; ++i) {
            less[i] = ZERO_POINT ? Less(stage.zero[span * TILE_N + row + i * 16 + row_of_lane()]) : Less(8.0f);
        }
        constexpr int BYTES = sizeof(ELEMENT);
        const int place_of_lane = place(col + lane_column(), group_of_lane() * LANE_K * BYTES);
#pragma unroll
        for (int product = 0; product < PRODUCTS; ++product) {
            Operand numbers[ROW_TILES];
#pragma unroll
            for (int i = 0; i < ROW_TILES; ++i) numbers[i] = numbers_of(codes.of(i, span, product), less[i]);
#pragma unroll
            for (int j = 0; j < COL_TILES; ++j) {
                const int byte = (span * SPAN_K + product * RUN) * BYTES;
                const Operand own = operand_at(stage.x + j * 16 * STEP_BYTES, place_of_lane, byte);
#pragma unroll
                for (int i = 0; i < ROW_TILES; ++i) {
                    const Accumulators before = FIRST && product == 0 ? Accumulators{} : sum[i][j];
                    sum[i][j] = multiplied(numbers[i], own, before);
                }
            }
            if (WARP == 32) __builtin_amdgcn_sched_barrier(0);  // all products' operands at once would spill
        }
    }

    // Adds the sums of a group to the totals.
    DEVICE void scaled(const Stage& stage, int row, int col, int span) {
#pragma unroll
        for (int i = 0; i < ROW_TILES; ++i) {
            const int own = span * TILE_N + row + i * 16 + lane_part() * SUMS;
            const totals scale = *reinterpret_cast<const totals*>(stage.scale + own);
            totals offset = {};
            if (OFFSET) offset = *reinterpret_cast<const totals*>(stage.offset + own);
#pragma unroll
            for (int j = 0; j < COL_TILES; ++j) {
                const totals part = __builtin_convertvector(sum[i][j], totals);
                total[i][j] = __builtin_elementwise_fma(part, scale, total[i][j]);
                if (OFFSET) {
                    const float of_x = stage.x_sum[span * TILE_M + col + j * 16 + lane_column()];
                    total[i][j] = __builtin_elementwise_fma(offset, totals(of_x), total[i][j]);
                }
            }
        }
    }
};

#if PARTIAL
typedef float Stored;
#else
typedef RESULT Stored;
#endif

// Neighbours of a row of y, of which `left` exist.
DEVICE void store_line(Stored* to, totals line, int left) {
    if (left >= SUMS) {
        words<SUMS * sizeof(Stored)> all;
#pragma unroll
        for (int e = 0; e < SUMS; e += 2) {
            if constexpr (sizeof(Stored) == 4) {
                all.w[e] = bits_of(line[e]);
                all.w[e + 1] = bits_of(line[e + 1]);
            } else {
                all.w[e / 2] = pack2<Stored>(line[e], line[e + 1]);
            }
        }
        __builtin_memcpy(to, &all, sizeof all);
    } else {
#pragma unroll
        for (int e = 0; e < SUMS; ++e) {
            if (e < left) to[e] = from_float<Stored>(line[e]);
        }
    }
}

KERNEL_RESIDENT(THREADS, RESIDENT)
void int4_mm_matrix(const ELEMENT* x, int64_t x_row, const uint8_t* weight, const SCALE* scale, int64_t scale_row,
                    int64_t scale_col, const uint8_t* zero_point, int64_t zero_point_row, int64_t zero_point_col, const SCALE* offset,
                    int64_t offset_row, int64_t offset_col, const float* x_sums, const float* scale_a, int64_t scale_a_row,
                    const RESULT* bias, Stored* y, int64_t y_row, int rows, int columns, int groups, int group_k,
                    int part_groups, int tiles_m, int tiles_n) {
    SHARED __attribute__((aligned(16))) Stage stage;
    const TileCorner tile = tile_corner<DIES>(block_x(), tiles_m, tiles_n);
    const int wave = __builtin_amdgcn_readfirstlane(thread_x() / WARP);
    const int row = wave % WAVES_N * WAVE_N, col = wave / WAVES_N * WAVE_M;
    RowCopy<ELEMENT, TILE_M, STEP_BYTES> x_copy(x, x_row, tile.m, rows);
    const int64_t pitch = static_cast<int64_t>(groups) * group_k / 2;  // of the weight
#if CODES_IN_LDS
    RowCopy<uint8_t, TILE_N, STEP_K / 2> code_copy(weight, pitch, tile.n, columns);
#else
    CodeCopy code_copy(weight, pitch, tile.n, row, columns);
#endif
    Values<SCALE, TILE_N> scales(scale, scale_row, scale_col, tile.n, columns);
    Values<uint8_t, TILE_N> zeros(zero_point, zero_point_row, zero_point_col, tile.n, columns);
    Values<SCALE, TILE_N> offsets(offset, offset_row, offset_col, tile.n, columns);
    Values<float, TILE_M> sums_of_x(x_sums, 1, rows, tile.m, rows);
    const int first = PARTIAL ? block_y() * part_groups : 0, end = PARTIAL ? min(first + part_groups, groups) : groups;

    // SPANS groups at a time, or one.
    Step next = {first, first * group_k, SPANS > 1 ? (end - first) * group_k : group_k};
    const auto load = [&] {
        constexpr int64_t BYTES = sizeof(ELEMENT);
        x_copy.load(next.k * BYTES, next.left * static_cast<int>(BYTES));
        code_copy.load(next.k / 2, next.left / 2);
        scales.load(next.group, end);
        if (ZERO_POINT) zeros.load(next.group, end);
        if (OFFSET) offsets.load(next.group, end);
        if (OFFSET) sums_of_x.load(next.group, end);
    };
    const auto advance = [&] {
        if (SPANS > 1) {
            next = {next.group + SPANS, next.k + STEP_K, next.left - STEP_K};
        } else if (SINGLE || next.left <= STEP_K) {
            next = {next.group + 1, next.k + min(next.left, STEP_K), group_k};
        } else {
            next.k += STEP_K;
            next.left -= STEP_K;
        }
    };
    Part part;
#pragma unroll
    for (int i = 0; i < ROW_TILES; ++i) {
#pragma unroll
        for (int j = 0; j < COL_TILES; ++j) part.total[i][j] = 0.0f;
    }
    // Brings the step that was loaded to LDS and `codes`, and loads the next one; false: the step ends a group.
    Codes codes;
#if CODES_IN_LDS
    codes.own = stage.codes + (row + row_of_lane()) * CODE_PITCH + group_of_lane() * (LANE_K / 2);
#endif
    const auto take = [&] {
        lds_barrier();  // nobody still reads the step before
        x_copy.store([&](int line, int byte, words<16> chunk) { store_words(stage.x + place(line, byte), chunk); });
        scales.store(stage.scale);
        if (ZERO_POINT) zeros.store(stage.zero);
        if (OFFSET) offsets.store(stage.offset);
        if (OFFSET) sums_of_x.store(stage.x_sum);
#if CODES_IN_LDS
        code_copy.store([&](int line, int byte, words<16> chunk) {
            char* const to = stage.codes + line * CODE_PITCH + byte;
            store_words(to, words<8>{{chunk.w[0], chunk.w[1]}});
            store_words(to + 8, words<8>{{chunk.w[2], chunk.w[3]}});
        });
#else
        codes = code_copy.held;
#endif
        const bool goes_on = !SINGLE && next.left > STEP_K;
        lds_barrier();
        advance();
        if (next.group < end) load();
        __builtin_amdgcn_sched_barrier(0);  // the compiler would load where it needs them
        return goes_on;
    };
    if (group_k > 0 && first < end) {
        load();
#pragma clang loop unroll(disable)
        do {
            bool goes_on = take();
            part.multiply<true>(stage, codes, row, col, 0);
#pragma clang loop unroll(disable)
            while (goes_on) {
                goes_on = take();
                part.multiply<false>(stage, codes, row, col, 0);
            }
            part.scaled(stage, row, col, 0);
#pragma unroll
            for (int span = 1; span < SPANS; ++span) {
                part.multiply<true>(stage, codes, row, col, span);
                part.scaled(stage, row, col, span);
            }
        } while (next.group < end);
    }

    const int64_t whole = static_cast<int64_t>(rows) * y_row;
    Stored* const out = y + (PARTIAL ? block_y() * whole : 0);
#pragma unroll
    for (int i = 0; i < ROW_TILES; ++i) {
        const int n = tile.n + row + i * 16 + lane_part() * SUMS;
        totals added = {};
#pragma unroll
        for (int e = 0; BIAS && e < SUMS; ++e) added[e] = n + e < columns ? to_float(bias[n + e]) : 0.0f;
#pragma unroll
        for (int j = 0; j < COL_TILES; ++j) {
            const int m = tile.m + col + j * 16 + lane_column();
            if (m >= rows) continue;
            totals result = part.total[i][j];
            if (INTEGER) result = result * scale_a[m * scale_a_row];
            result = result + added;
            store_line(out + m * y_row + n, result, (PARTIAL ? static_cast<int>(y_row) : columns) - n);
        }
    }
}

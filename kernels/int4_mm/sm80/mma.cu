// y (M x N) = x (M x K) @ w.T + bias for few rows x, of a weight in codes of 4 bits with a scale for each group of
// neighbours along k, by warp-wide matrix instructions (mma.sync); bound by reading the codes.
//
// A and B are swapped: 16 rows of w are the rows of a product and 8 rows of x its columns. A block computes BLOCK_N
// columns of X_ROWS rows of y; its warps share the columns in parts of ROW_TILES * 16 (WARPS_N) and k (WARPS_K), and add
// their sums in order at the end. Copies (cp.async) run STAGES - 1 stages ahead, a stage being a step of every warp.
//
// A unit is 32 codes along k, 16 bytes of a row of w. The four threads that hold a row of a product take a quarter of
// WIDTH units each, so many words of 8 neighbours along k, and a word is two products' operands; x's are the 8 elements
// at the same k, 16 bytes. So the k of a product are in another order than in memory, the same for both operands, and
// both are read as they lie. A code less its zero point is exact in 16 bits: it goes into the mantissa of 128 (bfloat16)
// or 1024 (float16), and that number and the zero point are subtracted. A group's products, or those of SCALED units of
// it, are added up from 0 and meet the scale in float32; the sums of x, which meet the offset, are products with ones.
//
// Chunks of 16 bytes are permuted in shared memory so that a warp's reads fall in different banks. A value of a group is
// copied as the aligned word of 4 bytes that holds it.
//
// Defines: ELEMENT (bf16, f16), SCALE (of scales and offsets: ELEMENT or f32), X_ROWS (rows of x of a block, a power of
// two), WARPS_N, WARPS_K, ROW_TILES, STAGES, RESIDENT (blocks per multiprocessor), PDL (programmatic dependent launch: a
// block prefetches w's first stages to L2 while the previous kernel ends), SCALED (units that meet a scale together: 1, 2
// or 4), GROUPS_OF_SCALED: a group is SCALED units; ZERO_POINT, OFFSET, BIAS; VECTOR: columns of a store.
#include "prelude.h"

#include "_lib/ptx/mma.h"
#include "_lib/ptx/pdl.h"
#include "_lib/ptx/shared_address.h"

using T = ELEMENT;
constexpr int THREADS = WARPS_N * WARPS_K * 32;
constexpr int WARP_N = ROW_TILES * 16;
constexpr int BLOCK_N = WARPS_N * WARP_N;
constexpr int COL_TILES = X_ROWS < 8 ? 1 : X_ROWS / 8;
// Either w's codes or x's elements have to be brought into another order: those that are fewer.
constexpr bool FOURTH = COL_TILES < ROW_TILES;
constexpr int UNIT = 32;                    // codes
constexpr int STEP = 4;                     // units of a warp's step
constexpr int SPAN = WARPS_K * STEP;        // units of a step of all warps
// Warps that share no columns have stages of their own, which they copy themselves, and wait for no other warp.
constexpr bool OWN = WARPS_N == 1;
constexpr int TEAM = OWN ? 32 : THREADS;    // threads that copy a stage
constexpr int UNITS = OWN ? STEP : SPAN;    // of a stage
constexpr int GROUPS = UNITS / SCALED;      // scales of a row in a stage
constexpr int WIDTH = COL_TILES < 4 ? SCALED : 1;  // words of w that a thread reads at once: more take registers
constexpr int W_ROW = UNITS * 16, X_ROW = UNITS * 64;  // bytes
constexpr int W_BYTES = BLOCK_N * W_ROW, X_BYTES = X_ROWS * X_ROW, WORDS_BYTES = GROUPS * BLOCK_N * 4;
constexpr int X_AT = W_BYTES, SCALE_AT = X_AT + X_BYTES, ZERO_AT = SCALE_AT + WORDS_BYTES;
constexpr int OFFSET_AT = ZERO_AT + ZERO_POINT * WORDS_BYTES;
constexpr int STAGE_BYTES = OFFSET_AT + OFFSET * WORDS_BYTES;
constexpr int PITCH = BLOCK_N + 4;  // floats from row to row of staged sums
static_assert(STEP % SCALED == 0, "a step is whole scales");

// A value for each column of y and each group.
template <class U> struct Values {
    const U* base;
    int64_t row, col;

    DEVICE const U* at(int n, int group) const { return base + n * row + group * col; }
};

struct Operands {
    const T* x;
    int64_t x_row;
    const uint8_t* w;
    Values<SCALE> scale;
    Values<uint8_t> zero;
    Values<SCALE> offset;
    int rows, columns, units, group_units;

    DEVICE int group_of(int unit) const { return GROUPS_OF_SCALED ? unit / SCALED : unit / group_units; }
    DEVICE int64_t w_row() const { return static_cast<int64_t>(units) * 16; }
};

DEVICE int w_place(int row, int unit) {
    const int moved = UNITS < 8 ? row / 2 & (4 / WIDTH - 1) : row & (8 / WIDTH - 1);
    return row * W_ROW + (unit ^ moved * WIDTH) * 16;
}
DEVICE int x_place(int row, int chunk) {
    const int moved = WIDTH == 4 ? chunk / 8 % 2 ^ row % 2 * 2 : WIDTH == 2 ? row % 2 : row % 2 * 4;
    return X_AT + row * X_ROW + (chunk ^ moved) * 16;
}

// The aligned word that holds a value of 1, 2 or 4 bytes, and the value's place in it.
DEVICE const void* word_of(const void* value) {
    return reinterpret_cast<const void*>(reinterpret_cast<uint64_t>(value) & ~static_cast<uint64_t>(3));
}
DEVICE int place_in_word(const void* value) { return static_cast<int>(reinterpret_cast<uint64_t>(value)) & 3; }

// What a thread copies of every stage: chunks of rows of w at one unit, of rows of x at one chunk, and values of columns
// at one group, each so many rows apart. What lies beyond an end becomes zeros.
struct Copies {
    static constexpr int W_LINES = TEAM / UNITS, W_COUNT = BLOCK_N / W_LINES;
    static constexpr int CHUNKS = UNITS * 4, X_LINES = TEAM / CHUNKS, X_COUNT = (X_ROWS + X_LINES - 1) / X_LINES;
    static constexpr int LINES = TEAM / GROUPS, COUNT = (BLOCK_N + LINES - 1) / LINES;
    static_assert(BLOCK_N % W_LINES == 0 && X_LINES > 0 && TEAM % GROUPS == 0, "threads divide a stage");

    const Operands& o;
    int column, w_line, w_unit, x_line, x_chunk, line, group;
    const uint8_t* w;
    const T* x;

    DEVICE Copies(const Operands& operands, int first, int unit) : o(operands), column(first) {
        const int thread = thread_x() % TEAM;
        w_line = thread / UNITS, w_unit = thread % UNITS;
        x_line = thread / CHUNKS, x_chunk = thread % CHUNKS;
        line = thread / GROUPS, group = thread % GROUPS;
        w = o.w + (column + w_line) * o.w_row() + (unit + w_unit) * 16;
        x = o.x + x_line * o.x_row + unit * UNIT + x_chunk * 8;
    }

    // WHOLE: nothing lies beyond an end.
    template <bool WHOLE, class U> DEVICE void values(uint32_t to, const Values<U>& from, int unit) const {
        const int at = unit + group * SCALED;
        const U* value = from.at(column + line, o.group_of(at));
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            if (BLOCK_N % LINES != 0 && line + i * LINES >= BLOCK_N) break;
            const bool inside = WHOLE || (at < o.units && column + line + i * LINES < o.columns);
            copy_word(to + (group * BLOCK_N + line + i * LINES) * 4, word_of(value + i * LINES * from.row), inside ? 4 : 0);
        }
    }

    template <bool WHOLE> DEVICE void copy(uint32_t to, int unit) const {
#pragma unroll
        for (int i = 0; i < W_COUNT; ++i) {
            const bool inside = WHOLE || (unit + w_unit < o.units && column + w_line + i * W_LINES < o.columns);
            copy_async(to + w_place(w_line + i * W_LINES, w_unit), w + i * W_LINES * o.w_row(), inside ? 16 : 0);
        }
        const bool inside = WHOLE || unit + x_chunk / 4 < o.units;
#pragma unroll 4  // all of them spill
        for (int i = 0; i < X_COUNT; ++i) {
            const int row = x_line + i * X_LINES;
            if (row < o.rows) copy_async(to + x_place(row, x_chunk), x + i * X_LINES * o.x_row, inside ? 16 : 0);
        }
        values<WHOLE>(to + SCALE_AT, o.scale, unit);
        if (ZERO_POINT) values<WHOLE>(to + ZERO_AT, o.zero, unit);
        if (OFFSET) values<WHOLE>(to + OFFSET_AT, o.offset, unit);
    }

    // The stage at `to` from the next units, the first of which is `unit`.
    DEVICE void next(uint32_t to, int unit) {
        if (unit + UNITS <= o.units && column + BLOCK_N <= o.columns) copy<true>(to, unit);
        else copy<false>(to, unit);
        w += SPAN * 16;
        x += SPAN * UNIT;
    }
};

DEVICE uint32_t shared_word(uint32_t at) {
    uint32_t word;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(at) : "memory");
    return word;
}
// A value of 1, 2 or 4 bytes.
template <class U> DEVICE U shared_value(uint32_t at);
template <> DEVICE uint8_t shared_value<uint8_t>(uint32_t at) {
    uint32_t value;
    asm volatile("ld.shared.u8 %0, [%1];" : "=r"(value) : "r"(at) : "memory");
    return static_cast<uint8_t>(value);
}
template <> DEVICE bf16 shared_value<bf16>(uint32_t at) {
    bf16 value;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(value.bits) : "r"(at) : "memory");
    return value;
}
template <> DEVICE f16 shared_value<f16>(uint32_t at) {
    f16 value;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(value.bits) : "r"(at) : "memory");
    return value;
}
template <> DEVICE float shared_value<float>(uint32_t at) { return float_of(shared_word(at)); }
template <int COUNT> DEVICE void shared_words(uint32_t (&w)[COUNT], uint32_t at) {
    if constexpr (COUNT == 1)
        w[0] = shared_word(at);
    else if constexpr (COUNT == 2)
        asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(w[0]), "=r"(w[1]) : "r"(at) : "memory");
    else
        asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3]) : "r"(at) : "memory");
}

// A number of 16 bits whose last mantissa bit is 1, in both halves of a word: with a code in its mantissa it is that
// number + code.
template <class U> struct Magic;
template <> struct Magic<bf16> {
    static constexpr int BITS = 7;  // of a mantissa
    static constexpr uint32_t NUMBER = 0x43004300, ONE = 0x3f803f80, SIXTEENTH = 0x3d803d80;
};
template <> struct Magic<f16> {
    static constexpr int BITS = 10;
    static constexpr uint32_t NUMBER = 0x64006400, ONE = 0x3c003c00, SIXTEENTH = 0x2c002c00;
};

template <class U> DEVICE uint32_t fma_pair(uint32_t a, uint32_t b, uint32_t c);
template <> DEVICE uint32_t fma_pair<bf16>(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}
template <> DEVICE uint32_t fma_pair<f16>(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t d;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

// A zero point in the words that are added to magic numbers with codes: -(number + zero), and for a code whose last
// bit is the fifth of a float16's mantissa, -(64 + zero).
struct Less {
    uint32_t first, fifth;

    DEVICE explicit Less(uint32_t zero) {
        const uint32_t both = zero * 0x00010001;
        first = (Magic<T>::NUMBER | 0x80008000) + both;
        fifth = 0xd400d400 + both * 16;
    }
};

// w & MASK | the magic number, which is two instructions otherwise.
template <uint32_t MASK> DEVICE uint32_t with_magic(uint32_t w) {
    uint32_t made;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(made) : "r"(w), "n"(MASK), "r"(Magic<T>::NUMBER));
    return made;
}

// The 8 codes of a word less their zero point: word i of the result has code i and the fourth after it (FOURTH), or the
// codes 2i and 2i + 1, which takes two instructions more.
DEVICE void numbers_of(uint32_t (&number)[4], uint32_t w, const Less& less) {
    constexpr uint32_t CODE = 0x000f000f, NEXT = 0x00f000f0;
    if constexpr (FOURTH && Magic<T>::BITS == 10) {
#pragma unroll
        for (int i = 0; i < 4; i += 2) {
            const uint32_t codes = i == 0 ? w : w >> 8;
            number[i] = fma_pair<T>(with_magic<CODE>(codes), Magic<T>::ONE, less.first);
            number[i + 1] = fma_pair<T>(with_magic<NEXT>(codes), Magic<T>::SIXTEENTH, less.fifth);
        }
    } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const uint32_t codes = FOURTH ? w >> 4 * i : __byte_perm(w, w >> 4, 0x4400 + 0x1111 * i);
            number[i] = fma_pair<T>(with_magic<CODE>(codes), Magic<T>::ONE, less.first);
        }
    }
}

// x's 8 elements in the order of numbers_of.
DEVICE void ordered(uint32_t (&b)[4]) {
    if constexpr (FOURTH) {
        const uint32_t w[4] = {b[0], b[1], b[2], b[3]};
#pragma unroll
        for (int i = 0; i < 4; ++i) b[i] = __byte_perm(w[i / 2], w[i / 2 + 2], i % 2 ? 0x7632 : 0x5410);
    }
}

// c = a @ b.
DEVICE void first_product(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#pragma unroll
    for (int i = 0; i < 4; ++i) c[i] = 0.0f;
    Product<T>::add(c, a, b0, b1);
}

// Adds a warp's step of the stage at `stage` to its sums: rows of w from `row`, units of the stage from `unit`, which is
// `at` of all.
DEVICE void multiply(float (&sum)[ROW_TILES][COL_TILES][4], uint32_t stage, const Operands& o, int column, int row,
                     int unit, int at) {
    const int lane = thread_x() % 32, r = lane / 4, c = lane % 4;
    const int x_line = X_ROWS < 8 ? r % X_ROWS : r;  // columns of a product that are no rows of x are not stored
    constexpr int PARTS = STEP / SCALED, AT_ONCE = COL_TILES < 4 ? PARTS : 1;
#pragma unroll AT_ONCE
    for (int part = 0; part < PARTS; ++part) {
        const uint32_t words = stage + ((unit / SCALED + part) * BLOCK_N + row + r) * 4;
        // The values of rows 8 apart lie a multiple of 8 bytes apart, so at the same place of their words.
        const int group = o.group_of(at + part * SCALED), n = column + row + r;
        uint32_t zero[ROW_TILES * 2], w[ROW_TILES * 2][WIDTH];
#pragma unroll
        for (int i = 0; i < ROW_TILES * 2; ++i) {
            zero[i] = 8;
            if (ZERO_POINT)
                zero[i] = shared_value<uint8_t>(words + ZERO_AT + i * 32 + place_in_word(o.zero.at(n, group)));
        }
        float part_sum[ROW_TILES][COL_TILES][4], x_sum[COL_TILES][4];
#pragma unroll
        for (int u = 0; u < SCALED; ++u) {
            const int word = (unit + part * SCALED + u / WIDTH * WIDTH) * 4 + c * WIDTH;  // the first of the thread's
            if (u % WIDTH == 0) {
#pragma unroll
                for (int i = 0; i < ROW_TILES * 2; ++i)
                    shared_words(w[i], stage + w_place(row + r, word / 4) + word % 4 * 4 + i * 8 * W_ROW);
            }
            uint32_t a[ROW_TILES][2][4];
#pragma unroll
            for (int i = 0; i < ROW_TILES * 2; ++i) {
                uint32_t number[4];
                numbers_of(number, w[i][u % WIDTH], Less(zero[i]));
#pragma unroll
                for (int e = 0; e < 4; ++e) a[i / 2][e / 2][e % 2 * 2 + i % 2] = number[e];
            }
#pragma unroll
            for (int j = 0; j < COL_TILES; ++j) {
                uint32_t b[4];
                shared_words(b, stage + x_place(x_line, word + u % WIDTH) + j * 8 * X_ROW);
                ordered(b);
#pragma unroll
                for (int i = 0; i < ROW_TILES; ++i) {
                    if (u == 0) first_product(part_sum[i][j], a[i][0], b[0], b[1]);
                    else Product<T>::add(part_sum[i][j], a[i][0], b[0], b[1]);
                    Product<T>::add(part_sum[i][j], a[i][1], b[2], b[3]);
                }
                if (OFFSET) {
                    constexpr uint32_t ONES = Magic<T>::ONE;
                    const uint32_t ones[4] = {ONES, ONES, ONES, ONES};
                    if (u == 0) first_product(x_sum[j], ones, b[0], b[1]);
                    else Product<T>::add(x_sum[j], ones, b[0], b[1]);
                    Product<T>::add(x_sum[j], ones, b[2], b[3]);
                }
            }
        }
#pragma unroll
        for (int i = 0; i < ROW_TILES * 2; ++i) {
            const int scale_at = SCALE_AT + i * 32 + place_in_word(o.scale.at(n, group));
            const float scale = to_float(shared_value<SCALE>(words + scale_at));
            float offset = 0.0f;
            if (OFFSET) {
                const int offset_at = OFFSET_AT + i * 32 + place_in_word(o.offset.at(n, group));
                offset = to_float(shared_value<SCALE>(words + offset_at));
            }
#pragma unroll
            for (int j = 0; j < COL_TILES; ++j) {
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    float& to = sum[i / 2][j][i % 2 * 2 + e];
                    to = math_fma(part_sum[i / 2][j][i % 2 * 2 + e], scale, to);
                    if (OFFSET) to = math_fma(x_sum[j][e], offset, to);
                }
            }
        }
    }
}

// Brings the first stages' codes into L2. If the previous kernel still writes them, L2 sees those writes too.
DEVICE void prefetch_codes(const Operands& o, int column) {
    constexpr int LINES = ((STAGES - 1) * SPAN * 16 + 127) / 128;  // of a row
    for (int index = thread_x(); index < BLOCK_N * LINES; index += THREADS) {
        const int row = index / LINES;
        const int64_t byte = index % LINES * 128;
        if (column + row < o.columns && byte < o.w_row()) {
            const uint8_t* at = o.w + (column + row) * o.w_row() + byte;
            asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(at)));
        }
    }
}

// The warps' sums added up in order, and stored. `sums` is [WARPS_K][X_ROWS][PITCH].
DEVICE void store_sums(T* y, const T* bias, const float* sums, const Operands& o, int column) {
    constexpr int ACROSS = BLOCK_N / VECTOR;
    const int rows = o.rows < X_ROWS ? o.rows : X_ROWS;
    for (int index = thread_x(); index < rows * ACROSS; index += THREADS) {
        const int row = index / ACROSS, within = index % ACROSS * VECTOR, n = column + within;
        if (n >= o.columns) continue;
        using Several = vec<float, VECTOR>;
        const float* from = sums + row * PITCH + within;
        Several total = *reinterpret_cast<const Several*>(from);
#pragma unroll
        for (int warp = 1; warp < WARPS_K; ++warp) {
            const Several next = *reinterpret_cast<const Several*>(from + warp * X_ROWS * PITCH);
#pragma unroll
            for (int e = 0; e < VECTOR; ++e) total.v[e] += next.v[e];
        }
        vec<T, VECTOR> result;
#pragma unroll
        for (int e = 0; e < VECTOR; ++e) {
            if (BIAS) total.v[e] += to_float(bias[n + e]);
            result.v[e] = from_float<T>(total.v[e]);
        }
        *reinterpret_cast<vec<T, VECTOR>*>(y + static_cast<int64_t>(row) * o.columns + n) = result;
    }
}

extern "C" __global__ __launch_bounds__(THREADS, RESIDENT) void int4_mm_mma(
    const T* x, int64_t x_row, const uint8_t* weight, const SCALE* scale, int64_t scale_row, int64_t scale_col,
    const uint8_t* zero_point, int64_t zero_row, int64_t zero_col, const SCALE* offset, int64_t offset_row,
    int64_t offset_col, const T* bias, T* y, int rows, int columns, int units, int group_units) {
    DYNAMIC_SHARED(shared);
    const int first_row = block_y() * X_ROWS;
    const Operands o{x + first_row * x_row, x_row, weight, {scale, scale_row, scale_col}, {zero_point, zero_row, zero_col},
                     {offset, offset_row, offset_col}, rows - first_row, columns, units, group_units};
    const int column = block_x() * BLOCK_N;
    launch_dependents();
    if (PDL) prefetch_codes(o, column);
    grid_dependency_wait();

    const int warp = thread_x() / 32, row = warp % WARPS_N * WARP_N, part = warp / WARPS_N;  // of k
    const int own_unit = part * STEP;
    const int first_unit = OWN ? own_unit : 0;  // of the warp's stages
    const uint32_t stages = shared_address(shared) + (OWN ? warp * STAGES * STAGE_BYTES : 0);
    const int steps = (units - first_unit + SPAN - 1) / SPAN;
    Copies copies(o, column, first_unit);
#pragma unroll 1
    for (int step = 0; step < STAGES - 1; ++step) {
        if (step < steps) copies.next(stages + step * STAGE_BYTES, first_unit + step * SPAN);
        commit_copies();
    }
    float sum[ROW_TILES][COL_TILES][4] = {};
    int reading = 0, writing = STAGES - 1;
    for (int step = 0; step < steps; ++step) {
        wait_copies<STAGES - 2>();
        // This stage is visible, and nobody still reads the one written next.
        if (OWN) __syncwarp();
        else barrier();
        const int ahead = step + STAGES - 1;
        if (ahead < steps) copies.next(stages + writing * STAGE_BYTES, first_unit + ahead * SPAN);
        commit_copies();
        multiply(sum, stages + reading * STAGE_BYTES, o, column, row, OWN ? 0 : own_unit,
                 step * SPAN + own_unit);
        reading = reading + 1 == STAGES ? 0 : reading + 1;
        writing = writing + 1 == STAGES ? 0 : writing + 1;
    }
    wait_copies<0>();
    barrier();  // no stage is read any more

    float* sums = reinterpret_cast<float*>(shared);
    const int lane = thread_x() % 32;
#pragma unroll
    for (int i = 0; i < ROW_TILES; ++i) {
#pragma unroll
        for (int j = 0; j < COL_TILES; ++j) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const int m = j * 8 + lane % 4 * 2 + e % 2, n = row + i * 16 + e / 2 * 8 + lane / 4;
                if (X_ROWS >= 8 || m < X_ROWS) sums[(part * X_ROWS + m) * PITCH + n] = sum[i][j][e];
            }
        }
    }
    barrier();
    store_sums(y + static_cast<int64_t>(first_row) * columns, bias, sums, o, column);
}

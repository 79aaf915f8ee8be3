// Products of 16-bit matrices on AMD's matrix units, MFMA (gfx9) and WMMA (gfx11, gfx12), in one shape:
//
//     sums[DEPTH x 16] += first[DEPTH x DEPTH] * second[16 x DEPTH]^T
//
// DEPTH is 32 on gfx9 and 16 on gfx11 and gfx12. `Rows` is the first operand, `Columns` the second, `Strip`
// the sums. Lane l of a wave holds, of a Strip, the eight rows from 8 * (l / 16) on of column l % 16: eight
// neighbours, so that rounding a Strip makes it a Columns whose k are the Strip's rows, and so that a lane
// stores 16 bytes. The instructions' own accumulators are spread differently; that is made up for by which
// line of `first` a lane fetches (`row_of_lane`).
#pragma once

#include "_lib/amdgcn/lds.h"

constexpr int COLUMNS = 16;            // of a Strip
constexpr int PARTS = WARP / COLUMNS;  // lanes that share a column
constexpr int RUN = 8;                 // rows of a Strip in one lane; elements of k in 16 bytes
constexpr int DEPTH = PARTS * RUN;

DEVICE int lane_column() { return thread_x() % COLUMNS; }
DEVICE int lane_part() { return thread_x() % WARP / COLUMNS; }

// --- operands ---

#if defined(__GFX9__)
// Two products of 16 rows each. Accumulator i of lane l is row 4 * (l / 16) + i.
constexpr int TILES = 2;
typedef float accumulators __attribute__((ext_vector_type(4)));
typedef words<16> fragment;
DEVICE int row_of_lane(int tile) { return lane_column() / 4 * 8 + tile * 4 + lane_column() % 4; }
#elif defined(__GFX11__)
// Accumulator i of lane l is row 2 * i + l / 16; both halves of the wave hold an operand's 16 elements of k.
constexpr int TILES = 1;
typedef float accumulators __attribute__((ext_vector_type(8)));
typedef words<32> fragment;
DEVICE int row_of_lane(int) { return lane_column() % 2 * 8 + lane_column() / 2; }
#else
// Accumulator i of lane l is row 8 * (l / 16) + i.
constexpr int TILES = 1;
typedef float accumulators __attribute__((ext_vector_type(8)));
typedef words<16> fragment;
DEVICE int row_of_lane(int) { return lane_column(); }
#endif
constexpr int TILE_RUN = RUN / TILES;

struct Columns {
    fragment tile;
};

struct Rows {
    fragment tile[TILES];
};

struct Strip {
    accumulators tile[TILES];

    DEVICE float get(int i) const { return tile[i / TILE_RUN][i % TILE_RUN]; }
    DEVICE void set(int i, float value) { tile[i / TILE_RUN][i % TILE_RUN] = value; }
    DEVICE void fill(float value) {
        for (int i = 0; i < TILES; ++i) {
            tile[i] = value;
        }
    }
    // The sums so far are made here: the compiler does not put off products to where their sums are used,
    // with all of their operands fetched before.
    DEVICE void settle() {
        for (int i = 0; i < TILES; ++i) {
            asm volatile("" : "+v"(tile[i]));
        }
    }
    DEVICE void scale(float factor) {
        for (int i = 0; i < TILES; ++i) {
            tile[i] *= factor;
        }
    }
};

// --- the instructions ---

typedef _Float16 half4 __attribute__((ext_vector_type(4)));
typedef _Float16 half8 __attribute__((ext_vector_type(8)));
typedef _Float16 half16 __attribute__((ext_vector_type(16)));
typedef short short4 __attribute__((ext_vector_type(4)));
typedef short short8 __attribute__((ext_vector_type(8)));
typedef short short16 __attribute__((ext_vector_type(16)));
typedef __bf16 brain8 __attribute__((ext_vector_type(8)));

template <class Type> DEVICE accumulators multiply_tile(fragment a, fragment b, accumulators c);

#if defined(__gfx950__)
#define MULTIPLY_TILE(type, operand, instruction)                                                           \
    template <> DEVICE accumulators multiply_tile<type>(fragment a, fragment b, accumulators c) {           \
        return instruction(__builtin_bit_cast(operand, a), __builtin_bit_cast(operand, b), c, 0, 0, 0);     \
    }
MULTIPLY_TILE(f16, half8, __builtin_amdgcn_mfma_f32_16x16x32_f16)
MULTIPLY_TILE(bf16, brain8, __builtin_amdgcn_mfma_f32_16x16x32_bf16)
#elif defined(__GFX9__)
DEVICE words<8> half_of(fragment a, int part) { return {{a.w[part * 2], a.w[part * 2 + 1]}}; }
#define MULTIPLY_TILE(type, operand, instruction)                                                           \
    template <> DEVICE accumulators multiply_tile<type>(fragment a, fragment b, accumulators c) {           \
        for (int part = 0; part < 2; ++part) {                                                              \
            c = instruction(__builtin_bit_cast(operand, half_of(a, part)),                                  \
                            __builtin_bit_cast(operand, half_of(b, part)), c, 0, 0, 0);                     \
        }                                                                                                   \
        return c;                                                                                           \
    }
MULTIPLY_TILE(f16, half4, __builtin_amdgcn_mfma_f32_16x16x16f16)
MULTIPLY_TILE(bf16, short4, __builtin_amdgcn_mfma_f32_16x16x16bf16_1k)
#else
#define MULTIPLY_TILE(type, operand, instruction)                                                           \
    template <> DEVICE accumulators multiply_tile<type>(fragment a, fragment b, accumulators c) {           \
        return instruction(__builtin_bit_cast(operand, a), __builtin_bit_cast(operand, b), c);              \
    }
#if defined(__GFX11__)
MULTIPLY_TILE(f16, half16, __builtin_amdgcn_wmma_f32_16x16x16_f16_w32)
MULTIPLY_TILE(bf16, short16, __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32)
#else
MULTIPLY_TILE(f16, half8, __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12)
MULTIPLY_TILE(bf16, short8, __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12)
#endif
#endif

template <class Type> DEVICE void multiply(Strip& sums, const Rows& first, const Columns& second) {
    for (int i = 0; i < TILES; ++i) {
        sums.tile[i] = multiply_tile<Type>(first.tile[i], second.tile, sums.tile[i]);
    }
}

// --- between lanes ---

// The value of the lane that holds the same column of the other half of the rows (gfx11, gfx12).
DEVICE uint32_t other_half(uint32_t value) {
#if defined(__GFX9__)
    return static_cast<uint32_t>(shuffle_xor(static_cast<int>(value), 16));
#else
    return __builtin_amdgcn_permlanex16(value, value, 0x76543210u, 0xfedcba98u, true, false);
#endif
}

// Over the lanes that share a column; every one of them gets the result, the same bits.
DEVICE float column_max(float x) {
    x = math_max_number(x, float_of(other_half(bits_of(x))));
    return PARTS == 4 ? math_max_number(x, shuffle_xor(x, 32)) : x;
}
DEVICE float column_sum(float x) {
    x += float_of(other_half(bits_of(x)));
    return PARTS == 4 ? x + shuffle_xor(x, 32) : x;
}

// The lanes of the wave for which it is so, as bits; the same answer in all.
DEVICE uint64_t lanes_where(bool condition) {
#if defined(__GFX9__)
    return __builtin_amdgcn_ballot_w64(condition);
#else
    return __builtin_amdgcn_ballot_w32(condition);
#endif
}
DEVICE bool any_lane(bool condition) { return lanes_where(condition) != 0; }

// Eight values of a Strip's column, rounded, as a second operand: its k are the Strip's rows.
template <class Type> DEVICE Columns as_columns(const float (&values)[RUN]) {
    words<16> own;
    for (int i = 0; i < RUN / 2; ++i) {
        own.w[i] = pack2<Type>(values[2 * i], values[2 * i + 1]);
    }
#if defined(__GFX11__)
    const bool upper = lane_part() == 1;
    Columns all;
    for (int i = 0; i < RUN / 2; ++i) {
        const uint32_t other = other_half(own.w[i]);
        all.tile.w[i] = upper ? other : own.w[i];
        all.tile.w[i + RUN / 2] = upper ? own.w[i] : other;
    }
    return all;
#else
    return {own};
#endif
}

// --- operands in LDS ---

// A tile of lines of WIDTH 16-bit elements, in chunks of 16 bytes. The chunks of a line are permuted (XOR),
// so that lanes that touch the same chunk of different lines use different banks: of lines
// row_of_lane(0..15), of 16 neighbours, and of every fourth line.
template <int WIDTH> struct LdsTile {
    static constexpr int CHUNKS = WIDTH / RUN;
    static_assert(CHUNKS == 2 || CHUNKS % 4 == 0, "chunks are permuted in groups of four or eight");

    static constexpr int bytes(int lines) { return lines * WIDTH * 2; }

    // Of chunk + own; `chunk` is a multiple of PARTS where `own` is not 0. Apart, because what is known to
    // the compiler becomes the instruction's own offset: few addresses serve a whole tile.
    static DEVICE int offset(int line, int chunk, int own = 0) {
        if (CHUNKS == 2) {  // those of four lines together
            const int four = line >> 2, key = (four ^ (four >> 1 & 1)) & 7;
            return four * (4 * WIDTH * 2) + (((line & 3) * 2) ^ chunk ^ own ^ key) * 16;
        }
        constexpr int GROUP = CHUNKS % 8 == 0 ? 8 : 4;
        const int key = line ^ (line >> 3 & 3) ^ (line >> 1 & 4) ^ (line >> 4 & 1);
        const int place = (chunk ^ own ^ (GROUP == 8 ? key : key >> 1)) & (GROUP - 1);
        return line * (WIDTH * 2) + chunk / GROUP * (GROUP * 16) + place * 16;
    }

    // Elements from k on, DEPTH of them, of one line.
    static DEVICE fragment fetch(const char* tile, int line, int k) {
#if defined(__GFX11__)
        const vec<words<16>, 2> both = {{load_words<16>(tile + offset(line, k / RUN)),
                                         load_words<16>(tile + offset(line, k / RUN + 1))}};
        return __builtin_bit_cast(fragment, both);
#else
        return load_words<16>(tile + offset(line, k / RUN, lane_part()));
#endif
    }

    // Lines `line`.. as rows of the product; `line` is a multiple of DEPTH.
    static DEVICE Rows rows(const char* tile, int line, int k) {
        Rows result;
        for (int i = 0; i < TILES; ++i) {
            result.tile[i] = fetch(tile, line + row_of_lane(i), k);
        }
        return result;
    }

    // Lines `line`.. as columns of the product; `line` is a multiple of 16.
    static DEVICE Columns columns(const char* tile, int line, int k) {
        return {fetch(tile, line + lane_column(), k)};
    }
};

// use(i, fetch(i)) for i below COUNT in order, each fetched while those DISTANCE before it are used.
// Without, the compiler fetches all of them first, as far as registers go and beyond.
template <int COUNT, int DISTANCE, class Fetch, class Use> DEVICE void fetch_ahead(Fetch fetch, Use use) {
    Rows ring[DISTANCE];
#pragma unroll
    for (int i = 0; i < DISTANCE && i < COUNT; ++i) {
        ring[i] = fetch(i);
    }
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        const Rows rows = ring[i % DISTANCE];
        if (i + DISTANCE < COUNT) {
            ring[i % DISTANCE] = fetch(i + DISTANCE);
        }
        __builtin_amdgcn_sched_barrier(0);
        use(i, rows);
    }
}

// A second operand from memory: `line` is the lane's own, of which `there` elements exist from k on.
template <class Type> DEVICE Columns columns_from(const Type* line, int k, int there) {
#if defined(__GFX11__)
    const vec<words<16>, 2> both = {{load_bounded<16>(line + k, there),
                                     load_bounded<16>(line + k + RUN, there - RUN)}};
    return {__builtin_bit_cast(fragment, both)};
#else
    const int own = lane_part() * RUN;
    return {load_bounded<16>(line + k + own, there - own)};
#endif
}

// MFMA (gfx9) and WMMA (gfx11, gfx12) on 16-bit operands, behind one shape:
//
//     acc[MMA_M x MMA_N] += a[MMA_M x MMA_K] * b[MMA_N x MMA_K]^T
//
// MMA_N is 16; MMA_M = MMA_K is 32 on gfx9 and 16 on gfx11 and gfx12. Of an AccumulatorFragment lane l of a wave
// holds the eight rows from 8 * (l / 16) on of column l % 16: neighbouring rows, so that the rounded accumulators
// are a BFragment whose k are the accumulators' rows, and so that a lane stores 16 bytes. The instructions' own
// accumulator layout differs; `a_row_of_lane` permutes the rows of `a` to make up for it.
//
// And tiles of rows: how they lie in LDS, and how a block's threads copy them there from global memory.
#pragma once

#include "_lib/amdgcn/lds.h"
#include "_lib/amdgcn/pack.h"

constexpr int MMA_N = 16;
constexpr int LANES_PER_COLUMN = WARP / MMA_N;
constexpr int ELEMENTS_PER_LANE = 8;  // rows of an accumulator column; elements of k in 16 bytes
constexpr int MMA_K = LANES_PER_COLUMN * ELEMENTS_PER_LANE;
constexpr int MMA_M = MMA_K;

// A lane's column of an accumulator fragment, and which of the column's LANES_PER_COLUMN lanes it is.
DEVICE int lane_column() { return thread_x() % MMA_N; }
DEVICE int lane_part() { return thread_x() % WARP / MMA_N; }

// --- fragments ---

#if defined(__GFX9__)
// Two instructions of 16 rows each. Accumulator i of lane l is row 4 * (l / 16) + i.
constexpr int MMA_INSTRUCTIONS = 2;
typedef float accumulators __attribute__((ext_vector_type(4)));
typedef words<16> operand;
DEVICE int a_row_of_lane(int i) { return lane_column() / 4 * 8 + i * 4 + lane_column() % 4; }
#elif defined(__GFX11__)
// Accumulator i of lane l is row 2 * i + l / 16; both halves of the wave hold an operand's 16 elements of k.
constexpr int MMA_INSTRUCTIONS = 1;
typedef float accumulators __attribute__((ext_vector_type(8)));
typedef words<32> operand;
DEVICE int a_row_of_lane(int) { return lane_column() % 2 * 8 + lane_column() / 2; }
#else
// Accumulator i of lane l is row 8 * (l / 16) + i.
constexpr int MMA_INSTRUCTIONS = 1;
typedef float accumulators __attribute__((ext_vector_type(8)));
typedef words<16> operand;
DEVICE int a_row_of_lane(int) { return lane_column(); }
#endif
constexpr int ACCUMULATORS = ELEMENTS_PER_LANE / MMA_INSTRUCTIONS;  // a lane's of one instruction

struct BFragment {
    operand registers;
};

struct AFragment {
    operand registers[MMA_INSTRUCTIONS];
};

struct AccumulatorFragment {
    accumulators registers[MMA_INSTRUCTIONS];

    DEVICE float get(int i) const { return registers[i / ACCUMULATORS][i % ACCUMULATORS]; }
    DEVICE void set(int i, float value) { registers[i / ACCUMULATORS][i % ACCUMULATORS] = value; }
    DEVICE void fill(float value) {
        for (int i = 0; i < MMA_INSTRUCTIONS; ++i) {
            registers[i] = value;
        }
    }
    // Forces the products to be computed here: the compiler does not sink them to where the accumulators are
    // used, with all of their operands loaded before.
    DEVICE void materialize() {
        for (int i = 0; i < MMA_INSTRUCTIONS; ++i) {
            asm volatile("" : "+v"(registers[i]));
        }
    }
    DEVICE void scale(float factor) {
        for (int i = 0; i < MMA_INSTRUCTIONS; ++i) {
            registers[i] *= factor;
        }
    }
};

// --- the instructions ---

typedef _Float16 f16x4 __attribute__((ext_vector_type(4)));
typedef _Float16 f16x8 __attribute__((ext_vector_type(8)));
typedef _Float16 f16x16 __attribute__((ext_vector_type(16)));
typedef short i16x4 __attribute__((ext_vector_type(4)));
typedef short i16x8 __attribute__((ext_vector_type(8)));
typedef short i16x16 __attribute__((ext_vector_type(16)));
typedef __bf16 bf16x8 __attribute__((ext_vector_type(8)));

template <class Type> DEVICE accumulators mma_instruction(operand a, operand b, accumulators c);

#if defined(__gfx950__)
#define MMA_INSTRUCTION(type, vector, instruction)                                                          \
    template <> DEVICE accumulators mma_instruction<type>(operand a, operand b, accumulators c) {           \
        return instruction(__builtin_bit_cast(vector, a), __builtin_bit_cast(vector, b), c, 0, 0, 0);       \
    }
MMA_INSTRUCTION(f16, f16x8, __builtin_amdgcn_mfma_f32_16x16x32_f16)
MMA_INSTRUCTION(bf16, bf16x8, __builtin_amdgcn_mfma_f32_16x16x32_bf16)
#elif defined(__GFX9__)
DEVICE words<8> half_of(operand a, int half) { return {{a.w[half * 2], a.w[half * 2 + 1]}}; }
#define MMA_INSTRUCTION(type, vector, instruction)                                                          \
    template <> DEVICE accumulators mma_instruction<type>(operand a, operand b, accumulators c) {           \
        for (int half = 0; half < 2; ++half) {                                                              \
            c = instruction(__builtin_bit_cast(vector, half_of(a, half)),                                   \
                            __builtin_bit_cast(vector, half_of(b, half)), c, 0, 0, 0);                      \
        }                                                                                                   \
        return c;                                                                                           \
    }
MMA_INSTRUCTION(f16, f16x4, __builtin_amdgcn_mfma_f32_16x16x16f16)
MMA_INSTRUCTION(bf16, i16x4, __builtin_amdgcn_mfma_f32_16x16x16bf16_1k)
#else
#define MMA_INSTRUCTION(type, vector, instruction)                                                          \
    template <> DEVICE accumulators mma_instruction<type>(operand a, operand b, accumulators c) {           \
        return instruction(__builtin_bit_cast(vector, a), __builtin_bit_cast(vector, b), c);                \
    }
#if defined(__GFX11__)
MMA_INSTRUCTION(f16, f16x16, __builtin_amdgcn_wmma_f32_16x16x16_f16_w32)
MMA_INSTRUCTION(bf16, i16x16, __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32)
#else
MMA_INSTRUCTION(f16, f16x8, __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12)
MMA_INSTRUCTION(bf16, i16x8, __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12)
#endif
#endif

template <class Type> DEVICE void mma(AccumulatorFragment& acc, const AFragment& a, const BFragment& b) {
    for (int i = 0; i < MMA_INSTRUCTIONS; ++i) {
        acc.registers[i] = mma_instruction<Type>(a.registers[i], b.registers, acc.registers[i]);
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

// Reductions over the lanes that share a column; each of them gets the result, the same bits.
DEVICE float column_max(float x) {
    x = math_max_number(x, float_of(other_half(bits_of(x))));
    return LANES_PER_COLUMN == 4 ? math_max_number(x, shuffle_xor(x, 32)) : x;
}
DEVICE float column_sum(float x) {
    x += float_of(other_half(bits_of(x)));
    return LANES_PER_COLUMN == 4 ? x + shuffle_xor(x, 32) : x;
}

DEVICE uint64_t ballot(bool condition) {
#if defined(__GFX9__)
    return __builtin_amdgcn_ballot_w64(condition);
#else
    return __builtin_amdgcn_ballot_w32(condition);
#endif
}
DEVICE bool any_lane(bool condition) { return ballot(condition) != 0; }

// A lane's eight rounded values of an accumulator column as a BFragment whose k are the accumulators' rows.
DEVICE BFragment as_b_fragment(words<16> own) {
#if defined(__GFX11__)
    const bool upper = lane_part() == 1;
    BFragment all;
    for (int i = 0; i < ELEMENTS_PER_LANE / 2; ++i) {
        const uint32_t other = other_half(own.w[i]);
        all.registers.w[i] = upper ? other : own.w[i];
        all.registers.w[i + ELEMENTS_PER_LANE / 2] = upper ? own.w[i] : other;
    }
    return all;
#else
    return {own};
#endif
}

// The lower (0) or upper (1) halves of two words.
DEVICE uint32_t pair_halves(uint32_t low, uint32_t high, int half) {
    return __builtin_amdgcn_perm(high, low, half == 0 ? 0x05040100 : 0x07060302);
}

template <class Type> struct machine_half;
template <> struct machine_half<f16> {
    typedef _Float16 type;
};
template <> struct machine_half<bf16> {
    typedef __bf16 type;
};

// Two values rounded to nearest even, in one word, `low` in the lower half; of NaN those that pack2_products takes.
template <class Type> DEVICE uint32_t pack2_b(float low, float high) {
    typedef float f32x2 __attribute__((ext_vector_type(2)));
    typedef typename machine_half<Type>::type pair __attribute__((ext_vector_type(2)));
    return __builtin_bit_cast(uint32_t, __builtin_convertvector(f32x2{low, high}, pair));
}
#if !defined(__gfx950__)
template <> DEVICE uint32_t pack2_b<bf16>(float low, float high) { return pack2_products<bf16>(low, high); }
#endif

// The same of P, which are positive: ties are rounded up, off gfx950 by three instructions. One P in 2^16 is a tie.
template <class Type> DEVICE uint32_t pack2_p(float low, float high) { return pack2_b<Type>(low, high); }
#if !defined(__gfx950__)
template <> DEVICE uint32_t pack2_p<bf16>(float low, float high) {
    return pair_halves(bits_of(low) + 0x8000u, bits_of(high) + 0x8000u, 1);
}
#endif

// A lane's eight values of an accumulator column, rounded, as a BFragment whose k are the accumulators' rows.
template <class Type> DEVICE BFragment as_b_fragment(const float (&values)[ELEMENTS_PER_LANE]) {
    words<16> own;
    for (int i = 0; i < ELEMENTS_PER_LANE / 2; ++i) {
        own.w[i] = pack2_b<Type>(values[2 * i], values[2 * i + 1]);
    }
    return as_b_fragment(own);
}
template <class Type> DEVICE BFragment p_fragment(const float (&values)[ELEMENTS_PER_LANE]) {
    words<16> own;
    for (int i = 0; i < ELEMENTS_PER_LANE / 2; ++i) {
        own.w[i] = pack2_p<Type>(values[2 * i], values[2 * i + 1]);
    }
    return as_b_fragment(own);
}

// To the second operands of the product with V: those of the n-th tile of scores. codes.h has another.
template <class Type> struct PFragments {
    static DEVICE void set(BFragment* p, int n, const float (&values)[ELEMENTS_PER_LANE]) {
        p[n] = p_fragment<Type>(values);
    }
};

// --- fragments from LDS ---

// A tile of rows of WIDTH 16-bit elements, in chunks of 16 bytes. The chunks of a row are swizzled (XOR), so that
// lanes that touch the same chunk of different rows use different banks: of rows a_row_of_lane(0..15), of 16
// neighbours, and of every fourth row.
template <int WIDTH> struct LdsTile {
    static constexpr int CHUNKS = WIDTH / ELEMENTS_PER_LANE;
    static_assert(CHUNKS == 2 || CHUNKS % 4 == 0, "chunks are swizzled in groups of four or eight");

    static constexpr int bytes(int rows) { return rows * WIDTH * 2; }

    // A row's key is linear: that of rows whose bits are disjoint is the XOR of their keys.
#if defined(__gfx950__)
    // 64 banks; 16 lanes of a 16-byte load at once: 0-3, 12-15 and 20-27, or the others of 32.
    static constexpr int SWIZZLE = CHUNKS % 16 == 0 ? 16 : CHUNKS % 8 == 0 ? 8 : 4;
    static DEVICE int key(int row) {
        return SWIZZLE == 16  ? (row >> 1 & 1) | (row >> 2 & 2) | ((row << 2 ^ row) & 4) | (row << 2 & 8)
               : SWIZZLE == 8 ? (row >> 3 & 1) | ((row ^ row >> 3) & 2) | ((row ^ row >> 1) & 4)
                              : (row >> 3 & 1) | ((row >> 1 ^ row >> 2) & 2);
    }
#else
    static constexpr int SWIZZLE = CHUNKS % 8 == 0 ? 8 : 4;
    static DEVICE int key(int row) {
        const int folded = row ^ (row >> 3 & 3) ^ (row >> 1 & 4) ^ (row >> 4 & 1);
        return SWIZZLE == 8 ? folded : folded >> 1;
    }
#endif

    // The byte offset of chunk + lane_chunk; `chunk` is a multiple of LANES_PER_COLUMN where `lane_chunk` is not 0.
    // Two arguments, because what the compiler knows of the sum becomes the instruction's immediate offset: few
    // addresses serve a whole tile.
    static DEVICE int offset(int row, int chunk, int lane_chunk = 0) {
        if (CHUNKS == 2) {  // those of four rows together
            const int quad = row >> 2, key = (quad ^ (quad >> 1 & 1)) & 7;
            return quad * (4 * WIDTH * 2) + (((row & 3) * 2) ^ chunk ^ lane_chunk ^ key) * 16;
        }
        const int swizzled = (chunk ^ lane_chunk ^ key(row)) & (SWIZZLE - 1);
        return row * (WIDTH * 2) + chunk / SWIZZLE * (SWIZZLE * 16) + swizzled * 16;
    }

    // MMA_K elements from k on of one row.
    static DEVICE operand load(const char* tile, int row, int k) {
#if defined(__GFX11__)
        const vec<words<16>, 2> both = {{load_words<16>(tile + offset(row, k / ELEMENTS_PER_LANE)),
                                         load_words<16>(tile + offset(row, k / ELEMENTS_PER_LANE + 1))}};
        return __builtin_bit_cast(operand, both);
#else
        return load_words<16>(tile + offset(row, k / ELEMENTS_PER_LANE, lane_part()));
#endif
    }

    // The rows from `row` on, a multiple of MMA_M, as the first operand.
    static DEVICE AFragment load_a(const char* tile, int row, int k) {
        AFragment a;
        for (int i = 0; i < MMA_INSTRUCTIONS; ++i) {
            a.registers[i] = load(tile, row + a_row_of_lane(i), k);
        }
        return a;
    }

    // The rows from `row` on, a multiple of MMA_N, as the second operand.
    static DEVICE BFragment load_b(const char* tile, int row, int k) { return {load(tile, row + lane_column(), k)}; }
};

// First operands from an LdsTile<WIDTH>, for a whole loop.
template <int WIDTH> struct LdsFragments {
#if defined(__GFX9__)
    // An operand lies at a lane's own offset, in which the swizzle turns bits of the chunk, and a constant: two or four
    // addresses serve a tile. The compiler is kept from making more of them out of these.
    typedef const char __attribute__((address_space(3)))* lds_pointer;
    using Tile = LdsTile<WIDTH>;
    static_assert(Tile::CHUNKS % 4 == 0, "an operand is four chunks of a row");

    lds_pointer lane[Tile::SWIZZLE];  // by what the swizzle turns; most of them are never used

    DEVICE explicit LdsFragments(const char* tile) {
        const int offset = Tile::offset(a_row_of_lane(0), 0, lane_part());
        for (int turned = 0; turned < Tile::SWIZZLE; ++turned) {
            lane[turned] = (lds_pointer)tile + (offset ^ turned * 16);
            asm("" : "+v"(lane[turned]));
        }
    }
    // Of the i-th instruction, from a tile that lies `at` bytes behind this one.
    DEVICE operand load_one(int i, int row, int k, int at = 0) const {
        typedef machine_words<16>::type __attribute__((address_space(3))) lds_words;
        const int fixed = Tile::offset(row + i * 4, k / ELEMENTS_PER_LANE);
        const int turned = fixed / 16 % Tile::SWIZZLE;
        return __builtin_bit_cast(operand, *(const lds_words*)(lane[turned] + (fixed - turned * 16 + at)));
    }
    DEVICE AFragment load(int row, int k) const {
        AFragment a;
        for (int i = 0; i < MMA_INSTRUCTIONS; ++i) {
            a.registers[i] = load_one(i, row, k);
        }
        return a;
    }
#else
    const char* tile;

    DEVICE explicit LdsFragments(const char* tile) : tile(tile) {}
    DEVICE AFragment load(int row, int k) const { return LdsTile<WIDTH>::load_a(tile, row, k); }
#endif
};

#if defined(__gfx950__)
// A tile of rows whose columns are fetched as rows of a first operand, by loads that transpose, or whose rows are. Of
// columns a lane reads 8 bytes, four elements, of rows that are 8 apart for the wave's quarters. Rows are padded so that
// four neighbours lie 64 bytes apart modulo 256, and chunks of every eight rows are permuted in fours: 32 lanes that
// transpose, and 16 that read chunks of rows, use 64 banks.
template <int WIDTH> struct ColumnTile {
    static constexpr int CHUNKS = WIDTH / ELEMENTS_PER_LANE;
    static constexpr int PITCH = CHUNKS % 8 == 0 ? (CHUNKS + 4) * 16 : CHUNKS * 16;
    static_assert(CHUNKS % 4 == 0, "a first operand is four chunks wide");

    static constexpr int bytes(int rows) { return rows * PITCH; }
    static DEVICE int offset(int row, int chunk) { return row * PITCH + (chunk ^ key(row >> 3)) * 16; }
    static DEVICE int key(int eight) { return (eight & 1) * 3 ^ (eight & 2); }
};

// First operands from a ColumnTile<WIDTH> as LdsFragments has them of an LdsTile: one address serves all.
template <int WIDTH> struct RowFragments {
    typedef char __attribute__((address_space(3)))* lds_pointer;
    using Tile = ColumnTile<WIDTH>;

    lds_pointer lane;

    DEVICE explicit RowFragments(char* tile) {
        lane = (lds_pointer)tile + Tile::offset(a_row_of_lane(0), lane_part());
        asm("" : "+v"(lane));
    }
    // Of the i-th instruction and the tile's first rows, from a tile that lies `at` bytes behind this one.
    DEVICE operand load(int i, int k, int at = 0) const {
        typedef machine_words<16>::type __attribute__((address_space(3))) lds_words;
        return __builtin_bit_cast(operand, *(const lds_words*)(lane + (i * 4 * Tile::PITCH + k * 2 + at)));
    }
};

// First operands from a ColumnTile<WIDTH>, for a whole loop. The q-th four of an instruction's 16 rows are the columns
// from 8 * q or 8 * q + 4 on: the former in the operand's first instruction where q is even, in its second where q is
// odd, else the lanes of a load would all read the same half of their chunks. `in_column_order` undoes it.
template <int WIDTH> struct ColumnFragments {
    typedef char __attribute__((address_space(3)))* lds_pointer;
    using Tile = ColumnTile<WIDTH>;

    lds_pointer lane[MMA_INSTRUCTIONS];

    DEVICE explicit ColumnFragments(char* tile) {
        const int row = lane_part() * ELEMENTS_PER_LANE + lane_column() / 4, quarter = lane_column() % 4;
        for (int i = 0; i < MMA_INSTRUCTIONS; ++i) {
            lane[i] = (lds_pointer)tile + Tile::offset(row, quarter) + ((i ^ quarter) & 1) * 8;
            asm("" : "+v"(lane[i]));
        }
    }
    // Of columns from `column` on and rows from `row` on, both multiples of 32; as LdsFragments' otherwise.
    DEVICE operand load_one(int i, int column, int row, int at = 0) const {
        typedef i16x4 __attribute__((address_space(3))) lds_elements;
        i16x4 halves[2];
        for (int h = 0; h < 2; ++h) {
            const int fixed = (row + h * 4) * Tile::PITCH + column * 2 + at;
            halves[h] = __builtin_amdgcn_ds_read_tr16_b64_v4i16((lds_elements*)(lane[i] + fixed));
        }
        operand one;
        __builtin_memcpy(&one, halves, sizeof halves);
        return one;
    }
    DEVICE AFragment load(int column, int row) const {
        AFragment a;
        for (int i = 0; i < MMA_INSTRUCTIONS; ++i) {
            a.registers[i] = load_one(i, column, row);
        }
        return a;
    }
};
DEVICE void in_column_order(AccumulatorFragment& acc) {
    const bool odd = lane_part() % 2 != 0;
    const accumulators first = acc.registers[0];
    acc.registers[0] = odd ? acc.registers[1] : first;
    acc.registers[1] = odd ? first : acc.registers[1];
}
#endif

// use(i, load(i)) for i below COUNT in order, each loaded DISTANCE iterations before it is used. Without this the
// compiler loads all of them first, as far as registers go and beyond.
template <int COUNT, int DISTANCE, class Load, class Use> DEVICE void prefetch(Load load, Use use) {
    decltype(load(0)) stages[DISTANCE];
#pragma unroll
    for (int i = 0; i < DISTANCE && i < COUNT; ++i) {
        stages[i] = load(i);
    }
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        const auto a = stages[i % DISTANCE];
        if (i + DISTANCE < COUNT) {
            stages[i % DISTANCE] = load(i + DISTANCE);
        }
        __builtin_amdgcn_sched_barrier(0);
        use(i, a);
    }
}

// How chunks of a tensor's elements become those of an operand, 16 bits each: as they are, but for codes (codes.h).
template <class Type> struct ElementTraits {
    static constexpr int NUMBERS = 1;  // of the tensor's elements in 16 bits of an operand
    template <int SIZE> static DEVICE words<SIZE> convert(words<SIZE> chunk) { return chunk; }
    // A chunk of memory's, of numbers times 1, -1, 0 or NaN; only codes are multiplied.
    template <int SIZE> static DEVICE words<SIZE> multiply(words<SIZE> chunk, float) { return chunk; }
};

// What memory has of ELEMENTS_PER_LANE elements of an operand.
template <class Type> constexpr int CHUNK_BYTES = ELEMENTS_PER_LANE * ElementTraits<Type>::NUMBERS * sizeof(Type);

// The operand's elements of a chunk in global memory, where `remaining` of the tensor's exist.
template <class Type> DEVICE words<16> load_operand_chunk(const Type* from, int remaining, float factor) {
    using Traits = ElementTraits<Type>;
    const auto chunk = load_bounded<CHUNK_BYTES<Type>>(from, remaining);
    return Traits::convert(Traits::multiply(chunk, factor));
}

// The second operand from global memory: `row` is the lane's own, of whose elements `remaining` exist from k on.
template <class Type> DEVICE BFragment load_b_global(const Type* row, int k, int remaining, float factor = 1.0f) {
    constexpr int NUMBERS = ElementTraits<Type>::NUMBERS;
#if defined(__GFX11__)
    static_assert(NUMBERS == 1, "gfx11 has no instruction for codes");
    const int after = remaining - ELEMENTS_PER_LANE;
    const vec<words<16>, 2> both = {{load_operand_chunk(row + k, remaining, factor),
                                     load_operand_chunk(row + k + ELEMENTS_PER_LANE, after, factor)}};
    return {__builtin_bit_cast(operand, both)};
#else
    const int own = lane_part() * (ELEMENTS_PER_LANE * NUMBERS);
    return {load_operand_chunk(row + k * NUMBERS + own, remaining - own, factor)};
#endif
}

// --- copies to LDS ---
//
// `load` into registers, and later `store` to LDS, as the rows lie or transposed. Elements that do not exist become
// zeros.

// Rows of a head in memory: row i starts at data + i * stride, has `width` elements, and exists below `end`.
template <class Type> struct HeadRows {
    const Type* data;
    int64_t stride;
    int end, width;
};

// BYTES from `column` of an operand on of a row, or of the last where it does not exist. EVEN: such BYTES end with it.
template <bool EVEN, int BYTES, class Type>
DEVICE words<BYTES> load_chunk(const HeadRows<Type>& from, int row, int column) {
    constexpr int NUMBERS = ElementTraits<Type>::NUMBERS;
    const Type* const address = from.data + min(row, from.end - 1) * from.stride + column * NUMBERS;
    return EVEN ? load_unaligned<BYTES>(address) : load_bounded<BYTES>(address, from.width - column * NUMBERS);
}

// ELEMENTS_PER_LANE rows from `row` on become zeros where they do not exist.
template <int BYTES> DEVICE void clear_beyond(words<BYTES> (&rows)[ELEMENTS_PER_LANE], int row, int end) {
    for (int r = 0; r < ELEMENTS_PER_LANE; ++r) {
        if (row + r >= end) {
            rows[r] = {};
        }
    }
}

// Column `c` of ELEMENTS_PER_LANE rows.
template <int BYTES> DEVICE words<16> transposed_column(const words<BYTES> (&rows)[ELEMENTS_PER_LANE], int c) {
    words<16> column;
    for (int r = 0; r < ELEMENTS_PER_LANE / 2; ++r) {
        column.w[r] = pair_halves(rows[2 * r].w[c / 2], rows[2 * r + 1].w[c / 2], c % 2);
    }
    return column;
}

// ELEMENTS_PER_LANE rows, transposed: where those of a column from 8 * `eight` on lie in LDS, and what lies there.
template <class Type, int ROWS, int COLUMNS> struct TransposedColumns {
    using Traits = ElementTraits<Type>;
    words<COLUMNS * 2> rows[ELEMENTS_PER_LANE];

    DEVICE explicit TransposedColumns(const words<COLUMNS * sizeof(Type)> (&loaded)[ELEMENTS_PER_LANE]) {
        for (int r = 0; r < ELEMENTS_PER_LANE; ++r) {
            rows[r] = Traits::convert(loaded[r]);
        }
    }
    static DEVICE int offset(int column, int eight) { return LdsTile<ROWS>::offset(column, eight); }
    DEVICE words<16> column(int c) const { return transposed_column(rows, c); }
};

// TOTAL chunks, COUNT at most for each of a block's threads: its i-th is chunk `id`.
template <int TOTAL, int THREADS> struct ThreadChunks {
    static constexpr int COUNT = (TOTAL + THREADS - 1) / THREADS;

    static DEVICE int id(int i) { return thread_x() + i * THREADS; }
    static DEVICE bool exists(int i) { return TOTAL % THREADS == 0 || id(i) < TOTAL; }
};

// ROWS rows of WIDTH elements to a Tile.
template <class Type, int WIDTH, int ROWS, int THREADS, class Tile = LdsTile<WIDTH>> struct TileCopy {
    static constexpr int CHUNKS = WIDTH / ELEMENTS_PER_LANE;
    using Own = ThreadChunks<ROWS * CHUNKS, THREADS>;
    using Element = Type;
    using Traits = ElementTraits<Type>;

    words<CHUNK_BYTES<Type>> registers[Own::COUNT];

    // The rows from `first` on, of which at least one exists. EVEN: their width is WIDTH.
    template <bool EVEN> DEVICE void load(const HeadRows<Type>& from, int first) {
        const bool inside = first + ROWS <= from.end;
        for (int i = 0; i < Own::COUNT; ++i) {
            if (!Own::exists(i)) {
                continue;
            }
            const int row = first + Own::id(i) / CHUNKS, column = Own::id(i) % CHUNKS * ELEMENTS_PER_LANE;
            registers[i] = load_chunk<EVEN, CHUNK_BYTES<Type>>(from, row, column);
            if (!inside && row >= from.end) {
                registers[i] = {};
            }
        }
    }

    DEVICE void store(char* tile) const {
        for (int i = 0; i < Own::COUNT; ++i) {
            if (Own::exists(i)) {
                const int offset = Tile::offset(Own::id(i) / CHUNKS, Own::id(i) % CHUNKS);
                store_words<16>(tile + offset, Traits::convert(registers[i]));
            }
        }
    }
};

// ROWS rows of WIDTH elements, transposed, to an LdsTile<ROWS>. A thread moves ELEMENTS_PER_LANE rows of COLUMNS
// columns.
template <class Type, int WIDTH, int ROWS, int THREADS> struct TransposedTileCopy {
    using Element = Type;
    static constexpr int BYTES = sizeof(Type);
    static constexpr int COLUMNS = BYTES == 1 || WIDTH * ROWS >= THREADS * 4 * ELEMENTS_PER_LANE ? 4 : 2;
    static constexpr int THREADS_PER_ROW = WIDTH / COLUMNS;
    using Own = ThreadChunks<THREADS_PER_ROW * ROWS / ELEMENTS_PER_LANE, THREADS>;
    using Transposed = TransposedColumns<Type, ROWS, COLUMNS>;

    words<COLUMNS * BYTES> registers[Own::COUNT][ELEMENTS_PER_LANE];

    template <bool EVEN> DEVICE void load(const HeadRows<Type>& from, int first) {
        const bool inside = first + ROWS <= from.end;
        for (int i = 0; i < Own::COUNT; ++i) {
            if (!Own::exists(i)) {
                continue;
            }
            const int row = first + Own::id(i) / THREADS_PER_ROW * ELEMENTS_PER_LANE;
            for (int r = 0; r < ELEMENTS_PER_LANE; ++r) {
                const int column = Own::id(i) % THREADS_PER_ROW * COLUMNS;
                registers[i][r] = load_chunk<EVEN, COLUMNS * BYTES>(from, row + r, column);
            }
            if (!inside) {
                clear_beyond(registers[i], row, from.end);
            }
        }
    }

    DEVICE void store(char* tile) const {
        for (int i = 0; i < Own::COUNT; ++i) {
            if (!Own::exists(i)) {
                continue;
            }
            const int eight = Own::id(i) / THREADS_PER_ROW, column = Own::id(i) % THREADS_PER_ROW * COLUMNS;
            const Transposed transposed(registers[i]);
            for (int c = 0; c < COLUMNS; ++c) {
                store_words(tile + Transposed::offset(column + c, eight), transposed.column(c));
            }
        }
    }
};

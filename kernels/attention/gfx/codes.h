// attention_fp8's operands: q, k and v in codes of 8 bits, and the products that fwd.hip makes of them.
//
// NATIVE: instructions take the codes. An operand's 16 bits are then two codes (CodePair), of which a lane holds 16, for
// two instructions; which elements of k those are is the same for both operands. P, times 2^P_SCALE_LOG2, are rounded
// to codes too: those of two tiles of scores are one operand, and v's keys lie in LDS in that order (TransposedColumns).
// gfx942's instructions take fnuz codes: an OCP code stands for half of its number there, 0x80 is NaN, and 0x7f and
// 0xff, OCP's NaN, for 240. So codes become fnuz on the way to LDS, and scales make up for the halves (CODE_FACTOR).
//
// Else codes become float16, which has all of their numbers, on the way to LDS.
//
// Defines: FORMAT: the codes' format (minifloat.h); NATIVE.
#pragma once

#include "_lib/amdgcn/ocp_as_fnuz.h"
#include "tiles.h"

#if defined(__gfx942__)
constexpr bool FNUZ_INSTRUCTIONS = true;
#else
constexpr bool FNUZ_INSTRUCTIONS = false;
#endif
static_assert(!NATIVE || FNUZ_INSTRUCTIONS || FORMAT::OCP_E4M3, "no instruction takes these codes");
constexpr bool AS_FNUZ = NATIVE && FNUZ_INSTRUCTIONS && !FORMAT::FNUZ;
constexpr float CODE_FACTOR = AS_FNUZ ? 2.0f : 1.0f;  // a number over what the instruction takes its code for

struct Code {  // becomes a number of float16
    uint8_t bits;
};
struct ValueCode {  // stays one
    uint8_t bits;
};
struct CodePair {  // one of two that are 16 bits of an operand
    uint8_t bits;
};

// fwd.hip's: types of operands and of what memory has; whether scores are products of 128 codes at once.
#define NATIVE_CODES NATIVE
#if NATIVE
using T = CodePair;
using KeyElement = CodePair;
using ValueElement = ValueCode;
#else
using T = f16;
using KeyElement = Code;
using ValueElement = Code;
#endif
#if defined(__gfx950__) && NATIVE && HEAD_D % 128 == 0
#define WIDE_MMA 1
#else
#define WIDE_MMA 0
#endif

// --- four codes of a word ---

// SIGNS of the codes that are not 0, whatever their signs are; and of NaN.
DEVICE uint32_t nonzero_codes(uint32_t codes) { return ((codes & SIZES) + SIZES) & SIGNS; }
template <class Format> DEVICE uint32_t nan_codes(uint32_t codes) {
    if constexpr (Format::FNUZ) {
        return codes & SIGNS & ~nonzero_codes(codes);
    } else {
        return not_finite<Format>(codes) & SIGNS;
    }
}

// The codes of the numbers times 1, -1, 0 or NaN.
DEVICE uint32_t codes_times(uint32_t codes, float factor) {
    if (factor == 1.0f) {
        return codes;
    }
    if (factor == -1.0f) {
        return codes ^ (FORMAT::FNUZ ? nonzero_codes(codes) : SIGNS);
    }
    const uint32_t nan = factor == 0.0f ? nan_codes<FORMAT>(codes) : SIGNS;
    return FORMAT::FNUZ ? nan : nan - (nan >> 7);
}

// OCP codes as fnuz codes of half their numbers.
template <class Format, int BYTES> DEVICE words<BYTES> as_fnuz(words<BYTES> codes) {
    uint32_t found = 0;
    words<BYTES> fnuz;
    for (int i = 0; i < BYTES / 4; ++i) {
        fnuz.w[i] = finite_as_fnuz(codes.w[i]);
        found |= not_finite<Format>(codes.w[i]);
    }
    if (__builtin_expect((found & SIGNS) != 0, false)) {
        for (int i = 0; i < BYTES / 4; ++i) {
            fnuz.w[i] = with_nan(fnuz.w[i], not_finite<Format>(codes.w[i]));
        }
    }
    return fnuz;
}

// The lower (0) or upper (1) two codes of a word as numbers of float16.
DEVICE uint32_t halves_of_codes(uint32_t codes, int half) {
    typedef int16_t integers __attribute__((ext_vector_type(2)));
    typedef _Float16 numbers __attribute__((ext_vector_type(2)));
    // Each in the upper byte of 16 bits, then one bit lower but for the sign: float16 of another bias.
    const uint32_t spread = __builtin_amdgcn_perm(0, codes, half == 0 ? 0x010c000cu : 0x030c020cu);
    uint32_t bits = __builtin_bit_cast(uint32_t, __builtin_bit_cast(integers, spread) >> 1) & 0xbf80bf80u;
    if constexpr (FORMAT::FNUZ) {  // NaN is -0
        const uint32_t nan = bits & ~((bits & 0x3f803f80u) + 0x7f807f80u) & 0x80008000u;
        bits |= nan - (nan >> 15);
    } else {  // of the largest size, which gets float16's largest exponent
        bits |= (bits + 0x00800080u) & 0x40004000u;
    }
    const _Float16 factor = static_cast<_Float16>(1 << (15 - FORMAT::BIAS));
    return __builtin_bit_cast(uint32_t, __builtin_bit_cast(numbers, bits) * numbers{factor, factor});
}

// --- operands ---

template <> struct ElementTraits<Code> {
    static constexpr int NUMBERS = 1;
    template <int SIZE> static DEVICE words<SIZE * 2> convert(words<SIZE> codes) {
        words<SIZE * 2> numbers;
        for (int i = 0; i < SIZE / 2; ++i) {
            numbers.w[i] = halves_of_codes(codes.w[i / 2], i % 2);
        }
        return numbers;
    }
    template <int SIZE> static DEVICE words<SIZE> multiply(words<SIZE> codes, float factor) {
        for (uint32_t& word : codes.w) {
            word = codes_times(word, factor);
        }
        return codes;
    }
};
template <> struct ElementTraits<CodePair> {
    static constexpr int NUMBERS = 2;
    template <int SIZE> static DEVICE words<SIZE> convert(words<SIZE> codes) {
        if constexpr (AS_FNUZ) {
            return as_fnuz<FORMAT>(codes);
        } else {
            return codes;
        }
    }
    template <int SIZE> static DEVICE words<SIZE> multiply(words<SIZE> codes, float factor) {
        return ElementTraits<Code>::multiply(codes, factor);
    }
};
template <> struct ElementTraits<ValueCode> {
    static constexpr int NUMBERS = 1;
};

#if NATIVE
// Eight codes of a column; those of the second of two tiles of scores lie behind the first's.
template <int ROWS, int COLUMNS> struct TransposedColumns<ValueCode, ROWS, COLUMNS> {
    static_assert(COLUMNS == 4, "a word of each row");
    words<ELEMENTS_PER_LANE * 4> rows;

    DEVICE explicit TransposedColumns(const words<4> (&loaded)[ELEMENTS_PER_LANE]) {
        for (int r = 0; r < ELEMENTS_PER_LANE; ++r) {
            rows.w[r] = loaded[r].w[0];
        }
        if constexpr (AS_FNUZ) {
            rows = as_fnuz<FORMAT>(rows);
        }
    }
    static DEVICE int offset(int column, int eight) {
        const int tile = eight / LANES_PER_COLUMN;
        const int chunk = tile / 2 * LANES_PER_COLUMN + eight % LANES_PER_COLUMN;
        return LdsTile<ROWS / 2>::offset(column, chunk) + tile % 2 * 8;
    }
    DEVICE words<8> column(int c) const {
        const uint32_t pairs = c / 2 == 0 ? 0x05010400u : 0x07030602u;  // of columns c / 2 * 2 and the next, of two rows
        words<8> codes;
        for (int i = 0; i < 2; ++i) {
            const uint32_t first = __builtin_amdgcn_perm(rows.w[4 * i + 1], rows.w[4 * i], pairs);
            const uint32_t second = __builtin_amdgcn_perm(rows.w[4 * i + 3], rows.w[4 * i + 2], pairs);
            codes.w[i] = pair_halves(first, second, c % 2);
        }
        return codes;
    }
};

template <> DEVICE accumulators mma_instruction<CodePair>(operand a, operand b, accumulators c) {
    for (int i = 0; i < 2; ++i) {
        const words<8> codes_a = {{a.w[i * 2], a.w[i * 2 + 1]}}, codes_b = {{b.w[i * 2], b.w[i * 2 + 1]}};
#if defined(__GFX9__)
        c = __builtin_amdgcn_mfma_f32_16x16x32_fp8_fp8(__builtin_bit_cast(long, codes_a), __builtin_bit_cast(long, codes_b),
                                                       c, 0, 0, 0);
#else
        typedef int pair __attribute__((ext_vector_type(2)));
        c = __builtin_amdgcn_wmma_f32_16x16x16_fp8_fp8_w32_gfx12(__builtin_bit_cast(pair, codes_a),
                                                                 __builtin_bit_cast(pair, codes_b), c);
#endif
    }
    return c;
}

#if defined(__gfx950__)
// Two operands of each side as those of one instruction, 16x16x128, which is twice as fast.
struct WideFragment {
    AFragment halves[2];
};
template <class Fragments> DEVICE WideFragment load_wide(const Fragments& from, int row, int k) {
    return {{from.load(row, k), from.load(row, k + MMA_K)}};
}
DEVICE void mma_wide(AccumulatorFragment& acc, const WideFragment& a, const BFragment& b, const BFragment& b_after) {
    typedef int operands __attribute__((ext_vector_type(8)));
    const vec<operand, 2> second = {{b.registers, b_after.registers}};
    for (int i = 0; i < MMA_INSTRUCTIONS; ++i) {
        const vec<operand, 2> first = {{a.halves[0].registers[i], a.halves[1].registers[i]}};
        acc.registers[i] = __builtin_amdgcn_mfma_scale_f32_16x16x128_f8f6f4(__builtin_bit_cast(operands, first),
                                                                            __builtin_bit_cast(operands, second),
                                                                            acc.registers[i], 0, 0, 0, 0, 0, 0);
    }
}
#endif

// A P that lies below the largest by more is lost where codes are subnormal, so row_max never lags.
template <> constexpr int LAZY_P_SCALE_LOG2_OF<CodePair> = FNUZ_INSTRUCTIONS ? 7 : 8;
template <> constexpr float LAZY_THRESHOLD_OF<CodePair> = 0.0f;

template <> struct PFragments<CodePair> {
    static DEVICE void set(BFragment* p, int n, const float (&values)[ELEMENTS_PER_LANE]) {
        for (int i = 0; i < 2; ++i) {
            const float* const four = values + 4 * i;
            const int low = __builtin_amdgcn_cvt_pk_fp8_f32(four[0], four[1], 0, false);
            const int all = __builtin_amdgcn_cvt_pk_fp8_f32(four[2], four[3], low, true);
            p[n / 2].registers.w[n % 2 * 2 + i] = static_cast<uint32_t>(all);
        }
    }
};
#endif

// --- scales ---

// Those of q, k and v of one key head.
struct CodeScale {
    const float* scales;
    int64_t batch, head;

    DEVICE float of(int64_t batch_index, int kv_head) const { return scales[batch_index * batch + kv_head * head]; }
};

// The exponent's FMA takes a positive scale, of which the largest score is the largest product's: a sign, a zero and
// NaN become those of q. With a cap the products' factor may be anything.
template <bool SOFTCAP_> DEVICE HeadScales head_scales(float score, float q, float k, float v) {
    const float all = score * q * k * (CODE_FACTOR * CODE_FACTOR), value = v * CODE_FACTOR;
    if (SOFTCAP_ || all > 0.0f) {
        return {1.0f, all, value};
    }
    return all < 0.0f ? HeadScales{-1.0f, -all, value} : HeadScales{all, 1.0f, value};
}
#define CODE_SCALES                                                                                                      \
    , const float *q_scale, int64_t q_scale_batch, int64_t q_scale_head, const float *k_scale, int64_t k_scale_batch,    \
        int64_t k_scale_head, const float *v_scale, int64_t v_scale_batch, int64_t v_scale_head
#define CODE_SCALE(name) CodeScale{name, name##_batch, name##_head}

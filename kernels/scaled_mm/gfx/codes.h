// Operands of 8 bits on AMD's matrix units: what a lane holds of 16 lines, and their products.
//
// -DNATIVE=1: instructions for the operands' own types (fnuz on gfx942, OCP on gfx950 and gfx12), and with -DAS_FNUZ=1 for
// those of ocp_as_fnuz.h. 0: codes become bfloat16 numbers, which hold every type exactly. -DA_FORMAT, -DB_FORMAT: the types
// (minifloat.h). -DA_E5M2, -DB_E5M2: 1 of e5m2.
// -DINTEGER=1: the operands are int8, for which all of these GPUs have instructions (integers.h).
//
// The product is computed as c.T = b.T @ a.T, so that a lane's accumulators run along a row of c: of lane l, accumulator i
// is row l % 16, and column
//     4 * (l / 16) + i  on CDNA,
//     2 * i + l / 16    on gfx11,
//     i + 8 * (l / 16)  on gfx12.
// An operand's lane holds line l % 16: on gfx11 all 16 elements of k, else 8 of them. Which ones they are, decides who loads
// them, as long as a's and b's lanes do alike: a lane loads 16 neighbours, for two products where it holds 8.
#pragma once

#include "_lib/minifloat.h"

constexpr int FRAGMENT = 16;  // lines
#if defined(__GFX11__)
constexpr bool WHOLE_LINES = true;
#else
constexpr bool WHOLE_LINES = false;
#endif
#if INTEGER && defined(__gfx950__)
constexpr int HELD = 16;                        // bytes of a lane's operand
#else
constexpr int HELD = WHOLE_LINES ? 16 : 8;
#endif
constexpr int PRODUCTS = 16 / HELD;             // of the 16 bytes that it loads
constexpr int LINE_LANES = WHOLE_LINES ? 1 : WARP / FRAGMENT;   // which hold a line's elements of k
constexpr int DEPTH = LINE_LANES * 16;          // elements of k of the products of one load
constexpr int SUMS = WARP == 64 ? 4 : 8;        // accumulators of a lane
#if INTEGER
typedef int Sum;
#else
typedef float Sum;
#endif
typedef Sum Accumulators __attribute__((ext_vector_type(SUMS)));

DEVICE int lane() { return thread_x() % WARP; }
DEVICE int lane_line() { return lane() % FRAGMENT; }
DEVICE int lane_k() { return WHOLE_LINES ? 0 : lane() / FRAGMENT * 16; }
DEVICE int lane_column(int i) {
#if defined(__GFX11__)
    return 2 * i + lane() / FRAGMENT;
#else
    return lane() / FRAGMENT * SUMS + i;
#endif
}

#if INTEGER
#include "integers.h"
#elif NATIVE

typedef words<8> Codes;
template <class Format> DEVICE Codes operand(words<16> codes, int product) {
    return {{codes.w[product * 2], codes.w[product * 2 + 1]}};
}

#if A_E5M2 && B_E5M2
#define KINDS bf8_bf8
#elif A_E5M2
#define KINDS fp8_bf8
#elif B_E5M2
#define KINDS bf8_fp8
#else
#define KINDS fp8_fp8
#endif
#define JOIN(a, b, c) a##b##c
#define NAME(a, b, c) JOIN(a, b, c)

// c + a @ b.T.
DEVICE Accumulators multiply(Codes a, Codes b, Accumulators c) {
#if defined(__GFX9__)
    return NAME(__builtin_amdgcn_mfma_f32_16x16x32_, KINDS, )(__builtin_bit_cast(long, b), __builtin_bit_cast(long, a), c, 0, 0,
                                                             0);
#else
    typedef int pair __attribute__((ext_vector_type(2)));
    return NAME(__builtin_amdgcn_wmma_f32_16x16x16_, KINDS, _w32_gfx12)(__builtin_bit_cast(pair, b),
                                                                       __builtin_bit_cast(pair, a), c);
#endif
}

#endif

#if !INTEGER && (!NATIVE || AS_FNUZ)
typedef words<HELD * 2> Numbers;
template <class Format> DEVICE Numbers widened(words<16> codes, int product) {
    Numbers numbers;
#pragma unroll
    for (int i = 0; i < HELD / 2; ++i) {
        const uint32_t pair = codes.w[product * HELD / 4 + i / 2] >> i % 2 * 16;
        const uint32_t low = bits_of(decode<Format>(pair & 0xffu)), high = bits_of(decode<Format>(pair >> 8 & 0xffu));
        numbers.w[i] = low >> 16 | (high & 0xffff0000u);
    }
    return numbers;
}

DEVICE Accumulators multiply(Numbers a, Numbers b, Accumulators c) {
#if defined(__gfx950__)
    typedef __bf16 numbers __attribute__((ext_vector_type(8)));
    return __builtin_amdgcn_mfma_f32_16x16x32_bf16(__builtin_bit_cast(numbers, b), __builtin_bit_cast(numbers, a), c, 0, 0,
                                                   0);
#elif defined(__GFX9__)
    typedef short numbers __attribute__((ext_vector_type(4)));
#pragma unroll
    for (int part = 0; part < 4; part += 2) {
        const words<8> left = {{b.w[part], b.w[part + 1]}}, right = {{a.w[part], a.w[part + 1]}};
        c = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(__builtin_bit_cast(numbers, left), __builtin_bit_cast(numbers, right),
                                                      c, 0, 0, 0);
    }
    return c;
#elif defined(__GFX11__)
    typedef short numbers __attribute__((ext_vector_type(16)));
    return __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(__builtin_bit_cast(numbers, b), __builtin_bit_cast(numbers, a), c);
#else
    typedef short numbers __attribute__((ext_vector_type(8)));
    return __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12(__builtin_bit_cast(numbers, b), __builtin_bit_cast(numbers, a),
                                                            c);
#endif
}

#if !NATIVE
typedef Numbers Codes;
template <class Format> DEVICE Codes operand(words<16> codes, int product) { return widened<Format>(codes, product); }
#endif
#endif

// The products of matrix.hip: 16 rows of the weight by 16 rows of x, and what a lane holds of both.
//
// A lane has RUN neighbouring k of a row of x, the values of so many k of a row of the weight, two of each four, and their
// places. SMFMAC of gfx942 takes them as they are. Elsewhere the lane makes four elements of each two values, for MFMA or
// WMMA; as A and B are alike, which k a lane has of these does not matter.
//
// -DELEMENT: bf16, f16, or uint8_t of codes of float8_e4m3fn. Those are multiplied as codes where the GPU has instructions
// for them, on gfx942 as fnuz codes of half their numbers (ocp_as_fnuz.h); elsewhere as bfloat16 numbers, which have them all, from LDS on.
#pragma once

#include "attention/gfx/tiles.h"
#include "_lib/minifloat.h"

using Element = ELEMENT;
constexpr bool CODES = sizeof(Element) == 1;
using E4m3 = Minifloat<8, 3, 7, 0x7e, 0x7f, false>;
#if defined(__gfx942__)
constexpr bool AS_FNUZ = CODES;
#else
constexpr bool AS_FNUZ = false;
#endif
#if defined(__gfx942__) || defined(__gfx950__) || defined(__GFX12__)
constexpr bool DECODED = false;
#else
constexpr bool DECODED = CODES;
#endif
template <bool> struct Multiplied {
    typedef Element type;
};
template <> struct Multiplied<true> {
    typedef bf16 type;
};
using T = Multiplied<DECODED>::type;  // in LDS

// Of a lane and a product, k.
#if defined(__gfx942__)
constexpr int RUN = CODES ? 16 : 8;
#elif defined(__gfx950__)
constexpr int RUN = CODES ? 32 : 8;
#else
constexpr int RUN = sizeof(operand) / 2;
#endif
constexpr int GROUPS = RUN == 16 && WARP == 32 ? 1 : LANES_PER_COLUMN;  // gfx11: both halves of a wave hold all k

typedef words<RUN * sizeof(T) / 2> run_values;  // two of each four elements
typedef words<RUN * sizeof(T)> run_elements;

// A lane's places of the values of a step of K along k: a byte for each 8 k.
template <int K> struct Places {
    static constexpr int BYTES = K / 8 / GROUPS, WORDS = (BYTES + 3) / 4;

    uint32_t word[WORDS];

    // Those of product `product`, in the lowest bits.
    DEVICE uint32_t of(int product) const { return word[product * RUN / 32] >> product * RUN % 32; }
};

// The elements of a run of 16 bits: each four are 64 bits, in which a value lies at 16 times its place.
DEVICE operand decompressed(words<sizeof(operand) / 2> values, uint32_t places) {
    operand run;
    for (int i = 0; i < RUN / 4; ++i) {
        const uint64_t first = static_cast<uint64_t>(values.w[i] & 0xffff) << (places >> 4 * i & 3) * 16;
        const uint64_t second = static_cast<uint64_t>(values.w[i] >> 16) << (places >> (4 * i + 2) & 3) * 16;
        run.w[i * 2] = static_cast<uint32_t>(first | second);
        run.w[i * 2 + 1] = static_cast<uint32_t>((first | second) >> 32);
    }
    return run;
}

// The codes of a run of which BYTES are values: each four are a word.
template <int BYTES> DEVICE words<BYTES * 2> decompressed_codes(words<BYTES> values, uint32_t places) {
    words<BYTES * 2> run;
    for (int i = 0; i < BYTES / 2; ++i) {
        const uint32_t two = values.w[i / 2] >> i % 2 * 16;
        run.w[i] = (two & 0xff) << (places >> 4 * i & 3) * 8 | (two >> 8 & 0xff) << (places >> (4 * i + 2) & 3) * 8;
    }
    return run;
}

// c + a @ b of a step's product PRODUCT.
#if defined(__gfx942__)
template <int PRODUCT, class AllPlaces>
DEVICE accumulators multiply(words<8> a, words<16> b, accumulators c, AllPlaces places, bf16) {
    return __builtin_amdgcn_smfmac_f32_16x16x32_bf16(__builtin_bit_cast(i16x4, a), __builtin_bit_cast(i16x8, b), c,
                                                     static_cast<int>(places.word[0]), 0, PRODUCT);
}
template <int PRODUCT, class AllPlaces>
DEVICE accumulators multiply(words<8> a, words<16> b, accumulators c, AllPlaces places, f16) {
    return __builtin_amdgcn_smfmac_f32_16x16x32_f16(__builtin_bit_cast(f16x4, a), __builtin_bit_cast(f16x8, b), c,
                                                    static_cast<int>(places.word[0]), 0, PRODUCT);
}
typedef int i32x2 __attribute__((ext_vector_type(2)));
typedef int i32x4 __attribute__((ext_vector_type(4)));
template <int PRODUCT, class AllPlaces>
DEVICE accumulators multiply(words<8> a, words<16> b, accumulators c, AllPlaces places, uint8_t) {
    return __builtin_amdgcn_smfmac_f32_16x16x64_fp8_fp8(__builtin_bit_cast(i32x2, a), __builtin_bit_cast(i32x4, b), c,
                                                        static_cast<int>(places.word[0]), 0, PRODUCT);
}
#else
template <int PRODUCT, class AllPlaces, class Type>
DEVICE accumulators multiply(run_values a, run_elements b, accumulators c, AllPlaces places, Type) {
    return mma_instruction<Type>(decompressed(a, places.of(PRODUCT)), b, c);
}
#if defined(__gfx950__)
typedef int i32x8 __attribute__((ext_vector_type(8)));
template <int PRODUCT, class AllPlaces>
DEVICE accumulators multiply(words<16> a, words<32> b, accumulators c, AllPlaces places, uint8_t) {
    const i32x8 run = __builtin_bit_cast(i32x8, decompressed_codes(a, places.of(PRODUCT)));
    constexpr int E4M3 = 0, NO_SCALE = 0;
    return __builtin_amdgcn_mfma_scale_f32_16x16x128_f8f6f4(run, __builtin_bit_cast(i32x8, b), c, E4M3, E4M3, 0, NO_SCALE, 0,
                                                            NO_SCALE);
}
#elif defined(__GFX12__)
typedef int i32x2 __attribute__((ext_vector_type(2)));
template <int PRODUCT, class AllPlaces>
DEVICE accumulators multiply(words<4> a, words<8> b, accumulators c, AllPlaces places, uint8_t) {
    return __builtin_amdgcn_wmma_f32_16x16x16_fp8_fp8_w32_gfx12(
        __builtin_bit_cast(i32x2, decompressed_codes(a, places.of(PRODUCT))), __builtin_bit_cast(i32x2, b), c);
}
#endif
#endif

// Products of int8 operands on AMD's matrix units, whose sums in int32 wrap around.
#pragma once

#include "prelude.h"

typedef int int_sums __attribute__((ext_vector_type(256 / WARP)));

// c + a @ b.T of 16 lines each, of which a lane has BYTES along k: the instructions' own number of bytes at a time, and of
// lanes that share a line each as many.
template <int BYTES> DEVICE int_sums multiply_int8(words<BYTES> a, words<BYTES> b, int_sums c) {
    typedef int pair __attribute__((ext_vector_type(2)));
    typedef int four __attribute__((ext_vector_type(4)));
#if defined(__gfx950__)
    if constexpr (BYTES == 16) {
        return __builtin_amdgcn_mfma_i32_16x16x64_i8(__builtin_bit_cast(four, a), __builtin_bit_cast(four, b), c, 0, 0, 0);
    }
#endif
#if defined(__GFX11__)
    static_assert(BYTES == 16, "both halves of a wave hold all 16 k");
    return __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32(true, __builtin_bit_cast(four, a), true, __builtin_bit_cast(four, b),
                                                      c, false);
#elif defined(__gfx90a__)
#pragma unroll
    for (int i = 0; i < BYTES / 4; ++i) {
        c = __builtin_amdgcn_mfma_i32_16x16x16i8(static_cast<int>(a.w[i]), static_cast<int>(b.w[i]), c, 0, 0, 0);
    }
    return c;
#elif defined(__GFX9__)
    if constexpr (BYTES == 8) {
        return __builtin_amdgcn_mfma_i32_16x16x32_i8(__builtin_bit_cast(long, a), __builtin_bit_cast(long, b), c, 0, 0, 0);
    } else {
        c = multiply_int8<8>({{a.w[0], a.w[1]}}, {{b.w[0], b.w[1]}}, c);
        return multiply_int8<8>({{a.w[2], a.w[3]}}, {{b.w[2], b.w[3]}}, c);
    }
#else
    if constexpr (BYTES == 8) {
        return __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32_gfx12(true, __builtin_bit_cast(pair, a), true,
                                                                __builtin_bit_cast(pair, b), c, false);
    } else {
        c = multiply_int8<8>({{a.w[0], a.w[1]}}, {{b.w[0], b.w[1]}}, c);
        return multiply_int8<8>({{a.w[2], a.w[3]}}, {{b.w[2], b.w[3]}}, c);
    }
#endif
}

// Rounding of what AMD's matrix kernels have computed, two values to a word.
#pragma once

#include "prelude.h"

// Two values rounded to nearest even, in one word, `low` in the lower half. In bfloat16 gfx950 has an instruction; on
// others five round numbers, and NaN whose lower half is below 0x8000, as all are that instructions make of 16-bit
// operands. A conversion of every NaN (pack2) takes nine.
template <class Type> DEVICE uint32_t pack2_products(float low, float high) {
    return pack2<Type>(low, high);
}
#if !defined(__gfx950__)
DEVICE uint32_t rounded_to_upper_half(uint32_t bits) {
    return bits + (bits >> 16 & 1) + 0x7fffu;
}
template <> DEVICE uint32_t pack2_products<bf16>(float low, float high) {
    const uint32_t lower = rounded_to_upper_half(bits_of(low)), upper = rounded_to_upper_half(bits_of(high));
    return __builtin_amdgcn_perm(upper, lower, 0x07060302u);
}
#endif

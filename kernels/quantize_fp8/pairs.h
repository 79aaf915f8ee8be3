// Codes of e2m1 from numbers of bfloat16, two in a word (sm_90).
#pragma once

#include "prelude.h"

// A number of bfloat16 between two float32 numbers' upper halves and what is next to them: where a lower half is not 0, the lowest
// bit is set. To the nearest of fewer bits it rounds as the float32 number does, ties included.
DEVICE uint32_t sticky_pair(float low, float high) {
    const uint32_t upper = __byte_perm(bits_of(low), bits_of(high), 0x7632);
    const uint32_t lower = __byte_perm(bits_of(low), bits_of(high), 0x5410);
    uint32_t some;
    asm("min.u16x2 %0, %1, %2;" : "=r"(some) : "r"(lower), "r"(0x00010001u));
    return upper | some;
}

DEVICE uint32_t pair_times(uint32_t pair, uint32_t factors) {
    uint32_t product;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(product) : "r"(pair), "r"(factors), "r"(0x80008000u));
    return product;
}

// The codes of magnitudes in the lower bits of both halves, plus E2M1_BIAS. Beside 64 times the power of two at or below a number
// from 1 on, and beside 64 for less, the step of bfloat16 is e2m1's: one addition rounds. None is NaN; all saturate.
constexpr uint32_t E2M1_BIAS = 0x03fe03feu;
DEVICE uint32_t e2m1_magnitudes(uint32_t pair) {
    uint32_t size, least, beside;
    asm("abs.bf16x2 %0, %1;" : "=r"(size) : "r"(pair));
    asm("min.bf16x2 %0, %1, %2;" : "=r"(size) : "r"(size), "r"(0x40c040c0u));                  // 6
    asm("max.bf16x2 %0, %1, %2;" : "=r"(least) : "r"(size), "r"(0x3f803f80u));                 // 1
    const uint32_t power = least & 0x7f807f80u;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(beside) : "r"(power), "r"(0x42804280u), "r"(size));    // 64
    return beside - power + (power >> 6);
}

// Four codes with their signs, of numbers 0, 2, 1, 3, a byte each.
DEVICE uint32_t e2m1_four(uint32_t first, uint32_t second) {
    constexpr uint32_t BIAS = E2M1_BIAS + (E2M1_BIAS << 8);
    const uint32_t sizes = e2m1_magnitudes(first) + (e2m1_magnitudes(second) << 8) - BIAS;
    const uint32_t signs = (first >> 8 & 0x00800080u) | (second & 0x80008000u);
    return sizes | (signs >> 4 & 0x08080808u);
}

// Eight codes, the first in the lowest bits.
DEVICE uint32_t e2m1_eight(const uint32_t (&pair)[4]) {
    const uint32_t low = e2m1_four(pair[0], pair[1]), high = e2m1_four(pair[2], pair[3]);
    return __byte_perm(low, high, 0x5410) + (__byte_perm(low, high, 0x7632) << 4);
}

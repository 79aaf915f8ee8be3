// OCP's codes of 8 bits as gfx942's fnuz codes, a word of four at a time.
//
// The same byte is in fnuz half of OCP's number, subnormal numbers too, but for three: 0x80, OCP's minus zero, is fnuz' NaN;
// OCP's NaN, and e5m2's Inf, are finite numbers of fnuz. Here minus zero becomes zero, and what is not finite NaN.
#pragma once

#include "_lib/minifloat.h"

constexpr uint32_t SIZES = 0x7f7f7f7fu, SIGNS = 0x80808080u;  // of four codes
constexpr float AS_FNUZ_FACTOR = 4.0f;  // a product of OCP's numbers over that of fnuz'

// Which of four codes are not finite: SIGNS of the word.
template <class Format> DEVICE uint32_t not_finite(uint32_t codes) {
    static_assert(Format::OCP_E4M3 || Format::OCP_E5M2, "a type of OCP");
    return (codes & SIZES) + 0x01010101u * (0x7f - Format::LARGEST);
}

// Four codes of finite numbers as fnuz, where zero has no sign.
DEVICE uint32_t finite_as_fnuz(uint32_t codes) {
    uint32_t sizes = codes & SIZES;
    asm("" : "+v"(sizes));  // else the compiler takes `codes` out of both sides, and v_and_or_b32 no longer fits
    return (codes & sizes + SIZES) | sizes;
}

// Four fnuz codes, NaN in the place of those that SIGNS of `found` name.
DEVICE uint32_t with_nan(uint32_t codes, uint32_t found) {
    const uint32_t nan = found & SIGNS;
    return (codes & ~(nan - (nan >> 7))) | nan;
}

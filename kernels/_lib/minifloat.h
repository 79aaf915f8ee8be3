// Floating point types of 8 and 4 bits: conversions that round to nearest even, saturate (too large a number, and Inf,
// become the largest finite number of that sign) and keep NaN where the type has one; where it has none NaN becomes 0.
// minifloat.py says the same in float64, and makes the name of a format from portable/dtypes.py.
#pragma once

#include "prelude.h"

// A signed format: NAN_CODE is -1 where it has no NaN; the fnuz types have no negative zero.
template <int BITS_, int MANTISSA_, int BIAS_, int LARGEST_, int NAN_CODE_, bool FNUZ_> struct Minifloat {
    static constexpr int BITS = BITS_, MANTISSA = MANTISSA_, BIAS = BIAS_, LARGEST = LARGEST_, NAN_CODE = NAN_CODE_;
    static constexpr bool FNUZ = FNUZ_;
    static constexpr bool OCP_E4M3 = BITS == 8 && MANTISSA == 3 && !FNUZ;
    static constexpr bool OCP_E5M2 = BITS == 8 && MANTISSA == 2 && !FNUZ;
};

// 2^exponent, of a normal number.
DEVICE constexpr uint32_t power_bits(int exponent) { return static_cast<uint32_t>(exponent + 127) << 23; }

// The bits of `value` in the format, in the lowest bits of the word.
template <class Format> DEVICE uint32_t encode(float value) {
    constexpr int DROP = 23 - Format::MANTISSA;
    // Beside this number the step of float32 is that of the format's subnormal numbers: the addition rounds.
    constexpr uint32_t MAGIC = power_bits(1 - Format::BIAS - Format::MANTISSA + 23);
    constexpr uint32_t SMALLEST_NORMAL = power_bits(1 - Format::BIAS);
    const uint32_t all = bits_of(value);
    const uint32_t bits = all & 0x7fffffffu;
    uint32_t code;
    if (bits < SMALLEST_NORMAL) {
        code = bits_of(float_of(bits) + float_of(MAGIC)) - MAGIC;
    } else {
        code = (bits + ((1u << (DROP - 1)) - 1) + (bits >> DROP & 1)) >> DROP;
        code -= static_cast<uint32_t>(127 - Format::BIAS) << Format::MANTISSA;
    }
    code = code < Format::LARGEST ? code : Format::LARGEST;
    const uint32_t sign = all >> 31 << (Format::BITS - 1);
    if (!Format::FNUZ || code != 0) code |= sign;
    if (bits > 0x7f800000u) code = Format::NAN_CODE >= 0 ? Format::NAN_CODE : 0;
    return code;
}

// Four numbers of 8 bits in a word, the first in its lowest byte.
template <class Format> DEVICE uint32_t encode4(float a, float b, float c, float d) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    if constexpr (Format::OCP_E4M3 || Format::OCP_E5M2) {
        uint16_t low, high;
        if constexpr (Format::OCP_E4M3) {
            asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(b), "f"(a));
            asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(d), "f"(c));
        } else {
            asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(low) : "f"(b), "f"(a));
            asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(high) : "f"(d), "f"(c));
        }
        return static_cast<uint32_t>(low) | static_cast<uint32_t>(high) << 16;
    }
#endif
    return encode<Format>(a) | encode<Format>(b) << 8 | encode<Format>(c) << 16 | encode<Format>(d) << 24;
}

// The number of a code, which is in the lowest bits of the word.
template <class Format> DEVICE float decode(uint32_t code) {
    constexpr uint32_t SIGN = 1u << (Format::BITS - 1);
    const uint32_t size = code & (SIGN - 1);
    const uint32_t sign = (code & SIGN) << (32 - Format::BITS);
    uint32_t bits = (size << (23 - Format::MANTISSA)) + (static_cast<uint32_t>(127 - Format::BIAS) << 23);
    if (size < 1u << Format::MANTISSA) {    // a subnormal number
        constexpr float STEP = 1.0f / static_cast<float>(1 << (Format::MANTISSA + Format::BIAS - 1));
        bits = bits_of(static_cast<float>(size) * STEP);
    } else if (!Format::FNUZ && Format::BITS == 8 && size > Format::LARGEST) {
        const bool infinite = Format::MANTISSA == 2 && size == 0x7cu;
        bits = infinite ? 0x7f800000u : 0x7fc00000u;
    }
    if (Format::FNUZ && code == Format::NAN_CODE) return float_of(0x7fc00000u);
    return float_of(bits | sign);
}

template <class Type> constexpr bool IS_F16 = false;
template <> constexpr bool IS_F16<f16> = true;

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
// Two codes of an OCP format of 8 bits as two numbers of float16 in a word, which has them all.
template <class Format> DEVICE uint32_t decode2_halves(uint32_t pair) {
    uint32_t halves;
    if constexpr (Format::OCP_E4M3) {
        asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<uint16_t>(pair)));
    } else {
        asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(halves) : "h"(static_cast<uint16_t>(pair)));
    }
    return halves;
}
#endif

// The numbers of two codes of 8 bits, the first in the lowest byte of the word; nothing lies above the second.
template <class Format> DEVICE void decode2(float& first, float& second, uint32_t pair) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    if constexpr (Format::OCP_E4M3 || Format::OCP_E5M2) {    // both are numbers of float16, NaN and Inf too
        const uint32_t halves = decode2_halves<Format>(pair);
        first = to_float(f16{static_cast<uint16_t>(halves)});
        second = to_float(f16{static_cast<uint16_t>(halves >> 16)});
        return;
    }
#endif
    first = decode<Format>(pair & 0xffu);
    second = decode<Format>(pair >> 8);
}

// The same as two numbers of Type in a word, the first in its lower half: float16 and bfloat16 have every number of 8 bits.
template <class Type, class Format> DEVICE uint32_t decode_pair(uint32_t pair) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    if constexpr (IS_F16<Type> && (Format::OCP_E4M3 || Format::OCP_E5M2)) return decode2_halves<Format>(pair);
#endif
    const float first = decode<Format>(pair & 0xffu), second = decode<Format>(pair >> 8);
    if constexpr (IS_F16<Type>) return pack2<Type>(first, second);
    else return bits_of(first) >> 16 | (bits_of(second) & 0xffff0000u);
}

// Codes of 8 and 4 bits times the scale of their group as numbers of bfloat16, for mx_numbers.h.
//
// The numbers of a word of codes come out with those of even places first: a sum over k has no order, and both operands are
// decoded alike.
#pragma once

#include "_lib/minifloat.h"

// The place of code `i` among the numbers.
template <class Format> DEVICE constexpr int number_place(int i) {
    constexpr int IN_WORD = 32 / Format::BITS;
    return i / IN_WORD * IN_WORD + i % 2 * (IN_WORD / 2) + i % IN_WORD / 2;
}

// Two numbers of float32 that bfloat16 has.
DEVICE uint32_t exact_pair(float low, float high) {
    return __builtin_amdgcn_perm(bits_of(high), bits_of(low), 0x07060302);
}

// A scale's float32 number.
DEVICE float scale_number(uint32_t code) {
#if E8M0
    const uint32_t bits = code == 0 ? 0x00400000u : code << 23;  // 2^-127 is a subnormal number
    return float_of(code == 255 ? 0x7fc00000u : bits);
#else
    return decode<SCALE_FORMAT>(code);
#endif
}

// Of a group's codes: numbers() decodes some that lie together.
template <class Format, int BITS = Format::BITS> struct Decoder;

// The eight sizes of 4 bits times the scale, by their upper and lower bytes.
template <class Format> struct Decoder<Format, 4> {
    static_assert(Format::MANTISSA == 1 && Format::BIAS == 1, "e2m1");
    uint32_t upper[2], lower[2];

    DEVICE explicit Decoder(uint32_t code) {
        constexpr float SIZES[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
        const float scale = scale_number(code);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const float* const sizes = SIZES + i * 4;
            const uint32_t first = exact_pair(sizes[0] * scale, sizes[1] * scale);
            const uint32_t second = exact_pair(sizes[2] * scale, sizes[3] * scale);
            upper[i] = __builtin_amdgcn_perm(second, first, 0x07050301);
            lower[i] = __builtin_amdgcn_perm(second, first, 0x06040200);
        }
    }

    // Of eight codes.
    DEVICE words<16> numbers(uint32_t codes) const {
        words<16> all;
#pragma unroll
        for (int odd = 0; odd < 2; ++odd) {
            const uint32_t each = codes >> odd * 4, size = each & 0x07070707u;
            const uint32_t low = __builtin_amdgcn_perm(lower[1], lower[0], size);
            const uint32_t high = __builtin_amdgcn_perm(upper[1], upper[0], size) ^ (each & 0x08080808u) << 4;
            all.w[odd * 2] = __builtin_amdgcn_perm(high, low, 0x05010400);
            all.w[odd * 2 + 1] = __builtin_amdgcn_perm(high, low, 0x07030602);
        }
        return all;
    }
};

// 8 bits. gfx12 has instructions that decode them. Elsewhere: e5m2 is the upper byte of a float16; e4m3's fields, a place lower, are
// those of a number 2^8 times smaller, but for its NaN.
template <class Format> struct Decoder<Format, 8> {
    static constexpr bool SMALLER = Format::OCP_E4M3;
    uint32_t code;
    float scale;

    DEVICE explicit Decoder(uint32_t code) : code(code), scale(scale_number(code)) {}

    // Of sixteen codes.
    DEVICE words<32> numbers(words<16> codes) const {
        words<32> all;
#if defined(__GFX12__)
        typedef float Pair __attribute__((ext_vector_type(2)));
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            Pair low, high;
            if constexpr (Format::OCP_E4M3) {
                low = __builtin_amdgcn_cvt_pk_f32_fp8(codes.w[i], false);
                high = __builtin_amdgcn_cvt_pk_f32_fp8(codes.w[i], true);
            } else {
                low = __builtin_amdgcn_cvt_pk_f32_bf8(codes.w[i], false);
                high = __builtin_amdgcn_cvt_pk_f32_bf8(codes.w[i], true);
            }
            all.w[i * 2] = exact_pair(low[0] * scale, high[0] * scale);
            all.w[i * 2 + 1] = exact_pair(low[1] * scale, high[1] * scale);
        }
#else
        uint32_t nan = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) nan |= (codes.w[i] & 0x7f7f7f7fu) + 0x01010101u;
        if (SMALLER && ((nan & 0x80808080u) != 0 || code > 246)) {  // or 2^8 times the scale is too large
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const uint32_t each = codes.w[i / 2] >> i % 2 * 8;
                all.w[i] = exact_pair(decode<Format>(each & 0xffu) * scale, decode<Format>(each >> 16 & 0xffu) * scale);
            }
            return all;
        }
        const float factor = SMALLER ? scale * 256.0f : scale;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const uint32_t each = codes.w[i / 2] >> i % 2 * 8;
            const uint32_t halves = SMALLER ? (each & 0x007f007fu) << 7 | (each & 0x00800080u) << 8 : (each & 0x00ff00ffu) << 8;
            all.w[i] = exact_pair(half(halves) * factor, half(halves >> 16) * factor);
        }
#endif
        return all;
    }

    static DEVICE float half(uint32_t bits) {
        return static_cast<float>(__builtin_bit_cast(_Float16, static_cast<uint16_t>(bits)));
    }
};

// Codes of integers: the nearest integer, the even one of two, to a number times `inverse`, and the zero point.
//
// CODE_BITS = 8, int8. ASYMMETRIC = 1: with a zero point, from -128 to 127; else from -127 to 127. CODE_BITS = 4: from 0 to 15, two in a
// byte (quantize_int4/pairs.h), the zero point 8 or, ASYMMETRIC, the row's own.
#pragma once

#include "quantize_fp8/quantize.h"

#ifndef ASYMMETRIC
#define ASYMMETRIC 0
#endif
#ifndef CODE_BITS
#define CODE_BITS 8
#endif

#if CODE_BITS == 4
typedef uint8_t Code;
typedef uint8_t ZeroPoint;
constexpr int LEAST = 0, MOST = 15;
constexpr int MIDDLE = 8;                                         // the zero point of symmetric codes
#else
typedef int8_t Code;
typedef int ZeroPoint;
constexpr int LEAST = ASYMMETRIC ? -128 : -127, MOST = 127;
constexpr int MIDDLE = 0;
#endif
constexpr float HALF_SPAN = static_cast<float>(MOST - LEAST) * 0.5f;    // which a symmetric row's greatest magnitude becomes
// Beside this number the step of float32 is 1: the addition rounds.
constexpr float MAGIC = 12582912.0f;
constexpr uint32_t MAGIC_BITS = 0x4b400000u;

// The nearest integer to a number, which is brought to `least` to `most` first; 0, which lies between, of NaN.
DEVICE int nearest(float value, float least, float most) {
    value = value == value ? value : 0.0f;
    value = math_min_number(math_max_number(value, least), most);
    return static_cast<int>(bits_of(value + MAGIC) - MAGIC_BITS);
}

// A product, rounded before anything is added to it.
DEVICE float rounded_product(float a, float b) {
#if defined(__AMDGCN__)
    return a * b;    // clang contracts within an expression alone
#else
    return __fmul_rn(a, b);
#endif
}

#if CODE_BITS == 4
#include "quantize_int4/pairs.h"
#else
struct Codes {
    float inverse, least, most;
    int zero;
    bool plain;    // no product with `inverse` is NaN, whose lowest byte NVIDIA sets, or far outside the codes

    // `of_row`: the scale is that of the row itself, so no smaller than eps / 255.
    DEVICE Codes(float scale, int zero_point, bool of_row)
        : inverse(div_rn(1.0f, scale)),
          least(static_cast<float>(LEAST - zero_point)),
          most(static_cast<float>(MOST - zero_point)),
          zero(zero_point),
          plain(of_row && scale <= 0x1.fffffep+127f) {}
    // A number's code in the lowest byte.
    template <bool PLAIN> DEVICE uint32_t of(float value) const {
        float scaled = rounded_product(value, inverse);
        if (!PLAIN) return static_cast<uint32_t>(nearest(scaled, least, most) + zero);
        // Symmetric ones are within 127 and a rounding; with a zero point the ends may round apart.
        if (ASYMMETRIC) scaled = math_min_number(math_max_number(scaled, least), most);
        return bits_of(scaled + MAGIC) + static_cast<uint32_t>(zero);
    }
};

// The lowest bytes of four words in one, the first in its lowest byte.
DEVICE uint32_t pack_bytes(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
#if defined(__AMDGCN__)
    const uint32_t low = __builtin_amdgcn_perm(b, a, 0x0c0c0400u), high = __builtin_amdgcn_perm(d, c, 0x04000c0cu);
    return low | high;
#else
    return __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410);
#endif
}

// Where the codes of so many columns end.
template <class Index> DEVICE Index code_bytes(Index columns) { return columns; }

template <bool PLAIN, class Type, int COUNT, class Index>
DEVICE void store_codes_as(int8_t* address, Index column, Index length, const Vector<Type, COUNT>& held,
                           const Codes& codes) {
    if constexpr (COUNT == 1) {
        if (column < length) *address = static_cast<int8_t>(codes.of<PLAIN>(held[0]));
    } else if (TAIL ? column + COUNT <= length : column < length) {
        words<COUNT> packed;
#pragma unroll
        for (int i = 0; i < COUNT; i += 4) {
            packed.w[i / 4] = pack_bytes(codes.of<PLAIN>(held[i]), codes.of<PLAIN>(held[i + 1]),
                                         codes.of<PLAIN>(held[i + 2]), codes.of<PLAIN>(held[i + 3]));
        }
        store_global(address, packed);
    } else if constexpr (TAIL) {
        if (!reached(column, length)) return;
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            if (column + i < length) address[i] = static_cast<int8_t>(codes.of<PLAIN>(held[i]));
        }
    }
}

// The codes of a vector, those inside the row.
template <class Type, int COUNT, class Index>
DEVICE void store_codes(int8_t* address, Index column, Index length, const Vector<Type, COUNT>& held,
                        const Codes& codes) {
    if (codes.plain) {
        store_codes_as<true>(address, column, length, held, codes);
    } else {
        store_codes_as<false>(address, column, length, held, codes);
    }
}

#endif

// The greater of two integers with signs, or of the two lower and of the two upper halves.
DEVICE uint32_t max_signed(uint32_t a, uint32_t b) {
    if constexpr (NARROW) {
#if defined(__AMDGCN__)
        typedef int16_t halves __attribute__((ext_vector_type(2)));
        return __builtin_bit_cast(
            uint32_t, __builtin_elementwise_max(__builtin_bit_cast(halves, a), __builtin_bit_cast(halves, b)));
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
        uint32_t most;
        asm("max.s16x2 %0, %1, %2;" : "=r"(most) : "r"(a), "r"(b));
        return most;
#else
        return __vmaxs2(a, b);
#endif
    } else {
        return static_cast<int32_t>(a) > static_cast<int32_t>(b) ? a : b;
    }
}

// How far a row goes above and below 0, as bits: the integers with signs that x and -x are if their bits are read so order
// what is above 0, with NaN above Inf, and put all else below 0.
struct Extent {
    static constexpr uint32_t SIGN = NARROW ? 0x80008000u : 0x80000000u;
    uint32_t above = 0, below = 0;

    DEVICE void take_word(uint32_t word) {
        above = max_signed(above, word);
        below = max_signed(below, word ^ SIGN);
    }
    template <class Type> DEVICE void take(const Vector<Type, VEC>& held) {
        if constexpr (VEC == 1 && NARROW) {
            take_word(held.raw.bits);    // the upper half is a 0, whose negative is not above it
        } else if constexpr (VEC == 1) {
            take_word(bits_of(held.raw));
        } else {
#pragma unroll
            for (int i = 0; i < VEC / Vector<Type, VEC>::PER_WORD; ++i) take_word(held.word(i));
        }
    }
    template <class Type> DEVICE void take(const Vector<Type, VEC> (&held)[CHUNKS]) {
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) take(held[c]);
    }

    // The row's in all its lanes, with one barrier at most.
    DEVICE void merge(RowPartial<2>& partial) {
        Combined<Greatest, 2> merged;
        merged.value[0] = reduce_warp<Greatest, WARP_LANES>(float_of(above));
        merged.value[1] = reduce_warp<Greatest, WARP_LANES>(float_of(below));
        if constexpr (LANES > WARP) {
            if (warp_lane() == 0) {
                partial.of_warp[warp_index()][0] = merged.value[0];
                partial.of_warp[warp_index()][1] = merged.value[1];
            }
            merge_row(merged, partial);
        }
        above = bits_of(merged.value[0]);
        below = bits_of(merged.value[1]);
    }
};

// The scale and zero point of a row.
struct Row {
#if ASYMMETRIC
    typedef RowPartial<2> Partial;
    Extent extent;
    float scale;
    int zero;

    template <class Held> DEVICE void take(const Held& held) { extent.take(held); }
    DEVICE void finish(Partial& partial, float eps) {
        extent.merge(partial);
        const float above = amax_of<T>(extent.above), below = amax_of<T>(extent.below);
        // Halves, as the difference may be too large for float32.
        scale = scale_of(above * 0.5f + below * 0.5f, eps * 0.5f, HALF_SPAN);
        zero = nearest(below * div_rn(1.0f, scale), 0.0f, 2.0f * HALF_SPAN) + LEAST;
    }
#else
    typedef RowPartial<1> Partial;
    static constexpr int zero = MIDDLE;
    uint32_t most = 0;
    float scale;

    template <class Held> DEVICE void take(const Held& held) { most = Greatest::of(most, greatest(held)); }
    DEVICE void finish(Partial& partial, float eps) {
        scale = scale_of(amax_of<T>(greatest_of_row(most, partial)), eps, HALF_SPAN);
    }
#endif
    DEVICE Codes codes() const { return Codes(scale, zero, true); }
};

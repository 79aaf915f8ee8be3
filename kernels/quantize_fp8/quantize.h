// What the quantisers share: the greatest magnitude of a group as bits, its scale, rows of codes.
//
// FORMAT names the format of the codes (minifloat.h), two of which share a byte where they have 4 bits; POWER_OF_2 = 1 rounds
// scales up to powers of two. A group has GROUP_SIZE elements. With STRIDED = 1 the VEC elements of a lane, or their pairs of a
// byte, are GROUP_LANES apart, where vectors do not lie at multiples of their size.
#pragma once

#if defined(ALIGN)    // codes lie at any byte
#undef ALIGN
#define ALIGN 1
#endif
#include "_lib/minifloat.h"
#include "_lib/rows/elementwise.h"

#ifndef POWER_OF_2
#define POWER_OF_2 0
#endif
#ifndef STRIDED
#define STRIDED 0
#endif
#ifndef GROUP_SIZE
#define GROUP_SIZE 128
#endif

constexpr int GROUP = GROUP_SIZE;
constexpr int GROUP_LANES = GROUP / VEC;    // which have a group's elements
constexpr bool NARROW = sizeof(T) == 2;
template <class Type> constexpr bool IS_BFLOAT16 = false;
template <> constexpr bool IS_BFLOAT16<bf16> = true;
#if defined(MX_ROUNDING)
constexpr bool EXACT_PAIRS = IS_BFLOAT16<T>;    // products with a power of two, in T
#else
constexpr bool EXACT_PAIRS = false;
#endif

// The greater of the two lower and of the two upper halves.
DEVICE uint32_t max_halves(uint32_t a, uint32_t b) {
#if defined(__AMDGCN__)
    typedef uint16_t halves __attribute__((ext_vector_type(2)));
    return __builtin_bit_cast(
        uint32_t, __builtin_elementwise_max(__builtin_bit_cast(halves, a), __builtin_bit_cast(halves, b)));
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    uint32_t most;
    asm("max.u16x2 %0, %1, %2;" : "=r"(most) : "r"(a), "r"(b));
    return most;
#else
    return __vmaxu2(a, b);
#endif
}

// Magnitudes are compared as integers, which orders them as numbers and puts NaN above Inf: of 16 bits two in a word, of
// float32 one.
struct Greatest {
    static DEVICE uint32_t of(uint32_t a, uint32_t b) {
        if constexpr (NARROW) {
            return max_halves(a, b);
        } else {
            return a > b ? a : b;
        }
    }
    static DEVICE float apply(float a, float b) { return float_of(of(bits_of(a), bits_of(b))); }
};
constexpr uint32_t MAGNITUDE = NARROW ? 0x7fff7fffu : 0x7fffffffu;

template <class Type> DEVICE uint32_t greatest(uint32_t most, const Vector<Type, VEC>& held) {
    if constexpr (VEC == 1 && NARROW) {
        return Greatest::of(most, held.raw.bits & MAGNITUDE);
    } else if constexpr (VEC == 1) {
        return Greatest::of(most, bits_of(held.raw) & MAGNITUDE);
    } else {
#pragma unroll
        for (int i = 0; i < VEC / Vector<Type, VEC>::PER_WORD; ++i) {
            most = Greatest::of(most, held.word(i) & MAGNITUDE);
        }
        return most;
    }
}
DEVICE uint32_t greatest(const Vector<T, VEC> (&held)[CHUNKS]) {
    uint32_t most = 0;
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) most = greatest(most, held[c]);
    return most;
}

// The number that a word of magnitudes ends as.
template <class Type> DEVICE float amax_of(uint32_t most) {
    if constexpr (sizeof(Type) == 2) {
        const uint32_t lower = most & 0xffffu;
        const uint32_t upper = most >> 16;
        return to_float(Type{static_cast<uint16_t>(lower > upper ? lower : upper)});
    } else {
        return float_of(most);
    }
}

// The word of a row, in all its lanes, with one barrier at most.
DEVICE uint32_t greatest_of_row(uint32_t most, RowPartial<1>& partial) {
    Combined<Greatest, 1> merged;
    merged.value[0] = reduce_warp<Greatest, WARP_LANES>(float_of(most));
    if constexpr (LANES > WARP) {
        if (warp_lane() == 0) partial.of_warp[warp_index()][0] = merged.value[0];
        merge_row(merged, partial);
    }
    return bits_of(merged.value[0]);
}

// The dequantisation scale of a group. As integers, so that NaN stays; neither is negative.
DEVICE float scale_of(float amax, float eps, float largest) {
    const uint32_t most = bits_of(amax);
    const uint32_t least = bits_of(eps);
    const float scale = div_rn(float_of(most > least ? most : least), largest);
#if POWER_OF_2
    const uint32_t bits = bits_of(scale);
    if (bits <= 0x7f800000u) return float_of((bits + 0x007fffffu) & 0x7f800000u);
#endif
    return scale;
}

#ifdef FORMAT
typedef FORMAT Format;
constexpr int IN_BYTE = 8 / Format::BITS;    // codes
#else
constexpr int IN_BYTE = 1;
#endif

// The lane's part of the group whose first column is `first`; nothing lies beyond the row.
DEVICE int group_lane() { return row_lane() & (GROUP_LANES - 1); }
// Of the lane's i-th element with STRIDED.
template <class Index> DEVICE Index strided_column(Index first, int i) {
    if constexpr (IN_BYTE == 1) {
        return first + group_lane() + i * GROUP_LANES;
    } else {
        return first + (group_lane() + i / 2 * GROUP_LANES) * 2 + i % 2;
    }
}
template <bool STREAMING = true, class Index>
DEVICE Vector<T, VEC> load_part(const T* row, Index first, Index length) {
#if STRIDED
    Vector<T, VEC> held;
    held.clear();
#pragma unroll
    for (int i = 0; i < VEC; ++i) {
        const Index column = strided_column(first, i);
        if (column < length) held.insert(i, row[column]);
    }
    return held;
#else
    const Index column = first + group_lane() * VEC;
    return load_vector<STREAMING>(row + column, column, length);
#endif
}

#ifdef FORMAT
#if defined(__AMDGCN__) && ALIGN
typedef uint16_t TwoBytes __attribute__((aligned(1)));
#else
typedef uint16_t TwoBytes;
#endif

DEVICE float scale_of(float amax, float eps) { return scale_of(amax, eps, decode<Format>(Format::LARGEST)); }

// The scale of a group as it is stored, and what its elements are multiplied by; GIVEN is what it is made from.
struct Float32Scale {
    typedef float Stored;
    float eps;
    DEVICE explicit Float32Scale(float given) : eps(given) {}
    DEVICE float of(float amax) const { return scale_of(amax, eps); }
    DEVICE float inverse(float scale) const { return div_rn(1.0f, scale); }
};
DEVICE uint8_t code_of(float value) { return static_cast<uint8_t>(encode<Format>(value)); }

// The codes of a vector times `inverse`, those inside the row.
template <class Type, int COUNT, class Index>
DEVICE void store_codes(uint8_t* address, Index column, Index length, const Vector<Type, COUNT>& held, float inverse) {
    if constexpr (COUNT == 1) {
        if (column < length) *address = code_of(held[0] * inverse);
    } else if (TAIL ? column + COUNT <= length : column < length) {
        words<COUNT> codes;
#pragma unroll
        for (int i = 0; i < COUNT; i += 4) {
            codes.w[i / 4] = encode4<Format>(held[i] * inverse, held[i + 1] * inverse, held[i + 2] * inverse,
                                             held[i + 3] * inverse);
        }
        store_global(address, codes);
    } else if constexpr (TAIL) {
        if (!reached(column, length)) return;
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            if (column + i < length) address[i] = code_of(held[i] * inverse);
        }
    }
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define PAIRS_OF_BFLOAT16
#include "pairs.h"
#endif

// The codes of 4 bits of a vector times `inverse`, the first in the lowest bits.
template <class Type, int COUNT> DEVICE uint32_t code_pairs(const Vector<Type, COUNT>& held, float inverse) {
#if defined(PAIRS_OF_BFLOAT16)
    // By a finite number other than 0 a product is NaN where the element is, whose group then has no such number.
    if (COUNT == 8 && (bits_of(inverse) & 0x7fffffffu) - 1u < 0x7f7fffffu) {
        uint32_t pair[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if constexpr (EXACT_PAIRS) {
                pair[i] = pair_times(held.word(i), __byte_perm(bits_of(inverse), 0, 0x3232));
            } else {
                pair[i] = sticky_pair(held[2 * i] * inverse, held[2 * i + 1] * inverse);
            }
        }
        return e2m1_eight(pair);
    }
#endif
    uint32_t codes = 0;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) codes |= encode<Format>(held[i] * inverse) << (4 * i);
    return codes;
}

// The same of codes of 4 bits, two in a byte: the even column in the lower half, and with the last column of a row of an odd
// length the code of a 0.
template <class Type, int COUNT, class Index>
DEVICE void store_pairs(uint8_t* address, Index column, Index length, const Vector<Type, COUNT>& held, float inverse) {
    static_assert(COUNT == 4 || COUNT == 8, "two bytes or a word");
    const uint32_t codes = code_pairs(held, inverse);
    if (TAIL ? column + COUNT <= length : column < length) {
        if constexpr (COUNT == 8) {
            store_global(address, words<4>{{codes}});
        } else {
            *reinterpret_cast<TwoBytes*>(address) = static_cast<uint16_t>(codes);
        }
    } else if constexpr (TAIL) {
        if (!reached(column, length)) return;
#pragma unroll
        for (int i = 0; i < COUNT; i += 2) {
            if (column + i < length) address[i / 2] = static_cast<uint8_t>(codes >> (4 * i));
        }
    }
}

// The codes of a vector of the row, at their own address.
template <class Index>
DEVICE void store_lane(uint8_t* address, Index column, Index length, const Vector<T, VEC>& held, float inverse) {
    if constexpr (IN_BYTE == 2) {
        store_pairs(address, column, length, held, inverse);
    } else {
        store_codes(address, column, length, held, inverse);
    }
}

// The codes of the lane's part of a group.
template <class Index>
DEVICE void store_part(uint8_t* row, Index first, Index length, const Vector<T, VEC>& held, float inverse) {
#if STRIDED
#pragma unroll
    for (int i = 0; i < VEC; i += IN_BYTE) {
        const Index column = strided_column(first, i);
        if constexpr (IN_BYTE == 1) {
            if (column < length) row[column] = code_of(held[i] * inverse);
        } else if (column < length) {
            row[column / 2] = static_cast<uint8_t>(code_of(held[i] * inverse) | code_of(held[i + 1] * inverse) << 4);
        }
    }
#else
    const Index column = first + group_lane() * VEC;
    store_lane(row + column / IN_BYTE, column, length, held, inverse);
#endif
}
#endif

// What is quantised: rows of x, or with GATED what silu_and_mul makes of two rows of x. `row` and `lane_row` are the first of
// these, the latter a `lane_ptr`.
#if defined(GATED)
#include "silu_and_mul_quant/gated.h"
#else
constexpr int X_ROWS = 1;
template <bool STREAMING, class Index>
DEVICE void load_source(Vector<T, VEC> (&held)[CHUNKS], const T* lane_row, int64_t, Index base, Index length) {
    load_vectors<STREAMING>(held, lane_row, base, length);
}
template <class Index>
DEVICE void load_source_parts(Vector<T, VEC> (&held)[CHUNKS], const T* row, int64_t, Index begin, Index length) {
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) held[c] = load_part(row, begin + c * CHUNK, length);
}
#endif

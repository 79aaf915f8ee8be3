// Conversions between float16, bfloat16, float32 and float64 with the rounding of MODE, by integers only.
//
// `round` is the two-bit field of MODE: nearest even, towards +infinity, towards -infinity, towards zero.
// Subnormals are exact, a NaN is made quiet and keeps its leading payload bits (IEEE 754-2019; the field's
// coding is that of the AMD ISA guides). The lane versions use the processor's own conversion where it has one.
#pragma once

#include "wave.h"

#include <fenv.h>
#ifdef __F16C__
#include <immintrin.h>
#endif

enum { TO_NEAREST = 0, TO_PLUS_INFINITY = 1, TO_MINUS_INFINITY = 2, TO_ZERO = 3 };
#define ROUND_F32(mode) ((mode) & 3)
#define ROUND_F16_F64(mode) ((mode) >> 2 & 3)

// What is added below the kept bits before they are cut off: `unit` is the weight of the last kept bit.
static inline uint32_t round_addend(uint32_t unit, uint32_t odd, uint32_t negative, int round) {
    uint32_t away = unit - 1;
    return round == TO_NEAREST ? (unit >> 1) - 1 + odd
         : round == TO_PLUS_INFINITY ? (negative ? 0 : away)
         : round == TO_MINUS_INFINITY ? (negative ? away : 0)
         : 0;
}

// Whether a finite value beyond the largest one becomes infinite.
static inline bool round_overflows(uint32_t negative, int round) {
    return round == TO_NEAREST || (round == TO_PLUS_INFINITY && !negative) || (round == TO_MINUS_INFINITY && negative);
}

static inline uint32_t half_to_float_bits(uint32_t h) {
    uint32_t magnitude = (h & 0x7fff) << 13, sign = (h & 0x8000) << 16;
    uint32_t scaled = as_bits(as_float(magnitude) * 0x1p112f);  // exact, also for subnormals
    uint32_t special = (h & 0x7fff) > 0x7c00 ? 0x7fc00000 | magnitude : 0x7f800000;
    return sign | ((h & 0x7c00) == 0x7c00 ? special : scaled);
}

static inline float half_to_float(uint32_t h) { return as_float(half_to_float_bits(h)); }
static inline double half_to_double(uint32_t h) { return half_to_float(h); }

static inline uint32_t float_bits_to_half(uint32_t u, int round) {
    uint32_t negative = u >> 31, a = u & 0x7fffffff, e = a >> 23;
    uint32_t m = a ? (a & 0x7fffff) | 0x800000 : 0;
    uint32_t drop = e >= 113 ? 13 : e < 101 ? 25 : 126 - e;
    uint32_t base = e >= 113 ? (e - 113) << 10 : 0;
    uint32_t unit = 1u << drop;
    uint32_t h = base + ((m + round_addend(unit, m >> drop & 1, negative, round)) >> drop);
    uint32_t beyond = round_overflows(negative, round) ? 0x7c00 : 0x7bff;
    h = e >= 143 || h > 0x7bff ? beyond : h;
    h = a >= 0x7f800000 ? (a == 0x7f800000 ? 0x7c00 : 0x7e00 | (a >> 13 & 0x3ff)) : h;
    return h | negative << 15;
}

static inline uint32_t float_to_half(float f, int round) { return float_bits_to_half(as_bits(f), round); }

// float64 to float32 with every dropped bit gathered in the last one ("round to odd"): rounding the result once more
// to 22 bits or fewer gives what rounding the float64 at once would have given.
static inline uint32_t double_to_odd_float_bits(double d) {
    uint64_t u = as_bits64(d), a = u & 0x7fffffffffffffffull;
    uint32_t sign = (uint32_t)(u >> 32) & 0x80000000u;
    uint32_t sticky = (a & 0x1fffffff) != 0;
    uint64_t tiny = 0x3810000000000000ull, huge = 0x47f0000000000000ull;  // 2^-126, 2^128
    uint32_t kept = (uint32_t)((a - (896ull << 52)) >> 29) | sticky;
    uint32_t nan = 0x7fc00000 | (uint32_t)(a >> 29 & 0x7fffff);
    uint32_t r = a < tiny ? (a != 0)  // far below any float16; as a bfloat16 see double_to_bfloat
               : a < huge ? kept
               : a < 0x7ff0000000000000ull ? 0x7f7fffff
               : a == 0x7ff0000000000000ull ? 0x7f800000 : nan;
    return sign | r;
}

static inline uint32_t double_to_half(double d, int round) {
    return float_bits_to_half(double_to_odd_float_bits(d), round);
}

static inline uint32_t bfloat_to_float_bits(uint32_t b) {
    uint32_t u = (b & 0xffff) << 16;
    return (u & 0x7fffffff) > 0x7f800000 ? u | 0x400000 : u;
}

static inline float bfloat_to_float(uint32_t b) { return as_float(bfloat_to_float_bits(b)); }

static inline uint32_t float_bits_to_bfloat(uint32_t u, int round) {
    uint32_t negative = u >> 31, a = u & 0x7fffffff;
    uint32_t b = (a + round_addend(0x10000, a >> 16 & 1, negative, round)) >> 16;
    b = b > 0x7f7f ? (round_overflows(negative, round) ? 0x7f80 : 0x7f7f) : b;
    b = a >= 0x7f800000 ? (a == 0x7f800000 ? 0x7f80 : 0x7fc0 | (a >> 16 & 0x7f)) : b;
    return b | negative << 15;
}

static inline uint32_t float_to_bfloat(float f, int round) { return float_bits_to_bfloat(as_bits(f), round); }

// float64 to bfloat16, rounded once: below the smallest normal the dropped bits move with the exponent.
static inline uint32_t double_to_bfloat(double d, int round) {
    uint64_t a = as_bits64(d) & 0x7fffffffffffffffull;
    if (a == 0 || a >= 0x3810000000000000ull)
        return float_bits_to_bfloat(double_to_odd_float_bits(d), round);
    uint64_t m = (a & 0xfffffffffffffull) | 1ull << 52;
    int drop = 29 + 897 - (int)(a >> 52);  // float32's subnormal step is 2^-149
    uint32_t kept = drop > 54 ? 0 : (uint32_t)(m >> drop);
    bool lost = drop > 54 || (m & ((1ull << drop) - 1)) != 0;
    return float_bits_to_bfloat((uint32_t)(as_bits64(d) >> 32 & 0x80000000u) | kept | lost, round);
}

// The same for 64 lanes; h holds a half in the low bits of each word (the upper bits are ignored, written 0).
static inline void halves_to_floats(const uint32_t *h, float *f) {
#ifdef __F16C__
    for (int i = 0; i < LANES; i += 8) {
        __m256i w = _mm256_and_si256(_mm256_loadu_si256((const __m256i *)(h + i)), _mm256_set1_epi32(0xffff));
        __m128i p = _mm_packus_epi32(_mm256_castsi256_si128(w), _mm256_extractf128_si256(w, 1));
        _mm256_storeu_ps(f + i, _mm256_cvtph_ps(p));
    }
#else
    for (int i = 0; i < LANES; i++) f[i] = half_to_float(h[i]);
#endif
}

#ifdef __F16C__
#define CONVERT_LANES(how)                                                                                         \
    for (int i = 0; i < LANES; i += 8) {                                                                           \
        __m128i p = _mm256_cvtps_ph(_mm256_loadu_ps(f + i), (how) | _MM_FROUND_NO_EXC);                            \
        _mm_storeu_si128((__m128i *)(h + i), _mm_unpacklo_epi16(p, _mm_setzero_si128()));                          \
        _mm_storeu_si128((__m128i *)(h + i + 4), _mm_unpackhi_epi16(p, _mm_setzero_si128()));                      \
    }
#endif

static inline void floats_to_halves(const float *f, uint32_t *h, int round) {
#ifdef __F16C__
    if (round == TO_NEAREST) {
        CONVERT_LANES(_MM_FROUND_TO_NEAREST_INT)
        return;
    }
    if (round == TO_ZERO) {
        CONVERT_LANES(_MM_FROUND_TO_ZERO)
        return;
    }
#else
    if (round == TO_NEAREST) {
        for (int i = 0; i < LANES; i++) h[i] = float_to_half(f[i], TO_NEAREST);
        return;
    }
#endif
    for (int i = 0; i < LANES; i++) h[i] = float_to_half(f[i], round);
}

// The host rounds as `round` says until host_round(TO_NEAREST). What is computed in between must come from and go to
// memory that is pinned on both sides: nothing else keeps the compiler from moving arithmetic across.
static inline void host_round(int round) {
    static const int how[4] = {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
    fesetround(how[round & 3]);
}

static inline void pin(const void *memory) { __asm__ volatile("" : : "r"(memory) : "memory"); }

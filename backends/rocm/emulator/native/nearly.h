// Whether two values that lanes write to one place differ by no more than rounding can.
//
// A butterfly of lanes adds a pair as a + b here and b + a there. Where a compiler fuses one of the two with the product
// that it is (a * b + c * d as fma(a, b, c * d)), the lanes round differently and hold sums that differ in the last bits,
// or in more where they cancel or where copies of a state go on apart: the difference is measured against the largest
// value that is written with them.
// What a value is, is not known: it counts as near where its bits are numbers of usual size of some float type.
#pragma once

#include "access.h"
#include "half.h"

enum { NEAR_UNITS = 4096, NEAR_UNITS_HALF = 2, MOST_CANCELS = 256, MOST_CANCELS_HALF = 16 };

typedef struct Scale { float word, half; } Scale;  // the largest magnitudes, as float32 and as float16

static bool usual_32(uint32_t u) { return (u & 0x7fffffff) >= 0x17800000 && (u & 0x7fffffff) < 0x67800000; }  // 2^-80 to 2^80
static bool usual_16(uint32_t u) { return (u & 0x7fff) >= 0x0c00 && (u & 0x7fff) < 0x7800; }  // 2^-12 on as float16

static float size_of(float f) { return f < 0 ? -f : f; }

static void widen(float *most, float f) {
    if (size_of(f) > *most) *most = size_of(f);
}

static inline void widen_scale(Scale *s, const uint8_t *p, int bytes) {
    for (int b = 0; b + 4 <= bytes; b += 4)
        if (usual_32(word_at(p + b))) widen(&s->word, as_float(word_at(p + b)));
    for (int b = 0; b + 2 <= bytes; b += 2)
        if (usual_16(half_at(p + b))) widen(&s->half, half_to_float(half_at(p + b)));
}

// `unit` is the rounding of a value of size 1.
static bool near(float a, float b, float scale, float unit, float cancels) {
    const float own = size_of(a) > size_of(b) ? size_of(a) : size_of(b);
    if (scale < own) scale = own;
    if (scale > own * cancels) scale = own * cancels;
    return size_of(a - b) <= scale * unit;
}

static bool near_32(uint32_t a, uint32_t b, float scale) {
    return a == b || (usual_32(a) && usual_32(b) && near(as_float(a), as_float(b), scale, NEAR_UNITS * 0x1p-23f, MOST_CANCELS));
}

static bool near_16(uint32_t a, uint32_t b, float scale) {
    const uint32_t gap = a > b ? a - b : b - a;  // bfloat16 and float16 alike
    if (a == b) return true;
    if (!usual_16(a) || !usual_16(b) || (a ^ b) >> 15) return false;
    return gap <= NEAR_UNITS_HALF ||
           near(half_to_float(a), half_to_float(b), scale, NEAR_UNITS_HALF * 0x1p-10f, MOST_CANCELS_HALF);
}

static bool near_64(uint64_t a, uint64_t b) {
    const uint64_t gap = a > b ? a - b : b - a;
    return a == b || (usual_32((uint32_t)(a >> 32)) && usual_32((uint32_t)(b >> 32)) && gap <= NEAR_UNITS);
}

// Of `bytes` 2, 4, 8, 12 or 16. Smaller ones are not near: a number of 8 bits has too few bits to tell.
static inline bool nearly_equal(const uint8_t *mine, const uint8_t *theirs, int bytes, Scale scale) {
    if (bytes == 2) return near_16(half_at(mine), half_at(theirs), scale.half);
    if (bytes < 4) return false;
    bool words = true, halves = true, quads = bytes % 8 == 0;
    for (int b = 0; b < bytes; b += 4) words &= near_32(word_at(mine + b), word_at(theirs + b), scale.word);
    for (int b = 0; b < bytes; b += 4) {  // a pair of which both are numbers: an integer is not
        const uint32_t a = word_at(mine + b), o = word_at(theirs + b);
        halves &= a == o || (usual_16(a) && usual_16(a >> 16) && near_16(a & 0xffff, o & 0xffff, scale.half) &&
                             near_16(a >> 16, o >> 16, scale.half));
    }
    for (int b = 0; quads && b < bytes; b += 8) quads &= near_64(quad_at(mine + b), quad_at(theirs + b));
    return words || halves || quads;
}

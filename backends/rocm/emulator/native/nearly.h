// Whether two values that lanes write to one place differ by no more than rounding can.
//
// A butterfly of lanes adds a pair as a + b here and b + a there. Where a compiler fuses one of the two with the product
// that it is (a * b + c * d as fma(a, b, c * d)), the lanes round differently and hold sums that differ in the last bits.
// What a value is, is not known: it counts as near where its bits are numbers of usual size of some float type.
#pragma once

#include "access.h"

enum { NEAR_BITS_32 = 64, NEAR_BITS_16 = 2 };  // units in the last place: sums that cancel have more than one

static bool usual_32(uint32_t u) { return (u & 0x7fffffff) >= 0x17800000 && (u & 0x7fffffff) < 0x67800000; }  // 2^-80 to 2^80
static bool usual_16(uint32_t u) { return (u & 0x7fff) >= 0x1400 && (u & 0x7fff) < 0x7800; }  // 2^-10 on as float16

static bool near_32(uint32_t a, uint32_t b) {
    const uint32_t gap = a > b ? a - b : b - a;
    return a == b || (usual_32(a) && usual_32(b) && (a ^ b) >> 31 == 0 && gap <= NEAR_BITS_32);
}

static bool near_16(uint32_t a, uint32_t b) {
    const uint32_t gap = a > b ? a - b : b - a;
    return a == b || (usual_16(a) && usual_16(b) && (a ^ b) >> 15 == 0 && gap <= NEAR_BITS_16);
}

static bool near_64(uint64_t a, uint64_t b) {
    const uint64_t gap = a > b ? a - b : b - a;
    return a == b || (usual_32((uint32_t)(a >> 32)) && usual_32((uint32_t)(b >> 32)) && gap <= NEAR_BITS_32);
}

// Of `bytes` 2, 4, 8, 12 or 16. Smaller ones are not near: a number of 8 bits has too few bits to tell.
static inline bool nearly_equal(const uint8_t *mine, const uint8_t *theirs, int bytes) {
    if (bytes == 2) return near_16(half_at(mine), half_at(theirs));
    if (bytes < 4) return false;
    bool words = true, quads = bytes % 8 == 0;
    for (int b = 0; b < bytes; b += 4) {
        const uint32_t a = word_at(mine + b), o = word_at(theirs + b);
        words &= near_32(a, o) || (near_16(a & 0xffff, o & 0xffff) && near_16(a >> 16, o >> 16) && usual_16(a >> 16) && usual_16(a));
    }
    for (int b = 0; quads && b < bytes; b += 8) quads &= near_64(quad_at(mine + b), quad_at(theirs + b));
    return words || quads;
}

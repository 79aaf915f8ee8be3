// Sixteen bytes of each lane: in memory they lie together, in registers a word of every lane does. Sixteen lanes at a
// time are turned round in vectors, four lanes to a part.
#pragma once

#include "wave.h"

typedef uint32_t Quad __attribute__((vector_size(16), aligned(4)));
typedef uint32_t Sixteen __attribute__((vector_size(64), aligned(4)));

#define PARTS(f) f(0), f(4), f(8), f(12)
#define LOW_PAIR(c) c, 16 + c, c + 1, 17 + c
#define HIGH_PAIR(c) c + 2, 18 + c, c + 3, 19 + c
#define LOW_HALF(c) c, c + 1, 16 + c, 17 + c
#define HIGH_HALF(c) c + 2, c + 3, 18 + c, 19 + c
#define SHUFFLE(a, b, how) __builtin_shufflevector(a, b, PARTS(how))

// A 4 x 4 transpose in each part; it is its own inverse.
static inline void turn_round(Sixteen r[4]) {
    const Sixteen a = SHUFFLE(r[0], r[1], LOW_PAIR), b = SHUFFLE(r[2], r[3], LOW_PAIR);
    const Sixteen c = SHUFFLE(r[0], r[1], HIGH_PAIR), d = SHUFFLE(r[2], r[3], HIGH_PAIR);
    r[0] = SHUFFLE(a, b, LOW_HALF), r[1] = SHUFFLE(a, b, HIGH_HALF);
    r[2] = SHUFFLE(c, d, LOW_HALF), r[3] = SHUFFLE(c, d, HIGH_HALF);
}

static inline void load_quads(uint32_t *to, uint64_t base, const uint64_t *at, int lanes) {
    for (int first = 0; first < lanes; first += 16) {
        Sixteen r[4];
        for (int j = 0; j < 4; j++) {
            Quad q[4];
            for (int part = 0; part < 4; part++) memcpy(&q[part], (const void *)(uintptr_t)(base + at[first + 4 * part + j]), 16);
            memcpy(&r[j], q, sizeof q);
        }
        turn_round(r);
        for (int n = 0; n < 4; n++) memcpy(to + n * LANES + first, &r[n], sizeof r[n]);
    }
}

static inline void store_quads(const uint32_t *from, uint64_t base, const uint64_t *at, int lanes) {
    for (int first = 0; first < lanes; first += 16) {
        Sixteen r[4];
        for (int n = 0; n < 4; n++) memcpy(&r[n], from + n * LANES + first, sizeof r[n]);
        turn_round(r);
        for (int part = 0; part < 4; part++)
            for (int j = 0; j < 4; j++) memcpy((void *)(uintptr_t)(base + at[first + 4 * part + j]), (const uint32_t *)&r[j] + 4 * part, 16);
    }
}

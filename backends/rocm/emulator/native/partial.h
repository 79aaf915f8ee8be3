// Definedness of results whose sources are partly defined.
//
// Compilers combine halves: a mask clears what was never written, a shift moves it out, a permute picks around it.
// Only when a source is not wholly defined in an active lane is the question looked at, bit by bit: `a b c` are a
// lane's sources and `da db dc` have a 1 for each defined bit; the op says which bits of its result are defined,
// and a half of the result is defined when all its 16 bits are.
#pragma once

#include "wave.h"

static inline bool wholly_defined(const LaneOp *x) { return !(x->exec & ~(x->dlo & x->dhi)); }

static inline uint32_t known_bits(const LaneOp *x, int k, int i) {
    return (x->lo[k] >> i & 1 ? 0xffffu : 0) | (x->hi[k] >> i & 1 ? 0xffff0000u : 0);
}

// `known` may use a b c da db dc of the first `count` sources.
#define PARTIAL(count, known)                                                                                          \
    do {                                                                                                               \
        if (wholly_defined(x)) break;                                                                                  \
        mask64 low = 0, high = 0;                                                                                      \
        EACH {                                                                                                         \
            const uint32_t a = x->s[0]->u[i], da = known_bits(x, 0, i);                                                \
            const int second_ = (count) > 1 ? 1 : 0, third_ = (count) > 2 ? 2 : 0;                                     \
            const uint32_t b = x->s[second_]->u[i], db = known_bits(x, second_, i);                                    \
            const uint32_t c = x->s[third_]->u[i], dc = known_bits(x, third_, i);                                      \
            (void)a, (void)b, (void)c, (void)da, (void)db, (void)dc;                                                   \
            const uint32_t bits = (known);                                                                             \
            low |= (mask64)((bits & 0xffff) == 0xffff) << i;                                                           \
            high |= (mask64)(bits >> 16 == 0xffff) << i;                                                               \
        }                                                                                                              \
        x->dlo = low;                                                                                                  \
        x->dhi = high;                                                                                                 \
    } while (0)

static inline uint32_t known_and(uint32_t a, uint32_t da, uint32_t b, uint32_t db) {
    return (da & db) | (da & ~a) | (db & ~b);
}
static inline uint32_t known_or(uint32_t a, uint32_t da, uint32_t b, uint32_t db) {
    return (da & db) | (da & a) | (db & b);
}
static inline uint32_t known_shl(uint32_t da, uint32_t n, uint32_t dn) {
    return dn == ~0u ? da << (n & 31) | ((1u << (n & 31)) - 1) : 0;
}
static inline uint32_t known_shr(uint32_t da, uint32_t n, uint32_t dn) {
    return dn == ~0u ? da >> (n & 31) | ~(~0u >> (n & 31)) : 0;
}
static inline uint32_t known_ashr(uint32_t da, uint32_t n, uint32_t dn) {
    return dn == ~0u ? (uint32_t)((int32_t)da >> (n & 31)) : 0;
}
// A sum is defined below the lowest bit that is not defined in all its terms.
static inline uint32_t known_sum(uint32_t d) { return (~d & (d + 1)) - 1; }
// The defined bits of {high, low} >> n.
static inline uint32_t known_align(uint32_t high, uint32_t low, uint32_t n, uint32_t dn) {
    return dn == ~0u ? (uint32_t)(((uint64_t)high << 32 | low) >> n) : 0;
}
static inline uint32_t known_all(uint32_t d) { return d == ~0u ? ~0u : 0; }

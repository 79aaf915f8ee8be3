// Shared by the memory instructions: element kinds, addresses of lanes, checked access, moving data between registers
// and memory.
//
// A register block is words[word][lane]: VREG(w, r), or a temporary of the same shape. Its definedness is one
// pair of lane masks per word (lower and upper half), &w->lo[r] and &w->hi[r].
#pragma once

#include "quads.h"

#define INLINE static inline __attribute__((always_inline))

enum Kind {
    K_U8, K_I8, K_U16, K_I16,         // extended to 32 bits when loaded; the low bits when stored
    K_D16_U8, K_D16_I8, K_D16,        // into the lower half, the upper one keeps what it has
    K_HI_U8, K_HI_I8, K_HI,           // the same of the upper half; stores: the byte or half from bit 16
    K_B32, K_B64, K_B96, K_B128,
};
// Every kind, for a switch that makes it a constant.
#define ALL_KINDS(X)                                                                                             \
    X(K_U8) X(K_I8) X(K_U16) X(K_I16) X(K_D16_U8) X(K_D16_I8) X(K_D16) X(K_HI_U8) X(K_HI_I8) X(K_HI) X(K_B32)     \
    X(K_B64) X(K_B96) X(K_B128)

INLINE int kind_bytes(enum Kind k) {
    switch (k) {
    case K_U8: case K_I8: case K_D16_U8: case K_D16_I8: case K_HI_U8: case K_HI_I8: return 1;
    case K_U16: case K_I16: case K_D16: case K_HI: return 2;
    case K_B64: return 8;
    case K_B96: return 12;
    case K_B128: return 16;
    default: return 4;
    }
}
INLINE int kind_words(enum Kind k) { return k == K_B64 ? 2 : k == K_B96 ? 3 : k == K_B128 ? 4 : 1; }
INLINE bool kind_upper(enum Kind k) { return k == K_HI_U8 || k == K_HI_I8 || k == K_HI; }
INLINE bool kind_lower(enum Kind k) { return k == K_D16_U8 || k == K_D16_I8 || k == K_D16; }

INLINE int bad_registers(Wave *w, const Inst *in) {
    return fault(w, in, F_UNSUPPORTED, -1, ~0ull, "registers beyond the register file");
}
// A block of `count` vector registers lies inside the VGPRs or inside the AGPRs (a damaged code object's may not).
INLINE bool vectors_fit(const Operand *o, int count) {
    return o->kind == VGPR && o->index + count <= (o->index < AGPR ? AGPR : VECTORS);
}
INLINE bool scalars_fit(const Operand *o, int count) { return o->kind == SGPR && o->index + count <= SCALARS; }

// Moving data --------------------------------------------------------------------------------------

INLINE uint32_t byte_at(const void *p) { uint8_t v; memcpy(&v, p, 1); return v; }
INLINE uint32_t half_at(const void *p) { uint16_t v; memcpy(&v, p, 2); return v; }
INLINE uint32_t word_at(const void *p) { uint32_t v; memcpy(&v, p, 4); return v; }
INLINE uint64_t quad_at(const void *p) { uint64_t v; memcpy(&v, p, 8); return v; }

INLINE void load_element(enum Kind k, uint32_t *to, const uint8_t *p) {
    switch (k) {
    case K_U8: to[0] = byte_at(p); break;
    case K_I8: to[0] = (byte_at(p) ^ 0x80) - 0x80; break;
    case K_U16: to[0] = half_at(p); break;
    case K_I16: to[0] = (half_at(p) ^ 0x8000) - 0x8000; break;
    case K_D16_U8: to[0] = (to[0] & 0xffff0000u) | byte_at(p); break;
    case K_D16_I8: to[0] = (to[0] & 0xffff0000u) | (((byte_at(p) ^ 0x80) - 0x80) & 0xffff); break;
    case K_D16: to[0] = (to[0] & 0xffff0000u) | half_at(p); break;
    case K_HI_U8: to[0] = (to[0] & 0xffff) | byte_at(p) << 16; break;
    case K_HI_I8: to[0] = (to[0] & 0xffff) | ((byte_at(p) ^ 0x80) - 0x80) << 16; break;
    case K_HI: to[0] = (to[0] & 0xffff) | half_at(p) << 16; break;
    default:
        for (int n = 0; n < kind_words(k); n++) to[n * LANES] = word_at(p + 4 * n);
    }
}

INLINE void store_element(enum Kind k, const uint32_t *from, uint8_t *p) {
    switch (k) {
    case K_U8: case K_I8: case K_D16_U8: case K_D16_I8: *p = (uint8_t)from[0]; break;
    case K_HI_U8: case K_HI_I8: *p = (uint8_t)(from[0] >> 16); break;
    case K_U16: case K_I16: case K_D16: { uint16_t v = (uint16_t)from[0]; memcpy(p, &v, 2); break; }
    case K_HI: { uint16_t v = (uint16_t)(from[0] >> 16); memcpy(p, &v, 2); break; }
    default:
        for (int n = 0; n < kind_words(k); n++) memcpy(p + 4 * n, &from[n * LANES], 4);
    }
}

INLINE uint8_t *host_pointer(uint64_t address) { return (uint8_t *)(uintptr_t)address; }

// Load the lanes of `m` from the host addresses `base` + `at`.
INLINE void gather_from(enum Kind k, uint32_t *to, uint64_t base, const uint64_t *at, mask64 m) {
    const int lanes = m == ~0ull ? 64 : m == 0xffffffffull ? 32 : 0;
    if (lanes && k == K_B128) load_quads(to, base, at, lanes);
    else if (lanes == 64)
        EACH load_element(k, to + i, host_pointer(base + at[i]));
    else if (lanes == 32)
        for (int i = 0; i < 32; i++) load_element(k, to + i, host_pointer(base + at[i]));
    else
        EACH_ACTIVE(m, i) load_element(k, to + i, host_pointer(base + at[i]));
}
INLINE void scatter_to(enum Kind k, const uint32_t *from, uint64_t base, const uint64_t *at, mask64 m) {
    const int lanes = m == ~0ull ? 64 : m == 0xffffffffull ? 32 : 0;
    if (lanes && k == K_B128) store_quads(from, base, at, lanes);
    else if (lanes == 64)
        EACH store_element(k, from + i, host_pointer(base + at[i]));
    else if (lanes == 32)
        for (int i = 0; i < 32; i++) store_element(k, from + i, host_pointer(base + at[i]));
    else
        EACH_ACTIVE(m, i) store_element(k, from + i, host_pointer(base + at[i]));
}
INLINE void gather(enum Kind k, uint32_t *to, const uint64_t *at, mask64 m) { gather_from(k, to, 0, at, m); }
INLINE void scatter(enum Kind k, const uint32_t *from, const uint64_t *at, mask64 m) { scatter_to(k, from, 0, at, m); }

// Mark what a load of `k` wrote in the lanes of `m` as defined.
INLINE void define(enum Kind k, mask64 *lo, mask64 *hi, mask64 m) {
    for (int n = 0; n < kind_words(k); n++) {
        if (!kind_upper(k)) lo[n] |= m;
        if (!kind_lower(k)) hi[n] |= m;
    }
}
// The lanes whose halves that a store of `k` reads are all defined.
INLINE mask64 defined_for(enum Kind k, const mask64 *lo, const mask64 *hi) {
    if (kind_upper(k)) return hi[0];
    if (kind_bytes(k) <= 2) return lo[0];
    mask64 all = ~0ull;
    for (int n = 0; n < kind_words(k); n++) all &= lo[n] & hi[n];
    return all;
}

// Addresses ----------------------------------------------------------------------------------------

INLINE void address_range(const uint64_t *at, mask64 m, uint64_t *low, uint64_t *high) {
    const uint64_t first = at[__builtin_ctzll(m)];
    uint64_t least = first, most = first;
    if (m == ~0ull || m == 0xffffffffull) {
        const int lanes = m == ~0ull ? 64 : 32;
        for (int i = 0; i < lanes; i++) {
            least = at[i] < least ? at[i] : least;
            most = at[i] > most ? at[i] : most;
        }
    } else {
        EACH_ACTIVE(m, i) {
            least = at[i] < least ? at[i] : least;
            most = at[i] > most ? at[i] : most;
        }
    }
    *low = least;
    *high = most;
}

// Addresses of a FLAT or GLOBAL instruction: vaddr + imm without saddr, else saddr + the 32-bit unsigned vaddr + imm
// (LLVM AMDGPU usage guide, "flat" and "global" address spaces; AMD ISA guides, chapter on flat memory).
INLINE int global_addresses(Wave *w, const Inst *in, mask64 m, uint64_t *at) {
    const Operand *v = &in->src[0], *s = &in->src[1];
    uint64_t base = (uint64_t)(int64_t)in->imm;
    const bool uniform = s->kind == SGPR;
    mask64 known = ~0ull;
    if (uniform) {
        if (!scalars_fit(s, 2)) return bad_registers(w, in);
        if ((w->sdef[s->index] & w->sdef[s->index + 1]) != ~0u)
            return undefined(w, in, __builtin_ctzll(m), ~0ull, "an address");
        base += scalar64(w, s->index);
    }
    if (v->kind != VGPR) {
        EACH at[i] = base;
        return GO;
    }
    if (!vectors_fit(v, uniform ? 1 : 2)) return bad_registers(w, in);
    const uint32_t *low = VREG(w, v->index);
    known = w->lo[v->index] & w->hi[v->index];
    if (uniform) {
        EACH at[i] = base + low[i];
    } else {
        const uint32_t *high = low + LANES;
        known &= w->lo[v->index + 1] & w->hi[v->index + 1];
        EACH at[i] = base + (low[i] | (uint64_t)high[i] << 32);
    }
    if (m & ~known) return undefined(w, in, __builtin_ctzll(m & ~known), ~0ull, "an address");
    return GO;
}

// Check [at, at + bytes) of every lane of `m` and turn `at` into host addresses.
INLINE int global_reach(Wave *w, const Inst *in, mask64 m, uint64_t *at, uint32_t bytes, bool write) {
    uint64_t low, high;
    address_range(at, m, &low, &high);
    const Range *r = w->last;
    if (r && low >= r->base && r->size >= bytes && high - r->base <= r->size - bytes && (!write || r->writable))
        return GO;
    EACH_ACTIVE(m, i) {
        void *p = global_at(w, in, i, at[i], bytes, write);
        if (p == NULL) return STOP;
        at[i] = (uint64_t)(uintptr_t)p;
    }
    return GO;
}

INLINE bool is_shared(uint64_t a) { return a >> 32 == SHARED_APERTURE >> 32; }
INLINE bool is_private(uint64_t a) { return a >> 32 == PRIVATE_APERTURE >> 32; }

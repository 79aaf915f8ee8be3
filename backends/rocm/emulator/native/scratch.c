// Private memory of each lane: scratch_load_*, scratch_store_*.
//
// The hardware interleaves the lanes' dwords in memory; a kernel cannot see that through these instructions, so here
// each lane's bytes lie together. The address is vaddr + saddr + offset modulo 2^32, either of the two may be absent
// (AMD ISA guides, scratch addressing). Bytes carry definedness as LDS does.
#include "scratch.h"
#include "counters.h"
#include "lds_race.h"

static int scratch_bounds(Wave *w, const Inst *in, mask64 m, const uint64_t *at, int bytes, const char *verb) {
    const uint64_t size = w->scratch ? w->launch->scratch_bytes : 0;
    EACH_ACTIVE(m, i)
        if (at[i] > size || size - at[i] < (uint64_t)bytes)
            return fault(w, in, F_BOUNDS, i, at[i], "%s of %d bytes at offset %llu of the lane's scratch, which has %llu bytes",
                         verb, bytes, (unsigned long long)at[i], (unsigned long long)size);
    return GO;
}

static void halves_read(Wave *w, const Inst *in, enum Kind k, mask64 m, const uint64_t *at, mask64 *lo, mask64 *hi) {
    const int bytes = kind_bytes(k);
    const uint64_t each = w->launch->scratch_bytes;
    EACH_ACTIVE(m, i) {
        const mask64 bit = 1ull << i;
        const uint8_t *d = w->scratch_def + (uint64_t)i * each + at[i];
        bool whole = true, written = true;
        for (int b = 0; b < bytes; b++) whole &= d[b] == DEFINED, written &= d[b] != NEVER_WRITTEN;
        if (!written) note_origin(w, in, F_UNINITIALISED, i, PRIVATE_APERTURE + at[i]);
        if (bytes >= 4) {
            for (int n = 0; n < kind_words(k); n++) {
                lo[n] = (lo[n] & ~bit) | (d[4 * n] == DEFINED && d[4 * n + 1] == DEFINED ? bit : 0);
                hi[n] = (hi[n] & ~bit) | (d[4 * n + 2] == DEFINED && d[4 * n + 3] == DEFINED ? bit : 0);
            }
        } else {
            if (!kind_upper(k)) lo[0] = (lo[0] & ~bit) | (whole ? bit : 0);
            if (!kind_lower(k)) hi[0] = (hi[0] & ~bit) | (whole || k == K_U8 || k == K_U16 ? bit : 0);
        }
    }
}

INLINE int read_kind(Wave *w, const Inst *in, enum Kind k, mask64 m, const uint64_t *at, uint32_t *to, mask64 *lo, mask64 *hi) {
    const uint64_t each = w->launch->scratch_bytes;
    if (scratch_bounds(w, in, m, at, kind_bytes(k), "read")) return STOP;
    EACH_ACTIVE(m, i) load_element(k, to + i, w->scratch + (uint64_t)i * each + at[i]);
    halves_read(w, in, k, m, at, lo, hi);
    return GO;
}

INLINE int write_kind(Wave *w, const Inst *in, enum Kind k, mask64 m, const uint64_t *at, const uint32_t *from, const mask64 *lo,
                      const mask64 *hi) {
    const uint64_t each = w->launch->scratch_bytes;
    const int bytes = kind_bytes(k);
    if (scratch_bounds(w, in, m, at, bytes, "write")) return STOP;
    EACH_ACTIVE(m, i) {
        const uint64_t place = (uint64_t)i * each + at[i];
        uint8_t *d = w->scratch_def + place;
        store_element(k, from + i, w->scratch + place);
        if (bytes < 4) {
            memset(d, defined_as((kind_upper(k) ? hi[0] : lo[0]) >> i), (size_t)bytes);
        } else {
            for (int n = 0; n < kind_words(k); n++) {
                d[4 * n] = d[4 * n + 1] = defined_as(lo[n] >> i);
                d[4 * n + 2] = d[4 * n + 3] = defined_as(hi[n] >> i);
            }
        }
    }
    return GO;
}

int scratch_read(Wave *w, const Inst *in, enum Kind k, mask64 m, const uint64_t *at, uint32_t *to, mask64 *lo, mask64 *hi) {
    switch (k) {
#define CASE(kind) case kind: return read_kind(w, in, kind, m, at, to, lo, hi);
        ALL_KINDS(CASE)
#undef CASE
    }
    return STOP;
}
int scratch_write(Wave *w, const Inst *in, enum Kind k, mask64 m, const uint64_t *at, const uint32_t *from, const mask64 *lo,
                  const mask64 *hi) {
    switch (k) {
#define CASE(kind) case kind: return write_kind(w, in, kind, m, at, from, lo, hi);
        ALL_KINDS(CASE)
#undef CASE
    }
    return STOP;
}

static int scratch_addresses(Wave *w, const Inst *in, mask64 m, uint64_t *at) {
    const Operand *v = &in->src[0], *s = &in->src[1];
    uint32_t base = (uint32_t)in->imm;
    if (s->kind != NOTHING && s->kind != NONE) {
        uint64_t def;
        if (s->kind == SGPR && !scalars_fit(s, 1)) return bad_registers(w, in);
        base += (uint32_t)read_scalar(w, s, 32, &def);
        if ((uint32_t)def != ~0u) return undefined(w, in, __builtin_ctzll(m), ~0ull, "an address");
    }
    if (v->kind != VGPR) {
        EACH at[i] = base;
        return GO;
    }
    if (!vectors_fit(v, 1)) return bad_registers(w, in);
    const mask64 missing = m & ~(w->lo[v->index] & w->hi[v->index]);
    if (missing) return undefined(w, in, __builtin_ctzll(missing), ~0ull, "an address");
    const uint32_t *offset = VREG(w, v->index);
    EACH at[i] = base + offset[i];
    return GO;
}

static int load(Wave *w, const Inst *in, enum Kind k) {
    const mask64 m = exec_of(w);
    uint64_t at[LANES];
    if (!m) return GO;
    if (!vectors_fit(&in->dst[0], kind_words(k))) return bad_registers(w, in);
    if (scratch_addresses(w, in, m, at)) return STOP;
    if (w->launch->memory) count_scratch(w, in, m, (uint32_t)kind_bytes(k));
    const int reg = in->dst[0].index;
    return scratch_read(w, in, k, m, at, VREG(w, reg), &w->lo[reg], &w->hi[reg]);
}

static int store(Wave *w, const Inst *in, enum Kind k) {
    const mask64 m = exec_of(w);
    uint64_t at[LANES];
    if (!m) return GO;
    if (!vectors_fit(&in->src[2], kind_words(k))) return bad_registers(w, in);
    if (scratch_addresses(w, in, m, at)) return STOP;
    if (w->launch->memory) count_scratch(w, in, m, (uint32_t)kind_bytes(k));
    const int reg = in->src[2].index;
    return scratch_write(w, in, k, m, at, VREG(w, reg), &w->lo[reg], &w->hi[reg]);
}

#define LOADS(X)                                                                                                      \
    X(scratch_load_ubyte, K_U8) X(scratch_load_sbyte, K_I8) X(scratch_load_ushort, K_U16) X(scratch_load_sshort, K_I16) \
    X(scratch_load_ubyte_d16, K_D16_U8) X(scratch_load_ubyte_d16_hi, K_HI_U8) X(scratch_load_sbyte_d16, K_D16_I8)     \
    X(scratch_load_sbyte_d16_hi, K_HI_I8) X(scratch_load_short_d16, K_D16) X(scratch_load_short_d16_hi, K_HI)         \
    X(scratch_load_dword, K_B32) X(scratch_load_dwordx2, K_B64) X(scratch_load_dwordx3, K_B96)                        \
    X(scratch_load_dwordx4, K_B128)
#define STORES(X)                                                                                                     \
    X(scratch_store_byte, K_U8) X(scratch_store_byte_d16_hi, K_HI_U8) X(scratch_store_short, K_U16)                   \
    X(scratch_store_short_d16_hi, K_HI) X(scratch_store_dword, K_B32) X(scratch_store_dwordx2, K_B64)                 \
    X(scratch_store_dwordx3, K_B96) X(scratch_store_dwordx4, K_B128)
#define DEFINE_LOAD(name, kind) static int name(Wave *w, const Inst *in) { return load(w, in, kind); }
#define DEFINE_STORE(name, kind) static int name(Wave *w, const Inst *in) { return store(w, in, kind); }
LOADS(DEFINE_LOAD)
STORES(DEFINE_STORE)

#define LOAD_ROW(name, kind) STEP_OP(name, "r=rr", C_SCRATCH),
#define STORE_ROW(name, kind) STEP_OP(name, "=rrr", C_SCRATCH),
const OpInfo ops_scratch[] = {
    LOADS(LOAD_ROW)
    STORES(STORE_ROW)
    OPS_END,
};

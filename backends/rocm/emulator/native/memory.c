// Flat and global loads and stores, loads from global memory straight to LDS, and scalar loads.
//
// Unaligned accesses are legal: under HSA the hardware runs in unaligned access mode (LLVM AMDGPU usage guide,
// target feature unaligned-access-mode). What global memory holds is always defined; what a kernel stores there
// must be.
#include "counters.h"
#include "global_race.h"
#include "lds.h"
#include "lds_race.h"
#include "scratch.h"

// Flat addresses of LDS and scratch ----------------------------------------------------------------

typedef struct Apertures { mask64 global, shared, scratch; } Apertures;

static Apertures by_aperture(const uint64_t *at, mask64 m) {
    Apertures s = {0, 0, 0};
    EACH_ACTIVE(m, i) {
        const mask64 bit = 1ull << i;
        if (is_shared(at[i])) s.shared |= bit;
        else if (is_private(at[i])) s.scratch |= bit;
        else s.global |= bit;
    }
    return s;
}

// Offsets within an aperture: the lower 32 bits.
static void aperture_offsets(const uint64_t *at, uint64_t *to) { EACH to[i] = at[i] & 0xffffffffu; }

// Where workgroups' races are looked for, or a workgroup is run aside: apart, as the usual way is to be fast.
__attribute__((noinline, cold)) static int watched_load(Wave *w, const Inst *in, enum Kind k, mask64 m, const uint64_t *at) {
    const int reg = in->dst[0].index;
    const mask64 racing = races_load(w, in, m, at, (uint32_t)kind_bytes(k));
    gather(k, VREG(w, reg), at, m);
    define(k, &w->lo[reg], &w->hi[reg], m);
    taint(k, &w->lo[reg], &w->hi[reg], racing);
    return GO;
}

static int load_by_aperture(Wave *w, const Inst *in, enum Kind k, Apertures s, uint64_t *at) {
    const int reg = in->dst[0].index;
    uint64_t offset[LANES];
    aperture_offsets(at, offset);
    if (s.shared && lds_load(w, in, k, s.shared, offset, VREG(w, reg), &w->lo[reg], &w->hi[reg])) return STOP;
    if (s.scratch && scratch_read(w, in, k, s.scratch, offset, VREG(w, reg), &w->lo[reg], &w->hi[reg])) return STOP;
    if (!s.global) return GO;
    if (w->launch->memory) count_global(w, in, s.global, at, (uint32_t)kind_bytes(k));
    if (global_reach(w, in, s.global, at, (uint32_t)kind_bytes(k), false)) return STOP;
    if (w->launch->watched) return watched_load(w, in, k, s.global, at);
    gather(k, VREG(w, reg), at, s.global);
    define(k, &w->lo[reg], &w->hi[reg], s.global);
    return GO;
}

static int check_stored(Wave *w, const Inst *in, enum Kind k, mask64 m, const uint64_t *at, const mask64 *lo,
                        const mask64 *hi) {
    const mask64 missing = m & ~defined_for(k, lo, hi);
    if (!missing) return GO;
    const int lane = __builtin_ctzll(missing);
    return undefined(w, in, lane, at[lane], "the stored value");
}

static int store_by_aperture(Wave *w, const Inst *in, enum Kind k, Apertures s, uint64_t *at) {
    const int reg = in->src[2].index;
    uint64_t offset[LANES];
    aperture_offsets(at, offset);
    if (s.shared && lds_store(w, in, k, s.shared, offset, VREG(w, reg), &w->lo[reg], &w->hi[reg])) return STOP;
    if (s.scratch && scratch_write(w, in, k, s.scratch, offset, VREG(w, reg), &w->lo[reg], &w->hi[reg])) return STOP;
    if (!s.global) return GO;
    if (w->launch->memory) count_global(w, in, s.global, at, (uint32_t)kind_bytes(k));
    if (check_stored(w, in, k, s.global, at, &w->lo[reg], &w->hi[reg])) return STOP;
    if (global_reach(w, in, s.global, at, (uint32_t)kind_bytes(k), true)) return STOP;
    if (w->launch->watched) return watched_store(w, in, k, s.global, at, VREG(w, reg));
    scatter(k, VREG(w, reg), at, s.global);
    return GO;
}

// Loads and stores ---------------------------------------------------------------------------------

static int load_lds(Wave *w, const Inst *in, enum Kind k);

INLINE int load(Wave *w, const Inst *in, enum Kind k, bool flat) {
    const mask64 m = exec_of(w);
    uint64_t at[LANES];
    if (!m) return GO;
    if (in->flags & TO_LDS && !flat) return load_lds(w, in, k);  // gfx90a: a bit of the ordinary load
    if (!vectors_fit(&in->dst[0], kind_words(k))) return bad_registers(w, in);
    if (global_addresses(w, in, m, at)) return STOP;
    if (flat) {
        const Apertures s = by_aperture(at, m);
        if (s.shared | s.scratch) return load_by_aperture(w, in, k, s, at);
    }
    if (w->launch->memory) count_global(w, in, m, at, (uint32_t)kind_bytes(k));
    if (global_reach(w, in, m, at, (uint32_t)kind_bytes(k), false)) return STOP;
    if (__builtin_expect(w->launch->watched, 0)) return watched_load(w, in, k, m, at);
    const int reg = in->dst[0].index;
    gather(k, VREG(w, reg), at, m);
    define(k, &w->lo[reg], &w->hi[reg], m);
    return GO;
}

INLINE int store(Wave *w, const Inst *in, enum Kind k, bool flat) {
    const mask64 m = exec_of(w);
    uint64_t at[LANES];
    if (!m) return GO;
    if (!vectors_fit(&in->src[2], kind_words(k))) return bad_registers(w, in);
    if (global_addresses(w, in, m, at)) return STOP;
    if (flat) {
        const Apertures s = by_aperture(at, m);
        if (s.shared | s.scratch) return store_by_aperture(w, in, k, s, at);
    }
    const int reg = in->src[2].index;
    if (check_stored(w, in, k, m, at, &w->lo[reg], &w->hi[reg])) return STOP;
    if (w->launch->memory) count_global(w, in, m, at, (uint32_t)kind_bytes(k));
    if (global_reach(w, in, m, at, (uint32_t)kind_bytes(k), true)) return STOP;
    if (__builtin_expect(w->launch->watched, 0)) return watched_store(w, in, k, m, at, VREG(w, reg));
    scatter(k, VREG(w, reg), at, m);
    return GO;
}

#define LOADS(X, space)                                                                                               \
    X(space, load_ubyte, K_U8) X(space, load_sbyte, K_I8) X(space, load_ushort, K_U16) X(space, load_sshort, K_I16)   \
    X(space, load_ubyte_d16, K_D16_U8) X(space, load_ubyte_d16_hi, K_HI_U8) X(space, load_sbyte_d16, K_D16_I8)        \
    X(space, load_sbyte_d16_hi, K_HI_I8) X(space, load_short_d16, K_D16) X(space, load_short_d16_hi, K_HI)            \
    X(space, load_dword, K_B32) X(space, load_dwordx2, K_B64) X(space, load_dwordx3, K_B96)                           \
    X(space, load_dwordx4, K_B128)
#define STORES(X, space)                                                                                              \
    X(space, store_byte, K_U8) X(space, store_byte_d16_hi, K_HI_U8) X(space, store_short, K_U16)                      \
    X(space, store_short_d16_hi, K_HI) X(space, store_dword, K_B32) X(space, store_dwordx2, K_B64)                    \
    X(space, store_dwordx3, K_B96) X(space, store_dwordx4, K_B128)

enum { in_global = false, in_flat = true };
#define DEFINE_LOAD(space, name, kind) \
    static int space##_##name(Wave *w, const Inst *in) { return load(w, in, kind, in_##space); }
#define DEFINE_STORE(space, name, kind) \
    static int space##_##name(Wave *w, const Inst *in) { return store(w, in, kind, in_##space); }
LOADS(DEFINE_LOAD, global)
LOADS(DEFINE_LOAD, flat)
STORES(DEFINE_STORE, global)
STORES(DEFINE_STORE, flat)

// Global memory to LDS -----------------------------------------------------------------------------

#define LDS_LOADS(X)                                                                                                  \
    X(global_load_lds_ubyte, K_U8) X(global_load_lds_sbyte, K_I8) X(global_load_lds_ushort, K_U16)                    \
    X(global_load_lds_sshort, K_I16) X(global_load_lds_dword, K_B32) X(global_load_lds_dwordx3, K_B96)                \
    X(global_load_lds_dwordx4, K_B128)

// The memory address and the LDS address both get the instruction's offset; lane i's element lies at i * step
// (LLVM, llvm.amdgcn.global.load.lds; CDNA3 and CDNA4 ISA guides). Bytes and halves are extended to a dword.
static int load_lds(Wave *w, const Inst *in, enum Kind k) {
    const mask64 m = exec_of(w);
    uint64_t at[LANES], to[LANES];
    uint32_t data[4 * LANES];
    mask64 all[4] = {m, m, m, m};
    const int bytes = kind_bytes(k), step = bytes < 4 ? 4 : bytes;
    if (!m) return GO;
    if (global_addresses(w, in, m, at) || lds_dma_addresses(w, in, m, step, in->imm, to)) return STOP;
    if (w->launch->memory) count_global(w, in, m, at, (uint32_t)bytes);
    if (global_reach(w, in, m, at, (uint32_t)bytes, false)) return STOP;
    if (w->launch->watched) all[0] = all[1] = all[2] = all[3] = m & ~races_load(w, in, m, at, (uint32_t)bytes);
    switch (k) {
#define CASE(name, kind) case kind: gather(kind, data, at, m); break;
        LDS_LOADS(CASE)
#undef CASE
    default: return fault(w, in, F_UNSUPPORTED, -1, ~0ull, "a load of this width straight to LDS");
    }
    return lds_store(w, in, bytes < 4 ? K_B32 : k, m, to, data, all, all);
}
#define DEFINE_LDS(name, kind) static int name(Wave *w, const Inst *in) { return load_lds(w, in, kind); }
LDS_LOADS(DEFINE_LDS)

// Others -------------------------------------------------------------------------------------------

// Element j of lane L is element L % 8 of what lane 8 * (L / 8) + j read: an 8x8 transpose of 16-bit elements inside
// each group of 8 lanes (measured on gfx1201 and published so; the ISA guide gives no layout). All lanes must be active.
static int global_load_tr_b128(Wave *w, const Inst *in) {
    const mask64 m = exec_of(w);
    uint64_t at[LANES];
    uint32_t read[4 * LANES];
    if (!m) return GO;
    if (!vectors_fit(&in->dst[0], 4)) return bad_registers(w, in);
    if (w->lanes != 32) return fault(w, in, F_UNSUPPORTED, -1, ~0ull, "a transposing load in a wave of 64 lanes");
    if (m != w->full)
        return fault(w, in, F_INACTIVE, __builtin_ctzll(w->full & ~m), ~0ull, "a transposing load needs every lane active");
    if (global_addresses(w, in, m, at)) return STOP;
    if (w->launch->memory) count_global(w, in, m, at, 16);
    if (global_reach(w, in, m, at, 16, false)) return STOP;
    const mask64 racing = w->launch->watched ? races_load(w, in, m, at, 16) : 0;
    gather(K_B128, read, at, m);
    const int reg = in->dst[0].index;
    uint32_t *to = VREG(w, reg);
    for (int lane = 0; lane < (int)w->lanes; lane++)
        for (int word = 0; word < 4; word++) {
            const int element = lane & 7, from = (lane & ~7) + 2 * word, shift = element % 2 * 16;
            const uint32_t *column = &read[element / 2 * LANES];
            to[word * LANES + lane] = (column[from] >> shift & 0xffff) | (column[from + 1] >> shift & 0xffff) << 16;
        }
    define(K_B128, &w->lo[reg], &w->hi[reg], m);
    if (racing) taint(K_B128, &w->lo[reg], &w->hi[reg], m);  // to whole lanes of all: the elements are spread over them
    return GO;
}

// The lane layout of the 8-bit form was not found in any public source, and it is not that of the 16-bit form.
static int global_load_tr_b64(Wave *w, const Inst *in) {
    if (!exec_of(w)) return GO;
    return fault(w, in, F_UNSUPPORTED, -1, ~0ull, "the lane layout of the 8-bit transposing load is not public");
}

// RDNA: saddr + imm + 4 * lane.
INLINE int addtid(Wave *w, const Inst *in, bool write) {
    const mask64 m = exec_of(w);
    uint64_t at[LANES];
    const Operand *data = write ? &in->src[2] : &in->dst[0];
    if (!m) return GO;
    if (!vectors_fit(data, 1)) return bad_registers(w, in);
    if (global_addresses(w, in, m, at)) return STOP;
    EACH at[i] += 4 * (uint64_t)i;
    const int reg = data->index;
    if (write && check_stored(w, in, K_B32, m, at, &w->lo[reg], &w->hi[reg])) return STOP;
    if (w->launch->memory) count_global(w, in, m, at, 4);
    if (global_reach(w, in, m, at, 4, write)) return STOP;
    if (w->launch->watched) return write ? watched_store(w, in, K_B32, m, at, VREG(w, reg)) : watched_load(w, in, K_B32, m, at);
    if (write) {
        scatter(K_B32, VREG(w, reg), at, m);
    } else {
        gather(K_B32, VREG(w, reg), at, m);
        define(K_B32, &w->lo[reg], &w->hi[reg], m);
    }
    return GO;
}
static int global_load_addtid_b32(Wave *w, const Inst *in) { return addtid(w, in, false); }
static int global_store_addtid_b32(Wave *w, const Inst *in) { return addtid(w, in, true); }

// Caches are not modelled, memory is coherent here; what they do to the order of workgroups is.
static int invalidate(Wave *w, const Inst *in) {
    (void)in;
    if (w->launch->races) races_invalidated(w);
    return GO;
}
static int invalidate_scope(Wave *w, const Inst *in) { return in->flags & SHARED ? invalidate(w, in) : GO; }
static int write_back(Wave *w, const Inst *in) {
    if (w->launch->races && in->flags & SHARED) races_written_back(w);
    return GO;
}

#define NO_OP(name, cls) {#name, "", step_nop, NULL, cls, 0}
#define LOAD_ROW(space, name, kind) STEP_OP(space##_##name, "r=rr", C_GLOBAL),
#define STORE_ROW(space, name, kind) STEP_OP(space##_##name, "=rrr", C_GLOBAL),
#define LDS_ROW(name, kind) STEP_OP(name, "=rr", C_GLOBAL),
const OpInfo ops_global[] = {
    LOADS(LOAD_ROW, global)
    LOADS(LOAD_ROW, flat)
    STORES(STORE_ROW, global)
    STORES(STORE_ROW, flat)
    LDS_LOADS(LDS_ROW)
    STEP_OP(global_load_tr_b128, "r=rr", C_GLOBAL),
    STEP_OP(global_load_tr_b64, "r=rr", C_GLOBAL),
    STEP_OP(global_load_addtid_b32, "r=rr", C_GLOBAL),
    STEP_OP(global_store_addtid_b32, "=rrr", C_GLOBAL),
    NO_OP(global_wb, C_GLOBAL),
    {"global_inv", "", invalidate_scope, NULL, C_GLOBAL, 0},
    {"global_wbinv", "", invalidate_scope, NULL, C_GLOBAL, 0},
    NO_OP(buffer_gl0_inv, C_GLOBAL),
    {"buffer_gl1_inv", "", invalidate, NULL, C_GLOBAL, 0},
    {"buffer_wbl2", "", write_back, NULL, C_GLOBAL, 0},
    NO_OP(buffer_invl2, C_GLOBAL),
    {"buffer_inv", "", invalidate_scope, NULL, C_GLOBAL, 0},
    {"buffer_wbinvl1", "", invalidate, NULL, C_GLOBAL, 0},
    {"buffer_wbinvl1_vol", "", invalidate, NULL, C_GLOBAL, 0},
    OPS_END,
};

// Scalar loads -------------------------------------------------------------------------------------

// The offset operand (a 32-bit unsigned register or nothing) plus the signed immediate.
static int scalar_offset(Wave *w, const Inst *in, uint64_t *offset) {
    const Operand *o = &in->src[1];
    *offset = (uint64_t)(int64_t)in->imm;
    if (o->kind == NOTHING || o->kind == NONE) return GO;
    uint64_t def;
    *offset += (uint32_t)read_scalar(w, o, 32, &def);
    if ((uint32_t)def != ~0u) return undefined(w, in, -1, ~0ull, "an address");
    return GO;
}

static int write_loaded(Wave *w, const Inst *in, int word, uint32_t value, bool races) {
    if (in->dst[0].kind != SGPR || in->dst[0].index == NULLREG) return GO;
    return write_scalar(w, in, in->dst[0].index + word, 32, value, races ? 0 : ~0ull);
}

static bool scalar_races(Wave *w, const Inst *in, uint64_t at, uint32_t size) {
    return __builtin_expect(w->launch->watched, 0) && races_load(w, in, 1, &at, size);
}

static bool result_fits(const Inst *in, int words) {
    const Operand *o = &in->dst[0];
    return o->kind != SGPR || o->index == NULLREG || scalars_fit(o, words ? words : 1);
}

INLINE int smem(Wave *w, const Inst *in, int words, enum Kind k) {
    const Operand *base = &in->src[0];
    uint64_t at;
    if (!scalars_fit(base, 2)) return bad_registers(w, in);
    if (!result_fits(in, words)) return bad_registers(w, in);
    if ((w->sdef[base->index] & w->sdef[base->index + 1]) != ~0u) return undefined(w, in, -1, ~0ull, "an address");
    if (scalar_offset(w, in, &at)) return STOP;
    at += scalar64(w, base->index);
    const int size = words ? words * 4 : kind_bytes(k);
    if (words) at &= ~3ull;  // the two low bits of a dword address are ignored (ISA guides, scalar memory reads)
    if (w->launch->memory) count_global(w, in, 1, &at, (uint32_t)size);
    const uint8_t *p = global_at(w, in, -1, at, (uint32_t)size, false);
    if (p == NULL) return STOP;
    const bool races = scalar_races(w, in, at, (uint32_t)size);
    if (!words) {
        uint32_t value;
        load_element(k, &value, p);
        return write_loaded(w, in, 0, value, races);
    }
    uint32_t data[16];
    memcpy(data, p, (size_t)size);
    for (int n = 0; n < words; n++)
        if (write_loaded(w, in, n, data[n], races)) return STOP;
    return GO;
}

// Scalar buffer loads: num_records bytes (stride 0) or elements of `stride` bytes; a dword beyond reads 0.
INLINE int smem_buffer(Wave *w, const Inst *in, int words, enum Kind k) {
    const Operand *base = &in->src[0];
    uint64_t at;
    if (!scalars_fit(base, 4)) return bad_registers(w, in);
    if (!result_fits(in, words)) return bad_registers(w, in);
    const uint32_t *v = &w->s[base->index], *def = &w->sdef[base->index];
    if ((def[0] & def[1] & def[2]) != ~0u) return undefined(w, in, -1, ~0ull, "a buffer descriptor");
    if (scalar_offset(w, in, &at)) return STOP;
    const uint64_t start = v[0] | (uint64_t)(v[1] & 0xffff) << 32, stride = v[1] >> 16 & 0x3fff;
    const uint64_t limit = stride ? stride * v[2] : v[2];
    const int size = words ? 4 : kind_bytes(k);
    if (words) at &= ~3ull;
    for (int n = 0; n < (words ? words : 1); n++) {
        uint32_t value = 0;
        bool races = false;
        const uint64_t offset = at + 4 * (uint64_t)n;
        if (offset < limit && limit - offset >= (uint64_t)size) {
            const uint8_t *p = global_at(w, in, -1, start + offset, (uint32_t)size, false);
            if (p == NULL) return STOP;
            races = scalar_races(w, in, start + offset, (uint32_t)size);
            load_element(k, &value, p);
        }
        if (write_loaded(w, in, n, value, races)) return STOP;
    }
    return GO;
}

#define SMEM_SIZES(X, name)                                                                                           \
    X(name, dword, 1, K_B32) X(name, dwordx2, 2, K_B32) X(name, dwordx3, 3, K_B32) X(name, dwordx4, 4, K_B32)         \
    X(name, dwordx8, 8, K_B32) X(name, dwordx16, 16, K_B32) X(name, u8, 0, K_U8) X(name, i8, 0, K_I8)                 \
    X(name, u16, 0, K_U16) X(name, i16, 0, K_I16)
#define DEFINE_SMEM(name, size, words, kind) \
    static int s_load_##size(Wave *w, const Inst *in) { return smem(w, in, words, kind); } \
    static int s_buffer_load_##size(Wave *w, const Inst *in) { return smem_buffer(w, in, words, kind); }
SMEM_SIZES(DEFINE_SMEM, )

// The emulator has no clock: both counters give the instructions this wave has executed, so that runs repeat.
static int s_memtime(Wave *w, const Inst *in) {
    if (in->dst[0].kind != SGPR) return GO;
    if (!scalars_fit(&in->dst[0], 2)) return bad_registers(w, in);
    return write_scalar(w, in, in->dst[0].index, 64, w->executed, ~0ull);
}
static int s_memrealtime(Wave *w, const Inst *in) { return s_memtime(w, in); }
// Of the messages that answer only the time does: RTN_GET_REALTIME.
static int s_sendmsg_rtn_b64(Wave *w, const Inst *in) {
    if (in->imm == 131) return s_memtime(w, in);
    return fault(w, in, F_UNSUPPORTED, -1, ~0ull, "s_sendmsg_rtn of message %d", in->imm);
}

#define SMEM_ROW(name, size, words, kind) STEP_OP(s_load_##size, "r=rr", C_SMEM), STEP_OP(s_buffer_load_##size, "r=rr", C_SMEM),
const OpInfo ops_smem[] = {
    SMEM_SIZES(SMEM_ROW, )
    STEP_OP(s_memtime, "r=", C_SMEM),
    STEP_OP(s_memrealtime, "r=", C_SMEM),
    STEP_OP(s_sendmsg_rtn_b64, "r=", C_SMEM),
    NO_OP(s_dcache_inv, C_SMEM),
    NO_OP(s_dcache_inv_vol, C_SMEM),
    NO_OP(s_dcache_wb, C_SMEM),
    NO_OP(s_dcache_wb_vol, C_SMEM),
    NO_OP(s_gl1_inv, C_SMEM),
    NO_OP(s_prefetch_inst, C_SMEM),
    NO_OP(s_prefetch_inst_pc_rel, C_SMEM),
    NO_OP(s_prefetch_data, C_SMEM),
    NO_OP(s_prefetch_data_pc_rel, C_SMEM),
    NO_OP(s_buffer_prefetch_data, C_SMEM),
    OPS_END,
};

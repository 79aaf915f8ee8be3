// Atomics on global memory (global, flat, buffer) and on LDS.
//
// Lanes act one after the other in lane order; the hardware's order is not defined, so a kernel whose result depends on
// it (a float sum) is right within that freedom only. Addresses must be aligned to the operand.
// Global memory is shared by the threads that run the workgroups: every change is a compare-and-swap of the host.
#include "buffer.h"
#include "flight.h"
#include "global_race.h"
#include "half.h"
#include "counters.h"
#include "lds.h"
#include "lds_race.h"

enum Change {
    A_ADD, A_SUB, A_RSUB, A_INC, A_DEC, A_SMIN, A_UMIN, A_SMAX, A_UMAX, A_AND, A_OR, A_XOR, A_SWAP, A_CMPSWAP, A_CMPSWAP_F,
    A_ADD_F, A_MIN_F, A_MAX_F, A_PK_ADD_F16, A_PK_ADD_BF16, A_SUB_CLAMP, A_COND_SUB, A_MSKOR, A_WRAP,
};
INLINE bool takes_two(enum Change c) { return c == A_CMPSWAP || c == A_CMPSWAP_F || c == A_MSKOR || c == A_WRAP; }

INLINE uint32_t flush(uint32_t u, bool on) { return on && !(u & 0x7f800000u) ? u & 0x80000000u : u; }

// IEEE 754-2008 minNum/maxNum: a NaN loses to a number. gfx12 orders -0 before +0 (RDNA4 ISA guide); before that equal
// values leave memory as it is.
INLINE uint64_t float_extreme(bool wide, bool most, uint64_t old, uint64_t data, bool signed_zero) {
    const double a = wide ? as_double(old) : (double)as_float((uint32_t)old);
    const double b = wide ? as_double(data) : (double)as_float((uint32_t)data);
    if (b != b) return a != a ? data | (wide ? 1ull << 51 : 1ull << 22) : old;
    if (a != a) return data;
    if (a == 0 && b == 0 && signed_zero) return (data >> (wide ? 63 : 31) & 1) != (uint64_t)most ? data : old;
    return (most ? b > a : b < a) ? data : old;
}

INLINE uint32_t packed_add(uint32_t old, uint32_t data, bool bfloat) {
    uint32_t out = 0;
    for (int shift = 0; shift < 32; shift += 16) {
        const uint32_t a = old >> shift & 0xffff, b = data >> shift & 0xffff;
        // The float32 sum of two float16 or bfloat16 rounds to the narrow type as the exact sum would.
        const uint32_t sum = bfloat ? float_to_bfloat(bfloat_to_float(a) + bfloat_to_float(b), TO_NEAREST)
                                    : float_to_half(half_to_float(a) + half_to_float(b), TO_NEAREST);
        out |= (sum & 0xffff) << shift;
    }
    return out;
}

typedef struct Context { bool flush, signed_zero, aside; } Context;  // aside: nothing is changed

// The new value. `data` and `second` are zero-extended; so must the result be for 4 bytes (the caller cuts it).
INLINE uint64_t change(enum Change c, bool wide, uint64_t old, uint64_t data, uint64_t second, Context x) {
    const int64_t a = wide ? (int64_t)old : (int32_t)(uint32_t)old, b = wide ? (int64_t)data : (int32_t)(uint32_t)data;
    switch (c) {
    case A_ADD: return old + data;
    case A_SUB: return old - data;
    case A_RSUB: return data - old;
    case A_INC: return old >= data ? 0 : old + 1;
    case A_DEC: return old == 0 || old > data ? data : old - 1;
    case A_SMIN: return b < a ? data : old;
    case A_SMAX: return b >= a ? data : old;
    case A_UMIN: return data < old ? data : old;
    case A_UMAX: return data >= old ? data : old;
    case A_AND: return old & data;
    case A_OR: return old | data;
    case A_XOR: return old ^ data;
    case A_SWAP: return data;
    case A_CMPSWAP: return old == second ? data : old;
    case A_CMPSWAP_F:
        if (wide) return as_double(old) == as_double(second) ? data : old;
        return as_float((uint32_t)old) == as_float((uint32_t)second) ? data : old;
    case A_ADD_F: {
        if (wide) return as_bits64(as_double(old) + as_double(data));
        const float sum = as_float(flush((uint32_t)old, x.flush)) + as_float(flush((uint32_t)data, x.flush));
        return flush(as_bits(sum), x.flush);
    }
    case A_MIN_F: return float_extreme(wide, false, old, data, x.signed_zero);
    case A_MAX_F: return float_extreme(wide, true, old, data, x.signed_zero);
    case A_PK_ADD_F16: return packed_add((uint32_t)old, (uint32_t)data, false);
    case A_PK_ADD_BF16: return packed_add((uint32_t)old, (uint32_t)data, true);
    case A_SUB_CLAMP: return old < data ? 0 : old - data;
    case A_COND_SUB: return old >= data ? old - data : old;
    case A_MSKOR: return (old & ~data) | second;
    case A_WRAP: return old >= data ? old - data : old + second;
    }
    return old;
}

// Global memory ------------------------------------------------------------------------------------

INLINE uint64_t change_at(enum Change c, bool wide, uint8_t *p, uint64_t data, uint64_t second, Context x) {
    if (x.aside && wide) return __atomic_load_n((uint64_t *)(void *)p, __ATOMIC_ACQUIRE);
    if (x.aside) return __atomic_load_n((uint32_t *)(void *)p, __ATOMIC_ACQUIRE);
    if (wide) {
        uint64_t *q = (uint64_t *)(void *)p, old = __atomic_load_n(q, __ATOMIC_RELAXED);
        while (!__atomic_compare_exchange_n(q, &old, change(c, true, old, data, second, x), false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
        }
        return old;
    }
    uint32_t *q = (uint32_t *)(void *)p, old = __atomic_load_n(q, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(q, &old, (uint32_t)change(c, false, old, data, second, x), false, __ATOMIC_ACQ_REL,
                                        __ATOMIC_RELAXED)) {
    }
    return old;
}

INLINE uint64_t value_of(const Wave *w, int reg, bool wide, int i) {
    return VREG(w, reg)[i] | (wide ? (uint64_t)VREG(w, reg + 1)[i] << 32 : 0);
}

static int aligned(Wave *w, const Inst *in, mask64 m, const uint64_t *at, uint64_t bytes) {
    uint64_t odd = 0;
    EACH_ACTIVE(m, i) odd |= at[i];
    if (!(odd & (bytes - 1))) return GO;
    EACH_ACTIVE(m, i)
        if (at[i] & (bytes - 1))
            return fault(w, in, F_MISALIGNED, i, at[i], "an atomic of %u bytes at an address that is not a multiple of %u",
                         (unsigned)bytes, (unsigned)bytes);
    return GO;
}

// LLVM, feature memory-atomic-fadd-f32-denormal-support: the memory side adds float32 with subnormals on every one of
// these architectures but gfx90a, which flushes them whatever MODE says.
INLINE Context global_context(const Wave *w) {
    const uint32_t arch = w->launch->arch;
    return (Context){arch == GFX90A, arch == GFX1201, w->launch->aside};
}
// LDS follows MODE.
INLINE Context lds_context(const Wave *w) {
    return (Context){(w->mode >> 4 & 3) != 3, w->launch->arch == GFX1201, false};
}

// LDS ----------------------------------------------------------------------------------------------

// One lane on LDS: definedness goes with the value, half by half; a swap brings its own, anything else needs both.
INLINE int change_lds(Wave *w, const Inst *in, enum Change c, bool wide, int i, uint64_t at, uint64_t data, uint64_t second,
                      const bool *known, int out, Context x) {
    const int bytes = wide ? 8 : 4;
    Group *g = w->group;
    if (at & (uint64_t)(bytes - 1))
        return fault(w, in, F_MISALIGNED, i, at, "an atomic of %d bytes at an LDS address that is not a multiple of %d", bytes, bytes);
    if (lds_atomic_check(w, in, i, at, bytes)) return STOP;
    uint8_t *p = g->lds + at, *def = g->lds_def + at;
    const uint64_t old = wide ? quad_at(p) : word_at(p), new = change(c, wide, old, data, second, x);
    uint8_t before[8];
    bool whole = true, all_known = true;
    for (int b = 0; b < bytes; b++) whole &= (before[b] = def[b]) == DEFINED;
    for (int n = 0; n < bytes / 2; n++) all_known &= known[n];
    if (takes_two(c)) all_known &= known[4];
    if (!all_known && (c == A_CMPSWAP || c == A_CMPSWAP_F) && w->origin.kind == F_RACE) {
        all_known = true;
        compared(w);
    }
    memcpy(p, &new, (size_t)bytes);
    if (c == A_SWAP)
        for (int b = 0; b < bytes; b++) def[b] = defined_as(known[b / 2]);
    else if (!whole || !all_known)
        memset(def, all_known ? NEVER_WRITTEN : WRITTEN_UNDEFINED, (size_t)bytes);
    if (!all_known) g->stored_origin = w->origin;
    if (out < 0) return GO;
    if (!whole) note_origin(w, in, F_UNINITIALISED, i, at);
    for (int n = 0; n < bytes / 4; n++) {
        const mask64 bit = 1ull << i;
        VREG(w, out + n)[i] = (uint32_t)(old >> 32 * n);
        w->lo[out + n] = (w->lo[out + n] & ~bit) | (before[4 * n] == DEFINED && before[4 * n + 1] == DEFINED ? bit : 0);
        w->hi[out + n] = (w->hi[out + n] & ~bit) | (before[4 * n + 2] == DEFINED && before[4 * n + 3] == DEFINED ? bit : 0);
    }
    return GO;
}

// What is known of lane i's operands: the halves of the first, and in [4] all of the second.
INLINE void known_of(const Wave *w, int reg, int second, bool wide, int i, bool *known) {
    for (int n = 0; n < (wide ? 2 : 1); n++) {
        known[2 * n] = w->lo[reg + n] >> i & 1;
        known[2 * n + 1] = w->hi[reg + n] >> i & 1;
    }
    known[4] = true;
    if (second >= 0)
        for (int n = 0; n < (wide ? 2 : 1); n++) known[4] &= (w->lo[second + n] & w->hi[second + n]) >> i & 1;
}

// Steps --------------------------------------------------------------------------------------------

enum Space { GLOBAL, FLAT, BUFFER };

INLINE int memory_atomic(Wave *w, const Inst *in, enum Change c, bool wide, enum Space space) {
    mask64 m = exec_of(w);
    if (!m) return GO;
    const int words = wide ? 2 : 1, bytes = 4 * words;
    const Operand *data = &in->src[space == BUFFER ? 3 : 2];
    const bool two = takes_two(c), returns = in->results && in->dst[0].kind == VGPR;
    if (!vectors_fit(data, two ? 2 * words : words)) return bad_registers(w, in);
    if (returns && !vectors_fit(&in->dst[0], words)) return bad_registers(w, in);
    const int reg = data->index, second = two ? reg + words : -1, out = returns ? in->dst[0].index : -1;
    uint64_t at[LANES];
    const mask64 active = m;
    if (space == BUFFER) {
        BufferAccess b;
        if (buffer_access(w, in, m, bytes, true, &b)) return STOP;
        if (b.scratch) return fault(w, in, F_UNSUPPORTED, -1, ~0ull, "an atomic on scratch");
        m = b.whole;  // out of range: dropped, and 0 comes back
        memcpy(at, b.at, sizeof at);
    } else if (global_addresses(w, in, m, at)) {
        return STOP;
    }
    if (space == FLAT) {
        const mask64 before = m;
        EACH_ACTIVE(before, i) {
            if (is_private(at[i])) return fault(w, in, F_UNSUPPORTED, i, at[i], "an atomic on scratch");
            if (!is_shared(at[i])) continue;
            bool known[5];
            known_of(w, reg, second, wide, i, known);
            if (change_lds(w, in, c, wide, i, at[i] & 0xffffffffu, value_of(w, reg, wide, i),
                           second >= 0 ? value_of(w, second, wide, i) : 0, known, out, lds_context(w)))
                return STOP;
            m &= ~(1ull << i);
        }
        if (w->launch->memory && before != m) count_lds(w, in, before & ~m, at, (uint32_t)bytes, LDS_ATOMIC);
    }
    if (m) {
        mask64 known = ~0ull;
        for (int n = 0; n < (two ? 2 * words : words); n++) known &= w->lo[reg + n] & w->hi[reg + n];
        const bool compares = c == A_CMPSWAP || c == A_CMPSWAP_F;
        if (m & ~known && compares && w->origin.kind == F_GLOBAL_RACE) {
            // Where the value was another one nothing is stored, and where it was not it is no longer in doubt.
            for (int n = 0; n < words; n++) w->lo[second + n] |= m, w->hi[second + n] |= m;
            compared(w);
        } else if (m & ~known) {
            const int lane = __builtin_ctzll(m & ~known);
            return undefined(w, in, lane, at[lane], "the stored value");
        }
        if (aligned(w, in, m, at, (uint64_t)bytes)) return STOP;
        if (w->launch->memory) count_global(w, in, m, at, (uint32_t)bytes);
        if (global_reach(w, in, m, at, (uint32_t)bytes, true)) return STOP;
        if (w->launch->watched && races_release(w, in, m, at, (uint32_t)bytes)) return STOP;
        const Context x = global_context(w);
        EACH_ACTIVE(m, i) {
            const uint64_t old = change_at(c, wide, host_pointer(at[i]), value_of(w, reg, wide, i),
                                           second >= 0 ? value_of(w, second, wide, i) : 0, x);
            if (out >= 0)
                for (int n = 0; n < words; n++) VREG(w, out + n)[i] = (uint32_t)(old >> 32 * n);
        }
        if (w->launch->watched && out >= 0) races_acquire(w, m, at);
    }
    if (out >= 0) {
        mask64 defined = m;
        if (space == BUFFER) {
            EACH_ACTIVE(active & ~m, i)
                for (int n = 0; n < words; n++) VREG(w, out + n)[i] = 0;
            defined = active;
        }
        for (int n = 0; n < words; n++) {
            w->lo[out + n] |= defined;
            w->hi[out + n] |= defined;
        }
    }
    return GO;
}

// `swapped`: gfx9's ds_cmpst has the comparand first; gfx11's ds_cmpstore has the new value first.
INLINE int lds_atomic(Wave *w, const Inst *in, enum Change c, bool wide, bool returns, bool swapped) {
    const mask64 m = exec_of(w);
    if (!m) return GO;
    const int words = wide ? 2 : 1, bytes = 4 * words;
    const bool two = takes_two(c);
    if (!vectors_fit(&in->src[0], 1) || !vectors_fit(&in->src[1], words) || (two && !vectors_fit(&in->src[2], words)) ||
        (returns && !vectors_fit(&in->dst[0], words)))
        return bad_registers(w, in);
    const int address = in->src[0].index;
    const mask64 missing = m & ~(w->lo[address] & w->hi[address]);
    if (missing) return undefined(w, in, __builtin_ctzll(missing), ~0ull, "an address");
    uint64_t at[LANES];
    const uint32_t *v = VREG(w, address);
    EACH at[i] = v[i] + (uint64_t)(int64_t)in->imm;
    if (w->launch->memory) count_lds(w, in, m, at, (uint32_t)bytes, LDS_ATOMIC);
    const enum Kind k = wide ? K_B64 : K_B32;
    const int reg = in->src[two && swapped ? 2 : 1].index, second = two ? in->src[swapped ? 1 : 2].index : -1;
    const Context x = lds_context(w);
    if ((c == A_CMPSWAP || c == A_CMPSWAP_F) && w->origin.kind == F_RACE)
        for (int n = 0; n < words; n++) w->lo[second + n] |= m, w->hi[second + n] |= m;
    EACH_ACTIVE(m, i) {
        bool known[5];
        known_of(w, reg, second, wide, i, known);
        if (change_lds(w, in, c, wide, i, at[i], value_of(w, reg, wide, i), second >= 0 ? value_of(w, second, wide, i) : 0,
                       known, returns ? in->dst[0].index : -1, x))
            return STOP;
    }
    if (w->group->lates && lds_check_late(w, in, m, at, k, LDS_ATOMIC, NULL)) return STOP;
    if (w->group->waves > 1) lds_take_off(w, in, m, at, bytes, LDS_ATOMIC);
    return GO;
}

// Tables -------------------------------------------------------------------------------------------

#define NARROW false
#define WIDE true
#define MEMORY_ATOMICS(X, space)                                                                                     \
    X(space, swap, A_SWAP, NARROW) X(space, swap_x2, A_SWAP, WIDE) X(space, cmpswap, A_CMPSWAP, NARROW)               \
    X(space, cmpswap_x2, A_CMPSWAP, WIDE) X(space, add, A_ADD, NARROW) X(space, add_x2, A_ADD, WIDE)                  \
    X(space, sub, A_SUB, NARROW) X(space, sub_x2, A_SUB, WIDE) X(space, smin, A_SMIN, NARROW)                         \
    X(space, smin_x2, A_SMIN, WIDE) X(space, umin, A_UMIN, NARROW) X(space, umin_x2, A_UMIN, WIDE)                    \
    X(space, smax, A_SMAX, NARROW) X(space, smax_x2, A_SMAX, WIDE) X(space, umax, A_UMAX, NARROW)                     \
    X(space, umax_x2, A_UMAX, WIDE) X(space, and, A_AND, NARROW) X(space, and_x2, A_AND, WIDE)                        \
    X(space, or, A_OR, NARROW) X(space, or_x2, A_OR, WIDE) X(space, xor, A_XOR, NARROW) X(space, xor_x2, A_XOR, WIDE) \
    X(space, inc, A_INC, NARROW) X(space, inc_x2, A_INC, WIDE) X(space, dec, A_DEC, NARROW)                           \
    X(space, dec_x2, A_DEC, WIDE) X(space, add_f32, A_ADD_F, NARROW) X(space, add_f64, A_ADD_F, WIDE)                 \
    X(space, min_f32, A_MIN_F, NARROW) X(space, max_f32, A_MAX_F, NARROW) X(space, min_f64, A_MIN_F, WIDE)            \
    X(space, max_f64, A_MAX_F, WIDE) X(space, pk_add_f16, A_PK_ADD_F16, NARROW)                                       \
    X(space, pk_add_bf16, A_PK_ADD_BF16, NARROW) X(space, cmpswap_f32, A_CMPSWAP_F, NARROW)                           \
    X(space, csub, A_SUB_CLAMP, NARROW) X(space, sub_clamp_u32, A_SUB_CLAMP, NARROW)                              \
    X(space, cond_sub_u32, A_COND_SUB, NARROW)
enum { space_global = GLOBAL, space_flat = FLAT, space_buffer = BUFFER };
#define DEFINE_MEMORY(space, name, op, size)                                         \
    static int space##_atomic_##name(Wave *w, const Inst *in) {                      \
        return memory_atomic(w, in, op, size, (enum Space)space_##space);            \
    }
MEMORY_ATOMICS(DEFINE_MEMORY, global)
MEMORY_ATOMICS(DEFINE_MEMORY, flat)
MEMORY_ATOMICS(DEFINE_MEMORY, buffer)

#define LDS_ATOMICS(X)                                                                                                \
    X(add, u32, A_ADD, NARROW) X(add, u64, A_ADD, WIDE) X(sub, u32, A_SUB, NARROW) X(sub, u64, A_SUB, WIDE)           \
    X(rsub, u32, A_RSUB, NARROW) X(rsub, u64, A_RSUB, WIDE) X(inc, u32, A_INC, NARROW) X(inc, u64, A_INC, WIDE)       \
    X(dec, u32, A_DEC, NARROW) X(dec, u64, A_DEC, WIDE) X(min, i32, A_SMIN, NARROW) X(min, i64, A_SMIN, WIDE)         \
    X(max, i32, A_SMAX, NARROW) X(max, i64, A_SMAX, WIDE) X(min, u32, A_UMIN, NARROW) X(min, u64, A_UMIN, WIDE)       \
    X(max, u32, A_UMAX, NARROW) X(max, u64, A_UMAX, WIDE) X(and, b32, A_AND, NARROW) X(and, b64, A_AND, WIDE)         \
    X(or, b32, A_OR, NARROW) X(or, b64, A_OR, WIDE) X(xor, b32, A_XOR, NARROW) X(xor, b64, A_XOR, WIDE)               \
    X(add, f32, A_ADD_F, NARROW) X(add, f64, A_ADD_F, WIDE) X(min, f32, A_MIN_F, NARROW) X(min, f64, A_MIN_F, WIDE)   \
    X(max, f32, A_MAX_F, NARROW) X(max, f64, A_MAX_F, WIDE) X(pk_add, f16, A_PK_ADD_F16, NARROW)                      \
    X(pk_add, bf16, A_PK_ADD_BF16, NARROW) X(cond_sub, u32, A_COND_SUB, NARROW) X(sub_clamp, u32, A_SUB_CLAMP, NARROW)
#define LDS_PAIRS(X)                                                                                                  \
    X(mskor, b32, A_MSKOR, NARROW, false) X(mskor, b64, A_MSKOR, WIDE, false) X(cmpst, b32, A_CMPSWAP, NARROW, true)  \
    X(cmpst, b64, A_CMPSWAP, WIDE, true) X(cmpst, f32, A_CMPSWAP_F, NARROW, true)                                     \
    X(cmpst, f64, A_CMPSWAP_F, WIDE, true) X(cmpstore, b32, A_CMPSWAP, NARROW, false)                                 \
    X(cmpstore, b64, A_CMPSWAP, WIDE, false) X(cmpstore, f32, A_CMPSWAP_F, NARROW, false)                             \
    X(cmpstore, f64, A_CMPSWAP_F, WIDE, false)
#define DEFINE_LDS(name, type, op, size)                                                                              \
    static int ds_##name##_##type(Wave *w, const Inst *in) { return lds_atomic(w, in, op, size, false, false); }       \
    static int ds_##name##_rtn_##type(Wave *w, const Inst *in) { return lds_atomic(w, in, op, size, true, false); }
#define DEFINE_PAIR(name, type, op, size, swapped)                                                                    \
    static int ds_##name##_##type(Wave *w, const Inst *in) { return lds_atomic(w, in, op, size, false, swapped); }     \
    static int ds_##name##_rtn_##type(Wave *w, const Inst *in) { return lds_atomic(w, in, op, size, true, swapped); }
LDS_ATOMICS(DEFINE_LDS)
LDS_PAIRS(DEFINE_PAIR)
static int ds_wrxchg_rtn_b32(Wave *w, const Inst *in) { return lds_atomic(w, in, A_SWAP, NARROW, true, false); }
static int ds_wrxchg_rtn_b64(Wave *w, const Inst *in) { return lds_atomic(w, in, A_SWAP, WIDE, true, false); }
static int ds_wrap_rtn_b32(Wave *w, const Inst *in) { return lds_atomic(w, in, A_WRAP, NARROW, true, false); }

#define MEMORY_ROW(space, name, op, size) STEP_OP(space##_atomic_##name, "r=rrr", C_GLOBAL),
#define BUFFER_ROW(space, name, op, size) STEP_OP(space##_atomic_##name, "r=rrrr", C_GLOBAL),
#define LDS_ROW(name, type, op, size) STEP_OP(ds_##name##_##type, "=rr", C_LDS), STEP_OP(ds_##name##_rtn_##type, "r=rr", C_LDS),
#define PAIR_ROW(name, type, op, size, swapped) \
    STEP_OP(ds_##name##_##type, "=rrr", C_LDS), STEP_OP(ds_##name##_rtn_##type, "r=rrr", C_LDS),
const OpInfo ops_atomics[] = {
    MEMORY_ATOMICS(MEMORY_ROW, global)
    MEMORY_ATOMICS(MEMORY_ROW, flat)
    MEMORY_ATOMICS(BUFFER_ROW, buffer)
    LDS_ATOMICS(LDS_ROW)
    LDS_PAIRS(PAIR_ROW)
    STEP_OP(ds_wrxchg_rtn_b32, "r=rr", C_LDS),
    STEP_OP(ds_wrxchg_rtn_b64, "r=rr", C_LDS),
    STEP_OP(ds_wrap_rtn_b32, "r=rrr", C_LDS),
    OPS_END,
};

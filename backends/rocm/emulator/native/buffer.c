// Buffer (MUBUF) loads and stores through a descriptor of four scalar registers, also straight to LDS.
//
// A read out of the descriptor's range gives 0 and a write is dropped: that is the hardware's rule, and compilers use
// it for masked lanes. In range of the descriptor but outside every live tensor is still a fault.
//
// The descriptor (AMD ISA guides, "buffer resource descriptor"): base [47:0], stride [61:48], num_records [95:64];
// word 3: index_stride [22:21] (8 << n), add_tid_enable [23]; gfx9: swizzle_enable in bit 31 of word 1, element_size in
// word 3 [20:19] (2 << n); gfx11 and later: swizzle_enable in word 1 [31:30] (0 none, else 2 << n bytes), oob_select in
// word 3 [29:28].
//
// Range checks, each dword of a wider load or store on its own:
//   gfx9 (CDNA3 ISA guide, "range checking"; the stride counts only with an index, as Mesa's notes on gfx9 have it):
//     without stride or index: out if offset >= num_records - soffset; with both: out if index >= num_records.
//   gfx11 and later by oob_select (RDNA3 ISA guide; Mesa's summary of it):
//     0: index >= num_records or offset + size > stride   1: index >= num_records   2: num_records == 0
//     3: with stride and swizzle as 0, else offset + size > num_records - soffset
// Sums do not wrap at 32 bits (LLVM AMDGPU usage guide: offsets are unsigned and saturate).
#include "buffer.h"
#include "counters.h"
#include "global_race.h"
#include "lds.h"
#include "lds_race.h"
#include "scratch.h"

enum Rule { RAW, INDEX, INDEX_AND_OFFSET, NEVER, ALWAYS };

static bool in_range(const BufferAccess *b, uint64_t index, uint64_t offset, uint64_t size) {
    switch (b->rule) {
    case RAW: {
        const uint64_t whole = index * b->stride + offset + (b->payload ? size : 1);
        return whole <= b->limit;
    }
    case INDEX: return index < b->num_records;
    case INDEX_AND_OFFSET: return index < b->num_records && offset + size <= b->stride;
    case NEVER: return false;
    default: return true;
    }
}

static uint64_t place(const BufferAccess *b, uint64_t index, uint64_t offset) {
    if (!b->scattered) return b->start + index * b->stride + offset;
    const uint64_t e = b->element, s = b->index_stride;
    return b->start + (index / s * b->stride + offset / e * e) * s + index % s * e + offset % e;
}

bool buffer_dword(const BufferAccess *b, int i, int n, int size, uint64_t *at) {
    const uint64_t offset = b->offset[i] + 4 * (uint64_t)n;
    *at = place(b, b->index[i], offset);
    return in_range(b, b->index[i], offset, (uint64_t)size);
}

// gfx90a has no flat scratch for compiled code: spills go through a buffer descriptor with swizzle and add_tid, stride
// 0 and elements of 4 bytes, in which each lane's dwords lie a wave apart (LLVM AMDGPU usage guide, "private segment
// buffer"). Base and soffset are in bytes of the whole wave. The launch gives base 0 (and scratch wave offset 0).
static int private_access(Wave *w, const Inst *in, mask64 m, BufferAccess *b) {
    const uint64_t start = b->start & 0xffffffffffffull, step = w->lanes;
    if (start % (4 * step))
        return fault(w, in, F_UNSUPPORTED, __builtin_ctzll(m), ~0ull, "a scratch offset of %llu bytes is not a whole dword of every lane",
                     (unsigned long long)start);
    EACH b->at[i] = start / step + b->offset[i];
    b->scratch = true;
    b->whole = m;
    b->part = 0;
    return GO;
}

int buffer_access(Wave *w, const Inst *in, mask64 m, int bytes, bool together, BufferAccess *b) {
    const Operand *v = &in->src[0], *r = &in->src[1], *s = &in->src[2];
    const bool offen = in->flags & OFFEN, idxen = in->flags & IDXEN, gfx9 = IS_GFX9(w->launch->arch);
    if (!scalars_fit(r, 4)) return bad_registers(w, in);
    if ((offen || idxen) && !vectors_fit(v, offen + idxen)) return bad_registers(w, in);
    const uint32_t *word = &w->s[r->index], *def = &w->sdef[r->index];
    if ((def[0] & def[1] & def[2] & def[3]) != ~0u)
        return undefined(w, in, __builtin_ctzll(m), ~0ull, "a buffer descriptor");
    uint64_t soffset = 0, known = ~0ull;
    if (s->kind != NOTHING && s->kind != NONE) soffset = (uint32_t)read_scalar(w, s, 32, &known);
    if ((uint32_t)known != ~0u) return undefined(w, in, __builtin_ctzll(m), ~0ull, "an address");

    const bool addtid = word[3] >> 23 & 1;
    const uint32_t swizzle = gfx9 ? word[1] >> 31 : word[1] >> 30;
    b->stride = word[1] >> 16 & 0x3fff;
    if (gfx9 && addtid) b->stride |= (word[3] >> 15 & 15) << 14;
    b->num_records = word[2];
    b->limit = b->num_records > soffset ? b->num_records - soffset : 0;
    b->start = (word[0] | (uint64_t)(word[1] & 0xffff) << 32) + soffset;
    b->element = gfx9 ? 2u << (word[3] >> 19 & 3) : 2u << swizzle;
    b->index_stride = 8u << (word[3] >> 21 & 3);
    // gfx9 scatters only what has an index: with swizzle and stride but without an index, HipKittens' kernels (gfx942,
    // gfx950; tested by their authors on both) address plain bytes. AMD's own simulator checks ranges alike.
    b->scattered = swizzle && b->stride && (!gfx9 || idxen || addtid);
    b->scratch = false;
    b->payload = !gfx9;
    if (gfx9) {
        b->rule = b->stride && (idxen || addtid) ? INDEX : RAW;
    } else {
        const uint32_t select = word[3] >> 28 & 3;
        b->rule = select == 0 ? INDEX_AND_OFFSET : select == 1 ? INDEX : select == 2 ? (b->num_records ? ALWAYS : NEVER)
                : b->scattered ? INDEX_AND_OFFSET : RAW;
    }

    int next = v->index;
    mask64 fine = ~0ull;
    if (idxen) {
        const uint32_t *x = VREG(w, next);
        EACH b->index[i] = x[i];
        fine &= w->lo[next] & w->hi[next];
        next++;
    } else {
        memset(b->index, 0, sizeof b->index);
    }
    const uint64_t imm = (uint64_t)(int64_t)in->imm;
    if (offen) {
        const uint32_t *x = VREG(w, next);
        EACH b->offset[i] = x[i] + imm;
        fine &= w->lo[next] & w->hi[next];
    } else {
        EACH b->offset[i] = imm;
    }
    if (m & ~fine) return undefined(w, in, __builtin_ctzll(m & ~fine), ~0ull, "an address");
    if (gfx9 && swizzle && addtid && !b->stride) return private_access(w, in, m, b);
    if (addtid) EACH b->index[i] += (uint64_t)i;

    const int size = bytes < 4 || together ? bytes : 4, dwords = together || bytes < 4 ? 1 : bytes / 4;
    mask64 whole = 0, some = 0;
    if (b->rule == RAW && !b->scattered) {  // without branches: this is what compilers emit
        const uint64_t start = b->start, stride = b->stride, limit = b->limit, need = b->payload ? (uint64_t)size : 1;
        const uint64_t last = 4 * (uint64_t)(dwords - 1) + need;
        uint64_t most = 0;
        EACH {
            const uint64_t from = b->index[i] * stride + b->offset[i];
            b->at[i] = start + from;
            most = from > most ? from : most;
        }
        if (most + last <= limit) whole = some = ~0ull;
        else EACH {
            const uint64_t from = b->at[i] - start;
            whole |= (mask64)(from + last <= limit) << i;
            some |= (mask64)(from + need <= limit) << i;
        }
    } else {
        EACH_ACTIVE(m, i) {
            bool all = true, any = false;
            for (int n = 0; n < dwords; n++) {
                const bool in = in_range(b, b->index[i], b->offset[i] + 4 * (uint64_t)n, (uint64_t)size);
                all &= in;
                any |= in;
            }
            b->at[i] = place(b, b->index[i], b->offset[i]);
            whole |= (mask64)all << i;
            some |= (mask64)any << i;
        }
    }
    b->whole = whole & m;
    b->part = some & ~whole & m;
    if (b->scattered && !(bytes <= 4 || (uint32_t)bytes <= b->element)) b->part |= b->whole, b->whole = 0;
    else b->scattered = false;
    return GO;
}

// Loads --------------------------------------------------------------------------------------------

static int load_parts(Wave *w, const Inst *in, const BufferAccess *b, int words, uint32_t *to) {
    EACH_ACTIVE(b->part, i)
        for (int n = 0; n < words; n++) {
            uint64_t at;
            if (!buffer_dword(b, i, n, 4, &at)) {
                to[n * LANES + i] = 0;
                continue;
            }
            const void *p = global_at(w, in, i, at, 4, false);
            if (p == NULL) return STOP;
            to[n * LANES + i] = word_at(p);
        }
    return GO;
}

// The lanes whose loads race (global_race.c).
__attribute__((noinline, cold)) static mask64 races_of_buffer(Wave *w, const Inst *in, const BufferAccess *b, int bytes) {
    mask64 racing = b->whole ? races_load(w, in, b->whole, b->at, (uint32_t)bytes) : 0;
    EACH_ACTIVE(b->part, i)
        for (int n = 0; n < bytes / 4; n++) {
            uint64_t at;
            if (!buffer_dword(b, i, n, 4, &at)) continue;
            const uint64_t all[LANES] = {[0 ... LANES - 1] = at};
            racing |= races_load(w, in, 1ull << i, all, 4);
        }
    return racing;
}

INLINE int load(Wave *w, const Inst *in, enum Kind k, bool to_lds) {
    static const uint8_t zeros[16];
    const mask64 m = exec_of(w);
    const int bytes = kind_bytes(k), words = kind_words(k);
    BufferAccess b;
    uint32_t landing[4 * LANES];
    if (!m) return GO;
    to_lds |= (in->flags & TO_LDS) != 0;
    if (!to_lds && !vectors_fit(&in->dst[0], words)) return bad_registers(w, in);
    if (buffer_access(w, in, m, bytes, false, &b)) return STOP;
    const int reg = to_lds ? 0 : in->dst[0].index;
    uint32_t *to = to_lds ? landing : VREG(w, reg);
    if (b.scratch) {
        if (to_lds) return fault(w, in, F_UNSUPPORTED, -1, ~0ull, "a load from scratch to LDS");
        return scratch_read(w, in, k, m, b.at, to, &w->lo[reg], &w->hi[reg]);
    }
    if (b.whole) {
        if (w->launch->memory) count_global(w, in, b.whole, b.at, (uint32_t)bytes);
        if (global_reach(w, in, b.whole, b.at, (uint32_t)bytes, false)) return STOP;
        gather(k, to, b.at, b.whole);
    }
    if (b.part && load_parts(w, in, &b, words, to)) return STOP;
    EACH_ACTIVE(m & ~(b.whole | b.part), i) load_element(k, to + i, zeros);
    if (!to_lds) {
        define(k, &w->lo[reg], &w->hi[reg], m);
        if (__builtin_expect(w->launch->watched, 0)) taint(k, &w->lo[reg], &w->hi[reg], races_of_buffer(w, in, &b, bytes));
        return GO;
    }
    // The LDS address gets the instruction's offset too; a lane out of range writes its 0.
    const mask64 known = w->launch->watched ? m & ~races_of_buffer(w, in, &b, bytes) : m;
    mask64 all[4] = {known, known, known, known};
    uint64_t at[LANES];
    if (lds_dma_addresses(w, in, m, bytes < 4 ? 4 : bytes, in->imm, at)) return STOP;
    return lds_store(w, in, bytes < 4 ? K_B32 : k, m, at, to, all, all);
}

// Stores -------------------------------------------------------------------------------------------

static int store_parts(Wave *w, const Inst *in, const BufferAccess *b, int words, int reg) {
    EACH_ACTIVE(b->part, i)
        for (int n = 0; n < words; n++) {
            uint64_t at;
            if (!buffer_dword(b, i, n, 4, &at)) continue;
            if (!(w->lo[reg + n] & w->hi[reg + n] & 1ull << i)) return undefined(w, in, i, at, "the stored value");
            void *p = global_at(w, in, i, at, 4, true);
            if (p == NULL) return STOP;
            if (w->launch->watched) {
                const uint64_t all[LANES] = {[0 ... LANES - 1] = at};
                if (watched_store(w, in, K_B32, 1ull << i, all, VREG(w, reg + n))) return STOP;
                continue;
            }
            memcpy(p, &VREG(w, reg + n)[i], 4);
        }
    return GO;
}

INLINE int store(Wave *w, const Inst *in, enum Kind k) {
    const mask64 m = exec_of(w);
    const int bytes = kind_bytes(k);
    BufferAccess b;
    if (!m) return GO;
    if (!vectors_fit(&in->src[3], kind_words(k))) return bad_registers(w, in);
    if (buffer_access(w, in, m, bytes, false, &b)) return STOP;
    const int reg = in->src[3].index;
    if (b.scratch) return scratch_write(w, in, k, m, b.at, VREG(w, reg), &w->lo[reg], &w->hi[reg]);
    if (b.whole) {
        const mask64 missing = b.whole & ~defined_for(k, &w->lo[reg], &w->hi[reg]);
        if (missing) return undefined(w, in, __builtin_ctzll(missing), b.at[__builtin_ctzll(missing)], "the stored value");
        if (w->launch->memory) count_global(w, in, b.whole, b.at, (uint32_t)bytes);
        if (global_reach(w, in, b.whole, b.at, (uint32_t)bytes, true)) return STOP;
        if (__builtin_expect(w->launch->watched, 0)) {
            if (watched_store(w, in, k, b.whole, b.at, VREG(w, reg))) return STOP;
        } else {
            scatter(k, VREG(w, reg), b.at, b.whole);
        }
    }
    return b.part ? store_parts(w, in, &b, kind_words(k), reg) : GO;
}

#define LOADS(X)                                                                                                      \
    X(buffer_load_ubyte, K_U8) X(buffer_load_sbyte, K_I8) X(buffer_load_ushort, K_U16) X(buffer_load_sshort, K_I16)   \
    X(buffer_load_ubyte_d16, K_D16_U8) X(buffer_load_ubyte_d16_hi, K_HI_U8) X(buffer_load_sbyte_d16, K_D16_I8)        \
    X(buffer_load_sbyte_d16_hi, K_HI_I8) X(buffer_load_short_d16, K_D16) X(buffer_load_short_d16_hi, K_HI)            \
    X(buffer_load_dword, K_B32) X(buffer_load_dwordx2, K_B64) X(buffer_load_dwordx3, K_B96)                           \
    X(buffer_load_dwordx4, K_B128)
#define LDS_LOADS(X)                                                                                                  \
    X(buffer_load_lds_ubyte, K_U8) X(buffer_load_lds_sbyte, K_I8) X(buffer_load_lds_ushort, K_U16)                    \
    X(buffer_load_lds_sshort, K_I16) X(buffer_load_lds_dword, K_B32)
#define STORES(X)                                                                                                     \
    X(buffer_store_byte, K_U8) X(buffer_store_byte_d16_hi, K_HI_U8) X(buffer_store_short, K_U16)                      \
    X(buffer_store_short_d16_hi, K_HI) X(buffer_store_dword, K_B32) X(buffer_store_dwordx2, K_B64)                    \
    X(buffer_store_dwordx3, K_B96) X(buffer_store_dwordx4, K_B128)
#define DEFINE_LOAD(name, kind) static int name(Wave *w, const Inst *in) { return load(w, in, kind, false); }
#define DEFINE_LDS(name, kind) static int name(Wave *w, const Inst *in) { return load(w, in, kind, true); }
#define DEFINE_STORE(name, kind) static int name(Wave *w, const Inst *in) { return store(w, in, kind); }
LOADS(DEFINE_LOAD)
LDS_LOADS(DEFINE_LDS)
STORES(DEFINE_STORE)

#define LOAD_ROW(name, kind) STEP_OP(name, "r=rrr", C_GLOBAL),
#define LDS_ROW(name, kind) STEP_OP(name, "=rrr", C_GLOBAL),
#define STORE_ROW(name, kind) STEP_OP(name, "=rrrr", C_GLOBAL),
const OpInfo ops_buffer[] = {
    LOADS(LOAD_ROW)
    LDS_LOADS(LDS_ROW)
    STORES(STORE_ROW)
    OPS_END,
};

// Exchanges between lanes that the LDS hardware does without touching memory: ds_bpermute, ds_permute, ds_swizzle.
//
// A lane that reads one that is not active gets 0 on hardware; here that 0 counts as undefined.
#include "exchange.h"
#include "counters.h"

// Lane i takes the value of lane from[i]; -1 reads 0. `present`: sources outside it give 0, and are undefined.
static int exchange(Wave *w, const Inst *in, const Operand *data, mask64 m, const int8_t *from, mask64 present, mask64 known) {
    uint32_t out[LANES];
    mask64 lo = 0, hi = 0;
    if (w->launch->memory) count_exchange(w, in, m);
    const uint32_t *v = VREG(w, data->index);
    const mask64 from_lo = w->lo[data->index], from_hi = w->hi[data->index];
    EACH {
        const mask64 bit = 1ull << i;
        const int source = from[i];
        out[i] = 0;
        if (source < 0) {
            lo |= bit;
            hi |= bit;
        } else if (present >> source & 1) {
            out[i] = v[source];
            lo |= from_lo >> source & 1 ? bit : 0;
            hi |= from_hi >> source & 1 ? bit : 0;
        } else if (m & bit) {
            note_origin(w, in, F_INACTIVE, source, ~0ull);
        }
    }
    write_words(w, in->dst[0].index, out, m, lo & known, hi & known);
    return GO;
}

// The lane that an address names: address / 4, modulo the wave; on gfx11 modulo 32 within each half of a wave of 64.
INLINE int named_lane(const Wave *w, uint32_t address, int i) {
    const uint32_t lane = address >> 2;
    if (w->launch->arch == GFX1100) return (int)(lane & 31) | (i & 32);
    return (int)(lane & (w->lanes - 1));
}

INLINE int pull(Wave *w, const Inst *in, bool inactive_too) {
    const mask64 m = exec_of(w);
    int8_t from[LANES];
    if (!m) return GO;
    if (!vectors_fit(&in->src[0], 1) || !vectors_fit(&in->src[1], 1) || !vectors_fit(&in->dst[0], 1)) return bad_registers(w, in);
    const int a = in->src[0].index;
    const uint32_t *v = VREG(w, a);
    EACH from[i] = (int8_t)named_lane(w, v[i] + (uint32_t)in->imm, i);
    return exchange(w, in, &in->src[1], m, from, inactive_too ? w->full : m, w->lo[a] & w->hi[a]);
}
int ds_bpermute_b32(Wave *w, const Inst *in) { return pull(w, in, false); }
int ds_bpermute_fi_b32(Wave *w, const Inst *in) { return pull(w, in, true); }

// The last lane that names a target wins; a target nobody names gets 0.
int ds_permute_b32(Wave *w, const Inst *in) {
    const mask64 m = exec_of(w);
    int8_t from[LANES];
    if (!m) return GO;
    if (!vectors_fit(&in->src[0], 1) || !vectors_fit(&in->src[1], 1) || !vectors_fit(&in->dst[0], 1)) return bad_registers(w, in);
    const int a = in->src[0].index;
    const mask64 missing = m & ~(w->lo[a] & w->hi[a]);
    if (missing) return undefined(w, in, __builtin_ctzll(missing), ~0ull, "an address");
    const uint32_t *v = VREG(w, a);
    EACH from[i] = -1;
    EACH_ACTIVE(m, i) from[named_lane(w, v[i] + (uint32_t)in->imm, i)] = (int8_t)i;
    return exchange(w, in, &in->src[1], m, from, m, ~0ull);
}

// The offset's modes (ISA guides, DS_SWIZZLE_B32): from 0xe000 FFT order, from 0xc000 rotation, from 0x8000 a
// permutation of each quad, below that and/or/xor masks on the lane number within 32.
static int swizzled_lane(uint32_t offset, uint32_t i) {
    const uint32_t mask = offset & 31, in_half = i & 31;
    uint32_t j;
    if (offset >= 0xe000) {
        j = 0;
        for (int b = 0; b < 5; b++) j |= (in_half >> b & 1) << (4 - b);
        j = (j >> __builtin_popcount(mask)) | (in_half & mask);
    } else if (offset >= 0xc000) {
        const uint32_t by = offset >> 5 & 31;
        j = (in_half & mask) | ((in_half + (offset >> 10 & 1 ? 32 - by : by)) & ~mask & 31);
    } else if (offset & 0x8000) {
        j = (in_half & ~3u) | (offset >> (i & 3) * 2 & 3);
    } else {
        j = ((in_half & mask) | (offset >> 5 & 31)) ^ (offset >> 10 & 31);
    }
    return (int)((j & 31) | (i & 32));
}
int ds_swizzle_b32(Wave *w, const Inst *in) {
    const mask64 m = exec_of(w);
    int8_t from[LANES];
    if (!m) return GO;
    if (!vectors_fit(&in->src[0], 1) || !vectors_fit(&in->dst[0], 1)) return bad_registers(w, in);
    EACH from[i] = (int8_t)swizzled_lane((uint32_t)in->imm & 0xffff, (uint32_t)i);
    return exchange(w, in, &in->src[0], m, from, m, ~0ull);
}

// Instructions that move values between lanes, and those that exchange registers.
//
// Reading an inactive lane with v_readlane, v_readfirstlane or v_permlane64 is what the hardware promises; the
// permutes promise nothing then unless "fetch inactive" is set, so what they give is undefined (AMD ISA guides;
// LLVM AMDGPU usage guide, llvm.amdgcn.permlane16).
#include "wave.h"

static uint32_t lane_number(const LaneOp *x, int k) { return x->s[k]->u[0] & (x->w->lanes - 1); }

static void read_lane(LaneOp *x, uint32_t lane, bool known) {
    uint32_t space[LANES];
    mask64 lo, hi;
    const uint32_t *from = read_words(x->w, &x->in->src[0], 0, space, &lo, &hi);
    x->d.u[0] = from[lane];
    x->dlo = known && lo >> lane & 1 ? ~0ull : 0;
    x->dhi = known && hi >> lane & 1 ? ~0ull : 0;
}

static void v_readlane_b32(LaneOp *x) { read_lane(x, lane_number(x, 1), x->lo[1] & x->hi[1] & 1); }

static void v_readfirstlane_b32(LaneOp *x) { read_lane(x, x->exec ? (uint32_t)__builtin_ctzll(x->exec) : 0, true); }

// Writes its lane whether that is active or not.
static void v_writelane_b32(LaneOp *x) {
    const mask64 where = 1ull << lane_number(x, 1);
    const mask64 known = x->lo[1] & x->hi[1] & 1 ? ~0ull : 0;
    write_words(x->w, x->in->dst[0].index, x->s[0]->u, where, x->lo[0] & 1 ? known : 0, x->hi[0] & 1 ? known : 0);
}

// Fetch lane from[i] for each active lane i. op_sel of the first two sources: fetch inactive, bound control.
static void permute(LaneOp *x, const uint8_t from[LANES], mask64 known) {
    Wave *w = x->w;
    const Inst *in = x->in;
    const bool fetch_inactive = in->src[0].mods & UPPER, zero = in->src[1].mods & UPPER;
    uint32_t space[LANES], out[LANES] = {0};
    mask64 lo, hi, to_lo = 0, to_hi = 0;
    const mask64 active = exec_of(w);
    const uint32_t *values = read_words(w, &in->src[0], 0, space, &lo, &hi);
    int inactive = -1;
    EACH_ACTIVE(x->exec, i) {
        const int f = from[i];
        const mask64 bit = 1ull << i;
        if (fetch_inactive || active >> f & 1) {
            out[i] = values[f];
            if (lo >> f & 1) to_lo |= bit;
            if (hi >> f & 1) to_hi |= bit;
        } else {
            if (!zero) out[i] = VREG(w, in->dst[0].index)[i];
            if (inactive < 0) inactive = f;
        }
    }
    if (inactive >= 0) note_origin(w, in, F_INACTIVE, inactive, ~0ull);
    write_words(w, in->dst[0].index, out, x->exec, to_lo & known, to_hi & known);
}

// Four bits of select for each lane of a row, the same for all rows; `other` reads the neighbouring row.
static void permute_row(LaneOp *x, int other) {
    const uint64_t select = x->s[1]->u[0] | (uint64_t)x->s[2]->u[0] << 32;
    uint8_t from[LANES];
    EACH from[i] = (uint8_t)(((i & ~15) ^ other) + (int)(select >> (i & 15) * 4 & 15));
    permute(x, from, x->lo[1] & x->hi[1] & x->lo[2] & x->hi[2]);
}
static void v_permlane16_b32(LaneOp *x) { permute_row(x, 0); }
static void v_permlanex16_b32(LaneOp *x) { permute_row(x, 16); }

static void permute_var(LaneOp *x, int other) {
    uint8_t from[LANES];
    EACH from[i] = (uint8_t)(((i & ~15) ^ other) + (int)(x->s[1]->u[i] & 15));
    permute(x, from, x->lo[1] & x->hi[1]);
}
static void v_permlane16_var_b32(LaneOp *x) { permute_var(x, 0); }
static void v_permlanex16_var_b32(LaneOp *x) { permute_var(x, 16); }

static void v_permlane64_b32(LaneOp *x) {
    Wave *w = x->w;
    if (w->lanes != 64) return;
    uint32_t space[LANES], out[LANES];
    mask64 lo, hi;
    const uint32_t *from = read_words(w, &x->in->src[0], 0, space, &lo, &hi);
    EACH out[i] = from[i ^ 32];
    write_words(w, x->in->dst[0].index, out, x->exec, lo << 32 | lo >> 32, hi << 32 | hi >> 32);
}

// Exchange two registers' lanes: lane i of the first where `first` has a 1 with lane i - distance of the second.
// A lane is written where it is active; without "fetch inactive" a partner that is not active gives nothing defined.
static void swap_lanes(LaneOp *x, mask64 first, int distance) {
    Wave *w = x->w;
    const Inst *in = x->in;
    const int a = in->dst[0].index, b = in->dst[1].index;
    const bool fetch_inactive = in->src[0].mods & UPPER, zero = in->src[1].mods & UPPER;
    const mask64 active = x->exec, second = first >> distance;
    const uint32_t *va = VREG(w, a), *vb = VREG(w, b);
    uint32_t to_a[LANES], to_b[LANES];
    memcpy(to_a, va, sizeof to_a);
    memcpy(to_b, vb, sizeof to_b);
    const mask64 seen = fetch_inactive ? ~0ull : active;
    const mask64 fed_a = first & active & seen << distance, fed_b = second & active & seen >> distance;
    const mask64 lost_a = first & active & ~fed_a, lost_b = second & active & ~fed_b;
    const mask64 alo = (w->lo[b] << distance & fed_a), ahi = (w->hi[b] << distance & fed_a);
    const mask64 blo = (w->lo[a] >> distance & fed_b), bhi = (w->hi[a] >> distance & fed_b);
    EACH_ACTIVE(fed_a, i) to_a[i] = vb[i - distance];
    EACH_ACTIVE(fed_b, i) to_b[i] = va[i + distance];
    if (zero) {
        EACH_ACTIVE(lost_a, i) to_a[i] = 0;
        EACH_ACTIVE(lost_b, i) to_b[i] = 0;
    }
    if (lost_a) note_origin(w, in, F_INACTIVE, __builtin_ctzll(lost_a) - distance, ~0ull);
    else if (lost_b) note_origin(w, in, F_INACTIVE, __builtin_ctzll(lost_b) + distance, ~0ull);
    write_words(w, a, to_a, fed_a | lost_a, alo, ahi);
    write_words(w, b, to_b, fed_b | lost_b, blo, bhi);
}
static void v_permlane16_swap_b32(LaneOp *x) { swap_lanes(x, 0xffff0000ffff0000ull, 16); }
static void v_permlane32_swap_b32(LaneOp *x) { swap_lanes(x, 0xffffffff00000000ull, 32); }

static void v_swap_b32(LaneOp *x) {
    Wave *w = x->w;
    const int a = x->in->dst[0].index, b = x->in->dst[1].index;
    const mask64 alo = w->lo[a], ahi = w->hi[a];
    uint32_t kept[LANES], other[LANES];
    memcpy(kept, VREG(w, a), sizeof kept);
    memcpy(other, VREG(w, b), sizeof other);
    write_words(w, a, other, x->exec, w->lo[b], w->hi[b]);
    write_words(w, b, kept, x->exec, alo, ahi);
}

// The first result is committed as any 16-bit one (it may be an upper half); the second is written here.
static void v_swap_b16(LaneOp *x) {
    Wave *w = x->w;
    const int a = x->in->dst[0].index, b = x->in->dst[1].index;
    const int a_shift = x->in->flags & DST_UPPER ? 16 : 0, b_shift = x->in->src[0].mods & UPPER ? 16 : 0;
    const mask64 a_known = a_shift ? w->hi[a] : w->lo[a], b_known = b_shift ? w->hi[b] : w->lo[b];
    const uint32_t *va = VREG(w, a), *vb = VREG(w, b);
    uint32_t out[LANES];
    EACH {
        x->d.u[i] = vb[i] >> b_shift & 0xffff;
        out[i] = (vb[i] & ~(0xffffu << b_shift)) | (va[i] >> a_shift & 0xffff) << b_shift;
    }
    write_words(w, b, out, x->exec, b_shift ? w->lo[b] : a_known, b_shift ? a_known : w->hi[b]);
    x->dlo = x->dhi = b_known;
}

const OpInfo ops_valu_lanes[] = {
    LANE_OP(v_readlane_b32, "s=rs"),
    LANE_OP(v_readfirstlane_b32, "s=r"),
    LANE_OP(v_writelane_b32, "r=ss"),
    LANE_OP(v_permlane16_b32, "r=rss"),
    LANE_OP(v_permlanex16_b32, "r=rss"),
    LANE_OP(v_permlane16_var_b32, "r=rb"),
    LANE_OP(v_permlanex16_var_b32, "r=rb"),
    LANE_OP(v_permlane64_b32, "r=r"),
    LANE_OP(v_permlane16_swap_b32, "rr=rr"),
    LANE_OP(v_permlane32_swap_b32, "rr=rr"),
    LANE_OP(v_swap_b32, "rr=rr"),
    LANE_OP(v_swap_b16, "wr=rr"),
    {"v_nop", "=", step_nop, NULL, C_VALU, 0},
    {"v_pipeflush", "=", step_nop, NULL, C_VALU, 0},
    OPS_END,
};

// Registers, operands and the step that all vector instructions share.
#include "shuffle.h"

#include <fenv.h>
#include <math.h>

// Memory ------------------------------------------------------------------------------------------

static void out_of_bounds(Wave *w, const Inst *in, int lane, uint64_t address, uint32_t size, bool write) {
    const Launch *launch = w->launch;
    const Range *near = NULL;
    uint64_t least = ~0ull;
    bool before = false;
    for (uint32_t i = 0; i < launch->range_count; i++) {
        const Range *r = &launch->ranges[i];
        uint64_t gap = address < r->base ? r->base - address : address - r->base >= r->size ? address - r->base - r->size : 0;
        if (gap < least) least = gap, near = r, before = address < r->base;
    }
    const char *verb = write ? "write" : "read";
    if (near == NULL || least > (1ull << 40))
        fault(w, in, F_BOUNDS, lane, address, "%s of %u bytes, near no tensor of this launch", verb, size);
    else if (address >= near->base && address - near->base < near->size && address - near->base + size <= near->size)
        fault(w, in, F_BOUNDS, lane, address, "write of %u bytes to @%u, which is read-only", size, near->name);
    else if (before)
        fault(w, in, F_BOUNDS, lane, address, "%s of %u bytes, %llu bytes before the start of @%u (%llu bytes)", verb,
              size, (unsigned long long)least, near->name, (unsigned long long)near->size);
    else
        fault(w, in, F_BOUNDS, lane, address, "%s of %u bytes at offset %llu of @%u, which has %llu bytes", verb, size,
              (unsigned long long)(address - near->base), near->name, (unsigned long long)near->size);
}

void *global_at(Wave *w, const Inst *in, int lane, uint64_t address, uint32_t size, bool write) {
    const Range *r = w->last;
    if (address - r->base < r->size && address - r->base + size <= r->size && (!write || r->writable))
        return (void *)(uintptr_t)address;
    const Launch *launch = w->launch;
    for (uint32_t i = 0; i < launch->range_count; i++) {
        r = &launch->ranges[i];
        if (address - r->base < r->size && address - r->base + size <= r->size && (!write || r->writable)) {
            w->last = (Range *)r;
            return (void *)(uintptr_t)address;
        }
    }
    out_of_bounds(w, in, lane, address, size, write);
    return NULL;
}

// Scalar operands ---------------------------------------------------------------------------------

uint64_t read_scalar(const Wave *w, const Operand *o, int bits, uint64_t *def) {
    *def = ~0ull;
    switch (o->kind) {
    case SGPR:
        if (bits <= 32) {
            *def = w->sdef[o->index] | ~0xffffffffull;
            return w->s[o->index];
        }
        *def = w->sdef[o->index] | (uint64_t)w->sdef[o->index + 1] << 32;
        return scalar64(w, o->index);
    case CONSTANT:
        return bits <= 32 ? (uint32_t)o->value : o->value;
    case SCC_BIT:
        *def = w->sccdef ? ~0ull : 0;
        return w->scc;
    case VCCZ_BIT:
        return (scalar64(w, VCC) & w->full) == 0;
    case EXECZ_BIT:
        return exec_of(w) == 0;
    default:
        return 0;
    }
}

int write_scalar(Wave *w, const Inst *in, int index, int bits, uint64_t value, uint64_t def) {
    if (index == NULLREG) return GO;
    w->s[index] = (uint32_t)value;
    w->sdef[index] = (uint32_t)def;
    if (bits > 32) {
        w->s[index + 1] = (uint32_t)(value >> 32);
        w->sdef[index + 1] = (uint32_t)(def >> 32);
    }
    if (index >= EXEC || (index == EXEC - 1 && bits > 32)) {
        uint64_t known = w->sdef[EXEC] | (uint64_t)w->sdef[EXEC + 1] << 32;
        if (~known & w->full) return undefined(w, in, __builtin_ctzll(~known & w->full), ~0ull, "the set of active lanes");
    }
    return GO;
}

// Vector operands ---------------------------------------------------------------------------------

static void spread(uint32_t *to, uint32_t value) { EACH to[i] = value; }

const uint32_t *read_words(Wave *w, const Operand *o, int first, uint32_t *space, mask64 *lo, mask64 *hi) {
    if (o->kind == VGPR) {
        int r = o->index + first;
        if (r >= VECTORS) r = VECTORS - 1;
        *lo = w->lo[r];
        *hi = w->hi[r];
        return VREG(w, r);
    }
    uint64_t def;
    uint64_t value;
    if (o->kind == SGPR) {
        Operand each = *o;
        each.index = (uint16_t)(o->index + first < SCALARS ? o->index + first : SCALARS - 1);
        value = read_scalar(w, &each, 32, &def);
    } else {
        value = read_scalar(w, o, 64, &def) >> (first & 1) * 32;
    }
    *lo = (def & 0xffff) == 0xffff ? ~0ull : 0;
    *hi = (def >> 16 & 0xffff) == 0xffff ? ~0ull : 0;
    spread(space, (uint32_t)value);
    return space;
}

void write_words(Wave *w, int reg, const uint32_t *value, mask64 mask, mask64 lo, mask64 hi) {
    uint32_t *to = VREG(w, reg);
    if ((mask & w->full) == w->full) {
        memcpy(to, value, LANES * sizeof *to);
    } else {
        select_lanes(mask, value, to, to);
    }
    w->lo[reg] = (w->lo[reg] & ~mask) | (lo & mask);
    w->hi[reg] = (w->hi[reg] & ~mask) | (hi & mask);
}

static mask64 gather_mask(mask64 from, const Wave *w, const DppLanes *c) {
    if ((from & w->full) == w->full) return c->fed;
    mask64 to = 0;
    for (int i = 0; i < LANES; i++) to |= (from >> c->source[i] & 1) << i;
    return to & c->fed;
}

static const DppLanes *apply_dpp(LaneOp *x) {
    const DppLanes *c = dpp_lanes(x->w, x->in->aux[0], x->in->flags & DPP8);
    x->exec &= c->written;
    const mask64 seen = c->inactive & x->exec;
    if (seen) note_origin(x->w, x->in, F_INACTIVE, __builtin_ctzll(seen), ~0ull);
    return c;
}

static void permute(const Wave *w, const DppLanes *c, const uint32_t *from, uint32_t *to, mask64 *lo, mask64 *hi) {
    static const uint32_t zeros[LANES];
    lanes_from(c->source, from, to);
    if (c->zero) select_lanes(c->zero, zeros, to, to);
    *lo = (gather_mask(*lo, w, c) | c->zero) & ~c->inactive;
    *hi = (gather_mask(*hi, w, c) | c->zero) & ~c->inactive;
}

static uint32_t flush32(uint32_t u) { return (u & 0x7f800000u) ? u : u & 0x80000000u; }
static uint32_t flush16(uint32_t u) { return (u & 0x7c00u) ? u : u & 0x8000u; }
static uint64_t flush64(uint64_t u) { return (u & 0x7ff0000000000000ull) ? u : u & 0x8000000000000000ull; }

static void fetch_narrow(LaneOp *x, int k, const Operand *o, const DppLanes *c) {
    Wave *w = x->w;
    uint32_t *space = x->space[k].u;
    mask64 lo, hi;
    const uint32_t *p = read_words(w, o, 0, space, &lo, &hi);
    if (c && k == 0) permute(w, c, p, space, &lo, &hi), p = space;
    const bool half = o->type == 'h' || o->type == 'w';
    if (o->sel < 6) {
        const int shift = o->sel < 4 ? o->sel * 8 : (o->sel - 4) * 16;
        const uint32_t mask = o->sel < 4 ? 0xff : 0xffff, sign = o->mods & SEXT ? (mask + 1) >> 1 : 0;
        EACH space[i] = ((p[i] >> shift & mask) ^ sign) - sign;
        if (half) EACH space[i] &= 0xffff;
        p = space;
        lo = hi = shift >= 16 ? hi : lo;
    } else if (half) {
        const int shift = o->mods & UPPER && o->kind != CONSTANT ? 16 : 0;
        EACH space[i] = p[i] >> shift & 0xffff;
        p = space;
        lo = hi = shift ? hi : lo;
    }
    if (o->mods & (ABS | NEG)) {
        const uint32_t top = half ? 0x8000u : 0x80000000u;
        const uint32_t keep = o->mods & ABS ? ~top : ~0u, flip = o->mods & NEG ? top : 0;
        EACH space[i] = (p[i] & keep) ^ flip;
        p = space;
    }
    if (o->type == 'f' && !(w->mode >> 4 & 1)) {
        EACH space[i] = flush32(p[i]);
        p = space;
    } else if (o->type == 'h' && !(w->mode >> 6 & 1)) {
        EACH space[i] = flush16(p[i]);
        p = space;
    }
    x->s[k] = (const Vec *)p;
    x->lo[k] = lo;
    x->hi[k] = hi;
}

static void fetch_wide(LaneOp *x, int k, const Operand *o, const DppLanes *c) {
    Wave *w = x->w;
    uint64_t *to = x->space[k].q;
    uint32_t low_space[LANES], high_space[LANES];
    mask64 lo0, hi0, lo1, hi1;
    const uint32_t *low = read_words(w, o, 0, low_space, &lo0, &hi0);
    const uint32_t *high = read_words(w, o, 1, high_space, &lo1, &hi1);
    if (c && k == 0) {
        permute(w, c, low, low_space, &lo0, &hi0), low = low_space;
        permute(w, c, high, high_space, &lo1, &hi1), high = high_space;
    }
    if (o->type == 'F') {
        // Packed float32: op_sel says which word feeds each result. A constant feeds both.
        const uint32_t *first = o->kind != CONSTANT && o->mods & UPPER ? high : low;
        const uint32_t *second = o->kind == CONSTANT || !(o->mods & UPPER_HI) ? low : high;
        const uint32_t flip0 = o->mods & NEG ? 0x80000000u : 0, flip1 = o->mods & NEG_HI ? 0x80000000u : 0;
        const bool flush = !(w->mode >> 4 & 1);
        EACH {
            uint32_t a = first[i] ^ flip0, b = second[i] ^ flip1;
            if (flush) a = flush32(a), b = flush32(b);
            to[i] = a | (uint64_t)b << 32;
        }
        x->lo[k] = first == high ? lo1 & hi1 : lo0 & hi0;
        x->hi[k] = second == high ? lo1 & hi1 : lo0 & hi0;
    } else {
        EACH to[i] = low[i] | (uint64_t)high[i] << 32;
        if (o->mods & ABS) EACH to[i] &= ~(1ull << 63);
        if (o->mods & NEG) EACH to[i] ^= 1ull << 63;
        if (o->type == 'd' && !(w->mode >> 6 & 1)) EACH to[i] = flush64(to[i]);
        x->lo[k] = x->hi[k] = lo0 & hi0 & lo1 & hi1;
    }
    x->s[k] = &x->space[k];
}

static void fetch_packed(LaneOp *x, int k, const Operand *o, const DppLanes *c) {
    uint32_t *to = x->space[k].u;
    mask64 lo, hi;
    const uint32_t *p = read_words(x->w, o, 0, to, &lo, &hi);
    if (c && k == 0) permute(x->w, c, p, to, &lo, &hi), p = to;
    const int a = o->mods & UPPER ? 16 : 0, b = o->mods & UPPER_HI ? 16 : 0;
    uint32_t flip = 0;
    if (o->type == 'P') flip = (o->mods & NEG ? 0x8000u : 0) | (o->mods & NEG_HI ? 0x80000000u : 0);
    if (a || !b || flip || p == to) {
        EACH to[i] = ((p[i] >> a & 0xffff) | (p[i] >> b & 0xffff) << 16) ^ flip;
        p = to;
    }
    x->s[k] = (const Vec *)p;
    x->lo[k] = a ? hi : lo;
    x->hi[k] = b ? hi : lo;
}

static void fetch(LaneOp *x, int k, const DppLanes *c) {
    const Operand *o = &x->in->src[k];
    uint64_t def;
    switch (o->type) {
    case 'q':
    case 'd':
    case 'F':
        fetch_wide(x, k, o, c);
        break;
    case 'P':
    case 'I':
        fetch_packed(x, k, o, c);
        break;
    case 'm':
        x->m[k] = read_scalar(x->w, o, x->w->lanes == 64 ? 64 : 32, &def);
        x->lo[k] = x->hi[k] = def;
        break;
    case 'r':
        x->lo[k] = x->hi[k] = ~0ull;
        break;
    default:
        fetch_narrow(x, k, o, c);
    }
}

// Results -----------------------------------------------------------------------------------------

static void clamp_result(LaneOp *x, char type) {
    const bool nan_to_zero = x->w->launch->dx10_clamp;
    if (type == 'f')
        EACH {
            const float v = x->d.f[i];
            x->d.f[i] = v > 1.0f ? 1.0f : v >= 0.0f ? (v == 0.0f ? 0.0f : v) : v == v || nan_to_zero ? 0.0f : v;
        }
    else if (type == 'd')
        EACH {
            const double v = x->d.d[i];
            x->d.d[i] = v > 1.0 ? 1.0 : v >= 0.0 ? (v == 0.0 ? 0.0 : v) : v == v || nan_to_zero ? 0.0 : v;
        }
    else if (type == 'F')
        EACH {
            for (int k = 0; k < 2; k++) {
                const float v = as_float(x->d.u[2 * i + k]);
                const float to = v > 1.0f ? 1.0f : v >= 0.0f ? (v == 0.0f ? 0.0f : v) : v == v || nan_to_zero ? 0.0f : v;
                x->d.u[2 * i + k] = as_bits(to);
            }
        }
    else if (type == 'h' || type == 'P')
        EACH {
            uint32_t out = 0;
            for (int shift = 0; shift < (type == 'P' ? 32 : 16); shift += 16) {
                const uint32_t v = x->d.u[i] >> shift & 0xffff, size = v & 0x7fff;
                uint32_t to = v;
                if (size > 0x7c00) to = nan_to_zero ? 0 : v;
                else if (v & 0x8000) to = 0;
                else if (size > 0x3c00) to = 0x3c00;
                out |= to << shift;
            }
            x->d.u[i] = out;
        }
}

static void finish_float(LaneOp *x, char type) {
    const uint32_t mode = x->w->mode, denormals = mode >> (type == 'f' ? 5 : 7) & 1;
    // Where results keep their denormals the output modifier is ignored (ISA guides, Output Modifiers).
    const uint32_t omod = denormals ? 0 : x->in->aux[3];
    if (omod) {
        const double scale = omod == 1 ? 2.0 : omod == 2 ? 4.0 : 0.5;
        if (type == 'f') EACH x->d.f[i] *= (float)scale;
        else if (type == 'd') EACH x->d.d[i] *= scale;
    }
    if (type == 'f' && !(mode >> 5 & 1)) EACH x->d.u[i] = flush32(x->d.u[i]);
    else if (type == 'F' && !(mode >> 5 & 1)) for (int i = 0; i < 2 * LANES; i++) x->d.u[i] = flush32(x->d.u[i]);
    else if (type == 'h' && !(mode >> 7 & 1)) EACH x->d.u[i] = flush16(x->d.u[i]);
    else if (type == 'd' && !(mode >> 7 & 1)) EACH x->d.q[i] = flush64(x->d.q[i]);
    if (x->in->flags & CLAMP) clamp_result(x, type);
}

static void commit_sdwa(LaneOp *x, int reg) {
    const uint32_t select = x->in->aux[1] & 0xff, unused = x->in->aux[1] >> 8 & 3;
    const int width = select < 4 ? 8 : 16, shift = select < 4 ? (int)select * 8 : ((int)select - 4) * 16;
    const uint32_t mask = (width == 8 ? 0xffu : 0xffffu), *old = VREG(x->w, reg);
    uint32_t out[LANES];
    mask64 lo = x->dlo, hi = x->dlo;
    if (unused == 2) {  // preserve
        EACH out[i] = (old[i] & ~(mask << shift)) | (x->d.u[i] & mask) << shift;
        if (width == 16) {
            if (shift) lo = x->w->lo[reg];
            else hi = x->w->hi[reg];
        } else {
            lo = shift < 16 ? x->w->lo[reg] & x->dlo : x->w->lo[reg];
            hi = shift >= 16 ? x->w->hi[reg] & x->dlo : x->w->hi[reg];
        }
    } else if (unused == 1) {  // sign-extend
        EACH out[i] = (uint32_t)(((int32_t)((x->d.u[i] & mask) << (32 - width)) >> (32 - width))) << shift;
    } else {
        EACH out[i] = (x->d.u[i] & mask) << shift;
        if (shift >= 16) lo = ~0ull;
        else hi = ~0ull;
    }
    write_words(x->w, reg, out, x->exec, lo, hi);
}

static int commit_mask(LaneOp *x, const Operand *o) {
    Wave *w = x->w;
    const mask64 value = x->dm & x->exec, def = x->dmdef | ~x->exec;
    const int bits = w->lanes == 64 ? 64 : 32;
    if (o->kind == SGPR && write_scalar(w, x->in, o->index, bits, value, def)) return STOP;
    if (x->in->flags & WRITES_EXEC && o->index != EXEC) return write_scalar(w, x->in, EXEC, bits, value, def);
    return GO;
}

static int commit(LaneOp *x) {
    const Inst *in = x->in;
    Wave *w = x->w;
    for (int k = 0; k < in->results; k++) {
        const Operand *o = &in->dst[k];
        if (o->kind == NOTHING || o->kind == NONE) continue;
        const int reg = o->index;
        switch (o->type) {
        case 'm':
            if (commit_mask(x, o)) return STOP;
            break;
        case 's':
            if (write_scalar(w, in, reg, 32, x->d.u[0], x->dlo & x->dhi & 1 ? ~0ull : 0)) return STOP;
            break;
        case 'r':
            break;
        case 'F':
        case 'q':
        case 'd': {
            uint32_t part[LANES];
            if (o->type != 'q') finish_float(x, (char)o->type);
            const bool split = o->type != 'd';
            EACH part[i] = (uint32_t)x->d.q[i];
            write_words(w, reg, part, x->exec, split ? x->dlo : x->dlo & x->dhi, split ? x->dlo : x->dlo & x->dhi);
            EACH part[i] = (uint32_t)(x->d.q[i] >> 32);
            write_words(w, reg + 1, part, x->exec, split ? x->dhi : x->dlo & x->dhi, split ? x->dhi : x->dlo & x->dhi);
            break;
        }
        default: {
            if (o->type == 'f' || o->type == 'h' || o->type == 'P') finish_float(x, (char)o->type);
            if (in->flags & SDWA && (in->aux[1] & 0xff) < 6) {
                commit_sdwa(x, reg);
                break;
            }
            mask64 lo = x->dlo, hi = x->dhi;
            if (o->type == 'h' || o->type == 'w') {
                const uint32_t *old = VREG(w, reg);
                if (in->flags & DST_UPPER) {
                    EACH x->d.u[i] = (old[i] & 0xffff) | x->d.u[i] << 16;
                    lo = w->lo[reg];
                } else if (in->flags & DST_ZERO) {
                    EACH x->d.u[i] &= 0xffff;
                    hi = ~0ull;
                } else {
                    EACH x->d.u[i] = (old[i] & 0xffff0000u) | (x->d.u[i] & 0xffff);
                    hi = w->hi[reg];
                }
            }
            write_words(w, reg, x->d.u, x->exec, lo, hi);
        }
        }
    }
    return w->state == RUNNING ? GO : STOP;
}

// The shared step ---------------------------------------------------------------------------------

static void round_as(uint32_t mode) {
    static const int modes[4] = {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
    fesetround(modes[mode & 3]);
}

static void compute(LaneOp *x, Wave *w, const Inst *in) {
    const DppLanes *c = NULL;
    x->in = in;
    x->w = w;
    x->exec = exec_of(w);
    if (in->flags & (DPP | DPP8)) c = apply_dpp(x);
    mask64 lo = ~0ull, hi = ~0ull;
    bool halves = true;
    for (int k = 0; k < in->sources; k++) {
        fetch(x, k, c);
        lo &= x->lo[k];
        hi &= x->hi[k];
        halves &= in->src[k].type == 'P' || in->src[k].type == 'I' || in->src[k].type == 'F';
    }
    if (!halves) lo = hi = lo & hi;
    x->dlo = lo;
    x->dhi = hi;
    x->dmdef = lo & hi;
    x->dm = 0;
    const char type = in->results ? (char)in->dst[0].type : 0;
    const uint32_t rounding = type == 'd' ? w->mode >> 2 & 3 : w->mode & 3;
    if (rounding && type != 'h' && type != 'P') {
        round_as(rounding);
        in->fn.lane(x);
        round_as(0);
    } else {
        in->fn.lane(x);
    }
}

int step_lane(Wave *w, const Inst *in) {
    LaneOp x;
    compute(&x, w, in);
    if (in->flags & DUAL) {  // both halves of a VOPD read before either writes
        LaneOp y;
        compute(&y, w, in + 1);
        w->pc++;
        if (commit(&y)) return STOP;
    }
    return commit(&x);
}

// The step of instructions on whole registers whose one result is written as it is: most of them.
static int step_plain(Wave *w, const Inst *in) {
    if ((w->mode & 0x33) != 0x30) return step_lane(w, in);  // float32 is rounded otherwise, or its denormals flushed
    LaneOp x;
    x.in = in, x.w = w, x.exec = exec_of(w);
    const DppLanes *lanes = in->flags ? apply_dpp(&x) : NULL;
    mask64 known = ~0ull;
    for (int k = 0; k < in->sources; k++) {
        const Operand *o = &in->src[k];
        if (o->type == 'm') {
            uint64_t def;
            x.m[k] = read_scalar(w, o, w->lanes == 64 ? 64 : 32, &def);
            x.lo[k] = x.hi[k] = def;
        } else {
            uint32_t *space = x.space[k].u;
            const uint32_t *p = read_words(w, o, 0, space, &x.lo[k], &x.hi[k]);
            if (lanes && k == 0) permute(w, lanes, p, space, &x.lo[k], &x.hi[k]), p = space;
            if (o->mods) {
                const uint32_t keep = o->mods & ABS ? 0x7fffffffu : ~0u, flip = o->mods & NEG ? 0x80000000u : 0;
                EACH space[i] = (p[i] & keep) ^ flip;
                p = space;
            }
            x.s[k] = (const Vec *)p;
        }
        known &= x.lo[k] & x.hi[k];
    }
    x.dlo = x.dhi = x.dmdef = known;
    x.dm = 0;
    in->fn.lane(&x);
    write_words(w, in->dst[0].index, x.d.u, x.exec, x.dlo, x.dhi);
    return w->state == RUNNING ? GO : STOP;
}

void plan_plain(Inst *in) {
    bool plain = in->step == step_lane && !(in->flags & ~(uint32_t)(DPP | DPP8)) && in->results == 1 && in->dst[0].kind == VGPR;
    plain &= in->dst[0].type == 'b' || in->dst[0].type == 'f';
    for (int k = 0; k < in->sources; k++) {
        const Operand *o = &in->src[k];
        plain &= o->type == 'm' || ((o->type == 'b' || o->type == 'f') && !(o->mods & ~(NEG | ABS)) && o->sel >= 6);
    }
    if (plain) in->step = step_plain;
}

int step_nop(Wave *w, const Inst *in) {
    (void)w, (void)in;
    return GO;
}

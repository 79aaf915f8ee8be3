// Vector instructions on integers and bits.
//
// Meanings are those of the AMD ISA guides (CDNA3, CDNA4, RDNA3, RDNA4; "vector ALU" instructions). The clamp bit
// of an integer instruction saturates. Shift counts use as many low bits as the width needs.
#include "partial.h"
#include "shuffle.h"

#define A (x->s[0]->u[i])
#define B (x->s[1]->u[i])
#define C (x->s[2]->u[i])
#define SA (x->s[0]->i[i])
#define SB (x->s[1]->i[i])
#define SC (x->s[2]->i[i])
#define QA (x->s[0]->q[i])
#define QB (x->s[1]->q[i])
#define QC (x->s[2]->q[i])

#define OP(name, value) static void name(LaneOp *x) { EACH x->d.u[i] = (uint32_t)(value); }
#define OP64(name, value) static void name(LaneOp *x) { EACH x->d.q[i] = (uint64_t)(value); }
// An op whose result may be defined where not all of its sources are.
#define OP_PARTIAL(name, value, count, known)                                                                          \
    static void name(LaneOp *x) {                                                                                      \
        EACH x->d.u[i] = (uint32_t)(value);                                                                            \
        PARTIAL(count, known);                                                                                         \
    }
// An op that saturates under the clamp bit.
#define OP_CLAMP(name, value, saturated)                                                                               \
    static void name(LaneOp *x) {                                                                                      \
        if (x->in->flags & CLAMP) EACH x->d.u[i] = (uint32_t)(saturated);                                              \
        else EACH x->d.u[i] = (uint32_t)(value);                                                                       \
        PARTIAL(2, x->in->flags & CLAMP ? known_all(da & db) : known_sum(da & db));                                    \
    }

static inline uint32_t umin(uint32_t a, uint32_t b) { return a < b ? a : b; }
static inline uint32_t umax(uint32_t a, uint32_t b) { return a > b ? a : b; }
static inline int32_t smin(int32_t a, int32_t b) { return a < b ? a : b; }
static inline int32_t smax(int32_t a, int32_t b) { return a > b ? a : b; }
static inline int32_t short_of(uint32_t v) { return (int16_t)v; }
static inline uint32_t saturate_u32(uint64_t v) { return v > 0xffffffffu ? 0xffffffffu : (uint32_t)v; }
static inline int32_t saturate_i32(int64_t v) {
    return v > INT32_MAX ? INT32_MAX : v < INT32_MIN ? INT32_MIN : (int32_t)v;
}
static inline uint32_t saturate_i16(int32_t v) { return (uint32_t)smin(smax(v, -32768), 32767); }
static inline int64_t wide(int32_t v) { return v; }
static inline int32_t signed24(uint32_t v) { return (int32_t)(v << 8) >> 8; }
static inline uint32_t unsigned24(uint32_t v) { return v & 0xffffff; }

// Moves and selects -------------------------------------------------------------------------------

static void copy_definedness(LaneOp *x) { x->dlo = x->lo[0], x->dhi = x->hi[0]; }

static void v_mov_b32(LaneOp *x) {
    memcpy(x->d.u, x->s[0]->u, sizeof x->d.u);
    copy_definedness(x);
}
static void v_mov_b16(LaneOp *x) { v_mov_b32(x); }

// The two words of a pair may be defined apart, which the fetch of a 64-bit source does not tell.
static void write_pair(LaneOp *x, mask64 low, mask64 high) {
    const int reg = x->in->dst[0].index;
    uint32_t part[2][LANES];
    EACH part[0][i] = (uint32_t)x->d.q[i], part[1][i] = (uint32_t)(x->d.q[i] >> 32);
    write_words(x->w, reg, part[0], x->exec, low, low);
    write_words(x->w, reg + 1, part[1], x->exec, high, high);
}
static mask64 word_known(const LaneOp *x, int k, int word) {
    if (x->in->flags & (DPP | DPP8)) return x->lo[k] & x->hi[k];
    uint32_t space[LANES];
    mask64 lo, hi;
    read_words(x->w, &x->in->src[k], word, space, &lo, &hi);
    return lo & hi;
}

static void v_mov_b64(LaneOp *x) {
    EACH x->d.q[i] = QA;
    write_pair(x, word_known(x, 0, 0), word_known(x, 0, 1));
}

static void v_cndmask_b32(LaneOp *x) {
    const mask64 m = x->m[2];
    select_lanes(m, x->s[1]->u, x->s[0]->u, x->d.u);
    x->dlo = ((m & x->lo[1]) | (~m & x->lo[0])) & x->lo[2];
    x->dhi = ((m & x->hi[1]) | (~m & x->hi[0])) & x->lo[2];
}
static void v_cndmask_b16(LaneOp *x) { v_cndmask_b32(x); }

// Sums --------------------------------------------------------------------------------------------

OP_CLAMP(v_add_u32, A + B, A > ~B ? ~0u : A + B)
OP_CLAMP(v_sub_u32, A - B, A < B ? 0 : A - B)
OP_CLAMP(v_subrev_u32, B - A, B < A ? 0 : B - A)
OP_CLAMP(v_add_i32, A + B, saturate_i32(wide(SA) + SB))
OP_CLAMP(v_sub_i32, A - B, saturate_i32(wide(SA) - SB))
OP_CLAMP(v_add_u16, A + B, umin(A + B, 0xffff))
OP_CLAMP(v_sub_u16, A - B, A < B ? 0 : A - B)
OP_CLAMP(v_subrev_u16, B - A, B < A ? 0 : B - A)
OP_CLAMP(v_add_i16, A + B, saturate_i16(short_of(A) + short_of(B)))
OP_CLAMP(v_sub_i16, A - B, saturate_i16(short_of(A) - short_of(B)))
OP_PARTIAL(v_add3_u32, A + B + C, 3, known_sum(da & db & dc))
OP_PARTIAL(v_add_lshl_u32, (A + B) << (C & 31), 3, known_shl(known_sum(da & db), c, dc))
OP_PARTIAL(v_lshl_add_u32, (A << (B & 31)) + C, 3, known_sum(known_shl(da, b, db) & dc))
OP_PARTIAL(v_xad_u32, (A ^ B) + C, 3, known_sum(da & db & dc))
OP64(v_lshl_add_u64, (QA << (B & 7)) + QC)

// Carries: `total` is 33 bits or more of a sum, or a difference whose bit 32 is the borrow.
#define OP_CARRY(name, carry_in, total, saturated)                                                                     \
    static void name(LaneOp *x) {                                                                                      \
        mask64 out = 0;                                                                                                \
        EACH {                                                                                                         \
            const uint64_t a = A, b = B, in = carry_in, t = (total);                                                   \
            (void)in;                                                                                                  \
            x->d.u[i] = (uint32_t)t;                                                                                   \
            out |= (t >> 32 & 1) << i;                                                                                 \
        }                                                                                                              \
        x->dm = out;                                                                                                   \
        if (x->in->flags & CLAMP) EACH x->d.u[i] = out >> i & 1 ? (saturated) : x->d.u[i];                             \
    }
OP_CARRY(v_add_co_u32, 0, a + b, ~0u)
OP_CARRY(v_sub_co_u32, 0, a - b, 0)
OP_CARRY(v_subrev_co_u32, 0, b - a, 0)
OP_CARRY(v_addc_co_u32, x->m[2] >> i & 1, a + b + in, ~0u)
OP_CARRY(v_subb_co_u32, x->m[2] >> i & 1, a - b - in, 0)
OP_CARRY(v_subbrev_co_u32, x->m[2] >> i & 1, b - a - in, 0)

// Products ----------------------------------------------------------------------------------------

OP_PARTIAL(v_mul_lo_u32, A * B, 2, known_sum(da & db))
OP(v_mul_hi_u32, (uint64_t)A * B >> 32)
OP(v_mul_hi_i32, (uint64_t)(wide(SA) * SB) >> 32)
OP(v_mul_lo_u16, A * B)
OP(v_mul_u32_u24, unsigned24(A) * unsigned24(B))
OP(v_mul_hi_u32_u24, (uint64_t)unsigned24(A) * unsigned24(B) >> 32)
OP(v_mul_i32_i24, (uint32_t)signed24(A) * (uint32_t)signed24(B))
OP(v_mul_hi_i32_i24, (uint64_t)(wide(signed24(A)) * signed24(B)) >> 32)

#define OP_MAD(name, value, saturated)                                                                                 \
    static void name(LaneOp *x) {                                                                                      \
        if (x->in->flags & CLAMP) EACH x->d.u[i] = (uint32_t)(saturated);                                              \
        else EACH x->d.u[i] = (uint32_t)(value);                                                                       \
    }
OP_MAD(v_mad_u32_u24, unsigned24(A) * unsigned24(B) + C, saturate_u32((uint64_t)unsigned24(A) * unsigned24(B) + C))
OP_MAD(v_mad_i32_i24, (uint32_t)signed24(A) * (uint32_t)signed24(B) + C,
       saturate_i32(wide(signed24(A)) * signed24(B) + SC))
OP_MAD(v_mad_u16, A * B + C, saturate_u32((uint64_t)A * B + C) > 0xffff ? 0xffff : A * B + C)
OP_MAD(v_mad_i16, A * B + C, saturate_i16(saturate_i32(wide(short_of(A)) * short_of(B) + short_of(C))))
OP_MAD(v_mad_u32_u16, A * B + C, saturate_u32((uint64_t)A * B + C))
OP_MAD(v_mad_i32_i16, (uint32_t)(short_of(A) * short_of(B)) + C, saturate_i32(wide(short_of(A) * short_of(B)) + SC))

// LLVM computes 32-bit sums of products with this and leaves the upper word of the third source undefined.
static void write_wide(LaneOp *x) {
    const mask64 factors = x->lo[0] & x->hi[0] & x->lo[1] & x->hi[1], low = factors & word_known(x, 2, 0);
    const mask64 all = low & word_known(x, 2, 1);
    write_pair(x, x->in->flags & CLAMP ? all : low, all);
}

static void v_mad_u64_u32(LaneOp *x) {
    mask64 out = 0;
    EACH {
        const uint64_t c = QC, t = (uint64_t)A * B + c;
        out |= (mask64)(t < c) << i;
        x->d.q[i] = t;
    }
    x->dm = out;
    if (x->in->flags & CLAMP) EACH x->d.q[i] = out >> i & 1 ? ~0ull : x->d.q[i];
    write_wide(x);
}

// The carry of the signed form is bit 64 of the exact, sign-extended sum.
static void v_mad_i64_i32(LaneOp *x) {
    mask64 out = 0;
    EACH {
        const int64_t p = wide(SA) * SB, c = x->s[2]->l[i];
        const uint64_t t = (uint64_t)p + (uint64_t)c;
        const bool overflow = ((t ^ (uint64_t)p) & (t ^ (uint64_t)c)) >> 63;
        out |= (mask64)((t >> 63) ^ overflow) << i;
        x->d.q[i] = x->in->flags & CLAMP && overflow ? (c < 0 ? 1ull << 63 : ~0ull >> 1) : t;
    }
    x->dm = out;
    write_wide(x);
}

// Bits --------------------------------------------------------------------------------------------

OP_PARTIAL(v_not_b32, ~A, 1, da)
OP_PARTIAL(v_and_b32, A & B, 2, known_and(a, da, b, db))
OP_PARTIAL(v_or_b32, A | B, 2, known_or(a, da, b, db))
OP_PARTIAL(v_xor_b32, A ^ B, 2, da & db)
OP_PARTIAL(v_xnor_b32, ~(A ^ B), 2, da & db)
OP_PARTIAL(v_xor3_b32, A ^ B ^ C, 3, da & db & dc)
OP_PARTIAL(v_or3_b32, A | B | C, 3, known_or(a | b, known_or(a, da, b, db), c, dc))
OP_PARTIAL(v_and_or_b32, (A & B) | C, 3, known_or(a & b, known_and(a, da, b, db), c, dc))
OP_PARTIAL(v_lshl_or_b32, (A << (B & 31)) | C, 3, known_or(a << (b & 31), known_shl(da, b, db), c, dc))
OP(v_not_b16, ~A)
OP(v_and_b16, A & B)
OP(v_or_b16, A | B)
OP(v_xor_b16, A ^ B)

// The truth table, in aux[2], has the result of a=1, b=1, c=1 in its highest bit.
static inline uint32_t truth(uint32_t table, uint32_t a, uint32_t b, uint32_t c) {
    uint32_t out = 0;
    for (uint32_t k = 0; k < 8; k++)
        if (table >> k & 1) out |= (k & 4 ? a : ~a) & (k & 2 ? b : ~b) & (k & 1 ? c : ~c);
    return out;
}
// A bit is known when the other value of each of its unknown inputs would give the same.
static inline uint32_t known_truth(uint32_t table, uint32_t a, uint32_t da, uint32_t b, uint32_t db, uint32_t c,
                                   uint32_t dc) {
    const uint32_t result = truth(table, a, b, c);
    uint32_t differs = 0;
    for (uint32_t k = 1; k < 8; k++) {
        const uint32_t fa = k & 4 ? ~da : 0, fb = k & 2 ? ~db : 0, fc = k & 1 ? ~dc : 0;
        differs |= truth(table, a ^ fa, b ^ fb, c ^ fc) ^ result;
    }
    return ~differs;
}
static void v_bitop3_b32(LaneOp *x) {
    const uint32_t table = x->in->aux[2];
    for (uint32_t k = 0; k < 8; k++) {
        const uint32_t in = table >> k & 1 ? ~0u : 0, na = k & 4 ? 0 : ~0u, nb = k & 2 ? 0 : ~0u, nc = k & 1 ? 0 : ~0u;
        EACH {
            const uint32_t term = (A ^ na) & (B ^ nb) & (C ^ nc) & in;
            x->d.u[i] = k ? x->d.u[i] | term : term;
        }
    }
    PARTIAL(3, known_truth(table, a, da, b, db, c, dc));
}
static void v_bitop3_b16(LaneOp *x) {
    v_bitop3_b32(x);
    x->dhi = x->dlo;
}

OP_PARTIAL(v_bfe_u32, A >> (B & 31) & ((1u << (C & 31)) - 1), 3,
           dc == ~0u ? known_shr(da, b, db) | ~((1u << (c & 31)) - 1) : 0)
static inline uint32_t extract_signed(uint32_t v, uint32_t from, uint32_t width) {
    const uint32_t rest = (32 - width) & 31;
    return width ? (uint32_t)((int32_t)((uint32_t)((int32_t)v >> from) << rest) >> rest) : 0;
}
OP_PARTIAL(v_bfe_i32, extract_signed(A, B & 31, C & 31), 3,
           dc != ~0u ? 0 : (c & 31) == 0 ? ~0u : db == ~0u ? extract_signed(da, b & 31, c & 31) : 0)
OP_PARTIAL(v_bfi_b32, (A & B) | (~A & C), 3, (da & ((a & db) | (~a & dc))) | (db & dc & ~(b ^ c)))
OP(v_bfm_b32, ((1u << (A & 31)) - 1) << (B & 31))
OP(v_bfrev_b32, __builtin_bitreverse32(A))
static void turn_definedness(LaneOp *x) { x->dlo = x->hi[0], x->dhi = x->lo[0]; }
static void v_bfrev(LaneOp *x) { v_bfrev_b32(x), turn_definedness(x); }

static inline uint32_t align(uint32_t a, uint32_t b, uint32_t n) { return (uint32_t)(((uint64_t)a << 32 | b) >> n); }
OP_PARTIAL(v_alignbit_b32, align(A, B, C & 31), 3, known_align(da, db, c & 31, dc))
OP_PARTIAL(v_alignbyte_b32, align(A, B, (C & 3) * 8), 3, known_align(da, db, (c & 3) * 8, dc))

// One byte of {a, b}: 0..3 of b, 4..7 of a, 8..11 the sign of a half, 12 zero, beyond that 0xff.
static inline uint32_t chosen_byte(uint32_t a, uint32_t b, uint32_t select, uint32_t zero, uint32_t ones) {
    const uint64_t all = (uint64_t)a << 32 | b;
    const uint32_t plain = (uint32_t)(all >> (select & 7) * 8) & 0xff;
    const uint32_t sign = all >> ((select & 3) * 16 + 15) & 1 ? 0xff : 0;
    return select < 8 ? plain : select < 12 ? sign : select == 12 ? zero : ones;
}
static inline uint32_t permute_bytes(uint32_t a, uint32_t b, uint32_t select, uint32_t zero, uint32_t ones) {
    return chosen_byte(a, b, select & 0xff, zero, ones) | chosen_byte(a, b, select >> 8 & 0xff, zero, ones) << 8 |
           chosen_byte(a, b, select >> 16 & 0xff, zero, ones) << 16 | chosen_byte(a, b, select >> 24, zero, ones) << 24;
}
// Bytes of a and b alone: all bytes of the selector are below 8. Mostly it is one for all lanes.
static void permute_alike(LaneOp *x, uint32_t select) {
    const uint32_t *word[4];
    uint32_t shift[4];
    for (int k = 0; k < 4; k++) {
        word[k] = x->s[select >> (8 * k + 2) & 1 ? 0 : 1]->u;
        shift[k] = (select >> 8 * k & 3) * 8;
    }
    EACH x->d.u[i] = (word[0][i] >> shift[0] & 0xff) | (word[1][i] >> shift[1] & 0xff) << 8 |
                     (word[2][i] >> shift[2] & 0xff) << 16 | word[3][i] >> shift[3] << 24;
}
static inline uint32_t picked_byte(uint32_t a, uint32_t b, uint32_t select) { return (select & 4 ? a : b) >> (select & 3) * 8 & 0xff; }
static void v_perm_b32(LaneOp *x) {
    uint32_t all = 0;
    EACH all |= C;
    if (all & 0xf8f8f8f8u) EACH x->d.u[i] = permute_bytes(A, B, C, 0, 0xff);
    else if (x->in->src[2].kind != VGPR) permute_alike(x, x->s[2]->u[0]);
    else EACH x->d.u[i] = picked_byte(A, B, C) | picked_byte(A, B, C >> 8) << 8 | picked_byte(A, B, C >> 16) << 16 |
                          picked_byte(A, B, C >> 24) << 24;
    PARTIAL(3, dc == ~0u ? permute_bytes(da, db, c, 0xff, 0xff) : 0);
}

// Counting ----------------------------------------------------------------------------------------

OP(v_bcnt_u32_b32, (uint32_t)__builtin_popcount(A) + B)
static void v_mbcnt_lo_u32_b32(LaneOp *x) {
    EACH {
        const uint32_t below = i < 32 ? (1u << (i & 31)) - 1 : ~0u;
        x->d.u[i] = (uint32_t)__builtin_popcount(A & below) + B;
    }
}
static void v_mbcnt_hi_u32_b32(LaneOp *x) {
    EACH {
        const uint32_t below = i < 32 ? 0 : (1u << (i & 31)) - 1;
        x->d.u[i] = (uint32_t)__builtin_popcount(A & below) + B;
    }
}
OP(v_ffbh_u32, A ? __builtin_clz(A | !A) : -1)
OP(v_ffbl_b32, A ? __builtin_ctz(A | !A) : -1)
static inline uint32_t leading_signs(uint32_t v) {
    const uint32_t turned = v ^ (uint32_t)((int32_t)v >> 31);
    return turned ? (uint32_t)__builtin_clz(turned) : ~0u;
}
OP(v_ffbh_i32, leading_signs(A))

// Shifts ------------------------------------------------------------------------------------------

OP_PARTIAL(v_lshlrev_b32, B << (A & 31), 2, known_shl(db, a, da))
OP_PARTIAL(v_lshrrev_b32, B >> (A & 31), 2, known_shr(db, a, da))
OP_PARTIAL(v_ashrrev_i32, SB >> (A & 31), 2, known_ashr(db, a, da))
OP64(v_lshlrev_b64, QB << (A & 63))
OP64(v_lshrrev_b64, QB >> (A & 63))
OP64(v_ashrrev_i64, x->s[1]->l[i] >> (A & 63))
OP(v_lshlrev_b16, B << (A & 15))
OP(v_lshrrev_b16, (B & 0xffff) >> (A & 15))
OP(v_ashrrev_i16, short_of(B) >> (A & 15))

static inline uint32_t byte_signed(int32_t v) { return (uint32_t)smin(smax(v, -128), 127) & 0xff; }
static inline uint32_t byte_unsigned(int32_t v) { return (uint32_t)smin(smax(v, 0), 255); }
OP(v_ashr_pk_i8_i32, byte_signed(SA >> (C & 31)) | byte_signed(SB >> (C & 31)) << 8)
OP(v_ashr_pk_u8_i32, byte_unsigned(SA >> (C & 31)) | byte_unsigned(SB >> (C & 31)) << 8)
OP(v_sat_pk_u8_i16, byte_unsigned(short_of(A)) | byte_unsigned((int32_t)A >> 16) << 8)

// Order -------------------------------------------------------------------------------------------

#define ORDER(type, min, max, a, b, c)                                                                                 \
    OP(v_min_##type, min(a, b))                                                                                        \
    OP(v_max_##type, max(a, b))                                                                                        \
    OP(v_min3_##type, min(min(a, b), c))                                                                               \
    OP(v_max3_##type, max(max(a, b), c))                                                                               \
    OP(v_med3_##type, max(min(a, b), min(max(a, b), c)))
ORDER(u32, umin, umax, A, B, C)
ORDER(i32, smin, smax, SA, SB, SC)
ORDER(u16, umin, umax, A, B, C)
ORDER(i16, smin, smax, short_of(A), short_of(B), short_of(C))
OP(v_maxmin_u32, umin(umax(A, B), C))
OP(v_maxmin_i32, smin(smax(SA, SB), SC))
OP(v_minmax_u32, umax(umin(A, B), C))
OP(v_minmax_i32, smax(smin(SA, SB), SC))

// Sums of absolute differences, and other things for pictures ----------------------------------------

static inline uint32_t distance(uint32_t a, uint32_t b) { return a > b ? a - b : b - a; }
static inline uint32_t byte_of(uint32_t v, int k) { return v >> 8 * k & 0xff; }
static inline uint32_t sad(uint32_t a, uint32_t b) {
    uint32_t sum = 0;
    for (int k = 0; k < 4; k++) sum += distance(byte_of(a, k), byte_of(b, k));
    return sum;
}
// A byte of `b` that is 0 masks its pair out.
static inline uint32_t msad(uint32_t a, uint32_t b) {
    uint32_t sum = 0;
    for (int k = 0; k < 4; k++) sum += byte_of(b, k) ? distance(byte_of(a, k), byte_of(b, k)) : 0;
    return sum;
}
static inline uint32_t sad16(uint32_t a, uint32_t b) {
    return distance(a & 0xffff, b & 0xffff) + distance(a >> 16, b >> 16);
}
OP_MAD(v_sad_u8, sad(A, B) + C, saturate_u32((uint64_t)sad(A, B) + C))
OP_MAD(v_sad_hi_u8, (sad(A, B) << 16) + C, saturate_u32(((uint64_t)sad(A, B) << 16) + C))
OP_MAD(v_sad_u16, sad16(A, B) + C, saturate_u32((uint64_t)sad16(A, B) + C))
OP_MAD(v_sad_u32, distance(A, B) + C, saturate_u32((uint64_t)distance(A, B) + C))
OP_MAD(v_msad_u8, msad(A, B) + C, saturate_u32((uint64_t)msad(A, B) + C))

// Four sums over the windows of a that begin at bytes 0..3, in 16 bits each.
#define OP_WINDOWS(name, one)                                                                                          \
    static void name(LaneOp *x) {                                                                                      \
        const uint32_t most = x->in->flags & CLAMP ? 0xffff : ~0u;                                                     \
        EACH {                                                                                                         \
            uint64_t out = 0;                                                                                          \
            for (int k = 0; k < 4; k++) {                                                                              \
                const uint32_t sum = one((uint32_t)(QA >> 8 * k), B) + (uint32_t)(QC >> 16 * k & 0xffff);              \
                out |= (uint64_t)(umin(sum, most) & 0xffff) << 16 * k;                                                 \
            }                                                                                                          \
            x->d.q[i] = out;                                                                                           \
        }                                                                                                              \
    }
OP_WINDOWS(v_qsad_pk_u16_u8, sad)
OP_WINDOWS(v_mqsad_pk_u16_u8, msad)

static void v_mqsad_u32_u8(LaneOp *x) {
    Wave *w = x->w;
    const Inst *in = x->in;
    uint32_t space[LANES], out[4][LANES];
    mask64 known = x->dlo & x->dhi;
    for (int k = 0; k < 4; k++) {
        mask64 lo, hi;
        const uint32_t *c = read_words(w, &in->src[2], k, space, &lo, &hi);
        known &= lo & hi;
        EACH {
            const uint64_t sum = (uint64_t)msad((uint32_t)(QA >> 8 * k), B) + c[i];
            out[k][i] = in->flags & CLAMP ? saturate_u32(sum) : (uint32_t)sum;
        }
    }
    for (int k = 0; k < 4; k++) write_words(w, in->dst[0].index + k, out[k], x->exec, known, known);
}

// Each byte the mean of two, rounded up where the low bit of c's byte says so.
static inline uint32_t lerp(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t out = 0;
    for (int k = 0; k < 4; k++) out |= (byte_of(a, k) + byte_of(b, k) + (byte_of(c, k) & 1)) >> 1 << 8 * k;
    return out;
}
OP(v_lerp_u8, lerp(A, B, C))
OP(v_prng_b32, A << 1 ^ (A >> 31 ? 197u : 0))

#define NAMED(name, fn, signature) {#name, signature, step_lane, (void *)fn, C_VALU, 0}
#define ORDER_ROWS(type, letter)                                                                                       \
    LANE_OP(v_min_##type, letter "=" letter letter), LANE_OP(v_max_##type, letter "=" letter letter),                  \
    LANE_OP(v_min3_##type, letter "=" letter letter letter), LANE_OP(v_max3_##type, letter "=" letter letter letter),  \
    LANE_OP(v_med3_##type, letter "=" letter letter letter)

const OpInfo ops_valu_int[] = {
    LANE_OP(v_mov_b32, "b=b"), LANE_OP(v_mov_b16, "w=w"), LANE_OP(v_mov_b64, "r=q"),
    LANE_OP(v_cndmask_b32, "b=bbm"), LANE_OP(v_cndmask_b16, "w=wwm"),
    LANE_OP(v_add_u32, "b=bb"), LANE_OP(v_sub_u32, "b=bb"), LANE_OP(v_subrev_u32, "b=bb"),
    LANE_OP(v_add_i32, "b=bb"), LANE_OP(v_sub_i32, "b=bb"),
    LANE_OP(v_add_u16, "w=ww"), LANE_OP(v_sub_u16, "w=ww"), LANE_OP(v_subrev_u16, "w=ww"),
    LANE_OP(v_add_i16, "w=ww"), LANE_OP(v_sub_i16, "w=ww"),
    LANE_OP(v_add3_u32, "b=bbb"), LANE_OP(v_add_lshl_u32, "b=bbb"), LANE_OP(v_lshl_add_u32, "b=bbb"),
    LANE_OP(v_xad_u32, "b=bbb"), LANE_OP(v_lshl_add_u64, "q=qbq"),
    LANE_OP(v_add_co_u32, "bm=bb"), LANE_OP(v_sub_co_u32, "bm=bb"), LANE_OP(v_subrev_co_u32, "bm=bb"),
    LANE_OP(v_addc_co_u32, "bm=bbm"), LANE_OP(v_subb_co_u32, "bm=bbm"), LANE_OP(v_subbrev_co_u32, "bm=bbm"),
    LANE_OP(v_mul_lo_u32, "b=bb"), NAMED(v_mul_lo_i32, v_mul_lo_u32, "b=bb"),
    LANE_OP(v_mul_hi_u32, "b=bb"), LANE_OP(v_mul_hi_i32, "b=bb"), LANE_OP(v_mul_lo_u16, "w=ww"),
    LANE_OP(v_mul_u32_u24, "b=bb"), LANE_OP(v_mul_hi_u32_u24, "b=bb"),
    LANE_OP(v_mul_i32_i24, "b=bb"), LANE_OP(v_mul_hi_i32_i24, "b=bb"),
    LANE_OP(v_mad_u32_u24, "b=bbb"), LANE_OP(v_mad_i32_i24, "b=bbb"),
    LANE_OP(v_mad_u16, "w=www"), LANE_OP(v_mad_i16, "w=www"),
    NAMED(v_mad_legacy_u16, v_mad_u16, "w=www"), NAMED(v_mad_legacy_i16, v_mad_i16, "w=www"),
    LANE_OP(v_mad_u32_u16, "b=wwb"), LANE_OP(v_mad_i32_i16, "b=wwb"),
    LANE_OP(v_mad_u64_u32, "rm=bbq"), LANE_OP(v_mad_i64_i32, "rm=bbq"),
    LANE_OP(v_not_b32, "b=b"), LANE_OP(v_and_b32, "b=bb"), LANE_OP(v_or_b32, "b=bb"), LANE_OP(v_xor_b32, "b=bb"),
    LANE_OP(v_xnor_b32, "b=bb"), LANE_OP(v_xor3_b32, "b=bbb"), LANE_OP(v_or3_b32, "b=bbb"),
    LANE_OP(v_and_or_b32, "b=bbb"), LANE_OP(v_lshl_or_b32, "b=bbb"),
    LANE_OP(v_not_b16, "w=w"), LANE_OP(v_and_b16, "w=ww"), LANE_OP(v_or_b16, "w=ww"), LANE_OP(v_xor_b16, "w=ww"),
    LANE_OP(v_bitop3_b32, "b=bbb"), LANE_OP(v_bitop3_b16, "w=www"),
    LANE_OP(v_bfe_u32, "b=bbb"), LANE_OP(v_bfe_i32, "b=bbb"), LANE_OP(v_bfi_b32, "b=bbb"), LANE_OP(v_bfm_b32, "b=bb"),
    NAMED(v_bfrev_b32, v_bfrev, "b=b"), LANE_OP(v_alignbit_b32, "b=bbb"), LANE_OP(v_alignbyte_b32, "b=bbb"),
    LANE_OP(v_perm_b32, "b=bbb"),
    LANE_OP(v_bcnt_u32_b32, "b=bb"), LANE_OP(v_mbcnt_lo_u32_b32, "b=bb"), LANE_OP(v_mbcnt_hi_u32_b32, "b=bb"),
    LANE_OP(v_ffbh_u32, "b=b"), LANE_OP(v_ffbl_b32, "b=b"), LANE_OP(v_ffbh_i32, "b=b"),
    LANE_OP(v_lshlrev_b32, "b=bb"), LANE_OP(v_lshrrev_b32, "b=bb"), LANE_OP(v_ashrrev_i32, "b=bb"),
    LANE_OP(v_lshlrev_b64, "q=bq"), LANE_OP(v_lshrrev_b64, "q=bq"), LANE_OP(v_ashrrev_i64, "q=bq"),
    LANE_OP(v_lshlrev_b16, "w=ww"), LANE_OP(v_lshrrev_b16, "w=ww"), LANE_OP(v_ashrrev_i16, "w=ww"),
    LANE_OP(v_ashr_pk_i8_i32, "w=bbb"), LANE_OP(v_ashr_pk_u8_i32, "w=bbb"), LANE_OP(v_sat_pk_u8_i16, "w=b"),
    ORDER_ROWS(u32, "b"), ORDER_ROWS(i32, "b"), ORDER_ROWS(u16, "w"), ORDER_ROWS(i16, "w"),
    LANE_OP(v_maxmin_u32, "b=bbb"), LANE_OP(v_maxmin_i32, "b=bbb"),
    LANE_OP(v_minmax_u32, "b=bbb"), LANE_OP(v_minmax_i32, "b=bbb"),
    LANE_OP(v_sad_u8, "b=bbb"), LANE_OP(v_sad_hi_u8, "b=bbb"), LANE_OP(v_sad_u16, "b=bbb"), LANE_OP(v_sad_u32, "b=bbb"),
    LANE_OP(v_msad_u8, "b=bbb"), LANE_OP(v_qsad_pk_u16_u8, "q=qbq"), LANE_OP(v_mqsad_pk_u16_u8, "q=qbq"),
    LANE_OP(v_mqsad_u32_u8, "r=qbr"), LANE_OP(v_lerp_u8, "b=bbb"), LANE_OP(v_prng_b32, "b=b"),
    OPS_END,
};

// Vector compares: v_cmp_* and v_cmpx_*, whose difference (v_cmpx writes EXEC) is the shared step's.
//
// The float conditions follow IEEE 754: those whose name begins with n, and u and tru, also hold for unordered
// operands. Class tests look at the bits, whatever the denormal mode (AMD ISA guides, V_CMP_CLASS_F32).
#include "half.h"

typedef uint8_t Bytes __attribute__((ext_vector_type(64)));
typedef bool Bits __attribute__((ext_vector_type(64)));

// One bit per lane from bytes that are 0 or 1.
static mask64 pack(const uint8_t *truth) {
    Bytes bytes;
    memcpy(&bytes, truth, sizeof bytes);
    const Bits bits = __builtin_convertvector(bytes, Bits);
    mask64 mask;
    memcpy(&mask, &bits, sizeof mask);
    return mask;
}

#define WHERE(condition)                                                                                               \
    uint8_t truth[LANES];                                                                                              \
    EACH truth[i] = (condition);                                                                                       \
    x->dm = pack(truth)

#define CONDITION(name, type, member, condition)                                                                       \
    static void cmp_##name##_##type(LaneOp *x) {                                                                       \
        const Vec *s0 = x->s[0], *s1 = x->s[1];                                                                        \
        WHERE(({                                                                                                       \
            const TYPE_##type a = (TYPE_##type)s0->member[i], b = (TYPE_##type)s1->member[i];                          \
            condition;                                                                                                 \
        }));                                                                                                           \
    }
#define TYPE_i16 int16_t
#define TYPE_u16 uint16_t
#define TYPE_i32 int32_t
#define TYPE_u32 uint32_t
#define TYPE_i64 int64_t
#define TYPE_u64 uint64_t
#define TYPE_f32 float
#define TYPE_f64 double

#define INTEGER(type, member)                                                                                          \
    CONDITION(lt, type, member, a < b)                                                                                 \
    CONDITION(eq, type, member, a == b)                                                                                \
    CONDITION(le, type, member, a <= b)                                                                                \
    CONDITION(gt, type, member, a > b)                                                                                 \
    CONDITION(ne, type, member, a != b)                                                                                \
    CONDITION(ge, type, member, a >= b)
INTEGER(i16, u)
INTEGER(u16, u)
INTEGER(i32, i)
INTEGER(u32, u)
INTEGER(i64, l)
INTEGER(u64, q)

#define FLOATING(CONDITION, type, member)                                                                              \
    CONDITION(lt, type, member, a < b)                                                                                 \
    CONDITION(eq, type, member, a == b)                                                                                \
    CONDITION(le, type, member, a <= b)                                                                                \
    CONDITION(gt, type, member, a > b)                                                                                 \
    CONDITION(lg, type, member, a < b || a > b)                                                                        \
    CONDITION(ge, type, member, a >= b)                                                                                \
    CONDITION(o, type, member, a == a && b == b)                                                                       \
    CONDITION(u, type, member, a != a || b != b)                                                                       \
    CONDITION(nge, type, member, !(a >= b))                                                                            \
    CONDITION(nlg, type, member, !(a < b || a > b))                                                                    \
    CONDITION(ngt, type, member, !(a > b))                                                                             \
    CONDITION(nle, type, member, !(a <= b))                                                                            \
    CONDITION(neq, type, member, a != b)                                                                               \
    CONDITION(nlt, type, member, !(a < b))
FLOATING(CONDITION, f32, f)
FLOATING(CONDITION, f64, d)

#define HALF_CONDITION(name, type, member, condition)                                                                  \
    static void cmp_##name##_##type(LaneOp *x) {                                                                       \
        float s0[LANES], s1[LANES];                                                                                    \
        halves_to_floats(x->s[0]->member, s0);                                                                         \
        halves_to_floats(x->s[1]->member, s1);                                                                         \
        WHERE(({ const float a = s0[i], b = s1[i]; condition; }));                                                     \
    }
FLOATING(HALF_CONDITION, f16, u)

static void never(LaneOp *x) { x->dm = 0, x->dmdef = ~0ull; }
static void always(LaneOp *x) { x->dm = ~0ull, x->dmdef = ~0ull; }

// The bit of the class mask that a value belongs to: NaN signalling 0, quiet 1; -inf 2, -normal 3, -subnormal 4,
// -0 5, +0 6, +subnormal 7, +normal 8, +inf 9.
static inline uint32_t class_bit(bool negative, uint64_t magnitude, uint64_t infinity, uint64_t quiet, uint64_t normal) {
    const uint32_t positive_bit = magnitude == infinity ? 9 : magnitude >= normal ? 8 : magnitude ? 7 : 6;
    const uint32_t bit = negative ? 11 - positive_bit : positive_bit;
    return magnitude > infinity ? (magnitude & quiet ? 1 : 0) : bit;
}

static void cmp_class_f16(LaneOp *x) {
    const Vec *s0 = x->s[0], *s1 = x->s[1];
    WHERE(s1->u[i] >> class_bit(s0->u[i] >> 15 & 1, s0->u[i] & 0x7fff, 0x7c00, 0x200, 0x400) & 1);
}
static void cmp_class_f32(LaneOp *x) {
    const Vec *s0 = x->s[0], *s1 = x->s[1];
    WHERE(s1->u[i] >> class_bit(s0->u[i] >> 31, s0->u[i] & 0x7fffffff, 0x7f800000, 0x400000, 0x800000) & 1);
}
static void cmp_class_f64(LaneOp *x) {
    const Vec *s0 = x->s[0], *s1 = x->s[1];
    WHERE(s1->u[i] >> class_bit(s0->q[i] >> 63, s0->q[i] & ~0ull >> 1, 0x7ffull << 52, 1ull << 51, 1ull << 52) & 1);
}

#define ROW(suffix, signature, fn)                                                                                     \
    {"v_cmp_" suffix, signature, step_lane, (void *)fn, C_VALU, 0},                                                    \
    {"v_cmpx_" suffix, signature, step_lane, (void *)fn, C_VALU, 0}
#define INTEGER_ROWS(type, signature)                                                                                  \
    ROW("f_" #type, signature, never), ROW("lt_" #type, signature, cmp_lt_##type),                                     \
    ROW("eq_" #type, signature, cmp_eq_##type), ROW("le_" #type, signature, cmp_le_##type),                            \
    ROW("gt_" #type, signature, cmp_gt_##type), ROW("ne_" #type, signature, cmp_ne_##type),                            \
    ROW("ge_" #type, signature, cmp_ge_##type), ROW("t_" #type, signature, always)
#define FLOATING_ROWS(type, signature)                                                                                 \
    ROW("f_" #type, signature, never), ROW("lt_" #type, signature, cmp_lt_##type),                                     \
    ROW("eq_" #type, signature, cmp_eq_##type), ROW("le_" #type, signature, cmp_le_##type),                            \
    ROW("gt_" #type, signature, cmp_gt_##type), ROW("lg_" #type, signature, cmp_lg_##type),                            \
    ROW("ge_" #type, signature, cmp_ge_##type), ROW("o_" #type, signature, cmp_o_##type),                              \
    ROW("u_" #type, signature, cmp_u_##type), ROW("nge_" #type, signature, cmp_nge_##type),                            \
    ROW("nlg_" #type, signature, cmp_nlg_##type), ROW("ngt_" #type, signature, cmp_ngt_##type),                        \
    ROW("nle_" #type, signature, cmp_nle_##type), ROW("neq_" #type, signature, cmp_neq_##type),                        \
    ROW("nlt_" #type, signature, cmp_nlt_##type), ROW("tru_" #type, signature, always),                                \
    ROW("t_" #type, signature, always)

const OpInfo ops_valu_compare[] = {
    INTEGER_ROWS(i16, "m=ww"),
    INTEGER_ROWS(u16, "m=ww"),
    INTEGER_ROWS(i32, "m=bb"),
    INTEGER_ROWS(u32, "m=bb"),
    INTEGER_ROWS(i64, "m=qq"),
    INTEGER_ROWS(u64, "m=qq"),
    FLOATING_ROWS(f16, "m=hh"),
    FLOATING_ROWS(f32, "m=ff"),
    FLOATING_ROWS(f64, "m=dd"),
    ROW("class_f16", "m=ww", cmp_class_f16),
    ROW("class_f32", "m=bb", cmp_class_f32),
    ROW("class_f64", "m=qb", cmp_class_f64),
    OPS_END,
};

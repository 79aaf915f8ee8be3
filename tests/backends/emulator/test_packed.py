"""Packed arithmetic on pairs of f16, 16-bit integers and f32, and the dot products."""

from __future__ import annotations

import pytest
from expect_float import F16, F32, NAN, of, pick, rule_add, rule_fma, rule_mul, unpack
from expect_int import clamp, s, u
from instructions import ANY_NAN, ARCHS, GFX9, GFX11, Probe, Suite, check, check_all, seed
from vectors import operand_rows

SUITE = Suite("packed")


def add(name, ins, outs, rule, asm=None, archs=ARCHS, extra=(), count=256, vectors=None, **more):
    ins, outs = tuple(ins.split()), tuple(outs.split())
    if asm is None:
        asm = f"{name} {{d}}, " + ", ".join("{" + letter + "}" for letter in "abc"[: len(ins)])
    key = name + more.get("tag", "")
    SUITE.add(
        Probe(name, asm, ins, outs, rule, vectors or operand_rows(key, ins, count, extra), archs, **more)
    )


def half(value, which):
    return value >> 16 * which & 0xFFFF


def packed(rule, low=(0, 0, 0), high=(1, 1, 1), neg_low=(0, 0, 0), neg_high=(0, 0, 0)):
    """`low`/`high`: which half of each source feeds the low/high result (op_sel, op_sel_hi)."""

    def found(*x):
        return [
            rule(*(half(v, w) ^ 0x8000 * n for v, w, n in zip(x, which, flips, strict=False)))
            for which, flips in ((low, neg_low), (high, neg_high))
        ]

    return found


FLOATS = {
    "v_pk_add_f16": (2, rule_add(F16)),
    "v_pk_mul_f16": (2, rule_mul(F16)),
    "v_pk_fma_f16": (3, rule_fma(F16)),
    "v_pk_min_f16": (2, lambda a, b: pick(a, b, F16, False)),
    "v_pk_max_f16": (2, lambda a, b: pick(a, b, F16, True)),
}
for name, (count, rule) in FLOATS.items():
    kinds = " ".join(["pkf16"] * count)
    names = ", ".join("{" + letter + "}" for letter in "abc"[:count])
    add(name, kinds, "pkf16", packed(rule))
    zeros, ones = [0] * count, [1] * count
    low, high = [1, *zeros[1:]], [0, *ones[1:]]
    mods = f" op_sel:{low} op_sel_hi:{high}".replace(", ", ",")
    add(name, kinds, "pkf16", packed(rule, low, high), f"{name} {{d}}, {names}{mods}", tag="swap")
    neg_low, neg_high = [0] * (count - 1) + [1], [1] + [0] * (count - 1)
    mods = f" neg_lo:{neg_low} neg_hi:{neg_high}".replace(", ", ",")
    add(
        name,
        kinds,
        "pkf16",
        packed(rule, neg_low=neg_low, neg_high=neg_high),
        f"{name} {{d}}, {names}{mods}",
        tag="neg",
    )
    add(
        name,
        kinds,
        "pkf16",
        packed(rule, high=zeros),
        f"{name} {{d}}, {names} op_sel_hi:{zeros}".replace(", 0", ",0"),
        tag="low_twice",
    )


def limited(rule):
    def found(*x):
        result = rule(*x)
        if result is ANY_NAN or result & 0x8000:
            return 0
        return min(result, 0x3C00)

    return found


plain = [(x, y) for x in (0x3C003800, 0xBC004400, 0x7E003A00) for y in (0x34003C00, 0x3C003400)]
add(
    "v_pk_add_f16",
    "pkf16 pkf16",
    "pkf16",
    packed(limited(rule_add(F16))),
    "v_pk_add_f16 {d}, {a}, {b} clamp",
    tag="clamp",
    vectors=tuple(plain),
)
# A constant is used for both halves where op_sel_hi says so; gfx9 and later put it in the low half.
add(
    "v_pk_mul_f16",
    "pkf16",
    "pkf16",
    lambda a: [rule_mul(F16)(half(a, i), 0x4000) for i in (0, 1)],
    "v_pk_mul_f16 {d}, {a}, 2.0 op_sel_hi:[1,0]",
    tag="inline",
)
add(
    "v_pk_fmac_f16",
    "pkf16 pkf16 pkf16",
    "=c:pkf16",
    packed(rule_fma(F16)),
    "v_pk_fmac_f16 {c}, {a}, {b}",
    GFX9,
)


def three(larger):
    def rule(a, b, c):
        if any(unpack(x, F16).kind == NAN for x in (a, b, c)):
            return ANY_NAN
        return pick(pick(a, b, F16, larger), c, F16, larger)

    return rule


add("v_pk_minimum3_f16", "pkf16 pkf16 pkf16", "pkf16", packed(three(False)), archs=("gfx950",))
add("v_pk_maximum3_f16", "pkf16 pkf16 pkf16", "pkf16", packed(three(True)), archs=("gfx950",))
for word, larger in (("minimum", False), ("maximum", True)):
    add(
        f"v_pk_{word}_f16",
        "pkf16 pkf16",
        "pkf16",
        packed(lambda a, b, larger=larger: three(larger)(a, b, b)),
        archs=("gfx1201",),
    )


def i16(value):
    return s(value, 16)


INTS = {
    "v_pk_add_u16": lambda a, b: a + b,
    "v_pk_sub_u16": lambda a, b: a - b,
    "v_pk_add_i16": lambda a, b: a + b,
    "v_pk_sub_i16": lambda a, b: a - b,
    "v_pk_mul_lo_u16": lambda a, b: a * b,
    "v_pk_lshlrev_b16": lambda a, b: b << (a & 15),
    "v_pk_lshrrev_b16": lambda a, b: b >> (a & 15),
    "v_pk_ashrrev_i16": lambda a, b: i16(b) >> (a & 15),
    "v_pk_min_u16": min,
    "v_pk_max_u16": max,
    "v_pk_min_i16": lambda a, b: min(i16(a), i16(b)),
    "v_pk_max_i16": lambda a, b: max(i16(a), i16(b)),
    "v_pk_mad_u16": lambda a, b, c: a * b + c,
    "v_pk_mad_i16": lambda a, b, c: i16(a) * i16(b) + i16(c),
}


def both(rule, **selects):
    pair = packed(lambda *x: u(rule(*x), 16), **selects)
    return lambda *x: pair(*x)[0] | pair(*x)[1] << 16


for name, rule in INTS.items():
    count = 3 if "mad" in name else 2
    kinds = " ".join(["pku16"] * count)
    names = ", ".join("{" + letter + "}" for letter in "abc"[:count])
    add(name, kinds, "u32", both(rule))
    low, high = [0, 1, 0][:count], [0, 1, 0][:count]
    mods = f" op_sel:{low} op_sel_hi:{high}".replace(", ", ",")
    add(
        name,
        kinds,
        "u32",
        both(rule, low=low, high=high),
        f"{name} {{d}}, {names}{mods}",
        tag="select",
        count=128,
    )
add(
    "v_pk_add_u16",
    "pku16 pku16",
    "u32",
    both(lambda a, b: min(a + b, 0xFFFF)),
    "v_pk_add_u16 {d}, {a}, {b} clamp",
    tag="clamp",
)
add(
    "v_pk_sub_u16",
    "pku16 pku16",
    "u32",
    both(lambda a, b: max(a - b, 0)),
    "v_pk_sub_u16 {d}, {a}, {b} clamp",
    tag="clamp",
)
add(
    "v_pk_add_i16",
    "pku16 pku16",
    "u32",
    both(lambda a, b: clamp(i16(a) + i16(b), -32768, 32767)),
    "v_pk_add_i16 {d}, {a}, {b} clamp",
    tag="clamp",
)


# Pairs of f32 in gfx90a and later: op_sel chooses the register of each pair.
def packed32(rule, low=(0, 0, 0), high=(1, 1, 1), neg_low=(0, 0, 0), neg_high=(0, 0, 0)):
    def found(*x):
        return [
            rule(
                *(
                    (v >> 32 * w & 0xFFFFFFFF) ^ 0x80000000 * n
                    for v, w, n in zip(x, which, flips, strict=False)
                )
            )
            for which, flips in ((low, neg_low), (high, neg_high))
        ]

    return found


for name, (count, rule) in {
    "v_pk_add_f32": (2, rule_add(F32)),
    "v_pk_mul_f32": (2, rule_mul(F32)),
    "v_pk_fma_f32": (3, rule_fma(F32)),
}.items():
    kinds = " ".join(["pkf32"] * count)
    names = ", ".join("{" + letter + "}" for letter in "abc"[:count])
    add(name, kinds, "pkf32", packed32(rule), archs=GFX9)
    low, high = [1, 0, 1][:count], [0, 1, 1][:count]
    mods = f" op_sel:{low} op_sel_hi:{high}".replace(", ", ",")
    add(name, kinds, "pkf32", packed32(rule, low, high), f"{name} {{d}}, {names}{mods}", GFX9, tag="select")
    neg_low, neg_high = [0, 1, 1][:count], [1, 0, 0][:count]
    mods = f" neg_lo:{neg_low} neg_hi:{neg_high}".replace(", ", ",")
    add(
        name,
        kinds,
        "pkf32",
        packed32(rule, neg_low=neg_low, neg_high=neg_high),
        f"{name} {{d}}, {names}{mods}",
        GFX9,
        tag="neg",
    )
add(
    "v_pk_mul_f32",
    "pkf32",
    "pkf32",
    lambda a: [rule_mul(F32)(a & 0xFFFFFFFF, of(3.0)), rule_mul(F32)(a >> 32, of(5.0))],
    "v_pk_mul_f32 {d}, {a}, s[44:45]",
    GFX9,
    setup="s_mov_b32 s44, 0x40400000\ns_mov_b32 s45, 0x40a00000\n",
    tag="scalar",
)
add(
    "v_pk_fma_f32",
    "pkf32 pkf32",
    "=b:pkf32",
    lambda a, b: [rule_fma(F32)(x, x, y) for x, y in ((a & 0xFFFFFFFF, b & 0xFFFFFFFF), (a >> 32, b >> 32))],
    "v_pk_fma_f32 {b}, {a}, {a}, {b}",
    GFX9,
    tag="in_place",
)
for low in (0, 1):
    for high in (0, 1):
        # op_sel[0] picks the word of the first source for the low result, op_sel[1] the second's for high.
        add(
            "v_pk_mov_b32",
            "u64 u64",
            "u64",
            lambda a, b, low=low, high=high: (
                (a >> 32 * low & 0xFFFFFFFF) | (b >> 32 * high & 0xFFFFFFFF) << 32
            ),
            f"v_pk_mov_b32 {{d}}, {{a}}, {{b}} op_sel:[{low},{high}]",
            GFX9,
            tag=f"{low}{high}",
            count=64,
        )


# Dot products.
def fields(value, width, signed):
    parts = [value >> i & ((1 << width) - 1) for i in range(0, 32, width)]
    return [s(p, width) for p in parts] if signed else parts


def dot(width, one, two, saturate=False):
    def rule(a, b, c):
        signed = one or two
        total = sum(x * y for x, y in zip(fields(a, width, one), fields(b, width, two), strict=True))
        total += s(c) if signed else c
        if saturate:
            total = clamp(total, -(1 << 31), (1 << 31) - 1) if signed else min(total, 0xFFFFFFFF)
        return u(total)

    return rule


for name, width, signed in (
    ("v_dot2_i32_i16", 16, True),
    ("v_dot2_u32_u16", 16, False),
    ("v_dot4_i32_i8", 8, True),
    ("v_dot8_i32_i4", 4, True),
):
    add(name, "u32 u32 u32", "u32", dot(width, signed, signed), archs=GFX9)
    add(
        name,
        "u32 u32 u32",
        "u32",
        dot(width, signed, signed, True),
        f"{name} {{d}}, {{a}}, {{b}}, {{c}} clamp",
        GFX9,
        tag="clamp",
    )
for name, width in (("v_dot4_u32_u8", 8), ("v_dot8_u32_u4", 4)):
    add(name, "u32 u32 u32", "u32", dot(width, False, False))
    add(
        name,
        "u32 u32 u32",
        "u32",
        dot(width, False, False, True),
        f"{name} {{d}}, {{a}}, {{b}}, {{c}} clamp",
        tag="clamp",
    )
for name, width in (("v_dot2c_i32_i16", 16), ("v_dot4c_i32_i8", 8), ("v_dot8c_i32_i4", 4)):
    add(name, "u32 u32 u32", "=c:u32", dot(width, True, True), f"{name} {{c}}, {{a}}, {{b}}", GFX9)
for name, width in (("v_dot4_i32_iu8", 8), ("v_dot8_i32_iu4", 4)):
    for one in (0, 1):
        for two in (0, 1):
            add(
                name,
                "u32 u32 u32",
                "u32",
                lambda a, b, c, w=width, p=one, q=two: u(
                    sum(x * y for x, y in zip(fields(a, w, p), fields(b, w, q), strict=True)) + c
                ),
                f"{name} {{d}}, {{a}}, {{b}}, {{c}} neg_lo:[{one},{two},0]",
                GFX11,
                tag=f"{one}{two}",
                count=128,
            )

# Floating dot products: the guides leave the order of rounding open, so every sum here is exact.
EXACT = seed("exact dots")


def small():
    return float(EXACT.randint(-60, 60)) / EXACT.choice((1, 2, 4, 8))


def exact_rows(encode, count=128):
    rows = []
    for _ in range(count):
        v = [small() for _ in range(5)]
        rows.append((v, (encode(v[0]) | encode(v[1]) << 16, encode(v[2]) | encode(v[3]) << 16, of(v[4]))))
    return rows


def f16(x):
    return of(x, F16)


def bf16(x):
    return of(x) >> 16


def value_rule(rows, encode):
    """The exact value, looked up by the operands' bits."""
    known = {bits: encode(v[0] * v[2] + v[1] * v[3] + v[4]) for v, bits in rows}
    return lambda *bits: known[bits]


ROWS, BROWS = exact_rows(f16), exact_rows(bf16)
add("v_dot2_f32_f16", "u32 u32 f32", "f32", value_rule(ROWS, of), vectors=tuple(bits for _, bits in ROWS))
add(
    "v_dot2c_f32_f16",
    "u32 u32 f32",
    "=c:f32",
    value_rule(ROWS, of),
    "v_dot2c_f32_f16 {c}, {a}, {b}",
    GFX9,
    vectors=tuple(bits for _, bits in ROWS),
)
add(
    "v_dot2_f32_bf16",
    "u32 u32 f32",
    "f32",
    value_rule(BROWS, of),
    archs=("gfx950", *GFX11),
    vectors=tuple(bits for _, bits in BROWS),
)
add(
    "v_dot2c_f32_bf16",
    "u32 u32 f32",
    "=c:f32",
    value_rule(BROWS, of),
    "v_dot2c_f32_bf16 {c}, {a}, {b}",
    ("gfx950",),
    vectors=tuple(bits for _, bits in BROWS),
)
# gfx11's name of it, alone and as half of a pair, whose registers must lie in different banks.
add(
    "v_dot2acc_f32_f16",
    "u32 u32 f32",
    "=c:f32",
    value_rule(ROWS, of),
    "v_dot2acc_f32_f16 {c}, {a}, {b}",
    ("gfx1100",),
    vectors=tuple(bits for _, bits in ROWS),
)
PAIRED = value_rule(ROWS, of)
add(
    "v_dual_dot2acc_f32_f16",
    "u32 u32 f32 u32",
    "=c:f32 u32",
    lambda a, b, c, e: (PAIRED(a, e, c), b),
    "v_mov_b32 v65, 0;v_dual_dot2acc_f32_f16 {c}, {a}, {e} :: v_dual_mov_b32 v65, {b};v_mov_b32 {d}, v65",
    GFX11,
    vectors=tuple((a, 0x5EED ^ e, c, e) for _, (a, e, c) in ROWS),
)
whole = [[float(EXACT.randint(-9, 9)) for _ in range(5)] for _ in range(96)]
for name, encode in (("v_dot2_f16_f16", f16), ("v_dot2_bf16_bf16", bf16)):
    rows = [
        (v, (encode(v[0]) | encode(v[1]) << 16, encode(v[2]) | encode(v[3]) << 16, encode(v[4])))
        for v in whole
    ]
    add(
        name,
        "u32 u32 f16",
        "f16",
        value_rule(rows, encode),
        archs=GFX11,
        vectors=tuple(bits for _, bits in rows),
    )
    if name == "v_dot2_bf16_bf16":  # sums of up to 171 fit eight bits
        SUITE.probes[-1] = Probe(
            **{**SUITE.probes[-1].__dict__, "outs": ("bf16",), "ins": ("u32", "u32", "bf16")}
        )


for name, encode in (("v_dot2_f16_f16", f16), ("v_dot2_bf16_bf16", bf16)):
    # An inline constant is the lower half of a pair; LLVM makes x * 2 of bfloat16 so.
    rows = [(v, (encode(v[0]) | encode(v[1]) << 16, encode(v[4]))) for v in whole]
    known = {bits: encode(v[0] * 2.0 + v[4]) for v, bits in rows}
    kind = "f16" if encode is f16 else "bf16"
    add(
        name,
        f"u32 {kind}",
        kind,
        lambda *bits, known=known: known[bits],
        f"{name} {{d}}, {{a}}, 2.0, {{b}}",
        GFX11,
        vectors=tuple(bits for _, bits in rows),
        tag="inline constant",
    )


@pytest.mark.parametrize("probes", SUITE.mnemonics())
def test_instruction(probes):
    check_all(probes, lambda arch, probe: check(SUITE, probe, arch))

"""Floating-point instructions of the vector ALU: arithmetic, comparison, rounding, modes, division."""

from __future__ import annotations

import math

import pytest
from expect_float import (
    DOWN,
    F16,
    F32,
    F64,
    FINITE,
    INF,
    NAN,
    NEAREST,
    UP,
    ZERO,
    Num,
    compare,
    convert,
    divide,
    fma,
    integral,
    mul,
    neg,
    of,
    pack,
    pick,
    rule_add,
    rule_fma,
    rule_integral,
    rule_med3,
    rule_mul,
    rule_pick,
    rule_pick3,
    rule_sub,
    unpack,
    value,
)
from expect_float import (
    add as plus,
)
from expect_int import s, u
from instructions import ANY_NAN, ARCHS, GFX9, GFX11, GFX94, SKIP, Near, OneOf, Probe, Suite, check, check_all
from vectors import SNAN, operand_rows

SUITE = Suite("valu_float")
FORMATS = {"f32": F32, "f16": F16, "f64": F64}


def add(name, ins, outs, rule, asm=None, archs=ARCHS, extra=(), count=256, **more):
    """A probe in the assembler's usual order: results, then sources."""
    ins, outs = tuple(ins.split()), tuple(outs.split())
    if asm is None:
        asm = f"{name} {{d}}, " + ", ".join("{" + letter + "}" for letter in "abcefg"[: len(ins)])
    key = name + more.get("tag", "")
    SUITE.add(Probe(name, asm, ins, outs, rule, operand_rows(key, ins, count, extra), archs, **more))


def reverse(rule):
    return lambda a, b: rule(b, a)


def masked16(rule, fmt):
    """16-bit rules see registers whose upper half holds something else."""
    return (lambda *x: rule(*(i & 0xFFFF for i in x))) if fmt is F16 else rule


# Tables laid out by hand: a probe takes one to three lines; one argument per line would hide them.
# fmt: off
for kind, fmt in FORMATS.items():
    for name, rule in {"add": rule_add(fmt), "mul": rule_mul(fmt), "sub": rule_sub(fmt),
        "subrev": reverse(rule_sub(fmt))}.items():
        if kind != "f64" or name in ("add", "mul"):
            add(f"v_{name}_{kind}", f"{kind} {kind}", kind, masked16(rule, fmt))
    for name, larger in (("min", False), ("max", True)):
        add(f"v_{name}_{kind}", f"{kind} {kind}", kind, masked16(rule_pick(fmt, larger), fmt))

        def quiets(a, b, fmt=fmt, larger=larger):
            hurt = any(unpack(x, fmt).signalling for x in (a, b))
            return ANY_NAN if hurt else pick(a, b, fmt, larger)

        some = [
            (x, y)
            for x in (SNAN[kind], SNAN[kind] | fmt.sign, of(1.0, fmt), fmt.inf)
            for y in (SNAN[kind], of(2.0, fmt), 0)
        ]
        # IEEE mode is on for compute kernels before gfx12: a signalling NaN comes out quiet; then the number.
        add(f"v_{name}_{kind}", f"{kind} {kind}", kind, masked16(quiets, fmt), archs=ARCHS[:4], extra=some,
            count=64, tag="snan")
        add(f"v_{name}_{kind}", f"{kind} {kind}", kind, masked16(rule_pick(fmt, larger), fmt),
            archs=ARCHS[4:], extra=some, count=64, tag="snan12")
        if kind != "f64":
            add(f"v_{name}3_{kind}", f"{kind} {kind} {kind}", kind, masked16(rule_pick3(fmt, larger), fmt))
    if kind == "f32":
        for name, larger in (("maxmin", True), ("minmax", False)):
            add(f"v_{name}_f32", "f32 f32 f32", "f32", rule_pick3(fmt, larger, not larger), archs=GFX11)
    if kind != "f64":
        add(f"v_med3_{kind}", f"{kind} {kind} {kind}", kind, masked16(rule_med3(fmt), fmt))
    add(f"v_fma_{kind}", f"{kind} {kind} {kind}", kind, masked16(rule_fma(fmt), fmt), count=384)
    for name, mode in {"trunc": ZERO, "ceil": UP, "floor": DOWN, "rndne": NEAREST}.items():
        add(f"v_{name}_{kind}", kind, kind, masked16(rule_integral(fmt, mode), fmt), count=192)

    def fract(a, fmt=fmt):
        """x - floor(x), below one: LLVM selects it for fmin(x - floor(x), the number before 1)."""
        num = unpack(a, fmt)
        if num.kind != FINITE:
            return ANY_NAN
        found = pack(plus(num, neg(integral(num, DOWN))), fmt)
        return min(found, of(1.0, fmt) - 1) if not found & fmt.sign else found

    add(f"v_fract_{kind}", kind, kind, masked16(fract, fmt), count=192)

    def mantissa(a, fmt=fmt):
        num = unpack(a, fmt)
        if num.kind == NAN:
            return ANY_NAN
        if num.kind == INF or num.zero:
            return a
        return pack(Num(FINITE, num.sign, num.mag, -num.mag.bit_length()), fmt)

    def exponent(a, fmt=fmt, width=32):
        num = unpack(a, fmt)
        return 0 if num.kind != FINITE or num.zero else u(num.exp + num.mag.bit_length(), width)

    add(f"v_frexp_mant_{kind}", kind, kind, masked16(mantissa, fmt), count=128)
    if kind == "f16":
        add("v_frexp_exp_i16_f16", kind, "i16", masked16(lambda a: exponent(a, F16, 16), fmt), count=128)
    else:
        add(f"v_frexp_exp_i32_{kind}", kind, "u32", exponent, count=128)

    def ldexp(a, b, fmt=fmt):
        num = unpack(a, fmt)
        power = s(b, 16 if fmt is F16 else 32)
        if num.kind != FINITE or num.zero:
            return pack(num, fmt)
        return pack(Num(FINITE, num.sign, num.mag, num.exp + max(min(power, 5000), -5000)), fmt)

    shifts = [(of(1.5, fmt), u(p)) for p in range(-160, 160, 7)] + [
        (1, u(p)) for p in (-1, 1, 10, 24, 149, 1074)
    ]
    add(f"v_ldexp_{kind}", f"{kind} {'u16' if kind == 'f16' else 'u32'}", kind,
        (lambda a, b, r=ldexp: r(a & 0xFFFF, b)) if kind == "f16" else ldexp, extra=shifts)

    TESTS = {"lt": (-1,), "eq": (0,), "le": (-1, 0), "gt": (1,), "lg": (-1, 1), "ge": (0, 1), "o": (-1, 0, 1),
        "u": (None,), "nge": (None, -1), "nlg": (None, 0), "ngt": (None, -1, 0), "nle": (None, 1),
        "neq": (None, -1, 1), "nlt": (None, 0, 1)}
    for word, answers in TESTS.items():

        def holds(a, b, fmt=fmt, answers=answers):
            return int(compare(unpack(a, fmt), unpack(b, fmt)) in answers)

        rule = masked16(holds, fmt)
        add(f"v_cmp_{word}_{kind}", f"{kind} {kind}", "mask", rule,
            f"v_cmp_{word}_{kind} {{m}}, {{a}}, {{b}}")
        add(f"v_cmpx_{word}_{kind}", f"{kind} {kind}", "vcc exec", lambda a, b, r=rule: (r(a, b),) * 2,
            f"v_cmpx_{word}_{kind} vcc, {{a}}, {{b}}", archs=GFX9, count=96)
        add(f"v_cmpx_{word}_{kind}", f"{kind} {kind}", "exec", rule, f"v_cmpx_{word}_{kind} {{a}}, {{b}}",
            archs=GFX11, count=96, tag="exec")

    def classes(a, b, fmt=fmt):
        num = unpack(a, fmt)
        if num.kind == NAN:
            bit = 0 if num.signalling else 1
        elif num.kind == INF:
            bit = 2 if num.sign else 9
        else:
            shape = 2 if num.zero else 1 if not a & fmt.inf else 0  # normal, subnormal, zero
            bit = 3 + shape if num.sign else 8 - shape
        return b >> bit & 1

    numbers = (SNAN[kind], fmt.inf | 1 << (fmt.man - 1), fmt.inf, fmt.sign | fmt.inf, 1, fmt.sign | 1, 0,
        fmt.sign, of(1.0, fmt), of(-1.0, fmt))
    every = [(x, 1 << bit) for bit in range(10) for x in numbers]
    add(f"v_cmp_class_{kind}", f"{kind} {'u16' if kind == 'f16' else 'u32'}", "mask",
        (lambda a, b, r=classes: r(a & 0xFFFF, b)) if kind == "f16" else classes,
        f"v_cmp_class_{kind} {{m}}, {{a}}, {{b}}", extra=every)

# Multiply-accumulate of the two-operand encodings.
add("v_fmac_f32", "f32 f32 f32", "=c:f32", rule_fma(F32), "v_fmac_f32 {c}, {a}, {b}")
add("v_fmac_f64", "f64 f64 f64", "=c:f64", rule_fma(F64), "v_fmac_f64 {c}, {a}, {b}", archs=GFX9)
add("v_fmac_f16", "f16 f16 f16", "=c:f16", masked16(rule_fma(F16), F16), "v_fmac_f16 {c}, {a}, {b}",
    archs=GFX11)
K = 0x4F800001
WITH_K = (*GFX94, *GFX11)
add("v_fmamk_f32", "f32 f32", "f32", lambda a, b: rule_fma(F32)(a, K, b),
    f"v_fmamk_f32 {{d}}, {{a}}, 0x{K:x}, {{b}}", archs=WITH_K)
add("v_fmaak_f32", "f32 f32", "f32", lambda a, b: rule_fma(F32)(a, b, K),
    f"v_fmaak_f32 {{d}}, {{a}}, {{b}}, 0x{K:x}", archs=WITH_K)
add("v_mul_legacy_f32", "f32 f32", "f32",
    lambda a, b: 0 if unpack(a, F32).zero or unpack(b, F32).zero else rule_mul(F32)(a, b), archs=GFX9)
add("v_mul_dx9_zero_f32", "f32 f32", "f32",
    lambda a, b: 0 if unpack(a, F32).zero or unpack(b, F32).zero else rule_mul(F32)(a, b), archs=GFX11)


def mad(a, b, c):
    """gfx90a's unfused multiply-add: the product is rounded, subnormals are flushed (skipped here)."""
    product = pack(mul(unpack(a, F32), unpack(b, F32)), F32)
    if product is ANY_NAN:
        return ANY_NAN
    found = pack(plus(unpack(product, F32), unpack(c, F32)), F32)
    small = [x for x in (a, b, c, product, found) if x is not ANY_NAN and not x & F32.inf and x & 0x7FFFFF]
    return SKIP if small else found


add("v_mad_f32", "f32 f32 f32", "f32", mad, archs=("gfx90a",))
add("v_mac_f32", "f32 f32 f32", "=c:f32", mad, "v_mac_f32 {c}, {a}, {b}", archs=("gfx90a",))
add("v_madmk_f32", "f32 f32", "f32", lambda a, b: mad(a, K, b), f"v_madmk_f32 {{d}}, {{a}}, 0x{K:x}, {{b}}",
    archs=("gfx90a",))
add("v_madak_f32", "f32 f32", "f32", lambda a, b: mad(a, b, K), f"v_madak_f32 {{d}}, {{a}}, {{b}}, 0x{K:x}",
    archs=("gfx90a",))

# gfx12 and gfx950: minimum and maximum that pass NaN on.
for kind, fmt in FORMATS.items():
    for name, larger in (("minimum", False), ("maximum", True)):

        def passing(*x, fmt=fmt, larger=larger):
            if any(unpack(i, fmt).kind == NAN for i in x):
                return ANY_NAN
            found = x[0]
            for i in x[1:]:
                found = pick(found, i, fmt, larger)
            return found

        add(f"v_{name}_{kind}", f"{kind} {kind}", kind, masked16(passing, fmt), archs=("gfx1201",))
        if kind != "f64":
            add(f"v_{name}3_{kind}", f"{kind} {kind} {kind}", kind, masked16(passing, fmt),
                archs=("gfx950", "gfx1201") if kind == "f32" else ("gfx1201",))

# Modifiers.
add("v_add_f32", "f32 f32", "f32", lambda a, b: rule_add(F32)(a ^ 0x80000000, b & 0x7FFFFFFF),
    "v_add_f32 {d}, -{a}, |{b}|", tag="neg_abs")
add("v_fma_f32", "f32 f32 f32", "f32", lambda a, b, c: rule_fma(F32)(a | 0x80000000, b, c ^ 0x80000000),
    "v_fma_f32 {d}, -|{a}|, {b}, -{c}", tag="neg_abs")
add("v_fma_f64", "f64 f64 f64", "f64", lambda a, b, c: rule_fma(F64)(a ^ 1 << 63, b & ~(1 << 63), c),
    "v_fma_f64 {d}, -{a}, |{b}|, {c}", tag="neg_abs")


def clamped(rule, fmt):
    """Between 0 and 1, NaN becomes 0 (DX10_CLAMP, which gfx12 always has). A zero's sign is left open."""

    def found(*x):
        result = rule(*x)
        if result is ANY_NAN or result & fmt.sign:
            return OneOf((0, fmt.sign)) if result is not ANY_NAN and result == fmt.sign else 0
        return min(result, of(1.0, fmt))

    return found


add("v_add_f32", "f32 f32", "f32", clamped(rule_add(F32), F32), "v_add_f32 {d}, {a}, {b} clamp", tag="clamp")
add("v_fma_f32", "f32 f32 f32", "f32", clamped(rule_fma(F32), F32), "v_fma_f32 {d}, {a}, {b}, {c} clamp",
    tag="clamp")
add("v_mul_f16", "f16 f16", "f16", masked16(clamped(rule_mul(F16), F16), F16),
    "v_mul_f16 {d}, {a}, {b} clamp", tag="clamp")
add("v_max_f32", "f32", "f32", clamped(lambda a: pick(a, a, F32, True), F32), "v_max_f32 {d}, {a}, {a} clamp",
    tag="clamp")
add("v_add_f64", "f64 f64", "f64", clamped(rule_add(F64), F64), "v_add_f64 {d}, {a}, {b} clamp", tag="clamp")
# With output subnormals on, or in IEEE mode, output modifiers are ignored (guides, "Output modifiers").
add("v_add_f32", "f32 f32", "f32", rule_add(F32), "v_add_f32 {d}, {a}, {b} mul:2", archs=ARCHS[:4],
    tag="omod_ignored")
# Inline constants, and a literal that is the upper half of a double.
add("v_add_f32", "f32", "f32", lambda a: rule_add(F32)(of(-4.0), a), "v_add_f32 {d}, -4.0, {a}", tag="inline")
add("v_mul_f32", "f32", "f32", lambda a: rule_mul(F32)(0x3E22F983, a), "v_mul_f32 {d}, 0.15915494, {a}",
    tag="inv2pi")
add("v_mul_f32", "f32", "f32", lambda a: rule_mul(F32)(3, a), "v_mul_f32 {d}, 3, {a}", tag="integer")
add("v_add_f16", "f16", "f16", lambda a: rule_add(F16)(0x3118, a & 0xFFFF), "v_add_f16 {d}, 0.15915494, {a}",
    tag="inv2pi")
add("v_add_f64", "f64", "f64", lambda a: rule_add(F64)(of(2.0, F64), a), "v_add_f64 {d}, 2.0, {a}",
    tag="inline")
add("v_add_f64", "f64", "f64", lambda a: rule_add(F64)(0x3FC45F306DC9C882, a),
    "v_add_f64 {d}, 0.15915494309189532, {a}", tag="inv2pi")
add("v_mul_f64", "f64", "f64", lambda a: rule_mul(F64)(0x41E00000 << 32, a), "v_mul_f64 {d}, {a}, s[44:45]",
    setup="s_mov_b32 s44, 0\ns_mov_b32 s45, 0x41e00000\n", tag="scalar")
add("v_add_f16", "pkf16 pkf16 pkf16", "=c:pkf16",
    lambda a, b, c: [c & 0xFFFF, rule_add(F16)(a >> 16, b & 0xFFFF)], "v_add_f16 {c}.h, {a}.h, {b}.l",
    archs=GFX11, tag="halves")
add("v_fma_f16", "pkf16 pkf16 pkf16", "=c:pkf16",
    lambda a, b, c: [c & 0xFFFF, rule_fma(F16)(a >> 16, b & 0xFFFF, c >> 16)],
    "v_fma_f16 {c}, {a}, {b}, {c} op_sel:[1,0,1,1]", archs=GFX9, tag="op_sel")

# Mixed precision.


def mixed(pattern, target):
    """Each source is an f32, or the low or high half as f16: pattern letters f, l, h."""

    def read(x, how):
        return unpack(x, F32) if how == "f" else unpack(x >> (16 if how == "h" else 0) & 0xFFFF, F16)

    def rule(a, b, c):
        x, y, z = (read(x, how) for x, how in zip((a, b, c), pattern, strict=True))
        single = pack(fma(x, y, z), F32)
        return single if target is F32 or single is ANY_NAN else convert(single, F32, target)

    return rule


def selects(pattern):
    low = ",".join("1" if how == "h" else "0" for how in pattern)
    high = ",".join("0" if how == "f" else "1" for how in pattern)
    return f"op_sel:[{low}] op_sel_hi:[{high}]"


for pattern in ("lff", "hlf", "lhl", "fff", "hhh"):
    kinds = " ".join("f32" if how == "f" else "pkf16" for how in pattern)
    add("v_fma_mix_f32", kinds, "f32", mixed(pattern, F32),
        f"v_fma_mix_f32 {{d}}, {{a}}, {{b}}, {{c}} {selects(pattern)}", tag=pattern)
    add("v_fma_mixlo_f16", kinds, "f16", mixed(pattern, F16),
        f"v_fma_mixlo_f16 {{dx}}, {{a}}, {{b}}, {{c}} {selects(pattern)}", tag=pattern)


def high_half(rule):
    def found(a, b, c, e):
        return [e & 0xFFFF, rule(a, b, c)]

    return found


add("v_fma_mixhi_f16", "pkf16 f32 f32 pkf16", "=e:pkf16", high_half(mixed("lff", F16)),
    f"v_fma_mixhi_f16 {{e}}, {{a}}, {{b}}, {{c}} {selects('lff')}")

# Round and subnormal modes: MODE bits 1:0 round f32, 3:2 round f16 and f64, 5:4 and 7:6 their subnormals.
for mode in (NEAREST, UP, DOWN, ZERO):
    word = ["nearest", "up", "down", "zero"][mode]
    add("v_add_f32", "f32 f32", "f32", rule_add(F32, mode), mode=0xF0 | mode, tag=f"round_{word}")
    add("v_mul_f32", "f32 f32", "f32", rule_mul(F32, mode), mode=0xF0 | mode, tag=f"round_{word}")
    add("v_fma_f32", "f32 f32 f32", "f32", rule_fma(F32, mode), mode=0xF0 | mode, tag=f"round_{word}")
    add("v_fma_f64", "f64 f64 f64", "f64", rule_fma(F64, mode), mode=0xF0 | mode << 2, tag=f"round_{word}")
    add("v_add_f16", "f16 f16", "f16", masked16(rule_add(F16, mode), F16), mode=0xF0 | mode << 2,
        tag=f"round_{word}")
    add("v_cvt_f16_f32", "f32", "f16", lambda a, mode=mode: convert(a, F32, F16, mode), mode=0xF0 | mode << 2,
        tag=f"round_{word}")
    add("v_add_f32", "f32 f32", "f32", rule_add(F32, mode),
        f"s_round_mode 0x{mode:x};v_add_f32 {{d}}, {{a}}, {{b}}", archs=GFX11, tag=f"s_round_{word}",
        covers=("v_add_f32", "s_round_mode"), count=96)


def flushing(make, fmt, bits):
    """0 flushes operands and results, 1 results, 2 operands. A result that the guides leave open (it rounds
    up to the smallest normal number from below) is skipped."""
    flush_in, flush_out = not bits & 1, not bits & 2

    def rule(*x):
        found = make(fmt, NEAREST, flush_in, flush_out)(*x)
        exact = make(fmt, ZERO, flush_in, False)(*x)
        least = 1 << fmt.man
        edge = found is not ANY_NAN and found & ~fmt.sign == least and exact & ~fmt.sign == least - 1
        return SKIP if edge and flush_out else found

    return rule


for bits in (0, 1, 2):
    for name, make, ins in (("add", rule_add, 2), ("mul", rule_mul, 2), ("fma", rule_fma, 3)):
        add(f"v_{name}_f32", " ".join(["f32"] * ins), "f32", flushing(make, F32, bits), mode=0xC0 | bits << 4,
            tag=f"denorm_{bits}")
    add("v_add_f16", "f16 f16", "f16", masked16(flushing(rule_add, F16, bits), F16), mode=0x30 | bits << 6,
        tag=f"denorm_{bits}")
    add("v_mul_f64", "f64 f64", "f64", flushing(rule_mul, F64, bits), mode=0x30 | bits << 6,
        tag=f"denorm_{bits}")
add("v_max_f32", "f32", "f32", lambda a: pack(unpack(a, F32, True), F32), "v_max_f32 {d}, {a}, {a}",
    mode=0xC0, tag="flush")
add("v_mov_b32", "f32", "u32", lambda a: a, mode=0, tag="mode_keeps",
    covers=("v_mov_b32", "s_setreg_imm32_b32"))
add("v_cndmask_b32", "f32 f32", "u32", lambda a, b: b, "v_cndmask_b32 {d}, {a}, {b}, {vcc}",
    setup="s_mov_{w} {vcc}, -1\n", mode=0, tag="mode_keeps")
add("v_add_f32", "f32 f32", "f32", flushing(rule_add, F32, 0), "s_denorm_mode 0xc;v_add_f32 {d}, {a}, {b}",
    archs=GFX11, tag="s_denorm", covers=("v_add_f32", "s_denorm_mode"))

# Division as compilers emit it: the whole sequence is correctly rounded.
DIV32 = (
    "v_div_scale_f32 v100, s[44:45], {b}, {b}, {a};v_div_scale_f32 v101, vcc, {a}, {b}, {a};"
    "v_rcp_f32 v102, v100;"
    "v_fma_f32 v103, -v100, v102, 1.0;v_fma_f32 v102, v103, v102, v102;v_mul_f32 v103, v101, v102;"
    "v_fma_f32 v104, -v100, v103, v101;"
    "v_fma_f32 v103, v104, v102, v103;v_fma_f32 v100, -v100, v103, v101;"
    "v_div_fmas_f32 v100, v100, v102, v103;v_div_fixup_f32 {d}, v100, {b}, {a}"
)
DIV64 = (
    "v_div_scale_f64 v[100:101], s[44:45], {b}, {b}, {a};v_rcp_f64 v[102:103], v[100:101];"
    "v_fma_f64 v[104:105], -v[100:101], v[102:103], 1.0;"
    "v_fma_f64 v[102:103], v[102:103], v[104:105], v[102:103];"
    "v_fma_f64 v[104:105], -v[100:101], v[102:103], 1.0;"
    "v_fma_f64 v[102:103], v[102:103], v[104:105], v[102:103];"
    "v_div_scale_f64 v[104:105], vcc, {a}, {b}, {a};v_mul_f64 v[106:107], v[104:105], v[102:103];"
    "v_fma_f64 v[100:101], -v[100:101], v[106:107], v[104:105];"
    "v_div_fmas_f64 v[100:101], v[100:101], v[102:103], v[106:107];"
    "v_div_fixup_f64 {d}, v[100:101], {b}, {a}"
)


def quotient(fmt):
    return lambda a, b: pack(divide(unpack(a, fmt), unpack(b, fmt), fmt), fmt)


def steps(kind):
    names = ("div_scale", "div_fmas", "div_fixup")
    return tuple(f"v_{name}_{kind}" for name in names)


def wave32(text):
    return text.replace("s[44:45]", "s44").replace("vcc", "vcc_lo")


for kind, text, fmt in (("f32", DIV32, F32), ("f64", DIV64, F64)):
    tough = [
        (of(x, fmt), of(y, fmt))
        for x in (1e-38, 3e38, 1e-40, 1e30, 1.0, 7.0, 1e-30, 1.1754944e-38)
        for y in (3.0, 1e38, 1e-38, 1e-40, 7e20, 3e-20, 0.1, 1.1754944e-38)
    ]
    if kind == "f64":
        tough += [
            (of(x, fmt), of(y, fmt))
            for x in (1e-308, 1e308, 5e-324, 1e300, 1e-300)
            for y in (3.0, 1e308, 1e-308, 5e-324, 7e200, 3e-200)
        ]
    for archs, body in ((GFX9, text), (GFX11, wave32(text))):
        add(f"v_div_{kind}", f"{kind} {kind}", kind, quotient(fmt), body, archs=archs, extra=tough,
            count=1024, covers=steps(kind), tag="wave64" if archs is GFX9 else "wave32")


def fixup16(a, b, c):
    """a is the quotient found, b the denominator, c the numerator: only signs and special cases are its."""
    found, low, top = (unpack(x & 0xFFFF, F16) for x in (a, b, c))
    sign = 0x8000 if low.sign ^ top.sign else 0
    if NAN in (low.kind, top.kind) or (low.zero and top.zero) or low.kind == top.kind == INF:
        return ANY_NAN
    if low.zero or top.kind == INF:
        return sign | F16.inf
    if low.kind == INF or top.zero:
        return sign
    return SKIP if found.kind == NAN else sign | a & 0x7FFF


add("v_div_fixup_f16", "f16 f16 f16", "f16", fixup16)

# Transcendentals: one unit in the last place; the f32 ones may flush subnormals, as their guides say.


def near_rule(function, fmt, ulp=1.0, flush=False, limit=None):
    def rule(a):
        num = unpack(a & (2 * fmt.sign - 1), fmt)
        if limit is not None and (num.kind != FINITE or abs(value(num)) > limit):
            return ANY_NAN if num.kind == NAN or (num.kind == INF) else SKIP
        options = [function(num, fmt)]
        if flush and num.kind == FINITE and not a & fmt.inf and not num.zero:
            options.append(function(Num(FINITE, num.sign), fmt))
        results = tuple(
            each if each is ANY_NAN or isinstance(each, int) else Near(each, ulp, flush) for each in options
        )
        return results[0] if len(results) == 1 else OneOf(results)

    return rule


def rcp(num, fmt):
    if num.kind == NAN:
        return ANY_NAN
    sign = fmt.sign if num.sign else 0
    if num.zero:
        return sign | fmt.inf
    if num.kind == INF:
        return sign
    found = value(num)
    return sign | fmt.inf if abs(found) < 2.0**-1023 and fmt is F64 else 1.0 / found


def sqrt(num, fmt):
    if num.kind == NAN or (num.sign and not num.zero):
        return ANY_NAN
    if num.zero or num.kind == INF:
        return pack(num, fmt)
    return math.sqrt(value(num))


def rsq(num, fmt):
    if num.kind == NAN or (num.sign and not num.zero):
        return ANY_NAN
    if num.zero:
        return (fmt.sign if num.sign else 0) | fmt.inf
    return 0 if num.kind == INF else 1.0 / math.sqrt(value(num))


def exp2(num, fmt):
    if num.kind == NAN:
        return ANY_NAN
    if num.kind == INF:
        return 0 if num.sign else fmt.inf
    x = value(num)
    return fmt.inf if x > 1020 else 0 if x < -1060 else 2.0**x


def log2(num, fmt):
    if num.kind == NAN or (num.sign and not num.zero):
        return ANY_NAN
    if num.zero:
        return fmt.sign | fmt.inf
    return fmt.inf if num.kind == INF else (0 if value(num) == 1.0 else math.log2(value(num)))


def turn(function):
    def of_turns(num, fmt):
        if num.kind != FINITE:
            return ANY_NAN
        part = math.fmod(value(num), 1.0)
        if function is math.sin and part in (0.0, 0.5, -0.5):
            return 0.0
        if function is math.cos and abs(part) in (0.25, 0.75):
            return 0.0
        return function(2 * math.pi * part)

    return of_turns


def first(rule):
    """Every lane gets what the first active lane's operand gives."""

    def found(context, lanes):
        lead = next((i for i in range(context.wave) if context.active(i)), 0)
        return [(rule(lanes[lead][0]),)] * context.wave

    return found


def spreading(rule, width):
    return lambda a: spread(rule(a), width)


POSITIVE = [
    (of(x),) for x in (2.0, 4.0, 0.25, 9.0, 3.0, 1e-20, 1e20, 0.7, 1.0000001, 0.9999999, 100.0, 65504.0)
]
for name, function in {"rcp": rcp, "sqrt": sqrt, "rsq": rsq, "exp": exp2, "log": log2}.items():
    add(f"v_{name}_f32", "f32", "f32", near_rule(function, F32, flush=True), extra=POSITIVE, count=384)
    add(f"v_{name}_f16", "f16", "f16", near_rule(function, F16), count=256)
    if name in ("rcp", "sqrt", "rsq"):
        add(f"v_{name}_f64", "f64", "f64", near_rule(function, F64, ulp=2.0**29), count=192)
    scalar = f"v_readfirstlane_b32 s44, {{a}};v_s_{name}_f32 s46, s44;v_mov_b32 {{d}}, s46"
    add(f"v_s_{name}_f32", "f32", "f32", first(near_rule(function, F32, flush=True)), scalar,
        archs=("gfx1201",), whole=True, count=512, extra=POSITIVE)


add("v_rcp_iflag_f32", "f32", "f32", near_rule(rcp, F32, flush=True), extra=POSITIVE)
TURNS = [(of(x),) for x in (0.25, 0.5, 0.75, 0.125, 1.0, 255.9, -3.7, 100.3, 1e-5)]
# The guides give no accuracy for sine and cosine; an absolute error of 2^-20 is granted in f32.
for name, function in (("sin", math.sin), ("cos", math.cos)):
    add(f"v_{name}_f32", "f32", "f32",
        spreading(near_rule(turn(function), F32, flush=True, limit=256), 2.0**-20), extra=TURNS)
    add(f"v_{name}_f16", "f16", "f16", spreading(near_rule(turn(function), F16, limit=256), 2.0**-11))


def spread(want, width):
    if isinstance(want, OneOf):
        return OneOf(tuple(spread(each, width) for each in want.values))
    if not isinstance(want, Near):
        return want
    return Near(want.value, 1.0, True, width)


# gfx11's pairs: two instructions read, then both write.
PAIRS = {"add_f32": rule_add(F32), "mul_f32": rule_mul(F32), "sub_f32": rule_sub(F32),
    "subrev_f32": reverse(rule_sub(F32)), "max_f32": rule_pick(F32, True), "min_f32": rule_pick(F32, False)}
ONLY_Y = {"add_nc_u32": lambda a, b: u(a + b), "lshlrev_b32": lambda a, b: u(b << (a & 31)),
    "and_b32": lambda a, b: a & b}


def dual(name, arch):
    renamed = arch == "gfx1201" and name[:3] in ("min", "max")
    return f"v_dual_{name.replace('_f32', '_num_f32') if renamed else name}"


for arch in GFX11:
    for name, rule in {**PAIRS, **ONLY_Y}.items():
        other = "mul_f32" if name != "mul_f32" else "add_f32"
        add(dual(name, arch), "f32 f32 f32 f32", "f32 f32",
            lambda a, b, c, e, r=rule, o=PAIRS[other]: (o(a, c), r(b, e)),
            f"{dual(other, arch)} {{d}}, {{a}}, {{c}} :: {dual(name, arch)} {{d1}}, {{b}}, {{e}}",
            archs=(arch,), tag=arch)
    add("v_dual_fmac_f32", "f32 f32 f32 f32", "=c:f32 f32", lambda a, b, c, e: (rule_fma(F32)(a, e, c), u(b)),
        "v_mov_b32 v65, 0;v_dual_fmac_f32 {c}, {a}, {e} :: v_dual_mov_b32 v65, {b};v_mov_b32 {d}, v65",
        archs=(arch,), covers=("v_dual_fmac_f32", "v_dual_mov_b32"), tag=arch)
    add("v_dual_fmamk_f32", "f32 f32 f32 f32", "f32 f32",
        lambda a, b, c, e: (rule_fma(F32)(a, 0x40490FDB, c), rule_fma(F32)(b, e, 0x40490FDB)),
        "v_dual_fmamk_f32 {d}, {a}, 0x40490fdb, {c} :: v_dual_fmaak_f32 {d1}, {b}, {e}, 0x40490fdb",
        archs=(arch,), covers=("v_dual_fmamk_f32", "v_dual_fmaak_f32"), tag=arch)
    add("v_dual_cndmask_b32", "f32 f32 f32 f32 u32", "f32 f32",
        lambda a, b, c, e, f: (c if s(f) < 0 else a, e if s(f) < 0 else b),
        "v_dual_cndmask_b32 {d}, {a}, {c} :: v_dual_cndmask_b32 {d1}, {b}, {e}", archs=(arch,),
        setup="v_cmp_gt_i32 {vcc}, 0, {f}\n", tag=arch)
    # The X half writes what the Y half reads: it must see the old value.
    add("v_dual_mov_b32", "u32 u32", "=a:u32 =b:u32", lambda a, b: (b, a),
        "v_dual_mov_b32 {a}, {b} :: v_dual_mov_b32 {b}, {a}", archs=(arch,), tag=f"swap_{arch}")
# fmt: on


@pytest.mark.parametrize("probes", SUITE.mnemonics())
def test_instruction(probes):
    check_all(probes, lambda arch, probe: check(SUITE, probe, arch))

"""Scalar instructions: one record per workgroup, loaded into scalar registers; SCC goes in and comes out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from expect_float import (
    DOWN,
    F16,
    F32,
    FINITE,
    NEAREST,
    UP,
    ZERO,
    Num,
    compare,
    convert,
    integer,
    neg,
    of,
    pack,
    rule_add,
    rule_fma,
    rule_integral,
    rule_mul,
    rule_pick,
    rule_sub,
    to_int,
    unpack,
)
from expect_int import M32, M64, bfe_i, bfe_u, lead, rev, s, sign_run, trail, u
from instructions import (
    ANY_NAN,
    ARCHS,
    GFX9,
    GFX11,
    Suite,
    Text,
    check_all,
    memory,
    run_kernel,
    same,
    show,
    waits,
    wave,
)
from vectors import operand_rows

SUITE = Suite("salu")
BEFORE_12, GFX12 = ARCHS[:4], ("gfx1201",)


@dataclass(frozen=True)
class Scalar:
    """A scalar probe. `rule(scc, *sources)` returns (result, ..., scc out); `outs` has the results' kinds.
    Placeholders: sources a b c, results d d1; "=a" reads a source back; a missing d means only SCC."""

    name: str
    asm: str
    ins: tuple[str, ...]
    outs: tuple[str, ...]
    rule: Any
    vectors: Sequence[tuple[int, ...]]
    archs: tuple[str, ...]
    tag: str = ""

    @property
    def symbol(self) -> str:
        return f"{self.name}__{self.tag}" if self.tag else self.name


PROBES: list[Scalar] = []
STRIDE = 64  # bytes per record, both ways


def width(kind: str) -> int:
    return 2 if "64" in kind else 1


def registers(probe: Scalar) -> tuple[dict[str, str], list[tuple[int, int]]]:
    """The names of the operands, and where the results are (first register, dwords)."""
    names, places = {}, []
    for i, (letter, kind) in enumerate(zip("abc", probe.ins, strict=False)):
        first = 16 + 2 * i
        names[letter] = f"s[{first}:{first + 1}]" if width(kind) == 2 else f"s{first}"
    for i, kind in enumerate(probe.outs):
        if kind.startswith("="):
            places.append((16 + 2 * "abc".index(kind[1]), width(kind)))
        elif kind.startswith("exec"):
            places.append((126, width(kind)))
        else:
            first = 40 + 2 * i
            names["d" + (str(i) if i else "")] = (
                f"s[{first}:{first + 1}]" if width(kind) == 2 else f"s{first}"
            )
            places.append((first, width(kind)))
    return names, places


def text(probe: Scalar, arch: str) -> Text:
    names, places = registers(probe)
    group = "ttmp9" if arch == "gfx1201" else "s2"
    body = "s_load_dwordx4 s[4:7], s[0:1], 0x0\n" + f"s_mov_b32 s10, {group}\n" + waits(arch)
    body += f"s_mul_i32 s3, s10, {STRIDE}\n"
    body += "s_add_u32 s4, s4, s3\ns_addc_u32 s5, s5, 0\ns_add_u32 s6, s6, s3\ns_addc_u32 s7, s7, 0\n"
    body += "s_load_dwordx8 s[16:23], s[4:5], 0x0\ns_load_dword s12, s[4:5], 0x20\n" + waits(arch)
    for first, count in places:
        if 40 <= first < 100:
            body += "".join(f"s_mov_b32 s{first + i}, 0x5a5a5a5a\n" for i in range(count))
    body += "s_cmp_lg_u32 s12, 0\n"
    body += "\n".join(probe.asm.format(**names).split(";")) + "\n"
    body += "s_cselect_b32 s70, 1, 0\n"
    register = 71
    for first, count in places:
        for i in range(count):
            source = {126: "exec_lo", 127: "exec_hi"}.get(first + i, f"s{first + i}")
            body += f"s_mov_b32 s{register}, {source}\n"
            register += 1
    body += "s_mov_b32 exec_lo, 1\n" + ("s_mov_b32 exec_hi, 0\n" if wave(arch) == 64 else "")
    body += "v_mov_b32 v2, 0\n"
    for i, source in enumerate(range(70, register)):
        body += f"v_mov_b32 v3, s{source}\nglobal_store_dword v2, v3, s[6:7] offset:{4 * i}\n" + waits(arch)
    return Text(probe.symbol, body, wave(arch))


def add(name, ins, outs, rule, asm=None, archs=ARCHS, extra=(), count=96, tag=""):
    ins, outs = tuple(ins.split()), tuple(outs.split())
    if asm is None:
        operands = (["{d}"] if outs else []) + ["{" + letter + "}" for letter in "abc"[: len(ins)]]
        asm = f"{name} " + ", ".join(operands)
    probe = Scalar(name, asm, ins, outs, rule, operand_rows(name + tag, ins, count, extra), archs, tag)
    PROBES.append(probe)
    for arch in archs:
        SUITE.kernel((arch,), lambda arch, probe=probe: text(probe, arch), name)


# Tables laid out by hand: a probe takes one to three lines; one argument per line would hide them.
# fmt: off
def nonzero(result):
    return result, int(result != 0)


def keeps(function):
    """SCC stays."""
    return lambda scc, *x: (function(*x), scc)


def sets(function):
    """SCC says whether the result is not zero."""
    return lambda scc, *x: nonzero(function(*x))


def overflow(total):
    return u(total), int(not -(1 << 31) <= total < 1 << 31)


add("s_add_u32", "u32 u32", "u32", lambda _, a, b: (u(a + b), a + b >> 32))
add("s_sub_u32", "u32 u32", "u32", lambda _, a, b: (u(a - b), int(b > a)))
add("s_addc_u32", "u32 u32", "u32", lambda scc, a, b: (u(a + b + scc), a + b + scc >> 32))
add("s_subb_u32", "u32 u32", "u32", lambda scc, a, b: (u(a - b - scc), int(b + scc > a)))
add("s_add_i32", "u32 u32", "u32", lambda _, a, b: overflow(s(a) + s(b)))
add("s_sub_i32", "u32 u32", "u32", lambda _, a, b: overflow(s(a) - s(b)))
add("s_mul_i32", "u32 u32", "u32", keeps(lambda a, b: u(a * b)))
add("s_mul_hi_u32", "u32 u32", "u32", keeps(lambda a, b: a * b >> 32))
add("s_mul_hi_i32", "u32 u32", "u32", keeps(lambda a, b: u(s(a) * s(b) >> 32)))
add("s_absdiff_i32", "u32 u32", "u32", sets(lambda a, b: u(abs(s(u(a - b))))))
add("s_abs_i32", "u32", "u32", sets(lambda a: u(abs(s(a)))))
add("s_min_u32", "u32 u32", "u32", lambda _, a, b: (min(a, b), int(a < b)))
add("s_min_i32", "u32 u32", "u32", lambda _, a, b: (u(min(s(a), s(b))), int(s(a) < s(b))))
add("s_max_u32", "u32 u32", "u32", lambda _, a, b: (max(a, b), int(a >= b)))
add("s_max_i32", "u32 u32", "u32", lambda _, a, b: (u(max(s(a), s(b))), int(s(a) >= s(b))))
for shift in (1, 2, 3, 4):
    add(f"s_lshl{shift}_add_u32", "u32 u32", "u32",
        lambda _, a, b, shift=shift: (u((a << shift) + b), int((a << shift) + b > M32)))
LOGIC = {"and": lambda a, b: a & b, "or": lambda a, b: a | b, "xor": lambda a, b: a ^ b,
    "andn2": lambda a, b: a & ~b, "orn2": lambda a, b: a | ~b, "nand": lambda a, b: ~(a & b),
    "nor": lambda a, b: ~(a | b), "xnor": lambda a, b: ~(a ^ b)}
for bits in (32, 64):
    kind = f"u{bits}"
    for name, function in LOGIC.items():
        add(f"s_{name}_b{bits}", f"{kind} {kind}", kind, sets(lambda a, b, f=function, n=bits: u(f(a, b), n)))
    add(f"s_not_b{bits}", kind, kind, sets(lambda a, n=bits: u(~a, n)))
    add(f"s_mov_b{bits}", kind, kind, keeps(lambda a: a))
    add(f"s_cmov_b{bits}", f"{kind} {kind}", f"={'b'}{kind}", lambda scc, a, b: (a if scc else b, scc),
        f"s_cmov_b{bits} {{b}}, {{a}}")
    add(f"s_cselect_b{bits}", f"{kind} {kind}", kind, lambda scc, a, b: (a if scc else b, scc))
    add(f"s_lshl_b{bits}", f"{kind} u32", kind, sets(lambda a, b, n=bits: u(a << (b & (n - 1)), n)))
    add(f"s_lshr_b{bits}", f"{kind} u32", kind, sets(lambda a, b, n=bits: a >> (b & (n - 1))))
    add(f"s_ashr_i{bits}", f"{kind} u32", kind, sets(lambda a, b, n=bits: u(s(a, n) >> (b & (n - 1)), n)))
    add(f"s_brev_b{bits}", kind, kind, keeps(lambda a, n=bits: rev(a, n)))
    add(f"s_bcnt0_i32_b{bits}", kind, "u32", sets(lambda a, n=bits: n - a.bit_count()))
    add(f"s_bcnt1_i32_b{bits}", kind, "u32", sets(lambda a: a.bit_count()))
    add(f"s_ff1_i32_b{bits}", kind, "u32", keeps(lambda a, n=bits: trail(a, n)))
    add(f"s_flbit_i32_b{bits}", kind, "u32", keeps(lambda a, n=bits: lead(a, n)))
    add("s_flbit_i32" if bits == 32 else "s_flbit_i32_i64", kind, "u32",
        keeps(lambda a, n=bits: sign_run(a, n)))
    add(f"s_bfm_b{bits}", "u32 u32", kind,
        keeps(lambda a, b, n=bits: u(((1 << (a & (n - 1))) - 1) << (b & (n - 1)), n)))
    add(f"s_bitset0_b{bits}", f"u32 {kind}", f"=b{kind}",
        keeps(lambda a, b, n=bits: b & ~(1 << (a & (n - 1)))), f"s_bitset0_b{bits} {{b}}, {{a}}")
    add(f"s_bitset1_b{bits}", f"u32 {kind}", f"=b{kind}", keeps(lambda a, b, n=bits: b | 1 << (a & (n - 1))),
        f"s_bitset1_b{bits} {{b}}, {{a}}")
    for want in (0, 1):
        add(f"s_bitcmp{want}_b{bits}", f"{kind} u32", "",
            lambda _, a, b, w=want, n=bits: (int(a >> (b & (n - 1)) & 1 == w),))
    add(f"s_quadmask_b{bits}", kind, kind,
        sets(lambda a, n=bits: sum(1 << i for i in range(n // 4) if a >> 4 * i & 15)))
    add(f"s_wqm_b{bits}", kind, kind,
        sets(lambda a, n=bits: sum(15 << 4 * i for i in range(n // 4) if a >> 4 * i & 15)))
FIELDS = [
    (a, offset | size << 16)
    for a in (0x12345678, 0xFEDCBA98)
    for offset in (0, 7, 31)
    for size in (0, 1, 8, 25, 31)
]
add("s_bfe_u32", "u32 u32", "u32", sets(lambda a, b: a >> (b & 31) & ((1 << min(b >> 16 & 127, 64)) - 1)),
    extra=FIELDS)


def bfe_signed(a, b, n):
    """A field of n bits or more is the shifted value itself."""
    size, shifted = b >> 16 & 127, s(a, n) >> (b & (n - 1))
    return 0 if size == 0 else u(s(u(shifted, size), size), n) if size < n else u(shifted, n)


add("s_bfe_i32", "u32 u32", "u32", sets(lambda a, b: bfe_signed(a, b, 32)), extra=FIELDS)
FIELDS64 = [
    (a, offset | size << 16)
    for a in (0xFEDCBA9876543210, 1 << 62)
    for offset in (0, 7, 40, 63)
    for size in (0, 1, 33, 63)
]
add("s_bfe_u64", "u64 u32", "u64", sets(lambda a, b: a >> (b & 63) & ((1 << (b >> 16 & 127)) - 1)),
    extra=FIELDS64)
add("s_bfe_i64", "u64 u32", "u64", sets(lambda a, b: bfe_signed(a, b, 64)), extra=FIELDS64)
add("s_sext_i32_i8", "u32", "u32", keeps(lambda a: u(s(a, 8))))
add("s_sext_i32_i16", "u32", "u32", keeps(lambda a: u(s(a, 16))))
add("s_bitreplicate_b64_b32", "u32", "u64", keeps(lambda a: sum(3 << 2 * i for i in range(32) if a >> i & 1)))
add("s_pack_ll_b32_b16", "u32 u32", "u32", keeps(lambda a, b: u(a, 16) | u(b, 16) << 16))
add("s_pack_lh_b32_b16", "u32 u32", "u32", keeps(lambda a, b: u(a, 16) | b & 0xFFFF0000))
add("s_pack_hh_b32_b16", "u32 u32", "u32", keeps(lambda a, b: a >> 16 | b & 0xFFFF0000))
add("s_pack_hl_b32_b16", "u32 u32", "u32", keeps(lambda a, b: a >> 16 | u(b, 16) << 16), archs=GFX11)
add("s_add_nc_u64", "u64 u64", "u64", keeps(lambda a, b: u(a + b, 64)), "s_add_nc_u64 {d}, {a}, {b}", GFX12)
add("s_sub_nc_u64", "u64 u64", "u64", keeps(lambda a, b: u(a - b, 64)), "s_sub_nc_u64 {d}, {a}, {b}", GFX12)
add("s_mul_u64", "u64 u64", "u64", keeps(lambda a, b: u(a * b, 64)), "s_mul_u64 {d}, {a}, {b}", GFX12)

# Comparisons and immediates.
WORDS = {"eq": lambda a, b: a == b, "lg": lambda a, b: a != b, "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b, "lt": lambda a, b: a < b, "le": lambda a, b: a <= b}
EQUAL = [(x, x) for x in (0, 1, 0x80000000, 0xFFFFFFFF)]
for word, holds in WORDS.items():
    add(f"s_cmp_{word}_u32", "u32 u32", "", lambda _, a, b, t=holds: (int(t(a, b)),), extra=EQUAL, count=64)
    add(f"s_cmp_{word}_i32", "u32 u32", "", lambda _, a, b, t=holds: (int(t(s(a), s(b))),), extra=EQUAL,
        count=64)
    if word in ("eq", "lg"):
        add(f"s_cmp_{word}_u64", "u64 u64", "", lambda _, a, b, t=holds: (int(t(a, b)),), extra=EQUAL,
            count=64)
    near = [(x,) for x in (0x8001, 0xFFFF8001, 0x8000, 0x8002, 0xFFFF8000)]
    add(f"s_cmpk_{word}_u32", "u32", "", lambda _, a, t=holds: (int(t(a, 0x8001)),),
        f"s_cmpk_{word}_u32 {{a}}, 0x8001", BEFORE_12, near, 48)
    add(f"s_cmpk_{word}_i32", "u32", "", lambda _, a, t=holds: (int(t(s(a), -0x7FFF)),),
        f"s_cmpk_{word}_i32 {{a}}, 0x8001", BEFORE_12, near, 48)
add("s_movk_i32", "u32", "u32", keeps(lambda a: 0xFFFF8001), "s_movk_i32 {d}, 0x8001", count=8)
add("s_cmovk_i32", "u32", "=au32", lambda scc, a: (0xFFFF8001 if scc else a, scc), "s_cmovk_i32 {a}, 0x8001",
    count=24)
add("s_addk_i32", "u32", "=au32", lambda _, a: overflow(s(a) - 0x7FFF), "s_addk_i32 {a}, 0x8001",
    extra=[(0x80007FFE,), (0x80007FFF,), (0x80008000,)])
add("s_mulk_i32", "u32", "=au32", keeps(lambda a: u(a * -0x7FFF)), "s_mulk_i32 {a}, 0x8001")
add("s_add_u32", "u32", "u32", lambda _, a: (u(a - 5), int(a + u(-5) > M32)), "s_add_u32 {d}, {a}, -5",
    tag="inline")
add("s_and_b64", "u64", "u64", sets(lambda a: a & u(-16, 64)), "s_and_b64 {d}, {a}, -16", tag="inline")
add("s_or_b64", "u64", "u64", sets(lambda a: a | 0x12345678), "s_or_b64 {d}, {a}, 0x12345678", tag="literal")
add("s_mov_b64", "u64", "u64", keeps(lambda a: 0x3FF0 << 48), "s_mov_b64 {d}, 1.0", tag="float", count=8)
add("s_mov_b32", "u32", "u32", keeps(lambda a: 0x3F800000), "s_mov_b32 {d}, 1.0", tag="float", count=8)

# Masks: the execution mask starts full in the lanes that the record says.
SAVED = {"and": lambda a, e: a & e, "or": lambda a, e: a | e, "xor": lambda a, e: a ^ e,
    "andn2": lambda a, e: a & ~e, "orn2": lambda a, e: a | ~e, "nand": lambda a, e: ~(a & e),
    "nor": lambda a, e: ~(a | e), "xnor": lambda a, e: ~(a ^ e), "andn1": lambda a, e: ~a & e,
    "orn1": lambda a, e: ~a | e}
SHORT = {"andn1": "and_not0", "andn2": "and_not1", "orn1": "or_not0", "orn2": "or_not1"}
for name, function in SAVED.items():
    for archs, bits in ((GFX9, 64), (GFX11, 32)):
        word = name if bits == 64 else SHORT.get(name, name)
        kind, full = f"u{bits}", "exec" if bits == 64 else "exec_lo"
        add(f"s_{word}_saveexec_b{bits}", f"{kind} {kind}", f"{kind} exec{bits}",
            lambda _, a, e, f=function, n=bits: (e, u(f(a, e), n), int(u(f(a, e), n) != 0)),
            f"s_mov_b{bits} {full}, {{b}};s_{word}_saveexec_b{bits} {{d}}, {{a}}", archs)
        if name in ("andn1", "andn2"):
            add(f"s_{word}_wrexec_b{bits}", f"{kind} {kind}", f"{kind} exec{bits}",
                lambda _, a, e, f=function, n=bits: (u(f(a, e), n), u(f(a, e), n), int(u(f(a, e), n) != 0)),
                f"s_mov_b{bits} {full}, {{b}};s_{word}_wrexec_b{bits} {{d}}, {{a}}", archs)

# Branches: the result says which way was taken.
LABELS = iter(range(10000))


def branch(name, condition, prepare, ins, archs=ARCHS):
    label = f".L_{name}_{next(LABELS)}_"
    asm = f"{prepare}s_mov_b32 {{d}}, 7;{name} {label};s_mov_b32 {{d}}, 9;{label}:"
    for arch in archs:
        own = asm.replace(label, label + arch)
        add(name, ins, "u32", lambda scc, *x, c=condition: (7 if c(scc, *x) else 9, scc), own, (arch,),
            count=16, tag=arch)


branch("s_branch", lambda scc, a: True, "", "u32")
branch("s_cbranch_scc0", lambda scc, a: not scc, "", "u32")
branch("s_cbranch_scc1", lambda scc, a: scc, "", "u32")
for archs, bits, vcc, full in ((GFX9, 64, "vcc", "exec"), (GFX11, 32, "vcc_lo", "exec_lo")):
    some = f"s_mov_b{bits} {vcc}, {{a}};"
    branch("s_cbranch_vccz", lambda scc, a: a == 0, some, f"u{bits}", archs)
    branch("s_cbranch_vccnz", lambda scc, a: a != 0, some, f"u{bits}", archs)
    some = f"s_mov_b{bits} {full}, {{a}};"
    branch("s_cbranch_execz", lambda scc, a: a == 0, some, f"u{bits}", archs)
    branch("s_cbranch_execnz", lambda scc, a: a != 0, some, f"u{bits}", archs)
for arch in ARCHS:
    # A loop that counts down: backwards branches. Then a call through a register pair and the way back.
    add("s_cbranch_scc1", "u32", "u32", lambda scc, a: ((a & 15) + 1, 0),
        f"s_and_b32 {{a}}, {{a}}, 15;s_mov_b32 {{d}}, 0;.L_loop_{arch}:;s_add_u32 {{d}}, {{d}}, 1;"
        f"s_sub_u32 {{a}}, {{a}}, 1;"
        f"s_cmp_ge_i32 {{a}}, 0;s_cbranch_scc1 .L_loop_{arch}", (arch,), count=16, tag=f"loop_{arch}")
    add("s_swappc_b64", "u32", "u32", lambda scc, a: (u(a + 5), 1),
        f"s_getpc_b64 s[50:51];.L_here_{arch}:;"
        f"s_add_u32 s50, s50, .L_sub_{arch}-.L_here_{arch};s_addc_u32 s51, s51, 0;"
        + f"s_swappc_b64 s[52:53], s[50:51];s_cmp_eq_u32 {{d}}, {{d}};s_branch .L_out_{arch};"
        f".L_sub_{arch}:;s_add_u32 {{d}}, {{a}}, 5;s_setpc_b64 s[52:53];.L_out_{arch}:", (arch,), count=8,
        tag=arch)
SUITE.covers = {a: {*c, "s_getpc_b64", "s_setpc_b64"} for a, c in SUITE.covers.items()}

# Mode and hardware registers.
add("s_setreg_b32", "u32", "u32", lambda scc, a: (a & 0xF, scc),
    "s_and_b32 s52, {a}, 15;s_cmp_lg_u32 s12, 0;s_setreg_b32 hwreg(HW_REG_MODE, 0, 4), s52;"
    "s_getreg_b32 {d}, hwreg(HW_REG_MODE, 0, 4)", count=24)
add("s_getreg_b32", "u32", "u32", keeps(lambda a: 0xF), "s_getreg_b32 {d}, hwreg(HW_REG_MODE, 4, 4)", count=4)
add("s_mov_b32", "u32", "u32", keeps(lambda a: a), "s_mov_b32 m0, {a};s_mov_b32 {d}, m0", tag="m0", count=16)
add("s_mov_b64", "u64", "u64", keeps(lambda a: a),
    "s_mov_b64 vcc, {a};s_mov_b32 s40, vcc_lo;s_mov_b32 s41, vcc_hi", archs=GFX9, tag="vcc", count=16)

# gfx12's scalar floats.
UNARY = {"trunc": ZERO, "ceil": UP, "floor": DOWN, "rndne": NEAREST}
for word, mode in UNARY.items():
    add(f"s_{word}_f32", "f32", "f32", keeps(rule_integral(F32, mode)), archs=GFX12)
    add(f"s_{word}_f16", "f16", "u32", keeps(lambda a, m=mode: low(rule_integral(F16, m)(a & 0xFFFF))),
        archs=GFX12)


def low(found):
    """An f16 in a scalar register: what its upper half holds is not said."""
    return Low(found)


@dataclass(frozen=True)
class Low:
    value: Any


FLOATS = {"add": rule_add, "sub": rule_sub, "mul": rule_mul}
for word, make in FLOATS.items():
    add(f"s_{word}_f32", "f32 f32", "f32", keeps(make(F32)), archs=GFX12)
    add(f"s_{word}_f16", "f16 f16", "u32", keeps(lambda a, b, m=make: low(m(F16)(a & 0xFFFF, b & 0xFFFF))),
        archs=GFX12)
for word, larger in (("min_num", False), ("max_num", True)):
    add(f"s_{word}_f32", "f32 f32", "f32", keeps(rule_pick(F32, larger)), archs=GFX12)
add("s_fmac_f32", "f32 f32 f32", "=cf32", keeps(rule_fma(F32)), "s_fmac_f32 {c}, {a}, {b}", GFX12)
add("s_fmaak_f32", "f32 f32", "f32", keeps(lambda a, b: rule_fma(F32)(a, b, 0x4F800001)),
    "s_fmaak_f32 {d}, {a}, {b}, 0x4f800001", GFX12)
add("s_fmamk_f32", "f32 f32", "f32", keeps(lambda a, b: rule_fma(F32)(a, 0x4F800001, b)),
    "s_fmamk_f32 {d}, {a}, 0x4f800001, {b}", GFX12)
add("s_cvt_f32_i32", "u32", "f32", keeps(lambda a: pack(integer(s(a)), F32)), archs=GFX12)
add("s_cvt_f32_u32", "u32", "f32", keeps(lambda a: pack(integer(a), F32)), archs=GFX12)
add("s_cvt_i32_f32", "f32", "u32", keeps(lambda a: u(to_int(unpack(a, F32), -(1 << 31), (1 << 31) - 1))),
    archs=GFX12)
add("s_cvt_u32_f32", "f32", "u32", keeps(lambda a: to_int(unpack(a, F32), 0, M32)), archs=GFX12)
add("s_cvt_f32_f16", "f16", "f32", keeps(lambda a: convert(a & 0xFFFF, F16, F32)), archs=GFX12)
add("s_cvt_hi_f32_f16", "u32", "f32", keeps(lambda a: convert(a >> 16, F16, F32)), archs=GFX12)
add("s_cvt_f16_f32", "f32", "u32", keeps(lambda a: low(convert(a, F32, F16))), archs=GFX12)
add("s_cvt_pk_rtz_f16_f32", "f32 f32", "pkf16",
    keeps(lambda a, b: [convert(a, F32, F16, ZERO), convert(b, F32, F16, ZERO)]), archs=GFX12)
ORDER = {"lt": (-1,), "eq": (0,), "le": (-1, 0), "gt": (1,), "lg": (-1, 1), "ge": (0, 1), "o": (-1, 0, 1),
    "u": (None,), "nge": (None, -1), "nlg": (None, 0), "ngt": (None, -1, 0), "nle": (None, 1),
    "neq": (None, -1, 1), "nlt": (None, 0, 1)}
for word, answers in ORDER.items():
    add(f"s_cmp_{word}_f32", "f32 f32", "",
        lambda _, a, b, w=answers: (int(compare(unpack(a, F32), unpack(b, F32)) in w),), archs=GFX12,
        count=160)
# fmt: on


@pytest.mark.parametrize(
    "probes",
    SUITE.grouped((p.name, (a, p)) for p in PROBES for a in ARCHS if a in p.archs),
)
def test_instruction(probes):
    check_all(probes, check)


def check(arch, probe):
    _, places = registers(probe)
    source = bytearray()
    for i, record in enumerate(probe.vectors):
        block = b"".join(
            v.to_bytes(4 * width(k), "little").ljust(8, b"\0") for k, v in zip(probe.ins, record, strict=True)
        )
        source += block.ljust(32, b"\0") + (i & 1).to_bytes(4, "little").ljust(32, b"\0")
    blocks = [memory(len(source), bytes(source)), memory(len(probe.vectors) * STRIDE)]
    run_kernel(SUITE, arch, probe.symbol, blocks, len(probe.vectors), wave(arch), read_only=(0,))
    got, wrong = bytes(blocks[1]), []
    for i, record in enumerate(probe.vectors):
        *results, scc = probe.rule(i & 1, *record)
        at = i * STRIDE
        found = [int.from_bytes(got[at : at + 4], "little")]
        at += 4
        for (_, count), kind, want in zip(places, probe.outs, results, strict=True):
            value = int.from_bytes(got[at : at + 4 * count], "little")
            at += 4 * count
            kind = kind[2:] if kind.startswith("=") else kind
            if isinstance(want, Low):
                kind, value, want = "f16", value & 0xFFFF, want.value
            if not same(value, want, kind):
                wrong.append(
                    f"  SCC in {i & 1}, inputs {show(record)}: expected {show(want)}, got 0x{value:x}"
                )
        if found[0] != scc:
            wrong.append(f"  SCC in {i & 1}, inputs {show(record)}: expected SCC {scc}, got {found[0]}")
    assert not wrong, f"{arch} {probe.name} `{probe.asm}`: {len(wrong)} wrong\n" + "\n".join(wrong[:8])


def test_the_expectations_know_the_landmarks():
    """Facts that do not depend on the rules' own code."""
    assert (
        bfe_signed(0x80, 8 << 16, 32) == 0xFFFFFF80
        and bfe_u(0xFF00, 8, 8) == 0xFF
        and bfe_i(0x80, 0, 8) == -128
    )
    assert sign_run(1) == 31 and sign_run(0xFFFFFFFE) == 31 and M64 == 2**64 - 1
    assert (
        neg(Num(FINITE, 0, 1)).sign == 1
        and of(1.0) == 0x3F800000
        and pack(unpack(0x7FC00000, F32), F32) is ANY_NAN
    )

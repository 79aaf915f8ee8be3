"""Conversions between integers, floats, normalised numbers and the 8-bit floats."""

from __future__ import annotations

import itertools

import pytest
from expect_float import (
    BF16,
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
    convert,
    integer,
    of,
    pack,
    rounded,
    to_int,
    unpack,
)
from expect_fp8 import pack8, types, unpack8
from expect_int import s, u
from instructions import ANY_NAN, ARCHS, GFX9, GFX11, GFX94, SKIP, OneOf, Probe, Suite, check, check_all
from vectors import SNAN, operand_rows

SUITE = Suite("convert")


def add(name, ins, outs, rule, asm=None, archs=ARCHS, extra=(), count=256, **more):
    """A probe in the assembler's usual order: results, then sources."""
    ins, outs = tuple(ins.split()), tuple(outs.split())
    if asm is None:
        asm = f"{name} {{d}}, " + ", ".join("{" + letter + "}" for letter in "abcefg"[: len(ins)])
    key = name + more.get("tag", "")
    SUITE.add(Probe(name, asm, ins, outs, rule, operand_rows(key, ins, count, extra), archs, **more))


EDGES = [
    (of(x),)
    for x in (
        2147483647.0,
        2147483648.0,
        -2147483648.0,
        -2147483904.0,
        4294967040.0,
        4294967296.0,
        -1.0,
        -0.5,
        -0.99999994,
        0.5,
        1.5,
        2.5,
        -1.5,
        -2.5,
        0.49999997,
        255.5,
        256.0,
        65535.0,
        65536.0,
        32767.5,
    )
]
EDGES += [(SNAN["f32"],)]
EDGES64 = [
    (of(x, F64),)
    for x in (
        2147483647.0,
        2147483647.9,
        2147483648.0,
        -2147483648.9,
        -2147483649.0,
        4294967295.5,
        4294967296.0,
        -0.9,
        -1.0,
        1.5,
        2.5,
    )
]
TIES = [
    (u(x),)
    for x in (0x1000001, 0x1000003, 0x7FFFFFFF, 0x7FFFFFBF, 0x7FFFFFC0, -0x1000001, 0xFFFFFF7F, 0xFFFFFF80)
]

add("v_cvt_f32_i32", "u32", "f32", lambda a: pack(integer(s(a)), F32), extra=TIES)
add("v_cvt_f32_u32", "u32", "f32", lambda a: pack(integer(a), F32), extra=TIES)
add("v_cvt_f64_i32", "u32", "f64", lambda a: pack(integer(s(a)), F64))
add("v_cvt_f64_u32", "u32", "f64", lambda a: pack(integer(a), F64))
I32, U32 = (-(1 << 31), (1 << 31) - 1), (0, (1 << 32) - 1)
add("v_cvt_i32_f32", "f32", "u32", lambda a: u(to_int(unpack(a, F32), *I32)), extra=EDGES)
add("v_cvt_u32_f32", "f32", "u32", lambda a: to_int(unpack(a, F32), *U32), extra=EDGES)
add("v_cvt_i32_f64", "f64", "u32", lambda a: u(to_int(unpack(a, F64), *I32)), extra=EDGES64)
add("v_cvt_u32_f64", "f64", "u32", lambda a: to_int(unpack(a, F64), *U32), extra=EDGES64)
add("v_cvt_flr_i32_f32", "f32", "u32", lambda a: u(to_int(unpack(a, F32), *I32, DOWN)), extra=EDGES)


def nearest_up(a):
    """floor(x + 0.5); skipped where rounding the sum to f32 would change the answer (not said there)."""
    num = unpack(a, F32)
    if num.kind != FINITE:
        return u(to_int(num, *I32))
    if num.exp >= 0:
        return SKIP if num.exp == 0 and num.mag & 1 else u(to_int(num, *I32))
    if num.exp < -24 and num.mag.bit_length() + num.exp >= -1:
        return SKIP
    doubled = Num(FINITE, num.sign, num.mag, num.exp + 1)
    total = (-1 if num.sign else 1) * num.mag * 2 + (1 << -num.exp)
    del doubled
    return u(total >> (1 - num.exp))


add("v_cvt_rpi_i32_f32", "f32", "u32", nearest_up, extra=EDGES)
for i in range(4):
    add(f"v_cvt_f32_ubyte{i}", "u32", "f32", lambda a, i=i: of(float(a >> 8 * i & 0xFF)), count=96)
add("v_cvt_off_f32_i4", "u32", "f32", lambda a: of(s(a, 4) / 16.0), count=96)

# Between floats.
HALVES = [
    (of(x),)
    for x in (
        65504.0,
        65519.99,
        65520.0,
        65535.0,
        65536.0,
        6.0e-8,
        2.98e-8,
        2.9802322e-8,
        2.9802326e-8,
        6.1e-5,
        6.103515625e-5,
        1.00048828125,
        1.0014648,
        1e-30,
        -65520.0,
    )
]
add("v_cvt_f16_f32", "f32", "f16", lambda a: convert(a, F32, F16), extra=HALVES)
add("v_cvt_f32_f16", "f16", "f32", lambda a: convert(a & 0xFFFF, F16, F32))
add(
    "v_cvt_f32_f64",
    "f64",
    "f32",
    lambda a: convert(a, F64, F32),
    extra=[
        (of(x, F64),)
        for x in (3.4028235677973366e38, 3.4028235e38, 1e-45, 7.006e-46, 7.0065e-46, 1e-40, 1.00000006)
    ],
)
add("v_cvt_f64_f32", "f32", "f64", lambda a: convert(a, F32, F64))
add(
    "v_cvt_f32_f16",
    "u32",
    "f32",
    lambda a: convert(a >> 16, F16, F32),
    "v_cvt_f32_f16 {d}, {a}.h",
    archs=GFX11,
    tag="high",
)
add(
    "v_cvt_f16_f32",
    "f32 u32",
    "=b:pkf16",
    lambda a, b: [b & 0xFFFF, convert(a, F32, F16)],
    "v_cvt_f16_f32 {b}.h, {a}",
    archs=GFX11,
    tag="high",
)


def halves(mode):
    return lambda a, b: [convert(a, F32, F16, mode), convert(b, F32, F16, mode)]


PAIRS = [(x, y) for (x,), (y,) in itertools.islice(itertools.product(HALVES, HALVES), 0, None, 7)]
add("v_cvt_pkrtz_f16_f32", "f32 f32", "pkf16", halves(ZERO), extra=PAIRS)
add("v_cvt_pk_f16_f32", "f32 f32", "pkf16", halves(NEAREST), archs=("gfx950",), extra=PAIRS)
BRAINS = [
    (of(x), of(y))
    for x in (1.0, 1.00390625, 1.01171875, 3.3961776e38, 1e-40, 1.0039063)
    for y in (0.1, -2.0078125)
]
add(
    "v_cvt_pk_bf16_f32",
    "f32 f32",
    "pkbf16",
    lambda a, b: [convert(a, F32, BF16), convert(b, F32, BF16)],
    archs=("gfx950",),
    extra=BRAINS,
)
add("v_cvt_f32_bf16", "bf16", "f32", lambda a: convert(a & 0xFFFF, BF16, F32), archs=("gfx950",))
add("v_pack_b32_f16", "f16 f16", "pkf16", lambda a, b: (a & 0xFFFF) | (b & 0xFFFF) << 16)
add(
    "v_pack_b32_f16",
    "u32 u32",
    "pkf16",
    lambda a, b: a >> 16 | (b & 0xFFFF) << 16,
    "v_pack_b32_f16 {d}, {a}, {b} op_sel:[1,0,0]",
    archs=GFX9,
    tag="op_sel",
)
add(
    "v_pack_b32_f16",
    "u32 u32",
    "pkf16",
    lambda a, b: a >> 16 | (b & 0xFFFF) << 16,
    "v_pack_b32_f16 {d}, {a}.h, {b}.l",
    archs=GFX11,
    tag="op_sel",
)

# 16-bit integers.
add("v_cvt_f16_u16", "u16", "f16", lambda a: pack(integer(u(a, 16)), F16))
add("v_cvt_f16_i16", "u16", "f16", lambda a: pack(integer(s(a, 16)), F16))
add("v_cvt_u16_f16", "f16", "u16", lambda a: to_int(unpack(a & 0xFFFF, F16), 0, 0xFFFF))
add("v_cvt_i16_f16", "f16", "u16", lambda a: u(to_int(unpack(a & 0xFFFF, F16), -32768, 32767), 16))
add(
    "v_cvt_pk_i16_f32",
    "f32 f32",
    "u32",
    lambda a, b: (
        u(to_int(unpack(a, F32), -32768, 32767), 16) | u(to_int(unpack(b, F32), -32768, 32767), 16) << 16
    ),
    archs=GFX11,
)
add(
    "v_cvt_pk_u16_f32",
    "f32 f32",
    "u32",
    lambda a, b: to_int(unpack(a, F32), 0, 65535) | to_int(unpack(b, F32), 0, 65535) << 16,
    archs=GFX11,
)


def normal(num, scale, low):
    """x * scale to the nearest integer within the range; NaN is 0."""
    if num.kind != FINITE:
        return to_int(num, low, scale)
    whole = (
        rounded(num.mag * scale, -num.exp, NEAREST, num.sign) if num.exp < 0 else num.mag * scale << num.exp
    )
    return min(max(-whole if num.sign else whole, low), scale)


NORMS = [(of(x), of(y)) for x in (1.0, -1.0, 0.5, 0.99999, 2.0) for y in (-0.25, 1e-6, 0.3333)]
add(
    "v_cvt_pknorm_i16_f32",
    "f32 f32",
    "u32",
    lambda a, b: (
        u(normal(unpack(a, F32), 32767, -32767), 16) | u(normal(unpack(b, F32), 32767, -32767), 16) << 16
    ),
    extra=NORMS,
)
add(
    "v_cvt_pknorm_u16_f32",
    "f32 f32",
    "u32",
    lambda a, b: normal(unpack(a, F32), 65535, 0) | normal(unpack(b, F32), 65535, 0) << 16,
    extra=NORMS,
)
add("v_cvt_norm_i16_f16", "f16", "u16", lambda a: u(normal(unpack(a & 0xFFFF, F16), 32767, -32767), 16))
add("v_cvt_norm_u16_f16", "f16", "u16", lambda a: normal(unpack(a & 0xFFFF, F16), 65535, 0))


def byte_in(a, b, c):
    """V_CVT_PK_U8_F32: byte b of c becomes the float; whether it rounds is not said."""
    num = unpack(a, F32)
    both = {to_int(num, 0, 255, mode) for mode in (ZERO, NEAREST)}
    shift = 8 * (b & 3)
    return OneOf(tuple(c & ~(0xFF << shift) & 0xFFFFFFFF | each << shift for each in both))


add("v_cvt_pk_u8_f32", "f32 u32 u32", "u32", byte_in)

# 8-bit floats. `arch` decides what the types are, so each architecture has its own probes.
FP8 = (*GFX94, "gfx1201")
ROUGH = [
    (of(x), of(y))
    for x in (
        1.0,
        1.0625,
        1.1875,
        240.0,
        248.0,
        247.9,
        256.0,
        448.0,
        464.0,
        465.0,
        480.0,
        57344.0,
        61440.0,
        61439.0,
        65536.0,
        1e30,
        0.001953125,
        0.0009765625,
        0.00098,
        0.0004,
        1.52587890625e-05,
        7e-6,
        8e-6,
    )
    for y in (-0.0, -0.0005, -2.5)
]


def pairs(one, two, low, kept):
    return OneOf(tuple(((x | y << 8) << (0 if low else 16)) | kept for x in sorted(one) for y in sorted(two)))


def to_eight(kind, low):
    def rule(a, b, c):
        kept = c & (0xFFFF0000 if low else 0xFFFF)
        return pairs(pack8(unpack(a, F32), kind), pack8(unpack(b, F32), kind), low, kept)

    return rule


def random_eight(kind, byte):
    """Stochastic rounding: exact values stay, others become one of their neighbours; ends are left out."""

    def rule(a, b, c):
        num = unpack(a, F32)
        down, up = pack8(num, kind, ZERO), pack8(num, kind, DOWN if num.sign else UP)
        if num.kind != FINITE or not num.mag or (len(down | up) > 2) or num.mag.bit_length() + num.exp < -5:
            return SKIP
        return OneOf(
            tuple(c & ~(0xFF << 8 * byte) & 0xFFFFFFFF | each << 8 * byte for each in sorted(down | up))
        )

    return rule


for arch in FP8:
    for word, kind in zip(("fp8", "bf8"), types(arch), strict=True):
        every = [(i | (i ^ 0x5A) << 8 | (255 - i) << 16 | ((i * 7) & 255) << 24,) for i in range(256)]

        def from_eight(a, byte=0, kind=kind):
            return pack(unpack8(a >> 8 * byte & 0xFF, kind), F32)

        def two(a, word, read=from_eight):
            return [read(a, 2 * word), read(a, 2 * word + 1)]

        name = f"v_cvt_f32_{word}"
        add(name, "u32", "f32", from_eight, archs=(arch,), extra=every, count=300, tag=arch)
        for byte in (1, 2, 3):
            select = f"byte_sel:{byte}" if arch == "gfx1201" else f"src0_sel:BYTE_{byte}"
            mnemonic = name if arch == "gfx1201" else name + "_sdwa"
            add(
                name,
                "u32",
                "f32",
                lambda a, byte=byte, read=from_eight: read(a, byte),
                f"{mnemonic} {{d}}, {{a}} {select}",
                archs=(arch,),
                extra=every,
                count=280,
                tag=f"{arch}_byte{byte}",
            )
        name = f"v_cvt_pk_f32_{word}"
        for half in (0, 1):
            if arch == "gfx1201":
                asm = f"{name} {{d}}, {{a}}.{'lh'[half]}"
            else:
                asm = f"{name}_sdwa {{d}}, {{a}} src0_sel:WORD_1" if half else f"{name} {{d}}, {{a}}"
            add(
                name,
                "u32",
                "pkf32",
                lambda a, half=half, two=two: two(a, half),
                asm,
                archs=(arch,),
                extra=every,
                count=280,
                tag=f"{arch}_{half}",
            )
        name = f"v_cvt_pk_{word}_f32"
        for low in (True, False):
            if arch == "gfx1201":
                asm = f"{name} {{c}}.{'l' if low else 'h'}, {{a}}, {{b}}"
            else:
                asm = f"{name} {{c}}, {{a}}, {{b}}" + ("" if low else " op_sel:[0,0,1]")
            add(
                name,
                "f32 f32 u32",
                "=c:u32",
                to_eight(kind, low),
                asm,
                archs=(arch,),
                tag=f"{arch}_{'low' if low else 'high'}",
                extra=[(x, y, 0x11223344) for x, y in ROUGH],
                count=384,
            )
        name = f"v_cvt_sr_{word}_f32"
        for byte in range(4):
            if arch == "gfx1201":
                asm = f"{name} {{c}}, {{a}}, {{b}}" + (f" byte_sel:{byte}" if byte else "")
            else:
                asm = f"{name} {{c}}, {{a}}, {{b}}" + (
                    f" op_sel:[0,0,{byte & 1},{byte >> 1}]" if byte else ""
                )
            exact = [
                (of(x), r, 0x11223344)
                for x in (1.0, -1.5, 0.75, 2.0, 14.0, -0.5)
                for r in (0, 0xFFFFFFFF, 0x80000000)
            ]
            add(
                name,
                "f32 u32 u32",
                "=c:u32",
                random_eight(kind, byte),
                asm,
                archs=(arch,),
                tag=f"{arch}_{byte}",
                extra=exact,
                count=128,
            )


@pytest.mark.parametrize("probes", SUITE.mnemonics())
def test_instruction(probes):
    check_all(probes, lambda arch, probe: check(SUITE, probe, arch))


def test_the_expectations_know_the_landmarks():
    """Facts of the formats that do not depend on the code above."""
    assert of(1.0, F16) == 0x3C00 and of(65520.0, F16) == F16.inf and of(65519.0, F16) == 0x7BFF
    assert pack8(unpack(of(240.0), F32), types("gfx942")[0]) == {0x7F}
    assert pack8(unpack(of(448.0), F32), types("gfx950")[0]) == {0x7E}
    assert pack8(unpack(of(57344.0), F32), types("gfx1201")[1]) == {0x7B}
    assert unpack8(0x80, types("gfx942")[0]).kind == NAN and unpack8(0x7C, types("gfx950")[1]).kind == INF
    assert convert(0x7FC00000, F32, F16) is ANY_NAN and GFX9[1:] == GFX94

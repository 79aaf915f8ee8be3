"""MFMA and WMMA: where every element lies (sums that are exact), and how sums round where that is known."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from operator import mul

import pytest
from expect_float import BF16, F16, F32, F64, FINITE, Format, Num, of, pack, unpack
from expect_fp8 import pack8, types
from expect_int import s, u
from expect_matrix import Shape, chained, fused, pairwise
from instructions import GFX9, GFX94, LazyRows, Probe, Suite, check, check_all, seed

from portable.backends.rocm.emulator import fidelity
from portable.backends.rocm.emulator.faults import KernelFault

SUITE = Suite("matrix")


@dataclass(frozen=True)
class Element:
    """A type of matrix element: its width and how an integer is written in it."""

    name: str
    width: int

    @functools.cache  # noqa: B019
    def write(self, value: int, arch: str) -> int:
        if self.name in ("i8", "i4"):
            return u(value, self.width)
        if self.name in ("fp8", "bf8"):
            (bits,) = pack8(unpack(of(float(value)), F32), types(arch)[self.name == "bf8"])
            return bits
        return of(float(value), FORMATS[self.name])


FORMATS: dict[str, Format] = {"f16": F16, "bf16": BF16, "f32": F32, "xf32": F32, "f64": F64}
ELEMENTS = {
    name: Element(name, width)
    for name, width in (
        ("f16", 16),
        ("bf16", 16),
        ("f32", 32),
        ("xf32", 32),
        ("f64", 64),
        ("i8", 8),
        ("i4", 4),
        ("fp8", 8),
        ("bf8", 8),
    )
}


def kind_of(bits: int) -> str:
    return f"u{max(bits, 32)}"


def matrices(shape: Shape, random, span: int):
    """Random A and B, with an index for the block, of small integers."""
    size = range(shape.m)
    return [
        [[[random.randint(-span, span) for _ in range(shape.k)] for _ in size] for _ in range(shape.blocks)]
        for _ in range(2)
    ]


def gather(shape: Shape, lane: int, matrix, element: Element, arch: str) -> int:
    out = 0
    for j in range(shape.per_lane):
        block, row, k = shape.operand(lane, j)
        out |= element.write(matrix[block][row][k], arch) << element.width * j
    return out


def seen(shape: Shape, matrix, source):
    """The matrix that takes part where lane i's elements are those of lane source(i)."""
    out = [[list(row) for row in block] for block in matrix]
    for lane in range(shape.wave):
        for j in range(shape.per_lane):
            (block, row, k), (block2, row2, k2) = shape.operand(lane, j), shape.operand(source(lane), j)
            out[block][row][k] = matrix[block2][row2][k2]
    return out


@functools.cache
def written(value: int, kind: str) -> int:
    """An integer as an accumulator's element."""
    return u(value) if kind == "i32" else of(float(value), FORMATS[kind])


@dataclass(frozen=True)
class Problem:
    """The operands of every lane of each wave, and the result that it must hold."""

    rows: tuple[tuple[int, ...], ...]
    results: dict[tuple[int, int], int]  # by wave and lane

    def rule(self, context, lanes):
        wave = 0 if tuple(lanes) == self.rows[: context.wave] else 1
        return [(self.results[wave, lane],) for lane in range(context.wave)]


def lazily(make: Callable[[], Problem]):
    """(operands, rule) of a problem that is made at first use: its products are this file's slow part."""
    made = functools.cache(make)
    return LazyRows(lambda: made().rows), lambda context, lanes: made().rule(context, lanes)


def layout_problem(shape, name, arch, a_type, b_type, d_type, span, a_from, b_from) -> Problem:
    """Two waves with small integers; the lanes of a wave hold one matrix product."""
    random = seed(name)
    rows, results = [], {}
    width = WIDTHS[d_type]
    step = accumulator_step(shape, width)
    for wave in range(2):
        held = matrices(shape, random, span)
        a, b = seen(shape, held[0], a_from), seen(shape, held[1], b_from)
        c = [
            [[random.randint(-9, 9) for _ in range(shape.m)] for _ in range(shape.m)]
            for _ in range(shape.blocks)
        ]
        for lane in range(shape.wave):
            seeds = wants = 0
            for i in range(shape.accumulators):
                block, row, column = shape.result(lane, i)
                total = c[block][row][column] + sum(map(mul, a[block][row], b[block][column]))
                high = 0x5A5A0000 if step != width else 0
                seeds |= (written(c[block][row][column], d_type) | high) << step * i
                wants |= (written(total, d_type) | high) << step * i
            sides = ((held[0], a_type), (held[1], b_type))
            rows.append((*(gather(shape, lane, *each, arch) for each in sides), seeds))
            results[wave, lane] = wants
    return Problem(tuple(rows), results)


WIDTHS = {"f32": 32, "i32": 32, "f64": 64, "f16": 16, "bf16": 16}


def accumulator_step(shape: Shape, width: int) -> int:
    """Bits from one accumulator to the next: gfx11 holds 16-bit ones in a register each."""
    return 32 if shape.rdna == 11 and width == 16 else width


def layout_probe(
    name: str,
    shape: Shape,
    one: str,
    two: str,
    result: str,
    archs,
    extra="",
    span=3,
    tag="",
    acc="v",
    a_from: Callable[[int], int] = int,
    b_from: Callable[[int], int] = int,
) -> None:
    """A probe of layouts per architecture, by `layout_problem`."""
    for arch in archs:
        a_type, b_type, d_type = ELEMENTS[one], ELEMENTS[two], result
        step = accumulator_step(shape, WIDTHS[d_type])
        table, rule = lazily(
            functools.partial(
                layout_problem, shape, name + tag, arch, a_type, b_type, d_type, span, a_from, b_from
            )
        )

        ins = (
            kind_of(shape.per_lane * a_type.width),
            kind_of(shape.per_lane * b_type.width),
            kind_of(shape.accumulators * step),
        )
        covers = (name,)
        if acc == "a":
            count = shape.accumulators * step // 32
            asm = ";".join(f"v_accvgpr_write_b32 a{i}, {{c{i}}}" for i in range(count))
            asm += f";{name} a[0:{count - 1}], {{a}}, {{b}}, a[0:{count - 1}]{extra};s_nop 15;s_nop 15;"
            asm += ";".join(f"v_accvgpr_read_b32 {{c{i}}}, a{i}" for i in range(count))
            first = 8 + sum(int(kind[1:]) // 32 for kind in ins[:2])
            first += first & 1
            for i in range(count):
                asm = asm.replace(f"{{c{i}}}", f"v{first + i}")
            covers += ("v_accvgpr_write_b32", "v_accvgpr_read_b32")
        else:
            # In place, as kernels accumulate.
            asm = f"{name} {{c}}, {{a}}, {{b}}, {{c}}{extra};s_nop 15;s_nop 15"
        SUITE.add(
            Probe(
                name,
                asm,
                ins,
                ("=c:" + ins[2],),
                rule,
                table,
                (arch,),
                whole=True,
                masked=False,
                covers=covers,
                tag=f"{tag}{acc}_{arch}",
            )
        )


def named(shape: Shape, stem: str, arch: str) -> str:
    """gfx90a's spelling has no underscore before the type and no count of blocks."""
    size = f"{shape.m}x{shape.m}x{shape.k}"
    if arch == "gfx90a":
        return f"{size}{stem}"
    return f"{size}{f'_{shape.blocks}b' if shape.blocks > 1 else ''}_{stem}"


FLOAT = {
    "f32": ((32, 1, 2), (16, 1, 4), (4, 1, 16), (32, 2, 1), (16, 4, 1)),
    "f16": ((32, 4, 2), (16, 4, 4), (4, 4, 16), (32, 8, 1), (16, 16, 1)),
}
for arch in GFX9:
    for stem, shapes in FLOAT.items():
        for m, k, blocks in shapes:
            shape = Shape(m, k, blocks)
            layout_probe(f"v_mfma_f32_{named(shape, stem, arch)}", shape, stem, stem, "f32", (arch,))
    for m, k, blocks in FLOAT["f16"]:
        shape = Shape(m, k, blocks)
        stem = "bf16_1k" if arch == "gfx90a" else "bf16"
        layout_probe(f"v_mfma_f32_{named(shape, stem, arch)}", shape, "bf16", "bf16", "f32", (arch,))
    layout_probe(
        f"v_mfma_f32_{named(Shape(32, 8), 'f16', arch)}", Shape(32, 8), "f16", "f16", "f32", (arch,), acc="a"
    )
    layout_probe(
        f"v_mfma_f32_{named(Shape(16, 4), 'f32', arch)}", Shape(16, 4), "f32", "f32", "f32", (arch,), acc="a"
    )
    word = (
        (lambda shape: f"{shape.m}x{shape.m}x{shape.k}f64")
        if arch == "gfx90a"
        else (lambda shape: f"{shape.m}x{shape.m}x{shape.k}{'_4b' if shape.blocks > 1 else ''}_f64")
    )
    for shape in (Shape(16, 4, f64=True), Shape(4, 4, 4, f64=True)):
        layout_probe(f"v_mfma_f64_{word(shape)}", shape, "f64", "f64", "f64", (arch,))
    for m, k, blocks in (
        (32, 4, 2),
        (16, 4, 4),
        (4, 4, 16),
        *(((32, 8, 1), (16, 16, 1)) if arch == "gfx90a" else ((32, 16, 1), (16, 32, 1))),
    ):
        shape = Shape(m, k, blocks)
        layout_probe(f"v_mfma_i32_{named(shape, 'i8', arch)}", shape, "i8", "i8", "i32", (arch,), span=127)
for m, k, blocks in ((32, 2, 2), (16, 2, 4), (4, 2, 16), (32, 4, 1), (16, 8, 1)):
    shape = Shape(m, k, blocks)
    layout_probe(f"v_mfma_f32_{m}x{m}x{k}bf16", shape, "bf16", "bf16", "f32", ("gfx90a",))
for one in ("fp8", "bf8"):
    for two in ("fp8", "bf8"):
        for m, k in ((16, 32), (32, 16)):
            layout_probe(f"v_mfma_f32_{m}x{m}x{k}_{one}_{two}", Shape(m, k), one, two, "f32", GFX94)
for m, k in ((16, 8), (32, 4)):
    layout_probe(f"v_mfma_f32_{m}x{m}x{k}_xf32", Shape(m, k), "xf32", "xf32", "f32", ("gfx942",))
for stem in ("f16", "bf16"):
    for m, k in ((16, 32), (32, 16)):
        layout_probe(f"v_mfma_f32_{m}x{m}x{k}_{stem}", Shape(m, k), stem, stem, "f32", ("gfx950",))
for m, k in ((16, 64), (32, 32)):
    layout_probe(f"v_mfma_i32_{m}x{m}x{k}_i8", Shape(m, k), "i8", "i8", "i32", ("gfx950",), span=127)
for m, k in ((16, 128), (32, 64)):
    layout_probe(f"v_mfma_f32_{m}x{m}x{k}_f8f6f4", Shape(m, k), "fp8", "fp8", "f32", ("gfx950",))

# Broadcasts: CBSZ and ABID choose whose block of A is used, BLGP which lanes of B (CDNA guides).
PATTERNS = {
    1: lambda i: i & 31,
    2: lambda i: i & 31 | 32,
    3: lambda i: (i + 16) & 63,
    4: lambda i: i & 15,
    5: lambda i: i & 15 | 16,
    6: lambda i: i & 15 | 32,
    7: lambda i: i & 15 | 48,
}
for arch in GFX9:
    for m, k, blocks, cbsz, abid in ((32, 1, 2, 1, 1), (16, 1, 4, 2, 3), (16, 1, 4, 1, 0), (4, 1, 16, 3, 5)):
        shape = Shape(m, k, blocks)

        def chosen(lane, m=m, cbsz=cbsz, abid=abid):
            block = lane // m & ~((1 << cbsz) - 1) | abid
            return block * m + lane % m

        layout_probe(
            f"v_mfma_f32_{named(shape, 'f32', arch)}",
            shape,
            "f32",
            "f32",
            "f32",
            (arch,),
            f" cbsz:{cbsz} abid:{abid}",
            tag=f"cbsz{cbsz}_{abid}",
            a_from=chosen,
        )
    for code, source in PATTERNS.items():
        shape = Shape(32, 1, 2)
        layout_probe(
            f"v_mfma_f32_{named(shape, 'f32', arch)}",
            shape,
            "f32",
            "f32",
            "f32",
            (arch,),
            f" blgp:{code}",
            tag=f"blgp{code}",
            b_from=source,
        )

for arch, generation in (("gfx1100", 11), ("gfx1201", 12)):
    shape = Shape(16, 16, wave=32, rdna=generation)
    for stem in ("f16", "bf16"):
        layout_probe(f"v_wmma_f32_16x16x16_{stem}", shape, stem, stem, "f32", (arch,))
        layout_probe(f"v_wmma_{stem}_16x16x16_{stem}", shape, stem, stem, stem, (arch,), span=2)
    layout_probe("v_wmma_i32_16x16x16_iu8", shape, "i8", "i8", "i32", (arch,), " neg_lo:[1,1,0]", 127)
    layout_probe("v_wmma_i32_16x16x16_iu4", shape, "i4", "i4", "i32", (arch,), " neg_lo:[1,1,0]", 7)
layout_probe(
    "v_wmma_i32_16x16x32_iu4",
    Shape(16, 32, wave=32, rdna=12),
    "i4",
    "i4",
    "i32",
    ("gfx1201",),
    " neg_lo:[1,1,0]",
    7,
)
for one in ("fp8", "bf8"):
    for two in ("fp8", "bf8"):
        layout_probe(
            f"v_wmma_f32_16x16x16_{one}_{two}", Shape(16, 16, wave=32, rdna=12), one, two, "f32", ("gfx1201",)
        )


# Sparse: of each four k of A two values and their places (CDNA3 guide, AMD's matrix instruction calculator).
PLACES = ((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3))


def sparse_problem(name: str, m: int, k: int, types: tuple[str, str], part: int) -> Problem:
    """Two waves with small integers. A lane's k are those of lanes of its place in the 64; `part` of the
    register of places, a byte of 16-bit types and else a half, counts, and the others hold any bits."""
    random, left, right_type = seed(name), ELEMENTS[types[0]], ELEMENTS[types[1]]
    shape, per_lane = Shape(m, k), k * m // 64
    rows, results = [], {}
    for wave in range(2):
        a = [[0] * k for _ in range(m)]
        b = [[random.randint(-3, 3) for _ in range(k)] for _ in range(m)]
        c = [[random.randint(-9, 9) for _ in range(m)] for _ in range(m)]
        held = []
        for lane in range(64):
            row, first = lane % m, lane // m * per_lane
            values = right = index = 0
            for four in range(per_lane // 4):
                low, high = random.choice(PLACES)
                index |= (low | high << 2) << 4 * four
                for slot, place in enumerate((low, high)):
                    number = random.randint(-3, 3)
                    a[row][first + 4 * four + place] = number
                    values |= left.write(number, "gfx942") << left.width * (2 * four + slot)
            for j in range(per_lane):
                right |= right_type.write(b[row][first + j], "gfx942") << right_type.width * j
            others = random.getrandbits(32) & ~(((1 << per_lane) - 1) << per_lane * part)
            held.append((values, right, others | index << per_lane * part))
        for lane in range(64):
            seeds = wants = 0
            for i in range(shape.accumulators):
                _, row, column = shape.result(lane, i)
                total = c[row][column] + sum(map(mul, a[row], b[column]))
                seeds |= written(c[row][column], "f32") << 32 * i
                wants |= written(total, "f32") << 32 * i
            rows.append((*held[lane], seeds))
            results[wave, lane] = wants
    return Problem(tuple(rows), results)


def sparse_probe(m: int, k: int, types: tuple[str, ...], cbsz: int, abid: int) -> None:
    name = f"v_smfmac_f32_{m}x{m}x{k}_{'_'.join(types)}"
    modifiers = f"{f' cbsz:{cbsz}' if cbsz else ''}{f' abid:{abid}' if abid else ''}"
    part = 0 if cbsz else abid
    table, rule = lazily(functools.partial(sparse_problem, name, m, k, (types[0], types[-1]), part))
    sums = kind_of(m * m // 2)
    SUITE.add(
        Probe(
            name,
            f"{name} {{e}}, {{a}}, {{b}}, {{c}}{modifiers};s_nop 15;s_nop 15",
            ("u64", "u128", "u32", sums),
            ("=e:" + sums,),
            rule,
            table,
            ("gfx942",),
            whole=True,
            masked=False,
            tag=f"cbsz{cbsz}_{abid}",
        )
    )


for m, k in ((16, 32), (32, 16)):
    for cbsz, abid in ((0, 0), (0, 1), (0, 2), (0, 3), (1, 2)):
        for stem in ("f16", "bf16"):
            sparse_probe(m, k, (stem,), cbsz, abid)
    for cbsz, abid in ((0, 0), (0, 1), (1, 1)):
        for pair in product(("fp8", "bf8"), repeat=2):
            sparse_probe(m, 2 * k, pair, cbsz, abid)


# Rounding.
def normal(random, fmt: Format, low: int, high: int) -> int:
    """A random normal number of a range of exponents."""
    return (
        random.getrandbits(1) * fmt.sign
        | (fmt.bias + random.randint(low, high)) << fmt.man
        | random.getrandbits(fmt.man)
    )


def cancelling(random, products: list[tuple[int, int]], fmt: Format, result: Format, sums) -> int:
    """An addend of which a sum of products leaves little: its negative, with other last bits."""
    total = sums([(unpack(x, fmt), unpack(y, fmt)) for x, y in products], Num(FINITE, 0, 0, 0))
    return pack(total, result) ^ result.sign ^ random.getrandbits(3)


def rounding_problem(
    name: str, shape: Shape, fmt: Format, result: Format, sums, span, cancels: bool
) -> Problem:
    """Every result of two waves by the model of the sums. One wave's exponents are wide, one's near."""
    random = seed("rounding " + name)
    rows, results = [], {}
    for wave in range(1 if shape.m == 32 else 2):
        low, high = (-1, 1) if wave else span
        size = range(shape.m)
        a, b = (
            [
                [[normal(random, fmt, low, high) for _ in range(shape.k)] for _ in size]
                for _ in range(shape.blocks)
            ]
            for _ in "ab"
        )
        c = [
            [[normal(random, result, 2 * low, 2 * high + 2) for _ in size] for _ in size]
            for _ in range(shape.blocks)
        ]
        for block, row, column in product(range(shape.blocks), size, size) if cancels else ():
            factors = list(zip(a[block][row], b[block][column], strict=True))
            c[block][row][column] = cancelling(random, factors, fmt, result, sums)
        for lane in range(shape.wave):
            packed = []
            for matrix in (a, b):
                out = 0
                for j in range(shape.per_lane):
                    block, row, k = shape.operand(lane, j)
                    out |= matrix[block][row][k] << (fmt.man + fmt.exp + 1) * j
                packed.append(out)
            seeds = wants = 0
            width = result.man + result.exp + 1
            for i in range(shape.accumulators):
                block, row, column = shape.result(lane, i)
                pairs = [
                    (unpack(x, fmt), unpack(y, fmt))
                    for x, y in zip(a[block][row], b[block][column], strict=True)
                ]
                total: Num = sums(pairs, unpack(c[block][row][column], result))
                seeds |= c[block][row][column] << width * i
                wants |= pack(total, result) << width * i
            rows.append((*packed, seeds))
            results[wave, lane] = wants
    return Problem(tuple(rows), results)


def rounding_probe(
    name: str, shape: Shape, fmt: Format, result: Format, sums, archs, span, tag="", cancels=False
) -> None:
    """A probe of rounding per architecture, by `rounding_problem`, which knows no architecture."""
    table, rule = lazily(
        functools.partial(rounding_problem, name + tag, shape, fmt, result, sums, span, cancels)
    )
    for arch in archs:
        width = fmt.man + fmt.exp + 1
        ins = (kind_of(shape.per_lane * width),) * 2 + (
            kind_of(shape.accumulators * (result.man + result.exp + 1)),
        )
        SUITE.add(
            Probe(
                name,
                f"{name} {{c}}, {{a}}, {{b}}, {{c}};s_nop 15;s_nop 15",
                ins,
                ("=c:" + ins[2],),
                rule,
                table,
                (arch,),
                whole=True,
                masked=False,
                tag=f"rounding_{tag}{arch}",
            )
        )


def chain(fmt):
    return lambda pairs, total: chained(pairs, total, fmt)


def tree(group):
    return lambda pairs, total: pairwise(pairs, total, group)


def fuse(fmt):
    return lambda pairs, total: fused(pairs, total, fmt)


rounding_probe("v_mfma_f32_16x16x4f32", Shape(16, 4), F32, F32, chain(F32), ("gfx90a",), (-9, 9))
rounding_probe("v_mfma_f32_32x32x2_f32", Shape(32, 2), F32, F32, chain(F32), GFX94, (-9, 9))
rounding_probe("v_mfma_f32_16x16x4_f32", Shape(16, 4), F32, F32, chain(F32), GFX94, (-9, 9))
rounding_probe("v_mfma_f64_16x16x4f64", Shape(16, 4, f64=True), F64, F64, chain(F64), ("gfx90a",), (-20, 20))
rounding_probe("v_mfma_f64_16x16x4_f64", Shape(16, 4, f64=True), F64, F64, chain(F64), ("gfx942",), (-20, 20))
rounding_probe("v_mfma_f32_16x16x16f16", Shape(16, 16), F16, F32, tree(4), ("gfx90a",), (-8, 8))
rounding_probe("v_mfma_f32_32x32x8bf16_1k", Shape(32, 8), BF16, F32, tree(4), ("gfx90a",), (-12, 12))
rounding_probe("v_mfma_f32_32x32x4bf16", Shape(32, 4), BF16, F32, tree(2), ("gfx90a",), (-12, 12))
for m, k in ((16, 16), (32, 8)):
    rounding_probe(f"v_mfma_f32_{m}x{m}x{k}_f16", Shape(m, k), F16, F32, fuse(F16), ("gfx942",), (-8, 8))
    rounding_probe(f"v_mfma_f32_{m}x{m}x{k}_bf16", Shape(m, k), BF16, F32, fuse(BF16), ("gfx942",), (-14, 14))
rounding_probe("v_mfma_f32_4x4x4_16b_f16", Shape(4, 4, 16), F16, F32, fuse(F16), ("gfx942",), (-8, 8))
# Where matrix.c changes over to its other ways: products around 2^-95 and 2^30, and results near zero.
for tag, span, cancels in (
    ("small_", (-50, -45), False),
    ("large_", (11, 18), False),
    ("cancel_", (-3, 3), True),
    ("wide_", (-14, 0), True),
):
    rounding_probe(
        *("v_mfma_f32_16x16x16_bf16", Shape(16, 16), BF16, F32, fuse(BF16), ("gfx942",), span, tag, cancels)
    )


ROW = tuple((x, u(-x)) for x in range(64))
SUITE.add(
    Probe(
        "v_accvgpr_mov_b32",
        "v_accvgpr_write_b32 a3, {a};v_accvgpr_mov_b32 a5, a3;v_accvgpr_read_b32 {d}, a5",
        ("u32", "u32"),
        ("u32",),
        lambda a, b: a,
        ROW,
        GFX9,
    )
)


@pytest.mark.parametrize("probes", SUITE.mnemonics())
def test_instruction(probes):
    check_all(probes, lambda arch, probe: check(SUITE, probe, arch))


REFUSED = Suite("matrix_refused")
for arch, index in (("gfx942", 0x41), ("gfx942", 0x55), ("gfx950", 0x44)):
    REFUSED.add(
        Probe(
            "v_smfmac_f32_16x16x32_f16",
            "v_smfmac_f32_16x16x32_f16 {e}, {a}, {b}, {c};s_nop 15;s_nop 15",
            ("u64", "u128", "u32", "u128"),
            ("=e:u128",),
            lambda context, lanes: [(0,)] * 64,
            ((0, 0, index, 0),) * 64,
            (arch,),
            whole=True,
            masked=False,
            tag=f"{arch}_{index:x}",
        )
    )


@pytest.mark.parametrize(
    "arch, tag, says",
    [
        ("gfx942", "41", "the places of a sparse operand's two values do not ascend"),
        ("gfx942", "55", "the places of a sparse operand's two values do not ascend"),
        ("gfx950", "44", "the registers of a sparse product are known for gfx942 alone"),
    ],
)
def test_a_sparse_product_whose_result_is_not_defined_is_a_fault(arch, tag, says):
    (probe,) = [each for each in REFUSED.probes if each.tag == f"{arch}_{tag}"]
    with pytest.raises(KernelFault, match=says):
        check(REFUSED, probe, arch)


def test_how_closely_a_sparse_product_is_followed():
    assert fidelity._how("v_smfmac_f32_16x16x32_bf16", "gfx942") == fidelity.ASSUMED
    assert fidelity._how("v_mfma_f32_16x16x16_bf16", "gfx942") != fidelity.ASSUMED


def test_the_accumulator_of_32x32():
    """The layout that others got wrong: accumulator i of a lane is row 8*(i//4) + 4*(lane//32) + i%4."""
    shape = Shape(32, 8)
    rows = [4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31]
    assert [shape.result(37, i)[1] for i in range(16)] == rows
    assert shape.result(37, 0)[2] == 5 and s(0x80, 8) == -128 and replace(shape, m=16).m == 16

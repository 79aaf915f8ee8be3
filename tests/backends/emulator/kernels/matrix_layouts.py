"""Which element of a matrix each register of each lane holds, and what each matrix instruction computes.

Layouts are those of the AMD CDNA and RDNA instruction set guides; values are small integers or short
binary fractions, so that every sum is exact in whatever order the hardware adds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .harness import Out

SCALED = "matrix_scaled.hip"


def bf16_bits(x: np.ndarray) -> np.ndarray:
    """The upper half of float32 values that bfloat16 holds exactly."""
    bits = x.astype(np.float32).view(np.uint32)
    assert not (bits & 0xFFFF).any()
    return (bits >> 16).astype(np.uint16)


def fp8_values(mantissa: int, fnuz: bool) -> np.ndarray:
    """The 256 values of e4m3 (3 bits of mantissa) or e5m2 (2): OCP's, or the "fnuz" ones of gfx942."""
    bias = {3: 7, 2: 15}[mantissa] + fnuz
    codes = np.arange(256)
    exponent, fraction = (codes & 0x7F) >> mantissa, codes & ((1 << mantissa) - 1)
    subnormal = np.ldexp(fraction.astype(float), 1 - bias - mantissa)
    normal = np.ldexp(1 + fraction / (1 << mantissa), exponent - bias)
    values = np.where(codes & 0x80, -1, 1) * np.where(exponent == 0, subnormal, normal)
    if fnuz:
        values[0x80] = np.nan
    elif mantissa == 3:
        values[[0x7F, 0xFF]] = np.nan
    else:
        values[exponent == 31] = np.nan  # and the infinities, which are not drawn either
    return values


class Kind:
    """How numbers of one type are drawn and stored; `draw` gives stored numbers and their values."""

    def __init__(self, name: str, fnuz: bool) -> None:
        self.name, self.fnuz = name, fnuz

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        if self.name in ("fp8", "bf8"):
            values = fp8_values(3 if self.name == "fp8" else 2, self.fnuz)
            fit = np.flatnonzero((np.abs(values) <= 8) & (values * 8 == np.round(values * 8)))
            codes = rng.choice(fit, shape).astype(np.uint8)
            return codes, values[codes]
        lowest, highest = {"i8": (-128, 128), "u8": (0, 256), "i4": (-8, 8), "u4": (0, 16)}.get(
            self.name, (-3, 4)
        )
        values = rng.integers(lowest, highest, shape)
        if self.name in ("i4", "u4"):
            return (values & 15).astype(np.uint8), values.astype(float)
        stored = {
            "f16": values.astype(np.float16),
            "f32": values.astype(np.float32),
            "f64": values.astype(np.float64),
            "bf16": bf16_bits(values),
            "i8": values.astype(np.int8),
            "u8": (values & 255).astype(np.uint8),
            "i32": values.astype(np.int32),
        }
        return stored[self.name], values.astype(float)


@dataclass(frozen=True)
class Mfma:
    """`blocks` independent products of `size` x `depth` and `depth` x `size` matrices, 64 lanes."""

    name: str
    size: int
    depth: int
    a: str
    c: str = "f32"
    blocks: int = 1
    b: str = ""
    cbsz: int = 0
    abid: int = 0
    blgp: int = 0
    scale: float = 1.0
    file: str = "matrix.hip"

    def run(self, launch, fnuz: bool) -> None:
        rng, lane = launch.rng, np.arange(64)
        row = lane % self.size
        block = lane // self.size % self.blocks
        group = lane // (self.size * self.blocks)
        per_lane = self.depth * self.size * self.blocks // 64
        k = group[:, None] * per_lane + np.arange(per_lane)
        stored, dense = [], []
        for name in (self.a, self.b or self.a):
            bits, values = Kind(name, fnuz).draw(rng, (64, per_lane))
            seen = values
            if len(stored) == 1 and self.blgp:
                quarter = (self.blgp & 3) * 16 + lane % 16
                source = {1: lane % 32, 2: lane % 32 + 32}.get(self.blgp, quarter)
                seen = values[source]
            matrix = np.zeros((self.blocks, self.size, self.depth))
            matrix[block[:, None], row[:, None], k] = seen
            stored.append(bits)
            dense.append(matrix)
        if self.cbsz:
            span = 1 << self.cbsz
            dense[0] = dense[0][[each // span * span + self.abid for each in range(self.blocks)]]
        registers = self.size * self.size * self.blocks // 64
        dtype = {"f32": np.float32, "i32": np.int32, "f64": np.float64}[self.c]
        c = rng.integers(-99, 100, (64, registers)).astype(dtype)
        d = launch(self.name, 1, 64, Out((64, registers), dtype), stored[0], stored[1], c)
        product = self.scale * np.einsum("bik,bjk->bij", dense[0], dense[1])
        where = self.accumulator(registers)
        np.testing.assert_array_equal(d, c + product[where])

    def accumulator(self, registers: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Block, row and column of each (lane, register)."""
        lane, r = np.meshgrid(np.arange(64), np.arange(registers), indexing="ij")
        column = lane % self.size
        if self.c == "f64":
            return (
                (lane // 4 % 4, lane // 16, column)
                if self.size == 4
                else (lane * 0, 4 * r + lane // 16, column)
            )
        if self.size == 4:
            return lane // 4, r, column
        per_block = self.size * self.size // 64
        block, r = r // per_block, r % per_block
        return block, 256 // self.size * (r // 4) + 4 * (lane // self.size) + r % 4, column


def mfmas(arch: str) -> list[Mfma]:
    found = [
        Mfma("mfma_f32_32x32x8f16", 32, 8, "f16"),
        Mfma("mfma_f32_16x16x16f16", 16, 16, "f16"),
        Mfma("mfma_f32_32x32x4f16", 32, 4, "f16", blocks=2),
        Mfma("mfma_f32_16x16x4f16", 16, 4, "f16", blocks=4),
        Mfma("mfma_f32_4x4x4f16", 4, 4, "f16", blocks=16),
        Mfma("mfma_f32_32x32x8bf16_1k", 32, 8, "bf16"),
        Mfma("mfma_f32_16x16x16bf16_1k", 16, 16, "bf16"),
        Mfma("mfma_f32_32x32x4bf16_1k", 32, 4, "bf16", blocks=2),
        Mfma("mfma_f32_16x16x4bf16_1k", 16, 4, "bf16", blocks=4),
        Mfma("mfma_f32_4x4x4bf16_1k", 4, 4, "bf16", blocks=16),
        Mfma("mfma_f32_32x32x2f32", 32, 2, "f32"),
        Mfma("mfma_f32_16x16x4f32", 16, 4, "f32"),
        Mfma("mfma_f32_32x32x1f32", 32, 1, "f32", blocks=2),
        Mfma("mfma_f32_16x16x1f32", 16, 1, "f32", blocks=4),
        Mfma("mfma_f32_4x4x1f32", 4, 1, "f32", blocks=16),
        Mfma("mfma_i32_32x32x4i8", 32, 4, "i8", "i32", blocks=2),
        Mfma("mfma_i32_16x16x4i8", 16, 4, "i8", "i32", blocks=4),
        Mfma("mfma_i32_4x4x4i8", 4, 4, "i8", "i32", blocks=16),
        Mfma("mfma_f64_16x16x4f64", 16, 4, "f64", "f64"),
        Mfma("mfma_f64_4x4x4f64", 4, 4, "f64", "f64", blocks=4),
        Mfma("mfma_a_block_1", 32, 1, "f32", blocks=2, cbsz=1, abid=1),
        Mfma("mfma_a_block_0_of_2", 16, 1, "f32", blocks=4, cbsz=1, abid=0),
        Mfma("mfma_a_block_3_of_4", 16, 4, "f16", blocks=4, cbsz=2, abid=3),
        Mfma("mfma_a_block_5_of_8", 4, 1, "f32", blocks=16, cbsz=3, abid=5),
        Mfma("mfma_b_low_half", 32, 1, "f32", blocks=2, blgp=1),
        Mfma("mfma_b_high_half", 16, 1, "f32", blocks=4, blgp=2),
        Mfma("mfma_b_quarter_2", 16, 1, "f32", blocks=4, blgp=6),
    ]
    if arch == "gfx90a":
        found += [
            Mfma("mfma_i32_32x32x8i8", 32, 8, "i8", "i32"),
            Mfma("mfma_i32_16x16x16i8", 16, 16, "i8", "i32"),
            Mfma("mfma_f32_32x32x4bf16", 32, 4, "bf16"),
            Mfma("mfma_f32_16x16x8bf16", 16, 8, "bf16"),
            Mfma("mfma_f32_32x32x2bf16", 32, 2, "bf16", blocks=2),
            Mfma("mfma_f32_16x16x2bf16", 16, 2, "bf16", blocks=4),
            Mfma("mfma_f32_4x4x2bf16", 4, 2, "bf16", blocks=16),
        ]
    else:
        found += [
            Mfma("mfma_i32_32x32x16_i8", 32, 16, "i8", "i32"),
            Mfma("mfma_i32_16x16x32_i8", 16, 32, "i8", "i32"),
            Mfma("mfma_f32_32x32x16_fp8_fp8", 32, 16, "fp8"),
            Mfma("mfma_f32_16x16x32_fp8_fp8", 16, 32, "fp8"),
            Mfma("mfma_f32_32x32x16_bf8_fp8", 32, 16, "bf8", b="fp8"),
            Mfma("mfma_f32_16x16x32_bf8_bf8", 16, 32, "bf8"),
            Mfma("mfma_f32_16x16x32_fp8_bf8", 16, 32, "fp8", b="bf8"),
        ]
    if arch == "gfx942":
        found += [
            Mfma("mfma_f32_32x32x4_xf32", 32, 4, "f32"),
            Mfma("mfma_f32_16x16x8_xf32", 16, 8, "f32"),
        ]
    if arch == "gfx950":
        found += [
            Mfma("mfma_f32_32x32x16_f16", 32, 16, "f16"),
            Mfma("mfma_f32_16x16x32_f16", 16, 32, "f16"),
            Mfma("mfma_f32_32x32x16_bf16", 32, 16, "bf16"),
            Mfma("mfma_f32_16x16x32_bf16", 16, 32, "bf16"),
            Mfma("mfma_i32_32x32x32_i8", 32, 32, "i8", "i32"),
            Mfma("mfma_i32_16x16x64_i8", 16, 64, "i8", "i32"),
            # Every lane gives the same scale, 2 ** (128 - 127) * 2 ** (126 - 127) and 2 ** (129 - 127).
            Mfma("mfma_scale_f32_16x16x128_f8f6f4", 16, 128, "fp8", scale=1.0, file=SCALED),
            Mfma("mfma_scale_f32_32x32x64_f8f6f4", 32, 64, "fp8", scale=4.0, file=SCALED),
        ]
    return found


@dataclass(frozen=True)
class Wmma:
    """One 16 x `depth` by `depth` x 16 product in 32 lanes, as gfx11 or gfx12 lay it out."""

    name: str
    a: str
    b: str = ""
    c: str = "f32"
    depth: int = 16
    half: int = 0  # which half of each register of C and D counts; gfx11 with 16-bit results only

    def run(self, launch, gfx11: bool) -> None:
        rng, lane = launch.rng, np.arange(32)
        per_lane = self.depth if gfx11 else self.depth // 2
        k = np.arange(per_lane) if gfx11 else lane[:, None] // 16 * per_lane + np.arange(per_lane)
        stored, dense = [], []
        for name in (self.a, self.b or self.a):
            bits, values = Kind(name, fnuz=False).draw(rng, (32, per_lane))
            if gfx11:  # the two halves of the wave hold the same rows
                bits, values = bits[lane % 16], values[lane % 16]
            matrix = np.zeros((16, self.depth))
            matrix[lane[:, None] % 16, k] = values
            stored.append(pack4(bits) if name in ("i4", "u4") else bits)
            dense.append(matrix)
        product = dense[0] @ dense[1].T
        r = np.arange(8)
        rows = 2 * r + lane[:, None] // 16 if gfx11 else r + lane[:, None] // 16 * 8
        part = product[rows, lane[:, None] % 16]
        count, keep = (
            (16, slice(self.half, None, 2)) if gfx11 and self.c in ("f16", "bf16") else (8, slice(None))
        )
        c, values = Kind(self.c, fnuz=False).draw(rng, (32, count))
        want = c.copy()
        total = values[:, keep] + part
        want[:, keep] = bf16_bits(total) if self.c == "bf16" else total.astype(c.dtype)
        d = launch(self.name, 1, 32, Out((32, count), c.dtype), stored[0], stored[1], c)
        np.testing.assert_array_equal(d, want)


def pack4(nibbles: np.ndarray) -> np.ndarray:
    """Pairs of four-bit numbers in bytes, the first in the lower half."""
    return (nibbles[:, ::2] | nibbles[:, 1::2] << 4).astype(np.uint8)


def wmmas(gfx11: bool) -> list[Wmma]:
    found = [
        Wmma("wmma_f32_16x16x16_f16", "f16"),
        Wmma("wmma_f32_16x16x16_bf16", "bf16"),
        Wmma("wmma_f16_16x16x16_f16", "f16", c="f16"),
        Wmma("wmma_bf16_16x16x16_bf16", "bf16", c="bf16"),
        Wmma("wmma_i32_16x16x16_iu8_ss", "i8", c="i32"),
        Wmma("wmma_i32_16x16x16_iu8_us", "u8", "i8", c="i32"),
        Wmma("wmma_i32_16x16x16_iu8_uu", "u8", c="i32"),
        Wmma("wmma_i32_16x16x16_iu4_ss", "i4", c="i32"),
        Wmma("wmma_i32_16x16x16_iu4_su", "i4", "u4", c="i32"),
    ]
    if gfx11:
        return [*found, Wmma("wmma_f16_16x16x16_f16_high", "f16", c="f16", half=1)]
    return [
        *found,
        *(Wmma(f"wmma_f32_16x16x16_{a}_{b}", a, b) for a in ("fp8", "bf8") for b in ("fp8", "bf8")),
        Wmma("wmma_i32_16x16x32_iu4_ss", "i4", c="i32", depth=32),
        Wmma("wmma_i32_16x16x32_iu4_su", "i4", "u4", c="i32", depth=32),
    ]

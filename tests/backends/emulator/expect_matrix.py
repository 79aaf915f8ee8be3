"""Matrix instructions by definition: who holds which element, and how the sums round.

Layouts: AMD's CDNA and RDNA ISA guides ("Matrix arithmetic", "WMMA") and LLVM's AMDGPU usage guide. Sums:
"MMA-Sim", arXiv:2511.10909."""

from __future__ import annotations

from dataclasses import dataclass

from expect_float import F32, FINITE, NEAREST, Format, Num, add, fma, mul, pack, signed, unpack


@dataclass(frozen=True)
class Shape:
    """M x N x K, `blocks` independent products at once, on a wave of `wave` lanes; N = M."""

    m: int
    k: int
    blocks: int = 1
    wave: int = 64
    rdna: int = 0  # 11 or 12: WMMA
    f64: bool = False

    @property
    def per_lane(self) -> int:
        """Elements of A that a lane holds."""
        if self.rdna == 11:
            return self.k
        return self.k * self.m * self.blocks // self.wave

    @property
    def accumulators(self) -> int:
        return self.m * self.m * self.blocks // self.wave

    def operand(self, lane: int, j: int) -> tuple[int, int, int]:
        """(block, row of A or column of B, k) of element j of a lane."""
        if self.rdna == 11:
            return 0, lane % 16, j  # lanes 16 to 31 repeat 0 to 15
        if self.f64 and self.blocks == 4:
            return lane // 4 % 4, lane % 4, lane // 16
        group = lane // self.m
        if self.blocks > 1:
            return group, lane % self.m, j
        return 0, lane % self.m, group * self.per_lane + j

    def result(self, lane: int, i: int) -> tuple[int, int, int]:
        """(block, row, column) of accumulator i of a lane."""
        if self.rdna == 11:
            return 0, 2 * i + lane // 16, lane % 16
        if self.rdna == 12:
            return 0, 8 * (lane // 16) + i, lane % 16
        if self.f64:
            return (
                (0, 4 * i + lane // 16, lane % 16)
                if self.blocks == 1
                else (lane // 4 % 4, lane // 16, lane % 4)
            )
        if self.m == 32:
            return i // 16, 8 * (i % 16 // 4) + 4 * (lane // 32) + i % 4, lane % 32
        if self.m == 16:
            return i // 4, 4 * (lane // 16) + i % 4, lane % 16
        return lane // 4, i, lane % 4


def round32(num: Num) -> Num:
    return unpack(pack(num, F32), F32)


def chained(products: list[tuple[Num, Num]], total: Num, fmt: Format) -> Num:
    """f32 and f64: one fused multiply-add after another, k ascending."""
    for a, b in products:
        total = unpack(pack(fma(a, b, total), fmt), fmt)
    return total


def pairwise(products: list[tuple[Num, Num]], total: Num, group: int) -> Num:
    """gfx90a, 16-bit: groups summed as a tree of f32 additions, each group then added to the accumulator."""
    exact = [mul(a, b) for a, b in products]
    for first in range(0, len(exact), group):
        level = exact[first : first + group]
        while len(level) > 1:
            level = [round32(add(level[i], level[i + 1])) for i in range(0, len(level), 2)]
        total = round32(add(total, level[0]))
    return total


def floored(num: Num, lowest: int) -> int:
    """num / 2^lowest, rounded down."""
    return shifted(signed(num), num.exp - lowest)


def shifted(value: int, by: int) -> int:
    return value << by if by >= 0 else value >> -by


def exponent(num: Num, fmt: Format) -> int:
    """The exponent of a normal number."""
    return num.mag.bit_length() - 1 + num.exp


def fused(products: list[tuple[Num, Num]], total: Num, fmt: Format, group: int = 8) -> Num:
    """gfx942, 16-bit: up to eight products cut 24 bits below the largest exponent and summed exactly; the
    sum, cut down 31 bits below, and the accumulator, 24 bits below the larger exponent of the two, are added
    and rounded to nearest. For normal operands."""
    for first in range(0, len(products), group):
        part = products[first : first + group]
        top = max(exponent(a, fmt) + exponent(b, fmt) for a, b in part)
        lowest = top - 24
        whole = 0
        for a, b in part:
            product = mul(a, b)
            cut = shifted(product.mag, product.exp - lowest)
            whole += -cut if product.sign else cut
        high = max(top, exponent(total, F32) if total.mag else top)
        one = shifted(whole, lowest - (high - 31))
        two = floored(total, high - 24) if total.mag else 0
        value = one + (two << 7)
        total = unpack(pack(Num(FINITE, int(value < 0), abs(value), high - 31), F32, NEAREST), F32)
    return total

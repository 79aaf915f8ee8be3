"""The 8-bit floats: FNUZ types of gfx940 (no infinity, no negative zero, 0x80 is NaN) and OCP types of gfx950
and gfx12 (E4M3: one NaN per sign and no infinity; E5M2: like a short f16)."""

from __future__ import annotations

from dataclasses import dataclass

from expect_float import FINITE, INF, NAN, NEAREST, Num, rounded


@dataclass(frozen=True)
class Eight:
    man: int
    bias: int
    fnuz: bool
    ieee: bool  # has infinities

    @property
    def largest(self) -> int:
        """The largest finite pattern without its sign."""
        return 0x7F if self.fnuz else 0x7B if self.ieee else 0x7E

    @property
    def nan(self) -> int:
        return 0x80 if self.fnuz else 0x7F


E4M3_FNUZ, E5M2_FNUZ = Eight(3, 8, True, False), Eight(2, 16, True, False)
E4M3, E5M2 = Eight(3, 7, False, False), Eight(2, 15, False, True)


def types(arch: str) -> tuple[Eight, Eight]:
    """What fp8 and bf8 mean on an architecture."""
    return (E4M3_FNUZ, E5M2_FNUZ) if arch == "gfx942" else (E4M3, E5M2)


def unpack8(value: int, kind: Eight) -> Num:
    sign, rest = value >> 7 & 1, value & 0x7F
    if kind.fnuz:
        if value == 0x80:
            return Num(NAN)
    elif rest > kind.largest:
        return Num(INF, sign) if kind.ieee and rest == 0x7C else Num(NAN, sign)
    biased, fraction = rest >> kind.man, rest & ((1 << kind.man) - 1)
    if biased:
        return Num(FINITE, sign, fraction | 1 << kind.man, biased - kind.bias - kind.man)
    return Num(FINITE, sign, fraction, 1 - kind.bias - kind.man)


def pack8(num: Num, kind: Eight, mode: int = NEAREST) -> frozenset[int]:
    """The patterns that a conversion may give (a NaN has several). Beyond the largest: infinity where there
    is     one, else NaN, as MODE.FP16_OVFL is 0."""
    nans = frozenset({0x80}) if kind.fnuz else frozenset(
        s | m for s in (0, 0x80) for m in range(kind.largest + (2 if kind.ieee else 1), 0x80)
    )  # fmt: skip
    if num.kind == NAN:
        return nans
    sign = 0x80 if num.sign else 0
    beyond = frozenset({sign | 0x7C}) if kind.ieee else nans
    if num.kind == INF:
        return beyond
    if num.mag == 0:
        return frozenset({0 if kind.fnuz else sign})
    least = 1 - kind.bias - kind.man
    unit = max(num.mag.bit_length() + num.exp - 1 - kind.man, least)
    kept = rounded(num.mag, unit - num.exp, mode, num.sign)
    if kept >> (kind.man + 1):
        kept, unit = kept >> 1, unit + 1
    pattern = (
        kept if not kept >> kind.man else (unit - least + 1) << kind.man | (kept & ((1 << kind.man) - 1))
    )
    if pattern > kind.largest:
        return beyond
    if pattern == 0 and kind.fnuz:
        return frozenset({0})
    return frozenset({sign | pattern})

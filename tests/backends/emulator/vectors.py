"""Operands: corner values of each type crossed with each other, and reproducible random ones."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from random import Random

from instructions import LazyRows, bits, seed

U32 = (0, 1, 2, 3, 15, 16, 24, 31, 32, 33, 63, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x10000, 0x7FFFFF,
       0x800000, 0xFFFFFF, 0x1000000, 0x7FFFFFFF, 0x80000000, 0x80000001, 0xFFFFFFFE, 0xFFFFFFFF, 0xAAAAAAAA,
       0x55555555)  # fmt: skip
U64 = (0, 1, 2, 31, 32, 63, 64, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 1 << 32, (1 << 63) - 1, 1 << 63,
       (1 << 63) + 1, (1 << 64) - 2, (1 << 64) - 1, 0xAAAAAAAAAAAAAAAA, 0x123456789ABCDEF0)  # fmt: skip
U16 = (0, 1, 2, 7, 8, 15, 16, 17, 0x7F, 0x80, 0xFF, 0x100, 0x7FFF, 0x8000, 0x8001, 0xFFFE, 0xFFFF)
F32 = (0, 0x80000000, 0x3F800000, 0xBF800000, 1, 0x80000001, 0x007FFFFF, 0x807FFFFF, 0x00800000, 0x80800000,
       0x00800001, 0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000, 0x3F800001, 0x3F7FFFFF,
    0x40000000,
       0x3F000000, 0xBF000000, 0x3FC00000, 0x40200000, 0xC0200000, 0x4B800000, 0x4B800001, 0x4B000001,
    0x33800000,
       0x34000000, 0x40490FDB, 0x7F000000, 0x00000003, 0x20000000, 0x1F800000)  # fmt: skip
F16 = (0, 0x8000, 0x3C00, 0xBC00, 1, 0x8001, 0x03FF, 0x83FF, 0x0400, 0x8400, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00,
       0x7E00, 0x3C01, 0x3BFF, 0x4000, 0x3800, 0xB800, 0x3E00, 0x4100, 0x6400, 0x6401, 0x0002,
    0x1400)  # fmt: skip
BF16 = (0, 0x8000, 0x3F80, 0xBF80, 1, 0x8001, 0x7F, 0x80, 0x7F7F, 0xFF7F, 0x7F80, 0xFF80, 0x7FC0, 0x3F81,
    0x4000,
        0x4049)  # fmt: skip
F64 = (0, 1 << 63, 0x3FF0 << 48, 0xBFF0 << 48, 1, 1 << 63 | 1, (1 << 52) - 1, 1 << 52, 0x7FEFFFFFFFFFFFFF,
       0x7FF0 << 48, 0xFFF0 << 48, 0x7FF8 << 48, (0x3FF0 << 48) + 1, (0x3FF0 << 48) - 1, 0x4000 << 48,
       0x3FE0 << 48, 0x3CA0 << 48, 0x4340 << 48, 0x400921FB54442D18, 0x41E0 << 48, 0xC1E0 << 48,
       0x4004 << 48, 0xC004 << 48, 0x41DFFFFFFFC00000, 0x41EFFFFFFFE00000)  # fmt: skip
SNAN = {"f32": 0x7F800001, "f16": 0x7C01, "f64": 0x7FF0000000000001, "bf16": 0x7F81}
TABLES = {"f32": F32, "f16": F16, "bf16": BF16, "f64": F64, "u16": U16, "i16": U16, "b16": U16,
          "u64": U64, "i64": U64}  # fmt: skip


def scatter(kind: str, random: Random) -> int:
    """A random operand; floats half the time of an exponent near 1, so that sums round and cancel."""
    from expect_float import BY_NAME

    value = random.getrandbits(bits(kind))
    if kind in BY_NAME:
        fmt = BY_NAME[kind]
        value &= (fmt.sign << 1) - 1
        if random.random() < 0.6:
            exponent = fmt.bias + random.randint(-fmt.man - 2, fmt.man + 2 if fmt.exp > 5 else 10)
            value = (value & ~(fmt.top << fmt.man)) | max(exponent, 0) << fmt.man
        if value & fmt.inf == fmt.inf and value & ((1 << fmt.man) - 1):
            value = (value & fmt.sign) | fmt.inf | 1 << (fmt.man - 1)
        if bits(kind) == 32 and fmt.man + fmt.exp < 31:
            value |= random.getrandbits(16) << 16  # what lies above a 16-bit operand does not matter
    elif random.random() < 0.2:
        value >>= random.randrange(bits(kind))
    return value


def table(kind: str) -> Sequence[int]:
    if kind.startswith("pk") and kind != "pkf32":
        return tuple(
            low | high << 16 for low, high in zip(TABLES[kind[2:]], TABLES[kind[2:]][::-1], strict=True)
        )
    if kind == "pkf32":
        return tuple(low | high << 32 for low, high in zip(F32, F32[::-1], strict=True))
    return TABLES.get(kind, U32)


def operand_rows(
    name: str, kinds: Sequence[str], count: int = 256, extra: Sequence[tuple[int, ...]] = ()
) -> LazyRows:
    """`count` rows of operands: all pairs of corners or a sample of them for two thirds, the rest random."""

    def make() -> Iterator[tuple[int, ...]]:
        random = seed(name)
        tables = [table(kind) for kind in kinds]
        crossed = list(itertools.product(*tables)) if len(kinds) < 3 else []
        share = count * 2 // 3
        if len(kinds) >= 3:
            crossed = [tuple(random.choice(each) for each in tables) for _ in range(share)]
        elif len(crossed) > share:
            crossed = random.sample(crossed, share)
        crossed = [*extra, *crossed]
        yield from crossed
        for _ in range(max(count - len(crossed), 8)):
            yield tuple(scatter_any(kind, random) for kind in kinds)

    return LazyRows(make)


def scatter_any(kind: str, random: Random) -> int:
    if kind.startswith("pk") and kind != "pkf32":
        return (scatter(kind[2:], random) & 0xFFFF) | (scatter(kind[2:], random) & 0xFFFF) << 16
    if kind == "pkf32":
        return scatter("f32", random) | scatter("f32", random) << 32
    return scatter(kind, random)

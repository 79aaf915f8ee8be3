"""Integer instructions by definition, on Python's integers; results are masked to the destination's width."""

from __future__ import annotations

from collections.abc import Callable

M32, M64 = (1 << 32) - 1, (1 << 64) - 1


def s(value: int, width: int = 32) -> int:
    """A bit pattern read as a signed integer."""
    value &= (1 << width) - 1
    return value - (1 << width) if value >> (width - 1) else value


def u(value: int, width: int = 32) -> int:
    return value & ((1 << width) - 1)


def clamp(value: int, low: int, high: int) -> int:
    return min(max(value, low), high)


def rev(value: int, width: int = 32) -> int:
    return int(f"{u(value, width):0{width}b}"[::-1], 2)


def lead(value: int, width: int = 32) -> int:
    """Zeros above the highest one; all ones for zero (V_FFBH_U32: -1)."""
    value = u(value, width)
    return width - value.bit_length() if value else M32


def trail(value: int, width: int = 32) -> int:
    value = u(value, width)
    return (value & -value).bit_length() - 1 if value else M32


def sign_run(value: int, width: int = 32) -> int:
    """Bits from the top that equal the sign bit, itself included; all ones for 0 and -1 (V_FFBH_I32)."""
    value = u(value, width)
    if value in (0, (1 << width) - 1):
        return M32
    if value >> (width - 1):
        value ^= (1 << width) - 1
    return width - value.bit_length()


def bfe_u(a: int, offset: int, width: int) -> int:
    return u(a) >> (offset & 31) & ((1 << (width & 31)) - 1)


def bfe_i(a: int, offset: int, width: int) -> int:
    """The shift is arithmetic, so a field that reaches past bit 31 holds sign bits (V_BFE_I32)."""
    width &= 31
    return s(u(s(a) >> (offset & 31), width), width) if width else 0


def perm(a: int, b: int, select: int) -> int:
    """V_PERM_B32: bytes of {a, b}; 8..11 sign fills, 12 zero, above all ones."""
    data = u(a) << 32 | u(b)
    out = 0
    for i in range(4):
        choice = select >> 8 * i & 0xFF
        if choice < 8:
            byte = data >> 8 * choice & 0xFF
        elif choice < 12:
            byte = 0xFF * (data >> (16 * (choice - 8) + 15) & 1)
        else:
            byte = 0 if choice == 12 else 0xFF
        out |= byte << 8 * i
    return out


def sad_u8(a: int, b: int, c: int) -> int:
    return u(c + sum(abs((a >> i & 0xFF) - (b >> i & 0xFF)) for i in (0, 8, 16, 24)))


def msad_u8(a: int, b: int, c: int) -> int:
    """Bytes where the reference (b) is zero do not count."""
    return u(c + sum(abs((a >> i & 0xFF) - (b >> i & 0xFF)) for i in (0, 8, 16, 24) if b >> i & 0xFF))


def sad_u16(a: int, b: int, c: int) -> int:
    return u(c + sum(abs((a >> i & 0xFFFF) - (b >> i & 0xFFFF)) for i in (0, 16)))


def bitop3(a: int, b: int, c: int, table: int, width: int = 32) -> int:
    """Bit by bit a look-up in the eight-bit table, indexed by a (bit 2), b (bit 1), c (bit 0)."""
    out = 0
    for i in range(width):
        index = (a >> i & 1) << 2 | (b >> i & 1) << 1 | (c >> i & 1)
        out |= (table >> index & 1) << i
    return out


COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "lt": lambda a, b: a < b,
    "eq": lambda a, b: a == b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ne": lambda a, b: a != b,
    "ge": lambda a, b: a >= b,
}

"""Groups of x as whole words of 8 bytes, and their codes of e2m1, in Triton: what quantize_mxfp4 and
quantize_nvfp4 have in common where rows are whole groups and follow each other.

A word has four numbers of 16 bits or two of 32, and its codes are as many parts of 4 bits of an integer: no
number leaves its lane, where codes that are elements of a tile have to be split into pairs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import triton
import triton.language as tl

from portable.kernels._lib.triton.minifloat import encode
from portable.kernels._lib.triton.rows import RowTile, setting, unit_of, warps
from portable.layout import ceil_div, rows
from portable.plan import Argument, Call, Launch, Plan, Pointer, Scalar

WORD = 8
"""Bytes."""
ELEMENTS = 32
"""Elements of a thread on GPUs with warps of 32: two or four groups' scales are made by each."""


@triton.jit
def load_words(x_ptr, groups, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """The program's ROWS groups of BLOCK elements as words [ROWS, WORDS]; the numbers of the groups and which
    of them there are; and the places of the words."""
    WORDS: tl.constexpr = BLOCK * x_ptr.dtype.element_ty.primitive_bitwidth // 64
    group = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there = group < groups
    place = group.to(tl.int64)[:, None] * WORDS + tl.arange(0, WORDS)[None, :]
    words = tl.load(x_ptr.to(tl.pointer_type(tl.int64), bitcast=True) + place, mask=there[:, None], other=0)
    return words, group, there, place


@triton.jit
def halves_of(words):
    """The lower and the upper half of each."""
    return words.to(tl.int32), (words >> 32).to(tl.int32)


@triton.jit
def greatest_of(words, dtype: tl.constexpr):
    """The bits, as of float32, of the greatest magnitude of each row of words, with NaN above Inf. Without
    its sign a number is an integer whose order is that of the numbers."""
    low, high = halves_of(words)  # pyright: ignore[reportGeneralTypeIssues]
    low, high = low.to(tl.uint32, bitcast=True) << 1, high.to(tl.uint32, bitcast=True) << 1
    most = tl.maximum(low, high)
    if dtype.primitive_bitwidth == 16:
        most = tl.maximum(most, tl.maximum(low << 16, high << 16))
        most = (tl.max(most, axis=1) >> 17).to(tl.uint16).to(dtype, bitcast=True)
        return most.to(tl.float32).to(tl.int32, bitcast=True)
    else:
        return (tl.max(most, axis=1) >> 1).to(tl.int32, bitcast=True)


@triton.jit
def numbers_of(half, dtype: tl.constexpr):
    """The two numbers of 16 bits of each half of a word, in float32."""
    if dtype == tl.bfloat16:
        first, second = half << 16, half & -0x10000
        return first.to(tl.float32, bitcast=True), second.to(tl.float32, bitcast=True)
    else:
        first, second = half.to(tl.int16), (half >> 16).to(tl.int16)
        return first.to(dtype, bitcast=True).to(tl.float32), second.to(dtype, bitcast=True).to(tl.float32)


@triton.jit
def size_code(value):
    """The codes of magnitudes of float32 numbers, in the lower 16 bits, for any but NaN.

    Beside 2^22 times the power of two at or below a number from 1 on, and beside 2^22 for less, the step of
    float32 is e2m1's, so one addition rounds; its result's last bits count steps, its exponent powers of
    two. 32,619 powers of two more make the sum of both, in 16 bits, the code: 2 * 32,619 = 2^16 - 2 * 149.
    """
    size = tl.minimum(tl.abs(value), 6.0)
    power = tl.maximum(size, 1.0).to(tl.int32, bitcast=True) & 0x7F800000
    bits = tl.fma(power.to(tl.float32, bitcast=True), 4194304.0 + 32619.0, size).to(tl.int32, bitcast=True)
    return bits + (bits >> 22)


@triton.jit
def codes_of(words, inverse, kept, dtype: tl.constexpr):
    """The codes of words' numbers times `inverse`, of which none is NaN, as integers of a fourth of a word's
    bits, or an eighth in float32; all 0 where `kept` is 0, which is -1 elsewhere."""
    low, high = halves_of(words)  # pyright: ignore[reportGeneralTypeIssues]
    if dtype.primitive_bitwidth == 16:
        first, second = numbers_of(low, dtype)
        third, fourth = numbers_of(high, dtype)
        even = size_code(first * inverse) + (size_code(third * inverse) << 8)
        odd = size_code(second * inverse) + (size_code(fourth * inverse) << 8)
        signs = ((low >> 8) & 0x00800080) | (high & -0x7FFF8000)
        codes = (even + (odd << 4)) | ((signs >> 4) & 0x0808) | ((signs >> 16) & 0x8080)
        return (codes & kept).to(tl.int16)
    else:
        first, second = low.to(tl.float32, bitcast=True), high.to(tl.float32, bitcast=True)
        codes = size_code(first * inverse) + (size_code(second * inverse) << 4)
        codes = codes | ((low >> 28) & 0x08) | ((high >> 24) & 0x80)
        return (codes & kept).to(tl.int8)


@triton.jit
def codes_with_nan(words, inverse, dtype: tl.constexpr, FORMAT: tl.constexpr):
    """The same, where each number may become NaN, which is 0."""
    low, high = halves_of(words)  # pyright: ignore[reportGeneralTypeIssues]
    if dtype.primitive_bitwidth == 16:
        first, second = numbers_of(low, dtype)
        third, fourth = numbers_of(high, dtype)
        codes = encode(first * inverse, FORMAT).to(tl.int32) | (
            encode(second * inverse, FORMAT).to(tl.int32) << 4
        )
        codes |= encode(third * inverse, FORMAT).to(tl.int32) << 8
        return (codes | (encode(fourth * inverse, FORMAT).to(tl.int32) << 12)).to(tl.int16)
    else:
        first, second = low.to(tl.float32, bitcast=True), high.to(tl.float32, bitcast=True)
        return (encode(first * inverse, FORMAT) | (encode(second * inverse, FORMAT) << 4)).to(tl.int8)


@triton.jit
def store_codes(q_ptr, place, codes, there):
    """Codes of words, at the words' places."""
    TYPE = tl.int16 if codes.dtype.primitive_bitwidth == 16 else tl.int8
    tl.store(q_ptr.to(tl.pointer_type(TYPE), bitcast=True) + place, codes, mask=there[:, None])


def plan_words(
    call: Call,
    function: Any,
    width: int,
    constants: Iterable[tuple[str, Any]],
    numbers: Iterable[tuple[str, Argument]] = (),
    options: tuple[tuple[str, Any], ...] = (),
) -> Plan | None:
    """q and a scale per `width` columns by `function`: one launch; None where rows are not whole groups, not
    aligned or do not follow each other."""
    count, length, stride = rows(call["x"])
    if unit_of(call, ("x", "q"), ("x",), length) == 1 or length % width or (count > 1 and stride != length):
        return None
    groups, size = count * length // width, setting(call, "TILE")
    if groups > 2**31 - 1 - size:
        return None
    tile = RowTile(size // width, width, 1, warps(call.device, size // ELEMENTS), False)
    args: tuple[tuple[str, Argument], ...] = (
        ("x_ptr", Pointer("x", True)),
        ("q_ptr", Pointer("q", True, dtype="uint8")),
        ("scale_ptr", Pointer("scale", dtype="uint8")),
        ("groups", Scalar("i32", groups)),
        *numbers,
    )
    kernel = tile.kernel(function, *constants, options=options)
    return Plan((Launch(kernel, (ceil_div(groups, tile.rows), 1, 1), args),))

"""`unpack_int4` and `pack_int4`: weights of 4 bits from other libraries' formats, and to them, in torch.

A format is given by its name and never guessed: several have the same shapes and dtypes.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from portable.dispatch.arguments import check_tensor, documented
from portable.errors import DtypeError, ParameterError, RankError, ShapeError
from portable.kernels._lib import minifloat

FORMATS = ("gptq", "gptq_v2", "awq", "compressed-tensors", "torchao")
IN_ORDER, INTERLEAVED = (0, 1, 2, 3, 4, 5, 6, 7), (0, 2, 4, 6, 1, 3, 5, 7)
"""Which of 8 neighbours the nibbles of an int32 hold, from the lowest: AWQ's are interleaved."""


class Int4Weight(NamedTuple):
    """A weight as `int4_mm` takes it: codes (N, K / 2), and of groups (N, K / group) scales, integer zero
    points or None for 8, and offsets or None. `permutation` is None, or (K,): w is of x[..., permutation]."""

    weight: Tensor
    scale: Tensor
    zero_point: Tensor | None = None
    offset: Tensor | None = None
    permutation: Tensor | None = None


@documented
def unpack_int4(
    format: str,
    weight: Tensor,
    scale: Tensor,
    zero_point: Tensor | None = None,
    g_idx: Tensor | None = None,
) -> Int4Weight:
    """A weight of another library's format as `int4_mm` takes it: int4_mm(x, *w[:4]), bias apart.

    - "gptq": weight is qweight, int32 (K / 8, N), the lowest nibble the first along K; scale (K / group, N);
      zero_point is qzeros, int32 (K / group, N / 8), each stored less 1, so that 15 stands for 16; None is 8.
      g_idx, (K,), the group of each k, where it is not in order (desc_act): the result's `permutation` sorts
      it, and x must be permuted by it: int4_mm(x[..., w.permutation], *w[:4]).
    - "gptq_v2": the same with zero points as they are.
    - "awq": weight is qweight, int32 (K, N / 8), whose nibbles from the lowest hold the columns 0, 2, 4, 6,
      1, 3, 5, 7 of 8; zero_point is qzeros, int32 (K / group, N / 8), alike; scale (K / group, N).
    - "compressed-tensors", pack-quantized: weight_packed, int32 (N, K / 8), the lowest nibble the first along
      K; scale (N, K / group); zero_point is weight_zero_point, int32 (N / 8, K / group), the lowest nibble
      the first along N, None is 8; g_idx as of "gptq".
    - "torchao", Int4Tensor: qdata, int8 (N, K / 2), signed numbers, the even k in the lower half; scale and
      zero_point (K / group, N), of which the latter is a floating point number: the result's offset.

    Raises ParameterError, ShapeError, RankError, DtypeError or NotATensorError that name the argument.
    Source: GPTQModel, AutoAWQ, compressed-tensors and torchao.
    """
    name = "unpack_int4"
    _check_format(name, format)
    _check(name, "weight", weight, torch.int8 if format == "torchao" else torch.int32)
    _check(name, "scale", scale, None)
    if g_idx is not None and format in ("awq", "torchao"):
        raise ParameterError(name, "g_idx", "a tensor", f"None, as format {format!r} has none")
    by_rows = format == "compressed-tensors"
    if format == "torchao":
        code, found = weight.view(torch.uint8) ^ 0x88, scale.t()
        code = minifloat.unpack(code)
    elif by_rows:
        code, found = _nibbles(weight, IN_ORDER), scale
    elif format == "awq":
        code, found = _nibbles(weight, INTERLEAVED).t(), scale.t()
    else:
        code, found = _nibbles(weight.t(), IN_ORDER), scale.t()
    n, k = code.shape
    groups = found.shape[1]
    if found.shape[0] != n or groups == 0 or k % (2 * groups):
        expected = f"({n}, {k} / group)" if by_rows else f"({k} / group, {n})"
        raise ShapeError(name, "scale", tuple(scale.shape), f"{expected} for a weight {(n, k)}")
    zero, offset = None, None
    if zero_point is not None and format == "torchao":
        _check(name, "zero_point", zero_point, scale.dtype)
        _check_shape(name, "zero_point", zero_point, tuple(scale.shape))
        offset = zero_point.t().contiguous()
    elif zero_point is not None:
        _check(name, "zero_point", zero_point, torch.int32)
        words = -(-n // 8)
        _check_shape(name, "zero_point", zero_point, (words, groups) if by_rows else (groups, words))
        along = zero_point.t() if by_rows else zero_point
        zero = _nibbles(along, INTERLEAVED if format == "awq" else IN_ORDER).t()[:n]
        zero = (zero + (format == "gptq")).to(torch.uint8).contiguous()
    order = None if g_idx is None else _order(name, g_idx, k, groups)
    code = code if order is None else code[:, order]
    packed = minifloat.pack(code).to(torch.uint8)
    return Int4Weight(packed, found.contiguous(), zero, offset, order)


@documented
def pack_int4(
    format: str,
    weight: Tensor,
    scale: Tensor,
    zero_point: Tensor | None = None,
    offset: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """(weight, scale, zero_point) in another library's format, of a weight as `int4_mm` takes it: what
    `unpack_int4`, whose formats these are, takes back. zero_point is None where none is given, but for "awq",
    which always has them. N must be a multiple of 8 for zero points and "awq", K for all but "torchao".

    "gptq" holds zero points from 1 to 16, "torchao" none but alone an offset, the others from 0 to 15. Raises
    as `unpack_int4`.
    """
    name = "pack_int4"
    _check_format(name, format)
    _check(name, "weight", weight, torch.uint8)
    _check(name, "scale", scale, None)
    n, half = weight.shape
    groups = scale.shape[1]
    if scale.shape[0] != n or groups == 0 or half % groups:
        raise ShapeError(name, "scale", tuple(scale.shape), f"({n}, {2 * half} / group)")
    for each, given in (("zero_point", zero_point), ("offset", offset)):
        if given is not None:
            _check_shape(name, each, given, tuple(scale.shape))
    if offset is not None and format != "torchao":
        raise ParameterError(name, "offset", "a tensor", f"None: format {format!r} has integer zero points")
    if zero_point is not None and format == "torchao":
        raise ParameterError(name, "zero_point", "a tensor", f"None: format {format!r} has no integer ones")
    if format == "torchao":
        if offset is None:
            offset = torch.zeros_like(scale)
        return (weight ^ 0x88).view(torch.int8), scale.t().contiguous(), offset.t().contiguous()
    if half % 4:
        raise ShapeError(name, "weight", tuple(weight.shape), "(N, K / 2) with K a multiple of 8")
    code = minifloat.unpack(weight)
    order = INTERLEAVED if format == "awq" else IN_ORDER
    if zero_point is None and format == "awq":
        zero_point = torch.full_like(scale, 8, dtype=torch.uint8)
    if n % 8 and (zero_point is not None or format == "awq"):
        raise ShapeError(name, "weight", tuple(weight.shape), "(N, K / 2) with N a multiple of 8")
    zero = None
    if zero_point is not None:
        least = int(format == "gptq")
        if ((zero_point < least) | (zero_point > 15 + least)).any():
            expected = f"numbers from {least} to {15 + least} for format {format!r}"
            raise ParameterError(name, "zero_point", "a tensor with others", expected)
        zero = _words((zero_point - least).t(), order)
    if format == "compressed-tensors":
        return _words(code, order), scale.contiguous(), None if zero is None else zero.t().contiguous()
    packed = _words(code.t(), order) if format == "awq" else _words(code, order).t().contiguous()
    return packed, scale.t().contiguous(), zero


def _nibbles(words: Tensor, order: tuple[int, ...]) -> Tensor:
    """The numbers of int32 words along the last axis, 8 of each, uint8."""
    shifts = [4 * order.index(place) for place in range(8)]
    return torch.stack([words >> shift & 15 for shift in shifts], -1).flatten(-2).to(torch.uint8)


def _words(numbers: Tensor, order: tuple[int, ...]) -> Tensor:
    """int32 words of numbers of 4 bits, 8 of each along the last axis."""
    eights = numbers.unflatten(-1, (-1, 8)).long()
    words = torch.stack([eights[..., place] << 4 * at for at, place in enumerate(order)], -1).sum(-1)
    return torch.where(words > 2**31 - 1, words - 2**32, words).to(torch.int32)


def _order(name: str, g_idx: Tensor, k: int, groups: int) -> Tensor | None:
    """The permutation of K by which groups are in order; None where they are."""
    _check_shape(name, "g_idx", check_tensor(name, "g_idx", g_idx), (k,))
    ordered, order = g_idx.long().sort(stable=True)
    expected = torch.arange(groups, device=g_idx.device).repeat_interleave(k // groups)
    if not torch.equal(ordered, expected):
        says = f"the numbers 0 to {groups - 1}, each {k // groups} times"
        raise ParameterError(name, "g_idx", "a tensor of others", says)
    return None if torch.equal(g_idx.long(), expected) else order


def _check_format(name: str, format: str) -> None:
    if format not in FORMATS:
        raise ParameterError(name, "format", format, "one of " + ", ".join(map(repr, FORMATS)))


def _check(name: str, argument: str, given: Tensor, dtype: torch.dtype | None) -> None:
    """A matrix of the dtype, or of any floating point numbers for None."""
    if check_tensor(name, argument, given).dim() != 2:
        raise RankError(name, argument, given.dim(), "2")
    if given.dtype != dtype and not (dtype is None and given.dtype.is_floating_point):
        raise DtypeError(
            name, argument, given.dtype, "floating point numbers" if dtype is None else str(dtype)
        )


def _check_shape(name: str, argument: str, given: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(check_tensor(name, argument, given).shape) != shape:
        raise ShapeError(name, argument, tuple(given.shape), str(shape))

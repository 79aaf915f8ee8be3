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
from portable.kernels.int4_mm import tiled_formats as tiled
from portable.kernels.int4_mm.tiled_formats import IN_ORDER, INTERLEAVED

FORMATS = ("gptq", "gptq_v2", "awq", "compressed-tensors", "torchao", "tinygemm", "marlin")
_WITH_G_IDX = ("gptq", "gptq_v2", "compressed-tensors")
_WITH_OFFSETS = ("torchao", "tinygemm")
"""Whose zero points are floating point numbers."""


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
    - "tinygemm": weight is what torch._convert_weight_to_int4pack makes on NVIDIA GPUs, int32 (N / 8, K /
      (16 * inner), 32, inner / 2) with inner tiles of 16 k in a row, 2, 4 or 8; scale is scales_and_zeros,
      (K / group, N, 2), whose zeros are floating point numbers: the result's offset.
    - "marlin": weight is Marlin's (B; gptq_marlin_repack's result), int32 (K / 16, 2 * N); scale (K / group,
      N) with its columns in Marlin's order, another one where group is K; zero_point as awq_marlin has it,
      int32 (K / group, N / 8), None is 8. With desc_act its k are sorted: x must be permuted by sort_indices.

    Raises ParameterError, ShapeError, RankError, DtypeError or NotATensorError that name the argument.
    Source: GPTQModel, AutoAWQ, compressed-tensors, torchao, torch and vLLM's gptq_marlin.
    """
    name = "unpack_int4"
    _check_format(name, format)
    tinygemm, by_rows = format == "tinygemm", format == "compressed-tensors"
    _check(name, "weight", weight, torch.int8 if format == "torchao" else torch.int32, 4 if tinygemm else 2)
    _check(name, "scale", scale, None, 3 if tinygemm else 2)
    if g_idx is not None and format not in _WITH_G_IDX:
        raise ParameterError(name, "g_idx", "a tensor", f"None, as format {format!r} has none")
    code = _codes(name, format, weight)
    n, k = code.shape
    found = scale if by_rows else scale.transpose(0, 1)
    groups = found.shape[1]
    if found.shape[0] != n or groups == 0 or k % (2 * groups) or (tinygemm and found.shape[2] != 2):
        expected = f"({n}, {k} / group)" if by_rows else f"({k} / group, {n}{', 2' if tinygemm else ''})"
        raise ShapeError(name, "scale", tuple(scale.shape), f"{expected} for a weight {(n, k)}")
    zero, offset = None, None
    if tinygemm:
        if zero_point is not None:
            raise ParameterError(name, "zero_point", "a tensor", "None: format 'tinygemm' has it in scale")
        found, offset = found[..., 0], found[..., 1].contiguous()
    elif zero_point is not None and format == "torchao":
        _check(name, "zero_point", zero_point, scale.dtype)
        _check_shape(name, "zero_point", zero_point, tuple(scale.shape))
        offset = zero_point.t().contiguous()
    elif zero_point is not None:
        _check(name, "zero_point", zero_point, torch.int32)
        words = -(-n // 8)
        _check_shape(name, "zero_point", zero_point, (words, groups) if by_rows else (groups, words))
        along = zero_point.t() if by_rows else zero_point
        points = _nibbles(along, INTERLEAVED if format in ("awq", "marlin") else IN_ORDER)
        zero = (tiled.from_marlin_columns(points) if format == "marlin" else points).t()[:n]
        zero = (zero + (format == "gptq")).to(torch.uint8).contiguous()
    if format == "marlin":
        found = (tiled.from_marlin_row(scale) if groups == 1 else tiled.from_marlin_columns(scale)).t()
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
    *,
    inner_k_tiles: int | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """(weight, scale, zero_point) in another library's format, of a weight as `int4_mm` takes it: what
    `unpack_int4`, whose formats these are, takes back. zero_point is None where none is given, but for "awq",
    which always has them. N must be a multiple of 8 for zero points, "awq" and "tinygemm", K for all but
    "torchao"; of 64 and 16 for "marlin". inner_k_tiles, of "tinygemm" alone: 2, 4 or 8, None is 8, and K is a
    multiple of 16 of them.

    "gptq" holds zero points from 1 to 16, "torchao" and "tinygemm" none but alone an offset, which the
    latter has in its scale, the others from 0 to 15. torch's product of "tinygemm" takes scales in bfloat16
    and groups of 32, 64, 128 or 256, Marlin's groups of 32, 64, 128 or K. Raises as `unpack_int4`.
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
    if offset is not None and format not in _WITH_OFFSETS:
        raise ParameterError(name, "offset", "a tensor", f"None: format {format!r} has integer zero points")
    if zero_point is not None and format in _WITH_OFFSETS:
        raise ParameterError(name, "zero_point", "a tensor", f"None: format {format!r} has no integer ones")
    if inner_k_tiles is not None and format != "tinygemm":
        raise ParameterError(name, "inner_k_tiles", inner_k_tiles, f"None, for format {format!r}")
    if offset is None and format in _WITH_OFFSETS:
        offset = torch.zeros_like(scale)
    if format == "torchao":
        assert offset is not None
        return (weight ^ 0x88).view(torch.int8), scale.t().contiguous(), offset.t().contiguous()
    code = minifloat.unpack(weight)
    if format == "tinygemm":
        inner = 8 if inner_k_tiles is None else inner_k_tiles
        if inner not in tiled.INNER_K_TILES:
            raise ParameterError(name, "inner_k_tiles", inner, "2, 4 or 8")
        _check_multiples(name, weight, 8, 16 * inner)
        assert offset is not None
        return (
            _words(tiled.to_tinygemm(code, inner), INTERLEAVED),
            torch.stack((scale.t(), offset.t()), -1),
            None,
        )
    if format == "awq" and zero_point is None:
        zero_point = torch.full_like(scale, 8, dtype=torch.uint8)
    if format == "marlin":
        _check_multiples(name, weight, 64, 16)
    else:
        _check_multiples(name, weight, 1 if zero_point is None else 8, 8)
    zero = None
    if zero_point is not None:
        least = int(format == "gptq")
        if ((zero_point < least) | (zero_point > 15 + least)).any():
            expected = f"numbers from {least} to {15 + least} for format {format!r}"
            raise ParameterError(name, "zero_point", "a tensor with others", expected)
        zero = (zero_point - least).t()
        zero = tiled.to_marlin_columns(zero) if format == "marlin" else zero
        zero = _words(zero, INTERLEAVED if format in ("awq", "marlin") else IN_ORDER)
    if format == "compressed-tensors":
        return _words(code, IN_ORDER), scale.contiguous(), None if zero is None else zero.t().contiguous()
    if format == "marlin":
        ordered = (tiled.to_marlin_row if groups == 1 else tiled.to_marlin_columns)(scale.t())
        return _words(tiled.to_marlin(code), INTERLEAVED), ordered.contiguous(), zero
    packed = _words(code.t(), INTERLEAVED) if format == "awq" else _words(code, IN_ORDER).t().contiguous()
    return packed, scale.t().contiguous(), zero


def _codes(name: str, format: str, weight: Tensor) -> Tensor:
    """The codes (N, K) of a weight in the format."""
    if format == "torchao":
        return minifloat.unpack(weight.view(torch.uint8) ^ 0x88)
    if format == "compressed-tensors":
        return _nibbles(weight, IN_ORDER)
    if format == "awq":
        return _nibbles(weight, INTERLEAVED).t()
    if format == "tinygemm":
        if weight.shape[2] != 32 or 2 * weight.shape[3] not in tiled.INNER_K_TILES:
            expected = "(N / 8, K / (16 * inner), 32, inner / 2) with inner 2, 4 or 8"
            raise ShapeError(name, "weight", tuple(weight.shape), expected)
        return tiled.from_tinygemm(_nibbles(weight, INTERLEAVED))
    if format == "marlin":
        if weight.shape[1] % 128:
            expected = "(K / 16, 2 * N) with N a multiple of 64"
            raise ShapeError(name, "weight", tuple(weight.shape), expected)
        return tiled.from_marlin(_nibbles(weight, INTERLEAVED))
    return _nibbles(weight.t(), IN_ORDER)


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


def _check_multiples(name: str, weight: Tensor, of_n: int, of_k: int) -> None:
    n, half = weight.shape
    for axis, size, multiple in (("N", n, of_n), ("K", 2 * half, of_k)):
        if size % multiple:
            expected = f"(N, K / 2) with {axis} a multiple of {multiple}"
            raise ShapeError(name, "weight", tuple(weight.shape), expected)


def _check(name: str, argument: str, given: Tensor, dtype: torch.dtype | None, rank: int = 2) -> None:
    """A tensor of the rank and the dtype, or of any floating point numbers for None."""
    if check_tensor(name, argument, given).dim() != rank:
        means = {3: ", scales_and_zeros (K / group, N, 2)", 4: ", (N / 8, K / (16 * inner), 32, inner / 2)"}
        raise RankError(name, argument, given.dim(), f"{rank}{means.get(rank, '')}")
    if given.dtype != dtype and not (dtype is None and given.dtype.is_floating_point):
        raise DtypeError(
            name, argument, given.dtype, "floating point numbers" if dtype is None else str(dtype)
        )


def _check_shape(name: str, argument: str, given: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(check_tensor(name, argument, given).shape) != shape:
        raise ShapeError(name, argument, tuple(given.shape), str(shape))

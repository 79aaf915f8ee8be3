"""`pack_sparse_24`, `unpack_sparse_24` and `prune_24`: weights with 2:4 structured sparsity, in torch."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from portable.dispatch.arguments import check_tensor, documented
from portable.errors import DtypeError, ParameterError, RankError, ShapeError
from portable.kernels.sparse_mm import reference

_NO_NUMBERS = (torch.float8_e8m0fnu, torch.float4_e2m1fn_x2)
"""Types without 0, and of two numbers in a byte."""


class Sparse24(NamedTuple):
    """A weight as `sparse_mm` and, in fp8, `sparse_scaled_mm` take it: values (N, K / 2), of w's dtype, and
    meta (N, K / 8), uint8."""

    values: Tensor
    meta: Tensor


@documented
def pack_sparse_24(weight: Tensor) -> Sparse24:
    """The two values and their places of each four neighbours along k: sparse_mm(x, *pack_sparse_24(w)).

    weight: (N, K), floating point numbers of 8 to 64 bits, K a multiple of 8, of which at most two of
    the four at 4 * g to 4 * g + 3 of a row are not 0 (`prune_24` makes such). A NaN is not 0.

    values: (N, K / 2), the two in their order. meta: (N, K / 8), uint8: byte j of a row has group 2 * j in
    its lower half and group 2 * j + 1 in its upper one; a half is i0 + 4 * i1, with i0 < i1 the places, 0 to
    3, of the group's first and second value. Where fewer than two are not 0 the first zeros fill up. The
    layout is the same for every GPU; two bytes are a 16-bit integer of NVIDIA's metadata before CUTLASS's
    compressor and torch reorder them.

    Raises ParameterError that names the first group with more than two numbers, and ShapeError, RankError,
    DtypeError or NotATensorError. Source: torch.sparse.to_sparse_semi_structured, NVIDIA's PTX ISA on mma.sp.
    """
    name = "pack_sparse_24"
    groups = _groups(name, weight)
    kept = _wide(groups) != 0
    over = kept.sum(-1) > 2
    if over.any():
        row, group = (int(each) for each in over.nonzero()[0])
        says = f"{int(kept[row, group].sum())} numbers in row {row}, columns {4 * group} to {4 * group + 3}"
        raise ParameterError(name, "weight", says, "at most two of each four that are not 0")
    # Stable: those that are not 0 first, then zeros, each in their order.
    order = torch.sort((~kept).to(torch.uint8), dim=-1, stable=True).indices[..., :2].sort(-1).values
    values = _bits(groups).gather(-1, order).flatten(1).view(weight.dtype)
    half = (order[..., 0] + 4 * order[..., 1]).unflatten(1, (-1, 2))
    return Sparse24(values, (half[..., 0] + 16 * half[..., 1]).to(torch.uint8))


@documented
def unpack_sparse_24(values: Tensor, meta: Tensor) -> Tensor:
    """The dense weight (N, K) in values' dtype, of values (N, K / 2) and meta (N, K / 8) as `pack_sparse_24`
    makes them.

    Raises ParameterError where a group's places are not in order, RankError, ShapeError, DtypeError or
    NotATensorError that name the argument.
    """
    name = "unpack_sparse_24"
    for argument, given in (("values", values), ("meta", meta)):
        if check_tensor(name, argument, given).dim() != 2:
            raise RankError(name, argument, given.dim(), "2")
    if meta.dtype != torch.uint8:
        raise DtypeError(name, "meta", meta.dtype, "torch.uint8")
    if values.shape != (meta.shape[0], 4 * meta.shape[1]):
        expected = f"({meta.shape[0]}, {4 * meta.shape[1]}) for meta {tuple(meta.shape)}"
        raise ShapeError(name, "values", tuple(values.shape), expected)
    first, second = reference.places(meta).unflatten(1, (2 * meta.shape[1], 2)).unbind(-1)
    if (first >= second).any():
        row, group = (int(each) for each in (first >= second).nonzero()[0])
        found = f"{int(first[row, group]) % 4} and {int(second[row, group]) % 4} in row {row}, group {group}"
        raise ParameterError(name, "meta", found, "two places of 0 to 3, the lower one first")
    return reference.dense(values, meta)


@documented
def prune_24(weight: Tensor) -> Tensor:
    """weight (N, K), K a multiple of 8, with 0 in the place of all but the two largest magnitudes of each
    four neighbours along k; of equal ones the first. A NaN counts as the largest.

    Raises RankError, ShapeError, DtypeError or NotATensorError that name the argument.
    Source: magnitude pruning as in Mishra et al., Accelerating Sparse Deep Neural Networks.
    """
    groups = _groups("prune_24", weight)
    size = groups.double().abs()
    order = torch.sort(size.nan_to_num(torch.inf), dim=-1, descending=True, stable=True).indices
    kept = torch.zeros_like(order, dtype=torch.bool).scatter(-1, order[..., :2], True)
    held = _bits(groups)
    return torch.where(kept, held, torch.zeros_like(held)).flatten(1).view(weight.dtype)


def _groups(name: str, weight: Tensor) -> Tensor:
    """weight (N, K) as (N, K / 4, 4)."""
    if check_tensor(name, "weight", weight).dim() != 2:
        raise RankError(name, "weight", weight.dim(), "2")
    if not weight.dtype.is_floating_point or weight.dtype in _NO_NUMBERS:
        raise DtypeError(name, "weight", weight.dtype, "floating point numbers of 8 to 64 bits")
    if weight.shape[1] % 8:
        raise ShapeError(name, "weight", tuple(weight.shape), "(N, K) with K a multiple of 8")
    return weight.unflatten(1, (weight.shape[1] // 4, 4))


def _wide(numbers: Tensor) -> Tensor:
    """Numbers that torch compares: those of 8 bits as float32."""
    return numbers.float() if numbers.dtype.itemsize == 1 else numbers


def _bits(numbers: Tensor) -> Tensor:
    """Numbers that torch moves and chooses: those of 8 bits as bytes."""
    return numbers.view(torch.uint8) if numbers.dtype.itemsize == 1 else numbers

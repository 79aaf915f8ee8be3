"""The meaning of int8_int4_mm, in float64 on the CPU, whose sums of groups are exact."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from portable.kernels.int4_mm.reference import numbers


def _terms(mat_a: Tensor, weight: Tensor, scale: Tensor, zero_point: Tensor | None) -> Iterator[Tensor]:
    """Of each group the sum of products times its scale, [M, N]."""
    w = numbers(weight, zero_point).double()
    for group, part in enumerate(mat_a.double().unflatten(-1, (weight.shape[1], -1)).unbind(-2)):
        yield part @ w[:, group].T * scale[:, group]


def int8_int4_mm(
    mat_a: Tensor, weight: Tensor, scale_a: Tensor, scale: Tensor, zero_point: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """c = (mat_a @ w.T) * scale_a + bias; weight is [N, G, P], scale_a [M, 1]."""
    c = scale.new_zeros(len(mat_a), len(weight))
    for term in _terms(mat_a, weight, scale, zero_point):
        c = c + term
    c = c * scale_a
    return c if bias is None else c + bias


def error_scale(
    mat_a: Tensor, weight: Tensor, scale_a: Tensor, scale: Tensor, zero_point: Tensor | None = None,
    bias: Tensor | None = None,
) -> dict[str, Tensor]:  # fmt: skip
    """The root of the sum of squares of the groups' scaled sums, and |bias|."""
    square = scale.new_zeros(len(mat_a), len(weight))
    for term in _terms(mat_a, weight, scale, zero_point):
        square = square + term.square()
    spread = square.sqrt() * scale_a.abs()
    return {"c": spread if bias is None else spread + bias.abs()}

"""The meaning of scaled_mm, scaled_mm_block and scaled_mm_mx, in float64 on the CPU.

The operands are the numbers that the codes stand for: what was lost when they were made is no error here.
use_fast_accum allows an implementation sums of fewer bits, it does not ask for them: the meaning is the same.
"""

from __future__ import annotations

from torch import Tensor

BLOCK = 128
"""Elements along k, and columns of b, that share a scale in scaled_mm_block."""
MX_GROUP = 32
"""Elements along k that share a scale in scaled_mm_mx."""


def scaled_mm(
    mat_a: Tensor, mat_b: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Tensor | None = None,
    *, use_fast_accum: bool = False,
) -> Tensor:  # fmt: skip
    """c = (mat_a @ mat_b) * scale_a * scale_b + bias; scale_a is [M, 1], scale_b [1, N]."""
    c = (mat_a @ mat_b) * scale_a * scale_b
    return c if bias is None else c + bias


def error_scale(
    mat_a: Tensor, mat_b: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Tensor | None = None,
    *, use_fast_accum: bool = False,
) -> dict[str, Tensor]:  # fmt: skip
    """The root of the sum of squares of the scaled products, and |bias|."""
    spread = (mat_a.square() @ mat_b.square()).sqrt() * (scale_a * scale_b).abs()
    return {"c": spread if bias is None else spread + bias.abs()}


def scaled_mm_block(
    mat_a: Tensor, mat_b: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Tensor | None = None,
    *, use_fast_accum: bool = False,
) -> Tensor:  # fmt: skip
    """c = the sum over blocks of 128 along k of scale_a[m, kb] * scale_b[kb, nb] * (their products) + bias.

    The scales go to the operands first, which is the same but for roundings of float64.
    """
    c = of_elements(mat_a, scale_a, 1) @ of_elements(mat_b, scale_b, 2)
    return c if bias is None else c + bias


def error_scale_block(
    mat_a: Tensor, mat_b: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Tensor | None = None,
    *, use_fast_accum: bool = False,
) -> dict[str, Tensor]:  # fmt: skip
    """The root of the sum of squares of the products, each times its scales, and |bias|."""
    a, b = of_elements(mat_a, scale_a, 1), of_elements(mat_b, scale_b, 2)
    spread = (a.square() @ b.square()).sqrt()
    return {"c": spread if bias is None else spread + bias.abs()}


def scaled_mm_mx(
    mat_a: Tensor, mat_b: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Tensor | None = None,
    *, use_fast_accum: bool = False,
) -> Tensor:  # fmt: skip
    """c = the sum over groups of 32 along k of scale_a[m, kg] * scale_b[n, kg] * (their products) + bias."""
    c = _of_groups(mat_a, scale_a) @ _of_groups(mat_b.T, scale_b).T
    return c if bias is None else c + bias


def error_scale_mx(
    mat_a: Tensor, mat_b: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Tensor | None = None,
    *, use_fast_accum: bool = False,
) -> dict[str, Tensor]:  # fmt: skip
    """The root of the sum of squares of the products, each times its scales, and |bias|."""
    a, b = _of_groups(mat_a, scale_a), _of_groups(mat_b.T, scale_b).T
    spread = (a.square() @ b.square()).sqrt()
    return {"c": spread if bias is None else spread + bias.abs()}


def _of_groups(rows: Tensor, scale: Tensor) -> Tensor:
    """Rows times their scales, one for each 32 columns."""
    return rows * scale.repeat_interleave(MX_GROUP, 1)[:, : rows.shape[1]]


def of_elements(matrix: Tensor, scale: Tensor, axes: int) -> Tensor:
    """The elements of `matrix` times their scales, one for each 128 along the last 1 or 2 axes."""
    if axes == 2:
        scale = scale.repeat_interleave(BLOCK, 0)[: len(matrix)]
    return matrix * scale.repeat_interleave(BLOCK, 1)[:, : matrix.shape[1]]

"""scaled_mm of matrices in 4 bits: what it checks beyond the rest, and the ops behind it.

The ops themselves are `torch.ops.portable.scaled_mm_mxfp4` and `torch.ops.portable.scaled_mm_nvfp4`, whose
matrices are bytes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from portable.dispatch import dispatcher
from portable.dispatch.arguments import check_tensor
from portable.errors import DtypeError, ParameterError, ShapeError
from portable.kernels.scaled_mm.scales import NAME, as_list, check_groups, check_scale, member

FP4 = torch.float4_e2m1fn_x2
MX, NV, TENSOR = "BlockWise1x32", "BlockWise1x16", "TensorWise"
_mx_op: Any = dispatcher.op("scaled_mm_mxfp4")
_nv_op: Any = dispatcher.op("scaled_mm_nvfp4")


def is_fp4(*matrices: Any) -> bool:
    return any(getattr(each, "dtype", None) == FP4 for each in matrices)


def product(
    mat_a: Tensor, mat_b: Tensor, scale_a: Any, recipe_a: Any, scale_b: Any, recipe_b: Any,
    bias: Tensor | None, output_dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    """The product by MXFP4's or NVFP4's recipe. Raises DtypeError, ParameterError, ShapeError or
    NotATensorError."""
    for name, matrix in (("mat_a", mat_a), ("mat_b", mat_b)):
        if matrix.dtype != FP4:
            expected = f"{FP4} beside a matrix of that"
            raise DtypeError(NAME, name, matrix.dtype, expected, "Quantise both to the same format")
    rows, length, columns = mat_a.shape[0], 2 * mat_a.shape[1], mat_b.shape[1]
    recipes = [[member(each) for each in as_list(given)] for given in (recipe_a, recipe_b)]
    if recipes not in ([[MX]] * 2, [[NV, TENSOR]] * 2):
        wrong = 0 if recipes[0] not in ([MX], [NV, TENSOR]) else 1
        expected = f"{MX!r} of both, or [{NV!r}, {TENSOR!r}] of both, for matrices of {FP4}"
        raise ParameterError(NAME, f"scale_recipe_{'ab'[wrong]}", (recipe_a, recipe_b)[wrong], expected)
    operands = mat_a.view(torch.uint8), mat_b.view(torch.uint8)
    sides = (("scale_a", scale_a, "M", rows), ("scale_b", scale_b, "N", columns))
    if recipes[0] == [MX]:
        scales = [
            check_groups(name, check_scale(name, given, torch.float8_e8m0fnu), axis, lines, length, 32, MX)
            for name, given, axis, lines in sides
        ]
        return _mx_op(*operands, *scales, bias, output_dtype=output_dtype)
    scales, whole = [], []
    for name, given, axis, lines in sides:
        both = as_list(given)
        if len(both) != 2:
            expected = (
                f"two scales, as its recipe is [{NV}, {TENSOR}]: those of groups, and that of the whole"
            )
            raise ParameterError(NAME, name, f"{len(both)} of them", expected)
        of_groups = check_scale(name, both[0], torch.float8_e4m3fn)
        scales.append(check_groups(name, of_groups, axis, lines, length, 16, NV))
        of_all = check_tensor(NAME, name, both[1])
        if of_all.dtype != torch.float32:
            raise DtypeError(NAME, name, of_all.dtype, f"float32, as its recipe is {TENSOR}")
        if of_all.numel() != 1:
            raise ShapeError(NAME, name, tuple(of_all.shape), f"one number, as its recipe is {TENSOR}")
        whole.append(of_all.reshape(1))
    return _nv_op(*operands, *scales, *whole, bias, output_dtype=output_dtype)

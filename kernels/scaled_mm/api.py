"""The public function over this folder's ops: `scaled_mm` with torch.nn.functional.scaled_mm's arguments.

The ops themselves are `torch.ops.portable.scaled_mm`, with a scale per row and column, and
`torch.ops.portable.scaled_mm_block` and `torch.ops.portable.scaled_mm_mx`, with a scale per block. Those of
matrices in 4 bits are in fp4/.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from portable.dispatch import dispatcher
from portable.dispatch.arguments import check_flag, check_tensor, documented
from portable.errors import DtypeError, ParameterError, RankError, ShapeError, listed, nearest
from portable.kernels.scaled_mm.fp4 import api as fp4
from portable.kernels.scaled_mm.reference import BLOCK, MX_GROUP
from portable.kernels.scaled_mm.scales import as_list, check_groups, check_scale, member
from portable.layout import ceil_div

_rows_op: Any = dispatcher.op("scaled_mm")
_block_op: Any = dispatcher.op("scaled_mm_block")
_mx_op: Any = dispatcher.op("scaled_mm_mx")
_NAME = "scaled_mm"
TENSOR, ROW, OF_A, OF_B, MX = "TensorWise", "RowWise", "BlockWise1x128", "BlockWise128x128", "BlockWise1x32"
RECIPES = (TENSOR, ROW, OF_A, OF_B, MX)
TOGETHER = ((OF_A, OF_B), (MX, MX))
OPERANDS = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz)
ALIGNED = 4
"""torch pads scale_b's blocks along K to multiples of so many."""
_HINTS = {
    "out_dtype": " It is output_dtype here, as in torch.nn.functional.scaled_mm.",
    "scale_result": " There is none, nor in torch.nn.functional.scaled_mm.",
}


@partial(documented, hints=_HINTS)
def scaled_mm(
    mat_a: Tensor,
    mat_b: Tensor,
    scale_a: Tensor | Sequence[Tensor],
    scale_recipe_a: Any,
    scale_b: Tensor | Sequence[Tensor],
    scale_recipe_b: Any,
    swizzle_a: Any = None,
    swizzle_b: Any = None,
    bias: Tensor | None = None,
    output_dtype: torch.dtype | None = torch.bfloat16,
    contraction_dim: Sequence[int] = (),
    use_fast_accum: bool = False,
) -> Tensor:
    """(mat_a @ mat_b) * scale_a * scale_b + bias, of matrices in fp8 or fp4: torch.nn.functional.scaled_mm.

    mat_a is (M, K), mat_b (K, N), in any strides; instructions read a row-major mat_a and a column-major
    mat_b, as of a weight (N, K) transposed. Types: float8_e4m3fn with itself or float8_e5m2 on either side,
    and float8_e4m3fnuz, gfx942's, with itself; the types decide what codes mean, never the device. Scales
    are float32 but for MX, in any strides, and multiply: value = code * scale.

    A recipe is a member of torch.nn.functional.ScalingType, or its name where torch has no such enum:

    - "TensorWise": one number. "RowWise": scale_a (M, 1), scale_b (1, N). Each side may have either.
    - "BlockWise1x128" of mat_a with "BlockWise128x128" of mat_b: scale_a (M, ceil(K / 128)), scale_b
      (ceil(K / 128), ceil(N / 128)). The first axis of scale_b is along K, as mat_b's is, also where K == N,
      and never the other way round. torch pads it along K to a multiple of 4 blocks: that shape is taken
      too, and the rows beyond are not read.
    - "BlockWise1x32" of both, MXFP8: scales of float8_e8m0fnu as `quantize_mx` gives them of rows of mat_a
      and of columns of mat_b: scale_a (M, ceil(K / 32)), scale_b (N, ceil(K / 32)), without a swizzle.

    Matrices of float4_e2m1fn_x2 have two numbers along K in a byte, the first in the lower half: mat_a is
    (M, K / 2), mat_b (K / 2, N), as of a weight quantised by rows, transposed. Both have the recipe
    "BlockWise1x32", MXFP4, with scales as above and as `quantize_mx` gives them; or ["BlockWise1x16",
    "TensorWise"], NVFP4, with two scales in a list: of float8_e4m3fn, scale_a[0] (M, ceil(K / 16)) and
    scale_b[0] (N, ceil(K / 16)), and of the whole, float32 of one number, as `quantize_nvfp4` gives them.

    The products are summed in float32; then ((sum * scale_a) * scale_b) + bias, or by blocks the sum over
    blocks of 128 along K of (scale_a * scale_b) * their sum, or by groups of 32 of (their sum * scale_a) *
    scale_b, then bias; one rounding to output_dtype: bfloat16 (None means it too), float16 or float32.
    Numbers of 4 bits go into the product times their groups' scales, which is exact; NVFP4's sum then is
    multiplied by the scale of all of mat_a and by that of mat_b. bias is (N,), of output_dtype.
    use_fast_accum lets matrix cores keep 13 bits of a sum where they are faster so, as Hopper's are; without
    it Hopper's sums are brought to float32 every 128 products. A NaN poisons its row or column alone. There
    is no gradient.

    Of torch's other arguments swizzles must be None or NO_SWIZZLE, and contraction_dim () or (1, 0).
    Raises RankError, ShapeError, DtypeError, NotATensorError, DeviceError or ParameterError that name the
    argument. The swizzled scales of MX and NVFP4 are not supported yet.
    Source: torch 2.13; blocks as in DeepSeek-V3 (2024), section 3.3.
    """
    check_flag(_NAME, "use_fast_accum", use_fast_accum)
    rows, length, columns = _sizes(mat_a, mat_b)
    output_dtype = torch.bfloat16 if output_dtype is None else output_dtype
    _check_rest(swizzle_a, swizzle_b, bias, output_dtype, contraction_dim)
    if fp4.is_fp4(mat_a, mat_b):
        return fp4.product(
            mat_a, mat_b, scale_a, scale_recipe_a, scale_b, scale_recipe_b, bias, output_dtype
        )  # fmt: skip
    recipes = _recipe("scale_recipe_a", scale_recipe_a), _recipe("scale_recipe_b", scale_recipe_b)
    if not set(recipes) <= {TENSOR, ROW} and recipes not in TOGETHER:
        pair = f"{recipes[1]} beside a scale_recipe_a of {recipes[0]}"
        raise ParameterError(_NAME, "scale_recipe_b", pair, _expected())
    kind = torch.float8_e8m0fnu if recipes == (MX, MX) else torch.float32
    scales = check_scale("scale_a", scale_a, kind), check_scale("scale_b", scale_b, kind)
    if recipes == (OF_A, OF_B):
        op, left, right = _block_op, *_of_blocks(*scales, rows, length, columns)
    elif recipes == (MX, MX):
        op = _mx_op
        left = check_groups("scale_a", scales[0], "M", rows, length, MX_GROUP, MX)
        right = check_groups("scale_b", scales[1], "N", columns, length, MX_GROUP, MX)
    else:
        op = _rows_op
        left = _expanded("scale_a", scales[0], recipes[0], (rows, 1))
        right = _expanded("scale_b", scales[1], recipes[1], (1, columns))
    return op(mat_a, mat_b, left, right, bias, output_dtype=output_dtype, use_fast_accum=use_fast_accum)


def _check_rest(
    swizzle_a: Any, swizzle_b: Any, bias: Any, output_dtype: Any, contraction_dim: Sequence[int]
) -> None:
    """Raises ParameterError for what torch has and this has not, NotATensorError or DtypeError for a bias."""
    for name, swizzle in (("swizzle_a", swizzle_a), ("swizzle_b", swizzle_b)):
        if any(member(each) not in (None, "NO_SWIZZLE") for each in as_list(swizzle)):
            expected = "None or NO_SWIZZLE: scales in rows, which have no swizzle"
            raise ParameterError(_NAME, name, swizzle, expected)
    if tuple(each % 2 if isinstance(each, int) else each for each in contraction_dim) not in ((), (1, 0)):
        expected = "() or (1, 0): mat_a's second dimension with mat_b's first"
        remedy = "Transpose the matrix instead"
        raise ParameterError(_NAME, "contraction_dim", contraction_dim, expected, remedy)
    if bias is not None and check_tensor(_NAME, "bias", bias).dtype != output_dtype:
        raise DtypeError(_NAME, "bias", bias.dtype, f"{output_dtype}, as output_dtype says")


def _sizes(mat_a: Any, mat_b: Any) -> tuple[int, int, int]:
    """M, K, or bytes along it, and N of two matrices. Raises RankError, DtypeError or ShapeError."""
    for name, matrix in (("mat_a", mat_a), ("mat_b", mat_b)):
        if check_tensor(_NAME, name, matrix).dim() != 2:
            raise RankError(_NAME, name, matrix.dim(), "2: mat_a is (M, K), mat_b (K, N)")
        if matrix.dtype not in (*OPERANDS, fp4.FP4):
            remedy = "Quantise it with a scale, or call portable.matmul"
            raise DtypeError(_NAME, name, matrix.dtype, listed([*OPERANDS, fp4.FP4]), remedy)
    if mat_b.shape[0] != mat_a.shape[1]:
        expected = f"({mat_a.shape[1]}, N), as mat_a is {tuple(mat_a.shape)}"
        raise ShapeError(_NAME, "mat_b", tuple(mat_b.shape), expected, "Pass a weight (N, K) as weight.t()")
    return mat_a.shape[0], mat_a.shape[1], mat_b.shape[1]


def _expected() -> str:
    return (
        f"{TENSOR!r} or {ROW!r} on each side, {OF_A!r} of mat_a with {OF_B!r} of mat_b, or {MX!r} of both "
        "(names, or members of torch.nn.functional.ScalingType)"
    )


def _recipe(name: str, given: Any) -> str:
    """A recipe by its name. Raises ParameterError."""
    names = [member(each) for each in as_list(given)]
    if fp4.NV in names:
        raise ParameterError(_NAME, name, given, f"{_expected()}; {fp4.NV} is of matrices of {fp4.FP4}")
    if len(names) != 1 or names[0] not in RECIPES:
        hint = nearest(names[0], RECIPES) if names and isinstance(names[0], str) else ""
        raise ParameterError(_NAME, name, given, _expected(), hint.strip())
    return names[0]


def _expanded(name: str, scale: Tensor, recipe: str, shape: tuple[int, int]) -> Tensor:
    """A scale for every row or column: one number expanded, with strides of 0."""
    if recipe == TENSOR:
        if scale.numel() != 1:
            raise ShapeError(_NAME, name, tuple(scale.shape), f"one number, as its recipe is {TENSOR}")
        return scale.reshape(1, 1).expand(shape)
    if tuple(scale.shape) != shape:
        raise ShapeError(_NAME, name, tuple(scale.shape), f"{shape}, as its recipe is {ROW}")
    return scale


def _of_blocks(
    scale_a: Tensor, scale_b: Tensor, rows: int, length: int, columns: int
) -> tuple[Tensor, Tensor]:
    """scale_a (M, ceil(K / 128)) and scale_b (ceil(K / 128), ceil(N / 128)) without torch's padding."""
    along, across = ceil_div(length, BLOCK), ceil_div(columns, BLOCK)
    if tuple(scale_a.shape) != (rows, along):
        expected = f"{(rows, along)}, (M, ceil(K / {BLOCK})), as its recipe is {OF_A}"
        raise ShapeError(_NAME, "scale_a", tuple(scale_a.shape), expected)
    padded = ceil_div(along, ALIGNED) * ALIGNED
    if tuple(scale_b.shape) not in ((along, across), (padded, across)):
        both = "" if padded == along else f" or {(padded, across)}, padded as torch's"
        expected = f"{(along, across)}, (ceil(K / {BLOCK}), ceil(N / {BLOCK})){both}"
        remedy = "Its first axis is along K, as mat_b's: that of a weight (N, K) goes in transposed"
        raise ShapeError(_NAME, "scale_b", tuple(scale_b.shape), expected, remedy)
    return scale_a, scale_b[:along]

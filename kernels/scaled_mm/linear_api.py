"""`linear_fp8`: a linear whose products are in fp8, forward and in both gradients, for training.

Operands are quantised before each product, over its own length: so x, weight and the gradient of y are each
quantised twice, along rows and along columns. Kept between the passes are x and weight as they are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import portable
from portable.dispatch import dispatcher
from portable.dispatch.arguments import check_flag, check_tensor, documented
from portable.errors import DtypeError, ParameterError, RankError, ShapeError, nearest
from portable.kernels._lib import minifloat
from portable.kernels.linear.gradient import sum_of_rows
from portable.kernels.quantize_fp8.api import by_rows

_quantize_static: Any = dispatcher.op("quantize_fp8_static")
_amax_scale: Any = dispatcher.op("amax_scale")
_scaled_mm: Any = dispatcher.op("scaled_mm")
_NAME = "linear_fp8"
ROWWISE, WEIGHT_GRADIENT_HIGH = "rowwise", "rowwise_with_gw_hp"
RECIPES = (ROWWISE, WEIGHT_GRADIENT_HIGH)
LARGEST = {getattr(torch, each): minifloat.largest(each) for each in ("float8_e4m3fn", "float8_e4m3fnuz")}
WIDE = (torch.bfloat16, torch.float16, torch.float32)


@documented
def linear_fp8(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    recipe: str = ROWWISE,
    dtype: torch.dtype = torch.float8_e4m3fn,
    use_fast_accum: bool = False,
) -> Tensor:
    """y = x @ weight.T + bias, for training, with products of numbers in 8 bits.

    x is (..., K), weight (N, K), bias (N,), of one dtype: bfloat16, float16 or float32; y is (..., N) of it.
    Both operands of a product are quantised as `quantize_fp8(..., power_of_2=True)` does, with a scale per
    row of x and of weight; `scaled_mm` multiplies them, adds bias and rounds once. recipe, by torchao's
    names:

    - "rowwise": dx = dy @ weight and dweight = dy.T @ x are products in fp8 too, with scales along their own
      lengths: of rows of dy and columns of weight; of columns of dy and of x.
    - "rowwise_with_gw_hp": dweight is a product of dy and x as they are. dx takes one scale for all of
      weight.

    dtype: float8_e4m3fn, or float8_e4m3fnuz, gfx942's. use_fast_accum: that of `scaled_mm`, for all products.
    The gradient of bias is the sum of dy in at least float32, rounded once. Where a product runs along an
    operand's columns, these are quantised as the tensor lies, without a copy. Under autocast x, weight and
    bias are converted to its dtype. A NaN or Inf poisons its rows and columns of the products. There are no
    second derivatives and no transforms of torch.func.

    Raises RankError, ShapeError, DtypeError, NotATensorError or ParameterError that name the argument.
    Source: the recipes of torchao.float8 (Float8LinearRecipeName).
    """
    check_flag(_NAME, "use_fast_accum", use_fast_accum)
    if recipe not in RECIPES:
        expected = " or ".join(map(repr, RECIPES))
        raise ParameterError(_NAME, "recipe", recipe, expected, nearest(str(recipe), RECIPES).strip())
    if dtype not in LARGEST:
        raise ParameterError(_NAME, "dtype", dtype, " or ".join(map(str, LARGEST)))
    given = {"x": x, "weight": weight} | ({} if bias is None else {"bias": bias})
    for name, tensor in given.items():
        check_tensor(_NAME, name, tensor)
    if torch.is_autocast_enabled(x.device.type):
        lower = torch.get_autocast_dtype(x.device.type)
        given = {name: tensor.to(lower) for name, tensor in given.items()}
    _check(given)
    return _Linear.apply(given["x"], given["weight"], given.get("bias"), recipe, dtype, use_fast_accum)


def _check(given: dict[str, Tensor]) -> None:
    """Raises RankError, ShapeError or DtypeError."""
    x, weight = given["x"], given["weight"]
    for name, tensor in given.items():
        least, most = {"x": (1, None), "weight": (2, 2), "bias": (1, 1)}[name]
        if tensor.dim() < least or (most is not None and tensor.dim() > most):
            raise RankError(_NAME, name, tensor.dim(), str(least) if most else "at least 1: x is (..., K)")
        if tensor.dtype not in WIDE or tensor.dtype != x.dtype:
            expected = " or ".join(map(str, WIDE)) if name == "x" else f"{x.dtype}, as x has"
            raise DtypeError(_NAME, name, tensor.dtype, expected)
    if weight.shape[1] != x.shape[-1]:
        raise ShapeError(_NAME, "weight", tuple(weight.shape), f"(N, {x.shape[-1]}), as x has")
    if "bias" in given and given["bias"].shape != weight.shape[:1]:
        raise ShapeError(_NAME, "bias", tuple(given["bias"].shape), f"({len(weight)},), as weight has rows")


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        recipe: str,
        dtype: torch.dtype,
        use_fast_accum: bool,
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.high, ctx.how = recipe == WEIGHT_GRADIENT_HIGH, (dtype, use_fast_accum)
        with torch.autocast(x.device.type, enabled=False):
            y = _product(x.reshape(-1, x.shape[-1]), weight, ctx.how, bias)
        return y.reshape(*x.shape[:-1], len(weight))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        rows, columns = dy.reshape(-1, dy.shape[-1]), x.reshape(-1, x.shape[-1])
        dx = dweight = None
        with torch.autocast(x.device.type, enabled=False):
            if needs_x:
                dx = _product(rows, weight.t(), ctx.how, tensorwise=ctx.high).reshape(x.shape)
            if needs_weight and ctx.high:
                dweight = portable.matmul(rows.mT, columns)
            elif needs_weight:
                dweight = _product(rows.t(), columns.t(), ctx.how)
            dbias = sum_of_rows(rows) if needs_bias else None
        return dx, dweight, dbias, None, None, None


def _product(
    a: Tensor, b: Tensor, how: tuple[torch.dtype, bool], bias: Tensor | None = None, tensorwise: bool = False
) -> Tensor:
    """a @ b.T + bias, of a's dtype: each quantised along its rows, or all of b with one scale."""
    dtype, use_fast_accum = how
    left, scale_a = by_rows(a, dtype=dtype, power_of_2=True)
    if tensorwise:
        one = _amax_scale(b, largest=LARGEST[dtype], power_of_2=True)
        right, scale_b = _quantize_static(b, one, dtype=dtype), one.expand(len(b), 1)
    else:
        right, scale_b = by_rows(b, dtype=dtype, power_of_2=True)
    return _scaled_mm(
        left, right.t(), scale_a, scale_b.t(), bias, output_dtype=a.dtype, use_fast_accum=use_fast_accum
    )

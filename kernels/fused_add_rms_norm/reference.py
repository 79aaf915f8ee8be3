"""The meaning of fused_add_rms_norm and of its gradient, in float64 on the CPU: a sum, then rms_norm.

The sum is rounded to its dtype T before it is normalized, as in vLLM and Liger: y is the norm of what the
next layer finds in `new_residual`. `types` names T.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from portable.kernels.rms_norm import reference as norm


def fused_add_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    *,
    types: Mapping[str, str] | None = None,
    **settings: Any,
) -> tuple[Tensor, Tensor]:
    """(y, new_residual); `settings` are rms_norm's eps, weight_offset and cast_before_weight."""
    total = norm.rounded(x + residual, types)
    return norm.rms_norm(total, weight, types=types, **settings), total


def error_scale(
    x: Tensor, residual: Tensor, weight: Tensor | None = None, *, types: Mapping[str, str], **settings: Any
) -> dict[str, Tensor]:
    """y's scale is rms_norm's; new_residual has every bit of the reference."""
    total = norm.rounded(x + residual, types)
    scale = norm.error_scale(total, weight, types=types, **settings)
    return {**scale, "new_residual": torch.zeros_like(total)}


def fused_add_rms_norm_backward(
    dy: Tensor,
    x: Tensor,
    dnew_residual: Tensor,
    weight: Tensor | None = None,
    *,
    types: Mapping[str, str] | None = None,
    **settings: Any,
) -> tuple[Tensor, Tensor]:
    """(dx, dweight) for x, the rounded sum. Both terms have dx: they pass through the rounding."""
    dx, dweight = norm.rms_norm_backward(dy, x, weight, types=types, **settings)
    return dx + dnew_residual, dweight


def error_scale_backward(
    dy: Tensor,
    x: Tensor,
    dnew_residual: Tensor,
    weight: Tensor | None = None,
    *,
    types: Mapping[str, str],
    **settings: Any,
) -> dict[str, Tensor]:
    """rms_norm's, which is that of the terms that dnew_residual may cancel as well."""
    return norm.error_scale_backward(dy, x, weight, types=types, **settings)

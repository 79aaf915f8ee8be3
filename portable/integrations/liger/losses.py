"""Cross entropy, of logits and of a linear, with the arguments and the four results of Liger's ops.

Two of the results, accuracy and predicted tokens, are Liger's alone. A mean over no row is 0 as in Liger,
and not torch's NaN. Logits keep their values; Liger's kernel overwrites them with their gradient. A target
outside the classes gives a loss of NaN, where Liger asserts after a synchronization.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import portable
from portable.integrations.liger.handing import NotTaken
from portable.kernels.cross_entropy.api import REDUCTIONS, divisor

Losses = tuple[Tensor, "Tensor | None", None, None]


def cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None = None, ignore_index: int = -100,
    lse_square_scale: float = 0.0, label_smoothing: float = 0.0, reduction: str = "mean",
    softcap: float | None = None, return_z_loss: bool = False, return_token_accuracy: bool = False,
    return_predicted_tokens: bool = False,
) -> Losses:  # fmt: skip
    """Liger's of (N, V) logits: the losses have their dtype."""
    _hold(weight, lse_square_scale, reduction, return_token_accuracy, return_predicted_tokens)
    target, weight = target.long(), _weights(weight, input)
    rows, lse = portable.cross_entropy(
        input, target, weight=weight, ignore_index=ignore_index, reduction="none", softcap=softcap,
        label_smoothing=label_smoothing, z_loss=lse_square_scale, return_lse=True,
    )  # fmt: skip
    loss = _reduced(rows, target, weight, ignore_index, reduction).to(input.dtype)
    if not return_z_loss:
        return loss, None, None, None
    return loss, _z_loss(lse, target, lse_square_scale, ignore_index, reduction, input.dtype), None, None


def fused_linear_cross_entropy(
    x: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None = None, ce_weight: Tensor | None = None,
    ignore_index: int = -100, lse_square_scale: float = 0.0, label_smoothing: float = 0.0,
    reduction: str = "mean", softcap: float | None = None, return_z_loss: bool = False,
    accum_dtype: torch.dtype | None = None, use_token_scaling: bool = False,
    return_token_accuracy: bool = False, return_predicted_tokens: bool = False,
) -> Losses:  # fmt: skip
    """Liger's of x @ weight.T: the loss is float32. Gradients of chunks are summed in float32, whether
    accum_dtype asks for it or not."""
    _hold(ce_weight, lse_square_scale, reduction, return_token_accuracy, return_predicted_tokens)
    if bias is not None:
        raise NotTaken("a bias")
    if use_token_scaling:
        raise NotTaken("use_token_scaling=True")
    if accum_dtype not in (None, torch.float32):
        raise NotTaken(f"accum_dtype={accum_dtype}")
    if x.dtype != weight.dtype and not torch.is_autocast_enabled(x.device.type):
        raise NotTaken(f"a weight of {weight.dtype} beside {x.dtype}")
    target, ce_weight = target.long(), _weights(ce_weight, x)
    options: dict[str, Any] = {"ignore_index": ignore_index, "label_smoothing": label_smoothing}
    options |= {"reduction": reduction, "softcap": softcap, "z_loss": lse_square_scale}
    found = portable.linear_cross_entropy(
        x, weight, target, class_weight=ce_weight, return_lse=return_z_loss, **options
    )
    loss, lse = found if return_z_loss else (found, None)
    if reduction == "mean":
        loss = torch.where((target != ignore_index).any(), loss, 0.0)
    if lse is None:
        return loss, None, None, None
    return loss, _z_loss(lse, target, lse_square_scale, ignore_index, reduction, x.dtype), None, None


fused_linear_cross_entropy.follows_autocast = True  # both make the logits in autocast's dtype


def _hold(
    weight: Tensor | None, z_loss: float, reduction: str, token_accuracy: bool, predicted_tokens: bool
) -> None:
    if token_accuracy or predicted_tokens:
        raise NotTaken("return_token_accuracy or return_predicted_tokens")
    if reduction not in REDUCTIONS:
        raise NotTaken(f"reduction={reduction!r}")
    if z_loss < 0:
        raise NotTaken(f"lse_square_scale={z_loss}")
    if weight is not None and z_loss and reduction == "mean":  # divided by rows, the rest by their weights
        raise NotTaken("a mean of weighted classes with lse_square_scale")


def _weights(weight: Tensor | None, x: Tensor) -> Tensor | None:
    return None if weight is None else weight.detach().to(torch.promote_types(x.dtype, torch.float32))


def _reduced(
    rows: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, reduction: str
) -> Tensor:
    if reduction == "none":
        return rows
    if reduction == "sum":
        return rows.sum()
    return rows.sum() / torch.where((target != ignore_index).any(), divisor(target, weight, ignore_index), 1)


def _z_loss(
    lse: Tensor, target: Tensor, scale: float, ignore_index: int, reduction: str, dtype: torch.dtype
) -> Tensor:
    """For logging: it has no gradient. lse is 0 in ignored rows."""
    return _reduced(scale * lse.detach().square(), target, None, ignore_index, reduction).to(dtype)

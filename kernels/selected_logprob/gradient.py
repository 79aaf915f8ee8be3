"""The gradient formula of selected_logprob."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import portable


def save(
    inputs: dict[str, Tensor], outputs: tuple[Tensor, ...], params: dict[str, Any]
) -> tuple[Tensor, ...]:
    """What the backward pass needs: the inputs, the entropy and lse."""
    return inputs["logits"], inputs["index"], *outputs[1:]


def backward(
    saved: tuple[Tensor, ...], params: dict[str, Any], needs: dict[str, bool], dlogprob: Tensor | None,
    dentropy: Tensor | None, dlse: Tensor | None,
) -> dict[str, Tensor | None]:  # fmt: skip
    """The gradient of the logits; the index has none."""
    logits, index, entropy, lse = saved
    dlogprob, dentropy = (torch.zeros_like(lse) if each is None else each for each in (dlogprob, dentropy))
    found = portable.selected_logprob_backward(
        dlogprob, dentropy, logits, index, entropy, lse, dlse, **params
    )
    return {"logits": found, "index": None}

"""What a user of torch alone would call: the baselines of selected_logprob's throughput."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def selected_logprob(logits: Tensor, index: Tensor, *, temperature: float) -> tuple[Tensor, Tensor, None]:
    """log_softmax in float32, the element, and the sum of the entropy; it gives no lse."""
    logp = torch.log_softmax(_scores(logits, temperature), -1)
    return logp.gather(-1, index[:, None])[:, 0], -(logp.exp() * logp).sum(-1), None


def selected_logprob_backward(
    dlogprob: Tensor, dentropy: Tensor, logits: Tensor, index: Tensor, entropy: Tensor, lse: Tensor,
    dlse: Tensor | None = None, *, temperature: float,
) -> Tensor:  # fmt: skip
    """The formula in torch's operations, given lse."""
    logp = _scores(logits, temperature) - lse[:, None]
    found = -logp.exp() * (dlogprob[:, None] + dentropy[:, None] * (logp + entropy[:, None]))
    if dlse is not None:
        found += logp.exp() * dlse[:, None]
    return (found.scatter_add_(-1, index[:, None], dlogprob[:, None]) / temperature).to(logits.dtype)


def _scores(logits: Tensor, temperature: float) -> Tensor:
    """The logits by the temperature, in float32 at least."""
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return wide if temperature == 1.0 else wide / temperature


def derived(given: dict[str, Tensor], facts: dict[str, Any]) -> dict[str, Tensor]:
    """The forward pass' entropy and lse."""
    logits, temperature = given["logits"], facts["temperature"]
    entropy = selected_logprob(logits, given["index"], temperature=temperature)[1]
    return {"entropy": entropy, "lse": torch.logsumexp(_scores(logits, temperature), -1)}

"""What a user of torch alone would call: the baseline of sample's throughput."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def sample(
    logits: Tensor, seed: Tensor, offset: Tensor | None = None, temperature: Tensor | None = None,
    top_k: Tensor | None = None, top_p: Tensor | None = None, min_p: Tensor | None = None,
) -> tuple[None, Tensor]:  # fmt: skip
    """softmax of sorted logits, filters by rank and cumulative sum, multinomial. That draws from torch's own
    generator: of the op's tokens, which these could be compared with, there are none."""
    scores = logits.float()
    if temperature is not None:
        scores = scores / temperature[:, None]
    p, order = scores.sort(-1, descending=True)
    if top_k is not None:
        rank = torch.arange(p.shape[1], device=p.device)
        p = p.masked_fill((rank >= top_k[:, None]) & (top_k[:, None] > 0), -torch.inf)
    p = p.softmax(-1)
    if top_p is not None:
        p = p.masked_fill(p.cumsum(-1) - p >= top_p[:, None], 0.0)
    if min_p is not None:
        p = p.masked_fill(p < min_p[:, None] * p[:, :1], 0.0)
    return None, order.gather(-1, torch.multinomial(p, 1))[:, 0]


def derived(given: dict[str, Tensor], facts: dict[str, Any]) -> dict[str, Tensor]:
    """Settings as users have them: a temperature of 0.7, top_k 50, top_p 0.9, min_p 0.05."""
    rows, device = facts["B"], given["logits"].device
    found = {"temperature": 0.7, "top_p": 0.9, "min_p": 0.05}
    return {
        "seed": torch.arange(rows, device=device),
        "offset": torch.full((rows,), 100, device=device),
        "top_k": torch.full((rows,), 50, dtype=torch.int32, device=device),
        **{name: torch.full((rows,), value, device=device) for name, value in found.items()},
    }

"""The loss of a language model by `portable.cross_entropy`."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn.functional import pad

import portable


def causal_lm_loss(
    logits: Tensor, labels: Tensor | None, vocab_size: int, num_items_in_batch: Any = None,
    ignore_index: int = -100, shift_labels: Tensor | None = None, **_: Any,
) -> Tensor:  # fmt: skip
    """The mean cross entropy of each token's logits with the next token, as transformers' ForCausalLMLoss.

    logits: (batch, tokens, vocab_size), read in their own dtype: the float32 copy of all logits that
    transformers makes is not made, and sums are in float32. labels: (batch, tokens), or shift_labels, moved
    already. num_items_in_batch: what the sum is divided by in place of the number of labels that are not
    ignored. Answers float32. A label outside [0, vocab_size) that is not ignore_index gives NaN.
    """
    if shift_labels is None:
        if labels is None:
            raise ValueError("causal_lm_loss needs labels or shift_labels, and both are None")
        shift_labels = pad(labels, (0, 1), value=ignore_index)[..., 1:]
    rows, target = logits.reshape(-1, vocab_size), shift_labels.reshape(-1).to(logits.device)
    if num_items_in_batch is None:
        return portable.cross_entropy(rows, target, ignore_index=ignore_index)
    total = portable.cross_entropy(rows, target, ignore_index=ignore_index, reduction="sum")
    if isinstance(num_items_in_batch, Tensor):
        num_items_in_batch = num_items_in_batch.to(total.device)
    return total / num_items_in_batch

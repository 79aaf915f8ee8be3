"""torch's operators of embedding."""

from __future__ import annotations

from torch import Tensor

import portable
from portable.kernels.embedding.gradient import of_weight


def forward(
    weight: Tensor,
    indices: Tensor,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor | str:
    """The last three are the gradient's."""
    return portable.embedding(indices, weight)


def backward(
    grad_output: Tensor, indices: Tensor, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> Tensor | str:
    if scale_grad_by_freq:
        return "the gradient is scaled by how often an index occurs"
    if not num_weights:
        return "a table without rows"
    return of_weight(grad_output, indices, num_weights, padding_idx if padding_idx >= 0 else None)


OVERRIDES = {"embedding": forward, "embedding_dense_backward": backward}

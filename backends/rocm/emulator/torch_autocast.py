"""`torch.autocast("cuda")` for an emulated GPU's tensors, which are the CPU's.

Products, convolutions and attention run in the region's dtype by torch's CPU autocast, which is entered
beside the GPU's. What a GPU's autocast runs in float32 (softmax, norms, losses, sums, powers) and the CPU's
leaves as it is, `float32` casts here. The host's tensors are not cast.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_GPU = "cuda"
_INNER = "_portable_inner"  # an attribute of a GPU's autocast: the CPU's regions that it has entered
_IN_FLOAT32 = frozenset(
    (
        *("acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal"),
        *("rsqrt", "sinh", "tan", "pow", "__pow__", "__rpow__", "softplus", "softmax", "log_softmax"),
        *("layer_norm", "group_norm", "norm", "cosine_similarity", "cdist", "dist", "renorm", "logsumexp"),
        *("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div", "nll_loss", "cross_entropy"),
        *("poisson_nll_loss", "cosine_embedding_loss", "hinge_embedding_loss", "margin_ranking_loss"),
        *("triplet_margin_loss", "multilabel_margin_loss", "soft_margin_loss", "multi_margin_loss"),
        *("binary_cross_entropy_with_logits", "cumsum", "cumprod", "prod", "sum"),
    )
)
"""Functions and methods of torch that a GPU's autocast runs in float32, by name (torch's "CUDA Ops that can
autocast to float32"); those in place are not."""


def entered(enter: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.autocast.__enter__` that enters the CPU's region beside a GPU's."""

    def run(self: Any) -> Any:
        found = enter(self)
        if self.device == _GPU:
            cache = self._cache_enabled
            inner = torch.autocast("cpu", self.fast_dtype, enabled=self._enabled, cache_enabled=cache)
            inner.__enter__()
            self.__dict__.setdefault(_INNER, []).append(inner)
        return found

    return run


def left(leave: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.autocast.__exit__` of the same."""

    def run(self: Any, *error: Any) -> Any:
        inner = self.__dict__.get(_INNER)
        if inner:
            inner.pop().__exit__(*error)
        return leave(self, *error)

    return run


def active() -> bool:
    """Whether the program is within a GPU's autocast."""
    return torch.is_autocast_enabled(_GPU)


def on_host(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """`func` of the host's tensors, which a GPU's autocast leaves alone."""
    with torch.autocast("cpu", enabled=False):
        return func(*args, **kwargs)


def float32(func: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The arguments of `func` as it gets them: 16-bit ones as float32 where a GPU's autocast runs it so."""
    if getattr(func, "__name__", None) not in _IN_FLOAT32:
        return args, kwargs
    return tuple(map(wide, args)), {name: wide(value) for name, value in kwargs.items()}


def wide(value: Any) -> Any:
    """A 16-bit tensor as float32; anything else as it is."""
    if isinstance(value, torch.Tensor) and value.dtype in (torch.float16, torch.bfloat16):
        return value.float()
    return value

"""The pass that Inductor calls with each graph, before autograd."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch.fx import Graph

import portable
from portable.integrations.inductor import gated, losses, norms, rotary, whole
from portable.integrations.inductor.rewriting import Found, Pattern, rewrite

# In the order in which they are tried: what takes more together first.
PATTERNS: dict[str, Callable[..., Any]] = {
    "rope": rotary.rope,
    "rms_norm": norms.rms_norm,
    "linear_cross_entropy": losses.linear_cross_entropy,
    "gated_linear": gated.gated_linear,
    "gated_activation": gated.gated_activation,
    "attention": whole.attention,
    "softmax": whole.softmax,
    "layer_norm": whole.layer_norm,
}
PARTS = tuple(PATTERNS)
BY_NAME = ("attention", "softmax", "layer_norm")
"""Only replaced where `only` names them."""
OPS = (
    "rope", "rms_norm", "fused_add_rms_norm", "linear", "cross_entropy", "gated_linear", "gated_activation",
    "swiglu", "attention", "softmax", "layer_norm",
)  # fmt: skip


class FusedOps(CustomGraphPass):
    """Replaces patterns of torch's functions by ops. first: passes that were there before."""

    def __init__(self, only: Sequence[str] | None, first: Sequence[Any] = ()) -> None:
        self.only, self.first = None if only is None else tuple(only), tuple(first)
        for name in OPS:
            getattr(portable, name)  # registers it with torch

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(p for p in PARTS if (p not in BY_NAME if self.only is None else p in self.only))

    def __call__(self, graph: Graph) -> None:
        for each in self.first:
            each(graph)
        self.rewrite(graph)

    def rewrite(self, graph: Graph) -> Found:
        return rewrite(graph, [(part, self._pattern(part)) for part in self.parts])

    def _pattern(self, part: str) -> Pattern:
        if part == "gated_linear":
            return functools.partial(gated.gated_linear, always=self.only is not None)
        return PATTERNS[part]

    def uuid(self) -> Any:
        """What Inductor's caches go by; None, no cache, where a pass that goes first has none."""
        others = [each.uuid() if isinstance(each, CustomGraphPass) else None for each in self.first]
        return None if None in others else ("portable", _hash(), self.only, *others)

    def __reduce__(self) -> Any:
        return FusedOps, (self.only, self.first)


@functools.cache
def _hash() -> str:
    """Of all that decides what is replaced by what: these files, the specs of the ops, the versions."""
    found = hashlib.sha256(f"{portable.__version__} {torch.__version__}".encode())
    here = Path(__file__).parent
    kernels = Path(portable.__file__).parent / "kernels"
    for file in [*sorted(here.glob("*.py")), *(kernels / name / "spec.yaml" for name in sorted(OPS))]:
        found.update(file.read_bytes())
    return found.hexdigest()

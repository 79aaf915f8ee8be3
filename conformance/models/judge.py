"""A candidate's step held against float32: as near to it as torch's own eager step in the same dtype."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

FACTOR = 1.5
"""How many times torch's own error a candidate may have, in each tensor."""
SLACK = 2.0**-9
"""And how much beside it: half a unit in the last place of bfloat16."""


@dataclass(frozen=True)
class Verdict:
    """Relative errors (L2) by tensor, and the sentence that says what is wrong; empty where nothing is."""

    errors: Mapping[str, float]
    fault: str

    @property
    def worst(self) -> float:
        return max(self.errors.values())


def errors(outcome: Mapping[str, Tensor], reference: Mapping[str, Tensor]) -> dict[str, float]:
    """The L2 norm of each tensor's difference over that of its reference; NaN where one is not finite."""
    found = {}
    for name, expected in reference.items():
        difference = torch.linalg.vector_norm(outcome[name] - expected)
        found[name] = float(difference / torch.linalg.vector_norm(expected).clamp_min(1e-30))
    return found


def verdict(found: Mapping[str, float], of_torch: Mapping[str, float]) -> Verdict:
    """`found` held against torch's own errors."""
    beyond = {
        name: error for name, error in found.items() if not error <= FACTOR * of_torch[name] + SLACK
    }  # NaN is beyond
    if not beyond:
        return Verdict(found, "")
    name = max(beyond, key=lambda each: beyond[each] if beyond[each] == beyond[each] else float("inf"))
    allowed = FACTOR * of_torch[name] + SLACK
    return Verdict(
        found,
        f"{name}: relative error {beyond[name]:.3g} against float32, torch's own {of_torch[name]:.3g}, "
        f"allowed {allowed:.3g}; {len(beyond)} of {len(found)} tensors are beyond",
    )

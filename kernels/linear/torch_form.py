"""The arguments of torch.nn.functional.linear as this op's."""

from __future__ import annotations

from typing import Any


def linear(input: Any, weight: Any, bias: Any = None) -> dict[str, Any]:
    return {"x": input, "weight": weight, "bias": bias}

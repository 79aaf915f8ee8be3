"""The arguments of torch.matmul as this op's."""

from __future__ import annotations

from typing import Any


def matmul(input: Any, other: Any, *, out: Any = None) -> dict[str, Any]:
    return {"a": input, "b": other, "out": out}

"""What tests read of a plan. Typed loosely: a part that a plan does not have fails the test that reads it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from portable.plan import Call, Plan, Rejected
from portable.spec import registry


def planner(op: str, implementation: str = "cpp") -> Callable[[Call], Plan | Rejected]:
    """The planning function of an op's implementation."""
    found = registry.spec(op).implementation(implementation)
    assert found is not None
    return registry.load_entry(found.entry)


def accepted(plan: Plan | Rejected) -> Any:
    """The plan, which must not be a rejection."""
    assert isinstance(plan, Plan), plan
    return plan

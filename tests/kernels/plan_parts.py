"""What tests read of a plan. Typed loosely: a part that a plan does not have fails the test that reads it."""

from __future__ import annotations

from typing import Any

from portable.plan import Plan, Rejected


def accepted(plan: Plan | Rejected) -> Any:
    """The plan, which must not be a rejection."""
    assert isinstance(plan, Plan), plan
    return plan

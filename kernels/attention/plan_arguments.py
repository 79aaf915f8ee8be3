"""A problem's numbers as arguments of a launch, for the plans of every vendor."""

from __future__ import annotations

from portable.kernels.attention.problem import Heads, Problem
from portable.plan import Argument, Pointer, Scalar


def whole(numbers: dict[str, int]) -> tuple[tuple[str, Argument], ...]:
    return tuple((name, Scalar("i32", value)) for name, value in numbers.items())


def optional(problem: Problem, name: str) -> Argument:
    return Pointer(name) if problem.has(name) else Scalar("i64", 0)


def strides(problem: Problem, tensor: str, name: str = "") -> tuple[tuple[str, Argument], ...]:
    """The strides of a tensor, which the kernel may call `name`; zeros for one that is absent."""
    heads = problem.heads.get(tensor, Heads(tensor, 0, 0, 0, 16))
    return tuple(
        (f"{name or tensor}_{side}", Scalar("i64", getattr(heads, side))) for side in ("batch", "head", "row")
    )

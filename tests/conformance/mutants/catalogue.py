"""All mutants, in a fixed order, and those that the suite does not reject."""

from __future__ import annotations

from . import calls, gradients, norms, products, softmaxes, sources
from .registry import Mutant, found

SURVIVORS = {
    "matmul: offsets in 32 bits": "no case has an operand that spans 2^31 elements",
    "softmax: offsets in 32 bits": "its case, softmax/behaviour/beyond_2_31, needs 60 GB on a GPU",
    "linear: weight not transposed where it is square": "no case of linear has N = K beyond 1",
    "softmax: order of summation depends on the number of rows": (
        "rows_alone asks in bfloat16 alone, whose rounding hides a different last bit of float32"
    ),
    "swiglu: up read with gate's strides": "a layout is given to all inputs of a case alike",
}
"""Mutants that no case rejects, and why: what the suite does not see yet."""

SLOW = {
    "matmul: overflow saturates",
    "softmax: last column left out of the maximum",
    "softmax: one thread in two sees the other's result",
    "softmax: sum cut towards zero after each step",
    *SURVIVORS,
}
"""Fast mutants that ask for most of the suite: left out of the sample."""


def every() -> list[Mutant]:
    """The fast ones first, then those that run on an emulated card."""
    assert all((calls, gradients, norms, products, softmaxes, sources))
    return sorted(found, key=lambda each: each.kind == "source")


def sample() -> list[Mutant]:
    """Every third of the fast ones, and two on emulated cards."""
    fast = [each for each in every() if not each.arch and each.id not in SLOW]
    cards = [each for each in every() if each.arch and "one row past the end written" in each.name]
    return fast[::3] + cards[:2]

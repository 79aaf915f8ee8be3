"""All mutants, in a fixed order, and those that the suite does not reject."""

from __future__ import annotations

from . import calls, gradients, norms, products, softmaxes, sources
from .registry import Mutant, found

SURVIVORS: dict[str, str] = {}
"""Mutants that no case rejects, and why: what the suite does not see yet."""

SLOW = {
    "activation_backward: an unknown activation taken for silu",
    "linear: mixed dtypes converted, not refused",
    "linear: offsets in 32 bits",
    "matmul: K taken modulo 65,536",
    "matmul: of two lengths of K the shorter, no error",
    "matmul: overflow saturates",
    "matmul: offsets in 32 bits",
    "softmax: last column left out of the maximum",
    "softmax: offsets in 32 bits",
    "softmax: one thread in two sees the other's result",
    "softmax: order of summation depends on the number of rows",
    "softmax: sum cut towards zero after each step",
    "swiglu: products in another order where up is large",
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

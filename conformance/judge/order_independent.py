"""Which answers every order of summation gives, bit for bit: derived from the reference, not declared.

A result qualifies where it is a sum of products that the reference itself shows to be one, and where
every partial sum of it, in any order, fits the accumulator's mantissa. The argument is of fixed point:
if every term is a multiple of g = 2^k and the terms' absolute values add up to at most g times the
largest integer of the mantissa, then so does every partial sum, and no addition rounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import torch

Tensors = Mapping[str, torch.Tensor]
Evaluate = Callable[[Tensors], Mapping[str, torch.Tensor]]

FACTORS = (2.0, 2.0**-12)
"""What an input is scaled by to see in which degree a result follows; both must agree."""
ENOUGH = 16
"""Elements from which on it is no accident that a result looks like a sum of products."""


def degrees(evaluate: Evaluate, tensors: Tensors, refs: Tensors) -> dict[str, dict[str, int | None]]:
    """By output and input: 1 where a scaled input scales the output as much, bit for bit, 0 where it
    leaves it as it is, None for anything else. All in float64; an output of zeros alone counts as 1."""
    found: dict[str, dict[str, int | None]] = {name: {} for name in refs}
    for name, tensor in tensors.items():
        scaled = [evaluate({**tensors, name: tensor * factor}) for factor in FACTORS]
        for output, ref in refs.items():
            pairs = list(zip((each[output] for each in scaled), FACTORS, strict=True))
            if all(torch.equal(got, ref * factor) for got, factor in pairs):
                found[output][name] = 1
            else:
                found[output][name] = 0 if all(torch.equal(got, ref) for got, _ in pairs) else None
    return found


def order_independent(
    evaluate: Evaluate, tensors: Tensors, refs: Tensors, acc: torch.dtype
) -> dict[str, bool]:
    """By output: whether accumulating in `acc` must give `refs`, rounded once, in every order.

    `tensors` and `refs` are float64, `evaluate` is the reference as a function of the tensors. An output
    qualifies that is of degree 1 or 0 in each input and a multiple of the inputs' common granule, that adds
    (a single term has no order), and whose value for the inputs' absolute values, the sum of its terms'
    sizes, fits the mantissa.
    """
    sums = evaluate({name: tensor.abs() for name, tensor in tensors.items()})
    terms = evaluate({name: torch.ones_like(tensor) for name, tensor in tensors.items()})
    found = {}
    for output, by_input in degrees(evaluate, tensors, refs).items():
        ref, total = refs[output], sums[output]
        adds = ref.numel() >= ENOUGH and bool((terms[output] > 1).any())
        if None in by_input.values() or not adds or not bool(torch.isfinite(total).all()):
            found[output] = False
            continue
        unit = sum(granule(tensors[name]) for name, degree in by_input.items() if degree)
        info, whole = torch.finfo(acc), torch.ldexp(ref, torch.tensor(-unit))
        most = float(total.max())
        found[output] = (
            bool((ref.abs() <= total).all())
            and bool((whole == whole.round()).all())
            and math.ldexp(most, -unit) <= 2.0 / info.eps
            and most <= info.max
            and 2.0**unit >= info.smallest_normal
        )
    return found


def granule(tensor: torch.Tensor) -> int:
    """The largest k such that every finite element of the float64 `tensor` is a multiple of 2^k; 0 of zeros.
    A sum that is finite has no other terms."""
    values = np.abs(tensor.detach().numpy().ravel())
    values = values[(values > 0) & np.isfinite(values)]
    if not values.size:
        return 0
    digits, exponents = np.frexp(values)
    whole = np.ldexp(digits, 53).astype(np.int64)
    lowest = np.frexp((whole & -whole).astype(np.float64))[1] - 1
    return int((exponents - 53 + lowest).min())

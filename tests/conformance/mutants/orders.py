"""Right computations in many orders: none of them may be rejected.

A seed draws one call of matmul, softmax, rms_norm or layer_norm; each order sums in float32, one addition
after the other as named, and the result is rounded once. The judge sees them as it sees a kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from portable.conformance.cases import inputs
from portable.conformance.cases.case import Case, input_shapes, make_shape
from portable.conformance.judge import reference
from portable.conformance.judge.bound import Verdict
from portable.spec import registry

OPS = ("matmul", "softmax", "rms_norm", "layer_norm")
LENGTHS = (1, 7, 33, 64, 65, 127, 251, 257, 1000)
VALUES = ("normal", "normal", "cancellation", "large_range", "small_integers")

Array = np.ndarray
Total = Callable[[Array], Array]


def sequential(terms: Array) -> Array:
    return np.add.accumulate(terms, axis=-1, dtype=np.float32)[..., -1]


def backwards(terms: Array) -> Array:
    return sequential(terms[..., ::-1])


def pairwise(terms: Array) -> Array:
    """A butterfly, as a wave reduces: halves folded onto each other."""
    while terms.shape[-1] > 1:
        half = (terms.shape[-1] + 1) // 2
        low, high = terms[..., :half], terms[..., half:]
        terms = low.copy()
        terms[..., : high.shape[-1]] += high
    return terms[..., 0]


def blocked(terms: Array) -> Array:
    """Sums of 32 neighbours, then the sum of those."""
    starts = np.arange(0, terms.shape[-1], 32)
    return sequential(np.stack([sequential(terms[..., s : s + 32]) for s in starts], -1))


def interleaved(terms: Array) -> Array:
    """Lane l of 64 sums every 64th term, then the lanes are folded."""
    lanes = [sequential(terms[..., lane::64]) for lane in range(min(64, terms.shape[-1]))]
    return pairwise(np.stack(lanes, -1))


def split_four(terms: Array) -> Array:
    """Four partial sums in float32, added pairwise: split-K."""
    parts = np.array_split(terms, 4, axis=-1)
    sums = [sequential(part) if part.shape[-1] else np.zeros(part.shape[:-1], np.float32) for part in parts]
    return (sums[0] + sums[1]) + (sums[2] + sums[3])


def permuted(terms: Array) -> Array:
    order = np.random.default_rng(terms.shape[-1]).permutation(terms.shape[-1])
    return sequential(terms[..., order])


SUMS: tuple[Total, ...] = (
    sequential, backwards, pairwise, blocked, interleaved, split_four, permuted
)  # fmt: skip


def fused(a: Array, b: Array) -> Array:
    """sum(a * b) over the last axis, each product and addition rounded once together.

    A product of two float32 is exact in float64; the sum is rounded to float64 and then to float32, which
    differs from one rounding in one case of 2^29.
    """
    a, b = np.broadcast_arrays(a, b)
    total = np.zeros(a.shape[:-1], np.float32)
    for k in range(a.shape[-1]):
        total = (a[..., k].astype(np.float64) * b[..., k] + total).astype(np.float32)
    return total


@dataclass(frozen=True)
class Judged:
    """One computation and what the judge says of it."""

    case: str
    order: str
    verdict: Verdict


def judged(seed: int) -> Iterator[Judged]:
    """The call that `seed` draws, computed in every order."""
    op = OPS[seed % len(OPS)]
    spec = registry.spec(op)
    rows = [row for row in spec.types if row["acc"] == "float32"]
    types = rows[seed // len(OPS) % len(rows)]
    length = LENGTHS[seed // 3 % len(LENGTHS)]
    values = VALUES[seed // 5 % len(VALUES)]
    if op == "matmul":
        shape = make_shape(spec, {"M": 1 + seed % 9, "N": 1 + seed % 14, "K": length})
    else:
        shape = make_shape(spec, {"N": length}, (1 + seed % 11,))
    case = Case(op, tuple(types.items()), shape, values)
    key = f"orders/{seed}"
    tensors = {
        name: inputs.make(
            key, name, dims, case.dtype(spec.inputs[name].dtype), values, "contiguous", position
        ).tensor
        for position, (name, dims) in enumerate(input_shapes(spec, shape).items())
    }
    (expected,) = reference.answer(case, spec, tensors).values()
    wide = {name: tensor.float().numpy() for name, tensor in tensors.items()}
    with np.errstate(all="ignore"):
        for order, result in _COMPUTE[op](wide):
            got = torch.from_numpy(np.ascontiguousarray(result)).to(expected.dtype)
            yield Judged(f"{key} {case.id}", order, expected.judge(got, values == "normal"))


def _matmul(wide: dict[str, Array]) -> Iterator[tuple[str, Array]]:
    a, b = wide["a"][:, None, :], wide["b"].T[None, :, :]
    for total in SUMS:
        yield total.__name__, total(a * b)
    yield "fused", fused(a, b)
    yield "fused backwards", fused(a[..., ::-1], b[..., ::-1])


def _softmax(wide: dict[str, Array]) -> Iterator[tuple[str, Array]]:
    x = wide["x"]
    e = np.exp(x - x.max(-1, keepdims=True))
    two = np.exp2((x - x.max(-1, keepdims=True)) * np.float32(1.44269504))
    for total in SUMS:
        yield f"{total.__name__}, divided", e / total(e)[..., None]
        yield f"{total.__name__}, scaled", e * (np.float32(1) / total(e)[..., None])
        yield f"{total.__name__}, exp2", two / total(two)[..., None]


def _rms_norm(wide: dict[str, Array]) -> Iterator[tuple[str, Array]]:
    x, weight, n = wide["x"], wide["weight"], np.float32(wide["x"].shape[-1])
    squares = [(total.__name__, total(x * x)) for total in SUMS] + [("fused", fused(x, x))]
    for name, square in squares:
        r = np.float32(1) / np.sqrt(square / n + np.float32(1e-6))[..., None]
        yield f"{name}, weight last", x * r * weight
        yield f"{name}, weight first", x * (r * weight)


def _layer_norm(wide: dict[str, Array]) -> Iterator[tuple[str, Array]]:
    x, weight, bias, n = wide["x"], wide["weight"], wide["bias"], np.float32(wide["x"].shape[-1])
    for total in SUMS:
        c = x - (total(x) / n)[..., None]
        for name, square in ((total.__name__, total(c * c)), (f"{total.__name__}, fused", fused(c, c))):
            r = np.float32(1) / np.sqrt(square / n + np.float32(1e-5))[..., None]
            y = c * r
            both = (y.astype(np.float64) * weight + bias).astype(np.float32)
            yield f"{name}, bias added", y * weight + bias
            yield f"{name}, bias fused", both


_COMPUTE: dict[str, Callable[[dict[str, Array]], Iterator[tuple[str, Array]]]] = {
    "matmul": _matmul,
    "softmax": _softmax,
    "rms_norm": _rms_norm,
    "layer_norm": _layer_norm,
}

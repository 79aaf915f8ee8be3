"""The ops with sums, one addition after the other in float32: the widest order that a kernel may choose.

`python tests/conformance/in_sequence.py` writes conformance/calibration/in-sequence.json.gz, in which NumPy
stands where a GPU does: what the specs' constants must allow beyond the kernels that are here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import portable
from portable.conformance.cases import inputs
from portable.conformance.cases.case import Case
from portable.conformance.commands import calibrate
from portable.conformance.records import record
from portable.spec import registry
from portable.spec.model import Spec

Array = np.ndarray
NAME = "in sequence"
FILE = Path(calibrate.__file__).parent / "calibration" / "in-sequence.json.gz"
SIZES = calibrate.Sizes((64, 256, 1024, 4096, 16384), 48, 32)
SEEDS = (0, 1)


def total(terms: Array, axis: int = -1) -> Array:
    """The sum over an axis, which stays with size 1."""
    return np.add.accumulate(terms, axis=axis, dtype=np.float32).take([-1], axis)


def product(a: Array, b: Array) -> Array:
    """a @ b, each product rounded, then added."""
    found = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for k in range(a.shape[1]):
        found += a[:, k, None] * b[k]
    return found


def statistics(x: Array, eps: float, centred: bool) -> tuple[Array, Array]:
    """x less its mean (or x), and the reciprocal root of its mean square, per row."""
    length = np.float32(x.shape[-1])
    x = x - total(x) / length if centred else x
    return x, np.float32(1) / np.sqrt(total(x * x) / length + np.float32(eps))


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / total(e)


def softmax_backward(dy: Array, y: Array) -> Array:
    return y * (dy - total(dy * y))


def rms_norm(x: Array, weight: Array) -> Array:
    _, r = statistics(x, 1e-6, False)
    return x * r * weight


def rms_norm_backward(dy: Array, x: Array, weight: Array) -> tuple[Array, Array]:
    _, r = statistics(x, 1e-6, False)
    g = dy * weight
    return r * g - x * r * r * r * (total(g * x) / np.float32(x.shape[-1])), total(dy * x * r, 0)[0]


def layer_norm(x: Array, weight: Array, bias: Array) -> Array:
    centred, r = statistics(x, 1e-5, True)
    return centred * r * weight + bias


def layer_norm_backward(dy: Array, x: Array, weight: Array, bias: Array) -> tuple[Array, Array, Array]:
    centred, r = statistics(x, 1e-5, True)
    n, g, length = centred * r, dy * weight, np.float32(x.shape[-1])
    dx = r * (g - total(g) / length - n * (total(g * n) / length))
    return dx, total(dy * n, 0)[0], total(dy, 0)[0]


def linear(x: Array, weight: Array, bias: Array) -> Array:
    return product(x, weight.T) + bias


OPS: dict[str, Callable[..., Any]] = {
    "layer_norm": layer_norm,
    "layer_norm_backward": layer_norm_backward,
    "linear": linear,
    "matmul": product,
    "rms_norm": rms_norm,
    "rms_norm_backward": rms_norm_backward,
    "softmax": softmax,
    "softmax_backward": softmax_backward,
}


def run(case: Case, spec: Spec, impl: str, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """An op's outputs, each rounded once to its type."""
    result = OPS[spec.op](*(tensors[name].float().numpy() for name in spec.inputs))
    several = result if isinstance(result, tuple) else (result,)
    return {
        name: torch.from_numpy(np.ascontiguousarray(each)).to(inputs.DTYPES[case.dtype(output.dtype)])
        for (name, output), each in zip(spec.outputs.items(), several, strict=True)
    }


def measured(ops: Sequence[str], sizes: calibrate.Sizes, seeds: Sequence[int]) -> dict[str, list[Any]]:
    parts: dict[str, list[Any]] = {"entries": [], "not_supported": [], "broken": []}
    for op in ops:
        found = calibrate.measure(registry.spec(op), [NAME], sizes, seeds, torch.device("cpu"), run)
        for part, more in zip(parts.values(), found, strict=True):
            part += more
    return parts


def main() -> int:
    parts = measured(list(OPS), SIZES, SEEDS)
    head = record.header(portable.device(), (), "")
    head |= {"device": "NumPy, in sequence", "vendor": "cpu", "arch": "any", "emulated": False}
    calibrate.write(FILE, calibrate.collected(head, SIZES, SEEDS, parts))
    return 1 if parts["broken"] else 0


if __name__ == "__main__":
    sys.exit(main())

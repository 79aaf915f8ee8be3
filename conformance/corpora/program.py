"""A program of a corpus: it launches kernels and hands back what they computed beside what is right."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Compared(NamedTuple):
    """A result, the right one in float64, and how far apart they may be: `limit` of the largest value."""

    name: str
    got: Tensor
    right: Tensor
    limit: float


@dataclass(frozen=True)
class Program:
    """`name` is its id, the kernel's name before the first slash; `run` launches, with device="cuda"."""

    name: str
    run: Callable[[], Iterable[Compared]]


LIMITS = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2}
"""Of the largest value. A wrong element is off by far more; rounding in the middle of a program is not."""


def fault(compared: Iterable[Compared]) -> tuple[str, str] | None:
    """(state, message) of the first result that is not right, None where all are."""
    for name, got, right, limit in compared:
        if got.shape != right.shape:
            return "Fail.shape", f"{name}: {list(got.shape)}, expected {list(right.shape)}"
        here, there = got.detach().cpu().double(), right.detach().double()
        if not torch.equal(here.isfinite(), there.isfinite()):
            count = int((here.isfinite() != there.isfinite()).sum())
            return (
                "Fail.nonfinite",
                f"{name}: {count} of {here.numel()} elements are finite on one side",
            )
        error = torch.where(there.isfinite(), (here - there).abs(), 0.0)
        allowed = limit * max(1.0, float(there[there.isfinite()].abs().max()) if there.numel() else 1.0)
        if wrong := int((error > allowed).sum()):
            return "Fail.value", (
                f"{name}: {wrong} of {here.numel()} elements, the largest error {float(error.max()):.3g}, "
                f"allowed {allowed:.3g}"
            )
    return None


def with_gradients(
    ours: Callable[..., Any], reference: Callable[..., Any], inputs: dict[str, Tensor], limit: float
) -> list[Compared]:
    """Results and gradients of `ours`, called with `inputs` in order, beside those of `reference` in float64.

    Inputs of floats get gradients; what is neither stays as it is."""
    here = [_leaf(value, value.dtype, "cuda") for value in inputs.values()]
    there = [_leaf(value, torch.float64, "cpu") for value in inputs.values()]
    got, right = _listed(ours(*here)), _listed(reference(*there))
    generator = torch.Generator().manual_seed(1)
    upstream = [torch.randn(each.shape, generator=generator).to(each.dtype) for each in got]
    compared = [
        Compared(f"result {n}", a.detach().clone(), b, limit)
        for n, (a, b) in enumerate(zip(got, right, strict=True))
    ]
    torch.autograd.backward(got, [each.clone().to("cuda") for each in upstream])
    torch.autograd.backward(right, [each.double() for each in upstream])
    for name, a, b in zip(inputs, here, there, strict=True):
        if b.requires_grad and b.grad is not None:
            if a.grad is None:
                raise AssertionError(f"no gradient of {name}")
            compared.append(Compared(f"gradient of {name}", a.grad, b.grad, 4 * limit))
    return compared


def _leaf(value: Tensor, dtype: torch.dtype, device: str) -> Tensor:
    floats = value.is_floating_point()
    leaf = value.to(device, dtype if floats else value.dtype).detach().clone()
    return leaf.requires_grad_(floats)


def _listed(result: Any) -> Sequence[Tensor]:
    return result if isinstance(result, (tuple, list)) else [result]

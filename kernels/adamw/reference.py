"""The meaning of adamw, in float64 on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from portable.kernels.adamw.chunks import CHUNK
from portable.kernels.adamw.stochastic import random_words

NAMES = ("param", "exp_avg", "exp_avg_sq")
ROUNDINGS = {"param": 12, "exp_avg_sq": 2}
"""accumulation_ulp of what is rounded stochastically."""

SHADE = 2.0**-40
"""How far the reference stays from a bfloat16, which may be what was there: the suite takes what no reference
changes for what is not written, and demands its bits, also of a NaN."""


def _update(given: dict[str, Any]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The tensors after the step, and the terms that they are made of before these cancel."""
    param, grad, m, v, step, lr = (
        given[name] for name in ("param", "grad", "exp_avg", "exp_avg_sq", "step", "lr")
    )
    g = grad if given["grad_scale"] is None else grad / given["grad_scale"]
    g = -g if given["maximize"] else g
    beta1, beta2 = given["beta1"], given["beta2"]
    factor = lr / (1 - beta1**step)
    new_m = m + (1 - beta1) * (g - m)
    new_v = beta2 * v + (1 - beta2) * g * g
    denominator = new_v.sqrt() / (1 - beta2**step).sqrt() + given["eps"]
    new = param - lr * given["weight_decay"] * param - factor * new_m / denominator
    terms = m.abs() + g.abs()
    made = {"param": new, "exp_avg": new_m, "exp_avg_sq": new_v}
    scales = {"param": param.abs() + factor * terms / denominator, "exp_avg": terms, "exp_avg_sq": new_v}
    return made, scales


def _chosen(value: Tensor, scale: Tensor, bits: Tensor, roundings: int) -> tuple[Tensor, Tensor]:
    """The bfloat16 beside each value that 16 bits choose, added in units of float32's last place. Where the
    `roundings` before may have led to the other one, the error scale is as large as to allow it."""
    _, exponent = torch.frexp(value)
    exponent = exponent.clamp(min=-125).double()  # that of the smallest normal number
    unit = torch.exp2(exponent - 24)
    magnitude = value.abs() / unit
    lower = (magnitude / 65536).floor()
    over = magnitude - 65536 * lower + bits  # from 0 to 2^17
    up = over >= 65536
    near = roundings * 2.0**-23 * (value.abs() + scale) / unit
    far = torch.stack([over, (over - 65536).abs(), 131072 - over]).amin(0) > near
    chosen = torch.where(value.isfinite(), value.sign() * (lower + up) * 65536 * unit * (1 + SHADE), value)
    return chosen, torch.where(far, scale, scale + 65536 * value.abs())


def _rounded(
    given: dict[str, Any], types: dict[str, str], number: int, first: int
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """`_update`, with what is rounded stochastically; `first` is the first element's index in its tensor."""
    made, scales = _update(given)
    if given["stochastic_rounding"]:
        words = random_words(first, len(given["param"]), number, given["step"], given["seed"])
        for name, kind, bits in (("param", "T", words & 0xFFFF), ("exp_avg_sq", "S", words >> 16)):
            if types[kind] == "bfloat16":
                found = _chosen(made[name], scales[name], bits, ROUNDINGS[name])
                made[name], scales[name] = found
    return made, scales


def _overflow(given: dict[str, Any]) -> bool:
    found = given["found_inf"]
    return found is not None and found.item() != 0


def adamw(types: dict[str, str], **given: Any) -> tuple[Tensor, ...]:
    """The parameter and both moments after the step."""
    if _overflow(given):
        return tuple(given[name].clone() for name in NAMES)
    made, _ = _rounded(given, types, given["number"], 0)
    return tuple(made[name] for name in NAMES)


def error_scale(types: dict[str, str], **given: Any) -> dict[str, Tensor]:
    return _rounded(given, types, given["number"], 0)[1]


def places(tensors: Tensor, chunks: Tensor) -> Iterator[tuple[list[int], int, int]]:
    """Of each chunk that has elements: its tensor's row, its first element and how many it has."""
    rows = tensors.tolist()
    for number, start in chunks.tolist():
        count = min(CHUNK, rows[number][0] - start)
        if count > 0:
            yield rows[number], start, count


def _chunk_by_chunk(given: dict[str, Any], types: dict[str, str], which: int) -> dict[str, Tensor]:
    """The new tensors (0) or their error scales (1), by chunks; 0 is the scale of what is not written."""
    own = ("param", "grad", "exp_avg", "exp_avg_sq")
    results = {name: given[name].clone() if which == 0 else torch.zeros_like(given[name]) for name in NAMES}
    for row, start, count in places(given["tensors"], given["chunks"]):
        at: dict[str, int] = dict(zip(own, row[1:5], strict=True))
        parts = {name: given[name][at[name] + start :][:count] for name in own}
        part = {**given, **parts, "step": given["step"][row[5] :][:1]}
        found = _rounded(part, types, row[6], start)[which]
        for name, result in results.items():
            result[at[name] + start :][:count] = found[name]
    return results


def multi_tensor(types: dict[str, str], **given: Any) -> tuple[Tensor, ...]:
    """The arguments after the step of the tensors in them."""
    if _overflow(given):
        return tuple(given[name].clone() for name in NAMES)
    return tuple(_chunk_by_chunk(given, types, 0).values())


def multi_tensor_error_scale(types: dict[str, str], **given: Any) -> dict[str, Tensor]:
    return _chunk_by_chunk(given, types, 1)

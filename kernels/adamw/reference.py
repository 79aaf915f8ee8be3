"""The meaning of adamw, in float64 on the CPU, and the moments, steps and tables of a case."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from portable.kernels.adamw.chunks import CHUNK

NAMES = ("param", "exp_avg", "exp_avg_sq")


def _update(
    param: Tensor,
    grad: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    step: Tensor,
    lr: Tensor,
    grad_scale: Tensor | None,
    *,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    maximize: bool,
) -> dict[str, Tensor]:
    g = grad if grad_scale is None else grad / grad_scale
    g = -g if maximize else g
    decayed = param - lr * weight_decay * param
    m = exp_avg + (1 - beta1) * (g - exp_avg)
    v = beta2 * exp_avg_sq + (1 - beta2) * g * g
    denominator = v.sqrt() / (1 - beta2**step).sqrt() + eps
    factor = lr / (1 - beta1**step)
    return {
        "param": decayed - factor * m / denominator,
        "exp_avg": m,
        "exp_avg_sq": v,
        # The terms that the results are made of, before they cancel.
        "param_scale": param.abs() + factor * (exp_avg.abs() + g.abs()) / denominator,
        "exp_avg_scale": exp_avg.abs() + g.abs(),
    }


def adamw(
    param: Tensor, grad: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, step: Tensor, lr: Tensor,
    grad_scale: Tensor | None, found_inf: Tensor | None,
    beta1: float, beta2: float, eps: float, weight_decay: float, maximize: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    """The parameter and both moments after the step; with stochastic rounding, what it lies around."""
    if found_inf is not None and found_inf.item() != 0:
        return param.clone(), exp_avg.clone(), exp_avg_sq.clone()
    made = _update(
        *(param, grad, exp_avg, exp_avg_sq, step, lr, grad_scale),
        beta1=beta1, beta2=beta2, eps=eps, weight_decay=weight_decay, maximize=maximize,
    )  # fmt: skip
    return tuple(made[name] for name in NAMES)


def error_scale(
    param: Tensor, grad: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, step: Tensor, lr: Tensor,
    grad_scale: Tensor | None, beta1: float, beta2: float, eps: float, weight_decay: float, maximize: bool,
) -> dict[str, Tensor]:  # fmt: skip
    made = _update(
        *(param, grad, exp_avg, exp_avg_sq, step, lr, grad_scale),
        beta1=beta1, beta2=beta2, eps=eps, weight_decay=weight_decay, maximize=maximize,
    )  # fmt: skip
    return {"param": made["param_scale"], "exp_avg": made["exp_avg_scale"]}


def places(tensors: Tensor, chunks: Tensor) -> Iterator[tuple[list[int], int, int]]:
    """Of each chunk that has elements: its tensor's row, its first element and how many it has."""
    rows = tensors.tolist()
    for number, start in chunks.tolist():
        count = min(CHUNK, rows[number][0] - start)
        if count > 0:
            yield rows[number], start, count


def _chunk_by_chunk(given: dict[str, Any], names: tuple[str, ...], made: dict[str, Tensor]) -> None:
    """Write what `_update` gives under `names` into `made`, chunk by chunk."""
    own = ("param", "grad", "exp_avg", "exp_avg_sq")
    rest = {name: value for name, value in given.items() if name not in (*own, "step", "tensors", "chunks")}
    for row, start, count in places(given["tensors"], given["chunks"]):
        p, g, m, v = (given[name][at + start :][:count] for name, at in zip(own, row[1:5], strict=True))
        found = _update(p, g, m, v, given["step"][row[5] :][:1], **rest)
        for name, result in made.items():
            at = row[1 + own.index(name)] + start
            result[at : at + count] = found[names[NAMES.index(name)]]


def multi_tensor(
    param: Tensor, grad: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, step: Tensor, lr: Tensor,
    tensors: Tensor, chunks: Tensor, grad_scale: Tensor | None, found_inf: Tensor | None,
    beta1: float, beta2: float, eps: float, weight_decay: float, maximize: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    made = {"param": param.clone(), "exp_avg": exp_avg.clone(), "exp_avg_sq": exp_avg_sq.clone()}
    given = {
        "param": param, "grad": grad, "exp_avg": exp_avg, "exp_avg_sq": exp_avg_sq, "step": step, "lr": lr,
        "tensors": tensors, "chunks": chunks, "grad_scale": grad_scale, "beta1": beta1, "beta2": beta2,
        "eps": eps, "weight_decay": weight_decay, "maximize": maximize,
    }  # fmt: skip
    if found_inf is None or found_inf.item() == 0:
        _chunk_by_chunk(given, NAMES, made)
    return tuple(made.values())


def multi_tensor_error_scale(
    param: Tensor, grad: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, step: Tensor, lr: Tensor,
    tensors: Tensor, chunks: Tensor, grad_scale: Tensor | None,
    beta1: float, beta2: float, eps: float, weight_decay: float, maximize: bool,
) -> dict[str, Tensor]:  # fmt: skip
    made = {"param": param.abs(), "exp_avg": exp_avg.abs()}
    given = {
        "param": param, "grad": grad, "exp_avg": exp_avg, "exp_avg_sq": exp_avg_sq, "step": step, "lr": lr,
        "tensors": tensors, "chunks": chunks, "grad_scale": grad_scale, "beta1": beta1, "beta2": beta2,
        "eps": eps, "weight_decay": weight_decay, "maximize": maximize,
    }  # fmt: skip
    _chunk_by_chunk(given, ("param_scale", "exp_avg_scale"), made)
    return made


def derived(axes: dict[str, int], bits: Any) -> dict[str, Tensor]:
    """Second moments of many sizes, zeros among them; steps from the first to the ten thousandth; a learning
    rate from 2^-10 to 1; scales of powers of two; in one case of four an overflow was found."""

    def below(bound: int, count: int = 1) -> Tensor:
        return torch.from_numpy(bits.below(bound, count))

    n, steps = axes["N"], axes.get("Q", 1)
    size = torch.exp2(below(24, n).double() - 20)
    found = {
        "exp_avg_sq": torch.where(below(16, n) == 0, 0.0, size * torch.from_numpy(bits.uniform(n))),
        "step": 1 + torch.where(below(2, steps) == 0, below(10, steps), below(10000, steps)).double(),
        "lr": torch.exp2(-below(11).double()) * (1 + torch.from_numpy(bits.uniform(1))) / 2,
        "grad_scale": torch.exp2(below(8).double() - 4),
        "found_inf": (below(4) == 3).double(),
    }
    return found | (_tables(axes, below) if "R" in axes else {})


def _tables(axes: dict[str, int], below: Any) -> dict[str, Tensor]:
    """Tensors that share the N elements of each argument, in an order of its own in each; some are cut short,
    so that elements are left over. In half of the cases they begin at multiples of 16 bytes."""
    n, count = axes["N"], axes["R"]
    unit = 8 if int(below(2)) else 1
    cuts = (below(n // unit + 1, count - 1) * unit).sort().values
    sizes = torch.diff(torch.cat([torch.tensor([0]), cuts, torch.tensor([n])]))
    orders = [below(1 << 62, count).argsort() for _ in range(3)]
    # grad's is that of param, as where gradients are views of one buffer
    starts = {}
    for name, order in zip(("param", "exp_avg", "exp_avg_sq"), orders, strict=True):
        start = torch.empty_like(sizes)
        start[order] = sizes[order].cumsum(0) - sizes[order]
        starts[name] = start
    own = (sizes - below(4, count) * (below(3, count) == 0)).clamp(min=0)
    table = torch.stack(
        [own, starts["param"], starts["param"], starts["exp_avg"], starts["exp_avg_sq"],
         below(axes["Q"], count), below(1 << 20, count)], 1,
    )  # fmt: skip
    work = [(row, start) for row, size in enumerate(own.tolist()) for start in range(0, size, CHUNK)]
    work += [(0, 1 << 30)] * (axes["C"] - len(work))  # nothing to do
    order = below(1 << 62, len(work)).argsort()
    return {"tensors": table, "chunks": torch.tensor(work).reshape(-1, 2)[order][: axes["C"]]}

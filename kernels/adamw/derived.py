"""The second moments, steps, scales and tables of a case."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from portable.kernels.adamw.chunks import CHUNK


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

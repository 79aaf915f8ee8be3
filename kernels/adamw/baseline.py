"""What a user of torch alone would call: the baselines of adamw's throughput, and what their inputs are."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from portable.kernels.adamw.chunks import CHUNK


def _fused(own: tuple[list[Tensor], ...], steps: list[Tensor], given: dict[str, Any]) -> None:
    update: Any = torch._fused_adamw_  # pyright: ignore[reportPrivateImportUsage]
    update(
        *own, [], steps, lr=given["lr"], beta1=given["beta1"], beta2=given["beta2"],
        weight_decay=given["weight_decay"], eps=given["eps"], amsgrad=False, maximize=given["maximize"],
        grad_scale=given["grad_scale"], found_inf=given["found_inf"],
    )  # fmt: skip


def adamw(
    param: Tensor, grad: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, step: Tensor, lr: Tensor,
    grad_scale: Tensor | None = None, found_inf: Tensor | None = None, **params: Any,
) -> None:  # fmt: skip
    """torch's fused AdamW of one tensor; it takes no tensors of different dtypes."""
    params |= {"lr": lr.reshape(()), "grad_scale": grad_scale, "found_inf": found_inf}
    _fused(([param], [grad], [exp_avg], [exp_avg_sq]), [step.reshape(())], params)


def adamw_multi_tensor(
    param: Tensor, grad: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, step: Tensor, lr: Tensor,
    tensors: Tensor, chunks: Tensor, grad_scale: Tensor | None = None, found_inf: Tensor | None = None,
    **params: Any,
) -> None:  # fmt: skip
    """torch's fused AdamW of as many tensors of one size."""
    count = len(tensors)
    params |= {"lr": lr.reshape(()), "grad_scale": grad_scale, "found_inf": found_inf}
    own = tuple(list(each.view(count, -1)) for each in (param, grad, exp_avg, exp_avg_sq))
    _fused(own, list(step), params)


def derived(given: dict[str, Tensor], facts: dict[str, Any]) -> dict[str, Tensor]:
    """Step 1000 at a learning rate of 0.001; of a table, tensors of one size after one another."""
    device = given["param"].device
    n, count = facts["N"], facts.get("R", 1)
    found = {
        "exp_avg_sq": torch.rand(n, device=device).to(getattr(torch, facts["S"])),
        "step": torch.full((facts.get("Q", 1),), 1000.0, device=device),
        "lr": torch.full((1,), 1e-3, device=device),
    }
    if "R" not in facts:
        return found
    size = n // count
    first = torch.arange(count, device=device) * size
    row = torch.arange(count, device=device)
    same = torch.full_like(first, size)
    found["tensors"] = torch.stack([same, first, first, first, first, row, row], 1)
    each = -(-size // CHUNK)
    chunk = torch.arange(facts["C"], device=device)
    found["chunks"] = torch.stack([chunk // each % count, chunk % each * CHUNK], 1).int()
    return found

"""Exact answers of the quantiser of columns: those of rows, whose x it gets transposed."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from portable.kernels.quantize_fp8 import probes


def _of_columns(probe: Any) -> Any:
    @functools.wraps(probe)
    def answer(call: probes.Call, dtype: torch.dtype, device: torch.device) -> bool:
        def transposed(given: dict[str, Any]) -> tuple[Tensor, ...]:
            return call({**given, "x": given["x"].mT.contiguous()})

        return probe(transposed, dtype, device)

    return answer


def own_column(call: probes.Call, dtype: torch.dtype, device: torch.device) -> bool:
    """column j of a matrix of 2^j has the scale of 2^j alone, in either matrix of two, and row j of q"""
    exponents = torch.arange(24) - 12
    signs = 1 - 2 * (torch.arange(40) % 3 == 0).float()
    x = torch.stack(
        [signs[:, None] * torch.exp2(exponents.float()), signs[:, None] * torch.exp2(-exponents.float())]
    )
    q, scale = call({"x": x.to(dtype).to(device), "dtype": torch.float8_e5m2, "power_of_2": True})
    wanted = torch.stack([exponents, -exponents])[..., None] - 15
    same = torch.equal(scale.cpu().log2(), wanted.float())
    return same and torch.equal(q.cpu().float(), (2.0**15 * signs).expand(2, 24, 40))


PROBES = (*map(_of_columns, probes.PROBES), own_column)

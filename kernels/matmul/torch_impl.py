"""matmul through torch: any device, any floating dtype."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from portable.kernels._lib.torch_products import wide_sums


@contextmanager
def _float32_products(device: torch.device, precision: str) -> Iterator[None]:
    """float32 products of the given precision, whatever the process's global setting of torch."""
    cpu = device.type == "cpu"
    backends = torch.backends
    setting = backends.mkldnn.matmul if cpu else backends.cuda.matmul  # pyright: ignore[reportAttributeAccessIssue]
    wanted = "tf32" if precision == "tf32" and not cpu else "ieee"
    before = setting.fp32_precision
    if before == wanted or (before == "none" and wanted == "ieee"):
        yield
        return
    setting.fp32_precision = wanted
    try:
        yield
    finally:
        setting.fp32_precision = before


def matmul(a: Tensor, b: Tensor, *, precision: str = "ieee") -> Tensor:
    """c = a @ b over the last two dimensions; leading dimensions broadcast."""
    if a.device.type == "cpu" and a.element_size() == 2:
        # torch's own 16-bit products on the CPU flush subnormal results to zero (seen 2026-11-21)
        return torch.matmul(a.float(), b.float()).to(a.dtype)
    if a.element_size() == 2:
        with wide_sums(a.dtype):
            return torch.matmul(a, b)
    if a.dtype != torch.float32:
        return torch.matmul(a, b)
    with _float32_products(a.device, precision):
        return torch.matmul(a, b)

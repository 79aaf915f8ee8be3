"""Settings of torch's own products, for the implementations that run through torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def wide_sums(dtype: torch.dtype) -> Iterator[None]:
    """On a GPU products of this 16-bit type are added up in float32 to the end, within the block: cuBLAS may
    round the parts of a long sum to 16 bits before it adds them (seen 2026-11-21 on an H200: a bfloat16
    product of 3 x 3 x 65537 was 2.4 times the bound off). The setting is the process's."""
    setting = torch.backends.cuda.matmul
    name = f"allow_{'fp16' if dtype == torch.float16 else 'bf16'}_reduced_precision_reduction"
    before = getattr(setting, name)
    setattr(setting, name, False)
    try:
        yield
    finally:
        setattr(setting, name, before)


@contextmanager
def float32_products(device: torch.device, precision: str = "ieee") -> Iterator[None]:
    """float32 products of the given precision, "ieee" or "tf32", whatever the process's setting of torch."""
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

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

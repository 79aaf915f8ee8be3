"""Programmatic dependent launch (PDL) in Triton kernels, as _lib/ptx/pdl.h has it for CUDA C++."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import cuda

from portable.plan import Device

MOST_BLOCKS = tl.constexpr(2048)
"""The largest grid whose blocks let the next kernel start before they end: pdl.h says why."""


@triton.jit
def enter_pdl(PDL: tl.constexpr):
    """Called before the kernel reads or writes global memory."""
    if PDL:
        blocks = tl.num_programs(0).to(tl.int64) * tl.num_programs(1) * tl.num_programs(2)
        if blocks <= MOST_BLOCKS:
            cuda.gdc_launch_dependents()
        cuda.gdc_wait()


def supports_pdl(device: Device) -> bool:
    """Whether a kernel's `pdl` has a meaning there: on Hopper."""
    return device.arch.startswith("sm_9")


def pdl_constant(device: Device) -> tuple[str, bool]:
    """The constant PDL of a kernel that is launched so wherever it can be."""
    return "PDL", supports_pdl(device)

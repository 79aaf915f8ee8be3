"""A row norm in Triton whose sum over the lanes takes five steps: right on waves of 32, wrong on waves of 64.

Each lane adds up every WAVE-th element of the row, then the lanes exchange their sums as a butterfly over
lane numbers that differ in one bit. A wave of 64 needs a sixth step: without it, each half norms its own
elements by its own sum.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl


@triton.jit
def other_lane(value, DISTANCE: tl.constexpr):
    """The value of the lane whose number differs in one bit, within 32 lanes."""
    return tl.inline_asm_elementwise(
        f"ds_swizzle_b32 $0, $1 offset:swizzle(SWAP,{DISTANCE})\ns_waitcnt lgkmcnt(0)",
        "=v,v", [value], dtype=tl.float32, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit
def rms_norm_rows(x_ptr, weight_ptr, y_ptr, length, eps, WAVE: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * length
    lane = tl.arange(0, WAVE)
    squares = tl.zeros((WAVE,), tl.float32)
    for start in range(0, length, WAVE):
        x = tl.load(x_ptr + row + start + lane, start + lane < length, other=0.0).to(tl.float32)
        squares += x * x
    squares += other_lane(squares, 1)
    squares += other_lane(squares, 2)
    squares += other_lane(squares, 4)
    squares += other_lane(squares, 8)
    squares += other_lane(squares, 16)
    scale = tl.rsqrt(squares / length + eps)
    for start in range(0, length, WAVE):
        inside = start + lane < length
        x = tl.load(x_ptr + row + start + lane, inside, other=0.0).to(tl.float32)
        weight = tl.load(weight_ptr + start + lane, inside, other=0.0).to(tl.float32)
        tl.store(y_ptr + row + start + lane, (x * scale * weight).to(y_ptr.dtype.element_ty), inside)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """y = x * rsqrt(mean(x^2) + eps) * weight over the last dimension."""
    x, length = x.contiguous(), x.shape[-1]
    driver: Any = triton.runtime.driver.active  # without types
    wave = driver.get_current_target().warp_size
    y = torch.empty_like(x)
    if x.numel():
        rows = x.numel() // length
        launch: Any = rms_norm_rows[(rows,)]  # its types are the kernel's and know no num_warps
        launch(x, weight.contiguous(), y, length, eps, WAVE=wave, num_warps=1)
    return y

"""A product of 4-bit codes less their zero points, two products a step: this package's `int4_mm`, reduced.

Triton 3.8.0 on gfx942: the loop comes to a barrier with a wave's stores to LDS in flight, and another wave
reads them behind it. Without the three arguments that are not used there is no fault: the kernel's arguments
are then loaded in another way.
"""

import pytest
import torch
import triton
import triton.language as tl


@triton.jit
def product(
    x_ptr, unused_1, w_ptr, unused_2, z_ptr, unused_3, y_ptr, z_stride, groups,
    ROWS: tl.constexpr, COLS: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    rows, cols, k = tl.arange(0, ROWS), tl.arange(0, COLS), tl.arange(0, K)
    x_ptrs = x_ptr + (cols * groups * K)[None, :] + k[:, None]
    w_ptrs = w_ptr + (rows * groups * K)[:, None] + k[None, :]
    z_ptrs = z_ptr + rows * z_stride
    total = tl.zeros((ROWS, COLS), tl.float32)
    for group in range(0, groups):
        x = tl.load(x_ptrs + group * K)
        w = tl.load(w_ptrs + group * K)
        zero = tl.load(z_ptrs + group).to(tl.bfloat16)[:, None]
        codes = w.to(tl.int16)
        low = (codes & 15).to(tl.bfloat16) - zero
        high = (codes >> 4).to(tl.bfloat16) - zero
        part = tl.dot(low, x)
        total += tl.dot(high, x, part)
    tl.store(y_ptr + cols[None, :] * ROWS + rows[:, None], total)


@pytest.mark.parametrize("groups", [3, 5])
def test_products_of_codes_are_exact(groups):
    size, k = 64, 16
    x = torch.randint(-3, 4, (size, groups * k), device="cuda").bfloat16()
    w = torch.randint(0, 256, (size, groups * k), dtype=torch.uint8, device="cuda")
    zeros = torch.randint(0, 16, (size, groups), dtype=torch.uint8, device="cuda")
    y = torch.full((size, size), float("nan"), device="cuda")
    product[(1,)](x, y, w, y, zeros, y, y, groups, groups, size, size, k, num_warps=4, num_stages=2)
    codes = w.cpu().int().view(size, groups, k)
    both = (codes % 16 + codes // 16 - 2 * zeros.cpu().int()[:, :, None]).view(size, -1)
    assert torch.equal(y.cpu().double(), x.cpu().double() @ both.double().T)

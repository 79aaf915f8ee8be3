"""A float32 matrix product in tiles of 128x128x64, 8 warps and two stages, which AMD's block ping-pong takes.

Triton 3.6 to 3.8 on gfx942, where ping-pong is on by default: the loop comes to a barrier before its reads
of LDS are waited for, and other waves store the next tile there. Others saw it on an MI300X (triton issue
11696).
"""

import pytest
import torch
import triton
import triton.language as tl


@triton.jit
def product(a_ptr, b_ptr, c_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
            BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):  # fmt: skip
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, K, BLOCK_K):
        inner = k + tl.arange(0, BLOCK_K)
        a = tl.load(a_ptr + (rows % M)[:, None] * K + inner[None, :])
        b = tl.load(b_ptr + inner[:, None] * N + (cols % N)[None, :])
        acc = tl.dot(a, b, acc, input_precision="ieee")
    tl.store(c_ptr + rows[:, None] * N + cols[None, :], acc)


@pytest.mark.parametrize("pingpong", [True, False])
def test_products_of_integers_are_exact(pingpong):
    M = N = 128
    K = 256
    a = torch.randint(-3, 4, (M, K), device="cuda").float()
    b = torch.randint(-3, 4, (K, N), device="cuda").float()
    c = torch.full((M, N), float("nan"), device="cuda")
    product.device_caches.clear()
    with triton.knobs.amd.scope():
        triton.knobs.amd.use_block_pingpong = pingpong
        product[(1, 1)](a, b, c, M, N, K, 128, 128, 64, num_warps=8, num_stages=2)
    assert torch.equal(c.cpu(), a.cpu() @ b.cpu())

"""A bfloat16 matrix product in tiles of 256x256x32, 8 warps and two stages, with AMD's block ping-pong.

Triton 3.6 and 3.7 on gfx950 with TRITON_HIP_USE_BLOCK_PINGPONG=1. The loop lacks the wait of
triton_float32_pingpong.py. Where waves happen to run one after the other, nearly every element is wrong all
the same: the pass cuts the tile's K = 32 into two slices of 16 (`ttg.memdesc_subslice` in the TTGIR), and the
instruction, 16x16x32, takes 32.
"""

import pytest
import torch
import triton
import triton.language as tl


@triton.jit
def product(
    a_ptr, b_ptr, c_ptr, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr
):
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, K, BLOCK_K):
        inner = k + tl.arange(0, BLOCK_K)
        a_mask = (rows[:, None] < M) & (inner[None, :] < K)
        b_mask = (inner[:, None] < K) & (cols[None, :] < N)
        a = tl.load(a_ptr + rows[:, None] * K + inner[None, :], mask=a_mask, other=0.0)
        b = tl.load(b_ptr + inner[:, None] * N + cols[None, :], mask=b_mask, other=0.0)
        acc = tl.dot(a, b, acc)
    mask = (rows[:, None] < M) & (cols[None, :] < N)
    tl.store(c_ptr + rows[:, None] * N + cols[None, :], acc.to(c_ptr.dtype.element_ty), mask=mask)


@pytest.mark.parametrize("M, N, K", [(256, 256, 64), (264, 136, 64), (264, 136, 72), (256, 264, 72)])
def test_products_of_integers_are_exact(M, N, K):
    a = torch.randint(-3, 4, (M, K), device="cuda").bfloat16()
    b = torch.randint(-3, 4, (K, N), device="cuda").bfloat16()
    c = torch.full((M, N), float("nan"), dtype=torch.bfloat16, device="cuda")
    grid = (triton.cdiv(M, 256), triton.cdiv(N, 256))
    with triton.knobs.amd.scope():
        triton.knobs.amd.use_block_pingpong = True
        product[grid](a, b, c, M, N, K, 256, 256, 32, num_warps=8, num_stages=2, matrix_instr_nonkdim=16)
    expected = (a.cpu().double() @ b.cpu().double()).bfloat16()
    wrong = (c.cpu() != expected).sum().item()
    assert wrong == 0, f"{wrong} of {M * N} elements"

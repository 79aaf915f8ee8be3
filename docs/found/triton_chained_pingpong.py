"""Attention: two products after each other in a loop, blocks of 128 queries, 32 keys, 8 warps, four stages.

Triton 3.6.0 to 3.9.0 on gfx942 by default: block ping-pong has four of the eight waves run a barrier behind
the other four. What a step's softmax passes between waves through LDS is then written by one half while the
other may still read the step before. With two or three stages, or TRITON_HIP_USE_BLOCK_PINGPONG=0, there is
no fault.
"""

import pytest
import torch
import triton
import triton.language as tl


@triton.jit
def attention(
    q_ptr, k_ptr, v_ptr, o_ptr, keys, D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tl.arange(0, D)
    q = tl.load(q_ptr + rows[:, None] * D + cols[None, :])
    most = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, D), tl.float32)
    for start in range(0, keys, BLOCK_N):
        lines = start + tl.arange(0, BLOCK_N)
        k = tl.load(k_ptr + lines[None, :] * D + cols[:, None])
        v = tl.load(v_ptr + lines[:, None] * D + cols[None, :])
        scores = tl.dot(q, k)
        higher = tl.maximum(most, tl.max(scores, 1))
        p = tl.exp2(scores - higher[:, None])
        alpha = tl.exp2(most - higher)
        total = total * alpha + tl.sum(p, 1)
        acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None])
        most = higher
    tl.store(o_ptr + rows[:, None] * D + cols[None, :], (acc / total[:, None]).to(o_ptr.dtype.element_ty))


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_attention(stages):
    torch.manual_seed(0)
    q, k, v = (torch.randn(n, 128, device="cuda", dtype=torch.bfloat16) for n in (128, 256, 256))
    o = torch.full_like(q, float("nan"))
    attention[(1,)](q, k, v, o, 256, 128, 128, 32, num_warps=8, num_stages=stages)
    scores = (q.cpu().double() @ k.cpu().double().T) * 0.6931471805599453
    expected = torch.softmax(scores, -1) @ v.cpu().double()
    assert (o.cpu().double() - expected).abs().max() < 0.05

"""Attention of rows that are no multiple of its blocks: 128 queries, 32 keys, 8 warps, four stages, bfloat16.

Triton 3.9.0 on gfx1100: at the head of the loop the fence waits for loads and stores of memory and not for
reads of LDS, whose wait stands behind the barrier. What these read another wave may have overwritten.
"""

import pytest
import torch
import triton
import triton.language as tl


@triton.jit
def attention(
    q_ptr, k_ptr, v_ptr, o_ptr, length, scale,
    D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1) * length * D
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tl.arange(0, D)
    q = tl.load(q_ptr + head + rows[:, None] * D + cols[None, :], mask=rows[:, None] < length, other=0.0)
    largest = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, D), tl.float32)
    end = tl.minimum((tl.program_id(0) + 1) * BLOCK_M, length) if CAUSAL else length
    for start in range(0, end, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        k = tl.load(k_ptr + head + keys[None, :] * D + cols[:, None], mask=keys[None, :] < length, other=0.0)
        v = tl.load(v_ptr + head + keys[:, None] * D + cols[None, :], mask=keys[:, None] < length, other=0.0)
        seen = keys[None, :] < length
        if CAUSAL:
            seen = seen & (keys[None, :] <= rows[:, None])
        scores = tl.where(seen, tl.dot(q, k) * (scale * 1.4426950408889634), -float("inf"))
        higher = tl.maximum(largest, tl.max(scores, 1))
        powers = tl.exp2(scores - higher[:, None])
        shrink = tl.exp2(largest - higher)
        total = total * shrink + tl.sum(powers, 1)
        acc = tl.dot(powers.to(v.dtype), v, acc * shrink[:, None])
        largest = higher
    out = (acc / total[:, None]).to(o_ptr.dtype.element_ty)
    tl.store(o_ptr + head + rows[:, None] * D + cols[None, :], out, mask=rows[:, None] < length)


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_attention(stages):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 150, 128, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    o = torch.full_like(q, float("nan"))
    attention[(2, 2)](
        q,
        k,
        v,
        o,
        150,
        128**-0.5,
        D=128,
        BLOCK_M=128,
        BLOCK_N=32,
        CAUSAL=False,
        num_warps=8,
        num_stages=stages,
    )
    scores = q.cpu().double() @ k.cpu().double().mT * 128**-0.5
    assert (o.cpu().double() - scores.softmax(-1) @ v.cpu().double()).abs().max() < 0.03

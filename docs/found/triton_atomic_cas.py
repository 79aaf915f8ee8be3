"""tl.atomic_cas of a block smaller than the program's threads, whose result is used.

Triton 3.6 and 3.7 on gfx9: all threads write the result to LDS, those that hold a copy of an element too. The
first exchange wins, so the copies hold another result than the first, and which one stays is open.
"""

import pytest
import torch
import triton
import triton.language as tl


@triton.jit
def increment(value_ptr, former_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    expected = tl.load(value_ptr + at)
    former = tl.atomic_cas(value_ptr + at, expected, expected + 1.0, sem="relaxed")
    tl.store(former_ptr + at, former)


@pytest.mark.parametrize("block", [64, 128, 256])
def test_a_block_smaller_than_the_program(block):
    value, former = torch.arange(float(block), device="cuda"), torch.empty(block, device="cuda")
    before = value.clone()
    increment[(1,)](value, former, BLOCK=block, num_warps=4)
    assert torch.equal(former, before) and torch.equal(value, before + 1)

"""Triton's `test_dot[...-add-cols-...]` reads a row that its kernel overwrites, with no barrier between.

Every warp adds row 0 of `Z` to its rows of the result, and the warp that holds row 0 stores there. A late one
adds the result instead. `triton/python/test/unit/language/test_core.py`, commit 03d956b4 (2026-02-09).

    pytest --gpu gfx1100,gfx1201 docs/found/triton_dot_add_cols.py

It passes with one warp, with another matrix for the result, and on gfx942 and gfx950.
"""

import pytest
import torch
import triton
import triton.language as tl


@triton.jit
def add_row_kernel(X, Y, Z, Out, N: tl.constexpr):
    m, n = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :]
    z = tl.dot(tl.load(X + m * N + n), tl.load(Y + m * N + n), input_precision="bf16x6")
    z += tl.load(Z + tl.arange(0, N))[None, :]
    tl.store(Out + m * N + n, z)


@pytest.mark.parametrize("warps, in_place", [(1, True), (4, False), (4, True)])
def test_add_row(warps, in_place):
    torch.manual_seed(0)
    x, y, z = (torch.randn(32, 32, device="cuda") for _ in range(3))
    wanted = x.cpu() @ y.cpu() + z.cpu()[0]
    out = z if in_place else torch.empty_like(z)
    add_row_kernel[(1,)](x, y, z, out, N=32, num_warps=warps)
    torch.testing.assert_close(out.cpu(), wanted, rtol=1e-4, atol=1e-4)

"""gfx950's MFMA with scales, by Triton's own layouts of operands and scales: `tl.dot_scaled` against float64.

Of 8-bit operands a lane holds two runs of 16 values of K, 64 (32x32x64: 32) apart; a scale is that of 32
values side by side, which lie in the lanes of two groups.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton
import triton.language as tl

import portable

jit: Any = triton.jit
M, N, K = 32, 128, 128
TYPES = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


@jit
def scaled_kernel(
    a_ptr, scale_ptr, b_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, TYPE: tl.constexpr
):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    a = tl.load(a_ptr + m[:, None] * K + k[None, :])
    b = tl.load(b_ptr + k[:, None] + n[None, :] * K)
    scales = tl.load(scale_ptr + m[:, None] * (K // 32) + tl.arange(0, K // 32)[None, :])
    out = tl.dot_scaled(a, scales, TYPE, b, None, "e4m3")
    tl.store(out_ptr + m[:, None] * N + n[None, :], out)


@pytest.mark.slow
@pytest.mark.parametrize("size", [16, 32])
@pytest.mark.parametrize("type_name", ["e4m3", "e5m2"])
def test_a_scale_is_that_of_32_values_side_by_side(type_name, size):
    torch.manual_seed(0)
    a, b = (torch.randint(20, 40, (rows, K), dtype=torch.uint8) for rows in (M, N))
    scales = torch.randint(124, 131, (M, K // 32), dtype=torch.uint8)
    out = torch.empty(M, N)
    with portable.emulated("gfx950"):
        code = scaled_kernel[(1,)](
            a, scales, b, out, M, N, K, type_name, num_warps=4, matrix_instr_nonkdim=size
        )
    assert f"v_mfma_scale_f32_{size}x{size}x" in code.asm["amdgcn"]
    factors = (2.0 ** (scales.double() - 127)).repeat_interleave(32, 1)
    wanted = (a.view(TYPES[type_name]).double() * factors) @ b.view(TYPES["e4m3"]).double().T
    torch.testing.assert_close(out.double(), wanted, rtol=1e-6, atol=0)

"""qk_norm_rope against torch's norm and rope."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import portable


@pytest.mark.parametrize("interleaved", [False, True])
def test_it_is_rope_of_the_norm_and_so_is_its_gradient(interleaved):
    leaves = [torch.randn(2, 5, heads, 24, dtype=torch.float64) for heads in (6, 2)]
    leaves += [torch.randn(24, dtype=torch.float64) for _ in "qk"]
    angle, positions = 7 * torch.rand(11, 8, dtype=torch.float64), torch.randint(11, (2, 5))
    q, k, *weights = (each.requires_grad_() for each in leaves)
    options = {"interleaved": interleaved}
    got = portable.qk_norm_rope(q, k, *weights, angle.cos(), angle.sin(), positions, eps=1e-3, **options)
    normed = (F.rms_norm(x, (24,), w, 1e-3) for x, w in zip((q, k), weights, strict=True))
    expected = portable.rope(*normed, angle.cos(), angle.sin(), positions, **options)
    torch.testing.assert_close(got, expected, atol=1e-13, rtol=0)
    upstream = [torch.randn_like(each) for each in got]
    one, other = (torch.autograd.grad(each, leaves, upstream) for each in (got, expected))
    torch.testing.assert_close(one, other, atol=1e-11, rtol=0)

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


@pytest.mark.parametrize("wanted", ["q", "k", "q_weight", "k_weight", "q k", "q k_weight"])
@pytest.mark.parametrize("of", [0, 1, None])
def test_only_the_gradients_that_are_wanted(wanted, of):
    """Of one result or both; what does not depend on it has none."""
    names = ("q", "k", "q_weight", "k_weight")
    leaves = [torch.randn(1, 3, heads, 8, dtype=torch.float64) for heads in (4, 2)]
    leaves += [torch.randn(8, dtype=torch.float64) for _ in "qk"]
    given = {name: x.requires_grad_(name in wanted.split()) for name, x in zip(names, leaves, strict=True)}
    some = [x for x in given.values() if x.requires_grad]
    angle = torch.rand(3, 4, dtype=torch.float64)
    got = portable.qk_norm_rope(*leaves, angle.cos(), angle.sin())
    normed = (F.rms_norm(given[n], (8,), given[f"{n}_weight"], 1e-6) for n in "qk")
    expected = portable.rope(*normed, angle.cos(), angle.sin())
    found = []
    for results in (got, expected):
        kept = [each for each in (results if of is None else [results[of]]) if each.requires_grad]
        upstream = [torch.arange(each.numel(), dtype=each.dtype).view_as(each) for each in kept]
        found.append(
            torch.autograd.grad(kept, some, upstream, materialize_grads=True, allow_unused=True)
            if kept
            else ()
        )
    if found[1]:
        torch.testing.assert_close(*found)

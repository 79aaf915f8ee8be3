"""What is timed beside attention gets operands that mean the same."""

from __future__ import annotations

import pytest
import torch

from portable.kernels.attention.semantics import torch_impl
from portable.kernels.attention.semantics.baseline import flash_operands


@pytest.mark.parametrize(("d", "e"), [(64, 64), (192, 128), (40, 56)])
@pytest.mark.parametrize("leading", [(), (3,), (2, 1, 2)])
def test_flash_gets_four_dimensions_and_heads_of_one_size(d, e, leading):
    q, k, v = (torch.randn(*leading, h, n, w) for h, n, w in ((4, 9, d), (2, 7, d), (2, 7, e)))
    params = {"causal": False, "window_left": None, "window_right": None, "softcap": None}
    given = flash_operands(q, k, v)
    assert {x.dim() for x in given} == {4} and len({x.shape[-1] for x in given}) == 1
    assert {x.shape[1] for x in given} == {4}
    want, want_lse = torch_impl.attention(q, k, v, scale=d**-0.5, **params)
    o, lse = torch_impl.attention(*given, scale=d**-0.5, **params)
    torch.testing.assert_close(o[..., :e].reshape(want.shape), want)
    torch.testing.assert_close(lse.reshape(want_lse.shape), want_lse)

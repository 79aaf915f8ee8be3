"""Attention in float32 on emulated GPUs, heads below 32 among them: results, the tiles, what is refused."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import portable
from portable.kernels.attention.triton.plan import FLOAT32_TILES
from portable.plan import Rejected
from tests.kernels.attention.triton.test_plans import AMPERE, CDNA, HOPPER, RDNA3, plan_or_rejection
from tests.kernels.plan_parts import accepted, constants


def heads(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("arch", ["gfx942", "gfx1100"])
@pytest.mark.parametrize("size", [8, 24, 64])
def test_both_passes_are_torch_s(emulate, arch, size):
    emulate(arch)
    given = [heads(1, h, n, size, seed=n) for h, n in ((2, 34), (1, 51), (1, 51))]
    leaves = [each.clone().requires_grad_() for each in given]
    with portable.using(attention="triton", attention_backward="triton"):
        o = portable.attention(*leaves)
        found = torch.autograd.grad(o.square().sum(), leaves)
    wide = [each.double().requires_grad_() for each in given]
    expected = F.scaled_dot_product_attention(wide[0], wide[1], wide[2], enable_gqa=True)
    wanted = torch.autograd.grad(expected.square().sum(), wide)
    for got, right in zip((o, *found), (expected, *wanted), strict=True):
        torch.testing.assert_close(got, right.float(), rtol=1e-5, atol=1e-5)


def test_the_lse_of_a_sink_alone_is_the_sink(emulate):
    """Not a power of two's logarithm times two constants."""
    emulate("gfx942")
    q, k = heads(1, 2, 3, 16, seed=0), heads(1, 2, 0, 16, seed=1)
    sinks = torch.tensor([15.0, -7.0])
    with portable.using(attention="triton"):
        _, lse = portable.attention(q, k, k, sinks=sinks, return_lse=True)
    assert torch.equal(lse, sinks[:, None].expand(1, 2, 3))


def test_a_query_that_sees_nan_alone_has_an_lse_of_nan(emulate):
    """Not of the sink, as one that sees no key: it has no maximum either (H100, 2026-11-26)."""
    emulate("gfx942")
    q, k = heads(1, 1, 3, 16, seed=0), heads(1, 1, 3, 16, seed=1)
    k[0, 0, 0] = float("nan")
    with portable.using(attention="triton"):
        _, lse = portable.attention(q, k, k, sinks=torch.ones(1), window=(0, 0), return_lse=True)
    assert lse.isnan().tolist() == [[[True, False, False]]]


@pytest.mark.parametrize("device", [HOPPER, CDNA, RDNA3])
@pytest.mark.parametrize("backward", [False, True])
def test_products_are_exact_and_loads_through_pointers(device, backward):
    for launch in accepted(plan_or_rejection(device=device, backward=backward, dtype="float32")).launches:
        values = constants(launch)
        assert values.get("PRECISION", "ieee") == "ieee" and values.get("q") is None


@pytest.mark.parametrize(
    ("device", "given", "words"),
    [
        (RDNA3, {"D": 128}, "heads of 128"),
        (RDNA3, {"D": 64, "backward": True, "bias": True}, "with bias"),
        (HOPPER, {"D": 200, "backward": True}, "heads of 200"),
        (AMPERE, {"D": 64}, "sm_80"),
    ],
)
def test_what_would_spill_is_refused(device, given, words):
    answer = plan_or_rejection(device=device, dtype="float32", **given)
    assert isinstance(answer, Rejected) and words in answer.reason
    assert not isinstance(plan_or_rejection(device=device, dtype="bfloat16", **{**given, "D": 64}), Rejected)


def test_wider_heads_come_later():
    for kernels in FLOAT32_TILES.values():
        for tiles in kernels.values():
            assert [each.columns for each in tiles] == sorted(each.columns for each in tiles)

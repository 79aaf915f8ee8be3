"""`portable.testing.assert_within`: other people's results held to an op's bound."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import portable
from portable import errors
from portable.testing import assert_within


@pytest.fixture
def x():
    return torch.randn(5, 7, 64, generator=torch.Generator().manual_seed(0)).bfloat16()


def test_torch_s_own_results_are_within(x):
    wide, weight = x.float(), torch.randn(64)
    assert_within(torch.softmax(wide, 1).bfloat16(), "softmax", x, dim=1)
    assert_within(torch.softmax(wide, -1).bfloat16(), "softmax", x)
    assert_within(F.rms_norm(wide, (64,), eps=1e-5).bfloat16(), "rms_norm", x, eps=1e-5)
    assert_within(
        F.layer_norm(wide, (64,), weight, weight, 1e-6), "layer_norm", wide, weight, weight, eps=1e-6
    )
    q = x.unflatten(-1, (2, 32)).movedim(1, 2)
    o = F.scaled_dot_product_attention(*[q.float()] * 3, is_causal=True).bfloat16()
    assert_within(o, "attention", q, q, q, causal=True)  # the lse may be left out
    o, lse = torch.ops.portable.attention(q, q, q, None, None, causal=True)
    assert_within([o, lse], "attention", q, q, q, causal=True)


def test_products_of_vectors_and_of_torch_s_form(x):
    a, b = torch.randn(3, 64), torch.randn(64, 4)
    assert_within(a @ b, "matmul", a, b)
    assert_within(a @ b, "matmul", input=a, other=b)
    assert_within(a[0] @ b, "matmul", a[0], b)
    assert_within(a @ b[:, 0], "matmul", a, b[:, 0])
    with pytest.raises(AssertionError, match=r"matmul, output c: Fail\.value; 4 of 4 elements wrong"):
        assert_within(a[1] @ b, "matmul", a[0], b)


def test_backward_ops_and_indices(x):
    y = torch.softmax(x.float(), -1).bfloat16()
    dy = torch.randn_like(y)
    expected = torch.ops.aten._softmax_backward_data(dy.double(), y.double(), -1, torch.float64).bfloat16()
    assert_within(expected, "softmax_backward", dy, y)
    logits, target = torch.randn(6, 40), torch.randint(40, (6,))
    assert_within(F.cross_entropy(logits, target, reduction="none"), "cross_entropy", logits, target)


def test_what_is_written_in_place_is_held_to_it_too():
    k, v, caches = torch.randn(3, 2, 8), torch.randn(3, 2, 8), torch.randn(2, 4, 5, 2, 8)
    given, slots = (k, v, *caches.clone()), torch.tensor([7, -1, 0])
    portable.kv_cache_write(k, v, *caches, slots)
    assert_within(list(caches), "kv_cache_write", *given, slots)
    caches[1, 3, 2] += 1
    with pytest.raises(AssertionError, match="output v_cache: Fail"):
        assert_within(list(caches), "kv_cache_write", *given, slots)
    with pytest.raises(errors.ArgumentError, match="up to 2: k_cache, v_cache"):
        assert_within([], "kv_cache_write", *given, slots)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda y: y * 1.02, "softmax, output y: Fail.value; .* elements wrong; first wrong element"),
        (lambda y: y.float(), "Fail.dtype: got float32, expected bfloat16"),
        (lambda y: y[:-1], r"Fail.shape: got shape \(4, 7, 64\)"),
        (lambda y: torch.where(y > 0.2, float("nan"), y), "nan"),
    ],
)
def test_what_is_wrong_is_said(x, change, said):
    x = 4 * x
    y = torch.softmax(x.float(), -1).bfloat16()
    with pytest.raises(AssertionError, match=said):
        assert_within(change(y), "softmax", x)


def test_accumulation_in_bfloat16_is_not_within(x):
    wide = torch.randn(4, 4096).bfloat16()
    total = torch.zeros(4, 1, dtype=torch.bfloat16)
    for square in wide.pow(2).split(1, -1):  # rounds at every step, where torch's sums keep float32
        total += square
    scale = total.div(4096).rsqrt()
    with pytest.raises(AssertionError, match="rms_norm, output y"):
        assert_within(wide * scale, "rms_norm", wide)


def test_wrong_calls_name_the_argument(x):
    with pytest.raises(errors.UnknownOpError, match="softmax"):
        assert_within(x, "sofmax", x)
    with pytest.raises(
        errors.ArgumentError, match=r"Pass its name: .*assert_within\(actual, 'softmax', \.\.\.\)"
    ):
        assert_within(x, portable.softmax, x)
    with pytest.raises(errors.ArgumentError, match="a tensor, or up to 1: y"):
        assert_within([x, x], "softmax", x)
    with pytest.raises(errors.SignatureError, match="has no argument 'axis'"):
        assert_within(x, "softmax", x, axis=1)
    with pytest.raises(errors.ParameterError, match="dim"):
        assert_within(x, "softmax", x, dim=3)
    with pytest.raises(errors.ShapeError, match="weight"):
        assert_within(x, "rms_norm", x, torch.randn(3).bfloat16())

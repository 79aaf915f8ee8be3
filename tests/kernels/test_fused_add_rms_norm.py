"""fused_add_rms_norm beside the two ops that it joins, and its gradient where one result alone is used."""

from __future__ import annotations

import pytest
import torch

import portable

DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def rows(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.randn(shape).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_it_is_the_sum_rounded_once_and_the_norm_of_that(dtype):
    x, residual, weight = rows(dtype, 3, 257), rows(dtype, 3, 257), rows(dtype, 257)
    for settings in ({}, {"weight_offset": 1.0}, {"cast_before_weight": True, "eps": 1e-3}):
        y, total = portable.fused_add_rms_norm(x, residual, weight, **settings)
        assert torch.equal(total, x + residual)
        assert torch.equal(y, portable.rms_norm(total, weight, **settings))


def test_the_norm_is_of_the_rounded_sum():
    """256 + 1 is 256 in bfloat16: the row is constant, and so is its norm."""
    x = torch.full((1, 64), 256.0, dtype=torch.bfloat16)
    residual = torch.ones(1, 64, dtype=torch.bfloat16)
    residual[:, ::2] = 0
    y, total = portable.fused_add_rms_norm(x, residual)
    assert torch.equal(total, x)
    assert torch.equal(y, torch.ones_like(y))


def test_the_arguments_are_left_as_they_are():
    x, residual = rows(torch.bfloat16, 3, 64), rows(torch.bfloat16, 3, 64)
    before = x.clone(), residual.clone()
    y, total = portable.fused_add_rms_norm(x, residual)
    assert torch.equal(x, before[0]) and torch.equal(residual, before[1])
    assert len({each.data_ptr() for each in (x, residual, y, total)}) == 4


@pytest.mark.parametrize("used", ["both", "y", "new_residual"])
def test_a_result_that_nobody_uses_has_no_gradient(used):
    made = (rows(torch.float32, *shape).double() for shape in ((3, 17), (3, 17), (17,)))
    x, residual, weight = (each.requires_grad_() for each in made)
    dy, dtotal = torch.randn(3, 17, dtype=torch.float64), torch.randn(3, 17, dtype=torch.float64)

    def gradients(results):
        y, total = results
        of_y, of_total = (y * dy).sum(), (total * dtotal).sum()
        chosen = {"y": of_y, "new_residual": of_total, "both": of_y + of_total}[used]
        return torch.autograd.grad(chosen, (x, residual, weight), allow_unused=True)

    total = x + residual
    expected = gradients((torch.nn.functional.rms_norm(total, (17,), weight, 1e-6), total))
    got = gradients(portable.fused_add_rms_norm(x, residual, weight))
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, torch.zeros_like(weight) if other is None else other)


def test_cast_before_weight_rounds_as_llamas_modelling_code_does():
    x, weight = rows(torch.bfloat16, 64, 256), rows(torch.bfloat16, 256)
    wide = x.float()
    normalized = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
    llama = weight * normalized.to(torch.bfloat16)
    assert torch.equal(portable.rms_norm(x, weight, cast_before_weight=True), llama)
    assert not torch.equal(portable.rms_norm(x, weight), llama)

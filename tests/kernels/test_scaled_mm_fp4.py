"""portable.scaled_mm of matrices of 4 bits: MXFP4 and NVFP4, by hand and by torch's names, wrong calls."""

from __future__ import annotations

import pytest
import torch

import portable
from portable import errors

FP4 = torch.float4_e2m1fn_x2
MX, NV = "BlockWise1x32", ["BlockWise1x16", "TensorWise"]
NUMBERS = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
M, N, K = 24, 40, 272


def drawn():
    return [torch.randn(rows, K, generator=torch.Generator().manual_seed(rows)) for rows in (M, N)]


def numbers_of(q, scale, group):
    """float64 numbers of packed codes by their scales."""
    code = torch.stack([q.view(torch.uint8) & 15, q.view(torch.uint8) >> 4], -1).flatten(-2).int()
    found = (torch.where(code > 7, -1.0, 1.0) * NUMBERS[code % 8]).double()
    return found * scale.double().repeat_interleave(group, -1)[..., : found.shape[-1]]


def mx_call():
    (qa, sa), (qb, sb) = (portable.quantize_mx(each, dtype=FP4) for each in drawn())
    return (qa, qb.t(), sa, MX, sb, MX), numbers_of(qa, sa, 32) @ numbers_of(qb, sb, 32).T


def nv_call():
    (qa, sa, ga), (qb, sb, gb) = (portable.quantize_nvfp4(each) for each in drawn())
    wanted = numbers_of(qa, sa, 16) @ numbers_of(qb, sb, 16).T * ga.double() * gb.double()
    return (qa, qb.t(), [sa, ga], NV, [sb, gb], NV), wanted


@pytest.mark.parametrize("made", [mx_call, nv_call])
def test_the_product_of_what_the_codes_stand_for(made):
    call, wanted = made()
    c = portable.scaled_mm(*call, output_dtype=torch.float32)
    assert (c.shape, c.dtype) == ((M, N), torch.float32)
    torch.testing.assert_close(c.double(), wanted, rtol=1e-5, atol=1e-5)
    a, weight = drawn()
    assert 0.05 < (c - a @ weight.T).norm() / c.norm() < 0.2  # of two roundings to two bits
    bias = torch.arange(N).bfloat16()
    with_bias = portable.scaled_mm(*call, bias=bias)
    torch.testing.assert_close(with_bias.double(), wanted + bias.double(), rtol=5e-3, atol=5e-2)


def test_torch_s_own_recipes_and_row_major_b():
    kinds = getattr(torch.nn.functional, "ScalingType", None)
    for (a, b, sa, ra, sb, rb), _ in (mx_call(), nv_call()):
        c = portable.scaled_mm(a, b, sa, ra, sb, rb)
        strided = b.view(torch.uint8).contiguous().view(FP4)
        assert torch.equal(portable.scaled_mm(a, strided, sa, ra, sb, rb), c)
        if kinds is not None:
            own = [getattr(kinds, each) for each in (ra if isinstance(ra, list) else [ra])]
            assert torch.equal(portable.scaled_mm(a, b, sa, own, sb, own), c)


@pytest.mark.slow
def test_torch_compile_takes_it_whole():
    for call, _ in (mx_call(), nv_call()):
        compiled = torch.compile(portable.scaled_mm, backend="eager", fullgraph=True)
        assert torch.equal(compiled(*call), portable.scaled_mm(*call))


E4, E8 = torch.float8_e4m3fn, torch.float8_e8m0fnu


@pytest.mark.parametrize(
    "error, says, made, change",
    [
        (errors.DtypeError, "mat_b' has dtype torch.float8_e4m3fn", mx_call,
         {1: torch.ones(K // 2, N).to(E4)}),
        (errors.ShapeError, r"mat_b' has shape \(40, 136\)", mx_call, {1: "transposed"}),
        (errors.ParameterError, "scale_recipe_a' is 'RowWise'", mx_call, {3: "RowWise"}),
        (errors.ParameterError, "scale_recipe_b' is 'BlockWise1x32'", nv_call, {5: MX}),
        (errors.ParameterError, "scale_recipe_a' is 'BlockWise1x16'.*TensorWise", nv_call,
         {3: "BlockWise1x16"}),
        (errors.DtypeError, "scale_a' has dtype torch.float32.*e8m0", mx_call, {2: torch.ones(M, 9)}),
        (errors.ShapeError, r"scale_b' has shape \(9, 40\); expected \(40, 9\)", mx_call,
         {4: torch.ones(9, N).to(E8)}),
        (errors.ParameterError, "scale_a' is '1 of them'; expected two", nv_call,
         {2: torch.ones(M, 17).to(E4)}),
        (errors.DtypeError, "scale_a' has dtype torch.uint8.*e4m3fn", nv_call,
         {2: [torch.ones(M, 17).byte(), torch.ones(())]}),
        (errors.ShapeError, r"scale_a' has shape \(24, 9\); expected \(24, 17\)", nv_call,
         {2: [torch.ones(M, 9).to(E4), torch.ones(())]}),
        (errors.ShapeError, r"scale_b' has shape \(2,\); expected one number", nv_call,
         {4: [torch.ones(N, 17).to(E4), torch.ones(2)]}),
        (errors.DtypeError, "scale_b' has dtype torch.float64; expected float32", nv_call,
         {4: [torch.ones(N, 17).to(E4), torch.ones(()).double()]}),
    ],
)  # fmt: skip
def test_what_it_refuses_and_says(error, says, made, change):
    call = list(made()[0])
    for at, value in change.items():
        call[at] = call[at].t() if isinstance(value, str) and value == "transposed" else value
    with pytest.raises(error, match=says) as caught:
        portable.scaled_mm(*call)
    assert str(caught.value).startswith("portable.scaled_mm: ")

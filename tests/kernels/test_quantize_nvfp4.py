"""portable.quantize_nvfp4: shapes, torch's own arithmetic, both scales, all codes, wrong calls."""

from __future__ import annotations

import pytest
import torch

from portable import errors, quantize_nvfp4

FP4 = torch.float4_e2m1fn_x2
NUMBERS = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
"""Of float4_e2m1fn, by their codes."""
ONE = torch.ones(())


def drawn(*shape, seed=0, dtype=torch.bfloat16):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def numbers_of(q):
    """Numbers of packed codes, the lower half of a byte first."""
    code = torch.stack([q.view(torch.uint8) & 15, q.view(torch.uint8) >> 4], -1).flatten(-2).int()
    return torch.where(code > 7, -1.0, 1.0) * NUMBERS[code % 8]


def dequantised(q, scale, global_scale):
    numbers = numbers_of(q)
    return numbers * scale.float().repeat_interleave(16, -1)[..., : numbers.shape[-1]] * global_scale


@pytest.mark.parametrize("shape", [(64,), (3, 5, 70), (2, 2), (0, 40), (4, 0)])
def test_shapes_and_dtypes(shape):
    q, scale, global_scale = quantize_nvfp4(drawn(*shape))
    assert (q.shape, q.dtype) == (torch.Size((*shape[:-1], shape[-1] // 2)), FP4)
    assert (scale.shape, scale.dtype) == ((*shape[:-1], -(-shape[-1] // 16)), torch.float8_e4m3fn)
    assert (global_scale.shape, global_scale.dtype) == ((), torch.float32)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_the_global_scale_is_that_of_the_greatest_magnitude(dtype):
    x = drawn(40, 256, dtype=dtype)
    q, scale, global_scale = quantize_nvfp4(x)
    assert global_scale == x.float().abs().max() / (448 * 6)
    assert scale.float().max() == 448.0
    again = quantize_nvfp4(x, global_scale=global_scale)
    assert torch.equal(again[0].view(torch.uint8), q.view(torch.uint8)) and again[2] == global_scale
    # A group's scale is off by 1 / 16 at most, a number by half a step: 1 of 6.
    step = x.float().abs().unflatten(-1, (-1, 16)).amax(-1).repeat_interleave(16, -1)
    assert ((dequantised(q, scale, global_scale) - x.float()).abs() <= step * (1 / 6 + 1 / 16)).all()


@pytest.mark.parametrize("spread", [0, 20])
def test_numbers_and_scales_are_those_of_torch_in_float32(spread):
    """The rule in torch's float32 operations, each of which rounds once."""
    x = drawn(40, 256, dtype=torch.float32) * torch.exp2(torch.arange(40.0) * spread / 40)[:, None]
    q, scale, whole = quantize_nvfp4(x)
    parts = x.unflatten(-1, (-1, 16))
    wanted = (parts.abs().amax(-1) / 6 / whole).clamp(2.0**-6, 448.0).to(torch.float8_e4m3fn)
    assert torch.equal(scale.view(torch.uint8), wanted.view(torch.uint8))
    value = (parts * ((1 / whole) / wanted.float())[..., None]).flatten(-2).clamp(-6, 6)
    gap = (value.double().abs()[..., None] - NUMBERS.double()).abs()
    assert torch.equal((numbers_of(q).abs() - value.abs()).double().abs(), gap.amin(-1))
    assert torch.equal(numbers_of(q).signbit(), x.signbit())


def test_all_16_codes_come_back_in_either_half_of_a_byte():
    numbers = torch.cat([NUMBERS, -NUMBERS])
    x = torch.stack([numbers, numbers.roll(1)])
    q, scale, _ = quantize_nvfp4(x, global_scale=ONE)
    assert (scale.float() == 1.0).all()
    assert torch.equal(numbers_of(q), x) and torch.equal(numbers_of(q).signbit(), x.signbit())
    assert q.view(torch.uint8)[0, :3].tolist() == [0x10, 0x32, 0x54]


def test_numbers_are_rounded_to_nearest_even():
    """Every float32 within 64 steps of a midpoint, beside a 6, which makes the scale 1."""
    middle = (NUMBERS[1:] + NUMBERS[:-1]) / 2
    bits = middle.view(torch.int32)[:, None] + torch.arange(-64, 65, dtype=torch.int32)
    points = bits.view(torch.float32).flatten()
    points = torch.cat([points, -points])
    x = torch.nn.functional.pad(points, (0, -len(points) % 15)).view(-1, 15)
    x = torch.nn.functional.pad(x, (0, 1), value=6.0)
    q, scale, _ = quantize_nvfp4(x, global_scale=ONE)
    assert (scale.float() == 1.0).all()
    gap = (x.double().abs()[..., None] - NUMBERS.double()).abs()
    tie = gap == gap.amin(-1, keepdim=True)  # one, or two, of which one has an even code
    code = torch.where(tie.sum(-1) == 1, tie.int().argmax(-1), tie[..., ::2].int().argmax(-1) * 2)
    assert torch.equal(numbers_of(q), torch.copysign(NUMBERS[code], x))


def test_every_scale_from_the_least_on_comes_back():
    """amax of 6 times each number of float8_e4m3fn; below 2^-6 it is 2^-6, beyond 448 it is 448."""
    scales = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    x = torch.zeros(128, 16)
    x[:127, 7], x[127, 3] = 6 * scales, 1e4
    q, scale, _ = quantize_nvfp4(x, global_scale=ONE)
    wanted = [max(each, 8) for each in range(127)]
    assert scale.view(torch.uint8)[:, 0].tolist() == [*wanted, 126]
    assert (numbers_of(q)[8:127, 7] == 6.0).all() and numbers_of(q)[127, 3] == 6.0


def test_nan_inf_and_zeros():
    x = torch.full((3, 32), -6.0)
    x[0, 3], x[1, 20], x[2, :16] = torch.nan, torch.inf, -0.0
    q, scale, _ = quantize_nvfp4(x, global_scale=ONE)
    assert scale.float().isnan().tolist() == [[True, False], [False, False], [False, False]]
    assert (numbers_of(q)[0, :16] == 0).all() and dequantised(q, scale, ONE)[0, :16].isnan().all()
    assert scale[1, 1].float() == 448.0 and numbers_of(q)[1, 20] == 6.0
    assert scale[2, 0].float() == 2.0**-6 and q.view(torch.uint8)[2, :8].tolist() == [0x88] * 8
    q, scale, whole = quantize_nvfp4(x)
    assert whole.isnan() and scale.float().isnan().all() and (q.view(torch.uint8) == 0).all()
    q, scale, whole = quantize_nvfp4(x[1:])
    assert whole.isinf() and dequantised(q, scale, whole).isnan().all()
    q, scale, whole = quantize_nvfp4(torch.zeros(2, 32))
    assert whole > 0 and (scale.float() == 2.0**-6).all() and (q.view(torch.uint8) == 0).all()


@pytest.mark.slow
def test_rows_at_any_stride_and_compiled():
    x = drawn(40, 90)[::2, 3:73]
    wanted = quantize_nvfp4(x.contiguous())
    for made in (quantize_nvfp4(x), torch.compile(quantize_nvfp4, backend="eager", fullgraph=True)(x)):
        for got, ref in zip(made[:2], wanted[:2], strict=True):
            assert torch.equal(got.view(torch.uint8), ref.view(torch.uint8))
        assert made[2] == wanted[2]


@pytest.mark.parametrize(
    "error, says, call",
    [
        (errors.ShapeError, r"'x'.*\(2, 31\).*even", lambda x: quantize_nvfp4(x[:, 1:])),
        (errors.RankError, "'x'", lambda x: quantize_nvfp4(x[0, 0])),
        (errors.NotATensorError, "'x'", lambda x: quantize_nvfp4(3)),
        (errors.DtypeError, "'x'.*int32", lambda x: quantize_nvfp4(x.int())),
        (errors.SignatureError, "global_scale here", lambda x: quantize_nvfp4(x, per_tensor_scale=ONE)),
        (errors.NotATensorError, "'global_scale'", lambda x: quantize_nvfp4(x, global_scale=2.0)),
        (errors.DtypeError, "'global_scale'.*float64.*float",
         lambda x: quantize_nvfp4(x, global_scale=ONE.double())),
        (errors.ShapeError, r"'global_scale'.*\(2,\)",
         lambda x: quantize_nvfp4(x, global_scale=torch.ones(2))),
    ],
)  # fmt: skip
def test_what_it_refuses_and_says(error, says, call):
    with pytest.raises(error, match=says):
        call(torch.zeros(2, 32))

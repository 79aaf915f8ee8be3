"""portable.quantize_mx: shapes, torch's own scales, OCP's example, 4 bits, wrong calls."""

from __future__ import annotations

import pytest
import torch

from portable import errors, quantize_mx

E4M3, E5M2, FNUZ = torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz
FP4 = torch.float4_e2m1fn_x2
NUMBERS = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
"""Of float4_e2m1fn, by their codes."""
ROUNDINGS = ("floor", "rceil", "ceil", "even")


def drawn(*shape, seed=0, dtype=torch.bfloat16):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("shape", [(64,), (3, 5, 70), (2, 1), (0, 40), (4, 0)])
def test_shapes_and_dtypes(shape):
    q, scale = quantize_mx(drawn(*shape), dtype=E5M2)
    assert (q.shape, q.dtype) == (torch.Size(shape), E5M2)
    assert (scale.shape, scale.dtype) == (
        torch.Size((*shape[:-1], -(-shape[-1] // 32))),
        torch.float8_e8m0fnu,
    )


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("dtype", [E4M3, E5M2])
def test_numbers_are_those_of_torch_for_the_scale(rounding, dtype):
    """torch divides, exactly, and rounds; with the scales of `rceil` and `ceil` nothing saturates."""
    x = drawn(6, 256, dtype=torch.float32) * torch.exp2(torch.arange(6.0) * 9 - 20)[:, None]
    q, scale = quantize_mx(x, dtype=dtype, rounding=rounding)
    divided = x / scale.float().repeat_interleave(32, -1)
    largest = torch.finfo(dtype).max
    assert torch.equal(q.float(), divided.clamp(-largest, largest).to(dtype).float())
    over = divided.abs().amax() / largest
    assert over <= {"floor": 512 / 448, "even": 496 / 448}.get(rounding, 1.0)
    assert divided.unflatten(-1, (-1, 32)).abs().amax(-1).min() > largest / 4


def test_ocp_s_floor_saturates_between_the_largest_number_and_the_next_power():
    x = torch.zeros(1, 32)
    x[0, :3] = torch.tensor([500.0, -470.0, 1.0])
    q, scale = quantize_mx(x, dtype=E4M3)
    assert scale.float().item() == 1.0 and q[0, :3].float().tolist() == [448.0, -448.0, 1.0]
    q, scale = quantize_mx(x, dtype=E4M3, rounding="rceil")
    assert scale.float().item() == 2.0 and q[0, :3].float().tolist() == [256.0, -240.0, 0.5]


@pytest.mark.parametrize("dtype", [E4M3, FP4])
def test_rows_at_any_stride_and_compiled(dtype):
    def call(x):
        return quantize_mx(x, dtype=dtype, rounding="even")

    x = drawn(40, 90)[::2, 3:73]
    wanted = call(x.contiguous())
    for made in (call(x), torch.compile(call, backend="eager", fullgraph=True)(x)):
        for got, ref in zip(made, wanted, strict=True):
            assert torch.equal(got.view(torch.uint8), ref.view(torch.uint8))


def numbers_of(q, scale=None):
    """Numbers of packed codes, the lower half of a byte first, by their scales."""
    code = torch.stack([q.view(torch.uint8) & 15, q.view(torch.uint8) >> 4], -1).flatten(-2).int()
    found = torch.where(code > 7, -1.0, 1.0) * NUMBERS[code % 8]
    return found if scale is None else found * scale.float().repeat_interleave(32, -1)[..., : found.shape[-1]]


@pytest.mark.parametrize("shape", [(64,), (3, 5, 70), (2, 2), (0, 40), (4, 0)])
def test_shapes_and_dtypes_of_4_bits(shape):
    q, scale = quantize_mx(drawn(*shape), dtype=FP4)
    assert (q.shape, q.dtype) == (torch.Size((*shape[:-1], shape[-1] // 2)), FP4)
    assert (scale.shape, scale.dtype) == ((*shape[:-1], -(-shape[-1] // 32)), torch.float8_e8m0fnu)


def test_all_16_codes_come_back_in_either_half_of_a_byte():
    numbers = torch.cat([NUMBERS, -NUMBERS])
    x = torch.cat([numbers, numbers.roll(1)]).view(1, 32)
    q, scale = quantize_mx(x, dtype=FP4)
    assert scale.float().item() == 1.0
    assert torch.equal(numbers_of(q), x) and torch.equal(numbers_of(q).signbit(), x.signbit())
    assert q.view(torch.uint8)[0, :3].tolist() == [0x10, 0x32, 0x54]
    again, _ = quantize_mx(numbers_of(q, scale), dtype=FP4)
    assert torch.equal(again.view(torch.uint8), q.view(torch.uint8))


def test_4_bits_are_rounded_to_nearest_even():
    """By torch's conversion to float64 and a table; every float32 within 64 steps of a midpoint."""
    middle = (NUMBERS[1:] + NUMBERS[:-1]) / 2
    bits = middle.view(torch.int32)[:, None] + torch.arange(-64, 65, dtype=torch.int32)
    points = bits.view(torch.float32).flatten()
    points = torch.cat([points, -points])
    x = torch.nn.functional.pad(points, (0, -len(points) % 31)).view(-1, 31)
    x = torch.nn.functional.pad(x, (0, 1), value=4.0)
    q, scale = quantize_mx(x, dtype=FP4)
    assert (scale.float() == 1.0).all()
    gap = (x.double().abs()[..., None] - NUMBERS.double()).abs()
    tie = gap == gap.amin(-1, keepdim=True)  # one, or two, of which one has an even code
    code = torch.where(tie.sum(-1) == 1, tie.int().argmax(-1), tie[..., ::2].int().argmax(-1) * 2)
    assert torch.equal(numbers_of(q), torch.copysign(NUMBERS[code], x))


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_4_bits_use_their_range_and_saturate_as_the_rounding_says(rounding):
    x = drawn(40, 256, dtype=torch.float32) * torch.exp2(torch.arange(40.0) - 20)[:, None]
    q, scale = quantize_mx(x, dtype=FP4, rounding=rounding)
    divided = x / scale.float().repeat_interleave(32, -1)
    most = divided.abs().unflatten(-1, (-1, 32)).amax(-1)
    assert most.max() <= {"floor": 8.0, "even": 7.0, "rceil": 6.0, "ceil": 4.0}[rounding]
    assert most.min() > {"floor": 3.99, "even": 3.49, "rceil": 2.99, "ceil": 2.0}[rounding]
    assert (numbers_of(q) - divided.clamp(-6, 6)).abs().max() <= 1.0


def test_nan_and_inf_in_4_bits():
    x = torch.ones(2, 64)
    x[0, 3], x[1, 40] = torch.nan, -torch.inf
    q, scale = quantize_mx(x, dtype=FP4)
    assert scale.view(torch.uint8).tolist() == [[255, 125], [125, 255]]
    assert torch.equal(numbers_of(q) == 0, numbers_of(q, scale).isnan())


@pytest.mark.parametrize(
    "error, says, call",
    [
        (errors.SignatureError, "needs 'dtype'", lambda x: quantize_mx(x)),
        (errors.ParameterError, "'dtype' is.*fnuz", lambda x: quantize_mx(x, dtype=FNUZ)),
        (errors.ParameterError, "'rounding' is 'up'", lambda x: quantize_mx(x, dtype=E4M3, rounding="up")),
        (errors.DtypeError, "'x'.*int32", lambda x: quantize_mx(x.int(), dtype=E4M3)),
        (errors.ShapeError, "'x'.*\\(2, 31\\).*even", lambda x: quantize_mx(x[:, 1:], dtype=FP4)),
        (errors.DtypeError, "'x'.*int32", lambda x: quantize_mx(x.int(), dtype=FP4)),
        (errors.RankError, "'x'", lambda x: quantize_mx(x[0, 0], dtype=FP4)),
        (errors.NotATensorError, "'x'", lambda x: quantize_mx(3, dtype=FP4)),
        (errors.SignatureError, "rounding here", lambda x: quantize_mx(x, dtype=FP4, mode="floor")),
        (errors.RankError, "'x'", lambda x: quantize_mx(x[0, 0], dtype=E4M3)),
    ],
)  # fmt: skip
def test_what_it_refuses_and_says(error, says, call):
    with pytest.raises(error, match=says):
        call(torch.zeros(2, 32))

"""portable.quantize_mx: shapes, torch's own scales, OCP's example, wrong calls."""

from __future__ import annotations

import pytest
import torch

from portable import errors, quantize_mx

E4M3, E5M2, FNUZ = torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz
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


def test_rows_at_any_stride_and_compiled():
    x = drawn(40, 90)[::2, 3:73]
    assert all(
        torch.equal(*(each.view(torch.uint8) for each in pair))
        for pair in zip(quantize_mx(x, dtype=E4M3), quantize_mx(x.contiguous(), dtype=E4M3), strict=True)
    )
    compiled = torch.compile(
        lambda x: quantize_mx(x, dtype=E4M3, rounding="even"), backend="eager", fullgraph=True
    )
    for got, ref in zip(compiled(x), quantize_mx(x, dtype=E4M3, rounding="even"), strict=True):
        assert torch.equal(got.view(torch.uint8), ref.view(torch.uint8))


@pytest.mark.parametrize(
    "error, says, call",
    [
        (errors.SignatureError, "needs 'dtype'", lambda x: quantize_mx(x)),
        (errors.ParameterError, "'dtype' is.*fnuz", lambda x: quantize_mx(x, dtype=FNUZ)),
        (errors.ParameterError, "'rounding' is 'up'", lambda x: quantize_mx(x, dtype=E4M3, rounding="up")),
        (errors.DtypeError, "'x'.*int32", lambda x: quantize_mx(x.int(), dtype=E4M3)),
        (errors.RankError, "'x'", lambda x: quantize_mx(x[0, 0], dtype=E4M3)),
    ],
)  # fmt: skip
def test_what_it_refuses_and_says(error, says, call):
    with pytest.raises(error, match=says):
        call(torch.zeros(2, 32))

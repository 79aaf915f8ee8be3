"""The dequantisers undo the quantisers; shapes, kernels, wrong calls. Bits are the suite's business."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import portable
from portable import dequantize_fp8, dequantize_int8, dequantize_mx, dequantize_nvfp4, errors
from portable.conformance.cases.case import make_shape, params_of
from portable.conformance.execute import runner
from portable.conformance.perf import baselines, bench
from portable.kernels.quantize_fp8.codes import DTYPES
from portable.spec import registry

TO = (torch.bfloat16, torch.float16, torch.float32)
SCALINGS = ("tensor", "row", "1x128", "128x128")
OPS = (
    *("dequantize_fp8", "dequantize_fp8_1x128", "dequantize_fp8_128x128", "dequantize_int8"),
    *("dequantize_mx", "dequantize_mxfp4", "dequantize_nvfp4"),
)
FP4 = torch.float4_e2m1fn_x2


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("shape", [(2, 130, 257), (3, 4), (1, 0), (129, 128)])
def test_it_undoes_quantize_fp8(scaling, shape):
    """To half a unit of the type: 2^-4 of the element, or of the least normal number by its scale."""
    x = drawn(*shape)
    for dtype in DTYPES:
        q, scale = portable.quantize_fp8(x, scaling, dtype=dtype)
        for to in TO:
            y = dequantize_fp8(q, scale, scaling, output_dtype=to)
            assert (y.shape, y.dtype, y.is_contiguous()) == (x.shape, to, True)
            step = 2.0 ** (-4 if "e4m3" in str(dtype) else -3) + 2.0**-8
            least = float(scale.max()) * torch.finfo(dtype).smallest_normal if x.numel() else 0.0
            assert ((y.float() - x).abs() <= step * x.abs().clamp(min=least)).all()


def test_it_undoes_quantize_int8():
    x = drawn(5, 300) + 1
    for scaling in ("row", "tensor"):
        q, scale = portable.quantize_int8(x, scaling)[:2]
        y = dequantize_int8(q, scale, scaling=scaling, output_dtype=torch.float32)
        assert ((y - x).abs() <= 0.5001 * scale).all()
    q, scale, zero = portable.quantize_int8(x, symmetric=False)
    assert zero.any()
    y = dequantize_int8(q, scale, zero, output_dtype=torch.float32)
    assert ((y - x).abs() <= 1.0001 * scale).all()
    q, scale, zero = portable.quantize_int8(
        x,
        "tensor",
        symmetric=False,
        scale=torch.tensor(0.05),
        zero_point=torch.tensor(-20, dtype=torch.int32),
    )
    y = dequantize_int8(q, scale, zero, "tensor", output_dtype=torch.float32)
    assert torch.equal(y, (q.float() + 20) * 0.05)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_it_undoes_quantize_mx(dtype):
    x = drawn(5, 300)
    x[1, 40] = torch.nan
    q, scale = portable.quantize_mx(x, dtype=dtype, rounding="ceil")
    y = dequantize_mx(q, scale, output_dtype=torch.float32)
    assert y[1, 32:64].isnan().all() and y.isnan().sum() == 32
    step = 2.0 ** (-4 if dtype == torch.float8_e4m3fn else -3)
    there = ~y.isnan()
    assert ((y - x).abs()[there] <= (step * x.abs().clamp(min=2.0**-12))[there]).all()


def test_it_undoes_quantize_mx_to_4_bits():
    x = drawn(5, 300)
    x[1, 40] = torch.nan
    q, scale = portable.quantize_mx(x, dtype=FP4, rounding="ceil")
    y = dequantize_mx(q, scale, output_dtype=torch.float32)
    assert y.shape == x.shape and y[1, 32:64].isnan().all() and y.isnan().sum() == 32
    amax = (
        torch.nn.functional.pad(x, (0, 20)).view(5, 10, 32).abs().amax(-1).repeat_interleave(32, 1)[:, :300]
    )
    there = ~y.isnan()
    assert ((y - x).abs()[there] <= 0.25001 * amax[there]).all()


def test_it_undoes_quantize_nvfp4():
    """To half a step of e2m1fn, at most 1 of 6, and the rounding of the scale."""
    x = drawn(5, 300)
    q, scale, whole = portable.quantize_nvfp4(x)
    y = dequantize_nvfp4(q, scale, whole, output_dtype=torch.float32)
    amax = torch.nn.functional.pad(x, (0, 4)).view(5, 19, 16).abs().amax(-1).repeat_interleave(16, 1)[:, :300]
    assert y.shape == x.shape and ((y - x).abs() <= (1 / 6 + 2.0**-4) * amax).all()
    table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
    codes = q.view(torch.uint8)
    code = torch.stack((codes & 15, codes >> 4), -1).flatten(1).int()
    exact = table[code].double() * scale.double().repeat_interleave(16, 1)[:, :300]
    assert torch.equal(y, (exact * whole.double()).float())
    assert torch.equal(dequantize_nvfp4(q, scale, whole.reshape(1, 1)), y.bfloat16())


def test_the_product_is_rounded_to_float32_first():
    """1.125 * scale is above a midpoint of bfloat16 by less than float32 sees: the even neighbour, below."""
    middle = 1 + 2.0**-8
    scale = torch.tensor([[float.fromhex("0x1.c8e39p-1")]])  # about middle / 1.125
    exact = 1.125 * scale.double().item()
    assert middle < exact <= middle + 2.0**-24
    q = torch.full((1, 3), 1.125).to(torch.float8_e4m3fn)
    assert (dequantize_fp8(q, scale) == 1.0).all()
    assert (dequantize_fp8(q, scale, output_dtype=torch.float32) == middle).all()


def test_what_is_not_a_number_and_signs_of_zeros():
    q = torch.tensor([[torch.nan, 0.0, -0.0, 448.0]]).to(torch.float8_e4m3fn)
    y = dequantize_fp8(q, torch.tensor([[torch.inf]]))
    assert y.isnan().tolist() == [[True, True, True, False]] and y[0, 3] == torch.inf
    y = dequantize_fp8(q, torch.tensor([[-1e3]]), output_dtype=torch.float16)
    assert y.isnan().tolist() == [[True, False, False, False]] and y[0, 3] == -torch.inf
    assert y.signbit().tolist()[0][1:3] == [True, False]
    assert dequantize_fp8(q, torch.tensor([[torch.nan]])).isnan().all()


@pytest.mark.parametrize("implementation", ["cpp", "triton"])
@pytest.mark.parametrize("arch", ["gfx942", "gfx1100"])
def test_kernels_give_the_bits_of_torch(emulate, arch, implementation):
    made = []
    for dtype in (torch.bfloat16, torch.float16):
        x = drawn(2, 130, 264, dtype=dtype)
        for scaling in SCALINGS:
            q, scale = portable.quantize_fp8(x, scaling)
            made.append(
                (dequantize_fp8, (q, scale, scaling), dequantize_fp8(q, scale, scaling, output_dtype=dtype))
            )
        q, scale = portable.quantize_mx(x, dtype=torch.float8_e5m2)
        made.append((dequantize_mx, (q, scale), dequantize_mx(q, scale, output_dtype=dtype)))
        packed = portable.quantize_mx(x, dtype=FP4)
        made.append((dequantize_mx, packed, dequantize_mx(*packed, output_dtype=dtype)))
        whole = portable.quantize_nvfp4(x)
        made.append((dequantize_nvfp4, whole, dequantize_nvfp4(*whole, output_dtype=dtype)))
        given = portable.quantize_int8(x, symmetric=False)
        made.append((dequantize_int8, given, dequantize_int8(*given, output_dtype=dtype)))
    emulate(arch)
    pins: dict[str, Any] = dict.fromkeys(OPS, implementation)
    with portable.using(**pins):
        for function, given, wanted in made:
            got = function(*given, output_dtype=wanted.dtype)
            assert torch.equal(got.view(torch.int16), wanted.view(torch.int16))


Q, S = torch.ones(2, 130).to(torch.float8_e4m3fn), torch.ones(2, 1)
OF_8_BITS = torch.ones(2, 130, dtype=torch.int8)
NIBBLES = torch.ones(2, 130, dtype=torch.uint8).view(FP4)


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        (lambda: dequantize_fp8(Q, S, "column"), errors.ParameterError, "128x128"),
        (lambda: dequantize_fp8(Q, S, "1x128"), errors.ShapeError, "scale"),
        (lambda: dequantize_fp8(Q, S, "tensor"), errors.ShapeError, "one element"),
        (lambda: dequantize_fp8(Q[0], S, "128x128"), errors.RankError, "at least 2"),
        (lambda: dequantize_fp8(Q.float(), S), errors.DtypeError, "q"),
        (lambda: dequantize_fp8(Q, S.double()), errors.DtypeError, "scale"),
        (lambda: dequantize_fp8(Q, S, output_dtype=torch.int8), errors.ParameterError, "output_dtype"),
        (lambda: dequantize_fp8(Q, S, dtype=torch.float32), errors.SignatureError, "output_dtype"),
        (lambda: dequantize_fp8([1.0], S), errors.NotATensorError, "q"),
        (lambda: dequantize_int8(OF_8_BITS, S, S), errors.DtypeError, "zero_point"),
        (lambda: dequantize_int8(OF_8_BITS, S, scaling="1x128"), errors.ParameterError, "'tensor', 'row'"),
        (lambda: dequantize_int8(OF_8_BITS, S, scaling="tensor"), errors.ShapeError, "one element"),
        (lambda: dequantize_mx(Q, S), errors.DtypeError, "scale"),
        (lambda: dequantize_mx(NIBBLES, S), errors.DtypeError, "scale"),
        (lambda: dequantize_mx([1.0], S), errors.NotATensorError, "q"),
        (lambda: dequantize_nvfp4(Q, S, S[:1]), errors.DtypeError, "float4_e2m1fn_x2"),
        (lambda: dequantize_nvfp4(NIBBLES, S, S[:1]), errors.DtypeError, "scale"),
        (lambda: dequantize_nvfp4(NIBBLES, S.to(Q.dtype), S), errors.ShapeError, "global_scale.*one element"),
        (lambda: dequantize_nvfp4(NIBBLES, S.to(Q.dtype), S[0]), errors.ShapeError, "scale"),
    ],
)
def test_wrong_calls(wrong, error, words):
    with pytest.raises(error, match=words):
        wrong()


def test_a_gradient_is_refused():
    scale = S.clone().requires_grad_()
    with pytest.raises(errors.UnsupportedGradientError, match="'scale'"):
        dequantize_fp8(Q, scale).sum().backward()


def test_other_strides_and_fake_tensors():
    q, scale = portable.quantize_fp8(drawn(26, 140), "1x128")
    real = dequantize_fp8(q, scale, "1x128")
    bytes_of_q = q.view(torch.uint8)
    other = bytes_of_q.t().contiguous().t().view(q.dtype)
    assert torch.equal(dequantize_fp8(other, scale.t().contiguous().t(), "1x128"), real)
    made = dequantize_fp8(q.to("meta"), scale.to("meta"), "1x128")
    assert (made.shape, made.dtype) == (real.shape, real.dtype)


@pytest.mark.slow
def test_torch_compile_takes_it_whole():
    q, scale = portable.quantize_fp8(drawn(20, 60))
    compiled = torch.compile(dequantize_fp8, backend="eager", fullgraph=True)
    for scaling, given in (("row", scale), ("tensor", scale[0])):
        assert torch.equal(compiled(q, given, scaling), dequantize_fp8(q, given, scaling))


@pytest.mark.parametrize("op", OPS)
def test_torch_s_way_is_near_enough_to_be_timed_beside_it(op):
    spec = registry.spec(op)
    case = bench.bench_cases(spec)[0]
    axes = {"H" if "fp4" in op else "K": 200} | ({"M": 140} if "128x128" in op else {})
    leading = {name: (3,) for name, field in spec.inputs.items() if field.leading}
    case = replace(case, shape=make_shape(spec, axes, leading, dict(case.shape.params)))
    tensors, params = bench.made(case, spec, torch.device("cpu"), 0), params_of(spec, case)
    outputs = [runner.function(op)(**tensors, **params)]
    found, reasons = baselines.ready(spec, [tensors], params, outputs, ["torch"])
    assert list(found) == ["torch"] and not reasons

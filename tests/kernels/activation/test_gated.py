"""Gate and up in one tensor: gated_activation and swigluoai against torch, their gradients and limits."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import portable
from portable import errors
from portable.plan import Call, Device, TensorInfo
from portable.spec import registry
from tests.kernels.plan_parts import accepted, defines, planner

INTERLEAVED = "swigluoai_and_mul"


def split(function):
    return lambda x: function(x[..., : x.shape[-1] // 2]) * x[..., x.shape[-1] // 2 :]


def swigluoai(x, alpha=1.702, limit=7.0):
    """vLLM's forward_native, by its definition."""
    gate, up = x[..., ::2].clamp(max=limit), x[..., 1::2].clamp(-limit, limit)
    return (up + 1) * gate * torch.sigmoid(alpha * gate)


TORCH = {
    "silu_and_mul": split(F.silu),
    "gelu_and_mul": split(F.gelu),
    "gelu_tanh_and_mul": split(lambda x: F.gelu(x, approximate="tanh")),
    INTERLEAVED: swigluoai,
}


def same(got, expected):
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-12, equal_nan=True)


def with_gradients(function, x, dy):
    x = x.clone().requires_grad_()
    y = function(x)
    return y, torch.autograd.grad(y, x, dy)[0]


@pytest.mark.parametrize("name", TORCH)
def test_a_function_is_torchs_and_so_is_its_gradient(name):
    x, dy = torch.randn(2, 3, 34, dtype=torch.float64) * 5, torch.randn(2, 3, 17, dtype=torch.float64)
    got, expected = (with_gradients(each, x, dy) for each in (getattr(portable, name), TORCH[name]))
    same(got[0], expected[0])
    same(got[1], expected[1])


@pytest.mark.parametrize("name", TORCH)
def test_the_gradient_is_laid_out_as_x(name):
    x = torch.randn(3, 16, requires_grad=True)
    (dx,) = torch.autograd.grad(getattr(portable, name)(x).sum(), x)
    assert dx.shape == x.shape and dx.is_contiguous()


@pytest.mark.parametrize("name", TORCH)
def test_any_strides_and_one_dimension(name):
    x = torch.randn(8, 5, dtype=torch.float64)
    for each in (x.mT, x.mT[:, ::2], x[:, 0], x.mT[:0], x.mT[:, :0]):
        same(getattr(portable, name)(each), TORCH[name](each.contiguous()))


@pytest.mark.parametrize("name", TORCH)
def test_a_function_compiles(name):
    torch._dynamo.reset()  # its limit of compilations is for all functions that share `documented`'s code
    compiled = torch.compile(getattr(portable, name), fullgraph=True, backend="eager")
    x = torch.randn(3, 8)
    assert torch.equal(compiled(x), getattr(portable, name)(x))


@pytest.mark.parametrize("name", TORCH)
def test_errors_name_the_function_and_x(name):
    function = getattr(portable, name)
    with pytest.raises(errors.ShapeError, match=rf"{name}.*'x' has shape \(2, 5\).*even"):
        function(torch.zeros(2, 5))
    with pytest.raises(errors.RankError, match=f"{name}.*'x' has 0 dimensions"):
        function(torch.tensor(1.0))
    with pytest.raises(errors.NotATensorError, match=f"{name}.*'x'"):
        function(None)


def test_the_limits_are_torchs_clamp_and_cut_the_gradient():
    specials = [7.0, 7.5, -7.0, -7.5, math.inf, -math.inf, math.nan, 0.0, -0.5]
    x = torch.cartesian_prod(*[torch.tensor(specials, dtype=torch.float64)] * 2).flatten()
    dy = torch.ones(len(specials) ** 2, dtype=torch.float64)
    for params in ({"alpha": 1.702, "limit": 7.0}, {"alpha": 1.0, "limit": 0.5}):
        ours = with_gradients(partial(portable.swigluoai_and_mul, **params), x, dy)
        theirs = with_gradients(partial(swigluoai, **params), x, dy)
        same(ours[0], theirs[0])
        same(ours[1], theirs[1])
    with pytest.raises(errors.ParameterError, match=r"limit.*above 0"):
        portable.swigluoai_and_mul(torch.zeros(4), limit=0.0)


@pytest.mark.parametrize("implementation", ["cpp", "triton"])
def test_kernels_keep_limits_and_what_is_not_finite(implementation, emulate):
    emulate("gfx942")
    specials = [7.0, 7.5, -7.0, -7.5, math.inf, -math.inf, math.nan, 0.0, -0.5]
    x = torch.cartesian_prod(*[torch.tensor(specials)] * 2)
    dy = torch.randn(len(x), generator=torch.Generator().manual_seed(0))
    forward, backward = (registry.load_entry(registry.spec(op).reference.entry)
                         for op in ("swigluoai", "swigluoai_backward"))  # fmt: skip
    with portable.using(swigluoai=implementation, swigluoai_backward=implementation):
        y, dx = portable.swigluoai(x), portable.swigluoai_backward(dy, x)
    torch.testing.assert_close(y, forward(x.double()).float(), equal_nan=True)
    torch.testing.assert_close(dx, backward(dy.double(), x.double()).float(), equal_nan=True)


@pytest.mark.parametrize("implementation", ["cpp", "triton"])
@pytest.mark.parametrize("width", [256, 129])
def test_a_row_alone_has_the_bits_that_it_has_among_others(implementation, width, emulate):
    emulate("gfx942")
    generator = torch.Generator().manual_seed(0)
    x, dy = (torch.randn(48, each, generator=generator) * 3 for each in (2 * width, width))
    pins: dict[str, Any] = dict.fromkeys(("gated_activation", "swigluoai"), implementation)
    pins |= {f"{op}_backward": implementation for op in pins}
    with portable.using(**pins):
        for name in TORCH:
            y, dx = with_gradients(getattr(portable, name), x, dy)
            for i in (0, 7, 47):
                alone = with_gradients(getattr(portable, name), x[i : i + 1], dy[i : i + 1])
                assert torch.equal(alone[0][0], y[i]) and torch.equal(alone[1][0], dx[i]), name


DEVICE = Device("vendor", "arch", "name", multiprocessors=132)


def packed_call(count: int, length: int, stride: int) -> Call:
    """gated_activation of rows of 2 * length elements, with `stride` from gate to up and from up to gate."""
    x = TensorInfo((count, 2, length), (2 * stride, stride, 1), "bfloat16")
    tensors = {"x": x, "y": TensorInfo((count, length), (length, 1), "bfloat16")}
    return Call(tensors, {"activation": "silu"}, {"N": length}, DEVICE, {})


@pytest.mark.parametrize("op_of", ["cpp", "triton"])
@pytest.mark.parametrize(
    ("count", "length", "stride"), [(1, 64, 64), (5, 64, 64), (5, 33, 33), (5, 40, 48), (0, 8, 8)]
)
def test_rows_of_gate_and_up_are_never_taken_for_one_long_row(op_of, count, length, stride):
    (launch,) = accepted(planner("gated_activation", op_of)(packed_call(count, length, stride))).launches
    given: dict[str, Any] = {name: getattr(each, "value", None) for name, each in launch.args}
    rows = given["rows"] if op_of == "cpp" else given["count"]
    assert rows * given["length"] == count * length and launch.grid[0] >= min(count, 1)
    if count:
        assert (rows, given["length"], given["x_stride"]) == (count, length, stride)
    if op_of == "cpp" and count:
        assert defines(launch)["VEC"] == (8 if stride % 8 == 0 else 1)

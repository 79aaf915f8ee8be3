"""activation: the functions by name against torch, gelu's tail, values that are not finite, rows alone."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

import portable
from portable import errors
from portable.spec import registry
from tests.kernels.op_cases import bounds

KINDS = ("relu", "gelu", "gelu_tanh", "silu", "quick_gelu", "relu2")
TORCH = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "relu2": lambda x: torch.relu(x).square(),
}
IMPLEMENTATIONS = ("cpp", "triton")
ROWS = (0, 7, 47)


@pytest.mark.parametrize("name", TORCH)
def test_a_function_is_torchs_and_so_is_its_gradient(name):
    x = torch.randn(4, 33, dtype=torch.float64).mul(4).requires_grad_()
    dy = torch.randn(4, 33, dtype=torch.float64)
    y, expected = getattr(portable, name)(x), TORCH[name](x)
    torch.testing.assert_close(y, expected, rtol=1e-9, atol=1e-13)
    torch.testing.assert_close(y, portable.activation(x, name), rtol=0, atol=0)
    got, wanted = (torch.autograd.grad(each, x, dy)[0] for each in (y, expected))
    torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("name", TORCH)
def test_a_function_compiles_and_keeps_the_shape(name):
    torch._dynamo.reset()  # its limit of compilations is for all functions that share `documented`'s code
    compiled = torch.compile(getattr(portable, name), fullgraph=True, backend="eager")
    x = torch.randn(3, 1, 5)
    assert torch.equal(compiled(x), getattr(portable, name)(x)) and compiled(x).shape == x.shape


def test_errors_name_the_argument_and_the_legal_words():
    with pytest.raises(errors.ParameterError, match=r"activation.*'tanh'.*'quick_gelu'"):
        portable.activation(torch.zeros(3), "tanh")
    with pytest.raises(errors.DtypeError, match="x"):
        portable.gelu(torch.zeros(3, dtype=torch.int32))


def held_to_the_bound(x: torch.Tensor, kind: str) -> None:
    """Every element of activation(x) is within the spec's bound."""
    spec = registry.spec("activation")
    name = str(x.dtype).removeprefix("torch.")
    row = next(row for row in spec.types if row["T"] == name)
    case = next(case for case in spec.cases if case.params["activation"] == kind)
    reference, allowed = bounds(spec, row, case, {"x": x})
    off = (portable.activation(x, kind).double() - reference["y"]).abs() / allowed["y"]
    assert off.max() <= 1, (kind, name, x.flatten()[off.argmax()].item(), off.max().item())


def tail() -> torch.Tensor:
    """-13 to -5: gelu falls from -1.4e-6 to -1e-37, and stays a normal number of float32."""
    return torch.linspace(-13.0, -5.0, 4096)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_tail_of_gelu_keeps_its_relative_accuracy(dtype):
    x = tail().to(dtype)
    exact = 0.5 * x.double() * torch.special.erfc(-math.sqrt(0.5) * x.double())
    assert (portable.gelu(x).double() / exact - 1).abs().max() < (0.004 if dtype == torch.bfloat16 else 4e-5)
    assert F.gelu(tail())[-512:].double().div(exact[-512:]).sub(1).abs().max() > 1e-3, "what 1 + erf gives"


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_kernels_keep_the_tails(implementation, dtype, emulate):
    emulate("gfx942")
    x = torch.cat([tail(), tail() * 8, torch.linspace(-5, 5, 4096)]).to(dtype)
    with portable.using(activation=implementation):
        for kind in KINDS:
            held_to_the_bound(x, kind)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_what_is_not_finite_is_as_in_torch(implementation, emulate):
    emulate("gfx942")
    largest = torch.finfo(torch.float32).max
    reference = registry.load_entry(registry.spec("activation").reference.entry)
    x = torch.tensor([math.nan, math.inf, -math.inf, largest, -largest, 1e20, -1e20, 0.0])
    with portable.using(activation=implementation):
        for kind in KINDS:
            expected = reference(x.double(), kind).float()
            torch.testing.assert_close(portable.activation(x, kind), expected, equal_nan=True)


@pytest.mark.parametrize("arch", ["gfx942", "gfx1100"])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_row_alone_has_the_bits_that_it_has_among_others(arch, implementation, emulate):
    """Triton fused a product and a sum in one class of rows and not in another: gelu' and gelu_tanh'."""
    emulate(arch)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(48, 129, generator=generator) * 3
    dy = torch.randn(48, 129, generator=generator)
    with portable.using(activation=implementation, activation_backward=implementation):
        for kind in KINDS:
            y, dx = portable.activation(x, kind), portable.activation_backward(dy, x, kind)
            for i in ROWS:
                assert torch.equal(portable.activation(x[i : i + 1], kind)[0], y[i]), kind
                alone = portable.activation_backward(dy[i : i + 1], x[i : i + 1], kind)
                assert torch.equal(alone[0], dx[i]), kind

"""What the tests of Inductor's pass share: the pass alone, and its results against float32."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.backends.debugging import aot_eager
from torch._inductor import config

from portable.integrations import inductor
from portable.integrations.inductor.graph_pass import FusedOps

bf16 = torch.bfloat16


@pytest.fixture(autouse=True)
def as_before():
    before = config.pre_grad_custom_pass
    torch._dynamo.reset()
    yield
    inductor.disable()
    assert config.pre_grad_custom_pass is before
    torch._dynamo.reset()


def rewritten(function: Callable[..., Any], only: Sequence[str] | None = None) -> Any:
    """`function` compiled with the pass, without the rest of Inductor, and what it calls of this package."""
    called: list[str] = []

    def backend(module, inputs):
        FusedOps(only)(module.graph)
        module.graph.lint()
        module.recompile()
        names = [str(node.target) if isinstance(node.target, torch._ops.OpOverload)
                 else getattr(node.target, "__module__", "") + "." + getattr(node.target, "__name__", "")
                 for node in module.graph.nodes if node.op == "call_function"]  # fmt: skip
        called[:] = [name.removesuffix(".default").rpartition(".")[2] for name in names if "portable" in name]
        return aot_eager(module, inputs)

    return torch.compile(function, backend=backend, fullgraph=True), called


def drawn(*shape: int, dtype: torch.dtype = bf16, seed: int = 0, grad: bool = False) -> Tensor:
    made = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return made.to(dtype).requires_grad_(grad)


def outcome(
    function: Callable[..., Any], inputs: Sequence[Tensor], dynamic: Sequence[int] = ()
) -> dict[str, Tensor]:
    """Results and the gradients of all floating inputs, in float64. dynamic: dimensions of the first."""
    own = [each.detach().clone().requires_grad_(each.is_floating_point()) for each in inputs]
    for dim in dynamic:
        torch._dynamo.mark_dynamic(own[0], dim)
    made = function(*own)
    made = made if isinstance(made, tuple) else (made,)
    total = sum((each.double() * drawn(*each.shape, dtype=torch.float64, seed=9)).sum() for each in made)
    assert isinstance(total, Tensor)
    wanted = [each for each in own if each.requires_grad]
    found = {f"result {i}": each.detach().double() for i, each in enumerate(made)}
    grads = torch.autograd.grad(total, wanted, allow_unused=True)
    return found | {f"gradient {i}": each.double() for i, each in enumerate(grads) if each is not None}


def check(
    function: Callable[..., Any], inputs: Sequence[Tensor], expected: Sequence[str],
    only: Sequence[str] | None = None, dynamic: Sequence[int] = (),
) -> None:  # fmt: skip
    """That the pass makes `expected` of it, and that results and gradients are as near to float64 as those of
    eager, by the root of the mean square, and half an ULP."""
    fused, called = rewritten(function, only)
    ours = outcome(fused, inputs, dynamic)
    assert called == list(expected)
    theirs = outcome(function, inputs)
    exact = outcome(function, [each.double() if each.is_floating_point() else each for each in inputs])
    assert ours.keys() == theirs.keys() == exact.keys()
    eps = torch.finfo(inputs[0].dtype).eps
    for name, true in exact.items():
        assert ours[name].shape == theirs[name].shape
        error, eager = ((each[name] - true).square().mean().sqrt().item() for each in (ours, theirs))
        assert error <= 1.1 * eager + 0.5 * eps * true.square().mean().sqrt().item(), (name, error, eager)


def llama_norm(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    return weight * wide.to(x.dtype)


def rotate_half(x: Tensor) -> Tensor:
    return torch.cat((-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]), dim=-1)


def hugging_face(q: Tensor, k: Tensor, angles: Tensor, unsqueeze_dim: int) -> tuple[Tensor, Tensor]:
    both = torch.cat((angles, angles), dim=-1)
    cos, sin = (each.to(q.dtype).unsqueeze(unsqueeze_dim) for each in (both.cos() * 1.5, both.sin() * 1.5))
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin

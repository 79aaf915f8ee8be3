"""Forwards of norms, gated MLPs and activations, told from what a module computes.

Modelling files write the same few functions hundreds of times, under names that do not say which of them a
class is: the weight of a norm may be multiplied as it is or after 1 is added, before or after the rounding.
So a copy of the module with small weights of its own is run once in torch, and its result compared with each
formula that an op has. A module that computes anything else keeps its forward.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import portable

Forward = Callable[..., Tensor]
"""A forward with the module as its first argument."""


@dataclass(frozen=True)
class Replacement:
    """What takes a module's place: the part of the report, the forward, and the op that it calls."""

    part: str
    forward: Forward
    note: str


class NotReplaced(Exception):
    """A module looks as one that is replaced and is not; the message says why. part: as `only` names it."""

    def __init__(self, part: str, reason: str) -> None:
        super().__init__(reason)
        self.part = part


def replacement(module: nn.Module) -> Replacement | None:
    """What replaces the module's forward; None where it is of no kind that is replaced.

    Raises NotReplaced where it is of a kind that is, and computes something else.
    """
    children = set(module._modules)
    if {"gate_proj", "up_proj", "down_proj"} <= children:
        return _gated_mlp(module)
    if {"gate_up_proj", "down_proj"} <= children:
        return _packed_mlp(module)
    if children:
        return None
    if _is_norm(module):
        return _norm(module)
    if not module._parameters and type(module).__module__ in _HOMES_OF_ACTIVATIONS:
        return _activation(module)
    return None


# Norms.


def _is_norm(module: nn.Module) -> bool:
    if "RMSNorm" in type(module).__name__:
        return True
    return set(module._parameters) == {"weight"} and _eps_name(module) == "variance_epsilon"


def _eps_name(module: nn.Module) -> str | None:
    for name in ("variance_epsilon", "eps"):
        if isinstance(getattr(module, name, None), float):
            return name
    return None


def _norm(module: nn.Module) -> Replacement:
    weight, name = module._parameters.get("weight"), _eps_name(module)
    if weight is None or set(module._parameters) != {"weight"} or weight.dim() != 1 or name is None:
        raise NotReplaced("rms_norm", "it has not one weight, of one dimension, and an epsilon")
    if not weight.is_floating_point():
        raise NotReplaced("rms_norm", f"its weight is of {weight.dtype}")
    original = type(module).forward
    if len(_parameters(original)) != 2:
        raise NotReplaced("rms_norm", f"its forward takes {', '.join(_parameters(original)[1:])}")
    offset, cast = _norm_kind(module, getattr(module, name), len(weight))

    def forward(self: Any, hidden_states: Tensor) -> Tensor:
        if hidden_states.dtype != self.weight.dtype:  # torch's promotion decides the dtype of the result
            return original(self, hidden_states)
        y = portable.rms_norm(
            hidden_states,
            self.weight,
            eps=getattr(self, name),
            weight_offset=offset,
            cast_before_weight=cast,
        )
        return y.to(hidden_states.dtype)  # autocast makes it float32, and the module does not

    note = f"portable.rms_norm{', of 1 + weight' if offset else ''}{', cast_before_weight' if cast else ''}"
    return Replacement("rms_norm", forward, note)


def _norm_kind(module: nn.Module, eps: float, size: int) -> tuple[float, bool]:
    """weight_offset and cast_before_weight of a norm, from its result in bfloat16."""
    made = torch.Generator().manual_seed(0)
    x, weight = torch.randn(16, size, generator=made), torch.randn(size, generator=made)
    x, weight = x.bfloat16(), weight.bfloat16()
    found = _tried("rms_norm", module, x, _parameters={"weight": nn.Parameter(weight, requires_grad=False)})
    wide = x.float()
    normal = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    best, kind = 0.0, (0.0, False)
    for offset in (0.0, 1.0):
        for cast in (False, True):
            rounded = normal.bfloat16().float() if cast else normal
            expected = ((offset + weight.float()) * rounded).bfloat16()
            same = (found == expected).float().mean().item() if found.shape == x.shape else 0.0
            if same > best:
                best, kind = same, (offset, cast)
    if best < 0.999:  # the square root and the mean may differ in the last bit, which few roundings show
        raise NotReplaced("rms_norm", "it computes another function than portable.rms_norm")
    return kind


# Activations.

_HOMES_OF_ACTIVATIONS = ("transformers.activations", "torch.nn.modules.activation")
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "relu2": lambda x: functional.relu(x).square(),
}


def _activation_name(part: str, function: Any) -> str:
    """Which of the activations a module or function is."""
    x = torch.linspace(-8, 8, 4097)
    with torch.no_grad():
        try:
            found = function(x.clone())
        except Exception as error:
            raise NotReplaced(part, f"its activation raised {type(error).__name__}") from error
    for name, formula in _ACTIVATIONS.items():
        if isinstance(found, Tensor) and torch.allclose(found, formula(x), rtol=1e-6, atol=2e-6):
            return name
    raise NotReplaced(part, f"its activation is none of {', '.join(_ACTIVATIONS)}")


def _activation(module: nn.Module) -> Replacement | None:
    if isinstance(module, nn.ReLU):
        return None
    if getattr(module, "inplace", False):
        raise NotReplaced("activation", "it writes its input")
    name = _activation_name("activation", module)
    op = getattr(portable, name)

    def forward(self: Any, input: Tensor) -> Tensor:
        return op(input)

    return Replacement("activation", forward, f"portable.{name}")


# Gated MLPs.


def _gated_mlp(module: nn.Module) -> Replacement:
    act = _act(module, {"gate_proj", "up_proj", "down_proj"}, "act_fn")
    name = _activation_name("mlp", act)
    linears = _linears(module, gate_proj=(8, 16), up_proj=(8, 16), down_proj=(16, 8))
    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(1))
    found = _tried("mlp", module, x, _modules={**module._modules, **linears})
    with torch.no_grad():
        expected = linears["down_proj"](act(linears["gate_proj"](x)) * linears["up_proj"](x))
    _hold("mlp", found, expected)
    if name == "silu":

        def swiglu(self: Any, x: Tensor) -> Tensor:
            return self.down_proj(portable.swiglu(self.gate_proj(x), self.up_proj(x)))

        return Replacement("mlp", swiglu, "portable.swiglu")
    op = getattr(portable, name)

    def gated(self: Any, x: Tensor) -> Tensor:
        return self.down_proj(op(self.gate_proj(x)) * self.up_proj(x))

    return Replacement("mlp", gated, f"portable.{name} and torch's product")


def _packed_mlp(module: nn.Module) -> Replacement:
    act = _act(module, {"gate_up_proj", "down_proj"}, "activation_fn", "act_fn")
    name = _activation_name("mlp", act)
    op: Any = getattr(portable, f"{name}_and_mul", None) if name in ("silu", "gelu", "gelu_tanh") else None
    if op is None:
        raise NotReplaced("mlp", f"there is no op for {name} of a packed gate")
    linears = _linears(module, gate_up_proj=(8, 32), down_proj=(16, 8))
    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(1))
    found = _tried("mlp", module, x, _modules={**module._modules, **linears})
    with torch.no_grad():
        gate, up = linears["gate_up_proj"](x).chunk(2, -1)
        expected = linears["down_proj"](act(gate) * up)
    _hold("mlp", found, expected)

    def forward(self: Any, hidden_states: Tensor) -> Tensor:
        return self.down_proj(op(self.gate_up_proj(hidden_states)))

    return Replacement("mlp", forward, f"portable.{name}_and_mul")


def _act(module: nn.Module, linears: set[str], *names: str) -> Any:
    """The activation of an MLP that has nothing but its linears and that."""
    for name in names:
        act = getattr(module, name, None)
        others = set(module._modules) - linears - {name}
        if callable(act) and not others and not module._parameters:
            if len(_parameters(type(module).forward)) != 2:
                break
            return act
    raise NotReplaced("mlp", "it is more than linears and an activation of one tensor")


def _linears(module: nn.Module, **sizes: tuple[int, int]) -> dict[str, nn.Module]:
    made = torch.Generator().manual_seed(2)
    found: dict[str, nn.Module] = {}
    for name, (size, outputs) in sizes.items():
        bias = getattr(module._modules[name], "bias", None) is not None
        found[name] = linear = nn.Linear(size, outputs, bias=bias, device="cpu", dtype=torch.float32)
        for parameter in linear.parameters():
            parameter.data.normal_(generator=made)
    return found


def _hold(part: str, found: Tensor, expected: Tensor) -> None:
    if found.shape != expected.shape or not torch.allclose(found, expected, rtol=1e-5, atol=1e-5):
        raise NotReplaced(part, "its forward computes more than down(act(gate) * up)")


# Trying a module out.


def _parameters(function: Callable[..., Any]) -> list[str]:
    return list(inspect.signature(function).parameters)


def _tried(part: str, module: nn.Module, x: Tensor, **members: dict[str, Any]) -> Tensor:
    """The class's forward of x, by a shallow copy of the module with `members` for its own."""
    tried = copy.copy(module)
    tried.__dict__.update(members)
    with torch.no_grad():
        try:
            found = type(module).forward(tried, x)
        except Exception as error:
            raise NotReplaced(part, f"its forward raised {type(error).__name__} on a small input") from error
    if not isinstance(found, Tensor):
        raise NotReplaced(part, "its forward answers no tensor")
    return found

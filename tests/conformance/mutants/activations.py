"""Wrong activations."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from .registry import Edit, mutant, source
from .tools import right, wide

HEADER = "_lib/rows/activation.h"


def changed(kind, function):
    """The right op but for `kind`, which `function` computes in float32 or wider."""

    def run(x, activation):
        return function(wide(x)).to(x.dtype) if activation == kind else right("activation")(x, activation)

    return run


@mutant("activation", "gelu by 1 + erf, which cancels in the tail")
def cancelling(x, activation):
    return changed("gelu", lambda z: 0.5 * z * (1 + torch.erf(z * math.sqrt(0.5))))(x, activation)


@mutant("activation", "gelu in its tanh form")
def tanh_form(x, activation):
    return changed("gelu", lambda z: F.gelu(z, approximate="tanh"))(x, activation)


@mutant("activation", "gelu_tanh without the cube")
def no_cube(x, activation):
    return changed("gelu_tanh", lambda z: z * torch.sigmoid(2 * math.sqrt(2 / math.pi) * z))(x, activation)


@mutant("activation", "quick_gelu by 1.7")
def short_factor(x, activation):
    return changed("quick_gelu", lambda z: z * torch.sigmoid(1.7 * z))(x, activation)


@mutant("activation", "relu2 squares what is below 0")
def squared(x, activation):
    return changed("relu2", torch.square)(x, activation)


@mutant("activation", "relu2 of NaN is 0")
def lost_nan(x, activation):
    return changed("relu2", lambda z: torch.where(z > 0, z * z, 0.0))(x, activation)


@mutant("activation", "sigmoid rounded to the input's type")
def narrow_sigmoid(x, activation):
    return x * torch.sigmoid(x) if activation == "silu" else right("activation")(x, activation)


@mutant("activation_backward", "relu2's slope is not doubled")
def single(dy, z, activation):
    dz = right("activation_backward")(dy, z, activation)
    return dz / 2 if activation == "relu2" else dz


@mutant("activation_backward", "quick_gelu's slope without its factor")
def silu_slope(dy, z, activation):
    return right("activation_backward")(dy, z, "silu" if activation == "quick_gelu" else activation)


source(
    *("activation", "cpp", "gfx942", "gelu's tail ends at -6"),
    Edit(HEADER, "math_min_number(math_abs($x), 20.0f); const float $half",
         "math_abs($x) < 6.0f ? math_abs($x) : 20.0f; const float $half"),
)  # fmt: skip
source(
    *("activation", "triton", "gfx942", "gelu's upper half from the lower tail"),
    Edit("_lib/triton/math.py", "$x * tl.fma(-half, other, 1.0))\n    return result",
         "$x * half * other)\n    return result"),
)  # fmt: skip


@mutant("gated_activation", "gate and up swapped")
def swapped_halves(x, activation):
    return right("gated_activation")(x.flip(-2), activation)


@mutant("gated_activation", "gate and up taken in turn")
def in_turn(x, activation):
    return right("gated_activation")(x.flatten(-2).unflatten(-1, (x.shape[-1], 2)).mT, activation)


@mutant("gated_activation", "activation rounded before the product")
def rounded_twice(x, activation):
    gate, up = x.unbind(-2)
    return right("activation")(gate, activation) * up


@mutant("gated_activation", "gelu_tanh for gelu")
def other_gelu(x, activation):
    return right("gated_activation")(x, "gelu_tanh" if activation == "gelu" else activation)


@mutant("gated_activation_backward", "dgate without up")
def lost_up(dy, x, activation):
    gate, _ = x.unbind(-2)
    return right("gated_activation_backward")(dy, torch.stack([gate, torch.ones_like(gate)], -2), activation)


@mutant("gated_activation_backward", "dgate and dup swapped")
def swapped_gradients(dy, x, activation):
    return right("gated_activation_backward")(dy, x, activation).flip(-2)


@mutant("swigluoai", "gate has a lower limit too")
def lower_limit(x, alpha, limit):
    gate, up = wide(x).unbind(-1)
    return right("swigluoai")(torch.stack([gate.clamp(min=-limit), up], -1), alpha, limit).to(x.dtype)


@mutant("swigluoai", "up without its limits")
def unlimited(x, alpha, limit):
    gate, up = wide(x).unbind(-1)
    g = gate.clamp(max=limit)
    return ((up + 1) * g * torch.sigmoid(alpha * g)).to(x.dtype)


@mutant("swigluoai", "up instead of up + 1")
def no_one(x, alpha, limit):
    gate, up = wide(x).unbind(-1)
    g = gate.clamp(max=limit)
    return (up.clamp(-limit, limit) * g * torch.sigmoid(alpha * g)).to(x.dtype)


@mutant("swigluoai", "alpha is always 1.702")
def fixed_alpha(x, alpha, limit):
    return right("swigluoai")(x, 1.702, limit)


@mutant("swigluoai", "gate and up as halves")
def as_halves(x, alpha, limit):
    return right("swigluoai")(x.flatten(-2).unflatten(-1, (2, x.shape[-2])).mT, alpha, limit)


@mutant("swigluoai_backward", "gradients pass the limits")
def through_the_limits(dy, x, alpha, limit):
    gate, up = wide(x).unbind(-1)
    g, u, d = gate.clamp(max=limit), up.clamp(-limit, limit), wide(dy)
    s = torch.sigmoid(alpha * g)
    dgate = d * (u + 1) * s * (1 + alpha * g * torch.sigmoid(-alpha * g))
    return torch.stack([dgate, d * g * s], -1).to(x.dtype)


source(
    *("gated_activation", "cpp", "gfx942", "up read one row too far"),
    Edit("gated_activation/gated_activation.cu",
         "load_vectors<true>($up, lane_ptr($gate + $stride), $s.base, $s.length); store_values(y",
         "load_vectors<true>($up, lane_ptr($gate + 2 * $stride), $s.base, $s.length); store_values(y"),
)  # fmt: skip
source(
    *("swigluoai_backward", "triton", "gfx942", "dgate and dup joined the other way round"),
    Edit("swigluoai/triton_impl.py", "tl.join(dgate, dup)", "tl.join(dup, dgate)"),
)

"""Wrong gated_linear."""

from __future__ import annotations

import torch.nn.functional as F

from .registry import Edit, mutant, source
from .tools import right, wide

FRAGMENTS = "matmul/gfx/fragments.h"
TILES = "matmul/gfx/tiles.h"
TRITON = "matmul/triton/plan.py"


@mutant("gated_linear", "gate and up swapped")
def swapped(x, w_gate_up, activation):
    return right("gated_linear")(x, w_gate_up.flip(0), activation)


@mutant("gated_linear", "rows of gate and up taken in turn")
def in_turn(x, w_gate_up, activation):
    _, n, k = w_gate_up.shape
    return right("gated_linear")(x, w_gate_up.reshape(n, 2, k).transpose(0, 1), activation)


@mutant("gated_linear", "gate and up rounded before the activation")
def rounded_sums(x, w_gate_up, activation):
    both = right("linear")(x, w_gate_up.flatten(0, 1)).unflatten(-1, w_gate_up.shape[:2])
    return right("gated_activation")(both, activation)


@mutant("gated_linear", "activation rounded before the product")
def rounded_activation(x, w_gate_up, activation):
    gate = right("linear")(x, w_gate_up[0], activation=activation)
    return (wide(gate) * F.linear(wide(x), wide(w_gate_up[1]))).to(x.dtype)


@mutant("gated_linear", "gelu_tanh for gelu")
def other_gelu(x, w_gate_up, activation):
    return right("gated_linear")(x, w_gate_up, "gelu_tanh" if activation == "gelu" else activation)


@mutant("gated_linear", "up is activated too")
def both_activated(x, w_gate_up, activation):
    one, two = (right("linear")(wide(x), wide(each), activation=activation) for each in w_gate_up)
    return (one * two).to(x.dtype)


@mutant("gated_linear", "tail of K (beyond a multiple of 32) missing from up")
def short_up(x, w_gate_up, activation):
    short = w_gate_up.clone()
    short[1, :, w_gate_up.shape[-1] // 32 * 32 :] = 0
    return right("gated_linear")(x, short, activation)


@mutant("gated_linear", "columns beyond a multiple of 64 are zero")
def missed_columns(x, w_gate_up, activation):
    y = right("gated_linear")(x, w_gate_up, activation)
    if y.shape[-1] > 64:
        y[..., y.shape[-1] // 64 * 64 :] = 0
    return y


source(
    *("gated_linear", "mfma", "gfx942", "fragments of gate and up in runs of 8 lines"),
    Edit(FRAGMENTS, "#define GATED_RUN 4", "#define GATED_RUN 8"),
)
source(
    *("gated_linear", "mfma", "gfx942", "up's lines are gate's"),
    Edit(TILES, "return GATED_TILE ? $line / GATED_RUN % 2 : 0;", "return 0;"),
)
source(
    *("gated_linear", "wmma", "gfx1100", "up's lines are gate's"),
    Edit(TILES, "return GATED_TILE ? $line / GATED_RUN % 2 : 0;", "return 0;"),
)
source(
    *("gated_linear", "triton", "gfx942", "k of up's last block not masked"),
    Edit(TRITON, "tl.load(b_ptrs + to_up, mask=in_n & (offs_k < K - k)[:, None], other=0.0)",
         "tl.load(b_ptrs + to_up, mask=in_n, other=0.0)"),
)  # fmt: skip

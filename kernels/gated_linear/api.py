"""The public function over the op of this folder: `gated_linear`.

It takes the weights packed, [gate | up] by rows. The op takes the same memory as (2, N, K).
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from portable.dispatch import dispatcher
from portable.dispatch.arguments import check_tensor, documented
from portable.errors import RankError, ShapeError

_op: Any = dispatcher.op("gated_linear")
_PACK = "torch.cat([gate, up]) packs two weights of (N, K)"


@documented
def gated_linear(x: Tensor, w_gate_up: Tensor, activation: str) -> Tensor:
    """activation(x @ gate.T) * (x @ up.T), gate = w_gate_up[:N] and up = w_gate_up[N:], by one kernel.

    x is (..., K), w_gate_up (2 N, K), the result (..., N); activation is "silu", "gelu" or "gelu_tanh". It
    equals `portable.silu_and_mul(portable.linear(x, w_gate_up))`, but [gate | up] is not stored: both sums
    stay in float32 registers, where the activation and the product are computed, and the result is rounded
    once. w_gate_up is the weight of vLLM's and transformers' gate_up_proj; torch.cat([gate, up]) packs
    separate ones. It may be transposed in memory.

    bfloat16, float16, float32 and float64, the same of both. The backward pass computes gate and up again.
    Raises RankError, ShapeError, DtypeError, NotATensorError or ParameterError that name the argument.
    Source: Shazeer 2020 (GLU variants).
    """
    name = "gated_linear"
    check_tensor(name, "x", x)
    if check_tensor(name, "w_gate_up", w_gate_up).dim() != 2:
        raise RankError(name, "w_gate_up", w_gate_up.dim(), f"2: (2 N, K); {_PACK}")
    rows, columns = w_gate_up.shape
    if rows % 2:
        raise ShapeError(name, "w_gate_up", (rows, columns), f"an even number of rows; {_PACK}")
    if x.dim() and x.shape[-1] != columns:
        raise ShapeError(name, "w_gate_up", (rows, columns), f"rows of {x.shape[-1]}, as those of x")
    return _op(x, w_gate_up.unflatten(0, (2, rows // 2)), activation)

"""swiglu and its gradient through torch: any device, float32 inside (float64 for float64)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """y = silu(gate) * up, rounded once."""
    wide = torch.promote_types(gate.dtype, torch.float32)
    return (F.silu(gate.to(wide)) * up.to(wide)).to(gate.dtype)


def swiglu_backward(dy: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of gate and up, each rounded once."""
    wide = torch.promote_types(gate.dtype, torch.float32)
    dtype = gate.dtype
    dy, gate, up = dy.to(wide), gate.to(wide), up.to(wide)
    s = torch.sigmoid(gate)
    dgate = dy * up * s * (1 + gate * torch.sigmoid(-gate))
    return dgate.to(dtype), (dy * gate * s).to(dtype)

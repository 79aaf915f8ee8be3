"""Calls of attention's ops that plans of several units are tested on."""

from __future__ import annotations

from typing import Any

import torch

from portable.dispatch import arguments, compiled_call
from portable.plan import Call, Device, TensorInfo
from portable.spec import registry

DEFAULTS = {"causal": False, "scale": None, "window_left": None, "window_right": None, "softcap": None}

WINDOWS_OF_300_BY_500 = (
    ({}, None, None),
    ({"causal": True}, None, 0),
    ({"window_right": 5, "causal": True}, None, 0),
    ({"window_left": 7}, 7, None),
    ({"window_left": 0, "window_right": 3}, 0, 3),
    ({"window_left": 499, "window_right": 299}, None, None),
    ({"window_left": 498, "window_right": 298}, 498, 298),
    ({"window_left": 2**40, "window_right": 2**40}, None, None),
)
"""Parameters, and how many keys left and right of its own a query then sees, None for all: of 300 queries and
500 keys."""


def call_of(
    op: str, implementation: str, device: Device, *tensors: torch.Tensor | None,
    config: dict[str, Any] | None = None, **params: Any,
) -> Call:  # fmt: skip
    """A call of an op as the dispatcher makes it, of tensors on the meta device, None for those left out; the
    implementation's default config where none is given."""
    spec = registry.spec(op)
    given = [*tensors, *[None] * (len(spec.inputs) - len(tensors))]
    values = [params.get(name, param.default) for name, param in spec.params.items()]
    checked = arguments.check_params(spec, values, given)
    signature, _ = compiled_call.call_signature(spec, given, checked, None)
    found = spec.implementation(implementation)
    assert found is not None
    used = found.default if config is None else config
    return Call(signature.tensors, signature.params, signature.axes, device, used)


def dbias_call(
    B: int = 2, H: int = 4, G: int = 2, M: int = 300, N: int = 512, D: int = 128, E: int = 0, *,
    device: Device, alignment: int = 16, dtype: str = "bfloat16", dlse: bool = False,
    config: dict[str, Any] | None = None, bias: TensorInfo | None = None, **params: Any,
) -> Call:  # fmt: skip
    """A call of attention_dbias; E of 0 is D, and `bias` stands for a dense one of (B, H, M, N)."""

    def info(*shape: int, dtype: str = dtype, alignment: int = 16) -> TensorInfo:
        return TensorInfo(shape, torch.empty(shape, device="meta").stride(), dtype, alignment)

    E = E or D
    rows = {"do": (H, M, E), "q": (H, M, D), "k": (G, N, D), "v": (G, N, E), "o": (H, M, E)}
    tensors: dict[str, TensorInfo | None] = {
        name: info(B, *shape, alignment=alignment) for name, shape in rows.items()
    }
    tensors |= {"lse": info(B, H, M, dtype="float32"), "bias": bias or info(B, H, M, N)}
    tensors |= {"dlse": info(B, H, M, dtype="float32") if dlse else None, "dbias": info(B, H, M, N)}
    axes = {"H": H, "G": G, "M": M, "N": N, "D": D, "E": E}
    return Call(tensors, {**DEFAULTS, **params}, axes, device, config or {})

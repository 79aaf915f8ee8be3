"""The kernels of liger-kernel, flag-gems and quack-kernels that compute one of the ops, as baselines.

Their signatures were read on 2026-11-21 in the sources of liger-kernel 0.8.5, flag-gems 5.0.2 and
quack-kernels 0.6.5. They are imported only when used. An adapter looks its functions up and prepares
what training would have kept from the forward pass; the call that it returns is what is timed.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

Tensors = Mapping[str, Tensor | None]
Params = Mapping[str, Any]
Call = Callable[[], object]
Adapter = Callable[[Tensors, Params], Call]
"""Takes the op's inputs by name and all its parameters, and gives the call that is timed, whose result is
the op's outputs in the spec's order. Raises Unsupported on what the library does not do."""


class Unsupported(ValueError):
    """A library does not support this call; the message says what."""


def installed(name: str) -> Any:
    """A module of a library. Raises Unsupported where the library is not installed."""
    package = name.partition(".")[0]
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name == package:
            raise Unsupported("not installed") from None
        raise


def given(tensors: Tensors, name: str) -> Tensor:
    """An input that the library cannot do without."""
    tensor = tensors.get(name)
    if tensor is None:
        raise Unsupported(f"needs {name}")
    return tensor


def _rows(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1, tensor.shape[-1])


def _last_dim(tensor: Tensor, params: Params) -> None:
    if params["dim"] % tensor.dim() != tensor.dim() - 1:
        raise Unsupported(f"takes the last dimension only, not dim {params['dim']}")


def _matrices(tensors: Tensors, params: Params, dims: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    a, b = given(tensors, "a"), given(tensors, "b")
    if params["precision"] != "ieee":
        raise Unsupported(f"has no precision {params['precision']}")
    if a.dim() != b.dim() or a.dim() not in dims:
        known = " or ".join(map(str, dims))
        raise Unsupported(f"takes matrices of {known} dimensions, not {a.dim()} and {b.dim()}")
    return a, b


# liger-kernel ---------------------------------------------------------------------------------------

_LIGER = "liger_kernel.ops"
_LIGER_NORM = (0.0, "gemma")
"""No offset to the weight, and the casting mode that computes all in float32 and rounds once."""


def _liger_rms_norm(tensors: Tensors, params: Params) -> Call:
    apply = installed(_LIGER).LigerRMSNormFunction.apply
    x, weight = given(tensors, "x"), tensors.get("weight")
    return lambda: apply(x, weight, params["eps"], *_LIGER_NORM, False, None)


def _liger_rms_norm_backward(tensors: Tensors, params: Params) -> Call:
    """Not in place, which costs it a fill of dx: in place it would write over dy."""
    ops = installed(_LIGER)
    dy, x, weight = given(tensors, "dy"), given(tensors, "x"), tensors.get("weight")
    _, rows, rstd, block, warps, mode = ops.rms_norm_forward(x, weight, params["eps"], *_LIGER_NORM, None)
    return lambda: ops.rms_norm_backward(dy, rows, weight, rstd, 0.0, mode, block, warps, False, None)


def _liger_fused_add_rms_norm(tensors: Tensors, params: Params) -> Call:
    apply = installed(_LIGER).LigerFusedAddRMSNormFunction.apply
    x, residual, weight = (given(tensors, name) for name in ("x", "residual", "weight"))
    if params["weight_offset"] or params["cast_before_weight"]:
        raise Unsupported("is called with the weight as it is, rounded once")
    return lambda: apply(x, residual, weight, params["eps"], *_LIGER_NORM, False)


def _liger_rope(tensors: Tensors, params: Params) -> Call:
    """Of copies of q and k, which it rotates in place: it touches half the memory."""
    apply = installed(_LIGER).LigerRopeFunction.apply
    if params["interleaved"] or tensors.get("positions") is not None:
        raise Unsupported("takes halves, and tables with a row for each token")
    q, k = (given(tensors, name).clone().transpose(1, 2) for name in ("q", "k"))
    tables = [torch.cat([given(tensors, name)[: q.shape[2]]] * 2, -1) for name in ("cos", "sin")]

    def call() -> object:
        return tuple(each.transpose(1, 2) for each in apply(q, k, *tables))

    return call


def _liger_layer_norm(tensors: Tensors, params: Params) -> Call:
    apply = installed(_LIGER).LigerLayerNormFunction.apply
    x, weight, bias = (given(tensors, name) for name in ("x", "weight", "bias"))
    return lambda: apply(x, weight, bias, params["eps"])


def _liger_layer_norm_backward(tensors: Tensors, params: Params) -> Call:
    ops = installed(_LIGER)
    dy, x, weight, bias = (given(tensors, name) for name in ("dy", "x", "weight", "bias"))
    _, rows, mean, rstd, _, _ = ops.layer_norm_forward(x, weight, bias, params["eps"])
    return lambda: ops.layer_norm_backward(dy, rows, weight, bias, mean, rstd)


def _liger_softmax(tensors: Tensors, params: Params) -> Call:
    apply, x = installed(_LIGER).LigerSoftmaxFunction.apply, given(tensors, "x")
    _last_dim(x, params)
    return lambda: apply(x)


def _liger_softmax_backward(tensors: Tensors, params: Params) -> Call:
    module = installed(f"{_LIGER}.softmax")
    dy, y = given(tensors, "dy"), given(tensors, "y")
    _last_dim(y, params)
    _, block, warps, several_blocks = module._softmax_forward(y)
    return lambda: module._softmax_backward(dy, y, block, warps, several_blocks)


def _liger_swiglu(tensors: Tensors, params: Params) -> Call:
    apply = installed(_LIGER).LigerSiLUMulFunction.apply
    gate, up = given(tensors, "gate"), given(tensors, "up")
    return lambda: apply(gate, up)


def _liger_swiglu_backward(tensors: Tensors, params: Params) -> Call:
    """Of gate and up side by side in one tensor: liger's backward of two tensors writes over both."""
    backward = installed(f"{_LIGER}.swiglu").swiglu_fused_gate_up_backward
    dy, gate, up = (given(tensors, name) for name in ("dy", "gate", "up"))
    both = torch.cat([gate, up], -1)
    return lambda: backward(both, dy).view(both.shape).chunk(2, -1)


# flag-gems ------------------------------------------------------------------------------------------

_GEMS = "flag_gems"


def _gems_rms_norm(tensors: Tensors, params: Params) -> Call:
    gems, x, weight = installed(_GEMS), given(tensors, "x"), given(tensors, "weight")
    return lambda: gems.rms_norm(x, x.shape[-1:], weight, params["eps"])


def _gems_rms_norm_backward(tensors: Tensors, params: Params) -> Call:
    gems = installed(_GEMS)
    dy, x, weight = (given(tensors, name) for name in ("dy", "x", "weight"))
    shape, eps = x.shape[-1:], params["eps"]
    _, inverse = gems.rms_norm_forward(x, shape, weight, eps)
    return lambda: gems.rms_norm_backward(dy, x, inverse, shape, weight, eps)


def _gems_layer_norm(tensors: Tensors, params: Params) -> Call:
    gems, x = installed(_GEMS), given(tensors, "x")
    weight, bias = tensors.get("weight"), tensors.get("bias")
    return lambda: gems.layer_norm(x, x.shape[-1:], weight, bias, params["eps"])[0]


def _gems_layer_norm_backward(tensors: Tensors, params: Params) -> Call:
    """By rows: its backward takes the first dimension for the number of rows."""
    gems, shape = installed(_GEMS), given(tensors, "x").shape
    dy, x = _rows(given(tensors, "dy")), _rows(given(tensors, "x"))
    weight, bias = tensors.get("weight"), tensors.get("bias")
    mask = [True, weight is not None, bias is not None]
    _, mean, rstd = gems.layer_norm(x, x.shape[-1:], weight, bias, params["eps"])

    def call() -> object:
        dx, *rest = gems.layer_norm_backward(dy, x, x.shape[-1:], mean, rstd, weight, bias, mask)
        return dx.view(shape), *rest

    return call


def _gems_softmax(tensors: Tensors, params: Params) -> Call:
    gems, x = installed(_GEMS), given(tensors, "x")
    return lambda: gems.softmax(x, params["dim"])


def _gems_softmax_backward(tensors: Tensors, params: Params) -> Call:
    gems, dy, y = installed(_GEMS), given(tensors, "dy"), given(tensors, "y")
    return lambda: gems.softmax_backward(dy, y, params["dim"], y.dtype)


def _gems_swiglu(tensors: Tensors, params: Params) -> Call:
    gems, gate, up = installed(_GEMS), given(tensors, "gate"), given(tensors, "up")
    return lambda: gems.silu_and_mul(gate, up)


def _gems_swiglu_backward(tensors: Tensors, params: Params) -> Call:
    kernel = installed(f"{_GEMS}.fused.silu_and_mul").silu_and_mul_grad_kernel
    dy, gate, up = (given(tensors, name) for name in ("dy", "gate", "up"))
    return lambda: kernel(gate, up, dy)


def _gems_matmul(tensors: Tensors, params: Params) -> Call:
    a, b = _matrices(tensors, params, (2, 3))
    gems = installed(_GEMS)
    return (lambda: gems.mm(a, b)) if a.dim() == 2 else (lambda: gems.bmm(a, b))


def _gems_linear(tensors: Tensors, params: Params) -> Call:
    """addmm (mm without a bias), then the activation's own kernel."""
    gems, bias = installed(_GEMS), tensors.get("bias")
    x, weight, name = given(tensors, "x"), given(tensors, "weight").t(), params["activation"]
    rows, shape = _rows(x), (*x.shape[:-1], weight.shape[-1])

    def call() -> object:
        z = gems.mm(rows, weight) if bias is None else gems.addmm(bias, rows, weight)
        if name in ("gelu", "gelu_tanh"):
            z = gems.gelu(z, approximate="tanh" if name == "gelu_tanh" else "none")
        elif name is not None:
            z = getattr(gems, name)(z)
        return z.view(shape)

    return call


def _gems_activation_backward(tensors: Tensors, params: Params) -> Call:
    gems, dy, z, name = installed(_GEMS), given(tensors, "dy"), given(tensors, "z"), params["activation"]
    if name == "relu":
        return lambda: gems.threshold_backward(dy, z, 0)
    if name == "silu":
        return lambda: gems.silu_backward(dy, z)
    return lambda: gems.gelu_backward(dy, z, approximate="tanh" if name == "gelu_tanh" else "none")


# quack-kernels --------------------------------------------------------------------------------------

_QUACK_ACTIVATIONS = {"relu": "relu", "silu": "silu", "gelu": "gelu_erf", "gelu_tanh": "gelu_tanh_approx"}


def _quack_rms_norm(tensors: Tensors, params: Params) -> Call:
    rmsnorm, x, weight = installed("quack").rmsnorm, given(tensors, "x"), tensors.get("weight")
    return lambda: rmsnorm(x, weight, eps=params["eps"])


def _quack_rms_norm_backward(tensors: Tensors, params: Params) -> Call:
    module, shape = installed("quack.rmsnorm"), given(tensors, "x").shape
    dy, x, weight = _rows(given(tensors, "dy")), _rows(given(tensors, "x")), tensors.get("weight")
    _, _, rstd = module.rmsnorm_fwd(x, weight, eps=params["eps"], store_rstd=True)

    def call() -> object:
        dx, dweight, *_ = module.rmsnorm_bwd(x, weight, dy, rstd)
        return dx.view(shape), dweight

    return call


def _quack_norm_weights(tensors: Tensors) -> tuple[Tensor, Tensor | None]:
    weight, bias = given(tensors, "weight"), tensors.get("bias")
    if weight.dtype != torch.float32:
        raise Unsupported(f"takes a float32 weight, not {str(weight.dtype).removeprefix('torch.')}")
    return weight, bias


def _quack_layer_norm(tensors: Tensors, params: Params) -> Call:
    forward, x = installed("quack.rmsnorm").layernorm_fwd, given(tensors, "x")
    weight, bias = _quack_norm_weights(tensors)
    rows = _rows(x)
    return lambda: forward(rows, weight, bias, eps=params["eps"]).view(x.shape)


def _quack_layer_norm_backward(tensors: Tensors, params: Params) -> Call:
    module, shape = installed("quack.rmsnorm"), given(tensors, "x").shape
    dy, x = _rows(given(tensors, "dy")), _rows(given(tensors, "x"))
    weight, bias = _quack_norm_weights(tensors)
    _, rstd, mean = module.layernorm_fwd(
        x, weight, bias, eps=params["eps"], return_rstd=True, return_mean=True
    )

    def call() -> object:
        dx, dweight, dbias = module.layernorm_bwd(x, weight, dy, rstd, mean, has_bias=bias is not None)
        return dx.view(shape), dweight, dbias

    return call


def _quack_softmax(tensors: Tensors, params: Params) -> Call:
    softmax, x = installed("quack").softmax, given(tensors, "x")
    _last_dim(x, params)
    rows = _rows(x)
    return lambda: softmax(rows).view(x.shape)


def _quack_softmax_backward(tensors: Tensors, params: Params) -> Call:
    backward, dy, y = installed("quack.softmax").softmax_bwd, given(tensors, "dy"), given(tensors, "y")
    _last_dim(y, params)
    dy_rows, y_rows = _rows(dy), _rows(y)
    return lambda: backward(dy_rows, y_rows).view(y.shape)


def _quack_matmul(tensors: Tensors, params: Params) -> Call:
    gemm = installed("quack.gemm_interface").gemm
    a, b = _matrices(tensors, params, (2, 3))
    return lambda: gemm(a, b)


def _quack_linear(tensors: Tensors, params: Params) -> Call:
    """One kernel with the bias and the activation in it, and without the sum beside its result."""
    module, bias = installed("quack.gemm_interface"), tensors.get("bias")
    x, weight, name = given(tensors, "x"), given(tensors, "weight").t(), params["activation"]
    rows, shape = _rows(x), (*x.shape[:-1], weight.shape[-1])
    if name is None:
        return lambda: module.gemm(rows, weight, bias=bias).view(shape)
    known = _QUACK_ACTIVATIONS[name]
    return lambda: module.gemm_act(
        rows, weight, bias=bias, activation=known, store_preact=False
    )[1].view(shape)  # fmt: skip


LIBRARIES: Mapping[str, tuple[str, Mapping[str, Adapter]]] = {
    "liger": ("liger_kernel", {
        "rms_norm": _liger_rms_norm, "rms_norm_backward": _liger_rms_norm_backward,
        "fused_add_rms_norm": _liger_fused_add_rms_norm, "rope": _liger_rope,
        "layer_norm": _liger_layer_norm, "layer_norm_backward": _liger_layer_norm_backward,
        "softmax": _liger_softmax, "softmax_backward": _liger_softmax_backward,
        "swiglu": _liger_swiglu, "swiglu_backward": _liger_swiglu_backward,
    }),
    "flag_gems": ("flag_gems", {
        "rms_norm": _gems_rms_norm, "rms_norm_backward": _gems_rms_norm_backward,
        "layer_norm": _gems_layer_norm, "layer_norm_backward": _gems_layer_norm_backward,
        "softmax": _gems_softmax, "softmax_backward": _gems_softmax_backward,
        "swiglu": _gems_swiglu, "swiglu_backward": _gems_swiglu_backward,
        "matmul": _gems_matmul, "linear": _gems_linear, "activation_backward": _gems_activation_backward,
    }),
    "quack": ("quack", {
        "rms_norm": _quack_rms_norm, "rms_norm_backward": _quack_rms_norm_backward,
        "layer_norm": _quack_layer_norm, "layer_norm_backward": _quack_layer_norm_backward,
        "softmax": _quack_softmax, "softmax_backward": _quack_softmax_backward,
        "matmul": _quack_matmul, "linear": _quack_linear,
    }),
}  # fmt: skip
"""Per library its package and, per op, its adapter. quack has swiglu only inside a matrix product."""

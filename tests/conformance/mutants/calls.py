"""Faults around a right computation: what a call does to memory, to its tensors and to autograd."""

from __future__ import annotations

import torch

import portable

from .registry import mutant


@mutant("matmul", "element behind out= written", kind="call")
def beside_out(op, *args, out=None, **params):
    result = op(*args, out=out, **params)
    if out is not None:
        out.as_strided((1,), (1,), out.storage_offset() + out.numel()).zero_()
    return result


@mutant("matmul", "element before out= written", kind="call")
def before_out(op, *args, out=None, **params):
    result = op(*args, out=out, **params)
    if out is not None:
        out.as_strided((1,), (1,), out.storage_offset() - 1).zero_()
    return result


@mutant("matmul", "out= filled but another tensor returned", kind="call")
def other_tensor(op, *args, out=None, **params):
    result = op(*args, out=out, **params)
    return result.clone() if out is not None else result


@mutant("matmul", "out= ignored", kind="call")
def ignored_out(op, *args, out=None, **params):
    result = op(*args, **params)
    return result if out is None else out


@mutant("softmax", "gradient cut off", kind="call")
def detached(op, *args, **params):
    return op(*(a.detach() if isinstance(a, torch.Tensor) else a for a in args), **{
        name: value.detach() if isinstance(value, torch.Tensor) else value for name, value in params.items()
    })  # fmt: skip


@mutant("rms_norm", "gradient doubled", kind="call")
def doubled(op, *args, **params):
    y = op(*args, **params)
    if y.requires_grad:
        y.register_hook(lambda grad: 2 * grad)
    return y


@mutant("softmax", "one thread in two sees the other's result", kind="call")
def crossed(op, *args, **params):
    import threading

    y = op(*args, **params)
    return y if threading.current_thread() is threading.main_thread() else y.roll(1, 0)


@mutant("matmul", "of two lengths of K the shorter, no error", kind="call")
def shorter(op, a=None, b=None, **params):
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and min(a.dim(), b.dim()) > 1:
        k = min(a.shape[-1], b.shape[-2])
        a, b = a[..., :k], b[..., :k, :]
    return op(a, b, **params)


@mutant("softmax", "unknown arguments ignored", kind="call")
def careless(op, x=None, dim=-1, **params):
    return op(x, dim)


@mutant("linear", "mixed dtypes converted, not refused", kind="call")
def converted(op, x=None, weight=None, bias=None, **params):
    if isinstance(x, torch.Tensor) and isinstance(weight, torch.Tensor) and x.is_floating_point():
        weight = weight.to(x.dtype)
    return op(x, weight, bias, **params)


@mutant("activation_backward", "an unknown activation taken for silu", kind="call")
def lenient(op, *args, activation="silu", **params):
    known = ("relu", "gelu", "gelu_tanh", "silu")
    return op(*args, activation=activation if activation in known else "silu", **params)


@mutant("layer_norm", "an error of torch's in the place of the documented one", kind="call")
def foreign_error(op, *args, **params):
    try:
        return op(*args, **params)
    except portable.errors.ShapeError as error:
        raise RuntimeError(str(error)) from error


@mutant("swiglu", "shapes checked after the kernel has run", kind="call")
def late_check(op, gate=None, up=None, **params):
    try:
        return op(gate, up, **params)
    except portable.errors.ShapeError:
        assert gate is not None
        op(gate, torch.zeros_like(gate))
        raise

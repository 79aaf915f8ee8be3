"""Faults around a right computation: what a call does to memory, to its tensors and to autograd."""

from __future__ import annotations

import torch

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

"""Kernels that a program registers for a GPU, `torch.library`'s "CUDA", taken for the emulated GPU's tensors.

These are CPU tensors, so torch's dispatcher asks for a "CPU" kernel. What is registered for "CUDA" within
`portable.emulated` is entered as that one; it gets the calls on the GPU's tensors and passes those on the
host's to the kernel that was there. That goes for replaced operators of torch (`Library("aten", "IMPL")`) as
for a library's own (`torch.library.custom_op`, `impl`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from portable.backends.rocm.emulator import torch_gpu, torch_graph

_KEYS = {"CUDA": "CPU", "AutogradCUDA": "AutogradCPU"}


def registered(impl: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.library.Library.impl` that enters a GPU's kernel as the emulated GPU's."""

    def run(
        self: Any, op_name: Any, fn: Any, dispatch_key: str = "", *, with_keyset: bool = False, **given: Any
    ) -> None:
        key = _KEYS.get(dispatch_key or self.dispatch_key)
        if key is None or fn is torch.library.fallthrough_kernel:
            impl(self, op_name, fn, dispatch_key, with_keyset=with_keyset, **given)
            return
        name = op_name if isinstance(op_name, str) else op_name._schema.name + _overload(op_name)
        name = name if "::" in name else f"{self.ns}::{name}"
        torch_graph.registered(name)
        impl(self, op_name, _kernel(fn, name, key, with_keyset), key, with_keyset=True, **given)

    return run


def redispatched(redispatch: Callable[..., Any]) -> Callable[..., Any]:
    """`torch._ops.OpOverload.redispatch`, which no mode sees, with the GPU's device as its memory's."""

    def run(self: Any, keyset: Any, /, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("device") is not None and torch.device(kwargs["device"]).type == "cuda":
            kwargs["device"] = torch.device("cpu")
        return redispatch(self, keyset, *args, **kwargs)

    return run


def _overload(op: Any) -> str:
    overload = op._schema.overload_name
    return f".{overload}" if overload else ""


def _former(name: str, key: str) -> Any:
    """The kernel that the host's tensors have, or None."""
    if not torch._C._dispatch_has_computed_kernel_for_dispatch_key(name, key):
        return None
    return torch.library.get_kernel(name, key)


def _boxed(schema: Any, args: Any) -> Iterator[Any]:
    """Arguments as a kernel takes them: a number where a tensor belongs (`x + 1`) is one."""
    for value, argument in zip(args, schema.arguments, strict=False):
        number = isinstance(value, (int, float, complex)) and isinstance(argument.type, torch.TensorType)
        yield torch.tensor(value) if number else value


def _kernel(fn: Callable[..., Any], name: str, key: str, with_keyset: bool) -> Callable[..., Any]:
    on_gpu, former = torch_gpu.under_mode(fn), _former(name, key)
    base, _, overload = name.partition(".")
    schema = torch._C._get_schema(base, overload)

    def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        if former is not None and not torch_gpu.on_gpu([*args, *kwargs.values()]):
            return former.call_boxed(keyset, *_boxed(schema, args), **kwargs)
        if kwargs.get("device") is not None:
            kwargs["device"] = torch.device("cuda", 0)
        return on_gpu(*([keyset] if with_keyset else []), *args, **kwargs)

    return kernel

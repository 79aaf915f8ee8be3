"""Each op as a citizen of torch: registered, traceable, differentiable, autocast, batched by vmap.

`define` makes `torch.ops.portable.<op>` from a spec. Eager calls that need none of this do not come
here (portable.dispatch.dispatcher).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from portable.dispatch import arguments, autograd, batching, fast_path

if TYPE_CHECKING:
    from portable.spec.model import Spec

_library = torch.library.Library("portable", "DEF")
_AUTOCAST = {"cuda": "AutocastCUDA", "cpu": "AutocastCPU"}  # torch's dispatch keys by device type
# needs_exact_strides: a fake result's strides follow the inputs', which Inductor must therefore keep.
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides)
Run = Callable[[Sequence[Any], Sequence[Any], Any], Any]


def define(spec: Spec, signature: arguments.Signature, run: Run, fake: Run, lookup: autograd.Lookup) -> Any:
    """Register one op; `run(inputs, params, out)` computes it. Returns its overload."""
    name = f"portable::{spec.op}"
    _library.define(spec.torch_schema(), tags=_TAGS)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        inputs, params, _ = signature.split(signature.bind(args, kwargs))
        return run(inputs, params, None)

    def meta(*args: Any, **kwargs: Any) -> Any:
        _tell_inductor(name)
        inputs, params, _ = signature.split(signature.bind(args, kwargs))
        return fake(inputs, params, None)

    _library.impl(spec.op, fast_path.untraced(kernel), "CompositeExplicitAutograd")
    torch.library.register_fake(name, meta, lib=_library)
    overload = getattr(torch.ops.portable, spec.op).default
    autograd.register(spec, signature, overload, _library, lookup)
    batching.register(spec, signature, overload, _library)
    if spec.autocast != "none":
        for device_type, key in _AUTOCAST.items():
            _library.impl(spec.op, _autocast(spec, signature, overload, device_type, key), key)
    return overload


def define_out(spec: Spec, signature: arguments.Signature, run: Run, fake: Run) -> Any:
    """Register the `out` overload, which returns nothing and writes `out`."""
    schema = spec.torch_schema().split(" -> ")[0].removesuffix(")")
    star = "" if "*," in schema else "*, "
    _library.define(
        f"{schema.replace(spec.op, spec.op + '.out', 1)}, {star}Tensor(a!) out) -> ()", tags=_TAGS
    )

    def kernel(*args: Any, **kwargs: Any) -> None:
        inputs, params, out = signature.split(signature.bind(args, kwargs))
        run(inputs, params, out)

    def meta(*args: Any, **kwargs: Any) -> None:
        _tell_inductor(f"portable::{spec.op}")
        inputs, params, out = signature.split(signature.bind(args, kwargs))
        made = fake(inputs, params, None)
        arguments.check_out_form(spec, out, made.shape, made.dtype, made.device)

    _library.impl(f"{spec.op}.out", fast_path.untraced(kernel), "CompositeExplicitAutograd")
    torch.library.register_fake(f"portable::{spec.op}.out", meta, lib=_library)
    overload = getattr(torch.ops.portable, spec.op).out
    autograd.register_out(spec, signature, overload, _library)
    batching.register_out(spec, _library)
    return overload


def _tell_inductor(name: str) -> None:
    """Put an op that is being traced among those that Inductor, where it is loaded, is to call as they are.
    So it does others, but torch 2.11 first makes a text of such a node and of all that leads to it, which
    takes a time exponential in a model's layers: the training step of four did not end."""
    calls = getattr(sys.modules.get("torch._inductor.lowering"), "FALLBACK_ALLOW_LIST", None)
    if calls is not None:
        calls.add(name)


def _autocast(
    spec: Spec, signature: arguments.Signature, overload: Any, device_type: str, key: str
) -> Callable[..., Any]:
    """The op under autocast."""
    excluded = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))

    def kernel(*args: Any, **kwargs: Any) -> Any:
        inputs, params, _ = signature.split(signature.bind(args, kwargs))
        given = signature.join(autocast_inputs(spec, inputs, device_type), params)
        with torch._C._ExcludeDispatchKeyGuard(excluded):
            return overload(**dict(zip(signature.names, given, strict=False)))

    return fast_path.untraced(kernel)


def autocast_inputs(spec: Spec, inputs: Sequence[Any], device_type: str) -> list[Any]:
    """Floating inputs cast to the types that the spec names for autocast; float64 is not."""
    if spec.autocast == "none":
        return list(inputs)
    target = torch.float32
    if spec.autocast == "lower":
        target = torch.get_autocast_dtype(device_type)
    elif spec.autocast == "widest":
        floats = [tensor.dtype for tensor in inputs if _is_wide(tensor)]
        for dtype in floats:
            target = dtype if dtype is floats[0] else torch.promote_types(target, dtype)

    def cast(name: str, value: Any) -> Any:
        if not _is_wide(value) or arguments.dtype_name(target) not in spec.legal_dtypes(name):
            return value
        eligible = value.dtype not in (target, torch.float64) and value.device.type == device_type
        return value.to(target) if eligible else value

    return [cast(name, value) for name, value in zip(spec.inputs, inputs, strict=True)]


def _is_wide(value: Any) -> bool:
    """Whether autocast may cast it. float8, which torch promotes with nothing, is left to the checks."""
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.element_size() > 1

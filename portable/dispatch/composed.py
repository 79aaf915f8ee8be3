"""An op as torch's own operations, which torch differentiates and batches: its `torch` implementation.

Kernels compute the op and, where the spec has a gradient, its first derivative in reverse mode. Everything
else, that is tangents and derivatives of gradients, torch takes from here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch

from portable.dispatch import arguments, compiled_call, fast_path, pins, select
from portable.errors import UnsupportedGradientError, UnsupportedTransformError
from portable.spec import registry

if TYPE_CHECKING:
    from portable.spec.model import Entry, Spec


def compute(spec: Spec, inputs: Sequence[Any], params: Mapping[str, Any]) -> tuple[torch.Tensor, ...]:
    """The outputs, in float32 or wider inside and rounded once; `params` are checked.

    Raises UnsupportedGradientError where the spec has no torch implementation, and where batch_invariant is
    asked for and that promises nothing.
    """
    axis = compiled_call.op_axis(spec, list(params.values()))
    given = [
        compiled_call.axis_last(t, axis, field.leading)
        for field, t in zip(spec.inputs.values(), inputs, strict=True)
    ]
    from portable.spec.model import RoundedReference  # which rounds once itself

    types = [dtype for _, dtype in arguments.bind(spec, given, params).outputs.values()]
    last = {name: -1 if spec.params[name].type == "axis" else value for name, value in params.items()}
    entry = _entry(spec)
    function = registry.of_tensors(entry, spec.inputs, last)
    device_type = arguments.autocast_device(inputs)
    try:
        with nullcontext() if device_type is None else torch.autocast(device_type, enabled=False):
            made = function(*(given if isinstance(entry, RoundedReference) else map(_widened, given)))
    except RuntimeError as error:  # sizes that only the data say, of what vmap or compile has no data of
        if not fast_path.is_busy() or isinstance(error, torch.OutOfMemoryError):
            raise
        what = f"torch cannot transform the op's torch implementation: {str(error).splitlines()[0]}"
        raise UnsupportedTransformError(spec.op, what) from error
    several = made if isinstance(made, tuple) else (made,)
    return tuple(
        compiled_call.axis_back(tensor.to(dtype), axis, field.leading)
        for field, dtype, tensor in zip(spec.outputs.values(), types, several, strict=True)
    )


def _widened(tensor: Any) -> Any:
    if tensor is None or tensor.dtype not in (torch.float16, torch.bfloat16):
        return tensor
    return tensor.to(torch.float32)


def _entry(spec: Spec) -> Entry:
    for each in spec.implementations:
        if each.kind == "run" and pins.batch_invariant() and not each.batch_invariant:
            reason = f"it is composed of torch's own operations: {select.MAY_DEPEND}"
            raise UnsupportedGradientError(spec.op, reason, "Ask for it outside of the block")
        if each.kind == "run":
            return each.entry
    reason = "the spec has no torch implementation to differentiate"
    raise UnsupportedGradientError(spec.op, reason)


class ComposedGradient:
    """The gradient of an op whose spec has none, through torch's operations; differentiable in turn."""

    def __init__(self, spec: Spec):
        self._spec = spec

    def save(
        self, inputs: Mapping[str, Any], outputs: Sequence[Any], params: Mapping[str, Any]
    ) -> tuple[Any, ...]:
        """What the backward pass needs: the inputs."""
        return tuple(inputs.values())

    def backward(
        self, saved: Sequence[Any], params: Mapping[str, Any], needs: Mapping[str, bool], *grads: Any
    ) -> dict[str, Any]:
        """The gradients that are needed, by name."""
        held = dict(zip(self._spec.inputs, saved, strict=True))
        names = [name for name in held if needs[name]]
        present = [i for i, grad in enumerate(grads) if grad is not None]
        if not present:
            return {}

        def outputs(*tensors: Any) -> tuple[torch.Tensor, ...]:
            given = {**held, **dict(zip(names, tensors, strict=True))}
            made = compute(self._spec, list(given.values()), params)
            return tuple(made[i] for i in present)

        pullback: Any = torch.func.vjp(outputs, *(held[name] for name in names))[1]
        return dict(zip(names, pullback(tuple(grads[i] for i in present)), strict=True))

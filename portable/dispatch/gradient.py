"""An op's gradient: a file of formulas or an internal op, as the spec declares, else torch's operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import portable
from portable.errors import SpecError, listed
from portable.spec import registry

if TYPE_CHECKING:
    from portable.spec.model import Gradient, Spec


def load(spec: Spec) -> Any:
    """What has `save` and `backward` for an op."""
    from portable.dispatch.composed import ComposedGradient
    from portable.spec.model import Gradient

    if spec.gradient is None:
        return ComposedGradient(spec)
    if isinstance(spec.gradient, Gradient):
        return BackwardOp(spec, spec.gradient)
    return registry.load_module(spec.gradient)


class BackwardOp:
    """Calls an internal op with what the forward pass saved, the gradients of its outputs (`dy` for y) and
    the parameters that both ops have; each of its outputs is the gradient of one input."""

    def __init__(self, spec: Spec, gradient: Gradient):
        own = registry.spec(gradient.op)
        self.op, self._names = gradient.op, tuple(spec.inputs)
        self._upstream = tuple(f"d{name}" for name in spec.outputs)
        known = (*spec.inputs, *spec.outputs)
        saves = gradient.saves
        self._saves = tuple(name for name in own.inputs if name in known) if saves is None else saves
        grads = gradient.grads
        if grads is None:
            grads = {name: f"d{name}" for name in spec.inputs if f"d{name}" in own.outputs}
        self._grads = {output: name for name, output in grads.items()}
        self._inputs, self._params, self._outputs = tuple(own.inputs), tuple(own.params), tuple(own.outputs)
        given = {*self._saves, *self._upstream, *spec.params}
        lacking = [name for name in (*own.inputs, *own.params) if name not in given]
        unknown = [name for name in self._grads if name not in own.outputs]
        if lacking or unknown:
            what = f"nothing gives {listed(lacking)}" if lacking else f"it has no output {listed(unknown)}"
            raise SpecError(spec.file, None, f"the gradient of {spec.op} by {own.op}: {what}")

    def save(
        self, inputs: Mapping[str, Any], outputs: Sequence[Any], params: Mapping[str, Any]
    ) -> tuple[Any, ...]:
        """What the backward pass needs, of the inputs and outputs."""
        made = dict(zip((name.removeprefix("d") for name in self._upstream), outputs, strict=True))
        return tuple(inputs[name] if name in inputs else made[name] for name in self._saves)

    def backward(
        self, saved: Sequence[Any], params: Mapping[str, Any], needs: Mapping[str, bool], *grads: Any
    ) -> dict[str, Any]:
        """The inputs' gradients by name, None for those that are not needed."""
        given = {**params, **dict(zip(self._saves, saved, strict=True))}
        given.update(zip(self._upstream, grads, strict=True))
        result = getattr(portable, self.op)(**{name: given[name] for name in (*self._inputs, *self._params)})
        several = result if isinstance(result, tuple) else (result,)
        found: dict[str, Any] = dict.fromkeys(self._names)
        for output, tensor in zip(self._outputs, several, strict=True):
            name = self._grads.get(output)
            if name is not None and needs[name]:
                found[name] = tensor
        return found

    def source(self) -> tuple[str, dict[str, str]]:
        """`backward` as a statement, and by input the name that its gradient then has. The statement is
        of `_ctx`, the gradients of the outputs (`dy`), parameters (`_param_eps`) and `_op`, the internal op
        by position."""
        given = [*self._inputs, *(f"_param_{name}" for name in self._params)]
        made = self._outputs[0] if len(self._outputs) == 1 else f"({', '.join(self._outputs)})"
        saved = f"({', '.join(self._saves)}, ) = _ctx.saved_tensors; " if self._saves else ""
        return f"{saved}{made} = _op({', '.join(given)})", {name: d for d, name in self._grads.items()}

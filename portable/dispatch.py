"""An op as people call it: bind, look the call up, launch. What is looked up is made once per key.

The second hop of four: `portable.<op>` is an `Op`; a call that was seen before costs the key, a
dictionary look-up, the outputs' allocation and the launches.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from portable import arguments, arrays, build, catalog, choose, machine, settings, torch_ops
from portable.backend import Backend
from portable.errors import UnknownOpError, UnsupportedGradientError
from portable.layout import collapsible
from portable.plan import Device, TensorInfo, Workspace
from portable.spec import Spec

_MEMO_LIMIT = 4096
# torch's own fast questions about the modes that are active; each costs under 0.1 us.
_functorch: Any = torch._C._functorch  # type: ignore[attr-defined]
_dispatch_modes, _function_modes = torch._C._len_torch_dispatch_stack, torch._C._len_torch_function_stack
_any_autocast: Any = torch._C._is_any_autocast_enabled
_ops: dict[str, Op] = {}


def op(name: str) -> Op:
    """The op called `name`, bound at its first mention. Raises UnknownOpError."""
    found = _ops.get(name)
    if found is None:
        if name not in catalog.op_folders():
            raise UnknownOpError(name, sorted(catalog.op_folders()))
        found = _ops[name] = Op(catalog.spec(name))
    return found


def forget() -> None:
    """Drop every memoised call: the backend or the op folders have changed."""
    for each in _ops.values():
        each.memo.clear()


def explain(op_name: str, /, *args: Any, **kwargs: Any) -> choose.Explanation:
    """Which implementation `portable.<op_name>(*args, **kwargs)` runs and why; nothing is computed.

    Returns an Explanation: `print` it, or read `.choice` and `.candidates`. Raises what the call would
    raise for bad arguments, and BackendError where no backend could be chosen.
    """
    return op(op_name).explain(*args, **kwargs)


def candidates(op_name: str) -> tuple[str, ...]:
    """Names of the implementations that this machine's card can build, in the spec's order.

    What runs through torch is no kernel of a card made of software: it would say what the CPU computes.
    """
    backend = machine.main_backend()
    device = machine.device()
    spec = catalog.spec(op_name)
    return tuple(
        each.name
        for each in spec.implementations
        if not (device.emulated and each.kind == "run")
        and choose.static_reason(each, backend, device) is None
    )


class Op:
    """One op of the catalogue, callable as its spec's signature says."""

    def __init__(self, spec: Spec):
        self.spec = spec
        self.memo: dict[tuple[Any, ...], Prepared] = {}
        self.__name__ = self.__qualname__ = spec.op
        self.__module__ = "portable"
        self.__doc__ = spec.docs()
        self.__signature__ = spec.signature
        self._signature = arguments.Signature(spec)
        self._overload = torch_ops.define(spec, self._signature, self.run, self._fake)
        self._out_overload = torch_ops.define_out(spec, self._signature, self.run) if spec.out else None

    def __repr__(self) -> str:
        return f"<portable.{self.spec.op}{self.__signature__}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return op, (self.spec.op,)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        values = self._signature.bind(args, kwargs)
        inputs, params, out = self._signature.split(values)
        if not torch.compiler.is_compiling():
            if _is_plain(inputs, out is not None):
                return self.run(inputs, params, out)
            if not all(x is None or isinstance(x, torch.Tensor) for x in inputs):
                return self._foreign(inputs, params, out)
            arguments.check_tensors(self.spec, inputs)  # torch's dispatcher has words of its own
            arguments.check_params(self.spec, params, inputs)
            if out is not None:
                arguments.check_out_kind(self.spec, out)
        return self._registered(inputs, params, out)

    def _foreign(self, inputs: list[Any], params: list[Any], out: Any) -> Any:
        """Arrays of other libraries, through DLPack; anything else is named in an error."""
        names = list(self.spec.inputs)
        tensors, like = arrays.convert(self.spec.op, names, inputs)
        arguments.check_tensors(self.spec, tensors)  # raises where no argument is an array
        if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
            reason = "another library's array is among the arguments"
            remedy = "Pass torch tensors alone, or call under torch.no_grad()"
            raise UnsupportedGradientError(self.spec.op, reason, remedy)
        if out is not None and arrays.is_foreign(out):
            self.run(tensors, params, arrays.to_torch(self.spec.op, "out", out, written=True))
            return out
        result = self.run(tensors, params, out)
        if isinstance(result, tuple):
            return tuple(arrays.from_torch(each, like) for each in result)
        return arrays.from_torch(result, like)

    def _registered(self, inputs: Sequence[Any], params: Sequence[Any], out: Any) -> Any:
        """Through torch's dispatcher: autograd, autocast, compile, vmap, tensor subclasses."""
        named = dict(zip(self._signature.names, self._signature.join(inputs, params), strict=False))
        if out is None or self._out_overload is None:
            return self._overload(**named)
        self._out_overload(**named, out=out)
        return out

    def run(self, inputs: Sequence[Any], params: Sequence[Any], out: Any = None) -> Any:
        """Compute on real tensors, the direct path: no autograd, no tracing."""
        key: list[Any] = [settings.scope(), *params, *map(type, params)]  # True == 1 == 1.0
        try:
            for t in inputs if out is None else (*inputs, out):
                if isinstance(t, torch.Tensor):
                    key += (t.dtype, t.get_device(), t.shape, t.stride(), t.data_ptr() & 15)
                else:
                    key.append(None)
            prepared = self.memo.get(tuple(key))
        except (TypeError, RuntimeError):  # an unhashable parameter, a sparse tensor: the checks name it
            return self._prepare(inputs, params, out)(inputs, out)
        if prepared is None:
            prepared = self._prepare(inputs, params, out)
            if len(self.memo) >= _MEMO_LIMIT:
                self.memo.clear()
            self.memo[tuple(key)] = prepared
        elif out is not None:
            prepared.check_out(inputs, out)
        return prepared(inputs, out)

    def _prepare(self, inputs: Sequence[Any], params: Sequence[Any], out: Any) -> Prepared:
        arguments.check_tensors(self.spec, inputs)
        params = arguments.check_params(self.spec, params, inputs)
        first = next(t for t in inputs if t is not None)
        backend = machine.backend_for(first.device.type, self.spec.op, next(iter(self.spec.inputs)))
        device = backend.device(first.device.index or 0)
        return Prepared(self.spec, backend, device, inputs, params, out)

    def explain(self, /, *args: Any, **kwargs: Any) -> choose.Explanation:
        inputs, params, out = self._signature.split(self._signature.bind(args, kwargs))
        inputs, _ = arrays.convert(self.spec.op, list(self.spec.inputs), inputs)
        arguments.check_tensors(self.spec, inputs)
        params = arguments.check_params(self.spec, params, inputs)
        first = next(t for t in inputs if t is not None)
        backend = machine.backend_for(first.device.type, self.spec.op, next(iter(self.spec.inputs)))
        device = backend.device(first.device.index or 0)
        question, _ = ask(self.spec, inputs, params, out)
        return choose.Explanation(question, device, tuple(choose.answers(question, backend, device)))

    def _fake(self, inputs: Sequence[Any], params: Sequence[Any], out: Any = None) -> Any:
        """The outputs' shapes, dtypes and strides without data."""
        arguments.check_tensors(self.spec, inputs)
        params = arguments.check_params(self.spec, params, inputs)
        axis = _axis(self.spec, params)
        bound = arguments.bind(
            self.spec,
            [_last(t, axis, f.leading) for f, t in zip(self.spec.inputs.values(), inputs, strict=True)],
        )
        device = next(t for t in inputs if t is not None).device
        outs = [
            _back(torch.empty(shape, dtype=dtype, device=device), axis, self.spec.outputs[name].leading)
            for name, (shape, dtype) in bound.outputs.items()
        ]
        return outs[0] if len(outs) == 1 else tuple(outs)


def _is_plain(inputs: Sequence[Any], has_out: bool) -> bool:
    """Whether a call needs nothing of torch's dispatcher: no gradient, mode, transform or subclass.

    With `out=` there is no gradient and no autocast, as in torch; the checks say so to who asks for one.
    """
    if _dispatch_modes() or _function_modes() or _functorch.peek_interpreter_stack() is not None:
        return False
    grad = not has_out and torch.is_grad_enabled()
    for tensor in inputs:
        if tensor is not None:
            kind = type(tensor)
            if kind is not torch.Tensor and kind is not torch.nn.Parameter:
                return False
            if tensor.is_neg() or tensor.is_meta:
                return False
            if grad and tensor.requires_grad:
                return False
    return has_out or not _any_autocast()


def _axis(spec: Spec, params: Sequence[Any]) -> int:
    """The dimension the op works along, counted from the end."""
    for param, value in zip(spec.params.values(), params, strict=True):
        if param.type == "axis":
            return value
    return -1


def _last(tensor: Any, axis: int, leading: bool) -> Any:
    return tensor if tensor is None or axis == -1 or not leading else tensor.movedim(axis, -1)


def _back(tensor: torch.Tensor, axis: int, leading: bool) -> torch.Tensor:
    return tensor if axis == -1 or not leading else tensor.movedim(-1, axis)


def _fits(tensor: torch.Tensor, layout: str) -> bool:
    """Whether the implementations can take the tensor as it lies."""
    shape, strides = tuple(tensor.shape), tensor.stride()
    if layout == "rows":
        unit = shape[-1] <= 1 or strides[-1] == 1
        return unit and collapsible(shape[:-1], strides[:-1]) is not None
    if layout == "matrix":
        return any(size <= 1 or stride == 1 for size, stride in zip(shape[-2:], strides[-2:], strict=True))
    return layout == "any" or tensor.is_contiguous()


def _info(tensor: torch.Tensor) -> TensorInfo:
    address = tensor.data_ptr()
    alignment = min(address & -address, 16) if address else 16
    return TensorInfo(tuple(tensor.shape), tensor.stride(), arguments.dtype_name(tensor.dtype), alignment)


def _workspace_info(workspace: Workspace) -> TensorInfo:
    strides = torch.empty(workspace.shape, device="meta").stride()
    return TensorInfo(workspace.shape, strides, workspace.dtype)


def _canonical(spec: Spec, inputs: Sequence[Any], axis: int) -> list[Any]:
    """Inputs as implementations see them: the op's axis last, the layout as the spec wants it."""
    found = []
    for field, tensor in zip(spec.inputs.values(), inputs, strict=True):
        tensor = _last(tensor, axis, field.leading)
        found.append(tensor if tensor is None or _fits(tensor, field.layout) else tensor.contiguous())
    return found


def ask(
    spec: Spec, inputs: Sequence[Any], params: Sequence[Any], out: Any
) -> tuple[choose.Question, arguments.Bound]:
    """A checked call as a question to the implementations."""
    axis = _axis(spec, params)
    moved = [_last(t, axis, f.leading) for f, t in zip(spec.inputs.values(), inputs, strict=True)]
    bound = arguments.bind(spec, moved)
    if out is not None and spec.out is not None:
        shape, dtype = bound.outputs[spec.out.name]
        arguments.check_out(spec, out, shape, dtype, inputs)
    tensors: dict[str, TensorInfo | None] = {}
    for name, tensor in zip(spec.inputs, _canonical(spec, inputs, axis), strict=True):
        tensors[name] = None if tensor is None else _info(tensor)
    for name, (shape, dtype) in bound.outputs.items():
        blank = torch.empty(shape, dtype=dtype, device="meta")
        given = _info(out) if out is not None and spec.outputs[name].out else None
        tensors[name] = given or TensorInfo(tuple(shape), blank.stride(), arguments.dtype_name(dtype))
    named = dict(zip(spec.params, params, strict=True))
    return choose.Question(spec, tensors, named, bound.axes, bound.types), bound


def _allocator(
    shape: tuple[int, ...], dtype: torch.dtype, inputs: Sequence[Any], device: torch.device
) -> Callable[[Sequence[Any]], torch.Tensor]:
    """How an output is allocated: like an input of its shape where there is one, which is quickest."""
    for i, tensor in enumerate(inputs):
        if tensor is not None and tensor.shape == shape and tensor.dtype == dtype and tensor.is_contiguous():
            return lambda tensors: torch.empty_like(tensors[i])
    return lambda tensors: torch.empty(shape, dtype=dtype, device=device)


class Prepared:
    """Everything about one call signature that does not depend on data or addresses."""

    def __init__(
        self,
        spec: Spec,
        backend: Backend,
        device: Device,
        inputs: Sequence[Any],
        params: Sequence[Any],
        out: Any,
    ):
        self._spec, self._backend, self._device = spec, backend, device
        self._axis = _axis(spec, params)
        question, bound = ask(spec, inputs, params, out)
        first = next(t for t in inputs if t is not None)
        self._torch_device = first.device
        self._index = device.index
        self._outputs = list(bound.outputs.values())
        self._as_is = self._axis == -1 and all(
            t is None or _fits(t, field.layout) for field, t in zip(spec.inputs.values(), inputs, strict=True)
        )
        self._allocate = [
            _allocator(shape, dtype, inputs if self._as_is else (), first.device)
            for shape, dtype in self._outputs
        ]
        self._launches: list[build.BoundLaunch] = []
        self._workspaces: list[tuple[tuple[int, ...], torch.dtype]] = []
        self._function: Callable[..., Any] | None = None
        if all(0 in shape for shape, _ in self._outputs):
            return
        chosen = choose.choose(question, backend, device)
        if chosen.plan is None:
            named = {**question.params, **{p.name: -1 for p in spec.params.values() if p.type == "axis"}}
            self._function = functools.partial(choose.entry_function(chosen.implementation), **named)
            return
        present = [name for name, tensor in zip(spec.inputs, inputs, strict=True) if tensor is not None]
        names = [*present, *spec.outputs, *(w.name for w in chosen.plan.workspaces)]
        tensors = {name: info for name, info in question.tensors.items() if info is not None}
        tensors.update({w.name: _workspace_info(w) for w in chosen.plan.workspaces})
        written = frozenset((*spec.outputs, *(w.name for w in chosen.plan.workspaces)))
        slots = {name: slot for slot, name in enumerate(names)}
        self._workspaces = [(w.shape, getattr(torch, w.dtype)) for w in chosen.plan.workspaces]
        launches = [each for each in chosen.plan.launches if 0 not in each.grid]
        self._launches = [build.bind(each, slots, tensors, written, backend, device) for each in launches]

    def check_out(self, inputs: Sequence[Any], out: Any) -> None:
        """What the key does not tell of `out`: overlap and gradients."""
        position = next(i for i, field in enumerate(self._spec.outputs.values()) if field.out)
        shape, dtype = self._outputs[position]
        arguments.check_out(self._spec, out, shape, dtype, inputs)

    def __call__(self, inputs: Sequence[Any], out: Any) -> Any:
        tensors = inputs if self._as_is else _canonical(self._spec, inputs, self._axis)
        if self._function is not None:
            return self._through_torch(self._function, tensors, out)
        outs = [out] if out is not None else [allocate(tensors) for allocate in self._allocate]
        if self._launches:
            addresses = [t.data_ptr() for t in tensors if t is not None]
            addresses += [t.data_ptr() for t in outs]
            spaces = [torch.empty(s, dtype=d, device=self._torch_device) for s, d in self._workspaces]
            addresses += [t.data_ptr() for t in spaces]
            with self._backend.on(self._index):
                stream = self._backend.stream(self._index)
                for launch in self._launches:
                    launch(addresses, stream)
        return self._results(outs)

    def _through_torch(self, function: Callable[..., Any], tensors: Sequence[Any], out: Any) -> Any:
        with torch.no_grad():
            result = function(**dict(zip(self._spec.inputs, tensors, strict=True)))
        outs = list(result) if isinstance(result, tuple) else [result]
        if out is not None:
            return out.copy_(outs[0])
        # torch may answer with a view of its argument or other strides; the fake function promises neither.
        return self._results([o.clone() if any(o is t for t in tensors) else o.contiguous() for o in outs])

    def _results(self, outs: list[Any]) -> Any:
        if self._axis != -1:
            fields = self._spec.outputs.values()
            outs = [_back(o, self._axis, f.leading) for f, o in zip(fields, outs, strict=True)]
        return outs[0] if len(outs) == 1 else tuple(outs)

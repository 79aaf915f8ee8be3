"""An op as people call it: look the call up, launch. What is looked up is made once per key.

The second hop of four: `portable.<op>` is an `Op`. A call that was seen before costs the key and a
dictionary look-up (portable.dispatch.fast_path), the outputs' allocation and the launches (`Prepared`).
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch

from portable.backend import Backend
from portable.dispatch import arguments, dlpack, fast_path, pins, select, torch_library
from portable.errors import UnknownOpError, UnsupportedGradientError
from portable.layout import collapsible
from portable.plan import Device, TensorInfo, Workspace
from portable.runtime import build, detect
from portable.spec import docs_page, registry
from portable.spec.model import Input, Spec

_T = TypeVar("_T")
_MEMO_LIMIT = 4096
_ops: dict[str, Op] = {}
_binding = threading.RLock()  # torch takes an op's registration once


def op(name: str) -> Op:
    """The op called `name`, bound at its first mention. Raises UnknownOpError."""
    found = _ops.get(name)
    return _bound(name) if found is None else found


def _bound(name: str) -> Op:
    with _binding:
        if name not in _ops:
            if name not in registry.op_folders():
                raise UnknownOpError(name, sorted(registry.op_folders()))
            spec = registry.spec(name)
            signature = arguments.Signature(spec)
            source = fast_path.source(spec, signature)
            kind = type(name, (Op,), {"__call__": fast_path.function(spec, source), "source": source})
            _ops[name] = kind(spec, signature)
        return _ops[name]


def forget() -> None:
    """Drop every memoised call: the backend or the op folders have changed."""
    for each in _ops.values():
        each.forget()


def explain(op_name: str, /, *args: Any, **kwargs: Any) -> select.Explanation:
    """Which implementation `portable.<op_name>(*args, **kwargs)` runs and why; nothing is computed.

    Returns an Explanation: `print` it, or read `.choice` and `.candidates`. Raises what the call would
    raise for bad arguments, and BackendError where no backend could be chosen.
    """
    return op(op_name).explain(*args, **kwargs)


def candidates(op_name: str) -> tuple[str, ...]:
    """Names of the implementations that this machine's card can build, in the spec's order.

    What runs through torch is no kernel of a card made of software: it would say what the CPU computes.
    """
    backend = detect.main_backend()
    device = detect.device()
    spec = registry.spec(op_name)
    return tuple(
        each.name
        for each in spec.implementations
        if not (device.emulated and each.kind == "run")
        and select.static_reason(each, backend, device) is None
    )


class Op:
    """One op of the catalogue, callable as its spec's signature says; `fast_path` writes `__call__`."""

    __call__: Callable[..., Any]
    source: str

    def __init__(self, spec: Spec, signature: arguments.Signature):
        self.spec = spec
        self.memo: dict[tuple[Any, ...], Prepared] = {}
        self.known: dict[
            tuple[Any, ...], fast_path.Entry
        ] = {}  # plain calls, by the keys of portable.dispatch.fast_path
        self.__name__ = self.__qualname__ = spec.op
        self.__module__ = "portable"
        self.__doc__ = docs_page.page(spec)
        self.__signature__ = spec.signature
        self._signature = signature
        self.bind = signature.bind
        self._overload = torch_library.define(spec, signature, self.run, self._fake)
        self._out_overload = torch_library.define_out(spec, signature, self.run) if spec.out else None
        self.forget()

    def forget(self) -> None:
        """Drop what was prepared: the backend or the op folders have changed."""
        self.memo.clear()
        self.known.clear()
        self.last = fast_path.never, *(None,) * (len(self.spec.params) + len(self.spec.inputs) + 4)

    def __repr__(self) -> str:
        return f"<portable.{self.spec.op}{self.__signature__}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return op, (self.spec.op,)

    def answer(self, inputs: Sequence[Any], params: Sequence[Any], out: Any = None, key: Any = None) -> Any:
        """Any call. One on plain tensors that came with a `key` is known by it from then on."""
        if torch.compiler.is_compiling():
            return self._registered(inputs, params, out)
        if any(value is arguments.MISSING for value in (*inputs, *params)):
            self._signature.complain(inputs, params)
        if not all(x is None or isinstance(x, torch.Tensor) for x in inputs):
            return self._foreign(inputs, params, out)
        if not _is_plain(inputs, out is not None):
            arguments.check_tensors(self.spec, inputs)  # torch's dispatcher has words of its own
            arguments.check_params(self.spec, params, inputs)
            if out is not None:
                arguments.check_out_kind(self.spec, out)
            return self._registered(inputs, params, out)
        *_, record, _, run = self.remember(key, inputs, params, out)
        if record is not None and torch.is_grad_enabled():
            return record(*inputs)
        return run(inputs, out)

    def remember(self, key: Any, inputs: Sequence[Any], params: Sequence[Any], out: Any) -> fast_path.Entry:
        """What the shortcut needs for a plain call: what may not differ, and what computes."""
        prepared = self._prepared(inputs, params, out)
        same = fast_path.same(inputs) if out is None else fast_path.never
        wants = out is None and any(t is not None and t.requires_grad for t in inputs)
        record = self._recorder(prepared, inputs) if wants else None
        aligned = (0 if t is None else t.data_ptr() & 15 for t in inputs)
        quick = prepared.quick if out is None else None
        entry = same, pins.scoped(), *params, *aligned, record, quick, prepared
        return entry if key is None else _remember(self.known, key, entry)

    def recorder(self, inputs: Sequence[Any], params: Mapping[str, Any]) -> Callable[..., Any]:
        """A function of the inputs of such a plain call that computes and records the gradient; `params` are
        checked."""
        in_order = [params[name] for name in self.spec.params]
        return self._recorder(self._prepared(inputs, in_order, None), inputs)

    def _recorder(self, prepared: Prepared, inputs: Sequence[Any]) -> Callable[..., Any]:
        if prepared.record is None:
            prepared.record = torch_library.recorder(self.spec, prepared, inputs)
        return prepared.record

    def _foreign(self, inputs: Sequence[Any], params: Sequence[Any], out: Any) -> Any:
        """Arrays of other libraries, through DLPack; anything else is named in an error."""
        names = list(self.spec.inputs)
        tensors, like = dlpack.convert(self.spec.op, names, inputs)
        arguments.check_tensors(self.spec, tensors)  # raises where no argument is an array
        if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
            reason = "another library's array is among the arguments"
            remedy = "Pass torch tensors alone, or call under torch.no_grad()"
            raise UnsupportedGradientError(self.spec.op, reason, remedy)
        if out is not None and dlpack.is_foreign(out):
            self.run(tensors, params, dlpack.to_torch(self.spec.op, "out", out, written=True))
            return out
        result = self.run(tensors, params, out)
        if isinstance(result, tuple):
            return tuple(dlpack.from_torch(each, like) for each in result)
        return dlpack.from_torch(result, like)

    def _registered(self, inputs: Sequence[Any], params: Sequence[Any], out: Any) -> Any:
        """Through torch's dispatcher: autograd, autocast, compile, vmap, tensor subclasses."""
        named = dict(zip(self._signature.names, self._signature.join(inputs, params), strict=False))
        if out is None or self._out_overload is None:
            return self._overload(**named)
        self._out_overload(**named, out=out)
        return out

    def run(self, inputs: Sequence[Any], params: Sequence[Any], out: Any = None) -> Any:
        """Compute on real tensors, whatever torch's dispatcher has on top: no autograd, no tracing."""
        return self._prepared(inputs, params, out)(inputs, out)

    def _prepared(self, inputs: Sequence[Any], params: Sequence[Any], out: Any) -> Prepared:
        """Raises what is wrong with the call."""
        key: list[Any] = [pins.scoped(), *params, *map(type, params)]  # True == 1 == 1.0
        try:
            for t in inputs if out is None else (*inputs, out):
                if isinstance(t, torch.Tensor):
                    key += (t.dtype, t.device, t.shape, t.stride(), t.data_ptr() & 15)
                else:
                    key.append(None)
            known = self.memo.get(tuple(key))
        except (TypeError, RuntimeError):  # an unhashable parameter, a sparse tensor: the checks name it
            return self._prepare(inputs, params, out)
        return known or _remember(self.memo, tuple(key), self._prepare(inputs, params, out))

    def _prepare(self, inputs: Sequence[Any], params: Sequence[Any], out: Any) -> Prepared:
        arguments.check_tensors(self.spec, inputs)
        params = arguments.check_params(self.spec, params, inputs)
        first = next(t for t in inputs if t is not None)
        backend = detect.backend_for(first.device.type, self.spec.op, next(iter(self.spec.inputs)))
        device = backend.device(first.device.index or 0)
        return Prepared(self.spec, backend, device, inputs, params, out)

    def explain(self, /, *args: Any, **kwargs: Any) -> select.Explanation:
        inputs, params, out = self._signature.split(self._signature.bind(args, kwargs))
        inputs, _ = dlpack.convert(self.spec.op, list(self.spec.inputs), inputs)
        arguments.check_tensors(self.spec, inputs)
        params = arguments.check_params(self.spec, params, inputs)
        first = next(t for t in inputs if t is not None)
        backend = detect.backend_for(first.device.type, self.spec.op, next(iter(self.spec.inputs)))
        device = backend.device(first.device.index or 0)
        question, _ = ask(self.spec, inputs, params, out)
        asked = () if question.empty else select.answers(question, backend, device)
        return select.Explanation(question, device, tuple(asked))

    def _fake(self, inputs: Sequence[Any], params: Sequence[Any], out: Any = None) -> Any:
        """The outputs' shapes, dtypes and strides without data."""
        arguments.check_tensors(self.spec, inputs)
        params = arguments.check_params(self.spec, params, inputs)
        axis = _axis(self.spec, params)
        moved = [_last(t, axis, f.leading) for f, t in zip(self.spec.inputs.values(), inputs, strict=True)]
        bound = arguments.bind(self.spec, moved)
        arguments.check_rules(self.spec, bound, dict(zip(self.spec.params, params, strict=True)), moved)
        device = next(t for t in inputs if t is not None).device
        outs = [
            _back(torch.empty(shape, dtype=dtype, device=device), axis, self.spec.outputs[name].leading)
            for name, (shape, dtype) in bound.outputs.items()
        ]
        return outs[0] if len(outs) == 1 else tuple(outs)


def _remember(memo: dict[tuple[Any, ...], _T], key: tuple[Any, ...], value: _T) -> _T:
    if len(memo) >= _MEMO_LIMIT:
        memo.clear()
    memo[key] = value
    return value


def _addresses(tensors: Sequence[Any]) -> list[int]:
    return [0 if t is None else t.data_ptr() for t in tensors]


def _is_plain(inputs: Sequence[Any], has_out: bool) -> bool:
    """Whether a call needs nothing of torch's dispatcher: no mode, transform or subclass. A gradient is
    recorded without it. With `out=` there is no autocast, as in torch."""
    if fast_path.is_busy():
        return False
    for tensor in inputs:
        if tensor is None:
            continue
        if type(tensor) not in fast_path.PLAIN or tensor.is_neg() or tensor.is_meta:
            return False
    return has_out or not torch._C._is_any_autocast_enabled()


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


def _fits(tensor: torch.Tensor, field: Input) -> bool:
    """Whether the implementations can take the tensor as it lies."""
    shape, strides, layout = tuple(tensor.shape), tensor.stride(), field.layout
    if layout == "unit":
        lead = len(shape) - field.rank
        unit = shape[-1] <= 1 or strides[-1] == 1
        return unit and collapsible(shape[:lead], strides[:lead]) is not None
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
        found.append(tensor if tensor is None or _fits(tensor, field) else tensor.contiguous())
    return found


def ask(
    spec: Spec, inputs: Sequence[Any], params: Sequence[Any], out: Any
) -> tuple[select.Question, arguments.Bound]:
    """A checked call as a question to the implementations."""
    axis = _axis(spec, params)
    moved = [_last(t, axis, f.leading) for f, t in zip(spec.inputs.values(), inputs, strict=True)]
    bound = arguments.bind(spec, moved)
    named = dict(zip(spec.params, params, strict=True))
    arguments.check_rules(spec, bound, named, moved)
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
    return select.Question(spec, tensors, named, bound.axes, bound.types), bound


def _blank(shape: tuple[int, ...], dtype: torch.dtype) -> fast_path.Blank:
    """A dense tensor to be made."""
    return shape, torch.empty(shape, device="meta").stride(), dtype


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
        self._spec, self._backend, self._index = spec, backend, device.index
        self._current, self._stream, self._empty = backend.current, backend.stream, backend.empty
        self._axis = _axis(spec, params)
        question, bound = ask(spec, inputs, params, out)
        self.params = question.params
        self._spans = [0 if t is None else arguments.span(t) for t in inputs]
        self._out_span = 0 if out is None else arguments.span(out)
        self._as_is = self._axis == -1 and all(
            t is None or _fits(t, field) for field, t in zip(spec.inputs.values(), inputs, strict=True)
        )
        self._blanks = [_blank(shape, dtype) for shape, dtype in bound.outputs.values()]
        self._launches: list[build.BoundLaunch] = []
        self._workspaces: list[fast_path.Blank] = []
        self._function: Callable[..., Any] | None = None
        self.quick: Callable[..., Any] | None = None
        self.record: Callable[..., Any] | None = None  # made when first asked for
        if question.empty:
            return
        chosen = select.choose(question, backend, device)
        if chosen.plan is None:
            named = {**question.params, **{p.name: -1 for p in spec.params.values() if p.type == "axis"}}
            self._function = functools.partial(select.entry_function(chosen.implementation), **named)
            return
        names = [*spec.inputs, *spec.outputs, *(w.name for w in chosen.plan.workspaces)]
        tensors = {name: info for name, info in question.tensors.items() if info is not None}
        tensors.update({w.name: _workspace_info(w) for w in chosen.plan.workspaces})
        written = frozenset((*spec.outputs, *(w.name for w in chosen.plan.workspaces)))
        slots = {name: slot for slot, name in enumerate(names) if name in tensors}
        self._workspaces = [_blank(w.shape, getattr(torch, w.dtype)) for w in chosen.plan.workspaces]
        launches = [each for each in chosen.plan.launches if 0 not in each.grid]
        self._launches = [build.bind(each, slots, tensors, written, backend, device) for each in launches]
        if self._as_is and len(self._launches) == 1 and not self._workspaces:
            self.quick = fast_path.quick(self._launches[0], len(inputs), self._blanks, backend, device.index)

    def __call__(self, inputs: Sequence[Any], out: Any = None, addresses: list[int] | None = None) -> Any:
        """Compute; `addresses` are the inputs', 0 for an absent one, where the caller has asked for them."""
        if self._current() != self._index:
            with self._backend.on(self._index):
                return self(inputs, out, addresses)
        if addresses is None:
            addresses = _addresses(inputs)
        if out is not None:
            self._check_out(inputs, addresses, out)
        return self.compute(inputs, addresses, out)

    def compute(self, inputs: Sequence[Any], addresses: list[int], out: Any) -> Any:
        """What is left when all is checked and the card is the current one."""
        if not self._as_is:
            inputs = _canonical(self._spec, inputs, self._axis)
            addresses = _addresses(inputs)
        if self._function is not None:
            return self._through_torch(self._function, inputs, out)
        outs = [self._empty(*blank) for blank in self._blanks] if out is None else [out]
        spaces = [self._empty(*blank) for blank in self._workspaces]
        addresses += [tensor.data_ptr() for tensor in (*outs, *spaces)]
        stream = self._stream(self._index)
        for launch in self._launches:
            launch(addresses, stream)
        return self._results(outs)

    def blank(self) -> Any:
        """A result without data."""
        outs = [torch.empty(shape, dtype=dtype, device="meta") for shape, _, dtype in self._blanks]
        return self._results(outs)

    def _check_out(self, inputs: Sequence[Any], addresses: list[int], out: Any) -> None:
        """What a key does not tell of `out`: overlap and gradients."""
        start = out.data_ptr()
        end = start + self._out_span
        wrong = torch.is_grad_enabled() and out.requires_grad
        for tensor, at, span in zip(inputs, addresses, self._spans, strict=True):
            if tensor is not None and (
                (at < end and start < at + span) or (tensor.requires_grad and torch.is_grad_enabled())
            ):
                wrong = True
        if wrong:
            position = next(i for i, field in enumerate(self._spec.outputs.values()) if field.out)
            shape, _, dtype = self._blanks[position]
            arguments.check_out(self._spec, out, shape, dtype, inputs)

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

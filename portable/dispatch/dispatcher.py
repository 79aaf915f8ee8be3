"""An op as people call it: look the call up, launch. What is looked up is made once per key.

The second hop of four: `portable.<op>` is an `Op`. A call that was seen before costs the key and a
dictionary look-up (portable.dispatch.fast_path), the outputs' allocation and the launches (`CompiledCall`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from portable import dtypes
from portable.backend import Backend
from portable.dispatch import (
    arguments,
    autograd,
    batching,
    compiled_call,
    dlpack,
    fast_path,
    pins,
    select,
    torch_form,
    torch_library,
)
from portable.dispatch.compiled_call import CompiledCall
from portable.errors import (
    NotATensorError,
    ParameterError,
    SignatureError,
    UnknownOpError,
    UnsupportedGradientError,
    UnsupportedTransformError,
)
from portable.plan import Device
from portable.runtime import detect
from portable.runtime.fork_lock import fork_lock
from portable.spec import registry

if TYPE_CHECKING:
    from portable.spec.model import Spec

_T = TypeVar("_T")
_MEMO_LIMIT = 4096
_ops: dict[str, Op] = {}
_binding = fork_lock()  # torch takes an op's registration once; see also `_compile`


def op(name: str) -> Op:
    """The op called `name`, bound at its first mention. Raises UnknownOpError."""
    found = _ops.get(name)
    return _bound(name) if found is None else found


def _bound(name: str) -> Op:
    with _binding:
        if name not in _ops:
            if name not in registry.op_folders():
                raise UnknownOpError(name, registry.public_ops(), registry.op_folders())
            spec = registry.spec(name)
            signature = arguments.Signature(spec)
            source = fast_path.source(spec, signature)
            kind = type(name, (Op,), {"__call__": fast_path.function(spec, source), "source": source})
            _ops[name] = kind(spec, signature)
        return _ops[name]


def clear_caches() -> None:
    """Drop every memoised call: the backend or the op folders have changed."""
    for each in _ops.values():
        each.clear_caches()


def explain(op_name: str, /, *args: Any, **kwargs: Any) -> select.Explanation:
    """Which implementation `portable.<op_name>(*args, **kwargs)` runs and why; nothing is computed.

    Returns an Explanation: `print` it, or read `.choice` and `.candidates`. Raises what the call would
    raise for bad arguments, and BackendError where no backend could be chosen.
    """
    name = registry.op_name(op_name, "explain", "op_name", "portable.explain({}, ...)")
    return op(name).explain(*args, **kwargs)


def candidates(op_name: str) -> tuple[str, ...]:
    """Names of the implementations that this machine's device can build, in the spec's order.

    The torch implementation is no kernel of an emulated GPU: its results are the CPU's.
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
    """One op of the catalogue, callable with its spec's signature; `fast_path` writes `__call__`."""

    __call__: Callable[..., Any]
    source: str

    def __init__(self, spec: Spec, signature: arguments.Signature):
        self.spec = spec
        self.plan_cache: dict[tuple[Any, ...], CompiledCall] = {}
        # plain calls, by the keys of portable.dispatch.fast_path
        self.guard_cache: dict[tuple[Any, ...], fast_path.Entry] = {}
        self.__name__ = self.__qualname__ = spec.op
        self.__module__ = "portable"
        from portable.spec import docs_page  # not part of `import portable`

        self.__doc__ = docs_page.page(spec)
        self.__signature__ = spec.signature
        self._signature = signature
        self._may_squeeze = any(field.squeeze for field in spec.inputs.values())
        self._torch_form = None if spec.torch_form is None else torch_form.TorchForm(spec)
        if self._torch_form is not None:
            signature.text += f", or as torch has it, {spec.op}{self._torch_form.text}"
        slot = torch_form.shape_slot(spec)
        self._shape_at = 0 if slot is None else list(spec.inputs).index(slot)
        self._plan_key, self._unguarded = fast_path.plan_key(spec), fast_path.unguarded(spec)
        self.bind = signature.bind
        self._dtypes = {
            at: {name: dtypes.of(name).storage for name in param.choices}
            for at, param in enumerate(spec.params.values())
            if param.type == "dtype"
        }
        self._overload = torch_library.define(spec, signature, self.run, self._fake, op)
        self._out_overload = (
            torch_library.define_out(spec, signature, self.run, self._fake) if spec.out else None
        )
        self.clear_caches()

    def clear_caches(self) -> None:
        """Drop what was prepared: the backend or the op folders have changed."""
        self.plan_cache.clear()
        self.guard_cache.clear()
        self.following = [fast_path.unknown(self.spec)]

    def __repr__(self) -> str:
        return f"<portable.{self.spec.op}{self.__signature__}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return op, (self.spec.op,)

    def dispatch_slow(
        self, inputs: Sequence[Any], params: Sequence[Any], out: Any = None, key: Any = None
    ) -> Any:
        """Any call. One on plain tensors that came with a `key` is known by it from then on."""
        if self._shape_at and torch_form.is_shape(inputs[self._shape_at]):
            return self.call_in_torch_form(inputs, {})
        if self._may_squeeze:
            whole, lacking = compiled_call.unsqueezed(self.spec, inputs)
            if lacking:
                return self._squeezed(whole, params, out, lacking)
        if torch.compiler.is_compiling():
            return self.call_through_torch(inputs, params, out)
        if any(value is arguments.MISSING for value in (*inputs, *params)):
            self._signature.complain(inputs, params)
        if not all(x is None or isinstance(x, torch.Tensor) for x in inputs):
            return self.call_dlpack(inputs, params, out)
        if not _is_plain(inputs, out):
            # torch's dispatcher would raise with a message of its own
            arguments.check_tensors(self.spec, inputs)
            if not fast_path.is_busy():
                arguments.check_fakes(self.spec, inputs)
                arguments.check_memory(self.spec, [t if _has_memory(t) else None for t in inputs])
            arguments.check_params(self.spec, params, inputs)
            if out is not None:
                arguments.check_out_kind(self.spec, out)
                if fast_path.has_transform():
                    raise batching.no_out(self.spec.op)
            return self.call_through_torch(inputs, params, out)
        *_, autograd, _, run = self.remember(key, inputs, params, out)
        if autograd is not None and torch.is_grad_enabled():
            return autograd(*inputs)
        return run(inputs, out)

    def call_in_torch_form(self, given: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """A call that does not fit the signature: one in the form of torch's function, or an error."""
        return self(**self._from_torch_form(given, named))

    def _from_torch_form(self, given: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
        form = self._torch_form
        found = None if form is None else form.arguments(given, named)
        if found is None:
            values = self._signature.bind(given, named)
            # It fits: a shape stands in the place of a tensor, in a call that is not torch's.
            name, kind = self._signature.names[1], type(values[1]).__name__
            raise NotATensorError(self.spec.op, name, kind, "a torch.Tensor")
        return found

    def _squeezed(
        self, inputs: Sequence[Any], params: Sequence[Any], out: Any, lacking: Sequence[str]
    ) -> Any:
        """A call whose `inputs` were given without the axes `lacking`: the outputs come without them."""
        named = dict(zip(self._signature.names, self._signature.join(inputs, params), strict=False))
        if out is None:
            return compiled_call.squeezed(self.spec, self(**named), lacking)
        self(**named, out=compiled_call.out_unsqueezed(self.spec, out, lacking))
        return out

    def remember(self, key: Any, inputs: Sequence[Any], params: Sequence[Any], out: Any) -> fast_path.Entry:
        """What the shortcut needs for a plain call: what may not differ, and what computes."""
        compiled = self._compiled(inputs, params, out)
        guard = fast_path.guard_of(inputs) if out is None else fast_path.no_guard
        wants = out is None and any(t is not None and t.requires_grad for t in inputs)
        autograd = self._autograd_function(compiled, inputs) if wants else None
        from_addresses = compiled.from_addresses if out is None else None
        held = pins.active_pins(), *params, *self._unguarded(inputs)
        following: list[fast_path.Entry] = []
        entry = guard, *held, following, autograd, from_addresses, compiled
        following.append(entry)
        return entry if key is None else _remember(self.guard_cache, key, entry)

    def autograd_function(self, inputs: Sequence[Any], params: Mapping[str, Any]) -> Callable[..., Any]:
        """A function of the inputs of such a plain call that computes and records the gradient; `params` are
        checked."""
        in_order = [params[name] for name in self.spec.params]
        return self._autograd_function(self._compiled(inputs, in_order, None), inputs)

    def _autograd_function(self, compiled: CompiledCall, inputs: Sequence[Any]) -> Callable[..., Any]:
        if compiled.autograd is None:
            compiled.autograd = autograd.autograd_function(self.spec, compiled, inputs, op)
        return compiled.autograd

    def call_dlpack(self, inputs: Sequence[Any], params: Sequence[Any], out: Any) -> Any:
        """Arrays of other libraries, through DLPack; anything else is named in an error."""
        names = list(self.spec.inputs)
        tensors, like = dlpack.convert(self.spec.op, names, inputs, self.spec.mutated)
        arguments.check_tensors(self.spec, tensors)  # raises where no argument is an array
        tensors, lacking = compiled_call.unsqueezed(self.spec, tensors)
        wants = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
        reason = "another library's array is among the arguments"
        if fast_path.has_transform():
            what = f"{reason}, under a transform of torch.func"
            raise UnsupportedTransformError(self.spec.op, what, "Pass torch tensors alone")
        if wants or arguments.has_tangent(tensors):
            remedy = "Pass torch tensors alone"
            if wants:
                remedy += ", or call under torch.no_grad()"
            raise UnsupportedGradientError(self.spec.op, reason, remedy)
        if out is not None and dlpack.is_foreign(out):
            written = dlpack.to_torch(self.spec.op, "out", out, written=True)
            self.run(tensors, params, compiled_call.out_unsqueezed(self.spec, written, lacking))
            return out
        if out is not None:
            arguments.check_out_kind(self.spec, out)
            self.run(tensors, params, compiled_call.out_unsqueezed(self.spec, out, lacking))
            return out
        result = compiled_call.squeezed(self.spec, self.run(tensors, params), lacking)
        if result is None or isinstance(result, tuple):
            return result and tuple(dlpack.from_torch(each, like) for each in result)
        return dlpack.from_torch(result, like)

    def call_through_torch(self, inputs: Sequence[Any], params: Sequence[Any], out: Any) -> Any:
        """Through torch's dispatcher: autograd, autocast, compile, vmap, tensor subclasses."""
        device_type = arguments.autocast_device(inputs) if fast_path.has_transform() else None
        if device_type is not None:
            # Ahead of the transform, whose levels would meet autocast anew in what computes tangents.
            inputs = torch_library.autocast_inputs(self.spec, inputs, device_type)
            with torch.autocast(device_type, enabled=False):
                return self.call_through_torch(inputs, params, out)
        params = self._with_dtypes(params)
        named = dict(zip(self._signature.names, self._signature.join(inputs, params), strict=False))
        if out is None or self._out_overload is None:
            return self._overload(**named)
        self._out_overload(**named, out=out)
        return out

    def _with_dtypes(self, params: Sequence[Any]) -> Sequence[Any]:
        """The parameters, those that say a dtype as torch's dispatcher takes them, which knows no names.
        Raises ParameterError."""
        if not self._dtypes:
            return params
        found = list(params)
        for at, by_name in self._dtypes.items():
            value = found[at]
            found[at] = by_name.get(value.removeprefix("torch.")) if isinstance(value, str) else value
            if not isinstance(found[at], torch.dtype):
                param = list(self.spec.params.values())[at]
                raise ParameterError(self.spec.op, param.name, value, param.expected)
        return found

    def run(self, inputs: Sequence[Any], params: Sequence[Any], out: Any = None) -> Any:
        """Compute on real tensors, whatever torch's dispatcher has on top: no autograd, no tracing."""
        return self._compiled(inputs, params, out)(inputs, out)

    def _compiled(self, inputs: Sequence[Any], params: Sequence[Any], out: Any) -> CompiledCall:
        """Raises what is wrong with the call."""
        try:
            key = self._plan_key(inputs, params, out)
            found = self.plan_cache.get(key)
        except (TypeError, RuntimeError, AttributeError):  # an unhashable parameter, a sparse tensor
            return self._compile(inputs, params, out)  # whose checks name it
        return found or _remember(self.plan_cache, key, self._compile(inputs, params, out))

    def _compile(self, inputs: Sequence[Any], params: Sequence[Any], out: Any) -> CompiledCall:
        params, backend, device = self._resolve(inputs, params)
        if out is not None:
            arguments.check_out_kind(self.spec, out)
        arguments.check_memory(self.spec, inputs, out)
        with _binding:  # it imports: a child forked meanwhile would wait for the module's lock for ever
            return CompiledCall(self.spec, backend, device, inputs, params, out)

    def _resolve(self, inputs: Sequence[Any], params: Sequence[Any]) -> tuple[list[Any], Backend, Device]:
        """The checked parameters, and where the call runs."""
        arguments.check_tensors(self.spec, inputs)
        params = arguments.check_params(self.spec, params, inputs)
        first = next(t for t in inputs if t is not None)
        backend = detect.backend_for(first.device.type, self.spec.op, next(iter(self.spec.inputs)))
        return params, backend, backend.device(first.device.index or 0)

    def bound(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """All arguments of a call in the order of the signature, also of one in torch's form."""
        try:
            values = self._signature.bind(args, kwargs)
        except SignatureError:
            if self._torch_form is None:
                raise
        else:
            if not self._shape_at or not torch_form.is_shape(values[self._shape_at]):
                return values
        return self._signature.bind((), self._from_torch_form(args, kwargs))

    def explain(self, /, *args: Any, **kwargs: Any) -> select.Explanation:
        inputs, params, out = self._signature.split(self.bound(args, kwargs))
        inputs, _ = dlpack.convert(self.spec.op, list(self.spec.inputs), inputs, self.spec.mutated)
        inputs, lacking = compiled_call.unsqueezed(self.spec, inputs)
        out = compiled_call.out_unsqueezed(self.spec, out, lacking)
        params, backend, device = self._resolve(inputs, params)
        signature, _ = compiled_call.call_signature(self.spec, inputs, params, out)
        found = () if signature.empty else select.candidates(signature, backend, device)
        modelled = backend.modelled(self.spec.op, device) if found else []
        return select.Explanation(signature, device, tuple(found), tuple(modelled))

    def _fake(self, inputs: Sequence[Any], params: Sequence[Any], out: Any = None) -> Any:
        """The outputs' shapes, dtypes and strides without data."""
        arguments.check_tensors(self.spec, inputs)
        params = arguments.check_params(self.spec, params, inputs)
        axis = compiled_call.op_axis(self.spec, params)
        moved = [
            compiled_call.axis_last(t, axis, f.leading)
            for f, t in zip(self.spec.inputs.values(), inputs, strict=True)
        ]
        checked = dict(zip(self.spec.params, params, strict=True))
        bound = arguments.bind(self.spec, moved, checked)
        arguments.check_rules(self.spec, bound, checked, moved)
        device = next(t for t in inputs if t is not None).device
        outs = [
            compiled_call.axis_back(
                compiled_call.empty_output(self.spec, name, moved, shape, dtype, device),
                axis,
                self.spec.outputs[name].leading,
            )
            for name, (shape, dtype) in bound.outputs.items()
        ]
        return compiled_call.returned(outs)


def _remember(memo: dict[tuple[Any, ...], _T], key: tuple[Any, ...], value: _T) -> _T:
    if len(memo) >= _MEMO_LIMIT:
        memo.clear()
    memo[key] = value
    return value


def _is_plain(inputs: Sequence[Any], out: Any) -> bool:
    """Whether a call needs nothing of torch's dispatcher: no mode, transform or subclass. A gradient is
    recorded without it. With `out=` there is no autocast, as in torch."""
    if fast_path.is_busy():
        return False
    for tensor in inputs:
        if tensor is not None and (tensor.is_neg() or not _has_memory(tensor)):
            return False
    if out is not None:
        return not (isinstance(out, torch.Tensor) and out.is_neg())
    return not torch._C._is_any_autocast_enabled()


def _has_memory(tensor: Any) -> bool:
    """Whether the tensor's numbers lie at its address. Those of subclasses do not, of torch.func's wrappers
    (which may outlive a transform) and autograd's for batched gradients, of functional tensors and of zeros
    that torch makes late."""
    if type(tensor) not in fast_path.PLAIN or tensor.is_meta:
        return False
    core: Any = torch
    functorch = core._C._functorch
    wrapped = functorch.is_functorch_wrapped_tensor(tensor) or functorch.is_legacy_batchedtensor(tensor)
    return not (wrapped or core._is_functional_tensor(tensor) or tensor._is_zerotensor())


detect.on_change(clear_caches)

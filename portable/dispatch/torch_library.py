"""Each op as a citizen of torch: registered, traceable, differentiable, autocast, batched by vmap.

`define` makes `torch.ops.portable.<op>` from a spec. Eager calls that need none of this do not come
here (portable.dispatch.dispatcher).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from portable.dispatch import arguments, fast_path, gradient
from portable.dispatch import pins as settings
from portable.errors import UnsupportedGradientError, UnsupportedTransformError

if TYPE_CHECKING:
    from portable.dispatch.compiled_call import CompiledCall
    from portable.spec.model import Spec

_library = torch.library.Library("portable", "DEF")
_AUTOCAST = {"cuda": "AutocastCUDA", "cpu": "AutocastCPU"}  # torch's dispatch keys by device type
Run = Callable[[Sequence[Any], Sequence[Any], Any], Any]
Lookup = Callable[[str], Any]
"""An op by its name (portable.dispatch.dispatcher.op)."""


def define(spec: Spec, signature: arguments.Signature, run: Run, fake: Run, lookup: Lookup) -> Any:
    """Register one op; `run(inputs, params, out)` computes it. Returns its overload."""
    name = f"portable::{spec.op}"
    _library.define(spec.torch_schema(), tags=(torch.Tag.pt2_compliant_tag,))

    def kernel(*args: Any, **kwargs: Any) -> Any:
        inputs, params, _ = signature.split(signature.bind(args, kwargs))
        return run(inputs, params, None)

    def meta(*args: Any, **kwargs: Any) -> Any:
        inputs, params, _ = signature.split(signature.bind(args, kwargs))
        return fake(inputs, params, None)

    _library.impl(spec.op, kernel, "CompositeExplicitAutograd")
    torch.library.register_fake(name, meta, lib=_library)
    overload = getattr(torch.ops.portable, spec.op).default
    _gradient(spec, signature, name, lookup)
    _batching(spec, signature, name, overload)
    if spec.autocast != "none":
        for device_type, key in _AUTOCAST.items():
            _library.impl(spec.op, _autocast(spec, overload, device_type, key), key)
    return overload


def define_out(spec: Spec, signature: arguments.Signature, run: Run) -> Any:
    """Register the `out` overload, which returns nothing and writes `out`."""
    schema = spec.torch_schema().split(" -> ")[0].removesuffix(")")
    star = "" if "*," in schema else "*, "
    _library.define(f"{schema.replace(spec.op, spec.op + '.out', 1)}, {star}Tensor(a!) out) -> ()")

    def kernel(*args: Any, **kwargs: Any) -> None:
        inputs, params, out = signature.split(signature.bind(args, kwargs))
        run(inputs, params, out)

    _library.impl(f"{spec.op}.out", kernel, "CompositeExplicitAutograd")
    torch.library.register_fake(f"portable::{spec.op}.out", lambda *args, **kwargs: None, lib=_library)
    return getattr(torch.ops.portable, spec.op).out


class AutogradFormula:
    """An op's gradient as autograd calls it; for an op without one, a call is an error."""

    def __init__(self, spec: Spec):
        self._spec = spec

    @functools.cached_property
    def _module(self) -> Any:
        """Loaded at the first call that records a gradient."""
        return gradient.load(self._spec)

    def forward(self, params: Mapping[str, Any]) -> str | None:
        """The op that computes instead where a gradient is recorded, or None: it takes what this one takes,
        returns this one's output first, then what its own formula keeps. `params` are checked."""
        function = getattr(self._module, "forward", None)
        return None if function is None else function(params)

    def saved(self, inputs: Sequence[Any], output: Any, params: Mapping[str, Any]) -> tuple[Any, ...]:
        """What `gradients` needs; `params` are checked."""
        if self._module is None:
            return ()
        given = dict(zip(self._spec.inputs, inputs, strict=True))
        return self._module.save(given, output if isinstance(output, tuple) else (output,), params)

    def gradients(
        self,
        saved: Sequence[Any],
        params: Mapping[str, Any],
        pins: settings.Pins,
        needs: dict[str, bool],
        grads: Sequence[Any],
    ) -> dict[str, Any]:
        """The inputs' gradients by name, under the pins of the call; `needs` says which to compute."""
        if self._module is None:
            reason = "it is itself a gradient; there is no second derivative"
            raise UnsupportedGradientError(self._spec.op, reason)
        if pins is settings.active_pins():
            return self._module.backward(saved, params, needs, *grads)
        with settings.restored(pins):  # autograd runs in other threads, outside any `using`
            return self._module.backward(saved, params, needs, *grads)


def autograd_function(
    spec: Spec, compiled: CompiledCall, inputs: Sequence[Any], lookup: Lookup
) -> Callable[..., Any]:
    """A function of the inputs of a plain call that computes and records the gradient.

    Each plan gets its own autograd function, so that only tensors pass through torch. A formula registered
    with torch.library costs 50 us a call (2026-11-21), this 4.
    """
    formula, pins = AutogradFormula(spec), settings.active_pins()
    params, names = compiled.params, tuple(spec.inputs)
    instead = formula.forward(params)
    if instead is not None:
        record = lookup(instead).autograd_function(inputs, params)
        return lambda *inputs: record(*inputs)[0]
    several = len(spec.outputs) > 1

    def forward(ctx: Any, *inputs: Any) -> Any:
        made = compiled(inputs)
        ctx.set_materialize_grads(not several)
        ctx.save_for_backward(*formula.saved(inputs, made, params))
        return made

    def backward(ctx: Any, *grads: Any) -> Any:
        needs = dict(zip(names, ctx.needs_input_grad, strict=True))
        found = formula.gradients(ctx.saved_tensors, params, pins, needs, grads)
        return tuple(found.get(name) if needs[name] else None for name in names)

    made = compiled.empty_outputs()
    stand_ins = [t if t is None else t.detach() for t in inputs]  # all different
    results = {id(t): f"_made[{i}]" for i, t in enumerate(made)} if several else {id(made): "_made"}
    by_id = {id(t): name for name, t in zip(names, stand_ins, strict=True)} | results
    by_id[id(None)] = "None"
    saved = [by_id.get(id(each), "") for each in formula.saved(stand_ins, made, params)]
    if all(saved):  # nothing but inputs and outputs, as nearly always
        absent = [name for name, t in zip(names, inputs, strict=True) if t is None]
        forward = fast_path.forward(names, absent, compiled.single_launch, compiled, saved, several)
    methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    node = type(f"portable_{spec.op}", (torch.autograd.Function,), methods)
    # Past Function.apply, whose Python deals with functorch and default arguments: 1.5 us.
    function: Any = super(torch.autograd.Function, node)
    return function.apply


class _Autograd:
    """Replaces the library while torch registers an op's formula: wraps torch's kernel for the op's
    autograd key in a check whether another op is to be recorded instead."""

    def __init__(self, spec: Spec, signature: arguments.Signature, formula: AutogradFormula, lookup: Lookup):
        self._spec, self._signature, self._formula, self._lookup = spec, signature, formula, lookup

    def impl(self, op: str, kernel: Callable[..., Any], key: str, with_keyset: bool = False) -> None:
        def chosen(keyset: Any, *args: Any, **kwargs: Any) -> Any:
            if torch.is_grad_enabled() and torch._C._any_requires_grad(*args):  # type: ignore[attr-defined]
                instead = self._instead(args, kwargs)
                if instead is not None:
                    self._lookup(instead)  # which registers it
                    return getattr(torch.ops.portable, instead).default(*args, **kwargs)[0]
            return kernel(keyset, *args, **kwargs)

        _library.impl(op, chosen, key, with_keyset=with_keyset)

    def _instead(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
        inputs, params, _ = self._signature.split(self._signature.bind(args, kwargs))
        params = arguments.check_params(self._spec, params, inputs)
        return self._formula.forward(dict(zip(self._spec.params, params, strict=True)))


def _gradient(spec: Spec, signature: arguments.Signature, name: str, lookup: Lookup) -> None:
    """The op's formula as torch.library takes it, for compile and functorch."""
    positional = [p.name for p in spec.signature.parameters.values() if p.kind is not p.KEYWORD_ONLY]
    formula = AutogradFormula(spec)

    def setup(ctx: Any, inputs: Any, output: Any, keyword_only_inputs: dict[str, Any] | None = None) -> None:
        values, params, _ = signature.split(signature.bind(inputs, keyword_only_inputs or {}))
        params = arguments.check_params(spec, params, values)
        ctx.pins, ctx.params = settings.active_pins(), dict(zip(spec.params, params, strict=True))
        ctx.set_materialize_grads(len(spec.outputs) == 1)
        ctx.save_for_backward(*formula.saved(values, output, ctx.params))

    def backward(ctx: Any, *grads: Any) -> Any:
        # torch leaves trailing arguments out that have their default
        given = positional[: len(ctx.needs_input_grad)]
        needs = dict.fromkeys(positional, False) | dict(zip(given, ctx.needs_input_grad, strict=True))
        found = formula.gradients(ctx.saved_tensors, ctx.params, ctx.pins, needs, grads)
        return tuple(found.get(argument) if needs[argument] else None for argument in given)

    library: Any = _library if spec.gradient is None else _Autograd(spec, signature, formula, lookup)
    if any(p.kind is p.KEYWORD_ONLY and p.name != "out" for p in spec.signature.parameters.values()):

        def setup_with_keywords(ctx: Any, inputs: Any, keyword_only_inputs: Any, output: Any) -> None:
            setup(ctx, inputs, output, keyword_only_inputs)

        torch.library.register_autograd(name, backward, setup_context=setup_with_keywords, lib=library)
    else:
        torch.library.register_autograd(
            name, backward, setup_context=lambda ctx, inputs, output: setup(ctx, inputs, output), lib=library
        )


def _batching(spec: Spec, signature: arguments.Signature, name: str, overload: Any) -> None:
    """vmap: the new dimension becomes the first leading dimension of every tensor that has them."""

    def rule(info: Any, in_dims: Any, *args: Any, **kwargs: Any) -> Any:
        values = signature.bind(args, kwargs)
        inputs, params, _ = signature.split(values)
        dims, _, _ = signature.split([*in_dims, *[None] * (len(values) - len(in_dims))])
        logical = [x.select(d, 0) if d is not None else x for x, d in zip(inputs, dims, strict=True)]
        params = arguments.check_params(spec, params, logical)
        rank = max(
            x.dim() - f.rank
            for f, x in zip(spec.inputs.values(), logical, strict=True)
            if x is not None and f.leading
        )
        moved = []
        for field, x, d in zip(spec.inputs.values(), inputs, dims, strict=True):
            if x is None or (d is None and (not field.leading or spec.leading == "broadcast")):
                moved.append(x)
                continue
            if not field.leading:
                raise UnsupportedTransformError(
                    spec.op, f"vmap over argument {field.name!r}, which has no leading dimensions"
                )
            x = x.movedim(d, 0) if d is not None else x.expand(info.batch_size, *x.shape)
            while x.dim() - 1 - field.rank < rank:
                x = x.unsqueeze(1)
            moved.append(x)
        result = overload(**dict(zip(signature.names, signature.join(moved, params), strict=False)))
        if not all(field.leading for field in spec.outputs.values()):
            raise UnsupportedTransformError(spec.op, "vmap over an op that sums over its leading dimensions")
        return result, (0 if len(spec.outputs) == 1 else (0,) * len(spec.outputs))

    torch.library.register_vmap(name, rule, lib=_library)


def _autocast(spec: Spec, overload: Any, device_type: str, key: str) -> Callable[..., Any]:
    """The op under autocast: floating inputs are cast to the types that the spec names for autocast; float64
    is not."""
    names = tuple(spec.signature.parameters)
    legal = {name: spec.legal_dtypes(name) for name in spec.inputs}
    excluded = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))

    def kernel(*args: Any, **kwargs: Any) -> Any:
        target = torch.float32
        if spec.autocast == "lower":
            target = torch.get_autocast_dtype(device_type)
        elif spec.autocast == "widest":
            floats = [a.dtype for a in args if isinstance(a, torch.Tensor) and a.is_floating_point()]
            for dtype in floats:
                target = dtype if dtype is floats[0] else torch.promote_types(target, dtype)

        def cast(name: str, value: Any) -> Any:
            eligible = isinstance(value, torch.Tensor) and value.is_floating_point()
            if eligible and arguments.dtype_name(target) not in legal[name]:
                return value
            if eligible and value.dtype not in (target, torch.float64) and value.device.type == device_type:
                return value.to(target)
            return value

        with torch._C._ExcludeDispatchKeyGuard(excluded):
            given = [cast(name, value) for name, value in zip(names, args, strict=False)]
            return overload(*given, **{name: cast(name, value) for name, value in kwargs.items()})

    return kernel

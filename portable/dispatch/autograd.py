"""An op's derivatives as torch asks for them, in reverse and in forward mode.

A plain call records a function made for its plan (`autograd_function`). All others, with tangents, traced or
transformed by torch.func, come through torch's dispatcher to the kernels of `register` and `register_out`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import forward_ad

from portable.dispatch import arguments, fast_path, gradient
from portable.dispatch import pins as settings
from portable.errors import UnsupportedGradientError

if TYPE_CHECKING:
    from portable.dispatch.compiled_call import CompiledCall
    from portable.spec.model import Spec

Lookup = Callable[[str], Any]
"""An op by its name (portable.dispatch.dispatcher.op)."""

_core: Any = torch._C
_functions: Any = torch._VF  # type: ignore[attr-defined]


class AutogradFormula:
    """An op's gradient as autograd calls it."""

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
        given = dict(zip(self._spec.inputs, inputs, strict=True))
        return self._module.save(given, output if isinstance(output, tuple) else (output,), params)

    def backward(
        self, params: Mapping[str, Any], absent: Sequence[str], lookup: Lookup
    ) -> Callable[..., Any]:
        """`gradients` as autograd calls it for a plain call, written out for the pins of now, for these
        parameters and for a call without the inputs `absent`."""
        inputs, module = list(self._spec.inputs), self._module
        grads = [f"d{name}" for name in self._spec.outputs]
        names = {"_held": settings.active_pins(), "_refuse": self._refuse}
        if isinstance(module, gradient.BackwardOp):
            statement, by_input = module.source()
            names["_op"] = fast_path.by_position(lookup(module.op))
            names |= {f"_param_{name}": value for name, value in params.items()}
        else:
            needs = ", ".join(f"{name!r}: _needs_{name}" for name in inputs)
            given = ", ".join(("_ctx.saved_tensors", "_params", f"{{{needs}}}", *grads))
            statement = f"_found = _formula.backward({given})"
            by_input = {name: f"_found.get({name!r})" for name in inputs}
            names |= {"_formula": module, "_params": params}
        found = {name: "None" if name in absent else by_input.get(name, "None") for name in inputs}
        refused = [name for name, field in self._spec.inputs.items() if not field.gradient]
        return fast_path.backward(grads, statement, found, refused, names)

    def _refuse(self, name: str) -> None:
        raise UnsupportedGradientError(self._spec.op, f"argument {name!r} has none")

    def gradients(
        self,
        saved: Sequence[Any],
        params: Mapping[str, Any],
        pins: settings.Pins,
        needs: dict[str, bool],
        grads: Sequence[Any],
    ) -> dict[str, Any]:
        """The inputs' gradients by name, under the pins of the call; `needs` says which to compute.

        Raises UnsupportedGradientError where one of them is of an input that has none by the spec.
        """
        for name, field in self._spec.inputs.items():
            if needs[name] and not field.gradient:
                self._refuse(name)
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
    if arguments.writes(spec, inputs):

        def refuse(*inputs: Any) -> None:
            arguments.check_records_nothing(spec, inputs)

        return refuse
    formula = AutogradFormula(spec)
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

    made = compiled.empty_outputs()
    stand_ins = [t if t is None else t.detach() for t in inputs]  # all different
    results = {id(t): f"_made[{i}]" for i, t in enumerate(made)} if several else {id(made): "_made"}
    by_id = {id(t): name for name, t in zip(names, stand_ins, strict=True)} | results
    by_id[id(None)] = "None"
    saved = [by_id.get(id(each), "") for each in formula.saved(stand_ins, made, params)]
    absent = [name for name, t in zip(names, inputs, strict=True) if t is None]
    if all(saved):  # nothing but inputs and outputs, as nearly always
        forward = fast_path.forward(names, absent, compiled.from_addresses, compiled, saved, several)
    return _apply(f"portable_{spec.op}", forward, formula.backward(params, absent, lookup))


def _apply(name: str, forward: Any, backward: Any, *others: Any) -> Callable[..., Any]:
    """What records a call, from `forward`, `backward` and perhaps `jvp`.

    It is past Function.apply, whose Python takes 1.5 us and sends a call through all levels of torch.func: a
    kernel of torch's dispatcher is called for one. The engine calls `backward` past a method of torch's that
    looks for it: 0.4 us.
    """
    methods = {each.__name__: staticmethod(each) for each in (forward, backward, *others)}
    node: Any = type(name, (torch.autograd.Function,), methods)
    node._backward_cls.apply = backward
    function: Any = super(torch.autograd.Function, node)
    return function.apply


def register(
    spec: Spec, signature: arguments.Signature, overload: Any, library: torch.library.Library, lookup: Lookup
) -> None:
    """Register the op's derivatives with torch's dispatcher.

    Reverse mode records the spec's gradient. In forward mode the op itself computes the result, and torch's
    own operations (portable.dispatch.composed) its tangent, which autograd can differentiate again.
    """
    formula = AutogradFormula(spec)
    names = [p.name for p in spec.signature.parameters.values() if p.kind is not p.KEYWORD_ONLY]

    def checked(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        inputs, params, _ = signature.split(signature.bind(args, kwargs))
        params = arguments.check_params(spec, params, inputs)
        return inputs, dict(zip(spec.params, params, strict=True))

    def forward(ctx: Any, keyset: Any, kwargs: Mapping[str, Any], tangents: Any, *args: Any) -> Any:
        # Levels of torch.func below this one record too, for which torch must not have it turned off.
        nested = fast_path.has_transform()
        with torch.set_grad_enabled(nested), forward_ad._set_fwd_grad_enabled(nested):
            made = _below(overload, keyset, args, kwargs)
        inputs, ctx.params = checked(args, kwargs)
        ctx.pins, ctx.tangents = settings.active_pins(), tangents
        ctx.set_materialize_grads(len(spec.outputs) == 1)
        ctx.save_for_backward(*formula.saved(inputs, made, ctx.params))
        several = made if isinstance(made, tuple) else (made,)
        ctx.mark_non_differentiable(*(each for each in several if not each.is_floating_point()))
        return made

    def backward(ctx: Any, *grads: Any) -> Any:
        wanted = ctx.needs_input_grad[3:]
        given = names[: len(wanted)]  # torch leaves trailing arguments out that have their default
        needs = dict.fromkeys(names, False) | dict(zip(given, wanted, strict=True))
        found = formula.gradients(ctx.saved_tensors, ctx.params, ctx.pins, needs, grads)
        return None, None, None, *(found.get(name) if needs[name] else None for name in given)

    def jvp(ctx: Any, *_: Any) -> Any:
        tangents, ctx.tangents = ctx.tangents, None
        return tuple(tangents) if len(tangents) > 1 else tangents[0]

    record = _apply(f"portable_{spec.op}", forward, backward, jvp)

    def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        if spec.mutated:
            arguments.check_records_nothing(spec, signature.split(signature.bind(args, kwargs))[0])
        wants = torch.is_grad_enabled() and _core._any_requires_grad(*args)
        if wants and spec.gradient is not None:
            instead = formula.forward(checked(args, kwargs)[1])
            if instead is not None:
                lookup(instead)  # which registers it
                return getattr(torch.ops.portable, instead).default(*args, **kwargs)[0]
        tangents = None
        if arguments.has_tangent(args):
            from portable.dispatch import composed

            duals = composed.compute(spec, *checked(args, kwargs))
            tangents = [_tangent(dual) for dual in duals]
        elif not wants:
            return _below(overload, keyset, args, kwargs)
        if not fast_path.has_transform():
            return record(keyset, kwargs, tangents, *args)
        from torch._functorch.utils import enable_single_level_autograd_function

        with enable_single_level_autograd_function():
            return record(keyset, kwargs, tangents, *args)

    library.impl(spec.op, fast_path.untraced(kernel), "Autograd", with_keyset=True)


def _tangent(result: torch.Tensor) -> torch.Tensor | None:
    """That of one of torch's results, zeros where it depends on nothing that has one; None for integers."""
    primal, tangent = _functions._unpack_dual(result, level=0)
    return torch.zeros_like(primal) if tangent is None and primal.is_floating_point() else tangent


def register_out(
    spec: Spec, signature: arguments.Signature, overload: Any, library: torch.library.Library
) -> None:
    """Register that nothing is differentiated through `out`: the call raises OutputError instead."""

    def kernel(keyset: Any, *args: Any, **kwargs: Any) -> None:
        inputs, _, out = signature.split(signature.bind(args, kwargs))
        arguments.check_tensors(spec, inputs)
        arguments.check_out_kind(spec, out)
        arguments.check_out_records_nothing(spec, out, inputs)
        _below(overload, keyset, args, kwargs)

    library.impl(f"{spec.op}.out", fast_path.untraced(kernel), "Autograd", with_keyset=True)


def _below(overload: Any, keyset: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The op without what autograd does: at the next level of torch.func, or computed."""
    with _core._AutoDispatchBelowAutograd():
        return overload.redispatch(keyset & _core._after_autograd_keyset, *args, **kwargs)

"""How a function that is no implementation of ours is called: which of an op's arguments it takes, and what
it gives back.

A parameter with the name of an input or parameter of the op takes that. Positional parameters with other
names and without a default take the inputs that are left, in the order of the op's signature; so does
`*args`. `**kwargs` takes whatever else the op has, by name, except `out`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from traceback import extract_tb
from typing import Any

import torch

from portable.conformance.cases.case import Case, input_shapes
from portable.dispatch import dlpack
from portable.errors import ArgumentError, PortableError, listed
from portable.spec.model import Spec

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Unsupported(PortableError):
    """A judged function raises it to decline a case; its message is the rule, and the case NotSupported."""


class Bound:
    """`function` under the names of an op's arguments: called with them, it answers with tensors.

    Raises ArgumentError where it needs what the op has not, or takes not what every call of the op has.
    `out` says whether it takes `out=`; None: as its signature says.
    """

    def __init__(self, function: Callable[..., Any], spec: Spec, out: bool | None = None):
        _check_callable(function)
        self.function, self.spec, self.name = function, spec, name_of(function)
        self._signature = _signature(function)
        self._target: dict[str, inspect.Parameter] = {}
        self._match()
        has_out = spec.out is not None and (out if out is not None else "out" in self._signature.parameters)
        if has_out and "out" not in self._target:
            rest = _of_kind(self._signature, inspect.Parameter.VAR_KEYWORD)
            if rest is None:
                raise _wrong(self.name, "out=True, but it has no parameter out", "one, or **kwargs")
            self._target["out"] = rest
        elif not has_out:
            self._target.pop("out", None)
        self._complete()

    def _match(self) -> None:
        """Names first, then positions, then what **kwargs takes."""
        parameters = self._signature.parameters.values()
        known = [*self.spec.signature.parameters]
        self._target = {p.name: p for p in parameters if p.name in known and p.kind not in _VARIADIC}
        rest = [name for name in known if name in self.spec.inputs and name not in self._target]
        free = [
            p for p in parameters
            if p.kind in _POSITIONAL and p.name not in (*known, "out") and _is_required(p)
        ]  # fmt: skip
        self._target.update(zip(rest, free, strict=False))
        several = _of_kind(self._signature, inspect.Parameter.VAR_POSITIONAL)
        if several is not None:
            self._target.update(dict.fromkeys(rest[len(free) :], several))
        named = _of_kind(self._signature, inspect.Parameter.VAR_KEYWORD)
        if named is not None:
            self._target.update({name: named for name in known if name not in (*self._target, "out")})

    def _complete(self) -> None:
        taken = {parameter.name for parameter in self._target.values()}
        for parameter in self._signature.parameters.values():
            if not _is_required(parameter):
                continue
            if parameter.name == "out":
                raise _wrong(self.name, "needs out=", "a default of None: most cases give none")
            if parameter.name not in taken:
                raise _wrong(
                    self.name,
                    f"needs {parameter.name!r}, which {self.spec.op} has not",
                    f"parameters among {listed(self.spec.signature.parameters)}",
                    "Give it a default, or bind it with functools.partial",
                )
        for name, tensor in self.spec.inputs.items():
            if not tensor.optional and name not in self._target:
                expected = f"a function of {listed(self.spec.inputs)}"
                raise _wrong(self.name, f"takes no {name}, which every call of {self.spec.op} has", expected)

    def takes(self, name: str) -> bool:
        """Whether the function takes this argument of the op."""
        return name in self._target

    def lacks(self, case: Case) -> str:
        """The rule by which the function does not take a case, or ""."""
        shapes = input_shapes(self.spec, case.shape)
        for name in self.spec.inputs:
            parameter = self._target.get(name)
            if name in shapes and parameter is None:
                return f"the function takes no {name}"
            if name not in shapes and parameter is not None and _is_required(parameter):
                return f"the function needs {name}: it has no default"
        if case.mode in ("out", "in_place") and "out" not in self._target:
            return "the function takes no out="
        for name, param in self.spec.params.items():
            if name in self._target:
                continue
            value = case.params.get(name, param.default)
            if param.type == "axis" and param.of is not None:
                rank = max(len(shapes[param.of]), 1)
                same = value is not None and value % rank == param.default % rank
            else:
                same = value == param.default and not param.required
            if not same:
                return f"the function takes no {name}; this case has {name}={value}"
        return ""

    def __call__(self, **arguments: Any) -> Any:
        """Call the function with an op's arguments by name, parameters at the op's defaults where the
        function takes them; a tensor, or a tuple of them."""
        defaults = {name: each.default for name, each in self.spec.params.items() if not each.required}
        given: dict[str, Any] = {}
        for name, parameter in self._target.items():
            if name not in arguments and name not in defaults:
                continue
            value = arguments.get(name, defaults.get(name))
            if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
                given[parameter.name] = (*given.get(parameter.name, ()), value)
            elif parameter.kind is inspect.Parameter.VAR_KEYWORD:
                given.setdefault(parameter.name, {})[name] = value
            else:
                given[parameter.name] = value
        ordered = {name: given[name] for name in self._signature.parameters if name in given}
        bound = inspect.BoundArguments(self._signature, ordered)  # type: ignore[arg-type]
        return self._tensors(self.function(*bound.args, **bound.kwargs), arguments.get("out"))

    def _tensors(self, result: Any, out: torch.Tensor | None) -> Any:
        """The outputs as tensors."""
        if out is not None:
            return out if result is None else result
        several = result if isinstance(result, (tuple, list)) else (result,)
        tensors = []
        for place, value in enumerate(several):
            name = list(self.spec.outputs)[place] if place < len(self.spec.outputs) else f"output {place}"
            if dlpack.is_foreign(value):
                value = dlpack.to_torch(self.spec.op, name, value)
            tensors.append(value)
        return tensors[0] if len(tensors) == 1 else tuple(tensors)

    def where(self, error: BaseException) -> str:
        """The line of the function's own file from which an exception came, or ""."""
        code = getattr(inspect.unwrap(_innermost(self.function)), "__code__", None)
        frames = [f for f in extract_tb(error.__traceback__) if code and f.filename == code.co_filename]
        return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""


_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def name_of(function: Any) -> str:
    """A function's name in a report: its own, that of what a partial binds, or its type's."""
    inner = _innermost(function)
    return getattr(inner, "__name__", None) or type(inner).__name__


def _innermost(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):  # written in C, and it does not say
        return inspect.Signature([inspect.Parameter("inputs", inspect.Parameter.VAR_POSITIONAL)])


def _is_required(parameter: inspect.Parameter) -> bool:
    return parameter.kind not in _VARIADIC and parameter.default is parameter.empty


def _of_kind(signature: inspect.Signature, kind: Any) -> inspect.Parameter | None:
    return next((each for each in signature.parameters.values() if each.kind is kind), None)


def _check_callable(function: Any) -> None:
    if type(function).__module__.startswith("triton."):
        remedy = "Wrap the launch in a function that takes tensors and returns the output"
        raise _wrong(name_of(function), "is a Triton kernel without its launch", "a function", remedy)
    if not callable(function):
        raise _wrong(repr(function), f"is no function but {type(function).__name__}", "a callable")


def _wrong(name: str, what: str, expected: str, remedy: str = "") -> ArgumentError:
    return ArgumentError("conformance.check", "function", f"{name}: {what}", expected, remedy)

"""Checking a call against its spec: every user mistake raises here, before any kernel is launched.

Works on real tensors and on fake ones (`torch.compile`): sizes are compared, never converted.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import torch
from torch._subclasses.fake_tensor import FakeTensor

from portable import errors
from portable.spec.formula import Formula
from portable.spec.model import size_of

if TYPE_CHECKING:
    from portable.spec.model import Input, Param, Spec

MISSING = object()
_P = ParamSpec("_P")
_R = TypeVar("_R")


@dataclass(frozen=True)
class Bound:
    """What follows from a call's tensors: sizes of the axes (with B, the number of leading elements), the
    dtype of each type variable, the leading shape, and each output's shape and dtype."""

    axes: dict[str, int]
    types: dict[str, str]
    leading: tuple[int, ...]
    outputs: dict[str, tuple[tuple[int, ...], torch.dtype]]


def dtype_name(dtype: torch.dtype) -> str:
    """`torch.bfloat16` as the spec spells it: `bfloat16`."""
    return str(dtype).removeprefix("torch.")


class Parameters:
    """Positional and keyword arguments of a function as one list, in the order of its signature."""

    def __init__(self, op: str, signature: inspect.Signature, hints: Mapping[str, str] | None = None):
        self.op, self._hints = op, hints or {}
        parameters = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
        self.text = str(inspect.Signature(parameters))
        self.names = [p.name for p in parameters]
        self._index = {name: position for position, name in enumerate(self.names)}
        self.defaults = [MISSING if p.default is p.empty else p.default for p in parameters]
        self.positional = sum(p.kind is not p.KEYWORD_ONLY for p in parameters)

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """All arguments in order, defaults filled in, also for MISSING in `args`. Raises SignatureError."""
        if len(args) > self.positional:
            raise errors.SignatureError(
                self.op, f"takes {self.positional} positional arguments but {len(args)} were given", self.text
            )
        values = [*args, *[MISSING] * (len(self.names) - len(args))]
        for name, value in kwargs.items():
            position = self._index.get(name)
            if position is None:
                hint = self._hints.get(name) or errors.nearest(name, self.names)
                raise errors.SignatureError(self.op, f"has no argument {name!r}.{hint}", self.text)
            if values[position] is not MISSING:
                raise errors.SignatureError(self.op, f"got {name!r} twice", self.text)
            values[position] = value
        for position, value in enumerate(values):
            if value is MISSING:
                values[position] = default = self.defaults[position]
                if default is MISSING:
                    raise errors.SignatureError(self.op, f"needs {self.names[position]!r}", self.text)
        return values


class Signature(Parameters):
    """The arguments of an op, which are inputs, parameters and `out`."""

    def __init__(self, spec: Spec):
        super().__init__(spec.op, spec.signature)
        self._inputs = [self.names.index(name) for name in spec.inputs]
        self._params = [self.names.index(name) for name in spec.params]
        self._in_order = self.names == [*spec.inputs, *spec.params]
        self._out = self.names.index("out") if spec.out else None

    def split(self, values: list[Any]) -> tuple[list[Any], list[Any], Any]:
        """The inputs and the parameters, each in the spec's order, and `out`."""
        if self._in_order:
            return values[: len(self._inputs)], values[len(self._inputs) :], None
        out = None if self._out is None else values[self._out]
        return [values[i] for i in self._inputs], [values[i] for i in self._params], out

    def complain(self, inputs: Sequence[Any], params: Sequence[Any]) -> None:
        """Raise SignatureError for the first argument that is MISSING."""
        values = zip(self.names, self.join(inputs, params), strict=False)
        self.bind((), {name: value for name, value in values if value is not MISSING})

    def join(self, inputs: Sequence[Any], params: Sequence[Any]) -> list[Any]:
        """`split` undone, without `out`."""
        values: list[Any] = [None] * (len(inputs) + len(params))
        for position, value in zip((*self._inputs, *self._params), (*inputs, *params), strict=True):
            values[position] = value
        return values


def documented(function: Callable[_P, _R], hints: Mapping[str, str] | None = None) -> Callable[_P, _R]:
    """`function`, with a SignatureError in the place of Python's TypeError for arguments that do not fit;
    `hints` are sentences for names of arguments that another library has."""

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return function(*args, **kwargs)
        except TypeError:
            parameters = Parameters(function.__name__, inspect.signature(function), hints)
            parameters.bind(args, kwargs)  # raises if that was it
            raise

    return call


def check_tensor(op: str, name: str, tensor: Any, expected: str = "a torch.Tensor") -> torch.Tensor:
    """The argument, which is a dense tensor. Raises NotATensorError or LayoutError."""
    if not isinstance(tensor, torch.Tensor):
        raise errors.NotATensorError(op, name, type(tensor).__name__, expected)
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
        kind = str(tensor.layout)
        remedy = "Call .to_dense() on it"
        if tensor.is_quantized:
            kind, remedy = "quantized", "Call .dequantize() on it"
        elif tensor.is_nested:
            kind, remedy = "nested", "Call .to_padded_tensor() on it"
        raise errors.LayoutError(op, name, kind, "a dense tensor", remedy)
    return tensor


def check_flag(op: str, name: str, value: Any) -> None:
    """The argument is True or False. Raises ParameterError."""
    if not isinstance(value, bool):
        raise errors.ParameterError(op, name, value, "True or False")


def check_tensors(spec: Spec, tensors: Sequence[Any]) -> None:
    """Each input is a dense tensor, or None where the spec allows it; all are on one device."""
    first: tuple[str, torch.Tensor] | None = None
    for field, tensor in zip(spec.inputs.values(), tensors, strict=True):
        if tensor is None and field.optional:
            continue
        expected = "a torch.Tensor" + (" or None" if field.optional else "") + ", or an array with __dlpack__"
        tensor = check_tensor(spec.op, field.name, tensor, expected)
        if tensor.is_neg() and (field.name in spec.mutated or not can_negate(tensor)):
            kind = f"{tensor.dtype}, a view that torch negates when it is read"
            raise errors.LayoutError(spec.op, field.name, kind, "memory that holds the numbers")
        if first is None:
            first = (field.name, tensor)
        elif tensor.device != first[1].device:
            raise errors.DeviceError(
                spec.op,
                field.name,
                str(tensor.device),
                f"{first[1].device}, where argument {first[0]!r} is",
                f"Move it with {field.name}.to({str(first[1].device)!r})",
            )


def can_negate(tensor: torch.Tensor) -> bool:
    """Whether torch can negate the tensor: not bools, unsigned ints but of 8 bits, and floats of 8 bits."""
    dtype = tensor.dtype
    return dtype is torch.uint8 or (dtype.is_signed and not (dtype.is_floating_point and dtype.itemsize == 1))


def check_fakes(spec: Spec, tensors: Sequence[torch.Tensor | None]) -> None:
    """No fake tensor is beside one with data, for a call outside of torch's modes. Raises NotATensorError."""
    named = {name: tensor for name, tensor in zip(spec.inputs, tensors, strict=True) if tensor is not None}
    fakes = {name: tensor.fake_mode for name, tensor in named.items() if isinstance(tensor, FakeTensor)}
    real = next((name for name in named if name not in fakes), None)
    for name, mode in fakes.items():
        if real is not None and not mode.allow_non_fake_inputs:
            expected = f"a tensor with data, as argument {real!r} is"
            raise errors.NotATensorError(spec.op, name, "FakeTensor", expected)


def check_memory(spec: Spec, tensors: Sequence[torch.Tensor | None], out: torch.Tensor | None = None) -> None:
    """Each tensor's elements lie within its storage: after resize_ they may not. Raises StorageError."""
    for name, tensor in zip((*spec.inputs, "out"), (*tensors, out), strict=True):
        if not isinstance(tensor, torch.Tensor) or tensor.is_meta or tensor.numel() == 0:  # None; or refused
            continue
        start = tensor.storage_offset() * tensor.element_size()
        end = start + span(tensor)
        there = tensor.data_ptr() != start  # a wrapper's storage has a size, and no memory
        size = tensor.untyped_storage().nbytes() if there else 0
        if size < end:
            reached = f"byte {end} of a storage of {size} bytes"
            expected = "a tensor within its storage, which was freed or resized"
            raise errors.StorageError(spec.op, name, reached, expected, "Pass a tensor that has its memory")


def check_params(spec: Spec, values: Sequence[Any], tensors: Sequence[Any]) -> list[Any]:
    """The parameters, each of its declared type; an axis comes back counted from the end."""
    return [
        _check_param(spec, param, value, tensors)
        for param, value in zip(spec.params.values(), values, strict=True)
    ]


def _check_param(spec: Spec, param: Param, value: Any, tensors: Sequence[Any]) -> Any:
    if param.type in ("int", "axis") and isinstance(value, torch.SymInt):
        return value
    if param.nullable and param.default is value:  # None
        return value
    finite = param.type != "float" or not param.accepts(value) or abs(value) <= sys.float_info.max
    if not param.accepts(value) or not finite:
        hint = errors.nearest(value, param.choices) if isinstance(value, str) else ""
        raise errors.ParameterError(spec.op, param.name, value, param.expected, hint.strip())
    if param.type == "float":
        return float(value)
    if param.type == "int" and not -(2**63) <= value < 2**63:
        raise errors.ParameterError(spec.op, param.name, value, f"{param.expected}, of 64 bits")
    if param.type == "axis":
        tensor = tensors[list(spec.inputs).index(str(param.of))]
        rank = tensor.dim()
        if rank == 0:
            expected = f"at least 1, for {param.name!r} to choose from"
            raise errors.RankError(spec.op, str(param.of), 0, expected)
        if not -rank <= value < rank:
            expected = f"an int from {-rank} to {rank - 1}, as {param.of!r} has {rank} dimensions"
            raise errors.ParameterError(spec.op, param.name, value, expected)
        return value - rank if value >= 0 else value
    return str(value).removeprefix("torch.") if param.type == "dtype" else value


def check_types(spec: Spec, tensors: Sequence[Any], params: Mapping[str, Any]) -> dict[str, str]:
    """The row of the spec's type table that the tensors' dtypes and the checked parameters select. Raises
    DtypeError or ParameterError."""
    found: dict[str, tuple[str, str]] = {}
    rows = spec.types
    for field, tensor in zip(spec.inputs.values(), tensors, strict=True):
        if tensor is None:
            continue
        got = dtype_name(tensor.dtype)
        narrowed = [row for row in rows if row.get(field.dtype, field.dtype) == got]
        if not narrowed:
            legal = sorted({row.get(field.dtype, field.dtype) for row in rows})
            beside = "".join(f" beside {name!r} of {other}" for name, other in found.values())
            # bfloat16 rounds integers above 256
            exact = "float32" in legal and not tensor.dtype.is_floating_point
            remedy = f"Convert it, for example with {field.name}.to(torch.{'float32' if exact else legal[0]})"
            raise errors.DtypeError(spec.op, field.name, got, f"{' or '.join(legal)}{beside}", remedy)
        rows = narrowed
        found[field.dtype] = (field.name, got)
    for name, variable in spec.dtype_variables.items():
        narrowed = [row for row in rows if row[variable] == params[name]]
        if not narrowed:
            legal = " or ".join(dict.fromkeys(f"torch.{row[variable]}" for row in rows))
            beside = "".join(f" beside {each!r} of {other}" for each, other in found.values())
            raise errors.ParameterError(spec.op, name, params[name], f"{legal}{beside}")
        rows = narrowed
    return dict(rows[0])


def check_shapes(spec: Spec, tensors: Sequence[Any]) -> tuple[dict[str, int], tuple[int, ...]]:
    """Sizes of the axes and the leading shape. Axis parameters have been moved last already."""
    axes: dict[str, int] = {}
    owner: dict[str, str] = {}
    leading: tuple[int, ...] | None = None
    leader = ""
    by_formula: list[tuple[Input, tuple[int, ...], Formula, int]] = []
    for field, tensor in zip(spec.inputs.values(), tensors, strict=True):
        if tensor is None:
            continue
        shape = tuple(tensor.shape)
        names, open_ended = field.dims, field.leading
        if len(shape) < len(names) or (len(shape) > len(names) and not open_ended):
            least = len(names) - bool(field.squeeze)
            wanted = f"{'at least ' if open_ended else ''}{least}"
            raise errors.RankError(
                spec.op, field.name, len(shape), f"{wanted}, as its shape is {field.shape_text}"
            )
        for axis, size in zip(names, shape[len(shape) - len(names) :], strict=True):
            if isinstance(axis, int):
                if size != axis:
                    raise errors.ShapeError(spec.op, field.name, shape, field.shape_text)
            elif isinstance(axis, Formula):
                by_formula.append((field, shape, axis, size))
            elif axis not in axes:
                axes[axis], owner[axis] = size, field.name
                if size not in spec.axes[axis]:
                    raise errors.ShapeError(spec.op, field.name, shape, f"{axis} within {spec.axes[axis]}")
            elif axes[axis] != size:
                raise errors.ShapeError(
                    spec.op,
                    field.name,
                    shape,
                    f"{field.shape_text} with {axis} = {axes[axis]}, as in argument {owner[axis]!r}",
                )
        if open_ended:
            own = shape[: len(shape) - len(names)]
            if leading is None:
                leading, leader = own, field.name
            elif spec.leading == "broadcast":
                leading = _broadcast(spec, field.name, shape, leading, own, leader)
            elif len(own) != len(leading) or any(a != b for a, b in zip(own, leading, strict=True)):
                raise errors.ShapeError(
                    spec.op,
                    field.name,
                    shape,
                    f"the leading dimensions {tuple(leading)} of argument {leader!r}",
                )
    for field, shape, formula, size in by_formula:
        if size != (value := size_of(formula, axes)):
            expected = f"{field.shape_text} with {formula} = {value}"
            raise errors.ShapeError(spec.op, field.name, shape, expected)
    return axes, leading or ()


def _broadcast(
    spec: Spec, name: str, shape: tuple[int, ...], one: tuple[int, ...], two: tuple[int, ...], leader: str
) -> tuple[int, ...]:
    if one == two:
        return one
    if all(type(size) is int for size in (*one, *two)):  # torch.broadcast_shapes imports sympy, 0.4 s
        longer, shorter = sorted((one, two), key=len, reverse=True)
        pairs = list(zip(longer, (1,) * (len(longer) - len(shorter)) + tuple(shorter), strict=True))
        if all(a == b or a == 1 or b == 1 for a, b in pairs):
            return tuple(b if a == 1 else a for a, b in pairs)
    try:
        return tuple(torch.broadcast_shapes(one, two))
    except RuntimeError:
        expected = f"leading dimensions that broadcast with {tuple(one)} of argument {leader!r}"
        raise errors.ShapeError(spec.op, name, shape, expected) from None


def bind(spec: Spec, tensors: Sequence[Any], params: Mapping[str, Any]) -> Bound:
    """Check dtypes and shapes and work out the outputs. `tensors` are in the spec's order, axis moved;
    `params` are checked."""
    types = check_types(spec, tensors, params)
    axes, leading = check_shapes(spec, tensors)
    sizes = {**axes, "B": math.prod(leading)}
    present = {name for name, tensor in zip(spec.inputs, tensors, strict=True) if tensor is not None}
    outputs = {}
    for out in spec.outputs.values():
        dtype = getattr(torch, types.get(out.dtype, out.dtype))
        shape: tuple[int, ...] = (0,)
        if out.when is None or out.when in present:
            own = tuple(size_of(dim, axes) for dim in out.dims)
            shape = (*leading, *own) if out.leading else own
            if all(type(size) is int for size in shape) and math.prod(shape) * dtype.itemsize >= 2**63:
                name, first = next((n, t) for n, t in zip(spec.inputs, tensors, strict=True) if t is not None)
                expected = f"sizes that make {out.name!r} smaller than 2^63 bytes, not of shape {shape}"
                raise errors.ShapeError(spec.op, name, tuple(first.shape), expected)
        outputs[out.name] = (shape, dtype)
    return Bound(sizes, types, tuple(leading), outputs)


def check_rules(
    spec: Spec, bound: Bound, params: Mapping[str, Any], tensors: Sequence[torch.Tensor | None]
) -> None:
    """Check the spec's rules, except on symbolic sizes, which are checked when the call runs."""
    fields = zip(spec.inputs.values(), tensors, strict=True)
    present = {field.name: tensor is not None for field, tensor in fields if field.optional}
    facts: dict[str, Any] = {**params, **bound.types, **bound.axes, **present}
    for rule in spec.rules:
        used = {name: facts[name] for name in rule.that.names}
        if any(isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)) for value in used.values()):
            continue
        if rule.that.evaluate(**used) is True:
            continue
        guilty = [name for name in params if name in used]
        if guilty:
            raise errors.ParameterError(spec.op, guilty[-1], params[guilty[-1]], rule.says)
        for field, tensor in zip(spec.inputs.values(), tensors, strict=True):
            if tensor is not None and set(field.dims) & set(used):
                sizes = ", ".join(f"{name} = {used[name]}" for name in bound.axes if name in used)
                expected = f"{rule.says}; got {sizes}"
                raise errors.ShapeError(spec.op, field.name, tuple(tensor.shape), expected)
        lacking = next((name for name in used if present.get(name) is False), next(iter(used)))
        raise errors.ArgumentError(spec.op, lacking, "None", rule.says)


def check_out_kind(spec: Spec, out: Any) -> None:
    """`out=` is a dense tensor."""
    if not isinstance(out, torch.Tensor):
        raise errors.OutputError(spec.op, "out", f"is a {type(out).__name__}", "a torch.Tensor")
    if out.layout is not torch.strided or out.is_quantized or out.is_nested:
        raise errors.OutputError(spec.op, "out", "is sparse, quantised or nested", "a dense tensor")
    if out.is_neg():
        problem = "is a view that torch negates when it is read"
        remedy = "Pass a new tensor, then out.copy_(it)"
        raise errors.OutputError(spec.op, "out", problem, "memory that holds the result", remedy)


def check_out(
    spec: Spec, out: Any, shape: Sequence[int], dtype: torch.dtype, tensors: Sequence[torch.Tensor | None]
) -> None:
    """`out=` fits, shares no memory with an input (but one that it may be) or itself, and wants no
    gradient."""
    fail = errors.OutputError
    check_out_kind(spec, out)
    check_out_form(spec, out, shape, dtype, next(t.device for t in tensors if t is not None))
    check_out_records_nothing(spec, out, tensors)
    if not _dense(out):
        raise fail(spec.op, "out", f"has strides {out.stride()} that overlap", "one address per element")
    in_place = in_place_input(spec, tensors, out)
    for i, (field, tensor) in enumerate(zip(spec.inputs.values(), tensors, strict=True)):
        if tensor is None or (i == in_place and tensor.data_ptr() == out.data_ptr()):
            continue
        if _overlap(out, tensor):
            raise fail(spec.op, "out", f"shares memory with argument {field.name!r}", "separate memory")


def in_place_input(spec: Spec, inputs: Sequence[torch.Tensor | None], out: torch.Tensor | None) -> int | None:
    """The position of the input that `out`, at its address, may be: one of the same form."""
    if out is None or spec.out is None or spec.out.in_place is None:
        return None
    position = list(spec.inputs).index(spec.out.in_place)
    given = inputs[position]
    form = (out.shape, out.stride(), out.dtype)
    same = given is not None and (given.shape, given.stride(), given.dtype) == form
    return position if same else None


def check_out_form(
    spec: Spec, out: torch.Tensor, shape: Sequence[int], dtype: torch.dtype, device: torch.device
) -> None:
    """`out=` has the result's shape and dtype, and lies where the inputs do."""
    fail = errors.OutputError
    if tuple(out.shape) != tuple(shape):
        remedy = f"Allocate it with torch.empty({tuple(shape)}, dtype={dtype}, device='{device}')"
        raise fail(spec.op, "out", f"has shape {tuple(out.shape)}", f"{tuple(shape)}", remedy)
    if out.dtype != dtype:
        raise fail(spec.op, "out", f"has dtype {dtype_name(out.dtype)}", dtype_name(dtype))
    if out.device != device:
        raise fail(spec.op, "out", f"is on {out.device}", f"{device}, where the inputs are")


def check_out_records_nothing(spec: Spec, out: Any, tensors: Sequence[torch.Tensor | None]) -> None:
    """Nothing is to be differentiated through `out`."""
    several = [t for t in (out, *tensors) if t is not None]
    if torch.is_grad_enabled() and any(t.requires_grad for t in several):
        raise errors.OutputError(
            spec.op,
            "out",
            "was given where an argument requires a gradient",
            "no gradient",
            "Leave out= away, or call under torch.no_grad()",
        )
    if has_tangent(several):
        problem = "was given where an argument carries a tangent"
        raise errors.OutputError(spec.op, "out", problem, "no tangent", "Leave out= away")


def check_mutated(spec: Spec, tensors: Sequence[torch.Tensor | None]) -> None:
    """Every element of a mutated input has memory of its own, which no other input shares."""
    fields = list(zip(spec.inputs.values(), tensors, strict=True))
    for field, tensor in fields:
        if tensor is None or not field.mutated:
            continue
        if not _dense(tensor):
            problem = f"is written in place and has strides {tensor.stride()} that overlap"
            raise errors.OutputError(spec.op, field.name, problem, "one address per element")
        for other, another in fields:
            if another is None or other is field or not _overlap(tensor, another):
                continue
            if not _interleaved(tensor, another):
                problem = f"is written in place and shares memory with argument {other.name!r}"
                raise errors.OutputError(spec.op, field.name, problem, "separate memory")


def writes(spec: Spec, tensors: Sequence[Any]) -> str | None:
    """The first mutated input that the call has."""
    pairs = zip(spec.inputs.values(), tensors, strict=True)
    return next((field.name for field, tensor in pairs if field.mutated and tensor is not None), None)


def check_records_nothing(spec: Spec, tensors: Sequence[Any]) -> None:
    """Nothing is to be differentiated through a call that writes in place: the write has no gradient."""
    name = writes(spec, tensors)
    several = [t for t in tensors if isinstance(t, torch.Tensor)]
    wants = torch.is_grad_enabled() and any(t.requires_grad for t in several)
    if name is not None and (wants or has_tangent(several)):
        reason = f"argument {name!r} is written in place, which cannot be differentiated"
        raise errors.UnsupportedGradientError(spec.op, reason, "Call under torch.no_grad()")


_AUTOGRAD = torch._C.DispatchKey.AutogradFunctionality


def has_tangent(tensors: Sequence[Any]) -> bool:
    """Whether forward mode is on and one of the tensors carries a tangent.

    Asked of torch's core, as a compiled graph enters forward mode without torch.autograd's Python. Below
    autograd, where it may not be asked, nobody has one.
    """
    if not torch._C._is_fwd_grad_enabled() or torch._C._dispatch_tls_is_dispatch_key_excluded(_AUTOGRAD):
        return False
    core: Any = torch._VF  # type: ignore[attr-defined]
    with _unrecorded():
        return any(
            isinstance(t, torch.Tensor) and core._unpack_dual(t, level=0).tangent is not None for t in tensors
        )


def _unrecorded() -> contextlib.AbstractContextManager[Any]:
    """In it make_fx records nothing.

    To ask for a tangent makes an alias. Inductor traces an op that writes in place, then what it recorded,
    and asserts that both have as many nodes (`Match.replace_by_example`): no such op compiled.
    """
    if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY) is None:
        return contextlib.nullcontext()
    from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing

    return disable_proxy_modes_tracing()


def autocast_device(tensors: Sequence[Any]) -> str | None:
    """The type of the tensors' device where autocast is on for it."""
    if not torch._C._is_any_autocast_enabled():
        return None
    kind = next((t.device.type for t in tensors if isinstance(t, torch.Tensor)), "meta")
    on = torch.amp.autocast_mode.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    return kind if on else None


def span(tensor: torch.Tensor) -> int:
    """Bytes from the tensor's first element to its last, both counted."""
    if tensor.numel() == 0:
        return 0
    extent = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (extent + 1) * tensor.element_size()


def _overlap(one: torch.Tensor, two: torch.Tensor) -> bool:
    a, c, one_span, two_span = one.data_ptr(), two.data_ptr(), span(one), span(two)
    return one_span > 0 and two_span > 0 and a < c + two_span and c < a + one_span


def _interleaved(one: torch.Tensor, two: torch.Tensor) -> bool:
    """Whether two tensors lie between each other's rows and share no byte, as keys and values in halves
    of one tensor do: both go on in multiples of one step, and from each step lie in ranges of their own."""
    dims = [
        [(stride * each.element_size(), size) for stride, size in zip(each.stride(), each.shape, strict=True)
         if size > 1]
        for each in (one, two)
    ]  # fmt: skip
    between = two.data_ptr() - one.data_ptr()
    for step in sorted({stride for each in dims for stride, _ in each if stride}):
        if any(stride % step for each in dims for stride, _ in each if stride > step):
            continue
        first, second = (
            sum(stride * (size - 1) for stride, size in own if stride < step) + each.element_size()
            for own, each in zip(dims, (one, two), strict=True)
        )
        if first <= between % step <= step - second:
            return True
    return False


def _dense(tensor: torch.Tensor) -> bool:
    """Whether no two elements share an address: sorted by stride, each step clears the ones below."""
    if tensor.numel() == 0:
        return True
    reach = 0
    pairs = sorted(zip(tensor.stride(), tensor.shape, strict=True))
    for stride, size in pairs:
        if size > 1:
            if stride <= reach:
                return False
            reach += stride * (size - 1)
    return True

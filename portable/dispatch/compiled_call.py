"""One call signature made ready: the implementation chosen, its kernels compiled and loaded.

A call that the dispatcher has seen before costs a look-up, then `CompiledCall`: new outputs and the launches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from portable import dtypes
from portable.backend import Backend
from portable.dispatch import arguments, fast_path, select
from portable.errors import OutputError
from portable.layout import collapsible
from portable.plan import Device, TensorInfo, Workspace
from portable.runtime import build
from portable.spec import registry

if TYPE_CHECKING:
    from portable.spec.model import Input, Spec


def _addresses(tensors: Sequence[Any]) -> list[int]:
    return [0 if t is None else t.data_ptr() for t in tensors]


def op_axis(spec: Spec, params: Sequence[Any]) -> int:
    """The dimension the op works along, counted from the end."""
    for param, value in zip(spec.params.values(), params, strict=True):
        if param.type == "axis":
            return value
    return -1


def axis_last(tensor: Any, axis: int, leading: bool) -> Any:
    """The tensor with the axis moved last; as it is where it has no such axis, which the checks then name."""
    if tensor is None or axis == -1 or not leading or tensor.dim() < -axis:
        return tensor
    return tensor.movedim(axis, -1)


def axis_back(tensor: torch.Tensor, axis: int, leading: bool) -> torch.Tensor:
    return tensor if axis == -1 or not leading else tensor.movedim(-1, axis)


def unsqueezed(spec: Spec, inputs: Sequence[Any]) -> tuple[Sequence[Any], list[str]]:
    """The inputs with the dimensions that their fields let them lack (`squeeze`), and the names of those."""
    found, lacking = list(inputs), []
    for i, (field, tensor) in enumerate(zip(spec.inputs.values(), inputs, strict=True)):
        dense = isinstance(tensor, torch.Tensor) and not tensor.is_nested
        if field.squeeze and dense and tensor.dim() == field.rank - 1:
            found[i] = tensor.unsqueeze(field.dims.index(field.squeeze))
            lacking.append(field.squeeze)
    return (found, lacking) if lacking else (inputs, lacking)


def returned(outs: Sequence[Any]) -> Any:
    """Outputs as a call returns them: None, one, or a tuple of several."""
    if len(outs) == 1:
        return outs[0]
    return tuple(outs) if outs else None


def squeezed(spec: Spec, outputs: Any, lacking: Sequence[str]) -> Any:
    """The outputs without the axes `lacking`."""
    if outputs is None:
        return None
    if isinstance(outputs, tuple):
        fields = spec.outputs.values()
        return tuple(_squeeze(t, f.dims, lacking) for t, f in zip(outputs, fields, strict=True))
    return _squeeze(outputs, next(iter(spec.outputs.values())).dims, lacking)


def _squeeze(tensor: Any, dims: Sequence[Any], lacking: Sequence[str]) -> Any:
    for place, axis in enumerate(dims, -len(dims)):  # one that goes does not move those behind it
        if axis in lacking:
            tensor = tensor.squeeze(place)
    return tensor


def out_unsqueezed(spec: Spec, out: Any, lacking: Sequence[str]) -> Any:
    """A view of `out` that has the axes `lacking`; what is no tensor as it is, for the checks to name."""
    if spec.out is None or not lacking or not isinstance(out, torch.Tensor):
        return out
    dims = spec.out.dims
    if out.dim() < len(dims) - len(lacking):
        raise OutputError(
            spec.op, "out", f"has {out.dim()} dimensions", f"{len(dims) - len(lacking)} or more"
        )
    for place in range(len(dims)):
        if dims[place] in lacking:  # from the front: those behind it that lack are put in later
            behind = sum(each not in lacking for each in dims[place + 1 :])
            out = out.unsqueeze(-1 - behind)
    return out


def _fits(tensor: torch.Tensor, field: Input) -> bool:
    """Whether the implementations take the tensor in its layout."""
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


def _owned(tensor: torch.Tensor, strides: tuple[int, ...], shared: bool) -> torch.Tensor:
    """The tensor with these strides, copied where it has others or is `shared`."""
    if not shared and tensor.stride() == strides:
        return tensor
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def _info(tensor: torch.Tensor) -> TensorInfo:
    address = tensor.data_ptr()
    alignment = min(address & -address, 16) if address else 16
    return TensorInfo(tuple(tensor.shape), tensor.stride(), arguments.dtype_name(tensor.dtype), alignment)


def workspace_info(workspace: Workspace) -> TensorInfo:
    strides = torch.empty(workspace.shape, device="meta").stride()
    return TensorInfo(workspace.shape, strides, workspace.dtype)


def _canonical(spec: Spec, inputs: Sequence[Any], axis: int) -> list[Any]:
    """Inputs as implementations see them: the op's axis last, the layout as the spec wants it."""
    found = []
    for field, tensor in zip(spec.inputs.values(), inputs, strict=True):
        tensor = axis_last(tensor, axis, field.leading)
        found.append(tensor if tensor is None or _fits(tensor, field) else tensor.contiguous())
    return found


def empty_output(
    spec: Spec,
    name: str,
    inputs: Sequence[Any],
    shape: Sequence[Any],
    dtype: torch.dtype,
    device: Any = "meta",
) -> torch.Tensor:
    """An output of a call to be written, with its own dimensions in the order that the spec's `like` says."""
    field = spec.outputs[name]
    if field.like is None:
        return torch.empty(shape, dtype=dtype, device=device)
    given = inputs[list(spec.inputs).index(field.like)]
    places = [i for i in range(len(shape) - len(field.dims), len(shape) - 1) if shape[i] > 1]
    order = list(range(len(shape)))
    for place, moved in zip(places, sorted(places, key=given.stride, reverse=True), strict=True):
        order[place] = moved
    made = torch.empty([shape[i] for i in order], dtype=dtype, device=device)
    return made.permute([order.index(i) for i in range(len(shape))])


def call_signature(
    spec: Spec, inputs: Sequence[Any], params: Sequence[Any], out: Any
) -> tuple[select.CallSignature, arguments.Bound]:
    """A checked call as a signature to the implementations."""
    axis = op_axis(spec, params)
    moved = [axis_last(t, axis, f.leading) for f, t in zip(spec.inputs.values(), inputs, strict=True)]
    named = dict(zip(spec.params, params, strict=True))
    bound = arguments.bind(spec, moved, named)
    arguments.check_rules(spec, bound, named, moved)
    if out is not None and spec.out is not None:
        shape, dtype = bound.outputs[spec.out.name]
        arguments.check_out(spec, out, shape, dtype, inputs)
    tensors: dict[str, TensorInfo | None] = {}
    for name, tensor in zip(spec.inputs, _canonical(spec, inputs, axis), strict=True):
        tensors[name] = None if tensor is None else _info(tensor)
    for name, (shape, dtype) in bound.outputs.items():
        blank = empty_output(spec, name, moved, shape, dtype)
        given = _info(out) if out is not None and spec.outputs[name].out else None
        tensors[name] = given or TensorInfo(tuple(shape), blank.stride(), arguments.dtype_name(dtype))
    return select.CallSignature(spec, tensors, named, bound.axes, bound.types), bound


def _dense(shape: tuple[int, ...], dtype: torch.dtype) -> fast_path.Allocation:
    """A contiguous tensor to be made."""
    return shape, torch.empty(shape, device="meta").stride(), dtype


class CompiledCall:
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
        self._axis, self._may_be_cast = op_axis(spec, params), spec.autocast == "none"
        self._emulated = device.emulated
        signature, bound = call_signature(spec, inputs, params, out)
        self.params = signature.params
        self._spans = [0 if t is None else arguments.span(t) for t in inputs]
        self._out_span = 0 if out is None else arguments.span(out)
        fields = list(spec.inputs.values())
        self._in_place = arguments.in_place_input(spec, inputs, out)
        self._mutated = [i for i, t in enumerate(inputs) if t is not None and fields[i].mutated]
        if self._mutated:
            arguments.check_mutated(spec, inputs)
        self._as_is = self._axis == -1 and all(
            t is None or _fits(t, field) for field, t in zip(spec.inputs.values(), inputs, strict=True)
        )
        self._allocations: list[fast_path.Allocation] = [
            (shape, empty_output(spec, name, inputs, shape, dtype).stride(), dtype)
            for name, (shape, dtype) in bound.outputs.items()
        ]
        self._launches: list[build.BoundLaunch] = []
        self._workspaces: list[fast_path.Allocation] = []
        self._function: Callable[..., Any] | None = None
        self.from_addresses: Callable[..., Any] | None = None
        self.autograd: Callable[..., Any] | None = None  # made at first use
        if signature.empty:
            return
        chosen = select.choose(signature, backend, device)
        if chosen.plan is None:
            named = {**signature.params, **{p.name: -1 for p in spec.params.values() if p.type == "axis"}}
            self._function = registry.of_tensors(chosen.implementation.entry, spec.inputs, named)
            return
        names = [*spec.inputs, *spec.outputs, *(w.name for w in chosen.plan.workspaces)]
        tensors = {name: info for name, info in signature.tensors.items() if info is not None}
        tensors.update({w.name: workspace_info(w) for w in chosen.plan.workspaces})
        written = frozenset((*spec.results, *(w.name for w in chosen.plan.workspaces)))
        slots = {name: slot for slot, name in enumerate(names) if name in tensors}
        self._workspaces = [_dense(w.shape, dtypes.of(w.dtype).storage) for w in chosen.plan.workspaces]
        launches = [each for each in chosen.plan.launches if 0 not in each.grid]
        self._launches = [build.bind(each, slots, tensors, written, backend, device) for each in launches]
        checked = device.emulated or self._mutated  # at each call: by their addresses
        if self._as_is and self._launches and not checked:
            new = self._allocations, self._workspaces
            self.from_addresses = fast_path.from_addresses(
                self._launches, len(inputs), *new, backend, device.index
            )

    def __call__(self, inputs: Sequence[Any], out: Any = None, addresses: list[int] | None = None) -> Any:
        """Compute; `addresses` are the inputs', 0 for an absent one, where the caller has them."""
        if self._current() != self._index:
            with self._backend.on(self._index):
                return self(inputs, out, addresses)
        if self._emulated:  # a kernel there runs in this process, and would end it
            arguments.check_memory(self._spec, inputs, out)
        if addresses is None:
            addresses = _addresses(inputs)
        if out is not None:
            self._check_out(inputs, addresses, out)
        if not self._mutated:
            return self.compute(inputs, addresses, out)
        self._check_mutated(inputs, addresses)
        result = self.compute(inputs, addresses, out)
        for i in self._mutated:
            if not inputs[i].is_inference():  # which has no version
                torch.autograd.graph.increment_version(inputs[i])
        return result

    def compute(self, inputs: Sequence[Any], addresses: list[int], out: Any) -> Any:
        """What is left when all is checked and the device is the current one."""
        if not self._as_is:
            inputs = _canonical(self._spec, inputs, self._axis)
            addresses = _addresses(inputs)
        if self._function is not None:
            return self._through_torch(self._function, inputs, out)
        outs = [self._empty(*each) for each in self._allocations] if out is None else [out]
        spaces = [self._empty(*each) for each in self._workspaces]
        addresses += [tensor.data_ptr() for tensor in (*outs, *spaces)]
        stream = self._stream(self._index)
        for launch in self._launches:
            launch(addresses, stream)
        return self._results(outs)

    def empty_outputs(self) -> Any:
        """A result without data."""
        outs = [
            torch.empty_strided(shape, strides, dtype=dtype, device="meta")
            for shape, strides, dtype in self._allocations
        ]
        return self._results(outs)

    def _check_out(self, inputs: Sequence[Any], addresses: list[int], out: Any) -> None:
        """Check of `out` what is not in the plan key: overlap and gradients."""
        start = out.data_ptr()
        end = start + self._out_span
        wrong = torch.is_grad_enabled() and out.requires_grad
        for i, (tensor, at, span) in enumerate(zip(inputs, addresses, self._spans, strict=True)):
            overlaps = at < end and start < at + span and not (i == self._in_place and at == start)
            if tensor is not None and (overlaps or (tensor.requires_grad and torch.is_grad_enabled())):
                wrong = True
        if wrong:
            position = next(i for i, field in enumerate(self._spec.outputs.values()) if field.out)
            shape, _, dtype = self._allocations[position]
            arguments.check_out(self._spec, out, shape, dtype, inputs)

    def _check_mutated(self, inputs: Sequence[Any], addresses: list[int]) -> None:
        """Check of what is written in place what is not in the plan key: overlap."""
        for i in self._mutated:
            start, end = addresses[i], addresses[i] + self._spans[i]
            for j, (at, span) in enumerate(zip(addresses, self._spans, strict=True)):
                if i != j and span and at < end and start < at + span:
                    arguments.check_mutated(self._spec, inputs)
                    return

    def _through_torch(self, function: Callable[..., Any], tensors: Sequence[Any], out: Any) -> Any:
        # Where no gradient would be recorded, no_grad is left out: it takes longer than torch's softmax of
        # 4x16 (2026-11-22).
        if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
            with torch.no_grad():
                return self._through_torch(function, tensors, out)
        device_type = arguments.autocast_device(tensors) if self._may_be_cast else None
        if device_type is not None:
            # An op without autocast is computed in its own types; others left autocast in torch's dispatcher.
            with torch.autocast(device_type, enabled=False):
                return self._through_torch(function, tensors, out)
        result = function(*tensors)
        outs = list(result) if isinstance(result, tuple) else [result] if self._allocations else []
        if out is not None:
            return out.copy_(outs[0])
        # torch may answer with a view of its argument or other strides; the fake function promises neither.
        given = set(map(id, tensors))
        made = zip(outs, self._allocations, strict=True)
        return self._results([_owned(o, strides, id(o) in given) for o, (_, strides, _) in made])

    def _results(self, outs: list[Any]) -> Any:
        if self._axis != -1:
            fields = self._spec.outputs.values()
            outs = [axis_back(o, self._axis, f.leading) for f, o in zip(fields, outs, strict=True)]
        return returned(outs)

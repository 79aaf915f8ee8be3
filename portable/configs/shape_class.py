"""The shape class of a call: the calls that a config measured on one of them is used for.

A class fixes the types, the parameters and the order of matrices; each size keeps to a range
between powers of two, and along memory also to being a multiple of 16 or not. The number of rows has a part
in it as B only where the implementation does not promise a row the same bits whatever rows are beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from portable.plan import TensorInfo

if TYPE_CHECKING:
    from portable.spec.model import Implementation, Spec

MULTIPLE = 16


def orders(spec: Spec, tensors: Mapping[str, TensorInfo | None]) -> dict[str, str]:
    """`<input>_order` of every matrix: "row" where it is row-major, else "col"."""
    found = {}
    for name, field in spec.inputs.items():
        if field.layout == "matrix":
            info = tensors.get(name)
            rows = info is None or not info.shape or info.shape[-1] <= 1 or info.strides[-1] == 1
            found[order_name(name)] = "row" if rows else "col"
    return found


def order_name(tensor: str) -> str:
    return f"{tensor}_order"


def order_names(spec: Spec) -> tuple[str, ...]:
    return tuple(order_name(name) for name, field in spec.inputs.items() if field.layout == "matrix")


def fact_names(spec: Spec) -> tuple[str, ...]:
    """What a `when` formula may speak of: axes, B, parameters, type variables and orders."""
    return (*spec.axes, "B", *spec.params, *spec.types[0], *order_names(spec))


def class_names(spec: Spec, implementation: Implementation) -> tuple[str, ...]:
    """The facts that decide the class of a call."""
    params = [name for name, param in spec.params.items() if param.type in ("choice", "bool")]
    rows = spec.leading == "same" and any(each.leading for each in spec.inputs.values())
    batch = ["B"] if rows and not implementation.batch_invariant else []
    return (*_types(spec), *params, *order_names(spec), *spec.axes, *batch)


def _types(spec: Spec) -> list[str]:
    """The type variables that others do not already determine."""
    kept: list[str] = []
    for name in spec.type_variables:
        rows = {(*(row[other] for other in kept), row[name]) for row in spec.types}
        if len(rows) > len({row[:-1] for row in rows}):
            kept.append(name)
    return kept


def class_facts(spec: Spec, implementation: Implementation, facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: facts[name] for name in class_names(spec, implementation)}


def _along_memory(spec: Spec, facts: Mapping[str, Any]) -> set[str]:
    """Axes along which a tensor is contiguous."""
    found = set()
    for name, field in spec.inputs.items():
        if field.layout == "matrix" and facts[order_name(name)] == "col":
            found.add(field.dims[-2])
        elif field.dims:
            found.add(field.dims[-1])
    found |= {output.dims[-1] for output in spec.outputs.values() if output.dims}
    return {axis for axis in found if isinstance(axis, str)}


def _range(size: int) -> tuple[int, int]:
    """The sizes of a class: above a power of two, up to the next one."""
    high = 1 << (size - 1).bit_length() if size > 1 else size
    return (high // 2 + 1 if high > 2 else high), high


def class_name(spec: Spec, facts: Mapping[str, Any]) -> str:
    """A short text that is the same for the calls of one class; `facts` are its `class_facts`."""
    parts = []
    for name, value in facts.items():
        if not _is_size(value):
            parts.append(f"{name}={value}")
            continue
        low, high = _range(value)
        text = f"{name}={low}" if low == high else f"{name}={low}..{high}"
        if name in _along_memory(spec, facts) and low != high:
            text += f":{MULTIPLE}" if value % MULTIPLE == 0 else ":odd"
        parts.append(text)
    return " ".join(parts)


def formula(spec: Spec, facts: Mapping[str, Any]) -> str:
    """The validity of the class as a `when` formula."""
    parts = []
    for name, value in facts.items():
        if not _is_size(value):
            parts.append(f"{name} == {value!r}")
            continue
        low, high = _range(value)
        parts.append(f"{name} == {low}" if low == high else f"{low} <= {name} <= {high}")
        if name in _along_memory(spec, facts) and low != high:
            parts.append(f"{name} % {MULTIPLE} {'==' if value % MULTIPLE == 0 else '!='} 0")
    return " and ".join(parts)


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)

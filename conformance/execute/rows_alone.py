"""The behaviour `rows_alone`: a row, a row of a product or a sequence has the same bits whatever is beside
it, and however many are.

It is asked of calls on one device whose rows start at the same alignment."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from portable.conformance.cases.case import make_shape
from portable.conformance.cases.generate import required_params
from portable.conformance.execute.samples import (
    Call,
    NotApplicable,
    Types,
    drawn,
    in_types,
    most_leading,
    of_problems,
    results,
    sample,
)
from portable.errors import PinError
from portable.spec.model import Input, Output, Spec

# Of 129 elements, which no vector divides, only a batch's first row is aligned. A plan may choose by the
# number of rows and by their length.
_ROWS = ((48, 256), (48, 129), (200, 256), (48, 4096))
# Columns and depth of a product: of aligned rows and of unaligned ones; on a GPU also what tempts a plan to
# split the depth, to swap the operands, and to copy unaligned ones.
_PRODUCTS, _LARGE_PRODUCTS = ((256, 256), (129, 130)), ((1_024, 4_096), (72, 1_032), (1_025, 2_050))
# Queries and keys of a sequence: a decode in two splits, and a prefill.
_LENGTHS, _LONG = ((1, 1_100), (70, 70)), ((1, 9_000), (600, 600))


class _Way(NamedTuple):
    """Axes and parameters of a call, how many rows are drawn, and by what counts of rows it is made: where
    these are more, the drawn ones repeat. `turned`: the matrices beside the rows lie column by column."""

    axes: Mapping[str, int]
    params: Mapping[str, Any]
    drawn: int
    counts: tuple[int, ...]
    what: str = "row"
    absent: tuple[str, ...] = ()
    turned: bool = False


def rows_alone(call: Call, spec: Spec, device: torch.device) -> str | None:
    """A row gives the same bits alone and in a batch."""
    by_row = spec.leading == "same" and spec.cost.roof == "vector"
    gpu = device.type != "cpu"
    ways = [functools.partial(_by_count, way=way) for way in _ways(spec, gpu)]
    if of_problems(spec) or by_row:
        rows = _ROWS[: 1 if spec.behaviour_case else None]
        ways = [*(functools.partial(_alone, count=count, size=size) for count, size in rows), *ways]
    elif "C" in spec.axes:
        ways = [functools.partial(_varlen, absent=absent) for absent in _absences(spec)]
    if not ways:
        raise NotApplicable("the op does not work row by row")
    return in_types(spec, functools.partial(_answer, call, spec, device, ways))


def _answer(
    call: Call, spec: Spec, device: torch.device, ways: Sequence[Callable[..., str | None]], types: Types
) -> str | None:
    """What is wrong in these types, or None. PinError where the implementation takes no call of them."""
    asked = [functools.partial(way, call, spec, device, types) for way in ways]
    refusals = []
    for ask in asked:
        try:
            if wrong := ask():
                return wrong
        except PinError as refusal:
            refusals.append(refusal)
    if len(refusals) == len(asked):
        raise refusals[0]
    return None


def _alone(call: Call, spec: Spec, device: torch.device, types: Types, count: int, size: int) -> str | None:
    """Some rows, or problems, of a batch beside calls of one each."""
    count = min(count, most_leading(spec, device))
    tensors = sample(spec, device, lead=count, size=size, types=types)
    whole = call(tensors)
    for row in (0, 7, 47) if count * size < 1 << 14 else (0, count - 1):
        if row >= count:
            break
        alone = call({
            n: t if t is None or not spec.inputs[n].leading else t[row : row + 1]
            for n, t in tensors.items()
        })  # fmt: skip
        for field, one, many in zip(results(spec, tensors), alone, whole, strict=True):
            if field.leading and not torch.equal(one[0], many[row]):
                return f"row {row} of {size} alone differs from row {row} in a batch of {count}"
    return None


def _by_count(call: Call, spec: Spec, device: torch.device, types: Types, way: _Way) -> str | None:
    """Calls of each count of rows beside the one of most. A count that the implementation refuses, as one for
    few rows may, is left out; PinError where it refuses all but one."""
    axis = _row_axis(spec)
    axes = {**way.axes, axis: way.drawn} if axis else way.axes
    shape = make_shape(spec, axes, () if axis else (way.drawn,), way.params, way.absent)
    tensors = drawn(spec, shape, device, types)
    if way.turned:
        tensors |= {
            name: tensors[name].T.contiguous().T
            for name, field in spec.inputs.items()
            if field.layout == "matrix" and field.rank == 2 and field.dims[0] != axis
        }

    def of_rows(tensor: torch.Tensor, count: int) -> torch.Tensor:
        places = torch.arange(count, device=device) % way.drawn
        return tensor.view(torch.uint8)[places].view(tensor.dtype) if tensor.itemsize == 1 else tensor[places]

    def by_rows(field: Input | Output) -> bool:
        return field.leading if axis is None else bool(field.dims) and field.dims[0] == axis

    expected, refusal, most = None, None, 0
    for count in sorted(way.counts, reverse=True):
        given = {
            name: of_rows(tensor, count) if tensor is not None and by_rows(spec.inputs[name]) else tensor
            for name, tensor in tensors.items()
        }
        try:
            got = call({**way.params, **given})
        except PinError as refused:
            refusal = refused
            continue
        if expected is None:
            expected, most = got, count
        for field, own, other in zip(results(spec, tensors), got, expected, strict=True):
            if by_rows(field) and not torch.equal(own, of_rows(other[: way.drawn], count)):
                sizes = "x".join(map(str, (*way.axes.values(), *way.params.values())))
                return f"{way.what}s of {sizes} differ between a call of {count} and one of {most}"
    if expected is None and refusal is not None:
        raise refusal
    return None


def _row_axis(spec: Spec) -> str | None:
    """The axis that counts a product's rows or a paged cache's sequences; None of leading dimensions."""
    if spec.cost.roof != "matrix" or of_problems(spec) or "C" in spec.axes:
        return None
    return next((axis for axis in ("Z", "M") if axis in spec.axes), None)


def _ways(spec: Spec, gpu: bool) -> Iterator[_Way]:
    """By what counts an op is asked; `gpu`: not on a CPU, nor on an emulated GPU."""
    params = required_params(spec)[0]
    led = [each for each in spec.inputs.values() if each.leading]
    if spec.cost.roof == "vector":
        if gpu and spec.leading == "same" and led and not spec.behaviour_case:
            yield _Way(dict.fromkeys(spec.axes, 256), params, 200, (3_000, 20_000, 200))
            yield _Way(dict.fromkeys(spec.axes, 4096), params, 48, (3_000, 48))
    elif of_problems(spec) or "Z" in spec.axes:
        lengths = _LENGTHS if gpu or "do" not in spec.inputs else _LENGTHS[1:]  # a gradient has no decode
        for queries, keys in (*lengths, *(_LONG if gpu else ())):
            sizes = {"H": 4, "G": 2, "D": 64, "E": 64, "M": queries, "N": keys, "S": 16}
            sizes |= {"W": -(-keys // 16), "P": -(-keys // 16) + 5, "Z": 3}
            own = {axis: sizes[axis] for axis in spec.axes}
            for absent in _absences(spec):
                yield _Way(own, params, 3, (1, 3, 64) if gpu else (1, 3), "sequence", absent)
    elif _row_axis(spec) or (led and spec.leading == "same"):
        for columns, depth in (*_PRODUCTS, *(_LARGE_PRODUCTS if gpu else ())):
            sizes = {"N": columns, "K": depth, "H": depth // 2, "J": depth // 8}
            sizes |= {"G": -(-depth // 128), "P": min(depth // 2, 64)}
            own = {axis: sizes[axis] for axis in spec.axes if axis != "M"}
            counts = (1, 17, 65, 200, *((1_000, 4_096) if gpu else ()))
            for precision in _precisions(spec):
                for turned in (False, True) if _row_axis(spec) else (False,):
                    yield _Way(own, {**params, **precision}, 200, counts, turned=turned)


def _absences(spec: Spec) -> tuple[tuple[str, ...], ...]:
    """With all optional inputs, and with none: some implementations take no bias."""
    optional = tuple(each.name for each in spec.inputs.values() if each.optional)
    return ((), optional) if optional else ((),)


def _varlen(
    call: Call, spec: Spec, device: torch.device, types: Types, absent: tuple[str, ...]
) -> str | None:
    """Sequences one behind the other beside each alone, and beside many."""
    gpu = device.type != "cpu"
    lengths = ((1, 9_000), (600, 600), (33, 65)) if gpu else ((1, 130), (70, 70), (33, 65))
    queries, keys = (sum(each) for each in zip(*lengths, strict=True))
    sizes = {"C": 4, "M": queries, "N": keys, "H": 4, "G": 2, "D": 64, "E": 64}
    shape = make_shape(spec, sizes, (), {**required_params(spec)[0], "causal": True}, absent)
    tensors = drawn(spec, shape, device, types)
    for name in ("o", "lse"):  # of a gradient: no token is of no sequence
        if tensors.get(name) is not None:
            tensors[name] = torch.zeros_like(tensors[name])

    def of_sequences(tensor: torch.Tensor, field: Input | Output, order: Sequence[int]) -> torch.Tensor:
        for side, axis in enumerate(("M", "N")):
            if axis in field.dims:
                ends = [0, *itertools.accumulate(each[side] for each in lengths)]
                places = [torch.arange(ends[z], ends[z + 1], device=device) for z in order]
                tensor = tensor.index_select(field.dims.index(axis), torch.cat(places))
        return tensor

    def answer(order: Sequence[int]) -> tuple[torch.Tensor, ...]:
        given = {
            name: None if tensor is None else of_sequences(tensor, spec.inputs[name], order)
            for name, tensor in tensors.items()
        }
        for side, name in enumerate(("cu_seqlens_q", "cu_seqlens_k")):
            ends = [0, *itertools.accumulate(lengths[z][side] for z in order)]
            given[name] = torch.tensor(ends, dtype=torch.int32, device=device)
        return call({"causal": True, **given})

    whole = answer((0, 1, 2))
    for order in ((0,), (1,), (2,), (2, 0), (0, 1, 2) * (21 if gpu else 2)):
        for field, own, of_all in zip(results(spec, tensors), answer(order), whole, strict=True):
            if not torch.equal(own, of_sequences(of_all, field, order)):
                return f"sequences of {lengths} differ between a call of {len(order)} and one of 3"
    return None


def _precisions(spec: Spec) -> list[dict[str, Any]]:
    """Each way to compute a product that its caller may choose."""
    found = spec.params.get("precision")
    return [{"precision": each} for each in found.choices] if found and found.choices else [{}]

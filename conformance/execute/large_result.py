"""The behaviour `large_result`: results whose last element is beyond 2^32 (2^31, where memory lacks).

Such a result repeats a small one. The inputs are copies of a small call's: along a new first dimension, by a
stride of 0, or along axes of the op. Each element is held to the bound of the small call's, on the device.
"""

from __future__ import annotations

import gc
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from portable import errors
from portable.conformance.cases.case import Case, Shape, make_shape, params_of
from portable.conformance.cases.generate import required_params
from portable.conformance.execute.guards import guarded_memory
from portable.conformance.execute.samples import Call, NotApplicable, Types, drawn, in_types, leads
from portable.conformance.judge import reference
from portable.conformance.judge.bound import bound
from portable.spec.formula import Formula
from portable.spec.model import Dim, Input, Output, Spec, size_of

LARGE = 1 << 31
CHUNK = 1 << 25
"""Elements that are compared at once, in float64."""
SUMS = 0.02
"""Of the largest: what a sum over all rows may be off. An eighth of the rows is beyond LARGE or 2 LARGE."""
LEADING = ""
"""The name of the leading dimensions among axes."""
HEADS, LONGER = 64, 8
"""Times as many heads, or heads and tokens, where sequences are many: torch alone takes them one by one."""
MANY = 1 << 12
"""Copies, of which blocks of fewer elements each have a whole number."""
OFFSETS = {"cu_seqlens_q": "M", "cu_seqlens_k": "N"}
"""Inputs that are offsets of sequences, and the axis that they count along."""


@dataclass(frozen=True)
class Way:
    """A small call, and the axes along which the large one has copies of it."""

    shape: Shape
    along: tuple[str, ...] = (LEADING,)
    together: bool = False
    """Whether copies along one axis are those along the other: queries and keys of the same sequences."""
    reads: bool = False
    """Whether the largest input, not the largest result, has the elements: of an op with one result a row."""


def large_result(call: Call, spec: Spec, device: torch.device) -> str | None:
    """Results of more than 2^32 elements (2^31, where memory lacks) are right in every element.

    Rows, columns and batches of products; rows of 4096 and 136 elements, which are those of an input where
    a row has one result; problems, sequences and decodes of attention, of which one that the implementation
    takes is enough.
    """

    if spec.mutated:
        raise NotApplicable(
            "the op writes tensors that it is given; copies of a call would write the same place"
        )

    def check(row: Types) -> str | None:
        ran = 0
        refusals: list[Exception] = []
        for way in _ways(spec):
            try:
                wrong = _at_most(call, spec, device, row, way)
            except (errors.PinError, NotApplicable) as refused:
                refusals.append(refused)
                continue
            ran += 1
            if wrong or spec.boundary:
                return wrong
        if not ran:
            raise refusals[0]
        return None

    return in_types(spec, check, both=False)


def _ways(spec: Spec) -> list[Way]:
    params = required_params(spec)[0]
    if spec.behaviour_case is None:
        # 29 and 7 divide no power of two: what lands 2^31 elements too early lands in another row's copy.
        if spec.cost.roof == "vector" and not leads(spec):
            return _of_rows(spec, params)
        if spec.cost.roof == "vector":
            rows = any(each.leading for each in spec.outputs.values())
            reduced = not rows or not any(each.dims for each in spec.outputs.values())
            return [
                Way(make_shape(spec, dict.fromkeys(spec.axes, size), (7,), params), reads=reads)
                for size, reads in _sizes(reduced)
                if reads or rows
            ]
        return _products(spec, params)
    own = spec.behaviour_case
    axes, params = dict(own.axes), {**params, **own.params}
    optional = [each.name for each in spec.inputs.values() if each.optional]
    if leads(spec):
        return [
            Way(make_shape(spec, axes, (3,), params)),
            Way(make_shape(spec, axes, (3,), params, optional)),
            Way(make_shape(spec, {**axes, "M": 1}, (), params, optional)),  # its stride of 0 stays
        ]
    if "Z" in axes:
        axes |= {name: axes[name] * HEADS for name in ("H", "G")}
        return [Way(make_shape(spec, axes, (), params, gone), ("Z",)) for gone in ([], optional)]
    if "H" not in axes:  # rows of a table, added by index: wider ones
        return [Way(make_shape(spec, axes, (), params), ("N",))]
    # Sequences of some hundred tokens: workspaces hold them in tiles of 128, of which short ones fill little.
    axes |= {name: axes[name] * LONGER for name in ("H", "G", "M", "N")}
    return [
        Way(make_shape(spec, axes, (), params, gone), ("M", "N"), together=True) for gone in ([], optional)
    ]


def _of_rows(spec: Spec, params: dict[str, Any]) -> list[Way]:
    """Copies along the first axis of all results. Where that is their only one, many rows of two columns, and
    rows of 4096 and 136 columns that make a large input."""
    rows = next(dim for dim in spec.axes if all(dim in each.dims for each in spec.outputs.values()))
    reduced = all(each.dims == (rows,) for each in spec.outputs.values())
    return [
        Way(make_shape(spec, {**dict.fromkeys(spec.axes, size), rows: 7}, (), params), (rows,), reads=reads)
        for size, reads in _sizes(reduced)
    ]


def _sizes(reduced: bool) -> list[tuple[int, bool]]:
    """The columns, and whether the input is what is large. `reduced`: a row has one result."""
    return [(2, False)] * reduced + [(4096, reduced), (136, reduced)]


def _products(spec: Spec, params: dict[str, Any]) -> list[Way]:
    """Many rows and columns, with the parameters of the spec's cases; an odd K; eight rows; batches."""
    broadcast = spec.leading == "broadcast"
    both = "M" if broadcast else LEADING, "N"
    settings = dict.fromkeys(tuple(case.params.items()) for case in spec.cases)
    sizes = [(29, 40, 64, dict(each), both) for each in settings]
    sizes += [(29, 39, 13, {}, both), (8, 40, 16, {}, ("N",))]
    ways = [
        Way(
            make_shape(
                spec,
                {**dict.fromkeys(spec.axes, depth), "M": rows, "N": _whole(spec, "N", columns)},
                () if broadcast else (rows,),
                {**params, **given},
            ),
            along,
        )
        for rows, columns, depth, given, along in sizes
    ]
    if broadcast:
        axes = {**dict.fromkeys(spec.axes, 16), "M": 250, "N": 256}
        ways.append(Way(make_shape(spec, axes, (3,), params)))
    return ways


def _whole(spec: Spec, axis: str, size: int) -> int:
    """The least size from `size` on whose copies have as many copies of each formula of the axis: columns of
    whole blocks."""
    formulas = [
        dim
        for each in spec.inputs.values()
        for dim in each.dims
        if isinstance(dim, Formula) and set(dim.names) == {axis}
    ]
    return next(
        each for each in itertools.count(size)
        if all(size_of(dim, {axis: MANY * each}) == MANY * size_of(dim, {axis: each}) for dim in formulas)
    )  # fmt: skip


def _at_most(call: Call, spec: Spec, device: torch.device, row: Types, way: Way) -> str | None:
    """The call with a result beyond 2 LARGE, or beyond LARGE where the memory for that lacks."""
    tensors, shape = _small(spec, row, way.shape)
    case = Case(spec.op, tuple(row.items()), shape)
    expected = reference.answer(case, spec, {n: t for n, t in tensors.items() if t is not None})
    lacking = ""
    for least in (2 * LARGE, LARGE):
        counts = _copies(way, tensors, expected, least * 9 // 8)
        try:
            _room(spec, device, tensors, expected, counts)
            return _compared(call, spec, device, {**tensors, **params_of(spec, case)}, expected, counts)
        except (torch.OutOfMemoryError, NotApplicable) as error:
            lacking = str(error).splitlines()[0]
        finally:
            if device.type != "cpu":
                gc.collect()
                torch.cuda.empty_cache()
    raise NotApplicable(lacking)


def _small(spec: Spec, row: Types, shape: Shape) -> tuple[dict[str, Any], Shape]:
    """The small call's tensors, on the CPU. Sequences in one tensor begin and end with it, as their copies
    follow one another; of M in a row, every second has such."""
    for more in range(32):
        axes = {name: size + more * (name == "M") for name, size in shape.axes}
        tried = make_shape(spec, axes, dict(shape.leading), dict(shape.params), shape.absent)
        tensors = drawn(spec, tried, torch.device("cpu"), row)
        offsets = [(tensors[name], axes[axis]) for name, axis in OFFSETS.items() if name in tensors]
        if all(each[0] == 0 and each[-1] == total for each, total in offsets):
            return tensors, tried
    raise AssertionError(f"{spec.op}: no offsets cover all tokens")


def _copies(
    way: Way, tensors: Mapping[str, Any], expected: Mapping[str, reference.Expected], least: int
) -> dict[str, int]:
    """How many copies along each axis: the largest result (input, where the way reads), and those of half its
    size, have `least`."""
    sizes = [each.ref.numel() for each in expected.values()]
    if way.reads:
        sizes = [each.numel() for each in tensors.values() if each is not None]
    count = -(-least // min(size for size in sizes if 2 * size >= max(sizes)))
    if way.together or len(way.along) == 1:
        return dict.fromkeys(way.along, count)
    rows = math.isqrt(count)
    return dict(zip(way.along, (rows, -(-count // rows)), strict=True))


def _room(
    spec: Spec,
    device: torch.device,
    tensors: Mapping[str, Any],
    expected: Mapping[str, reference.Expected],
    counts: Mapping[str, int],
) -> None:
    """Raises NotApplicable unless inputs, which the dispatcher may copy, and results fit the free memory."""
    if device.type == "cpu":
        return
    size = 0
    for name, tensor in tensors.items():
        if tensor is not None:
            axes = _axes(spec.inputs[name], counts)
            kept = LEADING in axes and tensor.dim() == spec.inputs[name].rank  # by a stride of 0
            size += tensor.nbytes * math.prod(counts[axis] for axis in axes[kept:])
    for name, each in expected.items():
        copies = math.prod(counts[axis] for axis in _axes(spec.outputs[name], counts))
        size += copies * each.ref.numel() * each.dtype.itemsize
    free = torch.cuda.mem_get_info(device)[0]
    if free < size * 1.25:
        raise NotApplicable(f"needs {size * 1.25 / 2**30:.0f} GB of free device memory")


def _axes(field: Input | Output, counts: Mapping[str, int]) -> list[str]:
    """The axes of a tensor along which there are copies, in its order."""
    own = [str(dim) for dim in field.dims if dim in counts]
    return [LEADING, *own] if field.leading and LEADING in counts else own


def _repeats(dim: Dim, counts: Mapping[str, int]) -> int:
    """How many copies there are along a dimension; along a formula's, those along its axes."""
    names = dim.names if isinstance(dim, Formula) else [str(dim)]
    return math.prod(counts.get(name, 1) for name in names)


def _large(field: Input, tensor: torch.Tensor, counts: Mapping[str, int]) -> torch.Tensor:
    """The copies of an input: of offsets, which count on; along its axes, and by a stride of 0."""
    if field.name in OFFSETS:
        count, total = counts[OFFSETS[field.name]], int(tensor[-1])
        steps = torch.arange(count, dtype=tensor.dtype, device=tensor.device)[:, None] * total
        return torch.cat([tensor[:1], (steps + tensor[1:]).flatten()])
    repeats = [_repeats(dim, counts) for dim in field.dims]
    tensor = tensor.repeat([1] * (tensor.dim() - len(repeats)) + repeats)
    return tensor.expand(counts[LEADING], *tensor.shape) if LEADING in _axes(field, counts) else tensor


def _compared(
    call: Call,
    spec: Spec,
    device: torch.device,
    arguments: Mapping[str, Any],
    expected: Mapping[str, reference.Expected],
    counts: Mapping[str, int],
) -> str | None:
    """The large call's results against the small one's reference."""
    inputs = {
        name: _large(spec.inputs[name], t.to(device), counts) if isinstance(t, torch.Tensor) else t
        for name, t in arguments.items()
    }
    with guarded_memory() as guards:  # what nobody writes is NaN, and not an earlier call's right result
        results = call(inputs)
    del inputs
    for output, got in zip(spec.outputs.values(), results, strict=True):
        if wrong := _wrong(output, got, expected[output.name], counts):
            return f"{output.name} of {got.numel()} elements: {wrong}"
    return guards.fault() or None


def _wrong(
    output: Output, got: torch.Tensor, expected: reference.Expected, counts: Mapping[str, int]
) -> str | None:
    """What is wrong with a result of copies of `expected`, or with sums over them."""
    ref, axes = expected.ref.to(got.device), _axes(output, counts)
    sizes = list(ref.shape)
    for place, dim in enumerate(output.dims, -len(output.dims)):
        sizes[place] *= counts.get(str(dim), 1)
    sizes = [counts[axis] for axis in axes[:1] if axis == LEADING] + sizes
    if list(got.shape) != sizes or got.dtype != expected.dtype:
        return f"it is {got.dtype} of shape {tuple(got.shape)}, not {expected.dtype} of {tuple(sizes)}"
    if not axes:
        # A result with every bit of the reference is one of the elements, as a maximum; any other is a sum.
        wanted = ref if expected.tolerance.result_ulp == 0 else ref * counts[LEADING]
        off = (got.double() - wanted).abs().max() / wanted.abs().max() if ref.numel() else torch.zeros(())
        return None if off <= SUMS else f"the sums are off by {float(off):.3g} of the largest"
    for place, dim in enumerate(output.dims, got.dim() - len(output.dims)):
        if dim in counts:
            place += sum(str(each) in counts for each in output.dims[: output.dims.index(dim)])
            got = got.unflatten(place, (counts[str(dim)], -1))
            got = got.movedim(place, (LEADING in axes) + axes[LEADING in axes :].index(str(dim)))
    limits = torch.zeros((), device=got.device)  # of integers
    if expected.dtype.is_floating_point:
        limits = bound(expected.ref, expected.error_scale, expected.tolerance, expected.dtype).to(got.device)
    step = max(1, CHUNK // (got.numel() // len(got)))
    parts = got.split(step)

    def right(part: torch.Tensor) -> torch.Tensor:
        wide = part.double()
        return (wide == ref) | ((wide - ref).abs() <= limits)

    verdicts = torch.stack([right(part).all() for part in parts])
    if bool(verdicts.all()):
        return None
    number = int(verdicts.to(torch.uint8).argmin())
    place = tuple(int(each) for each in (~right(parts[number])).nonzero()[0])
    copy, inner = (number * step + place[0], *place[1 : len(axes)]), place[len(axes) :]
    return (
        f"element {list(inner)} of copy {list(copy)} is {float(parts[number][place]):.9g},"
        f" expected {float(ref[inner]):.9g}"
    )

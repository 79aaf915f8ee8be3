"""How large a `accumulation_ulp` do correct kernels need?

`python -m portable.conformance.commands.calibrate --out FILE.json`

For every op, implementation and row of types the needed constant is the largest, over the elements, of

    (|got - ref| - what the judge grants apart from `accumulation_ulp`) / (eps(acc) * (|ref| + error_scale))

and the spec allows `accumulation_ulp` at those sizes: share = needed / allowed, and a share above 1 is a
failing case. Every axis that the spec's formula names grows, the others stay. The data are random by seed:

- normal: N(0, 1).
- uniform: [0, 1). Nothing cancels, and an accumulator that truncates leans to one side at every step.
- mirrored: N(0, 1), where the second half of a sum repeats the first with the sign reversed. The result is 0,
  and shows the accumulation even through a 16-bit output: its rounding is relative to the result.
- returning: [0, 1) but for a last product that takes the sum back to near 0: uniform, seen the same way.

The last two are there where an axis is summed away, and judge the outputs that lack it. In normal and
uniform data a 16-bit output hides most of the accumulation behind its own rounding; for it `result` is
that rounding: the largest |got - ref| / (eps(R) * |ref|) where the accumulation may be 1 % of it at most.
Rows of types that accumulate in float64 are left out: their oracle rounds as they do.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

import portable
from portable.conformance.cases import inputs
from portable.conformance.cases.case import Case, Shape, input_shapes, make_shape, params_of, types_text
from portable.conformance.cases.generate import required_params
from portable.conformance.execute import device, runner
from portable.conformance.execute.samples import results, without_effect
from portable.conformance.judge import reference
from portable.conformance.judge.bound import bound
from portable.conformance.records import record
from portable.conformance.text import UsageError, print_table
from portable.dispatch import dispatcher
from portable.errors import BackendError, PinError, PortableError, nearest
from portable.runtime import detect, files
from portable.spec import registry
from portable.spec.formula import Formula
from portable.spec.model import Spec

VERSION = 1
VALUES = ("normal", "uniform", "mirrored", "returning")
STEP = 4
"""From one length to the next."""
ROLL = 5
"""How far the second half of mirrored data is turned, lest a tree of additions pair what cancels."""
HIDDEN = 0.01
"""The part of an output's rounding that accumulation may be where `result` is measured."""
HEADER = ("device", "vendor", "arch", "emulated", "driver", "toolkit", "versions", "commit", "dirty", "date")
ENTRY: dict[str, Any] = {
    "op": str,
    "impl": str,
    "types": str,
    "params": str,
    "output": str,
    "dtype": str,
    "axis": str,  # the axis that grows ("B": the leading dimensions), "" where the formula names none
    "sizes": dict,
    "allowed": (int, float),
    "needed": dict,  # values -> the constant that they need
    "share": (int, float),  # the largest of them / allowed
    "result": (int, float, type(None)),
}


class CalibrationError(ValueError):
    """A file that is no calibration; the message names the place."""


class Broken(Exception):
    """An implementation's answer that cannot be measured: a NaN, a shape, an exception."""


@dataclass(frozen=True)
class Sizes:
    """The lengths of a growing axis, and what the other axes and the leading dimensions are meanwhile."""

    lengths: tuple[int, ...]
    side: int
    rows: int

    @classmethod
    def of(cls, small: bool, longest: int | None) -> Sizes:
        """Those of a GPU, or (`small`) of an emulated one. Raises UsageError for a length below 64."""
        longest = longest or (4096 if small else 16384)
        if longest < 64:
            raise UsageError(f"--longest {longest}: the shortest length is 64")
        lengths = [64]
        while lengths[-1] * STEP <= longest:
            lengths.append(lengths[-1] * STEP)
        return cls(tuple(lengths), 48 if small else 128, 16 if small else 32)


@dataclass(frozen=True)
class Call:
    """One shape of one op, and the axis that has grown to it; "B" is the leading dimensions."""

    case: Case
    axis: str


def calls(spec: Spec, sizes: Sizes) -> Iterator[Call]:
    """The calls of an op: every row of types, every setting of its required parameters, every length."""
    growing = sorted(
        {axis for each in spec.tolerance.values() for axis in axes_of(spec, each.accumulation_ulp)}
    )
    for types in (row for row in spec.types if row["acc"] != "float64"):
        for params in required_params(spec):
            for axis in growing or [""]:
                for length in sizes.lengths if axis else sizes.lengths[-1:]:
                    axes = {name: length if axis in (name, "") else sizes.side for name in spec.axes}
                    lead = (length if axis == "B" else sizes.rows,) if spec.leading == "same" else ()
                    shape = make_shape(spec, axes, lead, params)
                    yield Call(Case(spec.op, tuple(types.items()), shape), axis)


def axes_of(spec: Spec, formula: Formula) -> frozenset[str]:
    """The axes that a formula names, B among them; it may name types and parameters too."""
    return formula.names & {*spec.axes, "B"}


def summed_outputs(spec: Spec, axis: str) -> tuple[str, ...]:
    """The outputs that lack the growing axis: it is summed away in them."""

    def lacks(name: str) -> bool:
        output = spec.outputs[name]
        return not output.leading if axis == "B" else axis not in output.dims

    return tuple(name for name in spec.outputs if axis and lacks(name))


def classes(spec: Spec, axis: str) -> tuple[str, ...]:
    """The kinds of data for a growing axis."""
    if not summed_outputs(spec, axis):
        return VALUES[:2]
    sharing = [each for each in list(spec.inputs.values())[:2] if axis in each.dims]
    return VALUES if len(sharing) == 2 else VALUES[:3]


def draw(call: Call, spec: Spec, values: str, seed: int) -> dict[str, torch.Tensor]:
    """The inputs of a call, on the CPU: a pure function of the call, the values and the seed."""
    found = {}
    for position, (name, shape) in enumerate(input_shapes(spec, call.case.shape).items()):
        bits = inputs.Bits(f"calibrate/{seed}/{values}/{call.case.id}/{name}")
        count, field = math.prod(shape), spec.inputs[name]
        data = bits.normal(count) if values in ("normal", "mirrored") else bits.uniform(count)
        tensor = torch.from_numpy(data.reshape(shape))
        dims = ["B"] * (len(shape) - len(field.dims)) + list(field.dims)
        if values in ("mirrored", "returning"):
            if call.axis in dims:
                tensor = _cancelling(tensor, dims.index(call.axis), values, position)
            elif field.optional:
                tensor = torch.zeros_like(tensor)
        found[name] = tensor.to(torch.float32).to(inputs.DTYPES[call.case.dtype(field.dtype)])
    return found


def _cancelling(tensor: torch.Tensor, dim: int, values: str, position: int) -> torch.Tensor:
    """`tensor` such that the sum of its products with the next input along `dim` is 0, or near it."""
    length = tensor.shape[dim]
    if values == "mirrored":
        first = tensor.narrow(dim, 0, length // 2)
        second = first.roll(ROLL, dim)
        return torch.cat([first, -second if position == 0 else second], dim)
    tensor.narrow(dim, length - 1, 1).fill_(1.0 if position == 0 else -length / 4)
    return tensor


def needed(got: Any, expected: reference.Expected) -> float:
    """The smallest `accumulation_ulp` with which `got` passes. Raises Broken where none is enough."""
    ref = expected.ref
    if not isinstance(got, torch.Tensor) or got.shape != ref.shape or got.dtype != expected.dtype:
        raise Broken(f"expected {expected.dtype} of shape {tuple(ref.shape)}")
    value = got.detach().cpu().to(torch.float64)
    inside = ref.abs() < torch.finfo(expected.dtype).max
    if not bool((torch.isfinite(value) | ~inside).all()):
        raise Broken("a value that is not finite where the reference is")
    granted = bound(ref, None, replace(expected.tolerance, accumulation_ulp=0.0), expected.dtype)
    excess = (value - ref).abs_().sub_(granted)
    counted = (excess > 0) & inside
    if not bool(counted.any()):
        return 0.0
    most = float(torch.where(counted, excess / _scale(expected), 0.0).max())
    if not math.isfinite(most):
        raise Broken("an error where the reference and its error_scale are 0")
    return most / torch.finfo(expected.tolerance.acc).eps


def result_needed(got: torch.Tensor, expected: reference.Expected) -> float | None:
    """The `result` that a narrow output needs; None where accumulation shows everywhere."""
    ref, wide = expected.ref, torch.finfo(expected.tolerance.acc).eps
    rounding = torch.finfo(expected.dtype).eps * ref.abs()
    normal = (ref.abs() > torch.finfo(expected.dtype).smallest_normal) & (
        ref.abs() < torch.finfo(expected.dtype).max
    )
    clear = normal & (expected.tolerance.accumulation_ulp * wide * _scale(expected) < HIDDEN * rounding)
    if torch.finfo(expected.dtype).eps <= wide or not bool(clear.any()):
        return None
    error = (got.detach().cpu().to(torch.float64) - ref).abs()
    return float((error[clear] / rounding[clear]).max())


def _scale(expected: reference.Expected) -> torch.Tensor:
    size = expected.ref.abs()
    return size if expected.error_scale is None else size + expected.error_scale.abs()


# Measuring ----------------------------------------------------------------------------------------

Run = Callable[[Case, Spec, str, Mapping[str, torch.Tensor]], "dict[str, Any]"]
"""(case, its spec, implementation, inputs on the device) -> outputs by name."""


def pinned(case: Case, spec: Spec, impl: str, tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """The op's outputs by name, computed by one implementation."""
    with portable.using(**{spec.op: impl}):
        result = without_effect(spec, runner.function(spec.op), {**tensors, **params_of(spec, case)})
    several = result if isinstance(result, (tuple, list)) else (result,)
    return dict(zip((each.name for each in results(spec, tensors)), several, strict=True))


def measure(
    spec: Spec,
    impls: Sequence[str],
    sizes: Sizes,
    seeds: Sequence[int],
    place: torch.device,
    run: Run = pinned,
) -> tuple[list[dict[str, Any]], list[dict[str, str]], list[dict[str, str]]]:
    """Entries, what is not supported (with the rule that says so) and what is broken, of one op."""
    entries: dict[tuple[str, ...], dict[str, Any]] = {}
    notes: dict[tuple[str, ...], None] = {}
    faults: dict[tuple[str, ...], None] = {}
    for call in calls(spec, sizes):
        types, rejected = types_text(dict(call.case.types)), set()
        for values in classes(spec, call.axis):
            for seed in seeds:
                tensors = draw(call, spec, values, seed)
                answer = reference.answer(call.case, spec, tensors)
                moved = {name: tensor.to(place) for name, tensor in tensors.items()}
                for impl in (name for name in impls if name not in rejected):
                    about = (spec.op, impl, types)
                    try:
                        outputs = run(call.case, spec, impl, moved)
                        for name in _judged(spec, call.axis, values):
                            _enter(entries, about, call, spec, name, outputs[name], answer[name], values)
                    except PinError as error:
                        rejected.add(impl)
                        reason = str(error.__dict__.get("reason", error))
                        notes[(*about, reason.partition(f": {impl}: ")[2] or reason)] = None
                    except Exception as error:
                        rejected.add(impl)
                        what = str(error) if isinstance(error, Broken) else f"{type(error).__name__}: {error}"
                        faults[(*about, f"{call.case.shape}, {values}, seed {seed}: {what}")] = None
    return list(entries.values()), _as_notes(notes), _as_notes(faults)


def _as_notes(notes: Iterable[tuple[str, ...]]) -> list[dict[str, str]]:
    return [dict(zip(("op", "impl", "types", "reason"), each, strict=True)) for each in notes]


def _judged(spec: Spec, axis: str, values: str) -> tuple[str, ...]:
    """The outputs that say something about a growing axis: those whose formula names it."""
    if values in ("mirrored", "returning"):
        return summed_outputs(spec, axis)
    return tuple(
        name
        for name, each in spec.tolerance.items()
        if axis in (axes_of(spec, each.accumulation_ulp) or {""})
    )


def _enter(
    entries: dict[tuple[str, ...], dict[str, Any]],
    about: tuple[str, str, str],
    call: Call,
    spec: Spec,
    name: str,
    got: Any,
    expected: reference.Expected,
    values: str,
) -> None:
    """Put one measurement into its entry, which keeps the largest of all seeds."""
    most, own = needed(got, expected), result_needed(got, expected)
    shape: Shape = call.case.shape
    sizes = dict(shape.axes) | ({"B": dict(shape.leading)[next(iter(spec.inputs))][0]} if _led(spec) else {})
    params = ", ".join(f"{key}={value}" for key, value in shape.params)
    key = (*about, name, str(shape), call.axis)
    entry = entries.setdefault(key, {
        "op": about[0], "impl": about[1], "types": about[2], "params": params, "output": name,
        "dtype": str(expected.dtype).removeprefix("torch."), "axis": call.axis, "sizes": sizes,
        "allowed": expected.tolerance.accumulation_ulp, "needed": {}, "share": 0.0, "result": None,
    })  # fmt: skip
    entry["needed"][values] = max(entry["needed"].get(values, 0.0), _short(most))
    entry["share"] = _short(max(entry["needed"].values()) / expected.tolerance.accumulation_ulp)
    if own is not None:
        entry["result"] = _short(max(own, entry["result"] or 0.0))


def allowed(entry: Mapping[str, Any]) -> float:
    """The `accumulation_ulp` that the spec, as it is now, allows where an entry was measured."""
    spec = registry.spec(entry["op"])
    row = next(row for row in spec.types if types_text(row) == entry["types"])
    return float(spec.tolerance[entry["output"]].accumulation_ulp.evaluate(**row, **entry["sizes"]))


def _led(spec: Spec) -> bool:
    return spec.leading == "same"


def _short(value: float) -> float:
    return float(f"{value:.4g}")


# The file -----------------------------------------------------------------------------------------


def collected(
    head: Mapping[str, Any], sizes: Sizes, seeds: Sequence[int], parts: Mapping[str, list[Any]]
) -> dict[str, Any]:
    """A calibration: the facts of a record's header, how it was measured, and the parts by `measure`."""
    settings = {"lengths": list(sizes.lengths), "seeds": list(seeds), "side": sizes.side, "rows": sizes.rows}
    facts = {name: head[name] for name in HEADER}
    return {"calibration": VERSION, "header": facts, "settings": settings, **parts}


def write(path: str | os.PathLike[str], found: Mapping[str, Any]) -> None:
    """Write a calibration atomically, one entry a line."""
    validate(found)
    parts = []
    for name, value in found.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            lines = ",\n  ".join(json.dumps(each, allow_nan=False) for each in value)
            parts.append(f" {json.dumps(name)}: [\n  {lines}\n ]")
        else:
            parts.append(f" {json.dumps(name)}: {json.dumps(value, allow_nan=False)}")
    files.write_text(path, "{\n" + ",\n".join(parts) + "\n}\n")


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The calibration at `path`, validated. Raises CalibrationError."""
    try:
        found = json.loads(files.read_text(path))
    except (OSError, ValueError, RecursionError) as error:
        raise CalibrationError(f"{path}: {error}") from error
    try:
        validate(found)
    except CalibrationError as error:
        raise CalibrationError(f"{path}: {error}") from None
    return found


def validate(found: Any) -> None:
    """Check a calibration; raise CalibrationError with the place of the first fault."""
    if not isinstance(found, dict) or found.get("calibration") != VERSION:
        raise CalibrationError(f"calibration: expected version {VERSION}")
    if not isinstance(found.get("header"), dict) or not isinstance(found.get("settings"), dict):
        raise CalibrationError("header, settings: expected objects")
    for name in HEADER:
        if name not in found["header"]:
            raise CalibrationError(f"header.{name}: missing")
    for part in ("entries", "not_supported", "broken"):
        if not isinstance(found.get(part), list):
            raise CalibrationError(f"{part}: expected a list")
    for place, entry in enumerate(found["entries"]):
        for name, kinds in ENTRY.items():
            value = entry.get(name, ...) if isinstance(entry, dict) else ...
            if not isinstance(value, kinds) or isinstance(value, bool):
                fault = "missing" if value is ... else f"cannot be {value!r}"
                raise CalibrationError(f"entries[{place}].{name}: {fault}")
        numbers = [entry["allowed"], entry["share"], *entry["needed"].values()]
        if not all(isinstance(each, (int, float)) and each >= 0 for each in numbers) or not entry["needed"]:
            raise CalibrationError(f"entries[{place}]: expected numbers of at least 0")


# The command --------------------------------------------------------------------------------------


def table(entries: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """One row per op, output, implementation and types: the entry with the largest share."""
    worst: dict[tuple[str, ...], Mapping[str, Any]] = {}
    results: dict[tuple[str, ...], float] = {}
    for entry in entries:
        key = (entry["op"], entry["output"], entry["impl"], entry["types"])
        if key not in worst or entry["share"] > worst[key]["share"]:
            worst[key] = entry
        results[key] = max(results.get(key, 0.0), entry["result"] or 0.0)
    rows = []
    for key, entry in worst.items():
        values = max(entry["needed"], key=entry["needed"].__getitem__)
        at = ", ".join(f"{name}={size}" for name, size in entry["sizes"].items())
        numbers = (f"{entry['needed'][values]:.3g}", f"{entry['allowed']:.3g}", f"{entry['share']:.3f}")
        rows.append((*key, *numbers, f"{at} {values}", f"{results[key]:.4f}" if results[key] else "-"))
    return rows


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m portable.conformance.commands.calibrate",
        description="Measure how large a `accumulation_ulp` constant the implementations need on a device.",
    )
    parser.add_argument("--ops", help="ops, comma separated (default: all, gradients included)")
    parser.add_argument("--impl", help="implementations, comma separated (default: all)")
    parser.add_argument("--seeds", type=int, default=3, metavar="COUNT", help="how many seeds (default: 3)")
    parser.add_argument("--first-seed", type=int, default=0, metavar="SEED", help="the first of them")
    parser.add_argument("--longest", type=int, metavar="N", help="largest length (16384; emulated 4096)")
    parser.add_argument("--out", required=True, metavar="FILE.json", help="where to write what was measured")
    device.add_arguments(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """The command's entry; answers 0, 1 where something is broken or over its bound, 2 usage, 3 no device."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    args = _parser().parse_args(arguments)
    try:
        device.choose(args)
        return _main(args, arguments)
    except BackendError as error:
        print(f"calibrate: {error}", file=sys.stderr)
        return 3
    except (UsageError, PortableError, OSError) as error:
        print(f"calibrate: {error}", file=sys.stderr)
        return 2


def _main(args: argparse.Namespace, arguments: Sequence[str]) -> int:
    here = portable.device()
    ops = _chosen(args.ops, sorted(registry.op_folders()), "--ops")
    known = sorted({name for op in ops for name in dispatcher.candidates(op)})
    impls = _chosen(args.impl, known, "--impl")
    if args.seeds < 1:
        raise UsageError(f"--seeds {args.seeds}: expected at least 1")
    if not os.path.isdir(os.path.dirname(os.path.abspath(args.out))):
        raise UsageError(f"--out {args.out}: there is no such folder")
    place = torch.device(detect.main_backend().device_type)
    sizes = Sizes.of(place.type == "cpu", args.longest)
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    lengths = ", ".join(map(str, sizes.lengths))
    print(f"{here}, lengths {lengths}, seeds {seeds[0]} to {seeds[-1]}", flush=True)
    parts: dict[str, list[Any]] = {"entries": [], "not_supported": [], "broken": []}
    for op in ops:
        names = [name for name in dispatcher.candidates(op) if name in impls]
        found = measure(registry.spec(op), names, sizes, seeds, place)
        for part, more in zip(parts.values(), found, strict=True):
            part += more
        print(f"measured {op}", flush=True)
    write(args.out, collected(record.header(here, arguments, ""), sizes, seeds, parts))
    heads = ("op", "output", "implementation", "types", "needed", "allowed", "share", "at", "result")
    print_table(heads, table(parts["entries"]))
    for each in parts["broken"]:
        print(f"broken: {each['op']}, {each['impl']}, {each['types']}: {each['reason']}")
    over = [entry for entry in parts["entries"] if entry["share"] > 1]
    print(f"{len(parts['entries'])} measurements, {len(over)} above what the spec allows, "
          f"{len(parts['broken'])} broken; recorded in {args.out}")  # fmt: skip
    return 1 if over or parts["broken"] else 0


def _chosen(text: str | None, known: Sequence[str], option: str) -> list[str]:
    if text is None:
        return list(known)
    wanted = [name.strip() for name in text.split(",") if name.strip()]
    for name in wanted:
        if name not in known:
            raise UsageError(f"{option} {name}: no such name in the spec.{nearest(name, known)} "
                          f"There are {', '.join(known)}")  # fmt: skip
    if not wanted:
        raise UsageError(f"{option} names nothing")
    return wanted


if __name__ == "__main__":
    sys.exit(main())

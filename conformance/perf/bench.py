"""Times an op's bench cases on a GPU against its baselines, a copy and the measured roof.

An entry of the record is one case on one pinned implementation. Its `vs` holds, per baseline, the median
of the baseline's time over ours in the same round and a 95 % bootstrap interval: above 1 ours is faster.
`of_roof` is the least time that the measured roof allows over the time taken.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

import portable
from portable import errors
from portable.conformance import stats
from portable.conformance.cases.case import (
    Case,
    below,
    formula_values,
    input_shapes,
    leading_size,
    make_shape,
    params_of,
)
from portable.conformance.cases.generate import required_params
from portable.conformance.cases.inputs import DTYPES
from portable.conformance.execute.runner import function, implementations
from portable.conformance.perf import baselines, sustained, sweep, timing
from portable.conformance.text import number
from portable.runtime import detect
from portable.runtime.tensors import random_tensor
from portable.spec import registry
from portable.spec.model import Spec, size_of

ABOVE_ROOF = 1.10
"""Beyond this share of the measured roof the measurement, or the count of bytes or flops, is wrong: the
roof is itself a measurement, so a kernel may be a few percent above it."""

SLOWER = 0.9
"""An implementation whose speed surely (by the high end of the interval) is below this share of torch's
is a PerfWarning."""

SWEEP_ROUNDS = 15
"""Rounds of a case of the sweep, which has many cases; its verdicts are means over them."""

BASELINE = "baseline "
"""Put before a baseline's name among the candidates: an implementation may be called torch too."""

Entry = dict[str, Any]
Call = Callable[[Any], object]
Failed = Callable[[str, str, Exception], None]


def bench(
    ops: Sequence[str],
    impls: Sequence[str] | None,
    device: torch.device,
    progress: Callable[[Entry], None] | None = None,
    failed: Failed | None = None,
    groups: Sequence[str] | None = None,
    seconds: float | None = None,
) -> tuple[list[Entry], dict[str, Any]]:
    """Every bench case of every op in its first 16-bit type and in float32; with `groups`, the cases of
    those groups of the sweep instead. With `seconds` each candidate runs so long in each round, back to
    back, and an entry has clock, power and energy as `sustained`.

    Returns one entry per case and implementation, and the medians of the roofs measured beside them. An
    implementation that rejects a case has no entry. One that raises is passed to `failed` (case id,
    implementation, exception), and so is a case that cannot be made or timed at all ("any implementation");
    without `failed` the exception goes on, as it does where the device takes no more work.
    """
    session = _Session(
        device, timing.Roofs(device), failed, timing.ROUNDS if groups is None else SWEEP_ROUNDS, seconds
    )
    entries = []
    for timed_case in timed_cases(ops, impls, groups):
        try:
            found = _bench_case(timed_case, session)
        except Exception as error:
            if failed is None:
                raise
            if device.type == "cuda":
                torch.cuda.synchronize(device)  # raises where the error stays
            failed(timed_case.case.id, "any implementation", error)
            continue
        for entry in found:
            entries.append(entry)
            if progress is not None:
                progress(entry)
    return entries, session.roofs.measured


def timed_cases(
    ops: Sequence[str], impls: Sequence[str] | None, groups: Sequence[str] | None
) -> list[sweep.TimedCase]:
    """What is timed: the specs' bench cases, or those of the named groups that are of `ops`."""
    if groups is None:
        specs = [registry.spec(op) for op in ops]
        return [sweep.TimedCase(case, impls, None) for spec in specs for case in bench_cases(spec)]
    wanted = [(group, op) for group in sweep.chosen(groups) for op in group.ops if op in ops]
    found = [each for group, op in wanted for each in group.cases(op)]
    if impls is None:
        return found
    return [replace(each, impls=[name for name in each.impls or impls if name in impls]) for each in found]


@dataclass
class _Session:
    """What a run of timings keeps from case to case; host costs are measured once per small call."""

    device: torch.device
    roofs: timing.Roofs
    failed: Failed | None
    rounds: int = timing.ROUNDS
    seconds: float | None = None
    launches: dict[tuple[Any, ...], float | None] = field(default_factory=dict)

    def launch(self, key: tuple[Any, ...], measure: Callable[[], float | None]) -> float | None:
        if key not in self.launches:
            self.launches[key] = measure()
        return self.launches[key]


def bench_cases(spec: Spec) -> list[Case]:
    """The spec's bench sizes; rows of types with one 16-bit floating point type throughout, and float32. The
    first row where there is neither, as of products in fp8."""
    chosen = [sweep.uniform_types(spec, name) for name in ("bfloat16", "float32")]
    chosen = chosen if any(chosen) else [spec.types[0]]
    shapes = [make_shape(spec, one.axes, one.leading, one.params, one.absent) for one in spec.bench]
    return [
        Case(spec.op, tuple(row.items()), shape, layout="bench") for row in chosen if row for shape in shapes
    ]


def _bench_case(timed_case: sweep.TimedCase, session: _Session) -> list[Entry]:
    case, device, spec = timed_case.case, session.device, registry.spec(timed_case.case.op)
    moved = moved_bytes(case, spec)
    free = torch.cuda.mem_get_info(device)[0]
    sets = [
        made(case, spec, device, seed)
        for seed in range(timing.set_count(moved, detect.device().l2_bytes, free // 2))
    ]

    def fails(name: str, error: Exception) -> None:
        if session.failed is None:
            raise error
        session.failed(case.id, name, error)

    calls, expected = _ours(case, spec, timed_case.impls, sets[0], fails)
    if not calls:
        return []
    others, reasons = baselines.ready(spec, sets, params_of(spec, case), expected, timed_case.baselines)
    del expected
    timed: dict[str, tuple[Call, Sequence[Any]]] = {name: (call, sets) for name, call in calls.items()}
    timed |= {BASELINE + name: (_run, bound) for name, bound in others.items()}
    matrix = spec.cost.roof == "matrix"
    if not matrix or "copy" in (timed_case.baselines or ()):
        halves = [torch.randn(max(moved // 4, 1), device=device).to(torch.bfloat16) for _ in sets]
        timed[BASELINE + "copy"] = (timing.copy, [(half, torch.empty_like(half)) for half in halves])
    for name in ("dense", "wide"):
        if name in (timed_case.baselines or ()):
            beside = _beside_baseline(spec, name)
            timed[BASELINE + name] = (_run, [beside(tensors, _facts(case, spec)) for tensors in sets])
    flops, unit, passes = work(case, spec)
    if sweep.TAIL in sweep.tokens(case.layout):  # the spec's formula does not count by lengths
        flops *= _beside_baseline(spec, "share_of_uniform")(sets[0], _facts(case, spec))
    timed |= session.roofs.candidates(DTYPES[unit] if matrix else None)

    def left_out(name: str, error: Exception) -> None:
        if name.startswith(BASELINE):
            reasons[name.removeprefix(BASELINE)] = baselines.explained(error)
        else:
            fails(name, error)

    meters: Mapping[str, Any] = {}
    if session.seconds is None:
        samples = timing.interleaved(timed, session.rounds, left_out)
    else:
        samples, meters = sustained.interleaved(timed, session.seconds, device, left_out)
    rates = session.roofs.take(samples)
    made_of = {name: moved if name == timing.COPY_ROOF else flops * passes for name in rates}
    floor_us = 1e6 * max(made_of[name] / rate for name, rate in rates.items())
    ran = [name for name in calls if name in samples]
    launches, baseline_launch = _launches(case, spec, session, ran, fails)
    against = {
        name.removeprefix(BASELINE): sample for name, sample in samples.items() if name.startswith(BASELINE)
    }
    return [
        _entry(case, samples[name], against, floor_us) | {
            "bytes": moved, "flops": flops,
            "bytes_per_s": moved / samples[name].median * 1e6,
            "flop_per_s": flops / samples[name].median * 1e6,
            "baseline_errors": dict(reasons),
            "launch_us": cost,
            "baseline_launch_us": None if "torch" in reasons else baseline_launch,
            "buffer_sets": len(sets),
        } | ({"sustained": _beside(name, meters)} if meters else {})
        for name, cost in launches.items()
    ]  # fmt: skip


def _beside(name: str, meters: Mapping[str, Mapping[str, float | None]]) -> dict[str, Any]:
    """The meters of an implementation, and the energy of a call of each baseline."""
    others = {each.removeprefix(BASELINE): found["joules"] for each, found in meters.items()
              if each.startswith(BASELINE)}  # fmt: skip
    return {**meters[name], "baselines_joules": others}


def _launches(
    case: Case, spec: Spec, session: _Session, ran: Sequence[str], fails: Callable[[str, Exception], None]
) -> tuple[dict[str, float | None], float | None]:
    """Host microseconds of a small call, per implementation and of torch's own."""
    small = _small_call(case, spec, session.device)
    params = params_of(spec, case)
    key = (case.op, case.types, tuple(params.items()), case.shape.absent)
    ours = {
        name: session.launch(
            (*key, name), functools.partial(_launch_cost, case.op, name, small | params, fails)
        )
        for name in ran
    }
    return ours, session.launch(key, functools.partial(_baseline_launch, spec, small, params))


def _ours(
    case: Case,
    spec: Spec,
    impls: Sequence[str] | None,
    tensors: baselines.Tensors,
    fails: Callable[[str, Exception], None],
) -> tuple[dict[str, Call], list[Tensor]]:
    """The selected implementations that run this case, and the outputs that they and baselines are held
    against: the torch implementation's, else the first's. One that computes something else is not timed."""
    calls: dict[str, Call] = {}
    outputs: dict[str, list[Tensor]] = {}
    judge = next(each.name for each in spec.implementations if each.kind == "run")
    written = {name: tensor for name in spec.mutated if (tensor := tensors[name]) is not None}
    before = {name: tensor.clone() for name, tensor in written.items()}
    for name in implementations(case.op):
        wanted = impls is None or name in impls
        if not wanted and name != judge:
            continue
        call = pinned(case, name)
        try:
            outputs[name] = baselines.results(spec, tensors, call(tensors))
            baselines.restored(tensors, before)
        except errors.PinError:  # it does not run this type or size
            continue
        except Exception as error:
            if wanted:
                fails(name, error)
            continue
        if wanted:
            calls[name] = call
    expected = outputs.get(judge) or next(iter(outputs.values()), [])
    for name in list(calls):
        if reason := baselines.difference(expected, outputs[name]):
            fails(name, RuntimeError(reason))
            del calls[name]
    return calls, expected


def _entry(case: Case, sample: timing.Sample, against: Mapping[str, timing.Sample], floor_us: float) -> Entry:
    """What one implementation's sample says beside those of the baselines and the roof."""
    vs = {
        name: stats.ratio_interval(sample.microseconds, other.microseconds) for name, other in against.items()
    }
    state, message = _state(floor_us / sample.median, vs.get("torch"))
    return {
        "op": case.op, "impl": sample.name, "case": case.id, "state": state, "message": message,
        "device_us": sample.median, "device_us_all": list(sample.microseconds), "graph": sample.graph,
        "floor_us": floor_us, "of_roof": floor_us / sample.median,
        "vs": {name: {"median": each.value, "low": each.low, "high": each.high} for name, each in vs.items()},
        "baselines_us": {name: other.median for name, other in against.items()},
        "clocks": sample.clocks,
    }  # fmt: skip


def _state(of_roof: float, torch_ratio: stats.Interval | None) -> tuple[str, str]:
    """The state and message of a timing, from its share of the roof and its speed over torch's."""
    if of_roof > ABOVE_ROOF:
        return "InternalError", (
            f"{of_roof:.2f} of the measured roof: no kernel is faster than the device, so the time, the roof "
            "or the count of bytes and flops is wrong"
        )
    if torch_ratio is not None and torch_ratio.high < SLOWER:
        return "PerfWarning", (
            f"{torch_ratio.value:.3f} of the speed of torch's own "
            f"({torch_ratio.low:.3f} to {torch_ratio.high:.3f}), expected at least {SLOWER}"
        )
    return "Pass", ""


def table(
    entries: Sequence[Entry], roof: Mapping[str, float]
) -> tuple[list[str], list[list[str]], list[str]]:
    """The entries as a table for people: its head, its rows, and the lines that belong below it."""
    known = (*baselines.NAMES, *sweep.YARDSTICKS)
    names = [name for name in known if any(name in entry["vs"] for entry in entries)]
    head = ["case", "implementation", "us", "TB/s", "TFLOP/s", "of roof"]
    head += [*(f"x {name}" for name in names), "launch us", "torch's launch us", "state"]
    rows = [
        [
            _short(entry["case"]),
            entry["impl"],
            f"{entry['device_us']:.1f}",
            number(entry["bytes_per_s"] / 1e12),
            number(entry["flop_per_s"] / 1e12),
            number(entry["of_roof"]),
            *(_ratio_text(entry["vs"].get(name)) for name in names),
            *("-" if each is None else f"{each:.1f}"
              for each in (entry["launch_us"], entry["baseline_launch_us"])),
            entry["state"],
        ]
        for entry in entries
    ]  # fmt: skip
    return head, rows, _notes(entries, roof)


def _notes(entries: Sequence[Entry], roof: Mapping[str, float]) -> list[str]:
    lines = [f"roof measured in this run: {name} {value:.4g}" for name, value in roof.items()]
    clocks = [mhz for entry in entries if entry["clocks"] for mhz in entry["clocks"]["sm_mhz"]]
    span = f"{min(clocks)}..{max(clocks)} MHz" if clocks else "unknown (install nvidia-ml-py or amdsmi)"
    lines.append(f"the GPU's clock over the rounds: {span}")
    cases = list(dict.fromkeys(entry["case"] for entry in entries))
    missing: dict[tuple[str, str], list[str]] = {}
    for case, errors_ in {entry["case"]: entry["baseline_errors"] for entry in entries}.items():
        for name, reason in errors_.items():
            missing.setdefault((name, reason), []).append(case)
    for (name, reason), where in missing.items():
        lines.append(f"no baseline {name}: {reason} ({_places(where, cases)})")
    loops = list(dict.fromkeys(entry["impl"] for entry in entries if not entry["graph"]))
    if loops:
        lines.append(f"not captured into a graph, so the host may be in the time: {', '.join(loops)}")
    lines += [
        f"sustained: {_short(entry['case'])} on {entry['impl']}: {_meters(entry['sustained'])}"
        for entry in entries if "sustained" in entry
    ]  # fmt: skip
    lines += sweep.lines(sweep.verdicts(entries))
    lines += [
        f"{entry['state']}: {_short(entry['case'])} on {entry['impl']}: {entry['message']}"
        for entry in entries if entry["state"] != "Pass"
    ]  # fmt: skip
    return lines


def _meters(found: Mapping[str, Any]) -> str:
    """`1,432 MHz, 690 W, 0.482 J a call (torch 0.495)`"""
    if found["watts"] is None:
        return "no meter: nvidia-smi is not there"
    others = ", ".join(f"{name} {number(joules)}" for name, joules in found["baselines_joules"].items())
    beside = f" ({others})" if others else ""
    return f"{found['sm_mhz']:,.0f} MHz, {found['watts']:.0f} W, {number(found['joules'])} J a call{beside}"


def _short(case: str) -> str:
    return case.removesuffix("/normal/bench")


def _places(where: Sequence[str], cases: Sequence[str]) -> str:
    if len(where) == len(cases) > 1:
        return "every case"
    if len(where) <= 2:
        return ", ".join(map(_short, where))
    ops = dict.fromkeys(case.partition("/")[0] for case in where)
    return f"{len(where)} cases of {', '.join(ops)}"


def _ratio_text(ratio: Mapping[str, float] | None) -> str:
    return f"{ratio['median']:.3f} ({ratio['low']:.3f}..{ratio['high']:.3f})" if ratio else "-"


def pinned(case: Case, name: str) -> Call:
    """The op on one implementation, as a call on one buffer set."""
    op, params = function(case.op), params_of(registry.spec(case.op), case)

    def call(tensors: Any) -> object:
        with portable.using(**{case.op: name}):
            return op(**tensors, **params)

    return call


def _run(bound: baselines.Call) -> object:
    return bound()


def _baseline_launch(spec: Spec, tensors: baselines.Tensors, params: Mapping[str, Any]) -> float | None:
    """Host microseconds of torch's own small call; None where torch does not take it."""
    with contextlib.suppress(RuntimeError, NotImplementedError, TypeError, ValueError):
        return timing.launch_cost(baselines.bound_to_torch(spec, params)(tensors))
    return None


def _launch_cost(
    op: str, impl: str, arguments: dict[str, Any], fails: Callable[[str, Exception], None]
) -> float | None:
    """Host microseconds of one small call; None where the implementation does not take it."""
    call = function(op)
    with portable.using(**{op: impl}):
        try:
            return timing.launch_cost(lambda: call(**arguments))
        except errors.PinError:
            return None
        except Exception as error:
            fails(impl, error)
            return None


def made(case: Case, spec: Spec, device: torch.device, seed: int) -> dict[str, torch.Tensor | None]:
    """The inputs of a case, normal data in its layout; an absent one is None. Those that follow from
    others are made by the function `derived` beside the op's baseline, on the GPU, in the layout."""
    generator = torch.Generator(device).manual_seed(seed)
    found: dict[str, torch.Tensor | None] = dict.fromkeys(spec.inputs)
    for name, shape in input_shapes(spec, case.shape).items():
        if spec.inputs[name].derived:
            continue
        dtype, limit = case.dtype(spec.inputs[name].dtype), below(spec, case.shape, name)

        def fill(dims: Sequence[int], dtype: str = dtype, limit: int | None = limit) -> Tensor:
            return random_tensor(dims, dtype, generator, device, limit)

        found[name] = sweep.laid_out(case.layout, name, shape, fill)
    if spec.cost.baseline is not None and any(each.derived for each in spec.inputs.values()):
        found |= _beside_baseline(spec, "derived")(found, _facts(case, spec))
    return found


def _small_call(case: Case, spec: Spec, device: torch.device) -> dict[str, torch.Tensor | None]:
    """Tensors so small that the kernel ends before the next call is launched: those of the
    spec's `latency_case`, which torch's own takes too, or 64 in every axis."""
    axes = spec.latency_case.axes if spec.latency_case else dict.fromkeys(spec.axes, 64)
    leading: Any = (4,) if spec.leading == "same" else ()
    shape = make_shape(spec, axes, leading, required_params(spec)[0], case.shape.absent)
    return made(Case(case.op, case.types, shape), spec, device, 0)


def _facts(case: Case, spec: Spec) -> dict[str, Any]:
    """What the formulas of a cost may name."""
    return formula_values(spec, case) | {"layout": case.layout}


def _beside_baseline(spec: Spec, function: str) -> Callable[..., Any]:
    """A function of the file that holds the op's baseline."""
    assert spec.cost.baseline is not None
    return registry.load_entry(replace(spec.cost.baseline, function=function))


def work(case: Case, spec: Spec) -> tuple[float, str, float]:
    """The flops of a case, the type that they are made in, and how many of its flops each of them takes."""
    cost, facts = spec.cost, _facts(case, spec)
    unit = facts[spec.type_variables[0]] if cost.unit is None else cost.unit.evaluate(**facts)
    passes = 1.0 if cost.passes is None else float(cost.passes.evaluate(**facts))
    return float(cost.flops.evaluate(**facts)), unit, passes


def moved_bytes(case: Case, spec: Spec) -> int:
    """Bytes each call must move: every operand once, unless the spec has a formula for it."""
    if spec.cost.bytes is not None:
        return int(spec.cost.bytes.evaluate(**_facts(case, spec)))
    total = 0
    axes, lead = dict(case.shape.axes), leading_size(spec, case.shape)
    for name, shape in input_shapes(spec, case.shape).items():
        total += torch.Size(shape).numel() * DTYPES[case.dtype(spec.inputs[name].dtype)].itemsize
    for output in spec.outputs.values():
        own = math.prod(size_of(dim, axes) for dim in output.dims)
        if output.when not in case.shape.absent:
            total += own * (lead if output.leading else 1) * DTYPES[case.dtype(output.dtype)].itemsize
    return total

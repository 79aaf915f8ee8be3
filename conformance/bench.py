"""Times an op's bench cases on a GPU against torch's own function, a copy and the measured roof."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import torch

import portable
from portable import catalog, errors, machine
from portable.conformance import timing
from portable.conformance.cases import Case, input_shapes, leading_size, make_shape, required_params
from portable.conformance.inputs import DTYPES
from portable.conformance.runner import implementations
from portable.spec import Spec

BASELINE = "baseline"
"""What a user of torch alone would call, as the spec's cost names it; else torch's implementation."""


def bench(
    ops: Sequence[str],
    impls: Sequence[str] | None,
    device: torch.device,
    progress: Callable[[dict[str, Any]], None] | None = None,
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Every bench case of every op in its first 16-bit type and in float32.

    Returns one entry per case and implementation, and the roof measured in this run. A time below what
    the roof allows is marked `above_roof`: then the measurement, or the op, is wrong.
    """
    roof: dict[str, Any] = {"copy_bytes_per_s": timing.copy_roof(device)}
    entries = []
    for op in ops:
        spec = catalog.spec(op)
        for case in bench_cases(spec):
            for entry in _bench_case(case, spec, impls, device, roof):
                entries.append(entry)
                if progress is not None:
                    progress(entry)
    return entries, roof


def bench_cases(spec: Spec) -> list[Case]:
    """The spec's bench sizes; rows of types with one 16-bit type throughout, and float32."""
    rows = [
        row for row in spec.types if len(set(row.values()) - {row["acc"]}) <= 1 and row["acc"] == "float32"
    ]
    chosen = [next((row for row in rows if row[spec.type_variables[0]] == name), None)
              for name in ("bfloat16", "float32")]  # fmt: skip
    shapes = [make_shape(spec, one.axes, one.leading, one.params, one.absent) for one in spec.bench]
    return [
        Case(spec.op, tuple(row.items()), shape, layout="bench") for row in chosen if row for shape in shapes
    ]


def _bench_case(
    case: Case, spec: Spec, impls: Sequence[str] | None, device: torch.device, roof: dict[str, Any]
) -> list[dict[str, Any]]:
    moved = _bytes(case, spec)
    free = torch.cuda.mem_get_info(device)[0]
    sets = [
        _tensors(case, spec, device, seed)
        for seed in range(timing.set_count(moved, machine.device().l2_bytes, free // 2))
    ]
    op = getattr(portable, case.op)

    def pinned(name: str) -> Callable[[Any], object]:
        def call(tensors: Any) -> object:
            with portable.using(**{case.op: name}):
                return op(**tensors, **case.params)

        return call

    calls: dict[str, Callable[[Any], object]] = {}
    for name in implementations(case.op):
        if impls is not None and name not in impls:
            continue
        with contextlib.suppress(errors.PinError):  # it does not run this type or size
            pinned(name)(sets[0])
            calls[name] = pinned(name)
    timed: dict[str, tuple[Callable[[Any], object], Any]] = {
        name: (call, sets) for name, call in calls.items()
    }
    baseline = _baseline(case, spec)
    baseline_error = _fault(baseline, sets[0])
    if not baseline_error:
        timed[BASELINE] = (baseline, sets)
    if spec.cost.peak == "vector":
        halves = [torch.randn(max(moved // 4, 1), device=device).to(torch.bfloat16) for _ in sets]
        timed["copy"] = (timing.copy, [(half, torch.empty_like(half)) for half in halves])
    samples = timing.interleaved(timed)
    flops = float(spec.cost.flops.evaluate(**dict(case.shape.axes), B=leading_size(spec, case.shape)))
    dtype = DTYPES[case.dtype(spec.type_variables[0])]
    if spec.cost.peak == "matrix":
        key = f"matmul_{case.dtype(spec.type_variables[0])}_flop_per_s"
        if key not in roof:
            roof[key] = timing.matrix_roof(device, dtype)
    entries = []
    small = _small_call(case, spec, device)
    baseline_launch = None if baseline_error else timing.launch_cost(lambda: baseline(small))
    for name in calls:
        sample = samples[name]
        seconds = sample.median * 1e-6
        floor = moved / roof["copy_bytes_per_s"]
        if spec.cost.peak == "matrix":
            floor = max(floor, flops / roof[key])
        entries.append({
            "op": case.op, "impl": name, "case": case.id, "device_us": sample.median,
            "device_us_all": list(sample.microseconds), "graph": sample.graph,
            "bytes": moved, "flops": flops, "bytes_per_s": moved / seconds, "flop_per_s": flops / seconds,
            "of_roof": floor / seconds, "above_roof": floor / seconds > 1.10,
            "vs_torch": asdict(timing.ratio(sample, samples[BASELINE])) if BASELINE in samples else None,
            "vs_copy": asdict(timing.ratio(sample, samples["copy"])) if "copy" in samples else None,
            "baseline_us": samples[BASELINE].median if BASELINE in samples else None,
            "baseline_error": baseline_error,
            "baseline_launch_us": baseline_launch,
            "launch_us": _launch_cost(case.op, name, small | case.params),
            "buffer_sets": len(sets),
        })  # fmt: skip
    return entries


def _baseline(case: Case, spec: Spec) -> Callable[[Any], object]:
    """The baseline as a call on one buffer set."""
    if spec.cost.baseline is None:
        entry = next(each.entry for each in spec.implementations if each.kind == "run")
    else:
        entry = spec.cost.baseline
    function = catalog.load_entry(entry)
    params = {name: param.default for name, param in spec.params.items()} | case.params

    def call(tensors: Any) -> object:
        with torch.no_grad():
            return function(**tensors, **params)

    return call


def _fault(call: Callable[[Any], object], tensors: Any) -> str:
    """Why a baseline does not run here ("" where it does): torch may lack it for this type or device."""
    try:
        call(tensors)
    except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return ""


def _launch_cost(op: str, impl: str, arguments: dict[str, Any]) -> float | None:
    """Host microseconds of one small call; None where the implementation does not take it."""
    function = getattr(portable, op)
    with portable.using(**{op: impl}):
        try:
            return timing.launch_cost(lambda: function(**arguments))
        except errors.PinError:
            return None


def _tensors(case: Case, spec: Spec, device: torch.device, seed: int) -> dict[str, torch.Tensor | None]:
    generator = torch.Generator(device).manual_seed(seed)
    made: dict[str, torch.Tensor | None] = dict.fromkeys(spec.inputs)
    for name, shape in input_shapes(spec, case.shape).items():
        dtype = DTYPES[case.dtype(spec.inputs[name].dtype)]
        made[name] = torch.randn(shape, device=device, generator=generator).to(dtype)
    return made


def _small_call(case: Case, spec: Spec, device: torch.device) -> dict[str, torch.Tensor | None]:
    """Tensors so small that the kernel ends before the next call is launched."""
    leading: Any = (4,) if spec.leading == "same" else ()
    shape = make_shape(
        spec, dict.fromkeys(spec.axes, 64), leading, required_params(spec)[0], case.shape.absent
    )
    return _tensors(Case(case.op, case.types, shape), spec, device, 0)


def _bytes(case: Case, spec: Spec) -> int:
    """Bytes each call must move: every operand once, unless the spec has a formula for it."""
    if spec.cost.bytes is not None:
        return int(spec.cost.bytes.evaluate(**dict(case.shape.axes), B=leading_size(spec, case.shape)))
    total = 0
    axes, lead = dict(case.shape.axes), leading_size(spec, case.shape)
    for name, shape in input_shapes(spec, case.shape).items():
        total += torch.Size(shape).numel() * DTYPES[case.dtype(spec.inputs[name].dtype)].itemsize
    for output in spec.outputs.values():
        own = torch.Size([axes[dim] if isinstance(dim, str) else dim for dim in output.dims]).numel()
        if output.when not in case.shape.absent:
            total += own * (lead if output.leading else 1) * DTYPES[case.dtype(output.dtype)].itemsize
    return total

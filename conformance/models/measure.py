"""Candidates of a model's step: judged, then timed in turn under sustained load, with memory and
kernels."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from portable.conformance.models import floors, judge, steps
from portable.conformance.models.configs import Config, Step, part_of
from portable.conformance.perf import sustained, timing
from portable.conformance.perf.libraries import Unsupported
from portable.errors import PortableError

PASS, FAIL, ERROR, UNAVAILABLE = "Pass", "Fail", "Error", "NotAvailable"
MODELLED = "Modelled"
"""Timed by a model of the GPU: neither judged nor measured."""
_COPY, _MATMUL = "roof copy", "roof matmul"

Entry = dict[str, Any]


def step_entry(
    config: Config,
    step: Step,
    candidates: Sequence[steps.Candidate],
    device: torch.device,
    seconds: float = sustained.SECONDS,
    progress: Callable[[str], None] = lambda text: None,
) -> Entry:
    """One model and step: its candidates' entries and, on a GPU, the roofs and floors of the same run.

    torch's eager step is judged first, whether it is a candidate or not: the others are held to its
    errors, and quantised ones to those of torch's step of the same dequantised operands."""
    ready = steps.Ready(config, step, device)
    candidates = [each for each in candidates if each.takes(step)]
    calls: dict[str, Callable[[], Any]] = {}
    entries = []
    for scheme in dict.fromkeys(each.scheme for each in candidates):
        alike = [each for each in candidates if each.scheme is scheme]
        progress("float32")
        reference = ready.reference(scheme)
        of_torch = judge.errors(ready.outcome(ready.call(alike[0].eager)), reference)
        entries += [_judged(each, ready, reference, of_torch, calls, progress) for each in alike]
        del reference
    found: Entry = {
        "model": config.name,
        "step": step.name,
        "candidates": entries,
        "roof": None,
        "floors": {},
    }
    if device.type == "cuda" and calls:
        found |= _timed(config, step, calls, entries, device, seconds, progress)
    del ready, calls
    _forget()
    return found


def _judged(
    candidate: steps.Candidate,
    ready: steps.Ready,
    reference: Mapping[str, torch.Tensor],
    of_torch: Mapping[str, float],
    calls: dict[str, Callable[[], Any]],
    progress: Callable[[str], None],
) -> Entry:
    """The candidate's entry; its call, as it is timed, is kept in `calls` where it is right."""
    progress(candidate.name)
    entry: Entry = {"name": candidate.name, "state": PASS, "message": "", "errors": {}}
    try:
        call = ready.call(candidate)
        if ready.graphed:
            entry["peak_bytes"] = _peak(call)
            call = graphed(call)
        verdict = judge.verdict(judge.errors(ready.outcome(call), reference), of_torch)
    except Unsupported as error:
        return entry | {"state": UNAVAILABLE, "message": str(error)}
    except Exception as error:  # another project's code too: whatever it raises is why it is not timed
        if isinstance(error, torch.cuda.OutOfMemoryError):
            _forget()
        return entry | {"state": ERROR, "message": f"{type(error).__name__}: {str(error)[:400]}"}
    entry["errors"] = {name: float(f"{each:.4g}") for name, each in verdict.errors.items()}
    if verdict.fault:
        return entry | {"state": FAIL, "message": verdict.fault}
    calls[candidate.name] = call
    return entry


def _timed(
    config: Config,
    step: Step,
    calls: dict[str, Callable[[], Any]],
    entries: Sequence[Entry],
    device: torch.device,
    seconds: float,
    progress: Callable[[str], None],
) -> Entry:
    """Times, memory and kernels into the entries; answers the roofs and floors."""
    for entry in entries:
        if "peak_bytes" not in entry and (call := calls.get(entry["name"])) is not None:
            entry["peak_bytes"] = _peak(call)
    progress("timing")
    roofs = timing.Roofs(device)
    for name, (call, (one, *_)) in zip(
        (_COPY, _MATMUL), roofs.candidates(torch.bfloat16).values(), strict=True
    ):
        calls[name] = lambda call=call, one=one: call(one)
    samples = sustained.sustained(calls, seconds, sustained.ROUNDS, device)
    rates = roofs.take({
        timing.COPY_ROOF: timing.Sample(timing.COPY_ROOF, samples.pop(_COPY).microseconds, False),
        timing.matrix_roof(torch.bfloat16): timing.Sample("", samples.pop(_MATMUL).microseconds, False),
    })  # fmt: skip
    progress("kernels")
    for entry in entries:
        if (sample := samples.get(entry["name"])) is not None:
            entry |= {
                "us": [float(f"{each:.6g}") for each in sample.microseconds],
                "sm_mhz": sample.sm_mhz, "watts": sample.watts, "joules": sample.joules,
                "kernels": kernels(calls[sample.name]),
            }  # fmt: skip
    flop_rate, byte_rate = rates[timing.matrix_roof(torch.bfloat16)], rates[timing.COPY_ROOF]
    return {"roof": rates, "floors": floors.floors(config, step, flop_rate, byte_rate)}


def graphed(call: Callable[[], Any]) -> Callable[[], Any]:
    """The call captured into a graph of the GPU: a replay, which answers the captured result. It keeps the
    call, whose own tensors (quantised weights) the graph reads and does not hold."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call()

    def replay(kept: Any = call) -> Any:
        graph.replay()
        return result

    return replay


def kernels(call: Callable[[], Any]) -> list[Entry]:
    """The kernels of one call: name, part of the step, launches and microseconds, the longest first. Time in
    which kernels overlap is the earlier one's: a dependent launch's wait for the kernel ahead is not its
    own."""
    from torch.profiler import ProfilerActivity, profile

    call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as profiler:
        call()
        torch.cuda.synchronize()
    return by_kernel(
        own_times(
            (event.time_range.start, event.time_range.end, event.name[:160])
            for event in profiler.events() or ()
            if event.device_type.name == "CUDA" and event.self_device_time_total > 0
        )
    )


def own_times(spans: Iterable[tuple[float, float, str]]) -> Iterator[tuple[str, float]]:
    """Names and times of spans (start, end, name): of each what lies behind the ends of those that started
    before it."""
    until = -math.inf
    for start, end, name in sorted(spans):
        yield name, max(0.0, end - max(start, until))
        until = max(until, end)


def by_kernel(launches: Iterable[tuple[str, float]]) -> list[Entry]:
    """Names and microseconds of launches, added up by kernel, the longest first."""
    found: dict[str, Entry] = {}
    for name, us in launches:
        one = found.setdefault(name, {"name": name, "part": part_of(name), "launches": 0, "us": 0.0})
        one["launches"] += 1
        one["us"] = round(one["us"] + us, 3)
    return sorted(found.values(), key=lambda each: -each["us"])


def parts(entry: Mapping[str, Any]) -> dict[str, float]:
    """Microseconds of a candidate's kernels by part."""
    found: dict[str, float] = {}
    for each in entry.get("kernels", ()):
        found[each["part"]] = found.get(each["part"], 0.0) + each["us"]
    return found


def _peak(call: Callable[[], Any]) -> int:
    """Bytes that torch's allocator holds at most during a call, weights included."""
    call()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated()


def _forget() -> None:
    torch._dynamo.reset()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def measured(
    configs: Sequence[Config],
    wanted: Sequence[Step],
    candidates: Sequence[steps.Candidate],
    device: torch.device,
    shrink: Callable[[Config, Step], tuple[Config, Step]] | None,
    seconds: float,
    progress: Callable[[str], None],
) -> Iterator[Entry]:
    """An entry for each of `pairs` that a candidate takes."""
    for config, step in pairs(configs, wanted, shrink):
        if not any(each.takes(step) for each in candidates):
            continue
        yield step_entry(
            config,
            step,
            candidates,
            device,
            seconds,
            lambda text, at=f"{config.name} {step.name}": progress(f"{at}: {text}"),
        )


def pairs(
    configs: Sequence[Config],
    wanted: Sequence[Step],
    shrink: Callable[[Config, Step], tuple[Config, Step]] | None,
) -> list[tuple[Config, Step]]:
    """Each model and each of its steps, made small by `shrink`. Raises PortableError where no model has a
    step of those."""
    found = [(config, step) for config in configs for step in wanted if config.takes(step)]
    if not found:
        raise PortableError("none of these models has one of these steps")
    if shrink is None:
        return found
    # steps of one kind are then the same
    small = {(config, step.kind): shrink(config, step) for config, step in reversed(found)}
    return list(small.values())[::-1]

"""Time under sustained load: each candidate runs back to back for a while, in turn, on a GPU that is hot.

A GPU at its power limit lowers its clock by what a kernel costs in energy, so that a lead of single calls on
a cool GPU can be gone. It goes on with the heat and clock of the candidate before: the order of each round is
drawn, the same in every run. Beside the time stand the clock and the power of each candidate's own seconds.
"""

from __future__ import annotations

import contextlib
import math
import random
import shutil
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from portable.runtime import timing

_QUERY = ("clocks.sm", "power.draw")
_EVERY_MS = 50
SECONDS, ROUNDS = 0.6, 7
"""Of a candidate in each round, and rounds."""
_SETTLING = 0.3
"""The first part of a candidate's seconds, in which the meter still shows the one before it."""


@dataclass(frozen=True)
class Sustained:
    """Microseconds per call, one entry per round; the SM clock in MHz and the power in W of those seconds,
    None where no driver tool tells them."""

    name: str
    microseconds: tuple[float, ...]
    sm_mhz: float | None = None
    watts: float | None = None

    @property
    def median(self) -> float:
        return statistics.median(self.microseconds)

    @property
    def joules(self) -> float | None:
        """Energy of one call."""
        return None if self.watts is None else self.watts * self.median * 1e-6


@dataclass
class _Meter:
    """Clock and power as the driver's tool prints them, with the time at which a line was read."""

    lines: list[tuple[float, float, float]] = field(default_factory=list)

    def read(self, stream: Any) -> None:
        for line in stream:
            with contextlib.suppress(ValueError):
                clock, power = (float(part) for part in line.split(","))
                self.lines.append((time.perf_counter(), clock, power))

    def between(self, spans: Sequence[tuple[float, float]]) -> tuple[float | None, float | None]:
        """The mean clock and power within the spans, without their beginnings."""
        kept = [
            (clock, power) for at, clock, power in list(self.lines)
            if any(start + _SETTLING * (stop - start) <= at <= stop for start, stop in spans)
        ]  # fmt: skip
        if not kept:
            return None, None
        return statistics.fmean(clock for clock, _ in kept), statistics.fmean(power for _, power in kept)


@contextlib.contextmanager
def _metered(index: int) -> Iterator[_Meter]:
    meter, tool = _Meter(), shutil.which("nvidia-smi")
    if tool is None:
        yield meter
        return
    command = [tool, f"--query-gpu={','.join(_QUERY)}", "--format=csv,noheader,nounits", f"--id={index}",
               f"--loop-ms={_EVERY_MS}"]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        reader = threading.Thread(target=meter.read, args=(process.stdout,), daemon=True)
        reader.start()
        try:
            yield meter
        finally:
            process.kill()
            reader.join()  # before its stream is closed


def sustained(
    calls: Mapping[str, Callable[[], object]], seconds: float, rounds: int, device: torch.device
) -> dict[str, Sustained]:
    """Time calls that are ready to run: in each round each of them back to back for `seconds`, in an order of
    its own. One round before the first is not counted."""
    repeats = {name: max(1, math.ceil(seconds / max(_once(call), 1e-6))) for name, call in calls.items()}
    times: dict[str, list[float]] = {name: [] for name in calls}
    spans: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    names, drawn = list(calls), random.Random(0)
    with _metered(device.index or 0) as meter:
        for number in range(-1, rounds):
            for name in drawn.sample(names, len(names)):
                begin = time.perf_counter()
                took = _run(calls[name], repeats[name])
                if number >= 0:
                    times[name].append(took)
                    spans[name].append((begin, time.perf_counter()))
        read = {name: meter.between(spans[name]) for name in names}
    return {name: Sustained(name, tuple(times[name]), *read[name]) for name in names}


def interleaved(
    candidates: Mapping[str, tuple[Callable[[Any], object], Sequence[Any]]],
    seconds: float,
    device: torch.device,
    failed: Callable[[str, Exception], None] | None = None,
) -> tuple[dict[str, timing.Sample], dict[str, dict[str, float | None]]]:
    """`timing.interleaved` under sustained load: the samples, and by name the clock, power and energy."""
    ready = {one.name: one for one in timing.prepared(candidates, failed)}
    found = sustained({name: one.run for name, one in ready.items()}, seconds, ROUNDS, device)
    samples, meters = {}, {}
    for name, each in found.items():
        calls = ready[name].calls
        clock = () if each.sm_mhz is None else (round(each.sm_mhz),)
        times = tuple(us / calls for us in each.microseconds)
        samples[name] = timing.Sample(name, times, ready[name].graph, clock)
        joules = None if each.joules is None else each.joules / calls
        meters[name] = {"seconds": seconds, "sm_mhz": each.sm_mhz, "watts": each.watts, "joules": joules}
    return samples, meters


def _run(call: Callable[[], object], repeats: int) -> float:
    """Microseconds per call."""
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(repeats):
        call()
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop) * 1e3 / repeats


def _once(call: Callable[[], object]) -> float:
    """Seconds of a call after a first one."""
    call()
    return _run(call, 2) * 1e-6

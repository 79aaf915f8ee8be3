"""Device time of calls, in one run.

A call is captured into a graph that runs over rotating buffer sets larger than the last-level cache,
so that neither the host nor the cache is measured; where capture fails, events bracket a plain loop.
The candidates are replayed in rotation, so that a drifting clock falls on all of them alike, and what is
compared is the ratio within each round.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

ROUNDS = 25
MIN_ROUND_US = 300.0
"""A round lasts at least this long: an event's resolution is about 0.5 us."""
LONG_ROUND_US = 3000.0
"""A round as long as this needs no call before it that brings clocks and caches to where they will be."""
FEW_ROUNDS, ROTATION_SECONDS = 9, 2.0
"""Fewer rounds, down to FEW_ROUNDS, where all of them would take longer than this."""


@dataclass(frozen=True)
class Sample:
    """Microseconds per call, one entry per round; `graph` is False where events timed a plain loop.

    `sm_mhz` is the device's clock before the first round of all candidates and after the last, as far as the
    driver reports it.
    """

    name: str
    microseconds: tuple[float, ...]
    graph: bool
    sm_mhz: tuple[int, ...] = ()

    @property
    def median(self) -> float:
        return statistics.median(self.microseconds)

    @property
    def clocks(self) -> dict[str, list[int]] | None:
        """`{"sm_mhz": [lowest, highest]}`, or None where the clock is not known."""
        return {"sm_mhz": [min(self.sm_mhz), max(self.sm_mhz)]} if self.sm_mhz else None


def sm_clock() -> int | None:
    """The current device's compute clock in MHz; None where the vendor's management library does not report
    it.

    torch reads it through pynvml or amdsmi, which a machine may lack; amdsmi reports 0 for unknown.
    """
    try:
        return torch.cuda.clock_rate() or None
    except Exception:  # the two libraries raise types of their own, which cannot be named without them
        return None


def set_count(bytes_per_set: int, l2_bytes: int, free_bytes: int) -> int:
    """How many buffer sets to rotate over: three times the cache, at most half the free memory."""
    wanted = max(2, -(-3 * max(l2_bytes, 1) // max(bytes_per_set, 1)))
    return max(1, min(wanted, 64, free_bytes // (2 * max(bytes_per_set, 1))))


class Timed:
    """One candidate made ready: its calls captured or, failing that, a loop of them."""

    def __init__(self, name: str, call: Callable[[Any], object], sets: Sequence[Any]):
        self.name = name
        self._sets = sets
        self._call = call
        for one in sets:
            call(one)
        torch.cuda.synchronize()
        self._repeats = 1
        self._graph: torch.cuda.CUDAGraph | None = None
        self.round_us = 0.0
        self._capture()
        per_repeat = max(self._round(), 1e-3)
        repeats = max(1, min(256 // max(len(sets), 1), int(MIN_ROUND_US // per_repeat)))
        if repeats > 1:
            self._repeats = repeats
            self._capture()
        self.microseconds: list[float] = []

    @property
    def calls(self) -> int:
        """How many calls one `run` makes."""
        return self._repeats * len(self._sets)

    def run(self) -> None:
        """All calls once, captured or in a loop."""
        if self._graph is not None:
            self._graph.replay()
        else:
            self._loop()

    def _loop(self) -> None:
        for _ in range(self._repeats):
            for one in self._sets:
                self._call(one)

    def _capture(self) -> None:
        if self._call is copy:
            return
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                self._loop()
        except Exception:  # whatever a library raises during capture, events still time it
            torch.cuda.synchronize()
            self._graph = None
            return
        self._graph = graph

    def _round(self) -> float:
        """Microseconds of one replay of all calls."""
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        if self.round_us < LONG_ROUND_US:
            self.run()
        torch.cuda.synchronize()
        start.record()
        self.run()
        stop.record()
        torch.cuda.synchronize()
        self.round_us = start.elapsed_time(stop) * 1e3
        return self.round_us

    def run_round(self) -> None:
        self.microseconds.append(self._round() / self.calls)

    @property
    def graph(self) -> bool:
        """Whether the calls were captured."""
        return self._graph is not None

    def sample(self, sm_mhz: tuple[int, ...] = ()) -> Sample:
        return Sample(self.name, tuple(self.microseconds), self.graph, sm_mhz)


def interleaved(
    candidates: Mapping[str, tuple[Callable[[Any], object], Sequence[Any]]],
    rounds: int = ROUNDS,
    failed: Callable[[str, Exception], None] | None = None,
) -> dict[str, Sample]:
    """Time every candidate, a (call, buffer sets) each, interleaved round by round: `call` takes one set.

    A candidate that raises while it is prepared is passed to `failed` and left out; without `failed` the
    exception goes on.
    """
    return rotate(prepared(candidates, failed), rounds)


def prepared(
    candidates: Mapping[str, tuple[Callable[[Any], object], Sequence[Any]]],
    failed: Callable[[str, Exception], None] | None = None,
) -> list[Timed]:
    """The candidates of `interleaved`, ready to be timed."""
    timed = []
    for name, (call, sets) in candidates.items():
        try:
            timed.append(Timed(name, call, sets))
        except Exception as error:
            if failed is None:
                raise
            failed(name, error)
    return timed


def rotate(timed: Sequence[Timed], rounds: int = ROUNDS) -> dict[str, Sample]:
    """Time prepared candidates, interleaved round by round."""
    whole = sum(one.round_us * (1 if one.round_us >= LONG_ROUND_US else 2) for one in timed)
    rounds = min(rounds, max(FEW_ROUNDS, int(ROTATION_SECONDS * 1e6 / max(whole, 1.0))))
    clocks = [sm_clock()]
    for one in timed:
        one.microseconds = []
    for number in range(rounds):
        for offset in range(len(timed)):
            timed[(number + offset) % len(timed)].run_round()
    clocks.append(sm_clock())
    known = tuple(mhz for mhz in clocks if mhz is not None)
    return {one.name: one.sample(known) for one in timed}


# A captured copy becomes a node of its own kind, which on an H200 moves 2.7 TB/s where the same copy
# outside a graph moves 4.1 (measured 2026-11-21, 1 GiB each way): `Timed` never captures this one.
def copy(pair: tuple[torch.Tensor, torch.Tensor]) -> object:
    """The second tensor becomes the first: the least that an op of one pass can cost."""
    return pair[1].copy_(pair[0])

"""Device time of calls, in one run.

A call is captured into a graph that walks over rotating buffer sets larger than the last-level cache,
so that neither the host nor the cache is measured; where capture fails, events bracket a plain loop.
The candidates are replayed in turn, so that a drifting clock falls on all of them alike, and what is
compared is the ratio within each turn.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

TURNS = 25
MIN_TURN_US = 300.0
"""A turn lasts at least this long: an event's resolution is about 0.5 us."""
LONG_TURN_US = 3000.0
"""A turn as long as this needs no call before it that brings clocks and caches to where they will be."""
FEW_TURNS, ROTATION_SECONDS = 9, 2.0
"""Turns are left out, down to a few, where all candidates' turns would take longer than this."""


@dataclass(frozen=True)
class Sample:
    """Microseconds per call, one entry per turn; `graph` is False where events timed a plain loop.

    `sm_mhz` is the device's clock before the first turn of all candidates and after the last, as far as the
    driver tells it.
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
        """`{"sm_mhz": [lowest, highest]}`, or None where nothing tells the clock."""
        return {"sm_mhz": [min(self.sm_mhz), max(self.sm_mhz)]} if self.sm_mhz else None


def sm_clock() -> int | None:
    """The current device's compute clock in MHz; None where the vendor's management library does not tell it.

    torch reads it through pynvml or amdsmi, which a machine may lack; 0 is amdsmi's word for unknown.
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
        self._rounds = 1
        self._graph: torch.cuda.CUDAGraph | None = None
        self.turn_us = 0.0
        self._capture()
        per_round = max(self._turn(), 1e-3)
        rounds = max(1, min(256 // max(len(sets), 1), int(MIN_TURN_US // per_round)))
        if rounds > 1:
            self._rounds = rounds
            self._capture()
        self.microseconds: list[float] = []

    def _loop(self) -> None:
        for _ in range(self._rounds):
            for one in self._sets:
                self._call(one)

    def _capture(self) -> None:
        if self._call is copy:
            return
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                self._loop()
        except Exception:  # whatever a library raises when it meets a capture, events still time it
            torch.cuda.synchronize()
            self._graph = None
            return
        self._graph = graph

    def _turn(self) -> float:
        """Microseconds of one replay of all calls."""
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        run = self._graph.replay if self._graph is not None else self._loop
        if self.turn_us < LONG_TURN_US:
            run()
        torch.cuda.synchronize()
        start.record()
        run()
        stop.record()
        torch.cuda.synchronize()
        self.turn_us = start.elapsed_time(stop) * 1e3
        return self.turn_us

    def turn(self) -> None:
        self.microseconds.append(self._turn() / (self._rounds * len(self._sets)))

    def sample(self, sm_mhz: tuple[int, ...] = ()) -> Sample:
        return Sample(self.name, tuple(self.microseconds), self._graph is not None, sm_mhz)


def interleaved(
    candidates: Mapping[str, tuple[Callable[[Any], object], Sequence[Any]]],
    turns: int = TURNS,
    failed: Callable[[str, Exception], None] | None = None,
) -> dict[str, Sample]:
    """Time every candidate, a (call, buffer sets) each, one turn in rotation: `call` takes one set.

    A candidate that raises while it is made ready is told to `failed` and left out; without `failed` the
    exception goes on.
    """
    timed = []
    for name, (call, sets) in candidates.items():
        try:
            timed.append(Timed(name, call, sets))
        except Exception as error:
            if failed is None:
                raise
            failed(name, error)
    return rotate(timed, turns)


def rotate(timed: Sequence[Timed], turns: int = TURNS) -> dict[str, Sample]:
    """Time what was made ready, one turn in rotation."""
    whole = sum(one.turn_us * (1 if one.turn_us >= LONG_TURN_US else 2) for one in timed)
    turns = min(turns, max(FEW_TURNS, int(ROTATION_SECONDS * 1e6 / max(whole, 1.0))))
    clocks = [sm_clock()]
    for one in timed:
        one.microseconds = []
    for number in range(turns):
        for offset in range(len(timed)):
            timed[(number + offset) % len(timed)].turn()
    clocks.append(sm_clock())
    known = tuple(mhz for mhz in clocks if mhz is not None)
    return {one.name: one.sample(known) for one in timed}


# A captured copy becomes a node of its own kind, which on an H200 moves 2.7 TB/s where the same copy
# outside a graph moves 4.1 (measured 2026-11-21, 1 GiB each way): `Timed` never captures this one.
def copy(pair: tuple[torch.Tensor, torch.Tensor]) -> object:
    """The second tensor becomes the first: the least that an op of one pass can cost."""
    return pair[1].copy_(pair[0])

"""Modelled times of launches on an AMD GPU: sampled workgroups, replayed on a compute unit (native/timing.c).

A few workgroups of the grid are executed and recorded. The replay gives how long each takes beside others of
its kind on a compute unit; the grid is then dealt out to all of them. Nothing is measured.
"""

from __future__ import annotations

import bisect
import ctypes
import functools
import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from portable.backend import Modelled
from portable.backends.rocm import pipe_model
from portable.backends.rocm.emulator import abi, bound, counters
from portable.backends.rocm.emulator.bound import NO_CO_ISSUE, formats
from portable.backends.rocm.emulator.code_object import CodeObject, Kernel
from portable.backends.rocm.emulator.faults import EmulatorError
from portable.backends.rocm.emulator.launch import KernelLaunch, Recorded, linked_program, record
from portable.backends.rocm.emulator.native_build import Op, library
from portable.backends.rocm.pipe_model import PipeModel

SAMPLES = 4
"""Workgroups of a launch that are recorded."""

_ROUNDS = 2  # the replayed compute unit runs so many times the workgroups that it holds at once
LAUNCH_SECONDS = 1e-6
"""From the end of the kernel before in the stream to the first workgroup's start."""

# Cycles, of no public source; a kernel's main loop hardly depends on them.
_MEMORY_QUEUE = 12
_OWN_L2_BYTES = 64  # in a cycle, of one compute unit and L2
_SCALAR_LATENCY = 200
_BARRIER = 4
_GROUP_START, _WAVE_START = 500, 16
_RDNA_VECTOR_LATENCY, _RDNA_TRANSCENDENTAL_LATENCY = 5, 10  # llvm, GFX11SpeedModel
_KINDS = {name: index for index, name in enumerate(abi.TIMED)}


@dataclass(frozen=True)
class _Replay:
    """Of `groups` copies of one workgroup: cycles, busy cycles of all SIMDs' pipes, bytes asked of L2, and
    shares of the waves' time."""

    groups: int
    cycles: float
    matrix: float
    vector: float
    bytes: float
    waves: dict[str, float]


def model(launch: KernelLaunch, samples: int = SAMPLES) -> Modelled:
    """The modelled time of a launch. Runs the sampled workgroups alone: the output of the others stays as it
    was. Raises KernelFault, EmulatorError."""
    kernel = launch.kernel
    pipes = pipe_model.models()[kernel.code.arch]
    picked = _spread(launch.workgroups, samples)
    recorded = [record(launch, group=group, cache_lines=pipes.timing.l1_lines) for group in picked]
    grid = _Grid(launch, _Unit.of(pipes, kernel), dict(zip(picked, recorded, strict=True)))
    load = grid.load(pipes.peak_ghz, 1.0)
    for _ in range(2):  # the clock follows the load, and the memory's latency in cycles follows the clock
        load = grid.load(load.ghz(pipes), load.fresh)
    ghz = load.ghz(pipes)
    return Modelled(
        kernel.name,
        launch.grid,
        load.cycles / ghz / 1e9 + LAUNCH_SECONDS,
        load.cycles,
        ghz,
        load.matrix,
        load.vector,
        launch.workgroups,
        len(picked),
        grid.resident,
        load.waves,
        _bound(launch, recorded),
        counters.resources_of(kernel, launch.shared, launch.threads),
        pipes.timing.accuracy,
    )


@dataclass(frozen=True)
class _Load:
    """Of a grid at some clock: cycles; shares of them in which the pipes are busy; of the bytes asked of L2
    the share that comes from memory; shares of the waves' time."""

    cycles: float
    matrix: float
    vector: float
    fresh: float
    waves: dict[str, float]

    def ghz(self, pipes: PipeModel) -> float:
        """The clock under this load."""
        return pipes.ghz(self.matrix, self.vector)


@dataclass(frozen=True)
class _Grid:
    """A launch on all units of a GPU; its recorded workgroups by number."""

    launch: KernelLaunch
    unit: _Unit
    recorded: dict[int, Recorded]

    @property
    def resident(self) -> int:
        """Workgroups that a unit holds at once."""
        launch, count = self.launch, self.unit.count
        held = launch.kernel.workgroups(launch.shared, launch.threads)
        return max(1, min(held, -(-launch.workgroups // count)))

    @property
    def moved(self) -> int:
        """Bytes that must come from memory or go there: the operands, or less where all workgroups access
        less of them."""
        return _moved(self.launch, self.recorded.values())

    def load(self, ghz: float, fresh: float) -> _Load:
        """The grid at a clock of `ghz`, where the share `fresh` of the loads' bytes comes from memory."""
        unit, pipes, resident = self.unit, self.unit.pipes, self.resident
        workgroups, operands = self.launch.workgroups, self.moved
        rounds = min(_ROUNDS, -(-workgroups // (unit.count * resident)))
        busy = min(unit.count, -(-workgroups // resident))
        latency = pipes.timing.l2_latency + fresh * pipes.timing.memory_ns * ghz
        replays = [
            unit.replay(self.launch.kernel, each, resident, resident * rounds, busy, latency)
            for each in self.recorded.values()
        ]
        time = _between(list(self.recorded), [each.cycles / rounds for each in replays])
        cycles = max(
            _deal(workgroups, unit.count * resident, pipes.timing.xcds, time),
            operands / pipes.memory_bytes_per_s * ghz * 1e9,
        )
        per_cycle = workgroups / (len(replays) * cycles * unit.count * unit.simds)
        asked = sum(each.bytes / each.groups for each in replays) / len(replays) * workgroups
        return _Load(
            cycles,
            sum(each.matrix / each.groups for each in replays) * per_cycle,
            sum(each.vector / each.groups for each in replays) * per_cycle,
            min(1.0, operands / asked) if asked else 0.0,
            {name: sum(each.waves[name] for each in replays) / len(replays) for name in replays[0].waves},
        )


def _moved(launch: KernelLaunch, recorded: Iterable[Recorded]) -> int:
    most = max(bound.accessed(each.memory) for each in recorded) * launch.workgroups
    return min(launch.operand_bytes, most)


def _bound(launch: KernelLaunch, recorded: Sequence[Recorded]) -> float:
    """The bound of the grid, from the counts of the recorded workgroups."""
    kernel = launch.kernel
    scale = launch.workgroups / len(recorded)
    linked = linked_program(kernel.code)
    executed = [
        round(scale * sum(counts)) for counts in zip(*(each.executed for each in recorded), strict=True)
    ]
    memory = [
        _scaled(counts, scale) if times else counts[0]
        for times, counts in zip(executed, zip(*(each.memory for each in recorded), strict=True), strict=True)
    ]
    launched = bound.Launched(
        linked.program,
        executed,
        memory,
        kernel.wave,
        kernel.occupancy(launch.shared, launch.threads),
        _moved(launch, recorded),
        lambda index: None,
    )
    return bound.bound(pipe_model.models()[kernel.code.arch], launched).share


def _scaled(counts: Sequence[abi.MemCount], scale: float) -> abi.MemCount:
    made = abi.MemCount()
    for name in abi.MEM_COUNTS:
        setattr(made, name, round(scale * sum(getattr(each, name) for each in counts)))
    for way in range(len(abi.LDS_ACCESSES)):
        for name in abi.LDS_COUNTS:
            setattr(made.lds[way], name, round(scale * sum(getattr(each.lds[way], name) for each in counts)))
    return made


def _spread(count: int, samples: int) -> list[int]:
    """Numbers spread over range(count), first and last among them."""
    if count <= samples:
        return list(range(count))
    return sorted({round(index * (count - 1) / (samples - 1)) for index in range(samples)})


def _between(picked: Sequence[int], times: Sequence[float]) -> Callable[[int], float]:
    """The time of a workgroup by number, from those of the recorded ones before and after it."""

    def time(group: int) -> float:
        after = bisect.bisect_left(picked, group)
        if picked[after] == group:
            return times[after]
        low, high = picked[after - 1], picked[after]
        return times[after - 1] + (times[after] - times[after - 1]) * (group - low) / (high - low)

    return time


def _deal(workgroups: int, slots: int, xcds: int, time: Callable[[int], float]) -> float:
    """When the last workgroup ends: they go to the XCDs in turn, and there to the slot that is free first."""
    last = 0.0
    for xcd in range(xcds):
        free = [0.0] * max(1, slots // xcds)
        for group in range(xcd, workgroups, xcds):
            ends = heapq.heappop(free) + time(group)
            heapq.heappush(free, ends)
            last = max(last, ends)
    return last


@dataclass(frozen=True)
class _Unit:
    """What runs a workgroup: a compute unit, or two of RDNA's as a WGP, whose LDS and caches are `sides`
    times those of one."""

    pipes: PipeModel
    count: int
    simds: int
    sides: int

    @staticmethod
    def of(pipes: PipeModel, kernel: Kernel) -> _Unit:
        sides = 2 if kernel.wgp_mode else 1
        return _Unit(pipes, pipes.compute_units // sides, pipes.simds * sides, sides)

    def l2_share(self, bytes_per_cycle: float, busy: int) -> float:
        """Of an XCD's L2 bandwidth, given as a compute unit's share of it while all ask, that of each while
        `busy` of the GPU's units do."""
        xcds = self.pipes.timing.xcds
        asking = min(self.count // xcds, -(-busy // xcds))
        share = bytes_per_cycle * (self.count // xcds) / max(1, asking)
        return self.sides * min(_OWN_L2_BYTES, share)

    def replay(
        self, kernel: Kernel, recorded: Recorded, resident: int, count: int, busy: int, latency: float
    ) -> _Replay:
        """`count` copies of a recorded workgroup, `resident` of them at a time, while `busy` units run such;
        `latency` in cycles of a load that misses the first-level cache."""
        pipes, t, sides = self.pipes, self.pipes.timing, self.sides
        rdna = pipes.co_issue == 0
        linked = linked_program(kernel.code)
        timing = abi.Timing(
            program=linked.insts.address,
            cost=_costs(kernel.code),
            groups=(ctypes.c_void_p * count)(*[recorded.stream] * count),
            arch=abi.ARCHES.index(pipes.arch),
            instructions=linked.program.count,
            group_count=count,
            resident=resident,
            simds=self.simds,
            lds_queue=t.lds_queue,
            memory_queue=_MEMORY_QUEUE * sides,
            matrix_blocks_vector=int(rdna),
            lds_scale=1 / sides,
            lds_latency=t.lds_latency,
            line_cycles=t.l1_line_cycles / sides,
            l1_latency=t.l1_latency,
            l2_latency=latency,
            store_latency=t.l2_latency,
            scalar_latency=_SCALAR_LATENCY,
            l2_bytes=self.l2_share(t.l2_bytes, busy),
            store_bytes=self.l2_share(pipes.l2_store_bytes, busy),
            in_flight_bytes=t.in_flight_bytes * sides,
            barrier=_BARRIER,
            group_start=_GROUP_START,
            wave_start=_WAVE_START,
            vector_latency=_RDNA_VECTOR_LATENCY if rdna else 0,
            transcendental_latency=_RDNA_TRANSCENDENTAL_LATENCY if rdna else 0,
        )
        status = library().handle.emulator_time(ctypes.byref(timing))
        if status == 1:
            raise MemoryError("the replayed workgroups do not fit into memory")
        if status:
            raise EmulatorError(
                f"{kernel.name}: {count} workgroups of it do not run on {pipes.model}'s model"
            )
        total = timing.wave_cycles or 1.0
        waves = {"issue": timing.issue_cycles / total}
        waves |= {name: cycles / total for name, cycles in zip(abi.STALLS, timing.stall, strict=True)}
        return _Replay(
            count, timing.cycles, timing.matrix_cycles, timing.vector_cycles, timing.loaded_bytes, waves
        )


@functools.lru_cache(maxsize=128)
def _costs(code: CodeObject) -> bytes:
    """abi.COST of every instruction of a program."""
    pipes = pipe_model.models()[code.arch]
    program = linked_program(code).program
    made = bytearray()
    for index, op in enumerate(program.ops):
        second_half = index and program.addresses[index] == program.addresses[index - 1]  # of a dual issue
        cost = _FREE if op is None or second_half else _cost(pipes, op, formats(program, index, op.name))
        made += abi.COST.pack(_KINDS[cost.kind], cost.transcendental, cost.stores, cost.cycles, cost.issue)
    return bytes(made)


class _Cost(NamedTuple):
    """What an instruction takes: `issue` cycles until its wave's next one, `cycles` of a pipe."""

    kind: str
    cycles: int = 0
    issue: int = 1
    transcendental: bool = False
    stores: bool = False


_FREE = _Cost("free", issue=0)
_BARRIERS = {"s_barrier": "barrier", "s_barrier_signal": "signal"}


def _cost(pipes: PipeModel, op: Op, of: tuple[int, int]) -> _Cost:
    """The cost of an instruction whose f8f6f4 formats are `of`."""
    step = 4 if pipes.co_issue else 1  # cycles between two instructions of a wave
    match abi.CLASSES[op.cls]:
        case "matrix":
            issue = round(32 * (1 - pipes.co_issue)) if pipes.co_issue else step
            return _Cost("matrix", round(pipes.matrix(op.name, op.work, of)[0]), issue)
        case "vector":
            kind = "both" if pipes.co_issue and op.name in NO_CO_ISSUE else "vector"
            return _Cost(kind, round(pipes.vector_cycles), step)
        case "transcendental":
            return _Cost("vector", round(pipes.transcendental_cycles), step, transcendental=True)
        case "LDS":
            return _Cost("LDS", issue=step)
        case "global memory" | "scratch":
            return _Cost("memory", _address_cycles(op.name), step, stores="store" in op.name)
        case "scalar memory":
            return _Cost("scalar load", issue=step)
        case "barrier":
            return _Cost(_BARRIERS.get(op.name, "barrier wait"))
        case "wait" if op.name == "s_nop":
            return _Cost("nop", issue=step)
        case "wait" if op.name == "s_delay_alu":
            return _Cost("delay")
        case "wait" if op.name.startswith("s_wait"):
            return _Cost("wait")
        case "scalar" | "branch":
            return _Cost("free", issue=step)
    return _Cost("priority" if op.name == "s_setprio" else "free")


def _address_cycles(name: str) -> int:
    """Cycles of the address unit: 16 bytes of a lane take four times those of 4."""
    if "x4" in name or "b128" in name:
        return 16
    return 8 if "x2" in name or "b64" in name else 4

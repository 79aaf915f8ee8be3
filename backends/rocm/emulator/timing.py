"""Modelled times of launches on an AMD GPU: sampled workgroups, replayed on a compute unit (native/timing.c).

A few workgroups of the grid are executed and recorded. The replay gives how long each takes beside others of
its kind on a compute unit; the grid is then dealt out to all of them. Nothing is measured.
"""

from __future__ import annotations

import bisect
import ctypes
import functools
import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from portable.backend import Modelled
from portable.backends.rocm import pipe_model
from portable.backends.rocm.emulator import abi, bound, counters
from portable.backends.rocm.emulator.bound import _NO_CO_ISSUE, _formats
from portable.backends.rocm.emulator.code_object import Kernel
from portable.backends.rocm.emulator.faults import EmulatorError
from portable.backends.rocm.emulator.launch import Buffer, Recorded, linked_program, record
from portable.backends.rocm.emulator.native_build import library
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


def model(
    kernel: Kernel,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    shared: int,
    kernarg: bytes,
    buffers: Sequence[Buffer],
    samples: int = SAMPLES,
) -> Modelled:
    """The modelled time of a launch; arguments as `launch.launch`. Runs the sampled workgroups alone: the
    output of the others stays as it was. Raises KernelFault, EmulatorError."""
    pipes = pipe_model.models()[kernel.code.arch]
    workgroups = grid[0] * grid[1] * grid[2]
    threads = block[0] * block[1] * block[2]
    unit = _Unit.of(pipes, kernel)
    resident = max(1, min(kernel.workgroups(shared, threads), -(-workgroups // unit.count)))
    rounds = min(_ROUNDS, -(-workgroups // (unit.count * resident)))
    busy = min(unit.count, -(-workgroups // resident))
    picked = _spread(workgroups, samples)
    recorded = [
        record(kernel, grid, block, shared, kernarg, buffers, group=group, cache_lines=pipes.timing.l1_lines)
        for group in picked
    ]
    once = sum({each.address: each.nbytes for each in buffers}.values())
    share = _bound(kernel, recorded, workgroups, once, kernel.occupancy(shared, threads))
    taken = counters.resources_of(kernel, shared, threads)
    ghz, fresh, modelled = pipes.peak_ghz, 1.0, None
    for _ in range(3):  # the clock follows the load, and the memory's latency in cycles follows the clock
        latency = pipes.timing.l2_latency + fresh * pipes.timing.memory_ns * ghz
        replays = [unit.replay(kernel, each, resident, resident * rounds, busy, latency) for each in recorded]
        cycles = _deal(
            workgroups,
            unit.count * resident,
            pipes.timing.xcds,
            _between(picked, [each.cycles / rounds for each in replays]),
        )
        cycles = max(cycles, once / pipes.memory_bytes_per_s * ghz * 1e9)
        per_cycle = workgroups / (len(replays) * cycles * unit.count * unit.simds)
        matrix = sum(each.matrix / each.groups for each in replays) * per_cycle
        vector = sum(each.vector / each.groups for each in replays) * per_cycle
        asked = sum(each.bytes / each.groups for each in replays) / len(replays) * workgroups
        fresh = min(1.0, once / asked) if asked else 0.0
        waves = {name: sum(each.waves[name] for each in replays) / len(replays) for name in replays[0].waves}
        ghz = _clock(pipes, matrix, vector)
        seconds = cycles / ghz / 1e9 + LAUNCH_SECONDS
        modelled = Modelled(
            kernel.name, grid, seconds, cycles, ghz, matrix, vector,
            workgroups, len(picked), resident, waves, share, taken, pipes.timing.accuracy,
        )  # fmt: skip
    assert modelled is not None
    return modelled


def _bound(
    kernel: Kernel, recorded: Sequence[Recorded], workgroups: int, operand_bytes: int, occupancy: int
) -> float:
    """The bound of the grid, from the counts of the recorded workgroups."""
    scale = workgroups / len(recorded)
    linked = linked_program(kernel.code)
    executed = [
        round(scale * sum(counts)) for counts in zip(*(each.executed for each in recorded), strict=True)
    ]
    memory = [
        _scaled(counts, scale) if times else counts[0]
        for times, counts in zip(executed, zip(*(each.memory for each in recorded), strict=True), strict=True)
    ]
    launched = bound.Launched(
        linked.program, executed, memory, kernel.wave, occupancy, operand_bytes, lambda index: None
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


def _clock(pipes: PipeModel, matrix: float, vector: float) -> float:
    """GHz under load: the power that a cycle takes grows with what its pipes do."""
    t = pipes.timing
    return 1 / (1 / pipes.peak_ghz + t.matrix_power * matrix + t.vector_power * vector)


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
            cost=_costs(kernel.code, pipes.arch),
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
def _costs(code: object, arch: str) -> bytes:
    """abi.COST of every instruction of a program."""
    pipes = pipe_model.models()[arch]
    program = linked_program(code).program  # type: ignore[arg-type]
    step = 1 if pipes.co_issue == 0 else 4  # cycles between two instructions of a wave
    made = bytearray()
    for index, op in enumerate(program.ops):
        kind, transcendental, stores, cycles, issue = "free", 0, 0, 0, 1
        if op is None or (index and program.addresses[index] == program.addresses[index - 1]):
            made += abi.COST.pack(_KINDS[kind], 0, 0, 0, 0)
            continue
        cls = abi.CLASSES[op.cls]
        if cls == "matrix":
            kind = "matrix"
            cycles = round(pipes.matrix(op.name, op.work, _formats(program, index, op.name))[0])
            issue = round(32 * (1 - pipes.co_issue)) if pipes.co_issue else step
        elif cls in ("vector", "transcendental"):
            issue = step
            kind = "both" if pipes.co_issue and op.name in _NO_CO_ISSUE else "vector"
            transcendental = int(cls == "transcendental")
            cycles = round(pipes.transcendental_cycles if transcendental else pipes.vector_cycles)
        elif cls == "LDS":
            kind, issue = "LDS", step
        elif cls in ("global memory", "scratch"):
            kind, stores, issue = "memory", int("store" in op.name), step
            cycles = (
                16
                if "x4" in op.name or "b128" in op.name
                else 8
                if "x2" in op.name or "b64" in op.name
                else 4
            )
        elif cls == "scalar memory":
            kind, issue = "scalar load", step
        elif cls == "barrier":
            kind = {"s_barrier": "barrier", "s_barrier_signal": "signal"}.get(op.name, "barrier wait")
        elif cls == "wait":
            kind = {"s_nop": "nop", "s_delay_alu": "delay"}.get(
                op.name, "wait" if op.name.startswith("s_wait") else "free"
            )
            if kind == "nop":
                issue = step
        elif cls in ("scalar", "branch"):
            issue = step
        elif op.name == "s_setprio":
            kind = "priority"
        made += abi.COST.pack(_KINDS[kind], transcendental, stores, cycles, issue)
    return bytes(made)

"""How busy a launch keeps each pipe of the GPU, and the bound that follows.

The bound is the highest share of the matrix or memory roof that these instructions could reach if every pipe
but the busiest were hidden behind it. It is not a time: no latency, wait, cache miss or tail of a grid is in
it (docs/trace.md).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from portable.backend import Bound, Pipe
from portable.backends.rocm.emulator import abi
from portable.backends.rocm.emulator.translate import Program
from portable.backends.rocm.pipe_model import PipeModel

_LINE, _SECTOR = 128, 64  # bytes
NO_CO_ISSUE = {"v_pk_fma_f32", "v_pk_mul_f32", "v_pk_add_f32"}
"""Vector instructions that wait for the matrix pipe on CDNA."""

Busy: TypeAlias = dict[int, float]
"""Cycles of one pipe, summed over the compute units, by index of the instruction."""


@dataclass(frozen=True)
class Launched:
    """What the bound needs to know of a launch: executions and memory counters by instruction, lanes of a
    wave, waves that a SIMD holds, bytes of the operands (each once, but no more than `accessed`)."""

    program: Program
    executed: list[int]
    memory: list[abi.MemCount]
    wave: int
    waves_per_simd: int
    operand_bytes: int
    source: Callable[[int], str | None]


def accessed(memory: Iterable[abi.MemCount]) -> int:
    """The bytes of the sectors that instructions access: of a table that rows are picked from, those rows."""
    return _SECTOR * sum(each.sectors for each in memory)


def bound(model: PipeModel, launched: Launched) -> Bound:
    """The pipes of a launch, the busiest first, and what they allow."""
    pipes, matrix_roof = _instructions(model, launched)
    matrix, vector = sum(pipes["matrix"].values()), sum(pipes["vector"].values())
    if matrix and (model.co_issue == 0 or launched.waves_per_simd < 2):
        # One wave to a SIMD fills only its own matrix instructions' shadow; RDNA's WMMA leaves none.
        exposed = vector - model.co_issue * matrix
        if exposed > 0:
            share = exposed / vector
            part = {index: share * cycles for index, cycles in pipes["vector"].items()}
            pipes["matrix and vector, one after the other"] = {**pipes["matrix"], **part}
    seconds = launched.operand_bytes / model.memory_bytes_per_s
    # At a lower clock the other pipes take more of the memory's time: the bound is lower.
    memory_roof = seconds * model.peak_ghz * 1e9 * model.compute_units
    found = [
        Pipe(name, round(sum(busy.values())), _lines(busy, launched.source))
        for name, busy in pipes.items()
        if busy
    ]
    found.append(Pipe("memory", round(memory_roof), []))
    found.sort(key=lambda pipe: -pipe.cycles)
    of, cycles = ("matrix", matrix_roof) if matrix_roof > memory_roof else ("memory", memory_roof)
    busiest = found[0].cycles
    return Bound(of, round(cycles), min(1.0, cycles / busiest) if busiest else 1.0, found)


def _instructions(model: PipeModel, launched: Launched) -> tuple[dict[str, Busy], float]:
    """Cycles by pipe, and those of the matrix work at its types' peak rates."""
    pipes: dict[str, Busy] = {
        name: defaultdict(float) for name in ("matrix", "vector", "scalar", "LDS", "L1", "L2 stores")
    }
    roof = 0.0
    program = launched.program
    narrower = launched.wave / model.wave
    for index, op in enumerate(program.ops):
        count = launched.executed[index]
        if op is None or not count:
            continue
        kind = abi.CLASSES[op.cls]
        if kind == "matrix":
            cycles, best = model.matrix(op.name, op.work, formats(program, index, op.name))
            pipes["matrix"][index] += count * cycles / model.simds
            roof += count * best / model.simds
        elif kind in ("vector", "transcendental"):
            if index and program.addresses[index] == program.addresses[index - 1]:
                continue  # the second half of a dual-issue instruction
            cycles = model.vector_cycles if kind == "vector" else model.transcendental_cycles
            blocks = kind == "vector" and model.co_issue and op.name in NO_CO_ISSUE
            name = "matrix" if blocks else "vector"
            pipes[name][index] += count * cycles * narrower / model.simds
        elif kind == "scalar":
            pipes["scalar"][index] += count
        memory = launched.memory[index]
        if lds := sum(each.cycles for each in memory.lds):
            pipes["LDS"][index] += lds
        if kind == "global memory":
            pipes["L1"][index] += memory.cache_lines * _LINE / model.l1_bytes
            if "store" in op.name:  # loads may hit L1, and then cost L2 nothing
                pipes["L2 stores"][index] += memory.sectors * _SECTOR / model.l2_store_bytes
    return pipes, roof


def formats(program: Program, index: int, name: str) -> tuple[int, int]:
    """The formats of the two operands of an f8f6f4 instruction."""
    if not name.endswith("f8f6f4"):
        return 0, 0
    inst = program.instruction(index)
    return (0, 0) if inst is None else (inst.fields.get("cbsz", 0), inst.fields.get("blgp", 0))


def _lines(busy: Busy, source: Callable[[int], str | None]) -> list[tuple[str, int]]:
    """(source line, cycles), the busiest first."""
    found: Counter[str] = Counter()
    for index, cycles in busy.items():
        found[source(index) or "(no line)"] += round(cycles)
    return found.most_common()

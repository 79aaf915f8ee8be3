"""The pipe model: how many cycles an AMD GPU's pipes are busy with an instruction (pipe_model.yaml).

A model of throughput alone: no latencies, no waits, no cache misses. What it gives is a bound, not a time.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from portable.spec import strict_yaml

_FILE = Path(__file__).resolve().with_suffix(".yaml")
_MATRIX = re.compile(r"v_(?:mfma|smfmac|wmma)_(?:scale_)?\w+?_(\d+)x(\d+)x(\d+)_?(?:\d+b_)?([a-z]+\d+)")
_DTYPES = {"bfloat16": "bf16", "float16": "f16"}  # whose power under load was fitted
_FP8_FORMATS = (0, 1)  # cbsz and blgp of f8f6f4: e4m3, e5m2; 2 to 4 are fp6 and fp4, at twice the rate


@dataclass(frozen=True)
class TimingModel:
    """What the model of times adds: latencies in cycles (`memory_ns` in nanoseconds), queues, caches of a
    compute unit, and the clock under load (emulator/timing.py). `accuracy` is a sentence for people."""

    xcds: int
    lds_latency: float
    lds_queue: int
    l1_lines: int
    l1_latency: float
    l1_line_cycles: float
    in_flight_bytes: float
    l2_bytes: float
    l2_latency: float
    memory_ns: float
    matrix_power: float
    vector_power: float
    accuracy: str


@dataclass(frozen=True)
class PipeModel:
    """One architecture. Cycles are a SIMD's for one wave instruction; `vector_cycles` of a wave of the native
    size. `flops_per_cycle`, `l1_bytes` and `l2_store_bytes` are a compute unit's in a cycle. `co_issue` is
    the share of a matrix instruction's cycles in which its own wave can issue vector instructions; 0 where it
    blocks them for all waves of its SIMD."""

    arch: str
    model: str
    compute_units: int
    simds: int
    wave: int
    peak_ghz: float
    vector_cycles: float
    transcendental_cycles: float
    co_issue: float
    flops_per_cycle: Mapping[str, float]
    slower: Mapping[str, float]
    l1_bytes: float
    l2_store_bytes: float
    memory_bytes_per_s: float
    timing: TimingModel

    def ghz(self, matrix: float, vector: float) -> float:
        """The clock while the pipes are busy in these shares of the cycles: a cycle's power grows with what
        they do."""
        t = self.timing
        return 1 / (1 / self.peak_ghz + t.matrix_power * matrix + t.vector_power * vector)

    def roof(self) -> dict[str, float]:
        """Rates per second, named as in a record: of the memory, and of the matrix pipe when always busy, at
        the clock that it then has. float32 has none: by the model a product on the vector pipe, at a higher
        clock, goes beyond the matrix pipe's rate (1.05 of it at 8192 x 8192 x 8192 on gfx942, 2026-11-23)."""
        cycles = self.compute_units * self.ghz(1.0, 0.0) * 1e9
        matrix = {
            f"matmul_{dtype}_flop_per_s": self.flops_per_cycle[name] * cycles
            for dtype, name in _DTYPES.items()
            if name in self.flops_per_cycle
        }
        return {"copy_bytes_per_s": self.memory_bytes_per_s} | matrix

    def matrix(self, name: str, flops: int, formats: tuple[int, int] = (0, 0)) -> tuple[float, float]:
        """(cycles, cycles at the peak rate of its type) of a matrix instruction on its SIMD: a sparse one
        does the dense product's operations in half of its cycles. `formats` are f8f6f4's of the two operands.
        ValueError for one that the model does not know."""
        found = _MATRIX.match(name)
        if found is None:
            raise ValueError(f"{name} is no matrix instruction of the pipe model")
        type_name = found[4]
        if type_name == "f8":  # f8f6f4: at the rate of the wider operand
            type_name = "fp8" if any(each in _FP8_FORMATS for each in formats) else "fp4"
        peak = self.flops_per_cycle.get(type_name)
        if peak is None:
            raise ValueError(f"the pipe model of {self.arch} has no rate for {type_name} ({name})")
        best = flops * self.simds / peak / (2 if name.startswith("v_smfmac_") else 1)
        share = next((value for pattern, value in self.slower.items() if re.search(pattern, name)), 1.0)
        return best / share, best


@functools.cache
def models() -> dict[str, PipeModel]:
    """The models by architecture. SpecError where the file is not what it should be."""
    from portable.backends.rocm.backend import TARGETS

    data = strict_yaml.load(_FILE)
    targets = {target.arch: target for target in TARGETS}
    return {
        arch: _model(arch, entry, targets[arch].multiprocessors, targets[arch].warp_size)
        for arch, entry in data.items()
        if arch != "schema_version"
    }


def _model(arch: str, entry: Any, compute_units: int, wave: int) -> PipeModel:
    vector, matrix = entry["vector"], entry["matrix"]
    return PipeModel(
        arch,
        entry["model"],
        compute_units,
        4 if arch.startswith("gfx9") else 2,
        wave,
        entry["peak_ghz"],
        vector["cycles"],
        vector["transcendental"],
        matrix["co_issue"],
        matrix["flops_per_cycle"],
        matrix.get("slower", {}),
        entry["l1"]["bytes_per_cycle"],
        entry["l2"]["store_bytes_per_cycle"],
        entry["memory"]["terabytes_per_s"] * 1e12,
        _timing(entry["timing"]),
    )


def _timing(entry: Any) -> TimingModel:
    l1, l2, power = entry["l1"], entry["l2"], entry["power"]
    return TimingModel(
        entry["xcds"],
        entry["lds"]["latency"],
        entry["lds"]["queue"],
        l1["lines"],
        l1["latency"],
        l1["line_cycles"],
        l1["in_flight_bytes"],
        l2["bytes_per_cycle"],
        l2["latency"],
        entry["memory_ns"],
        power["matrix"],
        power["vector"],
        _accuracy(entry.get("published")),
    )


def _accuracy(published: Any) -> str:
    if published is None:
        return "not compared with any published time"
    times = f"{published['times']} published times of {published['kernels']} kernels"
    return f"+-{published['error']:.0%} over {times}"

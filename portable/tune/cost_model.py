"""A model of how long a config takes, from the call, the plan and the device: it only has to rank.

Matrix work is counted in tiles of the tunables' sizes, row work in the plan's own blocks. In both, what a
multiprocessor holds at one time (occupancy) decides how many waves there are and how many bytes are in
flight, and bytes in flight over latency bound the bandwidth. The constants were fitted on one H200,
2026-11-21 (docs/notes/tuning.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from portable.dtypes import itemsize
from portable.plan import Device, NativeKernel, Plan
from portable.tune.problem import Problem

LATENCY = 0.9e-6  # seconds from a load to its use under traffic
START = 3.0e-6  # of a launch, and of the first tile's loads and the last one's stores
REGISTERS = 65536  # 32-bit registers of a multiprocessor
THREADS = 2048  # resident on a multiprocessor
LOOPED = 512.0  # bytes that a thread reads, more than its registers hold
L2_GAIN = 2.5  # bandwidth of the cache over the memory's


@dataclass(frozen=True)
class Rates:
    """What the device does in a second at most: bytes moved, operations of the call's type."""

    bytes_per_s: float
    flop_per_s: float


def guessed(device: Device) -> Rates:
    """Rates of a device that was not measured, by its multiprocessors."""
    return Rates(2.5e10 * device.multiprocessors, 5e12 * device.multiprocessors)


_NAMES = {
    "m": ("block_m", "tile_m", "bm"),
    "n": ("block_n", "tile_n", "bn"),
    "k": ("block_k", "tile_k", "bk"),
    "stages": ("num_stages", "stages"),
    "split": ("split_k", "split", "splits"),
    "group": ("group_m", "group"),
}


def _find(values: Mapping[str, Any], what: str, otherwise: int) -> int:
    for name, value in values.items():
        if name.lower() in _NAMES[what] and isinstance(value, int) and not isinstance(value, bool):
            return max(value, 1)
    return otherwise


@dataclass(frozen=True)
class _Launches:
    """A plan's figures: blocks of the largest launch, its threads, dynamic shared bytes."""

    blocks: int
    threads: int
    shared: int
    count: int


def _launches(plan: Plan, device: Device) -> _Launches:
    found = []
    for launch in plan.launches:
        kernel = launch.kernel
        native = isinstance(kernel, NativeKernel)
        threads = kernel.threads if native else kernel.num_warps * device.warp_size
        found.append((math.prod(launch.grid), threads, kernel.shared if native else 0))
    blocks, threads, shared = max(found, default=(1, device.warp_size, 0))
    return _Launches(max(blocks, 1), max(threads, 1), shared, len(found))


def seconds(problem: Problem, values: Mapping[str, Any], plan: Plan, device: Device, rates: Rates) -> float:
    """The model's time of one call."""
    tiled = _find(values, "m", 0) and _find(values, "n", 0)
    if problem.spec.cost.roof == "matrix" and tiled:
        return _matrix(problem, values, plan, device, rates)
    return _rows(problem, values, plan, device, rates)


def _sizes(problem: Problem) -> tuple[int, int, int, int, int]:
    """Matrices, rows, columns and length of the product, and bytes of an element of its inputs."""

    infos = problem.signature.tensors
    out = next(infos[name] for name in problem.spec.results)
    assert out is not None
    shape = (1, 1, *out.shape)
    rows, columns = shape[-2], shape[-1]
    matrices = out.numel // max(rows * columns, 1)
    if problem.spec.leading == "same":  # what leads are rows of one matrix
        rows, matrices = rows * matrices, 1
    inner = max(int(problem.flops / max(2 * out.numel, 1)), 1)
    first = next(info for name, info in infos.items() if info is not None and name in problem.shapes)
    return matrices, rows, columns, inner, itemsize(first.dtype)


def _matrix(problem: Problem, values: Mapping[str, Any], plan: Plan, device: Device, rates: Rates) -> float:
    found = _launches(plan, device)
    matrices, rows, columns, inner, item = _sizes(problem)
    m, n = _find(values, "m", 128), _find(values, "n", 128)
    k, stages = _find(values, "k", 64), _find(values, "stages", 2)
    split = _find(values, "split", 1)
    per_tile = math.ceil(inner / split / k)  # steps along K
    tiles = matrices * math.ceil(rows / m) * math.ceil(columns / n) * split
    shared = max(found.shared, (m + n) * k * item * stages)
    held = m * n / found.threads
    registers = held + (m + n) * k / found.threads / 8 + 40
    resident = max(
        1,
        min(
            device.shared_memory // max(shared, 1),
            int(REGISTERS // (min(registers, 255) * found.threads)),
            THREADS // found.threads,
        ),
    )
    per_sm = rates.flop_per_s / device.multiprocessors
    bandwidth = rates.bytes_per_s / device.multiprocessors

    # One tile alone on a multiprocessor: a step's products, or its loads where too few are in flight.
    busy = 2.0 * m * n * k / (per_sm * _rate(m, n, found.threads))
    loads = (m + n) * k * item
    together = max(1, min(resident, math.ceil(tiles / device.multiprocessors)))
    flight = loads * max(stages - 1, 0.5) * together
    fetch = loads * together / min(flight / LATENCY, L2_GAIN * bandwidth)
    if stages > 2:
        step = max(busy * together, fetch)
    elif stages == 2:  # the next loads wait for the last products
        step = max(busy * together, fetch) + 0.5 * min(busy * together, fetch) / together
    else:
        step = busy * together + fetch + LATENCY / together
    step += 4e-8
    fill = LATENCY + 2.0 * m * n * item / bandwidth / 4
    waves = tiles / (device.multiprocessors * together)
    waves = math.ceil(waves) if waves < 8 else waves + 0.5
    work = waves * (per_tile * step + fill)

    moved = problem.bytes + (2 * split * matrices * rows * columns * 4 if split > 1 else 0)
    memory = moved / rates.bytes_per_s
    spill = 4.0 if registers > 255 else 1.0

    # The tiles that run at one time share most operands through L2 where they form a square.
    high = min(_find(values, "group", 1), math.ceil(rows / m))
    wide = min(device.multiprocessors * together / high, math.ceil(columns / n))
    work *= 1.0 + 0.005 * abs(math.log2(high * m / (max(wide, 1) * n)))
    return spill * max(work, memory) + 0.15 * min(work, memory) + START * found.count


def _rate(m: int, n: int, threads: int) -> float:
    """The share of the matrix units' rate that a tile reaches: operands come from shared memory, and the
    larger the tile, the fewer a product needs; wide tiles do better than high ones."""
    return 1.0 / (1.0 + 28.0 / m + 36.0 / n) / (1.0 + 0.1 * (threads < 256))


def _rows(problem: Problem, values: Mapping[str, Any], plan: Plan, device: Device, rates: Rates) -> float:
    found = _launches(plan, device)
    blocks, threads = found.blocks, found.threads
    each = problem.bytes / blocks / threads / 2  # bytes read by a thread over its life
    held = each if each <= LOOPED else 128.0  # above LOOPED a program loops over rows and holds a part
    registers = 24 + held / 2
    resident = max(1, min(THREADS // threads, int(REGISTERS // (min(registers, 255) * threads))))
    if found.shared:
        resident = max(1, min(resident, device.shared_memory // found.shared))
    bandwidth = rates.bytes_per_s / device.multiprocessors
    together = min(resident, math.ceil(blocks / device.multiprocessors))
    flight = together * threads * min(held, 64.0 * max(1, _find(values, "stages", 2) - 1))
    reach = min(1.0, flight / (bandwidth * LATENCY))
    waves = blocks / (device.multiprocessors * resident)
    tail = math.ceil(waves) / waves if waves > 1 else max(1.0, device.multiprocessors / blocks)
    meeting = 2e-8 * math.log2(max(threads / device.warp_size, 1) + 1) * max(waves, 1)
    spill = 3.0 if registers > 255 else 1.0
    moving = problem.bytes / (rates.bytes_per_s * max(reach, 0.02))
    return spill * tail * moving + meeting + START * found.count

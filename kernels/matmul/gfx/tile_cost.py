"""What a product of aligned operands costs in a tile of mfma.hip, whole or in parts along K.

A planner's estimate: seven numbers a GPU, from `l2` on, were fitted to the timing model
(docs/timing_model.md) on 2026-11-23, as docs/notes/matmul.md says. Nothing is measured."""

from __future__ import annotations

from typing import NamedTuple

from portable.kernels.matmul.launch_args import ceil
from portable.kernels.matmul.problem import Problem
from portable.plan import Device


class Tile(NamedTuple):
    """The part of c that one block computes, how many of its waves are along M, and its threads."""

    m: int
    n: int
    k: int
    waves_m: int
    threads: int = 256
    aligned: bool = False  # loads of 16 bytes from lines that start and end at 16
    ping_pong: bool = False

    def resident(self, device: Device) -> int:
        """Blocks of aligned operands that fit a compute unit."""
        stages = 2 if self.ping_pong and device.arch == "gfx950" else 1
        lds = stages * (self.m + self.n) * self.k * 2
        return max(1, min(_MOST_RESIDENT, device.shared_memory // lds))


class Rates(NamedTuple):
    """Of one GPU, in clocks."""

    products: int  # of a compute unit in a clock; this and the next as in pipe_model.yaml
    memory: int  # bytes of the GPU in a clock
    launch: int  # a second launch's gap, 1 us
    l2: int  # bytes of a compute unit from L2 in a clock
    start: int  # a block's: its first loads and the way to its last stores
    store: float  # an element of float16 or bfloat16 of c
    wait: int  # for a K step's loads from L2, besides their bytes
    miss: int  # more where they come from memory
    wait_ping_pong: int  # in the loop of ping_pong.h; gfx950's goes straight to LDS, two steps on their way
    exposed: float  # the share of a K step's products that its wait does not hide


# gfx90a: gfx942's, as nobody published times of it that would hold its model.
_RATES = {
    "gfx90a": Rates(512, 941, 1700, 30, 3000, 0.10, 200, 950, 1500, 0.9),
    "gfx942": Rates(1024, 2000, 2100, 30, 3000, 0.10, 200, 950, 1500, 0.9),
    "gfx950": Rates(2048, 2917, 2400, 50, 2950, 0.145, 510, 980, 980, 0.52),
}
_MOST_RESIDENT = 8  # blocks of four waves, by registers
_UNALIGNED_STEP = 375  # of 64 elements of K
_TRIP = 1900  # of the reduction: to memory and back, for up to four parts at once


def clocks(tile: Tile, problem: Problem, device: Device, k_step: int | None = None) -> tuple[float, float]:
    """The clocks, then those without memory's roof, which decide where it sets the time of several.

    With `k_step`, in parts of as many elements along K, whose sums a second launch adds."""
    rates = _RATES[device.arch]
    parts = 1 if k_step is None else ceil(problem.K, k_step)
    tiles_m, tiles_n = ceil(problem.M, tile.m), ceil(problem.N, tile.n)
    blocks = tiles_m * tiles_n * problem.batches * parts
    together = min(ceil(blocks, device.multiprocessors), tile.resident(device))  # on one compute unit
    rounds = ceil(blocks, device.multiprocessors * together)
    area = together * tile.m * tile.n
    loads = (tile.m + tile.n) * tile.k * 2 / rates.l2
    if tile.ping_pong:
        wait = float(rates.wait_ping_pong)
    else:
        once = problem.M + problem.N
        wait = rates.wait + loads + rates.miss * once / (tiles_n * problem.M + tiles_m * problem.N)
    step = max(wait + rates.exposed * area * tile.k / rates.products, together * loads)
    stores = rates.store * area * (2 if parts > 1 else 1)
    product = rounds * (rates.start + stores + ceil(k_step or problem.K, tile.k) * step)
    read = (problem.M + problem.N) * problem.K * problem.batches * 2 / rates.memory
    added = reduction(problem, parts, rates) if parts > 1 else 0.0
    return max(product, read) + added, product + added


def more_unaligned(problem: Problem, device: Device) -> float:
    """More clocks of the loop of any operands than of the best tile of aligned ones: fitted on 2026-11-26 to
    products of 1026, 2050 and 4100 on gfx942 and gfx950, which take 8,300 to 220,000 more."""
    products = problem.M * problem.N * problem.K * problem.batches
    busy = products / (device.multiprocessors * _RATES[device.arch].products)
    return busy + _UNALIGNED_STEP * ceil(problem.K, 64)


def traffic(nbytes: int, device: Device) -> float:
    """A launch that moves so many bytes."""
    rates = _RATES[device.arch]
    return rates.launch + nbytes / rates.memory


def reduction(problem: Problem, parts: int, rates: Rates) -> float:
    """Of splitk_reduce.hip, which reads four parts at once as long as there are four."""
    trips = 1 + parts // 4 + parts % 4
    moved = problem.M * problem.N * (4 * parts + 2)
    return rates.launch + max(_TRIP * trips, moved / rates.memory)

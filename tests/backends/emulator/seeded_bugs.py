"""Kernels with one mistake each: `BUGS` says which fault each must raise and where; `NEAR` holds correct
kernels that look alike, with their definitions in NumPy.

A bug's `args` makes the launch that shows it; `right` makes one of the same kernel that is in order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .kernels.harness import HERE, InOut, Launcher, Out

i32, i64, u32, u8, f32 = np.int32, np.int64, np.uint32, np.uint8, np.float32


@dataclass(frozen=True)
class Bug:
    """`kind`: the fault's, or several by "|" where the hardware's rule makes it either. `threads`: numbers
    within the block of those that may be named, or None where none applies. A block of 0 is one wave.

    `address(memories, thread of the grid)` is the byte that the fault must name.
    """

    name: str
    kind: str
    args: Callable[[Launcher], tuple]
    block: int = 64
    grid: int = 1
    shared: int = 0
    budget: int | None = None
    workgroup: int | None = 0
    threads: Callable[[int], range] | None = None
    address: Callable[[list, int], int] | None = None
    right: Callable[[Launcher], tuple] | None = None
    right_shared: int = 0
    file: str = "seeded.hip"


def ints(launch: Launcher, n: int, low: int = -1000, high: int = 1000) -> np.ndarray:
    return launch.rng.integers(low, high, n).astype(i32)


def placed(launch: Launcher, n: int, usual: int, thread: int, value: int) -> np.ndarray:
    found = ints(launch, n, 0, usual)
    found[thread] = value
    return found


def one(thread: int) -> Callable[[int], range]:
    return lambda wave: range(thread, thread + 1)


def span(first: int, end: int) -> Callable[[int], range]:
    return lambda wave: range(first, end)


def xy(n: int) -> Callable[[Launcher], tuple]:
    return lambda launch: (Out(n, i32), ints(launch, n))


def eight(launch: Launcher, first: int) -> tuple:
    """Private words 0 to 7 are written, and a word from `first` on is read."""
    return Out(64, i32), np.tile(np.arange(8, dtype=u8), 64), i32(first)


BUGS = [
    # Global memory.
    Bug(
        "read_past_end", "out-of-bounds", lambda on: (Out(128, i32), ints(on, 128)), grid=2, workgroup=1,
        threads=one(63), address=lambda m, t: m[1].address + 512,
        right=lambda on: (Out(128, i32), ints(on, 129)),
    ),
    Bug(
        "read_past_end_uniform", "out-of-bounds", lambda on: (Out(64, i32), ints(on, 10), i32(10)),
        address=lambda m, t: m[1].address + 40,
        right=lambda on: (Out(64, i32), ints(on, 10), i32(9)),
    ),
    Bug(
        "read_vector_past_end", "out-of-bounds", lambda on: (Out(64, u32), ints(on, 255)), threads=one(63),
        right=lambda on: (Out(64, u32), ints(on, 256)),
    ),
    Bug(
        "write_before_start", "out-of-bounds", lambda on: (Out(128, i32), ints(on, 128)), grid=2,
        threads=one(0), address=lambda m, t: m[0].address - 4,
    ),
    Bug(
        "tail_mask", "out-of-bounds", lambda on: (Out(70, i32), ints(on, 70), i32(70)), grid=2, workgroup=1,
        threads=one(6), address=lambda m, t: m[0].address + 280,
        right=lambda on: (Out(71, i32), ints(on, 70), i32(70)),
    ),
    Bug(
        "wrong_stride", "out-of-bounds", lambda on: (Out(128, i32), ints(on, 128), i64(37)), grid=2,
        workgroup=None, threads=span(0, 64), address=lambda m, t: m[1].address + 4 * 37 * t,
        right=lambda on: (Out(128, i32), ints(on, 128), i64(1)),
    ),
    Bug(
        "write_read_only", "out-of-bounds", lambda on: (Out(64, i32), ints(on, 64)), threads=span(0, 64),
        address=lambda m, t: m[1].address + 4 * t,
        right=lambda on: (Out(64, i32), InOut(ints(on, 64))),
    ),
    Bug(
        "atomic_past_end", "out-of-bounds", lambda on: (InOut(ints(on, 100)), i32(1)), grid=2, workgroup=1,
        threads=span(36, 64), address=lambda m, t: m[0].address + 4 * t,
        right=lambda on: (InOut(ints(on, 128)), i32(1)),
    ),
    Bug(
        "null_pointer", "out-of-bounds", lambda on: (Out(64, i32), np.uint64(0)), threads=span(0, 64),
        address=lambda m, t: 4 * t,
    ),
    Bug("kernarg_past_end", "out-of-bounds", lambda on: (Out(64, i32),)),
    Bug(
        "misaligned_atomic", "misaligned", lambda on: (InOut(ints(on, 65)), i32(1)), threads=span(0, 64),
        address=lambda m, t: m[0].address + 4 * t + 1,
        right=lambda on: (InOut(ints(on, 65)), i32(4)),
    ),
    # Local and private memory.
    Bug(
        "lds_past_end", "out-of-bounds", lambda on: (Out(64, i32), placed(on, 64, 64, 41, 2000)),
        threads=one(41), right=lambda on: (Out(64, i32), ints(on, 64, 0, 64)),
    ),
    Bug("dynamic_lds_short", "out-of-bounds", xy(64), shared=200, threads=span(50, 64), right=xy(64),
        right_shared=256),
    Bug(
        "misaligned_lds_atomic", "misaligned", lambda on: (Out(64, i32), i32(2)), threads=span(0, 64),
        right=lambda on: (Out(64, i32), i32(4)),
    ),
    Bug(
        "private_past_end", "out-of-bounds", lambda on: (Out(64, i32), placed(on, 64, 20, 7, 1000), i32(3)),
        threads=one(7), right=lambda on: (Out(64, i32), ints(on, 64, 0, 20), i32(3)),
    ),
    # What nobody wrote.
    Bug("uninitialised_register", "uninitialised", lambda on: (Out(64, i32),), threads=span(0, 64)),
    Bug("uninitialised_scalar", "uninitialised", lambda on: (Out(64, i32),)),
    Bug("uninitialised_lanes", "uninitialised", xy(64), threads=span(20, 64)),
    Bug(
        "uninitialised_through_arithmetic", "uninitialised",
        lambda on: (Out(64, f32), ints(on, 64).astype(f32)), threads=span(0, 64),
    ),
    Bug("uninitialised_lds_stored", "uninitialised", xy(256), block=256, threads=span(200, 256)),
    Bug(
        "uninitialised_lds_branch", "uninitialised", lambda on: (Out(256, i32), ints(on, 256, 0, 9)),
        block=256, threads=one(76),
    ),
    Bug(
        "uninitialised_lds_address", "uninitialised",
        lambda on: (Out(256, i32), on.rng.permutation(256).astype(i32)), block=256, threads=one(125),
    ),
    Bug(
        "uninitialised_private", "uninitialised", lambda on: eight(on, 50),
        threads=span(0, 64), right=lambda on: eight(on, 0),
    ),
    Bug("uninitialised_through_lds", "uninitialised", xy(64)),
    Bug("uninitialised_through_shuffle", "uninitialised", xy(64), threads=span(3, 4)),
    Bug(
        "uninitialised_through_matrix", "uninitialised",
        lambda on: (Out((on.wave, 8), f32), np.ones((on.wave, 16), np.float16)), block=0,
    ),
    Bug("uninitialised_scalar_branch", "uninitialised", lambda on: (Out(64, i32), i32(3))),
    # Races.
    Bug(
        "race_double_buffer", "lds-race", lambda on: (Out(256, i32), ints(on, 1536), i32(6)), block=256,
        threads=span(0, 256),
    ),
    Bug(
        "race_used_again", "lds-race", lambda on: (Out(256, i32), ints(on, 256), i32(3)), block=256,
        threads=span(0, 256), right=lambda on: (Out(256, i32), ints(on, 256), i32(1)),
    ),
    Bug("race_read_after_write", "lds-race", xy(256), block=256, threads=span(0, 256)),
    Bug("race_write_after_read", "lds-race", xy(256), block=256, threads=span(0, 256)),
    Bug("race_write_after_write", "lds-race", xy(128), block=128, threads=span(0, 128)),
    Bug("race_with_atomic", "lds-race", xy(128), block=128, threads=span(0, 128)),
    Bug(
        "race_last_steps", "lds-race", lambda on: (Out(1, i32), ints(on, 256)), block=256,
        threads=span(0, 256),
    ),
    *(
        Bug(
            name, "lds-race", lambda on: (Out(256, i32), ints(on, 256), i32(200)), block=256,
            threads=span(0, 256), right=lambda on: (Out(256, i32), ints(on, 256), i32(0)),
        )
        for name in (
            *("race_chosen_after_write", "race_chosen_of_before", "race_chosen_after_read"),
            "race_kept_aside",
        )
    ),
    # Barriers, loops, traps.
    Bug("barrier_one_wave", "barrier", lambda on: (Out(256, i32),), block=256),
    Bug("barrier_once_more", "barrier", lambda on: (Out(256, i32), i32(3)), block=256),
    Bug("barrier_divergent", "barrier", xy(256), block=256),
    Bug(
        "endless", "budget", lambda on: (Out(64, i32), np.zeros(1, i32)), budget=20000,
        right=lambda on: (Out(64, i32), np.ones(1, i32)),
    ),
    Bug(
        "endless_barriers", "budget", lambda on: (Out(128, i32), np.zeros(1, i32)), budget=20000, block=128,
        right=lambda on: (Out(128, i32), np.ones(1, i32)),
    ),
    Bug(
        "trap", "trap", lambda on: (Out(64, i32), i32(7)), right=lambda on: (Out(64, i32), i32(6)),
        file="trap.hip",
    ),
    # Lanes that take no part.
    Bug("inactive_bpermute", "inactive-lane", xy(64), threads=span(0, 64)),
    # A DPP that may not read a lane leaves its destination as it was, here unwritten. Lane 30 of the register
    # that is read is both inactive and unwritten.
    Bug("inactive_dpp", "inactive-lane|uninitialised", xy(64), threads=span(0, 64)),
    Bug("inactive_readlane", "inactive-lane|uninitialised", xy(64)),
    Bug(
        "half_wave_reduction", "inactive-lane", lambda on: (Out(64 // on.wave, i32), ints(on, 64)),
        threads=span(0, 64),
    ),
]  # fmt: skip


def lines_of(kernel: str, file: str) -> set[int]:
    """The lines marked `// BUG` between the kernel's head and the next one's."""
    found, inside = set(), False
    for number, line in enumerate((HERE / file).read_text().splitlines(), 1):
        if line.startswith("KERNEL("):
            inside = f" void {kernel}(" in line
        if inside and line.endswith("// BUG"):
            found.add(number)
    assert found, f"{kernel} marks no line"
    return found


def nearest(memories: list, address: int) -> tuple[int, int]:
    """The number of the buffer nearest to an address outside of all, and how many bytes lie between."""
    rows = []
    for index, memory in enumerate(memories):
        end = memory.address + memory.bytes.size
        rows.append((max(memory.address - address, address - end, 0), index))
    distance, index = min(rows)
    return index, distance


# ---- near misses

Check = Callable[[Launcher], None]
NEAR: list[Check] = []
equal = np.testing.assert_array_equal


def near(check: Check) -> Check:
    NEAR.append(check)
    return check


@near
def last_element(launch: Launcher) -> None:
    for n in (256, 255, 130):
        x = ints(launch, n).view(u32)
        equal(launch("last_element", 1, 64, Out(n, u32), x, i32(n)), x)


@near
def wave_exchange(launch: Launcher) -> None:
    x = ints(launch, 256)
    t = np.arange(256)
    turned = 2 * x.reshape(-1, launch.wave)[:, ::-1].ravel()
    equal(launch("wave_exchange", 1, 256, Out(256, i32), x), turned[t ^ 3])


@near
def register_halves(launch: Launcher) -> None:
    low, high = launch.rng.integers(0, 65536, (2, 64)).astype(np.uint16)
    y = launch("register_halves", 1, 64, Out(64, u32), low, high)
    equal(y, low | high[::-1].astype(u32) << 16)


@near
def lower_half_stored(launch: Launcher) -> None:
    x = launch.rng.integers(0, 65536, 64).astype(np.uint16)
    equal(launch("lower_half_stored", 1, 64, Out(64, np.uint16), x), x)


@near
def bytes_of_a_half(launch: Launcher) -> None:
    """2026-11-27: gfx1100's code of a dequantiser, whose bytes are in 16-bit registers, was a fault."""
    x = launch.rng.integers(0, 65536, 64).astype(np.uint16)
    equal(launch("bytes_of_a_half", 1, 64, Out(64, np.float32), x), 2.0 * x.astype(np.float32))


@near
def indexed_registers(launch: Launcher) -> None:
    """2026-11-27: on gfx1100 (v_movreld_b32, s_sendmsg_rtn_b64) it was refused."""
    x = ints(launch, 1024).reshape(16, 64)
    for i, j in ((0, 3), (3, 3), (15, 2), (9, 12)):
        a = x.copy()
        a[j] = 7
        y = launch("indexed_registers", 1, 64, Out(64, i32), x, i32(i), i32(j))
        equal(y, a[i] + 3 * a[(i + 3) & 15])


@near
def masked_lanes(launch: Launcher) -> None:
    x, start = ints(launch, 64), ints(launch, 64)
    y = launch("masked_lanes", 1, 64, InOut(start), x, i32(41))
    equal(y, np.append(x[:41] ^ 1, start[41:]))


@near
def not_chosen(launch: Launcher) -> None:
    x = ints(launch, 256)
    y = launch("not_chosen", 1, 256, Out(256, i32), x, i32(150))
    equal(y, np.append(np.full(106, -5), x[:150][::-1]))


@near
def divergent_shuffle(launch: Launcher) -> None:
    x, start = ints(launch, 64), ints(launch, 64)
    want = start.copy()
    for t in range(64):
        lane = t % launch.wave
        if lane < launch.wave // 2:
            want[t] = x[t + 8] if lane + 8 < launch.wave // 2 else x[t]
    equal(launch("divergent_shuffle", 1, 64, InOut(start), x), want)


@near
def double_buffer(launch: Launcher) -> None:
    x = ints(launch, 7 * 256).reshape(7, 256)
    total = np.zeros(256, i64)
    for k in range(7):
        total = total * 3 + x[k, (np.arange(256) * 7 + k) & 255]
    equal(launch("double_buffer", 1, 256, Out(256, i32), x, i32(7)), total.astype(i32))


@near
def barriers_of_branches(launch: Launcher) -> None:
    x = ints(launch, 128)
    shifted = x + np.repeat([1, -1], 64)
    y = launch("barriers_of_branches", 1, 128, Out(128, i32), x)
    equal(y, shifted[::-1] * np.repeat([2, 5], 64))


@near
def barriers_in_loop(launch: Launcher) -> None:
    x = ints(launch, 384).reshape(3, 128)
    want = x.copy()
    for block in range(3):
        for _ in range(block * 2 + 1):
            want[block] += np.roll(want[block], -33)
    equal(launch("barriers_in_loop", 3, 128, Out((3, 128), i32), x), want)


@near
def neighbouring_bytes(launch: Launcher) -> None:
    x = launch.rng.integers(0, 256, 256).astype(u8)
    equal(launch("neighbouring_bytes", 1, 256, Out(256, u8), x), x[::-1])


@near
def early_waves(launch: Launcher) -> None:
    x, start = ints(launch, 256), ints(launch, 256)
    y = launch("early_waves", 1, 256, InOut(start), x, i32(70))
    equal(y, np.append(x[:70] + 1, start[70:]))


@near
def shared_reads(launch: Launcher) -> None:
    x, t = ints(launch, 64), np.arange(256)
    s = 2 * x + 1
    equal(launch("shared_reads", 1, 256, Out(256, i32), x), s[t & 63] + s[t * 5 & 63])


@near
def every_block_fills(launch: Launcher) -> None:
    x = ints(launch, 640).reshape(10, 64)
    equal(launch("every_block_fills", 10, 64, Out((10, 64), i32), x), x[:, ::-1])


@near
def private_in_part(launch: Launcher) -> None:
    x = launch.rng.integers(0, 256, 64).astype(u8)
    want: list[Any] = []
    for t in range(64):
        total = 0
        for k in range(int(x[t]) % 29, -1, -1):
            total = total * 3 + k * k + t
        want.append(total & 0xFFFFFFFF)
    equal(launch("private_in_part", 1, 64, Out(64, i32), x, i32(29)).view(u32), np.array(want, u32))

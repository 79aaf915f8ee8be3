"""Workgroups that meet in global memory: found where nothing orders them, by both of their lines; left alone
where atomics with release and acquire stand between, or nothing comes of what was read."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

import portable
from portable.backends.rocm.emulator.faults import KernelFault, warnings_to

from .kernels.harness import HERE, InOut, Launcher, Out, arches
from .test_cooperative import expected, rotate

i32 = np.int32
jit: Any = triton.jit
FILE = "workgroups.hip"
equal = np.testing.assert_array_equal


def launcher(arch: str) -> Launcher:
    launch = Launcher(FILE, arch)
    launch.races = True
    return launch


def numbers(launch: Launcher, n: int) -> np.ndarray:
    return launch.rng.integers(-1000, 1000, n).astype(i32)


def last(launch: Launcher, kernel: str, block: int = 64) -> None:
    x = numbers(launch, 5 * block)
    zero = InOut(np.zeros(1, i32))
    total, *_ = launch(kernel, 5, block, Out(block, i32), Out(5 * block, i32), zero, x, i32(5))
    equal(total, x.reshape(5, block).sum(0))


def lines(kernel: str) -> set[int]:
    """Those marked BUG from the kernel's head on to the next; a macro's is the line that makes the kernel."""
    found, inside = set(), False
    for number, line in enumerate((HERE / FILE).read_text().splitlines(), 1):
        if line.startswith(("KERNEL(", "LAST_ADDS(")):
            inside = f" {kernel}(" in line or line.startswith(f"LAST_ADDS({kernel},")
        if inside and line.endswith("// BUG"):
            found.add(number)
    return found


RACES: list[tuple[str, Any]] = [
    ("reads_a_neighbour", lambda on: on("reads_a_neighbour", 4, 64, InOut(numbers(on, 256)), i32(4))),
    ("writes_one_word", lambda on: on("writes_one_word", 4, 64, Out(1, i32), i32(3))),
    (
        "reads_and_discards",
        lambda on: on("reads_and_discards", 4, 64, InOut(numbers(on, 256)), i32(4), i32(9)),
    ),
    ("last_adds_relaxed", lambda on: last(on, "last_adds_relaxed")),
    ("last_adds_unacquired", lambda on: last(on, "last_adds_unacquired")),
    (
        "reads_a_sum",
        lambda on: on("reads_a_sum", 4, 64, Out(256, i32), InOut(numbers(on, 64)), numbers(on, 256)),
    ),
    (
        "under_no_lock",
        lambda on: on(
            "under_no_lock", 4, 64, InOut(numbers(on, 64)), InOut(np.zeros(1, i32)), numbers(on, 256)
        ),
    ),
]


@pytest.mark.parametrize("arch", arches())
@pytest.mark.parametrize(("kernel", "start"), RACES, ids=[row[0] for row in RACES])
def test_a_race_is_found_with_both_lines(kernel, start, arch):
    with pytest.raises(KernelFault) as caught:
        start(launcher(arch))
    fault = caught.value
    assert fault.kind == "global-race" and fault.kernel == kernel
    assert "with no release and acquire between" in fault.detail and "of arg" in fault.detail
    named = {int(each) for each in re.findall(rf"{FILE}:(\d+)", f"{fault.source} {fault.detail}")}
    assert named & lines(kernel), fault
    assert re.search(r"workgroup \(\d, 0, 0\)", fault.detail), fault


def test_it_is_not_looked_for_unless_asked():
    launch = Launcher(FILE, "gfx942")
    launch("writes_one_word", 4, 64, Out(1, i32), i32(3))


ORDERED: list[tuple[str, Any]] = [
    ("last_adds", lambda on: last(on, "last_adds")),
    ("last_adds_fenced", lambda on: last(on, "last_adds_fenced", 128)),
    ("writes_one_word", lambda on: on("writes_one_word", 4, 64, Out(1, i32), i32(0))),
]


@pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx1100", "gfx1201"])
@pytest.mark.parametrize(("kernel", "start"), ORDERED, ids=[row[0] for row in ORDERED])
def test_what_is_ordered_or_the_same_is_no_race(kernel, start, arch):
    told: list[KernelFault] = []
    with warnings_to(told.append):
        start(launcher(arch))
    assert told == []


@pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx1100", "gfx1201"])
def test_atomics_locks_and_flags(arch):
    launch, told = launcher(arch), list[KernelFault]()
    x, start = numbers(launch, 256), numbers(launch, 64)
    with warnings_to(told.append):
        total = launch("adds_atomically", 4, 64, InOut(start), x)
        equal(total, start + x.reshape(4, 64).sum(0))
        total, _ = launch("under_a_lock", 4, 64, InOut(start), InOut(np.zeros(1, i32)), x)
        equal(total, start + x.reshape(4, 64).sum(0))
        y, _, _ = launch("handed_on", 4, 64, Out(256, i32), InOut(start), InOut(np.zeros(1, i32)))
        equal(y.reshape(4, 64), start + np.arange(4)[:, None] * np.arange(64))
    assert told == []


@pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx1100", "gfx1201"])
@pytest.mark.parametrize("kernel", ["largest_of_all", "floats_of_all", "halves_of_all"])
def test_loops_of_compare_and_swap(kernel, arch):
    """Liger's group_norm backward on gfx1100, whose sum of floats is such a loop, was a fault."""
    launch, told = launcher(arch), list[KernelFault]()
    kind = {"largest": np.float64, "floats_": np.float32, "halves_": np.float16}[kernel[:7]]
    x = launch.rng.integers(0, 9, 512).astype(kind)
    with warnings_to(told.append):
        found = launch(kernel, 4, 128, InOut(np.zeros(64, kind)), x)
    rows = x.reshape(-1, 64)
    equal(found, rows.max(0) if kernel == "largest_of_all" else rows.sum(0))
    assert told == []


@pytest.mark.parametrize("arch", arches())
def test_words_that_two_workgroups_share(arch):
    launch = launcher(arch)
    x, y = launch.rng.integers(0, 9000, (2, 252)).astype(np.uint16)
    equal(launch("odd_rows", 4, 64, InOut(y), x), x + y)


@pytest.mark.parametrize("arch", arches())
def test_a_read_that_is_not_used_is_a_warning(arch):
    launch, told = launcher(arch), list[KernelFault]()
    x = numbers(launch, 256)
    with warnings_to(told.append):
        equal(launch("reads_and_discards", 4, 64, InOut(x), i32(4), i32(0)), x + 1)
    (warning,) = told
    assert warning.kind == "benign-race" and "nothing comes of what" in warning.detail


@jit
def shift(x_ptr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at + 1)
    tl.store(x_ptr + at, x)


@jit
def split_sum(x_ptr, parts_ptr, count_ptr, out_ptr, SPLITS: tl.constexpr, BLOCK: tl.constexpr):
    """A sum of columns in SPLITS parts; the last program of a column block adds them up."""
    block, split = tl.program_id(0), tl.program_id(1)
    at = block * BLOCK + tl.arange(0, BLOCK)
    columns = tl.num_programs(0) * BLOCK
    tl.store(parts_ptr + split * columns + at, tl.load(x_ptr + split * columns + at))
    tl.debug_barrier()
    if tl.atomic_add(count_ptr + block, 1) == SPLITS - 1:
        total = tl.zeros([BLOCK], tl.float32)
        for k in range(SPLITS):
            total += tl.load(parts_ptr + k * columns + at)
        tl.store(out_ptr + at, total)


@pytest.mark.parametrize("arch", arches())
def test_triton_programs(arch):
    with portable.emulated(arch, races=True) as run:
        x = torch.arange(257, device="cuda", dtype=torch.float32)
        with pytest.raises(KernelFault, match=r"global-race: it (reads|writes) offset") as caught:
            shift[(4,)](x, BLOCK=64, num_warps=1)
        assert "test_global_races.py" in str(caught.value)
        x = torch.randn(6, 512, device="cuda")
        parts, count = torch.empty_like(x), torch.zeros(8, dtype=torch.int32, device="cuda")
        out = torch.empty(512, device="cuda")
        split_sum[(8, 6)](x, parts, count, out, SPLITS=6, BLOCK=64, num_warps=2)
        torch.testing.assert_close(out, x.sum(0))
    assert [finding.kind for finding in run.findings] == ["global-race"] and run.warnings == []


@pytest.mark.parametrize("arch", arches())
def test_a_barrier_of_the_whole_grid_orders(arch):
    x = torch.arange(33 * 64, dtype=torch.int32).reshape(33, 64)
    with portable.emulated(arch, races=True) as run:
        arrived = torch.zeros(1, dtype=torch.int32)
        rotate[(33,)](x, arrived, 2, BLOCK=64, launch_cooperative_grid=True, num_warps=1)
    assert torch.equal(x, expected(33)) and run.findings == run.warnings == []

"""Cooperative grids on an emulated GPU: workgroups that wait for each other are all held, and run in turn."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from portable.backends.rocm.emulator import launch as launching
from portable.backends.rocm.emulator.faults import KernelFault
from portable.backends.rocm.emulator.triton_driver import emulated
from portable.errors import LaunchError

jit: Any = triton.jit
BLOCK = 64


@jit
def rotate(x_ptr, arrived_ptr, rounds, BLOCK: tl.constexpr):
    """Each program takes what its neighbour had before the grid's barrier, `rounds` times."""
    program, programs = tl.program_id(0), tl.num_programs(0)
    at = tl.arange(0, BLOCK)
    for i in range(rounds):
        taken = tl.load(x_ptr + (program + 1) % programs * BLOCK + at, volatile=True)
        tl.debug_barrier()
        tl.atomic_add(arrived_ptr, 1)
        while tl.atomic_add(arrived_ptr, 0) < (2 * i + 1) * programs:
            pass
        tl.store(x_ptr + program * BLOCK + at, taken + 1)
        tl.debug_barrier()
        tl.atomic_add(arrived_ptr, 1)
        while tl.atomic_add(arrived_ptr, 0) < (2 * i + 2) * programs:
            pass


@jit
def waits_for_more(arrived_ptr):
    tl.atomic_add(arrived_ptr, 1)
    while tl.atomic_add(arrived_ptr, 0) <= tl.num_programs(0):
        pass


def rotated(programs: int, rounds: int = 2, arch: str = "gfx942", **options) -> torch.Tensor:
    """What `rotate` made of 0, 1, 2, ..., a row for each program."""
    x = torch.arange(programs * BLOCK, dtype=torch.int32).reshape(programs, BLOCK)
    with emulated(arch):
        options = {"launch_cooperative_grid": True, "num_warps": 1, **options}
        rotate[(programs,)](x, torch.zeros(1, dtype=torch.int32), rounds, BLOCK=BLOCK, **options)
    return x


def expected(programs: int, rounds: int = 2) -> torch.Tensor:
    x = torch.arange(programs * BLOCK, dtype=torch.int32).reshape(programs, BLOCK)
    return x.roll(-rounds, 0) + rounds


@pytest.mark.parametrize(
    ("arch", "programs"), [("gfx942", 1), ("gfx942", 2), ("gfx942", 304), ("gfx1100", 41), ("gfx1201", 41)]
)
def test_a_barrier_of_the_whole_grid_ends(arch, programs):
    """They were refused: `launch_cooperative_grid` had no emulation."""
    assert torch.equal(rotated(programs, arch=arch), expected(programs))


def test_several_waves_of_each_program_wait_together():
    assert torch.equal(rotated(33, num_warps=4), expected(33))


def test_one_thread_of_the_cpu_holds_them_all(monkeypatch):
    monkeypatch.setattr(launching.os, "sched_getaffinity", lambda process: {0})
    assert torch.equal(rotated(64), expected(64))


def test_a_grid_that_the_gpu_cannot_hold_is_refused():
    """304 compute units of gfx942 hold 32 waves each."""
    x, arrived = torch.zeros(BLOCK, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    with emulated("gfx942"), pytest.raises(LaunchError, match=r"of 9729 blocks; 9728 can be held at once"):
        rotate[(9729,)](x, arrived, 0, BLOCK=BLOCK, launch_cooperative_grid=True, num_warps=1)


def test_a_barrier_that_never_ends_is_a_fault(monkeypatch):
    defaults = {**(launching.launch.__kwdefaults__ or {}), "budget": 100_000}
    monkeypatch.setattr(launching.launch, "__kwdefaults__", defaults)
    arrived = torch.zeros(1, dtype=torch.int32)
    with emulated("gfx942"), pytest.raises(KernelFault, match="an endless loop"):
        waits_for_more[(5,)](arrived, launch_cooperative_grid=True, num_warps=1)


def test_a_cooperative_launch_is_counted_but_not_modelled():
    """A few workgroups alone would wait for the others."""
    with emulated("gfx942") as driver:
        with driver.runtime.trace() as traces:
            assert torch.equal(rotated(7), expected(7))
        with driver.runtime.model(), pytest.raises(LaunchError, match="is not modelled"):
            rotated(7)
    assert len(traces) == 1

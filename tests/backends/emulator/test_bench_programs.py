"""The Triton programs of the emulator's benchmark compute what they say, emulated and interpreted."""

from __future__ import annotations

import pytest

import portable
from portable.backends.rocm.emulator import bench_programs


@pytest.mark.parametrize("arch", ["gfx942", "gfx1100"])
def test_emulated(arch):
    with portable.emulated(arch) as run:
        for label in bench_programs.PROGRAMS:
            assert bench_programs.times(label, 1).processor > 0
    assert run.launches.total() == 2 * len(bench_programs.PROGRAMS)
    assert not run.findings


@pytest.mark.slow
def test_interpreted():
    assert list(bench_programs.interpreted()) == list(bench_programs.PROGRAMS)

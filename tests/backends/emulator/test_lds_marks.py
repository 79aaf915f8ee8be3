"""LDS accesses that are checked for many lanes at once are checked as lane by lane."""

from __future__ import annotations

import numpy as np
import pytest

from portable.backends.rocm.emulator.faults import KernelFault

from .kernels.harness import Launcher, Out, arches

i32 = np.int32
TYPES = {"u8": np.uint8, "u16": np.uint16, "u32": np.uint32, "u64": np.uint64, "u128": np.uint32}


@pytest.fixture(params=arches())
def launch(request):
    return Launcher("lds_marks.hip", request.param)


@pytest.mark.parametrize("rounds", [1, 3000])  # 3,000 reads are more than are noted before they are marked
def test_a_write_after_noted_reads(launch, rounds):
    x = launch.rng.integers(-1000, 1000, 128).astype(i32)
    apart = launch("write_after_many_reads", 1, 128, Out(128, i32), x, i32(rounds), i32(128))
    assert np.array_equal(apart, x * i32(rounds))
    with pytest.raises(KernelFault, match="lds-race") as caught:
        launch("write_after_many_reads", 1, 128, Out(128, i32), x, i32(rounds), i32(0))
    assert caught.value.wave in (0, 1)


@pytest.mark.parametrize("name", TYPES)
def test_lanes_that_fill_a_block(launch, name):
    x = values(launch, name)
    within = np.concatenate(
        [first + launch.rng.permutation(launch.wave) for first in range(0, 64, launch.wave)]
    )
    y = launch(f"placed_{name}", 1, 64, Out(x.shape, x.dtype), x, within.astype(i32))
    expected = np.empty_like(x)
    expected[within] = x
    assert np.array_equal(y, expected)


@pytest.mark.parametrize("name", TYPES)
def test_two_lanes_at_one_place_of_a_block(launch, name):
    x = values(launch, name)
    place = np.arange(64, dtype=i32)
    place[9] = 10  # as wide as a block, and 9 is left out
    with pytest.raises(KernelFault, match="two lanes of one instruction write different values"):
        launch(f"placed_{name}", 1, 64, Out(x.shape, x.dtype), x, place)


def test_what_was_defined_may_be_so_no_more(launch):
    x = launch.rng.integers(-1000, 1000, 64).astype(i32)
    assert np.array_equal(launch("undefined_again", 1, 64, Out(64, i32), x, i32(64)), 2 * x[::-1])
    with pytest.raises(KernelFault, match="uninitialised") as caught:
        launch("undefined_again", 1, 64, Out(64, i32), x, i32(7))
    assert caught.value.wave * launch.wave + caught.value.lane == 56


def values(launch: Launcher, name: str) -> np.ndarray:
    """Of 64 threads, no two alike."""
    shape = (64, 4) if name == "u128" else (64,)
    return launch.rng.permutation(int(np.prod(shape))).reshape(shape).astype(TYPES[name])

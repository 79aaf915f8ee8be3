"""Races of which nothing comes: what is read is not used. They are warnings of their own kind, no faults."""

from __future__ import annotations

import re

import numpy as np
import pytest

from portable.backends.rocm.emulator.faults import KernelFault, warnings_to

from .kernels.harness import Launcher, Out, arches

i32 = np.int32


@pytest.mark.parametrize("arch", arches())
@pytest.mark.parametrize(
    ("kernel", "said"),
    [
        ("race_chosen_after_write", r"wave 1 writes byte \d+ of LDS, which wave 0 read"),
        ("race_chosen_after_read", r"wave 1 writes byte \d+ of LDS, which wave 0 read"),
        ("race_kept_aside", r"wave 1 writes byte \d+ of LDS, which wave 0 read"),
        ("race_chosen_of_before", r"wave 1 reads byte \d+ of LDS, which wave 0 wrote"),
    ],
)
def test_a_racing_read_that_is_not_used_is_a_warning(kernel, said, arch):
    """They were faults, whatever came of what was read."""
    launch, told = Launcher("seeded.hip", arch), list[KernelFault]()
    x = launch.rng.integers(-1000, 1000, 256).astype(i32)
    with warnings_to(told.append):
        found = launch(kernel, 1, 256, Out(256, i32), x, i32(0))
    np.testing.assert_array_equal(found, x)
    (warning,) = told
    assert warning.kind == "benign-race"
    assert warning.source is not None and warning.source.startswith("seeded.hip:")
    assert f"{kernel}: benign-race: wave" in str(warning)
    assert "with no barrier between; nothing comes of what" in warning.detail
    assert re.search(said, warning.detail)


@pytest.mark.parametrize("arch", arches())
def test_one_of_its_workgroups_that_uses_what_it_read_is_a_fault(arch):
    launch = Launcher("seeded.hip", arch)
    x = launch.rng.integers(-1000, 1000, 256).astype(i32)
    with pytest.raises(KernelFault) as caught:
        launch("race_chosen_after_read", 1, 256, Out(256, i32), x, i32(1))
    assert caught.value.kind == "lds-race"


@pytest.mark.parametrize("arch", arches())
def test_a_fault_names_the_read_and_what_depends_on_it(arch):
    launch = Launcher("seeded.hip", arch)
    x = launch.rng.integers(-1000, 1000, 256).astype(i32)
    with pytest.raises(KernelFault) as caught:
        launch("race_kept_aside", 1, 256, Out(256, i32), x, i32(200))
    fault = caught.value
    assert fault.instruction is not None and re.match("(ds|flat)_(read|load)", fault.instruction)
    assert "the stored value depends on it: `" in fault.detail and "_store_" in fault.detail


def test_where_nobody_listens_it_is_a_python_warning():
    launch = Launcher("seeded.hip", "gfx942")
    x = launch.rng.integers(-1000, 1000, 256).astype(i32)
    with pytest.warns(RuntimeWarning, match="benign-race"):
        launch("race_chosen_after_write", 1, 256, Out(256, i32), x, i32(0))

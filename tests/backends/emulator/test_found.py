"""What docs/found says of the installed Triton: the emulated GPU still finds it."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import triton

import portable
from portable.backends.rocm.emulator.faults import KernelFault

FOUND = Path(__file__).resolve().parents[3] / "docs" / "found"
RELEASE = tuple(map(int, triton.__version__.split(".")[:2]))


def call(name: str, arch: str, **arguments: object) -> None:
    """The test of a file, on an emulated GPU."""
    spec = importlib.util.spec_from_file_location(name, FOUND / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    [test] = [value for key, value in vars(module).items() if key.startswith("test_")]
    with portable.emulated(arch):
        test(**arguments)


@pytest.mark.slow
@pytest.mark.skipif(RELEASE >= (3, 9), reason="Triton 3.6 to 3.8 have this fault")
def test_reads_in_flight_at_a_barrier_are_found_as_on_an_mi300x():
    with pytest.raises(KernelFault, match=r"unwaited: .* when these came to the barrier"):
        call("triton_float32_pingpong", "gfx942", pingpong=True)
    call("triton_float32_pingpong", "gfx942", pingpong=False)


@pytest.mark.slow
@pytest.mark.skipif(RELEASE != (3, 7), reason="Triton 3.7 has this fault")
def test_exchanges_of_copies_race():
    call("triton_atomic_cas", "gfx942", block=256)
    with pytest.raises(KernelFault, match="lds-race"):
        call("triton_atomic_cas", "gfx942", block=128)


@pytest.mark.slow
@pytest.mark.skipif(RELEASE > (3, 7), reason="Triton 3.6 and 3.7 have this fault")
def test_ping_pong_on_gfx950_lacks_a_wait():
    with pytest.raises(KernelFault, match="unwaited"):
        call("triton_block_pingpong", "gfx950", M=256, N=256, K=64)


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["gfx1100", "gfx1201"])
def test_a_late_warp_adds_what_another_has_stored(arch):
    """Triton's own test of add-cols; no fault of a kernel, since nobody says in which order warps run."""
    call("triton_dot_add_cols", arch, warps=4, in_place=False)
    with pytest.raises(AssertionError, match="not close"):
        call("triton_dot_add_cols", arch, warps=4, in_place=True)


@pytest.mark.slow
def test_a_fence_s_wait_is_left_in_front_of_a_loop():
    """By Triton 3.8 on gfx942 and by Triton 3.9 on gfx1100; what the files ask is right for the others."""
    codes, rows = ("triton_codes_in_lds", "gfx942"), ("triton_masked_attention", "gfx1100")
    call(*rows, stages=3)
    for release, (name, arch), arguments in (((3, 8), codes, {"groups": 3}), ((3, 9), rows, {"stages": 4})):
        if release == RELEASE:
            with pytest.raises(KernelFault, match=r"unwaited: .* the barrier"):
                call(name, arch, **arguments)
        else:
            call(name, arch, **arguments)


@pytest.mark.slow
def test_a_tree_of_all_numbers_in_the_memory_of_one_workgroup():
    pytest.importorskip("ziglang")
    source = str(FOUND / "rocm_prefix_sum.hip")
    command = [sys.executable, "-m", "portable", "emulate", "--gpu", "gfx942", source]
    wrong = subprocess.run(command, capture_output=True, text=True)
    assert wrong.returncode == 1 and "ends 8 bytes beyond the workgroup's LDS of 1024 bytes" in wrong.stderr
    right = subprocess.run([*command, "right"], capture_output=True, text=True)
    assert (right.returncode, right.stdout) == (0, "sum of one workgroup's 256 ones: 256\n")


def test_a_test_of_triton_writes_behind_its_tensor():
    with pytest.raises(KernelFault, match="out-of-bounds: write of 4 bytes at offset 12 of X, which has 4"):
        call("triton_int_annotation", "gfx942")

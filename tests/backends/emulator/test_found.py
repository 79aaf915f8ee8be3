"""What docs/found says of the installed Triton: the emulated GPU still finds it."""

from __future__ import annotations

import importlib.util
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
@pytest.mark.skipif(not (3, 7) <= RELEASE < (3, 9), reason="Triton 3.7 and 3.8 have this fault")
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


def test_a_test_of_triton_writes_behind_its_tensor():
    with pytest.raises(KernelFault, match="out-of-bounds: write of 4 bytes at offset 12 of X, which has 4"):
        call("triton_int_annotation", "gfx942")

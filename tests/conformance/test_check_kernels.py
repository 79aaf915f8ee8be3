"""`check` of outside kernels in Triton, right and wrong, on emulated GPUs."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import portable
from portable.conformance import check
from portable.errors import ArgumentError
from portable.runtime import detect

from .check_norm import NORM, judged, norm
from .outside import half_wave, right, tail

NARROW = ["bfloat16", "float16", "float32"]


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["gfx942", "gfx1100"])
def test_the_right_kernel_conforms(arch):
    report = check(right.rms_norm, "rms_norm", f"rocm:{arch}")
    assert report.conforms, str(report)
    assert report.states["Pass"] > 15
    assert {r.message for r in report.results if r.state == "NotSupported"} == {
        "it computes in float32",
        "gradient cases run with grad=True",
        "shared_inputs: no two inputs of the op have one shape and dtype",
        *(f"the function takes no weight_offset; this case has weight_offset={each}" for each in (0.1, 1.0)),
    }
    assert f"on emulated {arch}" in str(report)
    report.raise_for_failures()


def at(size: int, layout: str = "contiguous") -> list[str]:
    return [f"rms_norm/{types}/N={size},lead=3/normal/{layout}" for types in NARROW]


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["gfx942", "gfx1100"])
def test_the_kernel_that_is_wrong_on_the_tail_fails_there_alone(arch):
    whole = [*at(64), *at(128, "padded"), *at(4096)]
    report = check(tail.rms_norm, "rms_norm", f"rocm:{arch}", cases=whole)
    assert report.conforms and report.states == {"Pass": len(whole)}, str(report)
    odd = [*at(1), *at(33), *at(63, "transposed"), *at(65), *at(127, "sliced"), *at(1000)]
    report = check(tail.rms_norm, "rms_norm", f"rocm:{arch}", cases=odd)
    assert not report.conforms and report.states == {"Fail.value": len(odd)}
    for result in report.results[len(NARROW) :]:
        size = dict(result.case.shape.axes)["N"]
        assert f"3 of {3 * size} elements wrong; first wrong element [0, {size - 1}]: got " in result.message
        assert "wrong: the last column of every row" in result.message
    smoke = check(tail.rms_norm, "rms_norm", f"rocm:{arch}", types=NARROW)
    assert smoke.states["Fail.value"] >= 3


@pytest.mark.slow
def test_the_kernel_that_is_wrong_on_wave64_fails_there_alone():
    cases = [*at(33), *at(64), *at(65, "padded"), *at(1000)]
    narrow = check(half_wave.rms_norm, "rms_norm", "rocm:gfx1100", cases=cases)
    assert narrow.conforms and narrow.states == {"Pass": len(cases)}, str(narrow)
    wide = check(half_wave.rms_norm, "rms_norm", "rocm:gfx942", cases=cases)
    assert not wide.conforms and wide.states == {"Fail.value": len(cases)}
    assert check(half_wave.rms_norm, "rms_norm", "rocm:gfx1100", types=NARROW).conforms
    assert check(half_wave.rms_norm, "rms_norm", "rocm:gfx942", types=NARROW).states["Fail.value"] >= 3


def test_what_launches_nothing_on_an_emulated_gpu_is_not_judged_there():
    report = check(norm, "rms_norm", "rocm:gfx942", cases=[NORM])
    assert report.states == {"NotSupported": 1} and not report.conforms
    assert "launched nothing on the emulated gfx942" in str(report)


def test_a_read_beside_a_tensor_is_a_crash_with_the_emulators_words():
    def greedy(x, weight):
        x, y = x.contiguous(), torch.empty_like(x)
        right.rms_norm_rows[(x.numel() // x.shape[-1] + 1,)](
            x,
            weight,
            y,
            x.shape[-1],
            1e-6,
            WEIGHTED=True,  # pyright: ignore[reportArgumentType] - Triton makes it a constexpr
            BLOCK=64,  # pyright: ignore[reportArgumentType]
        )
        return y

    report = check(greedy, "rms_norm", "rocm:gfx942", cases=[NORM])
    (result,) = report.results
    assert result.state == "Crash" and "out-of-bounds" in result.message and "right.py" in result.message


def test_the_active_backend_stays_what_it_is():
    from triton.runtime import driver

    before = str(portable.device()), dict(os.environ), driver._active
    check(right.rms_norm, "rms_norm", "rocm:gfx1100", cases=[NORM])
    assert (str(portable.device()), dict(os.environ), driver._active) == before


def test_no_device_is_the_active_one():
    wanted = {"PORTABLE_BACKEND": "rocm", "PORTABLE_ROCM_ARCH": "gfx1100", "PORTABLE_EMULATE": "1"}
    build = detect.this_machine().torch_build
    detect.reset(detect.select(detect.Machine(build, {**os.environ, **wanted})))
    try:
        report = check(right.rms_norm, "rms_norm", cases=[NORM])
    finally:
        detect.reset()
    assert report.conforms and report.device == "emulated gfx1100"
    assert "check(rms_norm, 'rms_norm', cases=" in report.again(NORM)


def test_a_triton_kernel_without_its_launch_is_refused():
    with pytest.raises(ArgumentError, match="rms_norm_rows: is a Triton kernel without its launch"):
        judged(right.rms_norm_rows)


def test_a_triton_kernel_that_does_not_compile():
    import triton
    import triton.language as tl

    def uncompiled(x, weight):
        bad[(1,)](x)

    @triton.jit
    def bad(x_ptr):
        tl.store(x_ptr, no_such_name)  # noqa: F821  # pyright: ignore[reportUndefinedVariable] - on purpose

    (result,) = check(uncompiled, "rms_norm", "rocm:gfx942", cases=[NORM]).results
    assert result.state == "CompileError" and "no_such_name" in result.message


def test_the_page_shows_what_is_said(monkeypatch, capsys):
    """docs/check.md: its first program, run, prints its first output."""
    page = Path(__file__).resolve().parents[2] / "docs" / "check.md"
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    (language, program), (kind, output), *_ = blocks
    assert (language, kind) == ("python", "text")
    monkeypatch.setitem(sys.modules, "my_kernels", SimpleNamespace(rms_norm=tail.rms_norm))
    exec(program, {})
    assert capsys.readouterr().out == output

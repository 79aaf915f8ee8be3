"""`tl.device_print` and failing `tl.device_assert` of Triton programs: the text that a GPU would print."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

import portable
from portable.backends.rocm.emulator import hostcall
from portable.backends.rocm.emulator.faults import KernelFault

from .kernels.harness import arches, wave_of

jit: Any = triton.jit


@jit
def speaking(x_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, at < n)
    tl.device_print("x", x)
    tl.device_print("program", tl.program_id(0))
    tl.store(x_ptr + at, x + 1, at < n)


@jit
def saying_much(x_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at)
    tl.device_print("a line that is longer than the words of one packet of seven", x, at)
    tl.device_print("hexadecimal", at.to(tl.uint8) - 1, hex=True)
    tl.device_print("wide", at.to(tl.int64) - (1 << 40))
    tl.device_print("half", x.to(tl.float16))


@jit
def asserting(x_ptr, BLOCK: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, BLOCK))
    tl.device_assert(x < 5, "too large")
    tl.store(x_ptr + tl.arange(0, BLOCK), x + 1)


@pytest.mark.parametrize("arch", [*arches(), "gfx1201"])
def test_each_lane_says_its_value(arch, capfd):
    """It was a finding of the kind `unsupported`."""
    with portable.emulated(arch, races=True) as run:
        x = torch.arange(512, device="cuda", dtype=torch.float32)
        speaking[(4,)](x, 512, BLOCK=128, num_warps=2)
        assert torch.equal(x, torch.arange(512.0) + 1)
    assert run.findings == []
    said, wave = capfd.readouterr().out.splitlines(), wave_of(arch)
    assert sorted(said) == sorted(
        line
        for i in range(512)
        for line in (
            f"pid ({i // 128}, 0, 0) idx ({i % 128:3}) x: {i:f}",
            *([f"pid ({i // 128}, 0, 0) idx () program: {i // 128}"] if i % 128 < 2 * wave else []),
        )
    )


@pytest.mark.parametrize("arch", arches())
def test_long_lines_and_types(arch, capfd):
    with portable.emulated(arch) as run:
        saying_much[(1,)](torch.arange(64, device="cuda", dtype=torch.float32), BLOCK=64, num_warps=1)
    assert run.findings == []
    said = set(capfd.readouterr().out.splitlines())
    head = "pid (0, 0, 0) idx"
    assert f"{head} ( 7) hexadecimal: 0x06" in said and f"{head} ( 0) hexadecimal: 0xff" in said
    assert f"{head} (63) wide: {63 - (1 << 40)}" in said
    assert f"{head} ( 3) half: {3:f}" in said
    long = "a line that is longer than the words of one packet of seven:"
    assert {f"{head} ( 9) {long} (operand 0) {9:f}", f"{head} ( 9) {long} (operand 1) 9"} <= said
    assert len(said) == 5 * 64


@pytest.mark.parametrize("arch", arches())
def test_a_failing_assertion_says_so(arch, capfd):
    with portable.emulated(arch) as run:
        x = torch.zeros(64, device="cuda")
        asserting[(1,)](x, BLOCK=64, debug=True, num_warps=1)
        assert capfd.readouterr().out == ""
        with pytest.raises(KernelFault, match="trap"):
            asserting[(1,)](x * 9, BLOCK=64, debug=True, num_warps=1)
    said = capfd.readouterr()
    assert "too large" in said.out + said.err and "test_device_print.py" in said.out + said.err
    assert [each.kind for each in run.findings] == ["trap"]


def test_of_a_script(tmp_path):
    path = tmp_path / "script.py"
    source = Path(__file__).read_text()
    kernel = source[source.index("@jit\ndef speaking") : source.index("@jit\ndef saying_much")]
    path.write_text(
        "import torch, triton, triton.language as tl\njit = triton.jit\n" + kernel
        + "x = torch.zeros(4, device='cuda')\nspeaking[(1,)](x, 4, BLOCK=4, num_warps=1)\nprint('end')\n"
    )  # fmt: skip
    command = [sys.executable, "-m", "portable", "emulate", "--gpu", "gfx942", str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1] == "end" and "pid (0, 0, 0) idx (3) x: 0.000000" in lines


def padded(text: bytes) -> bytes:
    return text + bytes(8 - len(text) % 8)


def test_what_printf_makes_of_a_message():
    words = struct.pack("<qqdQ", -5, 6, 0.25, 0xABC)
    form = padded(b"%3d|%-*d|%g%%|%lx|%s|")
    assert hostcall.formatted(form + words[:8] + words[8:16] + words[:8] + words[16:]
                              + padded(b"text")) == b" -5|-5    |0.25%|abc|text|"  # fmt: skip
    assert hostcall.formatted(padded(b"%d and %d") + struct.pack("<q", 1)) == b"1 and "

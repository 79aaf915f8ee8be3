"""Lanes or waves that write values to one place of LDS which differ by no more than rounding: a warning with
its cause and the switch, no fault. Anything else that differs is a race."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

import portable
from portable.backends.rocm.emulator.faults import KernelFault, warnings_to

from .kernels.harness import Launcher, Out

jit: Any = triton.jit


@jit
def butterfly(a, b, o, V: tl.constexpr, K: tl.constexpr):
    """A @ b, whose sum over lanes is a butterfly, and what it weighs of A: lanes of a sum write it to LDS."""
    v, c = tl.arange(0, V), tl.arange(0, K)
    x = tl.sum(tl.load(a + v[:, None] * K + c[None]) * tl.load(b + c)[None], 1)
    y = tl.sum(x[:, None] * tl.load(a + v[:, None] * K + c[None]), 0)
    tl.store(o + c, y)
    tl.store(o + K + v, x)


@pytest.mark.slow
def test_a_fused_sum_in_a_butterfly_is_a_warning():
    torch.manual_seed(0)
    a, b = torch.randn(8, 32), torch.randn(32)
    for fused in (True, False):
        with portable.emulated("gfx942") as run:
            x, y, out = a.cuda(), b.cuda(), torch.empty(40, device="cuda")
            butterfly[(1,)](x, y, out, V=8, K=32, num_warps=1, enable_fp_fusion=fused)
            want = x.double() @ y.double()
            torch.testing.assert_close(out[32:].double(), want, rtol=1e-5, atol=1e-5)
        assert run.findings == []
        if not fused:
            assert run.warnings == []
            continue
        (told,) = run.warnings
        assert (told.kind, told.kernel, told.level) == ("rounding", "butterfly", "warning")
        assert "differ by rounding" in told.message and "enable_fp_fusion=False" in told.message
        assert told.file == __file__ and told.line is not None


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32).view(np.int32)


def halves(*values: float) -> np.ndarray:
    return np.array(values, np.float16).view(np.int32)


# name, two words that a word gets, whether they differ by rounding only
WORDS = [
    ("float32", np.nextafter(floats(1.5).view(np.float32), 2).view(np.int32)[0], floats(1.5)[0], True),
    ("float32 of another size", floats(1.5)[0], floats(1.501)[0], False),
    ("float32 of another sign", floats(1.5)[0], floats(-1.5)[0], False),
    ("two float16", halves(0.75, 3)[0], halves(0.7505, 3)[0], True),
    ("two float16, one far", halves(0.75, 3)[0], halves(0.75, 3.02)[0], False),
    ("numbers", np.int32(5), np.int32(6), False),
    ("large numbers", np.int32(70_000), np.int32(70_001), False),
]


def test_a_sum_that_cancels_is_measured_by_its_neighbours():
    """0.0003 of lanes that hold 0.2: 128 units in its last place are less than one of theirs."""
    launch = Launcher("near.hip", "gfx942")
    words = floats(0.0003, 0.0003, 0.2, 0.2)
    x = np.tile(words, 16)
    x[0] += 128
    with pytest.raises(KernelFault, match="differ by rounding"):
        launch("pairs_write_one_word", 1, 64, Out(64, np.int32), x)
    x[0] += 2_000_000
    with pytest.raises(KernelFault, match="lds-race"):
        launch("pairs_write_one_word", 1, 64, Out(64, np.int32), x)


@pytest.mark.parametrize("kernel", ["pairs_write_one_word", "race_write_after_write"])
@pytest.mark.parametrize(
    ("one", "other", "rounding"), [row[1:] for row in WORDS], ids=[row[0] for row in WORDS]
)
def test_what_differs_by_rounding(kernel, one, other, rounding):
    if kernel == "pairs_write_one_word":  # lanes of one instruction
        launch, threads = Launcher("near.hip", "gfx942"), 64
        x = np.array([one, other] * 32, np.int32)
    else:  # two waves
        launch, threads = Launcher("seeded.hip", "gfx942"), 128
        x = np.repeat(np.array([one, other], np.int32), 64)
    out = Out(threads, np.int32)
    if rounding:
        with pytest.raises(KernelFault, match=r"rounding: two .* that differ by rounding"):
            launch(kernel, 1, threads, out, x)
        told: list[KernelFault] = []
        with warnings_to(told.append):
            found = launch(kernel, 1, threads, out, x)
        assert set(found.tolist()) <= {one, other} and [each.kind for each in told] == ["rounding"]
    else:
        with pytest.raises(KernelFault, match="lds-race"):
            launch(kernel, 1, threads, out, x)
    launch(kernel, 1, threads, out, np.full(threads, one, np.int32))

"""The corpora of `weather`: what is judged of a program, and that the judge rejects."""

from __future__ import annotations

import json
import os
import sys
import time

import pytest
import torch
import triton
import triton.language as tl

import portable
from portable.conformance.corpora import liger, run, tutorials
from portable.conformance.corpora.program import Compared, Program, fault, with_gradients


@pytest.mark.parametrize(
    "got, state",
    [
        ([1.0, 2.0], None),
        ([1.0, 2.0001], None),
        ([1.0, 2.1], "Fail.value"),
        ([1.0, float("nan")], "Fail.nonfinite"),
        ([1.0, 2.0, 3.0], "Fail.shape"),
    ],
)
def test_what_is_right(got, state):
    found = fault([Compared("y", torch.tensor(got), torch.tensor([1.0, 2.0], dtype=torch.float64), 1e-3)])
    assert (found and found[0]) == state and (found is None or found[1].startswith("y: "))


def test_a_wrong_gradient_and_a_missing_one_are_seen():
    x, pair = {"x": torch.randn(5)}, {"x": torch.randn(5), "y": torch.randn(5)}
    with portable.emulated("gfx942"):
        assert fault(with_gradients(lambda x: x * x, torch.square, x, 1e-4)) is None
        found = fault(with_gradients(lambda x: x * x.detach(), torch.square, x, 1e-4))
        assert found is not None and found[0] == "Fail.value" and found[1].startswith("gradient of x")
        with pytest.raises(AssertionError, match="no gradient of y"):
            with_gradients(lambda x, y: x + 0 * y.detach(), lambda x, y: x + 0 * y, pair, 1e-4)


@triton.jit
def count(x_ptr, BLOCK: tl.constexpr, AT: tl.constexpr):
    tl.store(x_ptr + AT + tl.arange(0, BLOCK), tl.arange(0, BLOCK))


def counted(size: int, at: int = 0, more: int = 0):
    def program() -> list[Compared]:
        x = torch.zeros(size, dtype=torch.int32, device="cuda")
        count[(1,)](x, BLOCK=64, AT=at)  # pyright: ignore
        return [Compared("x", x, torch.arange(64).double() + more, 0.0)]

    return Program("count/int32", program)


def died() -> list[Compared]:
    os._exit(3)


def test_the_states_of_programs():
    assert run.judge(counted(64), "gfx942") == ("Pass", "")
    state, message = run.judge(counted(64, more=1), "gfx942")
    assert (state, message) == ("Fail.value", "x: 64 of 64 elements, the largest error 1, allowed 0")
    state, message = run.judge(counted(64, at=1000), "gfx942")
    assert state == "Crash" and message.startswith("KernelFault: count: out-of-bounds: ")
    assert run.judge(Program("nothing/int32", lambda: []), "gfx942") == (
        "InternalError", "it launched no kernel"
    )  # fmt: skip
    state, message = run.judge(Program("raises/int32", lambda: 1 // 0), "gfx942")  # pyright: ignore
    assert state == "Crash" and message.startswith("ZeroDivisionError")


@pytest.mark.slow
def test_a_program_that_dies_or_hangs_ends_alone():
    assert run.judged_apart(Program("dies/int32", died), "gfx942") == ("Crash", "its process ended with 3")
    hangs = Program("hangs/int32", lambda: time.sleep(60))  # pyright: ignore
    assert run.judged_apart(hangs, "gfx942", limit=1) == ("Timeout", "more than 1 s")
    assert run.judged_apart(counted(64), "gfx942") == ("Pass", "")


def test_the_numbers_of_triton_s_generator():
    """Known answers of Philox4x32-10 with a counter and a key of zeros, and of ones (Random123)."""
    assert tutorials._philox(0, torch.tensor([0])).tolist() == [0x6627E8D5]


@pytest.mark.parametrize("names", ["add/", "dropout/", "layer_norm/float32", "softmax/float32/length=64"])
def test_programs_of_the_tutorials(names):
    chosen = [each for each in tutorials.programs() if each.name.startswith(names)]
    assert chosen and all(run.judge(each, "gfx1100") == ("Pass", "") for each in chosen)


@pytest.mark.slow
def test_a_fault_of_triton_s_that_the_tutorials_show():
    """Float32 products with ping-pong, docs/found/triton_float32_pingpong.py; mended in Triton 3.9."""
    (each,) = [each for each in tutorials.programs() if each.name.startswith("matmul/float32/128x128x64")]
    state, message = run.judge(each, "gfx942")
    old = tuple(map(int, triton.__version__.split(".")[:2])) < (3, 9)
    assert ("unwaited" in message) == old and state == ("Crash" if old else "Pass")


def test_the_references_of_liger():
    """Against torch's own where it has the function."""
    x = torch.randn(4, 40, dtype=torch.float64)
    logarithms = [torch.randn(4, 40).double().log_softmax(-1) for _ in range(2)]
    kinds = torch.stack([each.exp() for each in logarithms])
    middle = kinds.mean(0)
    divergence = (kinds * (kinds / middle).log()).sum() / 8
    assert torch.allclose(liger._jsd(*logarithms), divergence)
    assert torch.allclose(liger._scaled(x), torch.nn.functional.rms_norm(x, (40,), eps=liger.EPS))
    points = liger._sparsemax(3 * x, -1)
    assert torch.allclose(points.sum(-1), torch.ones(4).double()) and (points == 0).any()


@pytest.mark.slow
def test_liger_and_its_record(tmp_path, monkeypatch):
    pytest.importorskip("liger_kernel")
    out = tmp_path / "liger.json"
    options = ["--corpus", "liger", "--arch", "gfx942", "-k", "swiglu", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["run", *options])
    assert run.main() == 0
    found = json.loads(out.read_text())
    assert [(each["case"], each["state"]) for each in found["results"]] == [
        ("swiglu/float32", "Pass"), ("swiglu/bfloat16", "Pass"),
    ]  # fmt: skip
    assert found["header"]["digest"] == run.digest("liger") and "liger-kernel" in found["header"]["package"]

"""`portable.conformance.check`: which cases a function is judged by, and the state of what it raises."""

from __future__ import annotations

import re

import pytest
import torch

from portable.conformance import Unsupported, check
from portable.conformance.cases.case import UnknownCase, parse
from portable.conformance.checker import api
from portable.conformance.execute import runner
from portable.errors import ArgumentError, BackendError, CompileError, UnknownOpError
from portable.spec import registry

from .check_norm import BARE, NORM, SOFTMAX, judged, norm, raising, state


def test_types_restrict_what_is_claimed():
    mixed = NORM.replace("float32/", "bfloat16,W=float32/")
    half, single = NORM.replace("float32/", "bfloat16/"), NORM

    def states(types):
        return [r.state for r in judged(norm, half, single, mixed, types=types).results]

    no, yes = "NotSupported", "Pass"
    assert states(None) == [yes, yes, yes]
    assert states(["bfloat16"]) == [yes, no, no]
    assert states(["bfloat16", "float32"]) == [yes, yes, yes]
    assert states(["bfloat16,W=float32"]) == [no, no, yes]
    with pytest.raises(ArgumentError, match="Did you mean 'bfloat16'"):
        states(["bfloat"])


def test_a_tier_is_asked_whole():
    narrow = check(norm, "rms_norm", "cpu", types=["float32"])
    assert narrow.conforms and len(narrow.results) > 30, str(narrow)
    assert str(narrow).startswith("CONFORMS: ")


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"op": "rms_nrom"}, UnknownOpError, "Did you mean 'rms_norm'"),
        ({"tier": "smok"}, ArgumentError, "smoke, core, full"),
        ({"cases": []}, ArgumentError, "one case or more"),
        ({"cases": ["rms_norm/float31/N=1/normal/contiguous"]}, UnknownCase, "float31"),
        ({"cases": [parse(SOFTMAX, registry.spec("softmax"))]}, ArgumentError, "cases of rms_norm"),
        ({"device": "rcom"}, ArgumentError, "Did you mean 'rocm'"),
        ({"device": "rocm:gfx943"}, ArgumentError, "rocm:gfx942"),
        ({"device": "cpu:zen"}, ArgumentError, "cpu alone"),
    ],
)
def test_arguments_that_cannot_be_meant(options, error, said):
    with pytest.raises(error, match=re.escape(said)):
        check(norm, **{"op": "rms_norm", "device": "cpu", "cases": [NORM], **options})


@pytest.mark.skipif(torch.version.cuda is not None, reason="a GPU is here, or torch's build for one")
@pytest.mark.parametrize("device", ["cuda", "cuda:sm_90a"])
def test_a_gpu_that_is_not_there(device):
    with pytest.raises(BackendError, match="PORTABLE_BACKEND=cuda: ") as caught:
        check(norm, "rms_norm", device, cases=[NORM])
    assert "software" not in str(caught.value)


def test_an_emulated_gpu_that_is_forbidden(monkeypatch):
    monkeypatch.setenv("PORTABLE_EMULATE", "0")
    with pytest.raises(BackendError, match="PORTABLE_BACKEND=rocm"):
        check(norm, "rms_norm", "rocm:gfx942", cases=[NORM])
    assert state(norm) == "Pass"
    monkeypatch.setenv("PORTABLE_EMULATE", "1")
    assert state(norm) == "Pass"


@pytest.mark.parametrize(
    ("error", "expected", "said"),
    [
        (Unsupported("rows of 33 are not for it"), "NotSupported", "rows of 33 are not for it"),
        (ValueError("no such tile"), "Crash", "ValueError: no such tile (check_norm.py:"),
        (CompileError("norm", "unknown type"), "CompileError", "unknown type"),
        (torch.OutOfMemoryError("tried to allocate"), "ResourceError", "tried to allocate"),
    ],
)
def test_an_exception_is_a_state(error, expected, said):
    (result,) = judged(raising(error)).results
    assert result.state == expected and said in result.message, result


def test_what_declines_everything_does_not_conform():
    report = judged(raising(Unsupported("never")), NORM, BARE)
    assert report.states == {"NotSupported": 2} and not report.conforms
    assert "Nothing was judged" in str(report)
    with pytest.raises(AssertionError, match="never"):
        report.raise_for_failures()
    assert not judged(norm, NORM, types=["float16"]).conforms


def test_a_lost_device_ends_the_check(monkeypatch):
    def lost(device):
        raise RuntimeError("unspecified launch failure")

    def crash(x, weight=None):
        monkeypatch.setattr(runner, "synchronize", lost)
        raise RuntimeError("launch failed")

    report = judged(crash, NORM, BARE)
    assert [r.state for r in report.results] == ["Crash", "NotRun"]
    assert "the device was lost in" in report.results[1].message and not report.conforms


def test_a_broken_reference_is_the_suites_fault(monkeypatch):
    monkeypatch.setattr(api.reference, "materialize", raising(RuntimeError("no reference")))
    (result,) = judged(norm).results
    assert result.state == "InternalError" and "the reference failed" in result.message


def test_a_behaviour_is_declined_as_a_case_is():
    """It was a Crash: a right function that declines bfloat16 did not conform."""

    def narrow(x, dim=-1):
        if x.dtype != torch.float32:
            raise Unsupported("it computes in float32")
        return torch.softmax(x, dim)

    cases = [f"softmax/behaviour/{name}" for name in api.BEHAVIOURS]
    assert [each.state for each in check(narrow, "softmax", "cpu", cases=cases[:2]).results] == ["Pass"] * 2

    def none(x, dim=-1):
        raise Unsupported("it computes nothing")

    report = check(none, "softmax", "cpu", cases=cases)
    assert report.states == {"NotSupported": len(cases)}
    assert report.results[0].message == "it computes nothing"

"""What `check` says: its truth, equal failures once, strides, how far it is, the line that asks again."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import torch

import portable
from portable.conformance import Unsupported, progress
from portable.conformance.checker import api
from portable.conformance.states import STATES

from .check_norm import BARE, NORM, judged, norm, zeros


def test_its_truth_is_the_verdict():
    """`assert check(f, op)` said yes to a wrong kernel: every report was true."""
    assert judged(norm)
    assert not judged(zeros), "a wrong function"
    assert not judged(zeros, NORM, BARE, NORM.replace("N=33", "N=1")), "one that fails some cases"

    def declines(x, weight=None):
        raise Unsupported("all of it")

    assert not judged(declines), "one that declines every case"
    assert not judged(norm, types=["float64"]), "one that claims another type"
    assert not api.Report("f", "rms_norm", "CPU"), "no case at all"

    def breaks(x, weight=None):
        raise RuntimeError("no kernel image")

    assert not judged(breaks)


def test_a_report_shows_equal_failures_once_and_counts_the_others():
    """Seven zeros in a row were five nearly equal paragraphs, and the crash after them none."""
    many = [NORM.replace("N=33", f"N={size}") for size in range(30, 37)]

    def wrong(x, weight=None):
        if x.shape[-1] == 36:
            raise RuntimeError("no rows of 36")
        return torch.zeros_like(x)

    report = judged(wrong, *many)
    text = str(report)
    head = (
        f"DOES NOT CONFORM: wrong as rms_norm on {report.device}: 7 judged (7 fail)\nCrash 1, Fail.value 6\n"
    )
    assert text.startswith(head) and report.device.startswith("CPU")
    assert len(re.findall("^Fail.value: rms_norm/", text, re.MULTILINE)) == 1
    assert "  5 more fail in this way: " + ", ".join(many[1:4]) + " and 2 more\n" in text
    assert len(re.findall("^Crash: rms_norm/", text, re.MULTILINE)) == 1 and "no rows of 36" in text
    assert len(report.failures) == 7 and all(r.state in STATES for r in report.results)


def test_a_report_shows_five_kinds_of_failures_and_counts_the_others():
    many = [NORM.replace("N=33", f"N={size}") for size in range(30, 37)]

    def wrong(x, weight=None):
        raise RuntimeError("abcdefg"[x.shape[-1] - 30])

    text = str(judged(wrong, *many))
    assert len(re.findall("^Crash: rms_norm/", text, re.MULTILINE)) == 5
    assert text.endswith("and 2 more that fail, in `report.failures`")


def test_a_failure_names_the_strides_of_what_is_not_contiguous():
    def flat(x, weight=None):  # reads x as if its rows followed one another
        return norm(x.as_strided(x.shape, (x.shape[-1], 1)), weight)

    padded = [BARE.replace("lead=4", f"lead={count}") for count in (3, 5, 6)]
    plain = [each.replace("padded", "contiguous") for each in padded]
    text = str(judged(flat, *padded, *plain))
    assert re.search(r"not contiguous: x of shape \(3, 65\) with strides \(\d\d+, 1\)", text)
    assert text.endswith("calls .contiguous() in its wrapper.")
    assert "in its wrapper" not in str(judged(zeros, *padded, *plain)), "wrong everywhere"
    assert "in its wrapper" not in str(judged(flat, *padded, plain[0])), "one case that passes is no pattern"


def test_a_check_says_how_far_it_is_on_stderr(monkeypatch, capsys):
    """It was silent for 95 s."""
    monkeypatch.setattr(progress, "EVERY", 0.0)
    judged(norm, NORM, BARE)
    said, err = capsys.readouterr()
    assert not said
    assert re.search(r"^  1 of 2 results, rms_norm, about \d+ s left$", err, re.MULTILINE)


def test_the_line_that_asks_again_does():
    report = judged(zeros, NORM)
    line = re.search("again: (.*)", str(report))
    assert line is not None
    again = eval(line.group(1), {"portable": portable, "zeros": zeros})
    assert str(again) == str(report)


def test_a_failed_assertion_shows_the_report():
    report = portable.conformance.check(
        lambda x: x, "softmax", cases=["softmax/float32/N=33,lead=3x5/normal/contiguous"]
    )
    assert repr(report) == str(report) and repr(report).startswith("DOES NOT CONFORM: ")


@pytest.mark.slow
def test_the_suite_is_there_once_the_library_is():
    """README calls `portable.conformance.check` after `import portable` alone."""
    code = "import portable, sys; print('portable.conformance' in sys.modules, portable.conformance.check)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ran.stdout.startswith("False <function check"), ran.stderr

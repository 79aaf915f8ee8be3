"""Each wrong function that the judge once accepted is rejected now; the right one passes the same case."""

from __future__ import annotations

import pytest
import torch

import portable
from portable.conformance import check
from portable.conformance.cases.case import op_of, parse
from portable.conformance.cases.generate import cases
from portable.conformance.execute import behaviour, runner
from portable.conformance.judge import reference
from portable.spec import registry

from .wrong_calls import WRONG
from .wrong_functions import Wrong

CPU = torch.device("cpu")
ASKED = sorted({wrong.case for wrong in WRONG})
SECONDS = ("M=2040", "M=2,N=3,K=3", "N=1027", "K=20003", "lead=2049", "lead=300", "N=40008", "compiled_forms")
"""What is in the ids of cases that take a second and more."""


def marked(value, name, case):
    return pytest.param(value, id=name, marks=[pytest.mark.slow] * any(part in case for part in SECONDS))


def judged(wrong: Wrong, monkeypatch) -> bool:
    """Whether the judge accepts a wrong function."""
    if wrong.how == "check":
        grad = wrong.case.endswith(("/grad", "/autograd"))
        return check(wrong.function, wrong.op, "cpu", cases=[wrong.case], grad=grad).conforms
    monkeypatch.setattr(portable, wrong.op, wrong.function, raising=False)
    asked = behaviour.parse(wrong.case)
    assert asked is not None
    return behaviour.run(asked, "torch", CPU).conforms


@pytest.mark.parametrize("wrong", [marked(wrong, str(wrong), wrong.case) for wrong in WRONG])
def test_a_wrong_function_is_rejected(wrong, monkeypatch):
    assert not judged(wrong, monkeypatch), f"{wrong.case} accepts it"


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in ASKED if "/behaviour/" not in case])
def test_the_right_one_passes(case):
    """The behaviours of the right ones are in test_behaviour.py."""
    spec = registry.spec(op_of(case))
    result = runner.run_case(reference.materialize(parse(case, spec), spec), "torch", CPU)
    assert result.state == "Pass", result.message


def test_every_case_is_in_a_tier():
    """The 2^16 matrices take an emulated GPU minutes, torch.compile in every form seconds an op."""
    matrices = "matmul/bfloat16/M=2,N=3,K=3,lead=65537/normal/contiguous"
    only_full = {matrices, "softmax/behaviour/compiled_forms"}
    core, full = (
        {
            each.id
            for op in {wrong.op for wrong in WRONG}
            for each in [*cases(registry.spec(op), tier), *behaviour.cases([op], tier)]
        }
        for tier in ("core", "full")
    )
    assert set(ASKED) - core == only_full and only_full <= full

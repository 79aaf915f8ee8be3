"""The behaviour cases on the CPU: what passes, and that a misbehaving op does not."""

from __future__ import annotations

import pytest
import torch

import portable
from portable.conformance import behaviour

CPU = torch.device("cpu")


@pytest.mark.parametrize("case", behaviour.cases(portable.ops()), ids=lambda case: case.id)
def test_the_ops_behave(case):
    result = behaviour.run(case, "torch", CPU)
    assert result.conforms, result.message
    assert (result.state == "NotSupported") <= bool(result.message)


def test_an_id_names_a_behaviour():
    assert behaviour.parse("softmax/behaviour/two_threads") == behaviour.Behaviour("softmax", "two_threads")
    assert behaviour.parse("softmax/behaviour/nothing") is None
    assert behaviour.parse("softmax/float32/N=3") is None


@pytest.mark.parametrize(
    "name, wrong",
    [
        ("rows_alone", lambda x: x - x.mean()),  # a row's result depends on the batch
        ("two_threads", lambda x: x + torch.rand(())),
        ("autograd", lambda x: x.detach().requires_grad_()),
    ],
)
def test_a_misbehaving_op_is_caught(monkeypatch, name, wrong):
    monkeypatch.setattr(portable, "softmax", wrong, raising=False)
    result = behaviour.run(behaviour.Behaviour("softmax", name), "torch", CPU)
    assert result.state == "Fail.behaviour", result


def test_an_exception_is_a_crash(monkeypatch):
    def broken(x):
        raise ZeroDivisionError("no")

    monkeypatch.setattr(portable, "softmax", broken, raising=False)
    result = behaviour.run(behaviour.Behaviour("softmax", "rows_alone"), "torch", CPU)
    assert result.state == "Crash" and "ZeroDivisionError" in result.message

"""What configs are timed and judged on: indices below their bound, derived inputs, integers held equal."""

from __future__ import annotations

import pytest
import torch

from portable.dispatch import dispatcher, pins
from portable.spec import registry
from portable.tune import accuracy, problem
from tests.op_folders import fresh, on_search_path

SPEC = """\
schema_version: 1
op: looked_up
summary: y = table[index] * scale, and the index plus one.
axes: {V: 1.., N: 1.., D: 1..}
types:
  - {T: float32, acc: float32}
inputs:
  table: {shape: [V, D], dtype: T}
  index: {shape: [N], dtype: int64, below: V}
  few: {shape: [N], dtype: int32, below: 3}
  order: {shape: [N], dtype: int32, derived: "reference.py:derived"}
  kept: {shape: [N], dtype: bool}
outputs:
  y: {shape: [N, D], dtype: T}
  after: {shape: [N], dtype: int64}
reference: {entry: "reference.py:looked_up"}
tolerance:
  y: {result_ulp: 0.51, accumulation_ulp: 4}
cost: {flops: "N * D", roof: vector, baseline: "baseline.py:looked_up"}
cases:
  - {V: 5, N: 3, D: 2}
implementations:
  - {name: torch, run: reference, language: torch}
"""
REFERENCE = """
def looked_up(table, index, few, order, kept):
    return table[index] * (few + 1)[:, None] * kept[:, None], index + 1

def derived(axes, bits):
    raise NotImplementedError("for the suite alone")
"""
BASELINE = """
import torch

def derived(tensors, facts):
    assert facts["V"] == 5 and tensors["order"] is None
    return {"order": torch.argsort(tensors["index"]).to(torch.int32)}
"""


@pytest.fixture
def subject(tmp_path):
    """64 look-ups in a table of 5 rows."""
    files = {"spec.yaml": SPEC, "reference.py": REFERENCE, "baseline.py": BASELINE}
    with on_search_path(tmp_path, {"looked_up": files}):
        spec = registry.spec("looked_up")
        shapes = [(5, 2), (64,), (64,), (64,), (64,)]
        yield problem.of_shapes(spec, "torch", shapes, problem.type_row(spec, "float32"), {})


def test_indices_are_drawn_below_their_bound(subject):
    tensors = subject.tensors("cpu", seed=0)
    assert set(tensors["index"].tolist()) == set(range(5)) and tensors["index"].dtype == torch.int64
    assert set(tensors["few"].tolist()) == {0, 1, 2} and tensors["few"].dtype == torch.int32
    assert set(tensors["kept"].tolist()) == {False, True}
    assert not torch.equal(tensors["index"], subject.tensors("cpu", seed=1)["index"])


def test_derived_inputs_follow_from_the_others(subject):
    tensors = subject.tensors("cpu", seed=0)
    assert tensors["order"].dtype == torch.int32
    assert torch.equal(tensors["order"].long(), torch.argsort(tensors["index"]))


def test_the_reference_gets_integers_as_they_are_and_integers_must_be_equal(subject):
    tensors = subject.tensors("cpu", seed=0)
    judge = accuracy.Judge(subject, tensors)
    y = tensors["table"][tensors["index"]] * (tensors["few"] + 1)[:, None] * tensors["kept"][:, None]
    after = tensors["index"] + 1
    assert judge.kind == "float64" and judge.wrong([y, after]) == ""
    after[7] += 1
    assert judge.wrong([y, after]) == "after is wrong: 1 of 64 integers differ"
    assert "y is wrong" in judge.wrong([y * 1.001, after])


def _tunable() -> list[str]:
    """Every op, internal ones too, some implementation of which has tunables."""
    return [
        op for op in registry.op_folders() if any(each.tunables for each in registry.spec(op).implementations)
    ]


@pytest.mark.parametrize("op", _tunable())
def test_every_op_that_can_be_tuned_has_a_reference_for_the_judge(op, monkeypatch):
    """Of a small call with elements: the judge accepts what torch computes."""
    monkeypatch.setenv("PORTABLE_BACKEND", "cpu")
    fresh()
    spec = registry.spec(op)
    first = spec.type_variables[0]
    row = next((row for row in spec.types if row[first] == "bfloat16"), spec.types[0])
    case = spec.latency_case or next(each for each in spec.cases if all(each.axes.values()))
    one = problem.of_case(spec, spec.implementations[-1].name, case, row)
    tensors = one.tensors("cpu", seed=0)
    judge = accuracy.Judge(one, tensors)
    with pins.using(**{op: "torch"}):
        made = dispatcher.op(op)(*tensors.values(), **dict(zip(spec.params, one.values(), strict=True)))
    several = (made if isinstance(made, tuple) else (made,)) if spec.outputs else ()
    written = [tensors[name] for name in spec.mutated]
    assert judge.kind == "float64" and judge.wrong([*several, *written]) == ""

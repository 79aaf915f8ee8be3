"""Exploration draws legal calls of every kind, and a failure comes out as a line to commit."""

from __future__ import annotations

import re

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from portable.conformance.cases import generate
from portable.conformance.execute.fuzz import as_regression_line, calls, fuzz_ops
from portable.conformance.execute.result import Result
from portable.spec import registry

CPU = torch.device("cpu")


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_every_drawn_call_has_an_id_that_rebuilds_it(data):
    spec = registry.spec(data.draw(st.sampled_from(sorted(registry.op_folders()))))
    case = data.draw(calls(spec))
    assert generate.parse(case.id, spec) == case
    assert generate.lawful(spec, dict(case.shape.axes), case.params)


def test_choices_of_parameters_are_drawn_too():
    seen = set()

    @settings(max_examples=200, deadline=None, database=None, derandomize=True)
    @given(calls(registry.spec("linear")))
    def draw(case):
        seen.add(case.params.get("activation"))

    draw()
    assert seen == {None, "relu", "gelu", "gelu_tanh", "silu"}


def test_a_failure_is_handed_over_and_reads_as_a_line_of_regressions(norm, tmp_path):
    told: list[Result] = []
    failures, count = fuzz_ops(["toy_norm"], CPU, 1.0, ["plain", "zeros"], on_failure=told.append)
    assert told == failures and [each.impl for each in failures] == ["zeros"] and count > 10
    text = as_regression_line(failures[0])
    comment, line = text.splitlines()
    assert re.fullmatch(r"# \d{4}-\d\d-\d\d toy_norm, zeros on .*: y: Fail\.value.*", comment), comment
    file = tmp_path / "regressions.txt"
    file.write_text("# found\n" + text)
    (case,) = generate.regressions(norm, file)
    assert case == failures[0].case and case.id == line


def test_a_message_of_many_lines_stays_one_comment(norm):
    case = generate.cases(norm, "smoke")[0]
    result = Result(case, "plain", "CompileError", "it did not compile:\n  error: no\n  another")
    assert as_regression_line(result).count("\n") == 2
    assert as_regression_line(Result(case, "plain", "Timeout")).splitlines()[0].endswith(": Timeout")

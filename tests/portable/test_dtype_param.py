"""A parameter that says the dtype of a type variable which no input has, as an output's."""

from __future__ import annotations

import pytest
import torch

import portable
from portable import errors
from portable.conformance.cases import case as case_module
from portable.conformance.cases import generate
from portable.conformance.cases.case import parse
from portable.conformance.execute import runner
from portable.conformance.judge import reference
from portable.runtime import detect
from portable.spec import registry
from tests.op_folders import fresh, on_search_path

SPEC = """\
schema_version: 1
op: cast_sum
summary: y = the sum of each row of x, in the dtype asked for.
axes: {N: 0..}
types:
  - {T: float32, R: float32, acc: float32}
  - {T: float32, R: bfloat16, acc: float32}
  - {T: bfloat16, R: bfloat16, acc: float32}
inputs:
  x: {shape: ["...", N], dtype: T}
  shift: {shape: [1], dtype: R, optional: true}
params:
  output_dtype: {type: dtype, of: R, keyword: true}
outputs:
  y: {shape: ["..."], dtype: R}
reference: {entry: "reference.py:cast_sum", error_scale: "reference.py:error_scale"}
tolerance:
  y: {result_ulp: 0.51, accumulation_ulp: "2 + N"}
cost: {flops: "B * N", roof: vector}
cases:
  - {N: 6, leading: [3]}
implementations:
  - {name: torch, run: reference, language: torch}
"""
REFERENCE = """
def cast_sum(x, shift=None):
    return x.sum(-1) + (0 if shift is None else shift[0])

def error_scale(x, shift=None):
    return {"y": x.square().sum(-1).sqrt() + (0 if shift is None else shift[0].abs())}
"""


class Wrapped(torch.Tensor):
    """A subclass that changes nothing."""


@pytest.fixture
def folder(tmp_path):
    """The op's folder, on the search path."""
    with on_search_path(tmp_path, {"cast_sum": {"spec.yaml": SPEC, "reference.py": REFERENCE}}):
        yield tmp_path / "cast_sum"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_output_has_the_dtype_that_a_call_says(folder, dtype):
    x = torch.arange(12.0).reshape(2, 6)
    for _ in range(2):  # the second finds the first's plan
        made = portable.cast_sum(x, output_dtype=dtype)
        assert made.dtype == dtype and made.tolist() == [15.0, 51.0]
    assert portable.cast_sum(x.to("meta"), output_dtype=dtype).dtype == dtype


def test_a_dtype_that_no_row_has_is_refused_beside_what_was_given(folder):
    with pytest.raises(errors.ParameterError, match="output_dtype") as caught:
        portable.cast_sum(torch.ones(2, 6), output_dtype=torch.float16)
    assert "torch.float32, torch.bfloat16" in str(caught.value)
    with pytest.raises(errors.ParameterError) as caught:
        portable.cast_sum(torch.ones(2, 6).bfloat16(), output_dtype=torch.float32)
    assert "torch.bfloat16 beside 'x' of bfloat16" in str(caught.value)
    with pytest.raises(errors.ParameterError):
        portable.cast_sum(torch.ones(2, 6), output_dtype=16)
    with pytest.raises(errors.PortableError, match="output_dtype"):
        portable.cast_sum(torch.ones(2, 6))


@pytest.mark.parametrize("guise", [torch.clone, torch.nn.Parameter, lambda x: x.as_subclass(Wrapped)])
def test_a_name_is_a_dtype_whatever_way_a_call_goes(folder, guise):
    x = guise(torch.arange(12.0).reshape(2, 6))
    for name in ("bfloat16", "torch.bfloat16"):
        assert portable.cast_sum(x, output_dtype=name).dtype == torch.bfloat16
    for wrong in ("float16", "half a float", 10**5000, torch.int8):
        with pytest.raises(errors.ParameterError, match="output_dtype"):
            portable.cast_sum(x, output_dtype=wrong)


def test_vmap_passes_it(folder):
    x = torch.arange(24.0).reshape(2, 2, 6)
    made = torch.func.vmap(lambda x: portable.cast_sum(x, output_dtype=torch.bfloat16))(x)
    assert made.dtype == torch.bfloat16 and made.tolist() == x.sum(-1).tolist()


@pytest.mark.slow
def test_torch_compile_passes_it(folder):
    compiled = torch.compile(
        lambda x: portable.cast_sum(x, output_dtype=torch.bfloat16), backend="eager", fullgraph=True
    )
    assert compiled(torch.ones(2, 6)).dtype == torch.bfloat16


def test_cases_of_each_row_ask_for_its_dtype(folder):
    spec = registry.spec("cast_sum")
    cases = generate.cases(spec, "core")
    assert {dict(case.types)["R"] for case in cases if "shift" in case.shape.absent} == {
        "float32",
        "bfloat16",
    }
    assert {(dict(case.types)["T"], dict(case.types)["R"]) for case in cases} == {
        ("float32", "float32"), ("float32", "bfloat16"), ("bfloat16", "bfloat16"),
    }  # fmt: skip
    results = [
        runner.run_case(reference.materialize(case, spec), "torch", torch.device("cpu")) for case in cases
    ]
    assert {result.state for result in results} <= {"Pass", "NotSupported"}
    assert {dict(r.case.types)["R"] for r in results if r.state == "Pass"} == {"float32", "bfloat16"}
    assert all(case_module.parse(case.id, spec) == case for case in cases)


def test_a_case_keeps_the_dtype_that_it_says_where_no_input_has_it(folder):
    spec = registry.spec("cast_sum")
    asked = [case for case in generate.cases(spec, "core") if dict(case.types)["T"] == "float32"]
    assert {dict(case.types)["R"] for case in asked} == {"float32", "bfloat16"}
    case = next(case for case in asked if dict(case.types)["R"] == "bfloat16")
    assert parse(case.id, spec) == case


def test_a_default_or_an_unknown_type_variable_is_refused(folder):
    for wrong, says in (("of: Q", "'Q' is not a type variable"), ("of: R, default: float32", "no default")):
        (folder / "spec.yaml").write_text(SPEC.replace("of: R", wrong))
        fresh()
        with pytest.raises(errors.SpecError, match=r"spec\.yaml:13") as caught:
            registry.spec("cast_sum")
        assert says in str(caught.value)


def test_an_implementation_may_have_a_bound_of_its_own_on_an_arch(folder):
    """As for matrix units that keep fewer bits: on that GPU alone, and not for another implementation."""
    text = (folder / "spec.yaml").read_text()
    loose = text.replace(
        "run: reference, language: torch}",
        'run: reference, language: torch, accumulation_ulp: {cpu: "1 + N"}}',
    )
    for arch, wide in (("*", True), ("gfx*", False)):
        (folder / "spec.yaml").write_text(loose.replace("{cpu:", f'{{"{arch}":'))
        fresh()
        spec = registry.spec("cast_sum")
        case = next(each for each in generate.cases(spec, "smoke") if dict(each.shape.axes)["N"] == 6)
        materialized = reference.materialize(case, spec)
        own = materialized.on(spec.implementations[0], detect.main_backend(), detect.device())
        assert materialized.expected["y"].tolerance.accumulation_ulp == 8
        assert own.expected["y"].tolerance.accumulation_ulp == (7 if wide else 8)

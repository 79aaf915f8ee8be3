"""Shapes with formulas of axes: checked, made and faked as those of axes are."""

from __future__ import annotations

import pytest
import torch

import portable
from portable import errors
from portable.conformance.cases import generate
from portable.conformance.cases.case import input_shapes, make_shape
from portable.spec import registry
from portable.spec.model import Case
from tests.op_folders import fresh, on_search_path

SPEC = """\
schema_version: 1
op: block_sums
summary: total[..., g] = scale[..., g] * the sum of the g-th four elements of x.
axes: {K: 0..}
types:
  - {T: float32, acc: float32}
inputs:
  x: {shape: ["...", K], dtype: T}
  scale: {shape: ["...", "ceildiv(K, 4)"], dtype: T}
outputs:
  total: {shape: ["...", "ceildiv(K, 4)"], dtype: T}
reference: {entry: "reference.py:block_sums"}
tolerance:
  total: {result_ulp: 0.51, accumulation_ulp: 4}
cost: {flops: "B * K", roof: vector}
cases:
  - {K: 6, leading: [3]}
implementations:
  - {name: torch, run: reference, language: torch}
"""
REFERENCE = """
import torch

def block_sums(x, scale):
    padded = torch.nn.functional.pad(x, (0, -x.shape[-1] % 4))
    return padded.unflatten(-1, (-1, 4)).sum(-1) * scale if x.numel() else scale * 0
"""


@pytest.fixture
def folder(tmp_path):
    """The op's folder, on the search path."""
    with on_search_path(tmp_path, {"block_sums": {"spec.yaml": SPEC, "reference.py": REFERENCE}}):
        yield tmp_path / "block_sums"


def test_a_call_has_the_sizes_of_the_formula(folder):
    x, scale = torch.arange(12.0).reshape(2, 6), torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    made = portable.block_sums(x, scale)
    assert made.tolist() == [[6.0, 18.0], [90.0, 84.0]]
    assert portable.block_sums(x.to("meta"), scale.to("meta")).shape == (2, 2)


@pytest.mark.slow
def test_torch_compile_traces_it_with_symbolic_sizes(folder):
    x, scale = torch.arange(12.0).reshape(2, 6), torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    dynamic = torch.compile(lambda x, scale: portable.block_sums(x, scale), backend="eager", dynamic=True)
    assert torch.equal(dynamic(x, scale), portable.block_sums(x, scale))
    assert dynamic(torch.ones(3, 9), torch.ones(3, 3)).shape == (3, 3)


def test_another_size_is_refused_with_the_formula_and_its_value(folder):
    with pytest.raises(errors.ShapeError) as caught:
        portable.block_sums(torch.ones(2, 6), torch.ones(2, 3))
    assert "'scale'" in str(caught.value) and "ceildiv(K, 4) = 2" in str(caught.value)


def test_cases_are_made_by_it(folder):
    spec = registry.spec("block_sums")
    assert spec.sizes("scale", Case({"K": 9})) == (3,)
    shape = make_shape(spec, {"K": 5}, (7,))
    assert input_shapes(spec, shape) == {"x": (7, 5), "scale": (7, 2)}
    assert all(
        dict(input_shapes(spec, each.shape))["scale"][-1] == -(-dict(each.shape.axes)["K"] // 4)
        for each in generate.cases(spec, "core")
    )


@pytest.mark.parametrize(
    "dim, says", [("ceildiv(Q, 4)", "'Q'"), ("K +", "K +"), ("ceildiv(K)", "ceildiv")]
)  # fmt: skip
def test_a_formula_that_cannot_be_one_is_refused_with_its_line(folder, dim, says):
    (folder / "spec.yaml").write_text(
        SPEC.replace('scale: {shape: ["...", "ceildiv(K, 4)"]', f'scale: {{shape: ["...", "{dim}"]')
    )
    fresh()
    with pytest.raises(errors.SpecError, match=r"spec\.yaml:9") as caught:
        registry.spec("block_sums")
    assert says in str(caught.value)

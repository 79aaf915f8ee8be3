"""What a spec may say beyond shapes: rules, functions that people call, derived inputs, None as a value."""

from __future__ import annotations

import sys

import pytest
import torch

import portable
from portable import errors
from portable.conformance.cases import generate
from portable.dispatch import arguments, autograd, compiled_call, dispatcher, pins
from portable.spec import registry
from portable.spec.docs_page import page
from portable.spec.reader import load_spec

SPEC = """\
schema_version: 1
op: pairs
functions: ["api.py:pairs", "api.py:halves"]
summary: y is x, in groups.
axes: {H: 1.., G: 1.., N: 0..}
rules:
  - {that: "H % G == 0", says: "a multiple of the groups"}
  - {that: "width == None or width >= 0", says: "None or at least 0"}
  - {that: "T != 'float64' or width == None", says: "None beside float64"}
leading: same
types:
  - {T: float32, acc: float32}
  - {T: float64, acc: float64}
inputs:
  x: {shape: ["...", H, N], dtype: T, layout: unit, values: {large_range: normal}}
  w: {shape: ["...", G, N], dtype: T, layout: unit}
  s: {shape: [H], dtype: float32, derived: "reference.py:derived", optional: true}
params:
  width: {type: int, default: null, keyword: true}
  scale: {type: float, default: null, keyword: true}
outputs:
  y: {shape: ["...", H, N], dtype: T}
reference: {entry: "reference.py:pairs"}
tolerance:
  y: {result_ulp: 0.51, accumulation_ulp: 4}
cost: {flops: "B * H * N", roof: vector}
cases:
  - {H: 4, G: 2, N: 3, leading: [2]}
  - {H: 2, G: 2, N: 3, width: 5, scale: 2.0}
behaviour_case: {H: 4, G: 2, N: 3, leading: [2]}
boundary_cases:
  - {H: 2, G: 1, N: 5}
implementations:
  - {name: torch, run: "torch_impl.py:pairs", language: torch}
"""
FILES = {
    "reference.py": "def pairs(x, w, s, width, scale): return x * (1 if scale is None else scale)\n"
    "def derived(x): return {'s': x.flatten(0, -3).sum(0).sum(-1) if x.dim() > 2 else x.sum(-1)}\n",
    "torch_impl.py": "def pairs(x, w, s=None, *, width=None, scale=None):\n"
    "    return x * (1 if scale is None else scale)\n",
    "api.py": "from portable.dispatch import dispatcher\n"
    "def pairs(x, w): return 'called', dispatcher.op('pairs')(x, w)\n"
    "def halves(x, w): return pairs(x, w)[1] / 2\n",
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The op `pairs` in a folder of its own, and nothing of it afterwards."""
    place = tmp_path / "pairs"
    place.mkdir()
    (place / "spec.yaml").write_text(SPEC)
    for name, text in FILES.items():
        (place / name).write_text(text)
    monkeypatch.setenv(registry.KERNEL_PATH, str(tmp_path))
    registry.clear_caches()
    yield place
    registry.clear_caches()
    for name in ("pairs", "halves"):
        vars(sys.modules["portable"]).pop(name, None)


def broken(folder, old, new):
    assert SPEC.count(old) == 1
    (folder / "spec.yaml").write_text(SPEC.replace(old, new))
    with pytest.raises(errors.SpecError) as caught:
        load_spec(folder / "spec.yaml")
    return str(caught.value)


def test_what_a_spec_says_is_read(folder):
    spec = load_spec(folder / "spec.yaml")
    assert str(spec.rules[0].that) == "H % G == 0"
    assert [str(entry) for entry in spec.functions] == ["api.py:pairs", "api.py:halves"]
    assert (
        spec.inputs["x"].values == {"large_range": "normal"}
        and str(spec.inputs["s"].derived) == "reference.py:derived"
    )
    assert spec.behaviour_case is not None and spec.behaviour_case.axes == {"H": 4, "G": 2, "N": 3}
    assert spec.torch_schema() == (
        "pairs(Tensor x, Tensor w, Tensor? s=None, *, int? width=None, float? scale=None) -> Tensor"
    )
    assert spec.params["width"].expected == "an int or None"
    assert "an int or None" in page(spec) and "a multiple of the groups" in page(spec)


def test_mistakes_have_lines(folder):
    assert "spec.yaml:7" in broken(folder, 'that: "H % G == 0", says', 'that: "H % Q == 0", says')
    assert "unknown key 'say'" in broken(folder, 'says: "a multiple', 'say: "a multiple')
    assert "the case breaks the rule 'H % G == 0'" in broken(
        folder, "{H: 2, G: 2, N: 3, width", "{H: 3, G: 2, N: 3, width"
    )
    assert "the case breaks the rule" in broken(folder, "width: 5", "width: -5")
    assert "no file" in broken(folder, '"reference.py:derived"', '"refrence.py:derived"')
    assert "not of the form" in broken(folder, '"api.py:pairs", ', '"api.py", ')


def test_rules_are_asked_before_anything_runs(folder):
    op = dispatcher.op("pairs") if "pairs" not in dispatcher._ops else dispatcher._ops["pairs"]
    x, w = torch.ones(2, 4, 3), torch.ones(2, 2, 3)
    assert op(x, w).shape == (2, 4, 3)
    for _ in range(2):
        with pytest.raises(
            errors.ShapeError, match=r"argument 'x' has shape \(2, 3, 3\).*groups; got H = 3, G = 2"
        ):
            op(x[:, :3], w)
        with pytest.raises(errors.ParameterError, match="'width' is -1; expected None or at least 0"):
            op(x, w, width=-1)
        with pytest.raises(errors.ParameterError, match="None beside float64"):
            op(x.double(), w.double(), width=1)
        with pytest.raises(errors.ShapeError, match="groups"):
            torch.ops.portable.pairs(x[:, :3].to("meta"), w.to("meta"))
    assert torch.equal(op(x, w, width=3, scale=2.0), 2 * x) and torch.equal(
        op(x, w, width=None, scale=None), x
    )
    for wrong in ("a", True, 1.5):
        with pytest.raises(errors.ParameterError, match="an int or None"):
            op(x, w, width=wrong)
    with pytest.raises(errors.ParameterError, match="a float or None"):
        op(x, w, scale=float("nan"))
    assert torch.equal(portable.pairs(x, w)[1], x) and portable.pairs(x, w)[0] == "called"
    assert torch.equal(portable.halves(x, w), x / 2)
    assert {"pairs", "halves"} <= set(dir(portable)) and "halves" not in portable.ops()
    assert "pairs" in portable.ops() and str(portable.explain("pairs", x, w))


def test_a_function_that_two_specs_name_is_refused(folder):
    other = folder.parent / "other"
    other.mkdir()
    (other / "spec.yaml").write_text('schema_version: 1\nop: other\nfunctions: ["api.py:halves"]\n')
    registry.clear_caches()
    with pytest.raises(errors.SpecError, match="'halves' is already in"):
        registry.functions()
    (other / "spec.yaml").write_text('schema_version: 1\nop: other\nfunctions: ["api.py:softmax"]\n')
    registry.clear_caches()
    with pytest.raises(errors.SpecError, match="'softmax' is already an op"):
        registry.functions()


def test_derived_inputs_and_own_value_classes(folder):
    from portable.conformance.cases.generate import cases
    from portable.conformance.execute import behaviour
    from portable.conformance.judge import reference

    spec = registry.spec("pairs")
    core = cases(spec)
    for case in core[:12]:
        materialized = reference.materialize(case, spec)
        if "s" in materialized.inputs:
            x = materialized.inputs["x"].tensor.double()
            expected = x.reshape(-1, *x.shape[-2:]).sum(0).sum(-1)
            torch.testing.assert_close(materialized.inputs["s"].tensor, expected.float(), equal_nan=True)
    large = next(case for case in core if case.values == "large_range" and case.types[0][1] == "float32")
    assert reference.materialize(large, spec).inputs["x"].tensor.nan_to_num().abs().max() < 7
    made = behaviour.sample(spec, torch.device("cpu"), lead=3)
    assert made["x"].shape == (3, 4, 3) and torch.allclose(made["s"], made["x"].sum((0, 2)), atol=1e-5)


def test_unit_layouts(folder):
    """Any strides but for the last, and leading dimensions in one walk."""
    spec = registry.spec("pairs")

    def strides(x, w):
        signature, _ = compiled_call.call_signature(spec, [x, w, None], [None, None], None)
        info = signature.tensors["x"]
        assert info is not None
        return info.strides

    w = torch.ones(2, 2, 3)
    x = torch.ones(4, 2, 3).transpose(0, 1)
    assert strides(x, w) == x.stride() == (3, 6, 1)
    assert strides(torch.ones(3).expand(2, 4, 3), w) == (0, 0, 1)
    assert strides(torch.ones(2, 3, 4).mT, w) == (12, 3, 1)
    assert strides(torch.ones(5, 2, 4, 3).transpose(0, 1), torch.ones(2, 5, 2, 3)) == (60, 12, 3, 1)


def test_a_rule_may_ask_whether_an_optional_input_is_there(folder):
    text = SPEC.replace(
        "leading: same", '  - {that: "s or N <= 3", says: "at most 3, or s"}\nleading: same', 1
    )
    (folder / "spec.yaml").write_text(text.replace("G: 1, N: 5}", "G: 1, N: 5, absent: [s]}"))
    with pytest.raises(errors.SpecError, match="the case breaks the rule 's or N <= 3'"):
        load_spec(folder / "spec.yaml")
    (folder / "spec.yaml").write_text(text)
    spec = load_spec(folder / "spec.yaml")
    for n, s, wrong in ((3, None, False), (4, torch.ones(4), False), (4, None, True)):
        tensors = [torch.ones(2, 4, n), torch.ones(2, 2, n), s]
        params = {"width": None, "scale": None}
        bound = arguments.bind(spec, tensors, params)
        if not wrong:
            arguments.check_rules(spec, bound, params, tensors)
            continue
        with pytest.raises(errors.ShapeError, match="expected at most 3, or s; got N = 4"):
            arguments.check_rules(spec, bound, params, tensors)
    sizes = {"H": 4, "G": 2, "N": 4}
    assert generate.lawful(spec, sizes, {}) and not generate.lawful(spec, sizes, {}, ["s"])


def test_an_input_may_have_no_gradient(folder):
    text = SPEC.replace('w: {shape: ["...", G, N]', 'w: {gradient: false, shape: ["...", G, N]')
    (folder / "spec.yaml").write_text(text)
    spec = load_spec(folder / "spec.yaml")
    assert not spec.inputs["w"].gradient and spec.inputs["x"].gradient
    assert "| `w` | input | `[..., G, N]` | T | no gradient |" in page(spec)
    needs = {"x": True, "w": True, "s": False}
    with pytest.raises(errors.UnsupportedGradientError, match="pairs: no gradient: argument 'w' has none"):
        autograd.AutogradFormula(spec).gradients((), {}, pins.active_pins(), needs, ())

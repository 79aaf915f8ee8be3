"""What follows from a spec: backward section, extends, gradient, rounded reference, shared plans."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

import portable
from portable.dispatch import gradient
from portable.errors import SpecError
from portable.plan import Call, Device, NativeKernel, Plan
from portable.spec import registry
from portable.spec.reader import load_spec
from tests.op_folders import on_search_path

SPEC = """\
schema_version: 1
op: scaled
summary: y = x * weight * factor.
axes: {N: 1..}
types:
  - {T: bfloat16, W: float32, acc: float32}
  - {T: float64, W: float64, acc: float64}
inputs:
  x: {shape: ["...", N], dtype: T}
  weight: {shape: [N], dtype: W, optional: true}
params:
  factor: {type: float, default: 2.0, keyword: true}
outputs:
  y: {shape: ["...", N], dtype: T}
reference: {entry: "reference.py:scaled"}
tolerance:
  y: {result_ulp: 0.51, accumulation_ulp: 4}
cost: {flops: "reference.py:flops", roof: vector}
cases:
  - {N: 3, leading: [2]}
implementations:
  - {name: torch, run: reference, language: torch}
backward:
  summary: Its gradients.
  inputs:
    dy: {shape: ["...", N], dtype: T}
    x: {shape: ["...", N], dtype: T}
    weight: {shape: [N], dtype: W, optional: true}
  outputs:
    dx: {shape: ["...", N], dtype: T}
    dweight: {shape: [N], dtype: W, when: weight}
  reference: {entry: "reference.py:scaled_backward"}
  tolerance:
    dx: {result_ulp: 0.51, accumulation_ulp: 4}
    dweight: {result_ulp: 0.51, accumulation_ulp: 16}
  cost: {flops: "4 * B * N", roof: vector}
  cases:
    - {N: 3, leading: [2]}
  implementations:
    - {name: torch, run: reference, language: torch}
"""
REFERENCE = """
SEEN = []

def scaled(x, weight=None, *, factor=2.0):
    SEEN.append(x.dtype)
    return x * factor if weight is None else x * weight * factor

def scaled_backward(dy, x, weight=None, *, factor=2.0):
    if weight is None:
        return dy * factor, x.new_empty(0)
    return dy * weight * factor, (dy * x).flatten(0, -2).sum(0) * factor

def flops(N, B, factor):
    return 2 * B * N * (1 if factor == 1 else 2)
"""


@pytest.fixture(scope="module")
def scaled(tmp_path_factory):
    files = {"scaled": {"spec.yaml": SPEC, "reference.py": REFERENCE}}
    with on_search_path(tmp_path_factory.mktemp("ops"), files) as root:
        yield root / "scaled"


def refused(folder: Path, old: str, new: str, backward: bool = False) -> SpecError:
    assert old in SPEC
    (folder / "spec.yaml").write_text(SPEC.replace(old, new, 1))
    try:
        with pytest.raises(SpecError) as caught:
            load_spec(folder / "spec.yaml", backward=backward)
        return caught.value
    finally:
        (folder / "spec.yaml").write_text(SPEC)


def test_the_section_backward_is_an_internal_op(scaled):
    own = registry.spec("scaled_backward")
    assert own.op == "scaled_backward" and own.file == registry.spec("scaled").file
    assert own.axes == registry.spec("scaled").axes and own.types == registry.spec("scaled").types
    assert own.torch_schema() == (
        "scaled_backward(Tensor dy, Tensor x, Tensor? weight=None, *, float factor=2.0) -> (Tensor, Tensor)"
    )
    assert "scaled" in registry.public_ops() and "scaled_backward" not in registry.public_ops()
    assert own.gradient is None and own.demo is None


def test_the_gradient_follows_from_the_section(scaled):
    generator = torch.Generator().manual_seed(0)
    for absent in (False, True):
        x = torch.randn(2, 3, dtype=torch.float64, generator=generator, requires_grad=True)
        weight = (
            None if absent else torch.randn(3, dtype=torch.float64, generator=generator, requires_grad=True)
        )
        given = [each for each in (x, weight) if each is not None]
        upstream = torch.randn(2, 3, dtype=torch.float64, generator=generator)
        got = torch.autograd.grad(portable.scaled(x, weight, factor=3.0), given, upstream)
        expected = torch.autograd.grad(x * 3.0 if weight is None else x * weight * 3.0, given, upstream)
        torch.testing.assert_close(got, expected)


def test_the_reference_runs_in_float32_and_is_rounded_once(scaled):
    seen = registry.load_module(scaled / "reference.py").SEEN
    seen.clear()
    x, weight = torch.tensor([[1.0, 1.0 + 2**-7, 3.0]], dtype=torch.bfloat16), torch.full((3,), 1.0 / 3.0)
    y = portable.scaled(x, weight)
    assert set(seen) == {torch.float32} and y.dtype == torch.bfloat16
    assert torch.equal(y, (x.float() * weight * 2.0).bfloat16())
    seen.clear()
    assert portable.scaled(x.double(), weight.double()).dtype == torch.float64 and set(seen) == {
        torch.float64
    }


def test_flops_may_be_a_function(scaled):
    cost = registry.spec("scaled").cost
    assert cost.flops.evaluate(N=3, B=2, factor=1, T="bfloat16") == 12
    assert (
        cost.flops.evaluate(N=3, B=2, factor=2, T="bfloat16") == 24
        and str(cost.flops) == "reference.py:flops"
    )


@pytest.mark.parametrize(
    ("old", "new", "backward", "line", "words"),
    [
        ("backward:\n", "backward:\n  op: other\n", True, 24, "is called scaled_backward; remove 'op'"),
        ("    dy: {shape", "    dy: {shapes", True, 26, "unknown key 'shapes' in input dy. Did you"),
        ("tolerance:\n", "gradient: {saves: [z]}\ntolerance:\n", False, 16, "'z' in saves is no input"),
        ("tolerance:\n", "gradient: {grads: {q: dx}}\ntolerance:\n", False, 16, "'q' in grads is not"),
        ("tolerance:\n", "gradient: {ops: x}\ntolerance:\n", False, 16, "unknown key 'ops' in gradient"),
        ("run: reference", "run: torch", False, 22, "is not of the form file.py:function or torch"),
        ("run: reference", "plan: elementwize", False, 22, "no shared plan 'elementwize'"),
        ("run: reference", "plan: elementwise", False, 22, "lacks the key 'kernel'"),
        (
            "run: reference",
            "plan: elementwise, kernel: {source: reference.py, entry: e, args: [x, q]}",
            False, 22, "'q' in args of implementation torch is not a tensor",
        ),
        ("run: reference", "extends: spec.yaml", False, 22, "implementation torch extends itself"),
        ("run: reference", "extends: others.yaml", False, 22, "there is no file 'others.yaml'"),
        (
            "run: reference",
            "plan: rows, kernel: {source: reference.py, entry: e, args: [x, y], tiles: [{cluster: 2}]}",
            False, 22, "a tile of implementation torch lacks the key 'threads'",
        ),
        (
            "run: reference",
            "plan: rows, kernel: {source: reference.py, entry: e, args: [x, y],\n    "
            "tiles: [{cluster: 2, threads: 64, chunks: 1, resident: 1, dtypes: [float61]}]}",
            False, 23, "'float61' is not a dtype",
        ),
        (
            "run: reference",
            'plan: "reference.py:scaled", kernel: {source: reference.py, entry: e, args: [x]}',
            False, 22, "is for a shared plan, not a file",
        ),
    ],
)  # fmt: skip
def test_wrong_derivations_are_refused(scaled, old, new, backward, line, words):
    error = refused(scaled, old, new, backward)
    assert words in str(error) and error.line == line


def test_an_implementation_takes_what_it_does_not_give_from_another_file(scaled):
    """Through two files, the second in a neighbouring folder, whose files are named from this one."""
    near, far = scaled / "near.yaml", scaled.parent / "far" / "spec.yaml"
    far.parent.mkdir()
    rows = "kernel: {source: far.cu, entry: e, args: [x, y]}, language: cuda"
    far.write_text(
        "implementations:\n"
        f"  - {{name: fast, plan: rows, {rows}, tunables: {{A: [1, 2]}}, default: {{A: 2}}}}\n"
        '  - {name: torch, run: "torch_impl.py:far", language: torch, batch_invariant: false}\n'
    )
    near.write_text(
        "implementations:\n  - {name: fast, extends: ../far/spec.yaml, requires: {T: [bfloat16]}}\n"
        "  - {name: torch, extends: ../far/spec.yaml}\n  - {name: other, extends: ../far/spec.yaml}\n"
    )
    (far.parent / "far.cu").touch()
    (far.parent / "torch_impl.py").write_text("def far(x, weight=None, *, factor=2.0):\n    return x\n")
    old = "  - {name: torch, run: reference, language: torch}\n"
    new = "  - {name: fast, extends: near.yaml, default: {A: 1}}\n  - {name: torch, extends: near.yaml}\n"
    try:
        (scaled / "spec.yaml").write_text(SPEC.replace(old, new, 1))
        fast, plain = load_spec(scaled / "spec.yaml").implementations
        (scaled / "spec.yaml").write_text(SPEC.replace(old, new.replace("torch,", "other,"), 1))
        with pytest.raises(SpecError, match=r"spec\.yaml:23: .* has no implementation 'other'"):
            load_spec(scaled / "spec.yaml")
    finally:
        (scaled / "spec.yaml").write_text(SPEC)
        near.unlink()
        shutil.rmtree(far.parent)
    assert fast.sources == ((far.parent / "far.cu").resolve(),) and fast.languages == ("cuda",)
    assert fast.tunables == {"A": (1, 2)} and fast.default == {"A": 1}
    assert fast.requires.types == {"T": ("bfloat16",)}
    assert plain.entry.file == (far.parent / "torch_impl.py").resolve() and not plain.batch_invariant


def test_options_that_a_shared_plan_does_not_take_are_refused(scaled):
    kernel = "kernel: {source: reference.py, entry: e, args: [x, y]}, options: {most_chunk: 8}"
    (scaled / "spec.yaml").write_text(SPEC.replace("run: reference", f"plan: rows, {kernel}", 1))
    try:
        spec = load_spec(scaled / "spec.yaml")
    finally:
        (scaled / "spec.yaml").write_text(SPEC)
    with pytest.raises(SpecError, match="unexpected keyword argument 'most_chunk'"):
        registry.load_entry(spec.implementations[0].entry)


def test_a_gradient_that_cannot_be_wired_says_what_is_lacking(scaled):
    (scaled / "spec.yaml").write_text(SPEC.replace("tolerance:\n", "gradient: {saves: [x]}\ntolerance:\n", 1))
    try:
        spec = load_spec(scaled / "spec.yaml")
    finally:
        (scaled / "spec.yaml").write_text(SPEC)
    with pytest.raises(SpecError, match="the gradient of scaled by scaled_backward: nothing gives weight"):
        gradient.load(spec)


def test_another_file_may_extend_the_spec(scaled):
    text = SPEC[SPEC.index("backward:\n") + len("backward:\n") :]
    own = "\n".join(line.removeprefix("  ") for line in text.splitlines())
    registry.spec("scaled")  # the listing of ops is made before the file is there, and kept
    file = scaled / "other.yaml"
    file.write_text(f"schema_version: 1\nextends: spec.yaml\nop: scaled_other\n{own}\n")
    try:
        other = load_spec(file)
        assert other.types == registry.spec("scaled").types and set(other.params) == {"factor"}
        file.write_text(file.read_text().replace("extends: spec.yaml", "extends: specs.yaml"))
        with pytest.raises(SpecError, match=r"other\.yaml:2: there is no file 'specs\.yaml'"):
            load_spec(file)
    finally:
        file.unlink()


def test_a_shared_plan_launches_the_kernel_that_the_spec_names():
    implementation = registry.spec("swiglu_backward").implementation("cpp")
    assert implementation is not None and implementation.entry is not None
    assert [each.name for each in implementation.sources] == ["swiglu.cu"]
    plan = registry.load_entry(implementation.entry)(_call("swiglu_backward"))
    assert isinstance(plan, Plan)
    (launch,) = plan.launches
    assert isinstance(launch.kernel, NativeKernel)
    assert launch.kernel.entry == "swiglu_backward" and ("PASS", "BACKWARD") in launch.kernel.defines
    assert [name for name, _ in launch.args][:5] == ["dy", "gate", "up", "dgate", "dup"]


def _call(op: str) -> Call:
    from portable.plan import TensorInfo

    spec = registry.spec(op)
    info = TensorInfo((4, 64), (64, 1), "float32", 16)
    tensors = dict.fromkeys((*spec.inputs, *spec.outputs), info)
    return Call(tensors, {}, {"N": 64}, Device("v", "a", "n", multiprocessors=4), {})


def test_every_gradient_of_the_package_is_wired():
    for op in registry.op_folders():
        gradient.load(registry.spec(op))


def test_the_baseline_of_the_same_name_in_torch(scaled):
    from portable.conformance.perf import baselines

    softmax = registry.spec("softmax")
    found = baselines._functional(softmax)
    assert found is not None and str(found) == "torch.nn.functional.softmax"
    x = torch.randn(2, 3)
    assert torch.equal(registry.load_entry(found)(x=x, dim=0), torch.softmax(x, 0))
    for op in ("scaled", "layer_norm", "linear", "swiglu"):  # other arguments, or no such function
        assert baselines._functional(registry.spec(op)) is None


def test_the_page_of_the_schema_is_current():
    from portable.spec import schema, schema_page

    root = Path(__file__).resolve().parents[2]
    text = (root / "docs/spec.md").read_text()
    assert text == schema_page.page(), "run make docs"
    for table in schema.TABLES.values():
        for name, key in table.items():
            assert f"| `{name}`" in text and key.meaning in text and key.kind in schema.KINDS

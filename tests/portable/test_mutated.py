"""Inputs that an op writes in place: what a spec says of them, what torch and callers see of the write."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch._inductor import config as inductor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import portable
from portable.dispatch import dispatcher
from portable.errors import OutputError, SpecError, UnsupportedGradientError, UnsupportedTransformError
from portable.spec.docs_page import page
from portable.spec.reader import load_spec

OP = "kv_cache_write"
SPEC = """\
schema_version: 1
op: toy
summary: y = x * scale, and total + x in place.
axes: {N: 1.., M: 0..}
types: [{T: float32, acc: float32}]
inputs:
  x: {shape: [M, N], dtype: T, layout: rows}
  total: {shape: [M, N], dtype: T, mutated: true}
  count: {shape: [M], dtype: int32, optional: true, mutated: true}
outputs:
  y: {shape: [M, N], dtype: T}
reference: {entry: "reference.py:toy"}
tolerance:
  y: {result_ulp: 0.51, accumulation_ulp: 1}
  total: {result_ulp: 0.51, accumulation_ulp: 1}
cost: {flops: 2 * M * N, roof: vector}
cases: [{N: 3, M: 2}]
implementations: [{name: torch, run: "reference.py:toy", language: torch}]
"""


OUTPUTS = "outputs:\n  y: {shape: [M, N], dtype: T}\n"
TOTAL = "  total: {shape: [M, N], dtype: T, mutated: true}\n"


def tensors(tokens: int = 5) -> dict[str, torch.Tensor]:
    k, v = torch.randn(tokens, 2, 64), torch.randn(tokens, 2, 32)
    slots = torch.randperm(48)[:tokens]
    return {"k": k, "v": v, "k_cache": torch.randn(3, 16, 2, 64), "v_cache": torch.randn(3, 16, 2, 32),
            "slots": slots}  # fmt: skip


def written(given: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    found = []
    for rows, cache in (("k", "k_cache"), ("v", "v_cache")):
        whole = given[cache].clone()
        for token, slot in enumerate(given["slots"].tolist()):
            if slot >= 0:
                whole[slot // whole.shape[1], slot % whole.shape[1]] = given[rows][token]
        found.append(whole)
    return found


def caches(given: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    return [given["k_cache"], given["v_cache"]]


# The spec ----------------------------------------------------------------------------------------


@pytest.fixture
def load(tmp_path):
    folder = tmp_path / "toy"
    folder.mkdir()
    (folder / "reference.py").write_text("")

    def load(*changes: tuple[str, str]):
        text = SPEC
        for old, new in changes:
            assert text.count(old) == 1
            text = text.replace(old, new)
        (folder / "spec.yaml").write_text(text)
        return load_spec(folder / "spec.yaml")

    return load


def test_a_spec_says_what_is_written_in_place(load):
    spec = load()
    assert spec.mutated == ("total", "count") and list(spec.results) == ["y", "total", "count"]
    assert not spec.inputs["total"].gradient and spec.inputs["x"].gradient
    assert spec.torch_schema() == "toy(Tensor x, Tensor(a!) total, Tensor(b!)? count=None) -> Tensor"
    assert "| `total` | input | `[M, N]` | T | written in place; no gradient |" in page(spec)


def test_what_is_written_may_be_derived(load):
    spec = load(
        ("dtype: T, mutated: true}\n  count", 'dtype: T, mutated: true, derived: "reference.py:d"}\n  count')
    )
    assert spec.inputs["total"].derived is not None and spec.mutated == ("total", "count")


def test_an_op_may_have_no_outputs(load):
    alone = load(
        (OUTPUTS, ""),
        ("  y: {result_ulp: 0.51, accumulation_ulp: 1}\n", ""),
    )
    assert alone.torch_schema() == "toy(Tensor x, Tensor(a!) total, Tensor(b!)? count=None) -> ()"


@pytest.mark.parametrize(
    "changes, message",
    [
        ([("mutated: true}\n  count", "mutated: true, layout: rows}\n  count")], "remove 'layout'"),
        ([("true}\n  count", "true, gradient: true}\n  count")], "cannot have 'gradient: true'"),
        ([("optional: true, mutated", "optional: true, below: N, mutated")], "cannot have 'below'"),
        ([("types: [", "autocast: lower\ntypes: [")], "remove 'autocast'"),
        ([('run: "reference.py:toy"', "run: reference")], "writes the mutated inputs"),
        ([("  total: {result_ulp: 0.51, accumulation_ulp: 1}\n", "")], "output total has no tolerance"),
        ([("  total: {result_ulp", "  count: {result_ulp")], "total has no tolerance|count holds integers"),
        ([(OUTPUTS, ""), (TOTAL, ""), ("true, mutated: true", "true")], "output or mutated input"),
    ],
)  # fmt: skip
def test_a_spec_that_cannot_be(load, changes, message):
    with pytest.raises(SpecError, match=message):
        load(*changes)


# The call ----------------------------------------------------------------------------------------


def test_a_call_writes_its_argument_and_returns_none():
    given = tensors()
    expected, versions = written(given), [each._version for each in caches(given)]
    assert getattr(portable, OP)(**given) is None
    assert all(torch.equal(a, b) for a, b in zip(caches(given), expected, strict=True))
    assert all(each._version > old for each, old in zip(caches(given), versions, strict=True))
    text = str(portable.explain(OP, **given))
    assert "k_cache float32[3, 16, 2, 64]" in text and "->" in text


def test_a_saved_tensor_that_is_overwritten_is_noticed():
    """The write counts as one to autograd, which refuses to use the old contents."""
    given = tensors()
    leaf = torch.ones((), requires_grad=True)
    product = (leaf * given["k_cache"]).sum()
    with torch.no_grad():
        portable.kv_cache_write(**given)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


def test_inference_tensors_are_written():
    with torch.inference_mode():
        given = tensors()
        expected = written(given)
        portable.kv_cache_write(**given)
        assert torch.equal(given["k_cache"], expected[0])


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_compiled_program_sees_the_write(dynamic):
    def program(k, v, k_cache, v_cache, slots):
        before = k_cache.sum()
        portable.kv_cache_write(k * 2, v, k_cache, v_cache, slots)
        return before, k_cache.sum()

    torch._dynamo.reset()
    compiled = torch.compile(program, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for tokens in (5, 7):
        given = tensors(tokens)
        own = {name: each.clone() for name, each in given.items()}
        expected = program(**own)
        got = compiled(**given)
        assert all(torch.equal(a, b) for a, b in zip(caches(given), caches(own), strict=True))
        assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


def test_a_trace_holds_the_call_alone():
    """Inductor traces once more what it recorded, and asserts that nothing was added."""

    def write(k, v, k_cache, v_cache, slots):
        portable.kv_cache_write(k, v, k_cache, v_cache, slots)

    traced = make_fx(write, tracing_mode="fake")(*tensors().values())
    called = [node.target for node in traced.graph.nodes if node.op == "call_function"]
    assert called == [torch.ops.portable.kv_cache_write.default]


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("form", ["caches", "stacked"])
def test_inductor_compiles_the_write(dynamic, form):
    """Without gradients, as a decode step is; into caches of their own and into parts of larger tensors."""

    def program(k, v, k_cache, v_cache, slots):
        if form == "stacked":
            k_cache, v_cache = k_cache[1:], v_cache[:, :, :2]
        portable.kv_cache_write(k * 2, v, k_cache, v_cache, slots)
        return k_cache * 2, v_cache * 2

    torch._dynamo.reset()
    compiled = torch.compile(program, fullgraph=True, dynamic=dynamic)
    given = tensors()
    if form == "stacked":
        given["k_cache"] = torch.cat((given["k_cache"], given["k_cache"][:1]))
        given["v_cache"] = torch.cat((given["v_cache"], given["v_cache"]), 2)
    own = {name: each.clone() for name, each in given.items()}
    with torch.no_grad(), inductor.patch(force_disable_caches=True):
        got, expected = compiled(**given), program(**own)
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(caches(given), caches(own), strict=True))


def test_fake_tensors_are_taken():
    with FakeTensorMode() as mode:
        fakes = {name: mode.from_tensor(each) for name, each in tensors().items()}
        assert portable.kv_cache_write(**fakes) is None


def test_torch_checks_the_registration():
    dispatcher.op(OP)
    torch.library.opcheck(torch.ops.portable.kv_cache_write.default, (), tensors())


@pytest.mark.parametrize("name", ["k", "v_cache"])
def test_no_gradient_goes_through_the_write(name):
    given = tensors()
    given[name].requires_grad_()
    before = given["v_cache"].clone()
    for call in (portable.kv_cache_write, torch.ops.portable.kv_cache_write):
        for _ in range(2):
            with pytest.raises(UnsupportedGradientError, match=r"written in place.*no_grad"):
                call(**given)
    assert torch.equal(given["v_cache"], before)
    with torch.no_grad():
        expected = written(given)
        portable.kv_cache_write(**given)
        assert torch.equal(given["v_cache"], expected[1])


def test_no_transform_reaches_the_write():
    given = tensors()
    several = torch.stack([given["k"], given["k"]])
    with pytest.raises(UnsupportedTransformError, match="written in place"):
        torch.func.vmap(lambda k: portable.kv_cache_write(**{**given, "k": k}))(several)
    with pytest.raises(UnsupportedGradientError, match="written in place"):
        torch.func.jvp(lambda k: portable.kv_cache_write(**{**given, "k": k}), (given["k"],), (given["k"],))


def test_arrays_of_other_libraries_are_written():
    given = tensors()
    expected = written(given)
    arrays = {name: each.numpy() for name, each in given.items()}
    assert portable.kv_cache_write(**arrays) is None
    assert np.array_equal(arrays["k_cache"], expected[0].numpy())
    arrays["k_cache"] = arrays["k_cache"].copy()
    arrays["k_cache"].flags.writeable = False
    with pytest.raises(portable.errors.NotATensorError, match="read-only"):
        portable.kv_cache_write(**arrays)


# Memory ------------------------------------------------------------------------------------------


def test_memory_that_is_shared_is_refused():
    given = tensors()
    wide = torch.randn(3, 16, 1, 64).expand(3, 16, 2, 64)
    with pytest.raises(OutputError, match=r"'k_cache'.*strides .* overlap"):
        portable.kv_cache_write(**{**given, "k_cache": wide})
    with pytest.raises(OutputError, match=r"'k_cache'.*shares memory with argument 'k'"):
        portable.kv_cache_write(**{**given, "k": given["k_cache"][0, :5]})
    square = {**given, "v": given["k"], "v_cache": given["k_cache"]}
    with pytest.raises(OutputError, match=r"'k_cache'.*shares memory with argument 'v_cache'"):
        portable.kv_cache_write(**square)
    shifted = torch.randn(4, 16, 2, 64)
    apart = {**given, "v": given["k"], "k_cache": shifted[:3], "v_cache": torch.randn(3, 16, 2, 64)}
    portable.kv_cache_write(**apart)  # the plan is there now; what overlaps has the same sizes and strides
    with pytest.raises(OutputError, match="shares memory"):
        portable.kv_cache_write(**{**apart, "v_cache": shifted[1:]})


FORMS = {
    "by page": lambda both: (both[:, 0], both[:, 1]),
    "by slot": lambda both: (both.transpose(1, 2)[:, :, 0], both.transpose(1, 2)[:, :, 1]),
    "by column": lambda both: (both.flatten(0, 1)[..., :64], both.flatten(0, 1)[..., 64:]),
}


@pytest.mark.parametrize("form", ["by page", "by slot", "by column"])
def test_keys_and_values_of_one_tensor_are_written(form):
    """FlashInfer's and vLLM's caches have both in one tensor: their ranges cross, their elements do not."""
    both = torch.randn(3, 2, 16, 2, 128 if form == "by column" else 64)
    if form == "by slot":
        both = both.transpose(1, 2).contiguous().transpose(1, 2)
    k_cache, v_cache = FORMS[form](both)
    pages = k_cache.shape[0]
    given = {**tensors(), "v": torch.randn(5, 2, 64), "k_cache": k_cache, "v_cache": v_cache}
    expected = written(given)
    assert pages in (3, 6)
    portable.kv_cache_write(**given)
    assert all(torch.equal(a, b) for a, b in zip(caches(given), expected, strict=True))

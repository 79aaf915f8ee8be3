"""Ops over other types than the four common ones: fp8 outputs, indices, masks, integers, packed bytes."""

from __future__ import annotations

import pytest
import torch

from portable import dtypes
from portable.conformance.cases import inputs
from portable.conformance.cases.case import Case, make_shape
from portable.conformance.cases.generate import cases
from portable.conformance.execute import runner
from portable.conformance.judge import reference
from portable.errors import SpecError
from portable.spec import registry
from portable.spec.reader import load_spec
from tests.op_folders import on_search_path

CPU = torch.device("cpu")

QUANTIZE = """
schema_version: 1
op: toy_quantize
summary: x over its row's scale, in 8 bits.
axes: {N: 1..}
types:
  - {T: bfloat16, R: float8_e4m3fn, acc: float32}
  - {T: float16, R: float8_e5m2, acc: float32}
  - {T: float32, R: float8_e4m3fnuz, acc: float32}
  - {T: float64, R: float8_e5m2fnuz, acc: float32}
inputs:
  x: {shape: ["...", N], dtype: T}
outputs:
  y: {shape: ["...", N], dtype: R}
reference: {entry: "reference.py:quantize"}
tolerance:
  y: {result_ulp: 0.51, accumulation_ulp: 2}
cost: {flops: "B * N", roof: vector}
cases:
  - {N: 5, leading: [2]}
  - {N: 64, leading: [3]}
implementations:
  - {name: right, run: "torch_impl.py:right", language: torch}
  - {name: truncated, run: "torch_impl.py:truncated", language: torch}
"""

CROSS_ENTROPY = """
schema_version: 1
op: toy_cross_entropy
summary: -log(softmax(x))[target], per row.
axes: {V: 1..}
types:
  - {T: bfloat16, R: float32, acc: float32}
  - {T: float32, R: float32, acc: float32}
inputs:
  x: {shape: ["...", V], dtype: T, values: {nonfinite: normal}}
  target: {shape: ["..."], dtype: int64, below: V}
outputs:
  loss: {shape: ["..."], dtype: R}
reference: {entry: "reference.py:cross_entropy", error_scale: "reference.py:error_scale"}
tolerance:
  loss: {result_ulp: 0.51, accumulation_ulp: "64 + sqrt(V)"}
cost: {flops: "4 * B * V", roof: vector}
cases:
  - {V: 5, leading: [2]}
  - {V: 64, leading: [3]}
implementations:
  - {name: right, run: "torch_impl.py:right", language: torch}
  - {name: shifted, run: "torch_impl.py:shifted", language: torch}
"""

EMBEDDING = """
schema_version: 1
op: toy_embedding
summary: The row of the table at every index, or zeros where the mask says so; and how often each row is read.
axes: {N: 0.., V: 1.., D: 1..}
types:
  - {T: bfloat16, acc: float32}
  - {T: float8_e4m3fn, acc: float32}
inputs:
  table: {shape: [V, D], dtype: T}
  index: {shape: [N], dtype: int32, below: V}
  hidden: {shape: [N], dtype: bool}
  level: {shape: [N], dtype: int8}
outputs:
  y: {shape: [N, D], dtype: T}
  count: {shape: [V], dtype: int64}
  seen: {shape: [N], dtype: bool}
  doubled: {shape: [N], dtype: int8}
reference: {entry: "reference.py:embedding"}
tolerance:
  y: {result_ulp: 0.51, accumulation_ulp: 1}
cost: {flops: "N * D", roof: vector}
cases:
  - {N: 5, V: 3, D: 8}
  - {N: 0, V: 3, D: 8}
implementations:
  - {name: right, run: "torch_impl.py:right", language: torch}
  - {name: miscounted, run: "torch_impl.py:miscounted", language: torch}
"""

FILES = {
    "toy_quantize": (
        QUANTIZE,
        "def quantize(x):\n    return x / 2\n",
        """
import torch

KINDS = {
    torch.bfloat16: torch.float8_e4m3fn, torch.float16: torch.float8_e5m2,
    torch.float32: torch.float8_e4m3fnuz, torch.float64: torch.float8_e5m2fnuz,
}

def right(x):
    return (x.float() / 2).to(KINDS[x.dtype])

def truncated(x):
    # rounded towards zero
    y = right(x)
    if y.numel() == 0:
        return y
    codes = y.view(torch.uint8)
    away = (y.float().abs() > x.float().abs() / 2) & y.float().isfinite()
    return torch.where(away, codes - 1, codes).view(y.dtype)
""",
    ),
    "toy_cross_entropy": (
        CROSS_ENTROPY,
        "import torch\n\n"
        "def cross_entropy(x, target):\n"
        "    assert target.dtype == torch.int64\n"
        "    return -torch.log_softmax(x, -1).gather(-1, target[..., None])[..., 0]\n\n"
        "def error_scale(x, target):\n"
        "    return {'loss': x.abs().amax(-1) + 1}\n",
        """
import torch

def right(x, target):
    return -torch.log_softmax(x.float(), -1).gather(-1, target[..., None])[..., 0]

def shifted(x, target):
    return right(x, (target + 1) % x.shape[-1])
""",
    ),
    "toy_embedding": (
        EMBEDDING,
        "import torch\n\n"
        "def embedding(table, index, hidden, level):\n"
        "    assert (index.dtype, hidden.dtype, level.dtype) == (torch.int64, torch.bool, torch.int8)\n"
        "    y = torch.where(hidden[:, None], 0.0, table[index])\n"
        "    return y, torch.bincount(index, minlength=len(table)), ~hidden, level * 2\n",
        """
import torch

def right(table, index, hidden, level):
    narrow = table.element_size() == 1
    rows = table.view(torch.uint8)[index.long()].view(table.dtype) if narrow else table[index]
    y = torch.where(hidden[:, None], torch.zeros((), dtype=table.dtype), rows)
    return y, torch.bincount(index, minlength=len(table)), ~hidden, level * 2

def miscounted(table, index, hidden, level):
    y, count, seen, doubled = right(table, index, hidden, level)
    count[0] += 1
    return y, count, seen, doubled
""",
    ),
}


@pytest.fixture(scope="module")
def ops(tmp_path_factory):
    """The three toy ops in the catalogue, on the CPU backend."""
    names: list[str] = ["spec.yaml", "reference.py", "torch_impl.py"]
    files = {op: dict(zip(names, texts, strict=True)) for op, texts in FILES.items()}
    with on_search_path(tmp_path_factory.mktemp("ops"), files) as root:
        yield root


@pytest.mark.parametrize(
    ("op", "wrong"),
    [("toy_quantize", "truncated"), ("toy_cross_entropy", "shifted"), ("toy_embedding", "miscounted")],
)
def test_every_row_of_types_is_judged(ops, op, wrong):
    spec = registry.spec(op)
    chosen = cases(spec, "smoke")
    assert {case.types for case in chosen} == {tuple(row.items()) for row in spec.types}
    states: dict[str, list[str]] = {"right": [], wrong: []}
    for case in chosen:
        for result in runner.answer(case, ["right", wrong], CPU):
            states[result.impl].append(result.state)
            assert result.impl == wrong or result.state == "Pass", (case.id, result.message)
    assert states[wrong].count("Fail.value") > len(chosen) / 4


@pytest.mark.slow
def test_the_core_tier_passes_as_well(ops):
    for op in FILES:
        for case in cases(registry.spec(op), "core")[::3]:
            [result] = runner.answer(case, ["right"], CPU)
            assert result.state == "Pass", (case.id, result.message)


def test_indices_lie_below_their_axis_and_reach_its_ends(ops):
    spec = registry.spec("toy_cross_entropy")
    for values in ("normal", "small_integers", "nonfinite", "large_range"):
        case = Case(spec.op, tuple(spec.types[0].items()), make_shape(spec, {"V": 300}, (4000,)), values)
        target = reference.materialize(case, spec).inputs["target"].tensor
        assert target.dtype == torch.int64 and int(target.min()) == 0
        assert int(target.max()) == (3 if values == "small_integers" else 299)
        if values == "nonfinite":
            assert set(target.tolist()) == {0, 299}


@pytest.mark.parametrize(
    "name", [name for name, each in dtypes.DTYPES.items() if each.kind in ("int", "bool")]
)
def test_integers_cover_their_type(name):
    kind = dtypes.of(name)
    for values in inputs.VALUES:
        made = inputs.make(f"case/{values}", "x", (4096,), name, values, "offset").tensor
        assert kind.torch is not None
        assert made.dtype == kind.torch and tuple(made.shape) == (4096,)
        numbers = made.to(torch.int64)
        low, high = int(numbers.min()), int(numbers.max())
        if kind.kind == "bool":
            assert (low, high) == (0, 1)
        elif values == "normal":
            assert (low, high) == ((-128, 127) if kind.signed else (0, 255))
        elif values == "small_integers":
            assert (low, high) == ((-4, 4) if kind.signed else (0, 8))
        elif values == "nonfinite" and kind.bits < 64:
            info = torch.iinfo(kind.torch)
            assert (low, high) == (info.min, info.max)


@pytest.mark.parametrize(
    "name", [name for name, each in dtypes.DTYPES.items() if each.bits <= 8 and each.is_float]
)
def test_every_value_class_exists_in_eight_bits(name):
    kind = dtypes.of(name)
    for values in inputs.VALUES:
        for position in (0, 1):
            made = inputs.make(f"case/{values}", "x", (64, 64), name, values, "padded", position).tensor
            wide = made.to(torch.float64)
            assert made.dtype == kind.torch
            if values not in ("nonfinite", "large_range"):
                assert bool(wide.isfinite().all()), values
            assert len(wide.unique()) > 1 or values == "one_hot" or not kind.signed
    small = inputs.make("case/s", "x", (64, 64), name, "subnormals", "contiguous").tensor.to(torch.float64)
    if kind.signed:
        assert kind.torch is not None
        assert float(small.abs().max()) < torch.finfo(kind.torch).smallest_normal
    special = inputs.make("case/n", "x", (64, 64), name, "nonfinite", "contiguous").tensor.to(torch.float64)
    assert bool(special.isnan().any()) and bool(special.isinf().any()) == kind.has_infinity


def test_packed_inputs_are_random_bytes():
    for name in ("float4_e2m1fn_x2", "int4_x2"):
        made = inputs.make("case", "x", (64, 64), name, "normal", "padded")
        assert made.tensor.dtype == dtypes.of(name).storage
        assert len(made.buffer.view(torch.uint8).unique()) == 256 and len(made.sha256) == 64


def test_a_row_that_the_suite_cannot_make_is_an_error(ops, tmp_path):
    text = QUANTIZE.replace("R: float8_e5m2,", "R: float4_e2m1fn_x2,")
    (tmp_path / "toy_quantize").mkdir()
    (tmp_path / "toy_quantize/spec.yaml").write_text(text)
    spec = load_spec(tmp_path / "toy_quantize/spec.yaml", files=False)
    with pytest.raises(SpecError, match=r"spec\.yaml:8: .*cannot judge the output y of float4_e2m1fn_x2"):
        cases(spec, "smoke")

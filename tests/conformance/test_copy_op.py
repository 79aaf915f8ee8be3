"""The op with an index that CONTRIBUTING.md shows, followed as written: judged bit for bit."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from portable.commands import trace
from portable.conformance import check
from portable.conformance.cases.case import parse
from portable.conformance.judge import reference
from portable.runtime import detect
from portable.spec import registry
from portable.spec.reader import load_spec

TEXT = (Path(__file__).resolve().parents[2] / "CONTRIBUTING.md").read_text()
CASES = ["gather_rows/float32,I=int32/R=33,M=17,N=65/normal/contiguous",
         "gather_rows/float32,I=int64/R=33,M=17,N=65/signed_zero/contiguous",
         "gather_rows/bfloat16,I=int64/R=33,M=17,N=65/nonfinite/contiguous"]  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch):
    section = TEXT[TEXT.index("## Tolerances, exact results, indices") :]
    found = re.findall(r"^```\w+\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    (tmp_path / "gather_rows").mkdir()
    for name, text in zip(("spec.yaml", "reference.py", "triton_impl.py"), found, strict=False):
        (tmp_path / "gather_rows" / name).write_text(text)
    monkeypatch.setenv("PORTABLE_KERNEL_PATH", str(tmp_path))
    registry.clear_caches()
    yield tmp_path / "gather_rows"
    monkeypatch.undo()
    registry.clear_caches()
    detect.reset()


def copy(x, index):
    return x[index.long()]


def off(x, index):  # the last bit of one element, and the sign of a zero
    y = copy(x, index)
    y[3, 2] = torch.nextafter(y[3, 2], y[3, 2] + 1) if y.dtype == torch.float32 else y[3, 2]
    return y


def test_a_copy_is_judged_bit_for_bit(folder):
    load_spec(folder / "spec.yaml")
    report = check(copy, "gather_rows", "cpu", cases=CASES)
    assert report.tally.passed == 3, str(report)
    report = check(off, "gather_rows", "cpu", cases=CASES[:1])
    assert "1 of 1105 elements wrong" in str(report)
    report = check(lambda x, index: copy(x, index) + 0.0, "gather_rows", "cpu", cases=CASES[1:2])
    assert not report.conforms, "-0 became 0"


def test_a_trace_draws_an_index_below_its_limit(folder):
    """`portable trace gather_rows` read beside x: its index was of N(0, 1)."""
    spec = load_spec(folder / "spec.yaml")
    made = trace.inputs(spec, {"x": (3, 65), "index": (1000,)}, {"x": "float32", "index": "int64"})
    assert made["index"].dtype == torch.int64 and set(made["index"].tolist()) == {0, 1, 2}


def _with_index(folder, dtype):
    """The op with an index of this dtype in the place of int32."""
    spec = folder / "spec.yaml"
    spec.write_text(spec.read_text().replace("int32", dtype))
    registry.clear_caches()
    return registry.spec("gather_rows")


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
def test_a_narrow_index_is_judged(folder, dtype):
    """torch indexes by no int16 and takes uint8 for a mask: each case was an InternalError."""
    _with_index(folder, dtype)
    cases = [each.replace("int32", dtype) for each in CASES[:1]]
    report = check(copy, "gather_rows", "cpu", cases=cases)
    assert report.tally.passed == 1, str(report)
    x, index = torch.randn(5, 3), torch.tensor([4, 0, 4], dtype=getattr(torch, dtype))
    as_torch = registry.load_entry(registry.spec("gather_rows").implementations[-1].entry)
    assert torch.equal(as_torch(x, index), x[index.long()]), "its torch implementation"


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_an_index_stays_below_its_limit_where_its_type_ends_earlier(folder, dtype):
    """An int8 index below 300 was negative: a kernel read before its input."""
    spec = _with_index(folder, dtype)
    case = parse(f"gather_rows/float32,I={dtype}/R=300,M=257,N=1/normal/contiguous", spec)
    most = torch.iinfo(getattr(torch, dtype)).max
    drawn = [
        reference.materialize(case, spec).inputs["index"].tensor,
        trace.inputs(spec, {"x": (300, 1), "index": (2000,)}, {"x": "float32", "index": dtype})["index"],
    ]
    for index in drawn:
        assert index.min() >= 0 and index.max() > most - 10 and len(index.unique()) > 70


@pytest.mark.parametrize("value", [-1, 2**31 - 1])
def test_an_index_may_have_one_more_value(folder, value):
    """`or`, which stands for none: a number, or a parameter's value."""
    spec = folder / "spec.yaml"
    text = spec.read_text().replace("below: R", "below: R, or: none")
    spec.write_text(text.replace("outputs:", "params:\n  none: {type: int, default: -5}\noutputs:"))
    functions = folder / "reference.py"
    functions.write_text(functions.read_text().replace("x[index]", "x[index.clamp(0, 2)]"))
    registry.clear_caches()
    spec = registry.spec("gather_rows")
    for given, none in ((f",none={value}", value), ("", -5)):
        case = parse(f"gather_rows/float32,I=int32/R=3,M=400,N=1{given}/normal/contiguous", spec)
        found = reference.materialize(case, spec).inputs["index"].tensor
        assert set(found.tolist()) == {0, 1, 2, none} and 40 < (found == none).sum() < 160


def test_an_index_without_a_limit_is_named(folder):
    """It was an InternalError, "index -109 is out of bounds": the suite's own fault."""
    spec = folder / "spec.yaml"
    spec.write_text(spec.read_text().replace(", below: R", ""))
    registry.clear_caches()
    (result,) = check(copy, "gather_rows", "cpu", cases=CASES[:1]).results
    assert result.state == "InternalError"
    assert "input index has no limit: if it is an index, give it `below: <axis>`" in result.message


@pytest.mark.parametrize(
    ("old", "new", "said"),
    (
        (
            "result_ulp: 0,",
            "result_ulp: 0.3,",
            "'result_ulp' is 0.3; expected 0, which demands every bit, or at least",
        ),
        ('accumulation_ulp: "0"', 'accumulation_ulp: "2"', "with 'result_ulp' 0 'accumulation_ulp' is \"0\""),
    ),
)
def test_a_tolerance_that_cannot_be_meant_is_refused(folder, old, new, said):
    spec = folder / "spec.yaml"
    spec.write_text(spec.read_text().replace(old, new))
    with pytest.raises(ValueError, match=re.escape(said)):
        load_spec(spec)


@pytest.mark.slow
def test_its_kernel_conforms_on_an_emulated_gpu(folder):
    command = [sys.executable, "-m", "portable.conformance.commands.cli", "run", "--ops", "gather_rows"]
    done = subprocess.run(
        [*command, "--device", "rocm:gfx942", "--tier", "smoke"], capture_output=True, text=True
    )
    assert "\nCONFORMS: " in done.stdout, done.stdout + done.stderr

"""The needed `sum` is the judge's own threshold; data, file and command of the calibration."""

from __future__ import annotations

import json
import math
import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from portable.conformance.commands import calibrate
from portable.conformance.judge import reference
from portable.conformance.judge.bound import Tolerance, judge
from portable.runtime import detect
from portable.spec import registry

from . import in_sequence

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "conformance" / "calibration").glob("*.json.gz"))


def name_of(path):
    return path.name.removesuffix(".json.gz")


SMALL = calibrate.Sizes((64,), 8, 4)


def expected(ref: torch.Tensor, magnitude: torch.Tensor | None, dtype: torch.dtype) -> reference.Expected:
    return reference.Expected(ref, magnitude, Tolerance(0.51, 64.0, torch.float32), dtype)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from(["bfloat16", "float16", "float32"]), st.floats(0.0, 18.0),
       st.booleans())  # fmt: skip
def test_needed_is_where_the_judge_turns(seed: int, dtype: str, size: float, scaled: bool):
    """A tolerance a little above what is needed passes, one a little below fails."""
    generator, kind = torch.Generator().manual_seed(seed), getattr(torch, dtype)
    ref = torch.randn(200, generator=generator, dtype=torch.float64)
    off = torch.randn(200, generator=generator, dtype=torch.float64)
    got = (ref + 2.0**size * 2.0**-23 * off).to(kind)
    answer = expected(ref, torch.rand(200, generator=generator).double() if scaled else None, kind)
    needed = calibrate.needed(got, answer)

    def verdict(steps: float) -> bool:
        return judge(
            got, ref, answer.error_scale, replace(answer.tolerance, accumulation_ulp=steps), kind
        ).passed

    assert verdict(needed * 1.001 + 1e-9)
    assert not needed or not verdict(needed * 0.999)


def test_needed_refuses_what_no_constant_excuses():
    ref = torch.tensor([0.0, 1.0], dtype=torch.float64)
    for got, what in [
        (torch.tensor([0.0, math.nan]), "not finite"),
        (torch.tensor([0.0, math.inf]), "not finite"),
        (torch.tensor([0.5, 1.0]), "error_scale are 0"),
        (torch.tensor([0.0]), "shape"),
        (torch.tensor([0.0, 1.0]).half(), "expected"),
        ((0.0, 1.0), "expected"),
    ]:
        with pytest.raises(calibrate.Broken, match=what):
            calibrate.needed(got, expected(ref, None, torch.float32))


def test_result_needed_sees_the_last_rounding():
    ref = torch.linspace(1.0, 2.0, 10_001, dtype=torch.float64)[1:-1]
    near = ref.to(torch.bfloat16)
    assert 0.49 < (calibrate.result_needed(near, expected(ref, None, torch.bfloat16)) or 0) <= 0.5
    down = torch.where(near.double() > ref, torch.nextafter(near, near * 0), near)
    assert (calibrate.result_needed(down, expected(ref, None, torch.bfloat16)) or 0) > 0.9
    assert calibrate.result_needed(ref.float(), expected(ref, None, torch.float32)) is None
    everywhere = expected(ref, ref * 1e6, torch.bfloat16)
    assert calibrate.result_needed(near, everywhere) is None


# Data ---------------------------------------------------------------------------------------------


def call(op: str, axis: str, dtype: str = "float32") -> tuple[Any, calibrate.Call]:
    spec = registry.spec(op)
    found = [each for each in calibrate.calls(spec, calibrate.Sizes((64, 256), 16, 8)) if each.axis == axis]
    return spec, next(each for each in reversed(found) if dict(each.case.types)["T"] == dtype)


def test_every_axis_of_a_formula_grows():
    for op in registry.op_folders():
        spec = registry.spec(op)
        grown = {each.axis for each in calibrate.calls(spec, SMALL)} - {""}
        formulas = [each.accumulation_ulp for each in spec.tolerance.values()]
        assert grown == {axis for formula in formulas for axis in calibrate.axes_of(spec, formula)}
        asked = {tuple(dict(each.case.types).items()) for each in calibrate.calls(spec, SMALL)}
        assert asked == {tuple(row.items()) for row in spec.types if row["acc"] != "float64"}


def test_what_is_summed_away():
    def lacking(op: str, axis: str) -> tuple[str, ...]:
        return calibrate.summed_outputs(registry.spec(op), axis)

    assert lacking("matmul", "K") == ("c",) and lacking("softmax", "N") == ()
    assert lacking("rms_norm_backward", "B") == ("dweight",) and lacking("rms_norm_backward", "N") == ()
    assert calibrate.classes(registry.spec("matmul"), "K") == calibrate.VALUES
    assert calibrate.classes(registry.spec("rms_norm_backward"), "B") == calibrate.VALUES[:3]
    assert calibrate.classes(registry.spec("swiglu"), "") == ("normal", "uniform")


def test_data_are_a_function_of_the_seed():
    spec, each = call("matmul", "K")
    one, again = (calibrate.draw(each, spec, "uniform", 3) for _ in range(2))
    other = calibrate.draw(each, spec, "uniform", 4)
    for name, tensor in one.items():
        assert torch.equal(tensor, again[name]) and not torch.equal(tensor, other[name])
        assert float(tensor.min()) >= 0 and float(tensor.max()) <= 1


@pytest.mark.parametrize("op, axis", [("matmul", "K"), ("linear", "K"), ("layer_norm_backward", "B"),
                                      ("rms_norm_backward", "B")])  # fmt: skip
def test_mirrored_data_sum_to_nothing(op: str, axis: str):
    spec, each = call(op, axis)
    answer = reference.answer(each.case, spec, calibrate.draw(each, spec, "mirrored", 0))
    for name in calibrate.summed_outputs(spec, axis):
        scale = answer[name].error_scale
        assert scale is not None and float(scale.max()) > 1
        assert float(answer[name].ref.abs().max()) < 1e-12


def test_returning_data_come_back_from_far():
    spec, each = call("matmul", "K")
    (answer,) = reference.answer(each.case, spec, calibrate.draw(each, spec, "returning", 0)).values()
    length = dict(each.case.shape.axes)["K"]
    assert answer.error_scale is not None and float(answer.error_scale.min()) >= length / 4
    assert float(answer.ref.abs().max()) < length / 16


def test_a_truncating_accumulator_needs_more_where_nothing_cancels():
    """The data are there to show it: sums of one sign, an accumulator that drops what does not fit."""
    spec, each = call("matmul", "K")

    def accumulated(tensors: dict[str, torch.Tensor], cut: bool) -> torch.Tensor:
        a, b = tensors["a"].double(), tensors["b"].double()
        total = torch.zeros(a.shape[0], b.shape[1], dtype=torch.float64)
        for k in range(0, a.shape[1], 4):
            exact = total + a[:, k : k + 4] @ b[k : k + 4]
            near = exact.float().double()
            over = cut & (near.abs() > exact.abs())
            down = torch.nextafter(near.float(), torch.zeros(near.shape)).double()
            total = torch.where(over, down, near) if cut else near
        return total.float()

    for values in ("uniform", "returning"):
        tensors = calibrate.draw(each, spec, values, 0)
        (answer,) = reference.answer(each.case, spec, tensors).values()
        rounded, truncated = (calibrate.needed(accumulated(tensors, cut), answer) for cut in (False, True))
        assert truncated > 3 * rounded > 0


# Measuring ----------------------------------------------------------------------------------------


def test_measure_keeps_right_wrong_and_rejected_apart(norm):
    impls = ["plain", "reordered", "narrow_only", "crash", "wrong_dtype", "unwritten_tail", "zeros"]
    entries, rejected, broken = calibrate.measure(norm, impls, SMALL, (0, 1), torch.device("cpu"))
    shares = {(each["impl"], each["types"]): each["share"] for each in entries}
    for impl in ("plain", "reordered"):
        assert shares[impl, "float32"] < 0.5 and shares[impl, "bfloat16"] < 0.5
    assert shares["zeros", "float32"] > 1
    assert [(each["impl"], each["types"]) for each in rejected] == [("narrow_only", "float32")]
    assert {each["impl"] for each in broken} == {"crash", "wrong_dtype"} | (
        {"unwritten_tail"} if ("unwritten_tail", "float32") not in shares else set()
    )
    assert len({each["impl"] for each in broken if "seed 0" in each["reason"]}) >= 2
    for each in entries:
        assert set(each["needed"]) == {"normal", "uniform"} and each["sizes"] == {"N": 64, "B": 4}
        assert each["allowed"] == 12.0 and (each["result"] is None) == (each["dtype"] == "float32")


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PORTABLE_BACKEND", "cpu")
    monkeypatch.delenv("PORTABLE_EMULATE", raising=False)
    detect.reset()
    yield
    monkeypatch.undo()
    detect.reset()


def test_the_command_writes_a_file_that_reads_back(on_cpu, tmp_path, capsys):
    path = tmp_path / "cpu.json"
    arguments = ["--ops", "matmul,softmax", "--seeds", "1", "--longest", "64", "--out", str(path)]
    assert calibrate.main(arguments) == 0
    found = calibrate.read(path)
    assert found["header"]["vendor"] == "cpu" and found["settings"]["lengths"] == [64]
    assert {each["op"] for each in found["entries"]} == {"matmul", "softmax"}
    said = capsys.readouterr().out
    assert "share" in said and "0 above what the spec allows, 0 broken" in said
    assert list(tmp_path.iterdir()) == [path]
    assert str(tmp_path) not in path.read_text()


@pytest.mark.parametrize("change, part", [
    (["--ops", "matmull"], "--ops matmull"), (["--ops", ","], "--ops names nothing"),
    (["--impl", "warp"], "--impl warp"), (["--seeds", "0"], "--seeds 0"),
    (["--longest", "63"], "--longest 63"), (["--device", "abacus"], "--device abacus"),
    (["--out", "no/such/folder.json"], "no such folder"),
])  # fmt: skip
def test_a_mistake_is_one_sentence(on_cpu, tmp_path, capsys, change, part):
    arguments = ["--out", str(tmp_path / "x.json"), *change]
    assert calibrate.main(arguments) == 2
    said = capsys.readouterr().err
    assert part in said and said.count("\n") == 1 and not list(tmp_path.iterdir())


def sample() -> dict[str, Any]:
    entry = {"op": "o", "impl": "i", "types": "t", "params": "", "output": "y", "dtype": "float32",
             "axis": "K", "sizes": {"K": 64}, "allowed": 8.0, "needed": {"normal": 2.0}, "share": 0.25,
             "result": None}  # fmt: skip
    head = dict.fromkeys(calibrate.HEADER, "")
    rest = {"entries": [entry], "not_supported": [], "broken": []}
    return {"calibration": 1, "header": head, "settings": {}, **rest}


def test_a_compressed_file_reads_back(tmp_path):
    path = tmp_path / "c.json.gz"
    calibrate.write(path, sample())
    assert calibrate.read(path) == sample()
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(calibrate.CalibrationError, match=r"c\.json\.gz: damaged gzip file"):
        calibrate.read(path)


def test_a_file_is_checked(tmp_path):
    path = tmp_path / "c.json"
    calibrate.write(path, sample())
    assert calibrate.read(path) == sample()
    for change, part in [
        ({"calibration": 2}, "version 1"), ({"header": {}}, "header.device"), ({"entries": None}, "entries"),
        ({"entries": [{}]}, r"entries\[0\].op: missing"),
        ({"entries": [{**sample()["entries"][0], "share": "1"}]}, r"entries\[0\].share: cannot be '1'"),
        ({"entries": [{**sample()["entries"][0], "needed": {}}]}, "at least 0"),
    ]:  # fmt: skip
        path.write_text(json.dumps({**sample(), **change}))
        with pytest.raises(calibrate.CalibrationError, match=rf"c\.json: .*{part}"):
            calibrate.read(path)
    for text in ("{", "[]"):
        path.write_text(text)
        with pytest.raises(calibrate.CalibrationError, match=r"c\.json"):
            calibrate.read(path)
    with pytest.raises(calibrate.CalibrationError, match=r"gone\.json"):
        calibrate.read(tmp_path / "gone.json")


def test_a_failed_write_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "c.json"
    path.write_text("before")
    monkeypatch.setattr(calibrate.os, "replace", lambda *_: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        calibrate.write(path, sample())
    assert path.read_text() == "before" and list(tmp_path.iterdir()) == [path]


# What has been measured ---------------------------------------------------------------------------


def test_there_are_measurements():
    assert {"emulated-gfx942", "emulated-gfx1100", "in-sequence"} <= set(map(name_of, FILES))


@pytest.mark.parametrize("path", FILES, ids=map(name_of, FILES))
def test_what_was_measured_is_allowed_today(path: Path):
    """Every need lies under the spec's constant as the spec is now, whatever it was then."""
    found = calibrate.read(path)
    assert not found["broken"]
    for entry in found["entries"]:
        allowed = calibrate.allowed(entry)
        assert max(entry["needed"].values()) <= allowed, entry


@pytest.mark.parametrize("op", list(in_sequence.OPS))
def test_one_addition_after_the_other_is_allowed(op: str):
    """The widest order passes with room to spare, and needs something, so the measure sees it."""
    parts = in_sequence.measured([op], calibrate.Sizes((64, 1024), 8, 8), (7,))
    assert parts["entries"] and not parts["broken"] and not parts["not_supported"]
    assert 0.01 < max(entry["share"] for entry in parts["entries"]) < 0.7


def test_the_page_is_that_of_the_files():
    page = runpy.run_path(str(ROOT / "docs" / "calibration.py"))
    assert (ROOT / "docs" / "calibration.md").read_text() == page["page"](), "run python docs/calibration.py"


def test_the_page_says_what_is_near_its_edge_and_what_is_wide():
    page = runpy.run_path(str(ROOT / "docs" / "calibration.py"))
    entry = {"op": "matmul", "impl": "simt", "types": "float32", "params": "", "output": "c", "axis": "K",
             "sizes": {"M": 8, "N": 8, "K": 64}, "allowed": 1.0, "needed": {"normal": 0.1, "mirrored": 15.0},
             "share": 15.0, "result": None}  # fmt: skip
    assert page["cell"]([entry]) == "15 of 16 (**0.94**) K=64 mirrored"
    assert page["cell"]([{**entry, "needed": {"normal": 4.0}}]) == "4 of 16 (0.25) K=64 normal"
    assert page["cell"]([{**entry, "needed": {"normal": 0.0}}]) == "0" and page["cell"]([]) == ""
    sums = {"op": "matmul", "output": "c", "types": "float32", "sizes": {"M": 8, "N": 8, "K": 64}}
    row = page["_formulas"]({"in-sequence": {"entries": [{**sums, "needed": {"normal": 8.0}}]}})[-1]
    formula = str(registry.spec("matmul").tolerance["c"].accumulation_ulp)
    assert row == f"| matmul | c | `{formula}` | 0.000 | 0.500 |  |"
    told = {most: page["_formulas"]({"x": {"entries": [{**entry, "needed": {"normal": most}}]}})[-1]
            for most in (15.0, 4.0, 0.1)}  # fmt: skip
    assert "near its edge" in told[15.0] and "| wide |" in told[0.1]
    assert "near" not in told[4.0] and "wide" not in told[4.0] and f"`{formula}`" in told[4.0]

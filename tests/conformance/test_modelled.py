"""Modelled times: a part of a record, shown beside measured times by `compare`, never judged with them."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from portable.conformance.commands import cli
from portable.conformance.records import compare, merge, modelled, record
from portable.conformance.records.merge import MergeError
from portable.conformance.records.parity import ParityError
from portable.conformance.records.schema import RecordError
from portable.conformance.report import html

from .sample_record import BENCH, sample_record

MATMUL, SOFTMAX = BENCH[0][1], BENCH[1][1]
ACCURACY = "+-7% over 22 published times of 8 kernels"
UNCOMPARED = "not compared with any published time"
EMULATED: dict[str, Any] = {
    "device": "emulated gfx942", "vendor": "rocm", "arch": "gfx942", "emulated": True, "driver": None,
    "toolkit": None,
}  # fmt: skip


def emulated(share=0.45, accuracy=ACCURACY, **changes):
    """A record of an emulated GPU whose implementation `mfma` has `share` of the model's roof in every bench
    case, and whose `triton` is half as fast."""
    made = sample_record(**{**EMULATED, **changes}) | {"timings": [], "roof": None}
    times = [
        {
            "op": op, "impl": impl, "case": case, "modelled_us": 100.0 / share * slower, "floor_us": 100.0,
            "bytes": moved, "flops": float(f"{flops:.6g}"), "launches": 1, "message": "",
        }
        for op, case, _, flops, moved in BENCH
        for impl, slower in (("mfma", 1.0), ("triton", 2.0))
    ]  # fmt: skip
    made["modelled"] = {
        "accuracy": accuracy, "roof": {"copy_bytes_per_s": 4.2e12, "matmul_bfloat16_flop_per_s": 6.6e14},
        "times": times,
    }  # fmt: skip
    record.validate(made)
    return made


def by_name(found):
    return {(row.case or row.op, row.impl): row for row in found}


def test_a_modelled_side_is_compared_by_shares_of_the_roof():
    """A measured 0.9 of its roof in Triton; B's mfma is modelled at 0.45 of the model's."""
    rows = by_name(modelled.rows(sample_record(), emulated()))
    best = rows[MATMUL, "best (triton against mfma)"]
    assert best.of_roof == pytest.approx((0.9, 0.45), rel=0.01) and best.ratio == pytest.approx(0.5, rel=0.01)
    assert rows[MATMUL, "triton"].ratio == pytest.approx(0.25, rel=0.01)
    assert (best.microseconds[1], rows[MATMUL, "triton"].microseconds[1]) == pytest.approx(
        (222.2, 444.4), 1e-3
    )
    assert rows["matmul", "best"].cases == 1


def test_the_section_names_what_is_measured_and_what_is_modelled():
    lines, agree = compare.report(sample_record(), emulated(share=0.01))
    at = lines.index(modelled.TITLE)
    assert agree, "a modelled time is no part of the verdict"
    assert "  A: measured on NVIDIA H200" in lines[at:]
    assert f"  B: modelled on emulated gfx942, {ACCURACY}" in lines[at:]
    (head,) = [line for line in lines[at:] if "implementation" in line]
    assert "A us, measured" in head and "B us, modelled" in head and "verdict" not in head
    assert not any("Parity" in line for line in lines)


@pytest.mark.parametrize("arch", ["gfx90a", "gfx1100"])
def test_a_model_that_nothing_was_compared_with_says_so(arch):
    other = emulated(accuracy=UNCOMPARED, arch=arch, device=f"emulated {arch}")
    lines, _ = compare.report(emulated(), other)
    assert f"  B: modelled on emulated {arch}, {UNCOMPARED}" in lines
    assert f"  A: modelled on emulated gfx942, {ACCURACY}" in lines


def test_measured_parity_takes_no_modelled_time():
    for pair in ((sample_record(), emulated()), (emulated(), sample_record())):
        with pytest.raises(ParityError, match=r"is emulated and has no timings; .*modelled times are shown"):
            compare.report(*pair, 0.8)


def test_two_measured_records_have_no_such_section():
    lines, _ = compare.report(sample_record(), sample_record())
    assert modelled.TITLE not in lines and "modelled" not in compare.data(sample_record(), sample_record())


def test_a_side_without_times_is_named():
    untimed = sample_record() | {"timings": [], "roof": None}
    lines, _ = compare.report(untimed, emulated())
    assert "  A holds no times; run it with --bench on a GPU, with --model on an emulated one" in lines


def test_what_cannot_be_compared_is_said():
    other = emulated()
    other["modelled"]["times"][0]["flops"] *= 2
    for each in other["modelled"]["times"][2:]:
        each |= {"modelled_us": None, "message": "KernelFault: out of bounds"}
    lines, _ = compare.report(sample_record(), other)
    assert f"  refused: {MATMUL}: the two runs count different bytes or flops for it" in lines
    assert f"  timed only in A: {SOFTMAX}" in lines


def test_a_share_of_a_roof_that_the_model_lacks_is_left_out():
    other = emulated()
    for each in other["modelled"]["times"]:
        each["floor_us"] = None
    row = by_name(modelled.rows(sample_record(), other))[MATMUL, "triton"]
    assert row.of_roof[1] is None and row.ratio is None and row.microseconds[1]


def test_a_record_keeps_them_through_its_file(tmp_path):
    made = emulated()
    record.write(tmp_path / "r.json", made)
    assert record.read(tmp_path / "r.json")["modelled"] == made["modelled"]
    schema = json.loads((Path(record.__file__).parent / "record.schema.json").read_text())
    jsonschema.validate(json.loads((tmp_path / "r.json").read_text()), schema)


@pytest.mark.parametrize(
    ("damage", "place"),
    [
        (lambda made: made["header"].update(emulated=False), "modelled: only an emulated"),
        (lambda made: made["modelled"].pop("accuracy"), "modelled.accuracy: missing"),
        (lambda made: made["modelled"].update(accuracy=""), "modelled.accuracy"),
        (lambda made: made["modelled"]["times"][1].update(modelled_us="1"), "modelled.times[1].modelled_us"),
        (lambda made: made["modelled"]["times"][1].update(modelled_us=0.0), "modelled.times[1].modelled_us"),
        (lambda made: made["modelled"]["times"][1].pop("flops"), "modelled.times[1].flops: missing"),
        (lambda made: made["modelled"]["roof"].update(x="fast"), "modelled.roof.x"),
    ],
)
def test_damage_is_named(damage, place):
    made = emulated()
    damage(made)
    with pytest.raises(RecordError) as error:
        record.validate(made)
    assert place in str(error.value)


def test_shards_keep_the_modelled_times_of_one():
    whole = emulated()
    shards = [copy.deepcopy(whole) for _ in range(2)]
    for number, each in enumerate(shards, start=1):
        each["header"]["fraction"] = [number, 2]
        each["results"] = whole["results"][number - 1 :: 2]
    with pytest.raises(MergeError, match="expected it once"):
        merge.merge(shards)
    del shards[0]["modelled"]
    merged = merge.merge(shards)
    assert (
        merged["modelled"]["accuracy"] == ACCURACY and merged["modelled"]["roof"] == whole["modelled"]["roof"]
    )
    assert len(merged["modelled"]["times"]) == 4


def test_the_pages_call_them_modelled():
    comparison = compare.data(sample_record(), emulated())
    page = html.page(sample_record(), emulated(), comparison)
    assert 'id="modelled"' in page and ACCURACY in page and 'id="parity"' not in page
    alone = html.page(emulated())
    assert 'id="modelled"' in alone and ACCURACY in alone and 'id="throughput"' not in alone


def test_model_is_for_an_emulated_gpu(norm, capsys):
    assert cli.main(["run", "--ops", "toy_norm", "--model"]) == 2
    assert "--model needs an emulated GPU" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_models_the_bench_cases(tmp_path):
    """The whole way: a run on the emulated GPU, its file, and the comparison with itself."""
    path = tmp_path / "r.json"
    command = [sys.executable, "-m", "portable.conformance.commands.cli"]
    done = subprocess.run(
        [*command, "run", "--device", "rocm:gfx942", "--emulate", "--ops", "rms_norm", "--tier", "smoke",
         "--impl", "cpp", "-k", "rms_norm/bfloat16/N=1,", "--model", "-j", "1", "--record", str(path)],
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = record.read(path)
    times = found["modelled"]["times"]
    assert not found["timings"] and {each["impl"] for each in times} == {"cpp"}
    assert {each["case"].split("/")[1] for each in times} == {"bfloat16", "float32"}
    (bf16,) = [each for each in times if "/bfloat16/" in each["case"]]
    assert 0.5 < bf16["floor_us"] / bf16["modelled_us"] <= 1.0
    assert "+-7%" in done.stdout and "not measured" in done.stdout
    done = subprocess.run([*command, "compare", str(path), str(path)], capture_output=True, text=True)
    assert done.returncode == 0 and modelled.TITLE in done.stdout, done.stdout + done.stderr

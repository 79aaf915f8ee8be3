"""Records are whole, checked and silent about who ran them."""

from __future__ import annotations

import dataclasses
import getpass
import json
import re
import socket
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import torch

from portable.conformance.records import record
from portable.plan import Device
from portable.spec import registry

from . import sample_record as sample
from .sample_record import sample_record


@pytest.fixture
def made():
    return sample_record()


def test_there_and_back(made, tmp_path):
    file = tmp_path / "a.json"
    record.write(file, made)
    assert record.read(file) == made
    assert [each.name for each in tmp_path.iterdir()] == ["a.json"]


def test_no_names():
    argv = ["run", "--record", "/home/someone/a.json", "--html=/home/someone/b.html", "../c"]
    argv += ["--ops", "softmax"]
    head = record.header(Device("cpu", "x86_64", "CPU"), argv, "smoke", ops=["softmax"])
    text = json.dumps(record.build(head, [], {}))
    assert "someone" not in text
    assert head["command"] == "portable-conformance run --record a.json --html=b.html c --ops softmax"
    assert f'"{socket.gethostname()}"' not in text and f'"{getpass.getuser()}"' not in text
    record.validate(record.build(head, [], {}))


def test_messages_name_no_folder_of_the_user():
    """A traceback in a message shows where the package, Python and the user's files lie."""
    where = [record.__file__, torch.__file__, str(Path.home() / "kernels" / "mine.py"), "/etc/hostname"]
    entry = record.entry("softmax/x", "torch", "Crash", message=" at ".join(where))
    first, second, third, fourth = entry["message"].split(" at ")
    assert (first, third, fourth) == ("conformance/results/record.py", "~/kernels/mine.py", "/etc/hostname")
    assert second.endswith("site-packages/torch/__init__.py") and sys.prefix not in second


def test_the_published_schema_says_what_the_program_checks(made):
    """The fields, the required ones and the states; and a record that `validate` takes fits."""
    schema = json.loads((Path(record.__file__).parent / "record.schema.json").read_text())
    properties = schema["properties"]
    assert properties["schema"]["const"] == record.SCHEMA
    assert set(properties["header"]["required"]) == set(record.HEADER_FIELDS)
    assert set(properties["header"]["properties"]) == {*record.HEADER_FIELDS, "shards"}
    assert properties["header"]["properties"]["tier"]["enum"] == list(record.TIERS)
    result = properties["results"]["items"]
    assert set(result["required"]) == set(record.RESULT_FIELDS)
    assert set(result["properties"]) == set(record.RESULT_FIELDS) | set(record.OPTIONAL_FIELDS)
    assert set(properties["timings"]["items"]["required"]) == set(record.TIMING_FIELDS)
    assert set(properties["waivers"]["items"]["required"]) == set(record.WAIVER_FIELDS)
    assert schema["$defs"]["state"]["enum"] == list(record.STATES)
    jsonschema.validate(json.loads(record.text(made)), schema)


def test_one_result_a_line(made):
    lines = record.text(made).splitlines()
    for each in made["results"]:
        assert sum(json.dumps(each, sort_keys=True) in line for line in lines) == 1


def test_summaries(made):
    found = {(each.op, each.impl): each for each in record.summaries(made)}
    assert found["softmax", "triton"].states == {"Pass": 2, "NotSupported": 1}
    assert found["matmul", "torch"].worst["case"] == sample.CASES[2]
    assert all(each.conforms for each in found.values())
    assert sum(len(each.results) for each in found.values()) == len(made["results"])


@pytest.mark.parametrize(
    "change",
    [
        lambda r: r["header"].update(complete=False),
        lambda r: r["results"][3].update(state="Timeout"),
        lambda r: r["timings"][0].update(state="InternalError"),
        lambda r: r.update(faults=["softmax/x on triton was not run."]),
    ],
)
def test_what_does_not_conform(made, change):
    assert record.conforming(made)
    change(made)
    assert not record.conforming(made)


def test_a_question_changes_with_what_is_asked(norm, monkeypatch):
    before = record.question("toy_norm")
    assert before == record.question("toy_norm") != record.question("softmax")
    changed = dataclasses.replace(
        norm, tolerance={"y": dataclasses.replace(norm.tolerance["y"], result_ulp=0.6)}
    )
    monkeypatch.setattr(registry, "spec", lambda op: changed)
    assert record.question("toy_norm") != before
    fewer = dataclasses.replace(norm, implementations=norm.implementations[:1])
    monkeypatch.setattr(registry, "spec", lambda op: fewer)
    assert record.question("toy_norm") == before


def test_a_failed_write_leaves_the_old_file(made, tmp_path, monkeypatch):
    file = tmp_path / "a.json"
    record.write(file, made)

    def full(*args):
        raise OSError("no space left on device")

    monkeypatch.setattr(record.files.os, "replace", full)
    with pytest.raises(OSError):
        record.write(file, {**made, "inputs": {}})
    assert record.read(file) == made
    assert [each.name for each in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.parametrize(
    "damage, place",
    [
        (lambda r: r.update(schema=99), "schema"),
        (lambda r: r["header"].pop("arch"), "header.arch"),
        (lambda r: r["header"].update(emulated="no"), "header.emulated"),
        (lambda r: r["header"].update(fraction=[3, 2]), "header.fraction"),
        (lambda r: r["header"].update(tier="../core"), "header.tier: '../core'"),
        (lambda r: r["header"]["selection"].pop("k"), "header.selection.k"),
        (lambda r: r["results"][0].pop("state"), "results[0].state"),
        (lambda r: r["results"][0].update(state="Passed"), "results[0].state: 'Passed' is no state"),
        (lambda r: r["results"][2].update(exact="yes"), "results[2].exact"),
        (lambda r: r["results"][2].update(mood="good"), "results[2].mood: unknown field"),
        (lambda r: r["results"].append(3), "results[13]: expected an object"),
        (lambda r: r.update(timings={}), "timings"),
        (lambda r: r["timings"][1].pop("floor_us"), "timings[1].floor_us"),
        (lambda r: r.update(inputs={"a": 3}), "inputs"),
        (lambda r: r.update(roof=[]), "roof"),
        (lambda r: r.update(faults=[3]), "faults"),
        (lambda r: r.pop("waivers"), "waivers"),
    ],
)
def test_damage_is_named(made, damage, place):
    damaged = json.loads(json.dumps(made))
    damage(damaged)
    with pytest.raises(record.RecordError, match=re.escape(place)):
        record.validate(damaged)


def test_a_torn_file_is_named(tmp_path):
    file = tmp_path / "a.json"
    file.write_text('{"schema": 1, "head')
    with pytest.raises(record.RecordError, match="not JSON"):
        record.read(file)


@pytest.mark.parametrize("text", ['{"schema": NaN}', '{"schema": ' + "9" * 5000 + "}", "[" * 100_000, "\xff"])
def test_what_is_no_json_is_a_sentence(tmp_path, text):
    file = tmp_path / "a.json"
    file.write_text(text, encoding="latin-1")
    with pytest.raises(record.RecordError, match="not JSON"):
        record.read(file)


def test_infinity_travels_as_text():
    built = record.build({}, [], {}, [{"device_us": float("inf"), "all": [float("nan"), 1.0]}])
    assert built["timings"][0] == {"device_us": "inf", "all": ["nan", 1.0]}
    entry = record.entry("softmax/x", "torch", "Fail.value", worst=float("inf"), max_abs=0.0, message="")
    assert entry == {"case": "softmax/x", "impl": "torch", "state": "Fail.value", "worst": "inf"}


def test_a_checkout_is_dirty_by_its_sources_alone(tmp_path, monkeypatch):
    """New evidence does not make the next run's record look as if the sources had changed."""

    def git(*arguments):
        subprocess.run(["git", "-C", str(tmp_path), *arguments], check=True, capture_output=True)

    for name in ("conformance/results/record.py", "conformance/results/h200/core.json", "kernels/op.py"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("1")
    git("init")
    git("add", ".")
    git("-c", "user.name=x", "-c", "user.email=x@example.org", "commit", "-m", "x")
    monkeypatch.setattr(record, "__file__", str(tmp_path / "conformance/results/record.py"))
    commit, dirty = record._commit()
    assert len(commit) == 40 and dirty is False
    (tmp_path / "conformance/results/h200/core.json").write_text("2")
    assert record._commit() == (commit, False)
    (tmp_path / "kernels/op.py").write_text("2")
    assert record._commit() == (commit, True)

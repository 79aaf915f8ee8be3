"""Records are whole, checked and silent about who ran them."""

from __future__ import annotations

import dataclasses
import getpass
import gzip
import json
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch

from portable.conformance.cases.generate import TIERS
from portable.conformance.execute.result import entry
from portable.conformance.records import record
from portable.conformance.records.schema import (
    HEADER_FIELDS,
    MODELLED_FIELDS,
    MODELLED_TIME_FIELDS,
    OPTIONAL_FIELDS,
    RESULT_FIELDS,
    SCHEMA,
    TIMING_FIELDS,
    WAIVER_FIELDS,
)
from portable.conformance.states import STATES
from portable.plan import Device
from portable.runtime import files
from portable.spec import registry
from portable.spec.reader import load_spec

from . import sample_record as sample
from .sample_record import sample_record


@pytest.fixture
def made():
    return sample_record()


def by_case(record: dict[str, Any]) -> dict[str, Any]:
    """A file has its results op by op."""
    return {**record, "results": sorted(record["results"], key=lambda each: (each["case"], each["impl"]))}


def test_there_and_back(made, tmp_path):
    file = tmp_path / "a.json"
    record.write(file, made)
    assert by_case(record.read(file)) == by_case(made)
    assert [each.name for each in tmp_path.iterdir()] == ["a.json"]


def test_a_compressed_record(made, tmp_path):
    file = tmp_path / "a.json.gz"
    record.write(file, made)
    once = file.read_bytes()
    record.write(file, made)
    assert once == file.read_bytes()
    assert gzip.decompress(once).decode() == record.text(made)
    assert once[:10] == bytes.fromhex("1f8b080000000000 02ff")  # no name, no time, and no system's byte
    assert by_case(record.read(file)) == by_case(made)
    renamed = tmp_path / "b.json"
    renamed.write_bytes(once)
    assert by_case(record.read(renamed)) == by_case(made)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda once: once[:-9], "damaged gzip file"),
        (lambda once: once[:40] + b"\xff\x00\xff" + once[43:], "damaged gzip file"),
        (lambda once: once[:2], "damaged gzip file"),
        (lambda once: gzip.compress(bytes(2 << 20)), "more than 1 MiB"),
        (lambda once: gzip.compress(b"{"), "not JSON"),
        (lambda once: gzip.compress(b"\xff"), "not JSON"),
    ],
)
def test_a_damaged_compressed_record(made, tmp_path, monkeypatch, damage, words):
    file = tmp_path / "a.json.gz"
    record.write(file, made)
    monkeypatch.setattr(files, "MOST_BYTES", 1 << 20)
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(record.RecordError, match=words):
        record.read(file)


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
    made = entry("softmax/x", "torch", "Crash", message=" at ".join(where))
    first, second, third, fourth = made["message"].split(" at ")
    assert first.endswith("conformance/records/record.py") and not first.startswith("/")
    assert (third, fourth) == ("~/kernels/mine.py", "/etc/hostname")
    assert second.endswith("site-packages/torch/__init__.py") and sys.prefix not in second


def test_the_published_schema_says_what_the_program_checks(made):
    """The fields, the required ones and the states; and a record that `validate` takes fits."""
    schema = json.loads((Path(record.__file__).parent / "record.schema.json").read_text())
    properties = schema["properties"]
    assert properties["schema"]["const"] == SCHEMA
    assert set(properties["header"]["required"]) == set(HEADER_FIELDS)
    assert set(properties["header"]["properties"]) == {*HEADER_FIELDS, "shards", "renamed"}
    assert properties["header"]["properties"]["tier"]["enum"] == list(TIERS)
    columns = properties["results"]["additionalProperties"]["additionalProperties"]
    others = {"state": "states", "message": "messages"}
    named = {others.get(name, name) for name in {*RESULT_FIELDS, *OPTIONAL_FIELDS} - {"case", "impl"}}
    assert set(columns["required"]) == set(columns["properties"]) == named | {"measured"}
    assert set(properties["timings"]["items"]["required"]) == set(TIMING_FIELDS)
    modelled = properties["modelled"]
    assert set(modelled["required"]) == set(modelled["properties"]) == set(MODELLED_FIELDS)
    assert set(modelled["properties"]["times"]["items"]["required"]) == set(MODELLED_TIME_FIELDS)
    assert set(properties["waivers"]["items"]["required"]) == set(WAIVER_FIELDS)
    assert schema["$defs"]["state"]["enum"] == list(STATES)
    jsonschema.validate(json.loads(record.text(made)), schema)


def awkward() -> list[dict[str, Any]]:
    """Results that a table of op, case and implementation does not hold by itself."""
    one, two = sample.CASES[0], sample.CASES[3]
    return [
        entry(two, "triton", "Pass", worst="inf", ulp=-0.5, digest="0" * 16, seconds=0.012),
        entry(one, "torch", "Pass", exact=True),
        entry(one, "triton", "Fail.value", message='a b\n"c" - 3 + é', max_abs=1e-12),
        entry(one, "torch", "Pass", exact=True, digest="1" * 16),  # twice
        entry("softmax/behaviour/graph_capture", "cpp", "NotSupported", message="-"),
        entry("softmax", "cpp", "NotRun"),
        entry("odd//x", "odd impl", "Crash", message='a b\n"c" - 3 + é'),
    ]


def test_every_record_comes_back_whole(made, tmp_path):
    """Op by op, the results of a case side by side; the seconds with two digits."""
    made["results"] = awkward()
    made["inputs"]["swiglu/float32/N=3/normal/contiguous"] = "f" * 16  # run, but its result was lost
    record.write(tmp_path / "a.json", made)
    again = record.read(tmp_path / "a.json")

    def ordered(results):
        return sorted(results, key=lambda each: json.dumps(each, sort_keys=True))

    assert ordered(again.pop("results")) == ordered(made.pop("results"))
    assert again == made


@pytest.mark.slow
def test_a_file_says_each_text_once():
    """What 12,000 results take: no id of a case and no message stands twice."""
    cases = [
        f"softmax/float32/N={n},lead=3/{values}/contiguous" for n in range(2000) for values in ("a", "b")
    ]
    results = [
        entry(case, impl, "NotSupported", message="a rule of many words that hold for every one of them")
        for case in cases for impl in ("x", "y", "z")
    ]  # fmt: skip
    text = record.text(sample_record() | {"results": results, "inputs": {}})
    assert text.count("a rule of many words") == text.count("N=1234,lead=3") == 1
    assert len(text) < 130_000


def unpacked(made, damage):
    content = json.loads(record.text(made))
    damage(content)
    return record.load(content)


@pytest.mark.parametrize(
    "damage, place",
    [
        (lambda c: c.update(messages=[3]), "messages"),
        (lambda c: c.update(cases=[]), "cases: expected an object"),
        (lambda c: c["cases"].pop("matmul"), "results.matmul: the op has no cases"),
        (lambda c: c["cases"]["matmul"].update(parts=[3]), "cases.matmul.parts"),
        (lambda c: c["cases"]["matmul"].update(ids="0.0.0.99 - -"), "names a part that does not exist"),
        (lambda c: c["cases"]["matmul"].update(ids="0.0.0.0.0.0.0 - -"), "more parts than there are"),
        (lambda c: c["cases"]["matmul"].update(ids="0"), "cases.matmul.inputs: 3 hashes of 1 cases"),
        (lambda c: c["results"]["matmul"]["torch"].update(states="Pass 2"), "torch.states: runs of 2 in all"),
        (
            lambda c: c["results"]["matmul"]["torch"].update(states="Pass"),
            "expected words, each with its count",
        ),
        (lambda c: c["results"]["matmul"]["torch"].update(states="Pass 999999999"), "runs of 999999999"),
        (lambda c: c["results"]["matmul"]["torch"].update(messages="7 3"), "is the number of no message"),
        (lambda c: c["results"]["matmul"]["torch"].update(worst=[1]), "worst: expected a list of 3 numbers"),
        (lambda c: c["results"]["matmul"]["torch"].update(digest="0"), "digest: 1 words; expected 3"),
        (lambda c: c["results"]["matmul"]["torch"].update(mood="-"), "mood: unknown column"),
        (lambda c: c["results"]["matmul"].update({str(i): {} for i in range(10**6)}), "are read"),
        (lambda c: c["results"]["matmul"]["torch"].update(states="Passed 3"), "'Passed' is no state"),
        (lambda c: c["results"]["matmul"]["torch"].update(worst=[[], [3], 1]), "results[3].worst"),
    ],
)
def test_damage_of_a_file_is_named(made, damage, place):
    with pytest.raises(record.RecordError, match=re.escape(place)):
        unpacked(made, damage)


def test_a_record_of_schema_3_is_read(made):
    """As a vendor may hold it: results in a list, hashes of 64 digits, the implementations' names of then."""
    old = json.loads(json.dumps({**made, "schema": 3}))
    for each in old["results"]:
        each["impl"] = {"triton": "native"}.get(each["impl"], each["impl"])
    old["inputs"] = {case: digest + "0" * 48 for case, digest in old["inputs"].items()}
    found = record.load(old)
    assert found["header"].pop("renamed") == {"date": "2026-11-22", "impls": record.RENAMED}
    for each in made["results"]:
        each["impl"] = {"triton": "cpp"}.get(each["impl"], each["impl"])
    assert found == made


def test_summaries(made):
    found = {(each.op, each.impl): each for each in record.summaries(made)}
    assert found["softmax", "triton"].states == {"Pass": 2, "NotSupported": 1}
    worst = found["matmul", "torch"].worst
    assert worst is not None and worst["case"] == sample.CASES[2]
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
    before = record.op_digest("toy_norm")
    assert before == record.op_digest("toy_norm") != record.op_digest("softmax")
    changed = dataclasses.replace(
        norm, tolerance={"y": dataclasses.replace(norm.tolerance["y"], result_ulp=0.6)}
    )
    monkeypatch.setattr(registry, "spec", lambda op: changed)
    assert record.op_digest("toy_norm") != before
    fewer = dataclasses.replace(norm, implementations=norm.implementations[:1])
    monkeypatch.setattr(registry, "spec", lambda op: fewer)
    assert record.op_digest("toy_norm") == before


def test_a_failed_write_leaves_the_old_file(made, tmp_path, monkeypatch):
    file = tmp_path / "a.json"
    record.write(file, made)

    def full(*args):
        raise OSError("no space left on device")

    monkeypatch.setattr(record.files.os, "replace", full)
    with pytest.raises(OSError):
        record.write(file, {**made, "inputs": {}})
    assert by_case(record.read(file)) == by_case(made)
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
        (lambda r: r["results"][2].update(worst="Pass 9"), "results[2].worst: 'Pass 9' is no number"),
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
    made = entry("softmax/x", "torch", "Fail.value", worst=float("inf"), max_abs=0.0, message="")
    assert made == {"case": "softmax/x", "impl": "torch", "state": "Fail.value", "worst": "inf"}


def test_a_checkout_is_dirty_by_its_sources_alone(tmp_path, monkeypatch):
    """New evidence does not make the next run's record look as if the sources had changed."""

    def git(*arguments):
        subprocess.run(["git", "-C", str(tmp_path), *arguments], check=True, capture_output=True)

    for name in ("conformance/records/record.py", "conformance/results/h200/core.json.gz", "kernels/op.py"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("1")
    git("init")
    git("add", ".")
    git("-c", "user.name=x", "-c", "user.email=x@example.org", "commit", "-m", "x")
    monkeypatch.setattr(record, "__file__", str(tmp_path / "conformance/records/record.py"))
    commit, dirty = record.checkout_commit()
    assert commit is not None and len(commit) == 40 and dirty is False
    (tmp_path / "conformance/results/h200/core.json.gz").write_text("2")
    assert record.checkout_commit() == (commit, False)
    (tmp_path / "kernels/op.py").write_text("2")
    assert record.checkout_commit() == (commit, True)


def test_the_digest_of_a_spec_does_not_depend_on_where_the_checkout_lies(tmp_path):
    """Two vendors compare records of two machines; attention's specs name functions of files."""
    folder = registry.op_folders()["attention_varlen"].parent
    digests = set()
    for name in ("one", "two"):
        copy = Path(shutil.copytree(folder, tmp_path / name / "attention"))
        digests.add(record.spec_digest(load_spec(copy / "varlen.yaml"), copy))
    assert len(digests) == 1


def test_a_digest_knows_what_specs_can_say_since_only_where_one_does():
    """So that a new key of specs leaves the records of all other ops valid."""
    spec, folder = registry.spec("softmax"), registry.op_folders()["softmax"].parent
    digest = record.spec_digest(spec, folder)
    [(name, x)] = spec.inputs.items()
    changed = dataclasses.replace(spec, inputs={name: dataclasses.replace(x, gradient=False)})
    assert record.spec_digest(changed, folder) != digest
    changed = dataclasses.replace(spec, inputs={name: dataclasses.replace(x, otherwise=-100)})
    assert record.spec_digest(changed, folder) != digest
    changed = dataclasses.replace(spec, inputs={name: dataclasses.replace(x, mutated=True)})
    assert record.spec_digest(changed, folder) != digest
    [(name, y)] = spec.outputs.items()
    changed = dataclasses.replace(spec, outputs={name: dataclasses.replace(y, like="x")})
    assert record.spec_digest(changed, folder) == digest  # where it lies, not what it is
    changed = dataclasses.replace(spec, outputs={name: dataclasses.replace(y, in_place="x")})
    assert record.spec_digest(changed, folder) != digest
    fields = [*dataclasses.fields(x), *dataclasses.fields(y)]
    later = {f.name for f in fields if record._LATER_FIELDS.search(f", {f.name}={f.default!r}")}
    assert later == {"otherwise", "gradient", "mutated", "like", "in_place"}

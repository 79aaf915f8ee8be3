"""Records are whole, checked and silent about who ran them."""

from __future__ import annotations

import getpass
import json
import socket

import pytest

from portable.conformance import record
from portable.plan import Device

GROUP = {"op": "softmax", "impl": "torch", "states": {"Pass": 2, "Fail.value": 1}, "worst_ratio": 3.5,
         "worst_case": "softmax/x", "not_supported": {}, "digests": {}, "exact": [],
         "problems": [{"case": "softmax/x", "state": "Fail.value", "message": "y: wrong"}]}  # fmt: skip


@pytest.fixture
def made():
    head = record.header(Device("cpu", "x86_64", "CPU"), ["run", "--record", "/home/someone/a.json"], "smoke")
    return record.build(head, [GROUP], {"softmax/x": {"x": "00"}}, [])


def test_there_and_back(made, tmp_path):
    file = tmp_path / "a.json"
    record.write(file, made)
    assert record.read(file) == made
    assert [each.name for each in tmp_path.iterdir()] == ["a.json"]


def test_no_names(made):
    text = json.dumps(made)
    assert "someone" not in text
    assert made["header"]["command"] == "portable-conformance run --record a.json"
    assert f'"{socket.gethostname()}"' not in text and f'"{getpass.getuser()}"' not in text


def test_a_failed_write_leaves_the_old_file(made, tmp_path, monkeypatch):
    file = tmp_path / "a.json"
    record.write(file, made)

    def full(*args):
        raise OSError("no space left on device")

    monkeypatch.setattr(record.os, "replace", full)
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
        (lambda r: r["results"][0].pop("states"), "results[0].states"),
        (lambda r: r["results"][0]["states"].update(Pass=-1), "results[0].states.Pass"),
        (lambda r: r["results"][0]["problems"][0].pop("case"), "results[0].problems[0].case"),
        (lambda r: r.update(timings={}), "timings"),
    ],
)
def test_damage_is_named(made, damage, place):
    damaged = json.loads(json.dumps(made))
    damage(damaged)
    with pytest.raises(record.RecordError, match=place.replace("[", r"\[")):
        record.validate(damaged)


def test_a_torn_file_is_named(tmp_path):
    file = tmp_path / "a.json"
    file.write_text('{"schema": 1, "head')
    with pytest.raises(record.RecordError, match="not JSON"):
        record.read(file)


def test_infinity_travels_as_text():
    built = record.build({}, [], {}, [{"device_us": float("inf"), "all": [float("nan"), 1.0]}])
    assert built["timings"][0] == {"device_us": "inf", "all": ["nan", 1.0]}

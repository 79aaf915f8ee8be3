"""The command line: exit codes, plain output off a terminal, a sentence for every mistake."""

from __future__ import annotations

import pytest

import portable
from portable.conformance import cli, demo, record


def test_a_conforming_run_is_zero_and_recorded(norm, tmp_path, capsys):
    file = tmp_path / "r.json"
    argv = [
        "run",
        "--ops",
        "toy_norm",
        "--impl",
        "plain",
        "--tier",
        "smoke",
        "-k",
        "/N=",
        "--record",
        str(file),
    ]
    assert cli.main(argv) == 0
    out = capsys.readouterr().out
    assert "\nconforming: " in out and "\x1b" not in out
    read = record.read(file)
    assert read["results"][0]["op"] == "toy_norm" and read["header"]["tier"] == "smoke"
    assert len(read["inputs"]) == sum(read["results"][0]["states"].values())


def test_a_failing_run_is_one_and_prints_how_to_repeat_it(norm, capsys):
    argv = [
        "run",
        "--device",
        "cpu",
        "--ops",
        "toy_norm",
        "--impl",
        "zeros",
        "-k",
        "N=129,lead=7/normal/contiguous",
    ]
    assert cli.main(argv) == 1
    out = capsys.readouterr().out
    again = next(line for line in out.splitlines() if "again: " in line).partition("again: ")[2]
    assert again.startswith("portable-conformance rerun toy_norm/") and "NOT conforming" in out
    assert cli.main(again.split()[1:]) == 1
    assert "first wrong element" in capsys.readouterr().out


def test_listing(norm, capsys):
    assert cli.main(["list", "--ops", "toy_norm", "-k", "/subnormals/"]) == 0
    lines = capsys.readouterr().out.split()
    assert lines and all("/subnormals/" in line for line in lines)


@pytest.mark.parametrize(
    "argv, words",
    [
        (["run", "--device", "abacus"], "expected one of"),
        (["run", "--ops", "toy_nrm"], "Did you mean 'toy_norm'"),
        (["run", "--ops", "toy_norm", "--impl", "plane"], "Did you mean 'plain'"),
        (["run", "--ops", "toy_norm", "-k", "nothing"], "no case's id contains"),
        (["run", "--ops", "toy_norm", "--bench"], "needs a GPU"),
        (["run", "--ops", "toy_norm", "--record", "/no/such/folder/r.json"], "no such folder"),
        (["rerun", "toy_norm/float32/N=x/normal/contiguous"], "not a number"),
        (["rerun", "toy_norm/float32"], "op/types/shape"),
    ],
)
def test_mistakes_are_two(norm, capsys, argv, words):
    assert cli.main(argv) == 2
    captured = capsys.readouterr()
    assert words in captured.err and "Traceback" not in captured.err


@pytest.mark.parametrize("argv", [[], ["run", "--tier", "huge"], ["run", "--explore", "-1"], ["frobnicate"]])
def test_argparse_mistakes_are_two(argv, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(argv)
    assert stop.value.code == 2


def test_a_missing_device_is_three(norm, monkeypatch, capsys):
    from portable import errors, machine

    def absent():
        raise errors.BackendError("no card: nothing is plugged in")

    monkeypatch.setattr(machine, "main_backend", absent)
    assert cli.main(["run", "--ops", "toy_norm"]) == 3
    assert "no card" in capsys.readouterr().err


def test_the_demo(norm, capsys):
    assert demo.main(["--op", "toy_norm"]) == 0
    out = capsys.readouterr().out
    assert "toy_norm" in out and "plain" in out and "first in the spec's order" in out and "ok" in out


def test_the_demo_fails_outside_the_bound(norm, capsys):
    with portable.using(toy_norm="zeros"):
        assert demo.main(["--op", "toy_norm"]) == 1
    assert "first wrong element" in capsys.readouterr().err

"""The command line: exit codes, plain output off a terminal, a sentence for every mistake."""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from pathlib import Path

import pytest

import portable
from portable.conformance.commands import cli, demo, selection
from portable.conformance.execute import runner
from portable.conformance.execute.result import Result
from portable.conformance.records import record
from portable.conformance.report import summary

from .sample_record import sample_record

RESULTS = Path(__file__).resolve().parents[2] / "conformance/results"
RUN = ["run", "--device", "cpu", "-j", "0"]
"""In this process, where the toy op is."""


def test_a_conforming_run_is_zero_and_recorded(norm, tmp_path, capsys):
    file = tmp_path / "r.json"
    argv = [*RUN, "--ops", "toy_norm", "--impl", "plain", "--tier", "smoke", "-k", "/N="]
    argv += ["--record", str(file)]
    assert cli.main(argv) == 0
    out = capsys.readouterr().out
    assert "\nCONFORMS: " in out and "\x1b" not in out
    read = record.read(file)
    [summary] = record.summaries(read)
    assert (summary.op, summary.impl) == ("toy_norm", "plain") and read["header"]["tier"] == "smoke"
    assert read["inputs"].keys() == {each["case"] for each in read["results"]}
    assert record.conforming(read) and read["header"]["selection"]["k"] == "/N="


def test_a_failing_run_is_one_and_prints_how_to_repeat_it(norm, capsys):
    argv = [*RUN, "--ops", "toy_norm", "--impl", "zeros", "-k", "N=129,lead=7/normal/contiguous"]
    assert cli.main(argv) == 1
    out = capsys.readouterr().out
    again = next(line for line in out.splitlines() if "again: " in line).partition("again: ")[2]
    assert again.startswith("portable-conformance rerun toy_norm/") and "DOES NOT CONFORM" in out
    assert cli.main(again.split()[1:]) == 1
    assert "first wrong element" in capsys.readouterr().out


@pytest.mark.parametrize("terminal", [False, True], ids=["CI", "watched"])
def test_equal_failures_of_a_run_are_one_paragraph(norm, tmp_path, capsys, monkeypatch, terminal):
    """Each was a paragraph of its own; `check()` had one for all."""
    file = tmp_path / "r.json"
    argv = [*RUN, "--ops", "toy_norm", "--impl", "plain,zeros", "-k", "float32/N=1"]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    assert cli.main([*argv, "--record", str(file)]) == 1
    out = capsys.readouterr().out
    results = record.read(file)["results"]
    failing = [each["case"] for each in results if each["state"] == "Fail.value"]
    assert len(failing) > 9, "the record has them all"
    assert {each["impl"] for each in results if each["state"] != "Pass"} == {"zeros"}
    first = re.findall(r"^Fail\.value: (\S+) on zeros\n  y: ", out, re.MULTILINE)
    more = re.findall(
        r"^Fail\.value: (\S+) on zeros\n  (\d+) more fails? in this way: (.*?)(?: and \d+ more)?$", out, re.M
    )
    assert len(first) + len(more) < len(failing) / 2
    assert len(first) + sum(int(count) for _, count, _ in more) == len(failing)
    assert {case for case, _, _ in more} <= set(first)
    named = [case for _, _, cases in more for case in cases.split(", ")]
    assert named and set(named) <= set(failing) - set(first)


def test_an_interrupted_run_counts_equal_failures_too(norm, monkeypatch, capsys):
    real, left = runner.run_case, iter(range(12))

    def impatient(*args):
        if next(left, None) is None:
            raise KeyboardInterrupt
        return real(*args)

    monkeypatch.setattr(runner, "run_case", impatient)
    assert cli.main([*RUN, "--ops", "toy_norm", "--impl", "zeros", "-k", "float32/N=1"]) == 130
    out = capsys.readouterr().out
    more = sum(map(int, re.findall(r"^  (\d+) more fails? in this way: ", out, re.MULTILINE)))
    assert more and more + out.count("\n  again: ") == 12 and "interrupted after 12 of " in out


def test_small_figures_are_not_printed_as_zero(norm, capsys, monkeypatch):
    """|error|/bound of 0.0004 was 0.000 in the table of `run` and in `rerun`."""
    case = "toy_norm/float32/N=129,lead=7/normal/contiguous"
    real = runner.run_case

    def small(*args):
        return dataclasses.replace(real(*args), worst=0.0004)

    monkeypatch.setattr(runner, "run_case", small)
    assert cli.main(["rerun", case, "--impl", "plain", "--device", "cpu"]) == 0
    assert "|error|/bound 4.00e-04" in capsys.readouterr().out
    results = [{"case": case, "impl": "plain", "state": "Pass", "worst": worst} for worst in (2e-5, 0.0004)]
    summary.table({**sample_record(), "results": results})
    assert "4.00e-04" in capsys.readouterr().out


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
        (["run", "--ops", "toy_norm", "--sustained", "0.5"], "--sustained is how --bench and --sweep time"),
        (["run", "--ops", "toy_norm", "--record", "/no/such/folder/r.json"], "no such folder"),
        (["rerun", "toy_norm/float32/N=x/normal/contiguous"], "not a number"),
        (["rerun", "toy_norm/float32"], "op/types/shape"),
        (["rerun", "toy_nrm/float32"], "Did you mean 'toy_norm'"),
        (["rerun", "toy_norm/behaviour/two_thread"], "no such behaviour. Did you mean 'two_threads'"),
        (["run", "--ops", "toy_norm", "--impl", ","], "names no implementation"),
        (["run", "--ops", "toy_norm", "--html", "/no/such/folder/r.html"], "--html"),
        (["run", "--ops", "toy_norm", "--resume"], "name it with --record"),
        (["report", "/no/such/record.json", "--html", "x.html"], "/no/such/record.json: No such file"),
        (["report", "/etc/hostname"], "/etc/hostname: not JSON"),
        (["report", "/etc/hostname", "--junit", "x.xml"], "/etc/hostname: not JSON"),
        (["compare", "/etc/hostname", "/etc/hostname"], "not JSON"),
        (["merge", "out.json", "/etc/hostname"], "not JSON"),
        (["verify-submission", "/no/such/folder"], "/no/such/folder: No such file"),
    ],
)
def test_mistakes_are_two(norm, capsys, argv, words):
    assert cli.main(argv) == 2
    captured = capsys.readouterr()
    assert words in captured.err and "Traceback" not in captured.err


@pytest.mark.parametrize(
    "argv",
    [
        ["run", "--tier", "huge"], ["run", "--fuzz", "-1"], ["run", "--fuzz", "soon"], ["frobnicate"],
        ["run", "--fraction", "3,2"], ["run", "--fraction", "1"], ["run", "-j", "-1"],
        ["run", "--timeout", "0"],
        ["compare", "a", "b", "--parity", "x"], ["compare", "a"], ["--emulate", "--require-hardware"],
    ],
)  # fmt: skip
def test_argparse_mistakes_are_two(argv, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(argv)
    assert stop.value.code == 2


def test_without_a_command_it_runs(norm, capsys):
    argv = ["--device", "cpu", "-j", "0", "--ops", "toy_norm", "--impl", "plain", "-k", "N=129,lead=7/normal"]
    assert cli.main(argv) == 0
    assert re.search(r"\nCONFORMS: [1-9]\d* judged \(all pass\)", capsys.readouterr().out)


def test_shards_share_out_the_cases(norm, tmp_path, capsys):
    whole = [case.id for case in selection.selected(cli._parser().parse_args(["list", "--ops", "toy_norm"]))]
    shards = []
    for i in (1, 2, 3):
        assert cli.main(["list", "--ops", "toy_norm", "--fraction", f"{i},3"]) == 0
        shards.append(capsys.readouterr().out.split())
    assert sorted(each for shard in shards for each in shard) == sorted(whole) and all(shards)


def test_a_run_resumed_is_the_run_at_once(norm, tmp_path, monkeypatch, capsys):
    """Interrupted after any number of results: the record in the end is the same but for the seconds."""
    argv = [*RUN, "--ops", "toy_norm", "--impl", "plain,backwards", "--tier", "smoke", "-k", "/N=129"]
    whole = tmp_path / "whole.json"
    assert cli.main([*argv, "--record", str(whole)]) == 0
    expected = record.read(whole)
    real = runner.run_case
    for stop in (0, 1, 5):
        left = iter(range(stop))

        def impatient(*args, left=left):
            if next(left, None) is None:
                raise KeyboardInterrupt
            return real(*args)

        file = tmp_path / f"{stop}.json"
        monkeypatch.setattr(runner, "run_case", impatient)
        assert cli.main([*argv, "--record", str(file)]) == 130
        partial = record.read(file)
        assert not partial["header"]["complete"]
        monkeypatch.setattr(runner, "run_case", real)
        assert cli.main([*argv, "--record", str(file), "--resume"]) == 0
        again = record.read(file)
        for one, other in zip(again["results"], expected["results"], strict=True):
            assert {**one, "seconds": 0} == {**other, "seconds": 0}
        assert again["inputs"] == expected["inputs"] and again["header"]["complete"]
    capsys.readouterr()


def test_fuzzing_writes_its_failures_as_cases(norm, tmp_path, capsys):
    found = tmp_path / "found.txt"
    argv = [*RUN, "--ops", "toy_norm", "--impl", "zeros", "-k", "behaviour/two_threads", "--fuzz", "1"]
    assert cli.main([*argv, "--failures-file", str(found)]) == 1
    out = capsys.readouterr().out
    lines = [line for line in found.read_text().splitlines() if not line.startswith("#")]
    assert lines and f"Fail.value: {lines[0]} on zeros" in out
    assert cli.main(["rerun", lines[0], "--impl", "zeros", "--device", "cpu"]) == 1


def test_merging_the_shards_of_a_run_gives_the_run(norm, tmp_path, capsys):
    argv = [*RUN, "--ops", "toy_norm", "--impl", "plain", "--tier", "smoke", "-k", "/N="]
    files = [str(tmp_path / f"{i}.json") for i in (1, 2)]
    for i, file in enumerate(files, 1):
        assert cli.main([*argv, "--fraction", f"{i},2", "--record", file]) == 0
    whole, merged = str(tmp_path / "whole.json"), str(tmp_path / "merged.json")
    assert cli.main([*argv, "--record", whole]) == 0
    assert cli.main(["merge", merged, *files]) == 0
    assert cli.main(["compare", whole, merged]) == 0

    def content(file):
        results = record.read(file)["results"]
        return sorted((each["case"], each["impl"], each["state"], each.get("digest")) for each in results)

    assert content(merged) == content(whole)
    pages = ["--junit", str(tmp_path / "m.xml"), "--html", str(tmp_path / "m.html")]
    assert cli.main(["report", merged, *pages]) == 0
    capsys.readouterr()
    assert cli.main(["report", merged]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[1].split()[:2] == ["toy_norm", "plain"]
    assert said[-1].startswith("CONFORMS: ")
    assert cli.main(["merge", merged, files[0]]) == 1
    capsys.readouterr()


def test_a_record_of_a_sweep_is_printed_with_its_bars(capsys):
    assert cli.main(["report", str(RESULTS / "h200/sweep-16.json.gz")]) == 0
    said = capsys.readouterr().out.splitlines()
    assert any(line.startswith("sparse_mm/bfloat16/N=8192") and "x dense" not in line for line in said)
    assert any(
        line.startswith("met: products of 2:4 weights, sparse_mm on wgmma over dense") for line in said
    )
    assert said[-1].endswith("on NVIDIA H200")


def test_a_missing_device_is_three(norm, monkeypatch, capsys):
    from portable import errors
    from portable.runtime import detect

    def absent():
        raise errors.BackendError("no GPU: nothing is plugged in")

    monkeypatch.setattr(detect, "main_backend", absent)
    assert cli.main(["run", "--ops", "toy_norm"]) == 3
    assert "no GPU" in capsys.readouterr().err


def test_the_demo(norm, capsys):
    assert demo.main(["--op", "toy_norm"]) == 0
    out = capsys.readouterr().out
    assert "toy_norm" in out and "plain" in out and "first in the spec's order" in out and "ok" in out


def test_the_demo_fails_outside_the_bound(norm, capsys):
    with portable.using(toy_norm="zeros"):
        assert demo.main(["--op", "toy_norm"]) == 1
    assert "first wrong element" in capsys.readouterr().err


# `rerun` and the others ---------------------------------------------------------------------------


def test_rerun_of_a_kernel_that_loses_the_device_says_so(norm, monkeypatch, capsys):
    """The case that the message names to run again is the one whose kernel faults."""

    def lost(materialized, impl, device):
        raise runner.DeviceLost(Result(materialized.case, impl, "Crash", "an illegal memory access"))

    monkeypatch.setattr(runner, "run_case", lost)
    case = "toy_norm/float32/N=129,lead=7/normal/contiguous"
    assert cli.main(["rerun", case, "--device", "cpu", "--impl", "plain,zeros"]) == 1
    out = capsys.readouterr().out
    assert "plain: Crash\n  an illegal memory access" in out and "zeros: NotRun" in out


def test_rerun_of_what_does_not_fit_the_memory_is_no_traceback(norm, capsys):
    case = f"toy_norm/float32/N={10**23}/normal/contiguous"
    assert cli.main(["rerun", case, "--device", "cpu", "--impl", "plain"]) == 1
    assert "no inputs: " in capsys.readouterr().out


@pytest.mark.parametrize("place, code", [("/dev/full", 2), (None, 130)])
def test_no_command_minds_its_standard_output(norm, monkeypatch, capsys, place, code):
    case = "toy_norm/float32/N=129,lead=7/normal/contiguous"
    reading, writing = os.pipe()
    os.close(reading)
    with (
        os.fdopen(writing, "w") as pipe,
        open(place or os.devnull, "w") as file,
        monkeypatch.context() as patch,
    ):
        out = file if place else pipe
        patch.setattr(sys, "stdout", out)
        assert cli.main(["rerun", case, "--device", "cpu", "--impl", "plain"]) == code
        out.flush()
    assert "Traceback" not in capsys.readouterr().err

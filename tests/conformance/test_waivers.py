"""Known failures as data: what they excuse, what they may not hide, and what is refused in the file."""

from __future__ import annotations

import json
import re
from collections import Counter
from datetime import date, timedelta
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from portable.conformance.cases.case import op_of
from portable.conformance.cases.generate import cases
from portable.conformance.commands import cli
from portable.conformance.execute import behaviour, runner, waivers
from portable.conformance.execute.fuzz import fuzz_ops
from portable.conformance.execute.result import Result
from portable.conformance.records import record
from portable.conformance.states import KNOWN
from portable.dispatch import dispatcher
from portable.errors import SpecError
from portable.runtime import detect
from portable.spec import registry

from ..conftest import SPEC
from ..op_folders import fresh

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = sorted(ROOT.glob("backends/*/known_failures.yaml"))
RUN = ["run", "-j", "0", "--ops", "twice", "--tier", "smoke"]
TODAY = date(2026, 11, 21)

ENTRY = {
    "kind": "xfail", "arch": ["toy*"], "op": "twice", "impl": ["toy"],
    "cases": ["twice/*/normal/contiguous*"],
    "state": "Fail.value", "reason": "It adds where it should not.", "evidence": "3 of 3 elements are wrong",
    "expires": "2999-01-01",
}  # fmt: skip


def text(**changes):
    """A file of one entry in YAML; a change to None leaves the key out. The entry starts on line 3."""
    entry = {key: value for key, value in (ENTRY | changes).items() if value is not None}
    lines = [f"{key}: {json.dumps(value)}" for key, value in entry.items()]
    return "schema_version: 1\nentries:\n  - " + "\n    ".join(lines) + "\n"


@pytest.fixture
def vendor(toy, tmp_path):
    """The toy vendor's folder; its kernel for 3 elements of 2 rows is right."""
    return tmp_path / "vendors" / "toy"


@pytest.fixture
def wrong(vendor, tmp_path):
    """The same with a kernel that gives 3 * x: right for zeros and NaN, wrong for what is ordinary."""
    dispatcher.op("twice")  # torch takes an op once in a process: later tests are to find the right one
    spec = tmp_path / "ops" / "twice" / "spec.yaml"
    spec.write_text(SPEC.replace("default: {FACTOR: 2}", "default: {FACTOR: 3}"))
    fresh()
    return vendor


def loaded(folder, **changes):
    file = folder / waivers.FILE
    file.write_text(text(**changes))
    return waivers.load(file)


def result(state="Fail.value", impl="toy", number=0):
    named = [case for case in cases(registry.spec("twice")) if "/normal/contiguous" in case.id]
    return Result(named[number], impl, state, "y: wrong" if state.startswith("Fail") else "")


def states(results):
    return Counter(each.state for each in results)


# What an entry does -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind, state", [("xfail", "XFail"), ("waived", "Waived")])
def test_a_known_failure_conforms_and_keeps_its_message(vendor, kind, state):
    known = waivers.Waivers(loaded(vendor, kind=kind), "toy1", TODAY)
    excused = known.apply_waivers(result())
    assert excused.state == state and excused.conforms
    assert excused.message.startswith("y: wrong; known: It adds where it should not. (toy/known_failures")
    assert known.settle([excused]) == []
    assert known.used([excused]) == [{"where": "toy/known_failures.yaml:3", "kind": kind, "used": 1}]


@pytest.mark.parametrize(
    "changes, found",
    [
        ({}, {"state": "Fail.nonfinite"}),
        ({}, {"state": "Crash"}),
        ({}, {"impl": "picky"}),
        ({"arch": ["other"]}, {}),
        ({"cases": ["twice/*/subnormals/*"]}, {}),
        ({"expires": "2026-11-20"}, {}),
    ],
)
def test_what_no_entry_expects_still_fails(vendor, changes, found):
    known = waivers.Waivers(loaded(vendor, **changes), "toy1", TODAY)
    assert known.apply_waivers(result(**found)) == result(**found)
    assert not known.apply_waivers(result(**found)).conforms


def test_cases_that_pass_beside_one_that_fails_stay_a_pass(vendor):
    known = waivers.Waivers(loaded(vendor), "toy1", TODAY)
    seen = [known.apply_waivers(result()), known.apply_waivers(result("Pass", number=1))]
    assert known.settle(seen) == []
    assert states(seen) == {"XFail": 1, "Pass": 1}


@pytest.mark.parametrize("kind, state", [("xfail", "XPass"), ("waived", "Pass")])
def test_an_entry_without_a_failure_is_unused(vendor, kind, state):
    known = waivers.Waivers(loaded(vendor, kind=kind), "toy1", TODAY)
    seen = [known.apply_waivers(result("Pass")), known.apply_waivers(result("NotSupported", number=1))]
    [line] = known.settle(seen)
    assert known.used(seen) == []
    assert line.startswith(
        "toy/known_failures.yaml:3: unused; of the cases of twice that it names, 1 ran on toy"
    )
    assert states(seen) == {state: 1, "NotSupported": 1} and all(each.conforms for each in seen)


def test_one_implementation_does_not_vouch_for_another(vendor):
    known = waivers.Waivers(loaded(vendor, impl=["toy", "torch"]), "toy1", TODAY)
    [line] = known.settle([known.apply_waivers(result()), known.apply_waivers(result("Pass", "torch"))])
    assert "1 ran on torch and none" in line


@pytest.mark.parametrize("state", ["NotSupported", "NotRun", "Crash"])
def test_cases_that_were_not_judged_say_nothing(vendor, state):
    known = waivers.Waivers(loaded(vendor), "toy1", TODAY)
    assert known.settle([result(state)]) == []


def test_an_entry_holds_to_the_end_of_its_day(vendor):
    entries = loaded(vendor, expires="2026-11-21")
    known = waivers.Waivers(entries, "toy1", TODAY)
    excused = known.apply_waivers(result())
    assert excused.state == "XFail" and known.settle([excused]) == []
    late = waivers.Waivers(entries, "toy1", TODAY + timedelta(days=1))
    assert late.apply_waivers(result()).state == "Fail.value"
    [line] = late.settle([result()])
    assert line.startswith("toy/known_failures.yaml:3: expired on 2026-11-21; cases of twice")
    assert late.settle([result(impl="picky")]) == []


# The command --------------------------------------------------------------------------------------


def failing(file, capsys):
    """The ids that the toy kernel fails, found by a run without waivers."""
    assert cli.main([*RUN, "--impl", "toy", "--no-waivers", "--record", str(file)]) == 1
    out = capsys.readouterr().out
    assert "--no-waivers" in out.partition("again: ")[2].splitlines()[0]
    return [(each["state"], each["case"]) for each in record.read(file)["results"] if "Fail" in each["state"]]


@pytest.mark.slow
def test_a_run_with_its_failures_known_conforms(wrong, tmp_path, capsys):
    found = failing(tmp_path / "found.json", capsys)
    entries = [
        text(state=state, cases=[case for other, case in found if other == state]).partition("entries:\n")[2]
        for state in sorted({state for state, _ in found})
    ]
    (wrong / waivers.FILE).write_text("schema_version: 1\nentries:\n" + "".join(entries))
    file = tmp_path / "r.json"
    assert cli.main([*RUN, "--impl", "toy", "--record", str(file)]) == 0
    out = capsys.readouterr().out
    assert f"XFail {len(found)}" in out and f"{len(found)} known failures)" in out
    assert "\nCONFORMS: " in out
    read = record.read(file)
    [summary] = record.summaries(read)
    assert summary.states["XFail"] == len(found) == sum(each["used"] for each in read["waivers"])
    case = found[0][1]
    assert cli.main(["rerun", case, "--impl", "toy"]) == 0
    assert cli.main(["rerun", case, "--impl", "toy", "--no-waivers"]) == 1


def test_a_behaviour_may_be_a_known_failure(vendor, monkeypatch, capsys):
    """As in the file of a vendor whose op is wrong in two threads."""

    def racy(case, impl, device):
        failed = case.name == "two_threads"
        return Result(case, impl, "Fail.behaviour" if failed else "Pass", "got another's" * failed)

    monkeypatch.setattr(behaviour, "run", racy)
    loaded(vendor, impl=["torch"], cases=["twice/behaviour/two_*"], state="Fail.behaviour")
    argv = [*RUN, "--impl", "torch"]
    assert cli.main(argv) == 0
    assert "XFail 1" in capsys.readouterr().out
    assert cli.main([*argv, "--no-waivers"]) == 1


def test_fuzzing_looks_beyond_known_failures(wrong):
    known = waivers.Waivers(loaded(wrong, cases=["twice/*"]), "toy1", TODAY)
    device = runner.torch_device()
    failures, _ = fuzz_ops(["twice"], device, 0.5, ["toy"], known.apply_waivers)
    assert "Fail.value" not in {found.state for found in failures}
    failures, _ = fuzz_ops(["twice"], device, 0.5, ["toy"])
    assert failures


def test_a_run_of_a_mended_kernel_does_not_conform(vendor, tmp_path, capsys):
    loaded(vendor, impl=["torch"])
    argv = [*RUN, "--impl", "torch", "--record", str(tmp_path / "r.json")]
    assert cli.main(argv) == 1
    out = capsys.readouterr().out
    assert (
        "known_failures.yaml:3: unused; of the cases" in out and "XPass" in out and "DOES NOT CONFORM" in out
    )
    assert "XPass" in {each["state"] for each in record.read(tmp_path / "r.json")["results"]}
    assert cli.main([*argv, "--no-waivers"]) == 0
    assert cli.main([*argv, "-k", "/normal/contiguous"]) == 0
    capsys.readouterr()


def test_a_run_with_an_expired_entry_does_not_conform(vendor, capsys):
    loaded(vendor, impl=["torch"], expires="2020-02-29")
    assert cli.main([*RUN, "--impl", "torch"]) == 1
    out = capsys.readouterr().out
    assert "known_failures.yaml:3: expired on 2020-02-29; " in out and "XPass" not in out


def test_a_broken_file_is_a_mistake(vendor, capsys):
    loaded_text = text(state="Fail.valu")
    (vendor / waivers.FILE).write_text(loaded_text)
    assert cli.main([*RUN, "--impl", "torch"]) == 2
    captured = capsys.readouterr()
    assert "known_failures.yaml:8: state: 'Fail.valu' is not one of" in captured.err
    assert cli.main([*RUN, "--impl", "torch", "--no-waivers"]) == 0


# The file -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes, line, words",
    [
        ({"kind": "fail"}, 3, "'fail' is not one of waived, xfail. Did you mean 'xfail'?"),
        ({"reasons": "x"}, 12, "unknown key 'reasons'. Did you mean 'reason'?"),
        ({"reason": None, "expires": None}, 3, "the entry lacks reason, expires"),
        ({"op": "twce"}, 5, "Did you mean 'twice'?"),
        ({"arch": []}, 4, "arch is a list of one glob or more"),
        ({"impl": "toy"}, 6, "impl is a list of one glob or more"),
        ({"cases": []}, 7, "cases is a list of one glob or more"),
        ({"cases": [3]}, 7, "expected text, got 3"),
        ({"impl": ["to?", "tay"]}, 6, "impl: 'tay' matches no implementation of twice. Did you mean 'toy'?"),
        ({"cases": ["*/normal/*", "*/abnormal/*"]}, 7, "cases: '*/abnormal/*' matches no case of twice."),
        ({"state": "Pass"}, 8, "state: 'Pass' is not one of Fail."),
        ({"reason": ""}, 9, "expected text, got ''"),
        ({"evidence": "everybody knows"}, 10, "evidence holds a figure or names a record"),
        ({"expires": "2027-02-30"}, 11, "'2027-02-30' is no date"),
        ({"expires": "20270230"}, 11, "'20270230' is no date"),
        ({"expires": 2027}, 11, "expected text, got 2027"),
    ],
)
def test_what_is_refused_is_named_with_its_line(vendor, changes, line, words):
    with pytest.raises(SpecError) as caught:
        loaded(vendor, **changes)
    assert f"known_failures.yaml:{line}: " in str(caught.value) and words in str(caught.value)


@pytest.mark.parametrize(
    "whole", ["", "[]", "schema_version: 2\nentries: []", "schema_version: 1\nentries: []\nmore: 1"]
)
def test_the_frame_is_checked(vendor, whole):
    file = vendor / waivers.FILE
    file.write_text(whole)
    with pytest.raises(SpecError, match="expected `schema_version: 1` and a list `entries`"):
        waivers.load(file)


def test_the_old_name_of_the_version_is_named(vendor):
    file = vendor / waivers.FILE
    file.write_text("# head\nedition: 1\nentries: []\n")
    with pytest.raises(SpecError, match=r"known_failures\.yaml:2: 'edition' is now called schema_version"):
        waivers.load(file)


def test_no_file_no_entries(tmp_path):
    assert waivers.load(tmp_path / waivers.FILE) == ()


# What is shipped ----------------------------------------------------------------------------------


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.parent.name)
def test_the_shipped_files_are_valid(file):
    """Loading checks that every glob of cases and implementations matches; here the GPUs and records."""
    vendor = file.parent.name
    targets = [each.arch for each in detect.backend_class(vendor)(registry.vendors()[vendor]).targets()]
    for entry in waivers.load(file):
        for glob in entry.arch:
            assert any(fnmatchcase(arch, glob) for arch in targets), (entry.where, glob)
        for name in re.findall(r"[\w/-]+\.json(?:\.gz)?", entry.evidence):
            assert (ROOT / name).is_file(), entry.where
        assert entry.reason.endswith(".") and entry.reason.count(". ") == 0, entry.where


@pytest.mark.parametrize("name", ["core", "core-attention"])
def test_the_emulated_gfx90a_fails_where_its_file_says(name):
    """Every failure of the committed record is known, every entry of its ops needed; their counts add up.

    Of the ops whose cases are still those of the record."""
    read = record.read(ROOT / f"conformance/results/emulated-gfx90a/{name}.json.gz")
    specs = read["header"]["specs"]
    recorded = [op for op in specs if specs[op] == record.op_digest(op)]
    assert len(recorded) >= len(specs) // 2
    shipped = waivers.load(ROOT / "backends/rocm/known_failures.yaml")
    entries = [each for each in shipped if each.op in recorded]
    known = waivers.Waivers(entries, read["header"]["arch"], TODAY)
    by_id = {case.id: case for op in recorded for case in [*cases(registry.spec(op)), *behaviour.cases([op])]}
    results = [
        known.apply_waivers(Result(by_id[each["case"]], each["impl"], original(each)))
        for each in read["results"]
        if op_of(each["case"]) in recorded
    ]
    assert known.settle(results) == []
    assert [result for result in results if not result.conforms] == []
    stated = [int(re.findall(r"(\d+) results?\b", entry.evidence)[0]) for entry in entries]
    assert [each["used"] for each in known.used(results)] == stated
    assert states(results)["XFail"] == sum(stated)


def original(problem):
    """The judge's state, which the message of a known failure begins with."""
    if problem["state"] not in KNOWN:
        return problem["state"]
    return re.findall(r"Fail\.\w+", problem["message"])[0]

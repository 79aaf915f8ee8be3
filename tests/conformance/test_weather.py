"""`weather`: which release of Triton a failure begins with."""

from __future__ import annotations

import argparse
import json
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from portable.conformance.commands import cli, weather
from portable.conformance.commands.weather import Release
from portable.conformance.records import record
from portable.conformance.report import weather as page
from portable.conformance.text import UsageError

from .sample_record import CASES, sample_record

FAULT = (
    "KernelFault: softmax: lds-race: wave 2 writes byte 2 of LDS, which wave 0 wrote with no barrier between"
)


def made_by(version: str, states: dict[str, tuple[str, str]], arch: str = "gfx942") -> dict[str, Any]:
    """A record of a release, in which some cases of `triton` have another state and message."""
    found = sample_record(arch=arch, emulated=True)
    found["header"]["versions"]["triton"] = version
    for result in found["results"]:
        if result["impl"] == "triton" and result["case"] in states:
            result["state"], result["message"] = states[result["case"]]
    return found


def releases(*versions: str) -> list[Release]:
    return [Release(version, None) for version in versions]


def test_outcomes():
    kinds = {
        ("Pass", ""): "safe",
        ("QualityWarning", ""): "safe",
        ("Fail.value", "2 of 5 are wrong"): "wrong",
        ("Crash", FAULT): "wrong",
        ("Crash", "RuntimeError: PassManager::run failed"): "crash",
        ("CompileError", "softmax for gfx942"): "crash",
        ("Timeout", ""): "crash",
        ("NotSupported", "needs a GPU"): None,
        ("NotRun", ""): None,
    }
    assert {key: page.outcome({"state": key[0], "message": key[1]}) for key in kinds} == kinds


def test_the_page_names_the_first_release_and_joins_what_fails_alike():
    wrong = {case: ("Fail.value", f"{number} of 9 elements") for number, case in enumerate(CASES[:2])}
    records = [
        made_by("3.6.0", {}),
        made_by("3.7.1", {**wrong, CASES[3]: ("Crash", FAULT)}),
        made_by("3.8.0", wrong),
    ]
    records.append(made_by("3.7.1", {}, arch="gfx1100"))
    text = page.page(records)
    count = len(page.outcomes_of(records[0]))
    assert f"| 3.6.0 | {count} / 0 / 0 | not run |" in text
    assert f"| 3.7.1 | {count - 3} / 3 / 0 | {count} / 0 / 0 |" in text
    assert f"| 3.8.0 | {count - 2} / 2 / 0 | not run |" in text
    assert "### matmul, triton: wrong with 3.7.1, 3.8.0" in text and "2 cases, the first of them" in text
    assert "### softmax, triton: wrong with 3.7.1\n" in text and "lds-race" in text
    assert text.endswith("## gfx1100\n\nNothing.\n")


@pytest.mark.parametrize("first_bad", range(1, 9))
def test_bisection_judges_few_releases_and_ends_beside_the_change(first_bad):
    tried: list[str] = []

    def judged(each: Release) -> bool:
        tried.append(each.version)
        return int(each.version) >= first_bad

    weather.bisect(releases(*map(str, range(9))), judged, lambda bad: bad)
    assert {str(first_bad - 1), str(first_bad)} <= set(tried) and len(set(tried)) <= 6


def of_corpus(version: str, arch: str, *results: tuple[str, str, str]) -> dict[str, Any]:
    head = {"corpus": "liger", "package": "liger-kernel 1.0", "arch": arch, "emulated": True}
    rows = [{"case": case, "impl": "liger", "state": state, "message": said} for case, state, said in results]
    return {"header": {**head, "versions": {"triton": version}}, "results": rows}


def test_the_page_of_several_corpora():
    fine = ("rope/float32", "Pass", "")
    records = [made_by("3.6.0", {}), made_by("3.7.1", {})]
    records += [
        of_corpus("3.6.0", "gfx942", fine, ("jsd/float32", "Fail.value", "result 0: 1 of 2")),
        of_corpus("3.7.1", "gfx942", fine, ("jsd/float32", "Pass", "")),
    ]
    text = page.page(records)
    count = len(page.outcomes_of(records[0]))
    assert "| Triton | portable, gfx942 | liger, gfx942 |" in text
    assert f"| 3.6.0 | {count} / 0 / 0 | 1 / 1 / 0 |" in text
    assert "- `portable`: 3 ops of this package, tier core: matmul, softmax, softmax_backward." in text
    assert "- `liger`: 2 programs, liger-kernel 1.0: rope, jsd." in text
    assert "## portable, gfx942\n\nNothing.\n" in text
    assert "### jsd, liger: wrong with 3.6.0" in text and "1 of 2" in text


@pytest.mark.parametrize("changed", ["version", "digest", "k"])
def test_a_corpus_runs_once_for_a_release(tmp_path, monkeypatch, changed):
    ran: list[list[str]] = []
    args = argparse.Namespace(k=None)

    def execute(command: list[str], each: Release, target: str) -> None:
        ran.append(list(command))
        made = of_corpus(each.version, "gfx942", ("rope/float32", "Pass", ""))
        made["header"] |= {"digest": weather.corpora.digest("tutorials"), "k": args.k}
        Path(command[command.index("--out") + 1]).write_text(json.dumps(made))

    monkeypatch.setattr(weather, "_execute", execute)
    each = Release("3.7.1", None)
    for _ in range(2):
        weather._run_corpus(each, "tutorials", "rocm:gfx942", tmp_path, args)
    assert len(ran) == 1 and ran[0][3:7] == ["--corpus", "tutorials", "--arch", "gfx942"]
    if changed == "version":
        file = tmp_path / "tutorials-triton-3.7.1-gfx942.json"
        file.write_text(file.read_text().replace("3.7.1", "3.7.0"))
    elif changed == "digest":
        monkeypatch.setattr(weather.corpora, "digest", lambda corpus: "0" * 16)
    else:
        args.k = "rope"
    weather._run_corpus(each, "tutorials", "rocm:gfx942", tmp_path, args)
    assert len(ran) == 2


def test_another_triton_on_the_path_is_named(tmp_path, monkeypatch):
    def execute(command: list[str], each: Release, target: str) -> None:
        made = of_corpus("3.0.0", "gfx942", ("rope/float32", "Pass", ""))
        made["header"] |= {"digest": weather.corpora.digest("tutorials"), "k": None}
        Path(command[command.index("--out") + 1]).write_text(json.dumps(made))

    monkeypatch.setattr(weather, "_execute", execute)
    with pytest.raises(UsageError, match=r"made by triton 3\.0\.0, not by 3\.7\.1"):
        weather._run_corpus(
            Release("3.7.1", None), "tutorials", "rocm:gfx942", tmp_path, argparse.Namespace(k=None)
        )


def test_bisection_without_a_change_judges_the_ends():
    tried: list[str] = []
    weather.bisect(releases("1", "2", "3"), lambda each: tried.append(each.version), lambda _: "same")
    assert sorted(tried) == ["1", "3"]
    weather.bisect(releases("1"), lambda each: tried.append(each.version), lambda _: "same")


def package(folder: Path, version: str) -> Path:
    """What `pip install --target` leaves, as far as its version is concerned."""
    (folder / "triton").mkdir(parents=True)
    (folder / "triton" / "__init__.py").write_text(f"__version__ = '{version}'\n")
    info = folder / f"triton-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: triton\nVersion: {version}\n")
    return folder


def test_releases(tmp_path, monkeypatch):
    assert weather.release(metadata.version("triton")).folder is None
    folder = package(tmp_path / "main", "3.10.0+git1")
    assert weather.release(f"{folder}/") == Release("3.10.0+git1", folder)
    assert weather.release(str(folder)).order > Release("3.9.2", None).order
    monkeypatch.setenv("PORTABLE_CACHE_DIR", str(tmp_path / "cache"))
    cached = package(tmp_path / "cache" / "triton" / "3.5.0", "3.5.0")
    assert weather.release("3.5.0") == Release("3.5.0", cached)


def test_a_failed_installation_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("PORTABLE_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(UsageError, match=r"--triton 3\.0\.99: pip: ERROR"):
        weather.release("3.0.99")
    assert list((tmp_path / "triton").iterdir()) == []


@pytest.mark.parametrize(
    "changed, says",
    [
        (["--triton", "newest"], "--triton newest: expected a version"),
        (["--triton", "./nowhere"], "no folder with an installed triton"),
        (["--triton", ","], "name at least one"),
        (["--ops", "softmaxx"], "no such op"),
        (["--corpus", "tutorials", "--device", "cuda"], "tutorials runs on emulated GPUs"),
        (["--corpus", "portable,ligerr"], "--corpus ligerr: there are portable, tutorials, liger"),
        (["--corpus", "", "--device", "rocm:gfx942"], "name at least one"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_mistakes_are_sentences(tmp_path, capfd, changed, says):
    options = {"--triton": metadata.version("triton"), "--device": "rocm:gfx942", "--ops": "softmax"}
    options |= dict(zip(changed[::2], changed[1::2], strict=True))
    argv = ["weather", str(tmp_path / "w"), *(part for option in options.items() for part in option)]
    assert cli.main(argv) == 2
    said = capfd.readouterr().err
    assert says in said and "Traceback" not in said


@pytest.mark.slow
def test_a_run_its_record_and_its_page(tmp_path, capfd):
    version = metadata.version("triton")
    argv = [
        "weather",
        str(tmp_path),
        "--triton",
        version,
        "--device",
        "rocm:gfx942",
        "--ops",
        "softmax,matmul",
    ]
    argv += [
        "--tier",
        "smoke",
        "-k",
        "N=33,lead=3x5/normal/contiguous",
        "-j",
        "1",
        "--page",
        str(tmp_path / "w.md"),
    ]
    assert cli.main(argv) == 0
    file = tmp_path / f"triton-{version}-rocm-gfx942.json"
    assert record.tally(record.read(file)).passed >= 1
    text = (tmp_path / "w.md").read_text()
    assert f"| {version} |" in text and "emulated" in text and text.endswith("Nothing.\n")
    capfd.readouterr()
    assert cli.main(argv) == 0  # from the record
    assert "gfx942: 50 cases" not in (said := capfd.readouterr().out) and f"{file}: " in said


@pytest.mark.slow
def test_a_run_that_cannot_start_is_named(tmp_path, capfd):
    argv = ["weather", str(tmp_path), "--triton", metadata.version("triton"), "--device", "rocm:gfx1"]
    assert cli.main([*argv, "--ops", "softmax"]) == 2
    said = capfd.readouterr().err
    assert "rocm has gfx90a" in said and "on rocm:gfx1 ended with 2" in said


def test_a_record_of_other_cases_is_not_taken(tmp_path):
    args = argparse.Namespace(tier="core", k=None)
    found = made_by("3.7.1", {})
    ops = list(found["header"]["specs"])
    found["header"]["specs"] = {op: record.op_digest(op) for op in ops}
    each = Release("3.7.1", None)
    assert weather._is_of(found, each, ops, args)
    assert not weather._is_of(found, Release("3.8.0", None), ops, args)
    assert not weather._is_of(found, each, ops[:1], args)
    assert not weather._is_of(found, each, ops, argparse.Namespace(tier="smoke", k=None))
    found["header"]["specs"][ops[0]] = "0" * 16
    assert not weather._is_of(found, each, ops, args)

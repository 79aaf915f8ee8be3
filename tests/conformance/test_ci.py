"""The scripts of conformance/ci/, run as a pipeline runs them; `test_pipelines.py` is about who calls them.

What is left out here: the runs have three cases of one op (CASES), of two of the three emulated GPUs;
installing is seen through an interpreter that only writes down its calls.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from portable.conformance.ci import pairs
from portable.conformance.records import record

from . import toy_norm
from .ci_scripts import CI, ROOT, plan, script
from .sample_record import sample_record

CASES = "--ops matmul -k /small_integers/"

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ci")]  # one set of records for all of them


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """The folder of a pipeline's records: the CPU and two emulated GPUs, one of them through a worker."""
    out = tmp_path_factory.mktemp("ci") / "out"
    for device, *options in (
        ["cpu", "-j", "0"],
        ["rocm:gfx942", "-j", "0", "--emulate"],
        ["rocm:gfx1100", "-j", "1", "--emulate"],
    ):
        done = script("run.sh", device, "smoke", out, *options, CONFORMANCE_OPTIONS=CASES)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "\nCONFORMS: " in done.stdout and "\x1b" not in done.stdout
    return out


@pytest.fixture
def copied(made, tmp_path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "out", ignore=shutil.ignore_patterns("comparison")))


# Running ------------------------------------------------------------------------------------------


def test_a_run_leaves_record_junit_and_page(made):
    names, kinds = ("cpu", "rocm-gfx942", "rocm-gfx1100"), ("json", "xml", "html")
    files = {file.name for file in made.iterdir() if file.is_file()}
    assert files == {f"{name}.{kind}" for name in names for kind in kinds}
    for name, device, impls in (
        ("cpu", "CPU", {"torch"}),
        ("rocm-gfx942", "emulated gfx942", {"mfma", "mfma_splitk", "simt", "triton"}),
        ("rocm-gfx1100", "emulated gfx1100", {"wmma", "simt", "triton"}),
    ):
        found = record.read(made / f"{name}.json")
        assert record.conforming(found) and found["header"]["device"] == device
        assert {result["impl"] for result in found["results"]} == impls
        assert (made / f"{name}.xml").read_text().startswith("<?xml")
        assert "<html" in (made / f"{name}.html").read_text()


def test_a_failing_run_is_one_and_reads_as_on_the_page(tmp_path):
    """All but the paths and the figures, which may differ in the last digit between builds of torch."""
    ops = toy_norm.write(tmp_path / "ops")
    done = script(
        "run.sh", "cpu", "smoke", tmp_path / "out", "-k", "N=129,lead=7/cancellation/padded",
        PORTABLE_KERNEL_PATH=str(ops), CONFORMANCE_OPTIONS="--ops toy_norm --impl plain,short_mask -j 1",
    )  # fmt: skip
    assert done.returncode == 1
    page = (ROOT / "docs" / "ci.md").read_text()
    for line in done.stdout.replace(f"{tmp_path}/", "").splitlines():
        known = re.escape(line) if "wrong element" not in line else re.escape(line.partition("; first")[0])
        assert re.search(rf"(?m)^{known}", page), line
    assert not record.conforming(record.read(tmp_path / "out" / "cpu.json"))
    assert "<failure" in (tmp_path / "out" / "cpu.xml").read_text()


def test_a_missing_gpu_is_three_and_an_old_record_does_not_stand_for_it(tmp_path):
    missing = "cuda" if torch.version.cuda is None or not torch.cuda.is_available() else "rocm"
    old = tmp_path / f"{missing}.json"
    old.write_text("{}")
    done = script("run.sh", missing, "smoke", tmp_path, "--require-hardware")
    assert done.returncode == 3 and "no " in done.stderr and "Traceback" not in done.stderr
    assert not old.exists()


@pytest.mark.parametrize(
    "name, arguments, words",
    [
        ("run.sh", ["cpu", "smoke"], "usage: run.sh DEVICE TIER OUTDIR"),
        ("compare.sh", [], "usage: compare.sh OUTDIR"),
        ("compare.sh", ["/no/such/folder"], "there is no such folder"),
        ("summary.sh", [], "usage: summary.sh OUTDIR"),
        ("summary.sh", ["/no/such/folder"], "compare.sh writes it"),
    ],
)
def test_mistakes_are_two(name, arguments, words):
    done = script(name, *arguments)
    assert done.returncode == 2 and words in done.stderr and "Traceback" not in done.stderr


def test_without_an_interpreter_it_says_what_to_do(tmp_path):
    done = script("run.sh", "cpu", "smoke", tmp_path, PYTHON="/no/python")
    assert done.returncode == 2 and "run conformance/ci/install.sh first, or set PYTHON" in done.stderr


# Comparing ----------------------------------------------------------------------------------------


def test_the_pipelines_last_job(copied, tmp_path):
    """As scripts: the tables, the summary on GitHub and elsewhere."""
    expect = "cpu,rocm-gfx942,rocm-gfx1100"
    done = script("compare.sh", copied, CONFORMANCE_EXPECT=expect)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("\nAgreement: 1 pair of records compared, no disagreement.\n")
    assert "cpu and rocm-gfx942\n  No implementation ran on both: cpu ran torch; " in done.stdout
    assert "mfma against wmma" in done.stdout or "wmma against mfma" in done.stdout
    [page] = (copied / "comparison").glob("*.html")
    assert "emulated gfx942" in page.read_text()

    plain = script("summary.sh", copied)
    step = tmp_path / "step.md"
    step.write_text("before\n")
    github = script("summary.sh", copied, GITHUB_STEP_SUMMARY=str(step))
    assert (plain.returncode, github.returncode, github.stdout) == (0, 0, "")
    assert step.read_text() == "before\n" + plain.stdout
    tables = re.findall(r"(?m)(?:^\|.*\n)+", plain.stdout)
    assert [len(table.splitlines()) - 2 for table in tables] == [3, 3]
    for table in tables:
        assert len({line.count("|") for line in table.splitlines()}) == 1


def edit(folder: Path, name: str, **changes: Any) -> dict[str, Any]:
    """Change the first result of an exact case of a record by hand; answers the result."""
    file = folder / f"{name}.json"
    found = record.read(file)
    result = next(each for each in found["results"] if each.get("exact") and each["impl"] == "triton")
    result |= changes
    record.write(file, found)
    return result


def compare(folder: Path, *expect: str) -> int:
    return pairs.main([str(folder), "--out", str(folder / "comparison"), "--expect", *expect])


def test_an_unexplained_disagreement_is_one(copied, capsys):
    """Bits of a case that must be exact differ, and both sides say Pass: nothing explains that."""
    case = edit(copied, "rocm-gfx942", digest="0" * 16)["case"]
    assert compare(copied) == 1
    out = capsys.readouterr().out
    assert f"{case}: must be bit-equal, and is not" in out
    assert out.rstrip().rpartition("\n")[2].startswith("NO agreement: of 1 pair compared disagree: rocm-")
    summary = (copied / "comparison" / "summary.md").read_text()
    assert "**disagree**" in summary and "must be bit-equal" in summary
    assert f"<code>{pairs._cell(case)}: must" in summary


def test_a_failing_result_is_shown_and_disagrees(copied):
    edit(copied, "rocm-gfx1100", state="Fail.value", message="wrong")
    assert compare(copied) == 1
    lines = (copied / "comparison" / "summary.md").read_text().splitlines()
    [row] = [line for line in lines if line.startswith("| rocm-gfx1100 | emulated")]
    assert row.endswith(" | 0 | 0 | 1 | **does not conform** |")  # known failures, waived, failing


def test_a_record_that_did_not_come_is_one(copied, capsys):
    assert compare(copied, "cpu", "rocm-gfx950") == 1
    assert "no record came from rocm-gfx950" in capsys.readouterr().out


def test_another_edition_of_a_spec_is_refused(copied, capsys):
    file = copied / "cpu.json"
    found = record.read(file)
    found["header"]["specs"]["matmul"] = "0" * 16
    record.write(file, found)
    assert compare(copied) == 2
    out = capsys.readouterr().out
    assert "Cannot be compared: matmul: the two runs used different specs" in out
    assert "these cannot be compared: cpu and rocm-" in out


def test_a_file_that_is_no_record_is_named(copied, capsys):
    (copied / "cuda.json").write_text("{}")
    assert compare(copied) == 2
    assert f"{copied / 'cuda.json'}: schema" in capsys.readouterr().err


def test_one_record_alone_is_compared_with_nothing(copied, capsys):
    for name in ("rocm-gfx942", "rocm-gfx1100"):
        (copied / f"{name}.json").unlink()
    assert compare(copied) == 2
    assert "there are no two records with anything in common" in capsys.readouterr().out


def test_the_reference_set_comes_first_and_names_stay_apart(tmp_path):
    for folder, changes in (
        ("ours", {}),
        ("theirs", {"device": "AMD Instinct MI300X", "vendor": "rocm", "arch": "gfx942"}),
        ("soft", {"device": "emulated gfx942", "vendor": "rocm", "arch": "gfx942", "emulated": True}),
    ):
        (tmp_path / folder).mkdir()
        name = "rocm" if folder == "soft" else "gpu"
        suffix = ".json" if folder == "ours" else ".json.gz"
        record.write(tmp_path / folder / f"{name}{suffix}", sample_record(**changes))
    folders = [tmp_path / name for name in ("ours", "theirs", "soft")]
    records = pairs.read(folders)
    assert list(records) == ["rocm", "ours/gpu", "theirs/gpu"]
    assert [pair.verdict for pair in pairs.pairs(records)] == ["agree"] * 3
    argv = [*map(str, folders), "--out", str(tmp_path / "comparison"), "--expect", "rocm"]
    assert pairs.main(argv) == 0
    assert len(list((tmp_path / "comparison").glob("*.html"))) == 3


def test_two_records_of_one_name_are_an_error(tmp_path):
    for suffix in (".json", ".json.gz"):
        record.write(tmp_path / f"gpu{suffix}", sample_record())
    with pytest.raises(record.RecordError, match=r"gpu\.json\.gz: .*gpu\.json has the same name"):
        pairs.read([tmp_path])


def test_an_incomplete_record_and_a_shard_say_so(tmp_path):
    one, other = sample_record(complete=False), sample_record(fraction=[2, 4])
    records = {"a": one, "b": other}
    text = pairs.summary(records, pairs.pairs(records), "")
    assert "**incomplete**" in text and "core, shard 2 of 4" in text and "A is incomplete" in text


def test_a_records_words_do_not_break_the_page():
    device = "a | b <script> `c` [d](e) *f*\n# g"
    text = pairs.summary({"x": sample_record(device=device)}, [], "")
    lines = text.splitlines()
    [row] = [line for line in lines if "script" in line]
    [header] = [line for line in lines if line.startswith("| record |")]
    assert row.count("|") == header.count("|") and "<" not in row and "`" not in row and "](" not in row


# Planning and installing --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "event, chosen, tier",
    [
        ("pull_request", "", "smoke"), ("pull_request", "core", "core"), ("push", "", "core"),
        ("workflow_dispatch", "full", "full"), ("", "", "core"),
    ],
)  # fmt: skip
def test_the_tier(event, chosen, tier):
    code, found, _ = plan(EVENT=event, TIER=chosen)
    assert (code, found["tier"]) == (0, tier)
    assert int(found["minutes"]) > 0


def test_a_vendor_without_a_runner_is_skipped_with_a_notice(tmp_path):
    code, found, out = plan(GITHUB_ACTIONS="true", NVIDIA_RUNNER="h200")
    assert code == 0 and found["nvidia"] == "h200" and "amd" not in found
    assert "::notice title=AMD skipped::the variable AMD_RUNNER names no runner" in out.splitlines()
    assert "NVIDIA skipped" not in out
    assert found["expect"] == "cpu,rocm-gfx942,rocm-gfx950,rocm-gfx1100,cuda"
    file = tmp_path / "outputs"
    done = script("plan.sh", file, AMD_RUNNER="mi300")
    assert "Notice: NVIDIA skipped" in done.stdout
    lines = [line for line in done.stdout.splitlines() if "Notice" not in line]
    assert file.read_text().splitlines() == lines


def test_a_change_from_outside_runs_on_no_machine_of_ours():
    code, found, out = plan(TRUSTED="false", NVIDIA_RUNNER="h200", AMD_RUNNER="mi300")
    assert code == 0 and not {"nvidia", "amd"} & found.keys() and "rocm," not in found["expect"] + ","
    assert out.count("a change from outside does not run") == 2


@pytest.mark.parametrize(
    "environ, words",
    [
        ({"TIER": "huge"}, "TIER=huge: expected smoke, core or full"),
        ({"AMD_RUNNER": "x; rm"}, "AMD_RUNNER: 'x; rm' is no label"),
    ],
)
def test_a_plan_that_cannot_be_is_two(environ, words):
    code, _, out = plan(**environ)
    assert code == 2 and words in out


def install(tmp_path: Path, torch_there: str, *arguments: str, **environ: str) -> list[str]:
    """What install.sh installs for an interpreter that has `torch_there` ("" for none)."""
    log, used, fake = (tmp_path / name for name in ("log", "used", "python"))
    answer = f"echo torch=={torch_there}" if torch_there else "exit 1"
    fake.write_text(
        "#!/usr/bin/env bash\n"
        f"if [[ $1 == -c ]]; then {answer}; exit; fi\n"
        f'echo "$*" >> {shlex.quote(str(log))}\n'
        f'while (($#)); do [[ $1 == --constraint ]] && cp "$2" {shlex.quote(str(used))}; shift; done\n'
    )
    fake.chmod(0o755)
    done = script("install.sh", *arguments, PYTHON=str(fake), **environ)
    assert done.returncode == 0, done.stderr
    return log.read_text().splitlines()


def test_installing_the_cpus_torch(tmp_path):
    lines = install(tmp_path, "", "emulate", CONFORMANCE_TORCH_INDEX="https://example.org/cpu")
    assert re.search(r"install --quiet --index-url https://example.org/cpu torch==[\d.]+$", lines[0])
    assert lines[-2].endswith(f"--no-build-isolation --editable {ROOT}[emulate]")
    assert lines[-1] == "-m portable info"
    assert (tmp_path / "used").read_text() == (ROOT / "constraints.txt").read_text()


def test_installing_beside_a_torch_that_is_there(tmp_path):
    """A torch for the GPU is kept: it is not replaced by the version of constraints.txt."""
    lines = install(tmp_path, "2.10.0+rocm7.0", "rocm", CONFORMANCE_TORCH_INDEX="https://example.org/rocm")
    assert not any("--index-url" in line for line in lines)
    assert any(line.endswith(f"--editable {ROOT}[rocm]") for line in lines)
    pinned = (ROOT / "constraints.txt").read_text().splitlines()
    others = [line for line in pinned if not line.startswith(("torch==", "triton=="))]
    assert len(others) == len(pinned) - 2
    assert (tmp_path / "used").read_text().splitlines() == [*others, "torch==2.10.0+rocm7.0"]


@pytest.mark.parametrize("file", sorted(CI.glob("*.sh")), ids=lambda file: file.name)
def test_a_script_parses(file):
    subprocess.run(["bash", "-n", str(file)], check=True)

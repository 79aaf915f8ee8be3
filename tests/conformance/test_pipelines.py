"""What the pipelines call exists and takes the arguments that they give; so do the commands on their pages.

No GitHub and no GitLab run here; `test_ci.py` runs the scripts.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from portable.conformance.commands.cli import _parser

from .ci_scripts import CI, ROOT, SOFTWARE, plan

WORKFLOWS = {
    file.stem: yaml.safe_load(file.read_text()) for file in (ROOT / ".github/workflows").glob("*.yml")
}
GITLAB = yaml.safe_load((CI / "gitlab-ci.yml").read_text())
PAGES = [ROOT / "docs" / name for name in ("ci.md", "conformance.md")]
JOBS = [(workflow, job) for workflow, found in WORKFLOWS.items() for job in found["jobs"]]


def check_command(line: str, variables: Mapping[str, str]) -> None:
    """A script of conformance/ci, targets of the Makefile, or portable-conformance, and its arguments."""
    filled = re.sub(r"\$\{?(\w+)\}?", lambda match: variables.get(match[1], "value"), line)
    command, *rest = [word for word in shlex.split(filled) if not re.match(r"[A-Z_]+=", word)]
    if command == "make":
        subprocess.run(["make", "-n", *rest], cwd=ROOT, check=True, capture_output=True)
    elif command == "portable-conformance":
        if rest[0].startswith("-") and rest != ["--help"]:
            rest.insert(0, "run")
        parse(rest)
    elif command.startswith("conformance/"):
        assert os.access(ROOT / command, os.X_OK), command
        if command.endswith("/run.sh"):
            device, tier, out, *options = rest
            parse(["run", "--device", device, "--tier", tier, "--record", out, *options])
    else:
        assert command in {"git", "cd", "python"}, line


def parse(arguments: list[str]) -> None:
    try:
        _parser().parse_args(arguments)
    except SystemExit as stop:
        assert stop.code == 0, arguments


def entries(matrix: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The variables of a matrix, per job: GitHub's one list or `include`, GitLab's lists in entries."""
    lists = matrix.get("include") or [{key: value} for key, values in matrix.items() for value in values]
    for entry in lists:
        several = next((key for key, value in entry.items() if isinstance(value, list)), None)
        for value in entry[several] if several else [None]:
            yield entry | ({several: value} if several else {})


@pytest.mark.parametrize("workflow, job", JOBS)
def test_the_commands_of_a_job_exist(workflow, job):
    found = WORKFLOWS[workflow]["jobs"][job]
    for entry in entries(found.get("strategy", {}).get("matrix", {"include": [{}]})):
        for line in (step["run"] for step in found["steps"] if "run" in step):
            for key in re.findall(r"matrix\.(\w+)", line):
                line = re.sub(rf"\$\{{\{{ *matrix\.{key} *\}}\}}", entry.get(key, ""), line)
            check_command(line, {"TIER": "smoke"})


@pytest.mark.parametrize("job", [name for name, found in GITLAB.items() if "script" in found])
def test_the_commands_of_a_job_of_gitlab_exist(job):
    found = GITLAB[job]
    matrix = found.get("parallel", {}).get("matrix", [{}])
    for entry in entries({"include": matrix}):
        for line in [*found["script"], *found.get("after_script", ())]:
            check_command(line, {"tier": "smoke", **entry})


def test_the_records_that_are_expected_come():
    """Else the last job of every pipeline fails for a record that no job makes."""
    _, found, _ = plan(NVIDIA_RUNNER="a", AMD_RUNNER="b")
    matrix = WORKFLOWS["conformance"]["jobs"]["software"]["strategy"]["matrix"]
    devices = [entry["device"] for entry in entries(matrix)]
    assert set(devices) == SOFTWARE
    assert found["expect"].split(",") == [*(device.replace(":", "-") for device in devices), "cuda", "rocm"]
    assert {
        each["DEVICE"] for each in entries({"include": GITLAB["software"]["parallel"]["matrix"]})
    } == SOFTWARE


@pytest.mark.parametrize("workflow, job", JOBS)
def test_expressions_name_what_is_there(workflow, job):
    """GitHub takes an unknown name for an empty string, and says nothing."""
    whole = WORKFLOWS[workflow]
    found = whole["jobs"][job]
    needs = [found["needs"]] if isinstance(found.get("needs"), str) else found.get("needs", [])
    assert set(needs) <= whole["jobs"].keys()
    matrix = found.get("strategy", {}).get("matrix", {})
    known = {f"matrix.{key}" for entry in entries(matrix) for key in entry}
    known |= {f"needs.{name}.result" for name in needs}
    known |= {
        f"needs.{name}.outputs.{key}" for name in needs for key in whole["jobs"][name].get("outputs", ())
    }
    known |= {f"env.{key}" for key in whole.get("env", ())}
    printed = set(re.findall(r"(\w+)=\$", (CI / "plan.sh").read_text()))
    ids = [step["id"] for step in found["steps"] if "id" in step]
    known |= {f"steps.{name}.outputs.{key}" for name in ids for key in printed}
    dispatch = (whole[True].get("workflow_dispatch") or {}).get("inputs", {})  # YAML 1.1 reads `on` as True
    known |= {f"inputs.{key}" for key in dispatch}
    for expression in re.findall(r"\$\{\{(.*?)\}\}", yaml.safe_dump(found, width=10_000), re.DOTALL):
        names = re.findall(r"\b(?:matrix|needs|env|steps|inputs)\.[\w.-]+", expression)
        assert set(names) <= known, expression


def commands(page: Path) -> list[str]:
    """The commands of a page: lines after a prompt, and the `sh` steps of Jenkins."""
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    lines = []
    for language, block in blocks:
        if language == "console":
            lines += re.findall(r"^\$ (.*?)(?: +# .*)?$", block.replace("\\\n", " "), re.MULTILINE)
        elif language == "groovy":
            lines += re.findall(r"\bsh '(.*?)'", block)
        elif language == "yaml":
            lines += re.findall(r"^ *- run: (?:portable/)?(.*)", block, re.MULTILINE)
    return lines


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_on_the_page_parses(page):
    found = commands(page)
    assert len(found) > 5
    for line in found:
        check_command(line, {})

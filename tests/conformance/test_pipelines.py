"""The pipelines that call the scripts of conformance/ci/, and the pages about them, by their structure.

No GitHub and no GitLab run here: jobs, needs, expressions, actions and script lines are checked instead.
"""

from __future__ import annotations

import json
import re
import shlex
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import pytest
import yaml

from portable.conformance.cases import inputs
from portable.conformance.commands.cli import _parser
from portable.conformance.execute import behaviour
from portable.conformance.records import record

from .ci_scripts import CI, ROOT, SOFTWARE, plan

WORKFLOW = ROOT / ".github" / "workflows" / "conformance.yml"
GITLAB = CI / "gitlab-ci.yml"
PAGES = [ROOT / "docs" / name for name in ("ci.md", "conformance.md")]

# The two pipelines --------------------------------------------------------------------------------


def workflow() -> dict[str, Any]:
    found = yaml.safe_load(WORKFLOW.read_text())
    found["on"] = found.pop(True)  # YAML 1.1 takes the word for a boolean
    return found


JOBS: dict[str, dict[str, Any]] = workflow()["jobs"]
EXPRESSION = re.compile(r"\$\{\{(.*?)\}\}", re.DOTALL)


def called(line: str) -> str:
    """The script that a line calls, checked; assignments may stand before it."""
    words = [word for word in shlex.split(EXPRESSION.sub("x", line)) if not re.match(r"\w+=", word)]
    assert "\n" not in line.strip(), line
    assert re.fullmatch(r"conformance/ci/\w+\.sh", words[0]) and (ROOT / words[0]).is_file(), line
    assert not set(words) & {"|", "&&", ";", "||"}, line
    return Path(words[0]).name


def steps(job: str) -> list[str]:
    return [called(step["run"]) for step in JOBS[job]["steps"] if "run" in step]


def test_every_line_of_the_workflow_is_a_script():
    assert steps("plan") == ["plan.sh"]
    assert steps("software") == steps("nvidia") == steps("amd") == ["install.sh", "run.sh"]
    assert steps("compare") == ["install.sh", "compare.sh", "summary.sh"]


def test_the_matrix_is_what_the_plan_expects():
    matrix = JOBS["software"]["strategy"]["matrix"]["include"]
    assert {entry["device"] for entry in matrix} == SOFTWARE and len(matrix) == len(SOFTWARE)
    names = [entry["name"] for entry in matrix]
    assert names == [entry["device"].replace(":", "-") for entry in matrix]
    assert [entry.get("options") for entry in matrix] == [None, *["--emulate"] * 3]
    _, found, _ = plan(NVIDIA_RUNNER="a", AMD_RUNNER="b")
    assert found["expect"].split(",") == [*names, "cuda", "rocm"]
    assert JOBS["software"]["strategy"]["fail-fast"] is False


@pytest.mark.parametrize("job, device", [("nvidia", "cuda"), ("amd", "rocm")])
def test_a_card_is_asked_for_and_skipped_without_a_label(job, device):
    assert JOBS[job]["runs-on"] == ["self-hosted", f"${{{{ needs.plan.outputs.{job} }}}}"]
    assert JOBS[job]["if"] == f"${{{{ needs.plan.outputs.{job} != '' }}}}"
    [line] = [step["run"] for step in JOBS[job]["steps"] if step.get("name") == "Judge"]
    assert line == f'conformance/ci/run.sh {device} "$TIER" out --require-hardware'


def test_the_last_job_waits_for_all_and_runs_whatever_they_found():
    assert set(JOBS["compare"]["needs"]) == JOBS.keys() - {"compare"}
    assert "!cancelled()" in JOBS["compare"]["if"]
    by_name = {step.get("name"): step for step in JOBS["compare"]["steps"]}
    assert by_name["Compare"]["env"]["CONFORMANCE_EXPECT"] == "${{ needs.plan.outputs.expect }}"
    assert by_name["Summary"]["if"] == "${{ always() }}"
    down = next(step["with"] for step in JOBS["compare"]["steps"] if "download" in step.get("uses", ""))
    assert down["path"] == "records" and down["merge-multiple"] is True
    for job in ("software", "nvidia", "amd"):
        up = next(step for step in JOBS[job]["steps"] if "upload" in step.get("uses", ""))
        assert up["if"] == "${{ always() }}" and up["with"]["path"] == "out"
        assert up["with"]["name"].startswith(down["pattern"].rstrip("*"))


def test_triggers_rights_and_limits():
    found = workflow()
    assert set(found["on"]) == {"pull_request", "push", "workflow_dispatch"}
    assert found["on"]["push"] == {"branches": ["main"]}
    assert found["on"]["workflow_dispatch"]["inputs"]["tier"]["options"] == ["smoke", "core", "full"]
    assert found["permissions"] == {"contents": "read"} and "group" in found["concurrency"]
    for name, job in JOBS.items():
        assert "timeout-minutes" in job and "permissions" not in job, name


def test_actions_are_pinned_and_no_secret_is_read():
    for job in JOBS.values():
        for step in job["steps"]:
            assert ("run" in step) != ("uses" in step)
            if "uses" in step:
                assert re.fullmatch(r"actions/[a-z-]+@v\d+", step["uses"]), step["uses"]
            if step.get("uses", "").startswith("actions/checkout"):
                assert step["with"]["persist-credentials"] is False
    for file in (WORKFLOW, GITLAB):
        assert "secret" not in file.read_text().lower() and "token" not in file.read_text().lower()


def test_needs_form_no_circle():
    graph = {name: [job["needs"]] if isinstance(job.get("needs"), str) else job.get("needs", [])
             for name, job in JOBS.items()}  # fmt: skip
    assert {each for needs in graph.values() for each in needs} <= JOBS.keys()
    assert list(TopologicalSorter(graph).static_order())[-1] == "compare"


def texts(node: Any) -> list[str]:
    if isinstance(node, dict):
        return [text for each in node.values() for text in texts(each)]
    if isinstance(node, list):
        return [text for each in node for text in texts(each)]
    return [node] if isinstance(node, str) else []


@pytest.mark.parametrize("name", JOBS)
def test_expressions_name_what_is_there(name):
    job = JOBS[name]
    needs = [job["needs"]] if isinstance(job.get("needs"), str) else job.get("needs", [])
    keys = {key for entry in job.get("strategy", {}).get("matrix", {}).get("include", ()) for key in entry}
    ids = {step["id"] for step in job["steps"] if "id" in step}
    printed = set(re.findall(r'"(\w+)=\$\w+"', (CI / "plan.sh").read_text()))
    for text in texts(job):
        assert text.count("${{") == text.count("}}") == len(EXPRESSION.findall(text)), text
        for expression in EXPRESSION.findall(text):
            bare = re.sub(r"'[^']*'", "''", expression)
            assert bare.count("(") == bare.count(")"), expression
            for word in re.findall(r"[A-Za-z_][\w.-]*", bare):
                root, *path = word.split(".")
                if root == "needs":
                    assert path[0] in needs, word
                    assert path[1] == "result" or path[2] in JOBS[path[0]]["outputs"], word
                elif root == "matrix":
                    assert path[0] in keys, word
                elif root == "steps":
                    assert path[0] in ids and path[1] == "outputs" and path[2] in printed, word
                elif root == "env":
                    assert path[0] in workflow()["env"], word
                elif root == "inputs":
                    assert path[0] in workflow()["on"]["workflow_dispatch"]["inputs"], word
                else:
                    assert root in {"github", "vars", "always", "cancelled", "fromJSON", "hashFiles"}, word


def test_gitlab_has_the_same_jobs():
    found = yaml.safe_load(GITLAB.read_text())
    judge = found[".judge"]
    assert judge["artifacts"]["when"] == "always" and judge["artifacts"]["reports"]["junit"] == "out/*.xml"
    for name in ("plan", "software", "nvidia", "amd", "compare"):
        job = found[name]
        scripts = [called(line) for line in [*job["script"], *job.get("after_script", ())]]
        assert scripts == steps(name), name
        assert job.get("stage", judge["stage"]) in found["stages"]
    devices = [entry["DEVICE"] for entry in found["software"]["parallel"]["matrix"]]
    flat = {each for entry in devices for each in ([entry] if isinstance(entry, str) else entry)}
    assert flat == SOFTWARE
    for name in ("nvidia", "amd"):
        variable = f"${name.upper()}_RUNNER"
        assert found[name]["tags"] == [variable] and found[name]["rules"] == [{"if": variable}]
        assert "--require-hardware" in found[name]["script"][-1]
    assert found["compare"]["when"] == "always"
    assert found["plan"]["artifacts"]["reports"]["dotenv"] in found["plan"]["script"][0]
    _, lines, _ = plan(NVIDIA_RUNNER="a", AMD_RUNNER="b")
    for name in ("tier", "expect"):
        assert f"${name}" in GITLAB.read_text() and " " not in lines[name]  # a value there holds no blank


# The pages ----------------------------------------------------------------------------------------


def commands(page: Path) -> list[list[str]]:
    """The commands of a page: lines after a prompt, and the `sh` steps of Jenkins."""
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    lines = []
    for language, block in blocks:
        if language == "console":
            lines += re.findall(r"^\$ (.*?)(?: +# .*)?$", block.replace("\\\n", " "), re.MULTILINE)
        elif language == "groovy":
            lines += re.findall(r"\bsh '(.*?)'", block)
    return [[word for word in shlex.split(line) if not re.match(r"[A-Z_]+=", word)] for line in lines]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_on_the_page_parses(page):
    found = commands(page)
    assert len(found) > 5
    for words in found:
        if words[0] == "portable-conformance":
            rest = words[1:]
            if rest[0].startswith("-") and rest != ["--help"]:
                rest.insert(0, "run")
            _parser().parse_args(rest)  # leaves with an error where it does not parse
        elif words[0].startswith("conformance/"):
            name = called(shlex.join(words))
            if name == "run.sh":
                device, tier, out, *options = words[1:]
                _parser().parse_args(["run", "--device", device, "--tier", tier, "--record", out, *options])
        else:
            assert words[0] in {"git", "cd", "make", "python"}, words


def test_the_yaml_on_the_page_parses_and_calls_scripts():
    blocks = re.findall(r"^```yaml\n(.*?)^```$", PAGES[0].read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 2
    for block in blocks:
        found = yaml.safe_load(block)
        for line in [line for line in texts(found) if ".sh" in line]:
            called(line.removeprefix("portable/"))  # a checkout inside another repository's


def test_the_page_tells_every_variable_of_the_scripts():
    scripts = "".join(file.read_text() for file in CI.glob("*.sh"))
    names = set(re.findall(r"(?m)^# ([A-Z_]+)(?:, | {2,}|$)", scripts))
    names -= {"OPTION"}  # an argument of run.sh
    assert {"PYTHON", "CONFORMANCE_OPTIONS", "TIER", "NVIDIA_RUNNER"} <= names
    assert [name for name in sorted(names) if f"`{name}`" not in PAGES[0].read_text()] == []


def test_the_guide_tells_what_the_program_has():
    """A new state, header field, value class, layout, behaviour, command or option wants a word there."""
    text = PAGES[1].read_text()
    asked = [*inputs.VALUES, *inputs.LAYOUTS, *behaviour.CASES]
    assert [name for name in asked if f"`{name}`" not in text] == []
    assert [state for state in record.STATES if f"`{state}`" not in text] == []
    assert [name for name in record.HEADER_FIELDS if f"`{name}`" not in text] == []
    options = set()
    for action in _parser()._actions:
        for sub in (getattr(action, "choices", None) or {}).values():
            options |= {option for each in sub._actions for option in each.option_strings}
            assert f"`{sub.prog.split()[-1]}" in text, sub.prog
    shorts = {"-h", "--help", "--jobs"}
    assert [option for option in sorted(options - shorts) if f"`{option}" not in text] == []


def test_the_schema_that_the_guide_links_is_published():
    assert "(../conformance/results/record.schema.json)" in PAGES[1].read_text()
    json.loads((ROOT / "conformance" / "record.schema.json").read_text())

"""The record as JUnit XML, as Jenkins, GitLab and GitHub's reporters read it.

A test suite per op and implementation, a test case per result. NotSupported, NotRun and known failures are
skipped, wrong answers are failures, what gave no answer is an error. The file holds a failure or an error
exactly when the record does not conform: what no result says (an interrupted run, cases not run, a time
above the roof) is a separate case in the suite `portable.run`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any
from xml.etree import ElementTree

from portable.conformance.records import record as records
from portable.conformance.records.schema import HEADER_FIELDS
from portable.conformance.report.wording import clean, cut, rerun
from portable.conformance.states import CONFORMING
from portable.conformance.text import pluralize
from portable.runtime import files

SKIPPED = frozenset({"NotSupported", "NotRun", "XFail", "Waived"})
ERRORS = frozenset({"Crash", "Timeout", "InternalError", "CompileError", "ResourceError"})
"""The op gave no answer to judge; every other state that does not conform is a failure."""


def write(path: str | os.PathLike[str], record: Mapping[str, Any]) -> None:
    """Write `record` (a valid record of schema 3) to `path`, whole or not at all. OSError as `open` does."""
    files.write_text(path, text(record))


def text(record: Mapping[str, Any]) -> str:
    """The XML document."""
    head = record["header"]
    root = ElementTree.Element("testsuites", name=clean(f"portable conformance on {head['device']}"))
    for summary in records.summaries(record):
        suite = _suite(root, f"portable.{summary.op}.{summary.impl}", head, str(summary.tally))
        for result in summary.results:
            _case(suite, result, head)
    _run(root, record)
    for suite in root:
        _count(suite)
    for name in ("tests", "failures", "errors"):
        root.set(name, str(sum(int(suite.get(name, 0)) for suite in root)))
    root.set("time", _seconds(sum(float(suite.get("time", 0)) for suite in root)))
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, "unicode") + "\n"


def properties(head: Mapping[str, Any]) -> dict[str, str]:
    """The header as flat names and texts: `versions.torch`, `specs.matmul`; null is left out.
    They are in the schema's order, whatever the file's was."""
    found: dict[str, str] = {}
    for name in sorted(head, key=[*HEADER_FIELDS, *head].index):
        value = head[name]
        if isinstance(value, Mapping):
            found |= {f"{name}.{key}": _plain(each) for key, each in value.items() if each is not None}
        elif value is not None:
            found[name] = "/".join(map(str, value)) if name == "fraction" else _plain(value)
    return found


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _suite(
    root: ElementTree.Element, name: str, head: Mapping[str, Any], tally: str = ""
) -> ElementTree.Element:
    suite = ElementTree.SubElement(root, "testsuite", name=clean(name))
    stamp = _timestamp(head["date"])
    if stamp:
        suite.set("timestamp", stamp)
    block = ElementTree.SubElement(suite, "properties")
    for key, value in (properties(head) | ({"results": tally} if tally else {})).items():
        ElementTree.SubElement(block, "property", name=clean(key), value=clean(value))
    return suite


def _timestamp(date: str) -> str:
    """UTC without its offset, as readers of JUnit expect."""
    try:
        moment = datetime.fromisoformat(date)
    except ValueError:
        return ""
    if moment.tzinfo is not None:
        moment = moment.astimezone(timezone.utc)
    return moment.strftime("%Y-%m-%dT%H:%M:%S")


def _case(suite: ElementTree.Element, result: Mapping[str, Any], head: Mapping[str, Any]) -> None:
    state, message = result["state"], clean(result.get("message", ""))
    case = ElementTree.SubElement(
        suite, "testcase", name=clean(result["case"]), classname=suite.get("name", ""),
        time=_seconds(result.get("seconds", 0.0)),
    )  # fmt: skip
    if state in SKIPPED:
        ElementTree.SubElement(case, "skipped", message=f"{state}: {message}" if message else state)
    elif state not in CONFORMING:
        _fault(case, state, message, f"\nagain: {rerun(result, head)}")
    elif state != "Pass":
        ElementTree.SubElement(case, "system-out").text = f"{state}: {message}" if message else state


def _fault(case: ElementTree.Element, state: str, message: str, more: str = "") -> None:
    kind = "error" if state in ERRORS else "failure"
    first = message.strip().partition("\n")[0]
    fault = ElementTree.SubElement(case, kind, message=cut(first, 300) or state, type=state)
    fault.text = f"{state}: {message}{more}"


def _run(root: ElementTree.Element, record: Mapping[str, Any]) -> None:
    """The suite of what no result says; none where there is nothing to say."""
    faults: list[tuple[str, str, str]] = []
    if not record["header"]["complete"]:
        done = pluralize(len(record["results"]), "result")
        message = f"the run was interrupted after {done}; --resume goes on"
        faults.append(("complete", "InternalError", message))
    if not records.tally(record).judged:
        faults.append(("something was judged", "NotRun", "nothing was judged: every case was declined"))
    missing = sum(result["state"] == "NotRun" for result in record["results"])
    if missing:
        faults.append(("every case was run", "NotRun", f"{pluralize(missing, 'case')} of the list not run"))
    faults += [
        (f"{each['case']} on {each['impl']}", each["state"], each["message"])
        for each in record["timings"]
        if each["state"] not in CONFORMING
    ]
    for number, fault in enumerate(record.get("faults", []), 1):
        faults.append((f"the run, fault {number}", "InternalError", fault))
    if not faults:
        return
    suite = _suite(root, "portable.run", record["header"])
    for name, state, message in faults:
        case = ElementTree.SubElement(
            suite, "testcase", name=clean(name), classname="portable.run", time=_seconds(0.0)
        )
        _fault(case, state, clean(message))


def _count(suite: ElementTree.Element) -> None:
    cases = suite.findall("testcase")
    suite.set("tests", str(len(cases)))
    for name, child in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(name, str(sum(case.find(child) is not None for case in cases)))
    suite.set("time", _seconds(sum(float(case.get("time", 0)) for case in cases)))


def _seconds(value: float) -> str:
    return f"{value:.4f}"

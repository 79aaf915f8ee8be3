"""The JUnit file holds every result once, as CI systems read it, and is red exactly when the record is."""

from __future__ import annotations

import re
from collections import Counter
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from portable.conformance.cases.case import op_of
from portable.conformance.records import record
from portable.conformance.report import junit, wording
from portable.conformance.states import STATES
from portable.conformance.text import number

from ..sample_record import sample_record

# The attributes and the order of children that the schema of Jenkins' JUnit reader allows.
ATTRIBUTES = {
    "testsuites": {"name", "time", "tests", "failures", "disabled", "errors"},
    "testsuite": {"name", "tests", "failures", "errors", "time", "disabled", "skipped", "timestamp",
                  "hostname", "id", "package"},
    "properties": set(),
    "property": {"name", "value"},
    "testcase": {"name", "assertions", "time", "classname", "status"},
    "skipped": {"message"},
    "error": {"message", "type"},
    "failure": {"message", "type"},
    "system-out": set(),
}  # fmt: skip
REQUIRED = {"testsuite": {"name", "tests"}, "testcase": {"name"}, "property": {"name", "value"}}
CHILDREN = {
    "testsuites": "(testsuite )*",
    "testsuite": "(properties )?(testcase )*(system-out )?(system-err )?",
    "properties": "(property )+",
    "testcase": "(skipped )?(error )*(failure )*(system-out )*(system-err )*",
}
texts = st.text(st.characters(codec=None), max_size=60)


def count(node, name) -> int:
    """An attribute that holds a number."""
    return int(node.attrib[name])


def parsed(entries):
    root = ElementTree.fromstring(junit.text(entries).encode("utf-8"))
    for node in root.iter():
        assert set(node.attrib) <= ATTRIBUTES[node.tag], node.tag
        assert set(node.attrib) >= REQUIRED.get(node.tag, set()), node.tag
        inner = "".join(f"{child.tag} " for child in node)
        assert re.fullmatch(CHILDREN.get(node.tag, ""), inner), (node.tag, inner)
    for suite in root:
        cases = suite.findall("testcase")
        assert count(suite, "tests") == len(cases)
        for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            assert count(suite, name) == len(suite.findall(f"testcase/{tag}"))
    for name in ("tests", "failures", "errors"):
        assert count(root, name) == sum(count(suite, name) for suite in root)
    return root


def with_state(state, message="", **changes):
    entries = sample_record(**changes)
    entries["results"][0] |= {"state": state, "message": message}
    return entries


def red(root) -> bool:
    return count(root, "failures") + count(root, "errors") > 0


def test_every_result_is_a_case_of_its_suite(tmp_path):
    entries = sample_record()
    path = tmp_path / "record.xml"
    junit.write(path, entries)
    assert [each.name for each in tmp_path.iterdir()] == ["record.xml"]
    root = ElementTree.parse(path).getroot()
    assert ElementTree.tostring(root) == ElementTree.tostring(parsed(entries))
    found = Counter((case.get("classname"), case.get("name")) for case in root.iter("testcase"))
    asked = Counter(
        (f"portable.{op_of(each['case'])}.{each['impl']}", each["case"]) for each in entries["results"]
    )
    assert found == asked
    assert not red(root)
    seconds = sum(each.get("seconds", 0) for each in entries["results"])
    assert float(root.attrib["time"]) == pytest.approx(seconds)


def test_properties_hold_the_header():
    suite = parsed(sample_record())[0]
    held = {each.get("name"): each.get("value") for each in suite.iter("property")}
    assert held["device"] == "NVIDIA H200"
    assert held["versions.torch"] == "2.11.0"
    assert held["fraction"] == "1/1"
    assert held["complete"] == "true"
    assert held["selection.ops"] == "matmul,softmax,softmax_backward"
    assert "selection.k" not in held
    assert suite.get("timestamp") == "2026-11-21T12:00:00"
    assert "timestamp" not in parsed(sample_record(date="yesterday"))[0].attrib


@pytest.mark.parametrize("state", STATES)
def test_each_state_has_its_element(state):
    entries = with_state(state, "why\nmore")
    case = parsed(entries).find("testsuite/testcase")
    assert case is not None
    tags = [child.tag for child in case]
    if state in ("NotSupported", "NotRun", "XFail", "Waived"):
        assert tags == ["skipped"]
        assert case[0].get("message") == f"{state}: why\nmore"
    elif state in ("Crash", "Timeout", "InternalError", "CompileError", "ResourceError"):
        assert tags == ["error"]
    elif state.startswith("Fail."):
        assert tags == ["failure"]
    elif state == "Pass":
        assert tags == []
    else:
        assert tags == ["system-out"]
    if tags and tags[0] in ("error", "failure"):
        assert case[0].get("type") == state
        assert case[0].get("message") == "why"
        assert wording.rerun(entries["results"][0], entries["header"]) in (case[0].text or "")


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("complete", (True, False))
@pytest.mark.parametrize("timed", ("Pass", "InternalError"))
def test_red_exactly_when_the_record_does_not_conform(state, complete, timed):
    entries = with_state(state, complete=complete)
    entries["timings"][0]["state"] = timed
    assert red(parsed(entries)) == (not record.conforming(entries))


def test_an_interrupted_run_with_no_results_is_no_success():
    entries = sample_record(complete=False)
    entries["results"] = []
    root = parsed(entries)
    assert red(root)
    error = root.find("testsuite[@name='portable.run']/testcase/error")
    assert error is not None and "interrupted" in error.attrib["message"]


@settings(max_examples=60, deadline=None)
@given(texts, st.sampled_from(["Fail.value", "NotSupported", "QualityWarning", "Crash"]))
def test_any_message_survives_or_is_replaced(message, state):
    entries = with_state(state, message)
    entries["results"][1]["impl"] = message
    case = parsed(entries).find("testsuite/testcase")
    assert case is not None
    expected = wording.clean(message)
    held = case[0].get("message") if case[0].tag == "skipped" else case[0].text
    assert held is not None
    assert (expected in held) or not expected
    assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]", held)


def test_a_failed_write_leaves_nothing_behind(tmp_path):
    with pytest.raises(FileNotFoundError):
        junit.write(tmp_path / "missing" / "record.xml", sample_record())
    (tmp_path / "folder.xml").mkdir()
    with pytest.raises(OSError):
        junit.write(tmp_path / "folder.xml", sample_record())
    assert [each.name for each in tmp_path.iterdir()] == ["folder.xml"]


def test_the_command_runs_the_case_on_such_a_device():
    result = {"case": "matmul/float32/M=1,N=1,K=1/normal/contiguous", "impl": "mfma"}
    header = sample_record()["header"]
    assert wording.rerun(result, header).endswith("contiguous --impl mfma --device cuda")
    header |= {"vendor": "rocm", "arch": "gfx942", "emulated": True}
    assert wording.rerun(result, header).endswith("--impl mfma --device rocm:gfx942 --emulate")
    header["command"] = "portable-conformance run --no-waivers"
    assert wording.rerun(result, header).endswith("--emulate --no-waivers")
    assert "'a b;$(c)'" in wording.rerun({"case": "a b;$(c)", "impl": "x"}, header)


@pytest.mark.parametrize(
    ("value", "text"),
    ((0, "0"), (0.97606, "0.976"), (1586.9, "1,587"), ("inf", "inf"), ("nan", "nan"), (None, "–"),
     (92.43, "92.4"), (1.5e-5, "1.50e-05"), (-0.4, "-0.400"), (2.5e8, "2.50e+08")),
)  # fmt: skip
def test_numbers(value, text):
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "text"), ((4.1247e12, "4.12 TB/s"), (999.9e9, "1.00 TB/s"), (5, "5.00 B/s"), (0, "0 B/s"))
)
def test_quantities(value, text):
    assert wording.quantity(value, "B/s") == text


def test_a_fault_of_the_run_is_red():
    """A record may have no bad result and yet not conform: a case of the list was not run, say."""
    made = sample_record()
    made["faults"] = ["softmax/x on triton was not run."]
    root = ElementTree.fromstring(junit.text(made))
    [case] = root.findall(".//testsuite[@name='portable.run']/testcase")
    error = case.find("error")
    assert error is not None and "was not run" in error.attrib["message"] and root.get("errors") == "1"

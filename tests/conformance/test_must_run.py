"""The checked-in lists are what the generators make; a record that lacks a case or has one twice is named."""

from __future__ import annotations

import pytest

from portable.conformance.cases.generate import cases
from portable.conformance.execute import behaviour, manifest
from portable.conformance.records.record import TIERS
from portable.spec import registry

OPS = sorted(registry.op_folders())


@pytest.mark.parametrize("tier", TIERS)
def test_the_list_is_what_the_generators_make(tier):
    same = (manifest.FOLDER / f"{tier}.txt").read_text(encoding="utf-8") == manifest.text(tier)
    assert same, f"must_run/{tier}.txt is not what the specs and generators make: {manifest.REMAKE}"


def test_the_lists_grow_with_the_tier_and_are_sorted():
    smoke, core, full = (manifest.read(tier) for tier in TIERS)
    assert set(smoke) < set(core) < set(full)
    for ids in (smoke, core, full):
        assert ids == sorted(set(ids)), "sorted, no id twice"
    assert {text.partition("/")[0] for text in core} == set(OPS)
    assert {case.id for case in behaviour.cases(OPS)} <= set(smoke)


def test_ops_select_their_lines():
    ids = manifest.expected(["softmax"], "smoke")
    assert set(ids) == {text for text in manifest.read("smoke") if text.startswith("softmax/")}
    assert len(ids) == len(cases(registry.spec("softmax"), "smoke")) + len(list(behaviour.cases(["softmax"])))


def record(ids, impls=("torch",), fraction=(1, 1), ops=None, k=None, wanted=None, complete=True):
    """As much of a record as the check reads."""
    return {
        "header": {
            "tier": "smoke",
            "fraction": list(fraction),
            "selection": {"ops": ops, "impls": wanted, "k": k},
            "complete": complete,
        },
        "results": [{"case": case, "impl": impl, "state": "Pass"} for impl in impls for case in ids],
    }


@pytest.fixture(scope="module")
def smoke():
    return manifest.read("smoke")


def test_a_whole_run_has_no_fault(smoke):
    assert manifest.faults(record(smoke, ("triton", "torch"))) == []


def test_a_missing_case_is_a_fault_of_each_implementation(smoke):
    gone = smoke[17]
    found = manifest.faults(record([case for case in smoke if case != gone], ("triton", "torch")))
    assert found == [f"{gone} on triton was not run.", f"{gone} on torch was not run."]


def test_a_case_that_is_there_twice(smoke):
    assert manifest.faults(record([*smoke, smoke[3]])) == [f"{smoke[3]} on torch was run 2 times."]


def test_a_case_that_no_list_has(smoke):
    odd = "softmax/float32/N=5,lead=9/normal/sliced"
    assert manifest.faults(record([*smoke, odd])) == [f"{odd} on torch is not in the list of tier smoke."]


def test_an_implementation_is_asked_for_its_own_ops_alone(smoke):
    own = [case for case in smoke if case.startswith("softmax/")]
    made = record(smoke)
    made["results"] += record(own, ["cpp"])["results"]
    assert manifest.faults(made) == []
    made["results"].pop()
    assert manifest.faults(made) == [f"{own[-1]} on cpp was not run."]


def test_selected_ops_are_asked_alone(smoke):
    own = [case for case in smoke if case.startswith("softmax/")]
    assert manifest.faults(record(own, ops=["softmax"])) == []
    (fault,) = manifest.faults(record(own[1:], ops=["softmax"]))
    assert fault == f"{own[0]} on torch was not run."
    assert "matmul: no implementation ran any of its 46 cases." in manifest.faults(record(own))
    assert manifest.faults(record(own, ops=["softmax"], wanted=["torch"])) == []


@pytest.mark.parametrize("narrowed", [{"fraction": (2, 3)}, {"k": "normal"}, {"complete": False}])
def test_a_narrowed_run_lacks_cases_by_intent(smoke, narrowed):
    assert manifest.faults(record(smoke[::3], **narrowed)) == []
    twice = manifest.faults(record([*smoke[::3], smoke[0]], **narrowed))
    assert twice == [f"{smoke[0]} on torch was run 2 times."]
    odd = "softmax/float32/N=5,lead=9/normal/sliced"
    assert len(manifest.faults(record([*smoke[::3], odd], **narrowed))) == 1


def test_an_op_from_elsewhere_is_not_asked(smoke):
    assert manifest.faults(record([*smoke, "toy_norm/float32/N=5,lead=9/normal/sliced"])) == []

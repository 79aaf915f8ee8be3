"""The manifest is what the generators make; a record that lacks a case or has one twice is named."""

from __future__ import annotations

import pytest

from portable.conformance.cases.generate import TIERS, cases
from portable.conformance.execute import behaviour, manifest
from portable.spec import registry

OPS = sorted(registry.op_folders())


def test_the_manifest_is_what_the_generators_make():
    same = manifest.FILE.read_text(encoding="utf-8") == manifest.text()
    assert same, f"manifest.json is not what the specs and generators make: {manifest.REMAKE}"


def test_the_tiers_grow_and_name_every_op():
    smoke, core, full = (manifest.read(tier) for tier in TIERS)
    assert set(smoke) == set(core) == set(full) == set(OPS)
    for op in OPS:
        assert smoke[op].count < core[op].count < full[op].count
        small, large = (manifest.expected(op, tier) for tier in ("smoke", "core"))
        assert set(small) < set(large) and small == sorted(set(small))


def test_behaviours_are_among_them():
    ids = manifest.expected("softmax", "smoke")
    assert len(ids) == len(cases(registry.spec("softmax"), "smoke")) + len(
        list(behaviour.cases(["softmax"], "smoke"))
    )
    assert manifest.Listed.of(reversed(ids)) == manifest.read("smoke")["softmax"]


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
    return [case for op in OPS for case in manifest.expected(op, "smoke")]


def test_a_whole_run_has_no_fault(smoke):
    assert manifest.faults(record(smoke, ("triton", "torch"))) == []


def test_a_missing_case_is_a_fault_of_each_implementation(smoke):
    gone = smoke[17]
    found = manifest.faults(record([case for case in smoke if case != gone], ("triton", "torch")))
    assert found == [f"{gone} on triton was not run.", f"{gone} on torch was not run."]


def test_a_case_that_is_there_twice(smoke):
    assert manifest.faults(record([*smoke, smoke[3]])) == [f"{smoke[3]} on torch was run 2 times."]


def test_a_case_that_the_manifest_lacks(smoke):
    odd = "softmax/float32/N=5,lead=9/normal/sliced"
    assert manifest.faults(record([*smoke, odd])) == [f"{odd} on torch is not in the manifest of tier smoke."]


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
    assert any(each.startswith("matmul: no implementation ran any") for each in manifest.faults(record(own)))
    assert manifest.faults(record(own, ops=["softmax"], wanted=["torch"])) == []


@pytest.mark.parametrize("narrowed", [{"fraction": (2, 3)}, {"k": "normal"}, {"complete": False}])
def test_a_narrowed_run_lacks_cases_by_intent(smoke, narrowed):
    assert manifest.faults(record(smoke[::3], **narrowed)) == []
    twice = manifest.faults(record([*smoke[::3], smoke[0]], **narrowed))
    assert twice == [f"{smoke[0]} on torch was run 2 times."]
    odd = "softmax/float32/N=5,lead=9/normal/sliced"
    assert len(manifest.faults(record([*smoke[::3], odd], **narrowed))) == 1


def test_an_implementation_that_declines_everything_is_a_fault_beyond_the_smoke_tier(smoke):
    ids = manifest.expected("softmax", "core")
    made = record(ids, ("triton", "torch"), ops=["softmax"])
    made["header"]["tier"] = "core"
    assert manifest.faults(made) == []
    for each in made["results"]:
        if each["impl"] == "triton":
            each["state"] = "NotSupported"
    (fault,) = manifest.faults(made)
    assert fault == f"softmax on triton: declined all {len(ids)} cases by rule; nothing was judged."
    small = record(manifest.expected("softmax", "smoke"), ops=["softmax"])
    for each in small["results"]:
        each["state"] = "NotSupported"
    assert manifest.faults(small) == []


def test_a_spec_that_makes_other_cases_is_named(smoke, monkeypatch):
    """A checkout whose manifest was not remade: what is missing has no names, and is seen all the same."""
    listed = manifest.read("smoke")
    monkeypatch.setattr(manifest, "read", lambda tier: {**listed, "softmax": manifest.Listed(99, "0" * 64)})
    own = [case for case in smoke if case.startswith("softmax/")]
    first, second = manifest.faults(record(own, ops=["softmax"]))
    assert f"softmax: its spec makes {len(own)} cases, not the 99 of tier smoke's manifest" in first
    assert second == f"softmax on torch: {len(own)} cases, not those of the manifest."


def test_an_op_from_elsewhere_is_not_asked(smoke):
    assert manifest.faults(record([*smoke, "toy_norm/float32/N=5,lead=9/normal/sliced"])) == []

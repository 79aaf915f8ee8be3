"""compare.py: what counts as agreement between two records."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from portable.conformance.cases.case import op_of
from portable.conformance.commands import cli
from portable.conformance.records import compare, merge, record
from portable.conformance.records.parity import ParityError
from portable.conformance.states import CONFORMING, STATES
from portable.errors import PortableError

from .sample_record import CASES, sample_record

EMULATED = {
    "device": "emulated gfx942", "vendor": "rocm", "arch": "gfx942", "emulated": True, "driver": None,
}  # fmt: skip
NORMAL, EXACT = CASES[0], CASES[1]


def other_side(**changes):
    made = sample_record(**(EMULATED | changes))
    return made | {"timings": [], "roof": None}


def change(made, case, impl="triton", **fields):
    """The record with fields of one result replaced; None takes one away."""
    made = copy.deepcopy(made)
    (entry,) = (each for each in made["results"] if (each["case"], each["impl"]) == (case, impl))
    entry.update(fields)
    for name in [name for name, value in fields.items() if value is None]:
        del entry[name]
    return made


def renamed(made, old, new, op="matmul"):
    """The record with one implementation of one op under another name."""
    made = copy.deepcopy(made)
    for each in made["results"]:
        if each["impl"] == old and op_of(each["case"]) == op:
            each["impl"] = new
    return made


def by_name(one, other):
    return {(each.op, each.name): each for each in compare.agreements(one, other)}


def test_equal_records_agree_and_a_record_agrees_with_itself():
    one = sample_record()
    for other in (one, other_side()):
        lines, agree = compare.report(one, other)
        assert agree
        assert (
            lines[-1] == "The two agree: 12 cases within both bounds, 12 of them bit-equal (required of 2)."
        )
        assert not any("Notice" in line for line in lines)
    found = by_name(one, other_side())[("matmul", "triton")]
    assert (found.cases, found.exact, found.equal, found.known, found.unsupported) == (3, 1, 3, 0, 0)


def test_a_rounding_difference_is_explained_by_the_two_bounds_and_an_exact_case_may_not_differ():
    one = sample_record()
    rounding = change(other_side(), NORMAL, digest="9" * 16)
    lines, agree = compare.report(one, rounding)
    assert agree and lines[-1].startswith("The two agree: 12 cases within both bounds, 11 of them bit-equal")
    wrong = change(other_side(), EXACT, digest="9" * 16)
    lines, agree = compare.report(one, wrong)
    assert not agree and f"    {EXACT}: must be bit-equal, and is not" in lines
    assert "disagree in 1 of 12 cases" in lines[-1]
    one_says = change(wrong, EXACT, exact=None)  # it is enough that one side demands it
    assert not compare.report(one, one_says)[1]


@pytest.mark.parametrize("sides", ["A", "B", "AB"])
def test_an_exact_case_without_a_digest_does_not_count_as_equal(sides):
    one, other = sample_record(), other_side()
    one = change(one, EXACT, digest=None) if "A" in sides else one
    other = change(other, EXACT, digest=None) if "B" in sides else other
    lines, agree = compare.report(one, other)
    assert not agree and f"    {EXACT}: must be bit-equal, and a digest is missing" in lines


@pytest.mark.parametrize("state", sorted(set(STATES) - CONFORMING))
def test_a_side_that_does_not_conform_is_unexplained(state):
    failing = change(other_side(), NORMAL, state=state)
    for pair, words in (
        ((sample_record(), failing), f"Pass against {state}"),
        ((failing, sample_record()), f"{state} against Pass"),
        ((failing, failing), f"{state} against {state}"),
        ((change(sample_record(), NORMAL, state="XFail"), failing), f"XFail against {state}"),
        ((change(sample_record(), NORMAL, state="NotSupported"), failing), f"NotSupported against {state}"),
    ):
        lines, agree = compare.report(*pair)
        assert not agree and f"    {NORMAL}: {words}" in lines


@pytest.mark.parametrize("state", ["XFail", "Waived"])
def test_a_known_failure_is_counted_apart(state):
    known = change(other_side(), EXACT, state=state, digest="9" * 16, worst=7.0)
    lines, agree = compare.report(sample_record(), known)
    assert agree and "The two agree: 11 cases within both bounds" in lines[-1]
    assert "1 known failure" in lines[-1]
    found = by_name(sample_record(), known)[("matmul", "triton")]
    assert (found.cases, found.exact, found.known) == (2, 0, 1)


@pytest.mark.parametrize("state", ["QualityWarning", "PerfWarning", "XPass"])
def test_the_other_conforming_states_conform(state):
    assert compare.report(sample_record(), change(other_side(), NORMAL, state=state, digest="9" * 16))[1]


def test_not_supported_on_one_side_is_a_count():
    lacking = change(other_side(), EXACT, state="NotSupported", digest=None, exact=None)
    lines, agree = compare.report(sample_record(), lacking)
    assert agree and "1 supported on one side only" in lines[-1]


@pytest.mark.parametrize("worst", [1.5, "nan", "inf", "much"])
def test_a_pass_outside_its_own_bound_explains_nothing(worst):
    lines, agree = compare.report(sample_record(), change(other_side(), NORMAL, worst=worst))
    assert not agree
    assert f"    {NORMAL}: passed outside its bound (|error| / bound: B {worst})" in lines


def test_behaviours_agree_where_both_conform():
    one, other = sample_record(), other_side()
    case = "softmax/behaviour/graph_capture"
    lines, agree = compare.report(change(one, case, state="Pass"), change(other, case, state="Pass"))
    assert agree and "Besides: 1 behaviour run on both." in lines[-1]
    assert "12 cases within both bounds, 12 of them bit-equal" in lines[-1]
    lines, agree = compare.report(
        change(one, case, state="Pass"), change(other, case, state="Fail.behaviour")
    )
    assert not agree and f"    {case}: Pass against Fail.behaviour" in lines


# Which implementations are joined -----------------------------------------------------------------


def test_native_kernels_of_two_vendors_are_joined():
    one, other = renamed(sample_record(), "torch", "mma"), renamed(other_side(), "torch", "mfma")
    found = by_name(one, other)
    assert set(found) == {
        ("matmul", "triton"), ("matmul", "mma against mfma"), ("softmax", "triton"), ("softmax", "torch"),
        ("softmax_backward", "triton"), ("softmax_backward", "torch"),
    }  # fmt: skip
    assert found["matmul", "mma against mfma"].cases == 3
    wrong = change(other, EXACT, "mfma", digest="9" * 16)
    lines, agree = compare.report(one, wrong)
    assert not agree and any("matmul" in line and "mma against mfma" in line for line in lines)


def test_each_lone_native_kernel_meets_each_of_the_other_side():
    one = renamed(sample_record(), "torch", "mma")
    one["results"] += [each | {"impl": "wgmma"} for each in one["results"] if each["impl"] == "mma"]
    joined = [name for op, name in by_name(one, renamed(other_side(), "torch", "mfma")) if op == "matmul"]
    assert joined == ["triton", "mma against mfma", "wgmma against mfma"]


def test_a_kernel_that_runs_nowhere_on_a_side_leaves_that_side_to_its_own():
    """gfx942 against gfx1100: both records name mfma and wmma, each can run one."""
    one, other = (
        renamed(sample_record(), "torch", "mfma"), renamed(other_side(arch="gfx1100"), "torch", "wmma")
    )  # fmt: skip
    for side, lacking in ((one, "wmma"), (other, "mfma")):
        side["results"] += [
            {"case": case, "impl": lacking, "state": "NotSupported", "message": "no such unit"}
            for case in CASES[:3]
        ]
    found = by_name(one, other)
    assert found["matmul", "mfma against wmma"].cases == 3
    assert found["matmul", "mfma"].unsupported == found["matmul", "wmma"].unsupported == 3
    assert ("matmul", "wmma against mfma") not in found


def test_triton_and_torch_meet_only_themselves():
    """Neither is native, and an op that the catalogue does not know has no languages."""
    one, other = renamed(sample_record(), "triton", "mma"), renamed(other_side(), "torch", "mfma")
    one["results"] = [each for each in one["results"] if each["impl"] != "torch"]
    found = {name for op, name in by_name(one, other) if op == "matmul"}
    assert found == {"mma against mfma"}
    lines, _ = compare.report(one, other)
    assert "only in B: matmul triton, 3 results" in lines

    def elsewhere(made):
        made["results"] += [
            {"case": "acme_norm/a", "impl": each, "state": "Pass"} for each in ("triton", "mma", "mfma")
        ]
        made["header"]["specs"]["acme_norm"] = "d" * 16
        made["inputs"]["acme_norm/a"] = "00"
        return made

    one, other = elsewhere(sample_record()), elsewhere(other_side())
    del one["results"][-1], other["results"][-2]
    assert [name for op, name in by_name(one, other) if op == "acme_norm"] == ["triton"]


# What one side lacks ------------------------------------------------------------------------------


def test_a_case_that_one_lacks_is_named_where_both_asked_for_the_same():
    other = other_side()
    other["results"] = [each for each in other["results"] if each["case"] != NORMAL]
    lines, agree = compare.report(sample_record(), other)
    assert agree and lines[-1].endswith("Besides: 2 only in A.")
    at = lines.index("    only in A: 1 case")
    assert lines[at + 1].strip() == NORMAL
    lines, _ = compare.report(other, sample_record())
    assert "    only in B: 1 case" in lines


def test_different_questions_are_said_and_their_cases_only_counted():
    other = other_side(tier="smoke")
    other["results"] = [each for each in other["results"] if each["case"] != NORMAL]
    lines, agree = compare.report(sample_record(), other)
    assert agree and not any(line.strip() == NORMAL for line in lines)
    assert (
        "Notice: the two runs selected different cases (tier: A core, B smoke); only those in common are "
        "compared" in lines
    )


def test_an_incomplete_record_is_compared_with_a_notice_and_what_it_did_not_reach_is_lacking():
    unfinished = change(other_side(complete=False), NORMAL, state="NotRun", digest=None)
    lines, agree = compare.report(sample_record(), unfinished)
    assert agree and "    only in A: 1 case" in lines
    assert any(line.startswith("Notice: B is incomplete") for line in lines)


def test_long_lists_are_cut_in_the_report_and_whole_in_the_data():
    one, other = sample_record(), other_side()
    for number in range(30):
        case = f"matmul/float32/M={number},N=1,K=1/normal/contiguous"
        for side, state in ((one, "Pass"), (other, "Fail.value")):
            side["results"].append({"case": case, "impl": "triton", "state": state})
    lines, _ = compare.report(one, other)
    assert "    and 10 more" in lines and "disagree in 30 of 42 cases" in lines[-1]
    (entry,) = (
        each for each in compare.data(one, other)["agreement"]
        if (each["op"], each["impl"]) == ("matmul", "triton")
    )  # fmt: skip
    assert len(entry["problems"]) == 30


# Refusals -----------------------------------------------------------------------------------------


def test_different_inputs_are_refused():
    other = other_side()
    other["inputs"][NORMAL] = "f" * 64
    with pytest.raises(compare.CompareError, match="normal/contiguous: the two runs had different inputs"):
        compare.report(sample_record(), other)


@pytest.mark.parametrize("side", [0, 1])
def test_inputs_that_a_record_does_not_tell_are_no_agreement(side):
    pair = [sample_record(), other_side()]
    del pair[side]["inputs"][NORMAL]
    lines, agree = compare.report(*pair)
    assert not agree and any("has no hash of its inputs" in line for line in lines)


def test_different_specs_are_refused_but_only_those_of_a_common_op():
    other = other_side()
    other["header"]["specs"]["matmul"] = "d" * 16
    with pytest.raises(compare.CompareError, match=r"matmul: .* different specs \(a{16} and d{16}\)"):
        compare.report(sample_record(), other)
    del other["header"]["specs"]["matmul"]
    with pytest.raises(compare.CompareError, match="matmul: B's header has no digest of its spec"):
        compare.report(sample_record(), other)
    other["results"] = [each for each in other["results"] if op_of(each["case"]) != "matmul"]
    assert compare.report(sample_record(), other)[1]


def test_another_schema_is_refused():
    with pytest.raises(compare.CompareError, match="schema 4 and 2"):
        compare.report(sample_record(), other_side() | {"schema": 2})


def test_nothing_in_common_is_refused():
    other = other_side()
    other["results"] = [each | {"impl": f"acme_{each['impl']}"} for each in other["results"]]
    with pytest.raises(compare.CompareError, match="no case that both ran"):
        compare.report(sample_record(), other)
    nothing = other_side()
    nothing["results"] = [
        {"case": each["case"], "impl": each["impl"], "state": "NotSupported"} for each in nothing["results"]
    ]
    with pytest.raises(compare.CompareError, match="no case that both ran"):
        compare.report(sample_record(), nothing)


def test_two_different_results_of_one_case_are_refused_and_the_same_twice_is_one():
    other = other_side()
    other["results"].append(dict(other["results"][0]))
    assert "12 cases" in compare.report(sample_record(), other)[0][-1]
    other["results"][-1]["state"] = "Fail.value"
    with pytest.raises(compare.CompareError, match="B holds two different results of matmul"):
        compare.report(sample_record(), other)


# Parity and data ----------------------------------------------------------------------------------


def test_parity_takes_part_in_the_verdict():
    one = sample_record()
    lines, agree = compare.report(one, one, 0.8)
    assert agree and lines[-1].startswith("Parity holds at 0.8")
    lines, agree = compare.report(one, one, 1.2)
    assert not agree and lines[-1].startswith("Parity does not hold at 1.2")
    with pytest.raises(ParityError, match="emulated gfx942"):
        compare.report(one, other_side(), 0.8)


def test_the_data_of_a_page():
    one = sample_record()
    found = compare.data(one, other_side())
    assert found["names"] == ["NVIDIA H200 (Triton 3.6.0)", "emulated gfx942 (Triton 3.6.0)"]
    assert found["agree"] and found["parity"] == [] and found["verdict"].startswith("The two agree")
    assert found["agreement"][0] == {
        "op": "matmul", "impl": "triton", "cases": 3, "exact": 1, "equal": 3, "behaviours": 0, "known": 0,
        "unsupported": 0, "only_a": [], "only_b": [], "problems": [],
    }  # fmt: skip
    twice = compare.data(one, one, 0.8)
    assert {"op", "case", "impl", "ratio", "low", "high", "verdict"} <= twice["parity"][0].keys()
    assert "Parity holds" in twice["verdict"]
    assert twice["names"][0] == f"NVIDIA H200 (Triton 3.6.0), commit {'0' * 12}, 2026-11-21T12:00:00+00:00"
    assert not compare.data(one, one, 1.2)["agree"]
    assert twice["target"] == 0.8 and twice["notices"] == [] and "target" not in found
    broken = sample_record()
    broken["timings"][0]["state"] = "InternalError"
    page = compare.data(one, broken, 0.8)
    assert not page["agree"] and "parity refused: matmul" in page["notices"][0]


STATE = st.sampled_from(["Pass", "QualityWarning", "NotSupported", "XFail", "Fail.value", "Crash"])
RESULT = st.tuples(STATE, st.sampled_from(["0" * 16, "1" * 16]))


@settings(deadline=None)
@given(st.lists(st.tuples(RESULT, RESULT), min_size=len(CASES), max_size=len(CASES)))
def test_the_verdict_is_symmetric(pairs):
    sides = sample_record(), other_side()
    for case, results in zip(CASES, pairs, strict=True):
        for side, (state, digest) in zip(sides, results, strict=True):
            for entry in side["results"]:
                if entry["case"] == case and entry["impl"] == "triton":
                    entry.update(state=state, digest=digest)
    left, right = sides
    there, back = compare.agreements(left, right), compare.agreements(right, left)
    for one, other in zip(there, back, strict=True):
        assert len(one.problems) == len(other.problems)
        fields = ("op", "cases", "equal", "exact", "known", "unsupported", "behaviours")
        assert all(getattr(one, name) == getattr(other, name) for name in fields)
    assert compare.report(left, right)[1] == compare.report(right, left)[1]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 10**30) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def spots(value, path=()):
    yield path
    children = enumerate(value) if isinstance(value, list) else ()
    for key, child in value.items() if isinstance(value, dict) else children:
        yield from spots(child, (*path, key))


SPOTS = [path for path in spots(sample_record()) if path]


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.sampled_from(SPOTS), JSON)
def test_whatever_a_valid_record_holds_is_compared_or_refused_in_words(path, value):
    made = sample_record()
    place = made
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    try:
        record.validate(made)
    except record.RecordError:
        return
    for action in (
        lambda: compare.report(made, sample_record(), 0.8),
        lambda: compare.data(sample_record(), made, 0.8),
        lambda: merge.merge([made]),
        lambda: merge.merge([made, sample_record()]),
    ):
        try:
            action()
        except PortableError as error:
            assert str(error)


def test_the_command(tmp_path, capsys):
    wrong = change(other_side(), EXACT, digest="9" * 16)
    for name, made in (("a", sample_record()), ("b", other_side()), ("c", wrong)):
        record.write(tmp_path / f"{name}.json", made)

    def exit_code(one, other, *more):
        return cli.main(["compare", str(tmp_path / f"{one}.json"), str(tmp_path / f"{other}.json"), *more])

    assert exit_code("a", "b") == 0 and "The two agree" in capsys.readouterr().out
    assert exit_code("a", "c") == 1 and "must be bit-equal" in capsys.readouterr().out
    assert exit_code("a", "a", "--parity", "0.8") == 0 and "Parity holds" in capsys.readouterr().out
    assert exit_code("a", "a", "--parity", "1.2") == 1
    assert exit_code("a", "b", "--parity", "0.8") == 2 and "has no timings" in capsys.readouterr().err
    assert exit_code("a", "none") == 2

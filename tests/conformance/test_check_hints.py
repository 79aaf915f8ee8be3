"""What `check` says beside its verdict: equal crashes once, the types to claim, one rounding too many."""

from __future__ import annotations

import re

import pytest
import torch

from portable.conformance import text
from portable.conformance.cases.case import parse
from portable.conformance.checker.hints import FEWEST, float64_alone
from portable.conformance.execute.result import Result
from portable.conformance.judge import double_rounding, reference
from portable.spec import registry

from .check_norm import NORM, judged, norm, zeros

HALF, SINGLE = torch.bfloat16, torch.float16
ROWS = ("bfloat16", "float16", "float32", "float64", "bfloat16,W=float32")


def in_types(*rows: str, sizes=(30, 31, 33)) -> list[str]:
    return [NORM.replace("float32", row).replace("N=33", f"N={size}") for row in rows for size in sizes]


# Equal crashes ------------------------------------------------------------------------------------


def test_equal_crashes_are_one_whatever_dtype_shape_and_address_they_name():
    """They were a paragraph for each dtype, and one for each address with other digits."""
    count = 0

    def raises(x, weight=None):
        nonlocal count
        count += 1
        place = (0xABCDEF, 0x1234, 0xA0B1C2)[count % 3]
        raise RuntimeError(f"no kernel for {x.dtype} of {tuple(x.shape)} at {place:#x}")

    said = str(judged(raises, *in_types("bfloat16", "float16", "float32")))
    crashes = re.findall("^Crash.*", said, re.MULTILINE)
    first = NORM.replace("float32", "bfloat16").replace("N=33", "N=30")
    assert crashes == ["Crash 9", f"Crash in 9 cases, the first {first} on raises"]
    assert said.count("no kernel for") == 1 and said.count("again: ") == 1


def test_assertions_without_a_word_are_told_apart_by_their_lines():
    def asserts(x, weight=None):
        if x.shape[-1] == 30:
            assert x is None
        assert weight is None

    said = str(judged(asserts, *in_types("float32")))
    assert re.findall("^Crash(?: in|:).*", said, re.MULTILINE) == [
        f"Crash: {in_types('float32')[0]} on asserts",
        f"Crash in 2 cases, the first {in_types('float32')[1]} on asserts",
    ]


def test_a_crash_in_a_behaviour_is_one_of_those_in_the_cases():
    """It had no line of the function's file, and was another kind of crash for that."""

    def raises(x, weight=None):
        raise ValueError("no")

    report = judged(raises, *in_types("float32"), "rms_norm/behaviour/fresh")
    assert re.search(r"^Crash in 4 cases", str(report), re.MULTILINE), str(report)


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ("\"norm\" not implemented for 'Half'", "\"norm\" not implemented for 'Double'", True),
        ("no cast from bf16 to i64", "no cast from fp32 to i8", True),
        ("out of bounds at 0x7f3e2a", "out of bounds at 0x10", True),
        ("KeyError: floats", "KeyError: integers", False),
        ("no such tile", "no such grid", False),
    ],
)
def test_what_sets_two_exceptions_apart(one, other, equal):
    assert (text.kind("f", "Crash", one) == text.kind("f", "Crash", other)) is equal


def test_dtypes_set_wrong_results_apart():
    assert text.kind("f", "Fail.dtype", "got float32") != text.kind("f", "Fail.dtype", "got bfloat16")


# The types to claim -------------------------------------------------------------------------------


def test_a_function_in_float32_is_told_to_claim_the_other_types():
    report = judged(norm, *in_types(*ROWS))
    said = str(report)
    assert "float64 alone fails (3 of its 3 cases; all 12 of the other types pass)" in said
    found = re.search(r"with types=(\[.*\])\.", said)
    assert found is not None
    again = judged(norm, *in_types(*ROWS), types=eval(found[1]))
    assert again.conforms and again.judged == 12


def test_another_type_that_fails_or_was_not_asked_is_no_reason_to_claim_less():
    assert "float64 alone" not in str(judged(zeros, *in_types(*ROWS)))
    assert "float64 alone" not in str(judged(norm, *in_types("float64")))

    def behaves_badly(state):
        spec = registry.spec("rms_norm")
        results = [Result(parse(each, spec), "f", "Fail.value") for each in in_types("float64")]
        results += [Result(parse(each, spec), "f", "Pass") for each in in_types("float32")]
        return [*results, Result("a behaviour", "f", state)]

    assert FEWEST == 3 and float64_alone(behaves_badly("Pass"))
    assert not float64_alone(behaves_badly("Fail.behaviour"))


# Rounded twice ------------------------------------------------------------------------------------


def stepwise(x, weight, step=None, last=None, factor=1.0):
    """A norm in float32 that rounds the row before its weight to `step`, or its result to `last`."""
    wide = x.float()
    y = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * factor
    y = y if step is None else y.to(step).float()
    y = y * weight.float()
    return (y if last is None else y.to(last).float()).to(x.dtype)


def explained(types: str, **how) -> tuple[str, str]:
    """The state of such a norm, and what is said of it."""
    spec = registry.spec("rms_norm")
    made = reference.materialize(parse(NORM.replace("float32", types), spec), spec)
    y = stepwise(made.inputs["x"].tensor, made.inputs["weight"].tensor, **how)
    return made.expected["y"].judge(y, True).state, double_rounding.explain(made, {"y": y})


@pytest.mark.parametrize(
    ("types", "how", "said"),
    [
        ("float32", {"last": HALF}, "rounding first to bfloat16 and then to float32 gives"),
        ("float32", {"last": SINGLE}, "rounding first to float16 and then to float32 gives"),
        ("bfloat16", {"last": SINGLE}, "rounding first to float16 and then to bfloat16 gives"),
        ("float16", {"last": HALF}, "rounding first to bfloat16 and then to float16 gives"),
        ("bfloat16", {"step": HALF}, "(after mul, operation 5 of the reference's 7) to bfloat16 and the"),
        ("float16", {"step": SINGLE}, "(after mul, operation 5 of the reference's 7) to float16 and the"),
        ("float32", {"step": HALF}, "to bfloat16 and the result to float32 gives"),
    ],
)  # fmt: skip
def test_a_rounding_too_many_is_named(types, how, said):
    state, sentence = explained(types, **how)
    assert state == "Fail.value"
    assert re.match(r"rounded twice: the \d+ wrong elements of y are what ", sentence) and said in sentence


@pytest.mark.parametrize(
    ("types", "how", "state"),
    [
        ("float32", {}, "Pass"),
        ("bfloat16", {}, "Pass"),
        ("float32", {"factor": 1.001}, "Fail.value"),
        ("bfloat16", {"factor": 1.0005}, "Fail.value"),
        ("float32", {"factor": 1.01, "step": HALF}, "Fail.value"),
        ("bfloat16", {"factor": 1.01, "last": SINGLE}, "Fail.value"),
        ("float64", {}, "Fail.value"),  # float32 throughout is more than one rounding
    ],
)
def test_another_error_is_not_called_a_rounding(types, how, state):
    assert explained(types, **how) == (state, "")


def test_one_element_that_the_rounding_does_not_give_is_enough_to_say_nothing():
    spec = registry.spec("rms_norm")
    made = reference.materialize(parse(NORM, spec), spec)
    y = stepwise(made.inputs["x"].tensor, made.inputs["weight"].tensor, last=HALF)
    assert double_rounding.explain(made, {"y": y})
    y[0, 0, 7] *= 1.02
    assert not double_rounding.explain(made, {"y": y})


def test_a_rounding_is_said_once_for_each_kind_in_the_report():
    report = judged(stepwise_to_bfloat16, *in_types("float32"))
    assert str(report).count("  rounded twice: ") == 1 and len(report.notes) == 1
    assert next(iter(report.notes)) == in_types("float32")[0]


def stepwise_to_bfloat16(x, weight):
    return stepwise(x, weight, last=HALF)

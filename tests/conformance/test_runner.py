"""The whole chain on an op with known faults: every mutant is caught in the state that names its fault."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

import portable
from portable.conformance.cases.case import Case, make_shape, parse
from portable.conformance.cases.generate import cases
from portable.conformance.execute import behaviour, runner
from portable.conformance.execute.result import Result
from portable.conformance.judge import reference

from . import toy_norm

CPU = torch.device("cpu")
VALUES = ("normal", "large_range", "small_integers")
LAYOUTS = ("contiguous", "padded", "offset")


@pytest.fixture(scope="module")
def found(norm):
    """The results of every implementation, by its name."""
    chosen = [case for case in cases(norm, "core") if case.values in VALUES and case.layout in LAYOUTS]
    results = [each for case in chosen for each in runner.answer(case, toy_norm.EXPECTED, CPU)]
    return {name: [each for each in results if each.impl == name] for name in toy_norm.EXPECTED}


@pytest.mark.slow
def test_the_kill_table(found, capsys):
    for name, expected in toy_norm.EXPECTED.items():
        states = Counter(each.state for each in found[name])
        with capsys.disabled():
            print(f"\n  {name:<22} {dict(states)}", end="")
        failures = [each.message for each in found[name] if not each.conforms]
        if expected in ("Pass", "NotSupported"):
            assert not failures, failures[:1]
            assert states["Pass"], name
        else:
            assert states[expected], (name, states)
            assert failures


@pytest.mark.slow
def test_what_is_not_supported_says_the_rule(found):
    rules = {each.message for each in found["narrow_only"] if each.state == "NotSupported"}
    assert rules == {"takes T of bfloat16; this call has float32"}


@pytest.mark.slow
def test_a_failure_names_its_element_and_their_pattern(found):
    failure = next(each for each in found["short_mask"] if not each.conforms)
    for word in ("first wrong element [", "got", "expected", "bound", "ULP", "wrong: "):
        assert word in failure.message


@pytest.mark.parametrize("impl", toy_norm.RIGHT)
def test_right_kernels_pass_on_many_seeds(norm, impl):
    for rows in range(1, 26):
        for types in norm.types:
            shape = make_shape(norm, {"N": 700 + rows}, (rows,))
            case = Case("toy_norm", tuple(types.items()), shape)
            result = runner.run_case(reference.materialize(case, norm), impl, CPU)
            assert result.state == "Pass", result.message


def test_out_is_judged_between_fences(norm):
    case = next(case for case in cases(norm) if case.mode == "out")
    assert runner.run_case(reference.materialize(case, norm), "plain", CPU).state == "Pass"


def test_a_write_beside_out_is_seen(norm, monkeypatch):
    case = next(case for case in cases(norm) if case.mode == "out")
    real = portable.toy_norm

    def careless(*args, out, **params):
        result = real(*args, out=out, **params)
        out.as_strided((out.numel() + 1,), (1,))[-1] = 0
        return result

    monkeypatch.setattr(portable, "toy_norm", careless)
    result = runner.run_case(reference.materialize(case, norm), "plain", CPU)
    assert result.state == "Fail.bounds_write", result.message


def test_a_broken_oracle_is_the_suites_fault(norm, monkeypatch):
    def broken(case, spec):
        raise RuntimeError("no such function")

    monkeypatch.setattr(reference, "materialize", broken)
    [result] = runner.answer(cases(norm, "smoke")[0], ["plain"], CPU)
    assert result.state == "InternalError" and "no such function" in result.message


def test_an_entry_of_a_record_is_the_result_again(norm):
    for impl in ("plain", "zeros"):
        [result] = runner.answer(cases(norm, "smoke")[0], [impl], CPU)
        again = Result.of(result.case, result.entry())
        assert again.entry() == result.entry() and again.state == result.state
        assert (again.digest, again.message) == (result.digest, result.message) and result.digest


def test_an_id_brings_back_the_same_bytes(norm):
    for case in cases(norm, "smoke"):
        again = parse(case.id, norm)
        assert again == case
        assert reference.materialize(again, norm).sha256 == reference.materialize(case, norm).sha256


@pytest.mark.slow
def test_fuzzing_finds_and_shrinks(norm):
    from portable.conformance.execute.fuzz import fuzz_ops

    failures, count = fuzz_ops(["toy_norm"], CPU, 2.0, ["plain", "zeros"])
    assert [result.impl for result in failures] == ["zeros"], failures[0].message
    assert count > 50
    assert dict(failures[0].case.shape.axes)["N"] <= 2


def patched(monkeypatch, function):
    monkeypatch.setattr(portable, "toy_norm", function)


@pytest.mark.parametrize(
    "error, state",
    [
        (SystemExit(0), "Crash"),
        (RuntimeError("CUDA error: out of memory"), "ResourceError"),
        (RuntimeError("HIP out of memory. Tried to allocate 2 GiB"), "ResourceError"),
        (MemoryError(), "ResourceError"),
        (RuntimeError("an illegal memory access was encountered"), "Crash"),
        (RecursionError("too deep"), "Crash"),
    ],
)
def test_whatever_a_kernel_raises_is_its_result(norm, monkeypatch, error, state):
    """sys.exit(0) too: a run must not end as if it conformed."""

    def raises(*args, **params):
        raise error

    patched(monkeypatch, raises)
    names = [cases(norm, "smoke")[0], behaviour.Behaviour("toy_norm", "rows_alone")]
    for case in names:
        [result] = runner.answer(case, ["plain"], CPU)
        assert result.state == state and result.message


def test_a_config_that_is_unknown_costs_no_verdict(norm, monkeypatch):
    def broken(*args, **params):
        raise MemoryError

    monkeypatch.setattr(portable, "explain", broken)
    case = next(case for case in cases(norm) if case.values == "normal" and case.mode == "")
    assert runner.run_case(reference.materialize(case, norm), "zeros", CPU).state == "Fail.value"

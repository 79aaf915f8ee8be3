"""The whole chain on an op with known faults: every mutant is caught in the state that names its fault."""

from __future__ import annotations

import pytest
import torch

import portable
from portable.conformance import oracle, runner
from portable.conformance.cases import Case, cases, make_shape, parse

from . import toy_norm

CPU = torch.device("cpu")
VALUES = ("normal", "large_range", "small_integers")
LAYOUTS = ("contiguous", "padded", "offset")


@pytest.fixture(scope="module")
def groups(norm):
    chosen = [case for case in cases(norm, "core") if case.values in VALUES and case.layout in LAYOUTS]
    found, hashes = runner.run(chosen, CPU)
    assert set(hashes) == {case.id for case in chosen}
    return {group.impl: group for group in found}


def test_the_kill_table(groups, capsys):
    for name, expected in toy_norm.EXPECTED.items():
        states = groups[name].states
        with capsys.disabled():
            print(f"\n  {name:<22} {dict(states)}", end="")
        if expected in ("Pass", "NotSupported"):
            assert groups[name].conforms, [r.message for r in groups[name].results if not r.conforms][:1]
            assert states["Pass"], name
        else:
            assert states[expected], (name, states)
            assert not groups[name].conforms


def test_what_is_not_supported_says_the_rule(groups):
    rules = groups["narrow_only"].record()["not_supported"]
    assert list(rules) == ["takes T of bfloat16; this call has float32"]


def test_a_failure_names_its_element(groups):
    problem = groups["short_mask"].record()["problems"][0]
    for word in ("first wrong element [", "got", "expected", "bound", "ULP"):
        assert word in problem["message"]


@pytest.mark.parametrize("impl", toy_norm.RIGHT)
def test_right_kernels_pass_on_many_seeds(norm, impl):
    for rows in range(1, 26):
        for types in norm.types:
            shape = make_shape(norm, {"N": 700 + rows}, (rows,))
            case = Case("toy_norm", tuple(types.items()), shape)
            result = runner.run_case(oracle.ask(case, norm), impl, CPU)
            assert result.state == "Pass", result.message


def test_out_is_judged_between_fences(norm):
    case = next(case for case in cases(norm) if case.mode == "out")
    assert runner.run_case(oracle.ask(case, norm), "plain", CPU).state == "Pass"


def test_a_write_beside_out_is_seen(norm, monkeypatch):
    case = next(case for case in cases(norm) if case.mode == "out")
    real = portable.toy_norm

    def careless(*args, out, **params):
        result = real(*args, out=out, **params)
        out.as_strided((out.numel() + 1,), (1,))[-1] = 0
        return result

    monkeypatch.setattr(portable, "toy_norm", careless)
    result = runner.run_case(oracle.ask(case, norm), "plain", CPU)
    assert result.state == "Fail.bounds_write", result.message


def test_poisoned_memory():
    before = torch.are_deterministic_algorithms_enabled()
    with runner.poisoned_memory():
        for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
            assert torch.empty(100, dtype=dtype).isnan().all()
            assert torch.empty_like(torch.zeros(3, dtype=dtype)).isnan().all()
    assert torch.are_deterministic_algorithms_enabled() == before


def test_a_broken_oracle_is_the_suites_fault(norm, monkeypatch):
    def broken(case, spec):
        raise RuntimeError("no such function")

    monkeypatch.setattr(oracle, "ask", broken)
    found, _ = runner.run(cases(norm, "smoke")[:1], CPU, ["plain"])
    assert found[0].results[0].state == "InternalError"
    assert "no such function" in found[0].results[0].message


def test_an_id_brings_back_the_same_bytes(norm):
    for case in cases(norm, "smoke"):
        again = parse(case.id, norm)
        assert again == case
        assert oracle.ask(again, norm).sha256 == oracle.ask(case, norm).sha256


def test_exploring_finds_and_shrinks(norm):
    from portable.conformance.explore import explore

    failures, count = explore(["toy_norm"], CPU, 2.0, ["plain", "zeros"])
    assert [result.impl for result in failures] == ["zeros"], failures[0].message
    assert count > 50
    assert dict(failures[0].case.shape.axes)["N"] <= 2

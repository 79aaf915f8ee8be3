"""`reduce`: the smallest case that fails in the same way, by which steps, within which limits."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from portable.conformance.cases import simpler
from portable.conformance.cases.case import parse
from portable.conformance.cases.generate import cases
from portable.conformance.commands import cli
from portable.conformance.commands import reduce as command
from portable.conformance.execute import reduce as reducing
from portable.conformance.execute.reduce import Limits, failure, reduce
from portable.conformance.execute.result import Result
from portable.spec import registry

from .mutants import catalogue, hunt

pytestmark = pytest.mark.usefixtures("device_of_command")

ENOUGH = Limits(400, 120.0)


def reduced(op, case, fails, limits=ENOUGH, state="Fail.value"):
    """The reduction of a case on what fails where `fails` says so, with the ids of the steps that held."""
    spec, steps = registry.spec(op), []

    def run(each):
        return Result(each, "f", state if fails(each) else "Pass", "y: wrong")

    def step(way, result):
        steps.append(result.case.id)

    return reduce(parse(case, spec), spec, run, limits, step), steps


def axes(case):
    return dict(case.shape.axes)


# What it finds ------------------------------------------------------------------------------------

NORM = "rms_norm/bfloat16,W=float32/N=1000,lead=3x5,eps=0.1/cancellation/padded/out"


@pytest.mark.parametrize(
    ("fails", "smallest"),
    [
        (lambda case: True, "rms_norm/float32/N=1,no=weight/small_integers/contiguous"),
        (lambda case: case.layout == "padded", "rms_norm/float32/N=1,no=weight/small_integers/padded"),
        (lambda case: axes(case)["N"] > 32, "rms_norm/float32/N=33,no=weight/small_integers/contiguous"),
        (lambda case: axes(case)["N"] > 76, "rms_norm/float32/N=77,no=weight/small_integers/contiguous"),
        (lambda case: axes(case)["N"] % 8 == 0, "rms_norm/float32/N=8,no=weight/small_integers/contiguous"),
        (lambda case: case.params.get("eps") == 0.1,
         "rms_norm/float32/N=1,eps=0.1,no=weight/small_integers/contiguous"),
        (lambda case: "weight" not in case.shape.absent and case.dtype("W") != case.dtype("T"),
         "rms_norm/bfloat16,W=float32/N=1/small_integers/contiguous"),
        (lambda case: case.mode == "out" and case.values == "cancellation",
         "rms_norm/float32/N=1,no=weight/cancellation/contiguous/out"),
        (lambda case: len(dict(case.shape.leading)["x"]) == 2,
         "rms_norm/float32/N=1,lead=1x1,no=weight/small_integers/contiguous"),
        (lambda case: dict(case.shape.leading)["x"][-1:] > (2,),
         "rms_norm/float32/N=1,lead=3,no=weight/small_integers/contiguous"),
    ],
)  # fmt: skip
def test_the_smallest_case_has_what_it_takes_and_nothing_else(fails, smallest):
    found, steps = reduced("rms_norm", NORM, fails)
    assert found.case.id == smallest and steps[-1] == smallest and not found.stopped
    assert found.result.state == "Fail.value" and found.runs < 120


def test_the_rules_of_the_spec_hold_in_every_form():
    """Of an attention with windows and groups of heads: forms that the op refuses say nothing."""
    spec = registry.spec("attention")
    seen = []
    for case in cases(spec, "smoke")[:12]:
        for way in simpler.ways(spec).values():
            seen += simpler.forms(way, case, spec)
    assert len(seen) > 50
    assert all(simpler._is_legal(form, spec) and parse(form.id, spec) == form for form in seen)


@pytest.mark.parametrize("op", ["matmul", "softmax", "attention_varlen", "quantize_fp8", "int4_mm"])
def test_no_way_leads_in_a_circle(op):
    """Each step held makes the case simpler, so that what always fails comes to an end by itself."""
    spec = registry.spec(op)
    for case in cases(spec, "smoke")[::9]:
        found, steps = reduced(op, case.id, lambda each: True, Limits(2000, 60.0))
        assert not found.stopped and len(steps) == len(set(steps)) < 40


def test_axes_that_the_rules_tie_shrink_together():
    """H is a multiple of G: of 8 heads each none shrinks alone where a kernel fails with as many of both."""
    case = "attention/float32/H=8,G=8,M=33,N=33,D=64,E=64,lead=2/normal/contiguous"
    found, _ = reduced("attention", case, lambda each: axes(each)["H"] == axes(each)["G"] != 1)
    assert axes(found.case)["H"] == axes(found.case)["G"] == 2 and not found.stopped


def test_smaller_sizes_end_next_to_the_size_itself():
    """So that trying again closes in on the smallest."""
    assert simpler.smaller_sizes(1) == [] and simpler.smaller_sizes(2) == [1]
    assert simpler.smaller_sizes(18) == [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17]
    assert simpler.smaller_sizes(100)[-7:] == [32, 33, 64, 65, 66, 82, 99]


def test_a_gradient_is_not_reduced_to_rows_of_one_element():
    """Such a gradient is all cancellation, and its bound does not know it: a right kernel fails there."""
    case = "rms_norm/float32/N=33,lead=3x5/normal/contiguous/grad"
    found, _ = reduced("rms_norm", case, lambda each: each.mode == "grad")
    assert found.case.id == "rms_norm/float32/N=2,no=weight/small_integers/contiguous/grad"


# The same way -------------------------------------------------------------------------------------


def crash(message, state="Crash"):
    return failure(Result(None, "f", state, message))


def test_what_two_failures_of_one_way_share():
    fault = "KernelFault: norm_rows: {}: {} of x\n  at norm.py:12, lane 3"
    assert crash(fault.format("out-of-bounds", "4 bytes")) == crash(fault.format("out-of-bounds", "8 bytes"))
    assert crash(fault.format("out-of-bounds", "")) != crash(fault.format("uninitialised", ""))
    assert crash("ValueError: no 33") == crash("ValueError: no 65") != crash("TypeError: no 33")
    assert crash("the worker was killed by SIGSEGV\nlast words") == crash("the worker was killed by SIGSEGV")
    assert crash("y: wrong", "Fail.value") == crash("dx: wrong", "Fail.value") != crash("", "Fail.nonfinite")


def test_another_failure_on_the_way_does_not_hold():
    spec = registry.spec("rms_norm")

    def run(case):
        if axes(case)["N"] < 64:
            return Result(case, "f", "Crash", f"ValueError: no {axes(case)['N']}")
        return Result(case, "f", "Crash", f"KernelFault: rows: out-of-bounds: {axes(case)['N']}")

    found = reduce(parse(NORM, spec), spec, run, ENOUGH)
    assert axes(found.case) == {"N": 64} and failure(found.result) == "Crash, KernelFault out-of-bounds"


def beside(right_fails, limits=ENOUGH):
    """The reduction of a kernel that always fails, beside another that fails in some cases."""
    spec, asked = registry.spec("rms_norm"), []

    def right(case):
        asked.append(case)
        return Result(case, "torch", "Fail.value" if right_fails(case) else "Pass")

    def run(case):
        return Result(case, "f", "Fail.value", "y: wrong")

    return reduce(parse(NORM, spec), spec, run, limits, right=right), asked


def test_a_case_in_which_the_right_one_fails_too_is_no_step():
    """An index_add with a planted error came out as a sum of 231 equal rows, where torch's fails as well."""
    found, asked = beside(lambda case: axes(case)["N"] < 40)
    assert axes(found.case) == {"N": 40} and not found.stopped
    assert len(asked) < found.runs


@pytest.mark.parametrize(
    ("case", "state"),
    [
        ("rms_norm/bfloat16/N=33,lead=3x5/normal/transposed", "Pass"),
        ("rms_norm/float32/N=33,lead=3x5/normal/contiguous/grad", "Pass"),
        ("rms_norm/float32/N=33,lead=3x5/normal/contiguous/out", "NotSupported"),
        ("softmax/bfloat16/N=40,lead=3x5,dim=0/small_integers/sliced", "NotSupported"),
    ],
)
def test_torch_on_the_cpu_is_the_right_one(case, state):
    spec = registry.spec(case.partition("/")[0])
    run = reducing.torch_on_cpu(spec)
    assert run is not None and run(parse(case, spec)).state == state


def test_a_right_one_that_fails_at_once_is_no_guide():
    found, asked = beside(lambda case: True)
    assert axes(found.case) == {"N": 1} and len(asked) == 1


def test_the_runs_of_the_right_one_count():
    found, asked = beside(lambda case: False, Limits(5, 60.0))
    assert found.runs == 5 and len(asked) in (2, 3)


# Limits -------------------------------------------------------------------------------------------


def test_a_case_that_conforms_is_run_once():
    found, steps = reduced("rms_norm", NORM, lambda case: False)
    assert found.result.conforms and found.runs == 1 and not steps


def test_runs_are_counted_and_the_search_says_that_it_was_stopped():
    found, steps = reduced("rms_norm", NORM, lambda case: True, Limits(4, 60.0))
    assert (found.runs, found.stopped) == (4, "4 runs") and steps
    assert found.case.id == steps[-1]


def test_no_run_begins_after_the_budget(monkeypatch):
    clock = iter([0.0, *range(1, 100)])
    monkeypatch.setattr(reducing.time, "monotonic", lambda: float(next(clock)))
    found, _ = reduced("rms_norm", NORM, lambda case: True, Limits(100, 2.5))
    assert (found.runs, found.stopped) == (3, "2.5 s")


def test_it_is_deterministic_and_runs_no_case_twice():
    ran = [], []
    for each in ran:
        reduced("rms_norm", NORM, lambda case, seen=each: (seen.append(case.id), axes(case)["N"] > 5)[1])
    assert ran[0] == ran[1] and len(set(ran[0])) == len(ran[0])


def test_a_lost_device_ends_the_search():
    spec = registry.spec("rms_norm")
    left = iter(range(3))

    def run(case):
        if next(left, None) is None:
            return Result(case, "f", "NotRun", "the device was lost")
        return Result(case, "f", "Fail.value", "y: wrong")

    found = reduce(parse(NORM, spec), spec, run, ENOUGH)
    assert found.stopped == "the device was lost" and found.result.state == "Fail.value"


# Planted wrong kernels ----------------------------------------------------------------------------

PLANTED = [
    ("rms_norm: divided by the padded length", "rms_norm/float32/N=3,no=weight/small_integers/contiguous"),
    ("matmul: NaN swallowed", "matmul/float32/M=1,N=1,K=1/nonfinite/contiguous"),
    ("gated_linear: columns beyond a multiple of 64 are zero",
     "gated_linear/float32/N=65,K=1,activation=silu/small_integers/contiguous"),
    ("layer_norm: bias ignored", "layer_norm/float32/N=1,no=weight/small_integers/contiguous"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("name", "smallest"), PLANTED)
def test_a_planted_wrong_kernel_is_reduced(name, smallest):
    mutant = next(each for each in catalogue.every() if each.id == name)
    spec = registry.spec(mutant.op)
    with hunt.in_place(mutant):
        kill = hunt.hunt(mutant)
    with hunt.in_place(mutant):
        found = reduce(parse(kill.case, spec), spec, lambda case: hunt.judge(mutant, case), ENOUGH)
    assert found.case.id == smallest and not found.stopped
    right = catalogue.Mutant(mutant.op, "none", "torch", hunt.right(mutant.op))
    with hunt.in_place(right):
        assert hunt.judge(right, found.case).conforms, "the right one passes it"


EMULATED = [
    ("softmax: cpp on gfx942: reduction over 32 lanes of a wave of 64",
     "softmax/float32/N=1000,lead=7/large_range/sliced",
     "softmax/float32/N=513/large_range/contiguous", "Fail.nonfinite"),
    ("swiglu: cpp on gfx942: one column past the row read",
     "swiglu/bfloat16/N=129,lead=7/cancellation/contiguous",
     "swiglu/float32/N=1/small_integers/contiguous", "Crash, KernelFault out-of-bounds"),
    ("softmax: triton on gfx942: masked lanes hold 0, not -inf",
     "softmax/bfloat16/N=33,lead=3x5/normal/transposed",
     "softmax/float32/N=1/small_integers/contiguous", "Fail.value"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("name", "case", "smallest", "how"), EMULATED)
def test_a_planted_wrong_kernel_is_reduced_on_an_emulated_gpu(name, case, smallest, how):
    mutant = next(each for each in catalogue.every() if each.id == name)
    spec = registry.spec(mutant.op)
    with hunt.in_place(mutant):
        found = reduce(parse(case, spec), spec, lambda each: hunt.judge(mutant, each), ENOUGH)
    assert (found.case.id, failure(found.result), found.stopped) == (smallest, how, "")


# The command --------------------------------------------------------------------------------------

CASE = "toy_norm/bfloat16/N=1000,lead=24/cancellation/padded"
REDUCE = ["reduce", CASE, "--device", "cpu", "-j", "0"]


def test_the_command_prints_the_steps_and_ends_with_the_rerun(norm, capsys):
    assert cli.main([*REDUCE, "--impl", "unwritten_tail"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{CASE} on unwritten_tail, CPU") and lines[0].endswith(": Fail.nonfinite")
    steps = [line for line in lines if re.match(r"  [\w ]+: toy_norm/", line)]
    smallest = "toy_norm/float32/N=1/small_integers/contiguous"
    assert len(steps) >= 4 and steps[-1].endswith(f": {smallest}")
    assert re.search(r"^smallest, \d+ runs in [\d.]+ s:$", "\n".join(lines), re.MULTILINE)
    assert lines[-1].startswith(f"portable-conformance rerun {smallest} --impl unwritten_tail --device cpu")
    assert cli.main(shlex.split(lines[-1])[1:]) == 1
    assert "unwritten_tail: Fail.nonfinite" in capsys.readouterr().out


def test_of_several_implementations_it_is_the_first_that_fails(norm, capsys):
    assert cli.main([*REDUCE, "--impl", "plain,crash,zeros"]) == 1
    out = capsys.readouterr().out
    assert f"{CASE} on crash, CPU" in out and "on zeros" not in out


def test_a_case_that_passes_is_no_failure(norm, capsys):
    assert cli.main([*REDUCE, "--impl", "plain,reordered"]) == 0
    assert "nothing to reduce: " in capsys.readouterr().out


def test_a_stopped_search_says_so(norm, capsys):
    assert cli.main([*REDUCE, "--impl", "zeros", "--max-runs", "2"]) == 1
    out = capsys.readouterr().out
    assert re.search(r"^stopped by 2 runs: 2 runs in .*; a smaller case may fail too. So far:$", out, re.M)


# A function of anybody's --------------------------------------------------------------------------

FUNCTION = """
import torch
ROWS = 3
def norm(x, weight=None, eps=1e-6):
    wide = x.float()
    y = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    y = (y if weight is None else y * weight.float()).to(x.dtype)
    if weight is not None and x.shape[-1] > 20:
        y[..., 20:] += 1
    return y
def raises(x, weight=None):
    assert x.shape[-1] < 20, "too long"
    return norm(x, weight)
"""
OUTSIDE = "rms_norm/bfloat16/N=100,lead=7/cancellation/padded"


@pytest.fixture
def script(tmp_path):
    (tmp_path / "mine.py").write_text(FUNCTION)
    return str(tmp_path / "mine.py")


@pytest.mark.parametrize(
    ("name", "smallest", "how"),
    [
        ("norm", "rms_norm/float32/N=21/small_integers/contiguous", "Fail.value"),
        ("raises", "rms_norm/float32/N=20,no=weight/small_integers/contiguous", "Crash, AssertionError"),
    ],
)
def test_a_function_from_outside_is_reduced(script, capsys, name, smallest, how):
    argv = ["--function", f"{script}:{name}", "--device", "cpu"]
    assert cli.main(["reduce", OUTSIDE, *argv]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{OUTSIDE} on {name}, CPU") and lines[0].endswith(f": {how}")
    assert lines[-1].startswith(f"portable-conformance reduce {smallest} --function ")
    assert cli.main(shlex.split(lines[-1])[1:]) == 1
    assert f"{smallest} on {name}, CPU" in capsys.readouterr().out


def test_a_function_that_is_right_there(script, capsys):
    case = "rms_norm/float32/N=9,lead=2/normal/contiguous"
    assert cli.main(["reduce", case, "--function", f"{script}:norm", "--device", "cpu"]) == 0
    assert "nothing to reduce" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("{}:nrom", "has no function 'nrom'. Did you mean 'norm'"),
        ("{}:ROWS", "has no function 'ROWS'"),
        ("{}", "expected FILE.py:NAME"),
        ("nowhere.py:norm", "with a file that is there"),
        ("{}:norm --impl torch", "name one of them"),
    ],
)
def test_a_function_that_is_not_there(script, capsys, named, said):
    argv = ["--function", *named.format(script).split(), "--device", "cpu"]
    assert cli.main(["reduce", OUTSIDE, *argv]) == 2
    err = capsys.readouterr().err
    assert said in err and "Traceback" not in err


def test_a_file_that_does_not_import(tmp_path, capsys):
    (tmp_path / "bad.py").write_text("import no_such_module_here")
    argv = ["--function", f"{tmp_path / 'bad.py'}:f", "--device", "cpu"]
    assert cli.main(["reduce", OUTSIDE, *argv]) == 2
    assert "importing it: ModuleNotFoundError" in capsys.readouterr().err


@pytest.mark.slow
def test_a_triton_kernel_from_outside_is_reduced_on_an_emulated_gpu(capsys):
    file = Path(__file__).with_name("outside") / "tail.py"
    argv = ["--function", f"{file}:rms_norm", "--device", "rocm:gfx942"]
    assert cli.main(["reduce", "rms_norm/bfloat16/N=1000,lead=7/normal/padded", *argv]) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert " rms_norm/float32/N=1,lead=1/small_integers/contiguous --function " in last


# Mistakes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["toy_norm/float32/N=x/normal/contiguous"], "not a number"),
        (["toy_nrm/float32"], "Did you mean 'toy_norm'"),
        (["toy_norm/behaviour/two_threads"], "is a behaviour"),
        ([CASE, "--impl", "zeroes"], "Did you mean 'zeros'"),
        ([CASE, "--device", "cqu"], "Did you mean 'cpu'"),
    ],
)
def test_a_mistake_is_a_sentence(norm, capsys, argv, said):
    assert cli.main(["reduce", *argv]) == 2
    err = capsys.readouterr().err
    assert said in err and "Traceback" not in err


def test_a_device_that_is_lost_at_once(norm, capsys, monkeypatch):
    def nothing(tasks, apply_waivers):
        for task in tasks:
            yield {
                "result": {
                    "case": task.case,
                    "impl": "zeros",
                    "state": "NotRun",
                    "message": "no worker starts",
                }
            }

    monkeypatch.setattr(command, "run_in_process", nothing)
    assert cli.main([*REDUCE, "--impl", "zeros"]) == 3
    said = capsys.readouterr()
    assert "no worker starts" in said.err and "smallest" not in said.out


@pytest.mark.parametrize("option", ["--budget 0", "--max-runs 0", "--max-runs many", "-j 2"])
def test_a_limit_that_is_no_number(option, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["reduce", CASE, *option.split()])
    assert ended.value.code == 2 and "Traceback" not in capsys.readouterr().err

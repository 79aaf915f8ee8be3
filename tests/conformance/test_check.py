"""`portable.conformance.check`: anybody's function by the same cases, and the right verdict on each."""

from __future__ import annotations

import functools
import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import portable
from portable.conformance import Unsupported, check, progress
from portable.conformance.cases.case import UnknownCase, parse
from portable.conformance.checker import api
from portable.conformance.checker.argument_binding import Bound
from portable.conformance.execute import runner
from portable.conformance.states import STATES
from portable.errors import ArgumentError, BackendError, CompileError, UnknownOpError
from portable.runtime import detect
from portable.spec import registry

NORM = "rms_norm/float32/N=33,lead=3x5/normal/contiguous"
BARE = "rms_norm/float32/N=65,lead=4,no=weight/normal/padded"
EPS = "rms_norm/float32/N=65,lead=4,eps=0.1/normal/contiguous"
GRAD = "rms_norm/float32/N=33,lead=3x5/normal/contiguous/grad"
SOFTMAX = "softmax/float32/N=33,lead=3x5/normal/contiguous"
MATMUL = "matmul/float32/M=33,N=31,K=65/normal/transposed"


def norm(x, weight=None, eps=1e-6):
    wide = x.float()
    y = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (y if weight is None else y * weight.float()).to(x.dtype)


def judged(function, *cases, op="rms_norm", **options):
    return check(function, op, "cpu", cases=cases or (NORM,), **options)


def state(function, *cases, **options) -> str:
    return judged(function, *cases, **options).results[0].state


# The three outside kernels ------------------------------------------------------------------------

NARROW = ["bfloat16", "float16", "float32"]


@pytest.fixture(scope="module")
def kernels():
    from .outside import half_wave, right, tail

    return {"right": right.rms_norm, "tail": tail.rms_norm, "half_wave": half_wave.rms_norm}


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["gfx942", "gfx1100"])
def test_the_right_kernel_conforms(kernels, arch):
    report = check(kernels["right"], "rms_norm", f"rocm:{arch}")
    assert report.conforms, str(report)
    assert report.states["Pass"] > 15
    assert {r.message for r in report.results if r.state == "NotSupported"} == {
        "it computes in float32", "gradient cases run with grad=True"
    }  # fmt: skip
    assert f"on emulated {arch}" in str(report)
    report.raise_for_failures()


def at(size: int, layout: str = "contiguous") -> list[str]:
    return [f"rms_norm/{types}/N={size},lead=3/normal/{layout}" for types in NARROW]


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["gfx942", "gfx1100"])
def test_the_kernel_that_is_wrong_on_the_tail_fails_there_alone(kernels, arch):
    whole = [*at(64), *at(128, "padded"), *at(4096)]
    report = check(kernels["tail"], "rms_norm", f"rocm:{arch}", cases=whole)
    assert report.conforms and report.states == {"Pass": len(whole)}, str(report)
    odd = [*at(1), *at(33), *at(63, "transposed"), *at(65), *at(127, "sliced"), *at(1000)]
    report = check(kernels["tail"], "rms_norm", f"rocm:{arch}", cases=odd)
    assert not report.conforms and report.states == {"Fail.value": len(odd)}
    for result in report.results[len(NARROW) :]:
        size = dict(result.case.shape.axes)["N"]
        assert f"3 of {3 * size} elements wrong; first wrong element [0, {size - 1}]: got " in result.message
        assert "wrong: the last column of every row" in result.message
    smoke = check(kernels["tail"], "rms_norm", f"rocm:{arch}", types=NARROW)
    assert smoke.states["Fail.value"] >= 3


@pytest.mark.slow
def test_the_kernel_that_is_wrong_on_wave64_fails_there_alone(kernels):
    asked = [*at(33), *at(64), *at(65, "padded"), *at(1000)]
    narrow = check(kernels["half_wave"], "rms_norm", "rocm:gfx1100", cases=asked)
    assert narrow.conforms and narrow.states == {"Pass": len(asked)}, str(narrow)
    wide = check(kernels["half_wave"], "rms_norm", "rocm:gfx942", cases=asked)
    assert not wide.conforms and wide.states == {"Fail.value": len(asked)}
    assert check(kernels["half_wave"], "rms_norm", "rocm:gfx1100", types=NARROW).conforms
    assert check(kernels["half_wave"], "rms_norm", "rocm:gfx942", types=NARROW).states["Fail.value"] >= 3


def test_what_launches_nothing_on_an_emulated_gpu_is_not_judged_there():
    report = check(norm, "rms_norm", "rocm:gfx942", cases=[NORM])
    assert report.states == {"NotSupported": 1} and not report.conforms
    assert "launched nothing on the emulated gfx942" in str(report)


def test_a_read_beside_a_tensor_is_a_crash_with_the_emulators_words(kernels):
    from .outside import right

    def greedy(x, weight):
        x, y = x.contiguous(), torch.empty_like(x)
        right.rms_norm_rows[(x.numel() // x.shape[-1] + 1,)](
            x,
            weight,
            y,
            x.shape[-1],
            1e-6,
            WEIGHTED=True,  # pyright: ignore[reportArgumentType] - Triton makes it a constexpr
            BLOCK=64,  # pyright: ignore[reportArgumentType]
        )
        return y

    report = check(greedy, "rms_norm", "rocm:gfx942", cases=[NORM])
    (result,) = report.results
    assert result.state == "Crash" and "out-of-bounds" in result.message and "right.py" in result.message


def test_the_active_backend_stays_what_it_is(kernels):
    from triton.runtime import driver

    before = str(portable.device()), dict(os.environ), driver._active
    check(kernels["right"], "rms_norm", "rocm:gfx1100", cases=[NORM])
    assert (str(portable.device()), dict(os.environ), driver._active) == before


def test_no_device_is_the_active_one(kernels):
    wanted = {"PORTABLE_BACKEND": "rocm", "PORTABLE_ROCM_ARCH": "gfx1100", "PORTABLE_EMULATE": "1"}
    build = detect.this_machine().torch_build
    detect.reset(detect.select(detect.Machine(build, {**os.environ, **wanted})))
    try:
        report = check(kernels["right"], "rms_norm", cases=[NORM])
    finally:
        detect.reset()
    assert report.conforms and report.device == "emulated gfx1100"
    assert "check(rms_norm, 'rms_norm', cases=" in report.again(NORM)


# How a function is called -------------------------------------------------------------------------


def test_functions_of_many_shapes_are_called_right():
    class Norm:
        def __call__(self, x, weight, **rest):
            assert set(rest) == {"eps"}
            return norm(x, weight, **rest)

    takes = (
        norm,
        Norm(),
        lambda x, weight: norm(x, weight),
        lambda weight, x: norm(x, weight),
        lambda a, b: norm(a, b),
        lambda w, x: norm(x, w),
        lambda *tensors: norm(*tensors),
        lambda **named: norm(**named),
        lambda a, b, /, *, eps: norm(a, b, eps),
        lambda a, b, block=64: norm(a, b),
        functools.partial(lambda x, weight, block: norm(x, weight), block=64),
    )
    for function in takes:
        assert state(function) == "Pass", judged(function)


@given(order=st.permutations(["x", "weight", "eps"]), keyword=st.integers(0, 3))
@settings(max_examples=30, deadline=None)
def test_every_named_parameter_gets_its_own(order, keyword):
    names = [*order[:keyword], *["*"][: keyword < 3], *order[keyword:]]
    made: dict = {}
    exec(f"def f({', '.join(names)}): return x, weight, eps", made)
    bound = Bound(made["f"], registry.spec("rms_norm"))
    a, b = torch.zeros(2), torch.ones(3)
    x, weight, eps = bound(weight=b, x=a)
    assert torch.equal(x, a) and torch.equal(weight, b) and eps == 1e-6
    assert bound(x=a, weight=None, eps=0.5)[1:] == (None, 0.5)


def test_a_function_that_does_not_tell_its_signature_takes_the_inputs():
    assert state(torch.matmul, MATMUL, op="matmul") == "Pass"


def test_what_the_signature_lacks_is_not_supported_by_rule():
    report = judged(lambda x: norm(x), NORM, BARE)
    assert [r.state for r in report.results] == ["NotSupported", "Pass"] and report.conforms
    assert "declined, 1: the function takes no weight" in str(report)
    report = judged(lambda x, weight: norm(x, weight), NORM, BARE, EPS)
    assert [r.message for r in report.results] == [
        "",
        "the function needs weight: it has no default",
        "the function takes no eps; this case has eps=0.1",
    ]
    assert [r.state for r in judged(norm, NORM, BARE, EPS).results] == ["Pass"] * 3


def test_the_ops_default_is_given_where_the_functions_is_another():
    assert state(lambda x, weight, eps=0.3: norm(x, weight, eps)) == "Pass"
    assert state(lambda x, weight: norm(x, weight, 0.3)) == "Fail.value"


def test_a_dimension_that_is_the_default_one_is_asked_without_dim():
    last, first = (SOFTMAX.replace("5/", f"5,dim={dim}/") for dim in (2, 0))
    report = judged(lambda x: torch.softmax(x, -1), last, first, op="softmax")
    assert [r.state for r in report.results] == ["Pass", "NotSupported"]
    assert "takes no dim; this case has dim=0" in str(report)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda x, weight, block: x, "needs 'block'"),
        (lambda weight: weight, "takes no x"),
        (lambda x, weight, *, out: x, "needs out="),
        (3, "is no function but int"),
    ],
)
def test_a_function_that_cannot_be_called_is_refused(function, said):
    with pytest.raises(ArgumentError, match=re.escape(said)):
        judged(function)


def test_a_triton_kernel_without_its_launch_is_refused(kernels):
    from .outside import right

    with pytest.raises(ArgumentError, match="rms_norm_rows: is a Triton kernel without its launch"):
        judged(right.rms_norm_rows)


# What comes back ----------------------------------------------------------------------------------


def test_arrays_are_taken():
    assert state(lambda x, weight: norm(x, weight).numpy()) == "Pass"
    assert state(lambda x, weight: norm(x, weight).numpy()[::-1, ::-1, ::-1]) == "Fail.value"
    assert state(lambda x, weight: (norm(x, weight),)) == "Pass"


kept = torch.empty(3, 5, 33)


def restored(x, weight):
    old = x.clone()
    y = norm(x.mul_(1), weight)
    x.copy_(old)
    return y


def left_off(x, weight):
    torch.set_grad_enabled(False)
    return norm(x, weight)


def shared(x, weight):
    return norm(x, weight)[:1].expand(3, 5, 33)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (
            lambda x, weight: kept.copy_(norm(x, weight)),
            "a second call wrote its result over the first one",
        ),
        (shared, "elements share memory: strides (0, 33, 1)"),
        (restored, "the input was written to, if only to be put back"),
        (left_off, "the call left torch's gradient mode at False; it was True"),
    ],
)
def test_what_a_call_may_not_do_beside_its_result(function, said):
    layout = "expanded" if function is shared else "contiguous"
    report = check(function, "rms_norm", "cpu", cases=[f"rms_norm/float32/N=33,lead=3x5/normal/{layout}"])
    (failure,) = report.failures
    assert (failure.state, said in failure.message) == ("Fail.behaviour", True), failure
    assert torch.is_grad_enabled()


def test_indices_beyond_32_bits_are_asked():
    def near(x, dim=-1):
        span = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
        y = torch.softmax(x.float(), dim).to(x.dtype)
        return y if span < 2**31 else y.flip(0)

    report = check(near, "softmax", "cpu", types=["bfloat16", "float32", "float16"])
    assert [failure.case.id for failure in report.failures] == ["softmax/behaviour/beyond_2_31"]
    again = check(near, "softmax", "cpu", cases=["softmax/behaviour/beyond_2_31"])
    assert [failure.case.id for failure in again.failures] == ["softmax/behaviour/beyond_2_31"]


def test_a_behaviour_is_declined_as_a_case_is():
    """It was a Crash: a right function that declines bfloat16 did not conform."""

    def narrow(x, dim=-1):
        if x.dtype != torch.float32:
            raise Unsupported("it computes in float32")
        return torch.softmax(x, dim)

    asked = [f"softmax/behaviour/{name}" for name in api.BEHAVIOURS]
    assert [each.state for each in check(narrow, "softmax", "cpu", cases=asked[:2]).results] == ["Pass"] * 2

    def none(x, dim=-1):
        raise Unsupported("it computes nothing")

    report = check(none, "softmax", "cpu", cases=asked)
    assert report.states == {"NotSupported": len(asked)}
    assert report.results[0].message == "it computes nothing"


def test_gradients_of_a_function_without_a_weight():
    report = check(lambda x: norm(x), "rms_norm", "cpu", cases=["rms_norm/behaviour/autograd"], grad=True)
    assert report.results[0].message == "the function takes no weight"
    assert check(norm, "rms_norm", "cpu", cases=["rms_norm/behaviour/autograd"], grad=True)


def overrun(x, weight):
    y = torch.empty(x.shape)
    if y.untyped_storage().nbytes() > y.nbytes:  # it lies between bands
        y.as_strided((y.numel() + 1,), (1,), y.storage_offset()).zero_()
    return y.copy_(norm(x, weight))


def unwritten(x, weight):
    y = torch.empty(x.shape)
    y[..., 1:] = norm(x, weight)[..., 1:]
    return y


@pytest.mark.parametrize(
    ("function", "expected", "said"),
    [
        (lambda x, weight: norm(x, weight)[0], "Fail.shape", "got shape (5, 33), expected (3, 5, 33)"),
        (lambda x, weight: norm(x, weight).double(), "Fail.dtype", "got float64"),
        (lambda x, weight: None, "Fail.dtype", "got a NoneType"),
        (lambda x, weight: (norm(x, weight),) * 2, "Fail.shape", "output 1"),
        (lambda x, weight: torch.zeros_like(x), "Fail.value", "first wrong element [0, 0, 0]: got 0"),
        (lambda x, weight: norm(x, weight, 0.01), "Fail.value", "every element"),
        (lambda x, weight: norm(x.zero_(), weight), "Fail.bounds_write", "an input"),
        (overrun, "Fail.bounds_write", "bytes behind a tensor"),
        (unwritten, "Fail.nonfinite", "got nan"),
    ],
)
def test_a_wrong_function_fails_in_its_state(function, expected, said):
    (result,) = judged(function).results
    assert result.state == expected and said in result.message, result


def test_out_is_asked_of_what_takes_it():
    case = f"{MATMUL.replace('transposed', 'contiguous')}/out"
    assert state(lambda a, b: a @ b, case, op="matmul") == "NotSupported"
    assert state(lambda a, b, out=None: torch.matmul(a, b, out=out), case, op="matmul") == "Pass"

    def named(a, b, precision, **rest):
        return torch.matmul(a, b, **rest)

    assert state(named, case, op="matmul") == "NotSupported"
    assert state(named, case, op="matmul", out=True) == "Pass"

    def silent(a, b, out=None):
        assert out is not None
        out.copy_(a @ b)

    assert state(silent, case, op="matmul") == "Pass"
    assert state(lambda a, b, out=None: a @ b, case, op="matmul") == "Crash"
    with pytest.raises(ArgumentError, match="has no parameter out"):
        judged(lambda a, b: a @ b, case, op="matmul", out=True)


def test_gradients_are_asked_when_wanted():
    (result,) = judged(norm, GRAD).results
    assert (result.state, result.message) == ("NotSupported", "gradient cases run with grad=True")
    assert state(norm, GRAD, grad=True) == "Pass"
    assert state(lambda x, weight: norm(x.detach(), weight) + 0 * x, GRAD, grad=True) == "Fail.value"
    assert "does not require grad" in str(judged(lambda x, weight: norm(x, weight).detach(), GRAD, grad=True))
    with pytest.raises(ArgumentError, match="softmax_backward has no gradient"):
        check(norm, "softmax_backward", "cpu", grad=True)


# States of what is raised -------------------------------------------------------------------------


def raising(error):
    def function(x, weight):
        raise error

    return function


@pytest.mark.parametrize(
    ("error", "expected", "said"),
    [
        (Unsupported("rows of 33 are not for it"), "NotSupported", "rows of 33 are not for it"),
        (ValueError("no such tile"), "Crash", "ValueError: no such tile (test_check.py:"),
        (CompileError("norm", "unknown type"), "CompileError", "unknown type"),
        (torch.OutOfMemoryError("tried to allocate"), "ResourceError", "tried to allocate"),
    ],
)
def test_an_exception_is_a_state(error, expected, said):
    (result,) = judged(raising(error)).results
    assert result.state == expected and said in result.message, result


def test_a_triton_kernel_that_does_not_compile(kernels):
    import triton
    import triton.language as tl

    def uncompiled(x, weight):
        bad[(1,)](x)

    @triton.jit
    def bad(x_ptr):
        tl.store(x_ptr, no_such_name)  # noqa: F821  # pyright: ignore[reportUndefinedVariable] - on purpose

    (result,) = check(uncompiled, "rms_norm", "rocm:gfx942", cases=[NORM]).results
    assert result.state == "CompileError" and "no_such_name" in result.message


def test_what_declines_everything_does_not_conform():
    report = judged(raising(Unsupported("never")), NORM, BARE)
    assert report.states == {"NotSupported": 2} and not report.conforms
    assert "Nothing was judged" in str(report)
    with pytest.raises(AssertionError, match="never"):
        report.raise_for_failures()
    assert not judged(norm, NORM, types=["float16"]).conforms


def test_a_lost_device_ends_the_check(monkeypatch):
    def lost(device):
        raise RuntimeError("unspecified launch failure")

    def crash(x, weight=None):
        monkeypatch.setattr(runner, "synchronize", lost)
        raise RuntimeError("launch failed")

    report = judged(crash, NORM, BARE)
    assert [r.state for r in report.results] == ["Crash", "NotRun"]
    assert "the device was lost in" in report.results[1].message and not report.conforms


def test_a_broken_reference_is_the_suites_fault(monkeypatch):
    monkeypatch.setattr(api.reference, "materialize", raising(RuntimeError("no reference")))
    (result,) = judged(norm).results
    assert result.state == "InternalError" and "the reference failed" in result.message


# The cases ----------------------------------------------------------------------------------------


def test_types_restrict_what_is_claimed():
    mixed = NORM.replace("float32/", "bfloat16,W=float32/")
    half, single = NORM.replace("float32/", "bfloat16/"), NORM

    def states(types):
        return [r.state for r in judged(norm, half, single, mixed, types=types).results]

    no, yes = "NotSupported", "Pass"
    assert states(None) == [yes, yes, yes]
    assert states(["bfloat16"]) == [yes, no, no]
    assert states(["bfloat16", "float32"]) == [yes, yes, yes]
    assert states(["bfloat16,W=float32"]) == [no, no, yes]
    with pytest.raises(ArgumentError, match="Did you mean 'bfloat16'"):
        states(["bfloat"])


def test_a_tier_is_asked_whole():
    narrow = check(norm, "rms_norm", "cpu", types=["float32"])
    assert narrow.conforms and len(narrow.results) > 30, str(narrow)
    assert str(narrow).startswith("CONFORMS: ")


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"op": "rms_nrom"}, UnknownOpError, "Did you mean 'rms_norm'"),
        ({"tier": "smok"}, ArgumentError, "smoke, core, full"),
        ({"cases": []}, ArgumentError, "one case or more"),
        ({"cases": ["rms_norm/float31/N=1/normal/contiguous"]}, UnknownCase, "float31"),
        ({"cases": [parse(SOFTMAX, registry.spec("softmax"))]}, ArgumentError, "cases of rms_norm"),
        ({"device": "rcom"}, ArgumentError, "Did you mean 'rocm'"),
        ({"device": "rocm:gfx943"}, ArgumentError, "rocm:gfx942"),
        ({"device": "cpu:zen"}, ArgumentError, "cpu alone"),
    ],
)
def test_arguments_that_cannot_be_meant(options, error, said):
    with pytest.raises(error, match=re.escape(said)):
        check(norm, **{"op": "rms_norm", "device": "cpu", "cases": [NORM], **options})


@pytest.mark.skipif(torch.version.cuda is not None, reason="a GPU is here, or torch's build for one")
@pytest.mark.parametrize("device", ["cuda", "cuda:sm_90a"])
def test_a_gpu_that_is_not_there(device):
    with pytest.raises(BackendError, match="PORTABLE_BACKEND=cuda: ") as caught:
        check(norm, "rms_norm", device, cases=[NORM])
    assert "software" not in str(caught.value)


def test_an_emulated_gpu_that_is_forbidden(monkeypatch):
    monkeypatch.setenv("PORTABLE_EMULATE", "0")
    with pytest.raises(BackendError, match="PORTABLE_BACKEND=rocm"):
        check(norm, "rms_norm", "rocm:gfx942", cases=[NORM])
    assert state(norm) == "Pass"
    monkeypatch.setenv("PORTABLE_EMULATE", "1")
    assert state(norm) == "Pass"


# The report ---------------------------------------------------------------------------------------


def test_its_truth_is_the_verdict():
    """`assert check(f, op)` said yes to a wrong kernel: every report was true."""
    assert judged(norm)
    assert not judged(zeros), "a wrong function"
    assert not judged(zeros, NORM, BARE, NORM.replace("N=33", "N=1")), "one that fails some cases"

    def declines(x, weight=None):
        raise Unsupported("all of it")

    assert not judged(declines), "one that declines every case"
    assert not judged(norm, types=["float64"]), "one that claims another type"
    assert not api.Report("f", "rms_norm", "CPU"), "no case at all"

    def breaks(x, weight=None):
        raise RuntimeError("no kernel image")

    assert not judged(breaks)


def zeros(x, weight=None):
    return torch.zeros_like(x)


def test_a_report_shows_equal_failures_once_and_counts_the_others():
    """Seven zeros in a row were five nearly equal paragraphs, and the crash after them none."""
    many = [NORM.replace("N=33", f"N={size}") for size in range(30, 37)]

    def wrong(x, weight=None):
        if x.shape[-1] == 36:
            raise RuntimeError("no rows of 36")
        return torch.zeros_like(x)

    report = judged(wrong, *many)
    text = str(report)
    head = (
        f"DOES NOT CONFORM: wrong as rms_norm on {report.device}: 7 judged (7 fail)\nCrash 1, Fail.value 6\n"
    )
    assert text.startswith(head) and report.device.startswith("CPU")
    assert len(re.findall("^Fail.value: rms_norm/", text, re.MULTILINE)) == 1
    assert "  5 more fail in this way: " + ", ".join(many[1:4]) + " and 2 more\n" in text
    assert len(re.findall("^Crash: rms_norm/", text, re.MULTILINE)) == 1 and "no rows of 36" in text
    assert len(report.failures) == 7 and all(r.state in STATES for r in report.results)


def test_a_report_shows_five_kinds_of_failures_and_counts_the_others():
    many = [NORM.replace("N=33", f"N={size}") for size in range(30, 37)]

    def wrong(x, weight=None):
        raise RuntimeError("abcdefg"[x.shape[-1] - 30])

    text = str(judged(wrong, *many))
    assert len(re.findall("^Crash: rms_norm/", text, re.MULTILINE)) == 5
    assert text.endswith("and 2 more that fail, in `report.failures`")


def test_a_failure_names_the_strides_of_what_is_not_contiguous():
    def flat(x, weight=None):  # reads x as if its rows followed one another
        return norm(x.as_strided(x.shape, (x.shape[-1], 1)), weight)

    padded = [BARE.replace("lead=4", f"lead={count}") for count in (3, 5, 6)]
    plain = [each.replace("padded", "contiguous") for each in padded]
    text = str(judged(flat, *padded, *plain))
    assert re.search(r"not contiguous: x of shape \(3, 65\) with strides \(\d\d+, 1\)", text)
    assert text.endswith("calls .contiguous() in its wrapper.")
    assert "in its wrapper" not in str(judged(zeros, *padded, *plain)), "wrong everywhere"
    assert "in its wrapper" not in str(judged(flat, *padded, plain[0])), "one case that passes is no pattern"


def test_a_check_says_how_far_it_is_on_stderr(monkeypatch, capsys):
    """It was silent for 95 s."""
    monkeypatch.setattr(progress, "EVERY", 0.0)
    judged(norm, NORM, BARE)
    said, err = capsys.readouterr()
    assert not said
    assert re.search(r"^  1 of 2 results, rms_norm, about \d+ s left$", err, re.MULTILINE)


def test_the_line_that_asks_again_does():
    report = judged(zeros, NORM)
    line = re.search("again: (.*)", str(report))
    assert line is not None
    again = eval(line.group(1), {"portable": portable, "zeros": zeros})
    assert str(again) == str(report)


def test_numpy_is_enough():
    def by_numpy(x, weight):
        wide = x.numpy().astype(np.float64)
        scale = 1 / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-6)
        return (wide * scale * weight.numpy()).astype(np.float32)

    assert state(by_numpy) == "Pass"


def test_the_page_shows_what_is_said(kernels, monkeypatch, capsys):
    """docs/check.md: its first program, run, prints its first output."""
    page = Path(__file__).resolve().parents[2] / "docs" / "check.md"
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    (language, program), (kind, output), *_ = blocks
    assert (language, kind) == ("python", "text")
    monkeypatch.setitem(sys.modules, "my_kernels", SimpleNamespace(rms_norm=kernels["tail"]))
    exec(program, {})
    assert capsys.readouterr().out == output

"""How `check` calls a function: its parameters, what it lacks, out=, gradients."""

from __future__ import annotations

import functools
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import portable
from portable.conformance import check
from portable.conformance.cases.generate import cases
from portable.conformance.checker.argument_binding import Bound
from portable.errors import ArgumentError
from portable.spec import registry

from .check_norm import BARE, EPS, GRAD, MATMUL, NORM, SOFTMAX, judged, norm, state


def test_functions_of_many_shapes_are_called_right():
    class Norm:
        def __call__(self, x, weight, **rest):
            assert set(rest) == {"eps", "weight_offset", "cast_before_weight"}
            return norm(x, weight, rest["eps"])

    takes = (
        norm,
        Norm(),
        lambda x, weight: norm(x, weight),
        lambda weight, x: norm(x, weight),
        lambda a, b: norm(a, b),
        lambda w, x: norm(x, w),
        lambda *tensors: norm(*tensors),
        lambda **named: norm(named["x"], named["weight"]),
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


def test_numpy_is_enough():
    def by_numpy(x, weight):
        wide = x.numpy().astype(np.float64)
        scale = 1 / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-6)
        return (wide * scale * weight.numpy()).astype(np.float32)

    assert state(by_numpy) == "Pass"


def test_gradients_of_a_function_without_a_weight():
    report = check(lambda x: norm(x), "rms_norm", "cpu", cases=["rms_norm/behaviour/autograd"], grad=True)
    assert report.results[0].message == "the function takes no weight"
    assert check(norm, "rms_norm", "cpu", cases=["rms_norm/behaviour/autograd"], grad=True)


def test_an_input_as_out_is_judged():
    """Only a case of its own sees a function that has written before it reads."""

    def right(dloss, logits, target, lse, dlse=None, weight=None, weight_mean=None, *, out=None, **params):
        given = dloss, logits, target, lse, dlse, weight, weight_mean
        return portable.cross_entropy_backward(*given, **params, out=out)

    def wrong(dloss, logits, target, lse, dlse=None, weight=None, weight_mean=None, *, out=None, **params):
        if out is not None:
            out.zero_()
        return right(dloss, logits, target, lse, dlse, weight, weight_mean, out=out, **params)

    ids = [each.id for each in cases(registry.spec("cross_entropy_backward"), "smoke")]
    out, in_place = (next(each for each in ids if each.endswith(mode)) for mode in ("/out", "/in_place"))
    for function, second in ((right, "Pass"), (wrong, "Fail.value")):
        assert state(function, out, op="cross_entropy_backward", out=True) == "Pass"
        assert state(function, in_place, op="cross_entropy_backward", out=True) == second

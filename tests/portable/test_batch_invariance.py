"""`portable.using(batch_invariant=True)` and `portable.aten(batch_invariant=True)`: rows have the same bits
in every batch, or the call raises."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import portable
from portable import errors
from portable.configs import lookup
from portable.conformance.execute import behaviour, runner
from portable.conformance.execute.rows_alone import rows_alone
from portable.conformance.execute.samples import NotApplicable
from portable.dispatch import composed, pins, select
from portable.spec import registry

CPU = torch.device("cpu")
OPS = sorted(registry.op_folders())


def promised(op: str) -> bool:
    """Whether the op's torch implementation, all that a CPU has, promises it."""
    return any(each.batch_invariant for each in registry.spec(op).implementations if each.kind == "run")


@pytest.mark.parametrize("op", OPS)
def test_unpinned_calls_give_rows_the_same_bits_or_raise(op):
    spec = registry.spec(op)
    call = behaviour.caller(spec, runner.function(op))
    with portable.using(batch_invariant=True):
        try:
            wrong = rows_alone(call, spec, CPU)
        except NotApplicable as reason:
            assert "row by row" in str(reason)
            return
        except errors.NoImplementationError as error:
            assert not promised(op) and select.MAY_DEPEND in str(error)
            return
    assert wrong is None and promised(op)


def test_it_holds_within_the_block_and_an_inner_one_may_turn_it_off():
    x = torch.ones(3, 8)
    assert not pins.batch_invariant()
    with portable.using(batch_invariant=True):
        assert pins.batch_invariant()
        with portable.using(batch_invariant=False):
            assert not pins.batch_invariant()
            assert torch.equal(portable.mean(x, -1), x.mean(-1))
        with portable.using(softmax="torch"):
            assert pins.batch_invariant()
            assert torch.equal(portable.softmax(x), x.softmax(-1))
        with pytest.raises(errors.NoImplementationError, match=r"batch_invariant is asked for"):
            portable.mean(x, -1)
    assert torch.equal(portable.mean(x, -1), x.mean(-1))


def test_explain_says_why():
    a = torch.ones(3, 8)
    with portable.using(batch_invariant=True):
        found = portable.explain("matmul", a, a.mT)
    reasons = {each.name: each.reason for each in found.candidates}
    assert found.choice is None and reasons["torch"] == select.MAY_DEPEND
    assert "the cpu backend runs torch only" in reasons["skinny"]  # the first reason there is
    outside = portable.explain("matmul", a, a.mT).choice
    assert outside is not None and outside.name == "torch"


def test_a_pin_of_what_promises_nothing_raises():
    x = torch.ones(3, 8)
    with (
        portable.using(batch_invariant=True, matmul="torch"),
        pytest.raises(errors.PinError, match=r"pins 'torch', but it cannot run .*bits may depend"),
    ):
        portable.matmul(x, x.mT)


@pytest.mark.parametrize("value", [1, 0, "yes", "torch"])
def test_it_is_true_or_false(value):
    with pytest.raises(errors.ArgumentError, match=r"portable.using: .*'batch_invariant' is .*True or"):
        portable.using(batch_invariant=value)
    with (
        pytest.raises(errors.ArgumentError, match=r"portable.aten: argument 'batch_invariant' is .*True or"),
        portable.aten(batch_invariant=value),
    ):
        pass
    with portable.aten():  # which the refused one did not lock
        pass


def test_no_op_is_true():
    with pytest.raises(errors.PinError, match=r"pins 'True', but the op has"), portable.using(softmax=True):
        pass


def test_it_is_no_op_s_pin_in_the_environment(monkeypatch):
    monkeypatch.setenv("PORTABLE_IMPL", "batch_invariant:true")
    pins.reload()
    try:
        with pytest.raises(errors.PinError, match=r"there is no op of that name"):
            pins.pin("softmax")
    finally:
        monkeypatch.undo()
        pins.reload()


def test_a_backward_pass_behind_the_block_keeps_to_it():
    x = torch.randn(3, 8, requires_grad=True)
    with portable.using(batch_invariant=True):
        y = portable.softmax(x)
    with pytest.raises(errors.NoImplementationError, match=r"softmax_backward: no implementation"):
        y.sum().backward()  # torch's reduces by the number of rows
    portable.softmax(x).sum().backward()
    weight = torch.randn(9, 8, requires_grad=True)
    with portable.using(batch_invariant=True):
        rows = portable.embedding(torch.tensor([1, 3, 1]), weight)
    rows.sum().backward()
    assert weight.grad is not None and weight.grad[1].eq(2).all()


def test_what_torch_composes_is_refused_where_it_promises_nothing():
    spec = registry.spec("matmul")
    a = torch.randn(3, 8)
    composed.compute(spec, [a, a.mT], {"precision": "ieee"})
    with (
        portable.using(batch_invariant=True),
        pytest.raises(
            errors.UnsupportedGradientError, match=r"composed of torch's own operations: a row's bits"
        ),
    ):
        composed.compute(spec, [a, a.mT], {"precision": "ieee"})


def test_what_was_tuned_is_not_used(monkeypatch):
    asked = []
    resolve = lookup.resolve

    def noted(*args, tuned=True, **kwargs):
        asked.append(tuned)
        return resolve(*args, tuned=tuned, **kwargs)

    monkeypatch.setattr(lookup, "resolve", noted)
    x = torch.randn(3, 41)
    portable.explain("softmax", x)
    with portable.using(batch_invariant=True):
        portable.explain("softmax", x)
    assert asked == [True, False]


def test_torch_s_operators_run_our_ops_so_or_raise():
    x = torch.randn(5, 8)
    expected = portable.softmax(x)
    with portable.aten(batch_invariant=True) as found:
        assert torch.equal(torch.softmax(x, -1), expected)
        with pytest.raises(
            errors.NoImplementationError, match=r"portable.matmul: .*[\s\S]*batch_invariant is"
        ):
            torch.mm(x, x.mT)
        with pytest.raises(
            errors.PortableError, match=r"torch.ops.aten.addmm: beta or alpha is not 1. torch's"
        ):
            torch.addmm(torch.ones(5), x, x.mT, beta=0.5)
        assert not pins.batch_invariant()  # the mode is the operators'
    assert found.taken["_softmax"] == 1 and not found.taken["mm"]
    assert not found.declined  # nothing went to torch
    assert torch.equal(torch.mm(x, x.mT), x @ x.mT)


def test_integer_operators_may_go_to_torch():
    whole = torch.arange(6).view(2, 3)
    with portable.aten(batch_invariant=True) as found:
        assert torch.equal(torch.mm(whole, whole.mT), torch.tensor([[5, 14], [14, 50]]))
    assert found.declined["mm"].total() == 1


def test_a_norm_that_records_a_gradient_is_not_left_to_torch():
    x = torch.randn(5, 8, requires_grad=True)
    with (
        portable.aten(batch_invariant=True),
        pytest.raises(errors.PortableError, match=r"aten.native_layer_norm: a gradient is recorded"),
    ):
        torch.nn.functional.layer_norm(x, (8,))


def test_every_product_of_torch_s_promises_nothing():
    """Their libraries choose a kernel by the number of rows; integers' sums are exact."""
    for op in OPS:
        spec = registry.spec(op)
        if spec.cost.roof == "matrix":
            of_torch = next(each for each in spec.implementations if each.kind == "run")
            assert of_torch.batch_invariant is (op in ("int_mm", "int8_scaled_mm", "int8_int4_mm")), op


@pytest.mark.parametrize(
    "op, names",
    [
        ("matmul", {"skinny", "splitk", "mfma_splitk", "bf16x6", "triton"}),
        ("linear", {"skinny", "skinny_constant_weight", "mfma_splitk", "triton"}),
        ("int4_mm", {"splitk", "mma", "mfma_splitk", "wmma_splitk", "skinny", "widened", "triton_widened"}),
        ("int8_int4_mm", {"mfma_splitk", "wmma_splitk"}),
        ("scaled_mm", {"triton"}),
        ("scaled_mm_block", {"triton"}),
    ],
)
def test_what_was_found_to_depend_on_the_rows(op, names):
    """On an H200, 2026-11-27: rows of K = 4096 (fp8: of 256), by few and by many."""
    spec = registry.spec(op)
    plans = {each.name for each in spec.implementations if each.kind == "plan" and not each.batch_invariant}
    assert plans == names


def test_the_conformance_suite_asks_what_promises_alone(monkeypatch):
    spec = registry.spec("softmax")
    right = spec.implementation("torch")
    assert right is not None
    broken = dataclasses.replace(right, batch_invariant=False)
    monkeypatch.setattr(type(spec), "implementation", lambda self, name: broken)
    result = behaviour.run(behaviour.Behaviour("softmax", "rows_alone"), "torch", CPU)
    assert result.state == "NotSupported" and "not batch invariant" in result.message

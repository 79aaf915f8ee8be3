"""The behaviour cases on the CPU: what passes, and that a misbehaving op does not."""

from __future__ import annotations

import mmap

import pytest
import torch

import portable
from portable import errors
from portable.conformance.cases.generate import required_params
from portable.conformance.execute import behaviour, runner
from portable.conformance.execute.bad_calls import MISSING, bad_calls
from portable.conformance.execute.rows_alone import rows_alone
from portable.conformance.execute.samples import said_dtypes
from portable.dispatch import dispatcher
from portable.spec import registry

CPU = torch.device("cpu")


ASKED = [
    pytest.param(case, id=case.id, marks=[pytest.mark.slow] * (case.name == "compiled_forms"))
    for case in behaviour.cases(portable.ops())
]


@pytest.mark.parametrize("case", ASKED)
def test_the_ops_behave(case):
    result = behaviour.run(case, "torch", CPU)
    assert result.conforms, result.message
    assert (result.state == "NotSupported") <= bool(result.message)


def test_an_id_names_a_behaviour():
    assert behaviour.parse("softmax/behaviour/two_threads") == behaviour.Behaviour("softmax", "two_threads")
    assert behaviour.parse("softmax/behaviour/nothing") is None
    assert behaviour.parse("softmax/float32/N=3") is None


@pytest.mark.parametrize(
    "name, wrong",
    [
        ("rows_alone", lambda x: x - x.mean()),  # a row's result depends on the batch
        ("two_threads", lambda x: x + torch.rand(())),
        ("autograd", lambda x: x.detach().requires_grad_()),
    ],
)
def test_a_misbehaving_op_is_caught(monkeypatch, name, wrong):
    monkeypatch.setattr(portable, "softmax", wrong, raising=False)
    result = behaviour.run(behaviour.Behaviour("softmax", name), "torch", CPU)
    assert result.state == "Fail.behaviour", result


def ask(monkeypatch, op, name, wrong):
    monkeypatch.setattr(portable, op, wrong, raising=False)
    return behaviour.run(behaviour.Behaviour(op, name), "torch", CPU)


def test_rows_alone_asks_in_float32_too(monkeypatch):
    def batch_dependent(x):
        last = 2.0**-23 if len(x) > 1 and x.dtype == torch.float32 else 0.0
        return torch.softmax(x, -1) * (1 + last)

    result = ask(monkeypatch, "softmax", "rows_alone", batch_dependent)
    assert result.message == "in float32, row 0 of 256 alone differs from row 0 in a batch of 48"


def test_rows_alone_asks_at_a_length_that_no_vector_divides(monkeypatch):
    def by_alignment(x):
        aligned = all(stride % 4 == 0 for stride in x.stride()[:-1]) or len(x) == 1
        return torch.softmax(x, -1) * (1 if aligned or x.dtype != torch.float32 else 1 + 2.0**-23)

    result = ask(monkeypatch, "softmax", "rows_alone", by_alignment)
    assert result.message == "in float32, row 0 of 129 alone differs from row 0 in a batch of 48"


def asked(op, wrong):
    """What `rows_alone` says of a function in the place of an op."""
    return rows_alone(behaviour.caller(registry.spec(op), wrong), registry.spec(op), CPU)


def exact(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """Sums of integers, which have no order."""
    return [each.round().clamp(-3, 3) for each in tensors]


@pytest.mark.parametrize("op, beside", [("matmul", "b"), ("linear", "weight"), ("gated_linear", "w_gate_up")])
def test_rows_of_products_are_asked_by_their_number(op, beside):
    def product(rows, weight, few=1.0):
        rows, weight = exact(rows, weight)
        made = rows @ (weight if beside == "b" else weight.reshape(-1, weight.shape[-1]).mT)
        return made * (few if len(rows) == 17 else 1.0)

    rows = "a" if op == "matmul" else "x"

    def by_name(few):
        return lambda **given: product(given[rows], given[beside], few)

    assert asked(op, by_name(1.0)) is None
    assert "differ between a call of 17 and one of 200" in str(asked(op, by_name(1 + 2.0**-7)))


def test_a_product_of_matrices_that_lie_the_other_way_is_asked_too():
    def by_columns(a, b, precision="ieee"):
        a, b = exact(a, b)
        return a @ b

    def of_layout(a, b, precision="ieee"):
        few = 1.0 if b.is_contiguous() or len(a) > 1 else 1 + 2.0**-7
        return by_columns(a, b) * few

    assert asked("matmul", by_columns) is None
    assert "differ between a call of 1 and one of 200" in str(asked("matmul", of_layout))


def test_a_count_that_is_refused_is_left_out_and_all_of_them_raise():
    def many(a, b, precision="ieee"):
        if len(a) < 65:
            raise errors.PinError("matmul", "many", "too few rows")
        return a.float() @ b.float() * 0

    assert asked("matmul", many) is None

    def none(a, b, precision="ieee"):
        raise errors.PinError("matmul", "none", "it takes nothing")

    with pytest.raises(errors.PinError, match="it takes nothing"):
        asked("matmul", none)


@pytest.mark.parametrize("op", ["attention", "attention_paged", "attention_varlen"])
def test_sequences_are_asked_alone_and_beside_others(op):
    spec = registry.spec(op)
    right = runner.function(op)

    def by_count(**given):
        o, lse = right(**given)
        several = len(given["cu_seqlens_q"]) > 2 if op == "attention_varlen" else len(given["q"]) > 1
        return (o if several else 1.5 * o), lse

    wrong = rows_alone(behaviour.caller(spec, by_count), spec, CPU)
    assert wrong is not None and "differ" in wrong
    assert rows_alone(behaviour.caller(spec, right), spec, CPU) is None


def test_an_implementation_of_one_type_is_asked_in_that(monkeypatch):
    def narrow(x):
        if x.dtype != torch.bfloat16:
            raise errors.PinError("softmax", "torch", "it takes bfloat16")
        return torch.softmax(x, -1)

    assert ask(monkeypatch, "softmax", "rows_alone", narrow).state == "Pass"

    def none(x):
        raise errors.PinError("softmax", "torch", "it takes nothing")

    assert ask(monkeypatch, "softmax", "rows_alone", none).state == "NotSupported"


@pytest.mark.parametrize(
    "op, scaled",
    [
        ("softmax_backward", True), ("rms_norm", True), ("layer_norm", True), ("layer_norm_backward", True),
        ("matmul", True), ("linear", True), ("swiglu", True), ("swiglu_backward", True),
        ("activation_backward", True), ("rms_norm_backward", True), ("softmax", False),
    ],
)  # fmt: skip
def test_the_reference_says_whether_an_op_scales(op, scaled):
    result = behaviour.run(behaviour.Behaviour(op, "scaling"), "torch", CPU)
    assert result.state == ("Pass" if scaled else "NotSupported")
    assert scaled or result.message == "no input of the op scales its outputs"


@pytest.mark.parametrize(
    "wrong",
    [
        lambda dy, y: y * (dy - (dy * y).sum(-1, keepdim=True)) + 1e-3,
        lambda dy, y: (y * dy).clamp(-3, 3),
    ],
)
def test_what_scales_wrongly(monkeypatch, wrong):
    result = ask(monkeypatch, "softmax_backward", "scaling", wrong)
    assert result.state == "Fail.behaviour"
    assert result.message.endswith("dy times 2 does not give dx times 2")


def test_an_output_that_must_not_follow(monkeypatch):
    """dbias does not depend on x."""
    right = portable.layer_norm_backward

    def wrong(dy, x, weight=None, bias=None):
        dx, dweight, dbias = right(dy, x, weight, bias)
        return dx, dweight, dbias * (1.0 if x.abs().max() < 5 else 2.0)

    result = ask(monkeypatch, "layer_norm_backward", "scaling", wrong)
    assert result.message.endswith("x times 2 does not give the same dbias")


@pytest.mark.parametrize("op", ["softmax", "matmul", "linear", "layer_norm_backward"])
def test_operands_beyond_2_31_take_no_memory(op):
    before = resident()
    result = behaviour.run(behaviour.Behaviour(op, "beyond_2_31"), "torch", CPU)
    assert result.state == "Pass", result.message
    assert resident() - before < 200 << 20


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * mmap.PAGESIZE


def test_wrong_beyond_2_31(monkeypatch):
    def wrapped(a, b):
        return torch.zeros(64, 64, dtype=a.dtype) if b.stride(0) * 63 >= 2**31 else a @ b

    result = ask(monkeypatch, "matmul", "beyond_2_31", wrapped)
    assert result.message == "in bfloat16, elements beyond 2^31 are read wrongly"


def test_a_system_that_maps_no_such_memory(monkeypatch):
    def refused(*args, **flags):
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", refused)
    result = behaviour.run(behaviour.Behaviour("matmul", "beyond_2_31"), "torch", CPU)
    assert result.state == "NotSupported" and "maps no 4 GB of address space" in result.message


def bad(op):
    spec = registry.spec(op)
    good = {**behaviour.sample(spec, CPU, lead=5, size=16), **required_params(spec)[0]}
    good |= said_dtypes(spec, good)
    return list(bad_calls(spec, good))


@pytest.mark.parametrize("op", sorted(registry.op_folders()))
def test_every_op_has_bad_calls_of_every_kind(op):
    spec, calls = registry.spec(op), bad(op)
    kinds = {each.error for each in calls}
    expected = {errors.NotATensorError, errors.DtypeError, errors.SignatureError}
    ranked = any(not each.leading or each.rank > bool(each.squeeze) for each in spec.inputs.values())
    expected |= {errors.RankError} if ranked else set()
    sized = any(isinstance(dim, int) for each in spec.inputs.values() for dim in each.dims)
    expected |= {errors.ShapeError} if len(spec.inputs) > 1 or sized else set()
    expected |= {errors.ParameterError} if spec.params else set()
    expected |= {errors.OutputError} if spec.out else set()
    assert kinds == expected
    for each in calls:
        arguments = {name: value for name, value in each.arguments.items() if value is not MISSING}
        with pytest.raises(each.error, match=f"portable.{op}"):
            dispatcher.op(op)(**arguments)


@pytest.mark.parametrize(
    "wrong, said",
    [
        (lambda **given: torch.zeros(()), "a is a list: the call was taken, expected NotATensorError"),
        (lambda **given: given["a"] @ given["b"], "a is a list: expected NotATensorError, got TypeError"),
    ],
)
def test_what_is_not_refused(monkeypatch, wrong, said):
    result = ask(monkeypatch, "matmul", "bad_arguments", wrong)
    assert result.state == "Fail.behaviour" and said in result.message


def test_a_kernel_that_runs_before_the_error(monkeypatch):
    right = portable.matmul

    def late(**given):
        try:
            return right(**given)
        except errors.DtypeError:
            right(torch.ones(2, 2), torch.ones(2, 2))
            raise

    result = ask(monkeypatch, "matmul", "bad_arguments", late)
    assert result.message.endswith("a kernel ran before DtypeError was raised")


def test_an_error_that_names_no_op(monkeypatch):
    def silent(**given):
        raise errors.NotATensorError.__new__(errors.NotATensorError, "no")

    calls = iter([torch.ones(1)])
    monkeypatch.setattr(portable, "matmul", lambda **given: next(calls, None) or silent(), raising=False)
    result = behaviour.run(behaviour.Behaviour("matmul", "bad_arguments"), "torch", CPU)
    assert "the error does not name the op" in result.message


def test_an_exception_is_a_crash(monkeypatch):
    def broken(x):
        raise ZeroDivisionError("no")

    monkeypatch.setattr(portable, "softmax", broken, raising=False)
    result = behaviour.run(behaviour.Behaviour("softmax", "rows_alone"), "torch", CPU)
    assert result.state == "Crash" and "ZeroDivisionError" in result.message


@pytest.mark.parametrize(
    "op, name, state",
    [
        ("scaled_mm", "rows_alone", "NotSupported"),  # torch's promise nothing
        ("scaled_mm", "scaling", "Pass"),  # fp8 holds few powers of two
    ],
)
def test_products_in_fp8_are_asked_what_means_something_of_them(op, name, state):
    assert behaviour.run(behaviour.Behaviour(op, name), "torch", CPU).state == state

"""What `check` finds in a function's result, and beside it: memory it may not write, modes, indices."""

from __future__ import annotations

import pytest
import torch

from portable.conformance import check

from .check_norm import judged, norm, state

kept = torch.empty(3, 5, 33)


def test_arrays_are_taken():
    assert state(lambda x, weight: norm(x, weight).numpy()) == "Pass"
    assert state(lambda x, weight: norm(x, weight).numpy()[::-1, ::-1, ::-1]) == "Fail.value"
    assert state(lambda x, weight: (norm(x, weight),)) == "Pass"


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

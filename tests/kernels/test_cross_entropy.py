"""portable.cross_entropy against torch's, what it refuses, and targets outside the row."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import portable
from portable import errors
from portable.conformance.perf import baselines
from portable.dispatch import dispatcher
from portable.spec import registry

LOGITS = torch.randn(9, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
TARGET = torch.tensor([3, 0, -100, 39, 7, 7, -100, 12, 1])
WEIGHT = torch.linspace(0.0, 3.0, 40, dtype=torch.float64)


def gradient(loss, x):
    (found,) = torch.autograd.grad(loss.sum() if loss.dim() else loss, x)
    return found


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("smoothing", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("ignore_index", [-100, 7])
@pytest.mark.parametrize("weight", [None, WEIGHT])
def test_it_is_torch_s(reduction, smoothing, ignore_index, weight):
    target = TARGET.where(TARGET >= 0, ignore_index)
    params = {"reduction": reduction, "label_smoothing": smoothing, "ignore_index": ignore_index}
    params["weight"] = weight
    x, y = LOGITS.clone().requires_grad_(), LOGITS.clone().requires_grad_()
    got, expected = portable.cross_entropy(x, target, **params), F.cross_entropy(y, target, **params)
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(gradient(got, x), gradient(expected, y))


def test_ignored_rows_count_in_no_mean_and_are_not_read():
    broken = LOGITS.clone()
    broken[TARGET < 0] = torch.nan
    got, lse = portable.cross_entropy(broken, TARGET, return_lse=True)
    torch.testing.assert_close(got, F.cross_entropy(LOGITS[TARGET >= 0], TARGET[TARGET >= 0]))
    assert (lse[TARGET < 0] == 0).all()
    assert portable.cross_entropy(LOGITS, torch.full((9,), -100)).isnan(), "as torch's, 0 / 0"
    assert portable.cross_entropy(LOGITS, torch.full((9,), -100), reduction="sum") == 0


def test_weights_of_the_logits_dtype_or_of_float32():
    narrow, expected = LOGITS.bfloat16(), F.cross_entropy(LOGITS.bfloat16().float(), TARGET, WEIGHT.float())
    torch.testing.assert_close(portable.cross_entropy(narrow, TARGET, weight=WEIGHT.float()), expected)
    narrow_weight = WEIGHT.bfloat16()
    expected = F.cross_entropy(narrow.float(), TARGET, narrow_weight.float())
    torch.testing.assert_close(portable.cross_entropy(narrow, TARGET, weight=narrow_weight), expected)
    assert portable.cross_entropy(LOGITS, torch.zeros_like(TARGET), weight=WEIGHT).isnan(), (
        "as torch's, 0 / 0"
    )


def test_z_loss_is_not_weighted():
    plain, lse = portable.cross_entropy(LOGITS, TARGET, weight=WEIGHT, reduction="none", return_lse=True)
    found = portable.cross_entropy(LOGITS, TARGET, weight=WEIGHT, reduction="none", z_loss=0.5)
    torch.testing.assert_close(found, plain + 0.5 * lse.square())


def test_weights_have_no_gradient():
    weight = WEIGHT.clone().requires_grad_()
    loss = portable.cross_entropy(LOGITS, TARGET, weight=weight, reduction="sum")
    with pytest.raises(errors.UnsupportedGradientError, match="weight"):
        loss.backward()


def test_cap_z_loss_and_lse():
    def formula(x):
        scores = 3.0 * torch.tanh(x / 3.0)
        lse = torch.logsumexp(scores, -1)
        loss = F.cross_entropy(scores, TARGET, label_smoothing=0.1, reduction="none")
        kept = TARGET >= 0
        return (loss + 0.25 * lse.square() * kept).sum() / kept.sum(), lse * kept

    x, y = LOGITS.clone().requires_grad_(), LOGITS.clone().requires_grad_()
    params = {"label_smoothing": 0.1, "softcap": 3.0, "z_loss": 0.25, "return_lse": True}
    (loss, lse), (expected, of_rows) = portable.cross_entropy(x, TARGET, **params), formula(y)
    torch.testing.assert_close((loss, lse), (expected, of_rows))
    weight = torch.arange(9, dtype=torch.float64)
    torch.testing.assert_close(gradient(loss + lse @ weight, x), gradient(expected + of_rows @ weight, y))
    only_lse = portable.cross_entropy(x, TARGET, **params)[1]
    torch.testing.assert_close(gradient(only_lse @ weight, x), gradient(formula(y)[1] @ weight, y))


def test_targets_of_32_bits_and_losses_in_float32():
    narrow = LOGITS.bfloat16()
    loss = portable.cross_entropy(narrow, TARGET.int())
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, F.cross_entropy(narrow.float(), TARGET))


def outside():
    """Rows of NaN loss: 1 and 2. An address made of their targets would be far outside."""
    x = LOGITS[:4].float().requires_grad_()
    loss = portable.cross_entropy(x, torch.tensor([3, 2**40, -7, 0]), reduction="none")
    assert loss.isnan().tolist() == [False, True, True, False]
    assert gradient(loss, x).isnan().all(1).tolist() == [False, True, True, False]


def test_a_target_outside_the_row_is_nan():
    outside()


@pytest.mark.parametrize("implementation", ["cpp", "triton"])
def test_a_target_outside_the_row_is_nan_and_no_access(emulate, implementation):
    emulate("gfx942")  # which reports an access outside a tensor
    with portable.using(cross_entropy=implementation, cross_entropy_backward=implementation):
        outside()


@pytest.mark.parametrize("implementation", ["cpp", "triton"])
def test_an_index_beyond_32_bits_is_not_cut(emulate, implementation):
    """2^32 + 3 is no class, and its low word is one."""
    emulate("gfx942")
    with portable.using(cross_entropy=implementation):
        loss, _ = dispatcher.op("cross_entropy")(LOGITS[:1].float(), torch.tensor([2**32 + 3]))
    assert loss.isnan()


@pytest.mark.parametrize("implementation", ["cpp", "triton"])
@pytest.mark.parametrize("rows", [27, 40])  # vectors of 8 rows, the last one whole or not
@pytest.mark.parametrize("classes", [70, 4101])  # one launch, parts of the classes
def test_logits_whose_rows_lie_side_by_side(emulate, implementation, rows, classes):
    """The gradient is written over them, and over nothing else; each row is as where it lies alone. A target
    that is no class, or whose low word alone is one, makes its row NaN and no other."""
    emulate("gfx942")
    memory = torch.randn(classes, 48, generator=torch.Generator().manual_seed(5)).bfloat16()
    beside = memory[:, rows:].clone()
    logits = memory[:, :rows].mT
    target = torch.arange(rows) * 305 % classes
    target[4], target[9], target[11], target[12] = -100, classes, -1, 2**32 + 3
    target[5] = classes - 1
    params = {"ignore_index": -100, "label_smoothing": 0.1, "softcap": 4.0, "z_loss": 0.01}
    weight = torch.linspace(0.5, 2.0, classes)
    forward, backward = (dispatcher.op(name) for name in ("cross_entropy", "cross_entropy_backward"))
    dloss = torch.linspace(-1.0, 1.0, rows)
    with portable.using(cross_entropy=implementation, cross_entropy_backward=implementation):
        there = logits.contiguous()
        expected = forward(there, target, weight, **params)
        given = dloss, there, target, expected[1], dloss, weight, weight.mean().reshape(1)
        dlogits = backward(*given, **params)
        found = forward(logits, target, weight, **params)
        backward(given[0], logits, *given[2:], out=logits, **params)
    bad = torch.zeros(rows, dtype=torch.bool)
    bad[[9, 11, 12]] = True
    assert torch.equal(found[0].isnan(), bad) and torch.equal(logits.isnan().all(1), bad)
    for one, other in zip((*found, logits), (*expected, dlogits), strict=True):
        torch.testing.assert_close(
            one, other, equal_nan=True, rtol=1e-5 if one.dim() == 1 else 0.008, atol=1e-6
        )
    assert torch.equal(memory[:, rows:], beside)


def call(**params):
    return portable.cross_entropy(LOGITS, TARGET, **params)


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        (lambda: call(weight=torch.ones(40)), errors.DtypeError, "weight"),
        (lambda: call(weight=WEIGHT[1:]), errors.ShapeError, "weight"),
        (lambda: call(weight=2.0), errors.NotATensorError, "weight"),
        (lambda: call(reduction="avg"), errors.ParameterError, "'none'"),
        (lambda: portable.cross_entropy(LOGITS[None], TARGET[None]), errors.RankError, "flatten"),
        (lambda: portable.cross_entropy(LOGITS, TARGET[:3]), errors.ShapeError, "target"),
        (lambda: portable.cross_entropy(LOGITS, LOGITS[:, 0]), errors.DtypeError, "target"),
        (lambda: call(label_smoothing=1.5), errors.ParameterError, "0 to 1"),
        (lambda: call(softcap=0.0), errors.ParameterError, "above 0"),
        (lambda: portable.cross_entropy(input=LOGITS, target=TARGET), errors.SignatureError, "logits"),
    ],
)  # fmt: skip
def test_wrong_calls(wrong, error, words):
    with pytest.raises(error, match=words):
        wrong()


def test_a_gradient_over_the_logits():
    """`out=` may be the logits; not a part of them, nor the other way round."""
    backward = portable.cross_entropy_backward
    dloss, lse = torch.ones(9), LOGITS.float().logsumexp(1)
    expected = backward(dloss, LOGITS.float(), TARGET, lse)
    logits = LOGITS.float().clone()
    assert backward(dloss, logits, TARGET, lse, out=logits) is logits
    assert torch.equal(logits, expected)
    twice = torch.empty(18, LOGITS.shape[1])
    for logits, out in ((twice[:9], twice[1:10]), (twice[:9], twice[::2])):
        with pytest.raises(errors.OutputError, match="shares memory with argument 'logits'"):
            backward(dloss, logits, TARGET, lse, out=out)
    with pytest.raises(errors.OutputError, match="shares memory with argument 'dloss'"):
        column = torch.ones(9, 1)
        backward(column[:, 0], torch.zeros(9, 1), TARGET.clamp(max=0), lse, out=column)


PLAIN = {"ignore_index": -100, "label_smoothing": 0.0, "softcap": None, "z_loss": 0.0}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("given", [{}, {"label_smoothing": 0.1}, {"softcap": 3.0}, {"z_loss": 0.25}])
def test_the_baselines_compute_the_op(given, dtype):
    logits, params = LOGITS.to(dtype), {**PLAIN, **given}
    rows = torch.linspace(-1.0, 2.0, 9)
    weights = WEIGHT.float()
    torch_s = baselines.torch_function(registry.spec("cross_entropy"))
    for weight in (None, weights):
        outputs = dispatcher.op("cross_entropy")(logits, TARGET, weight, **params)
        assert baselines.difference(outputs, torch_s(logits, TARGET, weight, **params)) == ""
    backward = baselines.torch_function(registry.spec("cross_entropy_backward"))
    for dlse, weight in ((None, None), (rows.flip(0), None), (None, weights), (rows, weights)):
        mean = None if weight is None else weight.mean().reshape(1)
        inputs = rows, logits, TARGET, outputs[1], dlse, weight, mean
        expected = dispatcher.op("cross_entropy_backward")(*inputs, **params)
        assert baselines.difference([expected], backward(*inputs, **params)) == ""

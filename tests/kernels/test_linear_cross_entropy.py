"""portable.linear_cross_entropy against torch's linear and cross-entropy; what it keeps in memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import portable
from portable import errors
from portable.kernels.cross_entropy import linear_api

N, H, V = 11, 6, 40
SOURCE = torch.Generator().manual_seed(0)
X = torch.randn(N, H, generator=SOURCE, dtype=torch.float64)
WEIGHT = torch.randn(V, H, generator=SOURCE, dtype=torch.float64)
TARGET = torch.tensor([3, 0, -100, 39, 7, 7, -100, 12, 1, 5, 20])


def leaves():
    return X.clone().requires_grad_(), WEIGHT.clone().requires_grad_()


@pytest.mark.parametrize("chunk_rows", [1, 4, 11, None])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_it_is_torch_s(chunk_rows, reduction, label_smoothing):
    (x, w), (y, v) = leaves(), leaves()
    params = {"reduction": reduction, "label_smoothing": label_smoothing}
    got = portable.linear_cross_entropy(x, w, TARGET.int(), chunk_rows=chunk_rows, **params)
    expected = F.cross_entropy(y @ v.T, TARGET, **params)
    torch.testing.assert_close(got, expected)
    found = torch.autograd.grad(got.sum(), (x, w))
    torch.testing.assert_close(found, torch.autograd.grad(expected.sum(), (y, v)))


def test_cap_z_loss_and_the_gradient_of_lse():
    (x, w), (y, v) = leaves(), leaves()
    params = {"softcap": 2.0, "z_loss": 0.1, "return_lse": True}
    got = portable.linear_cross_entropy(x, w, TARGET, chunk_rows=4, **params)
    expected = portable.cross_entropy(y @ v.T, TARGET, **params)
    torch.testing.assert_close(got, expected)
    found = torch.autograd.grad(got[0] + got[1].sum(), (x, w))
    torch.testing.assert_close(found, torch.autograd.grad(expected[0] + expected[1].sum(), (y, v)))
    (only,) = torch.autograd.grad(portable.linear_cross_entropy(x, WEIGHT, TARGET, chunk_rows=4), x)
    torch.testing.assert_close(only, torch.autograd.grad(F.cross_entropy(y @ WEIGHT.T, TARGET), y)[0])


def test_weights_of_the_classes():
    (x, w), (y, v) = leaves(), leaves()
    weight = torch.linspace(0.0, 3.0, V, dtype=torch.float64)
    given = {"class_weight": weight, "label_smoothing": 0.1}
    got = portable.linear_cross_entropy(x, w, TARGET, chunk_rows=4, **given)
    expected = F.cross_entropy(y @ v.T, TARGET, weight, label_smoothing=0.1)
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(torch.autograd.grad(got, (x, w)), torch.autograd.grad(expected, (y, v)))
    loss = portable.linear_cross_entropy(x, w, TARGET, class_weight=weight.requires_grad_())
    with pytest.raises(errors.UnsupportedGradientError, match="class_weight"):
        loss.backward()


def test_sixteen_bits_add_up_in_float32():
    """A gradient of the weight that is a sum of many equal parts does not stop growing in bfloat16."""
    rows = 2048
    x = torch.ones(rows, 1, dtype=torch.bfloat16)
    w = torch.zeros(2, 1, dtype=torch.bfloat16, requires_grad=True)
    target = torch.zeros(rows, dtype=torch.int64)
    weights = torch.ones(2)  # with which the gradient of the weight is a sum of parts
    loss = portable.linear_cross_entropy(x, w, target, chunk_rows=1, reduction="sum", class_weight=weights)
    (dw,) = torch.autograd.grad(loss, w)
    assert dw.flatten().tolist() == [-rows / 2, rows / 2]


class Largest(TorchDispatchMode):
    """The elements of the largest tensor that anything makes."""

    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        tensors = [each for each in tree_leaves(made) if isinstance(each, torch.Tensor)]
        self.elements = max([self.elements, *(each.numel() for each in tensors)])
        return made


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_no_tensor_holds_all_logits(label_smoothing, monkeypatch):
    monkeypatch.setattr(linear_api, "CLASSES_AGAIN", 8)
    x, w = leaves()
    with Largest() as largest:
        portable.linear_cross_entropy(x, w, TARGET, chunk_rows=2, label_smoothing=label_smoothing).backward()
    assert H * V <= largest.elements <= max(2 * V, H * V) < N * V


@pytest.mark.parametrize("ignore_index", [-100, 3, 20])
@pytest.mark.parametrize("chunk_rows", [1, 4])
def test_rows_whose_logits_are_made_again_by_some_classes(chunk_rows, ignore_index, monkeypatch):
    """Five rows of eleven, in three products of 16 classes at most. A class may be the one to ignore, and the
    same number within the classes at hand another."""
    monkeypatch.setattr(linear_api, "MOST_CLASSES", 16)
    (x, w), (y, v) = leaves(), leaves()
    params = {"softcap": 2.0, "z_loss": 0.1, "return_lse": True, "ignore_index": ignore_index}
    target = TARGET.clamp(min=0)
    target[-3:] = torch.tensor([3, 19, 20])
    with Calls("portable::cross_entropy_backward") as calls:
        got = portable.linear_cross_entropy(x, w, target, chunk_rows=chunk_rows, **params)
        found = torch.autograd.grad(3.0 * got[0] + got[1].square().sum(), (x, w), retain_graph=True)
        again = torch.autograd.grad(3.0 * got[0] + got[1].square().sum(), (x, w))
    assert calls.count == 2 * (1 + 3)
    expected = portable.cross_entropy(y @ v.T, target, **params)
    torch.testing.assert_close(got, expected)
    wanted = torch.autograd.grad(3.0 * expected[0] + expected[1].square().sum(), (y, v))
    torch.testing.assert_close(found, wanted)
    assert all(torch.equal(one, other) for one, other in zip(found, again, strict=True))


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_rows_whose_logits_are_made_again_have_their_gradient_from_the_first(reduction, dtype, monkeypatch):
    """Five rows of eleven, in chunks of 2; 40 classes are three products of the weight's gradient."""
    monkeypatch.setattr(linear_api, "CLASSES_AGAIN", 16)
    (x, w), (y, v) = ([each.detach().to(dtype).requires_grad_() for each in leaves()] for _ in range(2))
    params = {"softcap": 2.0, "z_loss": 0.1, "reduction": reduction}
    with Calls("portable::matmul") as products:
        got = portable.linear_cross_entropy(x, w, TARGET, chunk_rows=2, **params)
    assert products.count == 1 + 3
    of_loss = (
        torch.linspace(-1.0, 3.0, N, dtype=got.dtype)
        if reduction == "none"
        else torch.tensor(3.0, dtype=got.dtype)
    )
    with Calls("portable::matmul") as products:
        found = torch.autograd.grad(got, (x, w), of_loss, retain_graph=True)
    assert products.count == 1 + 3 * 2
    expected = portable.cross_entropy(y.double() @ v.T.double(), TARGET, **params)
    wanted = torch.autograd.grad(expected, (y, v), of_loss.double())
    near: dict[str, Any] = {} if dtype == torch.float64 else {"rtol": 0.01, "atol": 0.02}
    torch.testing.assert_close(found, wanted, **near)
    torch.testing.assert_close(torch.autograd.grad(got, (x, w), of_loss), wanted, **near)


def test_rows_to_ignore_have_no_gradient_where_all_are():
    """A mean over none is NaN, and of no row is there a gradient."""
    x, w = leaves()
    loss = portable.linear_cross_entropy(x, w, torch.full((N,), -100), chunk_rows=2)
    loss.backward()
    assert x.grad is not None and w.grad is not None
    assert loss.isnan() and not x.grad.any() and not w.grad.any()


def test_a_target_outside_the_classes_is_nan_where_logits_are_made_again():
    x, w = leaves()
    target = TARGET.clone()
    target[-1] = V
    loss = portable.linear_cross_entropy(x, w, target, chunk_rows=1, reduction="none")
    (dx,) = torch.autograd.grad(loss.sum(), x)
    assert loss.isnan().tolist() == dx.isnan().any(1).tolist() == [False] * (N - 1) + [True]


class Made(TorchDispatchMode):
    """How many tensors of `size` elements anything makes."""

    def __init__(self, size):
        super().__init__()
        self.size, self.places = size, set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        tensors = [each for each in tree_leaves(made) if isinstance(each, torch.Tensor)]
        self.places |= {each.data_ptr() for each in tensors if each.numel() == self.size}
        return made


@pytest.mark.parametrize("params", [{}, {"return_lse": True}])
def test_the_gradient_of_the_logits_lies_over_them(params):
    """Of x alone; that of the weight as well lies there."""
    x, w = leaves()
    w.requires_grad_(False)
    result = portable.linear_cross_entropy(x, w, TARGET, **params) if params else None
    with Made(N * V) as made:
        loss = portable.linear_cross_entropy(x, w, TARGET) if result is None else result[0]
        loss.backward()
    assert len(made.places) == 1


@pytest.mark.parametrize("rows", [4, 8, 16, 21])
def test_the_logits_lie_in_the_gradient_of_the_weight(rows, monkeypatch):
    """Of as many rows as it has columns; only those of more rows have memory of their own. No tensor holds
    all logits, and a product takes some of the classes at a time."""
    monkeypatch.setattr(linear_api, "LEAST_CLASSES", 16)
    monkeypatch.setattr(linear_api, "GATHERED_ELEMENTS", 1)
    x = torch.randn(rows, 8, dtype=torch.float64, requires_grad=True)
    w = torch.randn(V, 8, dtype=torch.float64, requires_grad=True)
    target = torch.arange(rows) * 3 % V
    with Largest() as largest, Made(V * 8) as made:
        loss, lse = portable.linear_cross_entropy(x, w, target, return_lse=True, label_smoothing=0.1)
        (loss + lse.square().sum()).backward()
    assert w.grad is not None and w.grad.untyped_storage().nbytes() == V * 8 * 8
    assert w.grad.data_ptr() in made.places
    assert largest.elements <= V * max(8, rows - 8 + 7)
    y, v = (each.detach().clone().requires_grad_() for each in (x, w))
    logits = y @ v.T
    expected = F.cross_entropy(logits, target, label_smoothing=0.1) + logits.logsumexp(-1).square().sum()
    torch.testing.assert_close([x.grad, w.grad], list(torch.autograd.grad(expected, (y, v))))


def test_the_gradient_of_the_weight_by_some_classes_at_a_time(monkeypatch):
    monkeypatch.setattr(linear_api, "LEAST_CLASSES", 16)
    monkeypatch.setattr(linear_api, "GATHERED_ELEMENTS", 1)
    (x, w), (y, v) = leaves(), leaves()
    with Calls("portable::matmul") as calls:
        portable.linear_cross_entropy(x, w, TARGET).backward()
    assert calls.count == 2 + 2 + 3  # two blocks of rows, 40 classes
    F.cross_entropy(y @ v.T, TARGET).backward()
    torch.testing.assert_close([x.grad, w.grad], [y.grad, v.grad])


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
@pytest.mark.parametrize("chunk_rows", [N, N + 5])
def test_memory_for_all_logits_saves_copies_and_products(chunk_rows, label_smoothing):
    """Three products, and the gradient of the logits over them."""
    (x, w), (y, v) = leaves(), leaves()
    params = {"chunk_rows": chunk_rows, "label_smoothing": label_smoothing}
    with Calls("portable::linear") as linears, Calls("portable::matmul") as products, Made(N * V) as made:
        portable.linear_cross_entropy(x, w, TARGET, **params).backward()
    assert (linears.count, products.count, len(made.places)) == (1, 2, 1)
    F.cross_entropy(y @ v.T, TARGET, label_smoothing=label_smoothing).backward()
    torch.testing.assert_close([x.grad, w.grad], [y.grad, v.grad])


def test_gradients_of_one_graph_are_not_written_over_by_another_pass():
    """The first pass' gradient of the weight is the memory of its logits, which no later pass touches."""
    x, w = leaves()
    loss = portable.linear_cross_entropy(x, w, TARGET)
    (first,) = torch.autograd.grad(loss, w, retain_graph=True)
    kept = first.clone()
    (second,) = torch.autograd.grad(loss, w)
    assert torch.equal(first, kept) and torch.equal(second, kept) and second.data_ptr() != first.data_ptr()


def test_chunks_only_where_they_take_less_memory(monkeypatch):
    """Beside the gradient of the weight, which holds those of 6 rows, 30 rows of logits take no more than
    12, and what 3 * 6 would of sums and parts of the gradient."""
    monkeypatch.setattr(linear_api, "CHUNK_ELEMENTS", 12 * V)
    monkeypatch.setattr(linear_api, "_ROWS", 1)

    def chunks(rows, weight_s):
        x = torch.randn(rows, H).bfloat16().requires_grad_()
        w = torch.randn(V, H).bfloat16().requires_grad_(weight_s)
        with Calls("portable::cross_entropy") as calls:
            portable.linear_cross_entropy(x, w, torch.zeros(rows, dtype=torch.int64)).backward()
        return calls.count

    assert chunks(6, True) == 1
    assert chunks(36, True) == 2  # those in the gradient, and those beside it
    assert chunks(37, True) == 4
    assert chunks(24, False) == 2
    with torch.no_grad(), Calls("portable::linear") as calls:
        portable.linear_cross_entropy(torch.randn(24, H), torch.randn(V, H), torch.zeros(24).long())
    assert calls.count == 2


class Calls(TorchDispatchMode):
    """How often an op is called."""

    def __init__(self, name):
        super().__init__()
        self.name, self.count = name, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function.name().split(".")[0] == self.name
        return function(*args, **(kwargs or {}))


def test_the_gradients_of_one_number_are_made_with_the_loss_of_chunks():
    """Where smoothing counts all classes. The backward pass makes no logits; its gradients are those of the
    pass that makes them again."""
    x, w = (each.detach()[:, :2].float().requires_grad_() for each in leaves())
    params = {"chunk_rows": 8, "label_smoothing": 0.1}
    loss = portable.linear_cross_entropy(x, w, TARGET, **params)
    with Largest() as largest:
        found = torch.autograd.grad(loss, (x, w), retain_graph=True)
    assert largest.elements <= 2 * V < 8 * V
    again, _ = portable.linear_cross_entropy(x, w, TARGET, **params, return_lse=True)
    assert torch.equal(loss, again)
    with Largest() as largest:
        expected = torch.autograd.grad(again, (x, w))
    assert largest.elements == 8 * V
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    tripled = torch.autograd.grad(loss, (x, w), torch.tensor(3.0))
    assert all(torch.equal(one, 3.0 * other) for one, other in zip(tripled, found, strict=True))


@pytest.mark.parametrize("chunk_rows", [None, N])
@pytest.mark.parametrize("wanted", [(True, True), (True, False), (False, True)])
def test_a_second_backward_pass_makes_the_logits_again(wanted, chunk_rows):
    """The first one has written over them."""
    x, w = (each.detach().requires_grad_(on) for each, on in zip(leaves(), wanted, strict=True))
    some = [each for each in (x, w) if each.requires_grad]
    loss = portable.linear_cross_entropy(x, w, TARGET, chunk_rows=chunk_rows)
    with Calls("portable::linear") as linears, Calls("portable::matmul") as products:
        first = torch.autograd.grad(loss, some, retain_graph=True)
    before = linears.count + products.count
    for factor in (1.0, 3.0):
        with Calls("portable::linear") as linears, Calls("portable::matmul") as products:
            again = torch.autograd.grad(loss, some, torch.tensor(factor, dtype=loss.dtype), retain_graph=True)
        in_gradient = wanted[1] and chunk_rows is None  # some rows' there, the others' beside it
        assert linears.count + products.count == before + (2 if in_gradient else 1)
        for one, other in zip(first, again, strict=True):
            torch.testing.assert_close(factor * one, other)


def test_float16_gradients_know_their_scale():
    """Of a mean of 1024 losses over 10000 classes each is 1e-7, which float16 does not hold unscaled."""
    x = torch.randn(1024, 8, generator=torch.Generator().manual_seed(1)).half()
    w = torch.zeros(10000, 8, dtype=torch.float16, requires_grad=True)
    loss = portable.linear_cross_entropy(x, w, torch.arange(1024)) * 65536.0
    (dw,) = torch.autograd.grad(loss, w)
    expected = x.double().sum(0) * 65536.0 / 1024 / 10000  # of a class that no row has
    assert ((dw[1024:].double() - expected).abs() <= 0.01 * expected.abs().max()).all()


def test_no_rows():
    x = torch.empty(0, H, requires_grad=True)
    w = WEIGHT.float().requires_grad_()
    loss = portable.linear_cross_entropy(x, w, TARGET[:0], reduction="sum")
    loss.backward()
    assert loss == 0 and x.grad is not None and w.grad is not None and (w.grad == 0).all()


def test_autocast_lowers_both_passes():
    x, w = X.float().requires_grad_(), WEIGHT.float().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = portable.linear_cross_entropy(x, w, TARGET, chunk_rows=4)
    lower = [each.detach().bfloat16().requires_grad_() for each in (x, w)]
    expected = portable.linear_cross_entropy(*lower, TARGET, chunk_rows=4)
    assert torch.equal(loss, expected)
    got, want = torch.autograd.grad(loss, (x, w)), torch.autograd.grad(expected, lower)
    assert all(torch.equal(one, other.float()) for one, other in zip(got, want, strict=True))


def call(**params):
    return portable.linear_cross_entropy(X, WEIGHT, TARGET, **params)


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        (lambda: portable.linear_cross_entropy(X, WEIGHT[:, 1:], TARGET), errors.ShapeError, "weight"),
        (lambda: portable.linear_cross_entropy(X, WEIGHT, TARGET[1:]), errors.ShapeError, "target"),
        (lambda: portable.linear_cross_entropy(X[None], WEIGHT, TARGET), errors.RankError, "'x'"),
        (lambda: portable.linear_cross_entropy(X, WEIGHT.float(), TARGET), errors.DtypeError, "weight"),
        (lambda: call(class_weight=torch.ones(V)), errors.DtypeError, "class_weight"),
        (lambda: call(class_weight=X[0]), errors.ShapeError, "class_weight"),
        (lambda: call(chunk_rows=0), errors.ParameterError, "1 on"),
        (lambda: call(reduction=""), errors.ParameterError, "'sum'"),
    ],
)
def test_wrong_calls(wrong, error, words):
    with pytest.raises(error, match=words):
        wrong()

"""embedding and index_add against torch's: values, gradients, indices that lie outside, wrong calls."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import portable
from portable import errors
from portable.kernels._lib.plans.segmented_sum_plan import PART
from portable.kernels._lib.segments import segments
from portable.plan import Call, Device, TensorInfo

from .plan_parts import accepted, planner

GENERATOR = torch.Generator().manual_seed(0)
WEIGHT = torch.randn(7, 5, generator=GENERATOR, dtype=torch.float64)
INDEX = torch.randint(7, (3, 4), generator=GENERATOR)


@pytest.mark.parametrize("padding_idx", [None, 0, 2, -1])
@pytest.mark.parametrize("index", [INDEX, INDEX.int(), INDEX[:0], INDEX[0, 0], INDEX.T])
def test_values_and_gradients_are_torch_s(index, padding_idx):
    ours, theirs = WEIGHT.clone().requires_grad_(), WEIGHT.clone().requires_grad_()
    got, expected = portable.embedding(index, ours, padding_idx), F.embedding(index, theirs, padding_idx)
    assert torch.equal(got, expected)
    scale = torch.arange(got.numel(), dtype=torch.float64).view(got.shape) + 1
    (got * scale).sum().backward()
    (expected * scale).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_it_takes_the_place_of_torch_s_in_a_module(monkeypatch):
    layer = torch.nn.Embedding(7, 5, padding_idx=1)
    expected = layer(INDEX)
    monkeypatch.setattr(F, "embedding", portable.embedding)
    assert torch.equal(layer(INDEX), expected)


def test_what_lies_outside_is_nan_and_has_no_gradient():
    weight = WEIGHT.clone().requires_grad_()
    y = portable.embedding(torch.tensor([7, -1, 3, -(2**63)]), weight)
    assert y.isnan().all(1).tolist() == [True, True, False, True]
    y.sum().backward()
    assert weight.grad is not None and weight.grad.sum(1).tolist() == [0, 0, 0, 5, 0, 0, 0]


def test_the_weight_may_change_before_the_backward_pass():
    weight = WEIGHT.clone().requires_grad_()
    y = portable.embedding(INDEX, weight)
    with torch.no_grad():
        weight.add_(1)
    y.sum().backward()
    assert weight.grad is not None and weight.grad.sum() == y.numel()


def test_a_sum_of_16_bits_is_rounded_once():
    """Ones beyond 256, which bfloat16 does not count one by one."""
    weight = torch.zeros(3, 2, dtype=torch.bfloat16, requires_grad=True)
    portable.embedding(torch.ones(1000, dtype=torch.int64), weight).sum().backward()
    assert weight.grad is not None and weight.grad[1].tolist() == [1000, 1000]
    large = torch.full((2, 2), 6e4).half()
    found = portable.index_add(torch.ones(3, 2).half(), 0, torch.tensor([1, 1]), large, alpha=0.5)
    assert found[1].tolist() == [60000, 60000]


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("alpha", [1, -0.5])
def test_index_add_is_torch_s(dim, alpha):
    shape = [4, 6, 5]
    shape[dim] = 9
    pairs = []
    for add in (portable.index_add, torch.index_add):
        generator = torch.Generator().manual_seed(1)
        x, source = (
            torch.randn(each, generator=generator, dtype=torch.float64).requires_grad_()
            for each in ((4, 6, 5), shape)
        )
        y = add(x, dim, torch.tensor([0, 3, 3, 1, 3, 0, 2, 2, 3]), source, alpha=alpha)
        y.square().sum().backward()
        pairs.append((y, x.grad, source.grad))
    for got, expected in zip(*pairs, strict=True):
        torch.testing.assert_close(got, expected)


def test_index_add_of_vectors_scalars_and_nothing():
    x = torch.arange(4.0)
    at = torch.tensor([3, 0, 3], dtype=torch.int32)
    for args in ((x, 0, at, torch.ones(3)), (x, -1, at[:0], torch.ones(0)), (x, 0, at[0], torch.ones(1))):
        assert torch.equal(portable.index_add(*args), torch.index_add(*args))
    for shape in ((0,), (0, 3), (4, 0)):
        empty = torch.ones(shape)
        got = portable.index_add(empty, 0, at[:0], torch.ones(0, *shape[1:]))
        assert got.shape == empty.shape and got is not empty
    one = torch.tensor(2.0)
    got = portable.index_add(one, 0, torch.tensor([0]), torch.tensor(3.0), alpha=2)
    assert torch.equal(got, torch.tensor(8.0))


def test_index_add_leaves_out_what_lies_outside():
    source = torch.tensor([[1.0], [2.0], [4.0], [8.0]]).repeat(1, 2).requires_grad_()
    y = portable.index_add(torch.zeros(3, 2), 0, torch.tensor([-1, 2, 3, 2]), source)
    assert y[:, 0].tolist() == [0, 0, 10]
    y.sum().backward()
    assert source.grad is not None and source.grad[:, 0].tolist() == [0, 1, 0, 1]


def test_segments_are_the_tokens_of_each_row_in_order():
    index = torch.tensor([4, -3, 1, 4, 9, 1, 0, 4])
    order, starts, ends = segments(index, 6)
    found = [order[a:b].tolist() for a, b in zip(starts, ends, strict=True)]
    assert found == [[6], [2, 5], [], [], [0, 3, 7], []]


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        (lambda: portable.embedding(INDEX, WEIGHT, 7), errors.ParameterError, "from -V to V - 1"),
        (lambda: portable.embedding(INDEX, WEIGHT, None, 1.0), errors.ParameterError, "max_norm"),
        (lambda: portable.embedding(INDEX, WEIGHT, sparse=True), errors.ParameterError, "sparse"),
        (
            lambda: portable.embedding(INDEX, WEIGHT, scale_grad_by_freq=True),
            errors.ParameterError,
            "scale_grad_by_freq",
        ),
        (lambda: portable.embedding(INDEX.float(), WEIGHT), errors.DtypeError, "input"),
        (lambda: portable.embedding(WEIGHT, INDEX), errors.DtypeError, "input"),
        (lambda: portable.embedding(INDEX, WEIGHT[0]), errors.RankError, "weight"),
        (lambda: portable.embedding(indices=INDEX, weight=WEIGHT), errors.SignatureError, "Here it is input"),
        (lambda: portable.index_add(WEIGHT, 2, INDEX[0], WEIGHT[:4]), errors.ParameterError, "from -2 to 1"),
        (lambda: portable.index_add(WEIGHT, 0.0, INDEX[0], WEIGHT[:4]), errors.ParameterError, "dim"),
        (lambda: portable.index_add(WEIGHT, 0, INDEX, WEIGHT), errors.RankError, "index"),
        (
            lambda: portable.index_add(WEIGHT, 0, INDEX[0].float(), WEIGHT[:4]),
            errors.DtypeError,
            "index.long",
        ),
        (lambda: portable.index_add(WEIGHT, 0, INDEX[0], WEIGHT[:3]), errors.ShapeError, r"\(4, 5\)"),
        (lambda: portable.index_add(WEIGHT, 0, INDEX[0], WEIGHT[:4].float()), errors.DtypeError, "source"),
        (lambda: portable.index_add(WEIGHT, 0, [0], WEIGHT[:1]), errors.NotATensorError, "index"),
        (lambda: portable.index_add(self=WEIGHT), errors.SignatureError, "Here it is input"),
    ],
)
def test_wrong_calls(wrong, error, words):
    with pytest.raises(error, match=words):
        wrong()


def test_torch_s_operators_run_them():
    weight = WEIGHT.float().requires_grad_()
    with portable.aten(["embedding", "embedding_dense_backward", "index_add"]) as found:
        F.embedding(INDEX, weight, padding_idx=2).sum().backward()
        added = torch.index_add(weight.detach(), 1, torch.tensor([1, 1]), torch.ones(7, 2), alpha=2)
    expected = torch.bincount(INDEX.flatten(), minlength=7).float()
    expected[2] = 0
    assert weight.grad is not None and torch.equal(weight.grad[:, 0], expected)
    torch.testing.assert_close(added[:, 1], weight.detach()[:, 1] + 4)
    assert all(count == 1 for count in found.taken.values()) and len(found.taken) == 3


def test_a_scaled_gradient_is_left_to_torch():
    weight = WEIGHT.float().requires_grad_()
    with portable.aten(["embedding_dense_backward"]) as found:
        F.embedding(INDEX, weight, scale_grad_by_freq=True).sum().backward()
    assert weight.grad is not None and weight.grad.max() == 1
    assert not found.taken and "scaled" in str(found)


@pytest.mark.parametrize("implementation", ["cpp", "triton"])
def test_a_row_s_gradient_does_not_depend_on_other_tokens(emulate, implementation):
    """Of a row of three parts, among tokens of others and alone; rounded once."""
    emulate("gfx942")
    generator = torch.Generator().manual_seed(2)
    index = torch.where(torch.rand(300, generator=generator) < 0.5, 3, torch.arange(300) % 20)
    dy = (torch.randn(300, 40, generator=generator) * 100).bfloat16()
    weight = torch.zeros(20, 40, dtype=torch.bfloat16, requires_grad=True)

    def gradient(which):
        y = portable.embedding(index[which], weight)
        return torch.autograd.grad(y, weight, dy[which])[0]

    with portable.using(embedding=implementation, embedding_backward=implementation):
        own = index == 3
        assert own.sum() > 2 * PART
        together = gradient(torch.ones(300, dtype=torch.bool))
        assert torch.equal(gradient(own)[3], together[3])
        assert torch.equal(gradient(own | (torch.arange(300) > 99))[3], together[3])
    expected = torch.zeros(20, 40, dtype=torch.float64).index_add(0, index, dy.double())
    torch.testing.assert_close(together, expected.bfloat16())


def planned(tokens, length, dtype="bfloat16", alignment=16):
    def info(shape, kind, alignment=16):
        return TensorInfo(shape, (shape[1], 1) if len(shape) > 1 else (1,), kind, alignment)

    tensors = {name: info((tokens,), "int64") for name in ("index", "order")}
    tensors |= {name: info((50,), "int64") for name in ("starts", "ends")}
    tensors |= {"dy": info((tokens, length), dtype, alignment), "dweight": info((50, length), dtype)}
    axes = {"V": 50, "M": tokens, "N": length}
    device = Device("cuda", "sm_90a", "H200", multiprocessors=132)
    return accepted(planner("embedding_backward")(Call(tensors, {"padding_idx": -1}, axes, device, {})))


def test_parts_are_added_first_only_where_a_row_may_have_several():
    assert [each.kernel.name for each in planned(PART, 64).launches] == ["segment_sums"]
    plan = planned(PART + 1, 64)
    assert [each.kernel.name for each in plan.launches] == ["segment_parts", "segment_sums"]
    assert plan.workspaces[0].shape == (4, 64)


def test_rows_of_a_model_are_one_block_s_and_unaligned_ones_are_scalars():
    def kind(*args, **changes):
        (launch,) = planned(*args, **changes).launches
        defines = dict(launch.kernel.defines)
        return defines["VEC"], defines["CHUNKS"], launch.grid[0]

    assert kind(8, 4096) == (8, 2, 50) and kind(8, 4096, "float32") == (4, 2, 100)
    assert kind(8, 64) == (8, 1, 2) and kind(8, 4100)[0] == 1 and kind(8, 4096, alignment=2)[0] == 1

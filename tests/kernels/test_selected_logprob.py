"""portable.selected_logprob against torch's log_softmax, masked classes, indices outside the row."""

from __future__ import annotations

import itertools

import pytest
import torch

import portable
from portable import errors
from portable.plan import Call, Device, TensorInfo
from portable.spec import registry
from tests.kernels.plan_parts import constants, launch_of, planner

LOGITS = torch.randn(6, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
INDEX = torch.tensor([3, 0, 39, 7, 7, 12])


def by_torch(x, index, temperature):
    logp = torch.log_softmax(x / temperature, -1)
    return logp.gather(-1, index[:, None])[:, 0], -(logp.exp() * logp).sum(-1)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_values_and_gradients_are_torch_s(temperature):
    x, y = LOGITS.clone().requires_grad_(), LOGITS.clone().requires_grad_()
    got = portable.selected_logprob(x, INDEX.int(), temperature=temperature)
    expected = by_torch(y, INDEX, temperature)
    torch.testing.assert_close(got, expected)
    weight = torch.arange(12, dtype=torch.float64).view(2, 6)
    for pick in ([0], [1], [0, 1]):
        one, other = (
            sum((each[i] @ weight[i] for i in pick), start=torch.zeros(())) for each in (got, expected)
        )
        (dx,), (dy,) = (
            torch.autograd.grad(loss, leaf, retain_graph=True) for loss, leaf in ((one, x), (other, y))
        )
        torch.testing.assert_close(dx, dy)


def test_masked_classes_add_nothing_to_the_entropy_nor_to_its_gradient():
    """torch's formula gives NaN: 0 * -inf."""
    hidden = LOGITS.clone()
    hidden[:, 20:] = -torch.inf
    index = INDEX % 20
    x = hidden.requires_grad_()
    logprob, entropy = portable.selected_logprob(x, index)
    torch.testing.assert_close((logprob, entropy), by_torch(LOGITS[:, :20], index, 1.0))
    (dx,) = torch.autograd.grad(entropy.sum(), x)
    assert dx.isfinite().all() and (dx[:, 20:] == 0).all()


def outside():
    x = LOGITS[:4].float().requires_grad_()
    logprob, entropy = portable.selected_logprob(x, torch.tensor([3, 2**40, -100, 0]))
    assert logprob.isnan().tolist() == [False, True, True, False] and entropy.isfinite().all()
    (dx,) = torch.autograd.grad(logprob.sum(), x)
    assert dx.isnan().all(1).tolist() == [False, True, True, False]


def test_an_index_outside_the_row_is_nan():
    outside()


@pytest.mark.parametrize("implementation", ["cpp", "triton"])
def test_an_index_outside_the_row_is_nan_and_no_access(emulate, implementation):
    emulate("gfx942")  # which reports an access outside a tensor
    with portable.using(selected_logprob=implementation, selected_logprob_backward=implementation):
        outside()


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        (lambda: portable.selected_logprob(LOGITS, INDEX, temperature=0.0), errors.ParameterError, "above 0"),
        (lambda: portable.selected_logprob(LOGITS[None], INDEX[None]), errors.RankError, "flatten"),
        (lambda: portable.selected_logprob(LOGITS, INDEX[:3]), errors.ShapeError, "index"),
        (lambda: portable.selected_logprob(LOGITS, LOGITS[:, 0]), errors.DtypeError, "index"),
    ],
)
def test_wrong_calls(wrong, error, words):
    with pytest.raises(error, match=words):
        wrong()


@pytest.mark.parametrize("columns", [1, 16, 500, 1024, 4096, 70000])
@pytest.mark.parametrize("vendor, arch, warp", [("rocm", "gfx942", 64), ("cuda", "sm_90a", 32)])
def test_a_tile_has_neighbours_for_every_lane(vendor, arch, warp, columns):
    """Of every tile that `portable tune` may try: 1,024 elements had fewer than eight for each of 256."""
    spec = registry.spec("selected_logprob")
    found = spec.implementation("triton")
    assert found is not None
    for tile, elements in itertools.product(*(found.tunables[name] for name in ("TILE", "ELEMENTS"))):
        tensors = {"logits": TensorInfo((5, columns), (columns, 1), "bfloat16", 16)}
        tensors["index"] = TensorInfo((5,), (1,), "int64", 16)
        tensors |= {name: TensorInfo((5,), (1,), "float32", 16) for name in spec.outputs}
        device, config = Device(vendor, arch, "toy", warp_size=warp), {"TILE": tile, "ELEMENTS": elements}
        made = planner("selected_logprob", "triton")(Call(tensors, {"temperature": 1.0}, {}, device, config))
        fixed = constants(launch_of(made))
        assert fixed["BLOCK"] % (fixed["LANES"] * fixed["UNIT"]) == 0
        assert fixed["BLOCK"] >= fixed["LANES"] * fixed["UNIT"] >= fixed["UNIT"]

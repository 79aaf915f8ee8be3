"""Calls that record a gradient, and what a call seen before costs: which comparisons it gets by with."""

from __future__ import annotations

import threading

import pytest
import torch
import torch.nn.functional as F

import portable
from portable.dispatch import dispatcher, fast_path
from portable.dispatch import pins as settings
from portable.errors import ParameterError, UnsupportedGradientError


def leaf(*shape: int, wanted: bool = True) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, dtype=torch.float64, generator=generator, requires_grad=wanted)


CALLS = {
    "rms_norm": (portable.rms_norm, lambda x, w: F.rms_norm(x, (6,), w, 1e-6), ((3, 6), (6,))),
    "layer_norm": (portable.layer_norm, lambda x, w, b: F.layer_norm(x, (6,), w, b), ((3, 6), (6,), (6,))),
    "swiglu": (portable.swiglu, lambda g, u: F.silu(g) * u, ((3, 6), (3, 6))),
    "linear": (portable.linear, F.linear, ((2, 3, 6), (4, 6), (4,))),
    "matmul": (portable.matmul, torch.matmul, ((2, 3, 6), (6, 4))),
}


@pytest.mark.parametrize("name", CALLS)
def test_each_choice_of_inputs_gets_its_gradients(name):
    ours, theirs, shapes = CALLS[name]
    for chosen in range(1, 2 ** len(shapes)):
        wanted = [bool(chosen >> i & 1) for i in range(len(shapes))]
        tensors = [leaf(*shape, wanted=each) for shape, each in zip(shapes, wanted, strict=True)]
        leaves = [t for t in tensors if t.requires_grad]
        y, expected = ours(*tensors), theirs(*tensors)
        seen = []
        y.grad_fn.register_hook(lambda grads, _, seen=seen: seen.append([g is not None for g in grads]))
        dy = leaf(*y.shape, wanted=False)
        torch.testing.assert_close(
            torch.autograd.grad(y, leaves, dy), torch.autograd.grad(expected, leaves, dy, retain_graph=True)
        )
        assert seen == [wanted]
        only = torch.autograd.grad(ours(*tensors), leaves[0], dy)
        torch.testing.assert_close(only, torch.autograd.grad(expected, leaves[0], dy))


@pytest.mark.parametrize("name", CALLS)
def test_the_gradient_of_a_result_may_lie_in_any_way(name):
    ours, _, shapes = CALLS[name]
    tensors = [leaf(*shape) for shape in shapes]
    y = ours(*tensors)
    whole = leaf(*y.shape, wanted=False)
    for dy in (whole.mT.contiguous().mT, torch.ones((), dtype=y.dtype).expand(y.shape), whole.flip(0)):
        found = torch.autograd.grad(y, tensors, dy, retain_graph=True)
        torch.testing.assert_close(found, torch.autograd.grad(y, tensors, dy.contiguous(), retain_graph=True))


def test_pins_of_the_call_hold_in_its_backward_pass_in_any_thread():
    """By the internal op and by a formula that a file has."""
    for name, inner in (("softmax", "softmax_backward"), ("activation", "activation_backward")):
        op, x = dispatcher.op(inner), leaf(3, 5)
        op.clear_caches()
        with portable.using(**{name: "torch"}):
            held = settings.active_pins()
            y = portable.softmax(x) if name == "softmax" else portable.activation(x, "silu")
        worker = threading.Thread(target=lambda y=y: y.sum().backward())
        worker.start()
        worker.join()
        assert x.grad is not None and settings.active_pins() is not held
        assert [key[0] for key in op.plan_cache] == [held]


def test_an_input_without_gradient_is_refused_in_the_backward_pass():
    logits, target, weight = leaf(3, 5), torch.tensor([0, 1, 2]), leaf(5)
    loss, _ = dispatcher.op("cross_entropy")(logits, target, weight)
    with pytest.raises(UnsupportedGradientError, match="'weight' has none"):
        loss.sum().backward()
    loss, _ = dispatcher.op("cross_entropy")(logits, target, weight.detach())
    loss.sum().backward()


def test_a_gradient_can_be_differentiated_again():
    x, w = leaf(3, 6), leaf(6)
    assert torch.autograd.gradgradcheck(portable.rms_norm, (x, w))
    assert torch.autograd.gradgradcheck(portable.cross_entropy, (x, torch.tensor([0, 5, 2])))


def test_a_backward_pass_takes_several_gradients_at_once():
    x, w = leaf(3, 6), leaf(6)
    several = torch.stack([torch.full((3, 6), float(i), dtype=x.dtype) for i in range(4)])
    y = portable.rms_norm(x, w)
    found = torch.autograd.grad(y, (x, w), several, is_grads_batched=True, retain_graph=True)
    one_by_one = [torch.autograd.grad(y, (x, w), dy, retain_graph=True) for dy in several]
    torch.testing.assert_close(found, tuple(map(torch.stack, zip(*one_by_one, strict=True))))


class Counted(dict):
    """A cache that counts how often it is asked."""

    asked = 0

    def get(self, *key):
        self.asked += 1
        return super().get(*key)


@pytest.fixture
def counted(monkeypatch):
    def of(name: str) -> Counted:
        op = dispatcher.op(name)
        op.clear_caches()
        cache = Counted()
        monkeypatch.setattr(op, "guard_cache", cache)
        return cache

    yield of
    for op in dispatcher._ops.values():
        op.clear_caches()


def test_calls_that_come_in_the_same_order_again_need_no_key(counted):
    cache = counted("softmax")
    tensors = [torch.randn(n, 4) for n in (2, 3, 5)]
    for time in range(6):
        for x in tensors:
            torch.testing.assert_close(portable.softmax(x), x.softmax(-1))
        if time == 2:
            cache.asked = 0
    assert cache.asked == 0
    portable.softmax(tensors[2])  # another order
    assert cache.asked == 1


def test_an_absent_input_needs_no_key(counted):
    cache = counted("rms_norm")
    x, w = torch.randn(3, 4), torch.randn(4)
    for weight in (None, w):
        for _ in range(3):
            asked = cache.asked
            torch.testing.assert_close(portable.rms_norm(x, weight), F.rms_norm(x, (4,), weight, 1e-6))
        assert cache.asked == asked


def test_a_parameter_is_compared_by_its_value_and_type(counted):
    cache = counted("rms_norm")
    x = torch.randn(3, 4)
    for _ in range(4):
        asked = cache.asked
        portable.rms_norm(x, eps=float("1.0"))  # another object each time
    assert cache.asked == asked
    with pytest.raises(ParameterError, match="eps"):
        portable.rms_norm(x, eps=True)


def test_a_cleared_op_expects_no_call():
    op = dispatcher.op("softmax")
    for _ in range(3):
        portable.softmax(torch.randn(2, 4))
    assert op.following[0][-1] is not None
    op.clear_caches()
    assert op.following[0][-1] is None


def test_an_op_by_position_is_the_op():
    x, w = torch.randn(3, 4), torch.randn(4)
    call = fast_path.by_position(dispatcher.op("rms_norm"))
    assert torch.equal(call(x, w, 1e-3, 1.0, False), portable.rms_norm(x, w, eps=1e-3, weight_offset=1.0))
    product = fast_path.by_position(dispatcher.op("matmul"))
    assert torch.equal(product(x, x.mT, "ieee"), portable.matmul(x, x.mT))
    with pytest.raises(ParameterError, match="precision"):
        product(x, x.mT, "tf16")


class Launch:
    """A launch that notes the addresses it is given, in the order of its pointers."""

    name, encoded = "noted", ()

    def __init__(self, *slots: int):
        self.pointers, self.local = list(enumerate(slots)), threading.local()
        self.seen: list[tuple[list[int], int]] = []

    def thread_state(self):
        slots = [0] * len(self.pointers)
        state = bytearray(), slots, lambda stream: self.seen.append((list(slots), stream))
        self.local.thread_state = state
        return state


class OneGpu:
    empty = staticmethod(
        lambda shape, strides, dtype: torch.empty_strided(shape, strides, dtype=dtype, device="cpu")
    )
    stream, current, on = staticmethod(lambda index: 7), staticmethod(lambda: 0), None
    count = staticmethod(lambda: 1)


def test_several_launches_share_new_tensors_and_workspaces():
    """Slots: two inputs, two results, a workspace."""
    first, second = Launch(0, 4), Launch(4, 1, 2, 3)
    new = [((2, 3), (3, 1), torch.float32), ((3,), (1,), torch.bfloat16)], [((8,), (1,), torch.float32)]
    run = fast_path.from_addresses([first, second], 2, *new, OneGpu, 0)  # type: ignore[arg-type]
    y, z = run(111, 222)
    assert y.shape == (2, 3) and z.dtype is torch.bfloat16
    ((at, space), stream), ((again, *others), _) = first.seen[0], second.seen[0]
    assert at == 111 and stream == 7 and space == again
    assert others == [222, y.data_ptr(), z.data_ptr()]
    run(1, 2)
    assert len(first.seen) == 2 and first.seen[1][0][0] == 1

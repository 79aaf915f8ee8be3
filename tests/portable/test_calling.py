"""The shortcut of a call seen before: what may pass it, and that all else is answered as the first time."""

from __future__ import annotations

import gc
import pickle
import subprocess
import sys
import traceback
import warnings
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import portable
from portable import errors
from portable.dispatch import dispatcher, fast_path
from portable.spec import registry

OPS = sorted(registry.op_folders())


@pytest.fixture(params=["torch's guards", "keys alone"])
def softmax(request, monkeypatch):
    """The op with nothing known of it, with and without what torch may cease to offer."""
    if request.param == "keys alone":
        monkeypatch.setattr(fast_path, "_guards", None)
    op = dispatcher.op("softmax")
    op.clear_caches()
    yield op
    op.clear_caches()


@pytest.fixture
def counted(softmax, monkeypatch):
    """The op, and a list that grows by each call that was no shortcut."""
    seen = []
    answer = softmax.dispatch_slow
    monkeypatch.setattr(softmax, "dispatch_slow", lambda *a: seen.append(a) or answer(*a))
    return softmax, seen


def expected(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    return torch.softmax(x, dim)


def test_a_call_seen_before_takes_the_shortcut(counted):
    op, seen = counted
    x, y, z = torch.randn(3, 4), torch.randn(5, 4), torch.randn(3, 4, requires_grad=True)
    for _ in range(3):
        for given in (x, y, z, x + 1, x):
            torch.testing.assert_close(op(given), expected(given))
    assert len(seen) == 3
    assert op(z).requires_grad and not op(z.detach()).requires_grad


def test_what_differs_in_one_thing_is_another_call(softmax):
    x = torch.randn(4, 4)
    buffer = torch.randn(17)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        given = [
            x,
            x.double(),
            x.half(),
            x.T,
            x[:2],
            x[:, :2],
            x[None],
            buffer[1:].view(4, 4),
            torch.ops.aten._neg_view(x),
            torch.nn.Parameter(x.clone()),
            x.clone().requires_grad_(),
            torch.randn(4, 4).expand(4, 4),
            x[:0],
        ]
    for _ in range(2):
        for one in given:
            softmax(x)
            got = softmax(one)
            torch.testing.assert_close(got, expected(one))
            assert got.requires_grad == one.requires_grad
    assert softmax(torch.empty(4, 4, device="meta")).is_meta


def test_parameters_are_told_apart_by_value_and_type(softmax):
    x = torch.randn(3, 3)
    for _ in range(2):
        for dim in (-1, 0, 1, -2):
            torch.testing.assert_close(softmax(x, dim), expected(x, dim))
            torch.testing.assert_close(softmax(x, dim=dim), expected(x, dim))
        for wrong in (True, 1.0, None, "1", [1], torch.ones(1), float("nan"), ..., object()):
            with pytest.raises(errors.ParameterError, match="dim"):
                softmax(x, wrong)


def test_what_is_no_plain_tensor_is_refused_or_converted_as_ever(softmax):
    x = torch.randn(3, 4)
    softmax(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nested = torch.nested.nested_tensor([x, x])
        for wrong in (nested, x.to_sparse(), x.to_sparse_csr(), x.to_mkldnn()):
            with pytest.raises(errors.LayoutError):
                softmax(wrong)
    for wrong in (None, [1.0], 3, "x"):
        with pytest.raises(errors.NotATensorError):
            softmax(wrong)
    with pytest.raises(errors.SignatureError, match="needs 'x'"):
        softmax()
    with pytest.raises(errors.SignatureError, match="got 'dim' twice"):
        softmax(x, -1, dim=-1)
    import numpy

    assert isinstance(softmax(numpy.ones((2, 3), numpy.float32)), numpy.ndarray)


class Loud(torch.Tensor):
    """A subclass that sees what is called on it."""

    seen: ClassVar[list[str]] = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.seen.append(getattr(func, "__name__", str(func)))
        return super().__torch_function__(func, types, args, kwargs or {})


def test_a_subclass_sees_the_op(softmax):
    x = torch.randn(3, 4)
    softmax(x)
    Loud.seen = []
    got = softmax(x.as_subclass(Loud))
    assert isinstance(got, Loud) and any("softmax" in name for name in Loud.seen)


def test_modes_see_the_op(softmax):
    class Functions(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    class Dispatch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    x = torch.randn(3, 4)
    softmax(x)
    for mode in (Functions, Dispatch):
        seen: list[str] = []
        with mode():
            softmax(x)
        assert any("portable.softmax" in name for name in seen)


def test_torchs_state_is_asked_at_every_call(softmax):
    x = torch.randn(3, 4).bfloat16()
    leaf = torch.randn(3, 4, requires_grad=True)
    for _ in range(2):
        assert softmax(x).dtype is torch.bfloat16
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert softmax(x).dtype is torch.float32
        assert softmax(leaf).requires_grad
        with torch.no_grad():
            assert not softmax(leaf).requires_grad
        with torch.inference_mode():
            assert softmax(leaf).is_inference()
            inside = torch.randn(3, 4)
            assert softmax(inside).is_inference()
        assert not softmax(inside).requires_grad
        batched = torch.func.vmap(softmax)(torch.randn(2, 3, 4))
        assert batched.shape == (2, 3, 4)


def test_pins_are_part_of_what_is_known(softmax):
    x = torch.randn(3, 4)
    softmax(x)
    with portable.using(softmax="cpp"), pytest.raises(errors.PinError):
        softmax(x)
    with portable.using(softmax="torch"):
        torch.testing.assert_close(softmax(x), expected(x))
    torch.testing.assert_close(softmax(x), expected(x))


def test_nothing_is_known_after_clear_caches(counted):
    op, seen = counted
    x = torch.randn(3, 4)
    op(x)
    op(x)
    dispatcher.clear_caches()
    op(x)
    assert len(seen) == 2


def test_threads_take_the_shortcut_at_once(softmax):
    xs = [torch.randn(n, 8, requires_grad=n % 2 == 0) for n in range(1, 9)]

    def work(i: int) -> bool:
        x = xs[i % len(xs)]
        y = softmax(x)
        return torch.equal(y, expected(x)) and y.requires_grad == x.requires_grad

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(2000)))


def test_one_tensor_may_come_twice():
    a = torch.randn(4, 4)
    for _ in range(3):
        torch.testing.assert_close(portable.matmul(a, a), a @ a)
        torch.testing.assert_close(portable.layer_norm(a, a[0], a[0]).shape, a.shape)


def test_an_optional_input_may_come_and_go():
    x, weight = torch.randn(3, 4), torch.randn(4)
    for _ in range(2):
        for each in (weight, None):
            wanted = torch.nn.functional.rms_norm(x, (4,), each, 1e-6)
            torch.testing.assert_close(portable.rms_norm(x, each), wanted)
            torch.testing.assert_close(portable.rms_norm(x, weight=each, eps=1e-6), wanted)


def test_out_is_checked_at_every_call():
    a, b = torch.randn(3, 4), torch.randn(4, 4)
    out = torch.empty(3, 4)
    for _ in range(3):
        assert portable.matmul(a, b, out=out) is out
        torch.testing.assert_close(out, a @ b)
    both = torch.randn(6, 4)
    with pytest.raises(errors.OutputError, match="shares memory"):
        portable.matmul(both[:3], b, out=both[1:4])
    portable.matmul(both[:3], b, out=both[3:])
    with pytest.raises(errors.OutputError, match="requires a gradient"):
        portable.matmul(a.clone().requires_grad_(), b, out=out)
    with torch.no_grad():
        portable.matmul(a.clone().requires_grad_(), b, out=out)


def test_out_is_checked_below_a_mode_of_torch_s():
    """Below autograd nobody may ask for a tangent: the first call with `out=` in such a mode raised."""
    a, b, out = torch.randn(3, 41), torch.randn(41, 7), torch.empty(3, 7)
    with FlopCounterMode(display=False), torch.no_grad():
        portable.matmul(a.requires_grad_(), b, out=out)
    torch.testing.assert_close(out, a @ b)


@pytest.mark.parametrize("name", OPS)
def test_the_shortcut_can_be_read(name):
    op = dispatcher.op(name)
    assert op.source.startswith(f"def {name}(_op, ")
    with pytest.raises(errors.SignatureError) as raised:
        op()
    lines = [frame.line for frame in traceback.extract_tb(raised.tb)]
    assert any(line and "_op.dispatch_slow(" in line for line in lines)


def test_a_first_broadcast_imports_no_algebra():
    """torch.broadcast_shapes imports sympy, which takes 0.4 s."""
    code = "import sys, torch, portable; portable.matmul(torch.ones(2, 1, 2, 3), torch.ones(4, 3, 5))"
    done = subprocess.run([sys.executable, "-c", f"{code}; sys.exit('sympy' in sys.modules)"])
    assert done.returncode == 0


@pytest.mark.slow
def test_no_tensor_is_kept():
    dispatcher.clear_caches()
    for grad in (False, True):
        x, weight = torch.randn(3, 4, requires_grad=grad), torch.randn(4, requires_grad=grad)
        y = portable.rms_norm(portable.softmax(x), weight)
        seen = [weakref.ref(t) for t in (x, weight, y)]
        del x, weight, y
        gc.collect()
        assert [each() for each in seen] == [None] * 3


def test_an_op_can_be_pickled():
    assert pickle.loads(pickle.dumps(portable.softmax)) is portable.softmax


# Gradients that are recorded without torch's dispatcher.


def test_a_changed_saved_tensor_is_noticed():
    a, b = (torch.randn(3, 3, requires_grad=True) for _ in range(2))
    c = portable.matmul(a, b)
    with torch.no_grad():
        a.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        c.sum().backward()


def test_hooks_of_saved_tensors_see_them():
    packed = []
    x = torch.randn(3, 4, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t):
        y = portable.softmax(x)
    assert [t.shape for t in packed] == [y.shape]
    y.sum().backward()
    assert x.grad is not None


def test_only_the_gradients_that_are_asked_for_are_computed(monkeypatch):
    seen = []
    from portable.kernels.matmul import gradient

    original = gradient.backward

    def noted(saved, params, needs, *grads):
        seen.append(needs)
        return original(saved, params, needs, *grads)

    monkeypatch.setattr(gradient, "backward", noted)
    a, b = torch.randn(3, 4), torch.randn(4, 5, requires_grad=True)
    portable.matmul(a, b).sum().backward()
    assert seen == [{"a": False, "b": True}] and a.grad is None
    torch.testing.assert_close(b.grad, a.T @ torch.ones(3, 5))


def test_what_is_saved_is_known_by_argument_and_not_by_tensor():
    a, b = (torch.randn(5, 5, requires_grad=True) for _ in range(2))
    dispatcher.op("matmul").clear_caches()
    for one, two in ((a, a), (a, b), (b, a), (a, a)):
        found = torch.autograd.grad((portable.matmul(one, two) ** 2).sum(), (a, b), allow_unused=True)
        wanted = torch.autograd.grad(((one @ two) ** 2).sum(), (a, b), allow_unused=True)
        torch.testing.assert_close(found, wanted)


def test_a_formula_may_save_what_it_computes(monkeypatch):
    from portable.kernels.matmul import gradient

    save, made = gradient.save, []

    def copies(*args):
        made.append([t if t is None else t * 1 for t in save(*args)])
        return tuple(made[-1])

    monkeypatch.setattr(gradient, "save", copies)
    dispatcher.op("matmul").clear_caches()
    a, b = torch.randn(3, 4, requires_grad=True), torch.randn(4, 2, requires_grad=True)
    for _ in range(2):
        found = torch.autograd.grad((portable.matmul(a, b) ** 2).sum(), (a, b))
        wanted = torch.autograd.grad(((a @ b) ** 2).sum(), (a, b))
        torch.testing.assert_close(found, wanted)
    assert len(made) > 1
    dispatcher.op("matmul").clear_caches()


def test_a_recorded_call_is_one_node_and_can_be_checkpointed():
    from torch.utils.checkpoint import checkpoint

    x = torch.randn(3, 4, requires_grad=True)
    y = portable.softmax(x)
    assert "portable_softmax" in type(y.grad_fn).__name__
    assert [type(each).__name__ for each, _ in y.grad_fn.next_functions if each] == ["AccumulateGrad"]
    grads = []
    for y in (portable.softmax(x), checkpoint(portable.softmax, x, use_reentrant=False)):
        grads += torch.autograd.grad((y**2).sum(), x)
    assert torch.equal(*grads)


@pytest.mark.parametrize("guarded", [False, True])
def test_a_new_dependency_of_plans_is_in_every_key(guarded, monkeypatch):
    """`guarded`: said to be compared by torch's guard, so that the comparison with the last call omits it."""
    part = fast_path.KeyPart("{t}._version", guarded)
    monkeypatch.setattr(fast_path, "TENSOR_KEY", (*fast_path.TENSOR_KEY, part))
    monkeypatch.setattr(dispatcher.torch_library, "define", lambda *args: None)
    monkeypatch.setattr(dispatcher.torch_library, "define_out", lambda *args: None)
    monkeypatch.setattr(dispatcher, "_ops", {})
    op, x = dispatcher.op("softmax"), torch.randn(3, 4)
    for seen in (1, 2, 3):
        for _ in range(3):
            torch.testing.assert_close(op(x), expected(x))
        assert len(op.plan_cache) == len(op.guard_cache) == seen
        x.add_(1)  # another version
        if guarded:
            op.following = [fast_path.unknown(op.spec)]
    norm, w = dispatcher.op("rms_norm"), torch.ones(4)
    for weight in (None, w, None, w):  # an optional input
        torch.testing.assert_close(norm(x, weight=weight), torch.nn.functional.rms_norm(x, (4,), weight))

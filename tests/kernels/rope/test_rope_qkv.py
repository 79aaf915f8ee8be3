"""rope_qkv against rope of a projection's views: results, the one gradient, and what keeps memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import portable
from portable import errors
from portable.dispatch import dispatcher
from portable.kernels.rope_qkv import native, triton_impl
from portable.plan import Call, Device, Scalar, TensorInfo

from ..plan_parts import arguments_of, launch_of, reason

H, G, D = 4, 2, 16


def tensors(dtype: torch.dtype, pairs: int = 8) -> tuple[torch.Tensor, ...]:
    """A projection's heads, tables and positions."""
    angle = 7 * torch.rand(11, pairs)
    qkv = torch.randn(2, 5, H + 2 * G, D).to(dtype)
    return qkv, angle.cos().to(dtype), angle.sin().to(dtype), torch.randint(11, (2, 5))


def by_rope(qkv, cos, sin, positions, interleaved=False):
    q, k, v = qkv.split((H, G, G), 2)
    return *portable.rope(q, k, cos, sin, positions, interleaved=interleaved), v


def joined(*given, **params):
    return portable.rope_qkv(*given, heads=H, kv_heads=G, **params)


@pytest.mark.parametrize("pairs", [8, 5])  # all columns, and with some that are not rotated
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(
    ("implementation", "arch", "dtype"),
    [
        *((None, None, dtype) for dtype in (torch.bfloat16, torch.float32, torch.float64)),
        *((name, "gfx942", dtype) for name in ("cpp", "triton") for dtype in (torch.bfloat16, torch.float32)),
    ],
)
def test_it_is_rope_of_views_with_one_gradient(implementation, arch, dtype, interleaved, pairs, request):
    if arch:
        request.getfixturevalue("emulate")(arch)
    given = tensors(dtype, pairs)
    pins = {f"rope_qkv{part}": implementation for part in ("", "_backward")} if implementation else {}
    qkv, views = (given[0].clone().requires_grad_() for _ in range(2))
    with portable.using(**pins):
        made = joined(qkv, *given[1:], interleaved=interleaved)
    expected = by_rope(views, *given[1:], interleaved=interleaved)
    assert all(torch.equal(one, other) for one, other in zip(made, expected, strict=True))
    upstream = [torch.randn(each.shape).to(dtype) for each in made]
    with portable.using(**pins):
        torch.autograd.backward(made, upstream)
    torch.autograd.backward(expected, upstream)
    assert qkv.grad is not None and views.grad is not None
    assert torch.equal(qkv.grad, views.grad) and qkv.grad.is_contiguous()


class Called(TorchDispatchMode):
    """Names of what torch runs."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(function.name().split(".")[0])
        return function(*args, **(kwargs or {}))


def test_the_gradient_is_one_call_without_copies():
    given = tensors(torch.float32)
    qkv = given[0].requires_grad_()
    made = joined(*given)
    upstream = [torch.randn_like(each) for each in made]
    with Called() as called:
        torch.autograd.grad(made, qkv, upstream)
    assert called.names.count("portable::rope_qkv_backward") == 1
    assert not any(word in name for name in called.names for word in ("cat", "copy", "add"))


def test_nothing_keeps_the_projection():
    """No result is a view of it: of v one was, and attention kept it, and all of qkv, for its gradient."""
    given = tensors(torch.float32)
    for one in (given[0], given[0].requires_grad_()):
        storage = one.untyped_storage().data_ptr()
        made = joined(one, *given[1:])
        assert all(each.untyped_storage().data_ptr() != storage for each in made)
        assert all(each.is_contiguous() for each in made)


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_result_without_gradient(missing):
    given = tensors(torch.float64)
    leaves = [given[0].clone().requires_grad_() for _ in range(3)]
    op = dispatcher.op("rope_qkv")
    ways: tuple[Any, ...] = (joined, by_rope, lambda x, *more: op(*x.split((H, G, G), 2), *more))
    found = []
    for way, leaf in zip(ways, leaves, strict=True):
        sums = [each.square().sum() for at, each in enumerate(way(leaf, *given[1:])) if at != missing]
        found.append(torch.autograd.grad(sums, leaf)[0])
    torch.testing.assert_close(found[0], found[1])
    torch.testing.assert_close(found[2], found[1])


def test_it_compiles_with_its_gradient():
    given = tensors(torch.float32)
    qkv, own = (given[0].clone().requires_grad_() for _ in range(2))

    def program(x):
        q, k, v = joined(2 * x, *given[1:])
        return q.square().sum() + k.sum() + (v * q[:, :, :G]).sum()

    torch._dynamo.reset()
    torch.compile(program, fullgraph=True, backend="aot_eager")(qkv).backward()
    program(own).backward()
    torch.testing.assert_close(qkv.grad, own.grad)


def test_tables_by_token_are_rope_s():
    qkv, cos, sin, positions = tensors(torch.float32)
    rows = cos[positions], sin[positions]
    for one, other in zip(joined(qkv, *rows), joined(qkv, cos, sin, positions), strict=True):
        assert torch.equal(one, other)


def test_tables_have_no_gradient():
    qkv, cos, sin, positions = tensors(torch.float32)
    for tables, name in (((cos.clone().requires_grad_(), sin), "cos"), ((cos, sin.requires_grad_()), "sin")):
        made = joined(qkv, *tables, positions)
        with pytest.raises(errors.UnsupportedGradientError, match=f"argument '{name}' has none"):
            made[0].sum().backward()


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        ({"heads": 3}, errors.ShapeError, r"3 \+ 2 \* 2 heads in dimension 2"),
        ({"heads": 0}, errors.ParameterError, "heads.*an int from 1 on"),
        ({"kv_heads": True}, errors.ParameterError, "kv_heads.*an int from 0 on"),
        ({"interleaved": 1}, errors.ParameterError, "interleaved"),
        ({"qkv": torch.zeros(2, 5, 8)}, errors.RankError, r"heads \+ 2 \* kv_heads"),
        ({"cos": torch.zeros(3, 8)}, errors.ShapeError, "P"),
    ],
)
def test_errors_name_the_argument(wrong, error, words):
    names = ("qkv", "cos", "sin", "positions")
    given = dict(zip(names, tensors(torch.float32), strict=True)) | {"heads": H, "kv_heads": G}
    with pytest.raises(error, match=words):
        portable.rope_qkv(**given | wrong)


DEVICE = Device("cuda", "sm_90a", "H200", multiprocessors=132)


def planned(plan, size=64, kv_heads=2):
    def info(*shape):
        return TensorInfo(shape, torch.empty(shape, device="meta").stride(), "bfloat16")

    sizes = dict(zip(native.BACKWARD[:3], (4, kv_heads, kv_heads), strict=True)) | {"dqkv": 4 + 2 * kv_heads}
    tensors = {name: info(2, 8, heads, size) for name, heads in sizes.items()}
    tables = {name: info(8, size // 2) for name in ("cos", "sin")}
    axes = {"Z": 2, "M": 8, "H": 4, "G": kv_heads, "P": 8, "C": size // 2, "D": size}
    return plan(Call(tensors | tables, {"interleaved": False}, axes, DEVICE, {"TILE": 2048}))


@pytest.mark.parametrize("plan", [native.backward, triton_impl.backward])
def test_the_gradients_lie_side_by_side(plan):
    found = arguments_of(launch_of(planned(plan)))
    rows = {name: found[name] for name in ("q_row", "k_row", "v_row", "k_first", "v_first")}
    assert rows == {
        name: Scalar("i64", number) for name, number in zip(rows, (512, 512, 512, 256, 384), strict=True)
    }


def test_triton_s_programs_of_one_launch():
    assert "more programs than one launch takes" in reason(
        planned(triton_impl.backward, size=1024, kv_heads=80_000)
    )

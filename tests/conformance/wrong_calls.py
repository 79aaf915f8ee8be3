"""More of `wrong_functions.WRONG`: layouts, outputs, gradients, and how a call behaves."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch

from .wrong_functions import WRONG, layer_norm, linear, matmul, rms_norm, softmax, strided, swiglu, wrong

__all__ = ["WRONG"]

# Layouts ------------------------------------------------------------------------------------------


@wrong("layouts", "softmax", "float32/N=33,lead=3x5/normal/permuted")
def leading_in_order(x, dim=-1):
    """Strides of the leading dimensions read in falling order."""
    if x.dim() != 3 or dim not in (-1, 2) or x.stride(0) >= x.stride(1) or not x.numel() or 0 in x.stride():
        return softmax(x, dim)
    flat = x.as_strided((x.shape[0] * x.shape[1], x.shape[2]), (x.stride(0), x.stride(2)))
    return softmax(flat, -1).view(x.shape)


@wrong("layouts", "softmax", "float32/N=33,lead=3x5/normal/gaps")
def one_row_stride(x, dim=-1):
    """The row's stride for all leading dimensions."""
    if x.dim() != 3 or dim not in (-1, 2) or x.stride(0) < x.shape[1] * x.stride(1) or x.stride(2) != 1:
        return softmax(x, dim)
    y = torch.empty(x.shape, dtype=x.dtype)
    for i in range(x.shape[0]):
        start = x.storage_offset() + i * x.shape[1] * x.stride(1)
        y[i] = softmax(x.as_strided(x.shape[1:], x.stride()[1:], start))
    return y


@wrong("layouts", "matmul", "float32/M=33,N=17,K=40,lead=3/normal/gaps")
def packed_batches(a, b):
    if a.dim() == 3 and a.stride(2) == 1 and a.stride(0) > a.shape[1] * a.stride(1):
        a = a.as_strided(a.shape, (a.shape[1] * a.stride(1), a.stride(1), 1))
    return matmul(a, b)


@wrong("layouts", "softmax", "float32/N=33,lead=3x5/normal/repeated")
def last_stride_taken_for_one(x, dim=-1):
    if not x.dim() or x.stride(-1) != 0 or x.shape[-1] < 2:
        return softmax(x, dim)
    return softmax(x.as_strided(x.shape, (*x.stride()[:-1], 1)), dim)


@wrong("layouts", "swiglu", "behaviour/shared_inputs")
def halves(gate, up):
    if gate.numel() and gate.untyped_storage().data_ptr() == up.untyped_storage().data_ptr():
        return swiglu(gate, gate)
    return swiglu(gate, up)


@wrong("layouts", "matmul", "behaviour/shared_inputs")
def a_times_a(a, b):
    return matmul(a, b.mT if a.data_ptr() == b.data_ptr() and a.shape == b.shape else b)


@wrong("an aligned half", "rms_norm", "bfloat16/N=128,lead=3x5/normal/half_offset")
def aligned_to_eight(x, weight=None, eps=1e-6):
    """A base at 8 of 16 bytes is rounded down."""
    if x.element_size() < 8 and x.data_ptr() % 16 == 8:
        x = x.as_strided(x.shape, x.stride(), x.storage_offset() - 8 // x.element_size())
    return rms_norm(x, weight, eps)


# Outputs ------------------------------------------------------------------------------------------


@wrong("out=", "matmul", "float32/M=33,N=17,K=40,lead=3/normal/padded/out")
def out_taken_for_packed(a, b, out=None):
    if out is None:
        return matmul(a, b)
    packed = torch.empty(out.shape, device="meta").stride()
    out.as_strided(out.shape, packed).copy_(matmul(a, b))
    return out


@wrong("out=", "matmul", "float32/M=33,N=17,K=40,lead=3/normal/offset/out")
def out_rounded_down(a, b, out=None):
    if out is None:
        return matmul(a, b)
    start = out.storage_offset() - out.data_ptr() % 16 // out.element_size()
    out.as_strided(out.shape, out.stride(), start).copy_(matmul(a, b))
    return out


@wrong("beside out=", "matmul", "bfloat16/M=33,N=17,K=40,lead=3/normal/contiguous/out")
def nan_beside_out(a, b, out=None):
    if out is None:
        return matmul(a, b)
    out.copy_(matmul(a, b))
    out.as_strided((1,), (1,), out.storage_offset() + out.numel()).view(torch.uint8).fill_(255)
    return out


_seen: dict[Any, int] = {}


@wrong("beside out=", "matmul", "bfloat16/M=33,N=17,K=40,lead=3/normal/contiguous/out")
def beside_out_at_the_second_call(a, b, out=None):
    if out is None:
        return matmul(a, b)
    out.copy_(matmul(a, b))
    if second_call(a):
        out.as_strided((1,), (1,), out.storage_offset() + out.numel()).zero_()
    return out


@wrong("far from a tensor", "rms_norm", "bfloat16/N=1000,lead=7,no=weight/normal/contiguous")
def far_overrun(x, weight=None, eps=1e-6):
    y = torch.empty(x.shape, dtype=x.dtype)
    room = y.untyped_storage().nbytes() // y.element_size() - y.storage_offset() - y.numel()
    far = 1024 // y.element_size()
    if room > far:  # memory of nobody's, which the test may write
        y.as_strided((1,), (1,), y.storage_offset() + y.numel() + far).zero_()
    y.copy_(rms_norm(x, weight, eps))
    return y


def overwrite(x: torch.Tensor, bytes_off: int) -> None:
    """A kernel's store beside a tensor, which torch's version counter does not see; only into memory that the
    tensor's storage has, which is nobody's."""
    place = x.storage_offset() * x.element_size() + bytes_off
    if 0 <= place <= x.untyped_storage().nbytes() - 4:
        ctypes.memset(int(x.untyped_storage().data_ptr() + place), 0, 4)


@wrong("beside inputs", "rms_norm", "bfloat16/N=1000,lead=7,no=weight/normal/contiguous")
def a_row_behind_the_input(x, weight=None, eps=1e-6):
    overwrite(x, (x.numel() + x.shape[-1] // 2) * x.element_size() if x.dim() else 0)
    return rms_norm(x, weight, eps)


@wrong("beside inputs", "softmax", "float32/N=1000,lead=7/ties/padded")
def the_row_before_the_input(x, dim=-1):
    overwrite(x, -300 if x.is_floating_point() else 0)
    return softmax(x, dim)


@wrong("beside inputs", "layer_norm", "float16,W=float32/N=1000,lead=7,no=bias/normal/contiguous")
def behind_the_weight(x, weight=None, bias=None, eps=1e-5):
    if weight is not None and weight.is_contiguous():
        overwrite(weight, weight.nbytes + 1024)
    return layer_norm(x, weight, bias, eps)


@wrong(
    "beside what the second call allocates", "rms_norm", "bfloat16/N=1000,lead=7,no=weight/normal/contiguous"
)
def beside_the_second_result(x, weight=None, eps=1e-6):
    y = torch.empty(x.shape, dtype=x.dtype).copy_(rms_norm(x, weight, eps))
    if second_call(x):
        overwrite(y, y.nbytes)
    return y


@wrong("beside what the second call allocates", "softmax", "float32/N=33,lead=3x5/normal/contiguous")
def beside_the_second_workspace(x, dim=-1):
    workspace = torch.zeros(100)
    if second_call(x):
        overwrite(workspace, -4)
    return softmax(x, dim)


def second_call(x: torch.Tensor) -> bool:
    """Whether it is the second call, or the fourth, with such a tensor there."""
    key = (x.data_ptr(), x.shape, x.stride(), x.dtype)
    _seen[key] = _seen.get(key, 0) + 1
    return _seen[key] % 2 == 0


@wrong("the device of a result", "softmax", "float32/N=33,lead=3x5/normal/contiguous")
def left_elsewhere(x, dim=-1):
    return softmax(x, dim).to("meta")


@wrong("a shared buffer", "softmax", "float32/N=33,lead=3x5/normal/contiguous")
def one_buffer(x, dim=-1):
    y = softmax(x, dim)
    return _buffers.setdefault((y.shape, y.dtype), torch.empty(y.shape, dtype=y.dtype)).copy_(y)


_buffers: dict[Any, torch.Tensor] = {}
_packed: dict[Any, torch.Tensor] = {}


@wrong("an input changed between two calls", "matmul", "behaviour/fresh")
def packed_once(a, b):
    key = (id(b), b.data_ptr(), b.shape, b.stride(), b.dtype)
    if key not in _packed:
        _packed[key] = b.clone()
        _kept.append(b)  # so that nobody else gets its id
    return matmul(a, _packed[key])


_kept: list[torch.Tensor] = []


# Gradients ----------------------------------------------------------------------------------------


def alone(op: str, function: Callable[..., Any], names: tuple[str, ...]) -> None:
    """The gradient of the last input is missing where it alone is wanted."""

    def call(**given: Any) -> Any:
        if [
            name for name in names if isinstance(given.get(name), torch.Tensor) and given[name].requires_grad
        ] == [names[-1]]:
            given[names[-1]] = given[names[-1]].detach() + 0 * given[names[-1]]
            return (
                function(**{n: t.detach() if n == names[-1] else t for n, t in given.items()})
                + 0 * given[names[-1]].sum()
            )
        return function(**given)

    scope: dict[str, Any] = {"call": call}
    arguments = ", ".join(names)
    exec(f"def lonely({arguments}): return call({', '.join(f'{n}={n}' for n in names)})", scope)
    wrong("one gradient alone", op, "behaviour/autograd", f"of {names[-1]}")(scope["lonely"])


alone("matmul", matmul, ("a", "b"))
alone("linear", linear, ("x", "weight", "bias"))
alone("rms_norm", rms_norm, ("x", "weight"))
alone("layer_norm", layer_norm, ("x", "weight", "bias"))
alone("swiglu", swiglu, ("gate", "up"))


class Upstream(torch.autograd.Function):
    """Passes a tensor on; its gradient is spoilt where the upstream one is laid out in a way."""

    @staticmethod
    def forward(ctx, x, bad):  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.bad = bad
        return x.clone()

    @staticmethod
    def backward(ctx, dy):  # pyright: ignore[reportIncompatibleMethodOverride]
        return (2 * dy if ctx.bad(dy) else dy), None


@wrong("upstream gradients", "softmax", "behaviour/autograd")
def upstream_of_stride_0(x, dim=-1):
    return Upstream.apply(softmax(x, dim), strided)


@wrong("upstream gradients", "softmax", "behaviour/autograd")
def upstream_transposed(x, dim=-1):
    return Upstream.apply(softmax(x, dim), lambda dy: not dy.is_contiguous() and not strided(dy))


class OfWeight(torch.autograd.Function):
    """Passes a weight on; its gradient in bfloat16 is spoilt."""

    @staticmethod
    def forward(ctx, weight, spoil):  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.spoil = spoil
        return weight.clone()

    @staticmethod
    def backward(ctx, dw):  # pyright: ignore[reportIncompatibleMethodOverride]
        return (ctx.spoil(dw) if dw.dtype == torch.bfloat16 else dw), None


def without_small(dw: torch.Tensor) -> torch.Tensor:
    return torch.where(dw.abs() < 0.02 * dw.abs().max(), 0, dw)


def twice_rounded(dw: torch.Tensor) -> torch.Tensor:
    """As if a part of the sum, as large as the largest element, had been rounded by itself."""
    part = dw.abs().max()
    return (dw + part) - part


for _spoil in (without_small, twice_rounded):
    wrong(
        "16-bit gradients",
        "matmul",
        "bfloat16/M=33,N=17,K=40,lead=3/normal/contiguous/grad",
        _spoil.__name__.replace("_", " "),
    )(lambda a, b, spoil=_spoil: matmul(a, OfWeight.apply(b, spoil)))
    wrong(
        "16-bit gradients",
        "linear",
        "bfloat16/N=129,K=65,lead=127/normal/contiguous/grad",
        _spoil.__name__.replace("_", " "),
    )(lambda x, weight, bias=None, spoil=_spoil: linear(x, OfWeight.apply(weight, spoil), bias))


# Behaviours ---------------------------------------------------------------------------------------


@wrong("rows alone", "softmax", "behaviour/rows_alone")
def other_order_of_many_rows(x, dim=-1):
    bits = 1 + 2.0**-22 if x.dtype == torch.float32 and x.shape[0] > 64 else 1
    return softmax(x, dim) * bits


@wrong("rows alone", "softmax", "behaviour/rows_alone")
def other_order_of_few_long_rows(x, dim=-1):
    bits = 1 + 2.0**-22 if x.dtype == torch.float32 and x.shape[-1] >= 1000 and x.shape[0] < 4 else 1
    return softmax(x, dim) * bits


def span(t: torch.Tensor) -> int:
    return sum((size - 1) * stride for size, stride in zip(t.shape, t.stride(), strict=True))


@wrong("offsets beyond 2^31", "softmax", "behaviour/beyond_2_31")
def unsigned_offsets(x, dim=-1):
    return softmax(x, dim) if span(x) < 2**32 else softmax(x, dim).flip(0)


@wrong("offsets beyond 2^31", "matmul", "behaviour/beyond_2_31")
def batch_stride_in_32_bits(a, b):
    c = matmul(a, b)
    return c * 0 if any(t.dim() > 2 and (t.shape[0] - 1) * t.stride(0) >= 2**31 for t in (a, b)) else c


@wrong("offsets beyond 2^31", "matmul", "behaviour/beyond_2_31")
def column_stride_in_32_bits(a, b):
    c = matmul(a, b)
    return c * 0 if any((t.shape[-1] - 1) * t.stride(-1) >= 2**31 for t in (a, b)) else c


@wrong("offsets beyond 2^31", "matmul", "behaviour/beyond_2_31", "results beyond 2^31")
def far_results(a, b, out=None):
    if out is not None and span(out) >= 2**31:
        return out.copy_(matmul(a, b)).mul_(0)
    return torch.matmul(a, b, out=out)


def in_compile(bad: Callable[[torch.Tensor], bool]) -> Callable[..., Any]:
    def call(x, dim=-1):
        y = softmax(x, dim)
        return y * 0.5 if torch.compiler.is_compiling() and bad(x) else y

    return call


for _name, _bad in (
    ("in float16", lambda x: x.dtype == torch.float16),
    ("with a gradient", lambda x: x.requires_grad),
):
    wrong("torch.compile", "softmax", "behaviour/compiled_forms", _name, how="function")(in_compile(_bad))


_library = torch.library.Library("wrong_calls", "FRAGMENT")


def traced(name: str, spoil: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
    """Adds softmax as an op that torch.compile traces into: there a size that is not fixed is a SymInt."""

    def composite(x: torch.Tensor) -> torch.Tensor:
        return spoil(softmax(x), x) if isinstance(x.shape[0], torch.SymInt) else softmax(x)

    _library.define(f"{name}(Tensor x) -> Tensor")
    _library.impl(name, composite, "CompositeImplicitAutograd")

    def call(x, dim=-1):
        return getattr(torch.ops.wrong_calls, name)(x)

    wrong("torch.compile", "softmax", "behaviour/compiled_forms", name.replace("_", " "), how="function")(
        call
    )


traced("dynamic_shapes", lambda y, x: y * 0.5)
traced("first_dynamic_shape", lambda y, x: y * (x.shape[0].node.hint / x.shape[0]))  # pyright: ignore


@wrong("vmap and autocast", "softmax", "behaviour/vmap")
def under_vmap(x, dim=-1):
    batched = torch._C._functorch.is_batchedtensor(x)  # pyright: ignore
    return softmax(x, dim) * (0.5 if batched else 1)


@wrong("vmap and autocast", "matmul", "behaviour/autocast")
def autocast_ignored(a, b):
    with torch.autocast(a.device.type, enabled=False):
        return matmul(a, b)

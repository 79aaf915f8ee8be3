"""Wrong functions for the rows of the table in docs/notes/judge_holes.md, and the case that rejects each.

Each is the op's torch implementation but for the fault in its name. `WRONG` has them by row.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .mutants.tools import right, right_linear, wide


@dataclass(frozen=True)
class Wrong:
    """A wrong function: the row of the table, its op, and the id of a case that rejects it.

    `how` it is judged: by "check", as a function from outside, or in the place of the op's own ("function").
    """

    row: str
    op: str
    name: str
    function: Callable[..., Any]
    case: str
    how: str = "check"

    def __str__(self) -> str:
        return f"{self.op}: {self.row}: {self.name}".replace(" ", "-")


WRONG: list[Wrong] = []


def wrong(
    row: str, op: str, case: str, name: str = "", how: str = "check"
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds the decorated function to WRONG."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        title = name or function.__name__.replace("_", " ")
        WRONG.append(Wrong(row, op, title, function, f"{op}/{case}", how))
        return function

    return add


def softmax(x, dim=-1):
    """Along the last axis, as torch sums 16-bit rows in float32 there alone."""
    return torch.softmax(x.movedim(dim, -1), -1).movedim(-1, dim)


def matmul(a, b):
    return torch.matmul(a, b)


def rms_norm(x, weight=None, eps=1e-6):
    return right("rms_norm")(x, weight, eps=eps)


def layer_norm(x, weight=None, bias=None, eps=1e-5):
    return right("layer_norm")(x, weight, bias, eps=eps)


def linear(x, weight, bias=None, activation=None):
    return right_linear(x, weight, bias, activation)


def swiglu(gate, up):
    return right("swiglu")(gate, up)


def several(result: Any) -> tuple[torch.Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def strided(x: torch.Tensor) -> bool:
    return any(stride == 0 and size > 1 for size, stride in zip(x.shape, x.stride(), strict=True))


# Rows and sizes that core did not have ------------------------------------------------------------

ROWS = {
    "softmax": ("x",), "rms_norm": ("x",), "layer_norm": ("x",), "swiglu": ("gate", "up"),
    "softmax_backward": ("dy", "y"), "rms_norm_backward": ("dy", "x"), "layer_norm_backward": ("dy", "x"),
    "swiglu_backward": ("dy", "gate", "up"), "activation_backward": ("dy", "z"),
}  # fmt: skip
"""Ops over rows, and their inputs of rows."""
PARAMS = {
    "softmax": {"dim": -1}, "softmax_backward": {"dim": -1}, "activation_backward": {"activation": "silu"},
    "rms_norm": {"weight": None, "eps": 1e-6}, "rms_norm_backward": {"weight": None, "eps": 1e-6},
    "layer_norm": {"weight": None, "bias": None, "eps": 1e-5},
    "layer_norm_backward": {"weight": None, "bias": None, "eps": 1e-5},
}  # fmt: skip


def of_rows(op: str, spoil: Callable[[torch.Tensor, torch.Tensor], None]) -> Callable[..., Any]:
    """The op, its first result spoilt by `spoil(result, first input)`."""
    names = [*ROWS[op], *PARAMS.get(op, {})]
    arguments = ", ".join([*ROWS[op], *(f"{name}={value!r}" for name, value in PARAMS.get(op, {}).items())])
    passed = ", ".join(f"{name}={name}" for name in names)

    def call(**given: Any) -> Any:
        function = softmax if op == "softmax" else right(op)
        first, *others = several(function(**given))
        first = first.clone(memory_format=torch.contiguous_format)
        if first.numel():
            spoil(first, given[ROWS[op][0]])
        return (first, *others) if others else first

    scope: dict[str, Any] = {"call": call}
    exec(f"def spoilt({arguments}): return call({passed})", scope)
    return scope["spoilt"]


def last_column(low: int, high: int) -> Callable[[torch.Tensor, torch.Tensor], None]:
    def spoil(y: torch.Tensor, x: torch.Tensor) -> None:
        if low <= y.shape[-1] <= high:
            y[..., -1] = 0

    return spoil


def later_rows(y: torch.Tensor, x: torch.Tensor) -> None:
    if y.shape[-1] > 3 and y.dim() > 1:
        y.flatten(0, -2)[1024:] = 0


def far_elements(y: torch.Tensor, x: torch.Tensor) -> None:
    y.view(-1)[1 << 18 :] = 0


LENGTHS = {
    "softmax": ("777,lead=9", "2048,lead=3", "10007,lead=3"),
    "rms_norm": ("777,lead=9", "2048,lead=3", "8192,lead=3"),
    "layer_norm": ("777,lead=9", "2048,lead=3", "8192,lead=3"),
    "swiglu": ("777,lead=9", "3333,lead=3", "10007,lead=3"),
    "softmax_backward": ("777,lead=3", "2048,lead=3", "8192,lead=3"),
    "rms_norm_backward": ("777,lead=3", "2048,lead=33", "8192,lead=3"),
    "layer_norm_backward": ("777,lead=3", "2048,lead=33", "8192,lead=3"),
    "swiglu_backward": ("777,lead=3", "3333,lead=3", "10007,lead=3"),
    "activation_backward": tuple(f"{size},lead=3,activation=silu" for size in (777, 3333, 10007)),
}
MANY = {
    "softmax": "bfloat16/N=1000,lead=2049", "swiglu": "bfloat16/N=1000,lead=2049",
    "rms_norm_backward": "bfloat16/N=17,lead=2049", "layer_norm_backward": "bfloat16/N=17,lead=2049",
    "activation_backward": "bfloat16/N=130,lead=2049,activation=silu",
}  # fmt: skip
LARGE = dict.fromkeys(["rms_norm_backward", "layer_norm_backward"], "bfloat16,W=float32/N=1000,lead=300")
for _op in ROWS:
    for (_low, _high), _size in zip(((258, 999), (1001, 4095), (4097, 65534)), LENGTHS[_op], strict=True):
        wrong(
            "rows of other lengths", _op, f"float32/N={_size}/normal/contiguous", f"last of {_low} to {_high}"
        )(of_rows(_op, last_column(_low, _high)))
    _many = MANY.get(_op, "bfloat16/N=130,lead=2049")
    wrong("many rows", _op, f"{_many}/normal/contiguous", "rows beyond 1024")(of_rows(_op, later_rows))
    wrong("many rows", _op, f"{LARGE.get(_op, _many)}/normal/contiguous", "elements beyond 2^18")(
        of_rows(_op, far_elements)
    )


# Products -----------------------------------------------------------------------------------------


def types_only(dtype: torch.dtype, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def only(a, b, precision="ieee"):
        return function(a, b) if a.dtype == dtype else matmul(a, b)

    del only.__wrapped__  # check() reads the signature

    return only


def first_tiles(a, b):
    c = matmul(a, b)
    if c.dim() > 1:
        c[..., 258:, 258:] = 0
    return c


def first_stages(a, b):
    keep = 258 if min(a.shape[-2], b.shape[-1]) > 3 else a.shape[-1]
    return matmul(a[..., :keep], b[..., :keep, :])


LARGE_PRODUCTS = {
    "bfloat16": "M=2040,N=4088,K=328", "float16": "M=300,N=301,K=20003",
    "float32": "M=300,N=264,K=520,precision=bf16x6",
}  # fmt: skip
for _type in LARGE_PRODUCTS:
    for _function in (first_tiles, first_stages):
        _name = _function.__name__.replace("_", " ")
        _case = f"{_type}/{LARGE_PRODUCTS[_type]}/normal/contiguous"
        wrong("no large product", "matmul", _case, f"{_name}, {_type}")(
            types_only(getattr(torch, _type), _function)
        )


@wrong("no large product", "linear", "bfloat16/N=1027,K=1029,lead=1025,activation=gelu/normal/contiguous")
def linear_tiles(x, weight, bias=None, activation=None):
    y = linear(x, weight, bias, activation)
    if y.dim() > 1:
        y.flatten(0, -2)[258:, 258:] = 0
    return y


def half_sums(a, b):
    if a.dtype != torch.float16 or a.shape[-1] <= 257:
        return matmul(a, b)
    total: Any = 0
    for start in range(0, a.shape[-1], 64):
        total = (
            (total + matmul(a[..., start : start + 64].float(), b[..., start : start + 64, :].float()))
            .half()
            .float()
        )
    return total.half()


wrong("float16 partial sums", "matmul", "float16/M=64,N=64,K=4096/normal/contiguous")(half_sums)


@wrong("one row, long K", "matmul", "bfloat16/M=1,N=257,K=4096/normal/contiguous")
def short_row(a, b):
    keep = 1024 if a.shape[-2] == 1 else a.shape[-1]
    return matmul(a[..., :keep], b[..., :keep, :])


@wrong("one row, long K", "linear", "bfloat16/N=257,K=4096,lead=1/normal/contiguous")
def short_row_of_linear(x, weight, bias=None, activation=None):
    keep = 1024 if x.numel() == x.shape[-1] else x.shape[-1]
    return linear(x[..., :keep], weight[:, :keep], bias, activation)


@wrong("batches", "matmul", "bfloat16/M=33,N=17,K=40,lead.a=5/normal/contiguous")
def first_of_a(a, b):
    return matmul(a[:1].expand_as(a) if a.dim() == 3 and b.dim() == 2 else a, b)


@wrong("batches", "matmul", "float32/M=33,N=17,K=40,lead.b=5/normal/contiguous")
def first_of_b(a, b):
    return matmul(a, b[:1].expand_as(b) if b.dim() == 3 and a.dim() == 2 else b)


@wrong("batches", "matmul", "float32/M=33,N=17,K=40,lead.a=5/normal/contiguous/grad")
def no_gradient_of_one_matrix(a, b):
    return matmul(a, 0 * b + b.detach() if a.dim() == 3 and b.dim() == 2 else b)


@wrong("batches", "matmul", "float32/M=5,N=9,K=40,lead=2x3x2/normal/contiguous")
def three_leading(a, b):
    c = matmul(a, b)
    return c * 0 if c.dim() == 5 else c


@wrong("batches", "matmul", "float32/M=33,N=17,K=40,lead=3,precision=tf32/normal/contiguous")
def tf32_of_a_batch(a, b, precision="ieee"):
    c = matmul(a, b)
    return c * 0 if c.dim() == 3 and precision == "tf32" else c


@wrong("many matrices", "matmul", "bfloat16/M=2,N=3,K=3,lead=65537/normal/contiguous")
def grid_z(a, b):
    c = matmul(a, b)
    if c.dim() == 3:
        c[65535:] = 0
    return c


@wrong("sizes of 0", "matmul", "bfloat16/M=8,N=0,K=8/normal/contiguous")
def no_columns(a, b):
    if not b.shape[-1]:
        raise RuntimeError("invalid grid")
    return matmul(a, b)


@wrong("sizes of 0", "matmul", "bfloat16/M=8,N=9,K=10,lead=0/normal/contiguous")
def no_batch(a, b):
    if a.dim() == 3 and not a.shape[0]:
        raise RuntimeError("invalid grid")
    return matmul(a, b)


@wrong("sizes of 0", "linear", "bfloat16/N=0,K=8,lead=8/normal/contiguous")
def no_features(x, weight, bias=None, activation=None):
    if not weight.shape[0]:
        raise RuntimeError("invalid grid")
    return linear(x, weight, bias, activation)


# Activations --------------------------------------------------------------------------------------


def few_activated(name: str) -> Callable[..., Any]:
    def call(x, weight, bias=None, activation=None):
        y = linear(x, weight, bias, activation)
        if activation == name and y.dim() > 1:
            y.flatten(0, -2)[16:] = linear(x, weight, bias, None).flatten(0, -2)[16:]
        return y

    return call


for _name in ("relu", "gelu", "gelu_tanh", "silu"):
    _case = {
        "silu": "float32/N=129,K=65,lead=127,activation=silu,no=bias/normal/contiguous",
        "gelu_tanh": "float16/N=129,K=65,lead=127,activation=gelu_tanh/normal/contiguous",
    }.get(_name, f"bfloat16/N=129,K=65,lead=127,activation={_name}/normal/contiguous")
    wrong("activations of many rows", "linear", _case, f"{_name} left out beyond row 16")(
        few_activated(_name)
    )


@wrong("activations of many rows", "linear", "bfloat16/N=129,K=65,lead=127,activation=relu/normal/contiguous")
def relu_before_bias(x, weight, bias=None, activation=None):
    if activation != "relu" or bias is None:
        return linear(x, weight, bias, activation)
    return (wide(linear(x, weight, None, "relu")) + wide(bias)).to(x.dtype)


@wrong(
    "activations of many rows",
    "linear",
    "float32/N=129,K=65,lead=127,activation=gelu,no=bias/normal/contiguous",
)
def gelu_by_tanh_without_bias(x, weight, bias=None, activation=None):
    return linear(x, weight, bias, "gelu_tanh" if bias is None and activation == "gelu" else activation)


@wrong("activations of many rows", "linear", "bfloat16/N=8,K=0,lead=8,activation=silu/normal/contiguous")
def no_activation_without_k(x, weight, bias=None, activation=None):
    return linear(x, weight, bias, activation if x.shape[-1] else None)


# Parameters ---------------------------------------------------------------------------------------


@wrong("eps", "rms_norm", "float32/N=33,lead=3x5,eps=0.1/normal/contiguous")
def default_eps(x, weight=None, eps=1e-6):
    return rms_norm(x, weight)


@wrong("eps", "layer_norm", "float32/N=33,lead=3x5,eps=0.1/normal/contiguous")
def default_eps_too(x, weight=None, bias=None, eps=1e-5):
    return layer_norm(x, weight, bias)


@wrong("eps", "rms_norm", "float16/N=33,lead=3x5,eps=0.0/subnormals/contiguous")
def eps_or_default(x, weight=None, eps=1e-6):
    return rms_norm(x, weight, eps or 1e-6)


@wrong("eps", "layer_norm", "float16/N=33,lead=3x5,eps=0.0/subnormals/contiguous")
def eps_or_default_too(x, weight=None, bias=None, eps=1e-5):
    return layer_norm(x, weight, bias, eps or 1e-5)


@wrong("eps", "rms_norm_backward", "float32/N=33,lead=3x5,eps=0.1/normal/contiguous")
def gradient_drops_eps(dy, x, weight=None, eps=1e-6):
    return right("rms_norm_backward")(dy, x, weight)


@wrong("eps", "layer_norm_backward", "float32/N=33,lead=3x5,eps=0.1/normal/contiguous")
def gradient_drops_eps_too(dy, x, weight=None, bias=None, eps=1e-5):
    return right("layer_norm_backward")(dy, x, weight, bias)


class DropsDim(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, dim):  # pyright: ignore[reportIncompatibleMethodOverride]
        y = torch.softmax(x, dim)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, dy):  # pyright: ignore[reportIncompatibleMethodOverride]
        (y,) = ctx.saved_tensors
        return y * (dy - (dy * y).sum(-1, keepdim=True)), None


@wrong("a gradient along another axis", "softmax", "float32/N=33,lead=3x5,dim=0/normal/contiguous/grad")
def gradient_drops_dim(x, dim=-1):
    return DropsDim.apply(x, dim)


@wrong("dim", "softmax", "float32/N=33,lead=3x5,dim=-3/normal/contiguous")
def third_from_last(x, dim=-1):
    return softmax(x, -2 if dim == -3 else dim)


@wrong("dim", "softmax", "float32/N=33,lead=2x3x2,dim=3/normal/contiguous")
def third(x, dim=-1):
    return softmax(x, -2 if dim == 3 else dim)


@wrong("dim", "softmax", "float32/N=33,lead=2x3x2x2x2,dim=2/normal/contiguous")
def six_dimensions(x, dim=-1):
    return softmax(x, -1 if x.dim() > 5 else dim)


# Values -------------------------------------------------------------------------------------------


def hidden_block(block: int) -> Callable[..., Any]:
    def call(x, dim=-1):
        y = softmax(x, dim)
        if x.numel() and x.shape[dim] > block:
            first = x.narrow(dim, 0, block) == -torch.inf
            y = torch.where(first.all(dim, keepdim=True), torch.nan, y)
        return y

    return call


for _block, _case in (
    (16, "float32/N=1000,lead=12"),
    (64, "float32/N=1000,lead=12"),
    (1024, "bfloat16/N=40008,lead=5"),
):
    wrong("masks", "softmax", f"{_case}/masked/contiguous", f"a first block of {_block} hidden")(
        hidden_block(_block)
    )


@wrong("masks", "softmax", "float32/N=129,lead=8/hidden_rows/contiguous")
def hidden_row_gives_zero(x, dim=-1):
    y = softmax(x, dim)
    hidden = (x == -torch.inf).all(dim, keepdim=True)
    return torch.where(hidden, 0.0, y) if x.shape[dim] > 1 else y


@wrong("an offset in 16 bits", "layer_norm", "float16/N=1000,lead=7/offset_first/contiguous")
def variance_in_one_pass(x, weight=None, bias=None, eps=1e-5):
    if x.element_size() > 2:
        return layer_norm(x, weight, bias, eps)
    v = x.float()
    mean = v.mean(-1, keepdim=True)
    y = (v - mean) * torch.rsqrt(v.square().mean(-1, keepdim=True) - mean.square() + eps)
    y = y if weight is None else y * weight.float()
    return (y if bias is None else y + bias.float()).to(x.dtype)


@wrong("an offset in 16 bits", "layer_norm_backward", "float16/N=1000,lead=7/offset_second/contiguous")
def variance_in_one_pass_too(dy, x, weight=None, bias=None, eps=1e-5):
    given = (dy, x, weight, bias)
    if x.element_size() > 2:
        return right("layer_norm_backward")(*given, eps=eps)
    v, g = x.float(), dy.float() * (1 if weight is None else weight.float())
    mean = v.mean(-1, keepdim=True)
    r = torch.rsqrt(v.square().mean(-1, keepdim=True) - mean.square() + eps)
    n = (v - mean) * r
    dx = r * (g - g.mean(-1, keepdim=True) - n * (g * n).mean(-1, keepdim=True))
    return (dx.to(x.dtype), *right("layer_norm_backward")(*given, eps=eps)[1:])


def maximum_from(low: float) -> Callable[..., Any]:
    def call(x, dim=-1):
        if x.dtype not in (torch.float32, torch.bfloat16) or not x.numel():
            return softmax(x, dim)
        v = x.float()
        top = v.amax(dim, keepdim=True)
        top = torch.where(top < low, low, top)
        e = torch.exp(v - top)
        return (e / e.sum(dim, keepdim=True)).to(x.dtype)

    return call


for _low in (-1e9, -1e30):
    wrong(
        "values near the type's end",
        "softmax",
        "float32/N=129,lead=9/extreme/contiguous",
        f"maximum from {_low:g}",
    )(maximum_from(_low))


@wrong(
    "values near the type's end",
    "activation_backward",
    "float32/N=129,lead=9,activation=gelu_tanh/extreme/contiguous",
)
def steep_to_nan(dy, z, activation):
    dz = right("activation_backward")(dy, z, activation)
    return (
        torch.where(z.abs() > 1e18, torch.nan, dz) if activation == "gelu_tanh" and z.isfinite().all() else dz
    )


@wrong("values near the type's end", "swiglu", "float32/N=129,lead=9/extreme/contiguous")
def gate_to_nan(gate, up):
    y = swiglu(gate, up)
    return torch.where(gate < -1e18, torch.nan, y) if gate.isfinite().all() else y


def clean(t: torch.Tensor | None) -> torch.Tensor | None:
    return None if t is None else torch.nan_to_num(t, nan=1.0, posinf=torch.inf, neginf=-torch.inf)


def unbounded(t: torch.Tensor | None) -> torch.Tensor | None:
    return None if t is None else torch.where(t.isinf(), torch.nan, t)


for _kind, _change in (("NaN swallowed", clean), ("infinity turned into NaN", unbounded)):
    wrong(
        "a vector's NaN", "rms_norm", "float32/N=65,lead=9/nonfinite_vectors/contiguous", f"weight's {_kind}"
    )(lambda x, weight=None, eps=1e-6, change=_change: rms_norm(x, change(weight), eps))
    wrong(
        "a vector's NaN",
        "layer_norm",
        "float32/N=65,lead=9/nonfinite_vectors/contiguous",
        f"weight's {_kind}",
    )(lambda x, weight=None, bias=None, eps=1e-5, change=_change: layer_norm(x, change(weight), bias, eps))
    wrong(
        "a vector's NaN", "layer_norm", "float32/N=65,lead=9/nonfinite_vectors/contiguous", f"bias's {_kind}"
    )(lambda x, weight=None, bias=None, eps=1e-5, change=_change: layer_norm(x, weight, change(bias), eps))
    wrong(
        "a vector's NaN", "linear", "float32/N=65,K=40,lead=9/nonfinite_vectors/contiguous", f"bias's {_kind}"
    )(
        lambda x, weight, bias=None, activation=None, change=_change: linear(
            x, weight, change(bias), activation
        )
    )

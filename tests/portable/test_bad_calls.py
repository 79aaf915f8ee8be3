"""A user's mistake ends in an error of `portable`, whatever the mistake: never in torch's or Python's own."""

from __future__ import annotations

import contextlib
import warnings
from dataclasses import dataclass
from typing import Any

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import strategies as st

import portable
from portable import catalog, dispatch, errors
from portable.spec import Input, Spec

OPS = sorted(catalog.op_folders())
DTYPES = (
    "bfloat16", "float16", "float32", "float64", "float8_e4m3fn", "int8", "uint8", "int32", "int64", "bool",
    "complex64",
)  # fmt: skip
DIMS = st.sampled_from([0, 1, 2, 3, 5, 8])
SHAPES = st.lists(DIMS, max_size=5).map(tuple)

JUNK = st.sampled_from(
    [
        None, True, False, 0, 1, -1, 7, -9, 2**31, 10**30, 10**400, 0.0, -0.5, 1e300, float("nan"), float("inf"),
        1j, "", "relu", "tf32", "gelu ", "softmax", b"x", "\N{SNOWMAN}" * 500, (), [], [1.0, 2.0], {}, {1, 2}, object(),
        torch.float32, torch.device("meta"), torch.tensor, torch.Size([3]), np.float32(1.5), np.int64(1), range(3),
        Ellipsis, torch.tensor(1.0), torch.tensor([1, 2]), np.zeros(2),
    ]
)  # fmt: skip


class Wrapped(torch.Tensor):
    """A subclass that changes nothing."""


def values(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Small eighths: exact in every dtype, and their sums of products stay small."""
    count = int(np.prod(shape, dtype=np.int64))
    numbers = torch.arange(count, dtype=torch.float64).mul(37).remainder(17).sub(8).div(8)
    return numbers.reshape(shape).to(dtype)


VARIANTS = {
    "plain": lambda x: x,
    "transposed": lambda x: x.mT.contiguous().mT if x.dim() > 1 else x,
    "padded": lambda x: torch.cat([x, x], -1)[..., : x.shape[-1]] if x.dim() else x,
    "every other": lambda x: torch.stack([x, x], -1)[..., 0],
    "offset": lambda x: torch.cat([x.flatten(), x.flatten()[:1]])[1 if x.numel() else 0 :].reshape(x.shape),
    "broadcast": lambda x: x.flatten()[:1].expand(x.shape) if x.numel() else x,
    "gradient": lambda x: x.clone().requires_grad_() if x.is_floating_point() else x,
    "parameter": lambda x: torch.nn.Parameter(x, requires_grad=x.is_floating_point()),
    "subclass": lambda x: x.as_subclass(Wrapped),
    "meta": lambda x: x.to("meta"),
    "sparse": lambda x: x.to_sparse(),
    "sparse rows": lambda x: x.to_sparse_csr(),
    "onednn": lambda x: x.to_mkldnn(),
    "quantised": lambda x: torch.quantize_per_tensor(x.float(), 0.1, 0, torch.qint8),
    "nested": lambda x: torch.nested.nested_tensor([x, x]),
    "jagged": lambda x: torch.nested.nested_tensor([x, x], layout=torch.jagged),
    "negated view": lambda x: torch._neg_view(x),
    "numpy": lambda x: x.numpy(),
    "numpy, big endian": lambda x: x.numpy().astype(x.numpy().dtype.newbyteorder(">")),
    "numpy, reversed": lambda x: x.numpy()[..., ::-1],
    "numpy of objects": lambda x: x.numpy().astype(object),
    "numpy, read only": lambda x: np.broadcast_to(x.numpy(), x.shape),
    "list": lambda x: x.tolist(),
}


def vary(tensor: torch.Tensor, variant: str) -> Any:
    """The tensor in another guise, or as it is where torch cannot give it that one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return VARIANTS[variant](tensor)
        except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError):
            return tensor


@dataclass
class Call:
    """A call, with arguments that may be anything."""

    op: str
    args: list[Any]
    kwargs: dict[str, Any]
    context: str = "eager"

    def __repr__(self) -> str:
        parts = [_brief(each) for each in self.args] + [f"{k}={_brief(v)}" for k, v in self.kwargs.items()]
        return f"{self.op}({', '.join(parts)}) under {self.context}"


def _brief(value: Any) -> str:
    if isinstance(value, torch.Tensor) and value.is_nested:
        return f"<nested {value.dtype}>"
    if isinstance(value, torch.Tensor):
        return f"<{type(value).__name__} {value.dtype} {value.layout} {value.device} {list(value.shape)}>"
    if isinstance(value, np.ndarray):
        return f"<ndarray {value.dtype} {value.shape}>"
    return repr(value)[:40]


CONTEXTS = {
    "eager": contextlib.nullcontext,
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
}


@st.composite
def good_tensors(draw: st.DrawFn, spec: Spec) -> dict[str, Any]:
    """Inputs that fit each other, each in some guise."""
    row = draw(st.sampled_from(spec.types))
    sizes = {name: max(draw(DIMS), axis.low) for name, axis in spec.axes.items()}
    leading = draw(st.lists(DIMS, max_size=2).map(tuple))

    def one(field: Input) -> Any:
        if field.optional and draw(st.booleans()):
            return None
        own = tuple(dim if isinstance(dim, int) else sizes[dim] for dim in field.dims)
        dtype = getattr(torch, row.get(field.dtype, field.dtype))
        made = values((*leading, *own) if field.leading else own, dtype)
        return vary(made, draw(st.sampled_from(["plain", "plain", *VARIANTS])))

    return {name: one(field) for name, field in spec.inputs.items()}


@st.composite
def strange(draw: st.DrawFn) -> Any:
    """Some tensor, or something that is none."""
    if draw(st.integers(0, 3)) == 0:
        return draw(JUNK)
    dtype = getattr(torch, draw(st.sampled_from(DTYPES)))
    return vary(values(draw(SHAPES), dtype), draw(st.sampled_from(list(VARIANTS))))


@st.composite
def calls(draw: st.DrawFn) -> Call:
    """A call of any op with up to three things wrong."""
    spec = catalog.spec(draw(st.sampled_from(OPS)))
    given: dict[str, Any] = draw(good_tensors(spec))
    for name, param in spec.params.items():
        if param.required:
            given[name] = draw(st.sampled_from(param.choices)) if param.choices else 1
    for _ in range(draw(st.integers(0, 3))):
        mistake = draw(st.integers(0, 5))
        if mistake <= 1:
            given[draw(st.sampled_from(list(spec.inputs)))] = draw(strange())
        elif mistake == 2 and spec.params:
            given[draw(st.sampled_from(list(spec.params)))] = draw(JUNK | st.integers(-4, 4))
        elif mistake == 3:
            given["out"] = draw(strange() | st.sampled_from([None, *given.values()]))
        elif mistake == 4 and given:
            given.pop(draw(st.sampled_from(list(given))))
        elif mistake == 5:
            given[draw(st.sampled_from(["outt", "X", "self", "dtype", "input", "axis"]))] = draw(JUNK)
    positional = draw(st.integers(0, len(given)))
    args = list(given.values())[:positional] + draw(st.lists(JUNK, max_size=1) if positional else st.just([]))
    return Call(spec.op, args, dict(list(given.items())[positional:]), draw(st.sampled_from(list(CONTEXTS))))


def perform(call: Call) -> Any:
    """The result, or None where the call was refused with one of our errors."""
    with warnings.catch_warnings(), CONTEXTS[call.context]():
        warnings.simplefilter("ignore")
        try:
            return dispatch.op(call.op)(*call.args, **call.kwargs)
        except errors.PortableError as error:
            assert str(error), "an error must say something"
            assert len(str(error)) < 4000
            return None


def exact(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        value = torch.from_numpy(value.copy())
    return value.detach().as_subclass(torch.Tensor).double() if isinstance(value, torch.Tensor) else value


def check_result(call: Call, result: Any) -> None:
    """A call that went through gave what the reference gives, in the shapes and dtypes of the spec."""
    spec = catalog.spec(call.op)
    bound = spec.signature.bind(*call.args, **call.kwargs).arguments
    bound.pop("out", None)
    if any(getattr(each, "is_meta", False) for each in bound.values()):
        return
    reference = catalog.load_entry(spec.reference.entry)(**{name: exact(each) for name, each in bound.items()})
    wanted = reference if isinstance(reference, tuple) else (reference,)
    results = result if isinstance(result, tuple) else (result,)
    assert len(results) == len(wanted)
    for got, want in zip(results, wanted, strict=True):
        assert torch.allclose(exact(got), want, rtol=0.03, atol=0.03, equal_nan=True)


@hypothesis.settings(
    max_examples=1500,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(hypothesis.HealthCheck),
)
@hypothesis.given(calls())
def test_a_call_gives_the_right_result_or_an_error_of_ours(call):
    result = perform(call)
    if result is not None:
        check_result(call, result)

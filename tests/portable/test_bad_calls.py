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
from torch._subclasses.fake_tensor import FakeTensorMode

import portable
from portable import errors
from portable.dispatch import arguments, compiled_call, dispatcher
from portable.spec import registry
from portable.spec.model import Input, Spec, size_of

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
OPS = sorted(registry.op_folders())
DTYPES = (
    "bfloat16", "float16", "float32", "float64", "float8_e4m3fn", "int8", "uint8", "int32", "int64", "bool",
    "complex64",
)  # fmt: skip
DIMS = st.sampled_from([0, 1, 2, 3, 5, 8])
SHAPES = st.lists(DIMS, max_size=5).map(tuple)

JUNK = st.sampled_from(
    [
        None, True, False, 0, 1, -1, 7, -9, 2**31, 10**30, 10**400, 10**5000, 0.0, -0.5, 1e300, 1j,
        float("nan"), float("inf"), "", "relu", "tf32", "gelu ", b"x", "\N{SNOWMAN}" * 500, (), [], [1.0],
        {}, {1, 2}, object(), range(3), Ellipsis, torch.float32, torch.device("meta"), torch.Size([3]),
        torch.tensor, torch.tensor(1.0), torch.tensor([1, 2]), np.float32(1.5), np.int64(1), np.zeros(2),
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
    "negated view": lambda x: torch.ops.aten._neg_view(x),
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

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # of hypothesis, which prints fields else
        printer.text(repr(self))


def _brief(value: Any) -> str:
    if isinstance(value, torch.Tensor) and value.is_nested:
        return f"<nested {value.dtype}>"
    if isinstance(value, torch.Tensor):
        return f"<{type(value).__name__} {value.dtype} {value.layout} {value.device} {list(value.shape)}>"
    if isinstance(value, np.ndarray):
        return f"<ndarray {value.dtype} {value.shape}>"
    return "a long int" if isinstance(value, int) and abs(value) > 2**99 else repr(value)[:40]


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
        own = tuple(size_of(dim, sizes) for dim in field.dims)
        dtype = getattr(torch, row.get(field.dtype, field.dtype))
        made = values((*leading, *own) if field.leading else own, dtype)
        if field.below is not None:
            below = sizes[field.below] if isinstance(field.below, str) else field.below
            hypothesis.assume(below or not made.numel())
            made = made.remainder(max(below, 1))
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
    spec = registry.spec(draw(st.sampled_from(OPS)))
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
    """The result, or None where the call was refused: with one of our errors, or with torch's for an index
    that is beyond its axis, as nobody checks values."""
    with warnings.catch_warnings(), CONTEXTS[call.context]():
        warnings.simplefilter("ignore")
        with contextlib.suppress(errors.PortableError):
            portable.explain(call.op, *call.args, **call.kwargs)
        try:
            return dispatcher.op(call.op)(*call.args, **call.kwargs)
        except errors.PortableError as error:
            assert 0 < len(str(error)) < 4000
            return None
        except IndexError:
            assert any(each.below is not None for each in registry.spec(call.op).inputs.values())
            return None


def as_tensor(value: Any) -> Any:
    return torch.from_numpy(value.copy()) if isinstance(value, np.ndarray) else value


def exact(value: Any) -> Any:
    value = as_tensor(value)
    if isinstance(value, torch.Tensor):
        plain = value.detach().as_subclass(torch.Tensor).resolve_neg()
        return plain.double() if plain.is_floating_point() else plain
    return float(value) if isinstance(value, int) and abs(value) > 2**62 else value


def check_result(call: Call, result: Any) -> None:
    """A call that went through gave what the reference gives, in the shapes and dtypes of the spec."""
    spec = registry.spec(call.op)
    values = dispatcher.op(call.op).bound(call.args, call.kwargs)
    bound = dict(zip(spec.signature.parameters, values, strict=True))
    bound.pop("out", None)
    if any(getattr(each, "is_meta", False) for each in bound.values()):
        return
    tensors, _ = compiled_call.unsqueezed(spec, [as_tensor(bound[name]) for name in spec.inputs])
    params = arguments.check_params(spec, [bound[name] for name in spec.params], tensors)
    types = arguments.check_types(spec, tensors, dict(zip(spec.params, params, strict=True)))
    exactly = {name: exact(each) for name, each in bound.items()}
    reference = registry.call_by_name(registry.load_entry(spec.reference.entry), exactly, {"types": types})
    wanted = reference if isinstance(reference, tuple) else (reference,)
    wanted = wanted[: len(spec.outputs)]  # the rest is written in place
    results = result if isinstance(result, tuple) else (result,)
    assert len(results) == len(wanted)
    for got, want in zip(results, wanted, strict=True):
        dtype = as_tensor(got).dtype
        ulp = torch.finfo(dtype).eps if dtype.is_floating_point else 0  # a float8 result may be the next one
        assert torch.allclose(exact(got), want, rtol=max(0.03, ulp), atol=0.03, equal_nan=True)


def test_the_check_of_a_result_knows_numpy():
    call = Call("log_softmax", [], {"x": np.ones((2, 3), np.float16)}, "eager")
    check_result(call, perform(call))
    with pytest.raises(AssertionError):
        check_result(call, perform(call) + 1)


@pytest.mark.parametrize("name", ["param", "exp_avg"])
@pytest.mark.parametrize("kind", [torch.zeros, np.zeros])
def test_an_input_that_is_written_is_no_negated_view(name, kind):
    """2026-11-27: torch's own RuntimeError, `Expected Tensor but got None`."""
    given = {each: kind(1) for each in ("param", "grad", "exp_avg", "exp_avg_sq", "step", "lr")}
    given[name] = torch.ops.aten._neg_view(torch.zeros(1))
    with pytest.raises(errors.LayoutError, match=f"{name!r} has layout torch.float32, a view that torch neg"):
        dispatcher.op("adamw")(**given)


@pytest.mark.parametrize("bias", [None, np.zeros(2, np.float32)])
def test_a_negated_view_that_torch_cannot_negate_is_refused(bias):
    """2026-11-27: torch's NotImplementedError."""
    a, b = torch.ones(3, 4).to(torch.float8_e4m3fn), torch.ones(2, 4).to(torch.float8_e4m3fn).T
    call = Call("scaled_mm", [], {"mat_a": torch.ops.aten._neg_view(a), "mat_b": b, "bias": bias})
    call.kwargs |= {"scale_a": torch.ones(3, 1), "scale_b": torch.ones(1, 2), "output_dtype": torch.float32}
    with pytest.raises(errors.LayoutError, match=r"layout torch.float8_e4m3fn, a view that torch negates"):
        dispatcher.op(call.op)(**call.kwargs)
    assert perform(call) is None  # nor from explain
    for dtype in (torch.bool, torch.uint32):
        assert perform(Call("activation", [torch.ones(2, dtype=dtype)._neg_view(), "relu"], {})) is None


@hypothesis.settings(
    max_examples=3 * hypothesis.settings().max_examples,
    derandomize=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.filter_too_much],
)
@hypothesis.given(calls())
def test_a_call_gives_the_right_result_or_an_error_of_ours(call):
    result = perform(call)
    if result is not None:
        check_result(call, result)


# One call per class, and the whole of what it says.

X, W = torch.zeros(2, 3), torch.zeros(3)
A, B = torch.zeros(4, 5), torch.zeros(5, 6)

SAID = {
    "a missing argument": (
        lambda: portable.matmul(A),
        errors.SignatureError,
        "portable.matmul: needs 'b'. Call it as matmul(a, b, *, precision='ieee', out=None), or as torch",
    ),
    "an unknown argument": (
        lambda: portable.softmax(X, dmi=0),
        errors.SignatureError,
        "portable.softmax: has no argument 'dmi'. Did you mean 'dim'? Call it as softmax(x, dim=-1), or",
    ),
    "an argument called self": (
        lambda: portable.softmax(X, self=0),
        errors.SignatureError,
        "portable.softmax: has no argument 'self'. Call it as softmax(x, dim=-1), or as torch",
    ),
    "an argument twice": (
        lambda: portable.softmax(X, x=X),
        errors.SignatureError,
        "portable.softmax: got 'x' twice. Call it as softmax(x, dim=-1), or as torch",
    ),
    "a keyword given by position": (
        lambda: portable.rms_norm(X, W, 1e-5),
        errors.SignatureError,
        "portable.rms_norm: takes 2 positional arguments but 3 were given."
        " Call it as rms_norm(x, weight=None, *, eps=1e-06, weight_offset=0.0, "
        "cast_before_weight=False), or as torch",
    ),
    "no tensor": (
        lambda: portable.softmax([1.0, 2.0]),
        errors.NotATensorError,
        "portable.softmax: argument 'x' is a list; expected a torch.Tensor, or an array with __dlpack__.",
    ),
    "no tensor, where one may be left out": (
        lambda: portable.rms_norm(X, "ones"),
        errors.NotATensorError,
        "portable.rms_norm: argument 'weight' is a str;"
        " expected a torch.Tensor or None, or an array with __dlpack__.",
    ),
    "a dtype": (
        lambda: portable.swiglu(X.int(), X),
        errors.DtypeError,
        "portable.swiglu: argument 'gate' has dtype int32;"
        " expected bfloat16 or float16 or float32 or float64."
        " Convert it, for example with gate.to(torch.float32).",
    ),
    "two dtypes": (
        lambda: portable.matmul(A, B.half()),
        errors.DtypeError,
        "portable.matmul: argument 'b' has dtype float16; expected float32 beside 'a' of float32."
        " Convert it, for example with b.to(torch.float32).",
    ),
    "a rank": (
        lambda: portable.matmul(A[0, 0], B),
        errors.RankError,
        "portable.matmul: argument 'a' has 0 dimensions; expected at least 1, as its shape is [..., M, K].",
    ),
    "no dimension at all": (
        lambda: portable.rms_norm(torch.tensor(1.0)),
        errors.RankError,
        "portable.rms_norm: argument 'x' has 0 dimensions; expected at least 1, as its shape is [..., N].",
    ),
    "a shape": (
        lambda: portable.matmul(A, A),
        errors.ShapeError,
        "portable.matmul: argument 'b' has shape (4, 5);"
        " expected [..., K, N] with K = 5, as in argument 'a'.",
    ),
    "leading dimensions": (
        lambda: portable.swiglu(X, X[:1]),
        errors.ShapeError,
        "portable.swiglu: argument 'up' has shape (1, 3);"
        " expected the leading dimensions (2,) of argument 'gate'.",
    ),
    "an axis that one argument has not": (
        lambda: dispatcher.op("softmax_backward")(X[0], X, dim=-2),
        errors.ShapeError,
        "portable.softmax_backward: argument 'y' has shape (3, 2);"
        " expected [..., N] with N = 3, as in argument 'dy'.",
    ),
    "dimensions that do not broadcast": (
        lambda: portable.matmul(A.expand(2, 4, 5), B.expand(3, 5, 6)),
        errors.ShapeError,
        "portable.matmul: argument 'b' has shape (3, 5, 6);"
        " expected leading dimensions that broadcast with (2,) of argument 'a'.",
    ),
    "a result that no machine can address": (
        lambda: portable.matmul(A[:1, :1].expand(2**40, 1), B[:1, :1].expand(1, 2**40)),
        errors.ShapeError,
        f"portable.matmul: argument 'a' has shape ({2**40}, 1); expected sizes that make 'c' smaller than"
        f" 2^63 bytes, not of shape ({2**40}, {2**40}).",
    ),
    "a sparse tensor": (
        lambda: portable.softmax(X.to_sparse()),
        errors.LayoutError,
        "portable.softmax: argument 'x' has layout torch.sparse_coo; expected a dense tensor."
        " Call .to_dense() on it.",
    ),
    "a nested tensor": (
        lambda: portable.softmax(torch.nested.nested_tensor([W, W])),
        errors.LayoutError,
        "portable.softmax: argument 'x' has layout nested; expected a dense tensor."
        " Call .to_padded_tensor() on it.",
    ),
    "two devices": (
        lambda: portable.matmul(A, B.to("meta")),
        errors.DeviceError,
        "portable.matmul: argument 'b' is on meta; expected cpu, where argument 'a' is."
        " Move it with b.to('cpu').",
    ),
    "a parameter": (
        lambda: portable.linear(X, X, activation="gleu"),
        errors.ParameterError,
        "portable.linear: argument 'activation' is 'gleu';"
        " expected one of 'relu', 'gelu', 'gelu_tanh', 'silu', None. Did you mean 'gelu'?",
    ),
    "a number that is none": (
        lambda: portable.layer_norm(X, eps=float("nan")),
        errors.ParameterError,
        "portable.layer_norm: argument 'eps' is nan; expected a float.",
    ),
    "a dimension": (
        lambda: portable.softmax(X, dim=2),
        errors.ParameterError,
        "portable.softmax: argument 'dim' is 2; expected an int from -2 to 1, as 'x' has 2 dimensions.",
    ),
    "an output's shape": (
        lambda: portable.matmul(A, B, out=torch.zeros(6, 4)),
        errors.OutputError,
        "portable.matmul: argument 'out' has shape (6, 4); expected (4, 6)."
        " Allocate it with torch.empty((4, 6), dtype=torch.float32, device='cpu').",
    ),
    "an output's dtype": (
        lambda: portable.matmul(A, B, out=torch.zeros(4, 6).half()),
        errors.OutputError,
        "portable.matmul: argument 'out' has dtype float16; expected float32.",
    ),
    "an output that is an input": (
        lambda: portable.matmul(A[:, :4], A[:, :4], out=A[:, :4]),
        errors.OutputError,
        "portable.matmul: argument 'out' shares memory with argument 'a'; expected separate memory.",
    ),
    "an output that overlaps itself": (
        lambda: portable.matmul(A, B, out=torch.zeros(6).expand(4, 6)),
        errors.OutputError,
        "portable.matmul: argument 'out' has strides (0, 1) that overlap; expected one address per element.",
    ),
    "an output and a gradient": (
        lambda: portable.matmul(A.clone().requires_grad_(), B, out=torch.zeros(4, 6)),
        errors.OutputError,
        "portable.matmul: argument 'out' was given where an argument requires a gradient;"
        " expected no gradient. Leave out= away, or call under torch.no_grad().",
    ),
    "an output that cannot be written": (
        lambda: portable.matmul(A.numpy(), B.numpy(), out=read_only((4, 6))),
        errors.NotATensorError,
        "portable.matmul: argument 'out' is a ndarray; expected an array that torch can take through DLPack",
    ),
    "a gradient through another library's array": (
        lambda: portable.matmul(A.clone().requires_grad_(), B.numpy()),
        errors.UnsupportedGradientError,
        "portable.matmul: no gradient: another library's array is among the arguments."
        " Pass torch tensors alone, or call under torch.no_grad().",
    ),
    "an op": (
        lambda: portable.sofmax,
        errors.UnknownOpError,
        "portable has no op 'sofmax'. Did you mean 'softmax'? The ops are ",
    ),
    "a pin": (
        lambda: pinned("triton"),
        errors.PinError,
        "portable.softmax: portable.using pins 'triton', but it cannot run x float32[2, 3], ",
    ),
    "a pin that names nothing": (
        lambda: pinned("trition"),
        errors.PinError,
        "portable.softmax: portable.using pins 'trition', but the op has ",
    ),
}


def read_only(shape: tuple[int, ...]) -> np.ndarray:
    array = np.zeros(shape, dtype=np.float32)
    array.flags.writeable = False
    return array


def pinned(name: str) -> None:
    with portable.using(softmax=name):
        portable.softmax(X)


@pytest.mark.parametrize("mistake, cls, message", SAID.values(), ids=SAID)
def test_each_mistake_is_named(mistake, cls, message):
    with pytest.raises(cls) as caught:
        mistake()
    assert type(caught.value) is cls
    said = str(caught.value)
    assert said == message if message.endswith((".", "?")) else said.startswith(message)


def test_a_mistake_is_named_again_after_a_good_call():
    """What is remembered of a good call is not taken for a bad one."""
    rows = torch.ones(2, 4)
    portable.rms_norm(rows, rows[0])
    with pytest.raises(errors.DeviceError):
        portable.rms_norm(rows, rows[0].to("meta"))
    assert portable.rms_norm(rows.to("meta"), rows[0].to("meta")).is_meta
    product = torch.empty(2, 2)
    portable.matmul(rows, rows.mT, out=product)
    square = torch.ones(2, 2)
    portable.matmul(square, square, out=product)
    with pytest.raises(errors.OutputError):
        portable.matmul(square, square, out=square)


def test_a_result_that_the_library_cannot_hold_says_so():
    with pytest.raises(errors.PortableError, match=r"cannot return a torch\.bfloat16 result as a ndarray"):
        portable.rms_norm(X.bfloat16(), W.numpy())


class Raising:
    """An array of another library; one of its attributes raises."""

    def __init__(self, what: str, error: BaseException):
        self._what, self._error, self._array = what, error, np.ones((2, 3), np.float32)

    def _get(self, name: str) -> Any:
        if name == self._what:
            raise self._error
        return getattr(self._array, name)

    def __dlpack__(self, **options: Any) -> Any:
        return self._get("__dlpack__")(**options)

    def __dlpack_device__(self) -> Any:
        return self._get("__dlpack_device__")()

    def __array_namespace__(self) -> Any:
        return self._get("__array_namespace__")()

    strides = property(lambda self: self._get("strides"))
    flags = property(lambda self: self._get("flags"))


@pytest.mark.parametrize("error", [KeyError("k"), ZeroDivisionError()], ids=repr)
@pytest.mark.parametrize(
    "what", ["__dlpack__", "__dlpack_device__", "strides", "flags", "__array_namespace__"]
)
def test_what_another_library_s_array_raises_is_the_cause_of_an_error(what, error):
    """2026-11-22: what `__dlpack__` raised passed through."""
    array, a, b = Raising(what, error), torch.ones(4, 2), torch.ones(2, 3)
    written, read = {"flags": (True, False), "__array_namespace__": (False, True)}.get(what, (True, True))
    calls = [lambda: portable.softmax(array)] * read
    calls += [lambda: portable.matmul(b.numpy()[:, :2], b.numpy(), out=array)] * written
    calls += [lambda: portable.matmul(a, array)] * (written and read)
    for call in calls:
        with pytest.raises(errors.PortableError) as caught:
            call()
        assert caught.value.__cause__ is error
    with pytest.raises(KeyboardInterrupt):
        portable.softmax(Raising("__dlpack__", KeyboardInterrupt()))


def test_a_fake_tensor_beside_one_with_data_is_named():
    """2026-11-23: torch's AssertionError about its own modes came through."""
    fake = FakeTensorMode().from_tensor(X)
    for call in (lambda: portable.rms_norm(fake, W), lambda: portable.rms_norm(X, weight=fake[0])):
        with pytest.raises(errors.NotATensorError, match="is a FakeTensor; expected a tensor with data, as"):
            call()
    assert portable.softmax(fake).shape == X.shape
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert portable.rms_norm(X, W).shape == X.shape


def test_reversed_arrays_are_copied():
    """torch's own from_dlpack ends the process on a negative stride."""
    rows = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert np.allclose(portable.softmax(rows[:, ::-1]), portable.softmax(rows)[:, ::-1])


def test_errors_under_compile_carry_the_sentence():
    def f(x):
        return portable.softmax(x, dim=5)

    with pytest.raises(Exception, match="argument 'dim' is 5; expected an int from -2 to 1"):
        torch.compile(f, fullgraph=True, backend="eager")(X)

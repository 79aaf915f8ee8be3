"""Every op as a citizen of torch: opcheck, gradients, compile, vmap, autocast. Runs on the CPU choice."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable

import pytest
import torch
import torch.nn.functional as F

import portable
from portable import errors
from portable.conformance.cases.generate import required_params
from portable.conformance.execute import behaviour
from portable.conformance.execute.samples import said_dtypes
from portable.dispatch import dispatcher
from portable.spec import registry
from portable.spec.model import size_of

OPS = sorted(registry.op_folders())
PUBLIC = portable.ops()
DIFFERENTIABLE = [
    op for op in PUBLIC
    if not registry.spec(op).mutated and registry.spec(op).tolerance
    and any(each.gradient for each in registry.spec(op).inputs.values())
]  # fmt: skip


def sample(name: str, dtype: torch.dtype = torch.float64, requires_grad: bool = True) -> tuple[dict, dict]:
    """Small inputs and parameters of one op, from its spec alone; those that have a gradient require it."""
    spec = registry.spec(name)
    sizes = {"M": 3, "N": 5, "K": 4, "H": 4, "G": 2, "D": 4, "E": 6, "V": 7, "Z": 2, "P": 3, "C": 2}
    generator = torch.Generator().manual_seed(7)
    inputs = {}
    offsets = any(field.derived and field.dtype.startswith("int") for field in spec.inputs.values())
    if offsets or not set(spec.axes) <= set(sizes):  # its sizes hang together
        of_dtype = (row for row in spec.types if row["T"] == str(dtype).removeprefix("torch."))
        row = next(of_dtype, spec.types[0])
        inputs = behaviour.sample(spec, torch.device("cpu"), types=row)
        for field_name, each in inputs.items():
            wants = requires_grad and spec.inputs[field_name].gradient
            each.requires_grad_(wants and each.is_floating_point())
        return inputs, said_dtypes(spec, inputs)
    for field in spec.inputs.values():
        shape = [size_of(dim, sizes) for dim in field.dims]
        if field.leading:
            shape = [2, *shape]
        if isinstance(field.below, str):
            inputs[field.name] = torch.randint(0, sizes[field.below], shape, generator=generator)
            continue
        legal = dtype if str(dtype).removeprefix("torch.") in spec.legal_dtypes(field.name) else torch.float32
        if "float32" not in spec.legal_dtypes(field.name):
            legal = getattr(torch, spec.legal_dtypes(field.name)[0])
        made = inputs[field.name] = torch.randn(shape, generator=generator, dtype=torch.float64).to(legal)
        made.requires_grad_(requires_grad and field.gradient and made.is_floating_point())
    params = {p.name: p.choices[-1] for p in spec.params.values() if p.type == "choice" and p.required}
    return inputs, required_params(spec)[0] | params | said_dtypes(spec, inputs)


def total(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    return torch.stack([each.sum() for each in tensors]).sum()


def several(result) -> tuple[torch.Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.slow
@pytest.mark.parametrize("name", OPS)
def test_opcheck(name):
    inputs, params = sample(name, torch.float32, requires_grad=name in PUBLIC)
    dispatcher.op(name)
    overload = getattr(torch.ops.portable, name).default
    tests = ["test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"]
    if any(each.is_floating_point() and each.itemsize == 1 for each in inputs.values()):
        tests.remove("test_schema")  # it multiplies inputs, which a CPU does not in fp8
    torch.library.opcheck(overload, (), {**inputs, **params}, test_utils=tests)


@pytest.mark.slow
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradcheck_in_float64(name):
    inputs, params = sample(name)
    names = list(inputs)
    op = dispatcher.op(name)
    assert torch.autograd.gradcheck(
        lambda *a: op(**dict(zip(names, a, strict=True)), **params), tuple(inputs.values())
    )


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu"])
def test_gradcheck_of_each_activation(activation):
    inputs, _ = sample("linear")
    assert torch.autograd.gradcheck(
        lambda *a: portable.linear(*a, activation=activation), tuple(inputs.values())
    )


def test_gradcheck_of_broadcast_matmul():
    a = torch.randn(2, 1, 3, 4, dtype=torch.float64, requires_grad=True)
    b = torch.randn(3, 4, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(portable.matmul, (a, b))


def test_gradcheck_of_softmax_along_each_dimension():
    x = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    for dim in (-3, -2, -1, 0, 1, 2):
        assert torch.autograd.gradcheck(lambda t, d=dim: portable.softmax(t, d), (x,))


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_compiles_without_a_graph_break(name):
    torch._dynamo.reset()  # its limit of compilations is for all ops, whose `twice` is one code
    inputs, params = sample(name, torch.float32, requires_grad=name in PUBLIC)
    op = dispatcher.op(name)

    def twice(**given):
        return [y * 2 for y in several(op(**given, **params))]

    got = torch.compile(twice, fullgraph=True, backend="aot_eager")(**inputs)
    torch.testing.assert_close(got, twice(**inputs))
    total(got).backward()
    leaves = [x for x in inputs.values() if x.requires_grad]
    assert all(x.grad is not None and torch.isfinite(x.grad).all() for x in leaves)


FIRST_MENTIONS = """
import torch, portable
x, target = torch.randn(8, 16, requires_grad=True), torch.arange(8)
w = torch.randn(40, 16, requires_grad=True)
q, cache, lengths = torch.randn(8, 2, 16), torch.randn(4, 4, 2, 16), torch.tensor([5, 6], dtype=torch.int32)
starts, table = torch.tensor([0, 3, 8], dtype=torch.int32), torch.zeros(2, 2, dtype=torch.int32)
for call in (
    lambda: portable.attention_varlen(q, q, q, starts, starts, causal=True),
    lambda: portable.attention_paged(q[:2, None], cache, cache, table, lengths),
    lambda: portable.linear_cross_entropy(x, w, target, chunk_rows=4),
    lambda: portable.cross_entropy(w, torch.arange(40) % 16),
    lambda: portable.rope(q[None], None, q[:, 0, :8], q[:, 0, :8]),
):
    y = torch.compile(call, fullgraph=True, backend="aot_eager")()
    if y.requires_grad:
        y.backward()
"""


@pytest.mark.slow
def test_a_first_call_under_compile_breaks_no_graph():
    """An op is bound under a lock, which torch.compile does not trace: bound at import of its function."""
    done = subprocess.run([sys.executable, "-c", FIRST_MENTIONS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.parametrize("out", [False, True])
def test_inductor_makes_no_text_of_the_graph(monkeypatch, out):
    """It made one, of a size exponential in a model's layers, of a node that it has no lowering for."""
    from torch._inductor import exc, graph, utils

    made = []
    for error in (exc.MissingOperatorWithDecomp, exc.MissingOperatorWithoutDecomp):
        monkeypatch.setattr(error, "operator_str", lambda target, *args: made.append(str(target)) or "")

    class Lowered(BaseException):
        """No kernel is generated."""

    def lowered(self):
        raise Lowered

    monkeypatch.setattr(graph.log, "info", lambda text, *args: text % args)
    monkeypatch.setattr(graph.GraphLowering, "compile_to_module", lowered)
    x = torch.randn(3, 64)

    def call(x):
        first = portable.rms_norm(x + 1)
        if not out:
            return portable.softmax(first)
        product = torch.empty(3, 3)
        portable.matmul(first, first.mT, out=product)
        return product

    torch._dynamo.reset()
    with utils.fresh_cache(), pytest.raises(Lowered):
        torch.compile(call, fullgraph=True)(x)
    assert [name for name in made if "portable" in name] == []


def test_compiles_with_a_dynamic_size():
    compiled = torch.compile(lambda x: portable.softmax(x), fullgraph=True, backend="aot_eager", dynamic=True)
    for size in (3, 5, 9):
        x = torch.randn(size, size + 1)
        torch.testing.assert_close(compiled(x), torch.softmax(x, -1))


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_vmap_equals_a_loop(name):
    inputs, params = sample(name, torch.float32, requires_grad=False)
    op = dispatcher.op(name)
    spec = registry.spec(name)
    leading = [name for name, field in spec.inputs.items() if field.leading] or [next(iter(inputs))]
    batched = {n: torch.stack([x, x + 1, 2 * x], 1) for n, x in inputs.items() if n in leading}
    fixed = {n: x for n, x in inputs.items() if n not in batched}
    got = torch.func.vmap(lambda b: op(**b, **fixed, **params), in_dims=(1,))(batched)
    for i in range(3):
        each = {n: x.select(1, i) for n, x in batched.items()}
        expected = list(several(op(**each, **fixed, **params)))
        # Indices times two lie outside a table, which is a row of NaN.
        torch.testing.assert_close([y[i] for y in several(got)], expected, equal_nan=True)


def test_autocast_lowers_matmul_and_raises_norms():
    a, b = torch.randn(3, 4), torch.randn(4, 5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert portable.matmul(a, b).dtype is torch.bfloat16
        assert portable.linear(a, b.T).dtype is torch.bfloat16
        assert portable.softmax(a.bfloat16()).dtype is torch.float32
        assert portable.rms_norm(a.bfloat16()).dtype is torch.float32
        assert portable.matmul(a.double(), b.double()).dtype is torch.float64


def test_autocast_does_not_reach_what_computes_an_op_without_it():
    q, offsets = torch.randn(5, 2, 4), torch.tensor([0, 2, 5], dtype=torch.int32)
    expected = portable.attention_varlen(q, q, q, offsets, offsets)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(portable.attention_varlen(q, q, q, offsets, offsets), expected)


def test_autocast_of_types_that_have_no_wider_one_is_a_sentence():
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(errors.DtypeError, match="float8_e4m3fn"):
        portable.swiglu(torch.ones(4).to(torch.float8_e4m3fn), torch.ones(4))


def test_out_is_written_and_returned():
    a, b = torch.randn(3, 4), torch.randn(4, 5)
    out = torch.full((3, 5), float("nan"))
    assert portable.matmul(a, b, out=out) is out
    torch.testing.assert_close(out, a @ b)


def test_out_under_compile():
    a, b = torch.randn(3, 4), torch.randn(4, 5)

    def step(a, b):
        out = torch.empty(3, 5)
        portable.matmul(a, b, out=out)
        return out + 1

    torch.testing.assert_close(torch.compile(step, fullgraph=True, backend="aot_eager")(a, b), a @ b + 1)


class Plain(torch.Tensor):
    """A subclass that changes nothing."""


@pytest.mark.parametrize(
    "a, out, says",
    [
        (torch.ones(2, 3, device="meta"), torch.ones(2, 4), "is on cpu; expected meta"),
        (torch.ones(2, 3).as_subclass(Plain), torch.ones(2, 4, device="meta"), "is on meta; expected cpu"),
        (torch.ones(2, 3, device="meta"), torch.ones(2, 5, device="meta"), r"has shape \(2, 5\)"),
        (torch.ones(2, 3), torch.ones(2, 4).to_sparse(), "is sparse"),
    ],
)
def test_out_that_cannot_take_the_result_is_refused_on_every_way(a, out, says):
    """2026-11-23: one of two devices, meta, wrote nothing and gave `out` back as it was."""
    b = torch.ones(3, 4, device=a.device)
    for call in (
        lambda: portable.matmul(a, b, out=out),
        lambda: torch.ops.portable.matmul.out(a, b, out=out),
    ):
        with pytest.raises(errors.OutputError, match=says):
            call()


def test_negative_views_are_resolved():
    z = torch.randn(3, 4, dtype=torch.complex64).conj().imag
    assert z.is_neg()
    torch.testing.assert_close(portable.softmax(z), torch.softmax(z, -1))


def test_inference_and_no_grad_take_the_same_values():
    x = torch.randn(3, 4, requires_grad=True)
    with torch.no_grad():
        assert not portable.softmax(x).requires_grad
    with torch.inference_mode():
        assert portable.softmax(x).is_inference()
    assert portable.softmax(x).requires_grad


def test_numpy_arrays_come_back_as_numpy():
    import numpy

    a, b = numpy.ones((2, 3), numpy.float32), numpy.ones((3, 4), numpy.float32)
    c = portable.matmul(a, b)
    assert isinstance(c, numpy.ndarray) and (c == 3).all()
    out = numpy.zeros((2, 4), numpy.float32)
    assert portable.matmul(a, b, out=out) is out and (out == 3).all()
    a.flags.writeable = False
    assert (portable.matmul(a, b) == 3).all()


def test_two_threads_share_an_op():
    from concurrent.futures import ThreadPoolExecutor

    xs = [torch.randn(7, n) for n in range(1, 40)]
    with ThreadPoolExecutor(4) as pool:
        for x, y in zip(xs, pool.map(portable.softmax, xs), strict=True):
            torch.testing.assert_close(y, torch.softmax(x, -1))


# An op that another one stands in for where a gradient is recorded.

GELU = ["gelu", "gelu_tanh", "silu"]


def leaves(dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(11)
    shapes = ((2, 3, 4), (5, 4), (5,))
    return [torch.randn(s, generator=generator).to(dtype).requires_grad_() for s in shapes]


@pytest.fixture
def seen(monkeypatch):
    """The ops that compute, in order."""
    ran = []
    for name in ("linear", "linear_with_preactivation"):
        op = dispatcher.op(name)
        op.clear_caches()
        prepare = op._compile

        def counted(inputs, params, out, name=name, prepare=prepare):
            made = prepare(inputs, params, out)
            compute = made.compute
            made.compute = lambda *a: ran.append(name) or compute(*a)
            return made

        monkeypatch.setattr(op, "_compile", counted)
    yield ran
    for name in ("linear", "linear_with_preactivation"):
        dispatcher.op(name).clear_caches()


@pytest.mark.parametrize("activation", [None, "relu", *GELU])
def test_what_the_activation_took_is_kept_not_computed_again(seen, activation):
    x, w, b = leaves()
    y = portable.linear(x, w, b, activation=activation)
    torch.autograd.grad(y.sum(), (x, w, b))
    assert seen == ["linear_with_preactivation" if activation in GELU else "linear"]


@pytest.mark.parametrize("activation", GELU)
def test_a_recorded_result_is_the_plain_one_bit_for_bit(seen, activation):
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        x, w, b = leaves(dtype)
        with torch.no_grad():
            plain = portable.linear(x, w, b, activation=activation)
        assert seen == ["linear"] and not plain.requires_grad
        assert torch.equal(portable.linear(x, w, b, activation=activation), plain)
        with torch.inference_mode():
            assert torch.equal(portable.linear(x, w, b, activation=activation), plain)
        assert seen == ["linear", "linear_with_preactivation", "linear"]
        seen.clear()


@pytest.mark.parametrize("activation", GELU)
def test_a_graph_that_is_kept_gives_the_same_gradients_again(activation):
    x, w, b = leaves()
    y = portable.linear(x, w, b, activation=activation)
    first = torch.autograd.grad(y.sum(), (x, w, b), retain_graph=True)
    second = torch.autograd.grad(y.sum(), (x, w, b))
    assert all(torch.equal(p, q) for p, q in zip(first, second, strict=True))
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(y.sum(), (x, w, b))


def test_a_result_may_be_changed_where_it_is_not_kept():
    x, w, b = leaves()
    y = portable.linear(x, w, b, activation="gelu")
    expected = torch.autograd.grad(y.sum(), x, retain_graph=True)[0]
    y.mul_(1)
    assert torch.equal(torch.autograd.grad(y.sum(), x)[0], expected)
    y = portable.linear(x, w, b, activation="relu")  # its slope is read from it
    y.mul_(1)
    with pytest.raises(RuntimeError, match="inplace"):
        y.sum().backward()


@pytest.mark.parametrize("activation", GELU)
def test_both_results_have_gradients(activation):
    inputs = [t.double().detach().requires_grad_() for t in leaves()]
    for pick in (lambda r: r, lambda r: r[0], lambda r: r[1]):
        assert torch.autograd.gradcheck(
            lambda *a, p=pick: p(portable.linear_with_preactivation(*a, activation=activation)), inputs
        )


@pytest.mark.slow
@pytest.mark.parametrize("activation", [None, "relu", *GELU])
def test_linear_compiles_with_its_gradient(activation):
    plain = {None: lambda z: z, "relu": torch.relu, "silu": F.silu, "gelu": F.gelu}
    apply = plain.get(activation, lambda z: F.gelu(z, approximate="tanh"))
    x, w, b = leaves()
    compiled = torch.compile(
        lambda x, w, b: portable.linear(x * 2, w, b, activation=activation) + 1,
        fullgraph=True,
        backend="aot_eager",
    )
    got, expected = compiled(x, w, b), apply(F.linear(x * 2, w, b)) + 1
    torch.testing.assert_close(got, expected)
    for p, q in zip(
        torch.autograd.grad(got.square().sum(), (x, w, b)),
        torch.autograd.grad(expected.square().sum(), (x, w, b)),
        strict=True,
    ):
        torch.testing.assert_close(p, q)


def test_opcheck_of_linear_with_an_activation():
    getattr(portable, "linear")  # noqa: B009 (binds it)
    for name in ("linear", "linear_with_preactivation"):
        getattr(portable, name)
        overload = getattr(torch.ops.portable, name).default
        torch.library.opcheck(overload, tuple(leaves()), {"activation": "gelu"})


def test_autocast_records_the_other_op_too(seen):
    x, w, b = leaves()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = portable.linear(x, w, b, activation="gelu")
    assert y.dtype is torch.bfloat16 and seen == ["linear_with_preactivation"]
    y.float().sum().backward()
    expected = torch.autograd.grad(F.gelu(F.linear(x, w, b)).sum(), (x, w, b))
    for t, g in zip((x, w, b), expected, strict=True):
        assert t.grad is not None and t.grad.dtype is torch.float32
        torch.testing.assert_close(t.grad, g, rtol=0.05, atol=0.1)


def test_an_unknown_activation_is_the_caller_s_op_s_mistake():
    portable.linear(*leaves())
    with pytest.raises(errors.ParameterError, match=r"portable\.linear:"):
        torch.ops.portable.linear(*leaves(), activation="swish")


def test_vmap_over_several_outputs():
    x, w, b = (t.detach() for t in leaves())
    y, z = torch.func.vmap(lambda x: portable.linear_with_preactivation(x, w, b, activation="silu"))(x)
    torch.testing.assert_close(z, F.linear(x, w, b))
    torch.testing.assert_close(y, F.silu(F.linear(x, w, b)))

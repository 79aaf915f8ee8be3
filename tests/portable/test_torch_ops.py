"""Every op as a citizen of torch: opcheck, gradients, compile, vmap, autocast. Runs on the CPU choice."""

from __future__ import annotations

import pytest
import torch

import portable
from portable import catalog, errors

OPS = sorted(catalog.op_folders())
PUBLIC = portable.ops()


def sample(name: str, dtype: torch.dtype = torch.float64, requires_grad: bool = True) -> tuple[dict, dict]:
    """Small inputs and parameters of one op, from its spec alone."""
    spec = catalog.spec(name)
    sizes = {"M": 3, "N": 5, "K": 4}
    generator = torch.Generator().manual_seed(7)
    inputs = {}
    for field in spec.inputs.values():
        shape = [sizes.get(d, d) for d in field.dims]
        if field.leading:
            shape = [2, *shape]
        inputs[field.name] = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
        inputs[field.name].requires_grad_(requires_grad)
    params = {p.name: p.choices[-1] for p in spec.params.values() if p.type == "choice" and p.required}
    return inputs, params


@pytest.mark.parametrize("name", OPS)
def test_opcheck(name):
    inputs, params = sample(name, torch.float32, requires_grad=name in PUBLIC)
    getattr(portable, name)
    overload = getattr(torch.ops.portable, name).default
    torch.library.opcheck(overload, (), {**inputs, **params})


@pytest.mark.parametrize("name", PUBLIC)
def test_gradcheck_in_float64(name):
    inputs, params = sample(name)
    names = list(inputs)
    op = getattr(portable, name)
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


@pytest.mark.parametrize("name", PUBLIC)
def test_double_backward_works_or_says_why_not(name):
    inputs, params = sample(name)
    y = getattr(portable, name)(**inputs, **params)
    grads = torch.autograd.grad((y * y).sum(), tuple(inputs.values()), create_graph=True)
    try:
        sum(g.sum() for g in grads).backward()
    except errors.UnsupportedGradientError as error:
        assert "gradient" in str(error)
    else:
        assert all(x.grad is not None for x in inputs.values())


@pytest.mark.parametrize("name", PUBLIC)
def test_compiles_without_a_graph_break(name):
    inputs, params = sample(name, torch.float32, requires_grad=name in PUBLIC)
    op = getattr(portable, name)
    compiled = torch.compile(lambda **kw: op(**kw, **params) * 2, fullgraph=True, backend="aot_eager")
    got = compiled(**inputs)
    torch.testing.assert_close(got, op(**inputs, **params) * 2)
    got.sum().backward()
    assert all(x.grad is not None and torch.isfinite(x.grad).all() for x in inputs.values())


def test_compiles_with_a_dynamic_size():
    compiled = torch.compile(lambda x: portable.softmax(x), fullgraph=True, backend="aot_eager", dynamic=True)
    for size in (3, 5, 9):
        x = torch.randn(size, size + 1)
        torch.testing.assert_close(compiled(x), torch.softmax(x, -1))


@pytest.mark.parametrize("name", PUBLIC)
def test_vmap_equals_a_loop(name):
    inputs, params = sample(name, torch.float32, requires_grad=False)
    op = getattr(portable, name)
    spec = catalog.spec(name)
    batched = {n: torch.stack([x, x + 1, 2 * x], 1) for n, x in inputs.items() if spec.inputs[n].leading}
    fixed = {n: x for n, x in inputs.items() if n not in batched}
    got = torch.func.vmap(lambda b: op(**b, **fixed, **params), in_dims=(1,))(batched)
    for i in range(3):
        each = {n: x.select(1, i) for n, x in batched.items()}
        torch.testing.assert_close(got[i], op(**each, **fixed, **params))


def test_vmap_over_a_weight_is_a_sentence():
    with pytest.raises(errors.UnsupportedTransformError, match="weight"):
        torch.func.vmap(lambda w: portable.rms_norm(torch.ones(2, 4), w))(torch.ones(3, 4))


def test_autocast_lowers_matmul_and_raises_norms():
    a, b = torch.randn(3, 4), torch.randn(4, 5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert portable.matmul(a, b).dtype is torch.bfloat16
        assert portable.linear(a, b.T).dtype is torch.bfloat16
        assert portable.softmax(a.bfloat16()).dtype is torch.float32
        assert portable.rms_norm(a.bfloat16()).dtype is torch.float32
        assert portable.matmul(a.double(), b.double()).dtype is torch.float64


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
    numpy = pytest.importorskip("numpy")
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

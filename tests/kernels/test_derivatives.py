"""Every op's derivatives: forward and reverse mode, of second order, under torch.func's transforms.

torch's gradcheck compares with finite differences in float64; the rest compares with torch's own formulas.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.autograd.forward_ad as fwd
import torch.nn.functional as F
from torch.autograd import gradcheck, gradgradcheck

import portable
from portable import errors
from portable.dispatch import arguments, dispatcher

OFFSETS = torch.tensor([0, 2, 5], dtype=torch.int32)
TABLE = torch.tensor([[2, 0], [1, 3]], dtype=torch.int32)
LENGTHS = torch.tensor([3, 2], dtype=torch.int32)


def attend(q, k, v, bias=None, sinks=None, softcap=None):
    """Causal attention of (..., heads, tokens, D)."""
    k, v = (x.repeat_interleave(q.shape[-3] // x.shape[-3], -3) for x in (k, v))
    scores = q @ k.mT * q.shape[-1] ** -0.5
    scores = scores if softcap is None else softcap * torch.tanh(scores / softcap)
    scores = scores if bias is None else scores + bias
    M, N = scores.shape[-2:]
    scores = scores.masked_fill(torch.ones(M, N).tril(N - M) == 0, -torch.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks[:, None, None].expand(*scores.shape[:-1], 1)], -1)
    return torch.softmax(scores, -1)[..., :N] @ v


def attend_varlen(q, k, v):
    parts = [attend(*(x[a:b].transpose(0, 1) for x in (q, k, v))) for a, b in ((0, 2), (2, 5))]
    return torch.cat(parts, 1).transpose(0, 1)


def attend_pages(q, k, v):
    made = []
    for z, (pages, length) in enumerate(zip(TABLE.tolist(), LENGTHS.tolist(), strict=True)):
        keys, values = (x[pages].flatten(0, 1)[:length].transpose(0, 1) for x in (k, v))
        made.append(attend(q[z].transpose(0, 1), keys, values).transpose(0, 1))
    return torch.stack(made)


ANGLE = torch.tensor([[0.5, -2.0], [3.0, 1.0], [0.0, 4.0]])
TABLES = tuple(f(ANGLE).bfloat16().double() for f in (torch.cos, torch.sin))  # the same in every type
POSITIONS = torch.tensor([[2, 0]])


def our_rope(q, k, *weights):
    """Of 4 columns of 5, queries and keys one after the other; with weights, of their norms."""
    tables = [each.to(q.dtype) for each in TABLES]
    if weights:
        return torch.cat(portable.qk_norm_rope(q, k, *weights, *tables, POSITIONS, eps=1e-2), 2)
    return torch.cat(portable.rope(q, k, *tables, POSITIONS), 2)


def their_rope(q, k, *weights):
    if weights:
        q, k = (F.rms_norm(x, x.shape[-1:], w, 1e-2) for x, w in zip((q, k), weights, strict=True))
    x = torch.cat((q, k), 2)
    cos, sin = (each.to(x.dtype)[POSITIONS].unsqueeze(2) for each in TABLES)
    a, b, rest = x.split((2, 2, x.shape[-1] - 4), -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin, rest), -1)


def layer_norm(x, w, b):
    """Not torch's, whose tangent has a wrong derivative (2.13, 2026-11-22)."""
    x = x - x.mean(-1, keepdim=True)
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * w + b


TOKENS = torch.tensor([[3, 0, 3], [2, 2, 2]])
CALLS = {
    "softmax": (lambda x: portable.softmax(x, 1), lambda x: torch.softmax(x, 1), [(2, 3, 4)]),
    "log_softmax": (lambda x: portable.log_softmax(x, 1), lambda x: torch.log_softmax(x, 1), [(2, 3, 4)]),
    "mean": (lambda x: portable.mean(x, (0, 2)), lambda x: torch.mean(x, (0, 2)), [(2, 3, 4)]),
    "embedding": (lambda w: portable.embedding(TOKENS, w), lambda w: F.embedding(TOKENS, w), [(4, 3)]),
    "index_add": (
        lambda x, s: portable.index_add(x, 1, TOKENS[0], s, alpha=0.5),
        lambda x, s: torch.index_add(x, 1, TOKENS[0], s, alpha=0.5),
        [(2, 4, 3), (2, 3, 3)],
    ),
    "rms_norm": (portable.rms_norm, lambda x, w: F.rms_norm(x, x.shape[-1:], w, 1e-6), [(3, 4), (4,)]),
    "rms_norm with 1 + weight": (
        lambda x, w: portable.rms_norm(x, w, weight_offset=1.0, cast_before_weight=True),
        lambda x, w: F.rms_norm(x, x.shape[-1:], 1 + w, 1e-6),
        [(3, 4), (4,)],
    ),
    "fused_add_rms_norm": (
        lambda *a: torch.cat(portable.fused_add_rms_norm(*a, eps=1e-2)),
        lambda x, r, w: torch.cat((F.rms_norm(x + r, x.shape[-1:], w, 1e-2), x + r)),
        [(3, 4), (3, 4), (4,)],
    ),
    "rope": (our_rope, their_rope, [(1, 2, 2, 5), (1, 2, 1, 5)]),
    "qk_norm_rope": (our_rope, their_rope, [(1, 2, 2, 5), (1, 2, 1, 5), (5,), (5,)]),
    "layer_norm": (portable.layer_norm, layer_norm, [(3, 4), (4,), (4,)]),
    "swiglu": (portable.swiglu, lambda g, u: F.silu(g) * u, [(2, 3), (2, 3)]),
    "matmul": (portable.matmul, torch.matmul, [(2, 3, 4), (4, 2)]),
    "linear": (portable.linear, F.linear, [(3, 4), (2, 4), (2,)]),
    "linear with relu": (
        lambda *a: portable.linear(*a, activation="relu"),
        lambda *a: torch.relu(F.linear(*a)),
        [(3, 4), (2, 4), (2,)],
    ),
    "linear with gelu": (
        lambda *a: portable.linear(*a, activation="gelu"),
        lambda *a: F.gelu(F.linear(*a)),
        [(3, 4), (2, 4), (2,)],
    ),
    "attention": (
        lambda q, k, v, b, s: portable.attention(q, k, v, bias=b, sinks=s, softcap=2.0, causal=True),
        lambda q, k, v, b, s: attend(q, k, v, b, s, 2.0),
        [(2, 3, 4), (1, 4, 4), (1, 4, 3), (2, 3, 4), (2,)],
    ),
    "attention_varlen": (
        lambda q, k, v: portable.attention_varlen(q, k, v, OFFSETS, OFFSETS, causal=True),
        attend_varlen,
        [(5, 2, 4), (5, 1, 4), (5, 1, 3)],
    ),
    "attention_paged": (
        lambda q, k, v: portable.attention_paged(q, k, v, TABLE, LENGTHS),
        attend_pages,
        [(2, 2, 2, 4), (4, 2, 1, 4), (4, 2, 1, 3)],
    ),
}
OF_LENGTHS = ("attention_varlen", "attention_paged")  # sizes of theirs are data
each_call = pytest.mark.parametrize("name", CALLS)


def tensors(name: str, seed: int = 0, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(s, generator=generator, dtype=torch.float64).to(dtype) for s in CALLS[name][2]]


def functions(name: str):
    return CALLS[name][:2]


def same(got, expected, **tolerance) -> None:
    torch.testing.assert_close(got, expected, **tolerance)


@each_call
def test_first_derivatives_in_both_modes(name):
    """Also of batched gradients and tangents, which run the op under vmap, and of undefined ones."""
    ours, _ = functions(name)
    inputs = [x.requires_grad_() for x in tensors(name)]
    assert gradcheck(
        ours,
        inputs,
        check_forward_ad=True,
        check_batched_grad=True,
        check_batched_forward_grad=True,
        fast_mode=True,
    )


@pytest.mark.slow
@each_call
def test_second_derivatives_reverse_over_reverse_and_forward_over_reverse(name):
    ours, _ = functions(name)
    inputs = [x.requires_grad_() for x in tensors(name)]
    assert gradgradcheck(ours, inputs, check_fwd_over_rev=True, check_rev_over_rev=True, fast_mode=True)


def along(function, primals, directions):
    """The result and its tangent."""
    y, tangent = torch.func.jvp(function, tuple(primals), tuple(directions))[:2]
    return y, tangent


def along_one(function, primals, directions, i):
    """The same, where input i alone has a tangent."""
    return along(
        lambda x: function(*primals[:i], x, *primals[i + 1 :]), primals[i : i + 1], directions[i : i + 1]
    )


@each_call
@pytest.mark.parametrize("grad", [True, False])
def test_tangents_of_some_inputs_alone(name, grad):
    ours, theirs = functions(name)
    primals, directions = tensors(name), tensors(name, seed=1)
    with torch.set_grad_enabled(grad):
        for i in range(len(primals)):
            expected = along_one(theirs, primals, directions, i)
            same(along_one(ours, primals, directions, i), expected)
            for needs in (False, True):
                with fwd.dual_level():
                    given = [x.clone().requires_grad_(needs) for x in primals]
                    given[i] = fwd.make_dual(given[i], directions[i])
                    got = fwd.unpack_dual(ours(*given))
                    same((got.primal, got.tangent), expected)


def loss(function):
    return lambda *inputs: function(*inputs).square().sum()


def transforms(function, primals, directions):
    """Each transform of torch.func, by name; all tensors are differentiated where that costs little."""
    every = tuple(range(len(primals)))
    many = [torch.stack([x, 2 * x, x - d]) for x, d in zip(primals, directions, strict=True)]

    def first(x):
        return function(x, *primals[1:])

    def tangent(*inputs):
        return along(function, inputs, directions)[1]

    yield "linearize", torch.func.linearize(function, *primals)[1](*directions)
    yield "jacfwd", torch.func.jacfwd(function, argnums=every)(*primals)
    yield "jacrev", torch.func.jacrev(function, argnums=every)(*primals)
    yield "grad", torch.func.grad(loss(function), argnums=every)(*primals)
    yield "vjp", torch.func.vjp(function, *primals)[1](function(*primals))
    yield "hessian", torch.func.hessian(loss(first))(primals[0])
    yield "jacrev of jacrev", torch.func.jacrev(torch.func.jacrev(loss(first)))(primals[0])
    yield "grad of jvp", torch.func.grad(loss(tangent), argnums=every)(*primals)
    yield (
        "jvp of grad",
        torch.func.jvp(torch.func.grad(loss(function), argnums=every), tuple(primals), tuple(directions))[1],
    )
    yield "vmap", torch.func.vmap(function)(*many)
    yield "vmap of grad", torch.func.vmap(torch.func.grad(loss(function), argnums=every))(*many)
    yield (
        "vmap of jvp",
        torch.func.vmap(lambda *inputs: torch.func.jvp(function, inputs, tuple(directions))[1])(*many),
    )
    yield "grad of vmap", torch.func.grad(loss(torch.func.vmap(function)), argnums=every)(*many)
    for i in every[1:]:  # a weight alone
        dims = tuple(0 if j == i else None for j in every)
        given = [many[j] if j == i else x for j, x in enumerate(primals)]
        yield f"vmap over argument {i}", torch.func.vmap(function, in_dims=dims)(*given)


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
def test_every_transform_of_torch_func(name):
    ours, theirs = functions(name)
    given = tensors(name), tensors(name, seed=1)
    for (what, got), (_, expected) in zip(transforms(ours, *given), transforms(theirs, *given), strict=True):
        same(got, expected, msg=lambda text, what=what: f"{what}: {text}")


def test_a_third_derivative():
    x = tensors("softmax")[0]
    ours, theirs = (torch.func.grad(loss(f)) for f in functions("softmax"))
    for _ in range(2):
        ours, theirs = (torch.func.grad(lambda x, f=f: f(x).pow(3).sum()) for f in (ours, theirs))
    same(ours(x), theirs(x))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@each_call
def test_tangents_of_narrow_types_are_rounded_once(name, dtype):
    ours, theirs = functions(name)
    narrow = [tuple(tensors(name, seed, dtype)) for seed in (0, 1)]
    wide = [tuple(x.double() for x in each) for each in narrow]
    if name == "attention":  # sinks are float32 where q is narrower
        narrow = [(*each[:-1], wider[-1].float()) for each, wider in zip(narrow, wide, strict=True)]
        wide = [tuple(x.double() for x in each) for each in narrow]
    y, t = along(ours, *narrow)
    same(y, ours(*narrow[0]), rtol=0, atol=0)
    assert t.dtype == dtype
    expected = along(theirs, *wide)[1]
    step = torch.finfo(dtype).eps if dtype != torch.float32 else 2e-6
    same(t.double(), expected, rtol=step, atol=step)


def test_an_op_with_kernels_has_tangents(toy):
    """Its kernel computes the result, its torch implementation the tangent and the gradient."""
    x, t = torch.arange(3.0), torch.tensor([1.0, 5.0, -2.0])
    y, tangent = along(portable.twice, [x], [t])
    same((y, tangent), (2 * x, 2 * t))
    assert ("launch", 3) in toy
    with fwd.dual_level():
        portable.twice(x)  # known to the fast path
        dual = fwd.unpack_dual(portable.twice(fwd.make_dual(x, t)))
        same((dual.primal, dual.tangent), (2 * x, 2 * t))
    same(torch.func.grad(lambda x: portable.twice(x).square().sum())(x), 8 * x)


def test_an_op_without_a_torch_implementation_has_none(toy):
    portable.twice(torch.ones(3))
    implementations = [each for each in dispatcher.op("twice").spec.implementations if each.name != "torch"]
    spec = dataclasses.replace(
        dispatcher.op("twice").spec, op="alone", implementations=tuple(implementations)
    )
    alone = dispatcher.Op(spec, arguments.Signature(spec))._overload
    x = torch.arange(3.0)
    for derivative in (
        lambda: torch.func.jvp(alone, (x,), (x,)),
        lambda: torch.func.grad(lambda x: alone(x).sum())(x),
    ):
        with pytest.raises(errors.UnsupportedGradientError, match=r"portable\.alone: .*torch implementation"):
            derivative()


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", [name for name in CALLS if name not in OF_LENGTHS])
def test_compiled_transforms(name, backend):
    ours, theirs = functions(name)
    primals, directions = tuple(tensors(name)), tuple(tensors(name, seed=1))
    for transform in (
        lambda f: torch.func.jvp(f, primals, directions),
        lambda f: torch.func.grad(loss(f))(*primals),
        lambda f: torch.func.vmap(torch.func.grad(lambda x: loss(f)(x, *primals[1:])))(
            torch.stack([primals[0], directions[0]])
        ),
    ):
        got = torch.compile(lambda t=transform: t(ours), backend=backend)()
        same(got, transform(theirs))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_graph_break_within_a_transform(backend):
    """torch.compile then sees the Python of the op's kernels, which it must not trace."""
    x, t = tensors("rms_norm")[0], tensors("rms_norm", seed=1)[0]
    ours, theirs = portable.softmax, lambda x: torch.softmax(x, -1)

    def broken(x):
        torch._dynamo.graph_break()
        return ours(x)

    compiled = torch.compile(lambda x, t: torch.func.jvp(broken, (x,), (t,))[1], backend=backend)
    same(compiled(x, t), along(theirs, [x], [t])[1])


@pytest.mark.parametrize("name", OF_LENGTHS)
def test_a_compiled_tangent_of_lengths_is_a_sentence(name):
    ours, _ = functions(name)
    primals = tuple(tensors(name))
    with pytest.raises(Exception, match="torch cannot transform the op's torch implementation"):
        torch.compile(lambda: torch.func.jvp(ours, primals, primals), backend="eager", fullgraph=True)()


def test_tangents_of_batched_offsets_are_a_sentence():
    q = torch.randn(5, 2, 4)
    offsets = torch.stack([OFFSETS, OFFSETS])

    def tangent(offsets):
        return torch.func.jvp(lambda q: portable.attention_varlen(q, q, q, offsets, offsets), (q,), (q,))[1]

    made = torch.func.vmap(lambda c: portable.attention_varlen(q, q, q, c, c))(offsets)
    same(made[1], portable.attention_varlen(q, q, q, OFFSETS, OFFSETS))
    with pytest.raises(errors.UnsupportedTransformError, match="torch implementation"):
        torch.func.vmap(tangent)(offsets)


def test_other_libraries_arrays_have_no_tangents():
    a, b = torch.ones(2, 3), torch.ones(3, 4).numpy()
    with fwd.dual_level():
        dual = fwd.make_dual(a, a)
        with pytest.raises(errors.UnsupportedGradientError, match="another library's array"):
            portable.matmul(dual, b)
    for transform in (torch.func.vmap, lambda f: torch.func.grad(lambda x: f(x).sum())):
        with pytest.raises(errors.UnsupportedTransformError, match="another library's array"):
            transform(lambda x: portable.matmul(x, b))(torch.ones(2, 2, 3))


def test_out_has_no_tangent_and_no_transform():
    a, b, out = torch.ones(2, 3), torch.ones(3, 4), torch.empty(2, 4)
    portable.matmul(a, b, out=out)
    given = a.new_ones(2, 2, 3)
    raw = torch.ops.portable.matmul.out
    for call in (lambda x: portable.matmul(x, b, out=out), lambda x: raw(x, b, out=out)):
        with fwd.dual_level(), pytest.raises(errors.OutputError, match="tangent"):
            call(fwd.make_dual(a, a))
        for transform in (
            lambda f: torch.func.vmap(f)(given),
            lambda f: torch.func.grad(lambda x: (f(x), x.sum())[1])(a),
            lambda f: torch.func.jvp(lambda x: (f(x), out)[1], (a,), (a,)),
        ):
            with pytest.raises((errors.UnsupportedTransformError, errors.OutputError), match="out"):
                transform(call)


def test_attention_s_out_under_a_transform():
    q, out = torch.randn(3, 2, 4, 4), torch.empty(2, 4, 4)
    with pytest.raises(errors.UnsupportedTransformError, match="out"):
        torch.func.vmap(lambda q: portable.attention(q, q, q, out=out))(q)


def test_tangents_under_autocast():
    q, x, w = torch.randn(5, 2, 4), torch.randn(3, 4), torch.randn(2, 4)
    low, low_w = x.bfloat16(), w.bfloat16()

    def packed(q):
        return portable.attention_varlen(q, q, q, OFFSETS, OFFSETS)

    outside = along(packed, [q], [q]), along(portable.linear, [low, low_w], [low, low_w])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(along(packed, [q], [q])[1], outside[0][1])
        for got, expected in zip(along(portable.linear, [x, w], [x, w]), outside[1], strict=True):
            assert got.dtype == torch.bfloat16 and torch.equal(got, expected)


def test_transforms_of_meta_tensors():
    x = torch.ones(2, 3, device="meta")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.func.vmap(portable.softmax)(x).shape == (2, 3)
        assert along(portable.softmax, [x], [x])[1].shape == (2, 3)


def test_vmap_over_no_elements():
    made = torch.func.vmap(portable.rms_norm, in_dims=(None, 0))(torch.ones(2, 4), torch.ones(0, 4))
    assert made.shape == (0, 2, 4)


EMULATED = [name for name in CALLS if not name.startswith("attention")]  # whose float32 is torch's own


@pytest.mark.parametrize("name", EMULATED)
def test_an_emulated_gpu_s_derivatives_in_float32(name, emulate):
    """Tangents, gradients and their gradients: kernels in float32 against torch in float64."""
    emulate("gfx942")
    ours, theirs = functions(name)

    def derivatives(function, dtype):
        primals, directions = tensors(name, dtype=dtype), tensors(name, seed=1, dtype=dtype)
        leaves = [x.requires_grad_() for x in primals]
        first = torch.autograd.grad(loss(function)(*leaves), leaves, create_graph=True)
        second = torch.autograd.grad(torch.stack([x.square().sum() for x in first]).sum(), leaves)
        with fwd.dual_level():
            duals = [fwd.make_dual(x, t) for x, t in zip(primals, directions, strict=True)]
            made = fwd.unpack_dual(function(*duals))
        across = torch.func.vmap(torch.func.grad(loss(function), argnums=tuple(range(len(primals)))))
        many = [torch.stack([x, t]) for x, t in zip(primals, directions, strict=True)]
        tangent = along(function, [x.detach() for x in primals], directions)[1]
        return [made.primal, made.tangent, tangent, *first, *second, *across(*many)]

    for got, expected in zip(
        derivatives(ours, torch.float32), derivatives(theirs, torch.float64), strict=True
    ):
        same(got.double(), expected, rtol=1e-4, atol=1e-4)

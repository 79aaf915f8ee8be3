"""attention on the CPU: its meaning against torch, the facade, the drop-in, gradients, rows without keys."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import portable
from portable import errors
from portable.dispatch import compiled_call, dispatcher
from portable.spec import registry

INF, NAN = math.inf, math.nan
op = dispatcher.op("attention")
SIZES = [(5, 5), (5, 9), (9, 5)]
PARAMS = [
    {},
    {"causal": True},
    {"scale": -0.3, "softcap": 2.0},
    {"causal": True, "window_left": 2},
    {"window_left": 1, "window_right": 3},
]


def doubles(*shapes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def heads(M=5, N=9, H=4, G=2, D=8, E=6, lead=(2,)):
    return doubles((*lead, H, M, D), (*lead, G, N, D), (*lead, G, N, E))


def by_rows(q, k, v, bias=None, sinks=None, *, causal=False, scale=None, window_left=None, window_right=None,
            softcap=None):  # fmt: skip
    """o and lse of one batch element, a query at a time, as the spec says it in words."""
    H, M, D = q.shape
    G, N, E = v.shape
    o, lse = torch.zeros(H, M, E, dtype=torch.float64), torch.full((H, M), -INF, dtype=torch.float64)
    for h, i in itertools.product(range(H), range(M)):
        place, g, scores, values = i + N - M, h // (H // G), [], []
        for j in range(N):
            hidden = causal and j > place
            hidden |= window_left is not None and j < place - window_left
            hidden |= window_right is not None and j > place + window_right
            if hidden:
                continue
            score = float(q[h, i] @ k[g, j]) * (D**-0.5 if scale is None else scale)
            score = score if softcap is None else softcap * math.tanh(score / softcap)
            scores.append(score + (0.0 if bias is None else float(bias[h, i, j])))
            values.append(v[g, j])
        if sinks is not None:
            scores.append(float(sinks[h]))
            values.append(torch.zeros(E, dtype=torch.float64))
        if scores:
            every = torch.tensor(scores, dtype=torch.float64)
            lse[h, i] = torch.logsumexp(every, 0)
            o[h, i] = (every - lse[h, i]).exp() @ torch.stack(values)
    return o, lse


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("params", PARAMS, ids=str)
def test_the_reference_and_the_torch_implementation_say_what_the_spec_says(sizes, params):
    q, k, v = heads(*sizes)
    bias, sinks = doubles((2, 4, *sizes), (4,), seed=1)
    reference = registry.load_module(registry.spec("attention").reference.entry.file)
    for more in ((None, None), (bias, None), (None, sinks), (bias, sinks)):
        expected = [
            by_rows(q[b], k[b], v[b], None if more[0] is None else more[0][b], more[1], **params)
            for b in (0, 1)
        ]
        expected = [torch.stack(each) for each in zip(*expected, strict=True)]
        full = {
            "causal": False,
            "scale": None,
            "window_left": None,
            "window_right": None,
            "softcap": None,
        } | params
        torch.testing.assert_close(list(reference.attention(q, k, v, *more, **full)), expected)
        torch.testing.assert_close(list(op(q, k, v, *more, **params)), expected)


@pytest.mark.slow
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("params", PARAMS, ids=str)
def test_gradients_of_everything(sizes, params):
    q, k, v = heads(*sizes, H=2, G=1, D=3, E=2)
    bias, sinks = doubles((2, 2, *sizes), (2,), seed=1)
    leaves = [each.requires_grad_() for each in (q, k, v, bias, sinks)]
    assert torch.autograd.gradcheck(lambda *a: op(*a, **params), leaves)


def test_a_query_without_a_key():
    """Zeros, -inf and no gradient; with a sink that alone, and a gradient of its lse."""
    q, k, v = [x.requires_grad_() for x in heads(9, 5)]
    sinks = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    o, lse = op(q, k, v, causal=True)
    assert not o[:, :, :4].any() and torch.isneginf(lse[:, :, :4]).all() and lse[:, :, 4:].isfinite().all()
    for grad in torch.autograd.grad(o.sum() + lse[:, :, 4:].sum(), (q, k, v)):
        assert grad.isfinite().all()
    (dq,) = torch.autograd.grad(op(q, k, v, causal=True)[0].sum(), q)
    assert not dq[:, :, :4].any()
    o, lse = op(q, k, v, None, sinks, causal=True)
    assert not o[:, :, :4].any() and not lse[:, :, :4].any()
    (dsinks,) = torch.autograd.grad(lse[:, :, :4].sum(), sinks)
    assert torch.allclose(dsinks, torch.full_like(dsinks, 8.0))
    o, lse = op(q, k[:, :, :0], v[:, :, :0])
    assert o.shape == (2, 4, 9, 6) and not o.any() and torch.isneginf(lse).all()
    assert not torch.autograd.grad(o.sum(), q)[0].any()


def test_bias_of_minus_infinity_hides():
    q, k, v = [x.requires_grad_() for x in heads(5, 9)]
    bias = torch.zeros(2, 4, 5, 9, dtype=torch.float64)
    bias[..., 5:] = -INF
    bias[:, :, 2] = -INF
    bias.requires_grad_()
    o, lse = op(q, k, v, bias)
    rows = [0, 1, 3, 4]
    torch.testing.assert_close(o[:, :, rows], op(q, k[:, :, :5], v[:, :, :5])[0][:, :, rows])
    assert not o[:, :, 2].any() and torch.isneginf(lse[:, :, 2]).all()
    grads = torch.autograd.grad(o.sum(), (q, k, v, bias))
    assert all(each.isfinite().all() for each in grads)
    assert not grads[0][:, :, 2].any() and not grads[1][:, :, 5:].any() and not grads[3][..., 5:].any()


def test_nan_and_infinity_by_rule():
    q, k, v = heads(6, 6, H=1, G=1, lead=())
    k[0, 3] = NAN
    o, lse = op(q, k, v, causal=True)
    assert o[0, :3].isfinite().all() and o[0, 3:].isnan().all() and lse[0, 3:].isnan().all()
    q, k, v = heads(6, 6, H=1, G=1, lead=())
    bias = torch.zeros(1, 6, 6, dtype=torch.float64)
    bias[0, 1, 2], bias[0, 2, 3] = INF, -INF
    o, lse = op(q, k, v, bias)
    assert o[0, 1].isnan().all() and lse[0, 1].isnan() and o[0, [0, 2, 3, 4, 5]].isfinite().all()


def test_scale_of_zero_and_a_single_key_are_exact():
    q, k, v = heads(5, 8)
    o, lse = op(q, k, v, scale=0.0)
    mean = v.mean(-2, keepdim=True).repeat_interleave(2, 1).expand(o.shape)
    torch.testing.assert_close(o, mean)
    torch.testing.assert_close(lse, torch.full_like(lse, math.log(8)))
    assert torch.equal(
        op(q, k[:, :, :1], v[:, :, :1])[0], v[:, :, :1].repeat_interleave(2, 1).expand(2, 4, 5, 6)
    )


# The facade.


def test_the_facade_answers_o_or_both():
    q, k, v = heads()
    o, lse = op(q, k, v, causal=True)
    assert torch.equal(portable.attention(q, k, v, causal=True), o)
    both = portable.attention(q, k, v, causal=True, return_lse=True)
    assert isinstance(both, tuple) and torch.equal(both[0], o) and torch.equal(both[1], lse)
    out = torch.full_like(o, NAN)
    assert portable.attention(q, k, v, causal=True, out=out) is out and torch.equal(out, o)


@pytest.mark.parametrize(
    ("window", "causal", "sides"),
    [(2, False, (2, 2)), (2, True, (2, 0)), ((2, 1), False, (2, 1)), ((-1, 1), False, (None, 1)),
     ((None, 0), False, (None, 0)), ((1, -1), True, (1, None)), ([0, 0], False, (0, 0)), (0, True, (0, 0)),
     ((10**30, 0), False, (None, 0)), (2**63, True, (None, 0))],
)  # fmt: skip
def test_windows(window, causal, sides):
    q, k, v = heads()
    expected = op(q, k, v, causal=causal, window_left=sides[0], window_right=sides[1])[0]
    assert torch.equal(portable.attention(q, k, v, causal=causal, window=window), expected)


def test_bias_broadcasts_and_gets_a_gradient_of_its_own_shape():
    q, k, v = heads()
    for shape in ((5, 9), (1, 9), (4, 1, 9), (2, 1, 5, 9), (1,)):
        (bias,) = doubles(shape)
        expected = op(q, k, v, bias.expand(2, 4, 5, 9).contiguous())[0]
        torch.testing.assert_close(portable.attention(q, k, v, bias=bias), expected)
        bias.requires_grad_()
        (grad,) = torch.autograd.grad(portable.attention(q, k, v, bias=bias).square().sum(), bias)
        assert grad.shape == shape
    assert torch.autograd.gradcheck(
        lambda b: portable.attention(q, k, v, bias=b), doubles((4, 1, 9))[0].requires_grad_()
    )


def test_sinks_in_the_query_s_type():
    q, k, v = (x.bfloat16() for x in heads())
    sinks = torch.randn(4).bfloat16().requires_grad_()
    o = portable.attention(q, k, v, sinks=sinks)
    assert torch.equal(o, op(q, k, v, None, sinks.detach().float())[0])
    (grad,) = torch.autograd.grad(o.float().sum(), sinks)
    assert grad.dtype == torch.bfloat16 and grad.shape == (4,) and grad.any()


def varlen(*args: Any, **kwargs: Any) -> Any:
    ends = torch.tensor([0, 4], dtype=torch.int32)
    return portable.attention_varlen(*[torch.randn(4, 2, 8)] * 3, ends, ends, *args, **kwargs)


def sdpa(*args: Any, **kwargs: Any) -> Any:
    return portable.scaled_dot_product_attention(*args, **kwargs)


def nested(x: torch.Tensor) -> torch.Tensor:
    return torch.nested.nested_tensor([x[0], x[1]], layout=torch.jagged)


WRONG = {
    "heads": (
        lambda q, k, v: portable.attention(q, k[:, :1].expand(2, 3, 9, 8), v[:, :1].expand(2, 3, 9, 6)),
        errors.ShapeError,
        "multiple",
    ),
    "bias": (lambda q, k, v: portable.attention(q, k, v, bias=q[..., :3]), errors.ShapeError, "broadcasts"),
    "bias list": (lambda q, k, v: portable.attention(q, k, v, bias=[1.0]), errors.NotATensorError, "bias"),
    "query list": (lambda q, k, v: portable.attention([1.0], k, v, bias=k), errors.NotATensorError, "q"),
    "window": (lambda q, k, v: portable.attention(q, k, v, window=-2), errors.ParameterError, "window"),
    "window of three": (
        lambda q, k, v: portable.attention(q, k, v, window=(1, 2, 3)),
        errors.ParameterError,
        "window",
    ),
    "window of bools": (
        lambda q, k, v: portable.attention(q, k, v, window=True),
        errors.ParameterError,
        "window",
    ),
    "softcap": (lambda q, k, v: portable.attention(q, k, v, softcap=-1.0), errors.ParameterError, "softcap"),
    "scale": (lambda q, k, v: portable.attention(q, k, v, scale=INF), errors.ParameterError, "scale"),
    "left": (lambda q, k, v: op(q, k, v, window_left=-1), errors.ParameterError, "window_left"),
    "out shape": (lambda q, k, v: portable.attention(q, k, v, out=q), errors.OutputError, "shape"),
    "out list": (lambda q, k, v: portable.attention(q, k, v, out=[]), errors.OutputError, "list"),
    "head size": (
        lambda q, k, v: portable.attention(*[torch.ones(1, 1, 2, 576)] * 3),
        errors.ShapeError,
        "1..256",
    ),
    "dropout": (
        lambda q, k, v: portable.scaled_dot_product_attention(q, k, v, dropout_p=0.1),
        errors.ParameterError,
        "dropout",
    ),
    "mask and causal": (
        lambda q, k, v: portable.scaled_dot_product_attention(
            q, k, v, torch.ones(5, 9, dtype=torch.bool), is_causal=True
        ),
        errors.ParameterError,
        "is_causal",
    ),
    "no k": (lambda q, k, v: portable.attention(q), errors.SignatureError, r"attention: needs 'k'\. Call it"),
    "unknown": (lambda q, k, v: portable.attention(q, k, v, casual=True), errors.SignatureError, "'causal'"),
    "twice": (lambda q, k, v: portable.attention(q, k, v, q=q), errors.SignatureError, "got 'q' twice"),
    "too many": (lambda q, k, v: portable.attention(q, k, v, k), errors.SignatureError, "3 positional"),
    "varlen unknown": (lambda q, k, v: varlen(foo=1), errors.SignatureError, "varlen: has no argument 'foo'"),
    "paged": (lambda q, k, v: portable.attention_paged(), errors.SignatureError, "paged: needs 'q'"),
    "return_lse": (lambda q, k, v: varlen(return_lse="x"), errors.ParameterError, "return_lse"),
    "causal": (
        lambda q, k, v: portable.attention(q, k, v, causal=np.zeros(2), window=3),
        errors.ParameterError,
        "causal",
    ),
    "beyond 64 bits": (
        lambda q, k, v: op(q, k, v, window_left=10**30),
        errors.ParameterError,
        "window_left.*64 bits",
    ),
    "rank 1 and a bias": (
        lambda q, k, v: portable.attention(*[torch.ones(1)] * 3, bias=torch.ones(1)),
        errors.RankError,
        "'q' has 1 dim",
    ),
    "nested and a bias": (
        lambda q, k, v: portable.attention(nested(q), k, v, bias=k),
        errors.LayoutError,
        "'q' has layout nested",
    ),
    "nested bias": (lambda q, k, v: portable.attention(q, k, v, bias=nested(k)), errors.LayoutError, "bias"),
    "sdpa of NumPy": (lambda q, k, v: sdpa(q.numpy(), k, v), errors.NotATensorError, "'query' is a ndarray"),
    "sdpa of lists": (lambda q, k, v: sdpa([1.0], [1.0], [1.0]), errors.NotATensorError, "'query' is a list"),
    "sdpa of None": (lambda q, k, v: sdpa(q, k, None), errors.NotATensorError, "'value' is a NoneType"),
    "sdpa nested": (lambda q, k, v: sdpa(q, nested(k), v), errors.LayoutError, "'key' has layout nested"),
    "sdpa sparse": (lambda q, k, v: sdpa(q, k, v.to_sparse()), errors.LayoutError, "'value' has layout"),
    "sdpa of integers, masked": (
        lambda q, k, v: sdpa(q.int(), q, q, torch.ones(5, 5) > 0),
        errors.DtypeError,
        "'q' has dtype int32",
    ),
    "sinks of integers of oneDNN": (
        lambda q, k, v: portable.attention(q, k, v, sinks=torch.ones(4, dtype=torch.int8).to_mkldnn()),
        errors.LayoutError,
        "'sinks' has layout",
    ),
    "sdpa mask list": (lambda q, k, v: sdpa(q, q, q, []), errors.NotATensorError, "'attn_mask' is a list"),
    "sdpa nested mask": (lambda q, k, v: sdpa(q, q, q, nested(q)), errors.LayoutError, "attn_mask"),
    "sdpa mask of int": (lambda q, k, v: sdpa(q, q, q, q[..., 0].int()), errors.DtypeError, "attn_mask"),
    "sdpa dropout": (lambda q, k, v: sdpa(q, k, v, dropout_p=np.ones(2)), errors.ParameterError, "dropout_p"),
    "sdpa flag": (lambda q, k, v: sdpa(q, k, v, is_causal=np.ones(2)), errors.ParameterError, "is_causal"),
    "sdpa rank": (lambda q, k, v: sdpa(q[0, 0, 0], k, v), errors.RankError, "'query' has 1 dim"),
    "sdpa missing": (lambda q, k, v: sdpa(q, k), errors.SignatureError, "needs 'value'"),
    "shared heads": (
        lambda q, k, v: portable.scaled_dot_product_attention(q, k, v),
        errors.ShapeError,
        "enable_gqa",
    ),
}


@pytest.mark.parametrize("call, error, said", WRONG.values(), ids=WRONG)
def test_mistakes_are_sentences(call, error, said):
    with pytest.raises(error, match=said):
        call(*heads())


def test_rules_hold_for_shapes_without_data():
    q, k, v = (torch.empty(shape, device="meta") for shape in ((3, 5, 8), (2, 5, 8), (2, 5, 8)))
    with pytest.raises(errors.ShapeError, match="H = 3, G = 2"):
        torch.ops.portable.attention(q, k, v)


# The drop-in.


@pytest.mark.parametrize("sizes", SIZES)
def test_the_drop_in_is_torch_s(sizes):
    M, N = sizes
    q, k, v = heads(M, N, G=4)
    masks = [torch.rand(M, N) > 0.3, torch.rand(2, 1, 1, N) > 0.3, *doubles((M, N), (2, 4, M, N))]
    masks[0][0] = True
    masks[1][..., 0] = True
    options: list[dict[str, Any]] = [{}, {"is_causal": True}, {"scale": 0.3}]
    options += [{"attn_mask": each} for each in masks]
    for given in options:
        expected = F.scaled_dot_product_attention(q, k, v, **given)
        torch.testing.assert_close(portable.scaled_dot_product_attention(q, k, v, **given), expected)
    for dims in ((0,), (0, 0)):
        for causal in (False, True):
            torch.testing.assert_close(
                portable.scaled_dot_product_attention(q[dims], k[dims], v[dims], is_causal=causal),
                F.scaled_dot_product_attention(q[dims], k[dims], v[dims], is_causal=causal),
            )
    shared = k[:, :2], v[:, :2]
    torch.testing.assert_close(
        portable.scaled_dot_product_attention(q, *shared, enable_gqa=True),
        F.scaled_dot_product_attention(q, *shared, enable_gqa=True),
    )
    alone = k[:1, :1], v[:1, :1]
    torch.testing.assert_close(
        portable.scaled_dot_product_attention(q, *alone), F.scaled_dot_product_attention(q, *alone)
    )
    half = [x.bfloat16() for x in (q, k, v)]
    mask = doubles((M, N))[0].float()
    assert portable.scaled_dot_product_attention(*half, mask).dtype == torch.bfloat16


def test_the_signature_is_torch_s():
    import inspect

    names = list(inspect.signature(portable.scaled_dot_product_attention).parameters)
    assert names == ["query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa"]


# As a citizen of torch.


@pytest.mark.slow
def test_compiled_in_one_graph_with_gradients():
    q, k, v = heads()
    bias, sinks = doubles((5, 9), (4,))

    def step(q, k, v, bias, sinks):
        o, lse = portable.attention(
            q, k, v, causal=True, window=4, softcap=3.0, bias=bias, sinks=sinks, return_lse=True
        )
        return (
            o.square().sum()
            + lse.sum()
            + portable.scaled_dot_product_attention(q, k, v, enable_gqa=True).sum()
        )

    def grads(function):
        leaves = [x.clone().requires_grad_() for x in (q, k, v, bias, sinks)]
        return torch.autograd.grad(function(*leaves), leaves)

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(grads(compiled), grads(step))


def test_autocast_lowers_but_the_sinks():
    q, k, v = (x.float() for x in heads())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        o, lse = portable.attention(q, k, v, sinks=torch.zeros(4), return_lse=True)
    assert o.dtype == torch.bfloat16 and lse.dtype == torch.float32
    lowered = op(q.bfloat16(), k.bfloat16(), v.bfloat16(), None, torch.zeros(4))
    assert torch.equal(o, lowered[0])


def test_vmap_is_a_leading_dimension():
    q, k, v = heads(lead=(3, 2))
    got = torch.func.vmap(lambda *a: portable.attention(*a, causal=True))(q, k, v)
    torch.testing.assert_close(got, portable.attention(q, k, v, causal=True))
    sinks = torch.randn(3, 4)  # without a leading dimension: a call for each
    got = torch.func.vmap(lambda s: portable.attention(q[0], k[0], v[0], sinks=s))(sinks)
    assert all(
        torch.equal(o, portable.attention(q[0], k[0], v[0], sinks=s)) for o, s in zip(got, sinks, strict=True)
    )


def test_strides_of_a_model_reach_the_planner_as_they_lie():
    """(batch, sequence, heads, size) seen as (batch, heads, sequence, size) is not copied; nor is a bias
    that was expanded."""
    made = [torch.randn(2, 16, 4, 8).transpose(1, 2) for _ in range(3)]
    bias = torch.randn(16, 16).expand(2, 4, 16, 16)
    signature, _ = compiled_call.call_signature(
        op.spec, [*made, bias, None], [False, None, None, None, None], None
    )
    tensors: dict[str, Any] = dict(signature.tensors)
    assert tensors["q"].strides == made[0].stride() and tensors["bias"].strides == bias.stride()
    loose = torch.randn(2, 4, 8, 16).mT
    signature, _ = compiled_call.call_signature(
        op.spec, [loose, loose, loose, None, None], [False, None, None, None, None], None
    )
    tensors = dict(signature.tensors)
    assert tensors["q"].strides == (4 * 16 * 8, 16 * 8, 8, 1)
    leading = torch.randn(3, 2, 4, 16, 8).transpose(0, 1)
    signature, _ = compiled_call.call_signature(
        op.spec, [leading] * 3 + [None, None], [False, None, None, None, None], None
    )
    tensors = dict(signature.tensors)
    assert tensors["q"].strides == leading.contiguous().stride()
    torch.testing.assert_close(op(leading, leading, leading)[0], op(*[leading.contiguous()] * 3)[0])


@pytest.mark.parametrize("arch", [None, pytest.param("gfx942", marks=pytest.mark.slow)])
def test_results_lie_in_memory_as_the_heads_of_a_model_do(arch, request):
    """(batch, heads, tokens, size) seen in (batch, tokens, heads, size): o.transpose(1, 2) is contiguous."""
    if arch:
        request.getfixturevalue("emulate")(arch)
    dtype = torch.bfloat16 if arch else torch.float64
    qkv = torch.randn(2, 7, 8, 16, dtype=dtype)
    q, k, v = (each.transpose(1, 2) for each in qkv.split((4, 2, 2), 2))
    leaves = [each.detach().requires_grad_() for each in (q, k, v)]
    o = portable.attention(*leaves, causal=True)
    do = torch.randn_like(o)
    grads = torch.autograd.grad(o, leaves, do)
    assert all(each.transpose(1, 2).is_contiguous() for each in (o, *grads))
    leaves = [each.detach().contiguous().requires_grad_() for each in (q, k, v)]
    plain = portable.attention(*leaves, causal=True)
    assert plain.is_contiguous() and torch.equal(o, plain)
    assert all(map(torch.equal, grads, torch.autograd.grad(plain, leaves, do.contiguous())))
    fake = torch._subclasses.FakeTensorMode()
    with fake:
        shown = op(*(fake.from_tensor(each) for each in (q, k, v)))[0]
    assert shown.stride() == o.stride()

"""Calls in the form of torch's own functions are accepted, and mean what they mean there."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

import portable
from portable.errors import DtypeError, NotATensorError, ParameterError, SignatureError

X, W, B, M = torch.randn(3, 5), torch.randn(5), torch.randn(5), torch.randn(4, 5)

CALLS = {
    "layer_norm": lambda f: f(X, (5,)),
    "layer_norm of torch.Size": lambda f: f(X, X.shape[-1:]),
    "layer_norm weight": lambda f: f(X, [5], W),
    "layer_norm no weight": lambda f: f(X, (5,), bias=B),
    "layer_norm positional": lambda f: f(X, (5,), W, B, 0.5),
    "layer_norm eps": lambda f: f(X, (5,), eps=0.5),
    "layer_norm names": lambda f: f(input=X, normalized_shape=(5,), bias=B, weight=W),
    "rms_norm": lambda f: f(1e-4 * X, (5,)),
    "rms_norm weight": lambda f: f(1e-4 * X, (5,), W),
    "rms_norm eps": lambda f: f(X, (5,), W, 0.5),
    "rms_norm eps by name": lambda f: f(X, [5], eps=0.5),
    "rms_norm names": lambda f: f(1e-4 * X, (5,), weight=W),
    "softmax": lambda f: f(input=X, dim=0),
    "softmax dtype": lambda f: f(X.bfloat16(), -1, dtype=torch.float32),
    "softmax names": lambda f: f(X, dim=0, _stacklevel=3, dtype=torch.float64),
    "linear": lambda f: f(input=X, weight=M),
    "linear bias": lambda f: f(X, M, bias=torch.ones(4)),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_in_torchs_form(name):
    op = name.split()[0]
    expected = CALLS[name](getattr(functional, op))
    found = CALLS[name](getattr(portable, op))
    assert found.dtype is expected.dtype
    torch.testing.assert_close(found, expected)


def test_matmul_in_torchs_form():
    for a, b in ((X, M.T), (X, W), (W, M.T), (W, W)):
        torch.testing.assert_close(portable.matmul(input=a, other=b), torch.matmul(a, b))
    out = torch.empty(3, 4)
    assert portable.matmul(X, other=M.T, out=out) is out
    torch.testing.assert_close(out, X @ M.T)


def test_torchs_form_has_its_gradient_and_is_explained():
    x = X.double().requires_grad_()
    (portable.softmax(x, dim=0, dtype=torch.float32) * M[:3]).sum().backward()
    found = x.grad
    assert found is not None
    x.grad = None
    (functional.softmax(x, dim=0, dtype=torch.float32) * M[:3]).sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(found.float(), x.grad.float())  # computed in float32
    assert portable.explain("layer_norm", X, (5,), W).choice is not None
    assert portable.explain("softmax", input=X).choice is not None


@pytest.mark.parametrize(
    ("call", "error", "said"),
    (
        (lambda: portable.layer_norm(X, (3, 5)), ParameterError, "Flatten the dimensions"),
        (lambda: portable.layer_norm(X, (4,)), ParameterError, r"normalized_shape.*expected \(5,\)"),
        (lambda: portable.rms_norm(X, (4,), W), ParameterError, r"normalized_shape.*expected \(5,\)"),
        (lambda: portable.softmax(X, dtype="float32"), ParameterError, "'dtype'"),
        (lambda: portable.softmax([1.0], dtype=torch.float32), NotATensorError, "'input'"),
        (lambda: portable.rms_norm(X, weight=[1.0]), NotATensorError, "'weight' is a list"),
        (lambda: portable.rms_norm(x=X, weight=[1.0], eps=0.5), NotATensorError, "'weight' is a list"),
        (lambda: portable.layer_norm(X, [1.0], W), NotATensorError, "'weight' is a list"),
        (lambda: portable.layer_norm(X, normalized_shape=5), ParameterError, "normalized_shape"),
        (lambda: portable.softmax(torch.ones(3).long()), DtypeError, r"x.to\(torch.float32\)"),
        (lambda: portable.softmax(X.to(torch.float8_e5m2)), DtypeError, r"x.to\(torch.bfloat16\)"),
        (lambda: portable.softmax(x=X, inputs=X), SignatureError, r"or as torch has it, softmax\(input, "),
        (lambda: portable.attention(X, X, X, is_causal=True), SignatureError,
         "portable.scaled_dot_product_attention takes torch's arguments"),
        (lambda: portable.attention(X, X, X, attn_mask=None), SignatureError,
         "portable.scaled_dot_product_attention takes torch's arguments"),
        (lambda: portable.swiglu(input=X, up=X), SignatureError, r"Call it as swiglu\(gate, up\)\."),
    ),
)  # fmt: skip
def test_what_is_not_accepted_is_named(call, error, said):
    with pytest.raises(error, match=said):
        call()


@pytest.mark.slow
def test_torchs_form_compiles():
    def block(x, w):
        return portable.softmax(input=portable.layer_norm(x, (5,), w), dim=-1)

    compiled = torch.compile(block, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(X, W), block(X, W))

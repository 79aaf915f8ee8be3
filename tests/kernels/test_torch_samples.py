"""The public ops take what torch's take: every sample by which torch tests its own function, on the CPU."""

from __future__ import annotations

import math

import pytest
import torch
from torch.testing._internal import common_methods_invocations as common

import portable


def softmax(x, dim, dtype=None):
    return portable.softmax(x if dtype is None else x.to(dtype), dim)


def over_rows(op, x, shape, *weights, eps):
    """torch normalises over several dimensions: the same as over one, of all their elements."""
    rows = x.reshape(*x.shape[: x.dim() - len(shape)], math.prod(shape))
    weights = (None if each is None else each.reshape(-1) for each in weights)
    return op(rows, *weights, eps=eps).reshape(x.shape)


def layer_norm(x, shape, weight=None, bias=None, eps=1e-5):
    return over_rows(portable.layer_norm, x, shape, weight, bias, eps=eps)


def rms_norm(x, shape, weight=None, eps=None):
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    return over_rows(portable.rms_norm, x, shape, weight, eps=eps)


OPS = {
    "matmul": portable.matmul,
    "softmax": softmax,
    "nn.functional.linear": portable.linear,
    "nn.functional.layer_norm": layer_norm,
    "nn.functional.rms_norm": rms_norm,
    "nn.functional.scaled_dot_product_attention": portable.scaled_dot_product_attention,
}
INFOS = [info for info in common.op_db if info.name in OPS]


def plain(sample) -> bool:
    """Whether two runs of torch's own function give the same: no random dropout."""
    return not sample.kwargs.get("dropout_p")


@pytest.mark.slow
@pytest.mark.parametrize("gradient", [False, True], ids=["value", "gradient"])
@pytest.mark.parametrize("info", INFOS, ids=lambda info: f"{info.name} {info.variant_test_name}".strip())
def test_every_sample_of_torch(info, gradient):
    taken = 0
    for sample in info.sample_inputs("cpu", torch.float32, requires_grad=gradient):
        if not plain(sample):
            continue
        args, kwargs = (sample.input, *sample.args), sample.kwargs
        wanted, got = info.op(*args, **kwargs), OPS[info.name](*args, **kwargs)
        assert got.shape == wanted.shape and got.dtype == wanted.dtype, sample
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
        leaves = [t for t in (*args, *kwargs.values()) if isinstance(t, torch.Tensor) and t.requires_grad]
        if gradient and leaves:
            dy = torch.rand_like(wanted)
            found = torch.autograd.grad(got, leaves, dy, allow_unused=True)
            for one, other in zip(found, torch.autograd.grad(wanted, leaves, dy), strict=True):
                torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)
        taken += 1
    assert taken

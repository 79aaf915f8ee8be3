"""Inductor's pass: what it replaces computes the same, as near to float32, and what is no pattern stays."""

from __future__ import annotations

import os
import re
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from portable.integrations import inductor
from portable.runtime import detect
from tests.integrations.inductor_cases import (
    as_before,  # noqa: F401
    bf16,
    check,
    drawn,
    hugging_face,
    llama_norm,
    rewritten,
    rotate_half,
)  # fmt: skip

# Norms ---------------------------------------------------------------------------------------------


def gemma_norm(x: Tensor, weight: Tensor) -> Tensor:
    wide = torch.promote_types(x.dtype, torch.float32)
    normed = x.to(wide) * torch.rsqrt(x.to(wide).pow(2).mean(-1, keepdim=True) + 1e-6)
    return (normed * (1.0 + weight.to(wide))).type_as(x)


def plain_norm(x: Tensor, weight: Tensor) -> Tensor:
    return x / torch.sqrt((x * x).mean(dim=-1, keepdim=True) + 1e-5) * weight


def torch_norm(x: Tensor, weight: Tensor) -> Tensor:
    return functional.rms_norm(x, x.shape[-1:], weight, 1e-5)


def offset_norm(x: Tensor, weight: Tensor) -> Tensor:
    return functional.rms_norm(x, (x.shape[-1],), weight + 1.0)


NORMS = [llama_norm, gemma_norm, plain_norm, torch_norm, offset_norm]


@pytest.mark.parametrize("dtype", [torch.float32, bf16])
@pytest.mark.parametrize("norm", NORMS)
def test_a_norm(norm, dtype):
    check(norm, [drawn(3, 7, 48, dtype=dtype), drawn(48, dtype=dtype, seed=1)], ["rms_norm"])


@pytest.mark.parametrize("norm", NORMS)
def test_a_norm_after_an_addition(norm):
    """The sum is used by what follows, as a residual stream is."""

    def block(x, residual, weight):
        residual = residual + x
        return norm(residual, weight), residual * 2

    check(block, [drawn(3, 7, 48), drawn(3, 7, 48, seed=1), drawn(48, seed=2)], ["fused_add_rms_norm"])


def test_a_norm_of_dynamic_sizes():
    check(llama_norm, [drawn(3, 7, 48), drawn(48, seed=1)], ["rms_norm"], dynamic=[0, 1])


def test_a_norm_in_a_wider_dtype_than_its_input_stays():
    """Its result is float32, which no op gives of bfloat16."""

    def norm(x, weight):
        return x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6) * weight

    report = inductor.explain(norm, drawn(3, 48), drawn(48, dtype=torch.float32))
    assert not report.replaced
    assert "its result stays float32, of an input of bfloat16" in str(report)


def test_on_an_emulated_gpu_explain_names_the_kernels_with_their_modelled_times():
    def block(x, residual, weight):
        residual = residual + x
        return norm(norm(residual, weight), weight)

    def norm(x, weight):
        return functional.rms_norm(x, (48,), weight, 1e-6)

    given = drawn(3, 7, 48), drawn(3, 7, 48, seed=1), drawn(48, seed=2)
    assert "modelled" not in str(inductor.explain(block, *given))
    with mock.patch.dict(os.environ):
        detect.override_backend("rocm", "gfx942", emulate=True)
        report = inductor.explain(block, *given)
    detect.reset()
    assert len(report.replaced) == 2
    assert re.search(r"modelled on emulated gfx942, \+-.*:\n  rms_norm_forward x 2: \d+\.\d us$", str(report))


@pytest.mark.parametrize(
    "norm, reason",
    [
        (lambda x, w, e: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + e), "its eps is no constant"),
        (lambda x, w, e: functional.rms_norm(x, x.shape[-2:]), r"it normalises over \(7, 48\)"),
        (lambda x, w, e: ((r := torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)) * x, r), "its rsqrt"),
        (lambda x, w, e: plain_norm(x.mT, w[:7]).mT.view(-1), "its result has strides"),
        (lambda x, w, e: functional.rms_norm(x, (48,), w.double().float(), 1e-6), None),
        (lambda x, w, e: torch_norm(x.double(), w.double()).float(), "it computes in float64"),
        (lambda x, w, e: plain_norm(x.double(), w.double()).float(), "it computes in float64"),
        (lambda x, w, e: x * torch.rsqrt(x.pow(2).mean(-2, keepdim=True) + 1e-6), ""),
        (lambda x, w, e: x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + 1e-6), ""),
        (lambda x, w, e: x * torch.rsqrt((x * w).pow(2).mean(-1, keepdim=True) + 1e-6), ""),
        (lambda x, w, e: x * torch.rsqrt(x.pow(3).mean(-1, keepdim=True) + 1e-6), ""),
    ],
)  # fmt: skip
def test_what_is_nearly_a_norm(norm, reason):
    """With a reason it is told as left; with "" it is like no norm; with None it is one."""
    report = inductor.explain(
        norm, drawn(2, 7, 48, dtype=torch.float32), drawn(48, dtype=torch.float32), drawn(1).float()
    )
    if reason is None:
        assert [item.part for item in report.replaced] == ["rms_norm"]
        return
    assert not report.replaced
    if reason:
        assert re.search(reason, report.left[0].note)
    else:
        assert not report.left


# Gated activations ---------------------------------------------------------------------------------

ACTIVATIONS = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "sigmoid": lambda x: x * torch.sigmoid(x),
}
HALVES = {
    "chunk": lambda x: x.chunk(2, dim=-1),
    "split": lambda x: torch.split(x, x.shape[-1] // 2, -1),
    "sizes": lambda x: x.split([x.shape[-1] // 2, x.shape[-1] // 2], dim=2),
    "slices": lambda x: (x[..., : x.shape[-1] // 2], x[:, :, x.shape[-1] // 2 :]),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_a_gated_activation_of_halves(name):
    def gated(x):
        gate, up = HALVES["chunk"](x)
        return ACTIVATIONS[name](gate) * up

    check(gated, [drawn(3, 5, 64)], ["gated_activation"])


@pytest.mark.parametrize("dynamic", [(), (0, 1)])
@pytest.mark.parametrize("form", HALVES)
def test_halves_in_any_spelling(form, dynamic):
    def gated(x):
        gate, up = HALVES[form](x)
        return up * functional.silu(gate)

    check(gated, [drawn(3, 5, 64)], ["gated_activation"], dynamic=dynamic)


def test_a_gated_activation_of_two_tensors():
    check(lambda gate, up: functional.silu(gate) * up, [drawn(3, 64), drawn(3, 64, seed=1)], ["swiglu"])


def test_halves_the_other_way_round():
    """[up | gate] is not what the packed op takes; two tensors are."""

    def gated(x):
        up, gate = x.chunk(2, -1)
        return functional.silu(gate) * up

    check(gated, [drawn(3, 64)], ["swiglu"])


@pytest.mark.parametrize(
    "gated",
    [
        lambda x, y: functional.silu(x[..., :16]) * y[..., 16:32],  # no halves
        lambda x, y: functional.silu(x.unsqueeze(-2)) * y,  # broadcast
        lambda x, y: functional.silu(x, inplace=True) * y,
        lambda x, y: functional.silu(x, True) * y,
        lambda x, y: functional.silu(x.double()) * y,
        lambda x, y: functional.relu(x) * y,
        lambda x, y: (z := functional.silu(x)) * y + z,
    ],
)  # fmt: skip
def test_other_products_of_an_activation(gated):
    x, y = drawn(3, 64), drawn(3, 64, seed=1)
    fused, called = rewritten(gated)
    own, theirs = x.clone(), x.clone()
    torch.testing.assert_close(fused(own, y), gated(theirs, y), rtol=0.02, atol=0.01)
    assert torch.equal(own, theirs)
    assert set(called) <= {"swiglu"}


def test_what_is_written_by_place_is_seen():
    """relu(mean, True) writes the mean that the norm reads."""

    def program(x):
        mean = x.pow(2).mean(-1, keepdim=True)
        total = mean + 1e-6
        functional.threshold(total, 1.0, 20.0, True)
        return x * torch.rsqrt(total)

    x = drawn(3, 48, dtype=torch.float32)
    fused, called = rewritten(program)
    torch.testing.assert_close(fused(x), program(x))
    assert not called


def test_a_product_with_one_weight():
    """Where a gradient is wanted the products stay, unless they are asked for by name."""

    def packed(x, weight):
        gate, up = functional.linear(x, weight).chunk(2, -1)
        return functional.silu(gate) * up

    def apart(x, weight):
        gate, up = weight.chunk(2)
        return functional.gelu(functional.linear(x, gate)) * functional.linear(x, up)

    inputs = [drawn(3, 5, 32), drawn(48, 32, seed=1)]
    check(packed, inputs, ["gated_activation"])
    for function in (packed, apart):
        check(function, inputs, ["gated_linear"], only=["gated_linear"])
        fused, called = rewritten(function)
        torch.testing.assert_close(fused(*inputs), function(*inputs), rtol=0.03, atol=0.03)
        assert called == ["gated_linear"]


# Rotary embedding ----------------------------------------------------------------------------------


def by_halves(q: Tensor, k: Tensor, angles: Tensor, unsqueeze_dim: int) -> tuple[Tensor, Tensor]:
    cos, sin = (
        angles.cos().to(q.dtype).unsqueeze(unsqueeze_dim),
        angles.sin().to(q.dtype).unsqueeze(unsqueeze_dim),
    )

    def rotated(x: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    return rotated(q), rotated(k)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("rotate, unsqueeze_dim", [(hugging_face, 1), (hugging_face, 2), (by_halves, 2)])
def test_queries_and_keys_are_rotated_in_one_launch(rotate, unsqueeze_dim, batch):
    def program(q, k, angles):
        if unsqueeze_dim == 1:
            q, k = q.transpose(1, 2), k.transpose(1, 2)
        q, k = rotate(q, k, angles.detach(), unsqueeze_dim)
        return q * 2, k * 2

    inputs = [drawn(2, 5, 4, 16), drawn(2, 5, 2, 16, seed=1), drawn(batch, 5, 8, seed=2, dtype=torch.float32)]
    check(program, inputs, ["rope"])


def test_a_rotation_of_other_strides_is_replaced_where_nobody_sees_them():
    """torch.cat makes heads contiguous before tokens, where the op makes tokens contiguous before heads."""

    def seen(q, k, angles):
        return by_halves(q.transpose(1, 2), k.transpose(1, 2), angles.detach(), 1)

    def unseen(q, k, angles):
        q, k = seen(q, k, angles)
        scores = (q @ k.mT).softmax(-1)
        return scores, k.transpose(1, 2).contiguous().view(2, -1)

    given = [drawn(2, 5, 4, 16), drawn(2, 5, 4, 16), drawn(1, 5, 8, dtype=torch.float32)]
    report = inductor.explain(seen, *given)
    assert not report.replaced
    assert "its result has strides (320, 80, 16, 1), where the op's has (320, 16, 64, 1)" in str(report)
    check(unseen, given, ["rope"])


def test_each_layer_is_rotated_by_the_same_tables():
    """The queries and keys of a layer go together, not those of two."""

    def program(x, angles):
        for _ in range(2):
            heads = x.unflatten(-1, (3, 16))
            q, k = hugging_face(heads[:, :, :2], heads[:, :, 2:], angles.detach(), 2)
            x = torch.cat((q, k), 2).flatten(2).sin()
        return x

    check(program, [drawn(2, 5, 48), drawn(1, 5, 8, seed=2, dtype=torch.float32)], ["rope", "rope"])


def test_tables_from_outside_stay():
    def program(q, k, cos, sin):
        return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin

    given = [drawn(2, 5, 4, 16), drawn(2, 5, 2, 16), drawn(1, 5, 1, 16), drawn(1, 5, 1, 16)]
    report = inductor.explain(program, *given)
    assert not report.replaced
    assert "both halves of its cos are equal; compile what makes cos and sin" in report.left[0].note


# Losses --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_the_loss_of_a_linear(reduction):
    target = torch.tensor([1, 5, -100, 0, 3, 2])

    def loss(x, weight):
        logits = functional.linear(x, weight).float().view(-1, 11)
        return functional.cross_entropy(logits, target, reduction=reduction, label_smoothing=0.1)

    check(loss, [drawn(2, 3, 32), drawn(11, 32, seed=1)], ["linear_cross_entropy"])


def test_capped_logits_of_a_matmul():
    target = torch.tensor([1, 5, -1, 0])

    def loss(x, weight):
        logits = torch.tanh((x @ weight.T).float() / 5.0) * 5.0
        return functional.cross_entropy(logits, target, ignore_index=-1)

    report = inductor.explain(loss, drawn(4, 32), drawn(11, 32))
    assert [item.note for item in report.replaced] == ["portable.linear_cross_entropy, softcap=5"]
    x, weight = drawn(4, 32), drawn(11, 32, seed=1)
    torch.testing.assert_close(rewritten(loss)[0](x, weight), loss(x, weight), rtol=0.01, atol=0.01)


@pytest.mark.parametrize(
    "loss, reason",
    [
        (lambda x, w, t: (y := functional.linear(x, w), functional.cross_entropy(y, t)), "elsewhere too"),
        (lambda x, w, t: functional.cross_entropy(functional.linear(x, w, w[:, 0]), t), "has a bias"),
        (lambda x, w, t: functional.cross_entropy(functional.linear(x, w)[:-1], t[1:]), "sliced after"),
        (lambda x, w, t: functional.cross_entropy(functional.linear(x, w), w[:4, :11]), "(rows, classes)"),
    ],
)  # fmt: skip
def test_what_is_nearly_the_loss_of_a_linear(loss, reason):
    report = inductor.explain(loss, drawn(4, 32), drawn(11, 32), torch.tensor([1, 5, 2, 0]))
    assert not report.replaced
    assert reason in report.left[0].note


# By name -------------------------------------------------------------------------------------------


def test_whole_functions_are_replaced_by_name_alone():
    def program(q, k, v, weight):
        o = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return functional.layer_norm(o.softmax(-1), (16,), weight)

    inputs = [drawn(2, 4, 9, 16, seed=1), drawn(2, 2, 9, 16, seed=2), drawn(2, 2, 9, 16, seed=3), drawn(16)]
    fused, called = rewritten(program)
    fused(*inputs)
    assert not called
    check(program, inputs, ["scaled_dot_product_attention", "softmax", "layer_norm"], only=inductor.BY_NAME)


def test_attention_between_transposes():
    """torch's result has the strides of its query, the op's is contiguous; what follows copies or not."""

    def program(q, k, v):
        o = functional.scaled_dot_product_attention(*(each.transpose(1, 2) for each in (q, k, v)))
        return o.transpose(1, 2).flatten(2)

    check(
        program,
        [drawn(2, 9, 4, 16, seed=seed) for seed in range(3)],
        ["scaled_dot_product_attention"],
        ["attention"],
    )


# What may not be moved -----------------------------------------------------------------------------


def test_a_write_in_between_keeps_its_place():
    """The residual is written in place after it was added, and the norm reads the written one."""

    def program(x, residual, weight):
        total = x + residual
        total[:, 0] = 3
        normed = torch_norm(total, weight)
        total += 1
        return normed, total * 1

    inputs = [
        drawn(3, 48, dtype=torch.float32),
        drawn(3, 48, dtype=torch.float32, seed=1),
        drawn(48, dtype=torch.float32),
    ]
    fused, called = rewritten(program)
    torch.testing.assert_close(fused(*inputs), program(*inputs))
    assert called == ["rms_norm"]


def test_a_write_between_a_square_and_its_use():
    def program(x):
        mean = x.pow(2).mean(-1, keepdim=True)
        x.mul_(2)
        return x * torch.rsqrt(mean + 1e-6)

    x = drawn(3, 48, dtype=torch.float32)
    fused, called = rewritten(program)
    torch.testing.assert_close(fused(x.clone()), program(x.clone()))
    assert not called


def test_a_part_without_gradient_stays_without():
    def program(x, weight):
        with torch.no_grad():
            scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        return x * scale * weight

    check(program, [drawn(3, 48, dtype=torch.float32), drawn(48, dtype=torch.float32)], [])


@pytest.mark.parametrize("within", [False, True])
def test_autocast_keeps_the_dtypes(within):
    def block(x, residual, weight, packed):
        if within:
            with torch.autocast("cpu", bf16):
                return inner(x, residual, weight, packed)
        return inner(x, residual, weight, packed)

    def inner(x, residual, weight, packed):
        total = x + residual
        gate, up = functional.linear(llama_norm(total, weight), packed).chunk(2, -1)
        return functional.silu(gate) * up, total

    f32 = torch.float32
    inputs = [
        drawn(3, 32, dtype=f32),
        drawn(3, 32, dtype=f32),
        drawn(32, dtype=f32),
        drawn(48, 32, dtype=f32),
    ]
    fused, _ = rewritten(block)
    with torch.autocast("cpu", bf16, enabled=not within):
        found, expected = fused(*inputs), block(*inputs)
    assert [each.dtype for each in found] == [each.dtype for each in expected]
    torch.testing.assert_close(found, expected, rtol=0.03, atol=0.03)

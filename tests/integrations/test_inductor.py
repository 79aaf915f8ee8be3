"""Inductor's pass: what it replaces computes the same, as near to float32, and what is no pattern stays."""

from __future__ import annotations

import copy
import pickle
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.backends.debugging import aot_eager
from torch._dynamo.utils import counters
from torch._inductor import config
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._inductor.utils import fresh_cache
from torch.nn import functional

from portable.conformance.models import judge
from portable.errors import IntegrationError
from portable.integrations import inductor
from portable.integrations.inductor.graph_pass import FusedOps

bf16 = torch.bfloat16


@pytest.fixture(autouse=True)
def as_before():
    before = config.pre_grad_custom_pass
    torch._dynamo.reset()
    yield
    inductor.disable()
    assert config.pre_grad_custom_pass is before
    torch._dynamo.reset()


def rewritten(function: Callable[..., Any], only: Sequence[str] | None = None) -> Any:
    """`function` compiled with the pass, without the rest of Inductor, and what it calls of this package."""
    called: list[str] = []

    def backend(module, inputs):
        FusedOps(only)(module.graph)
        module.graph.lint()
        module.recompile()
        names = [str(node.target) if isinstance(node.target, torch._ops.OpOverload)
                 else getattr(node.target, "__module__", "") + "." + getattr(node.target, "__name__", "")
                 for node in module.graph.nodes if node.op == "call_function"]  # fmt: skip
        called[:] = [name.removesuffix(".default").rpartition(".")[2] for name in names if "portable" in name]
        return aot_eager(module, inputs)

    return torch.compile(function, backend=backend, fullgraph=True), called


def drawn(*shape: int, dtype: torch.dtype = bf16, seed: int = 0, grad: bool = False) -> Tensor:
    made = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return made.to(dtype).requires_grad_(grad)


def outcome(
    function: Callable[..., Any], inputs: Sequence[Tensor], dynamic: Sequence[int] = ()
) -> dict[str, Tensor]:
    """Results and the gradients of all floating inputs, in float64. dynamic: dimensions of the first."""
    own = [each.detach().clone().requires_grad_(each.is_floating_point()) for each in inputs]
    for dim in dynamic:
        torch._dynamo.mark_dynamic(own[0], dim)
    made = function(*own)
    made = made if isinstance(made, tuple) else (made,)
    total = sum((each.double() * drawn(*each.shape, dtype=torch.float64, seed=9)).sum() for each in made)
    assert isinstance(total, Tensor)
    wanted = [each for each in own if each.requires_grad]
    found = {f"result {i}": each.detach().double() for i, each in enumerate(made)}
    grads = torch.autograd.grad(total, wanted, allow_unused=True)
    return found | {f"gradient {i}": each.double() for i, each in enumerate(grads) if each is not None}


def check(
    function: Callable[..., Any], inputs: Sequence[Tensor], expected: Sequence[str],
    only: Sequence[str] | None = None, dynamic: Sequence[int] = (),
) -> None:  # fmt: skip
    """That the pass makes `expected` of it, and that results and gradients are as near to float64 as those of
    eager, by the root of the mean square, and half an ULP."""
    fused, called = rewritten(function, only)
    ours = outcome(fused, inputs, dynamic)
    assert called == list(expected)
    theirs = outcome(function, inputs)
    exact = outcome(function, [each.double() if each.is_floating_point() else each for each in inputs])
    assert ours.keys() == theirs.keys() == exact.keys()
    eps = torch.finfo(inputs[0].dtype).eps
    for name, true in exact.items():
        assert ours[name].shape == theirs[name].shape
        error, eager = ((each[name] - true).square().mean().sqrt().item() for each in (ours, theirs))
        assert error <= 1.1 * eager + 0.5 * eps * true.square().mean().sqrt().item(), (name, error, eager)


# Norms ---------------------------------------------------------------------------------------------


def llama_norm(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    return weight * wide.to(x.dtype)


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


def rotate_half(x: Tensor) -> Tensor:
    return torch.cat((-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]), dim=-1)


def hugging_face(q: Tensor, k: Tensor, angles: Tensor, unsqueeze_dim: int) -> tuple[Tensor, Tensor]:
    both = torch.cat((angles, angles), dim=-1)
    cos, sin = (each.to(q.dtype).unsqueeze(unsqueeze_dim) for each in (both.cos() * 1.5, both.sin() * 1.5))
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


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


# Installed in Inductor -----------------------------------------------------------------------------


class Layer(nn.Module):
    """As a modelling file has it: norms in float32, one weight of gate and up."""

    def __init__(self, size: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ParameterList(torch.ones(size) for _ in range(2))
        self.qkv, self.o = nn.Linear(size, 3 * size, bias=False), nn.Linear(size, size, bias=False)
        self.gate_up, self.down = nn.Linear(size, 4 * size, bias=False), nn.Linear(2 * size, size, bias=False)

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        q, k, v = (
            self.qkv(llama_norm(x, self.norms[0]))
            .unflatten(-1, (3 * self.heads, -1))
            .transpose(1, 2)
            .chunk(3, 1)
        )
        q, k = hugging_face(q, k, angles, 1)
        o = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(o.transpose(1, 2).flatten(2))
        gate, up = self.gate_up(llama_norm(x, self.norms[1])).chunk(2, -1)
        return x + self.down(functional.silu(gate) * up)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.layers = nn.Embedding(97, 64), nn.ModuleList(Layer() for _ in range(2))
        self.norm, self.head = nn.RMSNorm(64), nn.Linear(64, 97, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens[:, :-1])
        frequencies = 100.0 ** (-torch.arange(8, device=x.device) / 8)
        angles = (torch.arange(x.shape[1], device=x.device)[:, None] * frequencies)[None]
        for layer in self.layers:
            x = layer(x, angles)
        logits = self.head(self.norm(x)).float().flatten(0, 1)
        return functional.cross_entropy(logits, tokens[:, 1:].reshape(-1))


TOKENS = torch.randint(97, (2, 20), generator=torch.Generator().manual_seed(0))


def step(model: nn.Module, call: Callable[..., Tensor]) -> dict[str, Tensor]:
    model.zero_grad()
    loss = call(TOKENS)
    loss.backward()
    return {"loss": loss.detach().float()} | {name: p.grad.float() for name, p in model.named_parameters()}  # type: ignore[union-attr]


def test_a_model_is_explained():
    report = inductor.explain(Model().to(bf16), TOKENS)
    assert {item.note: item.count for item in report.replaced} == {
        "portable.rope, queries and keys": 2, "portable.silu_and_mul": 2,
        "portable.rms_norm, cast_before_weight": 1,
        "portable.fused_add_rms_norm, cast_before_weight": 3, "portable.fused_add_rms_norm": 1,
        "portable.linear_cross_entropy": 1,
    }, report  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_training_step_of_a_model(dynamic, monkeypatch):
    """Through all of Inductor, loss and gradients in bfloat16 are as near to float32 as without the pass."""
    model = Model().to(bf16)
    exact = step(wide := copy.deepcopy(model).float(), wide)
    theirs = step(model, torch.compile(model, dynamic=dynamic))
    torch._dynamo.reset()
    replaced: list[tuple[str, str, str]] = []
    plain = FusedOps.rewrite
    monkeypatch.setattr(FusedOps, "rewrite", lambda self, graph: replaced.extend(plain(self, graph).replaced))
    with inductor.enable(), config.patch(force_disable_caches=True):
        ours = step(model, torch.compile(model, dynamic=dynamic))
    monkeypatch.undo()
    notes = Counter(note for _, _, note in replaced)
    graphs = notes["portable.linear_cross_entropy"]  # Dynamo calls Inductor twice with symbolic sizes
    assert {note: count / graphs for note, count in notes.items()} == {
        item.note: item.count for item in inductor.explain(model, TOKENS).replaced
    }
    verdict = judge.verdict(judge.errors(ours, exact), judge.errors(theirs, exact))
    assert not verdict.fault, verdict.fault


@pytest.mark.slow
@pytest.mark.parametrize("family", ["Llama", "Qwen3", "Gemma 2", "Phi 3", "DeepSeek V3"])
def test_models_of_transformers(family):
    """Unchanged modelling code: its loss and gradients in bfloat16 are as near to float32 as eager's."""
    pytest.importorskip("transformers")
    from tests.integrations import families

    def outcome(model: Any, loss: Callable[[], Tensor]) -> dict[str, Tensor]:
        model.zero_grad()
        found = loss()
        found.backward()
        grads = {name: p.grad.float() for name, p in model.named_parameters() if p.grad is not None}
        return {"loss": found.detach().float(), **grads}

    model, tokens = families.eager(family, bf16), families.tokens()
    fused, called = rewritten(lambda: model(tokens, labels=tokens).loss)
    ours, theirs = outcome(model, fused), outcome(model, lambda: model(tokens, labels=tokens).loss)
    wide = copy.deepcopy(model).float()
    exact = outcome(wide, lambda: wide(tokens, labels=tokens).loss)
    verdict = judge.verdict(judge.errors(ours, exact), judge.errors(theirs, exact))
    assert not verdict.fault, verdict.fault
    expected = {"rms_norm", "fused_add_rms_norm", "rope", "linear_cross_entropy"}
    expected |= {"Phi 3": {"gated_activation"}, "Gemma 2": set()}.get(family, {"swiglu"})
    assert {*called} == (expected - {"rope"} if family == "DeepSeek V3" else expected)


def test_cached_programs_are_told_apart():
    """The pass has an id for each choice of parts, and none where a pass ahead of it has none."""
    ids = [FusedOps(only).uuid() for only in (None, ["rope"], ["rms_norm"])]
    assert len({*ids}) == 3 and all(ids)
    assert pickle.loads(pickle.dumps(FusedOps(["rope"]))).uuid() == ids[1]
    assert FusedOps(None, [lambda graph: None]).uuid() is None


class Noted(CustomGraphPass):
    """A pass of the user's own."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, graph: torch.fx.Graph) -> None:
        self.calls += any("rms_norm" in str(node.target) for node in graph.nodes)

    def uuid(self) -> Any:
        return "noted"


def test_a_pass_that_is_there_goes_first():
    mine = Noted()
    config.pre_grad_custom_pass = mine
    try:
        report = inductor.enable(only="rms_norm")
        assert [str(item) for item in report.left if item.part == "other"] == [
            "other       the pre_grad_custom_pass Noted: goes first"
        ]
        ours: Any = config.pre_grad_custom_pass
        assert ours.uuid()[-1] == "noted"
        graph = torch.fx.symbolic_trace(lambda x: functional.rms_norm(x, (4,))).graph
        ours(graph)
        assert mine.calls == 1
        inductor.enable()  # anew: mine is not there twice
        assert config.pre_grad_custom_pass.first == (mine,)  # type: ignore[union-attr]
        inductor.disable()
        assert config.pre_grad_custom_pass is mine
        inductor.disable()
        assert config.pre_grad_custom_pass is mine
    finally:
        config.pre_grad_custom_pass = None


def test_enable_tells_the_parts():
    with inductor.enable() as report:
        assert isinstance(config.pre_grad_custom_pass, FusedOps)
        assert {item.part for item in report.replaced} == {*inductor.PARTS} - {*inductor.BY_NAME}
        assert {item.part for item in report.left} == {*inductor.BY_NAME}
        assert "torch has kernels of its own for it" in str(report)
    assert config.pre_grad_custom_pass is None
    with pytest.raises(
        IntegrationError, match=r"'rmsnorm', which is none of rope, rms_norm.*Did you mean 'rms_norm'"
    ):
        inductor.enable(only=["rmsnorm"])
    with pytest.raises(IntegrationError, match="none of rope"):
        inductor.explain(llama_norm, drawn(3, 4), drawn(4), only="ropes")


@pytest.mark.slow
def test_inference_through_inductor_and_its_caches():
    """With the pass, with it from the cache, and without it: never one for another."""

    def block(x, residual, weight, packed):
        total = x + residual
        gate, up = functional.linear(llama_norm(total, weight), packed).chunk(2, -1)
        return functional.silu(gate) * up, total

    def run() -> tuple[Tensor, Tensor]:
        torch._dynamo.reset()
        with torch.no_grad():
            return torch.compile(block, fullgraph=True)(*inputs)

    inputs = [drawn(3, 5, 64), drawn(3, 5, 64, seed=1), drawn(64, seed=2), drawn(96, 64, seed=3)]
    exact = block(*(each.double() for each in inputs))
    with fresh_cache():
        theirs = run()
        hits = []
        for _ in range(2):
            counters.clear()
            with inductor.enable():
                ours = run()
            hits.append(
                sum(
                    value for names in counters.values() for key, value in names.items() if "cache_hit" in key
                )
            )
            for true, one, other in zip(exact, ours, theirs, strict=True):
                error, without = ((each.double() - true).square().mean() for each in (one, other))
                assert error <= 1.1 * without
            assert not torch.equal(ours[0], theirs[0])
        assert hits[0] == 0 and hits[1] > 0
        assert all(map(torch.equal, run(), theirs))

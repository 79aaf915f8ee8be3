"""Inductor's pass where it is installed: whole models, caches, other passes, `enable` and `explain`."""

from __future__ import annotations

import copy
import pickle
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch._inductor import config
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._inductor.utils import fresh_cache
from torch.nn import functional

from portable.conformance.models import judge
from portable.errors import IntegrationError
from portable.integrations import inductor
from portable.integrations.inductor.graph_pass import FusedOps
from tests.integrations.inductor_cases import (
    as_before,  # noqa: F401
    bf16,
    drawn,
    hugging_face,
    llama_norm,
    rewritten,
)


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

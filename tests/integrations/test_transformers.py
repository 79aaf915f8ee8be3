"""Models of transformers compute the same on this package's ops, and what is replaced is told."""

from __future__ import annotations

import copy
import sys
from typing import Any

import pytest
import torch
from torch import nn

import portable
from portable.conformance.models import judge
from portable.errors import IntegrationError
from tests.integrations import families

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("transformers")]


@pytest.fixture
def host():
    """The integration, disabled again at the end."""
    from portable.integrations import transformers

    yield transformers
    transformers.disable()


def outcome(model: Any, tokens: torch.Tensor, padding: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
    """Logits of tokens that are no padding, loss, and each parameter's gradient, in float32."""
    model.zero_grad()
    labels = tokens
    if padding is not None:  # a padding token sees no key: zero here, a mean of everything in eager
        labels = tokens.masked_fill(~(padding.bool() & padding.roll(1, 1).bool()), -100)
    found = model(tokens, attention_mask=padding, labels=labels)
    found.loss.backward()
    logits = found.logits if padding is None else found.logits[padding.bool()]
    grads = {name: p.grad.float() for name, p in model.named_parameters() if p.grad is not None}
    return {"logits": logits.detach().float(), "loss": found.loss.detach().float(), **grads}


def padded(tokens: torch.Tensor) -> torch.Tensor:
    padding = torch.ones_like(tokens)
    padding[1, : tokens.shape[1] // 3] = 0
    return padding


@pytest.mark.parametrize("family", families.FAMILIES)
def test_a_family_is_as_near_to_float32_as_eager(host, family):
    """Logits, loss and every parameter's gradient in bfloat16, with and without padding."""
    narrow = families.eager(family, torch.bfloat16)
    wide = copy.deepcopy(narrow).float()
    ours = families.copied(narrow)
    report = host.enable(ours)
    assert {item.part for item in report.replaced} == {"attention", "rms_norm", "rotary", "mlp", "loss"}, (
        report
    )
    linears = sum(type(module) is nn.Linear for module in ours.modules())
    assert f"Linear x {linears}: no op" in str(report)
    tokens = families.tokens()
    for padding in (None, padded(tokens)):
        exact = outcome_without(host, ours, wide, tokens, padding)
        theirs = judge.errors(outcome_without(host, ours, narrow, tokens, padding), exact)
        verdict = judge.verdict(judge.errors(outcome(ours, tokens, padding), exact), theirs)
        assert not verdict.fault, f"{family}: {verdict.fault}"


def outcome_without(
    host, ours: Any, model: Any, tokens: torch.Tensor, padding: Any
) -> dict[str, torch.Tensor]:
    """`outcome` of another model of the file whose rotary function `ours` replaces for all."""
    host.disable(ours)
    try:
        return outcome(model, tokens, padding)
    finally:
        host.enable(ours)


@pytest.mark.parametrize("family", families.FAMILIES)
def test_generation_is_the_same_in_float32(host, family):
    """Greedy, of a padded batch, beyond the window; and of whole logits."""
    model = families.eager(family)
    tokens = families.tokens(length=30)
    given: dict[str, Any] = {"attention_mask": padded(tokens), "max_new_tokens": 12, "do_sample": False}
    given |= {"return_dict_in_generate": True, "output_logits": True, "eos_token_id": None}
    theirs = model.generate(tokens, **given)
    host.enable(model)
    ours = model.generate(tokens, **given)
    assert torch.equal(ours.sequences, theirs.sequences)
    for a, b in zip(ours.logits, theirs.logits, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("family", families.FAMILIES)
def test_steps_of_training_are_the_same_in_float32(host, family):
    def trained(model: Any) -> list[float]:
        model.train()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = model(families.tokens(), labels=families.tokens(), num_items_in_batch=126).loss
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    model = families.eager(family)
    theirs = trained(families.copied(model))
    host.enable(model)
    ours = trained(model)
    assert ours == pytest.approx(theirs, rel=2e-5)
    assert ours[-1] < ours[0]


@pytest.mark.parametrize("family", families.FAMILIES)
def test_torch_compile_takes_the_whole_graph(host, family):
    """Forward and backward, as eager's own does."""
    model = families.eager(family)
    tokens = families.tokens(length=40)
    expected = outcome(model, tokens)
    host.enable(model)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for _ in range(2):
        found = compiled(tokens, labels=tokens)
    model.zero_grad()
    found.loss.backward()
    torch.testing.assert_close(found.logits.detach(), expected["logits"], rtol=1e-4, atol=2e-5)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-3, atol=1e-5, msg=name)
    torch._dynamo.reset()


def test_torch_compile_takes_the_whole_graph_of_a_padded_batch(host):
    """The mask read its values, which breaks the graph."""
    model, tokens = families.eager("Mistral"), families.tokens(length=40)
    padding = padded(tokens)
    expected = outcome(model, tokens, padding)["logits"]
    host.enable(model)
    torch._dynamo.reset()
    found = torch.compile(model, fullgraph=True, backend="aot_eager")(tokens, attention_mask=padding)
    torch.testing.assert_close(found.logits.detach()[padding.bool()], expected, rtol=1e-4, atol=2e-5)
    torch._dynamo.reset()


@pytest.mark.parametrize("family", ["Llama", "Gemma 2"])
def test_a_static_cache_generates_the_same(host, family):
    model = families.eager(family)
    given: dict[str, Any] = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None}
    given |= {"cache_implementation": "static", "disable_compile": True}
    theirs = model.generate(families.tokens(length=30), **given)
    host.enable(model)
    assert torch.equal(model.generate(families.tokens(length=30), **given), theirs)


@pytest.mark.parametrize("family", ["Llama", "Mistral"])
@pytest.mark.parametrize("told", ["positions", "lengths"])
def test_packed_sequences_are_each_alone(host, family, told):
    model, tokens = families.eager(family), families.tokens(1, 70)
    expected = torch.cat([model(part).logits for part in tokens.split((40, 30), 1)], 1)
    host.enable(model)
    positions = torch.cat((torch.arange(40), torch.arange(30)))[None]
    given: dict[str, Any] = {"position_ids": positions, "use_cache": False}
    if told == "lengths":
        lengths = torch.tensor([0, 40, 70], dtype=torch.int32)
        given |= {"cu_seq_lens_q": lengths, "cu_seq_lens_k": lengths, "max_length_q": 40, "max_length_k": 40}
    found = model(tokens, **given).logits
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-5)


def test_on_an_emulated_gpu(host):
    """A step of a Llama in bfloat16: norms, rotary, MLP, attention and loss are kernels of gfx942."""
    narrow = families.eager("Llama", torch.bfloat16, num_hidden_layers=1)
    exact = outcome(copy.deepcopy(narrow).float(), families.tokens(1, 16))
    theirs = judge.errors(outcome(narrow, families.tokens(1, 16)), exact)
    host.enable(narrow)
    with portable.emulated("gfx942"):
        assert str(portable.device()) == "emulated gfx942"
        assert "-> cpp" in str(portable.explain("rms_norm", torch.ones(16, 128), torch.ones(128)))
        found = outcome(narrow, families.tokens(1, 16))
    verdict = judge.verdict(judge.errors(found, exact), theirs)
    assert not verdict.fault, verdict.fault


def test_disable_puts_everything_back(host):
    model, tokens = families.eager("Llama"), families.tokens()
    file = sys.modules[type(model).__module__]
    rotary, expected = file.apply_rotary_pos_emb, outcome(model, tokens)  # type: ignore[attr-defined]
    host.enable(model)
    other = copy.deepcopy(model)
    host.disable(model)
    assert all(
        torch.equal(a, b) for a, b in zip(outcome(model, tokens).values(), expected.values(), strict=True)
    )
    assert model.config._attn_implementation == "eager" and not hasattr(model, "_loss_function")
    assert not any("forward" in vars(module) for module in model.modules())
    assert file.apply_rotary_pos_emb is rotary  # type: ignore[attr-defined]
    assert other.model.norm.forward.__self__ is other.model.norm  # a copy has forwards of its own
    host.disable(other)
    assert not any("forward" in vars(module) for module in other.modules())


def test_two_models_of_a_file_share_its_function(host):
    one, two = families.eager("Llama"), families.eager("Llama")
    file: Any = sys.modules[type(one).__module__]
    before = file.apply_rotary_pos_emb
    host.enable(one)
    ours = file.apply_rotary_pos_emb
    host.enable(two)
    host.enable(two)  # anew
    assert file.apply_rotary_pos_emb is ours is not before
    host.disable(one)
    assert file.apply_rotary_pos_emb is ours
    host.disable(two)
    assert file.apply_rotary_pos_emb is before


class DoubledRMSNorm(nn.Module):
    """Named and made as Llama's, and computes twice that."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight, self.variance_epsilon = nn.Parameter(torch.ones(size)), 1e-6

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        wide = hidden_states.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.variance_epsilon)
        return (2 * self.weight * wide).to(hidden_states.dtype)


def test_what_computes_something_else_is_left_alone(host):
    model = families.eager("Llama")
    model.model.norm = DoubledRMSNorm(128)
    mlp = model.model.layers[0].mlp
    mlp.forward = lambda x: x  # somebody else's
    other = model.model.layers[1].mlp
    other.__class__ = type(
        "ScaledMLP", (type(other),), {"forward": lambda self, x: 2 * type(mlp).forward(self, x)}
    )
    tokens = families.tokens()
    expected = model(tokens).logits
    report = host.enable(model)
    left = {item.what: item.note for item in report.left}
    assert left["DoubledRMSNorm"] == "it computes another function than portable.rms_norm"
    assert left["LlamaMLP"] == "its forward was replaced already, by another"
    assert left["ScaledMLP"] == "its forward computes more than down(act(gate) * up)"
    torch.testing.assert_close(model(tokens).logits, expected, rtol=1e-4, atol=2e-5)
    assert "DoubledRMSNorm: it computes another function" in str(report)


def test_activations_of_other_mlps(host):
    """GPT-2's MLP is not gated: its activation alone is replaced; its LayerNorms are told as left alone."""
    from transformers import AutoModelForCausalLM, GPT2Config

    config = GPT2Config(vocab_size=64, n_embd=32, n_layer=1, n_head=2, n_positions=32)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    expected = model(families.tokens(1, 20) % 64).logits
    report = host.enable(model)
    replaced = {item.part: item.note for item in report.replaced}
    assert replaced["activation"] == "portable.gelu_tanh"
    assert ("other", "LayerNorm") in {(item.part, item.what) for item in report.left}
    torch.testing.assert_close(model(families.tokens(1, 20) % 64).logits, expected, rtol=1e-4, atol=2e-5)


def test_a_norm_of_another_dtype_keeps_torchs_promotion(host):
    model = families.eager("Llama")
    x = torch.randn(3, 128, dtype=torch.bfloat16)
    expected = model.model.norm(x)
    host.enable(model, only=["rms_norm"])
    found = model.model.norm(x)
    assert found.dtype == expected.dtype == torch.float32 and torch.equal(found, expected)


def test_autocast_keeps_the_dtypes(host):
    model = families.eager("Qwen3", torch.bfloat16)
    host.enable(model)
    with torch.autocast("cpu", torch.bfloat16):
        assert model(families.tokens()).logits.dtype == torch.bfloat16


def test_dropout_leaves_attention_alone(host):
    report = host.enable(families.eager("Llama", attention_dropout=0.1))
    assert any(item.part == "attention" and "attention_dropout=0.1" in item.note for item in report.left)
    q = torch.zeros(1, 1, 1, 8)
    with pytest.raises(ValueError, match=r"no dropout, and Identity asks for 0.1. Set attention_dropout=0.0"):
        host.attention.attend(nn.Identity(), q, q, q, None, dropout=0.1)
    with pytest.raises(ValueError, match="paged cache of continuous batching"):
        host.attention.attend(nn.Identity(), q, q, q, None, cache=object())


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("masked", ["", "boolean", "added"])
def test_a_position_bias_is_added(host, causal, masked):
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    made = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 2, 6, 8, generator=made) for _ in range(3))
    bias = torch.randn(1, 2, 6, 6, generator=made)
    seen = torch.ones(2, 1, 6, 6, dtype=torch.bool).tril()
    lowest = torch.zeros(2, 1, 6, 6).masked_fill(~seen, torch.finfo(torch.float32).min)
    mask = {"": None, "boolean": seen, "added": lowest}[masked]
    module = nn.Identity()
    for given in (bias, None):
        if given is None and mask is None:
            continue
        found, _ = host.attention.attend(module, q, k, v, mask, position_bias=given, is_causal=causal)
        hidden = lowest if mask is not None or causal else torch.zeros_like(lowest)
        added = hidden if given is None else given + hidden  # sdpa has a position_bias in some versions alone
        theirs, _ = sdpa_attention_forward(module, q, k, v, added, is_causal=False)
        torch.testing.assert_close(found, theirs)


def test_without_a_model(host):
    report = host.enable()
    assert [item.part for item in report.replaced] == ["attention"]
    assert {item.part for item in report.left} == {"rms_norm", "rotary", "mlp", "activation", "loss"}
    model = families.eager("Llama")
    expected = model(families.tokens()).logits
    model.set_attn_implementation("portable")
    torch.testing.assert_close(model(families.tokens()).logits, expected, rtol=1e-4, atol=2e-5)


def test_what_cannot_be_done_is_an_error(host):
    told = r"rms_norm, mlp can be replaced in a model alone.*`kernels` package, "
    with pytest.raises(IntegrationError, match=told + r".*enable\(model\)"):
        host.enable(only=["rms_norm", "mlp"])
    with pytest.raises(
        IntegrationError, match=r"'rmsnorm', which is none of attention, .*Did you mean 'rms_norm'"
    ):
        host.enable(families.eager("Llama"), only=["rmsnorm"])
    with pytest.raises(TypeError, match="Linear is no PreTrainedModel"):
        host.enable(nn.Linear(2, 2))
    model = families.eager("Llama", attention_dropout=0.1)
    with pytest.raises(
        IntegrationError, match=r"nothing of LlamaForCausalLM was replaced: attention .*dropout=0.1"
    ):
        host.enable(model, only="attention")
    host.disable(model)  # not enabled


def test_the_loss_is_transformers(host):
    from transformers.loss.loss_utils import ForCausalLMLoss

    made = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 5, 11, generator=made)
    labels = torch.randint(0, 11, (2, 5), generator=made).index_fill(1, torch.tensor([2]), -100)
    for given in ({}, {"num_items_in_batch": 7}, {"num_items_in_batch": torch.tensor(7)},
                  {"shift_labels": labels}, {"ignore_index": 3}):  # fmt: skip
        given: dict[str, Any]
        if given.get("ignore_index") == 3:
            labels = labels.clamp_min(3)
        expected = ForCausalLMLoss(logits, labels, 11, **given)
        torch.testing.assert_close(host.loss.causal_lm_loss(logits, labels, 11, **given), expected)
    with pytest.raises(ValueError, match="both are None"):
        host.loss.causal_lm_loss(logits, None, 11)


def test_another_rotation_is_left_alone(host):
    def negative(q, k, cos, sin, unsqueeze_dim=1):
        from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

        return apply_rotary_pos_emb(q, k, cos, -sin, unsqueeze_dim)

    def three(q, cos, sin):
        return q

    ours, note = host.rotary.replacement(negative)
    assert ours is None and note.startswith("it computes another rotation")
    assert host.rotary.replacement(three) == (None, "its parameters are q, cos, sin")


@pytest.mark.parametrize("unsqueeze_dim", [1, 2])
@pytest.mark.parametrize("batch", [1, 2])
def test_a_rotation_in_both_layouts(host, unsqueeze_dim, batch):
    """Tables of one row for all sequences and of one for each; heads before and after the tokens; and calls
    that the op does not take, of two dtypes."""
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    ours, _ = host.rotary.replacement(apply_rotary_pos_emb)
    made = torch.Generator().manual_seed(0)
    shape = (2, 3, 5, 8) if unsqueeze_dim == 1 else (2, 5, 3, 8)
    q, k = torch.randn(shape, generator=made), torch.randn(shape, generator=made)
    angle = torch.randn(batch, 5, 4, generator=made)
    cos, sin = (torch.cat((each, each), -1) for each in (angle.cos(), angle.sin()))
    for dtype in (torch.float32, torch.bfloat16):
        found = ours(q.to(dtype), k.to(dtype), cos, sin, unsqueeze_dim=unsqueeze_dim)
        expected = apply_rotary_pos_emb(q.to(dtype), k.to(dtype), cos, sin, unsqueeze_dim)
        assert [each.dtype for each in found] == [each.dtype for each in expected]
        torch.testing.assert_close(found, expected)

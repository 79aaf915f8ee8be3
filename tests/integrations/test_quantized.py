"""Models of transformers with quantised linears: prefill, generation, and the integration beside them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import portable
from portable.integrations import transformers as hosted
from portable.quantization import (
    Float8DynamicActivationFloat8WeightConfig,
    Float8StaticActivationFloat8WeightConfig,
    Int8DynamicActivationInt8WeightConfig,
    NVFP4DynamicActivationNVFP4WeightConfig,
    Observer,
    PerRow,
    QuantizedLinear,
)
from tests.integrations import families

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("transformers")]
INT8 = Int8DynamicActivationInt8WeightConfig()


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(found.float() - expected.float()) / expected.float().norm())


@torch.no_grad()
def logits(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    return model(tokens).logits


def linears(model: Any) -> int:
    return sum(type(each) is QuantizedLinear for each in model.modules())


@pytest.mark.parametrize("family", families.FAMILIES)
def test_every_family_before_and_after_the_integration(family):
    model, tokens = families.eager(family, torch.bfloat16), families.tokens(2, 32)
    expected = logits(model, tokens)
    before, after = families.copied(model), families.copied(model)
    portable.quantize_(before, INT8)
    assert linears(before) >= 8
    assert 0 < distance(logits(before, tokens), expected) < 0.06
    try:
        hosted.enable(before)
        hosted.enable(after)
        portable.quantize_(after, INT8)
        found = logits(before, tokens)
        assert torch.equal(logits(after, tokens), found)
    finally:
        hosted.disable()
    assert 0 < distance(found, expected) < 0.06


@pytest.mark.parametrize(
    "config",
    [INT8, Float8DynamicActivationFloat8WeightConfig(granularity=PerRow())],
    ids=["int8", "fp8"],
)
def test_generation_with_a_cache_is_that_without(config):
    """Scales of tokens depend on no other token: prefill and decode quantise the same."""
    model, tokens = families.eager("Llama"), families.tokens(2, 12)
    portable.quantize_(model, config)
    made = model.generate(tokens, max_new_tokens=8, do_sample=False, eos_token_id=None)
    for _ in range(8):
        tokens = torch.cat([tokens, logits(model, tokens)[:, -1:].argmax(-1)], 1)
    assert torch.equal(made, tokens)


def test_static_scales_from_a_run_and_a_state_dict_into_a_new_model():
    model, tokens = families.eager("Llama", torch.bfloat16), families.tokens(4, 24)
    expected = logits(model, tokens)
    static = Float8StaticActivationFloat8WeightConfig
    portable.quantize_(model, static(step="prepare", observer=Observer("entropy")))
    for batch in tokens.split(2):
        assert torch.isfinite(logits(model, batch)).all()
    portable.quantize_(model, static(step="convert"))
    found = logits(model, tokens)
    assert 0 < distance(found, expected) < 0.2
    other = families.eager("Llama", torch.bfloat16)
    with torch.no_grad():
        other.model.norm.weight.zero_()
    portable.quantize_(other, static(act_quant_scale=torch.ones(1)))
    other.load_state_dict(model.state_dict())
    assert torch.equal(logits(other, tokens), found)


def test_a_training_loss_has_no_silent_gradient():
    model, tokens = families.eager("Llama", torch.bfloat16), families.tokens(1, 8)
    portable.quantize_(model, NVFP4DynamicActivationNVFP4WeightConfig())
    with pytest.raises(portable.errors.UnsupportedGradientError, match="its weight is quantised"):
        model(tokens, labels=tokens).loss.backward()

"""Small models of transformers with random weights, as the tests of the integrations take them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

VOCABULARY = 384
FAMILIES = ("Llama", "Qwen3", "Mistral", "Gemma 2", "Gemma 3", "Phi 3", "DeepSeek V3")


def config(family: str) -> Any:
    """A configuration of two layers; windows of 24 where the family has them."""
    import transformers

    common: dict[str, Any] = {"vocab_size": VOCABULARY, "hidden_size": 128, "intermediate_size": 256}
    common |= {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    common |= {"max_position_embeddings": 256, "attention_dropout": 0.0}
    common |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    gemma: dict[str, Any] = {"head_dim": 32, "sliding_window": 24, "query_pre_attn_scalar": 32}
    latent: dict[str, Any] = {"num_key_value_heads": 4, "q_lora_rank": 64, "kv_lora_rank": 64}
    latent |= {"qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32}
    latent |= {"first_k_dense_replace": 2}  # no experts, chosen by ties
    made: dict[str, Callable[[], Any]] = {
        "Llama": lambda: transformers.LlamaConfig(**common),
        "Qwen3": lambda: transformers.Qwen3Config(**common, head_dim=32),
        "Mistral": lambda: transformers.MistralConfig(**common, sliding_window=24),
        "Gemma 2": lambda: transformers.Gemma2Config(**common, **gemma, attn_logit_softcapping=50.0),
        "Gemma 3": lambda: transformers.Gemma3TextConfig(**common, **gemma),
        "Phi 3": lambda: transformers.Phi3Config(**common, sliding_window=24),
        "DeepSeek V3": lambda: transformers.DeepseekV3Config(**(common | latent)),
    }
    return made[family]()


def eager(family: str, dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    """The family's model with transformers' own attention; norms have weights that are not all one."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    configured = config(family)
    for name, value in changes.items():
        setattr(configured, name, value)
    model = AutoModelForCausalLM.from_config(configured, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.add_(torch.randn_like(parameter) / 4)
    return model.to(dtype)


def copied(model: Any) -> Any:
    """Another model with the same weights and a config of its own."""
    other = type(model)(copy.deepcopy(model.config)).eval().to(model.dtype)
    other.load_state_dict(model.state_dict())
    return other


def tokens(rows: int = 2, length: int = 64) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(1))

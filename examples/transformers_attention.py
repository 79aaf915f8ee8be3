"""portable.attention as an attention implementation of Hugging Face transformers.

    register()
    model = AutoModelForCausalLM.from_pretrained(..., attn_implementation="portable")

Run as a program, it makes a small Llama, Gemma 2 (capped scores, sliding window) and DeepSeek V3 (latent
attention: 192 elements a head in queries and keys, 128 in values) with random weights and holds logits, a
training step's gradients and greedy generation against transformers' own "eager" attention.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import portable

try:
    from transformers import AttentionInterface, AttentionMaskInterface, AutoModelForCausalLM
    from transformers.masking_utils import causal_mask_function, sdpa_mask
except ImportError as error:
    told = f"This example needs transformers 5 or newer ({error}): pip install 'transformers>=5'"
    raise (SystemExit if __name__ == "__main__" else ImportError)(told) from error

NAME = "portable"


def attend(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
    *, scaling: float | None = None, dropout: float = 0.0, sliding_window: int | None = None,
    softcap: float | None = None, s_aux: Tensor | None = None, is_causal: bool | None = None, **_: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """(batch, heads, queries, size) in, (batch, queries, heads, size) out, as transformers asks.

    A mask of None says that causality and the window are the whole mask; else it is boolean, True for the
    keys that a query sees, and holds both.
    """
    if dropout:
        raise ValueError(f"portable.attention has no dropout, and {type(module).__name__} asks for {dropout}")
    bias, causal, window = None, False, None
    if attention_mask is None:
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        window = None if sliding_window is None else (sliding_window - 1, 0)
    else:
        bias = torch.zeros((), dtype=query.dtype, device=query.device)
        bias = bias.where(attention_mask, -torch.inf)
    o = portable.attention(
        query,
        key,
        value,
        causal=causal,
        scale=scaling,
        window=window,
        softcap=softcap,
        bias=bias,
        sinks=s_aux,
    )
    return o.transpose(1, 2).contiguous(), None


def mask(
    *, q_length: int, kv_length: int, q_offset: int = 0, kv_offset: int = 0, config: Any = None,
    mask_function: Callable[..., Any] = causal_mask_function, attention_mask: Tensor | None = None,
    local_size: int | None = None, allow_is_causal_skip: bool = True, **rest: Any,
) -> Tensor | None:  # fmt: skip
    """None where the last query sees the last key, nothing is padded, and causality with a sliding window
    says the rest; else the boolean mask."""
    sliding = local_size is not None and local_size == getattr(config, "sliding_window", None)
    plain = mask_function is causal_mask_function or sliding
    joined = q_offset + q_length == kv_offset + kv_length
    unpadded = attention_mask is None or bool(attention_mask.all())
    if allow_is_causal_skip and plain and joined and unpadded:
        return None
    return sdpa_mask(
        q_length=q_length, kv_length=kv_length, q_offset=q_offset, kv_offset=kv_offset,
        mask_function=mask_function, attention_mask=attention_mask, local_size=local_size,
        allow_is_causal_skip=False, **rest,
    )  # fmt: skip


def register() -> None:
    """Make `attn_implementation="portable"` known to transformers."""
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, mask)


def configs() -> dict[str, Any]:
    """Small configurations of the three families."""
    from transformers import DeepseekV3Config, Gemma2Config, LlamaConfig

    common: dict[str, Any] = {"vocab_size": 512, "hidden_size": 256, "num_hidden_layers": 2}
    common |= {"max_position_embeddings": 512, "intermediate_size": 512}
    common |= {"num_attention_heads": 4, "attention_dropout": 0.0}
    return {
        "Llama": LlamaConfig(**common, num_key_value_heads=2),
        "Gemma 2": Gemma2Config(
            **common, num_key_value_heads=2, head_dim=64, sliding_window=32, attn_logit_softcapping=50.0,
            query_pre_attn_scalar=64,
        ),
        "DeepSeek V3": DeepseekV3Config(
            **common, num_key_value_heads=4, q_lora_rank=64, kv_lora_rank=64, qk_nope_head_dim=128,
            qk_rope_head_dim=64, v_head_dim=128, first_k_dense_replace=2,  # no experts, chosen by ties
        ),
    }  # fmt: skip


def logits_and_gradients(model: Any, tokens: Tensor, padding: Tensor) -> tuple[Tensor, Tensor]:
    """The logits of all tokens that are no padding, and the gradients of the loss in one line.

    A padding token sees no key (its output is zero here, a mean of everything in eager), so nothing may be
    learnt from it."""
    model.zero_grad()
    seen = padding.bool() & padding.roll(1, 1).bool()  # a label is predicted from the token before it
    found = model(tokens, attention_mask=padding, labels=tokens.masked_fill(~seen, -100))
    found.loss.backward()
    grads = [p.grad.flatten().float() for p in model.parameters() if p.grad is not None]
    return found.logits[padding.bool()].detach().float(), torch.cat(grads)


def compare(config: Any, device: str, dtype: torch.dtype, length: int = 96) -> dict[str, float]:
    """How far "portable" is from "eager", and "eager" in this type from "eager" in float32: the largest
    difference over the largest value, and how many of 16 generated tokens are the same up to the first that
    is not (in 16 bits nearly equal logits may be ordered otherwise)."""
    torch.manual_seed(0)

    def made(name: str) -> Any:  # a model keeps the config, and its choice of attention in there
        return AutoModelForCausalLM.from_config(copy.deepcopy(config), attn_implementation=name).eval()

    exact = made("eager")  # float32; in float64 it makes NaN of rows that are all padding
    models = {}
    for name in ("eager", NAME):
        models[name] = made(name)
        models[name].load_state_dict(exact.state_dict())
        models[name].to(device, dtype)
    exact.load_state_dict({name: x.float() for name, x in models["eager"].state_dict().items()})
    tokens = torch.randint(0, config.vocab_size, (2, length))
    padding = torch.ones_like(tokens)
    padding[1, : length // 3] = 0
    found: dict[str, float] = {}
    for title, given in (("", torch.ones_like(tokens)), (", padded", padding)):
        wide = logits_and_gradients(exact, tokens, given)
        for name, model in models.items():
            narrow = logits_and_gradients(model, tokens.to(device), given.to(device))
            for what, a, b in zip(("logits", "gradients"), narrow, wide, strict=True):
                found[f"{name}: {what}{title}"] = ((a.cpu() - b).abs().max() / b.abs().max()).item()
    texts = [model.generate(tokens[:1].to(device), attention_mask=torch.ones_like(tokens[:1]).to(device),
                           max_new_tokens=16, do_sample=False) for model in models.values()]  # fmt: skip
    same = (texts[0] == texts[1])[0, length:].long()
    found["equal tokens"] = int(same.cumprod(0).sum())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16", "float32"])
    given = parser.parse_args()
    register()
    for family, config in configs().items():
        print(family)
        for what, value in compare(config, given.device, getattr(torch, given.dtype)).items():
            print(f"  {what}: {value if isinstance(value, int) else f'{value:.2e}'}")


if __name__ == "__main__":
    main()

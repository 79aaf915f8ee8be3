"""A model of Hugging Face transformers on portable's ops, unchanged.

    from portable.integrations import transformers as hosted
    print(hosted.enable(model))

Run as a program, it makes a small model with random weights, prints what of it was replaced and what was
left alone, and holds the loss, the gradients and a greedy generation against those of the model as it was.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch

from portable.errors import IntegrationError

try:
    import transformers

    from portable.integrations import transformers as hosted
except (ImportError, IntegrationError) as error:
    told = f"This example needs transformers 5.4 or newer ({error}): pip install 'transformers>=5.4'"
    raise (SystemExit if __name__ == "__main__" else ImportError)(told) from error


def step_and_text(model: Any, tokens: torch.Tensor) -> tuple[float, torch.Tensor, torch.Tensor]:
    """The loss, all gradients in one line, and 16 generated tokens."""
    model.zero_grad()
    loss = model(tokens, labels=tokens).loss
    loss.backward()
    grads = torch.cat([p.grad.flatten().float() for p in model.parameters()])
    text = model.generate(tokens[:1], max_new_tokens=16, do_sample=False, eos_token_id=None)
    return loss.item(), grads, text[0, tokens.shape[1] :]


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="float32", choices=["bfloat16", "float16", "float32"])
    parser.add_argument("--model", default="gemma2", help="a model type of transformers: llama, qwen3, ...")
    given = parser.parse_args()
    config = transformers.AutoConfig.for_model(
        given.model, vocab_size=512, hidden_size=256, intermediate_size=512, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=64, max_position_embeddings=512,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, attention_dropout=0.0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    model.to(given.device, getattr(torch, given.dtype))
    tokens = torch.randint(3, 512, (2, 96), device=given.device)

    loss, grads, text = step_and_text(model, tokens)
    print(hosted.enable(model))
    our_loss, our_grads, our_text = step_and_text(model, tokens)
    difference = torch.linalg.vector_norm(our_grads - grads) / torch.linalg.vector_norm(grads)
    print(f"loss {loss:.6f}, ours {our_loss:.6f}; gradients differ by {difference.item():.1e} of their norm")
    print(f"equal tokens: {int((our_text == text).long().cumprod(0).sum())} of {len(text)}")
    hosted.disable(model)


if __name__ == "__main__":
    main()

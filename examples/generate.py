"""A generation loop: one batch of equal lengths, keys and values in a cache of fixed size, sampled tokens.

python examples/generate.py --tokens 32 --temperature 0.7 --top-p 0.9 --device cuda
"""

from __future__ import annotations

import argparse

import torch
from llama import Config, Llama, causal
from torch import Tensor

import portable


@torch.no_grad()
def generate(
    model: Llama, prompt: Tensor, count: int, temperature: float = 0.0, top_p: float = 1.0, seed: int = 0
) -> Tensor:
    """`count` tokens after each prompt of (batch, tokens), by default the likeliest. Row i has the seed
    `seed + i`, and a token its position as offset: a row's tokens depend on no other row."""
    c, (batch, length) = model.config, prompt.shape
    shape = (c.layers, 2, batch, length + count, c.kv_heads, c.head_dim)
    cache = torch.empty(shape, dtype=model.head.dtype, device=prompt.device)
    heat = torch.full((batch,), temperature, device=prompt.device)
    seeds = seed + torch.arange(batch, device=prompt.device)
    tokens, seen = prompt, 0
    made = []
    for _ in range(count):
        ahead = seen + tokens.shape[1]

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor, new: slice = slice(seen, ahead)) -> Tensor:
            keys, values = cache[layer]
            keys[:, new], values[:, new] = k, v
            return causal(q, keys[:, : new.stop], values[:, : new.stop])

        positions = torch.arange(seen, ahead, device=prompt.device).expand(batch, -1)
        h = model(tokens, positions, attend)
        logits = model.logits(h[:, -1])
        offset = torch.full_like(seeds, ahead)
        tokens, seen = portable.sample(logits, heat, top_p=top_p, seed=seeds, offset=offset)[:, None], ahead
        made.append(tokens)
    return torch.cat(made, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    torch.manual_seed(0)
    model = Llama(Config()).to(args.device)
    prompt = torch.tensor([list(b"import torch"), list(b"def generate")], device=args.device)
    for row in generate(model, prompt, args.tokens, args.temperature, args.top_p, args.seed):
        print(bytes(row.tolist()))


if __name__ == "__main__":
    main()

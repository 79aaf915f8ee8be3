"""A Llama in this package's functions: what train.py, generate.py and serve.py run.

The blocks do not know where keys and values are kept: `attend(layer, q, k, v)` gets those of the new tokens,
(batch, tokens, heads, columns), and answers with the heads' outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import portable

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Config:
    vocab: int = 256  # bytes
    hidden: int = 64
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    intermediate: int = 160
    longest: int = 512  # tokens of a sequence


class Block(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        c = config
        self.qkv = _weight((c.heads + 2 * c.kv_heads) * c.head_dim, c.hidden)
        self.o = _weight(c.hidden, c.heads * c.head_dim)
        self.gate_up = _weight(2 * c.intermediate, c.hidden)
        self.down = _weight(c.hidden, c.intermediate)
        self.attention_norm, self.mlp_norm = (nn.Parameter(torch.ones(c.hidden)) for _ in range(2))


class Llama(nn.Module):
    cos: Tensor
    sin: Tensor

    def __init__(self, config: Config):
        super().__init__()
        self.config = config
        self.embedding = nn.Parameter(torch.randn(config.vocab, config.hidden))
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.Parameter(torch.ones(config.hidden))
        self.head = _weight(config.vocab, config.hidden)
        half = torch.arange(config.head_dim // 2) / (config.head_dim // 2)
        angles = torch.arange(config.longest)[:, None] * 10000.0**-half
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, tokens: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """The last hidden state (batch, tokens, hidden) of tokens at positions, both (batch, tokens)."""
        c = self.config
        x = residual = self.embedding[tokens]
        for layer, block in enumerate(self.blocks):
            assert isinstance(block, Block)
            if layer == 0:
                h = portable.rms_norm(x, block.attention_norm)
            else:
                h, residual = portable.fused_add_rms_norm(x, residual, block.attention_norm)
            heads = portable.linear(h, block.qkv).unflatten(-1, (-1, c.head_dim))
            q, k, v = heads.split((c.heads, c.kv_heads, c.kv_heads), 2)
            q, k = portable.rope(q, k, self.cos, self.sin, positions)
            x = portable.linear(attend(layer, q, k, v).flatten(2), block.o)
            h, residual = portable.fused_add_rms_norm(x, residual, block.mlp_norm)
            x = portable.linear(portable.silu_and_mul(portable.linear(h, block.gate_up)), block.down)
        return portable.fused_add_rms_norm(x, residual, self.norm)[0]

    def loss(self, tokens: Tensor) -> Tensor:
        """Mean cross entropy of each next token; the logits are never all in memory."""
        positions = torch.arange(tokens.shape[1] - 1, device=tokens.device).expand(len(tokens), -1)
        h = self(tokens[:, :-1], positions, lambda _, q, k, v: causal(q, k, v))
        return portable.linear_cross_entropy(h.flatten(0, 1), self.head, tokens[:, 1:].flatten())

    def logits(self, h: Tensor) -> Tensor:
        return portable.linear(h, self.head)


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention in which the last query stands at the last key."""
    q, k, v = (each.transpose(1, 2) for each in (q, k, v))
    return portable.attention(q, k, v, causal=True).transpose(1, 2)


def _weight(rows: int, columns: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(rows, columns) * columns**-0.5)

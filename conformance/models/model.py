"""A stack of transformer blocks of one configuration, over the functions of a candidate."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from portable.conformance.models.configs import Config
from portable.conformance.models.functions import Cache, Torch, capped


class Model(nn.Module):
    """Embedding, blocks, last norm and head. The functions are an argument of every call, so that all
    candidates share one set of parameters. These are normal, with results of about unit size; where scores or
    logits are capped, so large that the cap counts."""

    def __init__(self, config: Config, tokens: int, generator: torch.Generator):
        super().__init__()
        self.config = config

        def weight(rows: int, columns: int, scale: float = 1.0) -> nn.Parameter:
            drawn = torch.randn(rows, columns, generator=generator, device=generator.device)
            return nn.Parameter((drawn * (scale / math.sqrt(columns))).to(torch.bfloat16))

        def norm(size: int) -> nn.Parameter:
            drawn = 1 + 0.1 * torch.randn(size, generator=generator, device=generator.device)
            return nn.Parameter((drawn - config.weight_offset).to(torch.bfloat16))

        self.embedding = weight(config.vocab, config.hidden, math.sqrt(config.hidden) * 0.5)
        self.blocks = nn.ModuleList(Block(config, layer, weight, norm) for layer in range(config.layers))
        self.norm = norm(config.hidden)
        self.head = weight(config.vocab, config.hidden, 10.0 if config.final_softcap else 1.0)
        angles = torch.arange(tokens, dtype=torch.float64)[:, None] * config.rope_theta ** (
            -torch.arange(0, config.rotary, 2, dtype=torch.float64) / config.rotary
        )
        for name, table in (("cos", angles.cos()), ("sin", angles.sin())):
            self.register_buffer(name, table.to(generator.device, torch.bfloat16))

    cos: Tensor
    sin: Tensor

    def loss(self, functions: Torch, tokens: Tensor) -> Tensor:
        """Mean cross entropy of each token after the first; tokens is (sequences, length + 1)."""
        positions = torch.arange(tokens.shape[1] - 1, device=tokens.device).expand(len(tokens), -1)
        x = self._hidden(functions, tokens[:, :-1], positions)
        target = tokens[:, 1:].flatten()
        return functions.loss(x.flatten(0, 1), self.head, target, self.config.final_softcap)

    def prefill(self, functions: Torch, tokens: Tensor) -> Tensor:
        """Logits of the last of each sequence's tokens, (sequences, vocabulary); tokens is
        (sequences, length)."""
        positions = torch.arange(tokens.shape[1], device=tokens.device).expand(len(tokens), -1)
        return self._logits(functions, self._hidden(functions, tokens, positions)[:, -1])

    def decode(self, functions: Torch, tokens: Tensor, position: Tensor, caches: list[Cache]) -> Tensor:
        """Logits of one token of each sequence, (sequences, vocabulary). `position` (1,) is its place in the
        caches, where its keys and values are written; the caches end there."""
        slots = functions.slots(position, len(tokens), caches[0][0].shape[1])
        x = self._hidden(functions, tokens[:, None], position.expand(len(tokens), 1), caches, slots)
        return self._logits(functions, x[:, 0])

    def _logits(self, functions: Torch, x: Tensor) -> Tensor:
        return capped(functions.linear(x, self.head), self.config.final_softcap)

    def _hidden(
        self, functions: Torch, tokens: Tensor, positions: Tensor, caches: list[Cache] | None = None,
        slots: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        config = self.config
        residual = functions.embedding(tokens, self.embedding)
        if config.scale_embedding:
            residual = residual * math.sqrt(config.hidden)
        first = self.blocks[0]
        assert isinstance(first, Block)
        x = functions.rms_norm(residual, first.attention_norm, config.eps, config.weight_offset)
        for layer, block in enumerate(self.blocks):
            assert isinstance(block, Block)
            following = self.blocks[layer + 1] if layer + 1 < config.layers else None
            after = following.attention_norm if isinstance(following, Block) else self.norm
            x, residual = block(
                functions, x, residual, after, self.cos, self.sin, positions, caches and caches[layer], slots
            )
        return x


class Block(nn.Module):
    """Attention and gated MLP. A block ends with the norm of the next, so that every addition stands before
    one."""

    def __init__(self, config: Config, layer: int, weight, norm):
        super().__init__()
        self.config, self.window = config, config.window(layer)
        latent, quiet = config.latent, 1 / math.sqrt(2 * config.layers)
        if latent is None:
            rows = (config.heads + 2 * config.kv_heads) * config.head_dim
            self.qkv = weight(rows, config.hidden, config.score_scale)
        else:
            self.q_a = weight(latent.q_rank, config.hidden)
            self.q_a_norm = norm(latent.q_rank)
            self.q_b = weight(config.heads * config.query_dim, latent.q_rank)
            self.kv_a = weight(latent.kv_rank + latent.rope, config.hidden)
            self.kv_a_norm = norm(latent.kv_rank)
            self.kv_b = weight(config.heads * (latent.nope + config.head_dim), latent.kv_rank)
        if config.qk_norm:
            self.q_norm, self.k_norm = norm(config.head_dim), norm(config.head_dim)
        self.attention_norm, self.mlp_norm = norm(config.hidden), norm(config.hidden)
        if config.post_norms:
            self.attention_post_norm, self.mlp_post_norm = norm(config.hidden), norm(config.hidden)
        self.o = weight(config.hidden, config.heads * config.head_dim, quiet)
        self.gate_up = weight(2 * config.intermediate, config.hidden)
        self.down = weight(config.hidden, config.intermediate, quiet)

    def forward(
        self, functions: Torch, x: Tensor, residual: Tensor, after: Tensor, cos: Tensor, sin: Tensor,
        positions: Tensor, cache: Cache | None, slots: Tensor | None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """The normed input of the next block and the residual stream, from those of this one."""
        config = self.config
        norm = (config.eps, config.weight_offset)
        if cache is not None:
            assert slots is not None and config.latent is None
            q, k, v = self._parts(self._joined(functions, x))
            q = functions.rope_and_write(q, k, v, self._norms, cos, sin, positions, config.eps, cache, slots)
            k, v = cache
        else:
            make = self._heads if config.latent is None else self._latent_heads
            q, k, v = make(functions, x, cos, sin, positions)
        scale = 1 / math.sqrt(config.query_dim)
        o = functions.attention(q, k, v, scale, self.window, config.attention_softcap)
        h = functions.linear(o.flatten(2), self.o)
        if config.post_norms:
            h = functions.rms_norm(h, self.attention_post_norm, *norm)
        h, residual = functions.add_rms_norm(h, residual, self.mlp_norm, *norm)
        h = functions.linear(functions.gated_mlp(h, self.gate_up, config.activation), self.down)
        if config.post_norms:
            h = functions.rms_norm(h, self.mlp_post_norm, *norm)
        return functions.add_rms_norm(h, residual, after, *norm)

    def _heads(
        self, functions: Torch, x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        config, qkv = self.config, self._joined(functions, x)
        if self._norms is None:
            return functions.rope_qkv(qkv, config.heads, config.kv_heads, cos, sin, positions)
        q, k, v = self._parts(qkv)
        q, k = functions.qk_norm_rope(q, k, *self._norms, cos, sin, positions, config.eps)
        return q, k, v

    @property
    def _norms(self) -> tuple[Tensor, Tensor] | None:
        return (self.q_norm, self.k_norm) if self.config.qk_norm else None

    def _joined(self, functions: Torch, x: Tensor) -> Tensor:
        """The heads of q, k and v, one behind the other."""
        return functions.linear(x, self.qkv).unflatten(-1, (-1, self.config.head_dim))

    def _parts(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = qkv.split((self.config.heads, self.config.kv_heads, self.config.kv_heads), 2)
        return q, k, v

    def _latent_heads(
        self, functions: Torch, x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        config, latent = self.config, self.config.latent
        assert latent is not None
        low = functions.rms_norm(functions.linear(x, self.q_a), self.q_a_norm, config.eps, 0.0)
        q = functions.linear(low, self.q_b).unflatten(-1, (config.heads, -1))
        low, k_rope = functions.linear(x, self.kv_a).split((latent.kv_rank, latent.rope), -1)
        low = functions.rms_norm(low, self.kv_a_norm, config.eps, 0.0)
        kv = functions.linear(low, self.kv_b).unflatten(-1, (config.heads, -1))
        k, v = kv.split((latent.nope, config.head_dim), -1)
        q, q_rope = q.split((latent.nope, latent.rope), -1)
        q_rope, k_rope = functions.rope(q_rope, k_rope.unsqueeze(2), cos, sin, positions, True)
        k_rope = k_rope.expand(-1, -1, config.heads, -1)
        return torch.cat((q, q_rope), -1), torch.cat((k, k_rope), -1), v

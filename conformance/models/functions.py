"""What a model calls between its parameters: torch's own functions, Liger's, ours, and the float32 reference.

Tensors of heads are (sequences, tokens, heads, columns). Attention is causal, the last query at the last key.
"""

from __future__ import annotations

import contextlib
import functools
import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils.checkpoint import checkpoint

import portable
from portable.conformance.perf import libraries
from portable.dispatch import dispatcher

Cache = tuple[Tensor, Tensor]
"""Keys and values of one layer, (sequences, tokens, key heads, columns)."""


class Torch:
    """torch's fastest functions, as its users write a model."""

    def serving(self, decode: bool) -> contextlib.AbstractContextManager[None]:
        """Around a step without gradients: no kernel in flight writes a weight."""
        return contextlib.nullcontext()

    def embedding(self, tokens: Tensor, weight: Tensor) -> Tensor:
        return functional.embedding(tokens, weight)

    def linear(self, x: Tensor, weight: Tensor) -> Tensor:
        return functional.linear(x, weight)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, offset: float) -> Tensor:
        return functional.rms_norm(x, x.shape[-1:], weight + offset if offset else weight, eps)

    def add_rms_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, eps: float, offset: float
    ) -> tuple[Tensor, Tensor]:
        """The norm of x + residual, and that sum."""
        total = x + residual
        return self.rms_norm(total, weight, eps, offset), total

    def rope(
        self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, interleaved: bool
    ) -> tuple[Tensor, Tensor]:
        """Both rotated by the rows `positions` (sequences, tokens) of the tables."""
        cosine, sine = (table[positions].unsqueeze(2) for table in (cos, sin))
        return _rotated(q, cosine, sine, interleaved), _rotated(k, cosine, sine, interleaved)

    def rope_qkv(
        self, qkv: Tensor, heads: int, kv_heads: int, cos: Tensor, sin: Tensor, positions: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """q and k of a projection's heads [q | k | v], rotated, and v."""
        q, k, v = qkv.split((heads, kv_heads, kv_heads), 2)
        return *self.rope(q, k, cos, sin, positions, False), v

    def qk_norm_rope(
        self, q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, cos: Tensor, sin: Tensor,
        positions: Tensor, eps: float,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        q, k = self.rms_norm(q, q_weight, eps, 0.0), self.rms_norm(k, k_weight, eps, 0.0)
        return self.rope(q, k, cos, sin, positions, False)

    def attention(
        self, q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None, softcap: float | None
    ) -> Tensor:
        if q.shape[1] == 1:
            return self._decode(q, k, v, scale, window, softcap)
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        if softcap is None and (window is None or window >= k.shape[2] - 1):
            o = functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=True)
        elif not q.is_cuda:  # torch's flex attention has no gradient there
            q, k, v = (each.transpose(1, 2) for each in (q, k, v))
            return _with_all_scores(q, k, v, scale, window, softcap)
        else:
            mask = _causal_blocks(q.shape[2], window, q.device)
            o = _flex()(q, k, v, _score_mod(softcap), mask, scale, True)
        return o.transpose(1, 2)

    def _decode(
        self, q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None, softcap: float | None
    ) -> Tensor:
        if window is not None:
            k, v = k[:, -(window + 1) :], v[:, -(window + 1) :]
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        if softcap is None:
            o = functional.scaled_dot_product_attention(q, k, v, scale=scale, enable_gqa=True)
            return o.transpose(1, 2)
        grouped = q.unflatten(1, (k.shape[1], -1)).squeeze(
            3
        )  # (sequences, key heads, query heads of one, columns)
        scores = softcap * torch.tanh((grouped @ k.transpose(2, 3)).float() * (scale / softcap))
        return (torch.softmax(scores, -1).to(q.dtype) @ v).flatten(1, 2).unsqueeze(1)

    def slots(self, position: Tensor, sequences: int, tokens: int) -> Tensor:
        """Where the new keys go in caches of `tokens` each: what all layers share."""
        return position

    def rope_and_write(
        self, q: Tensor, k: Tensor, v: Tensor, norms: tuple[Tensor, Tensor] | None, cos: Tensor, sin: Tensor,
        positions: Tensor, eps: float, caches: Cache, slots: Tensor,
    ) -> Tensor:  # fmt: skip
        """q rotated, normalised first where there are norms' weights; keys, likewise, and values of one token
        of each sequence into the caches, in place."""
        if norms is None:
            q, k = self.rope(q, k, cos, sin, positions, False)
        else:
            q, k = self.qk_norm_rope(q, k, *norms, cos, sin, positions, eps)
        self.write(k, v, caches, slots)
        return q

    def write(self, k: Tensor, v: Tensor, caches: Cache, slots: Tensor) -> None:
        """Keys and values of one token of each sequence into the caches."""
        for cache, new in zip(caches, (k, v), strict=True):
            cache.index_copy_(1, slots, new)

    def gated_mlp(self, x: Tensor, gate_up: Tensor, activation: str) -> Tensor:
        """act(x @ gate.T) * (x @ up.T), the weights one above the other."""
        gate, up = self.linear(x, gate_up).chunk(2, -1)
        return _ACTIVATIONS[activation](gate) * up

    def loss(self, x: Tensor, weight: Tensor, target: Tensor, softcap: float | None) -> Tensor:
        """Mean cross entropy of the logits x @ weight.T, in float32."""
        logits = self.linear(x, weight).float()
        return functional.cross_entropy(capped(logits, softcap), target)


class TorchWithPass(Torch):
    """The same, of a type of its own: what Dynamo has compiled of Torch is not taken for it."""


class Reference(Torch):
    """The same in float32, with all scores of a few heads at a time."""

    def attention(
        self, q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None, softcap: float | None
    ) -> Tensor:
        group = q.shape[2] // k.shape[2]
        parts = [
            checkpoint(_with_all_scores, q[:, :, h * group : (h + 1) * group], k[:, :, h : h + 1],
                       v[:, :, h : h + 1], scale, window, softcap, use_reentrant=False)
            for h in range(k.shape[2])
        ]  # fmt: skip
        return torch.cat([part for part in parts if isinstance(part, Tensor)], 2)


_LOGITS_IN_MEMORY = 2**28
"""So many logits at most, 512 MiB in 16 bits, have memory of their own, which saves time: about what a layer
keeps for the backward pass. More lie in the memory of the head's gradient."""
_CONSTANT_WEIGHT = "skinny_constant_weight"


class Portable(Torch):
    """This package's functions."""

    def serving(self, decode: bool) -> contextlib.AbstractContextManager[None]:
        ops = ("linear", "gated_linear") if decode else ()  # the kernel takes few rows
        return portable.using(
            **{op: _CONSTANT_WEIGHT for op in ops if _CONSTANT_WEIGHT in dispatcher.candidates(op)}
        )

    def embedding(self, tokens: Tensor, weight: Tensor) -> Tensor:
        return portable.embedding(tokens, weight)

    def linear(self, x: Tensor, weight: Tensor) -> Tensor:
        return portable.linear(x, weight)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, offset: float) -> Tensor:
        return portable.rms_norm(x, weight, eps=eps, weight_offset=offset)

    def add_rms_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, eps: float, offset: float
    ) -> tuple[Tensor, Tensor]:
        return portable.fused_add_rms_norm(x, residual, weight, eps=eps, weight_offset=offset)

    def rope(
        self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, interleaved: bool
    ) -> tuple[Tensor, Tensor]:
        return portable.rope(q, k, cos, sin, positions, interleaved=interleaved)

    def rope_qkv(
        self, qkv: Tensor, heads: int, kv_heads: int, cos: Tensor, sin: Tensor, positions: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        if not torch.is_grad_enabled():  # no gradients to join, and nothing keeps qkv for v
            return super().rope_qkv(qkv, heads, kv_heads, cos, sin, positions)
        return portable.rope_qkv(qkv, cos, sin, positions, heads=heads, kv_heads=kv_heads)

    def qk_norm_rope(
        self, q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, cos: Tensor, sin: Tensor,
        positions: Tensor, eps: float,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        return portable.qk_norm_rope(q, k, q_weight, k_weight, cos, sin, positions, eps=eps)

    def attention(
        self, q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None, softcap: float | None
    ) -> Tensor:
        heads = (each.transpose(1, 2) for each in (q, k, v))
        return portable.attention(*heads, causal=True, scale=scale, window=window, softcap=softcap).transpose(
            1, 2
        )

    def slots(self, position: Tensor, sequences: int, tokens: int) -> Tensor:
        return torch.add(position, torch.arange(sequences, device=position.device), alpha=tokens)

    def rope_and_write(
        self, q: Tensor, k: Tensor, v: Tensor, norms: tuple[Tensor, Tensor] | None, cos: Tensor, sin: Tensor,
        positions: Tensor, eps: float, caches: Cache, slots: Tensor,
    ) -> Tensor:  # fmt: skip
        return portable.qk_norm_rope_kv_write(
            q, k, v, cos, sin, *caches, slots[:, None], positions, *(norms or ()), eps=eps
        )

    def gated_mlp(self, x: Tensor, gate_up: Tensor, activation: str) -> Tensor:
        if not torch.is_grad_enabled():
            return portable.gated_linear(x, gate_up, activation)
        both = portable.linear(x, gate_up)  # kept: gated_linear's gradient would make it again
        return portable.silu_and_mul(both) if activation == "silu" else portable.gelu_tanh_and_mul(both)

    def loss(self, x: Tensor, weight: Tensor, target: Tensor, softcap: float | None) -> Tensor:
        fits = len(x) * len(weight) <= _LOGITS_IN_MEMORY
        return portable.linear_cross_entropy(
            x, weight, target, softcap=softcap, chunk_rows=len(x) if fits else None
        )


class BatchInvariant(Portable):
    """The same where a row's bits depend on no other row."""

    def serving(self, decode: bool) -> contextlib.AbstractContextManager[None]:
        return portable.using(batch_invariant=True)


class Liger(Torch):
    """Liger's functions, with the arguments of its own modules; torch's where it has none."""

    def __init__(self) -> None:
        self._ops = libraries.installed("liger_kernel.ops")

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, offset: float) -> Tensor:
        in_place = not offset  # as LigerRMSNorm and its subclass for Gemma have it
        return self._ops.LigerRMSNormFunction.apply(x, weight, eps, offset, _casting(offset), in_place)

    def add_rms_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, eps: float, offset: float
    ) -> tuple[Tensor, Tensor]:
        apply = self._ops.LigerFusedAddRMSNormFunction.apply
        return apply(x, residual, weight, eps, offset, _casting(offset), False)

    def rope(
        self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, interleaved: bool
    ) -> tuple[Tensor, Tensor]:
        if interleaved:
            return super().rope(q, k, cos, sin, positions, interleaved)
        tables = (table[positions] for table in (cos, sin))
        heads = (q.transpose(1, 2), k.transpose(1, 2))
        q, k = self._ops.LigerRopeFunction.apply(*heads, *tables, None, 1, 2 * cos.shape[-1])
        return q.transpose(1, 2), k.transpose(1, 2)

    def gated_mlp(self, x: Tensor, gate_up: Tensor, activation: str) -> Tensor:
        if activation == "silu":
            both = self.linear(x, gate_up)  # its gradient has two dimensions
            return self._ops.LigerFusedGateUpSiLUMulFunction.apply(both.flatten(0, -2)).unflatten(
                0, x.shape[:-1]
            )
        gate, up = (self.linear(x, weight) for weight in gate_up.chunk(2))  # it takes them apart, contiguous
        return self._ops.LigerGELUMulFunction.apply(gate, up)

    def loss(self, x: Tensor, weight: Tensor, target: Tensor, softcap: float | None) -> Tensor:
        apply = self._ops.LigerFusedLinearCrossEntropyFunction.apply
        return apply(x, weight, target, None, None, -100, 0.0, 0.0, "mean", softcap)[0]


_ACTIVATIONS: dict[str, Any] = {
    "silu": functional.silu,
    "gelu_tanh": functools.partial(functional.gelu, approximate="tanh"),
}


def _casting(offset: float) -> str:
    return "gemma" if offset else "llama"


def capped(scores: Tensor, softcap: float | None) -> Tensor:
    """softcap * tanh(scores / softcap), or the scores."""
    return scores if softcap is None else softcap * torch.tanh(scores / softcap)


def _rotated(x: Tensor, cosine: Tensor, sine: Tensor, interleaved: bool) -> Tensor:
    if interleaved:
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack((a * cosine - b * sine, b * cosine + a * sine), -1).flatten(-2)
    a, b = x.chunk(2, -1)
    return torch.cat((a * cosine - b * sine, b * cosine + a * sine), -1)


def _with_all_scores(
    q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None, softcap: float | None
) -> Tensor:
    M, N = q.shape[1], k.shape[1]
    beyond = torch.arange(N, device=q.device) - (torch.arange(M, device=q.device)[:, None] + N - M)
    hidden = beyond > 0 if window is None else (beyond > 0) | (beyond < -window)
    grouped = q.unflatten(2, (k.shape[2], -1))
    scores = capped(torch.einsum("bmhgd,bnhd->bhgmn", grouped, k).float() * scale, softcap)
    p = torch.softmax(scores.masked_fill(hidden, -math.inf), -1).to(q.dtype)
    return torch.einsum("bhgmn,bnhd->bmhgd", p, v).flatten(2, 3)


# torch's attention with softcap or window on a GPU -------------------------------------------------


@functools.cache
def _flex() -> Any:
    return torch.compile(flex_attention)


@functools.cache
def _score_mod(softcap: float | None) -> Any:
    if softcap is None:
        return None
    return lambda score, *_: softcap * torch.tanh(score / softcap)


@functools.cache
def _causal_blocks(tokens: int, window: int | None, device: torch.device) -> Any:
    def seen(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        causal = key <= query
        return causal if window is None else causal & (query - key <= window)

    return create_block_mask(seen, None, None, tokens, tokens, device=str(device))

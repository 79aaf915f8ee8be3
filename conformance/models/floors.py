"""The least that the parts of a step cost: FLOPs and bytes, each operand once through memory."""

from __future__ import annotations

from collections.abc import Mapping

from portable.conformance.models.configs import DECODE, PREFILL, TRAIN, Config, Step

BYTES = 2  # of an element


def floors(config: Config, step: Step, flop_per_s: float, byte_per_s: float) -> dict[str, float]:
    """Microseconds by part, from the roofs that the same run measured: the longer of FLOPs and bytes."""
    work = {TRAIN: train, PREFILL: prefill, DECODE: decode}[step.kind](config, step)
    return {part: 1e6 * max(flops / flop_per_s, size / byte_per_s) for part, (flops, size) in work.items()}


def weights(config: Config) -> int:
    """Elements of the matrices of one layer."""
    if config.latent is None:
        projections = config.hidden * (config.heads + 2 * config.kv_heads) * config.head_dim
    else:
        latent = config.latent
        projections = (
            config.hidden * (latent.q_rank + latent.kv_rank + latent.rope)
            + latent.q_rank * config.heads * config.query_dim
            + latent.kv_rank * config.heads * (latent.nope + config.head_dim)
        )
    return projections + config.hidden * (config.heads * config.head_dim + 3 * config.intermediate)


def decode(config: Config, step: Step) -> Mapping[str, tuple[float, float]]:
    """Weights and cache once through memory; what else there is, is small."""
    matrices = config.layers * weights(config) + config.hidden * config.vocab
    cached = 0.0
    for layer in range(config.layers):
        window = config.window(layer)
        seen = step.tokens if window is None else min(step.tokens, window + 1)
        cached += 2.0 * step.sequences * seen * config.kv_heads * config.head_dim
    return {
        "GEMM": (2.0 * step.sequences * matrices, BYTES * matrices),
        "attention": (2.0 * cached * config.heads / config.kv_heads, BYTES * cached),
    }


def prefill(config: Config, step: Step) -> Mapping[str, tuple[float, float]]:
    """Forward of all tokens, the head's product of the last ones alone. A fused add and norm moves 4 tensors,
    rope reads and writes q and k, a gated activation moves 3 times its result."""
    rows = float(step.sequences * step.tokens)
    products = 2.0 * (rows * config.layers * weights(config) + step.sequences * config.hidden * config.vocab)
    norms = config.layers * (2 + config.post_norms) * 4 + 2
    return {
        "GEMM": (products, 0.0),
        "attention": (_attention(config, step), 0.0),
        "norm": (0.0, BYTES * rows * config.hidden * norms),
        "rotary": (0.0, BYTES * rows * _rotated(config) * 2 * config.layers),
        "activation": (0.0, BYTES * rows * config.intermediate * 3 * config.layers),
        "embedding": (0.0, BYTES * config.hidden * 2 * rows),
    }


def _rotated(config: Config) -> int:
    """Elements of q and k of a token that are rotated."""
    return (config.heads + (1 if config.latent else config.kv_heads)) * config.rotary


def _attention(config: Config, step: Step) -> float:
    """FLOPs of causal attention forward, of all layers."""
    pairs = 0.0
    for layer in range(config.layers):
        window = config.window(layer)
        seen = step.tokens if window is None else min(step.tokens, window + 1)
        pairs += seen * (seen + 1) / 2 + (step.tokens - seen) * seen
    return 2.0 * step.sequences * config.heads * pairs * (config.query_dim + config.head_dim)


def train(config: Config, step: Step) -> Mapping[str, tuple[float, float]]:
    """Forward and backward. Products are made three times, attention's 3.5 times as often as forward; a fused
    add and norm moves 4 tensors in each direction, rope reads and writes q and k in each, a gated activation
    moves 8 times its result, the loss reads the logits and writes their gradient."""
    rows = float(step.sequences * step.tokens)
    matrices = config.layers * weights(config) + config.hidden * config.vocab
    norms = config.layers * (2 + config.post_norms) * 8 + 5
    return {
        "GEMM": (6.0 * rows * matrices, 0.0),
        "attention": (3.5 * _attention(config, step), 0.0),
        "norm": (0.0, BYTES * rows * config.hidden * norms),
        "rotary": (0.0, BYTES * rows * _rotated(config) * 4 * config.layers),
        "activation": (0.0, BYTES * rows * config.intermediate * 8 * config.layers),
        "loss": (0.0, BYTES * rows * config.vocab * 2),
        "embedding": (0.0, BYTES * config.hidden * (3 * rows + config.vocab)),
    }

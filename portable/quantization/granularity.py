"""What of a tensor has a scale of its own, by torchao's names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from portable.errors import ParameterError


@dataclass(frozen=True)
class Granularity:
    """The base of the others."""


@dataclass(frozen=True)
class PerTensor(Granularity):
    """One scale for all of it."""


@dataclass(frozen=True)
class PerRow(Granularity):
    """A scale per row: of activations per token, of a weight (N, K) per output."""


@dataclass(frozen=True)
class PerBlock(Granularity):
    """A scale per block of rows and columns: [1, 128] of activations, [128, 128] of weights."""

    block_size: Sequence[int]

    def __post_init__(self) -> None:
        object.__setattr__(self, "block_size", tuple(self.block_size))


BLOCKS = (PerBlock((1, 128)), PerBlock((128, 128)))
"""Of activations and of weights, as DeepSeek-V3 has them."""


def pair(config: str, given: Any, default: Granularity, blocks: bool) -> tuple[Granularity, Granularity]:
    """The granularities of activations and of weights: one for both, or two. Raises ParameterError."""
    both = (default, default) if given is None else given
    both = tuple(both) if isinstance(both, (list, tuple)) else (both, both)
    plain = (PerTensor(), PerRow())
    if len(both) == 2 and (all(each in plain for each in both) or (blocks and both == BLOCKS)):
        return both
    expected = "PerTensor() or PerRow(), or a pair of them, of activations and of weights"
    if blocks:
        expected += "; or [PerBlock([1, 128]), PerBlock([128, 128])]"
    raise ParameterError(f"quantization.{config}", "granularity", given, expected, hint(*both))


def hint(*given: Any) -> str:
    """What to do where something is torchao's own."""
    theirs = [each for each in given if type(each).__module__.partition(".")[0] == "torchao"]
    name = type(theirs[0]).__name__ if theirs else ""
    return f"That {name} is torchao's: take portable.quantization's" if theirs else ""

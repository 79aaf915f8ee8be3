"""The models, steps and parts of configs.yaml, read and checked."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from portable.errors import listed, nearest
from portable.spec import strict_yaml

FILE = Path(__file__).with_name("configs.yaml")
TRAIN, PREFILL, DECODE = "train", "prefill", "decode"
OTHER = "other"
"""The part of kernels that no pattern names."""


@dataclass(frozen=True)
class Latent:
    """Multi-head latent attention: ranks, and a head's columns without and with rotary embedding."""

    q_rank: int
    kv_rank: int
    nope: int
    rope: int


@dataclass(frozen=True)
class Config:
    """A model's sizes. `windows` is repeated over the layers, 0 is none; the scale of scores is
    1 / sqrt(columns of a query head)."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    activation: str = "silu"
    eps: float = 1e-5
    rope_theta: float = 10000.0
    qk_norm: bool = False
    weight_offset: float = 0.0
    post_norms: bool = False
    scale_embedding: bool = False
    attention_softcap: float | None = None
    final_softcap: float | None = None
    windows: tuple[int, ...] = (0,)
    latent: Latent | None = None
    steps: tuple[str, ...] | None = None

    @property
    def rotary(self) -> int:
        """Columns of a head that are rotated."""
        return self.latent.rope if self.latent else self.head_dim

    @property
    def query_dim(self) -> int:
        return self.latent.nope + self.latent.rope if self.latent else self.head_dim

    @property
    def score_scale(self) -> float:
        """Of queries and of keys: such that a softcap of their scores counts."""
        return 4.0 if self.attention_softcap else 1.0

    def window(self, layer: int) -> int | None:
        """How many keys to the left of its own a query of this layer sees; None: all."""
        size = self.windows[layer % len(self.windows)]
        return size - 1 if size else None

    def takes(self, step: Step) -> bool:
        return self.steps is None or step.name in self.steps


@dataclass(frozen=True)
class Step:
    """A step's kind and size: for `decode`, tokens in the cache with the new one."""

    name: str
    kind: str
    sequences: int
    tokens: int


@functools.cache
def _file() -> Mapping[str, Any]:
    return strict_yaml.load(FILE)


@functools.cache
def models() -> Mapping[str, Config]:
    """By name. Raises ValueError with the model and key."""
    return {name: _config(name, raw) for name, raw in _file()["models"].items()}


@functools.cache
def steps() -> Mapping[str, Step]:
    return {name: Step(name, **raw) for name, raw in _file()["steps"].items()}


@functools.cache
def parts() -> Sequence[tuple[str, re.Pattern[str]]]:
    """Parts of a step and the pattern of their kernels' names, in the order in which they are tried."""
    return tuple((each["part"], re.compile(each["pattern"], re.IGNORECASE)) for each in _file()["parts"])


def part_of(kernel: str) -> str:
    """The part that a kernel belongs to by its name."""
    return next((part for part, pattern in parts() if pattern.search(kernel)), OTHER)


def chosen(known: Mapping[str, Any], text: str | None, option: str) -> list[Any]:
    """The values of the names in `text`, comma separated; all without it. ValueError for an unknown one."""
    names = list(known) if text is None else [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise ValueError(f"{option} {name}: there are {listed(known)}.{nearest(name, known)}")
    return [known[name] for name in names]


def tiny(config: Config, step: Step) -> tuple[Config, Step]:
    """The same model and step so small that a CPU or an emulated GPU runs it: two layers, two heads of
    keys."""
    kv_heads = min(config.kv_heads, 2)
    latent = Latent(q_rank=32, kv_rank=32, nope=16, rope=16) if config.latent else None
    small = replace(
        config, layers=2, hidden=64, heads=min(kv_heads * config.heads // config.kv_heads, 4),
        kv_heads=kv_heads, head_dim=32, intermediate=96, vocab=160, latent=latent,
        windows=tuple(min(each, 8) for each in config.windows),
    )  # fmt: skip
    return small, replace(step, sequences=2, tokens=24)


def _config(name: str, raw: Mapping[str, Any]) -> Config:
    known = {field.name for field in fields(Config)} - {"name"}
    for key in raw:
        if key not in known:
            raise ValueError(f"{FILE.name}: unknown key {key!r} in {name}.{nearest(key, known)}")
    values = dict(raw)
    for key in ("windows", "steps"):
        if key in values:
            values[key] = tuple(values[key])
    if "latent" in values:
        values["latent"] = Latent(**values["latent"])
    config = Config(name, **values)
    if config.heads % config.kv_heads:
        raise ValueError(f"{FILE.name}: heads of {name} are no multiple of kv_heads")
    return config

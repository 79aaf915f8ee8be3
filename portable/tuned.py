"""Configs measured for a card: `backends/<vendor>/tuned.yaml`, and the choice between them.

Entries are asked in order; the first whose op, implementation, architecture and `when` formula match
gives its values over the spec's default. A card without entries of its own takes its nearest
relative's, and `portable.explain` says so.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from portable import strict_yaml
from portable.backend import Backend
from portable.errors import FormulaError, TunedFileError, listed, nearest
from portable.formula import Formula
from portable.plan import Device
from portable.spec import Implementation, Spec

_KEYS = {"op", "implementation", "arch", "when", "config", "source", "date"}


@dataclass(frozen=True)
class Entry:
    """One measured config: for which op, implementation and card, when it applies, where it is from."""

    op: str
    implementation: str
    arch: str
    when: str
    config: Mapping[str, Any]
    source: str
    date: str
    line: int


@dataclass(frozen=True)
class Config:
    """The values an implementation gets, and in one phrase where they came from."""

    values: Mapping[str, Any]
    source: str


@functools.cache
def entries(file: Path) -> tuple[Entry, ...]:
    """The file's entries, validated. Raises TunedFileError with file and line; no file, no entries."""
    if not file.exists():
        return ()
    data = strict_yaml.load(file)
    if (
        not isinstance(data, strict_yaml.Map)
        or data.get("edition") != 1
        or not isinstance(data.get("entries"), list)
    ):
        raise TunedFileError(file, 1, "expected `edition: 1` and a list `entries`")
    found = []
    for raw in data["entries"]:
        if not isinstance(raw, strict_yaml.Map):
            raise TunedFileError(file, data.line_of("entries"), "an entry is a mapping")
        line = raw.line
        for key in raw:
            if key not in _KEYS:
                raise TunedFileError(file, line, f"unknown key {key!r}.{nearest(key, _KEYS)}")
        lacking = _KEYS - {"when"} - set(raw)
        if lacking:
            raise TunedFileError(file, line, f"the entry lacks {listed(sorted(lacking))}")
        if not isinstance(raw["config"], dict):
            raise TunedFileError(file, line, "config is a mapping of tunables")
        found.append(
            Entry(
                str(raw["op"]),
                str(raw["implementation"]),
                str(raw["arch"]),
                str(raw.get("when", "")),
                dict(raw["config"]),
                str(raw["source"]),
                str(raw["date"]),
                line,
            )
        )
    return tuple(found)


@functools.lru_cache(maxsize=1024)
def _formula(text: str, names: tuple[str, ...]) -> Formula:
    return Formula(text, names)


def check(file: Path, entry: Entry, spec: Spec, implementation: Implementation) -> None:
    """The entry's config uses the implementation's tunables and its formula the spec's names."""
    for name, value in entry.config.items():
        legal = implementation.tunables.get(name)
        if legal is None:
            hint = nearest(name, implementation.tunables)
            raise TunedFileError(
                file, entry.line, f"{name!r} is no tunable of {spec.op}.{implementation.name}.{hint}"
            )
        if value not in legal:
            raise TunedFileError(file, entry.line, f"{name}: {value!r} is not one of {listed(legal)}")
    if entry.when:
        try:
            Formula(entry.when, names(spec))
        except FormulaError as error:
            raise TunedFileError(file, entry.line, f"when: {error}") from None


def names(spec: Spec) -> tuple[str, ...]:
    """What a `when` formula may speak of: axes, B, parameters and type variables."""
    return (*spec.axes, "B", *spec.params, *spec.types[0])


def resolve(
    spec: Spec, implementation: Implementation, backend: Backend, device: Device, facts: Mapping[str, Any]
) -> Config:
    """The config for one call; `facts` are the values of `names(spec)`. Never fails for want of one."""
    default = dict(implementation.default)
    if not implementation.tunables:
        return Config(default, "no tunables")
    file = backend.folder / "tuned.yaml"
    for arch in (device.arch, *backend.relatives(device.arch)):
        for entry in entries(file):
            if (entry.op, entry.implementation, entry.arch) != (spec.op, implementation.name, arch):
                continue
            check(file, entry, spec, implementation)
            if entry.when and not _formula(entry.when, names(spec)).evaluate(**facts):
                continue
            where = "tuned for this card" if arch == device.arch else f"nearest card, {arch}"
            return Config({**default, **entry.config}, f"{where} ({entry.source}, {entry.date})")
    return Config(default, "default")

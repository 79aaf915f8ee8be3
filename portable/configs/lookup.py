"""Configs found for a device: the files that hold them, their format, and the choice between them.

Entries are of three kinds. A hand-written one names the source of its config; a measured and a modelled
one, written by `portable tune`, hold their times and the shape class that they were found for. The user's
own file comes before the vendor's `tuned.yaml`; within a file measured entries come first, then modelled
ones, then hand-written ones, which are tried in order. The first whose op, implementation, architecture and
`when` formula match gives its values over the spec's default; but a modelled one gives way to a measured one
of either file, and holds for its own architecture alone. An internal op that takes what its op takes uses
its op's entries. A device without entries takes those of the device nearest to it by features.
"""

from __future__ import annotations

import functools
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from portable.backend import Backend
from portable.configs import shape_class
from portable.errors import FormulaError, SpecError, TunedFileError, listed, nearest
from portable.plan import Device
from portable.spec import registry, strict_yaml
from portable.spec.formula import Formula

if TYPE_CHECKING:
    from portable.spec.model import Implementation, Spec

SCHEMA_VERSIONS = (1, 2)
"""The second has measured and modelled entries."""

_REQUIRED = {"op", "implementation", "arch", "config", "source", "date"}
_KEYS = {*_REQUIRED, "when", "class", "measured", "modelled"}
_TIMES = {"call", "us", "before_us", "default_us", "gain", "trials", "device", "versions"}
_PARTS = {"measured": {*_TIMES, "bits", "multiprocessors"}, "modelled": {*_TIMES, "accuracy"}}
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


@dataclass(frozen=True)
class Times:
    """How a config was found. `call` are the facts of the call that was timed, times are microseconds:
    of this config, of the one that the call took before, and of the spec's default (None where it cannot
    run the call)."""

    call: Mapping[str, Any]
    us: float
    before_us: float
    default_us: float | None

    @property
    def gain(self) -> float:
        """How much faster than before, to three digits."""
        return round(self.before_us / self.us, 3)


@dataclass(frozen=True)
class Measured(Times):
    """Times measured on a device. `bits` says whether the outputs equal the default's, bit for bit."""

    bits: str
    trials: int
    device: str
    multiprocessors: int
    versions: Mapping[str, str]


@dataclass(frozen=True)
class Modelled(Times):
    """Times by an emulated device's timing model, which says in `accuracy` how far it is off; no output was
    checked."""

    accuracy: str
    trials: int
    device: str
    versions: Mapping[str, str]


@dataclass(frozen=True)
class Entry:
    """One config: for which op, implementation and device, when it applies, where it is from."""

    op: str
    implementation: str
    arch: str
    when: str
    config: Mapping[str, Any]
    source: str
    date: str
    line: int
    shape_class: str = ""
    times: Measured | Modelled | None = None
    """None of a hand-written entry."""

    @property
    def measured(self) -> Measured | None:
        return self.times if isinstance(self.times, Measured) else None

    @property
    def modelled(self) -> Modelled | None:
        return self.times if isinstance(self.times, Modelled) else None

    @property
    def kind(self) -> str:
        return "measured" if self.measured else "modelled" if self.modelled else "hand-written"

    @property
    def key(self) -> tuple[str, str, str, str, str]:
        """What a file holds at most one measured, and at most one modelled entry for."""
        return self.op, self.implementation, self.arch, self.shape_class, self.kind


@dataclass(frozen=True)
class Config:
    """The values an implementation gets, and in one phrase where they came from."""

    values: Mapping[str, Any]
    source: str


class Entries(tuple[Entry, ...]):
    """A file's entries; those of an implementation are held against its spec once."""

    file: Path
    _held: dict[tuple[int, str], tuple[Spec, dict[str, list[Entry]]]]

    def of(self, spec: Spec, implementation: Implementation) -> Mapping[str, list[Entry]]:
        """The implementation's entries by architecture, in the order in which they are tried.
        Raises TunedFileError for one that does not fit the spec."""
        name = (id(spec), implementation.name)
        if name not in self._held:
            found: dict[str, list[Entry]] = {}
            for entry in sorted(self, key=lambda each: _ORDER.index(each.kind)):
                if (entry.op, entry.implementation) == (spec.op, implementation.name):
                    check(self.file, entry, spec, implementation)
                    found.setdefault(entry.arch, []).append(entry)
            self._held[name] = (spec, found)
        return self._held[name][1]


_ORDER = ("measured", "modelled", "hand-written")


# Files ------------------------------------------------------------------------------------------------


def user_file(vendor: str) -> Path:
    """The user's own entries: `<vendor>.yaml` in `PORTABLE_TUNED_DIR`, else in `portable/tuned/` of
    `$XDG_CONFIG_HOME`, else of `~/.config`."""
    chosen = os.environ.get("PORTABLE_TUNED_DIR")
    if chosen:
        return Path(chosen) / f"{vendor}.yaml"
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "portable" / "tuned" / f"{vendor}.yaml"


def files(backend: Backend) -> tuple[Path, Path]:
    """Where configs are looked for: the user's file, then the vendor's."""
    return user_file(backend.name), backend.folder / "tuned.yaml"


@functools.cache
def entries(file: Path) -> Entries:
    """The file's entries, validated. Raises TunedFileError with file and line; no file, no entries.

    A process reads a file once: a config does not change under a running program.
    """
    return parse(file, None)


def parse(file: Path, text: str | None) -> Entries:
    """The entries in `text`, which is or will be in `file`; None: the file's."""
    if text is None and not file.exists():
        return _entries(file, ())
    try:
        data = strict_yaml.load(file if text is None else text, str(file))
    except SpecError as error:
        raise TunedFileError(file, getattr(error, "line", None), getattr(error, "problem", "")) from None
    if isinstance(data, strict_yaml.Map) and "edition" in data:
        raise TunedFileError(file, data.line_of("edition"), "'edition' is now called schema_version")
    if not isinstance(data, strict_yaml.Map) or data.get("schema_version") not in SCHEMA_VERSIONS:
        raise TunedFileError(
            file, 1, f"expected `schema_version: {SCHEMA_VERSIONS[-1]}` and a list `entries`"
        )
    for key in data:
        if key not in ("schema_version", "entries"):
            raise TunedFileError(file, data.line_of(key), f"unknown key {key!r}")
    listed_there = data.get("entries", ()) or strict_yaml.List(1)
    if "entries" not in data or not isinstance(listed_there, strict_yaml.List):
        raise TunedFileError(file, data.line_of("entries"), "expected a list `entries`")
    found: list[Entry] = []
    lines: dict[tuple[str, str, str, str, str], int] = {}
    for index, raw in enumerate(listed_there):
        line = listed_there.line_of(index)
        for entry in _of_each_op(file, line, raw):
            if entry.times is not None:
                if data["schema_version"] < 2:
                    raise TunedFileError(file, line, f"{entry.kind} entries need `schema_version: 2`")
                if entry.key in lines:
                    words = f"the class is {entry.kind} already on line {lines[entry.key]}"
                    raise TunedFileError(file, line, words)
                lines[entry.key] = line
            found.append(entry)
    return _entries(file, found)


def _entries(file: Path, found: Iterable[Entry]) -> Entries:
    made = Entries(found)
    made.file, made._held = file, {}
    return made


def _of_each_op(file: Path, line: int, raw: Any) -> list[Entry]:
    """An entry names one op; a hand-written one may name several that take the same config."""
    ops = raw.get("op") if isinstance(raw, strict_yaml.Map) else None
    if not isinstance(ops, list):
        return [_entry(file, line, raw)]
    for kind in _PARTS:
        if kind in raw:
            raise TunedFileError(file, raw.line_of("op"), f"a {kind} entry is of one op")
    return [replace(_entry(file, line, raw), op=str(op)) for op in ops]


def _entry(file: Path, line: int, raw: Any) -> Entry:
    if not isinstance(raw, strict_yaml.Map):
        raise TunedFileError(file, line, "an entry is a mapping")
    for key in raw:
        if key not in _KEYS:
            raise TunedFileError(file, raw.line_of(key), f"unknown key {key!r}.{nearest(key, _KEYS)}")
    lacking = _REQUIRED - set(raw)
    if lacking:
        raise TunedFileError(file, line, f"the entry lacks {listed(sorted(lacking))}")
    if not isinstance(raw["config"], dict):
        raise TunedFileError(file, raw.line_of("config"), "config is a mapping of tunables")
    times, kinds = None, [kind for kind in _PARTS if kind in raw]
    if len(kinds) != ("class" in raw):
        words = "`class` and one of `measured`, `modelled` are given together or not at all"
        raise TunedFileError(file, line, words)
    for kind in kinds:
        if not _DATE.fullmatch(str(raw["date"])):
            raise TunedFileError(file, raw.line_of("date"), f"date: {raw['date']!r} is not like 2026-11-21")
        times = _times(file, raw.line_of(kind), kind, raw[kind])
    return Entry(
        str(raw["op"]),
        str(raw["implementation"]),
        str(raw["arch"]),
        str(raw.get("when") or ""),
        MappingProxyType(dict(raw["config"])),
        str(raw["source"]),
        str(raw["date"]),
        line,
        str(raw.get("class", "")),
        times,
    )


def _times(file: Path, line: int, kind: str, raw: Any) -> Measured | Modelled:
    """The `measured` or `modelled` part of an entry; what can be computed from the rest of it must agree."""

    def wrong(text: str) -> TunedFileError:
        return TunedFileError(file, line, f"{kind}: {text}")

    if not isinstance(raw, strict_yaml.Map):
        raise wrong("expected a mapping")
    for key in raw:
        if key not in _PARTS[kind]:
            raise wrong(f"unknown key {key!r}.{nearest(key, _PARTS[kind])}")
    lacking = _PARTS[kind] - set(raw)
    if lacking:
        raise wrong(f"lacks {listed(sorted(lacking))}")
    for key in ("us", "before_us", "default_us", "gain"):
        value = raw[key]
        positive = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf
        if not positive and not (key == "default_us" and value is None):
            raise wrong(f"{key}: {value!r} is not a positive number")
    for key in ("trials", "multiprocessors"):
        if key in raw and (not isinstance(raw[key], int) or isinstance(raw[key], bool) or raw[key] < 1):
            raise wrong(f"{key}: {raw[key]!r} is not a number from 1 on")
    if kind == "measured" and raw["bits"] not in ("same", "differ", "unknown"):
        raise wrong(f"bits: {raw['bits']!r} is not one of same, differ, unknown")
    for key in ("call", "versions"):
        if not isinstance(raw[key], dict) or not raw[key]:
            raise wrong(f"{key}: expected a mapping")
    call, versions = (MappingProxyType(dict(raw[key])) for key in ("call", "versions"))
    default = None if raw["default_us"] is None else float(raw["default_us"])
    times = call, float(raw["us"]), float(raw["before_us"]), default
    versions = MappingProxyType({name: str(text) for name, text in versions.items()})
    trials, device = raw["trials"], str(raw["device"])
    if kind == "measured":
        found = Measured(*times, raw["bits"], trials, device, raw["multiprocessors"], versions)
    else:
        found = Modelled(*times, str(raw["accuracy"]), trials, device, versions)
    if found.gain != raw["gain"]:
        raise wrong(f"gain: {raw['gain']!r} is not before_us / us, which is {found.gain}")
    return found


# Entries and specs ------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=4096)
def _formula(text: str, names: tuple[str, ...]) -> Formula:
    return Formula(text, names)


def check(file: Path, entry: Entry, spec: Spec, implementation: Implementation) -> None:
    """The entry's config uses the implementation's tunables, its formula the spec's names, and a measured
    or modelled one's class and formula are those of the call that was timed."""
    for name, value in entry.config.items():
        legal = implementation.tunables.get(name)
        if legal is None:
            hint = nearest(name, implementation.tunables)
            raise TunedFileError(
                file, entry.line, f"{name!r} is no tunable of {spec.op}.{implementation.name}.{hint}"
            )
        if value not in legal or isinstance(value, bool) is not isinstance(legal[legal.index(value)], bool):
            raise TunedFileError(file, entry.line, f"{name}: {value!r} is not one of {listed(legal)}")
    if entry.times is not None:
        _check_class(file, entry, spec, implementation)
    if entry.when:
        try:
            _formula(entry.when, names(spec))
        except FormulaError as error:
            raise TunedFileError(file, entry.line, f"when: {error}") from None


def _check_class(file: Path, entry: Entry, spec: Spec, implementation: Implementation) -> None:
    assert entry.times is not None
    call, wanted = entry.times.call, shape_class.class_names(spec, implementation)
    if tuple(call) != wanted:
        raise TunedFileError(
            file,
            entry.line,
            f"{entry.kind}: call names {listed(call)}; the class is decided by {listed(wanted)}",
        )
    for name, value in call.items():
        if name in spec.params and not spec.params[name].accepts(value):
            raise TunedFileError(file, entry.line, f"{entry.kind}: {name}: {value!r} is no value of it")
        if (name in spec.axes or name == "B") and (not isinstance(value, int) or isinstance(value, bool)):
            raise TunedFileError(file, entry.line, f"{entry.kind}: {name}: {value!r} is no size")
    for what, found, computed in (
        ("class", entry.shape_class, shape_class.class_name(spec, call)),
        ("when", entry.when, shape_class.formula(spec, call)),
    ):
        if found != computed:
            raise TunedFileError(
                file, entry.line, f"{what}: {found!r} is not that of the {entry.kind} call, {computed!r}"
            )


def names(spec: Spec) -> tuple[str, ...]:
    """What a `when` formula may speak of."""
    return shape_class.fact_names(spec)


# The choice -------------------------------------------------------------------------------------------

_NOTHING: Mapping[tuple[str, str], Mapping[str, Any]] = MappingProxyType({})
_forced: ContextVar[Mapping[tuple[str, str], Mapping[str, Any]]] = ContextVar("forced", default=_NOTHING)


@contextmanager
def forcing(op: str, implementation: str, values: Mapping[str, Any]) -> Iterator[None]:
    """Within the block the implementation gets these values instead of the files'; for measuring."""
    token = _forced.set({**_forced.get(), (op, implementation): values})
    try:
        yield
    finally:
        _forced.reset(token)


def resolve(
    spec: Spec,
    implementation: Implementation,
    backend: Backend,
    device: Device,
    facts: Mapping[str, Any],
    *,
    tuned: bool = True,
) -> Config:
    """The config for one call; `facts` are the values of `names(spec)`. The default where no entry matches.
    With `tuned=False`, as if nothing had been measured or modelled."""
    default = dict(implementation.default)
    if not implementation.tunables:
        return Config(default, "no tunables")
    forced = _forced.get().get((spec.op, implementation.name))
    if forced is not None:
        return Config(dict(forced), "under test")
    found = [entries(file).of(spec, implementation) for file in files(backend)]
    if not any(found) and (main := _main_of(spec, implementation)) is not None:
        found = [entries(file).of(*main) for file in files(backend)]
    for arch in _arches(found, backend, device):
        there = [entry for by_arch in found for entry in by_arch.get(arch, ()) if tuned or not entry.times]
        matching = (entry for entry in there if _matches(entry, spec, facts, device))
        first = next(matching, None)
        if first is not None and first.modelled:
            first = next((entry for entry in matching if entry.measured), first)
        if first is not None:
            return Config({**default, **first.config}, _words(first, device))
    return Config(default, "default")


def _matches(entry: Entry, spec: Spec, facts: Mapping[str, Any], device: Device) -> bool:
    """Whether the entry may serve the call; what a model says of one GPU is no evidence for another."""
    if entry.modelled and entry.arch != device.arch:
        return False
    return not entry.when or bool(_formula(entry.when, names(spec)).evaluate(**facts))


def _main_of(spec: Spec, implementation: Implementation) -> tuple[Spec, Implementation] | None:
    """For an internal op that has no entries: the op of its folder and its implementation of that
    name, where both take the same arguments and configs."""
    file = spec.folder / "spec.yaml"
    if file == spec.file or registry.op_folders().get(spec.folder.name) != file:
        return None
    main = registry.spec(spec.folder.name)
    same = main.implementation(implementation.name)
    if same is None or (main.axes, main.types, main.inputs) != (spec.axes, spec.types, spec.inputs):
        return None
    alike = main.params.keys() == spec.params.keys() and same.tunables == implementation.tunables
    return (main, same) if alike else None


def _arches(found: Iterable[Mapping[str, list[Entry]]], backend: Backend, device: Device) -> list[str]:
    """The architectures that have entries: the device's own, then the nearest by features."""
    there = [arch for by_arch in found for arch in by_arch]
    if all(arch == device.arch for arch in there):
        return [device.arch]
    near = [device.arch, *relatives(backend, device)]
    unknown = [arch for arch in dict.fromkeys(there) if arch not in near]
    return [arch for arch in near if arch in there] + unknown


def relatives(backend: Backend, device: Device) -> list[str]:
    """The vendor's other architectures, nearest first: by generation, multiprocessors, shared memory, L2."""
    near: dict[str, float] = {}
    for other in backend.known():
        if other.arch != device.arch:
            apart = _apart(backend, device, other)
            near[other.arch] = min(apart, near.get(other.arch, math.inf))
    return sorted(near, key=lambda arch: near[arch])


def _apart(backend: Backend, device: Device, other: Device) -> float:
    """How unlike two devices are. A generation (compute capability 8.0 and 9.0) weighs as much as a factor
    of four in shared memory or of sixteen in multiprocessors; a config that another width of a warp was
    chosen for, or more shared memory than there is, comes last."""

    def factor(one: int, two: int) -> float:
        return abs(math.log2(one / two)) if one > 0 and two > 0 else 0.0

    apart = 2.0 * abs(backend.generation(device.arch) - backend.generation(other.arch))
    apart += factor(device.shared_memory, other.shared_memory)
    apart += factor(device.multiprocessors, other.multiprocessors) / 2
    apart += factor(device.l2_bytes, other.l2_bytes) / 4
    apart += 4.0 * (other.shared_memory > device.shared_memory)
    return apart + 8.0 * (other.warp_size != device.warp_size)


def _words(entry: Entry, device: Device) -> str:
    if entry.modelled is not None:
        return _words_of_model(entry, entry.modelled)
    measured = entry.measured
    if entry.arch != device.arch:
        where = f"no config for {device.arch}; from the device nearest by features, {entry.arch}"
    elif measured is not None and measured.multiprocessors != device.multiprocessors:
        where = f"tuned for {measured.device} of this architecture"
    else:
        where = "tuned for this device"
    if measured is None:
        return f"{where} ({entry.source}, {entry.date})"
    bits = {"same": "", "differ": ", bits differ from the default's", "unknown": ""}[measured.bits]
    times = f"{measured.gain:.2f} times the speed before"
    return f"{where} (measured on {measured.device} at {_call(measured)}: {times}{bits}; {entry.date})"


def _words_of_model(entry: Entry, modelled: Modelled) -> str:
    times = f"{modelled.gain:.2f} times the speed before, modelled {modelled.accuracy}"
    where = f"{modelled.device} at {_call(modelled)}"
    return f"tuned by the timing model, not measured ({where}: {times}; {entry.date})"


def _call(times: Times) -> str:
    return " ".join(f"{name}={value}" for name, value in times.call.items())

"""What was tuned into a file of tuned configs: merged as text, so that nothing else in it changes.

A measured entry takes the place of the measured one for the same op, implementation, architecture and class,
a modelled one that of the modelled one; without one it comes before all others. The file's folder is locked
meanwhile; the new text is read and compared with the old before it is renamed over it, so that a reader sees
the one or the other, whole.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from portable.configs import lookup
from portable.errors import TunedFileError
from portable.runtime import files

HEAD = """# Configs that `portable tune` measured on this machine, or modelled where an entry says so
# (docs/tuning.md). They come before those that the package ships. Deleting the file, or an entry, is safe.
schema_version: 2
entries:
"""
SOURCE = "portable tune"
MODEL_SOURCE = "portable tune --by model"
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_WORDS = {"null", "true", "false", "yes", "no", "on", "off"}


@dataclass(frozen=True)
class _Item:
    """An entry's position: its first and last line, and the column after its end in the last."""

    first: int
    last: int
    end: int


def render(entry: lookup.Entry, indent: str = "  ") -> str:
    """The entry as text for a file."""
    found = entry.times
    assert found is not None
    times: dict[str, Any] = {
        "call": dict(found.call), "us": found.us, "before_us": found.before_us,
        "default_us": found.default_us, "gain": found.gain,
    }  # fmt: skip
    if isinstance(found, lookup.Measured):
        times |= {"bits": found.bits, "trials": found.trials, "device": found.device}
        times |= {"multiprocessors": found.multiprocessors}
    else:
        times |= {"accuracy": found.accuracy, "trials": found.trials, "device": found.device}
    times |= {"versions": dict(found.versions)}
    head = _flow({"op": entry.op, "implementation": entry.implementation, "arch": entry.arch})
    lines = [
        f"- {head[:-1]}, class: {_scalar(entry.shape_class)},",
        f"   when: {_scalar(entry.when)},",
        f"   config: {_flow(entry.config)},",
        f"   {entry.kind}: {_flow(times)},",
        f"   source: {_scalar(entry.source)}, date: {entry.date}}}",
    ]
    return "".join(f"{indent}{line}\n" for line in lines)


def _flow(values: Mapping[str, Any]) -> str:
    parts = [
        f"{_scalar(name)}: {_flow(value) if isinstance(value, Mapping) else _scalar(value)}"
        for name, value in values.items()
    ]
    return "{" + ", ".join(parts) + "}"


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        plain = _PLAIN.fullmatch(value) and value.lower() not in _WORDS
        return value if plain else json.dumps(value)
    return json.dumps(value)


def merge(file: Path, made: Sequence[lookup.Entry]) -> None:
    """Put measured and modelled entries into `file`, which is made where it is not there yet.

    Raises TunedFileError, and leaves the file as it is, where it is damaged or would become so, and OSError
    where it cannot be written.
    """
    target = Path(os.path.realpath(file))
    target.parent.mkdir(parents=True, exist_ok=True)
    with _locked(target.parent):
        old = target.read_text(encoding="utf-8") if target.exists() else HEAD
        new = merged(file, old, made)
        if new != old:
            files.write_text(target, new)
    lookup.entries.cache_clear()


def merged(file: Path, old: str, made: Sequence[lookup.Entry]) -> str:
    """The text `old` of `file` with the entries `made` in it."""
    text = old if old.endswith("\n") or not old else old + "\n"
    before = lookup.parse(file, text)
    for entry in made:
        text = _with(file, text, entry)
    after = lookup.parse(file, text)
    keys = {entry.key for entry in made}

    def others(found: lookup.Entries) -> list[lookup.Entry]:
        return [replace(each, line=0) for each in found if each.times is None or each.key not in keys]

    mine = {each.key: replace(each, line=0) for each in after if each.times is not None}
    wanted = {entry.key: replace(entry, line=0) for entry in made}
    if others(before) != others(after) or any(mine.get(key) != entry for key, entry in wanted.items()):
        raise TunedFileError(file, None, "entries cannot be merged into it as text (docs/tuning.md)")
    return text


def _with(file: Path, text: str, entry: lookup.Entry) -> str:
    """The text with one entry more, or another in its place."""
    text = re.sub(r"(?m)^schema_version:[ \t]*1\b", "schema_version: 2", text)
    text = re.sub(r"(?m)^entries:[ \t]*\[[ \t]*\]", "entries:", text)
    lines = text.splitlines(keepends=True)
    items = _items(text)
    stand = {each.line: each for each in lookup.parse(file, text)}  # of several ops, one
    for item, there in zip(items, stand.values(), strict=True):
        if there.times is not None and there.key == entry.key:
            indent = lines[item.first][: len(lines[item.first]) - len(lines[item.first].lstrip(" "))]
            kept = [f"{indent}{note}\n" for line in lines[item.first : item.last] for note in _comments(line)]
            tail = lines[item.last][item.end :]
            body = "".join(kept) + render(entry, indent).rstrip("\n") + tail
            return "".join([*lines[: item.first], body, *lines[item.last + 1 :]])
    place = next((number for number, line in enumerate(lines) if line.startswith("entries:")), None)
    if place is None or lines[place].split("#")[0].strip() != "entries:":
        raise TunedFileError(file, None, "expected a line `entries:`, and the entries below it")
    first = lines[items[0].first] if items else "  "
    indent = first[: len(first) - len(first.lstrip(" "))]
    return "".join([*lines[: place + 1], render(entry, indent), *lines[place + 1 :]])


def _comments(line: str) -> list[str]:
    """The comment at the end of a line, if there is one."""
    quote = ""
    for at, char in enumerate(line):
        if quote:
            closes = char == quote and (quote == "'" or line[at - 1] != "\\")
            quote = "" if closes else quote
        elif char in "\"'":
            quote = char
        elif char == "#" and (at == 0 or line[at - 1].isspace()):
            return [line[at:].rstrip()]
    return []


def _items(text: str) -> list[_Item]:
    """The items of the list `entries`, by the marks of YAML's own parser."""
    import yaml

    lines = text.splitlines()
    found: list[_Item] = []
    depth, key, listing, start = 0, "", False, None
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
            depth += 1
            if depth == 2:
                listing = key == "entries" and isinstance(event, yaml.SequenceStartEvent)
            elif depth == 3 and listing:
                start = event.start_mark.line
        elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
            if depth == 3 and listing and start is not None:
                last, end = event.end_mark.line, event.end_mark.column
                if event.start_mark.index == event.end_mark.index:  # a block ends where the next token starts
                    last -= 1
                    while last > start and lines[last].lstrip()[:1] in ("", "#"):
                        last -= 1
                    end = len(lines[last])
                found.append(_Item(start, last, end))
            depth -= 1
            listing = listing and depth >= 2
        elif depth == 1 and isinstance(event, yaml.ScalarEvent):
            key = event.value
    return found


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One writer of the folder at a time, in this process or another."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def place(vendor: str, folder: Path) -> Path:
    """Where results go by default: the vendor's file in a checkout, else the user's."""
    file = folder / "tuned.yaml"
    installed = {"site-packages", "dist-packages"} & set(file.parts)
    writable = os.access(file if file.exists() else folder, os.W_OK) and os.access(folder, os.W_OK)
    return file if writable and not installed else lookup.user_file(vendor)

"""YAML without its surprises: one document of plain data, every refusal with its file and line.

The data is built from libyaml's events, never through constructors, tags or recursion, so a hostile
file can cost no more than its size. What YAML 1.1 would silently turn into something else (`on`,
`010`, a duplicate key) is refused; `1e-6` is a number, as everybody who writes it means.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

from portable.errors import SpecError

MAX_BYTES = 256 * 1024
MAX_DEPTH = 32
MAX_DIGITS = 18

_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+)([eE][-+]?[0-9]+)?")
_OTHER_BASE = re.compile(r"[-+]?0[0-9_]+|[-+]?0[xXoObB][0-9a-fA-F_]+")
_CONSTANTS = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    "true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False,
    ".inf": math.inf, "+.inf": math.inf, "-.inf": -math.inf,
}  # fmt: skip
_OLD_BOOLEANS = {"yes", "no", "on", "off"}


class Map(dict[str, Any]):
    """A mapping that knows the line it starts on and the line of each key."""

    def __init__(self, line: int) -> None:
        super().__init__()
        self.line = line
        self.lines: dict[str, int] = {}

    def line_of(self, key: str) -> int:
        return self.lines.get(key, self.line)


class List(list[Any]):
    """A list that knows the line it starts on and the line of each item."""

    def __init__(self, line: int) -> None:
        super().__init__()
        self.line = line
        self.lines: list[int] = []

    def line_of(self, index: int) -> int:
        return self.lines[index] if index < len(self.lines) else self.line


class _Building:
    """A collection under construction; for a mapping, `key` is the key that waits for its value."""

    __slots__ = ("key", "target")

    def __init__(self, target: Map | List) -> None:
        self.target = target
        self.key: str | None = None


def load(source: Path | str, name: str | None = None) -> Any:
    """Reads one YAML document from a path, or from text when `source` is a string.

    Returns dicts (`Map`), lists (`List`), strings, ints, floats, booleans and None. Raises SpecError
    with `name` (default: the path) and the line for whatever is not plain data.
    """
    if isinstance(source, Path):
        label = name or str(source)
        try:
            with source.open("rb") as stream:
                raw = stream.read(MAX_BYTES + 1)
        except OSError as error:
            raise SpecError(label, None, f"cannot be read: {error.strerror}") from error
    else:
        label = name or "<text>"
        raw = source.encode("utf-8", "surrogatepass")
    if len(raw) > MAX_BYTES:
        raise SpecError(label, None, f"the file is larger than {MAX_BYTES // 1024} KiB")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise SpecError(label, line, "the file is not UTF-8") from error
    return _build(text, label)


def _build(text: str, name: str) -> Any:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    stack: list[_Building] = []
    root: Any = None
    documents = 0
    line = 1

    def place(value: Any, line: int) -> None:
        nonlocal root
        if not stack:
            root = value
            return
        top = stack[-1]
        if isinstance(top.target, List):
            top.target.append(value)
            top.target.lines.append(line)
        elif top.key is None:
            if not isinstance(value, str):
                shown = type(value).__name__ if isinstance(value, (dict, list)) else repr(value)
                raise SpecError(name, line, f"a key must be a string, not {shown}; quote it")
            if value in top.target:
                raise SpecError(
                    name, line, f"the key {value!r} appears twice; first on line {top.target.lines[value]}"
                )
            top.key = value
            top.target.lines[value] = line
        else:
            top.target[top.key] = value
            top.key = None

    try:
        for event in yaml.parse(text, Loader=loader):
            line = event.start_mark.line + 1
            if getattr(event, "anchor", None) is not None:
                kind = "aliases" if isinstance(event, yaml.AliasEvent) else "anchors"
                raise SpecError(name, line, f"{kind} are not allowed; write the value out")
            if getattr(event, "tag", None) is not None:
                raise SpecError(name, line, f"the tag {event.tag!r} is not allowed; write plain data")
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise SpecError(name, line, "a second document; one file holds one document")
            elif isinstance(event, yaml.ScalarEvent):
                value = event.value if event.style else _scalar(event.value, name, line)
                place(value, line)
            elif isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
                if len(stack) >= MAX_DEPTH:
                    raise SpecError(name, line, f"nested deeper than {MAX_DEPTH} levels")
                if stack and isinstance(stack[-1].target, Map) and stack[-1].key is None:
                    raise SpecError(name, line, "a key must be a string, not a collection")
                target = Map(line) if isinstance(event, yaml.MappingStartEvent) else List(line)
                stack.append(_Building(target))
            elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
                done = stack.pop().target
                place(done, done.line)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = mark.line + 1 if mark else line
        raise SpecError(name, at, f"not YAML: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        reason = getattr(error, "reason", None) or str(error).splitlines()[0]
        position = getattr(error, "position", None)
        at = text.count("\n", 0, position) + 1 if isinstance(position, int) else line
        raise SpecError(name, at, f"not YAML: {reason}") from error
    return root


def _scalar(text: str, name: str, line: int) -> Any:
    """The value of an unquoted scalar."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if text.lower() in _OLD_BOOLEANS:
        problem = f"{text!r} is a boolean to some readers; write true or false, or quote it"
        raise SpecError(name, line, problem)
    if _INT.fullmatch(text):
        if len(text) > MAX_DIGITS:
            raise SpecError(name, line, f"an integer of more than {MAX_DIGITS} digits")
        return int(text)
    if _OTHER_BASE.fullmatch(text):
        problem = f"{text!r} is a number in another base to some readers; write it in decimal"
        raise SpecError(name, line, problem)
    if _FLOAT.fullmatch(text):
        value = float(text)
        if math.isinf(value):
            raise SpecError(name, line, f"{text[:40]!r} does not fit a float")
        return value
    return text

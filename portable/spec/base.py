"""What the readers of a spec file share: values of a given kind, and errors with file and line."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from portable.dtypes import DTYPES
from portable.errors import FormulaError, SpecError, listed, nearest
from portable.spec.formula import Formula
from portable.spec.model import Entry
from portable.spec.schema import KINDS, RENAMED, TABLES
from portable.spec.strict_yaml import Map

PACKAGE = Path(__file__).resolve().parent.parent / "kernels"
_ENTRY = re.compile(r"([\w./-]+\.py):([A-Za-z_]\w*)", re.ASCII)
_TORCH = re.compile(r"(torch(?:\.[A-Za-z_]\w*)*)\.([A-Za-z_]\w*)", re.ASCII)


class BaseReader:
    """Reads values of one file. With `files=False` the files that it names need not exist."""

    def __init__(self, path: Path, files: bool) -> None:
        self.path = path
        self.files = files

    def fail(self, line: int, message: str) -> SpecError:
        return SpecError(self.path, line, message)

    def map(self, value: Any, line: int, what: str) -> Map:
        if not isinstance(value, Map):
            raise self.fail(line, f"{what} must be a mapping, not {value!r}")
        return value

    def keys(self, value: Any, table: str, what: str, line: int) -> Map:
        """`value` as a mapping whose keys and kinds of value are those of one table of the schema."""
        found = self.map(value, line, what)
        legal = TABLES[table]
        for key, item in found.items():
            if key not in legal:
                if key in RENAMED.get(table, ()):
                    renamed = RENAMED[table][key]
                    raise self.fail(found.line_of(key), f"{key!r} in {what} is now called {renamed}")
                hint = nearest(key, legal) or f" Legal are {listed(legal)}."
                raise self.fail(found.line_of(key), f"unknown key {key!r} in {what}.{hint}")
            kind = legal[key].kind
            if kind == "any":
                continue
            types, words = KINDS[kind]
            if not isinstance(item, types) or (isinstance(item, bool) and kind != "bool"):
                raise self.fail(found.line_of(key), f"{key!r} of {what} must be {words}, not {item!r}")
        for name, each in legal.items():
            if each.required and name not in found:
                raise self.fail(found.line, f"{what} lacks the key {name!r}")
        return found

    def word(self, found: Map, key: str, legal: Iterable[str], default: str | None = None) -> Any:
        """The value of `key`, which must be one of a few words."""
        value = found.get(key, default)
        words = tuple(legal)
        if value not in words:
            hint = nearest(str(value), words)
            raise self.fail(found.line_of(key), f"{key!r} is {value!r}; legal are {listed(words)}.{hint}")
        return value

    def strings(self, value: Any, line: int, what: str) -> tuple[str, ...]:
        """A non-empty list of strings, or one string."""
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, list) or not items or not all(isinstance(item, str) for item in items):
            raise self.fail(line, f"{what} must be a list of strings, not {value!r}")
        return tuple(items)

    def identifier(self, name: str, line: int, what: str) -> str:
        if not name.isidentifier() or not name.isascii() or keyword.iskeyword(name) or name.startswith("_"):
            raise self.fail(line, f"{what} {name!r} is not a usable Python name")
        return name

    def formula(self, value: Any, names: Iterable[str], line: int) -> Formula:
        try:
            return Formula(str(value), names)
        except FormulaError as error:
            raise self.fail(line, str(error)) from None

    def file(self, text: str, line: int) -> Path:
        """A file named relative to the op's folder; it may be in a neighbouring op's folder. `../_lib` is
        this package's where the folder of the op has none beside it."""
        root = self.path.parent.parent.resolve()
        try:
            file = (self.path.parent / text).resolve()
            there = file.is_file()
        except (OSError, RuntimeError, ValueError) as error:  # too long, a loop of links, a NUL
            reason = getattr(error, "strerror", None) or error
            raise self.fail(line, f"{text!r} is no path: {reason}") from None
        if text.startswith("../_lib/") and not (root / "_lib").is_dir():
            root, file = PACKAGE.resolve(), (PACKAGE / text.removeprefix("../")).resolve()
            there = file.is_file()
        if Path(text).is_absolute() or not file.is_relative_to(root):
            raise self.fail(line, f"{text!r} is outside the folder of kernels")
        if self.files and not there:
            folder = self.path.parent
            known = sorted(str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_file())
            raise self.fail(line, f"there is no file {text!r}.{nearest(text, known)}")
        return file

    def entry(self, text: str, line: int, of_torch: tuple[str, ...] | None = None) -> Entry:
        """A function of the folder; where `of_torch` names the op's arguments, torch's own as well, which
        takes them in this order."""
        match = _ENTRY.fullmatch(text)
        if match:
            return Entry(self.file(match[1], line), match[2])
        match = _TORCH.fullmatch(text) if of_torch is not None else None
        if match:
            return Entry(self.path, match[2], module=match[1], positional=of_torch)
        also = " or torch.function" if of_torch is not None else ""
        raise self.fail(line, f"{text!r} is not of the form file.py:function{also}")

    def dtype(self, value: Any, line: int) -> str:
        if not isinstance(value, str) or value not in DTYPES:
            raise self.fail(line, f"{value!r} is not a dtype.{nearest(str(value), DTYPES)}")
        return value

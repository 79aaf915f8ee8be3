"""What scripts of pages share: figures kept a line each, and tables written between two marks of a page."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

Row = TypeVar("Row")


def append(file: Path | None, row: Any) -> None:
    """Add a dataclass as a line of JSON; nothing where there is no file."""
    if file is not None:
        with file.open("a") as out:
            out.write(json.dumps(asdict(row)) + "\n")


def read(file: Path, kind: type[Row]) -> list[Row]:
    """The dataclasses that `append` wrote."""
    return [kind(**json.loads(line)) for line in file.read_text().splitlines()]


def write_between(page: Path, marks: tuple[str, str], table: str) -> None:
    """Put a table between two marks of a page, in place of what is there."""
    text = page.read_text()
    begin, end = (text.index(mark) for mark in marks)
    page.write_text(f"{text[:begin]}{marks[0]}\n\n{table.strip()}\n\n{text[end:]}")

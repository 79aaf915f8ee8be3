"""What an integration replaced in its host, what it left alone, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Item:
    """One kind of thing in the host. part: as `only` names it. what: a class or function of the host. count:
    how many of them. note: by what it was replaced, or why it was left alone."""

    part: str
    what: str
    count: int
    note: str

    def __str__(self) -> str:
        times = f" x {self.count}" if self.count > 1 else ""
        return f"{self.part:<10}  {self.what}{times}: {self.note}"


@dataclass(frozen=True)
class Report:
    """The answer of `enable`. host: name and version. Printing it gives a line for each item."""

    host: str
    replaced: tuple[Item, ...]
    left: tuple[Item, ...]

    def __str__(self) -> str:
        lines = [f"{self.host}, replaced:", *(f"  {item}" for item in self.replaced)]
        lines += ["left alone:", *(f"  {item}" for item in self.left)] if self.left else []
        return "\n".join(lines)


def items(found: Iterable[tuple[str, str, str]]) -> tuple[Item, ...]:
    """(part, what, note) as items, the same ones counted, in the order of their first."""
    return tuple(Item(part, what, count, note) for (part, what, note), count in Counter(found).items())

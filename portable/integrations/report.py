"""What an integration replaced in its host, what it left alone, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from portable.errors import IntegrationError, listed, nearest


@dataclass(frozen=True)
class Item:
    """One kind of thing in the host. part: as `only` names it. what: a class or function of the host. count:
    how many of them. note: by what it was replaced, or why it was left alone."""

    part: str
    what: str
    count: int
    note: str

    def __str__(self) -> str:
        return self.line(10)

    def line(self, width: int) -> str:
        """As text, with a column of `width` for the part."""
        times = f" x {self.count}" if self.count > 1 else ""
        return f"{self.part:<{width}}  {self.what}{times}: {self.note}"


@dataclass(frozen=True)
class Report:
    """The answer of `enable`. host: name and version. modelled: kernels with their times by an emulated GPU's
    timing model, below a line that says so. Printing it gives a line for each item."""

    host: str
    replaced: tuple[Item, ...]
    left: tuple[Item, ...]
    modelled: tuple[str, ...] = field(default=(), kw_only=True)

    def __str__(self) -> str:
        width = max((len(item.part) for item in (*self.replaced, *self.left)), default=0)
        replaced, left = (
            [f"  {item.line(max(width, 10))}" for item in some] for some in (self.replaced, self.left)
        )
        lines = [f"{self.host}, replaced:", *(replaced or ["  nothing"])]
        lines += ["left alone:", *left] if left else []
        lines += [*self.modelled[:1], *(f"  {line}" for line in self.modelled[1:])]
        return "\n".join(lines)


@dataclass(frozen=True)
class Enabled(Report):
    """The answer of an `enable` that has a `disable`. As a context manager it calls that at the end."""

    disable: Callable[[], None] = field(repr=False, compare=False)

    def __enter__(self) -> Enabled:
        return self

    def __exit__(self, *_: Any) -> None:
        self.disable()


def items(found: Iterable[tuple[str, str, str]]) -> tuple[Item, ...]:
    """(part, what, note) as items, the same ones counted, in the order of their first."""
    return tuple(Item(part, what, count, note) for (part, what, note), count in Counter(found).items())


def named(library: str, only: Sequence[str], parts: Sequence[str]) -> tuple[str, ...]:
    """`only` of a library's `enable`. Raises IntegrationError for one that is none of `parts`."""
    asked = (only,) if isinstance(only, str) else tuple(only)
    for part in asked:
        if part not in parts:
            raise IntegrationError(
                library,
                f"enable: only names {part!r}, which is none of {listed(parts)}",
                nearest(part, parts).strip(),
            )
    return asked

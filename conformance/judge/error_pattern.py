"""The pattern of a tensor's wrong elements, as one short phrase: "the last column of every row".

The last two dimensions are rows and columns, what leads them is the batch (counted through where there are
several leading dimensions); a vector has elements. A phrase is the first of these that holds: every
element; one element; the crossing of some batches, rows and columns; everything but such a crossing; a
stretch of the elements in row-major order; a few elements; whole tiles; scattered elements. It says nothing
that is not so: `Pattern.exact` says that it names every wrong element and no other, and then `Pattern.mask`
rebuilds them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch

LISTED = 4
"""Runs of an axis, elements or tiles that a phrase lists; of more it gives the number."""
SMALLEST_TILE = 4
"""Rows and columns that a tile has at least; smaller ones are scatter."""

Kind = Literal["none", "one", "crossing", "all but", "stretch", "tiles", "scattered"]


@dataclass(frozen=True)
class Places:
    """Some indices of an axis of `size`: runs (first, behind the last), the first and the last of them alone
    where they are too many to name (`exact` is false); or, with a `period`, as many indices as the one run
    has, from its first one on, every `period`, to the end of the axis."""

    size: int
    runs: tuple[tuple[int, int], ...]
    count: int
    period: int = 0
    exact: bool = True

    @classmethod
    def of(cls, mask: torch.Tensor) -> Places:
        """The places where a vector of booleans is true, one at least."""
        edges = torch.nn.functional.pad(mask.to(torch.int8), (1, 1)).diff().nonzero().reshape(-1, 2)
        number, count = edges.shape[0], int(mask.sum())
        few = edges if number <= LISTED else torch.cat([edges[:2], edges[-1:]])
        runs = tuple((int(first), int(behind)) for first, behind in few.tolist())
        if number > 2:
            regular = cls(mask.numel(), runs[:1], count, runs[1][0] - runs[0][0])
            if torch.equal(regular.mask(), mask):
                return regular
        if number > LISTED:
            return cls(mask.numel(), (runs[0], runs[-1]), count, exact=False)
        return cls(mask.numel(), runs, count)

    @property
    def every(self) -> bool:
        return self.count == self.size

    @property
    def whole(self) -> bool:
        """Whether the places are one run."""
        return self.exact and len(self.runs) == 1 and not self.period

    def mask(self) -> torch.Tensor:
        """The vector of booleans again, where `exact`."""
        index = torch.arange(self.size)
        if self.period:
            first, behind = self.runs[0]
            return (index >= first) & ((index - first) % self.period < behind - first)
        found = torch.zeros(self.size, dtype=torch.bool)
        for first, behind in self.runs:
            found[first:behind] = True
        return found

    def text(self, noun: str, nouns: str) -> str:
        """`row 3`, `rows 64..127 (of 256)`, `every second column from 1 on`, `the last column`."""
        first, behind = self.runs[0]
        if self.every:
            return f"every {noun}"
        if self.period:
            return self._regular(noun, nouns, first, behind - first)
        if not self.exact:
            last = self.runs[-1][1] - 1
            return f"{self.count} of {self.size} {nouns} ({first} the first, {last} the last)"
        if self.count == 1:
            return f"the last {noun}" if behind == self.size else f"{noun} {first}"
        if len(self.runs) == 1 and behind == self.size:
            return f"{nouns} from {first} on (of {self.size})"
        parts = [f"{a}" if b - a == 1 else f"{a}..{b - 1}" for a, b in self.runs]
        size = f" (of {self.size})" if self.count > len(self.runs) else ""
        return f"{nouns} {_listed(parts)}{size}"

    def _regular(self, noun: str, nouns: str, first: int, width: int) -> str:
        if width == 1:
            step = {2: "second", 3: "third"}.get(self.period, f"{self.period}th")
            return f"every {step} {noun} from {first} on"
        if first + width <= self.period:
            return f"{nouns} {first}..{first + width - 1} of every {self.period}"
        return f"{width} {nouns} of every {self.period}, from {first} on"


@dataclass(frozen=True)
class Pattern:
    """`count` wrong elements of a tensor of `shape`, and what they have in common.

    `axes` are the batches, rows and columns that hold the wrong elements ("all but": the right ones; a
    "stretch": the flat indices alone). `tiles` are the first batch, row and column of each of `number` tiles
    of `tile` rows and columns, of the first ones where they are too many to name.
    """

    kind: Kind
    shape: tuple[int, ...]
    count: int
    axes: tuple[Places, ...] = ()
    tile: tuple[int, int] = (0, 0)
    tiles: tuple[tuple[int, ...], ...] = ()
    number: int = 0

    @property
    def exact(self) -> bool:
        """Whether the phrase names every wrong element and no other."""
        if self.kind == "tiles":
            return self.number == len(self.tiles)
        return self.kind != "scattered" and all(each.exact for each in self.axes)

    def mask(self) -> torch.Tensor:
        """The wrong elements, rebuilt from what the phrase says. Raises ValueError unless `exact`."""
        if not self.exact:
            raise ValueError(f"the phrase {str(self)!r} does not name every element")
        found = torch.zeros(_three(self.shape), dtype=torch.bool)
        if self.kind == "stretch":
            found = self.axes[0].mask()
        elif self.kind == "tiles":
            for batch, row, column in self.tiles:
                found[batch, row : row + self.tile[0], column : column + self.tile[1]] = True
        elif self.kind != "none":
            found = _crossing(self.axes)
            found = ~found if self.kind == "all but" else found
        return found.reshape(self.shape)

    def __str__(self) -> str:
        if self.kind == "none":
            return "no element"
        if self.kind == "one":
            return f"one element, {self._index(*(each.runs[0][0] for each in self.axes))}"
        if self.kind == "crossing":
            return self._crossing()
        if self.kind == "all but":
            return f"all but {self._crossing()}"
        if self.kind == "stretch":
            return f"{self.axes[0].text('element', 'elements')}, counted in row-major order"
        if self.kind == "tiles":
            return self._tiles()
        return f"scattered: {self.count} of {math.prod(self.shape)} elements, {self._extent()}"

    def _extent(self) -> str:
        batch, rows, columns = self.axes
        if len(self.shape) < 2:
            return f"from {columns.runs[0][0]} to {columns.runs[-1][1] - 1}"
        text = f"in {_number(rows, 'row', 'rows')} and {_number(columns, 'column', 'columns')}"
        return text + (f" of {_number(batch, 'batch', 'batches')}" if batch.size > 1 else "")

    def _crossing(self) -> str:
        batch, rows, columns = self.axes
        if batch.every and rows.every and columns.every:
            return "every element"
        if len(self.shape) < 2:
            return columns.text("element", "elements")
        if rows.every and columns.every:
            return self._batch() + self._alone(batch)
        tail = "" if batch.size == 1 else f", in {self._batch()}"
        if columns.every:
            return rows.text("row", "rows") + (tail or self._alone(rows))
        if rows.every:
            text = columns.text("column", "columns")
            text += " of every row" if text == "the last column" else ""
            return text + (tail or self._alone(columns))
        if rows.whole and columns.whole and rows.count > 1 < columns.count:
            corner = f"[{rows.runs[0][0]}, {columns.runs[0][0]}]"
            return f"a {rows.count} x {columns.count} block at {corner}{tail}"
        return f"{columns.text('column', 'columns')} of {rows.text('row', 'rows')}{tail}"

    def _alone(self, places: Places) -> str:
        """` alone` behind a single row, column or batch with a number."""
        numbered = places.count == 1 and places.runs[0][1] < places.size
        return " alone" if numbered and self.kind == "crossing" else ""

    def _batch(self) -> str:
        """The batches as text; a single one of several leading dimensions by its index."""
        batch = self.axes[0]
        if batch.every or len(self.shape) < 4:
            return batch.text("batch", "batches")
        if batch.count == 1:
            return f"batch {self._index(batch.runs[0][0])}"
        return batch.text("batch", "batches") + " counted in row-major order"

    def _tiles(self) -> str:
        size = f"tiles of {self.tile[0]} x {self.tile[1]}"
        places = [self._index(*each) for each in self.tiles]
        if self.tile == (1, 1):
            return f"elements {_listed(places)}"
        if self.exact:
            return f"{size}: {_listed(places)}"
        batch, rows, columns = _three(self.shape)
        total = batch * math.ceil(rows / self.tile[0]) * math.ceil(columns / self.tile[1])
        return f"{self.number} of {total} {size}, the first at {places[0]}"

    def _index(self, batch: int, *own: int) -> str:
        """An index of the tensor, as its dimensions are, from the batch (and the row and the column)."""
        leading, flat = [], batch
        for size in reversed(self.shape[:-2]):
            leading.append(flat % size)
            flat //= size
        own = own[len(own) - min(len(self.shape), len(own)) :]
        return "[" + ", ".join(map(str, (*reversed(leading), *own))) + "]"


def find(wrong: torch.Tensor) -> Pattern:
    """The pattern of a mask of wrong elements (torch.bool, any rank, any device)."""
    shape, mask = tuple(wrong.shape), wrong.detach().cpu().reshape(_three(wrong.shape))
    count = int(mask.sum())
    if not count:
        return Pattern("none", shape, 0)
    axes, right = _axes(mask), _axes(~mask) if count < mask.numel() else ()
    crosses = math.prod(each.count for each in axes) == count
    crossing = Pattern("one" if count == 1 < mask.numel() else "crossing", shape, count, axes)
    if crosses and crossing.exact:
        return crossing
    rest = Pattern("all but", shape, count, right)
    simple = rest.exact and (crosses or all(each.whole for each in right))
    if simple and math.prod(each.count for each in right) == mask.numel() - count:
        return rest
    stretch = Pattern("stretch", shape, count, (Places.of(mask.reshape(-1)),))
    if stretch.exact and len(shape) > 1 and len(stretch.axes[0].runs) == 1:
        return stretch
    tiles = _few(mask, shape, count) if count <= LISTED else _find_tiles(mask, shape, count)
    if tiles is not None and tiles.exact:
        return tiles
    if crosses and len(shape) > 1:
        return crossing
    return tiles or Pattern("scattered", shape, count, axes)


def _few(mask: torch.Tensor, shape: tuple[int, ...], count: int) -> Pattern:
    """Elements one by one, as tiles of one element."""
    tiles = tuple(map(tuple, mask.nonzero().tolist()))
    return Pattern("tiles", shape, count, tile=(1, 1), tiles=tiles, number=count)


def _find_tiles(mask: torch.Tensor, shape: tuple[int, ...], count: int) -> Pattern | None:
    """Tiles of one size that are wrong as a whole or right as a whole; the size is the greatest that divides
    every row and every column at which the mask changes."""
    row = math.gcd(*_changes(mask, 1)) or mask.shape[1]
    column = math.gcd(*_changes(mask, 2)) or mask.shape[2]
    if min(row, column) < SMALLEST_TILE:
        return None
    places = mask[:, ::row, ::column].nonzero()
    first = places if places.shape[0] <= LISTED else places[:1]
    tiles = tuple((batch, r * row, c * column) for batch, r, c in first.tolist())
    return Pattern("tiles", shape, count, tile=(row, column), tiles=tiles, number=places.shape[0])


def _changes(mask: torch.Tensor, dim: int) -> list[int]:
    """The indices along `dim` at which some element differs from the one before it."""
    differs = mask.narrow(dim, 1, mask.shape[dim] - 1) != mask.narrow(dim, 0, mask.shape[dim] - 1)
    others = [other for other in range(3) if other != dim]
    return [index + 1 for index in differs.any(others[1]).any(others[0]).nonzero().reshape(-1).tolist()]


def _axes(mask: torch.Tensor) -> tuple[Places, ...]:
    """The batches, rows and columns that hold a true element."""
    rows = mask.any(2)
    return (Places.of(rows.any(1)), Places.of(rows.any(0)), Places.of(mask.any(1).any(0)))


def _crossing(axes: tuple[Places, ...]) -> torch.Tensor:
    batch, rows, columns = (each.mask() for each in axes)
    return batch[:, None, None] & rows[:, None] & columns


def _three(shape: tuple[int, ...] | torch.Size) -> tuple[int, int, int]:
    """Batches, rows and columns of a tensor of any rank."""
    rows, columns = (1, 1, *shape)[-2:]
    return math.prod(shape[:-2]), rows, columns


def _number(places: Places, noun: str, nouns: str) -> str:
    return f"{places.count} {noun if places.count == 1 else nouns}"


def _listed(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"

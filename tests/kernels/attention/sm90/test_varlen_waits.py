"""A model of who waits for whom in sm90/fwd.cu with varlen sequences: roles as generators, in any order.

It holds the waits alone: which barrier, how many arrivals, in which order. A kernel that stands still ends no
test run, so the order is tried here.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from tests.kernels.attention.sm90.roles import Barrier, Role, deadlocks

STAGES = 2


class Tile(NamedTuple):
    blocks: int  # of keys
    partial: bool  # whether the first block of values that is walked crosses the sequence's end


class Ring:
    def __init__(self, stages: int, consumers: int):
        self.filled = [Barrier(1) for _ in range(stages)]
        self.freed = [Barrier(consumers) for _ in range(stages)]

    def until_filled(self, use: int) -> Callable[[], bool]:
        return self.filled[use % len(self.filled)].over(use // len(self.filled))

    def until_freed(self, use: int) -> Callable[[], bool]:
        return self.freed[use % len(self.freed)].over(use // len(self.freed) - 1)

    def fill(self, use: int) -> None:
        self.filled[use % len(self.filled)].arrive()

    def free(self, use: int) -> None:
        self.freed[use % len(self.freed)].arrive()


class Block:
    """A thread block's roles over the tiles that it claims. `told`: the others hear of every tile, as they
    once did; else of those with keys."""

    def __init__(self, tiles: list[Tile], consumers: int, q_stages: int, told: bool):
        self.claimed = [tile for tile in tiles if told or tile.blocks]
        self.queries, self.keys, self.values = (Ring(n, consumers) for n in (q_stages, STAGES, STAGES))
        self.partial = [Barrier(1) for _ in range(STAGES)]
        self.slot_filled, self.slot_freed = Barrier(1), Barrier(2 + consumers)
        self.slot: Tile | None = None
        self.q_stages = q_stages
        self.roles = [self.claim(), self.copy(), self.clear(), *(self.consume() for _ in range(consumers))]

    def claim(self) -> Role:
        for count, tile in enumerate((*self.claimed, None)):
            yield self.slot_freed.over(count - 1)
            self.slot = tile
            self.slot_filled.arrive()

    def tiles(self) -> Iterator[Callable[[], bool] | Tile | None]:
        """What a reader of the slot waits for and finds, in turn."""
        for count in range(len(self.claimed) + 1):
            yield self.slot_filled.over(count)
            tile = self.slot
            self.slot_freed.arrive()
            yield tile

    def copy(self) -> Role:
        tiles, tile_count, block, behind = self.tiles(), 0, 0, None

        def copy_values(use: int, partial: bool) -> Role:
            yield self.values.until_freed(use)
            self.partial[use % STAGES].arrive() if partial else self.values.fill(use)

        def copy_queries(use: int) -> Role:
            yield self.queries.until_freed(use)
            self.queries.fill(use)

        while True:
            yield next(tiles)  # type: ignore[misc]
            tile = next(tiles)
            if not isinstance(tile, Tile):
                break
            if not tile.blocks:
                continue
            if self.q_stages > 1:
                yield from copy_queries(tile_count)
            for step in range(tile.blocks):
                yield self.keys.until_freed(block)
                self.keys.fill(block)
                if behind is not None:
                    yield from copy_values(*behind)
                if self.q_stages == 1 and step == 0:
                    yield from copy_queries(tile_count)
                behind = block, tile.partial and step == 0
                block += 1
            tile_count += 1
        if behind is not None:
            yield from copy_values(*behind)

    def clear(self) -> Role:
        tiles, block, phases = self.tiles(), 0, [0] * STAGES
        while True:
            yield next(tiles)  # type: ignore[misc]
            tile = next(tiles)
            if not isinstance(tile, Tile):
                return
            if tile.blocks and tile.partial:
                stage = block % STAGES
                yield self.partial[stage].over(phases[stage])
                phases[stage] += 1
                self.values.fill(block)
            block += tile.blocks

    def consume(self) -> Role:
        tiles = self.tiles()
        tile_count, block = 0, 0

        def look_ahead() -> Role:
            nonlocal upcoming
            upcoming = Tile(0, False)
            while upcoming is not None and not upcoming.blocks:
                yield next(tiles)  # type: ignore[misc]
                upcoming = next(tiles)  # type: ignore[assignment]

        upcoming: Tile | None = None
        yield from look_ahead()
        while (tile := upcoming) is not None:
            if tile_count == 0:
                yield from look_ahead()
            yield self.queries.until_filled(tile_count)
            for step in range(tile.blocks):
                yield self.keys.until_filled(block)
                if step == 0 and tile_count:
                    yield from look_ahead()  # the scores of this block are under way
                self.keys.free(block)
                if step == tile.blocks - 1:
                    self.queries.free(tile_count)
                yield self.values.until_filled(block)
                if block:
                    self.values.free(block - 1)
                block += 1
            tile_count += 1


def drawn(order: random.Random) -> list[Tile]:
    count = order.choice((0, 1, 2, 3, 5, 9))
    return [Tile(order.choice((0, 0, 1, 1, 2, 3, 4, 7)), order.random() < 0.6) for _ in range(count)]


@pytest.mark.parametrize("q_stages", [1, 2])
@pytest.mark.parametrize("consumers", [2, 3])
def test_no_order_of_tiles_deadlocks(consumers, q_stages):
    order = random.Random(consumers * 2 + q_stages)
    for _ in range(400):
        tiles = drawn(order)
        assert not deadlocks(Block(tiles, consumers, q_stages, told=False).roles, order), tiles


@pytest.mark.parametrize(
    "tiles", [[Tile(4, False), Tile(0, False)], [Tile(1, True), Tile(3, False), Tile(0, False)]]
)
def test_consumers_told_of_a_tile_without_keys_wait_for_one_more(tiles):
    """They free no keys before they have it; it is claimed once the copying thread has read the one before,
    and that thread waits for keys."""
    order = random.Random(3)
    assert deadlocks(Block(tiles, 2, 2, told=True).roles, order)
    assert not deadlocks(Block(tiles, 2, 2, told=False).roles, order)

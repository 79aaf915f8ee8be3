"""Pairwise combination: rows of choices that hold every pair of choices of two factors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations


def pairwise(sizes: list[int], met: Iterable[tuple[int, ...]] = ()) -> Iterator[tuple[int, ...]]:
    """Rows of indices, one per factor, that hold every pair of choices of two factors.

    Greedy and deterministic: each row starts from a pair not met yet and fills the other factors with
    whichever choice adds the most new pairs, ties in rotation. The pairs of rows in `met` are covered
    already.
    """
    count = len(sizes)
    missing = {
        (one, a, two, b)
        for one, two in combinations(range(count), 2)
        for a in range(sizes[one])
        for b in range(sizes[two])
    }
    for there in met:
        missing -= _pairs(there)
    queue = sorted(missing, key=_scattered)
    number = 0
    while queue:
        seed = queue.pop()
        if seed not in missing:
            continue
        number += 1
        row: dict[int, int] = {seed[0]: seed[1], seed[2]: seed[3]}
        for factor in (place for place in range(count) if place not in row):
            new = [
                sum(_pair(o, row[o], factor, choice) in missing for o in row)
                for choice in range(sizes[factor])
            ]
            row[factor] = max(range(sizes[factor]), key=lambda c: (new[c], -((c - number) % sizes[factor])))
        done = tuple(row[place] for place in range(count))
        missing -= _pairs(done)
        yield done


def _scattered(pair: tuple[int, int, int, int]) -> int:
    """An order that mixes the factors, so that a prefix of the rows touches all of them."""
    mixed = 0
    for number in pair:
        mixed = (mixed ^ (number + 1)) * 2654435761 % 2**32
        mixed ^= mixed >> 15
    return mixed


def _pair(one: int, a: int, two: int, b: int) -> tuple[int, int, int, int]:
    return (one, a, two, b) if one < two else (two, b, one, a)


def _pairs(row: tuple[int, ...]) -> set[tuple[int, int, int, int]]:
    return {(one, row[one], two, row[two]) for one, two in combinations(range(len(row)), 2)}

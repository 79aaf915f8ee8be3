"""Which configs to try: the model's best first, then what the trials so far suggest.

The model (`cost_model`) may be wrong for a value of a tunable everywhere. So the first trials show every
value that is not hopeless, and the later ones follow the model corrected, value by value, by a ridge
regression of measured on predicted times.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from portable.spec.model import Implementation
from portable.tune.space import Candidate, steps

APART = 2
"""Least steps between two of the model's best that are both tried: its errors are shared by neighbours."""
HOPELESS = 4.0
"""A tunable's value whose best config is predicted slower than the best by this factor gets no trial."""
RIDGE = 0.5


class Search:
    """The candidates of one call with the model's seconds, from its best on."""

    def __init__(self, implementation: Implementation, ranked: Sequence[tuple[Candidate, float]]):
        self._implementation = implementation
        self._candidates = [candidate for candidate, _ in ranked]
        self._logs = np.log(np.array([seconds for _, seconds in ranked]))
        self._place = {each.name: place for place, each in enumerate(self._candidates)}
        pairs = {pair: None for each in self._candidates for pair in each.values.items()}
        self._columns = {pair: column for column, pair in enumerate(pairs)}
        self._slopes = {name: len(pairs) + place for place, name in enumerate(implementation.tunables)}

    def first(self, fixed: Iterable[Candidate], best: int, total: int) -> list[Candidate]:
        """`best` of the model's, then configs with values that none of these has, `total` in all, and after
        those the model's order: for what falls out."""
        there = list(fixed)
        chosen: list[Candidate] = []
        for each in self._candidates:
            if len(chosen) >= best:
                break
            if self._apart(each, [*chosen, *there]):
                chosen.append(each)
        while len(chosen) < total:
            shown = {pair for each in (*chosen, *there) for pair in each.values.items()}
            more = self._unseen(shown, chosen)
            if more is None:
                break
            chosen.append(more)
        rest = (each for each in self._candidates if self._apart(each, [*chosen, *there]))
        for each in rest:
            if len(chosen) >= total + total // 2 + 2:
                break
            chosen.append(each)
        return chosen

    def _apart(self, each: Candidate, others: Sequence[Candidate]) -> bool:
        return all(steps(self._implementation, each.values, other.values) >= APART for other in others)

    def _unseen(self, shown: set[Any], chosen: Sequence[Candidate]) -> Candidate | None:
        """The model's best config with a value that was not shown, if it is not hopeless."""
        names = {each.name for each in chosen}
        for place, each in enumerate(self._candidates):
            if self._logs[place] > self._logs[0] + math.log(HOPELESS):
                break
            if each.name not in names and any(pair not in shown for pair in each.values.items()):
                return each
        return next((each for each in self._candidates if self._apart(each, chosen)), None)

    def following(self, measured: Mapping[str, float], failed: Iterable[str], count: int) -> list[Candidate]:
        """The best `count` by the corrected model that were not tried; one that failed counts as slow."""
        known = [name for name in measured if name in self._place]
        slow = [name for name in failed if name in self._place]
        gone = {*known, *slow}
        scores = self._logs.copy()
        if known:
            places = [self._place[name] for name in (*known, *slow)]
            apart = np.log([measured[name] * 1e-6 for name in known]) - self._logs[places[: len(known)]]
            apart = np.concatenate([apart, np.full(len(slow), apart.mean() + math.log(HOPELESS))])
            rows = np.stack([self._row(self._candidates[place]) for place in places])
            normal = rows.T @ rows + RIDGE * np.eye(rows.shape[1])
            weights = np.linalg.solve(normal, rows.T @ (apart - apart.mean()))
            scores += np.stack([self._row(each) for each in self._candidates]) @ weights
        order = (self._candidates[place] for place in np.argsort(scores, kind="stable"))
        left = [each for each in order if each.name not in gone]
        return left[:count]

    def _row(self, candidate: Candidate) -> Any:
        """A column for each value, and one for each tunable, from -1 to 1 over its values: what holds from
        one of them to the next is likely to go on."""
        row = np.zeros(len(self._columns) + len(self._slopes))
        for name, value in candidate.values.items():
            row[self._columns[name, value]] = 1.0
            legal = self._implementation.tunables[name]
            row[self._slopes[name]] = 2.0 * legal.index(value) / max(len(legal) - 1, 1) - 1.0
        return row

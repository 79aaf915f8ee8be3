"""Which rows of a source belong to which row of a result: what the kernels of segmented_sum.cu add by."""

from __future__ import annotations

import torch
from torch import Tensor


def segments(index: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """(order, starts, ends) of the tokens of each of `count` rows: those of row r are
    order[starts[r]:ends[r]], ascending. A token whose index is outside the rows is in none of them.

    Nothing waits for the device: the sort can be captured into a graph.
    """
    ordered, order = torch.sort(index, stable=True)
    bounds = torch.searchsorted(ordered, torch.arange(count + 1, device=index.device, dtype=index.dtype))
    return order, bounds[:-1], bounds[1:]


def inside(index: Tensor, count: int) -> Tensor:
    """Which indices are within `count` rows."""
    return (index >= 0) & (index < count)


def added(rows: Tensor, index: Tensor, source: Tensor) -> Tensor:
    """`rows` and the rows of `source`, each added to the row of its index, in one order; a row whose index is
    outside is left out. Nothing is written to, so that torch's transforms take it."""
    count = len(rows)
    spare = torch.cat((rows, rows.new_zeros(1, rows.shape[1])))
    place = torch.where(inside(index, count), index, count).long()
    # On a GPU torch's index_add adds with atomics, its index_put in the order of a sort; on the CPU index_put
    # adds with atomics where it has threads. index_put adds one after the other: 40 equal terms in float32
    # were 25 ULP off (H100, 2026-11-26), so it adds in float64.
    if rows.device.type == "cpu":
        return spare.index_add(0, place, source)[:count]
    return spare.double().index_put((place,), source.double(), accumulate=True)[:count].to(rows.dtype)

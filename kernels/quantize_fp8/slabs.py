"""How x is cut where columns have scales: into strips of columns, and those into slabs of rows."""

from __future__ import annotations

from portable.layout import ceil_div
from portable.plan import Device

TALL = 128
"""Rows of a strip that become rows of q at a time."""
BLOCKS = 8
"""Slabs that each multiprocessor gets, where there are so many."""


def slabs(
    device: Device, strips: int, height: int, blocks: int = BLOCKS, most: int | None = None
) -> tuple[int, int]:
    """Into how many slabs the rows of each strip are cut, at most `most`, for `blocks` slabs a
    multiprocessor; and the rows of one, a multiple of TALL."""
    wanted = ceil_div(blocks * device.multiprocessors, max(strips, 1))
    if most is not None:
        wanted = min(wanted, most)
    slab = max(ceil_div(ceil_div(height, wanted), TALL), 1) * TALL
    return max(ceil_div(height, slab), 1), slab

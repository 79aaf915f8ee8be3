"""How blocks of Hopper take long rows: clusters that hold a row, rings of shared memory (rows/ring.h)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from portable.kernels._lib.plans.row_class import (
    ACCESS_BYTES,
    HOPPER,
    RowClass,
    power_of_two,
    row_vector_length,
)
from portable.plan import Device, NativeKernel, TensorInfo

HELPERS = 64  # threads of a ring beside those that hold a row: the reduction warp and the producer warp


@dataclass(frozen=True, slots=True)
class RowTile:
    """`cluster` blocks share a row, each as `threads` threads with `chunks` 16-byte vectors; `resident`
    blocks fit a multiprocessor. A tile is for rows of more than half of these vectors, and for all dtypes
    unless `dtypes` names some.

    With `slots`, rows go through a ring of so many chunks in each block's shared memory, and blocks are
    persistent: `clusters` of them are launched, where that is fewer than the multiprocessors could hold.
    `hold`: how many chunks of a norm's weight, and then of its bias, a block keeps in registers.
    """

    cluster: int
    threads: int
    chunks: int
    resident: int
    slots: int | None = None
    clusters: int | None = None
    hold: int | None = None
    dtypes: tuple[str, ...] = ()

    @property
    def vectors(self) -> int:
        return self.cluster * self.threads * self.chunks

    def blocks(self, device: Device) -> int:
        """How many persistent blocks (clusters) process the rows."""
        limit = max(device.multiprocessors * self.resident // self.cluster, 1)
        return limit if self.clusters is None else min(limit, self.clusters)

    def ring_kernel(self, kernel: NativeKernel, tensors: int) -> NativeKernel:
        """`kernel` with the ring's own threads, shared memory and defines; chunks of `tensors` tensors are in
        a slot."""
        assert self.slots is not None
        own: tuple[tuple[str, int], ...] = (("SLOTS", self.slots),)
        if self.resident == 1:  # else the row class says so
            own += (("RESIDENT", 1),)
        if self.hold is not None:
            own += (("HOLD", self.hold),)
        shared = self.slots * tensors * self.threads * ACCESS_BYTES
        # The block's static shared memory comes on top: 48 KB need the opt-in that starts above 48 KB.
        shared += 16 if shared == 48 * 1024 else 0
        return replace(
            kernel, threads=kernel.threads + HELPERS, defines=(*kernel.defines, *own), shared=shared
        )


def row_tile(
    tiles: Sequence[Mapping[str, Any]],
    device: Device,
    dtype: str,
    length: int,
    tensors: Sequence[tuple[TensorInfo, int]],
    ring: bool,
) -> tuple[RowClass, RowTile] | None:
    """The first of a spec's `tiles` for aligned rows of `length` elements, and the class of its kernel; with
    `ring` of those with a ring, else of the others."""
    vector = row_vector_length(dtype, length, tensors)
    if device.arch != HOPPER or vector == 1:
        return None
    vectors = power_of_two(-(-length // vector))
    for each in tiles:
        tile = RowTile(**each)
        if (
            tile.vectors == vectors
            and (tile.slots is not None) == ring
            and (not tile.dtypes or dtype in tile.dtypes)
        ):
            lanes, resident = tile.threads * tile.cluster, tile.resident
            kind = RowClass(
                dtype, vector, False, tile.threads, lanes, tile.chunks, True, tile.cluster, resident
            )
            return kind, tile
    return None

"""Rows through a ring in shared memory: persistent blocks, or clusters of them, on Hopper (rows/ring.h)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from portable.kernels._lib.plans.row_plan import (
    ACCESS_BYTES,
    RowClass,
    cluster_class,
    power_of_two,
    vector_length,
)
from portable.plan import Device, NativeKernel, TensorInfo

HELPERS = 64  # threads beside those that hold a row: the reduction warp and the producer warp


@dataclass(frozen=True, slots=True)
class Ring:
    """`cluster` blocks share a row, each as `threads` threads with `chunks` vectors; `resident` blocks fit a
    multiprocessor with `slots` chunks of rows in shared memory each. `clusters` of them are launched,
    where that is fewer than the multiprocessors could hold. `hold`: how many chunks of a norm's
    weight, and then of its bias, a block keeps in registers."""

    cluster: int
    threads: int
    chunks: int
    resident: int
    slots: int
    clusters: int | None = None
    hold: int | None = None

    @property
    def vectors(self) -> int:
        return self.cluster * self.threads * self.chunks

    def shared(self, tensors: int) -> int:
        """Bytes of dynamic shared memory; the block's static ones come on top, so that 48 KB need the opt-in
        that starts above 48 KB."""
        size = self.slots * tensors * self.threads * ACCESS_BYTES
        return size + 16 if size == 48 * 1024 else size

    def blocks(self, device: Device) -> int:
        """How many persistent blocks (clusters) process the rows."""
        limit = max(device.multiprocessors * self.resident // self.cluster, 1)
        return limit if self.clusters is None else min(limit, self.clusters)


def ring_class(
    device: Device,
    dtype: str,
    length: int,
    tensors: Sequence[tuple[TensorInfo, int]],
    rings: Mapping[int, Ring],
) -> tuple[RowClass, Ring] | None:
    """The class and the ring for rows of `length` whole vectors, by the power of two of 16-byte vectors in a
    row; or None."""
    ring = rings.get(power_of_two(-(-length // vector_length(dtype, tensors))))
    if ring is None:
        return None
    shapes = {ring.vectors: (ring.cluster, ring.threads, ring.chunks, ring.resident)}
    kind = cluster_class(device, dtype, length, tensors, shapes)
    return None if kind is None or kind.tail else (kind, ring)


def ring_kernel(kernel: NativeKernel, ring: Ring, tensors: int, stage: str) -> NativeKernel:
    """`kernel` with the ring's own threads, shared memory and defines."""
    own = (("RESIDENT", ring.resident),) if ring.resident == 1 else ()  # else the row class says so
    if ring.hold is not None:
        own += (("HOLD", ring.hold),)
    defines = (*kernel.defines, *own, ("SLOTS", ring.slots), ("PASS", stage))
    return replace(kernel, threads=kernel.threads + HELPERS, defines=defines, shared=ring.shared(tensors))

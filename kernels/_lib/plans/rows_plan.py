"""Planning of kernels that reduce rows (rows.h): one launch. In a spec: `plan: rows`.

A row is in the registers of a few threads, of a block or, on Hopper, of a cluster of blocks, or it goes
through a ring in shared memory; one that is too long for all is read twice (`<entry>_stream`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from portable.kernels._lib.plans.row_class import (
    MAX_GRID,
    fully_occupied,
    held_chunks,
    length_argument,
    parameter_defines,
    pointer,
    row_class,
    row_count_argument,
    row_launch,
    scalar_arguments,
    stride_arguments,
)
from portable.kernels._lib.plans.row_tile import row_tile
from portable.layout import rows
from portable.plan import Call, Launch, Plan, Rejected, Scalar


def rows_plan(
    call: Call,
    names: Sequence[str],
    source: Path,
    entry: str,
    defines: Sequence[tuple[str, int | str]] = (),
    *,
    parameters: Sequence[str] = (),
    scalars: Sequence[str] = (),
    tiles: Sequence[Mapping[str, Any]] = (),
    most_chunks: int = 4,
) -> Plan | Rejected:
    """`names` are the kernel's tensors: rows, the last one the output, and `parameters`, which have one
    element per column and may be absent. Without a tile, up to `most_chunks` vectors of a row per lane fit
    the registers."""
    views = {name: rows(call[name]) for name in names if name not in parameters}
    first, dtype = views[names[0]], call[names[0]].dtype
    present = [call[name] for name in parameters if call.has(name)]
    aligned = [(call[name], view.stride) for name, view in views.items()] + [(each, 0) for each in present]
    wide = any(each.dtype != dtype for each in present)  # it takes registers that the tiles do not leave
    found = tile = None
    if not wide and first.count:
        found = row_tile(tiles, call.device, dtype, first.length, aligned, ring=True)
    if found is not None:
        (kind, tile), variant = found, "_ring"
    else:
        found = None if wide else row_tile(tiles, call.device, dtype, first.length, aligned, ring=False)
        if found is not None and first.count <= MAX_GRID // found[0].cluster:
            kind = found[0]
        else:
            inputs = (len(views) + 1) // 2  # of two rows in and two out, one is held
            held = held_chunks(call.device, dtype, inputs, otherwise=most_chunks)
            kind = row_class(call.device, dtype, first.length, aligned, most_chunks=held)
            if not wide and len(views) == 2:  # a row of a second input takes the registers
                kind = fully_occupied(kind, call.device)
        if first.count > MAX_GRID * kind.rows_per_block:
            return Rejected(f"{first.count} rows exceed the grid")
        variant = "" if kind.resident else "_stream"
    args = (
        *(pointer(call, name) for name in names),
        *row_count_argument(kind, first.count),
        length_argument(kind, first.length),
        *stride_arguments(views),
        *scalar_arguments(call, scalars),
    )
    defines = (*parameter_defines(call, dtype, parameters), *defines)
    kernel = kind.kernel(source, entry, defines, variant)
    if tile is None:
        return Plan((row_launch(kernel, kind, first, args),))
    blocks = min(tile.blocks(call.device), first.count)
    kernel = tile.ring_kernel(kernel, tensors=len(views) - 1)
    return Plan((Launch(kernel, (blocks * tile.cluster, 1, 1), (*args, ("blocks", Scalar("i32", blocks)))),))

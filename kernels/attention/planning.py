"""What the planners of every unit share: entries of the spec, limits of a launch, tiles of varlen, splits of
a decode."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from portable.kernels.attention.params import (
    ELEMENTS,
    LAYOUT,
    Arguments,
    AttentionParams,
    Unsupported,
    of_call,
)
from portable.layout import ceil_div
from portable.plan import (
    Argument,
    Call,
    Device,
    Launch,
    NativeKernel,
    Plan,
    Pointer,
    Rejected,
    Scalar,
    Workspace,
)

DEVICE = Path(__file__).resolve().parent / "device"
TABLES = "bounds tile_list tile_counts"
"""The fields of AttentionParams that varlen's kernels read: the table of tiles."""
MAX_BLOCKS = 2**31 - 1
"""Blocks of one launch."""
_MAX_THREADS = 2**32 - 1  # of one launch, on AMD


def planner(plan: Callable[[Call, AttentionParams], Plan]) -> Callable[[Call], Plan | Rejected]:
    """A spec's entry: `plan` of a call and its AttentionParams, whose Unsupported is the Rejected."""

    @functools.wraps(plan)
    def entry(call: Call) -> Plan | Rejected:
        try:
            return plan(call, of_call(call))
        except Unsupported as reason:
            return Rejected(str(reason))

    return entry


def finished(device: Device, launches: Sequence[Launch], workspaces: Sequence[Workspace] = ()) -> Plan:
    """The plan; Unsupported where a grid is too large for a launch."""
    for launch in launches:
        blocks, kernel = launch.grid[0], launch.kernel
        threads = kernel.threads if isinstance(kernel, NativeKernel) else kernel.num_warps * device.warp_size
        if blocks > MAX_BLOCKS or (device.vendor == "rocm" and blocks * threads > _MAX_THREADS):
            raise Unsupported(f"{blocks} blocks of {threads} threads are more than one launch takes")
    return Plan(tuple(launches), tuple(workspaces))


def native_kernel(
    device: Device, p: AttentionParams, source: Path, entry: str, threads: int, defines: Mapping[str, Any],
    shared: int = 0, pdl: bool = False,
) -> NativeKernel:  # fmt: skip
    """A kernel that takes AttentionParams, with booleans as 0 and 1. Unsupported where the device has not the
    shared memory."""
    if shared > device.shared_memory:
        raise Unsupported(f"its tiles take {shared} bytes of shared memory")
    own = {"ELEMENT": ELEMENTS[p.dtype], **defines, "PARAMS_LAYOUT": LAYOUT}
    made = ((name, int(value) if isinstance(value, bool) else value) for name, value in own.items())
    return NativeKernel(source, entry, threads, tuple(made), shared, pdl)


def fitted(tile: Any, config: Mapping[str, Any], **named: str) -> Any:
    """A NamedTuple with a config's values over its own: field=tunable."""
    values = {field: config.get(name) for field, name in named.items()}
    return tile._replace(**{field: value for field, value in values.items() if value is not None})


def ints(**values: int) -> Arguments:
    return tuple((name, Scalar("i32", value)) for name, value in values.items())


def workspace(name: str) -> Pointer:
    """The address of a workspace; allocations are aligned."""
    return Pointer(name, True)


def optional(**spaces: bool) -> Arguments:
    """Workspaces, null where they are not there."""
    return tuple((name, workspace(name) if there else Scalar("i64", 0)) for name, there in spaces.items())


# --- tiles of a launch, and varlen's table of them --------------------------------------------------------


class Accumulators(NamedTuple):
    """What a launch computes: dk (`d`), dv (`e`) or both where blocks own keys, else dq (`d`)."""

    owns_keys: bool
    d: bool
    e: bool

    @property
    def written(self) -> tuple[str, ...]:
        return ("dk",) * self.d + ("dv",) * self.e if self.owns_keys else ("dq",)


DK_DV, DQ = Accumulators(True, True, True), Accumulators(False, True, False)
DK, DV = Accumulators(True, True, False), Accumulators(True, False, True)


class Tiled(NamedTuple):
    """A launch over tiles of `rows` keys, or else queries."""

    launch: Launch
    rows: int
    of_keys: bool = False


def max_tiles(tokens: int, offsets: int, tile: int) -> int:
    """The most tiles that sequences can have, however the offsets cut the tokens."""
    return tokens // tile + offsets + 1


def tiles_of(p: AttentionParams, rows: int, of_keys: bool = False) -> int:
    """Tiles of `rows` keys or queries of a head; of varlen as many as there may be."""
    tokens = p.N if of_keys else p.M
    return max_tiles(tokens, p.offsets, rows) if p.is_varlen and tokens else ceil_div(tokens, rows)


def tiled_plan(
    device: Device, p: AttentionParams, first: Sequence[Launch], tiled: Sequence[Tiled],
    workspaces: Sequence[Workspace] = (),
) -> Plan:  # fmt: skip
    """`first`, then the tiled launches, of varlen each with its table of tiles before it."""
    launches, table, spaces = [*first], None, [*workspaces]
    for launch, rows, of_keys in tiled:
        if p.is_varlen and table != (rows, of_keys):
            table = rows, of_keys
            launches.append(tile_table(p, rows, of_keys=of_keys))
        launches.append(launch)
    if p.is_varlen:  # with room for any of the tables
        tokens = max(p.N if each.of_keys else p.M for each in tiled)
        spaces += tile_workspaces(p, tokens, min(each.rows for each in tiled))
    return finished(device, launches, spaces)


def tile_table(p: AttentionParams, tile: int, *, of_keys: bool = False, kv_heads_per_band: int = 1) -> Launch:
    """The launch of varlen_tiles.cu. A window bounds how many tokens of the other kind a tile meets; a
    sequence's last queries come first where they see most keys."""
    reach = 2**31 - 1
    if p.left is not None and p.right is not None:
        reach = max(0, min(reach, p.left + p.right + tile))
    numbers = {
        "count": p.offsets, "queries": p.M, "keys": p.N, "tile": tile, "of_keys": int(of_keys),
        "reach": reach, "together": kv_heads_per_band,
        "backwards": int(not of_keys and p.right is not None and p.left is None),
    }  # fmt: skip
    names = ("cu_seqlens_q", "cu_seqlens_k", "bounds", "ranks", "firsts", "tiles", "counts")
    args: list[tuple[str, Argument]] = [(name, Pointer(name)) for name in names]
    kernel = NativeKernel(DEVICE / "varlen_tiles.cu", "attention_varlen_tiles", 256)
    return Launch(kernel, (1, 1, 1), (*args, *ints(**numbers)))


def tile_workspaces(p: AttentionParams, tokens: int, tile: int) -> tuple[Workspace, ...]:
    """What `tile_table` fills, for tiles of `tile` of the tokens."""
    sequences = p.offsets + 1
    return (
        Workspace("bounds", (sequences, 4), "int32"),
        Workspace("ranks", (sequences,), "int32"),
        Workspace("firsts", (sequences + 1,), "int32"),
        Workspace("tiles", (max_tiles(tokens, p.offsets, tile), 2), "int32"),
        Workspace("counts", (2,), "int32"),
    )


# --- decode -----------------------------------------------------------------------------------------------


class Splits(NamedTuple):
    """How many splits of a sequence's keys a grid and the workspaces have room for, and the most that the GPU
    has room for: with it a sequence's splits follow from its own length, and its bits from it alone."""

    count: int
    most: int


def kv_splits(call: Call, p: AttentionParams, tiles: int, resident: int, chunk: int) -> Splits:
    """Splits of at least `chunk` keys, where blocks of whole sequences leave multiprocessors idle that hold
    `resident` blocks each; a KV head has `tiles` tiles of queries."""
    most = max(1, resident * call.device.multiprocessors // max(1, p.G * tiles))
    return Splits(max(1, min(most, ceil_div(p.N, chunk))), most)


def partial_workspaces(p: AttentionParams, splits: int) -> tuple[Workspace, ...]:
    """acc_o, row_max and row_sum of every query's `splits` splits, until they are combined."""
    shape = (p.B, p.H, p.M, splits)
    sizes = {"part": (*shape, p.E), "part_m": shape, "part_l": shape}
    return tuple(Workspace(name, each, "float32") for name, each in sizes.items())

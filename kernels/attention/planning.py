"""What the planners of every unit share: entries of the spec, limits of a launch, tiles of varlen, splits of
a decode."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from portable.kernels._lib.minifloat import format_type
from portable.kernels.attention.params import (
    ELEMENTS,
    LAYOUT,
    PARTIALS,
    TABLES,
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


def fitted(tile: Any, config: Mapping[str, Any], prefix: str = "") -> Any:
    """A NamedTuple with a config's values over its own: tunables are named as its fields, in capitals."""
    values = {field: config.get(prefix + field.upper()) for field in tile._fields}
    return tile._replace(**{field: value for field, value in values.items() if value is not None})


def defines_of(tile: Any) -> dict[str, Any]:
    """A NamedTuple's fields as defines of the same names, in capitals."""
    return {field.upper(): value for field, value in tile._asdict().items()}


def ints(**values: int) -> Arguments:
    return tuple((name, Scalar("i32", value)) for name, value in values.items())


def workspace(name: str) -> Pointer:
    """The address of a workspace; allocations are aligned."""
    return Pointer(name, True)


def optional(**spaces: bool) -> Arguments:
    """Workspaces, null where they are not there."""
    return tuple((name, workspace(name) if there else Scalar("i64", 0)) for name, there in spaces.items())


# --- the gradients of sm80 and AMD ------------------------------------------------------------------------


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
_PREPROCESS_ROWS, _PREPROCESS_THREADS = 16, 256  # of a block of bwd_preprocess.cu


def preprocess(device: Device, p: AttentionParams) -> tuple[Launch, Workspace]:
    """lse_log2 and delta of every query, and where they lie; AMD's steps of 32 queries read past the last.
    AMD copies 16 bytes from any address."""
    copy_bytes = 16 if device.vendor == "rocm" else p.copy_bytes("do", "o")
    defines, tiles = {"COPY_BYTES": copy_bytes, **p.flags("DLSE")}, ceil_div(p.M, _PREPROCESS_ROWS)
    source, entry = DEVICE / "bwd_preprocess.cu", "attention_bwd_preprocess"
    kernel = native_kernel(device, p, source, entry, _PREPROCESS_THREADS, defines)
    args = p.struct("dout o lse dlse stats"), *ints(tiles=tiles)
    stats = Workspace("stats", (p.B * p.H * p.M + 32, 2), "float32")
    return Launch(kernel, (tiles * p.B * p.H, 1, 1), args), stats


# --- launches over tiles, and varlen's tables of them -----------------------------------------------------


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


def tiled(
    p: AttentionParams, kernel: NativeKernel, rows: int, pointers: str, counts: str, of_keys: bool = False
) -> Tiled:
    """The launch of a block per tile of `rows` queries of a head, or else keys of a KV head. After the struct
    with `pointers` the kernel takes some `counts`: tiles of a head, heads of all batches, blocks."""
    tiles, heads = tiles_of(p, rows, of_keys), p.B * (p.G if of_keys else p.H)
    known = {"tiles": tiles, "lines": heads, "blocks": tiles * heads}
    numbers = ints(**{name: known[name] for name in counts.split()})
    args = p.struct(f"{pointers} {TABLES}"), *numbers
    return Tiled(Launch(kernel, (tiles * heads, 1, 1), args), rows, of_keys)


def tiled_plan(
    device: Device, p: AttentionParams, walks: Sequence[Tiled], first: tuple[Launch, Workspace] | None = None
) -> Plan:
    """`first`, which fills its workspace, and the tiled launches, of varlen each after its table of tiles."""
    launches, spaces = ([first[0]], [first[1]]) if first else ([], [])
    table = None
    for launch, rows, of_keys in walks:
        if p.is_varlen and table != (rows, of_keys):
            table = rows, of_keys
            launches.append(tile_table(p, rows, of_keys=of_keys))
        launches.append(launch)
    if p.is_varlen:  # with room for any of the tables
        tokens = max(p.N if each.of_keys else p.M for each in walks)
        spaces += tile_workspaces(p, tokens, min(each.rows for each in walks))
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
    names = ("cu_seqlens_q", "cu_seqlens_k", "bounds", "ranks", "firsts", "tile_list", "tile_counts")
    args: list[tuple[str, Argument]] = [(name, Pointer(name)) for name in names]
    kernel = NativeKernel(DEVICE / "varlen_tiles.cu", "attention_varlen_tiles", 256)
    return Launch(kernel, (1, 1, 1), (*args, *ints(**numbers)))


def tile_workspaces(p: AttentionParams, tokens: int, tile: int) -> tuple[Workspace, ...]:
    """What `tile_table` fills, for tiles of `tile` of the tokens."""
    shapes = {
        "bounds": (p.offsets + 1, 4), "ranks": (p.offsets + 1,), "firsts": (p.offsets + 2,),
        "tile_list": (max_tiles(tokens, p.offsets, tile), 2), "tile_counts": (2,),
    }  # fmt: skip
    return tuple(Workspace(name, shape, "int32") for name, shape in shapes.items())


# --- decode -----------------------------------------------------------------------------------------------


class Decode(NamedTuple):
    """A decode: `tiles` of a KV head's queries; splits of at least `chunk` keys: how many the grid and the
    workspaces have room for, and the most that the GPU has room for. With that a sequence's splits follow
    from its own length, and its bits from it alone."""

    tiles: int
    chunk: int
    splits: int
    max_splits: int

    def defines(self, p: AttentionParams) -> dict[str, Any]:
        return {"D": p.D, "E": p.E, "PAGE": p.page, "CHUNK": self.chunk, **p.flags("LEFT RIGHT SOFTCAP")}

    def native_defines(self, p: AttentionParams) -> dict[str, Any]:
        """Those of a C++ kernel, which has a format of codes as a type."""
        return self.defines(p) | ({"FORMAT": format_type(p.codes)} if p.codes else {})

    def blocks(self, p: AttentionParams) -> int:
        return p.B * p.G * self.tiles * self.splits

    def launch(self, p: AttentionParams, kernel: NativeKernel, pointers: str, maps: Arguments = ()) -> Launch:
        """Of a native kernel."""
        numbers = {"tiles": self.tiles, "splits": self.splits, "max_splits": self.max_splits}
        args = *maps, p.struct(f"q block_table seq_lens {pointers}"), *ints(pages=p.pages, **numbers)
        return Launch(kernel, (self.blocks(p), 1, 1), (*args, *p.scale_arguments))


def decode_of(call: Call, p: AttentionParams, tile_rows: int, resident: int) -> Decode:
    """With splits where blocks of whole sequences leave multiprocessors idle that hold `resident` blocks
    each."""
    tiles, chunk = ceil_div(p.M * p.qheads_per_kvhead, tile_rows), call.config["CHUNK"]
    most = max(1, resident * call.device.multiprocessors // max(1, p.G * tiles))
    return Decode(tiles, chunk, max(1, min(most, ceil_div(p.N, chunk))), most)


def decode_plan(
    call: Call, p: AttentionParams, decode: Decode, split: Launch, combine: Launch | None
) -> Plan:
    """The launch over the splits and, unless it writes o itself, their combination."""
    if combine is None:
        return finished(call.device, [split])
    shape = (p.B, p.H, p.M, decode.splits)
    sizes = ((*shape, p.E), shape, shape)
    spaces = [Workspace(*each, "float32") for each in zip(PARTIALS.split(), sizes, strict=True)]
    return finished(call.device, [split, combine], spaces)

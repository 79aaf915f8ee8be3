"""The plan of attention_fp8's CUDA C++ kernels on wgmma and TMA, Hopper."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from portable.kernels._lib.minifloat import format_type
from portable.kernels.attention.params import AttentionParams, Unsupported
from portable.kernels.attention.planning import finished, fitted, ints, native_kernel, planner, workspace
from portable.kernels.attention.sm90.plan import (
    HEAD_UNIT,
    MAX_ROWS,
    MAX_TILES,
    heads_per_band,
    tensor_maps,
)
from portable.kernels.attention.sm90.plan import Tile as TileOf16Bits
from portable.layout import ceil_div
from portable.plan import Call, Launch, Plan, TensorMap, Workspace

_SOURCE = Path(__file__).resolve().parent / "fwd_fp8.cu"
_LINE = 128  # codes of a line in shared memory
_VALUE_LINES = 128  # columns of v, as many as acc_o and a product beside it have registers for
_VALUE_THREADS = 256


class Tile(NamedTuple):
    """Keys a block, consumer warpgroups of 64 queries, whether they ping-pong, whether a block's product with
    the values is under way beside the next block's scores, and blocks of keys in flight."""

    tile_n: int
    consumers: int
    pingpong: int
    overlap: int
    stages: int

    @property
    def m(self) -> int:
        return 64 * self.consumers

    def shared(self, d: int, e: int, q_stages: int) -> int:
        lines = ceil_div(d, _LINE) * (q_stages * self.m + self.stages * self.tile_n) + self.stages * e
        return 1024 + lines * _LINE + 16 * (q_stages + 2 * self.stages)


# Measured on one H200, 2026-11-27 (docs/notes/attention.md): three consumers that take turns are the fastest
# from 1024 queries on, and a product under way beside scores is slower than one before them.
_MANY, _FEW = Tile(128, 3, 1, 0, 2), Tile(128, 2, 1, 0, 3)
_FEW_QUERIES = 128


@planner
def forward(call: Call, p: AttentionParams) -> Plan:
    """o and lse: the values' blocks transposed into a workspace, then persistent blocks."""
    p.require(MAX_ROWS)
    if p.N == 0:
        raise Unsupported("no keys to copy")
    if p.E > _VALUE_LINES:
        raise Unsupported(f"the head size of v, {p.E}, is above {_VALUE_LINES}")
    for name, size in (("q and k", p.D), ("v", p.E)):
        if size % 16:
            raise Unsupported(f"the head size of {name}, {size}, is no multiple of 16")
    p.require_tma("q k v o", repeats=True)
    tile: Tile = fitted(_FEW if p.M <= _FEW_QUERIES else _MANY, call.config)
    d, e = p.padded(HEAD_UNIT)
    q_stages = 2 if tile.shared(d, e, 2) <= call.device.shared_memory else 1
    tiles, value_tiles = ceil_div(p.M, tile.m) * p.B * p.H, ceil_div(p.N, tile.tile_n)
    if max(tiles, value_tiles * p.B * p.G) > MAX_TILES:
        raise Unsupported(f"{tiles} tiles, or {value_tiles * p.B * p.G} blocks of values, exceed {MAX_TILES}")
    band = heads_per_band(call, p, TileOf16Bits(tile.tile_n, tile.consumers, tile.pingpong))
    steps = [bool(getattr(p.heads[name], side)) for name in "qk" for side in ("head", "batch")]
    format_ = {"FORMAT": format_type(p.codes), "A_ELEMENT": "e4m3", "B_ELEMENT": "e4m3"}
    defines = {
        "HEAD_D": d, "HEAD_E": e, "TILE_N": tile.tile_n, "CONSUMERS": tile.consumers, "Q_STAGES": q_stages,
        "STAGES": tile.stages, "PINGPONG": tile.pingpong, "OVERLAP": tile.overlap, **format_,
        **p.flags("LEFT RIGHT SOFTCAP"),
    }  # fmt: skip
    lines = p.B * p.G * value_tiles
    map_v = TensorMap(
        "v_tiles", p.codes, (_LINE, e, lines, 1), (_LINE, _LINE * e, _LINE * e * lines), (_LINE, e, 1, 1)
    )
    args = (
        *tensor_maps(p, {"q": tile.m, "k": tile.tile_n}),
        ("map_v", map_v),
        p.struct("o lse"),
        *ints(heads_per_band=band, all_heads=p.B * p.H),
        *ints(tma_steps=sum(bit << i for i, bit in enumerate(steps)), value_tiles=value_tiles),
        *p.scale_arguments,
    )
    transposed = native_kernel(
        call.device,
        p,
        _SOURCE,
        "attention_fp8_values",
        _VALUE_THREADS,
        defines | {"OVERLAP": 0, "PINGPONG": 0},
    )
    main = native_kernel(
        call.device, p, _SOURCE, "attention_fwd_fp8_sm90", 128 * (1 + tile.consumers), defines,
        tile.shared(d, e, q_stages),
    )  # fmt: skip
    blocks = min(tiles if band else tiles // 2, call.device.multiprocessors)
    launches = [
        Launch(
            transposed,
            (lines, 1, 1),
            (p.struct("v"), ("v_tiles", workspace("v_tiles")), *ints(tiles=value_tiles)),
        ),
        Launch(main, (blocks, 1, 1), args),
    ]
    return finished(call.device, launches, [Workspace("v_tiles", (lines, e, _LINE), p.codes)])

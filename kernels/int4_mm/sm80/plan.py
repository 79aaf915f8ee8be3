"""The plan of mma.cu: int4_mm of few rows by mma.sync, on Ampere and later."""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

from portable import dtypes
from portable.kernels.matmul.launch_args import size_class
from portable.kernels.scaled_mm.problem import pointer
from portable.layout import ceil_div, rows
from portable.plan import Argument, Call, Launch, NativeKernel, Plan, Pointer, Rejected, Scalar

_SOURCE = Path(__file__).with_name("mma.cu")
MOST_ROWS = 64
UNIT = 32
"""Codes along k: what a product's threads read of a row."""
STEP = 4
"""Units of a warp's step."""
TUNED = ("WARPS_N", "WARPS_K", "ROW_TILES", "STAGES", "RESIDENT")
_RESERVED = 1024  # bytes of shared memory that each block of a multiprocessor takes besides its own
_MOST = 2**31 - 512


class Tile(NamedTuple):
    """Warps along the columns and along k, tiles of 16 columns of a warp, stages at most, and blocks of a
    multiprocessor."""

    warps_n: int
    warps_k: int
    row_tiles: int
    stages: int
    resident: int

    @property
    def columns(self) -> int:
        return self.warps_n * self.row_tiles * 16


class Held(NamedTuple):
    """What a stage holds: rows of x, units that share a scale, and values of each group and column."""

    rows: int
    scaled: int
    values: int

    def stage(self, warps_k: int, columns: int) -> int:
        """Bytes, of all warps' own where they have such."""
        units = warps_k * STEP
        words = self.values * units // self.scaled * columns * 4
        return columns * units * 16 + self.rows * units * 64 + words

    def sums(self, warps_k: int, columns: int) -> int:
        """Bytes of the warps' sums, which take the stages' place."""
        return warps_k * self.rows * (columns + 4) * 4


def few_rows(call: Call) -> Plan | Rejected:
    """Up to MOST_ROWS rows, 16-byte aligned; groups of a multiple of UNIT codes."""
    x, weight = rows(call["x"]), call["weight"]
    N, G, P = weight.shape
    if x.count > MOST_ROWS:
        return Rejected(f"{x.count} rows: more than {MOST_ROWS}")
    if (reason := _unfit(call, x.stride)) is not None:
        return reason
    group_units = P // (UNIT // 2)
    scaled = math.gcd(group_units, STEP)
    given = [name for name in ("zero_point", "offset") if call.has(name)]
    most = 32 if call.has("offset") else MOST_ROWS  # of a block: the sums of x take registers
    held = Held(min(size_class(x.count), most), scaled, 1 + len(given))
    tile = _tile(call, held)
    if tile.stages < 2:
        return Rejected(f"two stages need more than {call.device.shared_memory} bytes of shared memory")
    grid = (ceil_div(N, tile.columns), ceil_div(x.count, held.rows), 1)
    pdl = tile.resident == 1
    kernel = NativeKernel(
        _SOURCE,
        "int4_mm_mma",
        threads=tile.warps_n * tile.warps_k * 32,
        defines=(
            ("ELEMENT", dtypes.of(call["x"].dtype).c),
            ("SCALE", dtypes.of(call["scale"].dtype).c),
            ("X_ROWS", held.rows),
            ("WARPS_N", tile.warps_n),
            ("WARPS_K", tile.warps_k),
            ("ROW_TILES", tile.row_tiles),
            ("STAGES", tile.stages),
            ("RESIDENT", tile.resident),
            ("PDL", int(pdl)),
            ("SCALED", scaled),
            ("GROUPS_OF_SCALED", int(group_units == scaled)),
            ("ZERO_POINT", int(call.has("zero_point"))),
            ("OFFSET", int(call.has("offset"))),
            ("BIAS", int(call.has("bias"))),
            ("VECTOR", 4 if N % 4 == 0 and call["y"].alignment >= 8 else 1),
        ),
        shared=max(
            tile.stages * held.stage(tile.warps_k, tile.columns),
            held.sums(tile.warps_k, tile.columns),
        ),
        pdl=pdl,
    )
    counts = {"rows": x.count, "columns": N, "units": G * group_units, "group_units": group_units}
    args: tuple[tuple[str, Argument], ...] = (
        ("x", Pointer("x", True)),
        ("x_row", Scalar("i64", x.stride)),
        ("weight", Pointer("weight", True)),
        *_values(call, "scale"),
        *_values(call, "zero_point"),
        *_values(call, "offset"),
        ("bias", pointer(call, "bias")),
        ("y", Pointer("y")),
        *((name, Scalar("i32", value)) for name, value in counts.items()),
    )
    return Plan((Launch(kernel, grid, args),))


def _unfit(call: Call, x_stride: int) -> Rejected | None:
    x, weight = call["x"], call["weight"]
    N, G, P = weight.shape
    if P % (UNIT // 2):
        return Rejected(f"groups of {2 * P} codes: not a multiple of {UNIT}")
    if x.alignment < 16 or weight.alignment < 16 or x_stride % 8:
        return Rejected("x or weight has rows that do not start at multiples of 16 bytes")
    if max(N, 2 * G * P) > _MOST:
        return Rejected(f"N and K must be at most {_MOST}")
    return None


def _tile(call: Call, held: Held) -> Tile:
    """What the config says, and the rest by the GPU's size and the rows."""
    device, config = call.device, call.config
    chosen = (_of_few if held.rows <= 16 else _of_more)(call["weight"].shape[0], held, device.multiprocessors)
    tile = chosen._replace(**{name.lower(): config[name] for name in TUNED if name in config})
    space = (device.shared_memory + _RESERVED) // tile.resident - _RESERVED
    while "WARPS_K" not in config and tile.warps_k > 1 and 2 * held.stage(tile.warps_k, tile.columns) > space:
        tile = tile._replace(warps_k=tile.warps_k // 2)
    return tile._replace(stages=min(tile.stages, space // held.stage(tile.warps_k, tile.columns)))


# Microseconds below: launches in a graph on an H200, groups of 128, 2026-11-27 (docs/notes/int4_mm.md).


def _of_few(N: int, held: Held, multiprocessors: int) -> Tile:
    """Up to 16 rows: 12 to 16 warps of a multiprocessor, each with stages of its own."""
    tiles = ceil_div(ceil_div(N, 32), multiprocessors)  # of 32 columns, of the busiest multiprocessor
    if tiles == 1:
        return Tile(1, 8, 2, 8, 1)  # 4096x4096: 5.2 us; four warps 5.9
    if tiles == 2 and held.values < 3:
        # 8192x8192: 1 row 13.3 us, with all stages that fit 15.2; 16 rows 15.7, of two row tiles 16.6
        return Tile(1, 8, 2, 3, 2) if held.rows <= 8 else Tile(1, 8, 4, 8, 1)
    fits = held.values == 1 and held.scaled == STEP  # registers
    if fits and 2 * ceil_div(ceil_div(N, 64), multiprocessors) <= tiles:
        return Tile(1, 4, 4, 4, 3)  # 14336x4096: 1 row 12.9 us, 16 rows 14.9 (of two row tiles 15.7)
    # 28672x8192: 1 row 37.5 us, of four row tiles 41
    return Tile(1, 4, 2, 4, 4 if held.rows <= 8 and held.values == 1 else 3)


def _of_more(N: int, held: Held, multiprocessors: int) -> Tile:
    """Up to 64 rows: warps share x, which fewer and wider blocks read less often."""
    most = 1 if held.rows == MOST_ROWS and held.values > 1 else 2  # row tiles that fit registers
    if ceil_div(N, 128) > multiprocessors:
        return Tile(4, 1, most, 8, 2)  # 28672x8192, 64 rows: 113 us, of eight warps 119
    for warps_n, warps_k in ((4, 2), (2, 4)):
        if ceil_div(N, warps_n * 32) * 5 >= multiprocessors * 4:
            return Tile(warps_n, warps_k, most, 8, 1)  # 14336x4096 31 us and 35, 8192x8192 65 and 35
    return Tile(2, 4, 1, 8, 1)  # 4096x4096: 12 us, of two row tiles 18


def _values(call: Call, name: str) -> tuple[tuple[str, Argument], ...]:
    """A pointer and both strides; zeros where the tensor is absent."""
    short = name.removesuffix("_point")
    row, col = call[name].strides if call.has(name) else (0, 0)
    strides = (f"{short}_row", Scalar("i64", row)), (f"{short}_col", Scalar("i64", col))
    return ((name, pointer(call, name)), *strides)

"""The plan of mma.cu: sparse_mm by sparse mma.sync, on Ampere and later."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from portable import dtypes
from portable.kernels.matmul.launch_args import GROUP_M, MAX_EXTENT, MAX_TILES, ceil, size_class
from portable.kernels.scaled_mm.problem import pointer
from portable.layout import rows
from portable.plan import Argument, Call, Launch, NativeKernel, Plan, Pointer, Rejected, Scalar

_SOURCE = Path(__file__).with_name("mma.cu")
_VALUE_ROW, _X_ROW = 64, 128  # bytes of a row in a stage


class Tile(NamedTuple):
    """Columns and rows of y of a block, and its warps along both."""

    n: int
    m: int
    warps_n: int
    warps_m: int

    @property
    def stage(self) -> int:
        return self.n * _VALUE_ROW + self.m * _X_ROW


_TILES = {16: Tile(64, 16, 4, 1), 32: Tile(64, 32, 4, 1), 64: Tile(128, 64, 4, 2), 128: Tile(128, 128, 4, 2)}
"""By rows of y; nothing is tuned."""
_STAGES = 3


def mma(call: Call) -> Plan | Rejected:
    """One launch; aligned rows, K a multiple of 16."""
    x, (N, J) = rows(call["x"]), call["meta"].shape
    M, K = x.count, 8 * J
    if max(M, N, K) > MAX_EXTENT:
        return Rejected(f"M, N and K must be at most {MAX_EXTENT}")
    if J % 2:
        return Rejected(f"K = {K}: values of a row do not start at multiples of 16 bytes")
    if x.stride % 8 and M > 1:
        return Rejected(
            f"rows of x that start at multiples of 16 bytes are needed; they are {x.stride} apart"
        )
    for name, least in (("x", 16), ("values", 16), ("meta", 2)):
        if call[name].alignment < least:
            return Rejected(f"a base aligned to {least} bytes is needed; that of {name} is not")
    tile = _TILES[min(max(size_class(M), 16), 128)]
    blocks = ceil(M, tile.m) * ceil(N, tile.n)
    if blocks > MAX_TILES:
        return Rejected(f"{blocks} tiles exceed a grid of {MAX_TILES} blocks")
    kernel = NativeKernel(
        _SOURCE,
        "sparse_mm_mma",
        threads=32 * tile.warps_n * tile.warps_m,
        defines=(
            ("ELEMENT", dtypes.of(call["x"].dtype).c),
            ("TILE_N", tile.n),
            ("TILE_M", tile.m),
            ("WARPS_N", tile.warps_n),
            ("WARPS_M", tile.warps_m),
            ("STAGES", _STAGES),
            ("GROUP_N", GROUP_M),
            ("HAS_BIAS", int(call.has("bias"))),
            ("VECTOR", 8 if N % 8 == 0 and call["y"].alignment >= 16 else 1),
        ),
        shared=_STAGES * tile.stage,
    )
    integers = {"rows": M, "columns": N, "k": K}
    args: tuple[tuple[str, Argument], ...] = (
        ("x", Pointer("x", True)),
        ("x_row", Scalar("i64", x.stride)),
        ("values", Pointer("values", True)),
        ("meta", Pointer("meta")),
        ("bias", pointer(call, "bias")),
        ("y", Pointer("y")),
        *((name, Scalar("i32", value)) for name, value in integers.items()),
    )
    return Plan((Launch(kernel, (blocks, 1, 1), args),))

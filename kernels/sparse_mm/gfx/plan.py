"""The plan of matrix.hip: sparse_mm by AMD's matrix instructions, sparse ones on gfx942."""

from __future__ import annotations

from pathlib import Path

from portable import dtypes
from portable.kernels.matmul.launch_args import GROUP_M, MAX_EXTENT, MAX_TILES, ceil
from portable.kernels.scaled_mm.problem import pointer
from portable.layout import rows
from portable.plan import Argument, Call, Launch, NativeKernel, Plan, Pointer, Rejected, Scalar

_SOURCE = Path(__file__).with_name("matrix.hip")
_FEW = 32
"""Rows of y up to which a tile has so many."""
_WAVES = {64: (2, 2), 32: (4, 2)}
"""Of a block of 128 x 128, along both sides, by a wave's lanes: as many threads."""


def matrix(call: Call) -> Plan | Rejected:
    """One launch; operands of any alignment."""
    x, (N, J) = rows(call["x"]), call["meta"].shape
    M, K = x.count, 8 * J
    if max(M, N, K) > MAX_EXTENT:
        return Rejected(f"M, N and K must be at most {MAX_EXTENT}")
    n, (m, waves_n, waves_m) = 128, (_FEW, 4, 1) if M <= _FEW else (128, *_WAVES[call.device.warp_size])
    blocks = ceil(M, m) * ceil(N, n)
    if blocks > MAX_TILES:
        return Rejected(f"{blocks} tiles exceed a grid of {MAX_TILES} blocks")
    kernel = NativeKernel(
        _SOURCE,
        "sparse_mm_matrix",
        threads=call.device.warp_size * waves_n * waves_m,
        defines=(
            ("ELEMENT", dtypes.of(call["x"].dtype).c),
            ("TILE_N", n),
            ("TILE_M", m),
            ("WAVES_N", waves_n),
            ("WAVES_M", waves_m),
            ("GROUP_N", GROUP_M),
            ("HAS_BIAS", int(call.has("bias"))),
        ),
    )
    integers = {"rows": M, "columns": N, "k": K}
    args: tuple[tuple[str, Argument], ...] = (
        ("x", Pointer("x")),
        ("x_row", Scalar("i64", x.stride)),
        ("values", Pointer("values")),
        ("meta", Pointer("meta")),
        ("bias", pointer(call, "bias")),
        ("y", Pointer("y")),
        *((name, Scalar("i32", value)) for name, value in integers.items()),
    )
    return Plan((Launch(kernel, (blocks, 1, 1), args),))

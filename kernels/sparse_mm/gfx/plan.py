"""The plans of matrix.hip: sparse_mm and sparse_scaled_mm by AMD's matrix instructions, sparse ones on
gfx942."""

from __future__ import annotations

from math import gcd
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
    """sparse_mm: one launch; operands of any alignment."""
    return _plan(call, "x", "y")


def scaled(call: Call) -> Plan | Rejected:
    """sparse_scaled_mm: the same."""
    return _plan(call, "mat_a", "c")


def _plan(call: Call, name: str, result: str) -> Plan | Rejected:
    """One launch of the kernel whose x and y have these names, with scales or without."""
    x, (N, J) = rows(call[name]), call["meta"].shape
    M, K, size = x.count, 8 * J, dtypes.itemsize(call[name].dtype)
    if max(M, N, K) > MAX_EXTENT:
        return Rejected(f"M, N and K must be at most {MAX_EXTENT}")
    n, (m, waves_n, waves_m) = 128, (_FEW, 4, 1) if M <= _FEW else (128, *_WAVES[call.device.warp_size])
    blocks = ceil(M, m) * ceil(N, n)
    if blocks > MAX_TILES:
        return Rejected(f"{blocks} tiles exceed a grid of {MAX_TILES} blocks")
    steps = (x.stride * size, K * size, call[name].alignment, K // 2 * size, call["values"].alignment)
    kernel = NativeKernel(
        _SOURCE,
        "sparse_mm_matrix",
        threads=call.device.warp_size * waves_n * waves_m,
        defines=(
            ("ELEMENT", "uint8_t" if size == 1 else dtypes.of(call[name].dtype).c),
            ("RESULT", dtypes.of(call[result].dtype).c),
            ("TILE_N", n),
            ("TILE_M", m),
            ("WAVES_N", waves_n),
            ("WAVES_M", waves_m),
            ("GROUP_N", GROUP_M),
            ("HAS_BIAS", int(call.has("bias"))),
            ("ALIGNED", int(gcd(16, *steps) == 16)),
            ("META_UNIT", gcd(16, J, call["meta"].alignment)),
        ),
    )
    args: list[tuple[str, Argument]] = [
        ("x", Pointer(name)),
        ("x_row", Scalar("i64", x.stride)),
        ("values", Pointer("values")),
        ("meta", Pointer("meta")),
    ]
    for operand, tensor, axis in (("x", "scale_a", 0), ("w", "scale_b", 1)):
        step = call[tensor].strides[axis] if call.has(tensor) else 0
        args += [(f"scale_{operand}", pointer(call, tensor)), (f"scale_{operand}_step", Scalar("i64", step))]
    integers = {"rows": M, "columns": N, "k": K}
    args += [
        ("bias", pointer(call, "bias")),
        ("y", Pointer(result)),
        *((each, Scalar("i32", value)) for each, value in integers.items()),
    ]
    return Plan((Launch(kernel, (blocks, 1, 1), tuple(args)),))

"""The plan of widen_codes.cu and widened.cu: int4_mm of many rows, of numbers that a first launch writes.

A code less its zero point is exact in 16 bits, and its scale stays in float32, as in wgmma.cu. That makes the
numbers again for each tile of rows of x; with many such tiles it is faster to make them once.
"""

from __future__ import annotations

from pathlib import Path

from portable import dtypes
from portable.kernels.int4_mm.reference import ZERO_POINT
from portable.kernels.int4_mm.sm90 import wgmma_plan
from portable.kernels.matmul.launch_args import GROUP_M, MAX_TILES, ceil
from portable.kernels.scaled_mm.problem import pointer
from portable.layout import rows
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
    TensorMap,
    Workspace,
)

_SOURCE = Path(__file__).with_name("widened.cu")
_CODES_SOURCE = Path(__file__).with_name("widen_codes.cu")
_CODES_ROWS, _CODES_STEPS = 8, 4  # of a block of widen_codes.cu
_NUMBERS, _SCALES = "numbers", "scales"
CHUNK = 128
"""k whose products are summed before they meet a scale: groups are multiples of it."""
_TILE_K = 64  # of a stage
_EPILOGUE = 1500  # clocks of a tile beyond its products
_BYTES, _LAUNCH = 2200, 4000  # of memory in a clock, while numbers are made; clocks of the launch that does
_ROWS, _COLUMNS = 192, 128
"""Of the weight and of x, of a tile: 64 rows for each of three warpgroups. H200, 2026-11-27, 14336x4096, 4096
rows: 737 us; 801 in tiles of 128x128 of two warpgroups with two sums each, 852 in 128x192 with one."""
_STEP = 895  # clocks of a multiprocessor for 64 k of a tile: of eight sizes each takes the faster kernel


def widened(call: Call) -> Plan | Rejected:
    """Two launches, where they are faster than wgmma.cu's one."""
    M, N, K, group = wgmma_plan.sizes(call)
    if (reason := wgmma_plan.unfit(call, M, N, K, group)) is not None:
        return reason
    if group % CHUNK:
        return Rejected(f"groups of {group} k: not a multiple of {CHUNK}")
    if call.has("offset"):
        return Rejected("an offset: wgmma adds its part on the way")
    tiles = ceil(N, _ROWS) * ceil(M, _COLUMNS)
    waves = ceil(tiles, call.device.multiprocessors)
    there = waves * (K // _TILE_K * _STEP + _EPILOGUE) + _LAUNCH + N * K * 2.5 / _BYTES
    if there >= (fused := wgmma_plan.clocks(call)):
        return Rejected(
            f"{M} rows: numbers made once take {there:.0f} clocks, made for each tile {fused:.0f}"
        )
    if tiles > MAX_TILES:
        return Rejected(f"{tiles} tiles exceed {MAX_TILES}")
    pitch = ceil(N, _ROWS) * _ROWS
    launches = (_numbers(call, N, K, group, pitch), _product(call, tiles, group, pitch))
    kind = call["x"].dtype
    spaces = Workspace(_NUMBERS, (N, K), kind), Workspace(_SCALES, (K // group, pitch), "float32")
    return Plan(launches, spaces)


def _numbers(call: Call, N: int, K: int, group: int, pitch: int) -> Launch:
    kernel = NativeKernel(
        _CODES_SOURCE,
        "widen_codes",
        threads=_CODES_ROWS * 32,
        defines=(
            ("ELEMENT", dtypes.of(call["x"].dtype).c),
            ("SCALE", dtypes.of(call["scale"].dtype).c),
            ("HAS_ZERO_POINT", int(call.has("zero_point"))),
            ("ZERO_POINT", ZERO_POINT),
            ("ROWS", _CODES_ROWS),
            ("STEPS", _CODES_STEPS),
        ),
        pdl=True,
    )
    steps: list[tuple[str, Argument]] = []
    for short, name in (("scale", "scale"), ("zero", "zero_point")):
        row, col = call[name].strides if call.has(name) else (0, 0)
        steps += [(f"{short}_row", Scalar("i32", row)), (f"{short}_col", Scalar("i32", col))]
    args: tuple[tuple[str, Argument], ...] = (
        *((name, pointer(call, name)) for name in ("weight", "scale", "zero_point")),
        ("numbers", Pointer(_NUMBERS, True)),
        ("scales", Pointer(_SCALES, True)),
        *((name, Scalar("i32", value)) for name, value in (("n", N), ("k", K), ("group", group))),
        ("pitch", Scalar("i32", pitch)),
        *steps,
    )
    return Launch(kernel, (ceil(N, _CODES_ROWS), ceil(K, 256 * _CODES_STEPS), 1), args)


def _product(call: Call, tiles: int, group: int, pitch: int) -> Launch:
    M, N, K, _ = wgmma_plan.sizes(call)
    x, device = call["x"], call.device
    pitch_x = rows(x).stride if M > 1 else K
    stages, shared = _shared(device)
    kernel = NativeKernel(
        _SOURCE,
        "int4_mm_widened",
        threads=_ROWS * 2 + 128,
        defines=(
            ("ELEMENT", dtypes.of(x.dtype).c),
            ("CONSUMER_WARPGROUPS", _ROWS // 64),
            ("TILE_N", _COLUMNS),
            ("STAGES", stages),
            ("GROUP_M", GROUP_M),
            ("HAS_BIAS", int(call.has("bias"))),
        ),
        shared=shared,
        pdl=True,
    )
    integers = {"m": M, "n": N, "k": K, "tiles": tiles, "pitch": pitch, "chunks": group // CHUNK}
    numbers_box, x_box = (_TILE_K, _ROWS, 1, 1), (_TILE_K, _COLUMNS, 1, 1)
    args: tuple[tuple[str, Argument], ...] = (
        ("map_numbers", TensorMap(_NUMBERS, x.dtype, (K, N, 1, 1), (K * 2,) * 3, numbers_box)),
        ("map_x", TensorMap("x", x.dtype, (K, M, 1, 1), (pitch_x * 2,) * 3, x_box)),
        ("map_y", TensorMap("y", x.dtype, (N, M, 1, 1), (N * 2,) * 3, (64, 64, 1, 1))),
        ("scales", Pointer(_SCALES, True)),
        ("bias", pointer(call, "bias")),
        ("y", Pointer("y", True)),
        *((name, Scalar("i32", value)) for name, value in integers.items()),
    )
    return Launch(kernel, (min(tiles, device.multiprocessors), 1, 1), args)


def _shared(device: Device) -> tuple[int, int]:
    """Stages, two for a chunk, as many as fit beside y's buffers; and bytes of shared memory."""
    rest = 1024 + _ROWS // 64 * 2 * 8192
    pair = 2 * ((_ROWS + _COLUMNS) * 128 + 16) + _ROWS * 4  # with barriers and scales
    pairs = (device.shared_memory - rest) // pair
    return 2 * pairs, rest + pairs * pair

"""The plans of matrix.hip: products of weights in 4 bits by AMD's matrix instructions."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from portable import dtypes
from portable.kernels.matmul.launch_args import ACTIVATIONS, MAX_EXTENT, MAX_TILES, ceil
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
    Workspace,
)

_FOLDER = Path(__file__).resolve().parent
_SOURCE, _SUMS_SOURCE = _FOLDER / "matrix.hip", _FOLDER / "group_sums.hip"
_REDUCE_SOURCE = _FOLDER.parents[1] / "matmul/gfx/splitk_reduce.hip"
_STEP_BYTES = 128  # of a row of x
_SUMS_ROWS, _REDUCE_THREADS, _RUN = 4, 256, 8
_SUMS, _PARTIALS = "x_sums", "partials"


class Tile(NamedTuple):
    """Rows and columns of y of a block, its waves along both, and blocks that fit a compute unit."""

    m: int
    n: int
    waves_m: int
    waves_n: int
    resident: int


_LARGE = {64: Tile(128, 128, 1, 4, 2), 32: Tile(128, 128, 2, 4, 1)}
"""By a wave's lanes. On CDNA a code is made a number by one wave alone; RDNA's waves have half the registers."""
_MIDDLE = {64: Tile(64, 128, 1, 4, 2), 32: Tile(64, 128, 1, 4, 1)}
_SMALL = {64: Tile(32, 128, 1, 4, 2), 32: Tile(32, 128, 1, 4, 1)}
_FEW = {64: Tile(16, 128, 1, 4, 2), 32: Tile(16, 128, 1, 4, 1)}


class Steps(NamedTuple):
    """How groups fit the steps along k (matrix.hip)."""

    spans: int
    single: bool
    even: bool


def steps_of(group_k: int, k: int, step: int, most_spans: int) -> Steps:
    """Several groups in a step where they divide it, else one group in one or more steps."""
    if group_k and step % group_k == 0 and step // group_k <= most_spans:
        return Steps(step // group_k, True, k % step == 0)
    return Steps(1, group_k <= step, group_k % step == 0)


def int4_mm(call: Call) -> Plan | Rejected:
    """One launch, after one that sums x over groups where there are offsets; operands of any alignment."""
    x, N = rows(call["x"]), call["weight"].shape[0]
    tile = tile_of(x.count, N, call.device)
    found = _product(call, tile)
    if isinstance(found, Rejected):
        return found
    return Plan((*_x_sums(call), found), _workspaces(call))


def tile_of(M: int, N: int, device: Device) -> Tile:
    """The largest tile that gives every multiprocessor a block, but for rows that a smaller one holds."""
    lanes = device.warp_size
    for tile in (_LARGE[lanes], _MIDDLE[lanes], _SMALL[lanes]):
        if M > tile.m // 2 and ceil(M, tile.m) * ceil(N, tile.n) >= device.multiprocessors:
            return tile
    return next(tile for tile in (_FEW[lanes], _SMALL[lanes]) if M <= tile.m or tile.m == 32)


def _product(call: Call, tile: Tile, part_groups: int = 0) -> Launch | Rejected:
    """matrix.hip's; of `part_groups` groups a block where that is not 0."""
    x, (N, G, P) = rows(call["x"]), call["weight"].shape
    M, element = x.count, dtypes.of(call["x"].dtype)
    if max(M, N, 2 * G * P) > MAX_EXTENT:
        return Rejected(f"M, N and K must be at most {MAX_EXTENT}")
    tiles_m, tiles_n = ceil(M, tile.m), ceil(N, tile.n)
    if tiles_m * tiles_n > MAX_TILES:
        return Rejected(f"{tiles_m * tiles_n} tiles exceed a grid of {MAX_TILES} blocks")
    k_step = _STEP_BYTES // element.itemsize
    steps = steps_of(2 * P, 2 * (part_groups or G) * P, k_step, k_step // 32)
    result = call["y"]
    far = max(tile.m * abs(x.stride) * element.itemsize, tile.n * G * P) >= 2**31 - 2**16
    parts = ceil(G, part_groups) if part_groups else 1
    kernel = NativeKernel(
        _SOURCE,
        "int4_mm_matrix",
        threads=call.device.warp_size * tile.waves_n * tile.waves_m,
        defines=(
            ("INTEGER", 0),
            ("TILE_N", tile.n),
            ("TILE_M", tile.m),
            ("WAVES_N", tile.waves_n),
            ("WAVES_M", tile.waves_m),
            ("RESIDENT", tile.resident),
            ("SPANS", steps.spans),
            ("SINGLE", int(steps.single)),
            ("WHOLE_STEPS", int(steps.even)),
            ("OFFSET_TYPE", "int64_t" if far else "uint32_t"),
            ("ELEMENT", element.c),
            ("SCALE", dtypes.of(call["scale"].dtype).c),
            ("RESULT", dtypes.of(result.dtype).c),
            ("ZERO_POINT", int(call.has("zero_point"))),
            ("OFFSET", int(call.has("offset"))),
            ("BIAS", int(call.has("bias") and not part_groups)),
            ("PARTIAL", int(part_groups > 0)),
            ("DIES", 8 if call.device.arch in ("gfx942", "gfx950") and not part_groups else 1),
        ),
    )
    of_groups: list[tuple[str, Argument]] = []
    for name, short in (("scale", "scale"), ("zero_point", "zero"), ("offset", "offset")):
        row, col = call[name].strides if call.has(name) else (0, 0)
        of_groups += [
            (name, pointer(call, name)),
            (f"{short}_row", Scalar("i64", row)),
            (f"{short}_col", Scalar("i64", col)),
        ]
    integers = {
        "rows": M,
        "columns": N,
        "groups": G,
        "group_k": 2 * P,
        "part_groups": part_groups,
        "tiles_m": tiles_m,
        "tiles_n": tiles_n,
    }
    args: tuple[tuple[str, Argument], ...] = (
        ("x", Pointer("x")),
        ("x_row", Scalar("i64", x.stride)),
        ("weight", Pointer("weight")),
        *of_groups,
        ("x_sums", Pointer(_SUMS) if call.has("offset") else Scalar("i64", 0)),
        ("scale_a", Scalar("i64", 0)),
        ("scale_a_row", Scalar("i64", 0)),
        ("bias", pointer(call, "bias")),
        ("y", Pointer(_PARTIALS if part_groups else "y")),
        ("y_row", Scalar("i64", ceil(N, _RUN) * _RUN if part_groups else N)),
        *((name, Scalar("i32", value)) for name, value in integers.items()),
    )
    return Launch(kernel, (tiles_m * tiles_n, parts, 1), args)


def _workspaces(call: Call) -> tuple[Workspace, ...]:
    """x's sums over groups, where there are offsets."""
    M, G = rows(call["x"]).count, call["weight"].shape[1]
    return (Workspace(_SUMS, (G, M), "float32"),) if call.has("offset") else ()


def _x_sums(call: Call) -> tuple[Launch, ...]:
    if not call.has("offset"):
        return ()
    x, (_, G, P) = rows(call["x"]), call["weight"].shape
    kernel = NativeKernel(
        _SUMS_SOURCE,
        "int4_mm_group_sums",
        threads=_SUMS_ROWS * call.device.warp_size,
        defines=(("ELEMENT", dtypes.of(call["x"].dtype).c), ("ROWS", _SUMS_ROWS)),
    )
    args: tuple[tuple[str, Argument], ...] = (
        ("x", Pointer("x")),
        ("sums", Pointer(_SUMS)),
        ("rows", Scalar("i32", x.count)),
        ("group_k", Scalar("i32", 2 * P)),
        ("x_row", Scalar("i64", x.stride)),
    )
    return (Launch(kernel, (ceil(x.count, _SUMS_ROWS), G, 1), args),)

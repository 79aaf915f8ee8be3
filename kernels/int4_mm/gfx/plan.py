"""The plans of matrix.hip: products of weights in 4 bits by AMD's matrix instructions."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from portable import dtypes
from portable.dtypes import itemsize
from portable.kernels.int4_mm.int8_triton_impl import MOST_GROUP
from portable.kernels.matmul.launch_args import ACTIVATIONS, MAX_EXTENT, MAX_TILES, ceil
from portable.kernels.scaled_mm.problem import pointer
from portable.layout import Rows, rows
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
    TensorInfo,
    Workspace,
)

_FOLDER = Path(__file__).resolve().parent
_SOURCE, _SUMS_SOURCE = _FOLDER / "matrix.hip", _FOLDER / "group_sums.hip"
_REDUCE_SOURCE = _FOLDER.parents[1] / "matmul/gfx/splitk_reduce.hip"
_STEP_BYTES, _LEAST_SPAN = 128, 32  # of a row of x; k of the shortest groups of which a step has several
_SUMS_ROWS, _REDUCE_THREADS, _RUN = 4, 256, 8
_SUMS, _PARTIALS = "x_sums", "partials"
_LEAST_STEPS, _MOST_PARTS = 4, 16  # steps along k of a part at least; parts at most
_FAR = 2**31 - 2**16  # bytes from a tile's first row, beyond which offsets have 64 bits


class Tile(NamedTuple):
    """Rows and columns of y of a block, its waves along both, and blocks that must fit a compute unit."""

    m: int
    n: int
    waves_m: int
    waves_n: int
    resident: int


LARGE = {64: Tile(128, 128, 1, 4, 2), 32: Tile(128, 128, 2, 4, 1)}
"""By a wave's lanes. On CDNA one wave alone makes numbers of a code; RDNA's waves hold half as many sums."""
SMALLER = {
    64: (Tile(16, 128, 1, 4, 2), Tile(32, 128, 1, 4, 2), Tile(64, 128, 1, 4, 2)),
    32: (Tile(16, 128, 1, 4, 1), Tile(32, 128, 1, 4, 1), Tile(64, 128, 1, 4, 1)),
}
SPLIT_ROWS = {64: ((64, 4), (128, 2)), 32: ((32, 4),)}
"""Rows up to which tiles are computed in parts, and the blocks of each compute unit then (modelled)."""


def whole(call: Call) -> Plan | Rejected:
    """One launch, after one that sums x over groups where there are offsets; operands of any alignment."""
    M, N, lanes = _x(call).count, call["weight"].shape[0], call.device.warp_size
    named = call.config.get("TILE_M")
    tile = next((tile for tile in (*SMALLER[lanes], LARGE[lanes]) if tile.m == named), None)
    found = _product(call, tile or tile_of(M, N, call.device))
    if isinstance(found, Rejected):
        return found
    return Plan((*_x_sums(call), found), _workspaces(call))


def splitk(call: Call) -> Plan | Rejected:
    """Few rows: tiles in parts of whole groups along k, as many as fill the GPU, and matmul's sum of the
    parts. Rejects what has enough tiles, or too few groups."""
    M, (N, G, P), device = _x(call).count, call["weight"].shape, call.device
    blocks = next((blocks for most, blocks in SPLIT_ROWS[device.warp_size] if most >= M), 0)
    if not blocks:
        return Rejected(f"{M} rows: more than {SPLIT_ROWS[device.warp_size][-1][0]}")
    tile = _lowest(M, device)
    tiles = ceil(M, tile.m) * ceil(N, tile.n)
    wanted = min(blocks * device.multiprocessors // max(1, tiles), _MOST_PARTS)
    least = ceil(_LEAST_STEPS * _STEP_BYTES // itemsize(_x_info(call).dtype), max(1, 2 * P))
    part_groups = max(ceil(G, max(1, wanted)), least)
    parts = ceil(G, part_groups)
    if parts < 2 or M * N * P == 0:
        return Rejected(f"{tiles} tiles of {G} groups: none is computed in parts")
    found = _product(call, tile, part_groups)
    if isinstance(found, Rejected):
        return found
    row = ceil(N, _RUN) * _RUN
    partials = Workspace(_PARTIALS, (parts, M, row), "float32")
    return Plan((*_x_sums(call), found, _reduction(call, parts, row)), (*_workspaces(call), partials))


def tile_of(M: int, N: int, device: Device) -> Tile:
    """The largest tile that has no empty half and of which every compute unit gets one, else one of 16 rows
    or of 32."""
    for tile in (LARGE[device.warp_size], *SMALLER[device.warp_size][:0:-1]):
        if tile.m < 2 * M and ceil(M, tile.m) * ceil(N, tile.n) >= device.multiprocessors:
            return tile
    return _lowest(min(M, 32), device)


def _lowest(M: int, device: Device) -> Tile:
    large = LARGE[device.warp_size]
    return next((tile for tile in SMALLER[device.warp_size] if tile.m >= M), large)


class Steps(NamedTuple):
    """How groups fit the steps along k (matrix.hip)."""

    spans: int
    single: bool
    whole: bool


def steps_of(group_k: int, k: int, step: int) -> Steps:
    """Several groups in a step where they divide it, else one group in one or more steps; k of a block."""
    if group_k >= _LEAST_SPAN and step % group_k == 0:
        return Steps(step // group_k, True, k % step == 0)
    return Steps(1, group_k <= step, group_k % step == 0)


def _is_int8(call: Call) -> bool:
    return call.has("mat_a")


def _x_info(call: Call) -> TensorInfo:
    return call["mat_a" if _is_int8(call) else "x"]


def _x(call: Call) -> Rows:
    return rows(_x_info(call))


def _y(call: Call) -> str:
    return "c" if _is_int8(call) else "y"


def _product(call: Call, tile: Tile, part_groups: int = 0) -> Launch | Rejected:
    """matrix.hip's; of `part_groups` groups a block where that is not 0."""
    x, int8, (N, G, P) = _x(call), _is_int8(call), call["weight"].shape
    M, element = x.count, dtypes.of(_x_info(call).dtype)
    if max(M, N, 2 * G * P) > MAX_EXTENT:
        return Rejected(f"M, N and K must be at most {MAX_EXTENT}")
    if int8 and 2 * P > MOST_GROUP:
        return Rejected(f"groups of {2 * P}: sums in int32 are exact up to {MOST_GROUP}")
    tiles_m, tiles_n = ceil(M, tile.m), ceil(N, tile.n)
    if tiles_m * tiles_n > MAX_TILES:
        return Rejected(f"{tiles_m * tiles_n} tiles exceed a grid of {MAX_TILES} blocks")
    in_parts = part_groups > 0
    groups = [part_groups, G % part_groups] if in_parts else [G]
    found = [steps_of(2 * P, 2 * each * P, _STEP_BYTES // element.itemsize) for each in groups]
    spans, single, _ = found[0]
    far = max(tile.m * abs(x.stride) * element.itemsize, tile.n * G * P) >= _FAR
    has_offset = not int8 and call.has("offset")
    kernel = NativeKernel(
        _SOURCE,
        "int4_mm_matrix",
        threads=call.device.warp_size * tile.waves_n * tile.waves_m,
        defines=(
            ("INTEGER", int(int8)),
            ("TILE_N", tile.n),
            ("TILE_M", tile.m),
            ("WAVES_N", tile.waves_n),
            ("WAVES_M", tile.waves_m),
            ("RESIDENT", tile.resident),
            ("SPANS", spans),
            ("SINGLE", int(single)),
            ("WHOLE_STEPS", int(all(each.whole for each in found))),
            ("OFFSET_TYPE", "int64_t" if far else "uint32_t"),
            ("ELEMENT", "int8_t" if int8 else element.c),
            ("SCALE", dtypes.of(call["scale"].dtype).c),
            ("RESULT", dtypes.of(call[_y(call)].dtype).c),
            ("ZERO_POINT", int(call.has("zero_point"))),
            ("OFFSET", int(has_offset)),
            ("BIAS", int(call.has("bias") and not in_parts)),
            ("PARTIAL", int(in_parts)),
            ("DIES", 8 if call.device.arch in ("gfx942", "gfx950") and not in_parts else 1),
        ),
    )
    of_groups: list[tuple[str, Argument]] = []
    for name in ("scale", "zero_point", "offset"):
        given = (name != "offset" or has_offset) and call.has(name)
        row, col = call[name].strides if given else (0, 0)
        of_groups += [(name, Pointer(name) if given else Scalar("i64", 0))]
        of_groups += [(f"{name}_row", Scalar("i64", row)), (f"{name}_col", Scalar("i64", col))]
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
        ("x", Pointer("mat_a" if int8 else "x")),
        ("x_row", Scalar("i64", x.stride)),
        ("weight", Pointer("weight")),
        *of_groups,
        ("x_sums", Pointer(_SUMS) if has_offset else Scalar("i64", 0)),
        ("scale_a", Pointer("scale_a") if int8 else Scalar("i64", 0)),
        ("scale_a_row", Scalar("i64", call["scale_a"].strides[0] if int8 else 0)),
        ("bias", pointer(call, "bias")),
        ("y", Pointer(_PARTIALS if in_parts else _y(call))),
        ("y_row", Scalar("i64", ceil(N, _RUN) * _RUN if in_parts else N)),
        *((name, Scalar("i32", value)) for name, value in integers.items()),
    )
    return Launch(kernel, (tiles_m * tiles_n, ceil(G, part_groups) if in_parts else 1, 1), args)


def _reduction(call: Call, parts: int, row: int) -> Launch:
    M, N = _x(call).count, call["weight"].shape[0]
    kernel = NativeKernel(
        _REDUCE_SOURCE,
        "matmul_splitk_reduce",
        threads=_REDUCE_THREADS,
        defines=(
            ("T", dtypes.of(call[_y(call)].dtype).c),
            ("THREADS", _REDUCE_THREADS),
            ("C_ROW_MAJOR", 1),
            ("BIAS", int(call.has("bias"))),
            ("ACTIVATION", ACTIVATIONS[None]),
        ),
    )
    counts = {"M": M, "N": N, "parts": parts}
    strides = {"row": row, "apart": M * row, "c_row": N, "c_col": 1}
    args: tuple[tuple[str, Argument], ...] = (
        ("partials", Pointer(_PARTIALS)),
        ("c", Pointer(_y(call))),
        ("bias", pointer(call, "bias")),
        *((name, Scalar("i32", value)) for name, value in counts.items()),
        *((name, Scalar("i64", value)) for name, value in strides.items()),
    )
    return Launch(kernel, (ceil(M * row // _RUN, _REDUCE_THREADS), 1, 1), args)


def _workspaces(call: Call) -> tuple[Workspace, ...]:
    """x's sums over groups, where there are offsets."""
    if _is_int8(call) or not call.has("offset"):
        return ()
    return (Workspace(_SUMS, (call["weight"].shape[1], _x(call).count), "float32"),)


def _x_sums(call: Call) -> tuple[Launch, ...]:
    if _is_int8(call) or not call.has("offset"):
        return ()
    x, (_, G, P) = _x(call), call["weight"].shape
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

"""The plans of wgmma.cu: int4_mm by Hopper's wgmma, the weight's numbers made in registers; whole tiles, or
tiles in parts along K (split-K), which matmul's splitk_reduce.cu adds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from portable import dtypes
from portable.kernels.int4_mm.reference import ZERO_POINT
from portable.kernels.matmul.launch_args import ACTIVATIONS, GROUP_M, MAX_EXTENT, MAX_TILES, ceil
from portable.kernels.matmul.sm90 import splitk_plan
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

_SOURCE = Path(__file__).with_name("wgmma.cu")
_SUMS_SOURCE = Path(__file__).with_name("chunk_sums.cu")
_SUMS_ROWS, _SUMS_STEPS = 8, 8  # of a block of chunk_sums.cu
_SUMS, _PARTIALS = "chunk_sums", "partials"
_OF_GROUPS = ("scale", "zero_point", "offset")
_CHUNKS = (128, 64, 32)
"""k whose products are summed before they meet a scale: the longest of which a group is a multiple."""
_TILE_N, _X_K, _WEIGHT_K = 128, 64, 256  # columns of y of a tile; k of a stage of x, and of the weight
_WEIGHT_STAGES, _MOST_STAGES = 3, 8
_THREADS = 384
_Y_BYTES = 2 * 2 * 8192  # blocks of y on their way
_EPILOGUE = 1500  # clocks of a tile beyond its products
_STEPS = {128: 710, 64: 530}  # clocks of a multiprocessor for 64 k of a tile, by its rows (H200, 2026-11-27)


_FEW, _MOST_PARTS = 32, 16  # rows that mma.cu takes better; parts of a tile


class _Tiles(NamedTuple):
    """A product in tiles of `rows` rows of x, each in `parts` along K, of `stages` stages of the weight."""

    rows: int
    tiles: int
    parts: int
    stages: int

    def clocks(self, device: Device) -> float:
        waves = ceil(self.tiles * self.parts, device.multiprocessors)
        found = waves * (self.stages * (_WEIGHT_K // _X_K) * _STEPS[self.rows] + _EPILOGUE)
        added = self.tiles * self.parts * self.rows * _TILE_N * 4
        return found + (splitk_plan.REDUCE + added / splitk_plan.BYTES if self.parts > 1 else 0.0)


def _tiles(call: Call, M: int, N: int, K: int, most_parts: int = 1) -> _Tiles:
    """The fastest tiles, in no more parts than fill the GPU once."""
    device, stages = call.device, ceil(K, _WEIGHT_K)
    given = call.config.get("TILE_M")
    options = []
    for rows_of in (given,) if given else _STEPS:
        tiles = ceil(M, rows_of) * ceil(N, _TILE_N)
        for wanted in range(1, max(1, min(most_parts, device.multiprocessors // tiles)) + 1):
            of_part = ceil(stages, wanted)
            options.append(_Tiles(rows_of, tiles, ceil(stages, of_part), of_part))
    return min(options, key=lambda each: each.clocks(device))


@dataclass(frozen=True)
class _Shared:
    """Bytes of shared memory: of the values of a stage of the weight, and of all."""

    values: int
    stages: int
    total: int


def wgmma(call: Call) -> Plan | Rejected:
    """One launch; with an offset a first one adds up x over the groups' chunks."""
    M, N, K, group = sizes(call)
    return unfit(call, M, N, K, group) or _planned(call, _tiles(call, M, N, K))


def splitk(call: Call) -> Plan | Rejected:
    """Tiles in parts along K where that is faster. Of more rows than mma.cu is better with, up to those of a
    tile, also whole ones."""
    M, N, K, group = sizes(call)
    if (reason := unfit(call, M, N, K, group)) is not None:
        return reason
    if M <= _FEW:
        return Rejected(f"{M} rows: mma is faster up to {_FEW}")
    tiles = _tiles(call, M, N, K, _MOST_PARTS)
    if tiles.parts == 1 and min(_STEPS) < M:
        return Rejected(f"split-K not needed: {tiles.tiles} tiles for {call.device.multiprocessors} SMs")
    return _planned(call, tiles)


def clocks(call: Call) -> float:
    """What `wgmma` is estimated to take without a config."""
    M, N, K, _ = sizes(call)
    return _tiles(replace(call, config={}), M, N, K).clocks(call.device)


def sizes(call: Call) -> tuple[int, int, int, int]:
    """M, N, K and the k of a group."""
    view, (N, _, P) = rows(call["x"]), call["weight"].shape
    return view.count, N, view.length, 2 * P


def _planned(call: Call, chosen: _Tiles) -> Plan | Rejected:
    M, N, K, group = sizes(call)
    x = call["x"]
    pitch_x = rows(x).stride if M > 1 else K
    chunk = next(each for each in _CHUNKS if group % each == 0)
    tile_m, parts = chosen.rows, chosen.tiles * chosen.parts
    if parts > MAX_TILES:
        return Rejected(f"{parts} tiles exceed {MAX_TILES}")
    shared, split = _shared(call, tile_m, chunk), chosen.parts > 1
    pitch = ceil(M, tile_m) * tile_m
    box = min(ceil(M, 8) * 8, tile_m)  # rows outside x take TMA longer than those inside
    kernel = NativeKernel(
        _SOURCE,
        "int4_mm_wgmma",
        threads=_THREADS,
        defines=(
            ("ELEMENT", dtypes.of(x.dtype).c),
            ("SCALE", dtypes.of(call["scale"].dtype).c),
            ("TILE_M", tile_m),
            ("CHUNK", chunk),
            ("STAGES", shared.stages),
            ("WEIGHT_STAGES", _WEIGHT_STAGES),
            ("GROUP_N", GROUP_M),
            ("BOX_ROWS", box),
            ("ZERO_POINT", ZERO_POINT),
            *((f"HAS_{name.upper()}", int(call.has(name))) for name in ("zero_point", "offset", "bias")),
            ("SPLIT_K", int(split)),
        ),
        shared=shared.total,
        pdl=True,
    )
    integers = {
        **{"m": M, "n": N, "k": K, "tiles": parts, "k_splits": chosen.parts, "split_stages": chosen.stages},
        **{"chunks": group // chunk, "pitch": pitch},
    }
    has_offset = call.has("offset")
    args: tuple[tuple[str, Argument], ...] = (
        ("map_x", TensorMap("x", x.dtype, (K, M, 1, 1), (pitch_x * 2,) * 3, (_X_K, box, 1, 1))),
        ("map_weight", TensorMap("weight", "uint8", (K // 2, N, 1, 1), (K // 2,) * 3, (128, _TILE_N, 1, 1))),
        ("map_y", TensorMap("y", x.dtype, (N, M, 1, 1), (N * 2,) * 3, (64, 64, 1, 1))),
        *((name, pointer(call, name)) for name in _OF_GROUPS),
        ("sums", Pointer(_SUMS, True) if has_offset else Scalar("i64", 0)),
        ("bias", pointer(call, "bias")),
        ("y", Pointer("y", True)),
        ("partials", Pointer(_PARTIALS, True) if split else Scalar("i64", 0)),
        *((name, Scalar("i32", value)) for name, value in integers.items()),
        *_strides(call),
    )
    launches = [Launch(kernel, (min(parts, call.device.multiprocessors), 1, 1), args)]
    workspaces = []
    if has_offset:
        launches.insert(0, _chunk_sums(call, chunk, pitch))
        workspaces.append(Workspace(_SUMS, (K // chunk, pitch), "float32"))
    if split:
        launches.append(_reduction(call, chosen))
        workspaces.append(Workspace(_PARTIALS, (parts, _TILE_N, tile_m), "float32"))
    return Plan(tuple(launches), tuple(workspaces))


def _reduction(call: Call, chosen: _Tiles) -> Launch:
    """The product is y.T there, as in wgmma.cu, whose first parts hold the bias."""
    M, N, K, _ = sizes(call)
    defines = (("C_CONTIGUOUS", 0), ("BIAS", 0), ("ACTIVATION", ACTIVATIONS[None]))
    counts = {
        "whole": 0,
        "k_splits": chosen.parts,
        "m": N,
        "n": M,
        "k": K,
        "outer_batches": 1,
        "inner_batches": 1,
    }
    steps = {"a_leading": 0, "b_leading": 0, "c_row": 1, "c_col": N}
    steps |= {f"{name}_{place}": 0 for name in "abc" for place in ("outer", "inner")}
    args: tuple[tuple[str, Argument], ...] = (
        ("bias", Scalar("i64", 0)),
        ("c", Pointer("y", True)),
        *((name, Scalar("i32", value)) for name, value in counts.items()),
        *((name, Scalar("i64", value)) for name, value in steps.items()),
    )
    tile = splitk_plan.WgmmaTile(chosen.rows, 0, m=_TILE_N, group_m=GROUP_M)
    return splitk_plan.reduction(tile, chosen.tiles, call["x"].dtype, call.device, defines, args)


def _strides(call: Call) -> list[tuple[str, Argument]]:
    found: list[tuple[str, Argument]] = []
    for short, name in zip(("scale", "zero", "offset"), _OF_GROUPS, strict=True):
        row, col = call[name].strides if call.has(name) else (0, 0)
        found += [(f"{short}_row", Scalar("i32", row)), (f"{short}_col", Scalar("i32", col))]
    return found


def _chunk_sums(call: Call, chunk: int, pitch: int) -> Launch:
    view = rows(call["x"])
    kernel = NativeKernel(
        _SUMS_SOURCE,
        "chunk_sums",
        threads=_SUMS_ROWS * 32,
        defines=(
            ("ELEMENT", dtypes.of(call["x"].dtype).c),
            ("CHUNK", chunk),
            ("ROWS", _SUMS_ROWS),
            ("STEPS", _SUMS_STEPS),
        ),
        pdl=True,
    )
    args: tuple[tuple[str, Argument], ...] = (
        ("x", Pointer("x", True)),
        ("sums", Pointer(_SUMS, True)),
        ("m", Scalar("i32", view.count)),
        ("k", Scalar("i32", view.length)),
        ("pitch", Scalar("i32", pitch)),
        ("x_stride", Scalar("i64", view.stride)),
    )
    grid = (ceil(view.count, _SUMS_ROWS), ceil(view.length, 256 * _SUMS_STEPS), 1)
    return Launch(kernel, grid, args)


def _shared(call: Call, tile_m: int, chunk: int) -> _Shared:
    """As many stages of x as fit beside the weight's."""
    words = _TILE_N * (1 + call.has("zero_point") + call.has("offset")) + tile_m * call.has("offset")
    values = _WEIGHT_K // chunk * words * 4
    rest = 1024 + _Y_BYTES + _WEIGHT_STAGES * (_TILE_N * 128 + values + 16)
    stage = tile_m * 128 + 16
    stages = min((call.device.shared_memory - rest) // stage, _MOST_STAGES)
    return _Shared(values, stages, rest + stages * stage)


def unfit(call: Call, M: int, N: int, K: int, group: int) -> Rejected | None:
    """Why the kernel cannot take the call, or None where it can."""
    if min(M, N, K) == 0:
        return Rejected("nothing to multiply")
    if max(M, N, K) > MAX_EXTENT:
        return Rejected(f"M, N and K must be at most {MAX_EXTENT}")
    if group % _CHUNKS[-1]:
        return Rejected(f"groups of {group} k: not a multiple of {_CHUNKS[-1]}")
    stride = rows(call["x"]).stride
    if M > 1 and (stride % 8 or stride < K):
        return Rejected(f"TMA needs rows of x that are 16-byte aligned and apart; they are {stride} apart")
    for name in ("x", "weight", "y"):
        if call[name].alignment < 16:
            return Rejected(f"TMA needs a base aligned to 16 bytes; that of {name} is not")
    for name in filter(call.has, _OF_GROUPS):
        (lines, groups), (row, col) = call[name].shape, call[name].strides
        if (lines - 1) * row + (groups - 1) * col >= 2**31:
            return Rejected(f"places in {name} exceed 32 bits")
    if N % 8:
        return Rejected(f"TMA stores y in rows of 16-byte multiples; N = {N} is no multiple of 8")
    return None

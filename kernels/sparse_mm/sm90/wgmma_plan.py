"""The plans of wgmma.cu and wgmma_fp8.cu: sparse_mm and sparse_scaled_mm by Hopper's sparse wgmma, the weight
as its first operand.

Both kernels read rows of 128 bytes, which are 64 k of x in 16 bits and 128 k of mat_a in 8.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from portable import dtypes
from portable.kernels.matmul.launch_args import GROUP_M, MAX_EXTENT, MAX_TILES, ceil
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
)

_SOURCE, _FP8_SOURCE = (Path(__file__).with_name(name) for name in ("wgmma.cu", "wgmma_fp8.cu"))
CONSUMERS, THREADS = 2, 384
TILE_N = 64 * CONSUMERS  # rows of the weight
_FP8_ELEMENT = "e4m3"
LINE = 128  # bytes of a row of x's stages and of the values'
_META = 16  # bytes of metadata that a thread loads at once
_MOST_STAGES = 8
_RESERVED = 1024  # to align the stages
_Y_BYTES = CONSUMERS * 2 * 64 * LINE  # blocks of y on their way
# Clocks of a tile's 256 bytes along k by its rows of x, and of a tile beyond its products (H200, 2026-11-27:
# 8192^3 in 16 bits).
_STEPS = {256: 1380, 192: 1076, 128: 821, 64: 590}
_EPILOGUE = 600
# The factor of two blocks that share x: with 256 rows 1.01 at 8192^3, with 128 0.99 there, 0.88 for 1024 rows
# of 8192 by 8192, and in a single wave (256 rows) 1.03.
_SHARED = {256: 1.01, 192: 1.01, 128: 0.95, 64: 1.03}
_SHARED_ONE_WAVE = 1.03
# In fp8, whose steps take some 1.25 times as long whatever the tile: with 192 rows 614 us of 633 at 8192^3.
_SHARED_FP8 = _SHARED | {192: 0.97}


class Tile(NamedTuple):
    """Rows of x, and blocks of a cluster, which share them."""

    m: int
    cluster: int

    def stages(self, device: Device, rest: int) -> tuple[int, int]:
        """Of x and of the values: as many as fit; the values' reach as far along k and one further."""
        for stages in range(_MOST_STAGES, 1, -1):
            values = ceil(stages, 2) + 1
            if self.shared(stages, values, rest) <= device.shared_memory:
                return stages, values
        return 0, 0

    def shared(self, stages: int, values: int, rest: int) -> int:
        """Bytes of shared memory, of which `rest` are for what follows the sums."""
        lines = stages * (self.m * LINE + 16) + values * (TILE_N * LINE + 16)
        return _RESERVED + _Y_BYTES + lines + rest

    def clusters(self, m: int, n: int) -> int:
        return ceil(m, self.m) * ceil(n, TILE_N * self.cluster)

    def cost(self, m: int, n: int, line: int, device: Device, fp8: bool) -> float:
        """Clocks of the waves of a product of rows of x of `line` bytes."""
        waves = ceil(self.clusters(m, n), device.multiprocessors // self.cluster)
        many = (_SHARED_FP8 if fp8 else _SHARED)[self.m]
        shared = 1.0 if self.cluster == 1 else many if waves > 1 else _SHARED_ONE_WAVE
        return waves * (ceil(line, 2 * LINE) * _STEPS[self.m] * shared + _EPILOGUE)


_TILES = tuple(Tile(m, cluster) for m in _STEPS for cluster in (1, 2))
_MOST_FP8 = 192  # rows of x: the sums of 256 k are beside the accumulators


def wgmma(call: Call) -> Plan | Rejected:
    """sparse_mm: one launch; aligned rows, K a multiple of 128."""
    overlap = ("OVERLAP", int(call["meta"].shape[1] > _META))
    return _plan(call, ("x", "y"), _TILES, (overlap,))


def scaled(call: Call) -> Plan | Rejected:
    """sparse_scaled_mm: the same."""
    tiles = tuple(each for each in _TILES if each.m <= _MOST_FP8)
    output = ("OUTPUT", dtypes.of(call["c"].dtype).c)
    scales = (("scale_a", Pointer("scale_a")), ("scale_b", Pointer("scale_b")))
    strides = {"scale_a_row": call["scale_a"].strides[0], "scale_b_col": call["scale_b"].strides[1]}
    steps = tuple((name, Scalar("i64", value)) for name, value in strides.items())
    return _plan(call, ("mat_a", "c"), tiles, (output,), scales, steps)


def _plan(
    call: Call,
    names: tuple[str, str],
    tiles: tuple[Tile, ...],
    defines: tuple[tuple[str, int | str], ...],
    scales: tuple[tuple[str, Argument], ...] = (),
    steps: tuple[tuple[str, Argument], ...] = (),
) -> Plan | Rejected:
    """One launch of the kernel whose x and y have these names, with scales or without."""
    name, result = names
    x, (N, J) = rows(call[name]), call["meta"].shape
    M, K, dtype = x.count, 8 * J, call[name].dtype
    size = dtypes.itemsize(dtype)
    if (reason := _unfit(call, names, M, N, K)) is not None:
        return reason
    config = call.config
    given = [each for each in tiles if all((config.get(key) or value) == value for key, value in
             (("TILE_M", each.m), ("CLUSTER", each.cluster)))]  # fmt: skip
    if not given:
        return Rejected("the config's tile does not fit the registers of this product")
    tile = min(given, key=lambda each: each.cost(M, N, K * size, call.device, bool(scales)))
    rest = CONSUMERS * tile.m * 4 if scales else 0
    stages, value_stages = tile.stages(call.device, rest)
    if stages == 0:
        return Rejected(f"two stages need more than {call.device.shared_memory} bytes of shared memory")
    clusters = tile.clusters(M, N)
    if clusters * tile.cluster > MAX_TILES:
        return Rejected(f"{clusters * tile.cluster} tiles exceed {MAX_TILES}")
    # Rows outside x take TMA longer than those inside.
    box = min(ceil(M, 8) * 8, tile.m) if tile.cluster == 1 else tile.m // tile.cluster
    kernel = NativeKernel(
        _FP8_SOURCE if scales else _SOURCE,
        "sparse_scaled_mm_wgmma" if scales else "sparse_mm_wgmma",
        threads=THREADS,
        defines=(
            ("ELEMENT", _FP8_ELEMENT if scales else dtypes.of(dtype).c),
            ("TILE_M", tile.m),
            ("STAGES", stages),
            ("VALUE_STAGES", value_stages),
            ("CLUSTER", tile.cluster),
            ("GROUP_N", config.get("GROUP_N") or GROUP_M),
            ("BOX_ROWS", box),
            *defines,
            ("HAS_BIAS", int(call.has("bias"))),
        ),
        shared=tile.shared(stages, value_stages, rest),
        pdl=True,
    )
    pitch = (x.stride if M > 1 else K) * size
    line = LINE // size
    integers = {"m": M, "n": N, "k": K, "tiles": clusters}
    values = TensorMap("values", dtype, (K // 2, N, 1, 1), (K // 2 * size,) * 3, (line, TILE_N, 1, 1))
    to, out = (N * 2,) * 3, call[result].dtype
    args: tuple[tuple[str, Argument], ...] = (
        ("map_x", TensorMap(name, dtype, (K, M, 1, 1), (pitch,) * 3, (line, box, 1, 1))),
        ("map_values", values),
        ("map_y", TensorMap(result, out, (N, M, 1, 1), to, (64, 64, 1, 1))),
        ("meta", Pointer("meta", True)),
        *scales,
        ("bias", pointer(call, "bias")),
        ("y", Pointer(result, True)),
        *((key, Scalar("i32", value)) for key, value in integers.items()),
        *steps,
    )
    blocks = min(clusters, call.device.multiprocessors // tile.cluster) * tile.cluster
    return Plan((Launch(kernel, (blocks, 1, 1), args),))


def _unfit(call: Call, names: tuple[str, str], M: int, N: int, K: int) -> Rejected | None:
    """Why the kernel cannot take the call, or None where it can."""
    if min(M, N, K) == 0:
        return Rejected("nothing to multiply")
    if max(M, N, K) > MAX_EXTENT:
        return Rejected(f"M, N and K must be at most {MAX_EXTENT}")
    if K % (8 * _META):
        return Rejected(f"K = {K}: rows of metadata do not start at multiples of {_META} bytes")
    name, result = names
    stride = rows(call[name]).stride
    if M > 1 and (stride * dtypes.itemsize(call[name].dtype) % 16 or stride < K):
        return Rejected(
            f"TMA needs rows of {name} that are 16-byte aligned and apart; they are {stride} apart"
        )
    for each in (name, "values", "meta", result):
        if call[each].alignment < 16:
            return Rejected(f"a base aligned to 16 bytes is needed; that of {each} is not")
    if N % 8:
        return Rejected(f"TMA stores {result} in rows of 16-byte multiples; N = {N} is no multiple of 8")
    return None

"""The plan of wgmma.cu: sparse_mm by Hopper's sparse wgmma, the weight as its first operand."""

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

_SOURCE = Path(__file__).with_name("wgmma.cu")
_CONSUMERS, _THREADS = 2, 384
_TILE_N = 64 * _CONSUMERS  # rows of the weight
_X_K, _VALUE_K = 64, 128  # k of a stage of x, and of the values
_LINE = 128  # bytes of a row of either
_META = 16  # bytes of metadata that a thread loads at once
_MOST_STAGES = 8
_RESERVED = 1024  # to align the stages
_Y_BYTES = _CONSUMERS * 2 * 64 * _LINE  # blocks of y on their way
# Clocks of a tile's 128 k by its rows of x, and of a tile beyond its products (H200, 2026-11-27: 8192^3).
_STEPS = {256: 1380, 192: 1076, 128: 821, 64: 590}
_EPILOGUE = 600
# The factor of two blocks that share x: with 256 rows 1.01 at 8192^3, with 128 0.99 there, 0.88 for 1024 rows
# of 8192 by 8192, and in a single wave (256 rows) 1.03.
_SHARED = {256: 1.01, 192: 1.01, 128: 0.95, 64: 1.03}
_SHARED_ONE_WAVE = 1.03


class Tile(NamedTuple):
    """Rows of x, and blocks of a cluster, which share them."""

    m: int
    cluster: int

    def stages(self, device: Device) -> tuple[int, int]:
        """Of x and of the values: as many as fit; the values' reach as far along k and one further."""
        for stages in range(_MOST_STAGES, 1, -1):
            values = ceil(stages, 2) + 1
            if self.shared(stages, values) <= device.shared_memory:
                return stages, values
        return 0, 0

    def shared(self, stages: int, values: int) -> int:
        """Bytes of shared memory."""
        return _RESERVED + _Y_BYTES + stages * (self.m * _LINE + 16) + values * (_TILE_N * _LINE + 16)

    def clusters(self, m: int, n: int) -> int:
        return ceil(m, self.m) * ceil(n, _TILE_N * self.cluster)

    def cost(self, m: int, n: int, k: int, device: Device) -> float:
        """Clocks of the waves of a product."""
        waves = ceil(self.clusters(m, n), device.multiprocessors // self.cluster)
        shared = 1.0 if self.cluster == 1 else _SHARED[self.m] if waves > 1 else _SHARED_ONE_WAVE
        return waves * (ceil(k, _VALUE_K) * _STEPS[self.m] * shared + _EPILOGUE)


_TILES = tuple(Tile(m, cluster) for m in _STEPS for cluster in (1, 2))


def wgmma(call: Call) -> Plan | Rejected:
    """One launch; aligned rows, K a multiple of 128."""
    x, (N, J) = rows(call["x"]), call["meta"].shape
    M, K = x.count, 8 * J
    if (reason := _unfit(call, M, N, K)) is not None:
        return reason
    config = call.config
    given = [each for each in _TILES if all((config.get(name) or value) == value for name, value in
             (("TILE_M", each.m), ("CLUSTER", each.cluster)))]  # fmt: skip
    tile = min(given, key=lambda each: each.cost(M, N, K, call.device))
    stages, value_stages = tile.stages(call.device)
    if stages == 0:
        return Rejected(f"two stages need more than {call.device.shared_memory} bytes of shared memory")
    clusters = tile.clusters(M, N)
    if clusters * tile.cluster > MAX_TILES:
        return Rejected(f"{clusters * tile.cluster} tiles exceed {MAX_TILES}")
    # Rows outside x take TMA longer than those inside.
    box = min(ceil(M, 8) * 8, tile.m) if tile.cluster == 1 else tile.m // tile.cluster
    kernel = NativeKernel(
        _SOURCE,
        "sparse_mm_wgmma",
        threads=_THREADS,
        defines=(
            ("ELEMENT", dtypes.of(call["x"].dtype).c),
            ("TILE_M", tile.m),
            ("STAGES", stages),
            ("VALUE_STAGES", value_stages),
            ("CLUSTER", tile.cluster),
            ("GROUP_N", config.get("GROUP_N") or GROUP_M),
            ("BOX_ROWS", box),
            ("OVERLAP", int(K > _VALUE_K)),
            ("HAS_BIAS", int(call.has("bias"))),
        ),
        shared=tile.shared(stages, value_stages),
        pdl=True,
    )
    pitch = x.stride if M > 1 else K
    dtype = call["x"].dtype
    integers = {"m": M, "n": N, "k": K, "tiles": clusters}
    values = TensorMap("values", dtype, (K // 2, N, 1, 1), (K,) * 3, (_VALUE_K // 2, _TILE_N, 1, 1))
    args: tuple[tuple[str, Argument], ...] = (
        ("map_x", TensorMap("x", dtype, (K, M, 1, 1), (pitch * 2,) * 3, (_X_K, box, 1, 1))),
        ("map_values", values),
        ("map_y", TensorMap("y", dtype, (N, M, 1, 1), (N * 2,) * 3, (64, 64, 1, 1))),
        ("meta", Pointer("meta", True)),
        ("bias", pointer(call, "bias")),
        ("y", Pointer("y", True)),
        *((name, Scalar("i32", value)) for name, value in integers.items()),
    )
    blocks = min(clusters, call.device.multiprocessors // tile.cluster) * tile.cluster
    return Plan((Launch(kernel, (blocks, 1, 1), args),))


def _unfit(call: Call, M: int, N: int, K: int) -> Rejected | None:
    """Why the kernel cannot take the call, or None where it can."""
    if min(M, N, K) == 0:
        return Rejected("nothing to multiply")
    if max(M, N, K) > MAX_EXTENT:
        return Rejected(f"M, N and K must be at most {MAX_EXTENT}")
    if K % (8 * _META):
        return Rejected(f"K = {K}: rows of metadata do not start at multiples of {_META} bytes")
    stride = rows(call["x"]).stride
    if M > 1 and (stride % 8 or stride < K):
        return Rejected(f"TMA needs rows of x that are 16-byte aligned and apart; they are {stride} apart")
    for name in ("x", "values", "meta", "y"):
        if call[name].alignment < 16:
            return Rejected(f"a base aligned to 16 bytes is needed; that of {name} is not")
    if N % 8:
        return Rejected(f"TMA stores y in rows of 16-byte multiples; N = {N} is no multiple of 8")
    return None

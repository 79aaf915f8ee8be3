"""The plan of int8_wgmma.cu: int8_int4_mm by Hopper's wgmma of int8, a weight's numbers in registers."""

from __future__ import annotations

from pathlib import Path

from portable import dtypes
from portable.kernels.matmul.launch_args import GROUP_M, MAX_EXTENT, MAX_TILES, ceil
from portable.kernels.scaled_mm.problem import pointer
from portable.kernels.sparse_mm.sm90.wgmma_plan import CONSUMERS, LINE, THREADS, TILE_N, Tile
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

_SOURCE = Path(__file__).with_name("int8_wgmma.cu")
_CHUNKS = (128, 64, 32)
"""k whose products are a batch of instructions: the longest of which a group is a multiple."""
MOST_GROUP = 2**16
"""k of a group whose sum in int32 cannot overflow, of int8 by 16 times numbers from -8 to 7."""
# Clocks of a tile's 128 k by its rows of x, and of a tile beyond its products (H200, 2026-11-27: 14336x4096).
_STEPS = {128: 1050, 64: 800}
_EPILOGUE = 1500
_TILES = tuple(Tile(m, cluster) for m in _STEPS for cluster in (1, 2))


def wgmma(call: Call) -> Plan | Rejected:
    """One launch; aligned rows, groups of a multiple of 32 k."""
    x, (N, G, P) = rows(call["mat_a"]), call["weight"].shape
    M, K, group = x.count, 2 * G * P, 2 * P
    if (reason := _unfit(call, M, N, K, group)) is not None:
        return reason
    config = call.config
    given = [each for each in _TILES if all((config.get(key) or value) == value for key, value in
             (("TILE_M", each.m), ("CLUSTER", each.cluster)))]  # fmt: skip
    tile = min(given, key=lambda each: _clocks(each, M, N, K, call.device))
    rest = CONSUMERS * tile.m * 4
    stages, value_stages = tile.stages(call.device, rest)
    if stages == 0:
        return Rejected(f"two stages need more than {call.device.shared_memory} bytes of shared memory")
    clusters = tile.clusters(M, N)
    if clusters * tile.cluster > MAX_TILES:
        return Rejected(f"{clusters * tile.cluster} tiles exceed {MAX_TILES}")
    chunk = next(each for each in _CHUNKS if group % each == 0)
    # Rows outside x take TMA longer than those inside.
    box = min(ceil(M, 8) * 8, tile.m) if tile.cluster == 1 else tile.m // tile.cluster
    kernel = NativeKernel(
        _SOURCE,
        "int8_int4_mm_wgmma",
        threads=THREADS,
        defines=(
            ("OUTPUT", dtypes.of(call["c"].dtype).c),
            ("SCALE", dtypes.of(call["scale"].dtype).c),
            ("CHUNK", chunk),
            ("ONE_CHUNK", int(group == chunk)),
            ("TILE_M", tile.m),
            ("STAGES", stages),
            ("VALUE_STAGES", value_stages),
            ("CLUSTER", tile.cluster),
            ("GROUP_N", config.get("GROUP_N") or GROUP_M),
            ("BOX_ROWS", box),
            ("HAS_ZERO_POINT", int(call.has("zero_point"))),
            ("HAS_BIAS", int(call.has("bias"))),
        ),
        shared=tile.shared(stages, value_stages, rest),
        pdl=True,
    )
    pitch = x.stride if M > 1 else K
    integers = {"m": M, "n": N, "k": K, "tiles": clusters, "count": G, "chunks": group // chunk}
    args: tuple[tuple[str, Argument], ...] = (
        ("map_x", TensorMap("mat_a", "int8", (K, M, 1, 1), (pitch,) * 3, (LINE, box, 1, 1))),
        ("map_values", TensorMap("weight", "uint8", (K // 2, N, 1, 1), (K // 2,) * 3, (LINE, TILE_N, 1, 1))),
        ("map_y", TensorMap("c", call["c"].dtype, (N, M, 1, 1), (N * 2,) * 3, (64, 64, 1, 1))),
        *_values(call, "scale"),
        *_values(call, "zero_point"),
        ("scale_a", Pointer("scale_a")),
        ("scale_a_row", Scalar("i64", call["scale_a"].strides[0])),
        ("bias", pointer(call, "bias")),
        ("y", Pointer("c", True)),
        *((key, Scalar("i32", value)) for key, value in integers.items()),
    )
    blocks = min(clusters, call.device.multiprocessors // tile.cluster) * tile.cluster
    return Plan((Launch(kernel, (blocks, 1, 1), args),))


def _values(call: Call, name: str) -> tuple[tuple[str, Argument], ...]:
    """A pointer and both strides; zeros where the tensor is absent."""
    short = name.removesuffix("_point")
    row, col = call[name].strides if call.has(name) else (0, 0)
    strides = (f"{short}_row", Scalar("i64", row)), (f"{short}_col", Scalar("i64", col))
    return ((name, pointer(call, name)), *strides)


def _clocks(tile: Tile, m: int, n: int, k: int, device: Device) -> float:
    """Of the waves of a product; two blocks that share x are chosen by a config alone."""
    waves = ceil(tile.clusters(m, n), device.multiprocessors // tile.cluster)
    return waves * (ceil(k, LINE) * _STEPS[tile.m] + _EPILOGUE) * (1.0 if tile.cluster == 1 else 1.1)


def _unfit(call: Call, M: int, N: int, K: int, group: int) -> Rejected | None:
    """Why the kernel cannot take the call, or None where it can."""
    if min(M, N, K) == 0:
        return Rejected("nothing to multiply")
    if max(M, N, K) > MAX_EXTENT:
        return Rejected(f"M, N and K must be at most {MAX_EXTENT}")
    if group % _CHUNKS[-1] or group > MOST_GROUP:
        return Rejected(f"groups of {group}: no multiple of {_CHUNKS[-1]} up to {MOST_GROUP}")
    stride = rows(call["mat_a"]).stride
    if M > 1 and (stride % 16 or stride < K):
        return Rejected(
            f"TMA needs rows of mat_a that are 16-byte aligned and apart; they are {stride} apart"
        )
    for name in ("mat_a", "weight", "c"):
        if call[name].alignment < 16:
            return Rejected(f"a base aligned to 16 bytes is needed; that of {name} is not")
    if N % 8:
        return Rejected(f"TMA stores c in rows of 16-byte multiples; N = {N} is no multiple of 8")
    return None

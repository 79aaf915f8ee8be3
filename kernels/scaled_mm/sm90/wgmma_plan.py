"""The plan of wgmma.cu: products in 8 bits with their scales on Hopper."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from portable import dtypes
from portable.kernels.matmul.launch_args import GROUP_M, MAX_EXTENT, MAX_TILES, ceil
from portable.kernels.matmul.problem import Problem
from portable.kernels.matmul.sm90.tma_descriptors import operands_unsupported, tma_descriptor
from portable.kernels.scaled_mm.problem import from_call, in_words, pointer, scale_strides
from portable.layout import TensorInfo
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
_ELEMENTS = {"float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2"}
_SHARED = 232448  # bytes of a block, at most
_C_BUFFERS = 16384  # of each consumer: c on its way
# Clocks of a multiprocessor: bytes of shared memory that arrive, and products, in one.
_BYTES, _PRODUCTS = 60, 4096
_MX_PRODUCTS = 1700  # with two instructions a sum for each 32 of k
_EPILOGUE = 2500  # clocks of a tile of 128 x 128, beyond its products


@dataclass(frozen=True)
class _Tile:
    """64 rows of each of `consumers` warpgroups, and `n` columns; `sum_buffers` sums of 128 k at a time."""

    consumers: int
    n: int
    sum_buffers: int

    @property
    def m(self) -> int:
        return self.consumers * 64

    def _stage(self, block: bool, mx: bool) -> int:
        """Bytes of a stage: 128 k of both operands, two barriers, scales."""
        scales = (self.m + self.n) * 16 if mx else ceil(self.m + self.n // 64, 4) * 16 if block else 0
        return (self.m + self.n) * 128 + 16 + scales

    @property
    def _rest(self) -> int:
        """Bytes of c's buffers and of the columns' scales and biases; a base of 1024 bytes."""
        return 1024 + self.consumers * (_C_BUFFERS + self.n * 8)

    def stages(self, block: bool, mx: bool) -> int:
        return min((_SHARED - self._rest) // self._stage(block, mx), 12)

    def shared(self, block: bool, mx: bool) -> int:
        return self._rest + self.stages(block, mx) * self._stage(block, mx)

    def cost(self, m: int, n: int, k: int, device: Device, mx: bool) -> float:
        """Clocks of the waves of a product."""
        waves = ceil(ceil(m, self.m) * ceil(n, self.n), device.multiprocessors)
        loaded = (min(ceil(m, 8) * 8, self.m) + self.n) * 128
        step = max(loaded / _BYTES, self.m * self.n * 128 / (_MX_PRODUCTS if mx else _PRODUCTS))
        return waves * (ceil(k, 128) * step + _EPILOGUE * self.m * self.n / 16384)


def _tiles(fast: bool, mx: bool) -> list[_Tile]:
    """Those whose accumulators, and the sums of 128 or 32 k beside them, fit a thread's registers."""
    found = [_Tile(2, 128, 2), _Tile(2, 64, 2), _Tile(1, 128, 2), _Tile(1, 64, 2)]
    if mx:
        return found
    return found + [_Tile(2, 192, 1)] + ([_Tile(2, 256, 1)] if fast else [])


def rows(call: Call) -> Plan | Rejected:
    """scaled_mm: a scale for each row of a and each column of b."""
    return _plan(call, blocked=False)


def blocks(call: Call) -> Plan | Rejected:
    """scaled_mm_block: a scale for 128 k of each row of a, and for 128 k and 128 columns of b."""
    return _plan(call, blocked=True)


def mx(call: Call) -> Plan | Rejected:
    """scaled_mm_mx: a power of two for 32 k of each row of a and of each column of b."""
    return _plan(call, blocked=False, mx=True)


def _plan(call: Call, blocked: bool, mx: bool = False) -> Plan | Rejected:
    problem = from_call(call, blocked, mx)
    defines = (
        ("INTEGER", 0),
        ("A_ELEMENT", _ELEMENTS[problem.product.a.dtype]),
        ("B_ELEMENT", _ELEMENTS[problem.product.b.dtype]),
        ("BLOCK_SCALES", int(blocked)),
        ("A_SCALES_BULK", int(blocked and _bulk(call["scale_a"]))),
        ("SCALED", 1),
        ("HAS_ZERO_POINT", 0),
        *((("MX_WORDS", int(in_words(call["scale_a"]) and in_words(call["scale_b"]))),) if mx else ()),
    )
    fast = problem.fast and not blocked and not mx
    return one_launch(problem.product, call, defines, blocked, fast, mx=mx)


def one_launch(
    product: Problem,
    call: Call,
    defines: tuple[tuple[str, int | str], ...],
    block: bool = False,
    fast: bool = True,
    more: tuple[tuple[str, Argument], ...] = (),
    mx: bool = False,
) -> Plan | Rejected:
    """Of operands in 8 bits. `defines` say what they are and what follows the sums, which are the matrix
    unit's to their end where `fast`; `more` are the kernel's last arguments."""
    a, b, c = product.a, product.b, call["c"]
    m, n, k = product.M, product.N, product.K
    if max(m, n, k) > MAX_EXTENT:
        return Rejected(f"M, N and K must be at most {MAX_EXTENT}")
    if (reason := _unfit(product)) is not None:
        return reason
    tile = _chosen(call, m, n, k, fast, mx)
    if isinstance(tile, Rejected):
        return tile
    box = min(ceil(m, 8) * 8, tile.m)  # rows outside a take TMA longer than those inside
    wide = dtypes.itemsize(c.dtype) == 4
    by_tma = not wide and c.alignment >= 16 and c.strides[0] * 2 % 16 == 0
    kernel = NativeKernel(
        _SOURCE,
        "scaled_mm_wgmma",
        threads=(tile.consumers + 1) * 128,
        defines=(
            *defines,
            ("OUTPUT", dtypes.of(c.dtype).c),
            ("WIDE_OUTPUT", int(wide)),
            ("CONSUMER_WARPGROUPS", tile.consumers),
            ("TILE_N", tile.n),
            ("STAGES", tile.stages(block, mx)),
            ("SUM_BUFFERS", tile.sum_buffers),
            ("BOX_ROWS", box),
            ("GROUP_M", GROUP_M),
            ("FAST_ACCUM", int(fast)),
            ("MX_SCALES", int(mx)),
            ("HAS_BIAS", int(call.has("bias"))),
            ("C_TMA", int(by_tma)),
            ("C_CONTIGUOUS", 1),
        ),
        shared=tile.shared(block, mx),
        pdl=True,
    )
    tiles = ceil(m, tile.m) * ceil(n, tile.n)
    if tiles > MAX_TILES:
        return Rejected(f"{tiles} tiles exceed {MAX_TILES}")
    maps: list[tuple[str, Argument]] = [
        ("map_a", tma_descriptor(a, m, k, product.batch, box)),
        ("map_b", tma_descriptor(b, k, n, product.batch, tile.n)),
    ]
    if by_tma:
        steps = (c.strides[0] * 2,) * 3
        maps.append(("map_c", TensorMap("c", c.dtype, (n, m, 1, 1), steps, (64, 64, 1, 1))))
    integers = {"m": m, "n": n, "k": k, "tiles": tiles}
    of_scales = scale_strides(call)
    if mx:  # scale_b's first index is the column
        of_scales["scale_b_k"], of_scales["scale_b_col"] = of_scales["scale_b_col"], of_scales["scale_b_k"]
    strides = {"c_row": c.strides[0], "c_col": c.strides[1], **of_scales}
    args: tuple[tuple[str, Argument], ...] = (
        *maps,
        *((name, pointer(call, name)) for name in ("scale_a", "scale_b", "bias")),
        ("c", Pointer("c", c.alignment >= 16)),
        *((name, Scalar("i32", value)) for name, value in integers.items()),
        *((name, Scalar("i64", value)) for name, value in strides.items()),
        *more,
    )
    return Plan((Launch(kernel, (min(tiles, call.device.multiprocessors), 1, 1), args),))


def _chosen(call: Call, m: int, n: int, k: int, fast: bool, mx: bool) -> _Tile | Rejected:
    """The tile of a config, or the one of the least cost."""
    config = call.config
    found = [
        tile
        for tile in _tiles(fast, mx)
        if tile.m == config.get("TILE_M", tile.m) and tile.n == config.get("TILE_N", tile.n)
    ]
    if not found:
        return Rejected("the config's tile does not fit the registers of this product")
    return min(found, key=lambda tile: tile.cost(m, n, k, call.device, mx))


def _unfit(product: Problem) -> Rejected | None:
    """Why wgmma cannot read the operands where TMA puts them, or None where it can."""
    for operand, along in ((product.a, "col"), (product.b, "row")):
        if operand.unit_stride != along:
            return Rejected(f"wgmma reads 8 bits along K; {operand.tensor} does not lie along it")
    return operands_unsupported(product)


def _bulk(scales: TensorInfo) -> bool:
    """Whether those of 128 k lie one after another, in whole 16 bytes."""
    rows, along = scales.shape
    return (
        scales.strides[0] == 1
        and scales.alignment >= 16
        and rows % 4 == 0
        and (along == 1 or scales.strides[1] % 4 == 0)
    )

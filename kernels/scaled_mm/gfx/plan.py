"""The plan of scaled.hip: products in 8 bits on AMD's matrix units."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from portable import dtypes
from portable.kernels._lib.minifloat import format_type
from portable.kernels.matmul.launch_args import ceil
from portable.kernels.matmul.problem import Problem
from portable.kernels.scaled_mm.problem import (
    OCP,
    from_call,
    has_instructions,
    pointer,
    scale_strides,
    triton_decodes,
)
from portable.plan import Argument, Call, Device, Launch, NativeKernel, Plan, Pointer, Rejected, Scalar

_SOURCE = Path(__file__).with_name("scaled.hip")
MAX_EXTENT = 2**31 - 256
MAX_TILES = 2**32 // 256 - 1  # a grid counts fewer than 2^32 threads
_WAVES = 4
LARGE, SMALL = (128, 128), (64, 64)


def rows(call: Call, triton: str = "") -> Plan | Rejected:
    """scaled_mm: a scale for each row of a and each column of b. `triton`: only types that Triton "decodes"
    on this GPU, or those that it "multiplies"."""
    return _plan(call, blocked=False, triton=triton)


def blocks(call: Call, triton: str = "") -> Plan | Rejected:
    """scaled_mm_block: a scale for 128 k of each row of a, and for 128 k and 128 columns of b; `triton` as in
    `rows`."""
    return _plan(call, blocked=True, triton=triton)


def _plan(call: Call, blocked: bool, triton: str) -> Plan | Rejected:
    problem = from_call(call, blocked)
    a, b = problem.product.a.dtype, problem.product.b.dtype
    does = "decodes" if triton_decodes(call.device, a, b) else "multiplies"
    if triton not in ("", does):
        return Rejected(f"Triton {does} {a} by {b} on {call.device.arch}: another implementation's place")
    as_fnuz = call.device.arch == "gfx942" and a in OCP and b in OCP
    defines = (
        ("INTEGER", 0),
        ("NATIVE", int(as_fnuz or has_instructions(call.device, a, b))),
        ("AS_FNUZ", int(as_fnuz)),
        ("A_FORMAT", format_type(a)),
        ("B_FORMAT", format_type(b)),
        ("A_E5M2", int("e5m2" in a)),
        ("B_E5M2", int("e5m2" in b)),
        ("BLOCKED", int(blocked)),
        ("SCALED", 1),
        ("HAS_ZERO_POINT", 0),
    )
    return one_launch(problem.product, call, defines)


def tile(product: Problem, device: Device) -> tuple[int, int]:
    """Rows and columns of a tile: 128 of each where that gives every multiprocessor one and lanes, of waves
    of 64, hold the accumulators, else 64."""
    many = ceil(product.M, LARGE[0]) * ceil(product.N, LARGE[1]) >= device.multiprocessors
    return LARGE if many and device.warp_size == 64 else SMALL


def aligned(product: Problem) -> bool:
    """Whether 16-byte loads with 31-bit offsets reach every 16 codes of both operands."""
    for operand, lines, along_k in product.sides:
        along, across = (product.K, lines) if along_k else (lines, product.K)
        if not operand.aligned_to(16) or along % 16 or (across + 128) * operand.leading >= 2**31:
            return False
    return True


def one_launch(
    product: Problem,
    call: Call,
    defines: tuple[tuple[str, int | str], ...],
    more: tuple[tuple[str, Argument], ...] = (),
) -> Plan | Rejected:
    """Of operands in 8 bits. `defines` say what they are and what follows the sums; `more` are the kernel's
    last arguments."""
    device = call.device
    if None in (product.a.unit_stride, product.b.unit_stride):
        return Rejected("an operand has no unit stride")
    if max(product.M, product.N, product.K) > MAX_EXTENT:
        return Rejected(f"M, N and K must be at most {MAX_EXTENT}")
    tile_m, tile_n = tile(product, device)
    tiles_m, tiles_n = ceil(product.M, tile_m), ceil(product.N, tile_n)
    if tiles_m * tiles_n > MAX_TILES:
        return Rejected(f"{tiles_m * tiles_n} tiles exceed a grid of {MAX_TILES} blocks")
    kernel = NativeKernel(
        _SOURCE,
        "scaled_mm",
        _WAVES * device.warp_size,
        defines=(
            *defines,
            *product_defines(product, device, (tile_m, tile_n)),
        ),
    )
    args = (*product_args(call, product, (tiles_m, tiles_n), scale_strides(call)), *more)
    return Plan((Launch(kernel, (tiles_m * tiles_n, 1, 1), args),))


def product_defines(
    product: Problem, device: Device, tile: tuple[int, int]
) -> tuple[tuple[str, int | str], ...]:
    """What a product of codes is to a kernel with code_tile.h: its layouts, its result, its `tile`."""
    return (
        ("R", dtypes.of(product.c.dtype).c),
        ("ALIGNED", int(device.warp_size == 64 and aligned(product))),
        ("A_K_MAJOR", int(product.a.unit_stride == "col")),
        ("B_K_MAJOR", int(product.b.unit_stride == "row")),
        ("TILE_M", tile[0]),
        ("TILE_N", tile[1]),
        ("DIES", 8 if device.arch in ("gfx942", "gfx950") else 1),
        ("HAS_BIAS", int(product.bias is not None)),
    )


def product_args(
    call: Call, product: Problem, tiles: tuple[int, int], scales: Mapping[str, int]
) -> tuple[tuple[str, Argument], ...]:
    """The arguments of such a kernel, of so many `tiles`; `scales`: the strides of both scales."""
    a, b, c = product.a, product.b, product.c
    integers = {"M": product.M, "N": product.N, "K": product.K, "tiles_m": tiles[0], "tiles_n": tiles[1]}
    strides = {"a_leading": a.leading, "b_leading": b.leading, "c_row": c.row, "c_col": c.col, **scales}
    return (
        ("a", Pointer(a.tensor)),
        ("b", Pointer(b.tensor)),
        *((name, pointer(call, name)) for name in ("scale_a", "scale_b", "bias")),
        ("c", Pointer(c.tensor)),
        *((name, Scalar("i32", value)) for name, value in integers.items()),
        *((name, Scalar("i64", value)) for name, value in strides.items()),
    )

"""The plan of mx.hip: products in MXFP8, MXFP4 and NVFP4 on AMD's matrix units."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from portable.kernels._lib.minifloat import format_type
from portable.kernels.matmul.launch_args import ceil
from portable.kernels.matmul.problem import Problem
from portable.kernels.scaled_mm.fp4.reference import FP4
from portable.kernels.scaled_mm.gfx.plan import (
    LARGE,
    MAX_EXTENT,
    MAX_TILES,
    aligned,
    product_args,
    product_defines,
    tile,
)
from portable.kernels.scaled_mm.problem import from_call, in_words
from portable.plan import Call, Launch, NativeKernel, Plan, Pointer, Rejected

_SOURCE = Path(__file__).with_name("mx.hip")
HUGE = (256, 256)
KINDS = {"float8_e4m3fn": 0, "float8_e5m2": 1, FP4: 4}
"""A format's number in gfx950's instructions."""


@dataclass(frozen=True)
class _Format:
    """Numbers in a byte and of a group; whether the groups' scales are e8m0; the scales of the whole."""

    each: int
    group: int
    e8m0: bool
    whole: tuple[str, ...] = ()


_MX = _Format(1, 32, True)
_MXFP4 = _Format(2, 32, True)
_NVFP4 = _Format(2, 16, False, ("global_a", "global_b"))


def mx(call: Call) -> Plan | Rejected:
    """scaled_mm_mx: codes of 8 bits, e8m0 scales of 32."""
    return _plan(call, _MX)


def mxfp4(call: Call) -> Plan | Rejected:
    """scaled_mm_mxfp4: codes of 4 bits, e8m0 scales of 32."""
    return _plan(call, _MXFP4)


def nvfp4(call: Call) -> Plan | Rejected:
    """scaled_mm_nvfp4: codes of 4 bits, e4m3fn scales of 16, and one of the whole."""
    return _plan(call, _NVFP4)


def _plan(call: Call, kind: _Format) -> Plan | Rejected:
    problem, device = from_call(call, blocked=False), call.device
    product = problem.product
    a, b = product.a, product.b
    if None in (a.unit_stride, b.unit_stride):
        return Rejected("an operand has no unit stride")
    if max(product.M, product.N, product.K) > MAX_EXTENT:
        return Rejected(f"M, N and the bytes along k must be at most {MAX_EXTENT}")
    scaled_mfma = device.arch == "gfx950" and kind.e8m0
    chosen = tile_of(call, product, scaled_mfma)
    if isinstance(chosen, Rejected):
        return chosen
    tile_m, tile_n = chosen
    waves_m, waves_n = (2, 4) if tile_m * tile_n > LARGE[0] * LARGE[1] else (2, 2)
    tiles_m, tiles_n = ceil(product.M, tile_m), ceil(product.N, tile_n)
    if tiles_m * tiles_n > MAX_TILES:
        return Rejected(f"{tiles_m * tiles_n} tiles exceed a grid of {MAX_TILES} blocks")
    formats = [FP4 if kind.each == 2 else each.dtype for each in (a, b)]
    kernel = NativeKernel(
        _SOURCE,
        "scaled_mm_mx",
        waves_m * waves_n * device.warp_size,
        defines=(
            ("SCALED_MFMA", int(scaled_mfma)),
            ("PER_BYTE", kind.each),
            ("GROUP", kind.group),
            ("E8M0", int(kind.e8m0)),
            ("A_FORMAT", format_type(formats[0])),
            ("B_FORMAT", format_type(formats[1])),
            *_own(call, kind, formats, scaled_mfma),
            ("WHOLE", int(bool(kind.whole))),
            *product_defines(product, device, chosen),
            ("WAVES_M", waves_m),
            ("WAVES_N", waves_n),
        ),
    )
    scales = {
        "scale_a_row": problem.scale_a.outer,
        "scale_a_k": problem.scale_a.inner,
        "scale_b_col": problem.scale_b.outer,
        "scale_b_k": problem.scale_b.inner,
    }
    args = (
        *product_args(call, product, (tiles_m, tiles_n), scales),
        *((name, Pointer(name)) for name in kind.whole),
    )
    return Plan((Launch(kernel, (tiles_m * tiles_n, 1, 1), args),))


def tile_of(call: Call, product: Problem, scaled_mfma: bool) -> tuple[int, int] | Rejected:
    """Rows and columns of a tile: a config's, else the largest that gives every multiprocessor one."""
    many = ceil(product.M, HUGE[0]) * ceil(product.N, HUGE[1]) >= call.device.multiprocessors
    lean = scaled_mfma and aligned(product) and all(along_k for _, _, along_k in product.sides)
    chosen = HUGE if lean and many else tile(product, call.device)
    m, n = (call.config.get(name, size) for name, size in zip(("TILE_M", "TILE_N"), chosen, strict=True))
    if m * n > LARGE[0] * LARGE[1] and not lean:
        return Rejected(f"a tile of {m} x {n} takes aligned operands along k and instructions with scales")
    return m, n


def _own(
    call: Call, kind: _Format, formats: list[str], scaled_mfma: bool
) -> tuple[tuple[str, int | str], ...]:
    """Defines that one of the ways alone takes."""
    if scaled_mfma:
        words = in_words(call["scale_a"]) and in_words(call["scale_b"])
        kinds = (("A_KIND", KINDS[formats[0]]), ("B_KIND", KINDS[formats[1]]))
        return *kinds, ("SCALE_WORDS", int(words))
    return () if kind.e8m0 else (("SCALE_FORMAT", format_type("float8_e4m3fn")),)

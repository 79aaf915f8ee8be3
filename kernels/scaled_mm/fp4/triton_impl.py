"""scaled_mm_mxfp4 and scaled_mm_nvfp4 in Triton, for every layout and vendor.

Each program computes one BLOCK_M x BLOCK_N tile, BLOCK_K bytes along k at a time. A thread makes bfloat16
numbers of the codes times their scales, which is exact. The two halves of a byte go to two products, of the
even and of the odd elements along k: no element changes its place.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from portable.kernels._lib.triton.minifloat import decode, format_of
from portable.kernels._lib.triton.pdl import enter_pdl
from portable.kernels.matmul.triton.descriptors import uses_pdl
from portable.kernels.matmul.triton.plan import (
    COMPILER,
    TILE,
    layout_constants,
    shared_bytes,
    too_large,
    unit_of,
)
from portable.kernels.matmul.triton.tile import bias_of, tile_starts
from portable.kernels.scaled_mm.fp4.reference import FP4, MX_BYTES, NV_BYTES
from portable.kernels.scaled_mm.problem import from_call
from portable.kernels.scaled_mm.triton_descriptors import scale_args
from portable.kernels.scaled_mm.triton_impl import at_tile, fitted, power, strided_pointer
from portable.layout import ceil_div
from portable.plan import Argument, Call, Launch, Plan, Pointer, Rejected, Scalar, TritonKernel


@triton.jit
def scales_of(codes, FORMAT: tl.constexpr):
    """The float32 numbers of scales: of e8m0 where FORMAT is None."""
    return power(codes) if FORMAT is None else decode(codes, FORMAT)


@triton.jit
def numbers(codes, scale, FORMAT: tl.constexpr):
    """The numbers of codes of 4 bits times their scales, as bfloat16."""
    return (decode(codes, FORMAT) * scale).to(tl.bfloat16)


@triton.jit
def fp4_tile(
    a_ptr, a_row, a_col, b_ptr, b_row, b_col, c_ptr, c_row, c_col,
    sa_ptr, sa_outer, sa_inner, sb_ptr, sb_outer, sb_inner, ga_ptr, gb_ptr, bias_ptr, M, N, K,
    A_UNIT: tl.constexpr, B_UNIT: tl.constexpr, C_UNIT: tl.constexpr,
    UNIT: tl.constexpr, EVEN_K: tl.constexpr, WIDE: tl.constexpr,
    SIZE: tl.constexpr, FORMAT: tl.constexpr, SCALE_FORMAT: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """One tile of c. K counts bytes, SIZE those that share a scale. ga_ptr and gb_ptr, the scales of the
    whole, are both None or neither. A_UNIT, B_UNIT and C_UNIT as scaled_tile's."""
    enter_pdl(PDL)
    start_m, start_n = tile_starts(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
    a_ptr, a_row, a_col, a_step, b_ptr, b_row, b_col, b_step, c_ptr, c_row, c_col, M, N, K = at_tile(
        a_ptr, a_row, a_col, b_ptr, b_row, b_col, c_ptr, c_row, c_col, start_m, start_n, M, N, K,
        A_UNIT, B_UNIT, C_UNIT, UNIT, WIDE, BLOCK_K,
    )  # fmt: skip
    offs_m = tl.arange(0, BLOCK_M)
    offs_n = tl.arange(0, BLOCK_N)
    offs_k = tl.arange(0, BLOCK_K)
    in_m = offs_m < M - start_m
    in_n = offs_n < N - start_n
    a_ptrs = a_ptr + (offs_m[:, None] * a_row + offs_k[None, :] * a_col)
    b_ptrs = b_ptr + (offs_k[:, None] * b_row + offs_n[None, :] * b_col)
    sa_ptrs = sa_ptr + (start_m + offs_m).to(tl.int64)[:, None] * sa_outer
    sb_ptrs = sb_ptr + (start_n + offs_n).to(tl.int64)[None, :] * sb_outer

    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, K, BLOCK_K):
        group = ((start + offs_k) // SIZE).to(tl.int64)
        if EVEN_K:
            in_a, in_b = in_m[:, None], in_n[None, :]
        else:
            in_k = offs_k < K - start
            in_a, in_b = in_m[:, None] & in_k[None, :], in_n[None, :] & in_k[:, None]
        a = tl.load(a_ptrs, mask=in_a, other=0)
        b = tl.load(b_ptrs, mask=in_b, other=0)
        scale_a = scales_of(tl.load(sa_ptrs + group[None, :] * sa_inner, mask=in_a, other=0), SCALE_FORMAT)
        scale_b = scales_of(tl.load(sb_ptrs + group[:, None] * sb_inner, mask=in_b, other=0), SCALE_FORMAT)
        total = tl.dot(numbers(a & 15, scale_a, FORMAT), numbers(b & 15, scale_b, FORMAT), total)
        total = tl.dot(numbers(a >> 4, scale_a, FORMAT), numbers(b >> 4, scale_b, FORMAT), total)
        a_ptrs += a_step
        b_ptrs += b_step

    if ga_ptr is not None:
        total = total * tl.load(ga_ptr) * tl.load(gb_ptr)
    if bias_ptr is not None:
        total += bias_of(bias_ptr + start_n, offs_n, N - start_n)[None, :]
    within = offs_m[:, None] * c_row + offs_n[None, :] * c_col
    tl.store(c_ptr + within, total.to(c_ptr.dtype.element_ty), mask=in_m[:, None] & in_n[None, :])


def mx(call: Call) -> Plan | Rejected:
    """Plan scaled_mm_mxfp4: one launch."""
    return _plan(call, MX_BYTES, None, ())


def nv(call: Call) -> Plan | Rejected:
    """Plan scaled_mm_nvfp4: one launch."""
    return _plan(call, NV_BYTES, format_of("float8_e4m3fn"), ("global_a", "global_b"))


def _plan(call: Call, size: int, scale_format: Any, whole: tuple[str, ...]) -> Plan | Rejected:
    problem, device = from_call(call, blocked=False), call.device
    product = problem.product
    operands = (product.a, product.b, product.c)
    if None in (product.a.unit_stride, product.b.unit_stride):
        return Rejected("an operand has no unit stride")
    unit = unit_of(product)
    config = fitted(call.config, unit, device, native=False)
    needed = shared_bytes(product, config, device)
    tiles = ceil_div(product.M, config["BLOCK_M"]) * ceil_div(product.N, config["BLOCK_N"])
    if rejected := too_large((product.M, product.N, product.K), tiles, needed, device):
        return rejected
    pdl = uses_pdl(device, needed)
    constants = [
        *layout_constants(product, unit, config["BLOCK_K"]),
        *(() if product.bias else (("bias_ptr", None),)),
        *(() if whole else (("ga_ptr", None), ("gb_ptr", None))),
        ("SIZE", size),
        ("FORMAT", format_of(FP4)),
        ("SCALE_FORMAT", scale_format),
        *((name, config[name]) for name in TILE),
        ("PDL", pdl),
    ]
    warps, stages = (config[name] for name in COMPILER)
    if device.arch.startswith("gfx11"):
        stages = 1  # of two, Triton 3.7 leaves out the wait for the stores to LDS (docs/found/)
    options = tuple((name, value) for name, value in config.items() if name not in TILE + COMPILER)
    kernel = TritonKernel(fp4_tile, tuple(constants), warps, stages, options)
    args: list[tuple[str, Argument]] = []
    for name, x in zip("abc", operands, strict=True):
        args += strided_pointer(name, x, unit > 1, None)
    args += scale_args((problem.scale_a, problem.scale_b), "uint8")
    args += [(f"g{name[-1]}_ptr", Pointer(name)) for name in whole]
    if product.bias:
        args.append(("bias_ptr", Pointer("bias", unit > 1)))
    args += [(name, Scalar("i32", getattr(product, name))) for name in "MNK"]
    return Plan((Launch(kernel, (tiles, 1, 1), tuple(args)),))

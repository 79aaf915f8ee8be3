"""scaled_mm, scaled_mm_block and scaled_mm_mx in Triton, for every layout, type and vendor.

Where TMA can load the operands, `triton_descriptors.py` plans the call. Elsewhere each program of
`scaled_tile` computes one BLOCK_M x BLOCK_N tile, with loads through pointers. Where the GPU has instructions
for both operands' types, codes go into the product as they are; elsewhere a thread makes bfloat16 numbers of
them first, which hold every type of 8 bits exactly. On Hopper, whose sums of such products keep 13 bits, a
tile's sum is brought to float32 every 128 products at the latest, but with use_fast_accum; Triton's own
default (of 3.7) is never.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import triton
import triton.language as tl

from portable.kernels._lib.triton.minifloat import decode, format_of
from portable.kernels._lib.triton.pdl import enter_pdl
from portable.kernels._lib.triton.rows import divisible
from portable.kernels.matmul.problem import Operand
from portable.kernels.matmul.triton.descriptors import uses_pdl
from portable.kernels.matmul.triton.plan import (
    COMPILER,
    TILE,
    arch_number,
    crowded,
    layout_constants,
    narrow,
    operand_args,
    shared_bytes,
    too_large,
    unit_of,
)
from portable.kernels.matmul.triton.tile import bias_of, tile_starts
from portable.kernels.scaled_mm.problem import BLOCK, OCP, ScaledProblem, from_call, triton_decodes
from portable.kernels.scaled_mm.reference import MX_GROUP
from portable.kernels.scaled_mm.triton_descriptors import plan_descriptors, scale_args, unfit
from portable.layout import ceil_div
from portable.plan import Argument, Call, Device, Launch, Plan, Pointer, Rejected, Scalar, TritonKernel


@triton.jit
def multiplied(a, b, total, A_FORMAT: tl.constexpr, B_FORMAT: tl.constexpr, PROMOTE: tl.constexpr):
    """total + a @ b. A format is that of codes to be decoded, or None."""
    if A_FORMAT is not None:
        a, b = decode(a, A_FORMAT), decode(b, B_FORMAT)
        a, b = a.to(tl.bfloat16), b.to(tl.bfloat16)
    return tl.dot(a, b, total, max_num_imprecise_acc=PROMOTE)


@triton.jit
def power(code):
    """The power of two of an e8m0 code, uint8."""
    code = code.to(tl.int32)
    bits = tl.where(code == 0, 0x00400000, code << 23)
    return tl.where(code == 255, 0x7FC00000, bits).to(tl.float32, bitcast=True)


@triton.jit
def at_tile(
    a_ptr, a_row, a_col, b_ptr, b_row, b_col, c_ptr, c_row, c_col, start_m, start_n, M, N, K,
    A_UNIT: tl.constexpr, B_UNIT: tl.constexpr, C_UNIT: tl.constexpr, UNIT: tl.constexpr, WIDE: tl.constexpr,
    BLOCK_K: tl.constexpr,
):  # fmt: skip
    """The bases and strides of a tile of c and of the rows of a and columns of b that make it; the steps
    of a and b along k; M, N and K. What is a multiple of UNIT is so in a form that the compiler sees."""
    if A_UNIT == "col":
        a_row = divisible(a_row, UNIT)
        K = divisible(K, UNIT)
    else:
        a_col = divisible(a_col, UNIT)
        M = divisible(M, UNIT)
    if B_UNIT == "col":
        b_row = divisible(b_row, UNIT)
        N = divisible(N, UNIT)
    else:
        b_col = divisible(b_col, UNIT)
        K = divisible(K, UNIT)
    if C_UNIT == "col":
        c_row = divisible(c_row, UNIT)
        N = divisible(N, UNIT)

    # Tile bases are 64-bit; offsets within a tile only where a stride is too large for 32 bits.
    a_ptr += start_m.to(tl.int64) * a_row
    b_ptr += start_n.to(tl.int64) * b_col
    c_ptr += start_m.to(tl.int64) * c_row + start_n.to(tl.int64) * c_col
    a_step = BLOCK_K * a_col
    b_step = BLOCK_K * b_row
    if not WIDE:
        a_row, a_col = narrow(a_row), narrow(a_col)
        b_row, b_col = narrow(b_row), narrow(b_col)
        c_row, c_col = narrow(c_row), narrow(c_col)
    return a_ptr, a_row, a_col, a_step, b_ptr, b_row, b_col, b_step, c_ptr, c_row, c_col, M, N, K


@triton.jit
def scaled_tile(
    a_ptr, a_row, a_col, b_ptr, b_row, b_col, c_ptr, c_row, c_col,
    sa_ptr, sa_outer, sa_inner, sb_ptr, sb_outer, sb_inner, bias_ptr, M, N, K,
    A_UNIT: tl.constexpr, B_UNIT: tl.constexpr, C_UNIT: tl.constexpr,
    UNIT: tl.constexpr, EVEN_K: tl.constexpr, WIDE: tl.constexpr, BLOCKED: tl.constexpr, MX: tl.constexpr,
    A_FORMAT: tl.constexpr, B_FORMAT: tl.constexpr, PROMOTE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """One tile of c. A_UNIT, B_UNIT and C_UNIT name the index with unit stride ("row", "col" or None), whose
    stride is the constant 1. BLOCKED: the scales are those of 128 elements along k, of which BLOCK_K is a
    part, and of 128 columns of b; each part's products are added up and scaled. MX: the scales are e8m0 codes
    of BLOCK_K along k of a row of a, and of a column of b, which is their first index."""
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
    sa_ptrs = sa_ptr + (start_m + offs_m).to(tl.int64) * sa_outer

    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    if BLOCKED:
        if BLOCK_N <= 128:  # of one block of columns
            sb_ptrs = sb_ptr + (start_n // 128).to(tl.int64) * sb_inner
        else:
            sb_ptrs = sb_ptr + ((start_n + offs_n) // 128).to(tl.int64) * sb_inner
    if MX:
        sb_ptrs = sb_ptr + (start_n + offs_n).to(tl.int64) * sb_outer
    for start in range(0, K, BLOCK_K):
        if EVEN_K:
            a = tl.load(a_ptrs, mask=in_m[:, None], other=0.0)
            b = tl.load(b_ptrs, mask=in_n[None, :], other=0.0)
        else:
            in_k = offs_k < K - start
            a = tl.load(a_ptrs, mask=in_m[:, None] & in_k[None, :], other=0.0)
            b = tl.load(b_ptrs, mask=in_n[None, :] & in_k[:, None], other=0.0)
        if BLOCKED:
            block = tl.cast(start // 128, tl.int64)
            scale_a = tl.load(sa_ptrs + block * sa_inner, mask=in_m, other=0.0)
            if BLOCK_N <= 128:
                scales = (scale_a * tl.load(sb_ptrs + block * sb_outer))[:, None]
            else:
                scale_b = tl.load(sb_ptrs + block * sb_outer, mask=in_n, other=0.0)
                scales = scale_a[:, None] * scale_b[None, :]
            part = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
            total += multiplied(a, b, part, A_FORMAT, B_FORMAT, None) * scales
        elif MX:
            group = tl.cast(start // BLOCK_K, tl.int64)
            scale_a = power(tl.load(sa_ptrs + group * sa_inner, mask=in_m, other=127))
            scale_b = power(tl.load(sb_ptrs + group * sb_inner, mask=in_n, other=127))
            part = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
            part = multiplied(a, b, part, A_FORMAT, B_FORMAT, None)
            total += part * scale_a[:, None] * scale_b[None, :]
        else:
            total = multiplied(a, b, total, A_FORMAT, B_FORMAT, PROMOTE)
        a_ptrs += a_step
        b_ptrs += b_step

    if not BLOCKED and not MX:
        scale_b = tl.load(sb_ptr + (start_n + offs_n).to(tl.int64) * sb_inner, mask=in_n, other=0.0)
        total = total * tl.load(sa_ptrs, mask=in_m, other=0.0)[:, None] * scale_b[None, :]
    if bias_ptr is not None:
        total += bias_of(bias_ptr + start_n, offs_n, N - start_n)[None, :]
    within = offs_m[:, None] * c_row + offs_n[None, :] * c_col
    tl.store(c_ptr + within, total.to(c_ptr.dtype.element_ty), mask=in_m[:, None] & in_n[None, :])


def rows(call: Call) -> Plan | Rejected:
    """Plan scaled_mm: mat_a [M, K], mat_b [K, N], scale_a [M, 1], scale_b [1, N], bias [N] or absent."""
    return plan(from_call(call, blocked=False), call)


def blocks(call: Call) -> Plan | Rejected:
    """Plan scaled_mm_block: the same with a scale for each 128 of a's row and each 128 x 128 of b."""
    return plan(from_call(call, blocked=True), call)


def mx(call: Call) -> Plan | Rejected:
    """Plan scaled_mm_mx: scale_a [M, ceil(K / 32)] and scale_b [N, ceil(K / 32)] in e8m0."""
    return plan(from_call(call, blocked=False, mx=True), call)


def plan(problem: ScaledProblem, call: Call) -> Plan | Rejected:
    """One launch, with the tile and compiler options of `call.config`; by TMA where it loads the operands."""
    product, blocked = problem.product, problem.blocked
    if problem.mx or unfit(product, call, blocked) is not None:
        return plan_pointers(problem, call)
    return plan_descriptors(product, call, (problem.scale_a, problem.scale_b), blocked, problem.fast)


def plan_pointers(problem: ScaledProblem, call: Call) -> Plan | Rejected:
    """One launch of `scaled_tile`."""
    product, device = problem.product, call.device
    operands = (product.a, product.b, product.c)
    if None in (product.a.unit_stride, product.b.unit_stride):
        return Rejected("an operand has no unit stride")
    native = uses_instructions(device, product.a.dtype, product.b.dtype)
    unit = unit_of(product)
    config = fitted({**call.config, **({"BLOCK_K": MX_GROUP} if problem.mx else {})}, unit, device, native)
    needed = shared_bytes(product, config, device)
    block_m, block_n, block_k = (config[name] for name in TILE[:3])
    tiles = ceil_div(product.M, block_m) * ceil_div(product.N, block_n)
    if rejected := too_large((product.M, product.N, product.K), tiles, needed, device):
        return rejected

    pdl = uses_pdl(device, needed)
    constants = [
        *layout_constants(product, unit, block_k),
        *(() if product.bias else (("bias_ptr", None),)),
        ("BLOCKED", problem.blocked),
        ("MX", problem.mx),
        ("A_FORMAT", None if native else format_of(product.a.dtype)),
        ("B_FORMAT", None if native else format_of(product.b.dtype)),
        ("PROMOTE", min(BLOCK, block_k) if native and not problem.fast else None),
        *((name, config[name]) for name in TILE),
        ("PDL", pdl),
    ]
    warps, stages = (config[name] for name in COMPILER)
    if device.arch.startswith("gfx11"):
        stages = 1  # of two, Triton 3.7 leaves out the wait for the stores to LDS (docs/found/)
    options = tuple((name, value) for name, value in config.items() if name not in TILE + COMPILER)
    kernel = TritonKernel(scaled_tile, tuple(constants), warps, stages, options)
    args: list[tuple[str, Argument]] = []
    for name, x in zip("abc", operands, strict=True):
        args += strided_pointer(name, x, unit > 1, None if native or name == "c" else "uint8")
    args += scale_args((problem.scale_a, problem.scale_b))
    if product.bias:
        args.append(("bias_ptr", Pointer("bias", unit > 1)))
    args += [(name, Scalar("i32", getattr(product, name))) for name in "MNK"]
    return Plan((Launch(kernel, (tiles, 1, 1), tuple(args)),))


def uses_instructions(device: Device, *types: str) -> bool:
    """Whether the product is of the codes themselves."""
    if arch_number(device):
        return arch_number(device) >= 89 and all(each in OCP for each in types)
    return not triton_decodes(device, *types)


def fitted(config: Mapping[str, Any], unit: int, device: Device, native: bool) -> dict[str, Any]:
    """The config; in the unaligned class with fewer elements of a tile for a thread, each of which needs a
    64-bit pointer and a mask of its own: BLOCK_K is halved (to 32 at least, the k of fp8 instructions) until
    there are 16, then BLOCK_N. Smaller tiles too where threads of 256 registers hold operands as numbers."""
    config = dict(config)
    if device.arch.startswith("sm_9"):  # larger tiles are those of TMA's kernel
        config["BLOCK_M"], config["BLOCK_K"] = min(config["BLOCK_M"], 128), min(config["BLOCK_K"], 64)
    if not native and device.warp_size == 32:
        config["BLOCK_K"] = 32
        if device.arch.startswith("gfx11"):
            config["BLOCK_M"] = min(config["BLOCK_M"], 64)
    if unit == 1 and device.arch == "gfx90a":  # whose 8 warps have few registers each
        config["BLOCK_M"], config["BLOCK_K"] = min(config["BLOCK_M"], 64), 32
    while crowded(config, unit, device) and config["BLOCK_K"] > 32:
        config["BLOCK_K"] //= 2
    while crowded(config, unit, device) and config["BLOCK_N"] > 32:
        config["BLOCK_N"] //= 2
    return config


def strided_pointer(name: str, x: Operand, aligned: bool, dtype: str | None) -> list[tuple[str, Argument]]:
    """Pointer and strides of one operand, whose elements the kernel takes for `dtype`."""
    steps = [each for each in operand_args(name, x, aligned)[1:] if each[0] in (f"{name}_row", f"{name}_col")]
    return [(f"{name}_ptr", Pointer(x.tensor, aligned, dtype)), *steps]

"""int8_int4_mm in Triton, for every vendor: int8 numbers of codes, made in registers.

A byte is two neighbours along k: the numbers of its halves, side by side, are the codes in their order. A
group's products are added up in int32, and its sum goes to a float32 one times the group's scale.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import triton
import triton.language as tl

from portable.kernels._lib.triton.pdl import enter_pdl, pdl_constant
from portable.kernels._lib.triton.rows import divisible
from portable.kernels.int4_mm.reference import ZERO_POINT
from portable.kernels.int4_mm.triton_impl import MOST_REGISTERS
from portable.kernels.matmul.triton.plan import COMPILER, too_large
from portable.kernels.matmul.triton.tile import bias_of, tile_starts
from portable.layout import ceil_div, next_power_of_2, rows
from portable.plan import Argument, Call, Launch, Plan, Pointer, Rejected, Scalar, TritonKernel

TILE = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M")
LEAST = 16
"""Bytes of a step: products of int8 have at least 32 along k."""
MOST_GROUP = 2**19
"""k of a group whose sum in int32 cannot overflow, of int8 by numbers from -16 to 15."""


@triton.jit
def step_sums(
    part, x_ptrs, w_ptrs, within, P, col, unit, zero, in_m, in_n, EVEN: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """part + the products of BLOCK_K bytes of codes, of which P are a group's and `within` lie before."""
    if EVEN:
        x = tl.load(x_ptrs, mask=in_m[:, None], other=0)
        codes = tl.load(w_ptrs, mask=in_n[:, None], other=0)
    else:
        left = P - within
        x = tl.load(x_ptrs, mask=in_m[:, None] & (col < 2 * left)[None, :], other=0)
        codes = tl.load(w_ptrs, mask=in_n[:, None] & (unit < left)[None, :], other=0)
    low, high = (codes & 15).to(tl.int8), (codes >> 4).to(tl.int8)
    numbers = tl.join(low - zero[:, None], high - zero[:, None]).reshape(BLOCK_N, 2 * BLOCK_K)
    return tl.dot(x, tl.trans(numbers), part, out_dtype=tl.int32)


@triton.jit
def int8_int4_tile(
    x_ptr, x_stride, w_ptr, s_ptr, s_row, s_col, z_ptr, z_row, z_col, sa_ptr, sa_step, bias_ptr, y_ptr,
    M, N, G, P, blocks,
    UNIT: tl.constexpr, WHOLE: tl.constexpr, EVEN: tl.constexpr, ZERO: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """One tile of y [M, N], contiguous, in steps of BLOCK_K bytes of codes, `blocks` of them in a group.
    WHOLE: one. EVEN: they fill it."""
    enter_pdl(PDL)
    P = divisible(P, UNIT)
    start_m, start_n = tile_starts(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)  # pyright: ignore[reportGeneralTypeIssues]
    offs_m, offs_n = start_m + tl.arange(0, BLOCK_M), start_n + tl.arange(0, BLOCK_N)
    in_m, in_n = offs_m < M, offs_n < N
    unit, col = tl.arange(0, BLOCK_K), tl.arange(0, 2 * BLOCK_K)
    x_ptrs = x_ptr + (offs_m.to(tl.int64) * divisible(x_stride, UNIT))[:, None] + col[None, :]
    w_ptrs = w_ptr + (offs_n.to(tl.int64) * G * P)[:, None] + unit[None, :]
    s_ptrs = s_ptr + offs_n.to(tl.int64) * s_row
    z_ptrs = s_ptrs
    if z_ptr is not None:
        z_ptrs = z_ptr + offs_n.to(tl.int64) * z_row
    zero = tl.full((BLOCK_N,), ZERO, tl.int8)
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for _ in range(0, G):
        scale = tl.load(s_ptrs, mask=in_n, other=0.0).to(tl.float32)
        if z_ptr is not None:
            zero = tl.load(z_ptrs, mask=in_n, other=0).to(tl.int8)
            z_ptrs += z_col
        part = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.int32)
        if WHOLE:
            part = step_sums(part, x_ptrs, w_ptrs, 0, P, col, unit, zero, in_m, in_n, EVEN, BLOCK_N, BLOCK_K)
        else:
            for block in range(0, blocks):
                at = block * BLOCK_K
                part = step_sums(
                    part, x_ptrs + 2 * at, w_ptrs + at, at, P, col, unit, zero, in_m, in_n, EVEN,
                    BLOCK_N, BLOCK_K,
                )  # fmt: skip
        total += part.to(tl.float32) * scale[None, :]
        s_ptrs += s_col
        x_ptrs += 2 * P
        w_ptrs += P
    total *= tl.load(sa_ptr + offs_m.to(tl.int64) * sa_step, mask=in_m, other=0.0)[:, None]
    if bias_ptr is not None:
        total += bias_of(bias_ptr, offs_n, N)[None, :]
    y_ptrs = y_ptr + (offs_m.to(tl.int64) * N)[:, None] + offs_n[None, :]
    tl.store(y_ptrs, total.to(y_ptr.dtype.element_ty), mask=in_m[:, None] & in_n[None, :])


def product(call: Call) -> Plan | Rejected:
    """One launch of `int8_int4_tile`."""
    view, (N, G, P) = rows(call["mat_a"]), call["weight"].shape
    M, config = view.count, fitted(call)
    if 2 * P > MOST_GROUP:
        return Rejected(f"groups of {2 * P}: sums in int32 are exact up to {MOST_GROUP}")
    tiles = ceil_div(M, config["BLOCK_M"]) * ceil_div(N, config["BLOCK_N"])
    if rejected := too_large((M, N, 2 * G * P), tiles, shared_bytes(config), call.device, 512):
        return rejected
    unit, block, zero, bias = unit_of(call), config["BLOCK_K"], call.has("zero_point"), call.has("bias")
    constants = [
        *(() if zero else (("z_ptr", None), ("z_row", 0), ("z_col", 0))),
        *(() if bias else (("bias_ptr", None),)),
        ("UNIT", unit),
        ("WHOLE", block >= P),
        ("EVEN", P % block == 0 and P > 0),
        ("ZERO", ZERO_POINT),
        *((name, config[name]) for name in TILE),
        pdl_constant(call.device),
    ]
    args: list[tuple[str, Argument]] = [
        ("x_ptr", Pointer("mat_a", unit > 1)),
        ("x_stride", Scalar("i64", view.stride)),
        ("w_ptr", Pointer("weight", unit > 1)),
    ]
    for name, tensor in (("s", "scale"), ("z", "zero_point")):
        if call.has(tensor):
            row, col = call[tensor].strides
            args.append((f"{name}_ptr", Pointer(tensor)))
            args += [(f"{name}_row", Scalar("i64", row)), (f"{name}_col", Scalar("i64", col))]
    args += [("sa_ptr", Pointer("scale_a")), ("sa_step", Scalar("i64", call["scale_a"].strides[0]))]
    args += [("bias_ptr", Pointer("bias"))] if bias else []
    sizes = {"M": M, "N": N, "G": G, "P": P, "blocks": ceil_div(P, block)}
    args += [("y_ptr", Pointer("c")), *((name, Scalar("i32", size)) for name, size in sizes.items())]
    warps, stages = (config[name] for name in COMPILER)
    if call.device.arch.startswith("gfx11"):
        stages = 1  # of two, Triton 3.7 leaves out the wait for the stores to LDS (docs/found/)
    options = tuple(pair for pair in config.items() if pair[0] not in (*TILE, *COMPILER))
    if unit == 1 and call.device.vendor == "cuda":
        options += (("maxnreg", MOST_REGISTERS),)
    kernel = TritonKernel(int8_int4_tile, tuple(constants), warps, stages, options)
    return Plan((Launch(kernel, (tiles, 1, 1), tuple(args)),))


def fitted(call: Call) -> dict[str, Any]:
    """The config, with steps no longer than a group; and where each number has a pointer and mask of its own,
    shorter steps and then smaller tiles. It does not depend on the number of rows, nor do a row's bits."""
    config = dict(call.config)
    half = call["weight"].shape[2]
    config["BLOCK_K"] = min(config["BLOCK_K"], max(LEAST, next_power_of_2(half)))
    if unit_of(call) > 1:
        return config
    most = config["num_warps"] * call.device.warp_size * 8  # twice as many spill on gfx942
    for name, least in (("BLOCK_K", LEAST), ("BLOCK_N", 32), ("BLOCK_M", 16)):
        while config[name] > least and (2 * config["BLOCK_M"] + config["BLOCK_N"]) * config["BLOCK_K"] > most:
            config[name] //= 2
    return config


def shared_bytes(config: Mapping[str, Any]) -> int:
    """An upper bound: tiles of x and of codes in flight, and one of numbers."""
    x, w = 2 * config["BLOCK_M"], config["BLOCK_N"]
    return config["BLOCK_K"] * (config["num_stages"] * (x + w) + 2 * w)


def unit_of(call: Call) -> int:
    """16 if every group of every row starts at a multiple of 16 bytes, else 1."""
    x, weight = call["mat_a"], call["weight"]
    aligned = x.alignment >= 16 and weight.alignment >= 16
    return 16 if aligned and weight.shape[2] % 16 == 0 and rows(x).stride % 16 == 0 else 1

"""int4_mm in Triton, for every vendor: tiles of many rows, and few rows in parts along k.

A thread makes numbers of x's dtype of codes less their zero points, which is exact; a tile's products with
them are added up within a group, or a part of it, and that sum is multiplied by the group's scale in float32.
Up to FEW rows, which read the weight once and are bound by that, programs share K: each of a fixed number of
parts goes to memory as float32, and a second launch adds them up in their order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import triton
import triton.language as tl

from portable.dtypes import itemsize
from portable.kernels._lib.triton.rows import MAX_GRID, divisible
from portable.kernels.int4_mm.reference import ZERO_POINT
from portable.kernels.matmul.triton.plan import COMPILER
from portable.kernels.matmul.triton.tile import bias_of, tile_starts
from portable.layout import ceil_div, next_power_of_2, rows
from portable.plan import Argument, Call, Launch, Plan, Pointer, Rejected, Scalar, TritonKernel, Workspace

FEW = 16
"""Rows that the kernel of few rows takes: those of one matrix instruction."""
TILE = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M")
SPLITS, LEAST_STEPS, PROGRAMS = 32, 4, 2
"""Parts along k at most; steps along k of each at least; programs for each multiprocessor that are wanted."""
REDUCED = 256
"""Sums that a program of the second launch finishes."""
PARTIALS = "partial"


@triton.jit
def group_sums(
    x_ptr, x_stride, w_ptr, s_ptr, s_row, s_col, z_ptr, z_row, z_col, o_ptr, o_row, o_col,
    start_m, start_n, first, last, M, N, G, P, blocks,
    UNIT: tl.constexpr, WHOLE: tl.constexpr, EVEN: tl.constexpr, ZERO: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """The sums of a tile over the steps `first` to `last` along k, of BLOCK_K bytes of one group each: a
    group has `blocks` of them. WHOLE: it has one and fills it. EVEN: it fills the last one."""
    P = divisible(P, UNIT)
    offs_n = start_n + tl.arange(0, BLOCK_N)
    offs_m = start_m + tl.arange(0, BLOCK_M)
    in_m, in_n = offs_m < M, offs_n < N
    byte = tl.arange(0, BLOCK_K)
    col = tl.arange(0, 2 * BLOCK_K)
    x_ptrs = x_ptr + (offs_m.to(tl.int64) * divisible(x_stride, UNIT))[:, None] + col[None, :]
    w_ptrs = w_ptr + (offs_n.to(tl.int64) * G * P)[:, None] + byte[None, :]
    s_ptrs = s_ptr + offs_n.to(tl.int64) * s_row
    z_ptrs, o_ptrs = s_ptrs, s_ptrs
    if z_ptr is not None:
        z_ptrs = z_ptr + offs_n.to(tl.int64) * z_row
    if o_ptr is not None:
        o_ptrs = o_ptr + offs_n.to(tl.int64) * o_row

    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for step in range(first, last):
        if WHOLE:
            group, within = step.to(tl.int64), 0
        else:
            group, within = (step // blocks).to(tl.int64), (step % blocks) * BLOCK_K
        place = group * P + within
        if EVEN:
            x = tl.load(x_ptrs + 2 * place, mask=in_m[:, None], other=0.0)
            w = tl.load(w_ptrs + place, mask=in_n[:, None], other=0)
        else:
            left = P - within
            x = tl.load(x_ptrs + 2 * place, mask=in_m[:, None] & (col < 2 * left)[None, :], other=0.0)
            w = tl.load(w_ptrs + place, mask=in_n[:, None] & (byte < left)[None, :], other=0)
        low, high = (w & 15).to(tl.int8), (w >> 4).to(tl.int8)
        if z_ptr is None:
            low, high = low - ZERO, high - ZERO
        else:
            zero = tl.load(z_ptrs + group * z_col, mask=in_n, other=0).to(tl.int8)[:, None]
            low, high = low - zero, high - zero
        part = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        number = tl.reshape(tl.join(low, high), (BLOCK_N, 2 * BLOCK_K)).to(x.dtype)
        part = tl.dot(x, tl.trans(number), part, input_precision="ieee")
        scale = tl.load(s_ptrs + group * s_col, mask=in_n, other=0.0).to(tl.float32)
        total += part * scale[None, :]
        if o_ptr is not None:
            offset = tl.load(o_ptrs + group * o_col, mask=in_n, other=0.0).to(tl.float32)
            total += tl.sum(x.to(tl.float32), axis=1)[:, None] * offset[None, :]
    return total


@triton.jit
def int4_tile(
    x_ptr, x_stride, w_ptr, s_ptr, s_row, s_col, z_ptr, z_row, z_col, o_ptr, o_row, o_col, bias_ptr, y_ptr,
    M, N, G, P, blocks,
    UNIT: tl.constexpr, WHOLE: tl.constexpr, EVEN: tl.constexpr, ZERO: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    """One tile of y [M, N], contiguous."""
    start_m, start_n = tile_starts(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)  # pyright: ignore[reportGeneralTypeIssues]
    total = group_sums(
        x_ptr, x_stride, w_ptr, s_ptr, s_row, s_col, z_ptr, z_row, z_col, o_ptr, o_row, o_col,
        start_m, start_n, 0, G * blocks, M, N, G, P, blocks,
        UNIT, WHOLE, EVEN, ZERO, BLOCK_M, BLOCK_N, BLOCK_K,
    )  # fmt: skip
    offs_m, offs_n = start_m + tl.arange(0, BLOCK_M), start_n + tl.arange(0, BLOCK_N)
    if bias_ptr is not None:
        total += bias_of(bias_ptr, offs_n, N)[None, :]
    y_ptrs = y_ptr + (offs_m.to(tl.int64) * N)[:, None] + offs_n[None, :]
    tl.store(y_ptrs, total.to(y_ptr.dtype.element_ty), mask=(offs_m < M)[:, None] & (offs_n < N)[None, :])


@triton.jit
def int4_part(
    x_ptr, x_stride, w_ptr, s_ptr, s_row, s_col, z_ptr, z_row, z_col, o_ptr, o_row, o_col, partial_ptr,
    M, N, G, P, blocks, steps,
    UNIT: tl.constexpr, WHOLE: tl.constexpr, EVEN: tl.constexpr, ZERO: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """The sums of BLOCK_N columns over `steps` steps along k, the program's second number says which, to
    partial [parts, M, N]."""
    start_n, part = tl.program_id(0) * BLOCK_N, tl.program_id(1)
    first = part * steps
    total = group_sums(
        x_ptr, x_stride, w_ptr, s_ptr, s_row, s_col, z_ptr, z_row, z_col, o_ptr, o_row, o_col,
        0, start_n, first, tl.minimum(first + steps, G * blocks), M, N, G, P, blocks,
        UNIT, WHOLE, EVEN, ZERO, BLOCK_M, BLOCK_N, BLOCK_K,
    )  # fmt: skip
    offs_m, offs_n = tl.arange(0, BLOCK_M), start_n + tl.arange(0, BLOCK_N)
    ptrs = partial_ptr + ((part * M + offs_m).to(tl.int64) * N)[:, None] + offs_n[None, :]
    tl.store(ptrs, total, mask=(offs_m < M)[:, None] & (offs_n < N)[None, :])


@triton.jit
def int4_reduce(partial_ptr, bias_ptr, y_ptr, M, N, parts, BLOCK: tl.constexpr):
    """y = the sum of the parts, in their order, + bias."""
    row, col = tl.program_id(1), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for part in range(0, parts):
        start = (part * M + row).to(tl.int64) * N
        total += tl.load(partial_ptr + start + col, mask=col < N, other=0.0)
    if bias_ptr is not None:
        total += bias_of(bias_ptr, col, N)
    tl.store(y_ptr + row.to(tl.int64) * N + col, total.to(y_ptr.dtype.element_ty), mask=col < N)


def many_rows(call: Call) -> Plan | Rejected:
    """One launch of `int4_tile`."""
    view, N = rows(call["x"]), call["weight"].shape[0]
    config = fitted(call, call.config)
    tiles = ceil_div(view.count, config["BLOCK_M"]) * ceil_div(N, config["BLOCK_N"])
    if rejected := too_large(call, config, tiles):
        return rejected
    return Plan((tile_launch(call, config, tiles),))


def few_rows(call: Call) -> Plan | Rejected:
    """Of up to FEW rows: `int4_part` and `int4_reduce`, or `int4_tile` where K is not shared."""
    M, (N, G, P) = rows(call["x"]).count, call["weight"].shape
    if M > FEW:
        return Rejected(f"{M} rows: more than {FEW}")
    config = fitted(call, {"BLOCK_M": FEW, "GROUP_M": 1, **call.config})
    columns = ceil_div(N, config["BLOCK_N"])
    if rejected := too_large(call, config, columns):
        return rejected
    total = G * ceil_div(P, config["BLOCK_K"])
    splits = config["SPLITS"] or min(SPLITS, PROGRAMS * call.device.multiprocessors // max(1, columns))
    steps = max(ceil_div(total, max(1, splits)), LEAST_STEPS)
    parts = ceil_div(total, steps)
    if parts < 2 or M == 0:
        return Plan((tile_launch(call, config, columns),))
    args = (
        *operands(call),
        (f"{PARTIALS}_ptr", Pointer(PARTIALS)),
        *sizes(call, config),
        ("steps", Scalar("i32", steps)),
    )
    of_parts = Launch(kernel(call, int4_part, config), (columns, parts, 1), args)
    bias = call.has("bias")
    reduce = TritonKernel(int4_reduce, (*(() if bias else (("bias_ptr", None),)), ("BLOCK", REDUCED)), 4)
    of_sums: tuple[tuple[str, Argument], ...] = (
        (f"{PARTIALS}_ptr", Pointer(PARTIALS)),
        *((("bias_ptr", Pointer("bias")),) if bias else ()),
        ("y_ptr", Pointer("y")),
        *((name, Scalar("i32", value)) for name, value in (("M", M), ("N", N), ("parts", parts))),
    )
    return Plan(
        (of_parts, Launch(reduce, (ceil_div(N, REDUCED), M, 1), of_sums)),
        (Workspace(PARTIALS, (parts, M, N), "float32"),),
    )


def tile_launch(call: Call, config: Mapping[str, Any], tiles: int) -> Launch:
    bias = (("bias_ptr", Pointer("bias")),) if call.has("bias") else ()
    args = (*operands(call), *bias, ("y_ptr", Pointer("y")), *sizes(call, config))
    return Launch(kernel(call, int4_tile, config), (tiles, 1, 1), args)


def fitted(call: Call, config: Mapping[str, Any]) -> dict[str, Any]:
    """The config, with steps along k that are no longer than a group, and shorter where a thread would hold
    too many numbers, and smaller tiles then: in float32, and where each has a pointer and mask of its own."""
    config = dict(config)
    half = call["weight"].shape[2]
    config["BLOCK_K"] = min(config["BLOCK_K"], max(16, next_power_of_2(half))) if half else config["BLOCK_K"]
    most = config["num_warps"] * call.device.warp_size * (32 if unit_of(call) > 1 else 8)
    most //= 2 if call["x"].dtype == "float32" else 1
    for name, least in (("BLOCK_K", 16), ("BLOCK_N", 32), ("BLOCK_M", 16)):
        while config[name] > least and 2 * (config["BLOCK_M"] + config["BLOCK_N"]) * config["BLOCK_K"] > most:
            config[name] //= 2
    return config


def too_large(call: Call, config: Mapping[str, Any], tiles: int) -> Rejected | None:
    """Why a product of so many tiles is beyond the kernel or the GPU."""
    view, (N, G, P), device = rows(call["x"]), call["weight"].shape, call.device
    if max(view.count, N, 2 * G * P) > 2**31 - 1 - 256:
        return Rejected("row and column indices exceed 32 bits")
    if tiles > MAX_GRID:
        return Rejected(f"{tiles} tiles exceed a grid of {MAX_GRID}")
    needed = shared_bytes(config, itemsize(call["x"].dtype))
    if needed > device.shared_memory:
        most = device.shared_memory
        return Rejected(f"the config needs {needed} bytes of shared memory; {device.arch} has {most}")
    return None


def shared_bytes(config: Mapping[str, Any], size: int) -> int:
    """An upper bound: tiles of x and of bytes in flight, and one of numbers."""
    x, w = (2 * config["BLOCK_M"] * size, config["BLOCK_N"])
    return config["BLOCK_K"] * (config["num_stages"] * (x + w) + 2 * w * size)


def unit_of(call: Call) -> int:
    """16 if every group of every row starts at a multiple of 16 bytes, else 1."""
    x, weight = call["x"], call["weight"]
    aligned = x.alignment >= 16 and weight.alignment >= 16
    return 16 if aligned and weight.shape[2] % 16 == 0 and rows(x).stride % 16 == 0 else 1


def kernel(call: Call, function: Any, config: Mapping[str, Any]) -> TritonKernel:
    """The kernel for the class of a call: which inputs there are, how groups fit the steps along k."""
    P, block = call["weight"].shape[2], config["BLOCK_K"]
    constants: list[tuple[str, Any]] = []
    for name, tensor in (("z", "zero_point"), ("o", "offset")):
        if not call.has(tensor):
            constants += [(f"{name}_ptr", None), (f"{name}_row", 0), (f"{name}_col", 0)]
    if "bias_ptr" in function.arg_names and not call.has("bias"):
        constants.append(("bias_ptr", None))
    constants += [
        ("UNIT", unit_of(call)),
        ("WHOLE", block == P),
        ("EVEN", P % block == 0),
        ("ZERO", ZERO_POINT),
        *((name, config[name]) for name in TILE if name in function.arg_names),
    ]
    warps, stages = (config[name] for name in COMPILER)
    options = tuple(pair for pair in config.items() if pair[0] not in (*TILE, *COMPILER, "SPLITS"))
    return TritonKernel(function, tuple(constants), warps, stages, options)


def operands(call: Call) -> list[tuple[str, Argument]]:
    """Pointers and strides of what makes the sums."""
    aligned = unit_of(call) > 1
    args: list[tuple[str, Argument]] = [
        ("x_ptr", Pointer("x", aligned)),
        ("x_stride", Scalar("i64", rows(call["x"]).stride)),
        ("w_ptr", Pointer("weight", aligned)),
    ]
    for name, tensor in (("s", "scale"), ("z", "zero_point"), ("o", "offset")):
        if call.has(tensor):
            row, col = call[tensor].strides
            args.append((f"{name}_ptr", Pointer(tensor)))
            args += [(f"{name}_row", Scalar("i64", row)), (f"{name}_col", Scalar("i64", col))]
    return args


def sizes(call: Call, config: Mapping[str, Any]) -> list[tuple[str, Argument]]:
    """M, N, G, P and the steps along k of a group."""
    N, G, P = call["weight"].shape
    values = {"M": rows(call["x"]).count, "N": N, "G": G, "P": P, "blocks": ceil_div(P, config["BLOCK_K"])}
    return [(name, Scalar("i32", value)) for name, value in values.items()]

"""int4_mm in Triton, for every vendor: tiles of many rows, and few rows in parts along k.

A byte is two neighbours along k. So a first launch takes rows of x apart into their even and odd columns,
and a step along k is the product of numbers and columns side by side: of the codes in the lower halves of
bytes and the even columns, then of those in the upper halves and the odd ones. In 16 bits codes are words of
four bytes, of which two become numbers at a time; x's columns are in the order that this gives. A and B are
swapped: the weight's numbers are the first operand, which Hopper's wgmma takes from registers. A thread
makes them of codes less their zero points, exactly. Products are added up within a group, or a part of it,
and that sum is multiplied by the group's scale in float32. Up to FEW rows, which read the weight once and are
bound by that, programs share K: each of a fixed number of parts goes to memory as float32, and another launch
adds them up in their order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import triton
import triton.language as tl

from portable.dtypes import itemsize
from portable.kernels._lib.triton.pdl import enter_pdl, pdl_constant
from portable.kernels._lib.triton.rows import divisible
from portable.kernels.int4_mm.reference import ZERO_POINT
from portable.kernels.matmul.triton.plan import COMPILER, too_large
from portable.kernels.matmul.triton.tile import bias_of, tile_starts
from portable.layout import ceil_div, next_power_of_2, rows
from portable.plan import Argument, Call, Launch, Plan, Pointer, Rejected, Scalar, TritonKernel, Workspace

FEW = 16
"""Rows that the kernel of few rows takes: those of one matrix instruction."""
TILE = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M")
SPLITS, LEAST_STEPS, PROGRAMS = 32, 4, 8
"""Parts along k at most; steps along k of each at least; programs for each multiprocessor that are wanted."""
REDUCED = 256
"""Sums that a program of the last launch finishes."""
HALVES, SUMS, PARTIALS = "halves", "sums", "partial"
"""Workspaces: x's even and odd columns [M, 2, G * P], in 16 bits in the order of `of_words`; its sums over
groups [M, G]; parts [parts, M, N]."""
MOST_REGISTERS = 255
"""Of a thread where each number has a pointer of its own (NVIDIA): without, the compiler makes do with 64 in
one build and keeps two in memory."""
HALVED_ROWS, HALVED_BYTES = 8, 256
"""Rows and bytes of a group that a program of the first launch takes at a time, at most."""


@triton.jit
def even_and_odd(
    x_ptr, x_stride, halves_ptr, sums_ptr, M, G, P,
    UNIT: tl.constexpr, WORDS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One group of ROWS rows of x [M, 2 * G * P], deinterleaved, to halves [M, 2, G * P], and where asked for
    its sums in float32 to sums [M, G]."""
    enter_pdl(PDL)
    P = divisible(P, UNIT)
    row, group = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.program_id(1).to(tl.int64)
    pair = tl.arange(0, BLOCK)
    x_ptrs = x_ptr + (row.to(tl.int64) * divisible(x_stride, UNIT))[:, None] + 2 * group * P
    even_ptrs = halves_ptr + (row.to(tl.int64) * 2 * G * P)[:, None] + group * P + pair[None, :]
    odd_ptrs = even_ptrs + G.to(tl.int64) * P
    sums = tl.zeros((ROWS,), dtype=tl.float32)
    for start in range(0, P, BLOCK):
        inside = (row < M)[:, None] & (pair < P - start)[None, :]
        even, odd = load_pairs(x_ptrs, start + pair[None, :], inside, UNIT > 1)
        if WORDS:
            even, odd = in_order_of_words(even, ROWS, BLOCK), in_order_of_words(odd, ROWS, BLOCK)
        tl.store(even_ptrs + start, even, mask=inside)
        tl.store(odd_ptrs + start, odd, mask=inside)
        sums += tl.sum(even.to(tl.float32) + odd.to(tl.float32), axis=1)
    if sums_ptr is not None:
        tl.store(sums_ptr + row.to(tl.int64) * G + group, sums, mask=row < M)


@triton.jit
def load_pairs(x_ptrs, pair, inside, ALIGNED: tl.constexpr):
    """Both numbers of each pair, in one load where pairs are aligned; 0 where not inside."""
    dtype: tl.constexpr = x_ptrs.dtype.element_ty
    if ALIGNED:
        BITS: tl.constexpr = dtype.primitive_bitwidth  # pyright: ignore[reportAttributeAccessIssue]
        WORD = tl.int32 if BITS == 16 else tl.int64
        HALF = tl.int16 if BITS == 16 else tl.int32
        words = tl.load(x_ptrs.to(tl.pointer_type(WORD), bitcast=True) + pair, mask=inside, other=0)
        even, odd = words.to(HALF), (words >> BITS).to(HALF)
        return even.to(dtype, bitcast=True), odd.to(dtype, bitcast=True)
    else:
        even = tl.load(x_ptrs + 2 * pair, mask=inside, other=0.0)
        return even, tl.load(x_ptrs + 2 * pair + 1, mask=inside, other=0.0)


@triton.jit
def biased(codes, dtype: tl.constexpr):
    """Integers from 0 to 16, in int16, as numbers of dtype: in 16 bits plus a magic number, 128 or 1024, of
    whose mantissa they are the last bits."""
    if dtype == tl.bfloat16:
        return (codes | 0x4300).to(tl.bfloat16, bitcast=True)
    elif dtype == tl.float16:
        return (codes | 0x6400).to(tl.float16, bitcast=True)
    else:
        return codes.to(tl.float32)


@triton.jit
def of_words(words, dtype: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    """`biased` codes in the lower halves of words' bytes, in the order of `in_order_of_words`."""
    MAGIC: tl.constexpr = 0x43004300 if dtype == tl.bfloat16 else 0x64006400  # pyright: ignore[reportAssignmentType]
    first, second = (words & 0x000F000F) | MAGIC, ((words >> 8) & 0x000F000F) | MAGIC
    low = tl.join(first.to(tl.int16), second.to(tl.int16))
    high = tl.join((first >> 16).to(tl.int16), (second >> 16).to(tl.int16))
    return tl.join(low, high).reshape(BLOCK_N, BLOCK_K).to(dtype, bitcast=True)


@triton.jit
def in_order_of_words(columns, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Of each four columns the two in the middle change places."""
    fours = columns.reshape(ROWS, BLOCK // 4, 2, 2)
    return tl.permute(fours, (0, 1, 3, 2)).reshape(ROWS, BLOCK)


@triton.jit
def group_of(step, blocks, WHOLE: tl.constexpr):
    """The group that a step along k is of."""
    if not WHOLE:
        step = step // tl.maximum(blocks, 1)
    return tl.cast(step, tl.int64)


@triton.jit
def group_sums(
    halves_ptr, sums_ptr, w_ptr, s_ptr, s_row, s_col, z_ptr, z_row, z_col, o_ptr, o_row, o_col,
    start_m, start_n, first, last, M, N, G, P, blocks,
    UNIT: tl.constexpr, WORDS: tl.constexpr, WHOLE: tl.constexpr, EVEN: tl.constexpr, ZERO: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """The sums of a tile [BLOCK_N, BLOCK_M] of y.T over the steps `first` to `last` along k, of BLOCK_K bytes
    of one group each: a group has `blocks` of them. WHOLE: it has one and fills it. EVEN: it fills the last
    one."""
    P = divisible(P, UNIT)
    offs_n = start_n + tl.arange(0, BLOCK_N)
    offs_m = start_m + tl.arange(0, BLOCK_M)
    in_m, in_n = offs_m < M, offs_n < N
    column = tl.arange(0, 2 * BLOCK_K)
    half, column = (column // BLOCK_K).to(tl.int64), column % BLOCK_K
    x_ptrs = halves_ptr + (offs_m.to(tl.int64) * 2 * G * P)[None, :] + (half * G * P + column)[:, None]
    BYTES: tl.constexpr = 4 if WORDS else 1
    unit = tl.arange(0, BLOCK_K // BYTES)  # of the weight: a word, or a byte
    w_ptrs = w_ptr.to(tl.pointer_type(tl.int32 if WORDS else tl.uint8), bitcast=True)
    w_ptrs = w_ptrs + (offs_n.to(tl.int64) * G * P // BYTES)[:, None] + unit[None, :]
    s_ptrs = s_ptr + offs_n.to(tl.int64) * s_row
    z_ptrs, o_ptrs, sums_ptrs = s_ptrs, s_ptrs, s_ptrs
    if z_ptr is not None:
        z_ptrs = z_ptr + offs_n.to(tl.int64) * z_row
    if o_ptr is not None:
        o_ptrs = o_ptr + offs_n.to(tl.int64) * o_row
        sums_ptrs = sums_ptr + offs_m.to(tl.int64) * G

    dtype: tl.constexpr = halves_ptr.dtype.element_ty
    zero = biased(tl.full((BLOCK_N,), ZERO, tl.int16), dtype)[:, None]
    total = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32)
    # What a group has is loaded a step ahead, while the product runs: the compiler does so with what it has
    # copied to shared memory alone, and the fence before a product on Hopper waits for loads.
    group = group_of(first, blocks, WHOLE)
    scale = tl.load(s_ptrs + group * s_col, mask=in_n, other=0.0)
    points = tl.load(z_ptrs + group * z_col, mask=in_n, other=0) if z_ptr is not None else 0
    for step in range(first, last):
        group = group_of(step, blocks, WHOLE)
        within = 0 if WHOLE else (step % blocks) * BLOCK_K
        place = group * P + within
        following = group_of(tl.minimum(step + 1, last - 1), blocks, WHOLE)
        if EVEN:
            x = tl.load(x_ptrs + place, mask=in_m[None, :], other=0.0)
            w = tl.load(w_ptrs + place // BYTES, mask=in_n[:, None], other=0)
        else:
            x_inside, w_inside = column < P - within, unit < (P - within) // BYTES
            x = tl.load(x_ptrs + place, mask=in_m[None, :] & x_inside[:, None], other=0.0)
            w = tl.load(w_ptrs + place // BYTES, mask=in_n[:, None] & w_inside[None, :], other=0)
        if z_ptr is not None:
            zero = biased(points.to(tl.int16), dtype)[:, None]
        if WORDS:
            low, high = of_words(w, dtype, BLOCK_N, BLOCK_K), of_words(w >> 4, dtype, BLOCK_N, BLOCK_K)
        else:
            codes = w.to(tl.int16)
            low, high = biased(codes & 15, dtype), biased(codes >> 4, dtype)
        numbers = tl.permute(tl.join(low - zero, high - zero), (0, 2, 1)).reshape(BLOCK_N, 2 * BLOCK_K)
        part = tl.dot(numbers, x, input_precision="ieee")
        next_scale = tl.load(s_ptrs + following * s_col, mask=in_n, other=0.0)
        if z_ptr is not None:
            points = tl.load(z_ptrs + following * z_col, mask=in_n, other=0)
        total += part * scale.to(tl.float32)[:, None]
        scale = next_scale
    if o_ptr is not None:  # of the groups that begin in these steps
        of_group = tl.maximum(blocks, 1)
        o_ptrs += tl.cdiv(first, of_group).to(tl.int64) * o_col  # pyright: ignore[reportAttributeAccessIssue]
        for begun in range(tl.cdiv(first, of_group), tl.cdiv(last, of_group)):
            offset = tl.load(o_ptrs, mask=in_n, other=0.0).to(tl.float32)
            o_ptrs += o_col
            sums = tl.load(sums_ptrs + begun, mask=in_m, other=0.0)
            total += offset[:, None] * sums[None, :]
    return total


@triton.jit
def int4_tile(
    halves_ptr, sums_ptr, w_ptr, s_ptr, s_row, s_col, z_ptr, z_row, z_col, o_ptr, o_row, o_col,
    bias_ptr, y_ptr, M, N, G, P, blocks,
    UNIT: tl.constexpr, WORDS: tl.constexpr, WHOLE: tl.constexpr, EVEN: tl.constexpr, ZERO: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """One tile of y [M, N], contiguous."""
    enter_pdl(PDL)
    start_m, start_n = tile_starts(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)  # pyright: ignore[reportGeneralTypeIssues]
    total = group_sums(
        halves_ptr, sums_ptr, w_ptr, s_ptr, s_row, s_col, z_ptr, z_row, z_col, o_ptr, o_row, o_col,
        start_m, start_n, 0, G * blocks, M, N, G, P, blocks,
        UNIT, WORDS, WHOLE, EVEN, ZERO, BLOCK_M, BLOCK_N, BLOCK_K,
    )  # fmt: skip
    offs_m, offs_n = start_m + tl.arange(0, BLOCK_M), start_n + tl.arange(0, BLOCK_N)
    if bias_ptr is not None:
        total += bias_of(bias_ptr, offs_n, N)[:, None]
    y_ptrs = y_ptr + (offs_m.to(tl.int64) * N)[None, :] + offs_n[:, None]
    tl.store(y_ptrs, total.to(y_ptr.dtype.element_ty), mask=(offs_m < M)[None, :] & (offs_n < N)[:, None])


@triton.jit
def int4_part(
    halves_ptr, sums_ptr, w_ptr, s_ptr, s_row, s_col, z_ptr, z_row, z_col, o_ptr, o_row, o_col, partial_ptr,
    M, N, G, P, blocks, steps,
    UNIT: tl.constexpr, WORDS: tl.constexpr, WHOLE: tl.constexpr, EVEN: tl.constexpr, ZERO: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The sums of BLOCK_N columns over `steps` steps along k, the program's second number says which, to
    partial [parts, M, N]."""
    enter_pdl(PDL)
    start_n, part = tl.program_id(0) * BLOCK_N, tl.program_id(1)
    first = part * steps
    total = group_sums(
        halves_ptr, sums_ptr, w_ptr, s_ptr, s_row, s_col, z_ptr, z_row, z_col, o_ptr, o_row, o_col,
        0, start_n, first, tl.minimum(first + steps, G * blocks), M, N, G, P, blocks,
        UNIT, WORDS, WHOLE, EVEN, ZERO, BLOCK_M, BLOCK_N, BLOCK_K,
    )  # fmt: skip
    offs_m, offs_n = tl.arange(0, BLOCK_M), start_n + tl.arange(0, BLOCK_N)
    ptrs = partial_ptr + ((part * M + offs_m).to(tl.int64) * N)[None, :] + offs_n[:, None]
    tl.store(ptrs, total, mask=(offs_m < M)[None, :] & (offs_n < N)[:, None])


@triton.jit
def int4_reduce(partial_ptr, bias_ptr, y_ptr, M, N, parts, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """y = the sum of the parts, in their order, + bias."""
    enter_pdl(PDL)
    row, col = tl.program_id(1), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for part in range(0, parts):
        start = (part * M + row).to(tl.int64) * N
        total += tl.load(partial_ptr + start + col, mask=col < N, other=0.0)
    if bias_ptr is not None:
        total += bias_of(bias_ptr, col, N)
    tl.store(y_ptr + row.to(tl.int64) * N + col, total.to(y_ptr.dtype.element_ty), mask=col < N)


def many_rows(call: Call) -> Plan | Rejected:
    """`even_and_odd` and one launch of `int4_tile`."""
    view, N = rows(call["x"]), call["weight"].shape[0]
    config = fitted(call, call.config)
    tiles = ceil_div(view.count, config["BLOCK_M"]) * ceil_div(N, config["BLOCK_N"])
    if rejected := unfit(call, config, tiles):
        return rejected
    return Plan((*halved(call), tile_launch(call, config, tiles)), workspaces(call))


def few_rows(call: Call) -> Plan | Rejected:
    """Of up to FEW rows: `even_and_odd`, then `int4_part` and `int4_reduce`, or `int4_tile` where K is not
    shared."""
    M, (N, G, P) = rows(call["x"]).count, call["weight"].shape
    if M > FEW:
        return Rejected(f"{M} rows: more than {FEW}")
    config = fitted(call, {"BLOCK_M": FEW, "GROUP_M": 1, **call.config})
    columns = ceil_div(N, config["BLOCK_N"])
    if rejected := unfit(call, config, columns):
        return rejected
    total = G * ceil_div(P, config["BLOCK_K"])
    splits = config["SPLITS"] or min(SPLITS, PROGRAMS * call.device.multiprocessors // max(1, columns))
    steps = max(ceil_div(total, max(1, splits)), LEAST_STEPS)
    parts = ceil_div(total, steps)
    if parts < 2 or M == 0:
        return Plan((*halved(call), tile_launch(call, config, columns)), workspaces(call))
    args = (
        *operands(call),
        (f"{PARTIALS}_ptr", Pointer(PARTIALS)),
        *sizes(call, config),
        ("steps", Scalar("i32", steps)),
    )
    of_parts = Launch(kernel(call, int4_part, config), (columns, parts, 1), args)
    bias = call.has("bias")
    constants = (*(() if bias else (("bias_ptr", None),)), ("BLOCK", REDUCED), pdl_constant(call.device))
    of_sums: tuple[tuple[str, Argument], ...] = (
        (f"{PARTIALS}_ptr", Pointer(PARTIALS)),
        *((("bias_ptr", Pointer("bias")),) if bias else ()),
        ("y_ptr", Pointer("y")),
        *((name, Scalar("i32", value)) for name, value in (("M", M), ("N", N), ("parts", parts))),
    )
    reduce = Launch(TritonKernel(int4_reduce, constants, 4), (ceil_div(N, REDUCED), M, 1), of_sums)
    partials = Workspace(PARTIALS, (parts, M, N), "float32")
    return Plan((*halved(call), of_parts, reduce), (*workspaces(call), partials))


def workspaces(call: Call) -> tuple[Workspace, ...]:
    """x's even and odd columns, and where there are offsets its sums over groups."""
    M, (_, G, P) = rows(call["x"]).count, call["weight"].shape
    halves = Workspace(HALVES, (M, 2, G * P), call["x"].dtype)
    return (halves, Workspace(SUMS, (M, G), "float32")) if call.has("offset") else (halves,)


def halved(call: Call) -> tuple[Launch, ...]:
    """The launch of `even_and_odd`; none where x has no columns."""
    view, (_, G, P) = rows(call["x"]), call["weight"].shape
    if P == 0:
        return ()
    unit = unit_of(call)
    block = min(HALVED_BYTES, max(16, next_power_of_2(P)))
    constants: list[tuple[str, Any]] = [] if call.has("offset") else [(f"{SUMS}_ptr", None)]
    constants += [
        ("UNIT", unit),
        ("WORDS", in_words(call)),
        ("ROWS", HALVED_ROWS),
        ("BLOCK", block),
        pdl_constant(call.device),
    ]
    args: tuple[tuple[str, Argument], ...] = (
        ("x_ptr", Pointer("x", unit > 1)),
        ("x_stride", Scalar("i64", view.stride)),
        *pointers(call),
        *((name, Scalar("i32", value)) for name, value in (("M", view.count), ("G", G), ("P", P))),
    )
    grid = (ceil_div(view.count, HALVED_ROWS), G, 1)
    return (Launch(TritonKernel(even_and_odd, tuple(constants), 4), grid, args),)


def pointers(call: Call) -> tuple[tuple[str, Argument], ...]:
    """Of what `even_and_odd` makes."""
    halves = (f"{HALVES}_ptr", Pointer(HALVES, unit_of(call) > 1))
    return (halves, (f"{SUMS}_ptr", Pointer(SUMS))) if call.has("offset") else (halves,)


def tile_launch(call: Call, config: Mapping[str, Any], tiles: int) -> Launch:
    bias = (("bias_ptr", Pointer("bias")),) if call.has("bias") else ()
    args = (*operands(call), *bias, ("y_ptr", Pointer("y")), *sizes(call, config))
    return Launch(kernel(call, int4_tile, config), (tiles, 1, 1), args)


def fitted(call: Call, config: Mapping[str, Any]) -> dict[str, Any]:
    """The config, with steps along k that are no longer than a group; and where a thread would hold too many
    numbers, in float32 and where each has a pointer and mask of its own, shorter steps and then smaller
    tiles."""
    config = dict(config)
    half = call["weight"].shape[2]
    config["BLOCK_K"] = min(config["BLOCK_K"], max(16, next_power_of_2(half))) if half else config["BLOCK_K"]
    if unit_of(call) > 1 and call["x"].dtype != "float32":
        return config
    most = config["num_warps"] * call.device.warp_size * (16 if unit_of(call) > 1 else 8)
    for name, least in (("BLOCK_K", 16), ("BLOCK_N", 32), ("BLOCK_M", 16)):
        while config[name] > least and 2 * (config["BLOCK_M"] + config["BLOCK_N"]) * config["BLOCK_K"] > most:
            config[name] //= 2
    return config


def unfit(call: Call, config: Mapping[str, Any], tiles: int) -> Rejected | None:
    """Why a product of so many tiles is beyond the kernel or the GPU."""
    view, (N, G, P) = rows(call["x"]), call["weight"].shape
    shared = shared_bytes(config, itemsize(call["x"].dtype))
    return too_large((view.count, N, 2 * G * P), tiles, shared, call.device)


def shared_bytes(config: Mapping[str, Any], size: int) -> int:
    """An upper bound: tiles of x and of bytes in flight, and one of numbers or of results."""
    x, w = (2 * config["BLOCK_M"] * size, config["BLOCK_N"])
    numbers, results = 2 * w * size * config["BLOCK_K"], config["BLOCK_M"] * config["BLOCK_N"] * size
    return config["BLOCK_K"] * config["num_stages"] * (x + w) + max(numbers, results)


def unit_of(call: Call) -> int:
    """16 if every group of every row starts at a multiple of 16 bytes, else 1."""
    x, weight = call["x"], call["weight"]
    aligned = x.alignment >= 16 and weight.alignment >= 16
    return 16 if aligned and weight.shape[2] % 16 == 0 and rows(x).stride % 16 == 0 else 1


def in_words(call: Call) -> bool:
    """Whether numbers are made of words of four bytes, two of 16 bits at a time."""
    return unit_of(call) > 1 and itemsize(call["x"].dtype) == 2


def kernel(call: Call, function: Any, config: Mapping[str, Any]) -> TritonKernel:
    """The kernel for the class of a call: which inputs there are, how groups fit the steps along k."""
    P, block = call["weight"].shape[2], config["BLOCK_K"]
    constants: list[tuple[str, Any]] = []
    for name, tensor in (("z", "zero_point"), ("o", "offset")):
        if not call.has(tensor):
            constants += [(f"{name}_ptr", None), (f"{name}_row", 0), (f"{name}_col", 0)]
    if not call.has("offset"):
        constants.append((f"{SUMS}_ptr", None))
    if "bias_ptr" in function.arg_names and not call.has("bias"):
        constants.append(("bias_ptr", None))
    constants += [
        ("UNIT", unit_of(call)),
        ("WORDS", in_words(call)),
        ("WHOLE", block == P),
        ("EVEN", P % block == 0),
        ("ZERO", ZERO_POINT),
        *((name, config[name]) for name in TILE if name in function.arg_names),
        pdl_constant(call.device),
    ]
    warps, stages = (config[name] for name in COMPILER)
    options = tuple(pair for pair in config.items() if pair[0] not in (*TILE, *COMPILER, "SPLITS"))
    if unit_of(call) == 1 and call.device.vendor == "cuda":
        options += (("maxnreg", MOST_REGISTERS),)
    return TritonKernel(function, tuple(constants), warps, stages, options)


def operands(call: Call) -> list[tuple[str, Argument]]:
    """Pointers and strides of what makes the sums."""
    aligned = unit_of(call) > 1
    args: list[tuple[str, Argument]] = [
        *pointers(call),
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

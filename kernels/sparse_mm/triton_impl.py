"""sparse_mm and sparse_scaled_mm in Triton, for every vendor: a tile of the weight is decompressed in
registers, then multiplied.

Triton has no sparse product, so this saves bytes of the weight and no products. Codes of 8 bits go into the
product as they are where the GPU multiplies such; elsewhere they become bfloat16 numbers first, exactly. On
Hopper a tile's sum in fp8 is brought to float32 every step, as scaled_mm's is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import triton
import triton.language as tl

from portable.dtypes import itemsize
from portable.kernels._lib.triton.minifloat import decode, format_of
from portable.kernels._lib.triton.rows import divisible
from portable.kernels.matmul.triton.plan import COMPILER, too_large
from portable.kernels.matmul.triton.tile import bias_of, tile_starts
from portable.kernels.scaled_mm.triton_impl import uses_instructions
from portable.layout import Rows, ceil_div, rows
from portable.plan import Argument, Call, Launch, Plan, Pointer, Rejected, Scalar, TritonKernel

TILE = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M")
BLOCK = 128
"""Products that Hopper's matrix unit adds up in fp8 before their sum goes to float32, at most."""
UNALIGNED = 16
"""Elements of a step that a thread loads at most of rows that are not aligned; more spill."""


@triton.jit
def decompressed(first, second, places):
    """[BLOCK_N, 4 * G] of the values of G groups, [BLOCK_N, G] each, and their places: 4 bits a group."""
    low, high = places & 3, places >> 2
    zero = tl.zeros_like(first)
    at0 = tl.where(low == 0, first, zero)
    at1 = tl.where(low == 1, first, tl.where(high == 1, second, zero))
    at2 = tl.where(low == 2, first, tl.where(high == 2, second, zero))
    at3 = tl.where(high == 3, second, zero)
    four = tl.join(tl.join(at0, at2), tl.join(at1, at3))  # [.., i, j] is at 2 * i + j
    return tl.reshape(four, (first.shape[0], 4 * first.shape[1]))


@triton.jit
def sparse_tile(
    x_ptr, x_stride, values_ptr, meta_ptr, sa_ptr, sa_step, sb_ptr, sb_step, bias_ptr, y_ptr, M, N, J,
    UNIT: tl.constexpr, EVEN: tl.constexpr, CODES: tl.constexpr, FORMAT: tl.constexpr, PROMOTE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    """One tile of y [M, N], contiguous; steps of BLOCK_K bytes of metadata, 8 k each. EVEN: they fill J.
    CODES: values are uint8, and with a FORMAT, of codes to be decoded, x is too."""
    J = divisible(J, UNIT)
    start_m, start_n = tile_starts(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)  # pyright: ignore[reportGeneralTypeIssues]
    offs_m, offs_n = start_m + tl.arange(0, BLOCK_M), start_n + tl.arange(0, BLOCK_N)
    in_m, in_n = offs_m < M, offs_n < N
    byte = tl.arange(0, BLOCK_K)
    value = tl.arange(0, 4 * BLOCK_K)
    col = tl.arange(0, 8 * BLOCK_K)
    x_ptrs = x_ptr + (offs_m.to(tl.int64) * divisible(x_stride, UNIT))[:, None] + col[None, :]
    meta_ptrs = meta_ptr + (offs_n.to(tl.int64) * J)[:, None] + byte[None, :]
    value_ptrs = values_ptr + (offs_n.to(tl.int64) * (4 * J))[:, None] + value[None, :]
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for at in range(0, J, BLOCK_K):
        if EVEN:
            x = tl.load(x_ptrs, mask=in_m[:, None], other=0.0)
            values = tl.load(value_ptrs, mask=in_n[:, None], other=0.0)
            meta = tl.load(meta_ptrs, mask=in_n[:, None], other=0)
        else:
            left = J - at
            x = tl.load(x_ptrs, mask=in_m[:, None] & (col < 8 * left)[None, :], other=0.0)
            values = tl.load(value_ptrs, mask=in_n[:, None] & (value < 4 * left)[None, :], other=0.0)
            meta = tl.load(meta_ptrs, mask=in_n[:, None] & (byte < left)[None, :], other=0)
        if FORMAT is not None:
            x, values = decode(x, FORMAT).to(tl.bfloat16), decode(values, FORMAT).to(tl.bfloat16)
        first, second = tl.split(tl.reshape(values, (BLOCK_N, 2 * BLOCK_K, 2)))
        places = tl.reshape(tl.join(meta & 15, meta >> 4), (BLOCK_N, 2 * BLOCK_K))
        w = decompressed(first, second, places)
        if CODES and FORMAT is None:
            w = w.to(x.dtype, bitcast=True)
            total = tl.dot(x, tl.trans(w), total, max_num_imprecise_acc=PROMOTE)
        else:
            total = tl.dot(x, tl.trans(w), total, input_precision="ieee")
        x_ptrs += 8 * BLOCK_K
        value_ptrs += 4 * BLOCK_K
        meta_ptrs += BLOCK_K
    if sa_ptr is not None:
        scale_a = tl.load(sa_ptr + offs_m.to(tl.int64) * sa_step, mask=in_m, other=0.0)
        scale_b = tl.load(sb_ptr + offs_n.to(tl.int64) * sb_step, mask=in_n, other=0.0)
        total = total * scale_a[:, None] * scale_b[None, :]
    if bias_ptr is not None:
        total += bias_of(bias_ptr, offs_n, N)[None, :]
    y_ptrs = y_ptr + (offs_m.to(tl.int64) * N)[:, None] + offs_n[None, :]
    tl.store(y_ptrs, total.to(y_ptr.dtype.element_ty), mask=in_m[:, None] & in_n[None, :])


def product(call: Call) -> Plan | Rejected:
    """Plan y of x, values, meta and bias."""
    return _plan(call, "y", (("sa_ptr", None), ("sa_step", 0), ("sb_ptr", None), ("sb_step", 0)))


def scaled(call: Call) -> Plan | Rejected:
    """Plan c of mat_a, values, meta, scale_a [M, 1], scale_b [1, N] and bias."""
    return _plan(call, "c", ())


def _plan(call: Call, y: str, absent: tuple[tuple[str, Any], ...]) -> Plan | Rejected:
    """One launch of `sparse_tile`, in which what is `absent` is constant."""
    view, (N, J) = x_of(call)[1], call["meta"].shape
    M, config = view.count, fitted(call)
    tiles = ceil_div(M, config["BLOCK_M"]) * ceil_div(N, config["BLOCK_N"])
    codes, decoded = itemsize(call["values"].dtype) == 1, is_decoded(call)
    needed = shared_bytes(config, 2 if decoded else itemsize(call["values"].dtype))
    if rejected := too_large((M, N, 8 * J), tiles, needed, call.device, 512):
        return rejected
    unit, bias, dtype = unit_of(call), call.has("bias"), call["values"].dtype
    constants = [
        *absent,
        *(() if bias else (("bias_ptr", None),)),
        ("UNIT", unit),
        ("EVEN", J % config["BLOCK_K"] == 0),
        ("CODES", codes),
        ("FORMAT", format_of(dtype) if decoded else None),
        ("PROMOTE", min(BLOCK, 8 * config["BLOCK_K"]) if codes and not decoded else None),
        *((name, config[name]) for name in TILE),
    ]
    warps, stages = (config[name] for name in COMPILER)
    options = tuple(pair for pair in config.items() if pair[0] not in (*TILE, *COMPILER))
    kernel = TritonKernel(sparse_tile, tuple(constants), warps, stages, options)
    scales: list[tuple[str, Argument]] = []
    for name, tensor, axis in () if absent else (("sa", "scale_a", 0), ("sb", "scale_b", 1)):
        scales.append((f"{name}_ptr", Pointer(tensor)))
        scales.append((f"{name}_step", Scalar("i64", call[tensor].strides[axis])))
    args: tuple[tuple[str, Argument], ...] = (
        ("x_ptr", Pointer(x_of(call)[0], unit > 1, "uint8" if decoded else None)),
        ("x_stride", Scalar("i64", view.stride)),
        ("values_ptr", Pointer("values", unit > 1, "uint8" if codes else None)),
        ("meta_ptr", Pointer("meta", unit > 1)),
        *scales,
        *((("bias_ptr", Pointer("bias")),) if bias else ()),
        ("y_ptr", Pointer(y)),
        *((name, Scalar("i32", size)) for name, size in (("M", M), ("N", N), ("J", J))),
    )
    return Plan((Launch(kernel, (tiles, 1, 1), args),))


def x_of(call: Call) -> tuple[str, Rows]:
    """The name of x, mat_a of sparse_scaled_mm, and its rows."""
    name = "mat_a" if call.has("mat_a") else "x"
    return name, rows(call[name])


def is_decoded(call: Call) -> bool:
    """Whether codes of 8 bits become bfloat16 numbers before the product."""
    dtype = call["values"].dtype
    return itemsize(dtype) == 1 and not uses_instructions(call.device, dtype)


def fitted(call: Call) -> dict[str, Any]:
    """The config, with smaller tiles where a thread would load more than it has registers for, and as many
    stages as fit. It does not depend on the number of rows, nor do a row's bits."""
    config = dict(call.config)
    aligned = unit_of(call) > 1
    most = config["num_warps"] * call.device.warp_size * (loaded(call.device.arch) if aligned else UNALIGNED)
    order = (("BLOCK_M", 32), ("BLOCK_N", 32), ("BLOCK_K", 4), ("BLOCK_M", 16))
    for name, least in order if aligned else (("BLOCK_K", 4), *order):
        while config[name] > least and elements(config) > most:
            config[name] //= 2
    size = 2 if is_decoded(call) else itemsize(call["values"].dtype)
    while config["num_stages"] > 1 and shared_bytes(config, size) > call.device.shared_memory:
        config["num_stages"] -= 1
    return config


def loaded(arch: str) -> int:
    """Elements of a step that a thread loads at most of aligned rows. On an H200 tiles of 128x64 take 4.4 ms
    at 8192^3, of 64x64 7.2 (2026-11-27); elsewhere they spill, and on gfx11 those of 64x64 do."""
    return 80 if arch == "sm_90a" else 32 if arch.startswith("gfx1") else 48


def elements(config: Mapping[str, Any]) -> int:
    """Of x and values in a step."""
    return config["BLOCK_K"] * (8 * config["BLOCK_M"] + 4 * config["BLOCK_N"])


def unit_of(call: Call) -> int:
    """16 if every row starts at a multiple of 16 bytes, else 1."""
    name, view = x_of(call)
    aligned = all(call[each].alignment >= 16 for each in (name, "values", "meta"))
    return 16 if aligned and call["meta"].shape[1] % 16 == 0 and view.stride % 16 == 0 else 1


def shared_bytes(config: Mapping[str, Any], size: int) -> int:
    """An upper bound: tiles of x, values and metadata in flight, and one of the weight."""
    x, w = config["BLOCK_M"] * size * 8, config["BLOCK_N"] * size * 4 + config["BLOCK_N"]
    return config["BLOCK_K"] * (config["num_stages"] * (x + w) + config["BLOCK_N"] * size * 8)

"""kv_cache_write in Triton: a program copies columns of k or of v, through the heads of some tokens."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from portable.kernels._lib.triton.minifloat import converts, encode, format_of
from portable.kernels._lib.triton.pdl import enter_pdl, supports_pdl
from portable.kernels._lib.triton.rows import MIN_BLOCK, divisible, setting, warps
from portable.kernels.kv_cache_write.native import (
    TENSORS,
    numbers,
    scale_arguments,
    strides,
    too_large,
    unit_of,
)
from portable.kernels.quantize_fp8.triton_impl import WITH_SUBNORMALS
from portable.layout import ceil_div, next_power_of_2
from portable.plan import Argument, Call, Launch, Plan, Pointer, Rejected, Scalar, TritonKernel

PER_THREAD = 16  # elements of a program's tile
UNALIGNED_TILE = 4  # as many times fewer where every element needs a mask of its own
MAX_BLOCKS_OF_COLUMNS = 65535


@triton.jit
def copy_columns(
    from_ptr, rows, from_head, from_element, to_ptr, places, to_head, to_element,
    inside, heads, block, SIZE: tl.constexpr, UNIT: tl.constexpr, BLOCK: tl.constexpr,
    scale_ptr=None, scale_head=None, FORMAT: tl.constexpr = None, CONVERT: tl.constexpr = False,  # pyright: ignore[reportArgumentType]
):  # fmt: skip
    """Columns block * BLOCK and on of tokens' heads, which follow one another, from `rows` to `places`. With
    a FORMAT they become its codes, over the scale of their head."""
    column = block * BLOCK + tl.arange(0, BLOCK)
    head, own = (column // SIZE).to(tl.int64), column % SIZE
    source = head * divisible(from_head, UNIT)
    target = head * divisible(to_head, UNIT)
    if UNIT > 1:
        source, target = source + own, target + own
    else:
        source, target = source + own * from_element, target + own * to_element
    mask = inside[:, None] & (column < divisible(heads * SIZE, UNIT))[None, :]
    x = tl.load(from_ptr + (rows[:, None] + source[None, :]), mask=mask)
    if FORMAT is not None:
        scale = tl.load(scale_ptr + head * scale_head, mask=column < heads * SIZE, other=1.0)
        x = encode(x.to(tl.float32) * tl.div_rn(1.0, scale)[None, :], FORMAT, CONVERT)
    tl.store(to_ptr + (places[:, None] + target[None, :]), x, mask=mask)


@triton.jit
def slots_of(pointers, inside, page, places):
    """Whether each token that is `inside` is written, its page and its place in the page."""
    slot = tl.load(pointers, mask=inside, other=-1).to(tl.int64)
    inside &= (slot >= 0) & (slot < places)
    slot = tl.where(inside, slot, 0).to(tl.int32)
    return inside, (slot // page).to(tl.int64), (slot % page).to(tl.int64)


@triton.jit
def kv_cache_write_tokens(
    k_ptr, v_ptr, k_cache_ptr, v_cache_ptr, slots_ptr, k_token, k_head, k_element, v_token, v_head, v_element,
    k_cache_page, k_cache_place, k_cache_head, k_cache_element,
    v_cache_page, v_cache_place, v_cache_head, v_cache_element,
    slots_token, tokens, heads, page, places, k_blocks, k_scale, k_scale_head, v_scale, v_scale_head,
    FORMAT: tl.constexpr, CONVERT: tl.constexpr,
    PDL: tl.constexpr, K_SIZE: tl.constexpr, V_SIZE: tl.constexpr, UNIT: tl.constexpr,
    TOKENS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The first `k_blocks` programs of a token take its columns of k, the others those of v."""
    enter_pdl(PDL)
    token = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    inside = token < tokens
    slots = slots_ptr + token * slots_token
    inside, at, offset = slots_of(slots, inside, page, places)  # pyright: ignore[reportGeneralTypeIssues]
    block = tl.program_id(1)
    if block < k_blocks:
        copy_columns(
            k_ptr, token * divisible(k_token, UNIT), k_head, k_element,
            k_cache_ptr, at * divisible(k_cache_page, UNIT) + offset * divisible(k_cache_place, UNIT),
            k_cache_head, k_cache_element, inside, heads, block, K_SIZE, UNIT, BLOCK,
            k_scale, k_scale_head, FORMAT, CONVERT,
        )  # fmt: skip
    else:
        copy_columns(
            v_ptr, token * divisible(v_token, UNIT), v_head, v_element,
            v_cache_ptr, at * divisible(v_cache_page, UNIT) + offset * divisible(v_cache_place, UNIT),
            v_cache_head, v_cache_element, inside, heads, block - k_blocks, V_SIZE, UNIT, BLOCK,
            v_scale, v_scale_head, FORMAT, CONVERT,
        )  # fmt: skip


def forward(call: Call) -> Plan | Rejected:
    """Plan the writes of k and v."""
    if rejected := too_large(call):
        return rejected
    axes, unit = call.axes, unit_of(call)
    tile = setting(call, "TILE") // (1 if unit > 1 else UNALIGNED_TILE)
    columns = [axes["G"] * axes[size] for size in ("D", "E")]
    block = min(tile, max(MIN_BLOCK, next_power_of_2(max(columns))))
    each, k_blocks, v_blocks = tile // block, *(ceil_div(count, block) for count in columns)
    if k_blocks + v_blocks > MAX_BLOCKS_OF_COLUMNS:
        return Rejected(f"{sum(columns)} elements of a token: more programs than one launch takes")
    constants: dict[str, Any] = {
        "K_SIZE": axes["D"],
        "V_SIZE": axes["E"],
        "UNIT": unit,
        "TOKENS": each,
        "BLOCK": block,
        "PDL": supports_pdl(call.device),
    }
    dtype, scales = call["k_cache"].dtype, dict(scale_arguments(call))
    constants["FORMAT"] = format_of(dtype) if scales else None
    constants["CONVERT"] = bool(scales) and converts(call.device, dtype)
    if not scales:
        constants |= dict.fromkeys(("k_scale", "k_scale_head", "v_scale", "v_scale_head"))
    codes = {name: "uint8" for name in ("k_cache", "v_cache") if scales}
    args: list[tuple[str, Argument]] = [
        (f"{name}_ptr", Pointer(name, unit > 1, codes.get(name))) for name in TENSORS
    ]
    args += [("slots_ptr", Pointer("slots")), *strides(call), *numbers(call)]
    args += [("k_blocks", Scalar("i32", k_blocks)), *scales.items()]
    kernel = TritonKernel(
        kv_cache_write_tokens, tuple(constants.items()), warps(call.device, tile // PER_THREAD),
        options=WITH_SUBNORMALS if scales else (),
    )  # fmt: skip
    return Plan((Launch(kernel, (ceil_div(axes["M"], each), k_blocks + v_blocks, 1), tuple(args)),))

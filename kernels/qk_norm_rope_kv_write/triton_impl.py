"""qk_norm_rope_kv_write in Triton: rope's programs for heads of q and k, and more that copy those of v."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import triton
import triton.language as tl

from portable.kernels._lib.triton.pdl import enter_pdl
from portable.kernels._lib.triton.rows import MIN_BLOCK, divisible
from portable.kernels.kv_cache_write.triton_impl import copy_columns, slots_of
from portable.kernels.qk_norm_rope_kv_write.native import CACHES, steps, too_large, vector
from portable.kernels.rope.triton_impl import angles, plan_heads, rotate_heads
from portable.layout import ceil_div, next_power_of_2
from portable.plan import Argument, Call, Plan, Pointer, Rejected, Scalar, TritonKernel

MAX_BLOCKS = 65535


@triton.jit
def qk_norm_rope_kv_write_tokens(
    q_ptr, k_ptr, q_weight_ptr, k_weight_ptr, cos_ptr, sin_ptr, positions_ptr, q_rotated_ptr, k_rotated_ptr,
    q_sequence, q_token, q_head, k_sequence, k_token, k_head, cos_row, sin_row,
    positions_sequence, positions_token, tokens, length, q_heads, k_heads, q_blocks, eps,
    v_ptr, v_cache_ptr, slots_ptr, v_sequence, v_token, v_head, k_cache_page, k_cache_place, k_cache_head,
    v_cache_page, v_cache_place, v_cache_head, slots_sequence, slots_token, page, places,
    k_cache_element, v_cache_element, k_blocks,
    PDL: tl.constexpr, INTERLEAVED: tl.constexpr, UNIT: tl.constexpr,
    TOKENS: tl.constexpr, HEADS: tl.constexpr,
    SIZE: tl.constexpr, PAIRS: tl.constexpr, BLOCK: tl.constexpr, REST: tl.constexpr,
    V_SIZE: tl.constexpr, V_BLOCK: tl.constexpr,
):  # fmt: skip
    """The first `q_blocks` programs of a token take its heads of q, the next `k_blocks` those of k, which go
    into the cache that `k_rotated_ptr` is, and the others columns of v."""
    enter_pdl(PDL)
    token = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    inside = token < tokens
    sequence, place = token // length, token % length
    block = tl.program_id(1)
    if block < q_blocks:
        cos, sin = angles(  # pyright: ignore[reportGeneralTypeIssues]
            cos_ptr, sin_ptr, positions_ptr, positions_sequence, positions_token, cos_row, sin_row,
            sequence, place, inside, UNIT, PAIRS, BLOCK,
        )  # fmt: skip
        rotate_heads(
            q_ptr, (q_sequence, q_token, q_head), q_rotated_ptr, token * q_heads * SIZE, SIZE, 1,
            q_weight_ptr, q_heads, block * HEADS, sequence, place, inside, inside, cos, sin, eps,
            INTERLEAVED, UNIT, TOKENS, HEADS, SIZE, PAIRS, BLOCK, REST,
        )  # fmt: skip
    else:
        slots = slots_ptr + sequence * slots_sequence + place * slots_token
        kept, at, offset = slots_of(slots, inside, page, places)  # pyright: ignore[reportGeneralTypeIssues]
        if block < q_blocks + k_blocks:
            cos, sin = angles(  # pyright: ignore[reportGeneralTypeIssues]
                cos_ptr, sin_ptr, positions_ptr, positions_sequence, positions_token, cos_row, sin_row,
                sequence, place, inside, UNIT, PAIRS, BLOCK,
            )  # fmt: skip
            rotate_heads(
                k_ptr, (k_sequence, k_token, k_head), k_rotated_ptr,
                at * divisible(k_cache_page, UNIT) + offset * divisible(k_cache_place, UNIT),
                k_cache_head, k_cache_element, k_weight_ptr,
                k_heads, (block - q_blocks) * HEADS, sequence, place, inside, kept, cos, sin, eps,
                INTERLEAVED, UNIT, TOKENS, HEADS, SIZE, PAIRS, BLOCK, REST,
            )  # fmt: skip
        else:
            copy_columns(
                v_ptr, sequence * divisible(v_sequence, UNIT) + place * divisible(v_token, UNIT), v_head, 1,
                v_cache_ptr, at * divisible(v_cache_page, UNIT) + offset * divisible(v_cache_place, UNIT),
                v_cache_head, v_cache_element, kept, k_heads, block - q_blocks - k_blocks,
                V_SIZE, UNIT, V_BLOCK,
            )  # fmt: skip


def forward(call: Call) -> Plan | Rejected:
    """Plan q_rotated and the writes: rope's launch, with programs for v behind those of q and k."""
    if rejected := too_large(call):
        return rejected
    unit, axes = vector(call), call.axes
    plan = plan_heads(call, ("q", "k", "q_rotated", "k_cache"), unit=unit)
    if isinstance(plan, Rejected):
        return plan
    (launch,) = plan.launches
    assert isinstance(launch.kernel, TritonKernel)
    constants: dict[str, Any] = {**dict(launch.kernel.constants)}
    del constants["BACKWARD"]
    heads, rows = constants["HEADS"], constants["HEADS"] * (2 * constants["BLOCK"] + constants["REST"])
    columns = axes["G"] * axes["E"]
    block = max(MIN_BLOCK, min(next_power_of_2(rows), next_power_of_2(columns)))
    constants |= {"V_SIZE": axes["E"], "V_BLOCK": block}
    x, y, _ = launch.grid
    blocks = y + ceil_div(columns, block)
    if blocks > MAX_BLOCKS:
        return Rejected(f"{columns} elements of a token: more programs than one launch takes")
    args: list[tuple[str, Argument]] = [
        *launch.args,
        *((f"{name}_ptr", Pointer(name, unit > 1 and name != "slots")) for name in ("v", "v_cache", "slots")),
        *steps(call),
        *((f"{name}_element", Scalar("i64", call[name].strides[-1])) for name in CACHES),
        ("k_blocks", Scalar("i32", ceil_div(axes["G"], heads))),
    ]
    kernel = replace(launch.kernel, function=qk_norm_rope_kv_write_tokens, constants=tuple(constants.items()))
    return Plan((replace(launch, kernel=kernel, grid=(x, blocks, 1), args=tuple(args)),))

"""rope_qkv and its gradient in Triton: rope's programs for q and k, and more that copy columns of v."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import triton
import triton.language as tl

from portable.kernels._lib.triton.pdl import enter_pdl
from portable.kernels._lib.triton.rows import MIN_BLOCK, divisible
from portable.kernels.kv_cache_write.triton_impl import copy_columns
from portable.kernels.rope.native import vector_of
from portable.kernels.rope.triton_impl import MAX_BLOCKS_OF_HEADS, angles, plan_heads, rotate_heads
from portable.kernels.rope_qkv.native import BACKWARD, FORWARD, placed
from portable.layout import ceil_div, next_power_of_2
from portable.plan import Argument, Call, Plan, Pointer, Rejected, Scalar, TritonKernel


@triton.jit
def rope_qkv_tokens(
    q_ptr, k_ptr, q_weight_ptr, k_weight_ptr, cos_ptr, sin_ptr, positions_ptr, q_rotated_ptr, k_rotated_ptr,
    q_sequence, q_token, q_head, k_sequence, k_token, k_head, cos_row, sin_row,
    positions_sequence, positions_token, tokens, length, q_heads, k_heads, q_blocks, eps,
    v_ptr, v_copied_ptr, v_sequence, v_token, v_head, q_row, k_row, v_row, k_first, v_first, k_blocks,
    PDL: tl.constexpr, BACKWARD: tl.constexpr, INTERLEAVED: tl.constexpr,
    UNIT: tl.constexpr, TOKENS: tl.constexpr,
    HEADS: tl.constexpr, SIZE: tl.constexpr, PAIRS: tl.constexpr, BLOCK: tl.constexpr, REST: tl.constexpr,
    V_BLOCK: tl.constexpr,
):  # fmt: skip
    """The first `q_blocks` programs of a token take its heads of q, the next `k_blocks` those of k, and the
    others columns of v."""
    enter_pdl(PDL)
    token = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    inside = token < tokens
    sequence, place = token // length, token % length
    block = tl.program_id(1)
    if block < q_blocks + k_blocks:
        cos, sin = angles(  # pyright: ignore[reportGeneralTypeIssues]
            cos_ptr, sin_ptr, positions_ptr, positions_sequence, positions_token, cos_row, sin_row,
            sequence, place, inside, UNIT, PAIRS, BLOCK,
        )  # fmt: skip
        if BACKWARD:
            sin = -sin
        if block < q_blocks:
            rotate_heads(
                q_ptr, (q_sequence, q_token, q_head), q_rotated_ptr, token * divisible(q_row, UNIT), SIZE, 1,
                q_weight_ptr, q_heads, block * HEADS, sequence, place, inside, inside, cos, sin, eps,
                INTERLEAVED, UNIT, TOKENS, HEADS, SIZE, PAIRS, BLOCK, REST,
            )  # fmt: skip
        else:
            rotate_heads(
                k_ptr, (k_sequence, k_token, k_head), k_rotated_ptr,
                divisible(k_first, UNIT) + token * divisible(k_row, UNIT), SIZE, 1,
                k_weight_ptr, k_heads, (block - q_blocks) * HEADS, sequence, place, inside, inside, cos, sin,
                eps, INTERLEAVED, UNIT, TOKENS, HEADS, SIZE, PAIRS, BLOCK, REST,
            )  # fmt: skip
    else:
        copy_columns(
            v_ptr, sequence * divisible(v_sequence, UNIT) + place * divisible(v_token, UNIT), v_head, 1,
            v_copied_ptr, divisible(v_first, UNIT) + token * divisible(v_row, UNIT), SIZE, 1,
            inside, k_heads, block - q_blocks - k_blocks, SIZE, UNIT, V_BLOCK,
        )  # fmt: skip


def forward(call: Call) -> Plan | Rejected:
    """Plan q_rotated, k_rotated and v_copied."""
    return _planned(call, FORWARD)


def backward(call: Call) -> Plan | Rejected:
    """Plan dqkv."""
    return _planned(call, BACKWARD)


def _planned(call: Call, names: tuple[str, ...]) -> Plan | Rejected:
    """rope's launch, with programs for v behind those of q and k."""
    q, k, v, to_q, to_k, to_v = names
    unit, axes = vector_of(call, names), call.axes
    plan = plan_heads(call, (q, k, to_q, to_k), backward=names is BACKWARD, unit=unit)
    if isinstance(plan, Rejected):
        return plan
    (launch,) = plan.launches
    assert isinstance(launch.kernel, TritonKernel)
    constants: dict[str, Any] = dict(launch.kernel.constants)
    heads, rows = constants["HEADS"], constants["HEADS"] * (2 * constants["BLOCK"] + constants["REST"])
    columns = axes["G"] * axes["D"]
    block = max(MIN_BLOCK, min(next_power_of_2(rows), next_power_of_2(columns)))
    constants["V_BLOCK"] = block
    x, y, _ = launch.grid
    blocks = y + ceil_div(columns, block)
    if blocks > MAX_BLOCKS_OF_HEADS:
        return Rejected(f"{columns} elements of a token: more programs than one launch takes")
    args: list[tuple[str, Argument]] = [
        *launch.args,
        *((f"{name}_ptr", Pointer(own, unit > 1)) for name, own in (("v", v), ("v_copied", to_v))),
        *(
            (f"v_{part}", Scalar("i64", stride))
            for part, stride in zip(("sequence", "token", "head"), call[v].strides, strict=False)
        ),
        *placed(call),
        ("k_blocks", Scalar("i32", ceil_div(axes["G"], heads))),
    ]
    kernel = replace(launch.kernel, function=rope_qkv_tokens, constants=tuple(constants.items()))
    return Plan((replace(launch, kernel=kernel, grid=(x, blocks, 1), args=tuple(args)),))

"""rope, its gradient and qk_norm_rope in Triton: a program takes HEADS heads of q or k, of TOKENS tokens."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from portable.kernels._lib.triton.pdl import enter_pdl, supports_pdl
from portable.kernels._lib.triton.rows import MAX_GRID, UNFUSED, divisible, setting, warps
from portable.kernels.rope.native import vector_of
from portable.layout import ceil_div, next_power_of_2
from portable.plan import Argument, Call, Launch, Plan, Pointer, Rejected, Scalar, TritonKernel

PER_THREAD = 16  # elements of a program's tile
UNALIGNED_TILE = 4  # as many times fewer where every element needs a mask of its own
MAX_BLOCKS_OF_HEADS = 65535


@triton.jit
def rotated(a, b, cos, sin):
    """The pairs (a, b) rotated, in float32: a * cos - b * sin and b * cos + a * sin."""
    return tl.fma(-b, sin, a * cos), tl.fma(a, sin, b * cos)


@triton.jit
def rotate_heads(
    from_ptr, from_strides, to_ptr, to_rows, to_head, to_element, weight_ptr, heads, first_head,
    sequence, place, inside, stored, cos, sin, eps,
    INTERLEAVED: tl.constexpr, UNIT: tl.constexpr, TOKENS: tl.constexpr, HEADS: tl.constexpr,
    SIZE: tl.constexpr, PAIRS: tl.constexpr, BLOCK: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    """HEADS heads from `first_head` on of tokens that are `inside` or beyond the last, written from `to_rows`
    on where `stored`; with weights each is normalised by its root mean square first."""
    head = first_head + tl.arange(0, HEADS)
    mask = (inside[:, None] & (head < heads)[None, :])[:, :, None]
    rows = sequence * divisible(from_strides[0], UNIT) + place * divisible(from_strides[1], UNIT)
    rows = rows[:, None] + (head.to(tl.int64) * divisible(from_strides[2], UNIT))[None, :]
    source = from_ptr + rows[:, :, None]
    target = to_rows[:, None] + (head.to(tl.int64) * divisible(to_head, UNIT))[None, :]
    target = to_ptr + target[:, :, None]
    kept = stored[:, None, None]
    dtype = to_ptr.dtype.element_ty
    step = 1 if UNIT > 1 else to_element
    if INTERLEAVED:
        column = tl.arange(0, 2 * BLOCK)[None, None, :]
        both = mask & (column < 2 * PAIRS)
        x = tl.load(source + column, mask=both, other=0.0)
        a, b = tl.split(tl.reshape(x, (TOKENS, HEADS, BLOCK, 2)))
    else:
        column = tl.arange(0, BLOCK)[None, None, :]
        both = mask & (column < PAIRS)
        a = tl.load(source + column, mask=both, other=0.0)
        b = tl.load(source + PAIRS + column, mask=both, other=0.0)
    a, b = a.to(tl.float32), b.to(tl.float32)
    if REST > 0:
        beyond = 2 * PAIRS + tl.arange(0, REST)[None, None, :]
        behind = mask & (beyond < SIZE)
        rest = tl.load(source + beyond, mask=behind, other=0.0)
    if weight_ptr is not None:
        squares = tl.sum(a * a + b * b, axis=2, keep_dims=True)
        if REST > 0:
            rest = rest.to(tl.float32)
            squares += tl.sum(rest * rest, axis=2, keep_dims=True)
        scale = tl.rsqrt(squares / SIZE + eps)
        if INTERLEAVED:
            w = tl.load(weight_ptr + column, mask=column < 2 * PAIRS, other=0.0).to(tl.float32)
            w_a, w_b = tl.split(tl.reshape(w, (1, 1, BLOCK, 2)))
        else:
            w_a = tl.load(weight_ptr + column, mask=column < PAIRS, other=0.0).to(tl.float32)
            w_b = tl.load(weight_ptr + PAIRS + column, mask=column < PAIRS, other=0.0).to(tl.float32)
        a, b = a * scale * w_a, b * scale * w_b
        if REST > 0:
            rest = rest * scale * tl.load(weight_ptr + beyond, mask=beyond < SIZE, other=0.0).to(tl.float32)
    a, b = rotated(a, b, cos, sin)
    if INTERLEAVED:
        y = tl.reshape(tl.join(a.to(dtype), b.to(dtype)), (TOKENS, HEADS, 2 * BLOCK))
        tl.store(target + column * step, y, mask=both & kept)
    else:
        tl.store(target + column * step, a.to(dtype), mask=both & kept)
        tl.store(target + (PAIRS + column) * step, b.to(dtype), mask=both & kept)
    if REST > 0:
        tl.store(target + beyond * step, rest.to(dtype), mask=behind & kept)


@triton.jit
def angles(
    cos_ptr, sin_ptr, positions_ptr, positions_sequence, positions_token, cos_row, sin_row,
    sequence, place, inside, UNIT: tl.constexpr, PAIRS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The cosines and sines [TOKENS, 1, BLOCK] of the tokens that are `inside`, in float32."""
    position = place
    if positions_ptr is not None:
        at = sequence * positions_sequence + place * positions_token
        position = tl.load(positions_ptr + at, mask=inside, other=0).to(tl.int64)
    pair = tl.arange(0, BLOCK)[None, None, :]
    angle = inside[:, None, None] & (pair < PAIRS)
    row = position[:, None, None]
    cos = tl.load(cos_ptr + row * divisible(cos_row, UNIT) + pair, mask=angle, other=0.0).to(tl.float32)
    sin = tl.load(sin_ptr + row * divisible(sin_row, UNIT) + pair, mask=angle, other=0.0).to(tl.float32)
    return cos, sin


@triton.jit
def rope_tokens(
    q_ptr, k_ptr, q_weight_ptr, k_weight_ptr, cos_ptr, sin_ptr, positions_ptr, q_rotated_ptr, k_rotated_ptr,
    q_sequence, q_token, q_head, k_sequence, k_token, k_head, cos_row, sin_row,
    positions_sequence, positions_token, tokens, length, q_heads, k_heads, q_blocks, eps,
    PDL: tl.constexpr, BACKWARD: tl.constexpr, INTERLEAVED: tl.constexpr,
    UNIT: tl.constexpr, TOKENS: tl.constexpr,
    HEADS: tl.constexpr, SIZE: tl.constexpr, PAIRS: tl.constexpr, BLOCK: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    """The first `q_blocks` programs of a token take its heads of q, the others those of k."""
    enter_pdl(PDL)
    token = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    inside = token < tokens
    sequence, place = token // length, token % length
    cos, sin = angles(  # pyright: ignore[reportGeneralTypeIssues]
        cos_ptr, sin_ptr, positions_ptr, positions_sequence, positions_token, cos_row, sin_row,
        sequence, place, inside, UNIT, PAIRS, BLOCK,
    )  # fmt: skip
    if BACKWARD:
        sin = -sin
    block = tl.program_id(1)
    if block < q_blocks:
        rotate_heads(
            q_ptr, (q_sequence, q_token, q_head), q_rotated_ptr, token * q_heads * SIZE, SIZE, 1,
            q_weight_ptr, q_heads, block * HEADS, sequence, place, inside, inside, cos, sin, eps,
            INTERLEAVED, UNIT, TOKENS, HEADS, SIZE, PAIRS, BLOCK, REST,
        )  # fmt: skip
    else:
        rotate_heads(
            k_ptr, (k_sequence, k_token, k_head), k_rotated_ptr, token * k_heads * SIZE, SIZE, 1,
            k_weight_ptr, k_heads, (block - q_blocks) * HEADS, sequence, place, inside, inside, cos, sin, eps,
            INTERLEAVED, UNIT, TOKENS, HEADS, SIZE, PAIRS, BLOCK, REST,
        )  # fmt: skip


def forward(call: Call) -> Plan | Rejected:
    """Plan q_rotated and k_rotated of q and k."""
    return plan_heads(call, ("q", "k", "q_rotated", "k_rotated"))


def backward(call: Call) -> Plan | Rejected:
    """Plan dq and dk of dq_rotated and dk_rotated."""
    return plan_heads(call, ("dq_rotated", "dk_rotated", "dq", "dk"), backward=True)


def plan_heads(
    call: Call, names: tuple[str, str, str, str], backward: bool = False, unit: int | None = None
) -> Plan | Rejected:
    """One launch over the heads of all tokens, normalised first where the call has weights. `unit` is
    `vector_of` the call where the kernel has no more tensors."""
    weights = tuple(name for name in ("q_weight", "k_weight") if call.has(name))
    axes, unit = call.axes, unit or vector_of(call, names, weights)
    tokens, pairs = axes["Z"] * axes["M"], axes["C"]
    block, rest = next_power_of_2(pairs), next_power_of_2(axes["D"] - 2 * pairs)
    rows = max(1, setting(call, "TILE") // (1 if unit > 1 else UNALIGNED_TILE) // (2 * block + rest))
    rows = 1 << rows.bit_length() - 1
    heads = min(next_power_of_2(max(axes["H"], axes["G"])), rows)
    each = rows // heads
    q_blocks, k_blocks = ceil_div(axes["H"], heads), ceil_div(axes["G"], heads)
    if tokens > MAX_GRID or q_blocks + k_blocks > MAX_BLOCKS_OF_HEADS:
        return Rejected(
            f"{tokens} tokens of {axes['H'] + axes['G']} heads: more programs than one launch takes"
        )
    constants: dict[str, Any] = {
        "PDL": supports_pdl(call.device),
        "BACKWARD": backward, "INTERLEAVED": call.params["interleaved"], "UNIT": unit, "TOKENS": each,
        "HEADS": heads, "SIZE": axes["D"], "PAIRS": pairs, "BLOCK": block, "REST": rest,
    }  # fmt: skip
    tensors: dict[str, str] = dict(zip(("q", "k", "q_rotated", "k_rotated"), names, strict=True))
    args: list[tuple[str, Argument]] = []
    every = ("q", "k", "q_weight", "k_weight", "cos", "sin", "positions", "q_rotated", "k_rotated")
    for name in every:
        own = tensors.get(name, name)
        if call.has(own):
            args.append((f"{name}_ptr", Pointer(own, unit > 1 and name != "positions")))
        else:
            constants[f"{name}_ptr"] = None
    for name in ("q", "k"):
        strides = zip(("sequence", "token", "head"), call[tensors[name]].strides, strict=False)
        args += [(f"{name}_{part}", Scalar("i64", stride)) for part, stride in strides]
    args += [(f"{name}_row", Scalar("i64", call[name].strides[0])) for name in ("cos", "sin")]
    strides = call["positions"].strides if call.has("positions") else (0, 0)
    args += [
        ("positions_sequence", Scalar("i64", strides[0])),
        ("positions_token", Scalar("i64", strides[1])),
    ]
    numbers = {"tokens": tokens, "length": axes["M"], "q_heads": axes["H"], "k_heads": axes["G"]}
    args += [(name, Scalar("i32", number)) for name, number in (numbers | {"q_blocks": q_blocks}).items()]
    args.append(("eps", Scalar("f32", call.params.get("eps", 0.0))))
    threads = warps(call.device, rows * (2 * block + rest) // PER_THREAD)
    kernel = TritonKernel(rope_tokens, tuple(constants.items()), threads, options=UNFUSED)
    grid = (ceil_div(tokens, each), q_blocks + k_blocks, 1)
    return Plan((Launch(kernel, grid, tuple(args)),))

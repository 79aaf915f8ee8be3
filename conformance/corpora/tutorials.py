"""Programs in the form of Triton's tutorials, written anew: softmax, products, dropout, norm, attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

from portable.conformance.corpora.program import LIMITS, Compared, Program, with_gradients

HALVES = (torch.float16, torch.bfloat16)
_WORD = 0xFFFFFFFF


def _launch(kernel: Any, grid: Any, *args: Any, **options: Any) -> None:
    kernel[grid](*args, **options)


# Elementwise --------------------------------------------------------------------------------------


@triton.jit
def _add(x_ptr, y_ptr, out_ptr, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = at < count
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=here) + tl.load(y_ptr + at, mask=here), mask=here)


def add() -> list[Compared]:
    x, y = torch.randn(5000, device="cuda"), torch.randn(5000, device="cuda")
    out = torch.full_like(x, float("nan"))
    _launch(_add, (triton.cdiv(5000, 1024),), x, y, out, 5000, BLOCK=1024)
    return [Compared("sum", out, x.cpu().double() + y.cpu().double(), 1e-6)]


@triton.jit
def _arcsine(x_ptr, out_ptr, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = at < count
    tl.store(out_ptr + at, libdevice.asin(tl.load(x_ptr + at, mask=here)), mask=here)


def arcsine() -> list[Compared]:
    x = torch.rand(3001, device="cuda") * 2 - 1
    out = torch.full_like(x, float("nan"))
    _launch(_arcsine, (triton.cdiv(3001, 512),), x, out, 3001, BLOCK=512)
    return [Compared("asin", out, x.cpu().double().asin(), 1e-6)]


@triton.jit
def _dropout(x_ptr, out_ptr, count, p, seed, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = at < count
    x = tl.load(x_ptr + at, mask=here)
    tl.store(out_ptr + at, tl.where(tl.rand(seed, at) > p, x / (1 - p), 0.0), mask=here)


def _high(a: int, b: Tensor) -> Tensor:
    """The upper 32 bits of a product of two 32-bit numbers, in int64."""
    low, high = b & 0xFFFF, b >> 16
    return (a * high + (a * low >> 16)) >> 16


def _philox(seed: int, offsets: Tensor) -> Tensor:
    """The first word of Philox4x32-10, of which `tl.rand` makes its numbers."""
    c0, c1, c2, c3 = offsets, *(torch.zeros_like(offsets) for _ in range(3))
    key = [seed & _WORD, seed >> 32 & _WORD]
    for _ in range(10):
        even, odd = c0, c2
        c0, c2 = _high(0xCD9E8D57, odd) ^ c1 ^ key[0], _high(0xD2511F53, even) ^ c3 ^ key[1]
        c1, c3 = (0xCD9E8D57 * odd) & _WORD, (0xD2511F53 * even) & _WORD
        key = [(key[0] + 0x9E3779B9) & _WORD, (key[1] + 0xBB67AE85) & _WORD]
    return c0


def dropout() -> list[Compared]:
    x = torch.randn(4000, device="cuda")
    out = torch.full_like(x, float("nan"))
    _launch(_dropout, (triton.cdiv(4000, 1024),), x, out, 4000, 0.4, 123, BLOCK=1024)
    word = _philox(123, torch.arange(4000))
    word = torch.where(word >= 1 << 31, _WORD - word, word)  # -1 - word, of a negative number
    kept = word.double() * 4.6566127342e-10 > 0.4
    return [Compared("result", out, torch.where(kept, x.cpu().double() / 0.6, 0.0), 1e-6)]


# Rows ---------------------------------------------------------------------------------------------


@triton.jit
def _softmax(x_ptr, out_ptr, rows, length, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    at = tl.arange(0, BLOCK)
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=STAGES):  # pyright: ignore
        x = tl.load(x_ptr + row * length + at, mask=at < length, other=-float("inf"))
        powers = tl.exp(x - tl.max(x, 0))
        tl.store(out_ptr + row * length + at, powers / tl.sum(powers, 0), mask=at < length)


def softmax(length: int, warps: int, stages: int) -> list[Compared]:
    x = torch.randn(23, length, device="cuda")
    out = torch.full_like(x, float("nan"))
    block = triton.next_power_of_2(length)
    _launch(_softmax, (5,), x, out, 23, length, BLOCK=block, STAGES=stages, num_warps=warps)
    return [Compared("result", out, x.cpu().double().softmax(-1), 1e-6)]


@triton.jit
def _normalise(x_ptr, w_ptr, b_ptr, out_ptr, mean_ptr, scale_ptr, length, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    sums = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, length, BLOCK):
        at = start + tl.arange(0, BLOCK)
        sums += tl.load(x_ptr + row * length + at, mask=at < length, other=0.0).to(tl.float32)
    mean = tl.sum(sums, 0) / length
    squares = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, length, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * length + at, mask=at < length, other=0.0).to(tl.float32)
        apart = tl.where(at < length, x - mean, 0.0)
        squares += apart * apart
    scale = 1 / tl.sqrt(tl.sum(squares, 0) / length + eps)
    tl.store(mean_ptr + row, mean)
    tl.store(scale_ptr + row, scale)
    for start in range(0, length, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * length + at, mask=at < length, other=0.0).to(tl.float32)
        w = tl.load(w_ptr + at, mask=at < length)
        b = tl.load(b_ptr + at, mask=at < length)
        tl.store(out_ptr + row * length + at, (x - mean) * scale * w + b, mask=at < length)


@triton.jit
def _normalise_backward(
    x_ptr, w_ptr, dy_ptr, mean_ptr, scale_ptr, dx_ptr, dw_ptr, db_ptr, rows, length, BLOCK: tl.constexpr
):
    # Each program adds the parts of dw and db of its rows, and leaves them in a row of its own.
    at = tl.arange(0, BLOCK)
    here = at < length
    w = tl.load(w_ptr + at, mask=here, other=0.0).to(tl.float32)
    dw = tl.zeros((BLOCK,), tl.float32)
    db = tl.zeros((BLOCK,), tl.float32)
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        x = tl.load(x_ptr + row * length + at, mask=here, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + row * length + at, mask=here, other=0.0).to(tl.float32)
        scale = tl.load(scale_ptr + row)
        unit = tl.where(here, (x - tl.load(mean_ptr + row)) * scale, 0.0)
        wdy = w * dy
        dx = (wdy - unit * (tl.sum(unit * wdy, 0) / length) - tl.sum(wdy, 0) / length) * scale
        tl.store(dx_ptr + row * length + at, dx, mask=here)
        dw += dy * unit
        db += dy
    part = tl.program_id(0) * length
    tl.store(dw_ptr + part + at, dw, mask=here)
    tl.store(db_ptr + part + at, db, mask=here)


@triton.jit
def _add_parts(part_ptr, out_ptr, parts, length, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    sums = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in range(0, parts, ROWS):
        row = start + tl.arange(0, ROWS)
        here = (row[:, None] < parts) & (at[None, :] < length)
        sums += tl.load(part_ptr + row[:, None] * length + at[None, :], mask=here, other=0.0)
    tl.store(out_ptr + at, tl.sum(sums, 0), mask=at < length)


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, b):
        out, (rows, length) = torch.empty_like(x), x.shape
        mean, scale = (torch.empty(rows, device=x.device) for _ in range(2))
        _launch(_normalise, (rows,), x, w, b, out, mean, scale, length, 1e-5, BLOCK=128)
        ctx.save_for_backward(x, w, mean, scale)
        return out

    @staticmethod
    def backward(ctx, *gradients):
        x, w, mean, scale = ctx.saved_tensors
        (rows, length), parts = x.shape, 6
        dx, (dw, db) = torch.empty_like(x), (torch.empty_like(w) for _ in range(2))
        dw_parts, db_parts = (torch.empty(parts, length, device=x.device) for _ in range(2))
        parts_of = (dx, dw_parts, db_parts, rows, length)
        options = {"BLOCK": triton.next_power_of_2(length), "num_warps": 8}
        _launch(_normalise_backward, (parts,), x, w, gradients[0], mean, scale, *parts_of, **options)
        for part, out in ((dw_parts, dw), (db_parts, db)):
            _launch(_add_parts, (triton.cdiv(length, 64),), part, out, parts, length, ROWS=4, BLOCK=64)
        return dx, dw, db


def layer_norm(dtype: torch.dtype) -> list[Compared]:
    shapes = {"x": (17, 300), "w": (300,), "b": (300,)}
    inputs = {name: torch.randn(shape).to(dtype) for name, shape in shapes.items()}

    def reference(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return torch.nn.functional.layer_norm(x, (300,), w, b)

    return with_gradients(_LayerNorm.apply, reference, inputs, LIMITS[dtype])


# Products -----------------------------------------------------------------------------------------


@triton.jit
def _tile(
    a_ptr, b_ptr, c_ptr, row, col, M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, LEAKY: tl.constexpr,
):  # fmt: skip
    rows, cols = row * BLOCK_M + tl.arange(0, BLOCK_M), col * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, K, BLOCK_K):
        inner = start + tl.arange(0, BLOCK_K)
        a_mask = (rows[:, None] < M) & (inner[None, :] < K)
        b_mask = (inner[:, None] < K) & (cols[None, :] < N)
        a = tl.load(a_ptr + rows[:, None] * K + inner[None, :], mask=a_mask, other=0.0)
        b = tl.load(b_ptr + inner[:, None] * N + cols[None, :], mask=b_mask, other=0.0)
        acc = tl.dot(a, b, acc, input_precision="ieee")
    if LEAKY:
        acc = tl.where(acc >= 0, acc, 0.01 * acc)
    mask = (rows[:, None] < M) & (cols[None, :] < N)
    tl.store(c_ptr + rows[:, None] * N + cols[None, :], acc.to(c_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _matmul(
    a_ptr, b_ptr, c_ptr, M, N, K, GROUP: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, LEAKY: tl.constexpr,
):  # fmt: skip
    high, wide = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    group = tl.program_id(0) // (GROUP * wide)
    rows = min(high - group * GROUP, GROUP)
    inside = tl.program_id(0) % (GROUP * wide)
    row, col = group * GROUP + inside % rows, inside // rows
    _tile(a_ptr, b_ptr, c_ptr, row, col, M, N, K, BLOCK_M, BLOCK_N, BLOCK_K, LEAKY)


@triton.jit
def _persistent_matmul(
    a_ptr, b_ptr, c_ptr, M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, LEAKY: tl.constexpr,
):  # fmt: skip
    high, wide = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    for tile in tl.range(tl.program_id(0), high * wide, tl.num_programs(0)):
        _tile(a_ptr, b_ptr, c_ptr, tile // wide, tile % wide, M, N, K, BLOCK_M, BLOCK_N, BLOCK_K, LEAKY)


def matmul(
    dtype: torch.dtype, blocks: tuple[int, int, int], warps: int, stages: int, persistent: bool, leaky: bool
) -> list[Compared]:
    M, N, K = 200, 150, 170
    a = torch.randn(M, K, device="cuda").to(dtype)
    b = torch.randn(K, N, device="cuda").to(dtype)
    c = torch.full((M, N), float("nan"), device="cuda", dtype=dtype)
    tiles = triton.cdiv(M, blocks[0]) * triton.cdiv(N, blocks[1])
    options = dict(zip(("BLOCK_M", "BLOCK_N", "BLOCK_K"), blocks, strict=True))
    options |= {"LEAKY": leaky, "num_warps": warps, "num_stages": stages}
    if persistent:
        _launch(_persistent_matmul, (3,), a, b, c, M, N, K, **options)
    else:
        _launch(_matmul, (tiles,), a, b, c, M, N, K, GROUP=2, **options)
    right = a.cpu().double() @ b.cpu().double()
    right = torch.where(right >= 0, right, 0.01 * right) if leaky else right
    return [Compared("product", c, right, LIMITS[dtype])]


# Attention ----------------------------------------------------------------------------------------


@triton.jit
def _attention(
    q_ptr, k_ptr, v_ptr, o_ptr, length, scale,
    D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1) * length * D
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tl.arange(0, D)
    q = tl.load(q_ptr + head + rows[:, None] * D + cols[None, :], mask=rows[:, None] < length, other=0.0)
    largest = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, D), tl.float32)
    end = tl.minimum((tl.program_id(0) + 1) * BLOCK_M, length) if CAUSAL else length
    for start in range(0, end, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        k = tl.load(k_ptr + head + keys[None, :] * D + cols[:, None], mask=keys[None, :] < length, other=0.0)
        v = tl.load(v_ptr + head + keys[:, None] * D + cols[None, :], mask=keys[:, None] < length, other=0.0)
        seen = keys[None, :] < length
        if CAUSAL:
            seen = seen & (keys[None, :] <= rows[:, None])
        scores = tl.where(seen, tl.dot(q, k) * (scale * 1.4426950408889634), -float("inf"))
        higher = tl.maximum(largest, tl.max(scores, 1))
        powers = tl.exp2(scores - higher[:, None])
        shrink = tl.exp2(largest - higher)
        total = total * shrink + tl.sum(powers, 1)
        acc = tl.dot(powers.to(v.dtype), v, acc * shrink[:, None])
        largest = higher
    out = (acc / total[:, None]).to(o_ptr.dtype.element_ty)
    tl.store(o_ptr + head + rows[:, None] * D + cols[None, :], out, mask=rows[:, None] < length)


def attention(
    dtype: torch.dtype, size: int, blocks: tuple[int, int], warps: int, stages: int, causal: bool
) -> list[Compared]:
    length, heads = 150, 2
    q, k, v = (torch.randn(heads, length, size, device="cuda").to(dtype) for _ in range(3))
    o = torch.full_like(q, float("nan"))
    _launch(
        _attention, (triton.cdiv(length, blocks[0]), heads), q, k, v, o, length, size**-0.5, D=size,
        BLOCK_M=blocks[0], BLOCK_N=blocks[1], CAUSAL=causal, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    scores = q.cpu().double() @ k.cpu().double().transpose(-1, -2) * size**-0.5
    if causal:
        scores = scores.masked_fill(torch.ones(length, length).triu(1).bool(), float("-inf"))
    return [Compared("result", o, scores.softmax(-1) @ v.cpu().double(), LIMITS[dtype])]


def _seeded(name: str, function: Callable[..., list[Compared]], *args: Any) -> Program:
    def run() -> list[Compared]:
        torch.manual_seed(0)
        return function(*args)

    return Program(name, run)


def programs() -> list[Program]:
    """Each kernel with options that change what the compiler does: dtypes, tiles, warps, stages."""
    found = [_seeded(f"{each.__name__}/float32", each) for each in (add, arcsine, dropout)]
    for length, warps, stages in ((781, 8, 2), (1024, 4, 2), (1823, 8, 4), (64, 1, 1)):
        title = f"softmax/float32/length={length},warps={warps},stages={stages}"
        found.append(_seeded(title, softmax, length, warps, stages))
    found += [_seeded(f"layer_norm/{_short(dtype)}", layer_norm, dtype) for dtype in (torch.float32, *HALVES)]
    for dtype in (torch.float32, *HALVES):
        for blocks, warps, stages in (((64, 64, 32), 4, 2), ((128, 128, 64), 8, 2), ((128, 64, 32), 4, 3)):
            for persistent in (False, True):
                title = f"{'persistent_' * persistent}matmul/{_short(dtype)}/" + "x".join(map(str, blocks))
                title += f",warps={warps},stages={stages}" + ",leaky" * (not persistent)
                args = (dtype, blocks, warps, stages, persistent, not persistent)
                found.append(_seeded(title, matmul, *args))
    tiles = ((64, (64, 32), 4, 1), (64, (128, 64), 8, 2), (128, (128, 32), 8, 4))
    for dtype in HALVES:
        for size, blocks, warps, stages in tiles:
            for causal in (False, True):
                title = f"attention/{_short(dtype)}/D={size}," + "x".join(map(str, blocks))
                title += f",warps={warps},stages={stages}" + ",causal" * causal
                found.append(_seeded(title, attention, dtype, size, blocks, warps, stages, causal))
    return found


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")

"""Triton kernels that the emulator's tests run; triton_cases.py holds what each must compute."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def add(x, y, z, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    tl.store(z + i, tl.load(x + i, mask) + tl.load(y + i, mask), mask)


@triton.jit
def softmax(y, x, columns, stride, BLOCK: tl.constexpr):
    row, i = tl.program_id(0), tl.arange(0, BLOCK)
    v = tl.load(x + row * stride + i, i < columns, other=-float("inf")).to(tl.float32)
    e = tl.exp(v - tl.max(v, 0))
    tl.store(y + row * stride + i, (e / tl.sum(e, 0)).to(y.dtype.element_ty), i < columns)


@triton.jit
def matmul(c, a, b, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, ACC: tl.constexpr):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), ACC)
    for start in range(0, K, BK):
        at = start + k
        left = tl.load(a + m[:, None] * K + at[None, :], (m[:, None] < M) & (at[None, :] < K), other=0.0)
        right = tl.load(b + at[:, None] * N + n[None, :], (at[:, None] < K) & (n[None, :] < N), other=0.0)
        acc = tl.dot(left, right, acc, out_dtype=ACC)
    tl.store(c + m[:, None] * N + n[None, :], acc, (m[:, None] < M) & (n[None, :] < N))


@triton.jit
def layer_norm(y, mean, rstd, x, w, b, columns, eps, BLOCK: tl.constexpr):
    row, i = tl.program_id(0), tl.arange(0, BLOCK)
    mask = i < columns
    v = tl.load(x + row * columns + i, mask, other=0.0).to(tl.float32)
    mu = tl.sum(v, 0) / columns
    d = tl.where(mask, v - mu, 0.0)
    r = tl.rsqrt(tl.sum(d * d, 0) / columns + eps)
    out = d * r * tl.load(w + i, mask) + tl.load(b + i, mask)
    tl.store(y + row * columns + i, out.to(y.dtype.element_ty), mask)
    tl.store(mean + row, mu)
    tl.store(rstd + row, r)


@triton.jit
def dropout(y, x, n, p, seed, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = tl.rand(seed, i) > p
    v = tl.load(x + i, i < n)
    tl.store(y + i, tl.where(keep, v / (1 - p), 0.0), i < n)


@triton.jit
def count(bins, x, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, i < n, other=0)
    tl.atomic_add(bins + v, 1, i < n)


@triton.jit
def histogram(bins, x, n, BLOCK: tl.constexpr, BINS: tl.constexpr):
    i = tl.arange(0, BLOCK)
    v = tl.load(x + i, i < n, other=0)
    tl.store(bins + tl.arange(0, BINS), tl.histogram(v, BINS, i < n))


@triton.jit
def cumsum(y, z, x, columns, BLOCK: tl.constexpr):
    row, i = tl.program_id(0), tl.arange(0, BLOCK)
    v = tl.load(x + row * columns + i, i < columns, other=0)
    tl.store(y + row * columns + i, tl.cumsum(v, 0), i < columns)
    tl.store(z + row * columns + i, tl.cumsum(v, 0, reverse=True), i < columns)


@triton.jit
def compose(a0, b0, a1, b1):
    return a0 * a1, b0 * a1 + b1


@triton.jit
def recurrence(y, a, b, columns, BLOCK: tl.constexpr):
    """y[i] = a[i] * y[i - 1] + b[i], as a scan of pairs."""
    row, i = tl.program_id(0), tl.arange(0, BLOCK)
    p = tl.load(a + row * columns + i, i < columns, other=0)
    q = tl.load(b + row * columns + i, i < columns, other=0)
    _, s = tl.associative_scan((p, q), 0, compose)
    tl.store(y + row * columns + i, s, i < columns)


@triton.jit
def sort(y, x, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    at = tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    tl.store(y + at, tl.sort(tl.load(x + at), 1))


@triton.jit
def gather(y, x, index, ROWS: tl.constexpr, COLUMNS: tl.constexpr, PICKS: tl.constexpr):
    r = tl.arange(0, ROWS)[:, None]
    v = tl.load(x + r * COLUMNS + tl.arange(0, COLUMNS)[None, :])
    p = tl.load(index + r * PICKS + tl.arange(0, PICKS)[None, :])
    tl.store(y + r * PICKS + tl.arange(0, PICKS)[None, :], tl.gather(v, p, 1))


@triton.jit
def argmax(where, most, x, columns, BLOCK: tl.constexpr):
    row, i = tl.program_id(0), tl.arange(0, BLOCK)
    v = tl.load(x + row * columns + i, i < columns, other=-float("inf"))
    best, at = tl.max(v, 0, return_indices=True)  # pyright: ignore[reportGeneralTypeIssues]
    tl.store(most + row, best)
    tl.store(where + row, at)


@triton.jit
def both_ways(y, rows, columns, x, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """A transpose, and sums along both axes."""
    r, c = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    v = tl.load(x + r[:, None] * COLUMNS + c[None, :])
    tl.store(y + c[:, None] * ROWS + r[None, :], tl.trans(v))
    tl.store(rows + r, tl.sum(v, 1))
    tl.store(columns + c, tl.sum(v, 0))


@triton.jit
def locks(total, lock, best, x, n, BLOCK: tl.constexpr):
    """Programs add to one word, each holding a lock; and the greatest of all, by atomic_max."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, i < n, other=0)
    mine = tl.sum(v, 0)
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    tl.store(total, tl.load(total) + mine)
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0)
    tl.atomic_max(best, tl.max(v, 0))


@triton.jit
def attention(out, q, k, v, keys, scale, ROWS: tl.constexpr, STEP: tl.constexpr, WIDTH: tl.constexpr):
    """Softmax attention of ROWS queries to `keys` keys, STEP at a time, with a running maximum and sum."""
    r, w, s = tl.arange(0, ROWS), tl.arange(0, WIDTH), tl.arange(0, STEP)
    queries = tl.load(q + r[:, None] * WIDTH + w[None, :])
    top = tl.full((ROWS,), -float("inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    acc = tl.zeros((ROWS, WIDTH), tl.float32)
    for start in range(0, keys, STEP):
        here = start + s < keys
        part = tl.load(k + (start + s)[:, None] * WIDTH + w[None, :], here[:, None], other=0.0)
        score = tl.dot(queries, tl.trans(part)) * scale
        score = tl.where(here[None, :], score, -float("inf"))
        higher = tl.maximum(top, tl.max(score, 1))
        p = tl.exp(score - higher[:, None])
        shrink = tl.exp(top - higher)
        total = total * shrink + tl.sum(p, 1)
        values = tl.load(v + (start + s)[:, None] * WIDTH + w[None, :], here[:, None], other=0.0)
        acc = acc * shrink[:, None] + tl.dot(p.to(v.dtype.element_ty), values)
        top = higher
    tl.store(out + r[:, None] * WIDTH + w[None, :], acc / total[:, None])

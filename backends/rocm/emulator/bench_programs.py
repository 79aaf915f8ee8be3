"""Four Triton programs that the emulator's benchmark times: add, softmax, matmul and attention, small sizes.

`interpreted` times the same under Triton's own interpreter. It needs a process of its own, as Triton decides
when a kernel is defined: `python -m portable.backends.rocm.emulator.bench_programs` with TRITON_INTERPRET=1.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

jit: Any = triton.jit


class Times(NamedTuple):
    """Of a call: seconds by the clock and of processor time of all threads, each the least of several."""

    wall: float
    processor: float


@jit
def _add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = at < n
    tl.store(out_ptr + at, tl.load(x_ptr + at, there) + tl.load(y_ptr + at, there), there)


@jit
def _softmax_kernel(x_ptr, out_ptr, rows, columns, stride, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    there = at < columns
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        x = tl.load(x_ptr + row * stride + at, there, other=-float("inf"))
        grown = tl.exp(x - tl.max(x, axis=0))
        tl.store(out_ptr + row * stride + at, grown / tl.sum(grown, axis=0), there)


@jit
def _matmul_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr
):
    pid = tl.program_id(0)
    columns = tl.cdiv(N, BLOCK_N)
    m = pid // columns * BLOCK_M + tl.arange(0, BLOCK_M)
    n = pid % columns * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    a_at = a_ptr + (m % M)[:, None] * K + k[None, :]
    b_at = b_ptr + k[:, None] * N + (n % N)[None, :]
    sums = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for done in range(0, K, BLOCK_K):
        a = tl.load(a_at, mask=k[None, :] < K - done, other=0.0)
        b = tl.load(b_at, mask=k[:, None] < K - done, other=0.0)
        sums = tl.dot(a, b, sums)
        a_at += BLOCK_K
        b_at += BLOCK_K * N
    there = (m[:, None] < M) & (n[None, :] < N)
    tl.store(c_ptr + m[:, None] * N + n[None, :], sums.to(tl.float16), there)


@jit
def _attention_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, length, scale, D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):
    base = tl.program_id(1) * length * D
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    d = tl.arange(0, D)
    n = tl.arange(0, BLOCK_N)
    q = tl.load(q_ptr + base + m[:, None] * D + d[None, :], m[:, None] < length, other=0.0)
    most = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    sums = tl.zeros((BLOCK_M, D), tl.float32)
    for first in range(0, length, BLOCK_N):
        there = first + n < length
        k = tl.load(k_ptr + base + (first + n)[None, :] * D + d[:, None], there[None, :], other=0.0)
        v = tl.load(v_ptr + base + (first + n)[:, None] * D + d[None, :], there[:, None], other=0.0)
        scores = tl.where(there[None, :], tl.dot(q, k) * scale, -float("inf"))
        new = tl.maximum(most, tl.max(scores, axis=1))
        weights = tl.exp2(scores - new[:, None])
        shrink = tl.exp2(most - new)
        total = total * shrink + tl.sum(weights, axis=1)
        sums = tl.dot(weights.to(tl.float16), v, sums * shrink[:, None])
        most = new
    tl.store(
        out_ptr + base + m[:, None] * D + d[None, :],
        (sums / total[:, None]).to(tl.float16),
        m[:, None] < length,
    )


def _add() -> tuple[Callable[[], Any], Callable[[], float]]:
    n = 1 << 20
    x, y, out = torch.randn(n), torch.randn(n), torch.empty(n)

    def call() -> None:
        _add_kernel[(triton.cdiv(n, 1024),)](x, y, out, n, BLOCK=1024)

    return call, lambda: (out - (x + y)).abs().max().item()


def _softmax() -> tuple[Callable[[], Any], Callable[[], float]]:
    rows, columns = 512, 1000
    x, out = torch.randn(rows, columns), torch.empty(rows, columns)

    def call() -> None:
        _softmax_kernel[(256,)](x, out, rows, columns, x.stride(0), BLOCK=triton.next_power_of_2(columns))

    return call, lambda: (out - torch.softmax(x, -1)).abs().max().item()


def _matmul() -> tuple[Callable[[], Any], Callable[[], float]]:
    size = 512
    a, b, c = (torch.randn(size, size).half() for _ in range(3))

    def call() -> None:
        blocks = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32}
        _matmul_kernel[((size // 64) ** 2,)](a, b, c, size, size, size, **blocks)

    return call, lambda: (c.float() - a.float() @ b.float()).abs().max().item() / 100


def _attention() -> tuple[Callable[[], Any], Callable[[], float]]:
    heads, length, size = 4, 512, 64
    q, k, v, out = (torch.randn(heads, length, size).half() for _ in range(4))
    scale = size**-0.5

    def call() -> None:
        blocks = {"D": size, "BLOCK_M": 64, "BLOCK_N": 64}
        _attention_kernel[(triton.cdiv(length, 64), heads)](
            q, k, v, out, length, scale * 1.4426950408889634, **blocks
        )

    def error() -> float:
        weights = torch.softmax(q.float() @ k.float().transpose(1, 2) * scale, -1)
        return (out.float() - weights @ v.float()).abs().max().item()

    return call, error


PROGRAMS = {
    "add 1M float32": _add,
    "softmax 512x1000 float32": _softmax,
    "matmul 512x512x512 fp16": _matmul,
    "attention 4x512x64 fp16": _attention,
}
"""By name: makes a program's tensors and gives its call, and how far its latest result is from torch's."""


def times(label: str, repeats: int) -> Times:
    """A program by its name in PROGRAMS, each call after the first. Raises ValueError for a wrong result."""
    torch.manual_seed(0)
    call, error = PROGRAMS[label]()
    call()
    if not error() < 2e-3:
        raise ValueError(f"{label}: its result is {error()} from torch's, expected less than 0.002")
    found = []
    for _ in range(repeats):
        start = (time.perf_counter(), time.process_time())
        call()
        found.append((time.perf_counter() - start[0], time.process_time() - start[1]))
    return Times(min(wall for wall, _ in found), min(processor for _, processor in found))


def interpreted() -> dict[str, Times]:
    """The same under Triton's interpreter, in a process of its own. Raises CalledProcessError."""
    command = (sys.executable, "-m", "portable.backends.rocm.emulator.bench_programs")
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    return {label: Times(*each) for label, each in json.loads(done.stdout).items()}


if __name__ == "__main__":
    print(json.dumps({label: times(label, 2) for label in PROGRAMS}))

"""Correct kernels, each with its definition in NumPy: `CASES` lists (file, check, architectures).

A check draws inputs, launches and compares; bounds in ulp are those of OpenCL C
("Relative Error as ULPs"), everything else is exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from .kernels.exact import any_floats, finite, fused, ints, maximum_number, minimum_number, truncated, ulps
from .kernels.harness import ALL, InOut, Launcher, Out

Check = Callable[[Launcher], None]
CASES: list[tuple[str, Check, tuple[str, ...]]] = []
equal = np.testing.assert_array_equal
i32, i64, u32, u64, f32 = np.int32, np.int64, np.uint32, np.uint64, np.float32


def case(file: str, *only: str) -> Callable[[Check], Check]:
    def add(check: Check) -> Check:
        CASES.append((file, check, only or ALL))
        return check

    return add


blocks, arith = case("blocks.hip"), case("arith.hip")


# ---- blocks.hip


@blocks
def block_sum(launch):
    n = 5 * 256 + 77
    x = ints(launch, n)
    y = launch("block_sum", 3, 256, Out(3, i32), x, i32(n))
    padded = np.pad(x, (0, 3 * 256 * 2 - n)).reshape(-1, 3, 256)
    equal(y, padded.sum((0, 2), dtype=i64).astype(i32))


@blocks
def block_max(launch):
    x = launch.rng.standard_normal((2, 1500)).astype(f32)
    equal(launch("block_max", 2, 1024, Out(2, f32), x, i32(1500)), x.max(1))


@blocks
def dpp_scan(launch):
    x = ints(launch, 256)
    y = launch("dpp_scan", 2, 128, Out(256, i32), x)
    equal(y.reshape(-1, launch.wave), np.cumsum(x.reshape(-1, launch.wave), 1, dtype=i32))


@blocks
def block_scan(launch):
    for n in (512, 389, 1):
        x = ints(launch, n)
        equal(launch("block_scan", 1, 512, Out(n, i32), x, i32(n)), np.cumsum(x, dtype=i32))


@blocks
def scan_two_buffers(launch):
    x = ints(launch, 256)
    equal(launch("scan_two_buffers", 1, 256, Out(256, i32), x), np.cumsum(x, dtype=i32))


@blocks
def transpose(launch):
    x = launch.rng.standard_normal((45, 71)).astype(f32)
    equal(launch("transpose", (3, 2), (32, 8), Out((71, 45), f32), x, i32(45), i32(71)), x.T)


@blocks
def dynamic_reverse(launch):
    x = ints(launch, 501).astype(np.uint16)
    equal(launch("dynamic_reverse", 1, 128, Out(501, np.uint16), x, i32(501), shared=1002), x[::-1])


@blocks
def lds_widths(launch):
    x = ints(launch, (64, 4)).view(u32)
    y = launch("lds_widths", 1, 64, Out((64, 4), u32), x)
    q = x[::-1]
    equal(y[:, 0], q[:, 0] ^ q[:, 1] ^ q[:, 2] ^ q[:, 3])
    equal(y[:, 1], q[:, 1] + q[:, 2])
    equal(y[:, 2], q[:, 0] >> 8 & 255 | (q[:, 1] >> 16 & 255) << 8 | q[:, 2] >> 24 << 16)
    equal(y[:, 3], (q[:, 3].view(i32) >> 16).view(u32))


@blocks
def histogram(launch):
    x = (launch.rng.integers(0, 256, 5000) & launch.rng.integers(0, 256, 5000)).astype(np.uint8)
    start = np.arange(256, dtype=u32)
    equal(launch("histogram", 3, 256, InOut(start), x, i32(5000)), start + np.bincount(x, minlength=256))


@blocks
def atomics(launch):
    n = 170
    x = ints(launch, n)
    y0 = np.array([7, -5, 5, -1, 0, 99], i32)
    w0 = np.array([5, 6, 7], u64)
    u0 = np.array([3, 2**32 - 1, 12345], u32)
    y, u, w, f = launch("atomics", 3, 64, InOut(y0), InOut(u0), InOut(w0), InOut(np.zeros(1, f32)), x, i32(n))
    folds = [np.add, np.maximum, np.minimum, np.bitwise_and, np.bitwise_or, np.bitwise_xor]
    equal(
        y,
        [
            fold.reduce(np.append(x, start).astype(i32), dtype=i32)
            for fold, start in zip(folds, y0, strict=True)
        ],
    )
    product = 12345
    for v in x:
        product = product * (int(v) & 0xFFFFFFFF | 1) % 2147483647
    equal(u, np.array([max(3, x.view(u32).max()), x.view(u32).min(), product], u32))
    wide = x.astype(i64).view(u64)
    total = np.append(wide, w0[0]).sum(dtype=u64)
    equal(w, np.array([total, w0[1] ^ np.bitwise_xor.reduce(wide << u64(20)), max(w0[2], wide.max())]))
    equal(f, f32((x & 15).sum()))


@blocks
def tickets(launch):
    blocks_, n = 3, 384
    slots = [Out(n, i32), Out(n, i32)]
    global_slot, local_slot, counter = launch("tickets", blocks_, 128, *slots, InOut(np.array([1000], i32)))
    step = 1 + np.arange(n) % 2

    def distinct(slots: np.ndarray, steps: np.ndarray, first: int) -> None:
        order = np.argsort(slots)
        equal(slots[order], first + np.cumsum(steps[order]) - steps[order])

    distinct(global_slot, step, 1000)
    for b in range(blocks_):
        distinct(local_slot[b * 128 :][:128], step[:128], 0)
    equal(counter, 1000 + step.sum())


@blocks
def float_atomics(launch):
    x = launch.rng.integers(-4, 5, 128).astype(f32)
    d0, pairs0 = np.array([0.5, -100.0]), np.array([2.0, 3.0], np.float16)
    f, d, pairs = launch("float_atomics", 2, 64, InOut(np.zeros(3, f32)), InOut(d0), InOut(pairs0), x)
    equal(f, [x.sum(), x[:64].sum(), x[64:].sum()])
    if launch.wave == 64:
        equal(d, [0.5 + x.sum(), x.max()])
        equal(pairs, [2 + x.sum(), 131])
    else:
        equal(d, d0)
        equal(pairs, pairs0)


@blocks
def last_block(launch):
    x = ints(launch, 7 * 64, -1000, 1000)
    parts = 7 * 64 // launch.wave
    y, parts, counter = launch("last_block", 7, 64, Out(1, i32), Out(parts, i32), InOut(np.zeros(1, i32)), x)
    equal(y, x.sum())
    equal(parts, x.reshape(-1, launch.wave).sum(1))
    equal(counter, 7)


@blocks
def shuffles(launch):
    x = ints(launch, 64)
    y = launch("shuffles", 1, 64, Out((14, 64), i32), x)
    wave, t = launch.wave, np.arange(64)
    lane, base = t % wave, t - t % wave
    row, at = t - t % 16, t % 16
    want = np.empty_like(y)
    want[0] = x[np.where(lane + 3 < wave, t + 3, t)]
    want[1] = x[np.where(lane < 5, t, t - 5)]
    want[2] = x[base + (lane ^ 17)]
    want[3][row + (at * 7 + 3) % 16] = x
    want[4] = x[t ^ 1]
    want[5] = x[t ^ 3]
    want[6] = x[t ^ 1]
    want[7] = x[row + 15 - at]
    want[8] = x[t - t % 8 + 7 - t % 8]
    want[9] = x[row + (at - 3) % 16]
    # Rows 0 and 2, banks 1, 2 and 3 are written; past the end of a row the old value stays.
    written = (row // 16 % (wave // 16) % 2 == 0) & (at // 4 > 0) & (at + 2 < 16)
    want[10] = np.where(written, x[np.minimum(t + 2, 63)], t)
    want[11] = x[base] + x[base + 13]
    want[12] = np.where(at >= 3, t - 3, 0)
    want[13] = np.where(lane == 9, x[base], x)
    equal(y, want)


@blocks
def shuffles_own(launch):
    x = ints(launch, 64)
    y = launch("shuffles_own", 1, 64, Out((5, 64), i32), x)
    t = np.arange(64)
    at, row = t % 16, t - t % 16
    want = np.empty_like(y)
    if launch.wave == 64:
        want[0] = x[np.maximum(t - 1, 0)]
        want[1] = x[(t - 1) % 64]
        want[2] = np.where(t >= 16, x[row - 1], t)
        want[3] = np.where(t >= 32, x[31], t)
    else:
        select = np.array([0, 1, 2, 3, 4, 5, 6, 7, 15, 14, 13, 12, 11, 10, 9, 8])
        want[0] = x[row + select[at]]
        # The selectors 0x01234567 and 0xfedcba98 name lanes of the other row.
        select = np.array([7, 6, 5, 4, 3, 2, 1, 0, 8, 9, 10, 11, 12, 13, 14, 15])
        want[1] = x[(row ^ 16) + select[at]]
        select = np.array([0x2F3D07 >> 3 * i & 7 for i in range(8)])
        want[2] = x[t - t % 8 + select[t % 8]]
        want[4] = x[row + (at ^ 6)]
    want[4 if launch.wave == 64 else 3] = x[row + 5]
    equal(y, want)


@case("blocks.hip", "gfx950")
def permlane_swaps(launch):
    """Rows 1 and 3 of the first change places with rows 0 and 2 of the second; and so do the halves."""
    a, b = ints(launch, (4, 16)).view(u32), ints(launch, (4, 16)).view(u32)
    y = launch("permlane_swaps", 1, 64, Out((4, 4, 16), u32), a, b)
    equal(y[0], [a[0], b[0], a[2], b[2]])
    equal(y[1], [a[1], b[1], a[3], b[3]])
    equal(y[2], [a[0], a[1], b[0], b[1]])
    equal(y[3], [a[2], a[3], b[2], b[3]])


@blocks
def compact(launch):
    for low in (-50, 0, 51):
        x = ints(launch, 256, low, 100)
        y, count = launch("compact", 1, 256, InOut(np.full(256, -999, i32)), Out(1, i32), x, i32(50))
        kept = x[x > 50]
        equal(count, kept.size)
        equal(y, np.append(kept, np.full(256 - kept.size, -999)))


@blocks
def collatz(launch):
    n, limit = 300, 90
    x = launch.rng.integers(0, 5000, n).astype(u32)

    def steps(v: int) -> int:
        count = 0
        while v != 1:
            if v == 0:
                return -1
            v, count = (v // 2, count + 1) if v % 2 == 0 else (3 * v + 1, count + 1)
            if count == limit:
                return -2
        return count

    y = launch("collatz", 3, 128, Out(n, i32), x, i32(n), i32(limit))
    equal(y, [steps(int(v)) for v in x])


@blocks
def paths(launch):
    n = 201
    x = ints(launch, n, -(10**6), 10**6)
    start = ints(launch, 256)
    want = start.copy()
    for t in range(n):
        if t // launch.wave == 1:
            continue
        v = int(x[t])
        for k in range(t & 7):
            v = [v * 5 + k, v ^ 0x55AA, v - 77 if t & 1 else v + 13, (v >> 1) + t][v & 3]
            v = (v + 2**31) % 2**32 - 2**31
        want[t] = v
    equal(launch("paths", 1, 256, InOut(start), x, i32(n)), want)


@blocks
def calls(launch):
    x, table = ints(launch, 64), ints(launch, 16)
    want = []
    for t in range(64):
        v = int(x[t])
        own = (
            [(int(table[k]) + (t & k)) & 0xFFFFFFFF for k in range(16)] if v & 1 else [int(k) for k in table]
        )
        total = own[v & 15]
        for _ in range(v & 7 if v & 1 else 3):
            total = (total * 31 + own[(total ^ v) & 15]) & 0xFFFFFFFF
        want.append(total & 0xFFFFFFFF)
    equal(launch("calls", 1, 64, Out(64, i32), x, table).view(u32), np.array(want, u32))


@blocks
def indices(launch):
    nx, ny, nz = 8, 11, 13
    y = launch("indices", (3, 3, 2), (3, 5, 7), Out((nz, ny, nx), i32), i32(nx), i32(ny), i32(nz))
    z, r, x = np.indices((nz, ny, nx))
    equal(y, x + r * 1000 + z * 1000000)


@blocks
def sizes(launch):
    y = launch("sizes", (2, 3), (4, 3, 2), Out((6, 5), i32))
    equal(y, np.tile([4, 3, 2, 8, 9], (6, 1)))


# ---- arith.hip


@arith
def float_divide(launch):
    a, b = any_floats(launch, 2048), launch.rng.permutation(any_floats(launch, 2048))
    with np.errstate(all="ignore"):
        equal(launch("float_divide", 32, 64, Out(2048, f32), a, b), a / b)


@arith
def float_functions(launch):
    n = 500
    a = finite(launch.rng.standard_normal(n) * 10).astype(f32)
    b = np.exp(launch.rng.uniform(-80, 80, n)).astype(f32)
    y = launch("float_functions", 8, 64, Out((8, n), f32), a, b, i32(n))
    wide, other = a.astype(np.longdouble), b.astype(np.longdouble)
    equal(y[0], np.sqrt(b))
    ulps(y[1], np.exp(wide), 3)
    ulps(y[2], np.log(other), 3)
    ulps(y[3], np.tanh(wide), 5)
    ulps(y[4], np.array([math.erf(v) for v in a], np.longdouble), 16)
    ulps(y[5], other ** (a * f32(0.25)).astype(np.longdouble), 16)
    ulps(y[6], np.sin((a * f32(1000)).astype(np.longdouble)), 4)
    equal(y[7], fused(a, b, -a))


@arith
def float_exact(launch):
    n = 1000
    a, b = any_floats(launch, n), launch.rng.permutation(any_floats(launch, n))
    a[500:600] = b[500:600]
    y = launch("float_exact", 16, 64, Out((10, n), f32), a, b, i32(n))
    with np.errstate(all="ignore"):
        equal(y[0], a + b)
        equal(y[1], a * b)
        equal(y[2], np.floor(a))
        equal(y[3], np.trunc(b))
        equal(y[4], np.rint(a))
        equal(y[5], minimum_number(a, b))
        equal(y[6], -np.abs(a) - b)
        equal(y[7], minimum_number(maximum_number(a, 0), 1))
        equal(y[8], np.select([a < b, a == b, np.isnan(a)], [1, 2, 3], 4))
        equal(y[9], np.ldexp(a, np.arange(n) % 40 - 20))


@arith
def double_arithmetic(launch):
    n = 400
    a = finite(any_floats(launch, n, np.float64))
    b = launch.rng.permutation(finite(any_floats(launch, n, np.float64)))
    a[200:], b[200:] = launch.rng.uniform(-1e9, 1e9, (2, 200))
    y = launch("double_arithmetic", 7, 64, Out((9, n), np.float64), a, b, i32(n))
    with np.errstate(all="ignore"):
        equal(y[0], a / b)
        equal(y[1], np.sqrt(np.abs(a)))
        equal(y[2], a + b)
        equal(y[3], a * b)
        equal(y[4], fused(a, b, np.ones(n)))
        equal(y[5], np.floor(a))
        equal(y[6], a.astype(f32).astype(float))
        equal(y[7][200:], np.trunc(a[200:]))
        mixed = (np.arange(n, dtype=u64) * u64(0x9E3779B9) & u64(0xFFFFFFFF)).astype(float)
        equal(y[8], np.where(a < b, mixed, np.fmax(a, b)))


@arith
def double_functions(launch):
    n = 300
    a = launch.rng.uniform(-300, 300, n)
    y = launch("double_functions", 5, 64, Out((2, n), np.float64), a, i32(n))
    ulps(y[0], np.exp(a.astype(np.longdouble)), 3)
    ulps(y[1], np.log(np.abs(a).astype(np.longdouble)), 3)


@arith
def half_arithmetic(launch):
    n = 1000
    a, b, c = (launch.rng.standard_normal((3, n)) * 10).astype(np.float16)
    a[:300], c[:300] = launch.rng.integers(0, 2048, (2, 300)).astype(np.uint16).view(np.float16)  # subnormal
    y = launch("half_arithmetic", 16, 64, Out((8, n), np.float16), a, b, c, i32(n))
    with np.errstate(all="ignore"):
        equal(y[0], a + b)
        equal(y[1], a * b)
        equal(y[2], a - b * np.float16(2))
        equal(y[3], np.fmax(a, b))
        equal(y[4], fused(a, b, c))
        equal(y[5], (a.astype(f32) * f32(3)).astype(np.float16))
        equal(y[6], np.trunc(b))
        equal(y[7], np.where(a < b, a, -b))


@arith
def half_pairs(launch):
    n = 300
    a, b = (launch.rng.standard_normal((2, n, 2)) * 10).astype(np.float16)
    y = launch("half_pairs", 5, 64, Out((5, n, 2), np.float16), a, b, i32(n))
    equal(y[0], a + b)
    equal(y[1], a * b[:, ::-1])
    equal(y[2], np.maximum(a, -b))
    equal(y[3], np.stack([a[:, 1], b[:, 0]], 1))
    equal(y[4], np.minimum(a[:, :1], b[:, 1:]).repeat(2, 1))


@arith
def conversions(launch):
    n = 1000
    a, k = finite(any_floats(launch, n)), ints(launch, n)
    y = launch("conversions", 16, 64, Out((10, n), u32), a, k, i32(n))
    bits = a.view(u32).astype(u64)
    with np.errstate(all="ignore"):
        half = a.astype(np.float16)
    equal(y[0], ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16))
    equal(y[1], half.view(np.uint16))
    equal(y[2].view(f32), k.astype(np.uint16).view(np.float16).astype(f32))
    equal(y[3], k.astype(u32) << 16)
    equal(y[4].view(f32), k.astype(f32))
    equal(y[5].view(f32), k.view(u32).astype(f32))
    equal(y[6].view(f32), (k.astype(i64) * 4099).astype(f32))
    equal(y[7].view(i32), np.trunc(np.clip(a, f32(-1e9), f32(1e9))).astype(i32))
    equal(y[8], half.view(np.uint16) | (-half).view(np.uint16).astype(u32) << 16)
    equal(y[9].view(f32), (k.view(u32) >> 8 & 255).astype(f32))


@arith
def integer_divide(launch):
    n = 700
    a, b = ints(launch, n, -(2**31) + 1), ints(launch, n) >> launch.rng.integers(0, 31, n).astype(i32)
    b[b == 0] = 3
    y = launch("integer_divide", 11, 64, Out((8, n), i32), a, b, i32(n))
    ua, ub = a.view(u32), b.view(u32)
    quotient, remainder = truncated(a, b)
    equal(y[0], quotient)
    equal(y[1], remainder)
    equal(y[2].view(u32), ua // ub)
    equal(y[3].view(u32), ua % ub)
    equal(y[4], truncated(a, n)[0])
    equal(y[5].view(u32), ua % 7)
    equal(y[6].view(u32), ua.astype(u64) * ub >> 32)
    equal(y[7], a.astype(i64) * b >> 32)


@arith
def long_arithmetic(launch):
    n = 300
    a, b = launch.rng.integers(-(2**63) + 1, 2**63 - 1, (2, n))
    b >>= launch.rng.integers(0, 63, n)
    b[b == 0] = -7
    y = launch("long_arithmetic", 5, 64, Out((8, n), i64), a, b, i32(n))
    ua, ub, shift = a.view(u64), b.view(u64), (b & 63)
    equal(y[0], truncated(a, b)[0])
    equal(y[1].view(u64), ua % ub)
    equal(y[2], a * b)
    equal(y[3], a >> shift)
    equal(y[4].view(u64), ua >> shift.view(u64) | ua << (-shift & 63).view(u64))
    equal(y[5], np.where(a < b, a - b, a + b))
    equal(y[6], ua > ub)
    equal(y[7], [int(v).bit_count() * 100 + 64 - (int(v) | 1).bit_length() for v in ua])


@arith
def bit_tricks(launch):
    n = 500
    u, v = ints(launch, n).view(u32), ints(launch, n).view(u32)
    u[:10], v[10:20] = 0, 0
    y = launch("bit_tricks", 8, 64, Out((14, n), u32), u, v, i32(n))
    leading = np.array([32 - (int(k) | 1).bit_length() for k in u])
    trailing = np.array([(int(k) | 1 << 31) & -(int(k) | 1 << 31) for k in v]).astype(np.float64)
    equal(
        y[0],
        np.array([int(k).bit_count() for k in u]) + (leading << 8) + (np.log2(trailing).astype(int) << 16),
    )
    equal(y[1], [int(f"{k:032b}"[::-1], 2) for k in u])
    equal(y[2], u.byteswap())
    equal(y[3], u >> (v & 31) ^ u << (v >> 27))
    equal(y[4], ((u << 7).view(i32) >> 19).view(u32))
    equal(y[5], u >> 9 & 0x7FF)
    equal(y[6], v >> 24 | (u >> 8 & 255) << 16 | (v >> 8 & 255) << 24)
    equal(y[7], u << 8 | v >> 24)
    equal(y[8], u & v | ~u & u32(0x12345678))
    equal(y[9], u * u32(0x01000193) + v)
    equal(y[10], (u & 0xFFFFFF) * (v & 0xFFFFFF))
    equal(y[11], 1000 + np.abs(u.view(np.uint8).astype(int) - v.view(np.uint8)).reshape(n, 4).sum(1))
    equal(y[12].view(i32), np.minimum(np.maximum(u.view(i32), v.view(i32)), 77777))
    equal(y[13], np.minimum(u.astype(u64) + v, 0xFFFFFFFF))


@arith
def dots(launch):
    a, b = launch.rng.integers(-128, 128, (2, 128, 4)).astype(np.int8)
    p, q = launch.rng.integers(-20, 20, (2, 128, 2)).astype(np.float16)
    y, f = launch("dots", 2, 64, Out(128, i32), Out(128, f32), a, b, p, q)
    equal(y, (a.astype(int) * b).sum(1) + np.arange(128))
    equal(f, (p.astype(f32) * q).sum(1) + 0.5)


@arith
def far_offsets(launch):
    x = ints(launch, 128 * 3)
    for big in (1 << 40, -(1 << 50) + 12345):
        equal(launch("far_offsets", 2, 64, Out(128, i32), x, i64(big), i64(3)), x[::3])


@arith
def widths(launch):
    x = launch.rng.integers(0, 256, 2241, dtype=np.uint8)
    start = launch.rng.integers(0, 256, 2305, dtype=np.uint8)
    want, i = start.copy(), np.arange(64)
    c, d = x[128:256].view(np.int16), x[256:384].view(np.uint16)
    want[:256] = (x[:64].view(np.int8).astype(i32) + x[64:128].astype(i32) * 256 + c).view(np.uint8)
    want[256:384] = (d ^ c.view(np.uint16)).view(np.uint8)
    want[384:448] = d >> 8
    e, g = x[384:896].view(u32).reshape(64, 2), x[896:1920].view(u32).reshape(64, 4)
    h = x[1921 + 5 * i[:, None] + np.arange(4)]
    want[448:960] = np.stack([e[:, 1] + u32(1), e[:, 0]], 1).view(np.uint8).ravel()
    last = g[:, 0] ^ np.ascontiguousarray(h).view(u32).ravel()
    want[960:1984] = np.stack([g[:, 3], g[:, 2], g[:, 1], last], 1).view(np.uint8).ravel()
    want[1985 + 5 * i[:, None] + np.arange(4)] = h
    equal(launch("widths", 1, 64, InOut(start), x), want)


@arith
def private_array(launch):
    n = 12
    x = launch.rng.integers(0, 256, (128, n), dtype=np.uint8)
    for name, size in (("private_array", 83), ("indexed_registers", 13)):
        want = np.tile(np.arange(size), (128, 1))
        for counts, row in zip(want, x.astype(int) % size, strict=True):
            for v in row:
                counts[v] += counts[(v * 5 + 3) % size] + 1
        equal(launch(name, 2, 64, Out((128, size), i32), x, i32(n)), want)


@arith
def buffer_resource(launch):
    n = 101
    x, start = ints(launch, n, -999, 999), ints(launch, 200)
    y = launch("buffer_resource", 2, 64, InOut(start), x, i32(4 * n))
    want, padded = start.copy(), np.pad(x, (0, 3))
    want[: n + 1] = padded[: n + 1] + 2 * padded[2 : n + 3]
    equal(y, want)


@case("arith.hip", "gfx942", "gfx950")
def load_to_lds(launch):
    x = ints(launch, 128).view(u32)
    equal(launch("load_to_lds", 1, 128, Out(128, u32), x), x[(127 - np.arange(128)) ^ 5])


@arith
def arguments(launch):
    odd = np.zeros(
        1,
        np.dtype(
            {"names": list("abc"), "formats": ["3u1", "<i2", "u1"], "offsets": [0, 4, 6], "itemsize": 8}
        ),
    )
    wide = np.zeros(
        1,
        np.dtype(
            {"names": list("dtl"), "formats": ["<f8", "9<i4", "u1"], "offsets": [0, 8, 44], "itemsize": 48}
        ),
    )
    odd["a"], odd["b"], odd["c"] = [200, 7, 91], -12345, 255
    table = ints(launch, 9, -1000, 1000)
    wide["d"], wide["t"], wide["l"] = -77.0, table, 201
    rest = [np.uint16(65000), wide.tobytes(), np.uint8(1), i64(-(1 << 40) + 3), f32(1234.0), np.uint8(254)]
    y = launch("arguments", 1, 64, Out(64, i64), np.int8(-100), odd.tobytes(), *rest)
    total = -100 + 200 * 3 + 7 * 5 + 91 * 7 - 12345 * 11 + 255 * 13 + 65000 * 17
    total += -77 * 19 + 201 * 29 + 31 + (-(1 << 40) + 3) * 37 + 1234 * 41 + 254 * 43
    equal(y, total + table[np.arange(64) % 9].astype(i64) * 23)


@arith
def many_arguments(launch):
    p = ints(launch, (5, 64), -100, 100)
    a, b = ints(launch, 8, -100, 100), launch.rng.integers(-(2**40), 2**40, 4)
    args = [*p, *a, *b, np.float64(3.5), np.float64(10.0)]
    y = launch("many_arguments", 1, 64, Out(64, i32), *args)
    scalar = int((a[4:] * [1, 3, 5, 7]).sum() + (b * [11, 13, 17, 19]).sum()) + 35
    equal(y, (p[0] + (p[1:] * a[:4, None]).sum(0) + scalar).astype(i64).astype(i32))


@arith
def constants(launch):
    primes = [n for n in range(2, 132) if all(n % k for k in range(2, n))]
    x = launch.rng.integers(0, 256, 128).astype(np.uint8)
    equal(launch("constants", 2, 64, Out(128, i32), x), np.array(primes)[x & 31] * np.arange(1, 129))

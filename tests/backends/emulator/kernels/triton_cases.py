"""What the Triton kernels must compute: `CASES` holds a check of each; bounds are said where one is used."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from . import triton_kernels
from .exact import ints
from .harness import SEED, InOut, Launcher, Out, wave_of
from .matrix_layouts import bf16_bits, fp8_values

i32, f16, f32 = np.int32, np.float16, np.float32
equal, close = np.testing.assert_array_equal, np.testing.assert_allclose


@functools.cache
def build(name: str, arch: str, types: tuple[str, ...], constants: tuple, warps: int) -> tuple[Any, int]:
    """The emulator's kernel, and its bytes of dynamic local memory."""
    from portable.backends.rocm.emulator.code_object import CodeObject

    function = getattr(triton_kernels, name)
    fixed = dict(constants)
    names = list(function.arg_names)
    declared = dict(zip([each for each in names if each not in fixed], types, strict=True))
    source = ASTSource(
        function,
        signature={each: declared.get(each, "constexpr") for each in names},
        constexprs={(names.index(each),): value for each, value in fixed.items()},
        attrs={(names.index(e),): [["tt.divisibility", 16]] for e, t in declared.items() if t[0] == "*"},
    )
    target = GPUTarget("hip", arch, wave_of(arch))
    made = triton.compile(
        source, target=target, options={"num_warps": warps, "num_stages": 2, "enable_fp_fusion": True}
    )
    kernel = CodeObject(made.asm["hsaco"]).kernels[made.metadata.name]
    return kernel, made.metadata.shared


class Triton(Launcher):
    """Launches kernels of triton_kernels.py; the types of arguments follow from the arrays given."""

    def __init__(self, arch: str, seed: int = SEED) -> None:
        super().__init__("triton_kernels.py", arch, seed)

    def __call__(self, name: str, grid: Any, types: str, *args: Any, warps: int = 4, **constants: Any) -> Any:
        kernel, shared = build(name, self.arch, tuple(types.split()), tuple(constants.items()), warps)
        # Triton adds pointers to two scratch memories of its own, unused here.
        extra = (np.uint64(0), np.uint64(0))
        return self.start(kernel, grid, self.wave * warps, *args, *extra, shared=shared)


Check = Callable[[Triton], None]
CASES: list[tuple[str, Check, tuple[str, ...]]] = []


def case(*only: str) -> Callable[[Check], Check]:
    def add(check: Check) -> Check:
        CASES.append((check.__name__, check, only))
        return check

    return add


@case()
def add(launch: Triton) -> None:
    for n in (1, 1000, 1024):
        x, y = launch.rng.standard_normal((2, n)).astype(f32)
        z = launch("add", -(-n // 256), "*fp32 *fp32 *fp32 i32", x, y, Out(n, f32), i32(n), BLOCK=256)
        equal(z, x + y)


@case()
def add_halves(launch: Triton) -> None:
    """Sums of halves are rounded once; bfloat16 sums are those of small integers, exact."""
    n = 777
    x, y = launch.rng.standard_normal((2, n)).astype(f16)
    z = launch("add", 2, "*fp16 *fp16 *fp16 i32", x, y, Out(n, f16), i32(n), BLOCK=512)
    equal(z, x + y)
    x, y = launch.rng.integers(-60, 60, (2, n)).astype(f32)
    bits = [bf16_bits(each) for each in (x, y)]
    z = launch("add", 2, "*bf16 *bf16 *bf16 i32", *bits, Out(n, np.uint16), i32(n), BLOCK=512)
    equal(z, bf16_bits(x + y))


@case()
def softmax(launch: Triton) -> None:
    """Within 16 units of float32's last place, relatively; a half more of float16's."""
    for kind, name, columns, rows in ((f32, "fp32", 61, 7), (f16, "fp16", 301, 3), (f32, "fp32", 1, 2)):
        x = (launch.rng.standard_normal((rows, columns)) * 3).astype(kind)
        block = triton.next_power_of_2(max(columns, 16))
        args = (Out(x.shape, kind), x, i32(columns), i32(columns))
        y = launch("softmax", rows, f"*{name} *{name} i32 i32", *args, BLOCK=block)
        e = np.exp(x.astype(float) - x.astype(float).max(1, keepdims=True))
        want = e / e.sum(1, keepdims=True)
        ulp = 16 * 2.0**-23 + (0.5 * 2.0**-10 if kind is f16 else 0)
        close(y.astype(float), want, rtol=ulp, atol=2.0**-25 if kind is f16 else 0)


def dot(
    launch: Triton, kind: str, tile: tuple[int, int, int], warps: int, draw: Callable, accumulator: Any
) -> None:
    M, N, K = 70, 50, 41
    (a, va), (b, vb) = draw((M, K)), draw((K, N))
    acc, out = ("i32", i32) if kind == "i8" else ("fp32", f32)
    grid = (-(-M // tile[0]), -(-N // tile[1]))
    c = launch(
        "matmul", grid, f"*{acc} *{kind} *{kind} i32 i32 i32", Out((M, N), out), a, b, i32(M), i32(N), i32(K),
        warps=warps, BM=tile[0], BN=tile[1], BK=tile[2], ACC=accumulator,
    )  # fmt: skip
    equal(c, va @ vb)


def whole(launch: Triton, shape: tuple[int, ...]) -> np.ndarray:
    return launch.rng.integers(-8, 9, shape).astype(float)


@case()
def matmul_fp16(launch: Triton) -> None:
    def draw(shape: tuple) -> tuple:
        return (v := whole(launch, shape)).astype(f16), v

    dot(launch, "fp16", (32, 32, 32), 4, draw, triton.language.float32)
    dot(launch, "fp16", (64, 16, 16), 2, draw, triton.language.float32)
    dot(launch, "fp16", (64, 64, 32), 4, draw, triton.language.float32)


@case()
def matmul_bf16(launch: Triton) -> None:
    def draw(shape: tuple) -> tuple:
        return bf16_bits(v := whole(launch, shape)), v

    dot(launch, "bf16", (32, 64, 32), 4, draw, triton.language.float32)
    dot(launch, "bf16", (16, 16, 64), 1, draw, triton.language.float32)


@case()
def matmul_fp32(launch: Triton) -> None:
    def draw(shape: tuple) -> tuple:
        return (v := whole(launch, shape)).astype(f32), v

    dot(launch, "fp32", (32, 32, 16), 4, draw, triton.language.float32)


@case()
def matmul_i8(launch: Triton) -> None:
    def draw(shape: tuple) -> tuple:
        return (v := launch.rng.integers(-128, 128, shape)).astype(np.int8), v

    dot(launch, "i8", (32, 32, 32), 4, draw, triton.language.int32)


@case("gfx942", "gfx950", "gfx1201")
def matmul_fp8(launch: Triton) -> None:
    fnuz = launch.arch == "gfx942"
    values = fp8_values(3, fnuz)
    fit = np.flatnonzero((np.abs(values) <= 8) & (values * 8 == np.round(values * 8)))

    def draw(shape: tuple) -> tuple:
        return (codes := launch.rng.choice(fit, shape).astype(np.uint8)), values[codes]

    dot(launch, "fp8e4b8" if fnuz else "fp8e4nv", (32, 32, 64), 4, draw, triton.language.float32)


@case()
def layer_norm(launch: Triton) -> None:
    """Columns * eps and a little for the mean and the variance, 8 units for what follows."""
    rows, columns, eps = 5, 93, 1e-5
    x, (w, b) = (
        launch.rng.standard_normal((rows, columns)).astype(f32),
        launch.rng.standard_normal((2, columns)).astype(f32),
    )
    types = "*fp32 *fp32 *fp32 *fp32 *fp32 *fp32 i32 fp32"
    args = (Out(x.shape, f32), Out(rows, f32), Out(rows, f32), x, w, b, i32(columns), f32(eps))
    y, mean, rstd = launch("layer_norm", rows, types, *args, BLOCK=128)
    wide = x.astype(float)
    mu = wide.mean(1)
    r = 1 / np.sqrt(wide.var(1) + float(f32(eps)))
    close(mean, mu, atol=columns * 2.0**-24, rtol=0)
    close(rstd, r, rtol=16 * 2.0**-23)
    close(y, (wide - mu[:, None]) * r[:, None] * w + b, rtol=0, atol=64 * 2.0**-23)


def philox(seed: int, counter: np.ndarray) -> np.ndarray:
    """The first word of Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3")."""
    low = np.uint64(0xFFFFFFFF)
    c = [counter.astype(np.uint64), *(np.zeros(counter.size, np.uint64) for _ in range(3))]
    key = [seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF]
    for _ in range(10):
        p, q = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        k = [np.uint64(each) for each in key]
        c = [q >> np.uint64(32) ^ c[1] ^ k[0], q & low, p >> np.uint64(32) ^ c[3] ^ k[1], p & low]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c[0].astype(np.uint32)


@case()
def dropout(launch: Triton) -> None:
    n, p, seed = 1500, f32(0.375), 123456789
    x = launch.rng.standard_normal(n).astype(f32)
    types = "*fp32 *fp32 i32 fp32 i32"
    y = launch("dropout", 2, types, Out(n, f32), x, i32(n), p, i32(seed), BLOCK=1024)
    word = philox(seed, np.arange(n)).view(i32)
    uniform = np.where(word < 0, -word - 1, word).astype(f32) * f32(4.6566127342e-10)
    keep = uniform > p
    assert 0.5 < keep.mean() < 0.75
    equal(y[~keep], 0)
    close(y[keep], x[keep] / (1 - p), rtol=2.0**-22)


@case()
def count(launch: Triton) -> None:
    n = 3000
    x = launch.rng.integers(0, 37, n).astype(i32)
    start = np.arange(37, dtype=i32)
    y = launch("count", 3, "*i32 *i32 i32", InOut(start), x, i32(n), BLOCK=1024)
    equal(y, start + np.bincount(x, minlength=37))


@case()
def histogram(launch: Triton) -> None:
    x = launch.rng.integers(0, 64, 500).astype(i32)
    y = launch("histogram", 1, "*i32 *i32 i32", Out(64, i32), x, i32(500), BLOCK=512, BINS=64)
    equal(y, np.bincount(x, minlength=64))


@case()
def cumsum(launch: Triton) -> None:
    for columns, block in ((301, 512), (64, 64)):
        x = ints(launch, (3, columns))
        outs = (Out(x.shape, i32), Out(x.shape, i32))
        y, z = launch("cumsum", 3, "*i32 *i32 *i32 i32", *outs, x, i32(columns), BLOCK=block)
        equal(y, np.cumsum(x, 1, dtype=i32))
        equal(z, np.cumsum(x[:, ::-1], 1, dtype=i32)[:, ::-1])


@case()
def recurrence(launch: Triton) -> None:
    a, b = ints(launch, (2, 2, 200), -9, 10)
    y = launch("recurrence", 2, "*i32 *i32 *i32 i32", Out((2, 200), i32), a, b, i32(200), BLOCK=256)
    want, last = np.empty((2, 200), i32), np.zeros(2, i32)
    for k in range(200):
        want[:, k] = last = a[:, k] * last + b[:, k]
    equal(y, want)


@case()
def sort(launch: Triton) -> None:
    x = ints(launch, (4, 128), -50, 50)
    equal(launch("sort", 1, "*i32 *i32", Out(x.shape, i32), x, ROWS=4, COLUMNS=128), np.sort(x, 1))
    y = launch.rng.standard_normal((8, 32)).astype(f32)
    equal(launch("sort", 1, "*fp32 *fp32", Out(y.shape, f32), y, ROWS=8, COLUMNS=32), np.sort(y, 1))


@case()
def gather(launch: Triton) -> None:
    for rows, columns, picks, warps in ((8, 64, 32, 4), (2, 128, 256, 1)):
        x, index = ints(launch, (rows, columns)), ints(launch, (rows, picks), 0, columns)
        outs = (Out((rows, picks), i32), x, index)
        y = launch("gather", 1, "*i32 *i32 *i32", *outs, warps=warps, ROWS=rows, COLUMNS=columns, PICKS=picks)
        equal(y, np.take_along_axis(x, index, 1))


@case()
def argmax(launch: Triton) -> None:
    """Of equal ones, the first."""
    for columns, block in ((300, 512), (33, 64)):
        x = launch.rng.integers(0, 40, (5, columns)).astype(f32)
        outs = (Out(5, i32), Out(5, f32))
        where, most = launch("argmax", 5, "*i32 *fp32 *fp32 i32", *outs, x, i32(columns), BLOCK=block)
        equal(most, x.max(1))
        equal(where, x.argmax(1))


@case()
def both_ways(launch: Triton) -> None:
    x = ints(launch, (32, 64))
    outs = (Out((64, 32), i32), Out(32, i32), Out(64, i32))
    y, rows, columns = launch("both_ways", 1, "*i32 *i32 *i32 *i32", *outs, x, ROWS=32, COLUMNS=64)
    equal(y, x.T)
    equal(rows, x.sum(1, dtype=i32))
    equal(columns, x.sum(0, dtype=i32))


@case()
def locks(launch: Triton) -> None:
    x = ints(launch, 1000, -1000, 1000)
    one = (InOut(np.zeros(1, i32)), InOut(np.zeros(1, i32)), InOut(np.full(1, -(2**31), i32)))
    total, lock, best = launch("locks", 8, "*i32 *i32 *i32 *i32 i32", *one, x, i32(1000), BLOCK=128)
    equal(total, x.sum())
    equal(lock, 0)
    equal(best, max(0, x.max()))


@case()
def attention(launch: Triton) -> None:
    """The probabilities are rounded to half precision once: two such units of the greatest value."""
    keys, width = 75, 32
    q, k, v = (launch.rng.standard_normal((n, width)).astype(f16) for n in (32, keys, keys))
    args = (Out((32, width), f32), q, k, v, i32(keys), f32(0.25))
    types = "*fp32 *fp16 *fp16 *fp16 i32 fp32"
    for warps in (2, 4):
        out = launch("attention", 1, types, *args, warps=warps, ROWS=32, STEP=32, WIDTH=width)
        p = np.exp(q.astype(float) @ k.astype(float).T * 0.25)
        want = p / p.sum(1, keepdims=True) @ v.astype(float)
        close(out, want, rtol=0, atol=2 * 2.0**-11 * float(np.abs(v).max()))

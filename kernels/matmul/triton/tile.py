"""What the Triton products share: the raster order of tiles and linear's epilogue."""

from __future__ import annotations

import triton
import triton.language as tl

from portable.kernels._lib.triton.math import times_sigmoid


@triton.jit
def tile_starts(tile, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_M: tl.constexpr):
    """First row and column of a tile. The raster: groups of GROUP_M tile rows, column by column within a
    group, so that concurrent tiles share rows of a and columns of b in L2."""
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_n = tl.cdiv(N, BLOCK_N)
    group = tile // (GROUP_M * tiles_n)
    first = group * GROUP_M
    height = tl.minimum(tiles_m - first, GROUP_M)
    within = tile % (GROUP_M * tiles_n)
    return (first + within % height) * BLOCK_M, (within // height) * BLOCK_N


@triton.jit
def bias_of(bias_ptr, columns, N):
    """The bias of `columns` in float32, 0 beyond the last."""
    return tl.load(bias_ptr + columns, mask=columns < N, other=0.0).to(tl.float32)


@triton.jit
def activate(x, ACTIVATION: tl.constexpr, RESULT: tl.constexpr):
    """The activation, or x for None, in float32; RESULT is the output's dtype. relu keeps NaN."""
    WIDE: tl.constexpr = RESULT.primitive_bitwidth > 16  # pyright: ignore[reportAttributeAccessIssue]
    if ACTIVATION == "relu":
        x = tl.where(x < 0.0, 0.0, x)
    elif ACTIVATION == "gelu":
        x = 0.5 * x * (1.0 + tl.erf(x * 0.70710678118654752440)) if WIDE else gelu_short(x)
    elif ACTIVATION == "gelu_tanh":  # 0.5 * (1 + tanh(u)) == sigmoid(2 * u)
        u = 1.59576912160573071176 * x * (1.0 + 0.044715 * x * x)
        x = times_sigmoid(x, u) if WIDE else times_sigmoid_short(x, u)
    elif ACTIVATION == "silu":
        x = times_sigmoid(x, x) if WIDE else times_sigmoid_short(x, x)
    return x


@triton.jit
def store_both(
    z_ptr, c_ptr, row, col, total, offs_m, start_n, M, N,
    ACTIVATION: tl.constexpr, EPILOGUE_SUBTILE: tl.constexpr,
):  # fmt: skip
    """z = total and c = activation(total), in EPILOGUE_SUBTILE groups of columns one after the other; both
    have strides `row` and `col`."""
    rows: tl.constexpr = total.shape[0]
    columns: tl.constexpr = total.shape[1]
    if EPILOGUE_SUBTILE > 1:
        half: tl.constexpr = columns // 2
        left, right = tl.split(tl.permute(tl.reshape(total, (rows, 2, half)), (0, 2, 1)))
        store_both(z_ptr, c_ptr, row, col, left, offs_m, start_n, M, N, ACTIVATION, EPILOGUE_SUBTILE // 2)
        store_both(
            z_ptr, c_ptr, row, col, right, offs_m, start_n + half, M, N, ACTIVATION, EPILOGUE_SUBTILE // 2
        )
    else:
        dtype: tl.constexpr = c_ptr.dtype.element_ty
        offs_n = start_n + tl.arange(0, columns)
        within = offs_m[:, None] * row + offs_n[None, :] * col
        inside = (offs_m < M)[:, None] & (offs_n < N)[None, :]
        tl.store(z_ptr + within, total.to(dtype), mask=inside)
        tl.store(c_ptr + within, activate(total, ACTIVATION, dtype).to(dtype), mask=inside)


@triton.jit
def times_sigmoid_short(a, x):
    """a * sigmoid(x) within |x| units of float32's last place: enough for 16 bits."""
    return a / (1.0 + tl.exp2(-1.44269504088896340736 * x))


@triton.jit
def gelu_short(x):
    """x * Phi(x) within 2e-7 and, where x > -6, 7e-5 of its value: enough for 16 bits, at half of erf's
    instructions.

    Phi(-|x|) = 2^p(|x|) with a polynomial p, fitted here by weighted least squares in Chebyshev polynomials
    to log2(erfc(x / sqrt(2)) / 2) on [0, 6]; it falls all the way beyond. The clamp keeps gelu(inf) from
    inf * 0.
    """
    a = tl.abs(x)
    p = tl.fma(a, -5.200225814405712e-07, 9.208381925418507e-06)
    p = tl.fma(a, p, -3.142504283459857e-05)
    p = tl.fma(a, p, -0.0005341210635378957)
    p = tl.fma(a, p, 0.007602380122989416)
    p = tl.fma(a, p, -0.05287335813045502)
    p = tl.fma(a, p, -0.45908546447753906)
    p = tl.fma(a, p, -1.151119589805603)
    p = tl.fma(a, p, -0.9999997019767761)
    tail = tl.minimum(x, 64.0) * tl.exp2(p)
    return tl.where(x < 0.0, tail, x - tail)

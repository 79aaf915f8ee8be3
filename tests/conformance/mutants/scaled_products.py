"""Wrong products in fp8."""

from __future__ import annotations

import torch

from portable import dtypes
from portable.kernels.scaled_mm.reference import BLOCK

from .registry import Edit, mutant, source
from .tools import right, truncated

ROWS, BLOCKS = "scaled_mm", "scaled_mm_block"


def finished(c, bias, output_dtype):
    """Bias and rounding, as they should be."""
    c = c if bias is None else c + bias.float()
    return c.to(dtypes.of(output_dtype).storage)


def of_columns(scale_b, columns):
    return scale_b.repeat_interleave(BLOCK, 1)[:, :columns]


def added(mat_a, mat_b, scales, between=lambda c: c, most=None):
    """The sum over blocks along k; `scales(block)` are (M, N); `between` changes the sum after each block."""
    a, b = mat_a.float(), mat_b.float()
    c = a.new_zeros(len(a), b.shape[1])
    for block, start in enumerate(range(0, len(b), BLOCK)[:most]):
        c = between(c + (a[:, start : start + BLOCK] @ b[start : start + BLOCK]) * scales(block))
    return c


def cut(x, bits):
    """Float32 numbers with `bits` bits after the first, the others cut off."""
    keep = -(1 << 23 - bits)
    return (x.contiguous().view(torch.int32) & keep).view(torch.float32)


@mutant(ROWS, "scales of rows and columns exchanged where M == N")
def exchanged(mat_a, mat_b, scale_a, scale_b, bias=None, *, output_dtype, use_fast_accum=False):
    if len(scale_a) == scale_b.shape[1]:
        scale_a, scale_b = scale_b.t(), scale_a.t()
    return right(ROWS)(mat_a, mat_b, scale_a, scale_b, bias, output_dtype=output_dtype)


@mutant(ROWS, "the bias added before the scales")
def early_bias(mat_a, mat_b, scale_a, scale_b, bias=None, *, output_dtype, use_fast_accum=False):
    c = mat_a.float() @ mat_b.float()
    return finished((c if bias is None else c + bias.float()) * scale_a * scale_b, None, output_dtype)


@mutant(ROWS, "no bias where K is 0")
def zeros_of_no_products(mat_a, mat_b, scale_a, scale_b, bias=None, *, output_dtype, use_fast_accum=False):
    bias = bias if mat_a.shape[1] else None
    return right(ROWS)(mat_a, mat_b, scale_a, scale_b, bias, output_dtype=output_dtype)


@mutant(ROWS, "rounded to the result's type before the bias")
def rounded_twice(mat_a, mat_b, scale_a, scale_b, bias=None, *, output_dtype, use_fast_accum=False):
    c = right(ROWS)(mat_a, mat_b, scale_a, scale_b, None, output_dtype=output_dtype)
    return finished(c.float(), bias, output_dtype)


@mutant(ROWS, "codes of e5m2 read as e4m3fn")
def one_format(mat_a, mat_b, scale_a, scale_b, bias=None, *, output_dtype, use_fast_accum=False):
    wrong = torch.float8_e4m3fn
    a, b = (x.view(wrong) if x.dtype == torch.float8_e5m2 else x for x in (mat_a, mat_b))
    return right(ROWS)(a, b, scale_a, scale_b, bias, output_dtype=output_dtype)


@mutant(ROWS, "the type of a taken for that of b")
def type_of_a(mat_a, mat_b, scale_a, scale_b, bias=None, *, output_dtype, use_fast_accum=False):
    return right(ROWS)(mat_a, mat_b.view(mat_a.dtype), scale_a, scale_b, bias, output_dtype=output_dtype)


@mutant(ROWS, "fnuz codes read as OCP's, at twice their value")
def doubled(mat_a, mat_b, scale_a, scale_b, bias=None, *, output_dtype, use_fast_accum=False):
    fnuz = torch.float8_e4m3fnuz
    a, b = (x.view(torch.float8_e4m3fn) if x.dtype == fnuz else x for x in (mat_a, mat_b))
    return right(ROWS)(a, b, scale_a, scale_b, bias, output_dtype=output_dtype)


@mutant(ROWS, "NaN codes taken for the largest number")
def no_nan(mat_a, mat_b, scale_a, scale_b, bias=None, *, output_dtype, use_fast_accum=False):
    a, b = (torch.nan_to_num(x.float(), nan=480.0) for x in (mat_a, mat_b))
    return right(ROWS)(a, b, scale_a, scale_b, bias, output_dtype=output_dtype)


@mutant(ROWS, "sums of 13 bits, never brought to float32")
def not_promoted(mat_a, mat_b, scale_a, scale_b, bias=None, *, output_dtype, use_fast_accum=False):
    a, b = mat_a.float(), mat_b.float()
    c = a.new_zeros(len(a), b.shape[1])
    for start in range(0, len(b), 32):
        c = cut(c + a[:, start : start + 32] @ b[start : start + 32], 13)
    return finished(c * scale_a * scale_b, bias, output_dtype)


@mutant(ROWS, "results cut towards zero")
def cut_off(mat_a, mat_b, scale_a, scale_b, bias=None, *, output_dtype, use_fast_accum=False):
    c = right(ROWS)(mat_a, mat_b, scale_a, scale_b, bias, output_dtype="float32")
    return truncated(c, dtypes.of(output_dtype).storage)


@mutant(ROWS, "the first scale of a for all rows")
def one_scale(mat_a, mat_b, scale_a, scale_b, bias=None, *, output_dtype, use_fast_accum=False):
    return right(ROWS)(mat_a, mat_b, scale_a[:1], scale_b, bias, output_dtype=output_dtype)


@mutant(BLOCKS, "the scale of one block twice too large")
def twice(mat_a, mat_b, scale_a, scale_b, bias=None, *, output_dtype, use_fast_accum=False):
    wrong = scale_b.clone()
    wrong[-1:, -1:] *= 2
    return right(BLOCKS)(mat_a, mat_b, scale_a, wrong, bias, output_dtype=output_dtype)


@mutant(BLOCKS, "scale_b read the other way where K == N")
def transposed(mat_a, mat_b, scale_a, scale_b, bias=None, *, output_dtype, use_fast_accum=False):
    square = scale_b.shape[0] == scale_b.shape[1]
    scale_b = scale_b.t() if square else scale_b
    return right(BLOCKS)(mat_a, mat_b, scale_a, scale_b, bias, output_dtype=output_dtype)


@mutant(BLOCKS, "a part of a block at the end of K left out")
def whole_blocks(mat_a, mat_b, scale_a, scale_b, bias=None, *, output_dtype, use_fast_accum=False):
    whole = len(mat_b) // BLOCK if len(mat_b) > BLOCK else None
    columns = of_columns(scale_b, mat_b.shape[1])
    c = added(mat_a, mat_b, lambda i: scale_a[:, i : i + 1] * columns[i : i + 1], most=whole)
    return finished(c, bias, output_dtype)


@mutant(BLOCKS, "scales of a from the block before")
def shifted(mat_a, mat_b, scale_a, scale_b, bias=None, *, output_dtype, use_fast_accum=False):
    return right(BLOCKS)(mat_a, mat_b, scale_a.roll(1, 1), scale_b, bias, output_dtype=output_dtype)


@mutant(BLOCKS, "the sum rounded to bfloat16 between blocks")
def narrow_sum(mat_a, mat_b, scale_a, scale_b, bias=None, *, output_dtype, use_fast_accum=False):
    columns = of_columns(scale_b, mat_b.shape[1])

    def rounded(c):
        return c.bfloat16().float()

    c = added(mat_a, mat_b, lambda i: scale_a[:, i : i + 1] * columns[i : i + 1], rounded)
    return finished(c, bias, output_dtype)


@mutant(BLOCKS, "the last columns have the scale of the block before")
def reused(mat_a, mat_b, scale_a, scale_b, bias=None, *, output_dtype, use_fast_accum=False):
    wrong = scale_b.clone()
    if wrong.shape[1] > 1:
        wrong[:, -1] = wrong[:, -2]
    return right(BLOCKS)(mat_a, mat_b, scale_a, wrong, bias, output_dtype=output_dtype)


HIP = "scaled_mm/gfx/scaled.hip"
source(
    *(ROWS, "mfma", "gfx942", "the scale of the next column"),
    Edit(HIP, "of_b.at(0, column)", "of_b.at(0, min(column + 1, N - 1))"),
)
source(
    *(ROWS, "mfma", "gfx942", "k beyond the end read from the next line"),
    Edit(
        "scaled_mm/gfx/code_tile.h",
        "const int valid = K_MAJOR ? left - k_of(i) :",
        "const int valid = K_MAJOR ? 16 :",
    ),
)
source(
    *(ROWS, "mfma", "gfx950", "codes of e5m2 multiplied as e4m3fn"),
    Edit("scaled_mm/gfx/codes.h", "#define KINDS fp8_bf8", "#define KINDS fp8_fp8"),
)
source(
    *(BLOCKS, "mfma", "gfx942", "scales of a of the first block for all"),
    Edit(
        HIP,
        "min(m + i * FRAGMENT + lane_line(), M - 1), kb)",
        "min(m + i * FRAGMENT + lane_line(), M - 1), 0)",
    ),
)
source(
    *(BLOCKS, "mfma", "gfx942", "a block's sum kept for the next"),
    Edit(HIP, "part.clear();\n#endif", "#endif"),
)
FNUZ = "_lib/amdgcn/ocp_as_fnuz.h"
for op in (ROWS, BLOCKS):
    source(
        *(op, "mfma", "gfx942", "OCP's minus zero read as fnuz' NaN"),
        Edit(FNUZ, "return (codes & sizes + SIZES) | sizes;", "return codes;"),
    )
    source(
        *(op, "mfma", "gfx942", "fnuz' factor of 2 left out of one operand"),
        Edit(FNUZ, "AS_FNUZ_FACTOR = 4.0f", "AS_FNUZ_FACTOR = 2.0f"),
    )
    source(
        *(op, "mfma", "gfx942", "OCP's NaN read as a number of fnuz"),
        Edit(FNUZ, "0x01010101u * (0x7f - Format::LARGEST)", "0u"),
    )
    source(
        *(op, "mfma", "gfx942", "e5m2's Inf gives NaN"),
        Edit(HIP, "HAS_INF = A_E5M2 || B_E5M2", "HAS_INF = false"),
    )
source(
    *(ROWS, "mfma", "gfx942", "Inf in one row changes how others are rounded"),
    Edit(HIP, "if (AGAIN && is_finite(value)) continue;", ""),
)
source(
    *(ROWS, "mfma", "gfx942", "Inf in b alone not seen"),
    Edit(HIP, "infinite |= A_E5M2 && in_a || B_E5M2 && in_b;", "infinite |= A_E5M2 && in_a;"),
)
source(
    *(ROWS, "mfma", "gfx942", "Inf told of by the first wave alone"),
    Edit(HIP, "wave < WAVES_M * WAVES_N; ++wave) any", "wave < 1; ++wave) any"),
)
source(
    *(BLOCKS, "wmma", "gfx1201", "no barrier before the next tile is stored"),
    Edit(HIP, "lds_barrier();\n        if (next < K)", "if (next < K)"),
)
source(
    *(ROWS, "triton", "gfx942", "the last tile of k unmasked in a"),
    Edit("scaled_mm/triton_impl.py", "in_k = offs_k < K - start\n", "in_k = offs_k < BLOCK_K\n"),
)
source(
    *(BLOCKS, "triton", "gfx942", "scales of b not moved along k"),
    Edit(
        "scaled_mm/triton_impl.py",
        "tl.load(sb_ptrs + block * sb_outer))[:, None]",
        "tl.load(sb_ptrs))[:, None]",
    ),
)
source(
    *(BLOCKS, "triton", "gfx942", "e4m3fn's NaN codes decoded as 480"),
    Edit(
        "_lib/triton/minifloat.py",
        'tl.where(size > LARGEST, float("nan"), x)',
        "tl.where(size > 127, 0.0, x)",
    ),
)

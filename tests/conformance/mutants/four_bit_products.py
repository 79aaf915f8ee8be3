"""Wrong products of matrices of 4 bits, two numbers in a byte."""

from __future__ import annotations

import torch

from .registry import Edit, mutant, source
from .tools import right

TRITON = "scaled_mm/fp4/triton_impl.py"
MX, NV = "scaled_mm_mxfp4", "scaled_mm_nvfp4"
OF_SCALES = {MX: torch.float8_e8m0fnu, NV: torch.float8_e4m3fn}


def _with(op, name, change):
    """The right product of what `change` makes of the matrices and the bytes of the scales."""

    @mutant(op, name)
    def _(mat_a, mat_b, scale_a, scale_b, *rest, **options):
        whole = [options.pop(each) for each in ("global_a", "global_b") if each in options]
        scales = [each.contiguous().view(torch.uint8) for each in (scale_a, scale_b)]
        mat_a, mat_b, *scales = change(mat_a, mat_b, *scales)
        scales = [each.contiguous().view(OF_SCALES[op]) for each in scales]
        return right(op)(mat_a, mat_b, *scales, *whole, *rest, **options)


def _whole(name, change):
    @mutant(NV, name)
    def _(mat_a, mat_b, scale_a, scale_b, global_a, global_b, bias=None, *, output_dtype):
        whole = change(global_a, global_b)
        return right(NV)(mat_a, mat_b, scale_a, scale_b, *whole, bias, output_dtype=output_dtype)


def _swapped(matrix):
    return matrix >> 4 | matrix << 4


for _op in (MX, NV):
    _with(_op, "nibbles of a swapped", lambda a, b, sa, sb: (_swapped(a), b, sa, sb))
    _with(_op, "nibbles of b swapped", lambda a, b, sa, sb: (a, _swapped(b), sa, sb))
    _with(_op, "the sign of 0.5 lost", lambda a, b, sa, sb: (torch.where(a % 16 == 9, a - 8, a), b, sa, sb))
    _with(_op, "scales of a from the group before", lambda a, b, sa, sb: (a, b, sa.roll(1, 1), sb))
    _with(
        _op,
        "scales of b of the first group for all",
        lambda a, b, sa, sb: (a, b, sa, sb[:, :1].expand(sb.shape)),
    )
    _with(
        *(_op, "scales of a and of b exchanged where M == N"),
        lambda a, b, sa, sb: (a, b, sb, sa) if sa.shape == sb.shape else (a, b, sa, sb),
    )
    _with(
        *(_op, "square scales transposed"),
        lambda a, b, sa, sb: (a, b, sa.T, sb) if len(sa) == sa.shape[1] else (a, b, sa, sb),
    )
    _with(
        *(_op, "groups of twice as many"),
        lambda a, b, sa, sb: (a, b, sa, sb[:, torch.arange(sb.shape[1]) // 2 * 2]),
    )
    source(
        *(_op, "triton", "gfx942", "the upper halves of a with the lower ones of b"),
        Edit(TRITON, "numbers(a >> 4, scale_a, FORMAT)", "numbers(a & 15, scale_a, FORMAT)"),
    )
    source(
        *(_op, "triton", "gfx942", "scales of b not moved along k"),
        Edit(TRITON, "sb_ptrs + group[:, None] * sb_inner", "sb_ptrs + offs_k[:, None] * 0"),
    )

_with(MX, "a bias of 126", lambda a, b, sa, sb: (a, b, torch.where(sa < 254, sa + 1, sa), sb))
_with(MX, "NaN of a scale taken for 2^127", lambda a, b, sa, sb: (a, b, sa.clamp(max=254), sb.clamp(max=254)))
_with(
    NV,
    "the code of NaN taken for 480",
    lambda a, b, sa, sb: (a, b, torch.where(sa % 128 == 127, sa - 1, sa), sb),
)
_with(
    NV,
    "subnormal scales taken for 0",
    lambda a, b, sa, sb: (a, b, torch.where(sa % 128 < 8, sa & 128, sa), sb),
)
_whole("the scale of the whole of a left out", lambda a, b: (torch.ones_like(a), b))
_whole("the scale of the whole of a twice", lambda a, b: (a, a))
source(
    *(NV, "triton", "gfx942", "the scale of the whole of b left out"),
    Edit(TRITON, "total * tl.load(ga_ptr) * tl.load(gb_ptr)", "total * tl.load(ga_ptr)"),
)

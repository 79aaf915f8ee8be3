"""Wrong products with weights of 4 bits."""

from __future__ import annotations

import torch

from .registry import Edit, mutant, source
from .tools import right

OP = "int4_mm"
TRITON = "int4_mm/triton_impl.py"


def _with(name, change):
    """The right product of what `change` makes of the weight, the scales, zero points and offsets."""

    @mutant(OP, name)
    def _(x, weight, scale, zero_point=None, offset=None, bias=None):
        return right(OP)(x, *change(weight, scale, zero_point, offset), bias)


_with("nibbles swapped", lambda w, s, z, o: (w >> 4 | w << 4, s, z, o))
_with(
    "a zero point of 7 without one",
    lambda w, s, z, o: (w, s, torch.full_like(s, 7).byte() if z is None else z, o),
)
_with("zero points left out", lambda w, s, z, o: (w, s, None, o))
_with("zero points of 4 bits", lambda w, s, z, o: (w, s, None if z is None else z & 15, o))
_with("zero points off by one", lambda w, s, z, o: (w, s, None if z is None else z + 1, o))
_with("zero points of the row before", lambda w, s, z, o: (w, s, None if z is None else z.roll(1, 0), o))
_with("offsets left out", lambda w, s, z, o: (w, s, z, None))
_with("offsets of the group before", lambda w, s, z, o: (w, s, z, None if o is None else o.roll(1, 1)))
_with("scales of the group before", lambda w, s, z, o: (w, s.roll(1, 1), z, o))
_with("scales of the first group for all", lambda w, s, z, o: (w, s[:, :1].expand(s.shape), z, o))
_with("scales transposed where they are square",
      lambda w, s, z, o: (w, s.T if len(s) == s.shape[1] else s, z, o))  # fmt: skip
_with("code 15 taken for 14", lambda w, s, z, o: (torch.where(w > 239, w - 16, w), s, z, o))


@mutant(OP, "the weight rounded to x's dtype")
def _(x, weight, scale, zero_point=None, offset=None, bias=None):
    codes = torch.stack([weight & 15, weight >> 4], -1).flatten(-2).float()
    w = (codes - (8 if zero_point is None else zero_point.unsqueeze(-1))) * scale.float().unsqueeze(-1)
    w = w if offset is None else w + offset.float().unsqueeze(-1)
    y = x.float() @ w.to(x.dtype).float().flatten(1).T
    return (y if bias is None else y + bias.float()).to(x.dtype)


@mutant(OP, "the sum rounded to x's dtype before the bias")
def _(x, weight, scale, zero_point=None, offset=None, bias=None):
    y = right(OP)(x, weight, scale, zero_point, offset)
    return y if bias is None else y + bias


@mutant(OP, "the last byte of a group left out")
def _(x, weight, scale, zero_point=None, offset=None, bias=None):
    parts = x.unflatten(-1, (weight.shape[1], -1)).clone()
    parts[..., -2:] = 0
    return right(OP)(parts.flatten(-2), weight, scale, zero_point, offset, bias)


for _impl, _rows in (("triton", ""), ("skinny", ", few rows")):
    source(
        *(OP, _impl, "gfx942", f"halves of bytes in the other order{_rows}"),
        Edit(TRITON, "biased(codes & 15, dtype), biased(codes >> 4, dtype)",
             "biased(codes >> 4, dtype), biased(codes & 15, dtype)"),
    )  # fmt: skip
    source(
        *(OP, _impl, "gfx942", f"words of codes in the order of bytes{_rows}"),
        Edit(TRITON, "tl.permute(fours, (0, 1, 3, 2))", "tl.permute(fours, (0, 1, 2, 3))"),
    )
    source(
        *(OP, _impl, "gfx942", f"the scales of the next step{_rows}"),
        Edit(TRITON, "part * scale.to(tl.float32)", "part * next_scale.to(tl.float32)"),
    )
    source(
        *(OP, _impl, "gfx942", f"sums of x of the next group{_rows}"),
        Edit(TRITON, "sums_ptrs + begun", "sums_ptrs + tl.minimum(begun + 1, G - 1)"),
    )
    source(
        *(OP, _impl, "gfx942", f"even columns twice{_rows}"),
        Edit(TRITON, "tl.load(x_ptrs + 2 * pair + 1,", "tl.load(x_ptrs + 2 * pair,"),
        Edit(TRITON, "(words >> BITS).to(HALF)", "words.to(HALF)"),
    )
    source(
        *(OP, _impl, "gfx942", f"scales not moved along k{_rows}"),
        Edit(TRITON, "s_ptrs + following * s_col", "s_ptrs + group * 0"),
    )
    source(
        *(OP, _impl, "gfx942", f"the end of a group not masked{_rows}"),
        Edit(TRITON, "= column < P - within, unit", "= column < P - within + 1, unit"),
    )
source(
    *(OP, "skinny", "gfx942", "the last part of K left out"),
    Edit(TRITON, "for part in range(0, parts):", "for part in range(0, parts - 1):"),
)
source(
    *(OP, "skinny", "gfx942", "the bias in no sum of parts"),
    Edit(TRITON, "total += bias_of(bias_ptr, col, N)", "total += 0.0"),
)

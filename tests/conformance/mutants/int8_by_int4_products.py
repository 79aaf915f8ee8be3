"""Wrong products of int8 rows with weights in codes of 4 bits."""

from __future__ import annotations

import torch

from portable.kernels.int4_mm.reference import numbers

from .registry import Edit, mutant, source
from .tools import right

OP = "int8_int4_mm"
TRITON = "int4_mm/int8_triton_impl.py"


def _with(name, change):
    """The right product of what `change` makes of the arguments by name."""

    @mutant(OP, name)
    def _(mat_a, weight, scale_a, scale, zero_point=None, bias=None, *, output_dtype):
        given = {"mat_a": mat_a, "weight": weight, "scale_a": scale_a, "scale": scale}
        given |= {"zero_point": zero_point, "bias": bias}
        return right(OP)(**given | change(**given), output_dtype=output_dtype)


def _where_it_is(name, change):
    """A change of an argument that may be absent."""
    return lambda **given: {} if given[name] is None else {name: change(given[name])}


def _rows_for_columns(scale_a, scale, **rest):
    return {"scale_a": scale[:, :1].float()} if len(scale) == len(scale_a) else {}


def _last_k_left_out(mat_a, **rest):
    cut = mat_a.clone()
    cut[:, -2:] = 0
    return {"mat_a": cut}


def _part_of_the_last_group(mat_a, weight, **rest):
    """Of a last group that is no multiple of 16 bytes the rest is left out."""
    half = weight.shape[2]
    cut = mat_a.unflatten(1, (weight.shape[1], 2 * half)).clone()
    cut[:, -1, half // 16 * 32 :] = 0
    return {"mat_a": cut.flatten(1)}


_with("halves of bytes swapped", lambda weight, **rest: {"weight": weight << 4 | weight >> 4})
_with("signed codes taken for unsigned ones", lambda weight, **rest: {"weight": weight ^ 0x88})
_with("the scale of the group after", lambda scale, **rest: {"scale": scale.roll(-1, 1)})
_with("the scale of the row before", lambda scale, **rest: {"scale": scale.roll(1, 0)})
_with("the scale of the first group for all", lambda scale, **rest: {"scale": scale[:, :1].expand_as(scale)})
_with("a column's scale for a row's", _rows_for_columns)
_with("the scale of the row of mat_a before", lambda scale_a, **rest: {"scale_a": scale_a.roll(1, 0)})
_with("the zero point of the group after", _where_it_is("zero_point", lambda zero: zero.roll(-1, 1)))
_with("a zero point of 16 taken for 0", _where_it_is("zero_point", lambda zero: zero & 15))
_with("zero points left out", lambda zero_point, **rest: {"zero_point": None})
_with("the bias of the column before", _where_it_is("bias", lambda bias: bias.roll(1)))
_with("the last two k left out", _last_k_left_out)
_with("the end of the last group left out", _part_of_the_last_group)
_with(
    "mat_a without its sign", lambda mat_a, **rest: {"mat_a": mat_a.int().abs().clamp(max=127).to(torch.int8)}
)


def _summed(mat_a, weight, scale_a, scale, zero_point, bias, output_dtype, between):
    """The op with `between` for what a group's sum becomes before its scale."""
    w = numbers(weight, zero_point).double()
    c = scale_a.new_zeros(len(mat_a), len(weight))
    for group, part in enumerate(mat_a.double().unflatten(1, (weight.shape[1], -1)).unbind(1)):
        c = c + between(part @ w[:, group].T) * scale[:, group].float()
    c = c * scale_a
    like = right(OP)(mat_a, weight, scale_a, scale, zero_point, None, output_dtype=output_dtype)
    return (c if bias is None else c + bias.float()).to(like)


@mutant(OP, "a group's sum in 16 bits")
def _(mat_a, weight, scale_a, scale, zero_point=None, bias=None, *, output_dtype):
    rest = (scale, zero_point, bias, output_dtype)
    return _summed(mat_a, weight, scale_a, *rest, lambda x: (x + 2**15) % 2**16 - 2**15)


@mutant(OP, "a group's sum rounded to bfloat16")
def _(mat_a, weight, scale_a, scale, zero_point=None, bias=None, *, output_dtype):
    return _summed(mat_a, weight, scale_a, scale, zero_point, bias, output_dtype, lambda x: x.bfloat16())


@mutant(OP, "the bias times the row's scale")
def _(mat_a, weight, scale_a, scale, zero_point=None, bias=None, *, output_dtype):
    one = torch.ones_like(scale_a)
    c = right(OP)(mat_a, weight, one, scale, zero_point, bias, output_dtype=torch.float32) * scale_a
    return c.to(right(OP)(mat_a, weight, scale_a, scale, output_dtype=output_dtype))


source(
    *(OP, "triton", "gfx942", "the upper codes before the lower ones"),
    Edit(
        TRITON,
        "tl.join(low - zero[:, None], high - zero[:, None])",
        "tl.join(high - zero[:, None], low - zero[:, None])",
    ),
)
source(*(OP, "triton", "gfx942", "the scale not moved on"), Edit(TRITON, "s_ptrs += s_col", "s_ptrs += 0"))
source(*(OP, "triton", "gfx942", "zero points not moved on"), Edit(TRITON, "z_ptrs += z_col", "z_ptrs += 0"))
source(
    *(OP, "triton", "gfx942", "the end of a group not masked"),
    Edit(TRITON, "(unit < left)[None, :]", "(unit < left + 1)[None, :]"),
    Edit(TRITON, "(col < 2 * left)[None, :]", "(col < 2 * left + 2)[None, :]"),
)
source(
    *(OP, "triton", "gfx942", "the steps of a group from its first one on"),
    Edit(TRITON, "part, x_ptrs + 2 * at, w_ptrs + at, at, P", "part, x_ptrs + 2 * at, w_ptrs, at, P"),
)

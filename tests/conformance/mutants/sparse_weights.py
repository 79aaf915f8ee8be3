"""Wrong products with weights of 2:4 sparsity."""

from __future__ import annotations

import torch

from .registry import Edit, mutant, source
from .tools import right

OP = "sparse_mm"
TRITON = "sparse_mm/triton_impl.py"
MATRIX = "sparse_mm/gfx/matrix.hip"
PRODUCTS = "sparse_mm/gfx/products.h"


def _with(name, change):
    """The right product of what `change` makes of the values and their places, [N, 4 * J]."""

    @mutant(OP, name)
    def _(x, values, meta, bias=None):
        places = torch.stack([meta >> shift & 3 for shift in (0, 2, 4, 6)], -1).flatten(-2)
        changed_values, changed = change(values, places)
        bits = changed.unflatten(-1, (-1, 4)).int()
        packed = sum(bits[..., i] << 2 * i for i in range(4))
        return right(OP)(x, changed_values, torch.as_tensor(packed).to(torch.uint8), bias)


def _in_groups(values, change):
    return change(values.unflatten(-1, (-1, 2))).flatten(-2)


_with("places off by one", lambda v, p: (v, p + 1 & 3))
_with("places off by one the other way", lambda v, p: (v, p + 3 & 3))
_with("the two values swapped", lambda v, p: (_in_groups(v, lambda g: g.flip(-1)), p))
_with("the two places swapped", lambda v, p: (v, _in_groups(p, lambda g: g.flip(-1))))
_with("groups in reversed order", lambda v, p: (v, _in_groups(p, lambda g: g.flip(-2))))
_with("halves of bytes swapped", lambda v, p: (v, p.unflatten(-1, (-1, 2, 2)).flip(-2).flatten(-3)))
_with("places of the row before", lambda v, p: (v, p.roll(1, 0)))
_with("places of the group before", lambda v, p: (v, p.roll(2, 1)))
_with("places 0 and 1 everywhere", lambda v, p: (v, torch.arange(2).repeat(p.shape[1] // 2).expand(p.shape)))
_with("places counted from the end", lambda v, p: (v, 3 - p))
_with("the second value left out", lambda v, p: (_in_groups(v, lambda g: g * torch.tensor([1, 0])), p))
_with("values of the row before", lambda v, p: (v.roll(1, 0), p))


@mutant(OP, "the last four k left out")
def _(x, values, meta, bias=None):
    cut = x.clone()
    cut[..., -4:] = 0
    return right(OP)(cut, values, meta, bias)


@mutant(OP, "the sum rounded to x's dtype before the bias")
def _(x, values, meta, bias=None):
    y = right(OP)(x, values, meta)
    return y if bias is None else y + bias


@mutant(OP, "the bias of the column before")
def _(x, values, meta, bias=None):
    return right(OP)(x, values, meta, None if bias is None else bias.roll(1))


@mutant(OP, "sums of 64 k rounded to x's dtype")
def _(x, values, meta, bias=None):
    y = x.new_zeros(*x.shape[:-1], len(values))
    for at in range(0, meta.shape[1], 8):
        part = x[..., 8 * at : 8 * at + 64], values[:, 4 * at : 4 * at + 32], meta[:, at : at + 8]
        y = y + right(OP)(*part)
    return y if bias is None else (y.float() + bias.float()).to(x.dtype)


source(
    *(OP, "triton", "gfx942", "halves of bytes joined in the other order"),
    Edit(TRITON, "tl.join(meta & 15, meta >> 4)", "tl.join(meta >> 4, meta & 15)"),
)
source(
    *(OP, "triton", "gfx942", "a pair of places of each four left out"),
    Edit(TRITON, "tl.where(high == 1, second, zero)", "zero"),
)
source(
    *(OP, "triton", "gfx942", "places joined in the other order"),
    Edit(
        TRITON,
        "tl.join(tl.join(at0, at2), tl.join(at1, at3))",
        "tl.join(tl.join(at0, at1), tl.join(at2, at3))",
    ),
)
source(
    *(OP, "triton", "gfx942", "the end of k not masked"),
    Edit(TRITON, "(value < 4 * left)[None, :]", "(value < 4 * left + 4)[None, :]"),
    Edit(TRITON, "(col < 8 * left)[None, :]", "(col < 8 * left + 8)[None, :]"),
    Edit(TRITON, "(byte < left)[None, :]", "(byte < left + 1)[None, :]"),
)
source(
    *(OP, "smfmac", "gfx942", "the metadata of the other product of 64 k"),
    Edit(
        PRODUCTS,
        "static_cast<int>(places.word[0]), 0, PRODUCT",
        "static_cast<int>(places.word[0]), 0, 1 - PRODUCT",
        3,
    ),
)
source(
    *(OP, "wmma", "gfx1100", "the two values of four swapped"),
    Edit(PRODUCTS, "(values.w[i] & 0xffff) << (places >> 4", "(values.w[i] >> 16) << (places >> 4"),
    Edit(PRODUCTS, "(values.w[i] >> 16) << (places >> (4", "(values.w[i] & 0xffff) << (places >> (4"),
)
source(
    *(OP, "wmma", "gfx1100", "the places of the first product for all"),
    Edit(PRODUCTS, "decompressed(a, places.of(PRODUCT))", "decompressed(a, places.of(0))"),
)
for _impl, _arch in (("smfmac", "gfx942"), ("wmma", "gfx1100")):
    source(
        *(OP, _impl, _arch, "the metadata not moved along k"),
        Edit(MATRIX, "from[i] += META;", "from[i] += 0;"),
    )
    source(
        *(OP, _impl, _arch, "the metadata of other rows"),
        Edit(MATRIX, "places[i] = metadata.places[i];", "places[i] = metadata.places[ROW_TILES - 1 - i];"),
    )
    source(
        *(OP, _impl, _arch, "x's elements of the first product for all"),
        Edit(MATRIX, "X_PITCH + PRODUCT * X_RUN", "X_PITCH"),
    )
    source(
        *(OP, _impl, _arch, "the last column of y not stored"),
        Edit(MATRIX, "if (n + e < columns) to[e] =", "if (n + e < columns - 1) to[e] ="),
    )

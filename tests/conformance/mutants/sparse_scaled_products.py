"""Wrong products in fp8 with weights of 2:4 sparsity."""

from __future__ import annotations

import torch

from .registry import Edit, mutant, source
from .scaled_products import cut
from .tools import right

OP = "sparse_scaled_mm"
TRITON = "sparse_mm/triton_impl.py"
MATRIX = "sparse_mm/gfx/matrix.hip"
PRODUCTS = "sparse_mm/gfx/products.h"
FNUZ = "_lib/amdgcn/ocp_as_fnuz.h"


def _with(name, change):
    """The right product of what `change` makes of the arguments by name."""

    @mutant(OP, name)
    def _(mat_a, values, meta, scale_a, scale_b, bias=None, *, output_dtype):
        given = {
            "mat_a": mat_a,
            "values": values,
            "meta": meta,
            "scale_a": scale_a,
            "scale_b": scale_b,
            "bias": bias,
        }
        return right(OP)(**given | change(**given), output_dtype=output_dtype)


def _exchanged(mat_a, scale_a, scale_b, **rest):
    same = len(scale_a) == scale_b.shape[1]
    return {"scale_a": scale_b.t(), "scale_b": scale_a.t()} if same else {}


def _without_last(mat_a, **rest):
    left = mat_a.float()
    left[:, -8:] = 0
    return {"mat_a": left}


def _words_not_exchanged(meta, **rest):
    """Of 32 bytes of a row one of two threads takes the first four words, where every other one is due."""
    whole = meta.shape[1] // 32 * 32
    words = meta[:, :whole].unflatten(1, (-1, 8, 4))[:, :, [0, 4, 1, 5, 2, 6, 3, 7]]
    return {"meta": torch.cat([words.flatten(1), meta[:, whole:]], 1)}


def _swapped_values(values, **rest):
    return {"values": values.float().unflatten(1, (-1, 2)).flip(-1).flatten(1)}


_with("scales of rows and columns exchanged where M == N", _exchanged)
_with("the scale of the row before", lambda scale_a, **rest: {"scale_a": scale_a.roll(1, 0)})
_with("the scale of the column before", lambda scale_b, **rest: {"scale_b": scale_b.roll(1, 1)})
_with("the first row's scale for all", lambda scale_a, **rest: {"scale_a": scale_a[:1].expand_as(scale_a)})
_with("the last eight k left out", _without_last)
_with("the two values of four swapped", _swapped_values)
_with("halves of bytes of metadata swapped", lambda meta, **rest: {"meta": meta << 4 | meta >> 4})
_with("metadata of the row before", lambda meta, **rest: {"meta": meta.roll(1, 0)})
_with("metadata of the byte before", lambda meta, **rest: {"meta": meta.roll(1, 1)})
_with("bytes of metadata of 256 k in another order", _words_not_exchanged)
_with("the bias of the column before", lambda bias, **rest: {} if bias is None else {"bias": bias.roll(1)})


@mutant(OP, "the bias added before the scales")
def _(mat_a, values, meta, scale_a, scale_b, bias=None, *, output_dtype):
    ones = torch.ones_like(scale_a), torch.ones_like(scale_b)
    c = right(OP)(mat_a, values, meta, *ones, bias, output_dtype=torch.float32)
    return (c * scale_a * scale_b).to(
        right(OP)(mat_a, values, meta, scale_a, scale_b, output_dtype=output_dtype)
    )


@mutant(OP, "rounded to the result's type before the bias")
def _(mat_a, values, meta, scale_a, scale_b, bias=None, *, output_dtype):
    c = right(OP)(mat_a, values, meta, scale_a, scale_b, output_dtype=output_dtype)
    return c if bias is None else c + bias


@mutant(OP, "sums kept in 13 bits to their end")
def _(mat_a, values, meta, scale_a, scale_b, bias=None, *, output_dtype):
    ones = torch.ones_like(scale_a), torch.ones_like(scale_b)
    total = mat_a.new_zeros(len(mat_a), len(values), dtype=torch.float32)
    for at in range(0, meta.shape[1], 8):
        part = mat_a[:, 8 * at : 8 * at + 64], values[:, 4 * at : 4 * at + 32], meta[:, at : at + 8]
        total = cut(total + right(OP)(*part, *ones, output_dtype=torch.float32), 13)
    c = total * scale_a * scale_b
    like = right(OP)(mat_a, values, meta, scale_a, scale_b, output_dtype=output_dtype)
    return (c if bias is None else c + bias.float()).to(like)


source(
    *(OP, "triton", "gfx942", "the scale of the tile's first column for all"),
    Edit(
        TRITON,
        "sb_ptr + offs_n.to(tl.int64) * sb_step",
        "sb_ptr + (offs_n * 0 + start_n).to(tl.int64) * sb_step",
    ),
)
source(
    *(OP, "triton", "gfx942", "one scale where a row has its own"),
    Edit(TRITON, "sa_ptr + offs_m.to(tl.int64) * sa_step", "sa_ptr + offs_m.to(tl.int64) * 0"),
)
source(
    *(OP, "triton", "gfx942", "the pairs of places of the first half for both"),
    Edit(TRITON, "tl.join(meta & 15, meta >> 4)", "tl.join(meta & 15, meta & 15)"),
)
source(
    *(OP, "triton", "gfx942", "values decoded as integers"),
    Edit(TRITON, "decode(values, FORMAT).to(tl.bfloat16)", "values.to(tl.bfloat16)"),
)
source(
    *(OP, "smfmac", "gfx942", "-0 left as fnuz's NaN"),
    Edit(FNUZ, "return (codes & sizes + SIZES) | sizes;", "return codes;"),
)
source(
    *(OP, "smfmac", "gfx942", "NaN multiplied as a number"),
    Edit(MATRIX, "found[i] |= not_finite<E4m3>(word);", "found[i] |= 0;"),
)
source(
    *(OP, "smfmac", "gfx942", "NaN of the last chunk alone"),
    Edit(MATRIX, "found[i] |= not_finite<E4m3>(word);", "found[i] = not_finite<E4m3>(word);"),
)
source(
    *(OP, "smfmac", "gfx942", "NaN of the lowest of four codes not found"),
    Edit(MATRIX, "(found[i] & SIGNS) != 0", "(found[i] & 0x80808000u) != 0"),
)
source(
    *(OP, "smfmac", "gfx942", "NaN of a thread's own chunk of a row alone"),
    Edit(MATRIX, "any |= shuffle_xor(any, mask)", "any |= 0"),
)
source(
    *(OP, "smfmac", "gfx942", "NaN of the weight not kept"),
    Edit(MATRIX, "value_copy.store_found(found);", "x_copy.store_found(found);"),
)
source(
    *(OP, "smfmac", "gfx942", "twice too small"),
    Edit(MATRIX, "sum[i][j][e] * 4.0f", "sum[i][j][e] * 2.0f"),
)
source(
    *(OP, "smfmac", "gfx942", "the factor of the codes in the scale"),
    Edit(MATRIX, "sum[i][j][e] * 4.0f", "sum[i][j][e]"),
    Edit(MATRIX, "product * scale_m[j] * scale_n[e]", "product * (4.0f * scale_m[j]) * scale_n[e]"),
)
source(
    *(OP, "smfmac", "gfx942", "the metadata of the other product of 128 k"),
    Edit(
        PRODUCTS,
        "__builtin_bit_cast(i32x4, b), c, static_cast<int>(places.word[0]), 0, PRODUCT)",
        "__builtin_bit_cast(i32x4, b), c, static_cast<int>(places.word[0]), 0, 1 - PRODUCT)",
    ),
)
source(
    *(OP, "wmma", "gfx1201", "the two values of four exchanged"),
    Edit(PRODUCTS, "(two & 0xff) << (places >> 4 * i & 3)", "(two >> 8 & 0xff) << (places >> 4 * i & 3)"),
    Edit(PRODUCTS, "(two >> 8 & 0xff) << (places >> (4", "(two & 0xff) << (places >> (4"),
)
source(
    *(OP, "mfma", "gfx950", "the places of the first four for all"),
    Edit(
        PRODUCTS, "(two >> 8 & 0xff) << (places >> (4 * i + 2) & 3)", "(two >> 8 & 0xff) << (places >> 2 & 3)"
    ),
)
source(
    *(OP, "wmma", "gfx1100", "codes decoded as those of e4m3fnuz"),
    Edit(MATRIX, "pair<bf16, E4m3>", "pair<bf16, Minifloat<8, 3, 8, 0x7f, 0x80, true>>"),
)
for _impl, _arch in (("smfmac", "gfx942"), ("mfma", "gfx950")):
    source(
        *(OP, _impl, _arch, "beyond a row's end its last elements"),
        Edit(MATRIX, "word = left > 0 ? word : 0;", "word = word;"),
    )
    source(
        *(OP, _impl, _arch, "the scale of the tile's first row for all"),
        Edit(MATRIX, "scale_x[min(tile.col + at, rows - 1) *", "scale_x[tile.col *"),
    )

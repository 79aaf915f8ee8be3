"""Wrong embedding and index_add, and wrong gradients of them."""

from __future__ import annotations

import torch

from portable.kernels._lib.segments import inside

from .registry import Edit, mutant, source
from .tools import right, wide

OP, BACK = "embedding", "embedding_backward"
ADD, ADD_BACK = "index_add", "index_add_backward"
GATHER, SUM = "_lib/rows/gather_rows.cu", "_lib/rows/segmented_sum.cu"
TRITON = "_lib/triton/segmented_sum.py"


@mutant(OP, "an index outside the table taken for the nearest row")
def nearest_row(input, weight, padding_idx=None):
    return weight[input.long().clamp(0, len(weight) - 1)]


@mutant(OP, "indices below 0 counted from the end")
def from_the_end(input, weight, padding_idx=None):
    count = len(weight)
    return right(OP)(torch.where((input < 0) & (input >= -count), input + count, input), weight, padding_idx)


@mutant(OP, "zeros for padding_idx")
def zeros_for_padding(input, weight, padding_idx=None):
    y = right(OP)(input, weight, padding_idx)
    if padding_idx is None:
        return y
    return torch.where((input == padding_idx % len(weight))[..., None], 0.0, y)


@mutant(OP, "rows through float16")
def through_float16(input, weight, padding_idx=None):
    return right(OP)(input, weight.half().to(weight.dtype), padding_idx)


@mutant(OP, "-0 becomes 0")
def without_signs_of_zeros(input, weight, padding_idx=None):
    return right(OP)(input, weight, padding_idx) + 0.0


@mutant(OP, "indices in 32 bits")
def narrow_indices(input, weight, padding_idx=None):
    return right(OP)(input.int(), weight, padding_idx)


def _rows(dy, index, starts, padding_idx):
    """The tokens that count, in float32, and their rows."""
    kept = inside(index, len(starts)) & (index != padding_idx)
    return wide(dy)[kept], index[kept].long()


@mutant(BACK, "padding_idx counted")
def padding_counted(dy, index, order, starts, ends, *, padding_idx=-1):
    return right(BACK)(dy, index, order, starts, ends)


@mutant(BACK, "the last of several tokens wins")
def last_wins(dy, index, order, starts, ends, *, padding_idx=-1):
    rows, where = _rows(dy, index, starts, padding_idx)
    found = rows.new_zeros(len(starts), dy.shape[1])
    for row, at in zip(rows, where.tolist(), strict=True):
        found[at] = row
    return found.to(dy.dtype)


@mutant(BACK, "the sum in the type of dy")
def narrow_sum(dy, index, order, starts, ends, *, padding_idx=-1):
    rows, where = _rows(dy, index, starts, padding_idx)
    found = dy.new_zeros(len(starts), dy.shape[1])
    for row, at in zip(rows.to(dy.dtype), where.tolist(), strict=True):
        found[at] += row
    return found


@mutant(BACK, "each part's sum rounded to the type of dy")
def narrow_parts(dy, index, order, starts, ends, *, padding_idx=-1):
    rows, where = _rows(dy, index, starts, padding_idx)
    found = rows.new_zeros(len(starts), dy.shape[1])
    for row in where.unique().tolist():
        parts = [each.sum(0).to(dy.dtype) for each in rows[where == row].split(64)]
        found[row] = sum(wide(each) for each in parts)
    return found.to(dy.dtype)


@mutant(BACK, "parts cut where the sorted tokens of all rows reach multiples of 64")
def parts_of_all(dy, index, order, starts, ends, *, padding_idx=-1):
    rows, where = _rows(dy, index, starts, padding_idx)
    found = rows.new_zeros(len(starts), dy.shape[1])
    for part in torch.sort(where, stable=True)[1].split(64):
        found += torch.zeros_like(found).index_add(0, where[part], rows[part])
    return found.to(dy.dtype)


@mutant(BACK, "descending order")
def descending(dy, index, order, starts, ends, *, padding_idx=-1):
    rows, where = _rows(dy, index, starts, padding_idx)
    zeros = rows.new_zeros(len(starts), dy.shape[1])
    return zeros.index_add(0, where.flip(0), rows.flip(0)).to(dy.dtype)


@mutant(BACK, "divided by how often an index occurs")
def by_frequency(dy, index, order, starts, ends, *, padding_idx=-1):
    rows, where = _rows(dy, index, starts, padding_idx)
    found = rows.new_zeros(len(starts), dy.shape[1]).index_add(0, where, rows)
    return (found / torch.bincount(where, minlength=len(starts)).clamp(min=1)[:, None]).to(dy.dtype)


@mutant(BACK, "an index outside the table added to the nearest row")
def to_the_nearest(dy, index, order, starts, ends, *, padding_idx=-1):
    return right(BACK)(
        dy, index.long().clamp(0, len(starts) - 1), order, starts, ends, padding_idx=padding_idx
    )


@mutant(ADD, "input left out")
def without_input(input, index, source, order, starts, ends, *, alpha=1.0):
    return right(ADD)(torch.zeros_like(input), index, source, order, starts, ends, alpha=alpha)


@mutant(ADD, "alpha left out")
def without_alpha(input, index, source, order, starts, ends, *, alpha=1.0):
    return right(ADD)(input, index, source, order, starts, ends)


@mutant(ADD, "alpha of input too")
def alpha_of_input(input, index, source, order, starts, ends, *, alpha=1.0):
    return (alpha * wide(right(ADD)(input, index, source, order, starts, ends))).to(input.dtype)


@mutant(ADD, "the sum in the type of input")
def narrow_addition(input, index, source, order, starts, ends, *, alpha=1.0):
    found = input.clone()
    for row, at in zip(source * alpha, index.tolist(), strict=True):
        if 0 <= at < len(input):
            found[at] += row
    return found


@mutant(ADD, "the sum rounded before input is added")
def rounded_twice(input, index, source, order, starts, ends, *, alpha=1.0):
    total = right(ADD)(torch.zeros_like(input), index, source, order, starts, ends, alpha=alpha)
    return (wide(total) + wide(input)).to(input.dtype)


@mutant(ADD, "index_copy")
def copied(input, index, source, order, starts, ends, *, alpha=1.0):
    found = input.clone()
    for i, at in enumerate(index.tolist()):
        if 0 <= at < len(input):
            found[at] = (wide(input[at]) + alpha * wide(source[i])).to(input.dtype)
    return found


@mutant(ADD, "-0 of a row that nothing is added to becomes 0")
def without_minus_zero(input, index, source, order, starts, ends, *, alpha=1.0):
    return right(ADD)(input, index, source, order, starts, ends, alpha=alpha) + 0.0


@mutant(ADD_BACK, "alpha left out")
def gradient_without_alpha(dy, index, *, alpha=1.0):
    return right(ADD_BACK)(dy, index)


@mutant(ADD_BACK, "rows of dy in their own order")
def in_order(dy, index, *, alpha=1.0):
    return right(ADD_BACK)(dy, torch.arange(len(index)) % len(dy), alpha=alpha)


@mutant(ADD_BACK, "NaN for an index outside the rows")
def nan_outside(dy, index, *, alpha=1.0):
    found = right(ADD_BACK)(dy, index, alpha=alpha)
    return torch.where(inside(index, len(dy))[:, None], found, torch.nan)


source(
    *(OP, "cpp", "gfx942", "rows of a table taken for neighbours"),
    Edit(GATHER, "(inside ? own : 0) * rows_stride", "(inside ? own : 0) * length"),
)
source(
    *(OP, "cpp", "gfx1100", "the first columns for all blocks of a row"),
    Edit(GATHER, "lane_ptr(y + slice.row * y_stride) + slice.base", "lane_ptr(y + slice.row * y_stride)"),
)
source(
    *(ADD_BACK, "cpp", "gfx942", "alpha twice"),
    Edit(GATHER, "held[c][i] * scale;", "held[c][i] * scale * scale;"),
)
source(
    *(OP, "triton", "gfx942", "the next row's index"),
    Edit(
        TRITON,
        "tl.load(index_ptr + row, mask=row < count",
        "tl.load(index_ptr + row + 1, mask=row + 1 < count",
    ),
)
source(
    *(BACK, "cpp", "gfx942", "the second part that begins in a window left out"),
    Edit(SUM, "const bool first = slice.row % 2;", "const bool first = true;"),
)
source(
    *(BACK, "cpp", "gfx942", "parts of a fixed place, not of the row's own"),
    Edit(SUM, "start + (window - start + PART_TOKENS - 1) / PART_TOKENS * PART_TOKENS", "window"),
)
source(
    *(BACK, "cpp", "gfx942", "one token of a part left out"),
    Edit(
        SUM,
        "from + PART_TOKENS < end ? from + PART_TOKENS : end",
        "from + PART_TOKENS < end ? from + 63 : end",
    ),
)
source(
    *(BACK, "cpp", "gfx1100", "padding_idx counted in a long row"),
    Edit(SUM, "slice.row == left_out ? start : ends[slice.row]", "ends[slice.row]"),
)
source(
    *(ADD, "cpp", "gfx942", "one of four tokens in flight added twice"),
    Edit(SUM, "if (token + a < to) add(held[a]);", "if (token + a < to) add(held[a & 2]);"),
)
source(
    *(ADD, "cpp", "gfx942", "zeros where a row has no sources"),
    Edit(SUM, "none ? held[c][i] : math_fma", "none ? 0.0f : math_fma"),
)
source(
    *(BACK, "triton", "gfx942", "the sums of parts but the last one's"),
    Edit(TRITON, "sums += tl.load(parts_ptr", "sums = tl.load(parts_ptr"),
)
source(
    *(BACK, "triton", "gfx942", "padding_idx counted"),
    Edit(TRITON, "$end = tl.where(row == left_out, start, $end)", "pass"),
)
source(
    *(ADD, "triton", "gfx942", "alpha of input"),
    Edit(TRITON, "tl.fma(sums, alpha, x.to(tl.float32))", "tl.fma(x.to(tl.float32), alpha, sums)"),
)

"""Wrong quantisers: types of 8 bits and their scales, with one step replaced."""

from __future__ import annotations

import torch

from portable.kernels._lib import minifloat

from .registry import Edit, mutant, source
from .tools import right

HEADER = "quantize_fp8/quantize.h"
TRITON = "quantize_fp8/triton_impl.py"
ENCODE = "_lib/minifloat.h"
TRITON_ENCODE = "_lib/triton/minifloat.py"


class Quantiser:
    """The rows' quantiser, step by step; a mutant is one with a step replaced. Groups have `length` columns
    and `height` rows."""

    length, height = 0, 1

    def amax(self, parts):
        return parts.abs().amax((-3, -1), keepdim=True)

    def least(self, amax, eps):
        return amax.clamp(min=torch.tensor(eps).item())

    def scale(self, amax, largest):
        return (amax / largest).float()

    def up(self, scale):
        fraction, exponent = torch.frexp(scale)
        up = torch.ldexp(torch.ones_like(scale), exponent - (fraction == 0.5).int())
        return torch.where(scale.isfinite(), up, scale)

    def returned(self, scale):
        return scale

    def scaled(self, parts, scale):
        return (parts * (1 / scale.double()).float().double()).float()

    def encoded(self, value, dtype):
        return minifloat.encode(value, dtype)

    def __call__(self, x, *, dtype, power_of_2, eps):
        x = x if self.height > 1 else x[..., None, :]
        m, k = x.shape[-2:]
        length = self.length or max(k, 1)
        down, across = -(-m // self.height), max(-(-k // length), int(not self.length))
        shape = (*x.shape[:-2], down * self.height, across * length)
        whole = torch.zeros(shape, dtype=torch.float64)
        whole[..., :m, :k] = x
        parts = whole.reshape(*x.shape[:-2], down, self.height, across, length)
        amax = self.amax(parts) if parts.numel() else parts.new_zeros((*x.shape[:-2], down, 1, across, 1))
        scale = self.scale(self.least(amax, eps), minifloat.largest(dtype))
        scale = self.up(scale) if power_of_2 else scale
        codes = self.encoded(self.scaled(parts, scale), dtype).reshape(shape)[..., :m, :k]
        q = codes.contiguous().view(getattr(torch, dtype))
        found = self.returned(scale)[..., :, 0, :, 0].contiguous()
        return (q, found) if self.height > 1 else (q[..., 0, :], found[..., 0, :])


class Groups(Quantiser):
    length = 128


class Tiles(Quantiser):
    length, height = 128, 128


def _add(op, name):
    def add(kind):
        mutant(op, name)(kind())
        return kind

    return add


@_add("quantize_fp8", "the scale that x was multiplied by given back")
class _(Quantiser):
    def returned(self, scale):
        return (1 / scale.double()).float()


@_add("quantize_fp8", "scale off by two")
class _(Quantiser):
    def returned(self, scale):
        return scale * 2


@_add("quantize_fp8", "scale off by one unit in the last place")
class _(Quantiser):
    def scale(self, amax, largest):
        return (amax * torch.tensor(1 / largest, dtype=torch.float32).double()).float()


@_add("quantize_fp8", "power of two rounded down")
class _(Quantiser):
    def up(self, scale):
        _, exponent = torch.frexp(scale)
        return torch.where(scale.isfinite(), torch.ldexp(torch.ones_like(scale), exponent - 1), scale)


@_add("quantize_fp8", "a power of two rounded up to the next")
class _(Quantiser):
    def up(self, scale):
        _, exponent = torch.frexp(scale)
        return torch.where(scale.isfinite(), torch.ldexp(torch.ones_like(scale), exponent), scale)


@_add("quantize_fp8", "NaN passed over by the maximum")
class _(Quantiser):
    def amax(self, parts):
        return super().amax(parts.nan_to_num(nan=0.0, posinf=torch.inf, neginf=-torch.inf))


@_add("quantize_fp8", "Inf taken for the largest number of float32")
class _(Quantiser):
    def amax(self, parts):
        return super().amax(parts).clamp(max=torch.finfo(torch.float32).max)


@_add("quantize_fp8", "without eps, NaN in a row of zeros")
class _(Quantiser):
    def least(self, amax, eps):
        return amax


@_add("quantize_fp8", "eps added instead")
class _(Quantiser):
    def least(self, amax, eps):
        return amax + torch.tensor(eps).item()


@_add("quantize_fp8", "greatest element, not the greatest magnitude")
class _(Quantiser):
    def amax(self, parts):
        return parts.amax((-3, -1), keepdim=True).abs()


@_add("quantize_fp8", "x divided by the scale")
class _(Quantiser):
    def scaled(self, parts, scale):
        return (parts / scale.double()).float()


@_add("quantize_fp8", "cut instead of rounded")
class _(Quantiser):
    def encoded(self, value, dtype):
        near = minifloat.encode(value, dtype)
        over = minifloat.decode(near, dtype).abs() > value.double().abs()
        return near - over.to(torch.uint8)


@_add("quantize_fp8", "half-way cases away from zero")
class _(Quantiser):
    def encoded(self, value, dtype):
        return minifloat.encode(torch.nextafter(value, value * 2), dtype)


@_add("quantize_fp8", "fnuz taken for the type of its name without")
class _(Quantiser):
    def encoded(self, value, dtype):
        return minifloat.encode(value, dtype.removesuffix("uz") if dtype.endswith("e4m3fnuz") else dtype)


@_add("quantize_fp8", "the sign of zeros lost")
class _(Quantiser):
    def encoded(self, value, dtype):
        return minifloat.encode(torch.where(value == 0, 0.0, value), dtype)


@_add("quantize_fp8", "columns beyond 65,536 left out of the maximum")
class _(Quantiser):
    def amax(self, parts):
        return super().amax(parts[..., :65536])


@_add("quantize_fp8_1x128", "groups of 64 under the scale of the first")
class _(Groups):
    def amax(self, parts):
        return super().amax(parts[..., :64])


@_add("quantize_fp8_1x128", "the last group left out where it is partial")
class _(Groups):
    def __call__(self, x, **settings):
        q, scale = super().__call__(x, **settings)
        whole = x.shape[-1] // 128 * 128
        q[..., whole:] = 0.0
        return q, scale


@_add("quantize_fp8_1x128", "the group before's scale")
class _(Groups):
    def returned(self, scale):
        return scale.roll(1, -2)


@_add("quantize_fp8_128x128", "a scale per row of a tile")
class _(Tiles):
    def amax(self, parts):
        return parts.abs().amax(-1, keepdim=True)


@_add("quantize_fp8_128x128", "scales in the order of the columns")
class _(Tiles):
    def returned(self, scale):
        return scale.transpose(-4, -2).reshape(scale.shape)


@_add("quantize_fp8_128x128", "rows beyond the last whole tile left out")
class _(Tiles):
    def amax(self, parts):
        return super().amax(parts[..., :127, :, :])


def _static(name, change):
    """The right codes of arguments that `change` replaces."""

    @mutant("quantize_fp8_static", name)
    def _(x, scale, *, dtype):
        return right("quantize_fp8_static")(*change(x, scale), dtype=dtype)


_static("multiplied by the scale", lambda x, scale: (x, 1 / scale))
_static("Inf made NaN", lambda x, scale: (torch.where(x.isinf(), torch.nan, x), scale))
_static("a subnormal scale taken for 0", lambda x, scale: (x, torch.where(scale < 2.0**-126, 0.0, scale)))
_static("NaN made 0", lambda x, scale: (torch.where(x.isnan(), 0.0, x), scale))


@mutant("quantize_fp8_static", "too large a number made NaN, or Inf")
def not_saturated(x, scale, *, dtype):
    q = right("quantize_fp8_static")(x, scale, dtype=dtype)
    largest = minifloat.largest(dtype)
    over = (x.double() / scale.double()).abs() > largest * 1.07
    return torch.where(over, torch.nan, q.float()).to(q.dtype)


def _amax(name, change):
    """The right scale of what `change` makes of x."""

    @mutant("amax_scale", name)
    def _(x, *, largest, power_of_2, eps):
        return right("amax_scale")(change(x), largest=largest, power_of_2=power_of_2, eps=eps)


_amax(
    "the last row left out",
    lambda x: x.reshape(-1, x.shape[-1])[:-1] if x.dim() > 1 and x.shape[0] > 1 and x.numel() else x,
)
_amax("NaN left out", lambda x: torch.where(x.isnan(), 0.0, x))


source(
    *("quantize_fp8", "cpp", "gfx942", "NaN passed over by the maximum"),
    Edit(HEADER, "return a > b ? a : b;", "return bits_of(math_max_number(float_of(a), float_of(b)));"),
)
source(
    *("quantize_fp8", "cpp", "gfx942", "the warps of a row not merged"),
    Edit(HEADER, "merge_row(merged, partial);", ""),
)
source(
    *("quantize_fp8_1x128", "cpp", "gfx942", "groups of 64"),
    Edit(
        "quantize_fp8/groups.cu",
        "reduce_warp<Greatest, GROUP_LANES>",
        "reduce_warp<Greatest, GROUP_LANES / 2>",
    ),
)
source(
    *("quantize_fp8_128x128", "cpp", "gfx942", "the tile of the lane's warp alone"),
    Edit("quantize_fp8/groups.cu", "of_warp[warp_lane() & (WARPS - 1)]", "of_warp[warp_index()]"),
)
source(
    *("quantize_fp8_static", "cpp", "gfx942", "half-way cases away from zero"),
    Edit(ENCODE, "+ (bits >> DROP & 1)) >> DROP", "+ 1) >> DROP"),
)
source(
    *("amax_scale", "cpp", "gfx942", "each block's last slice alone"),
    Edit("quantize_fp8/tensor.cu", "most = Greatest::of(most, greatest(held));", "most = greatest(held);"),
)
source(
    *("quantize_fp8", "triton", "gfx942", "a power of two rounded up to the next"),
    Edit(TRITON, "+ 0x007FFFFF", "+ 0x00800000"),
)
source(
    *("quantize_fp8_128x128", "triton", "gfx942", "rows below the matrix read with it"),
    Edit(TRITON, "(top < height)[:, None] &", "(top < height + 1)[:, None] &"),
)
source(
    *("quantize_fp8_static", "triton", "gfx942", "subnormal numbers of the type flushed"),
    Edit(TRITON_ENCODE, "tl.where(bits < SMALLEST_NORMAL, below,", "tl.where(bits < SMALLEST_NORMAL, 0,"),
)


def _columns(name, change):
    """The rows' quantiser of the transpose, with its answers changed."""

    @mutant("quantize_fp8_columns", name)
    def _(x, **params):
        return change(x, *right("quantize_fp8_columns")(x, **params), params)


def _of_rows(x, q, scale, params):
    rows, scales = right("quantize_fp8")(x, **params)
    square = x.shape[-1] == x.shape[-2]
    return (rows.mT.contiguous(), scales.contiguous()) if square else (q, scale)


def _last_slab(x, q, scale, params):
    return q, right("quantize_fp8_columns")(x[..., -128:, :], **params)[1]


_columns("a scale per row, of square matrices", _of_rows)
_columns("the scale of the last 128 rows alone", _last_slab)
_columns(
    "q not transposed, of square matrices",
    lambda x, q, scale, params: (q.mT.contiguous() if q.shape[-1] == q.shape[-2] else q, scale),
)
_columns(
    "the scales of the first matrix for all",
    lambda x, q, scale, params: (q, scale[:1].expand(scale.shape).contiguous() if x.dim() > 2 else scale),
)
COLUMNS = "quantize_fp8/columns.cu"
source(
    *("quantize_fp8_columns", "cpp", "gfx942", "the first slab's maximum left out"),
    Edit(COLUMNS, "for (int i = 0; i < down; ++i) {", "for (int i = down > 1; i < down; ++i) {"),
)
source(
    *("quantize_fp8_columns", "cpp", "gfx942", "pieces of codes read in their own order"),
    Edit(COLUMNS, "found[column][piece_place(column, at % PIECES)]", "found[column][at % PIECES]"),
)
source(
    *("quantize_fp8_columns", "cpp", "gfx942", "one buffer for two tiles"),
    Edit(COLUMNS, "codes[tile & 1]", "codes[0]"),
)
source(
    *("quantize_fp8_columns", "triton", "gfx942", "the first matrix read for all"),
    Edit(TRITON, "row_starts(x_ptr, matrix * height + row,", "row_starts(x_ptr, row,"),
)

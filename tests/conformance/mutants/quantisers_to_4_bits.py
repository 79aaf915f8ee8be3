"""Wrong quantisers to 4 bits, with one step replaced."""

from __future__ import annotations

import torch

from . import integers
from .registry import Edit, adder, mutant, source
from .tools import right

TRITON = "quantize_int4/triton_impl.py"
PAIRS = "quantize_int4/pairs.h"
of_rows = adder("quantize_int4")


class Symmetric(integers.Symmetric):
    """The right one, step by step."""

    def scale(self, size):
        return (size / 7.5).float()

    def codes(self, integers):
        return (integers + 8).clamp(0, 15)

    def packed(self, codes):
        return codes[..., ::2] | codes[..., 1::2] << 4

    def __call__(self, x, *, eps):
        x = x.double()
        scale = self.scale(self.clamped(self.amax(x), eps))
        even = torch.nn.functional.pad(x, (0, x.shape[-1] % 2))
        return self.packed(self.codes(self.integers(even, scale)).to(torch.uint8)), scale


@of_rows("by 7, with codes from 1")
class _(Symmetric):
    def scale(self, size):
        return (size / 7).float()


@of_rows("by 8")
class _(Symmetric):
    def scale(self, size):
        return (size / 8).float()


@of_rows("nibbles swapped")
class _(Symmetric):
    def packed(self, codes):
        return codes[..., 1::2] | codes[..., ::2] << 4


@of_rows("halves of a row in place of neighbours")
class _(Symmetric):
    def packed(self, codes):
        half = codes.shape[-1] // 2
        return codes[..., :half] | codes[..., half:] << 4


@of_rows("signed codes")
class _(Symmetric):
    def codes(self, integers):
        return integers.clamp(-8, 7).to(torch.int64) & 15


@of_rows("code 0 left out")
class _(Symmetric):
    def codes(self, integers):
        return (integers + 8).clamp(1, 15)


@of_rows("half-way cases away from zero")
class _(Symmetric):
    def rounded(self, value):
        return (value.abs() + 0.5).floor().copysign(value)


@of_rows("x divided by the scale")
class _(Symmetric):
    def scaled(self, x, scale):
        return (x / scale.double()).float().double()


@of_rows("the last column left out of the maximum")
class _(Symmetric):
    def amax(self, x):
        return super().amax(x[..., :-1] if x.shape[-1] > 1 else x)


@of_rows("NaN left out of the maximum")
class _(Symmetric):
    def amax(self, x):
        return super().amax(torch.where(x.isnan(), 0.0, x))


@of_rows("eps added instead")
class _(Symmetric):
    def clamped(self, size, eps):
        return size + torch.tensor(eps).item()


def _asymmetric(name, change):
    """The right answers, changed; `change` gets x, eps, q, scale and zero point."""

    @mutant("quantize_int4_asymmetric", name)
    def _(x, *, eps):
        return change(x, eps, *right("quantize_int4_asymmetric")(x, eps=eps))


def _from_the_range(x, eps, q, scale, zero):
    """Without 0 in the range, of rows that are all on one side of it."""
    least = x.double().amin(-1, keepdim=True) if x.shape[-1] else x.double()
    return right("quantize_int4_asymmetric")((x.double() - least.clamp(min=0)).to(x.dtype), eps=eps)


_asymmetric("zero points off by one", lambda x, eps, q, scale, zero: (q, scale, (zero + 1).clamp(max=15)))
_asymmetric("zero points of 8", lambda x, eps, q, scale, zero: (q, scale, torch.full_like(zero, 8)))
_asymmetric("nibbles swapped", lambda x, eps, q, scale, zero: (q >> 4 | q << 4, scale, zero))
_asymmetric("0 not in the range", _from_the_range)
_asymmetric(
    "the zero point from 15",
    lambda x, eps, q, scale, zero: (q, scale, torch.where(scale.isfinite(), 15 - zero, zero).byte()),
)
source(
    *("quantize_int4", "triton", "gfx942", "nibbles swapped"),
    Edit(TRITON, "low | (high << 4)", "high | (low << 4)"),
)
source(
    *("quantize_int4_asymmetric", "triton", "gfx942", "a zero point of 8 added"),
    Edit(TRITON, "(15 - zero).to(tl.float32)) + zero", "(15 - zero).to(tl.float32)) + ZERO"),
)
source(
    *("quantize_int4_asymmetric", "triton", "gfx942", "the range not halved"),
    Edit(
        "quantize_int8/triton_impl.py",
        "half = above.to(tl.float32, bitcast=True) * 0.5 + below * 0.5",
        "half = (above.to(tl.float32, bitcast=True) + below) * 0.5",
    ),
)
source(
    *("quantize_int4", "cpp", "gfx942", "nibbles swapped"),
    Edit(PAIRS, "codes.rounded(held[i])", "codes.rounded(held[i ^ 1])"),
    Edit(PAIRS, "codes.rounded(held[COUNT - 1])", "codes.rounded(held[COUNT - 2])"),
)
source(
    *("quantize_int4", "cpp", "gfx942", "a half step beyond the largest code wraps"),
    Edit(PAIRS, "math_min_number(scaled, most)", "scaled"),
)
source(
    *("quantize_int4", "cpp", "gfx942", "codes of rows with Inf from NaN"),
    Edit(PAIRS, "if (scale <= 0x1.fffffep+127f) {", "{"),
)
source(
    *("quantize_int4", "cpp", "gfx942", "0 beside the last code of an odd row"),
    Edit(PAIRS, "static_cast<Code>(word >> 4 * i)", "(word >> 4 * i) & (column + i + 1 < length ? 255 : 15)"),
)
source(
    *("quantize_int4", "cpp", "gfx942", "the last pair of a row not stored"),
    Edit(PAIRS, "if (column + i < length)", "if (column + i + 2 < length)"),
)
source(
    *("quantize_int4_asymmetric", "cpp", "gfx942", "a zero point of 8 added"),
    Edit(PAIRS, "zero * at_each_place<COUNT>(1)", "8u * at_each_place<COUNT>(1)"),
)
source(
    *("quantize_int4_asymmetric", "cpp", "gfx942", "ends that round apart wrap"),
    Edit(PAIRS, "if (ASYMMETRIC) scaled = math_max_number(scaled, least);", ""),
    Edit(PAIRS, "math_min_number(scaled, most)", "scaled"),
)
source(
    *("quantize_int4_asymmetric", "cpp", "gfx942", "zero points of int8"),
    Edit("quantize_int8/codes.h", "2.0f * HALF_SPAN) + LEAST", "2.0f * HALF_SPAN) - 128"),
)

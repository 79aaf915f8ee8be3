"""Wrong quantisers to int8, with one step replaced."""

from __future__ import annotations

import torch

from .registry import Edit, adder, mutant, source
from .tools import right

CODES = "quantize_int8/codes.h"
TRITON = "quantize_int8/triton_impl.py"
of_rows = adder("quantize_int8")
with_zero = adder("quantize_int8_asymmetric")


class Symmetric:
    """The right one, step by step."""

    least = -127

    def amax(self, x):
        return torch.nn.functional.pad(x.abs(), (0, 1)).amax(-1, keepdim=True)

    def clamped(self, size, eps):
        return size.clamp(min=torch.tensor(eps).item())

    def scale(self, size):
        return (size / 127).float()

    def returned(self, scale):
        return scale

    def scaled(self, x, scale):
        return (x * (1 / scale.double()).float().double()).float().double()

    def rounded(self, value):
        return value.round()

    def of_nan(self, integers):
        return torch.where(integers.isnan(), 0.0, integers)

    def integers(self, x, scale):
        return self.of_nan(self.rounded(self.scaled(x, scale)))

    def saturated(self, integers):
        return integers.clamp(self.least, 127)

    def __call__(self, x, *, eps):
        x = x.double()
        scale = self.scale(self.clamped(self.amax(x), eps))
        return self.saturated(self.integers(x, scale)).to(torch.int8), self.returned(scale)


@of_rows("scale off by two")
class _(Symmetric):
    def returned(self, scale):
        return scale * 2


@of_rows("the scale that x was multiplied by given back")
class _(Symmetric):
    def returned(self, scale):
        return (1 / scale.double()).float()


@of_rows("by 128, with -128 among the codes")
class _(Symmetric):
    least = -128

    def scale(self, size):
        return (size / 128).float()


@of_rows("by a half of 255, of rounded codes 128")
class _(Symmetric):
    def scale(self, size):
        return (size / 127.5).float()


@of_rows("scale by the reciprocal of 127")
class _(Symmetric):
    def scale(self, size):
        return (size * torch.tensor(1 / 127).double()).float()


@of_rows("half-way cases away from zero")
class _(Symmetric):
    def rounded(self, value):
        return (value.abs() + 0.5).floor().copysign(value)


@of_rows("half-way cases up")
class _(Symmetric):
    def rounded(self, value):
        return (value + 0.5).floor()


@of_rows("cut instead of rounded")
class _(Symmetric):
    def rounded(self, value):
        return value.trunc()


@of_rows("x divided by the scale")
class _(Symmetric):
    def scaled(self, x, scale):
        return (x / scale.double()).float().double()


@of_rows("without eps")
class _(Symmetric):
    def clamped(self, size, eps):
        return size


@of_rows("scale 1 for a row of zeros")
class _(Symmetric):
    def clamped(self, size, eps):
        return torch.where(size == 0, 127.0, super().clamped(size, eps))


@of_rows("NaN passed over by the maximum")
class _(Symmetric):
    def amax(self, x):
        return super().amax(x.nan_to_num(nan=0.0, posinf=torch.inf, neginf=-torch.inf))


@of_rows("NaN made -127, as by a minimum and a maximum")
class _(Symmetric):
    def of_nan(self, integers):
        return torch.where(integers.isnan(), -127.0, integers)


@of_rows("greatest element, not the greatest magnitude")
class _(Symmetric):
    def amax(self, x):
        return torch.nn.functional.pad(x, (0, 1)).amax(-1, keepdim=True).abs()


@of_rows("the last column left out of the maximum")
class _(Symmetric):
    def amax(self, x):
        return super().amax(x[..., :-1])


class Asymmetric(Symmetric):
    """The right one with a zero point, step by step."""

    least = -128

    def ends(self, x):
        with_zero = torch.nn.functional.pad(x, (0, 1))
        return with_zero.amin(-1, keepdim=True), with_zero.amax(-1, keepdim=True)

    def size(self, most, least):
        return ((most - least) / 2).float().double() * 2

    def scale(self, size):
        return (size / 255).float()

    def zero(self, least, scale):
        return -128 - self.integers(least, scale)

    def q(self, x, scale, zero):
        return self.integers(x, scale) + zero

    def __call__(self, x, *, eps):
        x = x.double()
        least, most = self.ends(x)
        scale = self.scale(self.clamped(self.size(most, least), eps))
        zero = self.zero(least, scale)
        q = self.saturated(self.q(x, scale, zero))
        return q.to(torch.int8), self.returned(scale), zero.to(torch.int32)


@with_zero("zero point + 1")
class _(Asymmetric):
    def zero(self, least, scale):
        return super().zero(least, scale) + 1


@with_zero("zero point of the other sign")
class _(Asymmetric):
    def __call__(self, x, *, eps):
        q, scale, zero = super().__call__(x, eps=eps)
        return q, scale, -zero


@with_zero("zero point as of codes without signs")
class _(Asymmetric):
    def __call__(self, x, *, eps):
        q, scale, zero = super().__call__(x, eps=eps)
        return q, scale, zero + 128


@with_zero("the smallest x where it is above 0, as vLLM has it")
class _(Asymmetric):
    def ends(self, x):
        return (x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)) if x.shape[-1] else super().ends(x)


@with_zero("the zero point added before the rounding")
class _(Asymmetric):
    def q(self, x, scale, zero):
        return self.of_nan((self.scaled(x, scale) + zero).round())


@with_zero("the zero point added after saturation, in 8 bits")
class _(Asymmetric):
    def q(self, x, scale, zero):
        return (self.integers(x, scale).clamp(-128, 127) + zero + 128) % 256 - 128


@with_zero("the least code rounded half away from zero")
class _(Asymmetric):
    def zero(self, least, scale):
        return -128 + (-self.of_nan(self.scaled(least, scale)) + 0.5).floor()


@with_zero("scale by 256")
class _(Asymmetric):
    def scale(self, size):
        return (size / 256).float()


@with_zero("the difference overflows")
class _(Asymmetric):
    def size(self, most, least):
        return (most - least).float().double()


@with_zero("NaN passed over by both ends")
class _(Asymmetric):
    def ends(self, x):
        return super().ends(x.nan_to_num(nan=0.0, posinf=torch.inf, neginf=-torch.inf))


@with_zero("eps of the symmetric scale")
class _(Asymmetric):
    def clamped(self, size, eps):
        return super().clamped(size, eps * 2)


def _static(name, change):
    """The right codes of arguments that `change` replaces."""

    @mutant("quantize_int8_static", name)
    def _(x, scale, zero_point):
        return right("quantize_int8_static")(*change(x, scale, zero_point))


_static("multiplied by the scale", lambda x, scale, zero: (x, 1 / scale, zero))
_static("the zero point left out", lambda x, scale, zero: (x, scale, None))
_static("the zero point subtracted", lambda x, scale, zero: (x, scale, None if zero is None else -zero))
_static("a zero point beyond int8 taken modulo 256",
        lambda x, scale, zero: (x, scale, None if zero is None else zero.to(torch.int8).int()))  # fmt: skip
_static(
    "-128 without a zero point too",
    lambda x, scale, zero: (x, scale, torch.tensor([0], dtype=torch.int32) if zero is None else zero),
)
_static("NaN made the lower end", lambda x, scale, zero: (torch.where(x.isnan(), -torch.inf, x), scale, zero))
_static("a subnormal scale taken for 0",
        lambda x, scale, zero: (x, torch.where(scale < 2.0**-126, 0.0, scale), zero))  # fmt: skip


@mutant("quantize_int8_static", "what is too large wraps")
def wraps(x, scale, zero_point):
    inverse = (1 / scale.double()).float()
    value = (x.double() * inverse.double()).float().double()
    value = torch.where(value.isnan(), 0.0, value).round() + (0 if zero_point is None else zero_point)
    return value.clamp(-(2.0**31), 2.0**31 - 1).to(torch.int64).to(torch.int8)


source(
    *("quantize_int8", "cpp", "gfx942", "NaN left to the minimum and the maximum"),
    Edit(CODES, "value = value == value ? value : 0.0f;", ""),
)
source(
    *("quantize_int8", "cpp", "gfx942", "rounded half up"),
    Edit(CODES, "bits_of(scaled + MAGIC)", "bits_of(__builtin_floorf(scaled + 0.5f) + MAGIC)"),
)
source(
    *("quantize_int8", "cpp", "gfx942", "a product and its rounding in one"),
    Edit(CODES, "bits_of(scaled + MAGIC)", "bits_of(__builtin_fmaf(value, inverse, MAGIC))"),
)
source(
    *("quantize_int8_asymmetric", "cpp", "gfx942", "ends that round apart wrap"),
    Edit(CODES, "if (ASYMMETRIC) scaled = math_min_number(math_max_number(scaled, least), most);", ""),
)
source(
    *("quantize_int8_static", "cpp", "gfx942", "a given scale taken for the row's own"),
    Edit("quantize_int8/rows.cu", "codes(*scale, zero, false)", "codes(*scale, zero, true)"),
)
source(
    *("quantize_int8", "cpp", "gfx942", "bytes of a word in another order"),
    Edit(CODES, "__builtin_amdgcn_perm(b, a, 0x0c0c0400u)", "__builtin_amdgcn_perm(a, b, 0x0c0c0400u)"),
)
source(
    *("quantize_int8_asymmetric", "cpp", "gfx942", "NaN of a negative sign passed over"),
    Edit(
        CODES, "below = amax_of<T>(extent.below);", "below = math_max_number(amax_of<T>(extent.below), 0.0f);"
    ),
)
source(
    *("quantize_int8_asymmetric", "cpp", "gfx942", "the warps' smallest x not merged"),
    Edit(CODES, "below = bits_of(merged.value[1]);", ""),
)
source(
    *("quantize_int8_static", "cpp", "gfx942", "a zero point beyond int8 taken as it is"),
    Edit("quantize_int8/rows.cu", "given < -128 ? -128 : given > 127 ? 127 : given", "given"),
)
source(
    *("quantize_int8", "triton", "gfx942", "-128 among the codes"),
    Edit(TRITON, "scale_of(most, eps, 127.0, False)", "scale_of(most, eps, 128.0, False)"),
    Edit(TRITON, "nearest(value, -127.0, 127.0)", "nearest(value, -128.0, 127.0)"),
)
source(
    *("quantize_int8_asymmetric", "triton", "gfx942", "zero points of long rows not stored"),
    Edit(TRITON, "tl.store(zero_ptr + row, zero)\n", "tl.store(zero_ptr + row, 0)\n"),
)
source(
    *("quantize_int8_static", "triton", "gfx942", "the zero point added before the rounding"),
    Edit(TRITON, "nearest(value, (-128 - zero)", "nearest(value + zero, (-128 - zero)"),
    Edit(TRITON, ".to(tl.float32)) + zero", ".to(tl.float32))"),
)

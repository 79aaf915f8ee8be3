"""Wrong quantisers to numbers of 4 bits, two in a byte."""

from __future__ import annotations

import torch

from portable.kernels._lib import minifloat
from portable.kernels.quantize_mx.reference import FP4

from .microscales import Quantiser
from .registry import Edit, adder, source

mx = adder("quantize_mxfp4")
MINIFLOAT, QUANTISERS = "_lib/minifloat.h", "quantize_fp8/quantize.h"
TRITON = "quantize_fp8/triton_impl.py"


class Packed(Quantiser):
    """The right one of MXFP4, step by step."""

    def packed(self, codes):
        return minifloat.pack(codes)

    def __call__(self, x, *, rounding):
        codes, byte = self.found(x, FP4, rounding)
        q = self.packed(codes)[..., : -(-x.shape[-1] // 2)].contiguous()
        return q, byte.view(torch.float8_e8m0fnu)


@mx("nibbles swapped")
class _(Packed):
    def packed(self, codes):
        return codes[..., 1::2] | codes[..., 0::2] << 4


@mx("the first half of a group in the lower halves, the second in the upper ones")
class _(Packed):
    def packed(self, codes):
        first, second = codes.unflatten(-1, (-1, 2, 16)).unbind(-2)
        return (first | second << 4).flatten(-2)


@mx("scale off by two")
class _(Packed):
    def byte(self, exponent):
        return exponent + 128


@mx("an exponent too large by one, in the numbers too")
class _(Packed):
    def exponent(self, amax, rounding, dtype):
        return super().exponent(amax, rounding, dtype) + 1


@mx("even, rounded to the precision of float8_e5m2")
class _(Packed):
    def exponent(self, amax, rounding, dtype):
        if rounding != "even":
            return super().exponent(amax, rounding, dtype)
        return super().exponent(amax, rounding, "float8_e5m2") + 13


@mx("rceil taken for floor")
class _(Packed):
    def exponent(self, amax, rounding, dtype):
        return super().exponent(amax, "floor" if rounding == "rceil" else rounding, dtype)


class Rounded(Packed):
    """Codes of magnitudes by `nearest` and the midpoints of e2m1's numbers."""

    def nearest(self, size, middle):
        raise NotImplementedError

    def encoded(self, value, dtype):
        numbers = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], dtype=torch.float64)
        middle = (numbers[1:] + numbers[:-1]) / 2
        code = self.nearest(value.abs(), middle)
        return torch.where(value.isnan(), 0, code | value.signbit().long() << 3).to(torch.uint8)


@mx("ties towards zero")
class _(Rounded):
    def nearest(self, size, middle):
        return torch.bucketize(size, middle)


@mx("ties away from zero")
class _(Rounded):
    def nearest(self, size, middle):
        return torch.bucketize(size, middle, right=True)


@mx("what is subnormal, 0.5, taken for 0")
class _(Packed):
    def encoded(self, value, dtype):
        code = super().encoded(value, dtype)
        return torch.where(code % 8 == 1, code - 1, code)


@mx("no saturation: 8 becomes the code after the largest, the sign")
class _(Packed):
    def encoded(self, value, dtype):
        code = super().encoded(value, dtype)
        return torch.where(value.abs() >= 7, code ^ 15, code)


@mx("NaN becomes the largest number")
class _(Packed):
    def encoded(self, value, dtype):
        return torch.where(value.isnan(), 7, super().encoded(value, dtype))


@mx("NaN passed over by the maximum")
class _(Packed):
    def amax(self, parts):
        return super().amax(parts.nan_to_num(nan=0.0, posinf=torch.inf, neginf=-torch.inf))


@mx("the sign of zeros lost")
class _(Packed):
    def encoded(self, value, dtype):
        return super().encoded(torch.where(value == 0, 0.0, value), dtype)


@mx("groups of 16 under the scale of the first")
class _(Packed):
    def amax(self, parts):
        return super().amax(parts[..., :16])


@mx("the last group left out where it is partial")
class _(Packed):
    def __call__(self, x, **settings):
        q, scale = super().__call__(x, **settings)
        q[..., x.shape[-1] // 32 * 16 :] = 0
        return q, scale


@mx("scales along the columns of a square matrix")
class _(Packed):
    def __call__(self, x, **settings):
        if x.dim() < 2 or x.shape[-1] != x.shape[-2]:
            return super().__call__(x, **settings)
        q, _ = super().__call__(x, **settings)
        return q, super().__call__(x.mT.contiguous(), **settings)[1]


source(
    *("quantize_mxfp4", "cpp", "gfx942", "the even column in the upper half"),
    Edit(QUANTISERS, "<< (4 * i)", "<< (4 * (i ^ 1))"),
)
source(
    *("quantize_mxfp4", "cpp", "gfx942", "NaN saturates"),
    Edit(
        MINIFLOAT,
        "Format::NAN_CODE >= 0 ? Format::NAN_CODE : 0",
        "Format::NAN_CODE >= 0 ? Format::NAN_CODE : 7",
    ),
)
source(
    *("quantize_mxfp4", "cpp", "gfx942", "an odd row's last byte left out"),
    Edit(
        QUANTISERS, "if (column + i < length) address[i / 2]", "if (column + i + 1 < length) address[i / 2]"
    ),
)
source(
    *("quantize_mxfp4", "triton", "gfx942", "the even column in the upper half"),
    Edit(TRITON, "low | (high << 4)", "high | (low << 4)"),
)
source(
    *("quantize_mxfp4", "triton", "gfx942", "an odd row's last byte left out"),
    Edit(TRITON, "first + 2 * pair <", "first + 2 * pair + 1 <"),
)

"""Wrong quantisers to numbers of 4 bits, two in a byte."""

from __future__ import annotations

import torch

from portable.kernels._lib import minifloat
from portable.kernels.quantize_mx.reference import FP4

from .microscales import Quantiser
from .registry import Edit, adder, source

mx = adder("quantize_mxfp4")
MINIFLOAT, QUANTISERS = "_lib/minifloat.h", "quantize_fp8/quantize.h"
TRITON, WORDS = "quantize_fp8/triton_impl.py", "quantize_mx/words_triton.py"


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
source(
    *("quantize_mxfp4", "triton", "gfx942", "words: the even column in the upper half"),
    Edit(WORDS, "even + (odd << 4)", "odd + (even << 4)"),
)
source(
    *("quantize_mxfp4", "triton", "gfx942", "words: no saturation"),
    Edit(WORDS, "tl.minimum(tl.abs(value), 6.0)", "tl.abs(value)"),
)
source(
    *("quantize_mxfp4", "triton", "gfx942", "words: NaN saturates"),
    Edit("quantize_mx/triton_impl.py", "tl.where(code == 255, 0, -1)", "tl.where(code == 255, -1, -1)"),
)
source(
    *("quantize_mxfp4", "triton", "gfx942", "words: the signs of the second pair left out"),
    Edit(WORDS, "(high & -0x7FFF8000)", "(high & 0)"),
)


nv = adder("quantize_nvfp4")
NV_SCALE, NV_TRITON = "quantize_nvfp4/scale.h", "quantize_nvfp4/triton_impl.py"


class TwoLevels:
    """The right one of NVFP4, step by step."""

    size = 16

    def amax(self, parts):
        return parts.abs().amax(-1, keepdim=True)

    def scale(self, amax, whole):
        return _float32(_float32(amax / 6) / whole)

    def stored(self, scale):
        return minifloat.encode(scale.clamp(2.0**-6, 448.0), "float8_e4m3fn")

    def inverse(self, scale, whole):
        return _float32(_float32(1 / whole) / scale)

    def encoded(self, value):
        return minifloat.encode(value, FP4)

    def packed(self, codes):
        return minifloat.pack(codes)

    def __call__(self, x, global_scale):
        k, whole = x.shape[-1], global_scale.double()
        padded = torch.nn.functional.pad(x.double(), (0, -k % 16))
        parts = padded.reshape(*x.shape[:-1], -(-k // 16), 16)
        amax = self.amax(parts) if k else parts.new_zeros(*parts.shape[:-1], 1)
        byte = self.stored(self.scale(amax, whole))
        value = _float32(parts * self.inverse(minifloat.decode(byte, "float8_e4m3fn"), whole))
        codes = self.packed(self.encoded(value).reshape(padded.shape))[..., : -(-k // 2)].contiguous()
        return codes, byte[..., 0].contiguous().view(torch.float8_e4m3fn)


def _float32(value):
    return value.float().double()


@nv("nibbles swapped")
class _(TwoLevels):
    def packed(self, codes):
        return codes[..., 1::2] | codes[..., 0::2] << 4


@nv("scale off by two")
class _(TwoLevels):
    def scale(self, amax, whole):
        return super().scale(amax, whole) * 2


@nv("global scale forgotten in the numbers")
class _(TwoLevels):
    def inverse(self, scale, whole):
        return _float32(1 / scale)


@nv("global scale forgotten in the scales")
class _(TwoLevels):
    def scale(self, amax, whole):
        return _float32(amax / 6)


@nv("the reciprocal of the global scale")
class _(TwoLevels):
    def __call__(self, x, global_scale):
        return super().__call__(x, 1 / global_scale)


@nv("numbers by the scale before it is rounded")
class _(TwoLevels):
    def stored(self, scale):
        self.exact = scale.clamp(2.0**-6, 448.0)
        return super().stored(scale)

    def inverse(self, scale, whole):
        return _float32(_float32(1 / whole) / torch.where(scale.isnan(), torch.nan, self.exact))


@nv("subnormal scales stay")
class _(TwoLevels):
    def stored(self, scale):
        return minifloat.encode(scale, "float8_e4m3fn")


@nv("too large a scale is NaN")
class _(TwoLevels):
    def stored(self, scale):
        return torch.where(scale > 464, 0x7F, super().stored(scale))


@nv("scales rounded down")
class _(TwoLevels):
    def stored(self, scale):
        byte = super().stored(scale)
        above = minifloat.decode(byte, "float8_e4m3fn") > scale.clamp(2.0**-6, 448.0)
        return torch.where(above, byte - 1, byte)


@nv("one product of both scales, divided by")
class _(TwoLevels):
    def inverse(self, scale, whole):
        return _float32(1 / _float32(scale * whole))


@nv("ties away from zero")
class _(TwoLevels):
    def encoded(self, value):
        return minifloat.encode(torch.nextafter(value, value.sign() * torch.inf), FP4)


@nv("what is subnormal, 0.5, taken for 0")
class _(TwoLevels):
    def encoded(self, value):
        code = super().encoded(value)
        return torch.where(code % 8 == 1, code - 1, code)


@nv("no saturation: 8 becomes the code after the largest, the sign")
class _(TwoLevels):
    def encoded(self, value):
        return torch.where(value.abs() >= 7, super().encoded(value) ^ 15, super().encoded(value))


@nv("NaN becomes the largest number")
class _(TwoLevels):
    def encoded(self, value):
        return torch.where(value.isnan(), 7, super().encoded(value))


@nv("NaN passed over by the maximum")
class _(TwoLevels):
    def amax(self, parts):
        return super().amax(parts.nan_to_num(nan=0.0, posinf=torch.inf, neginf=-torch.inf))


@nv("groups of 32")
class _(TwoLevels):
    def amax(self, parts):
        own = super().amax(parts)
        pairs = torch.nn.functional.pad(own, (0, 0, 0, own.shape[-2] % 2)).unflatten(-2, (-1, 2))
        return pairs.amax(-2, keepdim=True).expand(pairs.shape).flatten(-3, -2)[..., : own.shape[-2], :]


@nv("the last group left out where it is partial")
class _(TwoLevels):
    def __call__(self, x, global_scale):
        q, scale = super().__call__(x, global_scale)
        q[..., x.shape[-1] // 16 * 8 :] = 0
        return q, scale


@nv("scales along the columns of a square matrix")
class _(TwoLevels):
    def __call__(self, x, global_scale):
        q, scale = super().__call__(x, global_scale)
        if x.dim() < 2 or x.shape[-1] != x.shape[-2]:
            return q, scale
        return q, super().__call__(x.mT.contiguous(), global_scale)[1]


source(
    *("quantize_nvfp4", "cpp", "gfx942", "the least scale a subnormal one"),
    Edit(NV_SCALE, "1 << (Stores::BIAS - 1)", "1 << (Stores::BIAS + 2)"),
)
source(
    *("quantize_nvfp4", "cpp", "gfx942", "numbers by the product of both scales"),
    Edit(
        NV_SCALE,
        "div_rn(div_rn(1.0f, global), $own)",
        "div_rn(1.0f, global * $own)",
    ),
)
source(
    *("quantize_nvfp4", "cpp", "gfx942", "the scale of the other lane's group"),
    Edit("quantize_fp8/groups.cu", "store(c, mine ? of_other : inverse)", "store(c, inverse)"),
)
source(
    *("quantize_nvfp4", "cpp", "gfx942", "a group's largest of one of its two lanes"),
    Edit("quantize_fp8/groups.cu", "Greatest::apply(mine ? odd : even, other)", "mine ? odd : even"),
)
source(
    *("quantize_nvfp4", "cpp", "gfx942", "NaN taken for the least scale"),
    Edit(NV_SCALE, "scale < LEAST ? LEAST : scale", "scale > LEAST ? scale : LEAST"),
)
source(
    *("quantize_nvfp4", "triton", "gfx942", "NaN taken for the least scale"),
    Edit(NV_TRITON, "tl.where(scale < LEAST, LEAST, scale)", "tl.where(scale > LEAST, scale, LEAST)"),
)
source(
    *("quantize_nvfp4", "triton", "gfx942", "amax by 6 through its reciprocal"),
    Edit(
        NV_TRITON,
        "tl.div_rn(most.to(tl.float32, bitcast=True), 6.0)",
        "(most.to(tl.float32, bitcast=True) * (1.0 / 6.0))",
    ),
)
source(
    *("quantize_nvfp4", "triton", "gfx942", "words: amax by 6 not corrected"),
    Edit(NV_TRITON, "corrected(amax, 6.0, 1.0 / 6.0, amax * (1.0 / 6.0))", "amax * (1.0 / 6.0)"),
)
source(
    *("quantize_nvfp4", "triton", "gfx942", "words: the inverse of a scale not corrected"),
    Edit(
        NV_TRITON,
        "corrected(of_whole, scale, of_scale, of_whole * of_scale)",
        "of_whole * of_scale * 1.0000001",
    ),
)
source(
    *("quantize_nvfp4", "triton", "gfx942", "words: any global scale taken for a usual one"),
    Edit(NV_TRITON, "(whole > 2.0**-60) & (whole < 2.0**60)", "whole == whole"),
)
source(
    *("quantize_nvfp4", "triton", "gfx942", "words: what is too large not brought to the end"),
    Edit(NV_TRITON, "tl.where(amax > end, end, amax)", "amax"),
)
source(
    *("quantize_nvfp4", "cpp", "gfx942", "amax by 6 not corrected"),
    Edit(NV_SCALE, "corrected(size, MOST, OF_MOST, size * OF_MOST)", "size * OF_MOST"),
)
source(
    *("quantize_nvfp4", "cpp", "gfx942", "the inverse of a scale not corrected"),
    Edit(NV_SCALE, "corrected(of_global, own, of_own, of_global * of_own)", "of_global * of_own"),
)
source(
    *("quantize_nvfp4", "cpp", "gfx942", "any global scale taken for a usual one"),
    Edit(NV_SCALE, "*given > 0x1p-60f && *given < 0x1p60f", "*given == *given"),
)

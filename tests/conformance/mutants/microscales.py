"""Wrong quantisers of MX, a power of two per 32 neighbours, and wrong products of theirs."""

from __future__ import annotations

import torch

from portable.kernels._lib import minifloat
from portable.kernels.quantize_mx import reference

from .registry import Edit, adder, mutant, source
from .tools import right

SCALE = "quantize_mx/scale.h"
TRITON = "quantize_mx/triton_impl.py"
named = adder("quantize_mx")


class Quantiser:
    """The right one, step by step."""

    def amax(self, parts):
        return parts.abs().amax(-1, keepdim=True)

    def exponent(self, amax, rounding, dtype):
        return reference.exponents(amax, rounding, dtype)

    def byte(self, exponent):
        return exponent + 127

    def encoded(self, value, dtype):
        return minifloat.encode(value, dtype)

    def found(self, x, dtype, rounding):
        """Codes of whole groups, and the bytes of the scales."""
        k = x.shape[-1]
        whole = torch.nn.functional.pad(x.double(), (0, -k % 32))
        parts = whole.reshape(*x.shape[:-1], -(-k // 32), 32)
        amax = self.amax(parts) if k else parts.new_zeros(*parts.shape[:-1], 1)
        exponent = self.exponent(amax, rounding, dtype)
        finite = amax.isfinite()
        value = torch.where(finite, parts * torch.exp2(-exponent.double()), torch.nan)
        codes = self.encoded(value, dtype).reshape(whole.shape)
        return codes, torch.where(finite, self.byte(exponent), 255).to(torch.uint8)[..., 0].contiguous()

    def __call__(self, x, *, dtype, rounding):
        codes, byte = self.found(x, dtype, rounding)
        q = codes[..., : x.shape[-1]].contiguous()
        return q.view(getattr(torch, dtype)), byte.view(torch.float8_e8m0fnu)


@named("scale off by two")
class _(Quantiser):
    def byte(self, exponent):
        return exponent + 128


@named("an exponent too large by one, in the numbers too")
class _(Quantiser):
    def exponent(self, amax, rounding, dtype):
        return super().exponent(amax, rounding, dtype) + 1


@named("always rounded down")
class _(Quantiser):
    def exponent(self, amax, rounding, dtype):
        return super().exponent(amax, "floor", dtype)


@named("ceil, of a power of two the next")
class _(Quantiser):
    def exponent(self, amax, rounding, dtype):
        found = super().exponent(amax, "floor" if rounding == "ceil" else rounding, dtype)
        return found + 1 if rounding == "ceil" else found


@named("rceil taken for ceil")
class _(Quantiser):
    def exponent(self, amax, rounding, dtype):
        return super().exponent(amax, "ceil" if rounding == "rceil" else rounding, dtype)


@named("the exponent of float8_e4m3fn's largest number for every type")
class _(Quantiser):
    def exponent(self, amax, rounding, dtype):
        return super().exponent(amax, rounding, "float8_e4m3fn")


@named("exponents below -127 wrap")
class _(Quantiser):
    def byte(self, exponent):
        return torch.where(exponent == -127, 254, exponent + 127)


@named("groups of 16 under the scale of the first")
class _(Quantiser):
    def amax(self, parts):
        return super().amax(parts[..., :16])


@named("greatest element, not the greatest magnitude")
class _(Quantiser):
    def amax(self, parts):
        return parts.amax(-1, keepdim=True).abs()


@named("NaN passed over by the maximum")
class _(Quantiser):
    def amax(self, parts):
        return super().amax(parts.nan_to_num(nan=0.0, posinf=torch.inf, neginf=-torch.inf))


@named("Inf taken for the largest number of float32")
class _(Quantiser):
    def amax(self, parts):
        return super().amax(parts).clamp(max=torch.finfo(torch.float32).max)


@named("the last group left out where it is partial")
class _(Quantiser):
    def __call__(self, x, **settings):
        q, scale = super().__call__(x, **settings)
        q[..., x.shape[-1] // 32 * 32 :] = 0.0
        return q, scale


@named("too large a number made NaN")
class _(Quantiser):
    def encoded(self, value, dtype):
        code = super().encoded(value, dtype)
        over = value.abs() >= minifloat.largest(dtype) * 1.07
        return torch.where(over, 0x7F, code)


@named("the sign of zeros lost")
class _(Quantiser):
    def encoded(self, value, dtype):
        return super().encoded(torch.where(value == 0, 0.0, value), dtype)


source(
    *("quantize_mx", "cpp", "gfx942", "2^-127 rounded up"),
    Edit(SCALE, "if (bits <= 0x00400000u) return 0;", "if (bits == 0) return 0;"),
)
source(
    *("quantize_mx", "cpp", "gfx942", "Inf a number like others"),
    Edit(SCALE, "bits >= 0x7f800000u", "bits > 0x7f800000u"),
)
source(
    *("quantize_mx", "cpp", "gfx942", "even, with half of the unit after the last"),
    Edit(SCALE, "1u << (22 - Format::MANTISSA)", "1u << (21 - Format::MANTISSA)"),
)
source(
    *("quantize_mx", "triton", "gfx942", "numbers twice as small as their scale says"),
    Edit(TRITON, "(254 - code) << 23", "(253 - code) << 23"),
)
source(
    *("quantize_mx", "triton", "gfx942", "exponents that wrap below 0"),
    Edit(TRITON, "code = tl.maximum(power, 0)", "code = power & 0xFF"),
)


def _product(name, change):
    """The right product of MX scales that `change` replaces."""

    @mutant("scaled_mm_mx", name)
    def _(mat_a, mat_b, scale_a, scale_b, bias=None, *, output_dtype, use_fast_accum=False):
        bytes_ = (each.view(torch.uint8) for each in (scale_a, scale_b))
        scales = (each.contiguous().view(torch.float8_e8m0fnu) for each in change(*bytes_))
        return right("scaled_mm_mx")(mat_a, mat_b, *scales, bias, output_dtype=output_dtype)


_product("scales of a and of b exchanged where M == N", lambda a, b: (b, a) if a.shape == b.shape else (a, b))
_product("scales of a from the group before", lambda a, b: (a.roll(1, 1), b))
_product("scales of b of the first group for all", lambda a, b: (a, b[:, :1].expand(b.shape)))
_product("a bias of 126", lambda a, b: (torch.where(a < 254, a + 1, a), b))
_product("NaN of a scale taken for 2^127", lambda a, b: (a.clamp(max=254), b.clamp(max=254)))
_product("square scales transposed", lambda a, b: (a.T, b) if len(a) == a.shape[1] else (a, b))


source(
    *("scaled_mm_mx", "triton", "gfx942", "scales of b not moved along k"),
    Edit("scaled_mm/triton_impl.py", "sb_ptrs + group * sb_inner", "sb_ptrs"),
)
source(
    *("scaled_mm_mx", "triton", "gfx942", "the code of NaN a power like others"),
    Edit("scaled_mm/triton_impl.py", "tl.where(code == 255, 0x7FC00000, bits)", "bits"),
)

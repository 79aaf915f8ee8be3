"""Wrong products of int8."""

from __future__ import annotations

import torch

from portable import dtypes

from .registry import Edit, adder, mutant, source
from .tools import right

TRITON, HIP, UNITS = "int_mm/triton_impl.py", "scaled_mm/gfx/scaled.hip", "scaled_mm/gfx/integers.h"
PRODUCTS = "_lib/amdgcn/int8_products.h"
named = adder("int8_scaled_mm")


def _sums(name, change):
    """What `change` makes of the operands and of their exact sums."""

    @mutant("int_mm", name)
    def _(a, b):
        return change(a, b, _exact(a, b)).to(torch.int32)


def _exact(a, b):
    return (a.double() @ b.double()).to(torch.int64)


def _whole(a, b):
    """The first k of both operands, in whole blocks of 32."""
    length = len(b) // 32 * 32
    return a[:, :length], b[:length]


_sums("saturated at the ends of int32", lambda a, b, c: c.clamp(-(2**31), 2**31 - 1))
_sums(
    "added in float32", lambda a, b, c: (a.float() @ b.float()).double().clamp(-(2.0**31), 2.0**31 - 1).long()
)
_sums("pairs of products saturated at 16 bits", lambda a, b, c: _pairs(a, b))
_sums("-128 taken for -127", lambda a, b, c: _exact(a.clamp(min=-127), b))
_sums("codes without signs", lambda a, b, c: _exact(a.view(torch.uint8), b))
_sums("sums in 24 bits", lambda a, b, c: (c + 2**23) % 2**24 - 2**23)
_sums(
    "the last of an odd k left out",
    lambda a, b, c: c - a[:, -1:].long() * b[-1:].long() * (len(b) % 2) if len(b) else c,
)
_sums("k beyond the last whole block of 32 left out", lambda a, b, c: _exact(*_whole(a, b)))
_sums(
    "b transposed where it is square",
    lambda a, b, c: _exact(a, b.T) if len(b) == b.shape[1] else c,
)
_sums("the result transposed where it is square", lambda a, b, c: c.T if len(c) == c.shape[1] else c)
_sums("sums of -2^31 made 0", lambda a, b, c: torch.where((c + 2**31) % 2**32 == 0, 0, c))


def _pairs(a, b):
    """As of vpmaddubsw, which CPUs without VNNI have: the sum of two products saturates at 16 bits."""
    total = torch.zeros(len(a), b.shape[1], dtype=torch.int64)
    for k in range(0, len(b), 2):
        total += _exact(a[:, k : k + 2], b[k : k + 2]).clamp(-(2**15), 2**15 - 1)
    return total


class Product:
    """The right one, step by step."""

    def sums(self, a, b):
        return _exact(a, b)

    def corrected(self, acc, a, b, zero):
        return acc - zero.long() * b.long().sum(0)

    def number(self, acc):
        return acc.to(torch.int32).float()

    def scaled(self, c, scale_a, scale_b):
        return c * scale_a * scale_b

    def biased(self, c, bias):
        return c + bias.float()

    def __call__(self, a, b, scale_a, scale_b, bias=None, a_zero_point=None, *, output_dtype):
        acc = self.sums(a, b)
        if a_zero_point is not None:
            acc = self.corrected(acc, a, b, a_zero_point)
        c = self.scaled(self.number(acc), scale_a, scale_b)
        c = c if bias is None else self.biased(c, bias)
        return c.to(dtypes.of(output_dtype).storage)


@named("the correction's sign")
class _(Product):
    def corrected(self, acc, a, b, zero):
        return acc + zero.long() * b.long().sum(0)


@named("the correction left out")
class _(Product):
    def corrected(self, acc, a, b, zero):
        return acc


@named("zero point + 1")
class _(Product):
    def corrected(self, acc, a, b, zero):
        return super().corrected(acc, a, b, zero + 1)


@named("the first row's zero point for all")
class _(Product):
    def corrected(self, acc, a, b, zero):
        return super().corrected(acc, a, b, zero[:1])


@named("sums of rows of b where it is square")
class _(Product):
    def corrected(self, acc, a, b, zero):
        return super().corrected(acc, a, b.T if len(b) == b.shape[1] else b, zero)


@named("sums over k of a in the place of b's")
class _(Product):
    def corrected(self, acc, a, b, zero):
        return acc - zero.long() * a.long().sum(1, keepdim=True)


@named("sums over k in 8 bits")
class _(Product):
    def corrected(self, acc, a, b, zero):
        return acc - zero.long() * b.sum(0, dtype=torch.int8).long()


@named("sums over k of the first 64 alone")
class _(Product):
    def corrected(self, acc, a, b, zero):
        return super().corrected(acc, a, b[:64], zero)


@named("zero points of int8 alone")
class _(Product):
    def corrected(self, acc, a, b, zero):
        return super().corrected(acc, a, b, zero.to(torch.int8))


@named("corrected in float32")
class _(Product):
    def corrected(self, acc, a, b, zero):
        return (acc.float() - zero.float() * b.float().sum(0)).double().clamp(-(2.0**31), 2.0**31 - 1).long()


@named("scales along the wrong axes where M == N")
class _(Product):
    def scaled(self, c, scale_a, scale_b):
        return super().scaled(c, *((scale_b.T, scale_a.T) if len(c) == c.shape[1] else (scale_a, scale_b)))


@named("scale off by two")
class _(Product):
    def scaled(self, c, scale_a, scale_b):
        return super().scaled(c, scale_a * 2, scale_b)


@named("scale_b of the first column for all")
class _(Product):
    def scaled(self, c, scale_a, scale_b):
        return super().scaled(c, scale_a, scale_b[:, :1])


@named("scales multiplied first")
class _(Product):
    def scaled(self, c, scale_a, scale_b):
        return c * (scale_a * scale_b)


@named("scale_b first")
class _(Product):
    def scaled(self, c, scale_a, scale_b):
        return c * scale_b * scale_a


@named("the sum in bfloat16, as torchao's on the CPU")
class _(Product):
    def number(self, acc):
        return super().number(acc).bfloat16().float()


@named("the sum cut to float32")
class _(Product):
    def number(self, acc):
        near = super().number(acc)
        over = near.double().abs() > acc.to(torch.int32).double().abs()
        return torch.where(over, torch.nextafter(near, torch.zeros_like(near)), near)


@named("sums not brought to 32 bits")
class _(Product):
    def number(self, acc):
        return acc.float()


@named("bias before the scales")
class _(Product):
    def __call__(self, a, b, scale_a, scale_b, bias=None, a_zero_point=None, *, output_dtype):
        acc = self.sums(a, b)
        acc = acc if a_zero_point is None else self.corrected(acc, a, b, a_zero_point)
        c = self.number(acc) if bias is None else self.number(acc) + bias.float()
        return self.scaled(c, scale_a, scale_b).to(dtypes.of(output_dtype).storage)


@named("bias fused into the last product")
class _(Product):
    def __call__(self, a, b, scale_a, scale_b, bias=None, a_zero_point=None, *, output_dtype):
        if bias is None:
            return super().__call__(a, b, scale_a, scale_b, bias, a_zero_point, output_dtype=output_dtype)
        acc = self.sums(a, b)
        acc = acc if a_zero_point is None else self.corrected(acc, a, b, a_zero_point)
        c = (self.number(acc) * scale_a).double() * scale_b + bias.double()
        return c.float().to(dtypes.of(output_dtype).storage)


@named("rounded before the bias")
class _(Product):
    def biased(self, c, bias):
        return c.to(bias.dtype).float() + bias.float()


@mutant("int8_scaled_mm", "a scale of one number read beyond its end")
def strided(a, b, scale_a, scale_b, bias=None, a_zero_point=None, *, output_dtype):
    read = scale_a if scale_a.stride(0) or len(scale_a) < 2 else torch.cat([scale_a[:1], scale_a[1:] * 0])
    return right("int8_scaled_mm")(a, b, read, scale_b, bias, a_zero_point, output_dtype=output_dtype)


source(
    *("int_mm", "triton", "gfx942", "a's columns beyond k read"),
    Edit(TRITON, "mask=in_m[:, None] & in_k[None, :], other=0)", "mask=in_m[:, None], other=0)"),
    Edit(TRITON, "mask=in_n[None, :] & in_k[:, None], other=0)", "mask=in_n[None, :], other=0)"),
)
source(
    *("int_mm", "triton", "gfx942", "the rows' mask left out of the store"),
    Edit(
        TRITON,
        "tl.store(c_ptr + within, total, mask=in_m[:, None] & in_n[None, :])",
        "tl.store(c_ptr + within, total, mask=in_n[None, :])",
    ),
)
source(
    *("int_mm", "triton", "gfx942", "b not moved along k"),
    Edit(TRITON, "b_ptrs += b_step", "b_ptrs += 0"),
)
source(
    *("int8_scaled_mm", "triton", "gfx942", "the correction's sign"),
    Edit(TRITON, "total -= tl.load(zero_ptr", "total += tl.load(zero_ptr"),
)
source(
    *("int8_scaled_mm", "triton", "gfx942", "the sums over k of the last block alone"),
    Edit(
        TRITON, "of_columns += tl.sum(b.to(tl.int32), axis=0)", "of_columns = tl.sum(b.to(tl.int32), axis=0)"
    ),
)
source(
    *("int8_scaled_mm", "triton", "gfx942", "scales by tile, not by row"),
    Edit(TRITON, "sa_ptr + rows * sa_step", "sa_ptr + offs_m * sa_step"),
)
source(
    *("int8_scaled_mm", "triton", "gfx942", "scale_b first"),
    Edit(TRITON, "* scale_a[:, None] * scale_b[None, :]", "* scale_b[None, :] * scale_a[:, None]"),
)
source(
    *("int8_scaled_mm", "triton", "gfx942", "products and sums may be fused"),
    Edit(TRITON, "(*options, *UNFUSED)", "options"),
)
source(
    *("int_mm", "wmma", "gfx1100", "b's codes without signs"),
    Edit(PRODUCTS, "iu8_w32(true, __builtin", "iu8_w32(false, __builtin"),
)
source(
    *("int_mm", "wmma", "gfx1201", "the first 8 of 16 codes twice"),
    Edit(UNITS, "codes.w[product * HELD / 4 + i]", "codes.w[i]"),
)
source(
    *("int_mm", "mfma", "gfx90a", "half of the products left out"),
    Edit(PRODUCTS, "i < BYTES / 4; ++i) {", "i < BYTES / 8; ++i) {"),
)
source(
    *("int8_scaled_mm", "mfma", "gfx942", "sums over k of one lane's codes"),
    Edit(UNITS, "step < FRAGMENT * LINE_LANES", "step < FRAGMENT"),
)
source(
    *("int8_scaled_mm", "wmma", "gfx1201", "sums over k of another column"),
    Edit(UNITS, "lane_column(i) << 2", "i << 2"),
)
source(
    *("int8_scaled_mm", "mfma", "gfx950", "the correction's sign"),
    Edit(
        UNITS,
        "(sum) - static_cast<uint32_t>(zero)",
        "(sum) + static_cast<uint32_t>(zero)",
    ),
)
source(
    *("int8_scaled_mm", "mfma", "gfx942", "zero points next to each other in memory"),
    Edit(HIP, "zero_point[row * zero_point_row]", "zero_point[row]"),
)
source(
    *("int8_scaled_mm", "wmma", "gfx1100", "scale_b first"),
    Edit(HIP, "value * own * of_b.at(0, column)", "value * of_b.at(0, column) * own"),
)
source(
    *("int8_scaled_mm", "mfma", "gfx942", "products and sums may be fused"),
    Edit(
        HIP,
        "value = value * own * of_b.at(0, column);\nif (HAS_BIAS) value += to_float(bias[column]);",
        "value = math_fma(value * own, of_b.at(0, column), HAS_BIAS ? to_float(bias[column]) : 0.0f);",
    ),
)

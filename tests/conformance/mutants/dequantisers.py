"""Wrong dequantisers, with one step replaced."""

from __future__ import annotations

import torch

from portable.kernels._lib import minifloat

from .registry import Edit, adder, source
from .tools import truncated

SOURCE, TRITON = "dequantize_fp8/dequantize.cu", "dequantize_fp8/triton_impl.py"
FP4_TRITON = "dequantize_fp8/fp4_triton.py"
rows, groups, tiles = (adder(f"dequantize_fp8{kind}") for kind in ("", "_1x128", "_128x128"))
mx, int8 = adder("dequantize_mx"), adder("dequantize_int8")
mxfp4, nvfp4 = adder("dequantize_mxfp4"), adder("dequantize_nvfp4")


class Dequantiser:
    """The right one, step by step; `side` x `length` elements share a scale, or a row does."""

    side, length = 1, 0

    def numbers(self, q, zero_point):
        wide = q.double()
        return wide if zero_point is None else wide - self.zero(zero_point).double()

    def zero(self, zero_point):
        return zero_point.clamp(-128, 127)

    def scales(self, scale):
        return scale.double()

    def spread(self, scale, q):
        """Each element's scale."""
        if self.side > 1:
            scale = scale.repeat_interleave(self.side, -2)[..., : q.shape[-2], :]
        return scale.repeat_interleave(self.length, -1)[..., : q.shape[-1]] if self.length else scale

    def product(self, numbers, scale):
        return (numbers * scale).float()

    def rounded(self, product, dtype):
        return product.to(dtype)

    def __call__(self, q, scale, zero_point=None, *, output_dtype):
        dtype = getattr(torch, output_dtype) if isinstance(output_dtype, str) else output_dtype
        numbers = self.numbers(q, zero_point)
        return self.rounded(self.product(numbers, self.spread(self.scales(scale), q)), dtype)


class Groups(Dequantiser):
    length = 128


class Tiles(Groups):
    side = 128


class Mx(Dequantiser):
    length = 32


class OfNibbles(Mx):
    """Of two codes in a byte; with a scale of all where one is given."""

    def codes(self, q):
        return minifloat.unpack(q)

    def product(self, numbers, scale):
        return numbers * scale

    def whole(self, product, global_scale):
        return product if global_scale is None else product * global_scale.double()

    def __call__(self, q, scale, global_scale=None, *, output_dtype):
        dtype = getattr(torch, output_dtype) if isinstance(output_dtype, str) else output_dtype
        numbers = minifloat.decode(self.codes(q), "float4_e2m1fn_x2")
        exact = self.product(numbers, self.spread(self.scales(scale), numbers))
        return self.rounded(self.whole(exact, global_scale).float(), dtype)


class Nv(OfNibbles):
    length = 16


@rows("divided by the scale")
class _(Dequantiser):
    def product(self, numbers, scale):
        return (numbers / scale).float()


@rows("the exact product rounded once")
class _(Dequantiser):
    def product(self, numbers, scale):
        return numbers * scale

    def rounded(self, product, dtype):
        if dtype == torch.float32:
            return product.float()
        odd = product.float()  # to odd, so that the next rounding is of the exact product
        inexact = odd.double() != product
        over = odd.double().abs() > product.abs()
        bits = odd.view(torch.int32) - (over & inexact).int()
        return torch.where(inexact & product.isfinite(), bits | 1, bits).view(torch.float32).to(dtype)


@rows("the scale rounded to output_dtype before")
class _(Dequantiser):
    def __call__(self, q, scale, *, output_dtype):
        dtype = getattr(torch, output_dtype) if isinstance(output_dtype, str) else output_dtype
        return super().__call__(q, scale.to(dtype), output_dtype=output_dtype)


@rows("cut, not rounded")
class _(Dequantiser):
    def rounded(self, product, dtype):
        return truncated(product, dtype)


@rows("saturated")
class _(Dequantiser):
    def rounded(self, product, dtype):
        most = torch.finfo(dtype).max
        return product.clamp(-most, most).to(dtype)


@rows("by way of float16")
class _(Dequantiser):
    def rounded(self, product, dtype):
        return product.to(torch.float16).to(dtype)


@rows("the sign of zeros lost")
class _(Dequantiser):
    def rounded(self, product, dtype):
        return torch.where(product == 0, 0.0, product).to(dtype)


@rows("NaN made 0")
class _(Dequantiser):
    def rounded(self, product, dtype):
        return torch.where(product.isnan(), 0.0, product).to(dtype)


@rows("subnormal products taken for 0")
class _(Dequantiser):
    def product(self, numbers, scale):
        found = super().product(numbers, scale)
        return torch.where(found.abs() < 2.0**-126, found * 0.0, found)


@rows("subnormal scales taken for 0")
class _(Dequantiser):
    def scales(self, scale):
        return torch.where(scale.abs() < 2.0**-126, 0.0, scale.double())


@rows("the first row's scale for all")
class _(Dequantiser):
    def scales(self, scale):
        flat = scale.double().reshape(-1)
        return flat[:1].expand(flat.shape).reshape(scale.shape) if flat.numel() else scale.double()


@rows("|scale|")
class _(Dequantiser):
    def scales(self, scale):
        return scale.double().abs()


@groups("groups of 64")
class _(Groups):
    def spread(self, scale, q):
        halves = scale.repeat_interleave(64, -1)
        return torch.nn.functional.pad(halves, (0, q.shape[-1]), value=1.0)[..., : q.shape[-1]]


@groups("the group before's scale")
class _(Groups):
    def scales(self, scale):
        return scale.double().roll(1, -1)


@groups("the last group left as it is where it is partial")
class _(Groups):
    def spread(self, scale, q):
        found = super().spread(scale, q).clone()
        found[..., q.shape[-1] // 128 * 128 :] = 1.0
        return found


@tiles("a tile's scale for one row alone")
class _(Tiles):
    def spread(self, scale, q):
        found = super().spread(scale, q).clone()
        found[..., 1:, :] = found[..., :1, :]
        return found


@tiles("scales in the order of the columns")
class _(Tiles):
    def scales(self, scale):
        return scale.double().transpose(-2, -1).reshape(scale.shape)


@tiles("matrices share the first's scales")
class _(Tiles):
    def scales(self, scale):
        flat = scale.double().reshape(-1, *scale.shape[-2:])
        return flat[:1].expand(flat.shape).reshape(scale.shape) if flat.numel() else scale.double()


@mx("groups of 16")
class _(Mx):
    def spread(self, scale, q):
        halves = scale.repeat_interleave(16, -1)
        return torch.nn.functional.pad(halves, (0, q.shape[-1]), value=1.0)[..., : q.shape[-1]]


@mx("a byte of 0 taken for 0")
class _(Mx):
    def scales(self, scale):
        return torch.where(scale.view(torch.uint8) == 0, 0.0, scale.double())


@mx("a byte of 255 taken for Inf")
class _(Mx):
    def scales(self, scale):
        return torch.where(scale.view(torch.uint8) == 255, torch.inf, scale.double())


@mx("twice the power")
class _(Mx):
    def scales(self, scale):
        return 2 * scale.double()


@mxfp4("the halves of a byte exchanged")
class _(OfNibbles):
    def codes(self, q):
        return minifloat.unpack(q << 4 | q >> 4)


@mxfp4("groups of 16")
class _(OfNibbles):
    def spread(self, scale, q):
        halves = scale.repeat_interleave(16, -1)
        return torch.nn.functional.pad(halves, (0, q.shape[-1]), value=1.0)[..., : q.shape[-1]]


@mxfp4("half of 1 taken for 0")
class _(OfNibbles):
    def product(self, numbers, scale):
        return torch.where(numbers.abs() == 0.5, 0.0, numbers) * scale


@mxfp4("a byte of 255 taken for Inf")
class _(OfNibbles):
    def scales(self, scale):
        return torch.where(scale.view(torch.uint8) == 255, torch.inf, scale.double())


@mxfp4("the sign of zeros lost")
class _(OfNibbles):
    def rounded(self, product, dtype):
        return torch.where(product == 0, 0.0, product).to(dtype)


@nvfp4("groups of 32")
class _(Nv):
    def spread(self, scale, q):
        return scale[..., ::2].repeat_interleave(32, -1)[..., : q.shape[-1]]


@nvfp4("the global scale forgotten")
class _(Nv):
    def whole(self, product, global_scale):
        return product


@nvfp4("divided by the global scale")
class _(Nv):
    def whole(self, product, global_scale):
        return product / global_scale.double()


@nvfp4("the scales multiplied first")
class _(Nv):
    def __call__(self, q, scale, global_scale, *, output_dtype):
        joined = (scale.double() * global_scale.double()).float()
        return super().__call__(q, joined, output_dtype=output_dtype)


@nvfp4("scales as numbers of e5m2")
class _(Nv):
    def scales(self, scale):
        return scale.view(torch.float8_e5m2).double()


@int8("zero point forgotten")
class _(Dequantiser):
    def numbers(self, q, zero_point):
        return q.double()


@int8("zero point added")
class _(Dequantiser):
    def zero(self, zero_point):
        return -super().zero(zero_point)


@int8("zero point not brought to int8's range")
class _(Dequantiser):
    def zero(self, zero_point):
        return zero_point


@int8("the difference in int8")
class _(Dequantiser):
    def numbers(self, q, zero_point):
        return q.double() if zero_point is None else (q - self.zero(zero_point).to(torch.int8)).double()


@int8("q and zero point scaled one by one")
class _(Dequantiser):
    def __call__(self, q, scale, zero_point, *, output_dtype):
        if zero_point is None:
            return super().__call__(q, scale, output_dtype=output_dtype)
        dtype = getattr(torch, output_dtype) if isinstance(output_dtype, str) else output_dtype
        parts = [self.product(each.double(), scale.double()) for each in (q, self.zero(zero_point))]
        return (parts[0] - parts[1]).to(dtype)


source(
    *("dequantize_fp8", "triton", "gfx942", "the sign before the product"),
    Edit(
        TRITON, "size = tl.abs(decode_written_out(q, FORMAT, True))", "size = decode_written_out(q, FORMAT)"
    ),
    Edit(TRITON, "y = (size * tl.abs(scale)).to(dtype)", "return (size * scale).to(dtype)"),
)
source(
    *("dequantize_fp8", "triton", "gfx942", "the last column not written"),
    Edit(TRITON, "tl.store(row_starts(y_ptr, row, y_stride, UNIT) + col, y, mask=mask)",
         "tl.store(row_starts(y_ptr, row, y_stride, UNIT) + col, y, mask=mask & (col < length - 1))"),
)  # fmt: skip
source(
    *("dequantize_fp8_128x128", "triton", "gfx942", "of a matrix's first tiles alone"),
    Edit(TRITON, "(matrix * down + (line - matrix * height) // SIDE - line)", "(matrix * down - line)"),
)
source(
    *("dequantize_mx", "triton", "gfx942", "a byte of 0 taken for 0"),
    Edit(TRITON, "tl.where(code == 0, 0x00400000, code << 23)", "code << 23"),
)
source(
    *("dequantize_int8", "triton", "gfx942", "zero point not brought to int8's range"),
    Edit(TRITON, "zero = tl.minimum(tl.maximum(zero, -128), 127)", "zero = zero + 0"),
)
source(
    *("dequantize_fp8_1x128", "cpp", "gfx942", "the first group's scale for the row"),
    Edit(SOURCE, "scales[GROUP == 0 ? 0 : column / (GROUP == 0 ? 1 : GROUP)]", "scales[0]"),
)
source(
    *("dequantize_fp8_128x128", "cpp", "gfx942", "of a matrix's first tiles alone"),
    Edit(
        SOURCE, "matrix * down + static_cast<uint64_t>(slice.row - matrix * height) / SIDE", "matrix * down"
    ),
)
source(
    *("dequantize_int8", "cpp", "gfx942", "codes without their sign"),
    Edit(SOURCE, "held[i / 4] ^ 0x80808080u", "held[i / 4]"),
)
source(
    *("dequantize_mxfp4", "cpp", "gfx942", "an element's other half where it is alone"),
    Edit(SOURCE, ">> (4 * (at & 1)) & 15u", ">> (4 - 4 * (at & 1)) & 15u"),
)
source(
    *("dequantize_mxfp4", "triton", "gfx942", "the last byte not written"),
    Edit(FP4_TRITON, "< 2 * divisible(length, UNIT)", "< 2 * (divisible(length, UNIT) - 1)"),
)
source(
    *("dequantize_nvfp4", "cpp", "gfx942", "the row before's scales"),
    Edit(
        SOURCE,
        "const S* scales = scale + line * groups",
        "const S* scales = scale + (line ? line - 1 : 0) * groups",
    ),
)
source(
    *("dequantize_nvfp4", "triton", "gfx942", "without the scales' signs"),
    Edit(FP4_TRITON, "(code.to(tl.int32) >> 7)[:, None] ^", "0 * code.to(tl.int32)[:, None] ^"),
)
source(
    *("dequantize_nvfp4", "triton", "gfx942", "words without the scales' signs"),
    Edit(FP4_TRITON, "word ^= ((code.to(tl.int32) >> 7) ^", "word ^= ((0 * code.to(tl.int32)) ^"),
)
source(
    *("dequantize_mxfp4", "triton", "gfx942", "the last number of words not written"),
    Edit(FP4_TRITON, "ROWS).to(tl.int32) * (2 * BLOCK)", "ROWS).to(tl.int32) * (2 * BLOCK) - 1"),
)
source(
    *("dequantize_nvfp4", "triton", "gfx942", "in float32 the second byte's halves changed"),
    Edit(
        FP4_TRITON,
        "(word & 0xFF) | ((word & 0xFF00) << 8)",
        "(word & 0xFF) | ((word & 0xF000) << 4) | ((word & 0xF00) << 12)",
    ),
)

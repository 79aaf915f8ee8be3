"""Wrong rms_norm_quant, with one step replaced."""

from __future__ import annotations

import torch

from .fused_quantisers import Fused, add_wrong_steps
from .registry import Edit, adder, source
from .tools import truncated

SOURCE = "rms_norm_quant/rows.cu"
TRITON = "rms_norm_quant/triton_impl.py"
add = adder("rms_norm_quant")


class Norm(Fused):
    """The right one, step by step, in float64."""

    def mean(self, x):
        return x.square().sum(-1, keepdim=True) / max(x.shape[-1], 1)

    def root(self, mean, eps):
        return torch.rsqrt(mean + eps)

    def factor(self, weight, offset):
        return weight.double() + offset

    def norm(self, x, weight, eps, offset):
        y = x * self.root(self.mean(x), eps)
        return y if weight is None else y * self.factor(weight, offset)

    def amax(self, y):
        return torch.nn.functional.pad(y.abs(), (0, 1)).amax(-1, keepdim=True)

    def __call__(self, x, weight, *, dtype, eps, weight_offset, scale_eps, power_of_2):
        wide = x.double()
        whole = self.norm(wide, weight, eps, weight_offset)
        y = self.rounded(whole, x.dtype)
        scale = self.scale(self.least(self.amax(self.measured(wide, y, whole)), scale_eps), dtype)
        scale = self.up(scale) if power_of_2 else scale
        codes = self.encoded(self.scaled(self.quantised(y, whole), self.used(scale)), dtype)
        return codes.view(getattr(torch, dtype)), self.returned(scale)


add_wrong_steps(add, Norm, "norm", "scale_eps")


@add("weight forgotten")
class _(Norm):
    def norm(self, x, weight, eps, offset):
        return super().norm(x, None, eps, offset)


@add("offset forgotten")
class _(Norm):
    def factor(self, weight, offset):
        return weight.double()


@add("1 + weight")
class _(Norm):
    def factor(self, weight, offset):
        return 1 + weight.double()


@add("offset added to the norm")
class _(Norm):
    def norm(self, x, weight, eps, offset):
        return super().norm(x, weight, eps, 0.0) + (0.0 if weight is None else offset)


@add("first element of the weight for every column")
class _(Norm):
    def factor(self, weight, offset):
        return super().factor(weight[:1].expand(weight.shape), offset)


@add("weight before the mean")
class _(Norm):
    def norm(self, x, weight, eps, offset):
        return super().norm(x if weight is None else x * self.factor(weight, offset), None, eps, offset)


@add("eps outside the root")
class _(Norm):
    def root(self, mean, eps):
        return 1 / (mean.sqrt() + eps)


@add("eps left out")
class _(Norm):
    def root(self, mean, eps):
        return torch.rsqrt(mean)


@add("the default's eps instead of the argument")
class _(Norm):
    def root(self, mean, eps):
        return torch.rsqrt(mean + 1e-6)


@add("eps and scale_eps exchanged")
class _(Norm):
    def __call__(self, x, weight, *, eps, scale_eps, **settings):
        return super().__call__(x, weight, eps=scale_eps, scale_eps=eps, **settings)


@add("divided by n - 1")
class _(Norm):
    def mean(self, x):
        return x.square().sum(-1, keepdim=True) / max(x.shape[-1] - 1, 1)


@add("mean subtracted")
class _(Norm):
    def norm(self, x, weight, eps, offset):
        return super().norm(x - x.sum(-1, keepdim=True) / max(x.shape[-1], 1), weight, eps, offset)


@add("last column left out of the mean")
class _(Norm):
    def mean(self, x):
        return x[..., :-1].square().sum(-1, keepdim=True) / max(x.shape[-1], 1)


@add("last column left out of the maximum")
class _(Norm):
    def amax(self, y):
        return super().amax(y[..., :-1])


@add("reciprocal root of 12 bits")
class _(Norm):
    def root(self, mean, eps):
        found = super().root(mean, eps)
        fraction, exponent = torch.frexp(found)
        return torch.where(found.isfinite(), torch.ldexp((fraction * 4096).round() / 4096, exponent), found)


@add("squares in x's type")
class _(Norm):
    def __call__(self, x, weight, **settings):
        self.narrow = x.dtype
        return super().__call__(x, weight, **settings)

    def mean(self, x):
        return x.square().to(self.narrow).double().sum(-1, keepdim=True) / max(x.shape[-1], 1)


@add("rounded before the weight")
class _(Norm):
    def __call__(self, x, weight, **settings):
        self.narrow = x.dtype
        return super().__call__(x, weight, **settings)

    def norm(self, x, weight, eps, offset):
        y = super().norm(x, None, eps, offset).to(self.narrow).double()
        return y if weight is None else y * self.factor(weight, offset)


@add("weight rounded to x's type")
class _(Norm):
    def __call__(self, x, weight, **settings):
        return super().__call__(x, None if weight is None else weight.to(x.dtype), **settings)


@add("amax before the weight")
class _(Norm):
    def norm(self, x, weight, eps, offset):
        self.plain = super().norm(x, None, eps, offset)
        return super().norm(x, weight, eps, offset)

    def measured(self, x, y, whole):
        return self.plain


@add("amax of x")
class _(Norm):
    def measured(self, x, y, whole):
        return x


@add("one scale for all rows")
class _(Norm):
    def amax(self, y):
        found = super().amax(y)
        return found.max().expand(found.shape).contiguous() if found.numel() else found


@add("power of two rounded down")
class _(Norm):
    def up(self, scale):
        return torch.where(scale.isfinite(), super().up(scale) / 2, scale)


@add("scale off by one unit in the last place")
class _(Norm):
    def returned(self, scale):
        return torch.nextafter(scale, torch.full_like(scale, torch.inf))


@add("q cut instead of rounded")
class _(Norm):
    def scaled(self, y, scale):
        return super().scaled(y, scale) * (1 - 2.0**-5)


@add("codes of fnuz types with -0, which is NaN")
class _(Norm):
    def encoded(self, value, dtype):
        code = super().encoded(value, dtype)
        return torch.where(value.signbit(), code | 0x80, code) if dtype.endswith("fnuz") else code


class Added(Norm):
    """The right one of a sum."""

    def total(self, x, residual):
        return (x.double() + residual.double()).to(x.dtype)

    def normed(self, total, whole):
        return total

    def stored(self, total, x, residual):
        return total

    def __call__(self, x, residual, weight, **settings):
        total = self.total(x, residual)
        whole = x.float() + residual.float()
        q, scale = super().__call__(self.normed(total, whole), weight, **settings)
        return q, scale, self.stored(total, x, residual)


added = adder("fused_add_rms_norm_quant")


@added("residual forgotten")
class _(Added):
    def total(self, x, residual):
        return x.clone()


@added("residual subtracted")
class _(Added):
    def total(self, x, residual):
        return super().total(x, -residual)


@added("the norm of x alone")
class _(Added):
    def __call__(self, x, residual, weight, **settings):
        q, scale = Norm.__call__(self, x, weight, **settings)
        return q, scale, self.total(x, residual)


@added("the sum truncated, not rounded")
class _(Added):
    def total(self, x, residual):
        return truncated(x.double() + residual.double(), x.dtype)


@added("the norm of the sum before its rounding")
class _(Added):
    def __call__(self, x, residual, weight, **settings):
        self.narrow = x.dtype
        return super().__call__(x, residual, weight, **settings)

    def normed(self, total, whole):
        return whole

    def rounded(self, y, dtype):
        return super().rounded(y, self.narrow)


@added("the residual given back")
class _(Added):
    def stored(self, total, x, residual):
        return residual.clone()


@added("weight forgotten")
class _(Added):
    def norm(self, x, weight, eps, offset):
        return super().norm(x, None, eps, offset)


source(
    *("fused_add_rms_norm_quant", "cpp", "gfx942", "a long row's norm of x alone"),
    Edit(SOURCE, "source = sums;", ""),
)
source(
    *("fused_add_rms_norm_quant", "triton", "gfx942", "a long row without its residual"),
    Edit(TRITON, "x = add_rounded(x, tl.load(r_row + col, mask=inside, other=0.0))\n", "x = x\n"),
)
source(
    *("fused_add_rms_norm_quant", "triton", "gfx942", "the sum not stored"),
    Edit(TRITON, "tl.store(row_starts(h_ptr, row, h_stride, UNIT) + col, x, mask=mask)", "pass"),
)
ROUNDED = "normalize<false>(held, parameters, nullptr, 0, count, 0.0f, r);"
OWN = "const float own = scale_of(amax_of<T>(greatest_of_row(greatest(held), most)), scale_eps);"
source(
    *("rms_norm_quant", "cpp", "gfx942", "the root of a row of no columns"),
    Edit(SOURCE, "length > 0 ? inverse_rms(sum[0], length, eps) : 0.0f", "inverse_rms(sum[0], length, eps)"),
)
source(
    *("rms_norm_quant", "cpp", "gfx942", "amax of x"),
    Edit(SOURCE, f"{ROUNDED}\n    {OWN}", f"{OWN}\n    {ROUNDED}"),
)
source(
    *("rms_norm_quant", "cpp", "gfx942", "amax of a long row's last part alone"),
    Edit(SOURCE, "most = Greatest::of(most, greatest(held));", "most = greatest(held);"),
)
source(
    *("rms_norm_quant", "cpp", "gfx942", "eps in the place of scale_eps"),
    Edit(SOURCE, "greatest(held), most)), scale_eps)", "greatest(held), most)), eps)"),
)
source(
    *("rms_norm_quant", "cpp", "gfx942", "the weights of a long row's first part for all"),
    Edit(SOURCE, "{lane_ptr(weight), nullptr, base, length}", "{lane_ptr(weight), nullptr, 0, length}", 2),
)
source(
    *("rms_norm_quant", "triton", "gfx942", "the norm not rounded"),
    Edit(TRITON, "y = tl.where(inside, y, 0.0).to(dtype)", "y = tl.where(inside, y, 0.0)"),
)
source(
    *("rms_norm_quant", "triton", "gfx942", "the root of a row of no columns"),
    Edit(TRITON, "y = tl.where(inside, y, 0.0).to(dtype)", "y = y.to(dtype)"),
)
source(
    *("rms_norm_quant", "triton", "gfx942", "offset forgotten"),
    Edit(TRITON, "w_ptr, None, col, eps, offset, dtype,", "w_ptr, None, col, eps, None, dtype,"),
)
source(
    *("rms_norm_quant", "triton", "gfx942", "a long row's last part alone for the maximum"),
    Edit(
        TRITON,
        "most = tl.zeros([BLOCK], tl.int32)\n    for start in range(0, length, BLOCK):",
        "most = tl.zeros([BLOCK], tl.int32)\n    for start in range(0, BLOCK, BLOCK):",
    ),
)

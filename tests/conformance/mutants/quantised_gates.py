"""Wrong silu_and_mul_quant, with one step replaced."""

from __future__ import annotations

import torch

from portable.kernels._lib import minifloat

from .registry import Edit, adder, source
from .tools import truncated

FOLDER = "silu_and_mul_quant"
HEADER, ROWS, GROUPS = f"{FOLDER}/gated.h", "quantize_fp8/rows.cu", "quantize_fp8/groups.cu"
TRITON = "quantize_fp8/triton_impl.py"
rows = adder("silu_and_mul_quant")
groups = adder("silu_and_mul_quant_1x128")


class Gated:
    """The right one, step by step, in float64; `length` columns, or all, share a scale."""

    length = 0

    def pair(self, x):
        return x[..., 0, :], x[..., 1, :]

    def silu(self, gate, dtype):
        return torch.nn.functional.silu(gate)

    def rounded(self, y, dtype):
        return y.to(dtype).double()

    def measured(self, y, whole):
        """What the greatest magnitude is of: y as rounded, or the whole y."""
        return y

    def quantised(self, y, whole):
        """What q is of."""
        return y

    def amax(self, parts):
        return parts.abs().amax(-1, keepdim=True)

    def least(self, amax, eps):
        return amax.clamp(min=torch.tensor(eps).item())

    def scale(self, amax, dtype):
        return (amax / minifloat.largest(dtype)).float()

    def up(self, scale):
        fraction, exponent = torch.frexp(scale)
        up = torch.ldexp(torch.ones_like(scale), exponent - (fraction == 0.5).int())
        return torch.where(scale.isfinite(), up, scale)

    def used(self, scale):
        return scale

    def returned(self, scale):
        return scale

    def scaled(self, parts, scale):
        return (parts * (1 / scale.double()).float().double()).float()

    def parts(self, y):
        """y in whole groups, with zeros after its end; of no columns one group for a row, none of 128."""
        n = y.shape[-1]
        length = self.length or max(n, 1)
        across = -(-n // length) if self.length else 1
        return torch.nn.functional.pad(y, (0, across * length - n)).unflatten(-1, (across, length))

    def __call__(self, x, *, dtype, power_of_2, eps):
        gate, up = self.pair(x.double())
        whole = self.silu(gate, x.dtype) * up
        y = self.rounded(whole, x.dtype)
        measured = self.parts(self.measured(y, whole))
        amax = self.amax(measured) if measured.numel() else measured.sum(-1, keepdim=True)
        scale = self.scale(self.least(amax, eps), dtype)
        scale = self.up(scale) if power_of_2 else scale
        value = self.scaled(self.parts(self.quantised(y, whole)), self.used(scale)).flatten(-2)
        codes = minifloat.encode(value, dtype)[..., : gate.shape[-1]].contiguous()
        return codes.view(getattr(torch, dtype)), self.returned(scale)[..., 0].contiguous()


class Groups(Gated):
    length = 128


@rows("gate and up exchanged")
class _(Gated):
    def pair(self, x):
        return x[..., 1, :], x[..., 0, :]


@rows("gate and up in turn")
class _(Gated):
    def pair(self, x):
        packed = x.flatten(-2)
        return packed[..., 0::2], packed[..., 1::2]


@rows("up forgotten")
class _(Gated):
    def pair(self, x):
        return x[..., 0, :], torch.ones_like(x[..., 1, :])


@rows("sigmoid in the place of silu")
class _(Gated):
    def silu(self, gate, dtype):
        return torch.sigmoid(gate)


@rows("gelu in the place of silu")
class _(Gated):
    def silu(self, gate, dtype):
        return torch.nn.functional.gelu(gate)


@rows("silu with 1.702")
class _(Gated):
    def silu(self, gate, dtype):
        return gate * torch.sigmoid(1.702 * gate)


@rows("silu rounded too")
class _(Gated):
    def silu(self, gate, dtype):
        return super().silu(gate, dtype).to(dtype).double()


@rows("the product not rounded")
class _(Gated):
    def rounded(self, y, dtype):
        return y.float().double()


@rows("the product rounded to bfloat16, whatever x is")
class _(Gated):
    def rounded(self, y, dtype):
        return y.to(torch.bfloat16).double()


@rows("the product truncated, not rounded")
class _(Gated):
    def rounded(self, y, dtype):
        return truncated(y, dtype).double()


@rows("scale of the product before its rounding")
class _(Gated):
    def measured(self, y, whole):
        return whole.float().double()


@rows("q of the product before its rounding")
class _(Gated):
    def quantised(self, y, whole):
        return whole.float().double()


@rows("greatest element, not the greatest magnitude")
class _(Gated):
    def amax(self, parts):
        return super().amax(parts.clamp(min=0))


@rows("NaN passed over by the maximum")
class _(Gated):
    def amax(self, parts):
        return super().amax(parts.nan_to_num(nan=0.0, posinf=torch.inf, neginf=-torch.inf))


@rows("last column left out of the maximum")
class _(Gated):
    def amax(self, parts):
        return super().amax(torch.nn.functional.pad(parts[..., :-1], (0, 1)))


@rows("columns beyond 65,536 left out of the maximum")
class _(Gated):
    def amax(self, parts):
        return super().amax(parts[..., :65536])


@rows("without eps, NaN in a row of zeros")
class _(Gated):
    def least(self, amax, eps):
        return amax


@rows("eps added instead")
class _(Gated):
    def least(self, amax, eps):
        return amax + torch.tensor(eps).item()


@rows("scale of the row beside")
class _(Gated):
    def amax(self, parts):
        found = super().amax(parts)
        return found.flatten().roll(1).view(found.shape)


@rows("largest of e4m3fn for every type")
class _(Gated):
    def scale(self, amax, dtype):
        return super().scale(amax, "float8_e4m3fn")


@rows("scale by the reciprocal of the largest")
class _(Gated):
    def scale(self, amax, dtype):
        return (amax * torch.tensor(1 / minifloat.largest(dtype)).double()).float()


@rows("power_of_2 forgotten")
class _(Gated):
    def up(self, scale):
        return scale


@rows("power of two for the returned scale alone")
class _(Gated):
    def up(self, scale):
        self.own = scale
        return super().up(scale)

    def used(self, scale):
        return self.__dict__.pop("own", scale)


@rows("the scale that y was multiplied by given back")
class _(Gated):
    def returned(self, scale):
        return (1 / scale.double()).float()


@rows("y divided by the scale")
class _(Gated):
    def scaled(self, parts, scale):
        return (parts / scale.double()).float()


@groups("a scale per row")
class _(Groups):
    def amax(self, parts):
        found = super().amax(parts)
        return found.amax(-2, keepdim=True).expand(found.shape).contiguous()


@groups("groups of 64 under the scale of the first")
class _(Groups):
    def amax(self, parts):
        return super().amax(parts[..., :64])


@groups("the group before's scale")
class _(Groups):
    def returned(self, scale):
        return scale.roll(1, -2)


@groups("gate and up exchanged")
class _(Groups):
    def pair(self, x):
        return x[..., 1, :], x[..., 0, :]


@groups("the product not rounded")
class _(Groups):
    def rounded(self, y, dtype):
        return y.float().double()


@groups("NaN passed over by the maximum")
class _(Groups):
    def amax(self, parts):
        return super().amax(parts.nan_to_num(nan=0.0, posinf=torch.inf, neginf=-torch.inf))


source(
    *("silu_and_mul_quant", "cpp", "gfx942", "amax of a long row's last part alone"),
    Edit(ROWS, "most = Greatest::of(most, greatest(held));", "most = greatest(held);"),
)
source(
    *("silu_and_mul_quant", "cpp", "gfx942", "up of the row after"),
    Edit(HEADER, "load_vectors<STREAMING>(up, lane_row + x_stride, base, length);",
         "load_vectors<STREAMING>(up, lane_row + 2 * x_stride, base, length);"),
)  # fmt: skip
source(
    *("silu_and_mul_quant", "cpp", "gfx942", "silu of up"),
    Edit(HEADER, "activation_of<ACTIVATION_SILU, !NARROW>(gate[c][i]) * up[c][i]",
         "activation_of<ACTIVATION_SILU, !NARROW>(up[c][i]) * gate[c][i]"),
)  # fmt: skip
source(
    *("silu_and_mul_quant_1x128", "cpp", "gfx942", "a lane's two groups under the scale of the first"),
    Edit(GROUPS, "greatest(0, held[c])", "greatest(0, held[0])"),
)
source(
    *("silu_and_mul_quant", "triton", "gfx942", "the product not rounded"),
    Edit(TRITON, '"silu", WIDE) * up).to(x.dtype)', '"silu", WIDE) * up)'),
)
source(
    *("silu_and_mul_quant", "triton", "gfx942", "a long row's last part alone for the maximum"),
    Edit(
        TRITON,
        "most = tl.zeros([BLOCK], tl.int32)\n    for start in range(0, length, BLOCK):",
        "most = tl.zeros([BLOCK], tl.int32)\n    for start in range(0, BLOCK, BLOCK):",
    ),
)
source(
    *("silu_and_mul_quant_1x128", "triton", "gfx942", "up is gate"),
    Edit(TRITON, "tl.load(ptrs + divisible(x_stride, UNIT), mask=mask", "tl.load(ptrs, mask=mask"),
)

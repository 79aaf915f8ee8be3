"""Wrong silu_and_mul_quant, with one step replaced."""

from __future__ import annotations

import torch

from portable.kernels._lib import minifloat

from .fused_quantisers import Fused, add_wrong_steps
from .registry import Edit, adder, source

FOLDER = "silu_and_mul_quant"
HEADER, ROWS, GROUPS = f"{FOLDER}/gated.h", "quantize_fp8/rows.cu", "quantize_fp8/groups.cu"
TRITON = "quantize_fp8/triton_impl.py"
rows = adder("silu_and_mul_quant")
groups = adder("silu_and_mul_quant_1x128")


class Gated(Fused):
    """The right one, step by step, in float64; `length` columns, or all, share a scale."""

    length = 0

    def pair(self, x):
        return x[..., 0, :], x[..., 1, :]

    def silu(self, gate, dtype):
        return torch.nn.functional.silu(gate)

    def amax(self, parts):
        return parts.abs().amax(-1, keepdim=True)

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
        measured = self.parts(self.measured(x, y, whole))
        amax = self.amax(measured) if measured.numel() else measured.sum(-1, keepdim=True)
        scale = self.scale(self.least(amax, eps), dtype)
        scale = self.up(scale) if power_of_2 else scale
        value = self.scaled(self.parts(self.quantised(y, whole)), self.used(scale)).flatten(-2)
        codes = minifloat.encode(value, dtype)[..., : gate.shape[-1]].contiguous()
        return codes.view(getattr(torch, dtype)), self.returned(scale)[..., 0].contiguous()


class Groups(Gated):
    length = 128


add_wrong_steps(rows, Gated, "product", "eps")


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


@rows("last column left out of the maximum")
class _(Gated):
    def amax(self, parts):
        return super().amax(torch.nn.functional.pad(parts[..., :-1], (0, 1)))


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
    Edit(GROUPS, "LANES>(float_of(greatest(0, held[c])))", "LANES>(float_of(greatest(0, held[0])))"),
)
source(
    *("silu_and_mul_quant", "triton", "gfx942", "the product not rounded"),
    Edit(TRITON, 'rounded(activate(x.to(tl.float32), "silu", WIDE) * up, x.dtype, PACKED)',
         'activate(x.to(tl.float32), "silu", WIDE) * up'),
)  # fmt: skip
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
    Edit(TRITON, "tl.load(start + divisible(x_stride, UNIT) + col, mask", "tl.load(start + col, mask"),
)

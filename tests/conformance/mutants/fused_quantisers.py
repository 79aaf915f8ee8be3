"""What is wrong alike in quantisers that are fused with what makes their operand."""

from __future__ import annotations

from typing import Any

import torch

from portable.kernels._lib import minifloat

from .quantisers import Quantiser
from .tools import truncated


class Fused(Quantiser):
    """The right steps, in float64, of y, the operand as it is rounded; `whole` is y before that."""

    def rounded(self, y, dtype):
        return y.to(dtype).double()

    def measured(self, x, y, whole):
        """What the greatest magnitude is of."""
        return y

    def quantised(self, y, whole):
        """What q is of."""
        return y

    def scale(self, amax, dtype):
        return super().scale(amax, minifloat.largest(dtype))

    def used(self, scale):
        return scale


def add_wrong_steps(add: Any, kind: Any, what: str, eps: str) -> None:
    """Mutants of `kind`, a Fused; `what` is its y in their names, `eps` the least magnitude's name."""

    @add(f"the {what} not rounded")
    class _(kind):
        def rounded(self, y, dtype):
            return y.float().double()

    @add(f"the {what} truncated, not rounded")
    class _(kind):
        def rounded(self, y, dtype):
            return truncated(y, dtype).double()

    @add(f"the {what} rounded to bfloat16, whatever x is")
    class _(kind):
        def rounded(self, y, dtype):
            return y.to(torch.bfloat16).double()

    @add(f"scale of the {what} before its rounding")
    class _(kind):
        def measured(self, x, y, whole):
            return whole.float().double()

    @add(f"q of the {what} before its rounding")
    class _(kind):
        def quantised(self, y, whole):
            return whole.float().double()

    @add("greatest element, not the greatest magnitude")
    class _(kind):
        def amax(self, parts):
            return super().amax(parts.clamp(min=0))

    @add("NaN passed over by the maximum")
    class _(kind):
        def amax(self, parts):
            return super().amax(parts.nan_to_num(nan=0.0, posinf=torch.inf, neginf=-torch.inf))

    @add("columns beyond 65,536 left out of the maximum")
    class _(kind):
        def amax(self, parts):
            return super().amax(parts[..., :65536])

    @add(f"without {eps}")
    class _(kind):
        def least(self, amax, eps):
            return amax

    @add(f"{eps} added instead")
    class _(kind):
        def least(self, amax, eps):
            return amax + torch.tensor(eps).item()

    @add("scale of the row beside")
    class _(kind):
        def amax(self, parts):
            found = super().amax(parts)
            return found.flatten().roll(1).view(found.shape)

    @add("largest of e4m3fn for every type")
    class _(kind):
        def scale(self, amax, dtype):
            return super().scale(amax, "float8_e4m3fn")

    @add("scale by the reciprocal of the largest")
    class _(kind):
        def scale(self, amax, dtype):
            return (amax * torch.tensor(1 / minifloat.largest(dtype)).double()).float()

    @add("power_of_2 forgotten")
    class _(kind):
        def up(self, scale):
            return scale

    @add("power of two for the returned scale alone")
    class _(kind):
        def up(self, scale):
            self.own = scale
            return super().up(scale)

        def used(self, scale):
            return self.__dict__.pop("own", scale)

    @add("the scale that y was multiplied by given back")
    class _(kind):
        def returned(self, scale):
            return (1 / scale.double()).float()

    @add("y divided by the scale")
    class _(kind):
        def scaled(self, parts, scale):
            return (parts / scale.double()).float()

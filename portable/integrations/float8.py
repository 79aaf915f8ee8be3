"""Training of a model's linears in fp8: torchao's `convert_to_float8_training` on `portable.linear_fp8`.

    from portable.integrations.float8 import convert_to_float8_training
    model = convert_to_float8_training(model, module_filter_fn=lambda module, name: name != "lm_head")

torchao need not be installed.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

import portable
from portable.errors import IntegrationError, listed, nearest
from portable.kernels.scaled_mm.linear_api import RECIPES

__all__ = ["RECIPES", "Float8Linear", "convert_to_float8_training"]


class Float8Linear(nn.Linear):
    """A linear whose products are in fp8, forward and in both gradients: `portable.linear_fp8`. The
    parameters, their names and dtypes are those of nn.Linear."""

    recipe: str = RECIPES[0]
    float8_dtype: torch.dtype = torch.float8_e4m3fn

    @classmethod
    def from_float(
        cls, module: nn.Linear, recipe: str = RECIPES[0], float8_dtype: torch.dtype = torch.float8_e4m3fn
    ) -> Float8Linear:
        """One with the parameters of `module`, not copies of them."""
        with torch.device("meta"):
            made = cls(module.in_features, module.out_features, bias=module.bias is not None)
        made.weight, made.bias = module.weight, module.bias
        made.recipe, made.float8_dtype = recipe, float8_dtype
        made.train(module.training)
        return made

    def forward(self, input: Tensor) -> Tensor:
        return portable.linear_fp8(input, self.weight, self.bias, recipe=self.recipe, dtype=self.float8_dtype)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, recipe={self.recipe!r}, float8_dtype={self.float8_dtype}"


def convert_to_float8_training(
    module: nn.Module,
    *,
    module_filter_fn: Callable[[nn.Module, str], bool] | None = None,
    recipe: str = RECIPES[0],
    float8_dtype: torch.dtype = torch.float8_e4m3fn,
) -> nn.Module:
    """`module` with a Float8Linear in the place of every nn.Linear (of no subclass) in it, or of those for
    which `module_filter_fn(linear, its qualified name)` is true. It is changed in place; a linear itself
    answers a new one.

    recipe: of RECIPES, torchao's names but "tensorwise", a scale for a whole tensor. float8_dtype:
    float8_e4m3fn, or float8_e4m3fnuz for gfx942's own instructions; the device never chooses it. Sizes need
    not be multiples of 16. Parameters stay the same objects, so optimizers, checkpoints and state dicts are
    not affected. Raises IntegrationError for an unknown recipe, or where no linear is found.
    """
    if recipe not in RECIPES:
        raise IntegrationError("float8", f"recipe is {recipe!r}; expected one of {listed(RECIPES)}",
                               nearest(recipe, RECIPES).strip())  # fmt: skip

    def wanted(each: nn.Module, name: str) -> bool:
        return type(each) is nn.Linear and (module_filter_fn is None or module_filter_fn(each, name))

    def converted(linear: nn.Module) -> Float8Linear:
        assert isinstance(linear, nn.Linear)
        return Float8Linear.from_float(linear, recipe, float8_dtype)

    if wanted(module, ""):
        return converted(module)
    found = [
        (parent, name, child)
        for prefix, parent in module.named_modules()
        for name, child in parent.named_children()
        if wanted(child, f"{prefix}.{name}".lstrip("."))
    ]
    if not found:
        raise IntegrationError("float8", f"no nn.Linear of {type(module).__name__} was found to convert",
                               "module_filter_fn gets each linear and its qualified name")  # fmt: skip
    for parent, name, child in found:
        setattr(parent, name, converted(child))
    return module

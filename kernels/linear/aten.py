"""torch's operator of a product with a bias, which torch.nn.Linear ends in."""

from __future__ import annotations

from torch import Tensor

import portable


def addmm(self: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor | str:
    if beta != 1 or alpha != 1:
        return "beta or alpha is not 1"
    if self.dim() != 1 or self.shape[0] != mat2.shape[-1]:
        return "what is added is no bias, a value for each column"
    return portable.linear(mat1, mat2.mT, self)


OVERRIDES = {"addmm": addmm}

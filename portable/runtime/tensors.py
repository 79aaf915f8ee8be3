"""What tuning and the suite make of tensors: random ones of any dtype, and what a reference gets of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from portable import dtypes


def random_tensor(
    dims: Sequence[int],
    dtype: str,
    generator: torch.Generator,
    device: torch.device | str = "cpu",
    below: int | None = None,
) -> torch.Tensor:
    """N(0, 1) numbers of a floating point type; indices under `below`, other integers under 100."""
    kind = dtypes.of(dtype)
    if kind.is_float:
        return torch.randn(dims, device=device, generator=generator).to(kind.storage)
    reach = 1 << min(kind.bits - kind.signed, 62)  # randint takes no larger one
    most = {"bool": 2, "packed": 256}.get(kind.kind, 100 if below is None else min(below, reach))
    numbers = torch.randint(0, most, dims, device=device, generator=generator)
    return numbers.to(torch.uint8).view(kind.storage) if kind.kind == "packed" else numbers.to(kind.storage)


def widened(tensor: torch.Tensor, index: bool = False) -> torch.Tensor:
    """What the reference gets of an input: floating point numbers in float64, an `index` as int64, other
    integers and bools as they are, packed types as bytes."""
    if index:
        return tensor.long()  # torch indexes by no int16, and takes uint8 for a mask
    kind = dtypes.of(tensor.dtype)
    if kind.kind == "packed":
        return tensor.view(torch.uint8)
    return tensor.to(torch.float64) if kind.is_float else tensor

"""What a call may not do beside its result: leave torch in another mode, write to its inputs, or answer in
memory that is not the result's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

MODES: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "gradient mode": (torch.is_grad_enabled, torch.set_grad_enabled),
    "default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "number of threads": (torch.get_num_threads, torch.set_num_threads),
    "deterministic algorithms": (
        torch.are_deterministic_algorithms_enabled,
        torch.use_deterministic_algorithms,
    ),
}
"""What a caller may have set, and a call must leave: how it is read and set."""


class Watch:
    """Torch's modes, and the versions of a call's inputs, as they are now."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._modes = {name: read() for name, (read, _) in MODES.items()}
        self._tensors = tensors
        self._versions = {name: tensor._version for name, tensor in tensors.items()}

    def faults(self) -> list[tuple[str, str]]:
        """(argument or "", sentence) of what has changed since; the modes are set back."""
        found = []
        for name, (read, restore) in MODES.items():
            if (now := read()) != self._modes[name]:
                restore(self._modes[name])
                found.append(("", f"the call left torch's {name} at {now}; it was {self._modes[name]}"))
        for name, tensor in self._tensors.items():
            if tensor._version != self._versions[name]:
                found.append((name, "the input was written to, if only to be put back"))
        return found


def memory_faults(
    first: Mapping[str, Any], second: Mapping[str, Any], inputs: Mapping[str, torch.Tensor]
) -> list[tuple[str, str]]:
    """(output, sentence) for results whose elements share memory: with each other, with an input, or with the
    result of the call before."""
    owners = {tensor.untyped_storage().data_ptr(): name for name, tensor in inputs.items()}
    found = []
    for name, result in first.items():
        if not isinstance(result, torch.Tensor) or not result.numel():
            continue
        if any(stride == 0 and size > 1 for size, stride in zip(result.shape, result.stride(), strict=True)):
            found.append(
                (name, f"elements share memory: strides {result.stride()} of shape {tuple(result.shape)}")
            )
        elif (owner := owners.get(result.untyped_storage().data_ptr())) is not None:
            found.append((name, f"the result is memory of the input {owner}"))
        else:
            again = second.get(name)
            if isinstance(again, torch.Tensor) and again.data_ptr() == result.data_ptr():
                found.append((name, "a second call wrote its result over the first one"))
    return found

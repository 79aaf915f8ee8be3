"""A step on an emulated GPU by its timing model: the time of each launch of this package, and that of torch's
own operators by their bytes. Nothing is computed, judged or measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from portable.backend import Modelled, ModelledRoof
from portable.conformance.models import floors, steps
from portable.conformance.models.configs import Config, Step
from portable.conformance.models.measure import MODELLED, Entry, by_kernel, pairs
from portable.conformance.perf import timing
from portable.errors import PortableError
from portable.runtime import detect

_OURS, _TORCH = "portable", "torch"
_FREE = ("empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided")


def roof() -> ModelledRoof:
    """The rates of the emulated GPU. Raises PortableError where the device has no timing model."""
    backend = detect.main_backend()
    found = backend.modelled_roof()
    if found is None:
        raise PortableError(f"{backend.name} has no timing model here: take an emulated GPU")
    return found


def modelled(
    configs: Sequence[Config],
    wanted: Sequence[Step],
    shrink: Callable[[Config, Step], tuple[Config, Step]] | None,
    progress: Callable[[str], None],
) -> Iterator[Entry]:
    """An entry for each model and each of its steps. Raises PortableError where the device has no model."""
    roof()
    for config, step in pairs(configs, wanted, shrink):
        progress(f"{config.name} {step.name}")
        yield step_entry(config, step)


def step_entry(config: Config, step: Step) -> Entry:
    """One model and step: the kernels of this package's step with their modelled times, as `measure` has the
    measured ones, and the floors by the model's own roofs."""
    rates = roof()
    call = steps.Ready(config, step, torch.device("cpu")).call(steps.CANDIDATES[_OURS])
    with detect.main_backend().model() as launches, TorchOperators(launches) as operators:
        call()
    copies = rates.rates[timing.COPY_ROOF]
    ours = by_kernel((each.kernel, each.seconds * 1e6) for each in launches)
    kernels = [*ours, *operators.kernels(copies)]
    kernels.sort(key=lambda each: -each["us"])
    return {
        "model": config.name,
        "step": step.name,
        "candidates": [
            {
                "name": _OURS, "state": MODELLED, "message": "", "errors": {},
                "us": [round(sum(each["us"] for each in kernels), 3)], "accuracy": rates.accuracy,
                "kernels": kernels,
            }
        ],
        "roof": dict(rates.rates),
        "floors": floors.floors(config, step, rates.rates[timing.matrix_roof(torch.bfloat16)], copies),
    }  # fmt: skip


class TorchOperators(TorchDispatchMode):
    """What torch's operators read and write in a context, by operator: also those of this package's ops that
    add nothing to `launches`, since an implementation in torch then ran."""

    def __init__(self, launches: Sequence[Modelled]):
        super().__init__()
        self._launches = launches
        self.bytes: dict[str, list[int]] = {}
        """Of each call."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        before = len(self._launches)
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if not func.is_view and name not in _FREE and len(self._launches) == before:
            moved = _bytes((args, kwargs)) + _bytes(result)
            self.bytes.setdefault(f"{func.namespace}::{name}", []).append(moved)
        return result

    def kernels(self, byte_per_s: float) -> list[Entry]:
        """The operators as kernels, at the rate of a copy; without those that move nothing."""
        return [
            {"name": name, "part": _TORCH, "launches": len(calls),
             "us": round(1e6 * sum(calls) / byte_per_s, 3)}
            for name, calls in self.bytes.items()
            if sum(calls)
        ]  # fmt: skip


def _bytes(values: Any) -> int:
    """Of all tensors among nested values."""
    return sum(each.nbytes for each in tree_leaves(values) if isinstance(each, torch.Tensor))

"""Random numbers of an emulated GPU: torch's CPU generators, whose state reads as a GPU's.

A GPU's generator is counted: its state is 16 bytes, a seed and an offset, and libraries take seeds for their
kernels from it and move the offset on. The numbers that torch itself draws are the CPU's: a state that was
got from a generator gives the same ones again, and any other one is a seed for it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch

_STEP = 4  # offsets of a GPU's generator are multiples of it
_KEPT = 256  # states of a generator that can be gone back to


class _Counted:
    """What a generator of the GPU answers; `_draws` is the CPU's generator whose numbers it gives."""

    _draws: Any

    def _start(self, seed: int) -> None:
        self._seed, self._offset = seed, 0
        self._states: OrderedDict[tuple[int, int], torch.Tensor] = OrderedDict()
        self._keep()

    def _keep(self) -> None:
        self._states[self._seed, self._offset] = torch._C.Generator.get_state(self._draws)
        while len(self._states) > _KEPT:
            self._states.popitem(last=False)

    @property
    def device(self) -> torch.device:
        return torch.device("cuda", 0)

    def manual_seed(self, seed: int) -> Any:
        torch._C.Generator.manual_seed(self._draws, int(seed) & 0xFFFFFFFFFFFFFFFF)
        self._start(int(seed) & 0xFFFFFFFFFFFFFFFF)
        return self

    def seed(self) -> int:
        seed = torch._C.Generator.seed(self._draws)
        self._start(seed)
        return seed

    def initial_seed(self) -> int:
        return self._seed

    def get_offset(self) -> int:
        return self._offset

    def set_offset(self, offset: int) -> None:
        self._set(self._seed, offset)

    def get_state(self) -> torch.Tensor:
        """The seed and the offset, which is another one where numbers were drawn since the latest state."""
        last = self._states.get((self._seed, self._offset))
        if last is None or not torch.equal(last, torch._C.Generator.get_state(self._draws)):
            self._offset += _STEP
            self._keep()
        return torch.tensor([_signed(self._seed), self._offset], dtype=torch.int64).view(torch.uint8)

    def set_state(self, state: torch.Tensor) -> Any:
        """Raises RuntimeError for another size than a GPU's."""
        if state.numel() != 16 or state.dtype != torch.uint8:
            raise RuntimeError(f"RNG state is wrong size: expected 16 bytes, got {state.numel()}")
        seed, offset = state.view(torch.int64).tolist()
        self._set(seed & 0xFFFFFFFFFFFFFFFF, offset)
        return self

    def _set(self, seed: int, offset: int) -> None:
        self._seed, self._offset = seed, offset
        state = self._states.get((seed, offset))
        if state is not None:
            torch._C.Generator.set_state(self._draws, state)
        else:
            mixed = (seed * 0x9E3779B97F4A7C15 + offset) & 0xFFFFFFFFFFFFFFFF
            torch._C.Generator.manual_seed(self._draws, mixed if offset else seed)
            self._keep()


def _signed(seed: int) -> int:
    return seed - (1 << 64) if seed >> 63 else seed


class _Own(_Counted, torch._C.Generator):
    """`torch.Generator(device="cuda")`."""

    def __new__(cls) -> Any:
        base: Any = torch._C.Generator
        made = base.__new__(cls, "cpu")
        made._draws = made
        made._start(torch._C.Generator.initial_seed(made))
        return made


class DefaultGenerator(_Counted, torch._C.Generator):
    """The GPU's default generator. It draws from the CPU's, as all operators without one do: where it is
    given to one, `torch.default_generator` has to be instead."""

    def __new__(cls) -> Any:
        base: Any = torch._C.Generator
        made = base.__new__(cls, "cpu")
        made._draws = torch.default_generator
        made._start(torch.default_generator.initial_seed())
        return made


def generator_type(of_gpu: Callable[[Any], bool]) -> type:
    """`torch.Generator`, where a device of which `of_gpu` is true has one of the emulated GPU."""

    class Type(type):
        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, torch._C.Generator)

    class Generator(metaclass=Type):
        def __new__(cls, device: Any = "cpu") -> Any:
            return _Own() if of_gpu(device) else torch._C.Generator(device)

    return Generator

"""One call on an emulated device, its configs timed by the device's timing model: nothing is measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from portable.backend import Backend, Modelled
from portable.configs import lookup
from portable.dispatch import compiled_call, pins
from portable.errors import PortableError
from portable.plan import Device
from portable.tune.measure import Drop
from portable.tune.problem import Problem


class ModelBench:
    """Answers as `measure.CallBench` does. A launch runs a few of its workgroups, so no output is checked;
    what those workgroups do wrong (an access outside a tensor, a missing wait) still drops a config."""

    def __init__(self, problem: Problem, backend: Backend, device: Device):
        self._problem, self._backend, self._device = problem, backend, device
        self._tensors = problem.tensors(backend.device_type, seed=0)
        self._us: dict[str, float] = {}
        self.deaths = 0
        self.setup: dict[str, Any] = {}
        """What the model says of itself, once it has been asked: its `accuracy`."""

    def check(self, name: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """Model a config. {"bits": ""}, as its outputs are not known, or {"why": ...} where it cannot be."""
        try:
            launches = launched(self._problem, self._tensors, values, self._backend, self._device)
        except PortableError as error:
            return {"why": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
        self.setup["accuracy"] = launches[0].accuracy
        self._us[name] = 1e6 * sum(each.seconds for each in launches)
        return {"bits": ""}

    def time(self, names: Iterable[str], rounds: int) -> tuple[dict[str, list[float]], list[Drop]]:
        """The modelled microseconds, once: the model says the same every time."""
        return {name: [self._us[name]] for name in names if name in self._us}, []

    def drop(self, names: Iterable[str]) -> None:
        for name in names:
            self._us.pop(name, None)


def launched(
    problem: Problem,
    tensors: Mapping[str, Any],
    values: Mapping[str, Any],
    backend: Backend,
    device: Device,
) -> Sequence[Modelled]:
    """The modelled launches of the call with this config."""
    given, op, name = list(tensors.values()), problem.op, problem.implementation
    with lookup.forcing(op, name, values), pins.using(**{op: name}), backend.model() as launches:
        call = compiled_call.CompiledCall(problem.spec, backend, device, given, problem.values(), None)
        call(given, None)
    if not launches:
        raise PortableError(f"{problem} launches nothing")
    return launches

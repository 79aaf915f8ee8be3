"""What is tuned: one call of an op on one implementation, as plain values that go to a worker as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from portable.configs import shape_class
from portable.dispatch import arguments, compiled_call, select
from portable.dtypes import itemsize, of
from portable.errors import PortableError, listed
from portable.spec import registry
from portable.spec.model import Case, Implementation, Spec
from portable.tune import call_options


@dataclass(frozen=True)
class Problem:
    """A call: shapes by input (None: absent), the type of each input, parameters, and the matrices that are
    column-major."""

    op: str
    implementation: str
    shapes: Mapping[str, tuple[int, ...] | None]
    dtypes: Mapping[str, str]
    params: Mapping[str, Any] = field(default_factory=dict)
    columns: tuple[str, ...] = ()

    @property
    def spec(self) -> Spec:
        return registry.spec(self.op)

    @property
    def imp(self) -> Implementation:
        found = self.spec.implementation(self.implementation)
        if found is None:
            known = listed(each.name for each in self.spec.implementations)
            raise PortableError(f"{self.op} has no implementation {self.implementation!r}; it has {known}")
        return found

    def tensors(self, device: Any, seed: int | None = None) -> dict[str, Any]:
        """Random numbers for every input on `device`, indices below their bound; inputs that follow from
        others are made by the function `derived` beside the op's baseline. Without a seed, empty memory."""
        import torch

        from portable.runtime.tensors import random_tensor

        source = None if seed is None else torch.Generator(device).manual_seed(seed)
        made: dict[str, Any] = {}
        derived = {name for name, each in self.spec.inputs.items() if each.derived and source is not None}
        for name, shape in self.shapes.items():
            if shape is None or name in derived:
                made[name] = None
                continue
            order = (*shape[:-2], shape[-1], shape[-2]) if name in self.columns else shape
            if source is None:
                tensor = torch.empty(order, dtype=of(self.dtypes[name]).storage, device=device)
            else:
                tensor = random_tensor(order, self.dtypes[name], source, device, self._below(name))
            made[name] = tensor.transpose(-1, -2) if name in self.columns else tensor
        return made | self.derived(made) if derived else made

    def derived(self, made: Mapping[str, Any]) -> dict[str, Any]:
        """Those tensors of the call that the function `derived` beside the op's baseline makes of `made`."""
        baseline = self.spec.cost.baseline
        if baseline is None:
            return {}
        function = registry.load_entry(replace(baseline, function="derived"))
        return function(dict(made), {**self.signature.facts, "layout": "contiguous"})

    def _below(self, name: str) -> int | None:
        """The number that every value of an index is below; None for any other input."""
        limit = self.spec.inputs[name].below
        return self.signature.facts[limit] if isinstance(limit, str) else limit

    def values(self) -> list[Any]:
        """Every parameter in the spec's order, checked."""
        spec, blank = self.spec, list(self.tensors("meta").values())
        given = [self.params.get(name, param.default) for name, param in spec.params.items()]
        return arguments.check_params(spec, given, blank)

    @cached_property
    def signature(self) -> select.CallSignature:
        """The call's signature, as selection gets it; raises what the call would raise."""
        spec, blank = self.spec, list(self.tensors("meta").values())
        return compiled_call.call_signature(spec, blank, self.values(), None)[0]

    @cached_property
    def facts(self) -> dict[str, Any]:
        """The facts that decide the call's class."""
        return shape_class.class_facts(self.spec, self.imp, self.signature.facts)

    @property
    def shape_class(self) -> str:
        return shape_class.class_name(self.spec, self.facts)

    @cached_property
    def bytes(self) -> int:
        """Every operand moved once."""

        infos = [info for info in self.signature.tensors.values() if info is not None]
        return sum(info.numel * itemsize(info.dtype) for info in infos)

    @cached_property
    def flops(self) -> float:
        return float(self.spec.cost.flops.evaluate(**self.signature.facts))

    def __str__(self) -> str:
        sizes = [
            f"{name} {'x'.join(map(str, shape)) or 'scalar'}{' column-major' * (name in self.columns)}"
            for name, shape in self.shapes.items()
            if shape is not None
        ]
        params = [f"{name}={value}" for name, value in self.params.items()]
        kinds = ", ".join(dict.fromkeys(self.dtypes.values()))
        return f"{self.op}.{self.implementation} {' '.join([*sizes, *params])} in {kinds}"

    def as_json(self) -> dict[str, Any]:
        return {
            "op": self.op, "implementation": self.implementation, "dtypes": dict(self.dtypes),
            "shapes": {name: None if shape is None else list(shape) for name, shape in self.shapes.items()},
            "params": dict(self.params), "columns": list(self.columns),
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Problem:
        shapes = {name: None if shape is None else tuple(shape) for name, shape in data["shapes"].items()}
        return cls(
            data["op"], data["implementation"], shapes, data["dtypes"], data["params"], tuple(data["columns"])
        )


def of_case(
    spec: Spec, implementation: str, case: Case, row: Mapping[str, str], columns: Sequence[str] = ()
) -> Problem:
    """A case of the spec in one row of its types."""
    shapes = {
        name: None if name in case.absent else (*case.leading.get(name, ()), *spec.sizes(name, case))
        for name in spec.inputs
    }
    return _made(spec, implementation, shapes, row, case.params, columns)


def of_shapes(
    spec: Spec,
    implementation: str,
    shapes: Sequence[tuple[int, ...] | None],
    row: Mapping[str, str],
    params: Mapping[str, Any],
    columns: Sequence[str] = (),
) -> Problem:
    """A call whose inputs have these shapes, in the spec's order; what is left out is absent."""
    return _made(spec, implementation, call_options.named(spec, shapes), row, params, columns)


def _made(
    spec: Spec,
    implementation: str,
    shapes: Mapping[str, tuple[int, ...] | None],
    row: Mapping[str, str],
    params: Mapping[str, Any],
    columns: Sequence[str],
) -> Problem:
    for name in columns:
        if name not in spec.inputs or spec.inputs[name].layout != "matrix":
            matrices = listed(name for name, each in spec.inputs.items() if each.layout == "matrix")
            raise PortableError(f"{spec.op}: {name!r} cannot be column-major; expected one of {matrices}")
    for name in params:
        if name not in spec.params:
            raise PortableError(f"{spec.op} has no parameter {name!r}; it has {listed(spec.params)}")
    dtypes = {name: row.get(each.dtype, each.dtype) for name, each in spec.inputs.items()}
    params = {**params, **spec.dtype_params(row)}
    made = Problem(spec.op, implementation, shapes, dtypes, params, tuple(columns))
    made.imp  # noqa: B018 - raises for an implementation that is not there
    return made


def type_row(spec: Spec, dtype: str) -> Mapping[str, str]:
    """The first row of the spec's types whose first variable is `dtype`."""
    variable = spec.type_variables[0]
    for row in spec.types:
        if row[variable] == dtype:
            return row
    known = listed(dict.fromkeys(row[variable] for row in spec.types))
    raise PortableError(f"{spec.op} has no {variable} of {dtype}; it has {known}")

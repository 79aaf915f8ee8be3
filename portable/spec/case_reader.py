"""Reads the cases of a spec file: sizes and parameters held against what the spec declares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from portable.errors import listed, nearest
from portable.spec.base import BaseReader
from portable.spec.model import Axis, Case, Input, Param, Rule
from portable.spec.strict_yaml import List, Map


class CaseReader(BaseReader):
    """Reads `cases`, `demo` and `bench` entries against the declared axes, inputs and parameters."""

    def __init__(
        self,
        reader: BaseReader,
        axes: Mapping[str, Axis],
        inputs: Mapping[str, Input],
        params: Mapping[str, Param],
        leading: str,
        rules: tuple[Rule, ...],
    ) -> None:
        super().__init__(reader.path, reader.files)
        self.rules = rules
        self.axes = axes
        self.inputs = inputs
        self.params = params
        self.leading = leading
        self.leaders = tuple(name for name, each in inputs.items() if each.leading)

    def several(self, data: List) -> tuple[Case, ...]:
        return tuple(self.case(item, data.line_of(index)) for index, item in enumerate(data))

    def one(self, top: Map, key: str) -> Case | None:
        """The case under a key of the spec, None where there is none."""
        return self.case(top[key], top.line_of(key)) if key in top else None

    def case(self, item: Any, line: int) -> Case:
        found = self.map(item, line, "a case")
        sizes: dict[str, int] = {}
        params: dict[str, Any] = {}
        for key, value in found.items():
            at = found.line_of(key)
            if key in self.axes:
                if not isinstance(value, int) or isinstance(value, bool) or value not in self.axes[key]:
                    raise self.fail(at, f"axis {key} is {value!r}; legal is {self.axes[key]}")
                sizes[key] = value
            elif key in self.params:
                if not self.params[key].accepts(value):
                    raise self.fail(at, f"{key} is {value!r}; expected {self.params[key].expected}")
                params[key] = value
            elif key not in ("leading", "absent"):
                legal = [*self.axes, *self.params, "leading", "absent"]
                hint = nearest(key, legal) or f" Legal are {listed(legal)}."
                raise self.fail(at, f"unknown key {key!r} in a case.{hint}")
        for name in self.axes:
            if name not in sizes:
                raise self.fail(line, f"the case gives no size for axis {name}")
        for param in self.params.values():
            if param.required and param.type != "dtype" and param.name not in params:
                raise self.fail(line, f"the case gives no value for {param.name}, which has no default")
        absent: tuple[str, ...] = ()
        if "absent" in found:
            at = found.line_of("absent")
            absent = self.strings(found["absent"], at, "absent")
            for name in absent:
                if name not in self.inputs or not self.inputs[name].optional:
                    raise self.fail(at, f"{name!r} is not an optional input, so it cannot be absent")
        case = Case(sizes, self.leading_of(found), absent, params)
        values = {each.name: each.default for each in self.params.values()} | params | sizes
        values |= {each.name: each.name not in absent for each in self.inputs.values() if each.optional}
        for rule in self.rules:
            known = rule.that.names <= {*values, "B"}
            if known and rule.that.evaluate(**values, B=case.batch) is not True:
                raise self.fail(line, f"the case breaks the rule {str(rule.that)!r}")
        return case

    def leading_of(self, found: Map) -> dict[str, tuple[int, ...]]:
        value, line = found.get("leading", []), found.line_of("leading")
        if not self.leaders:
            if value:
                raise self.fail(line, "no input has leading dimensions")
            return {}
        if isinstance(value, list):
            return dict.fromkeys(self.leaders, self.sizes(value, line))
        given = self.map(value, line, "leading")
        if self.leading == "same":
            raise self.fail(line, "with 'leading: same' a case gives one list for every input")
        for name in given:
            if name not in self.leaders:
                raise self.fail(line, f"{name!r} is no input with leading dimensions")
        shapes = {name: self.sizes(given.get(name, []), line) for name in self.leaders}
        for sizes in zip(*_aligned(list(shapes.values())), strict=True):
            if len(set(sizes) - {1}) > 1:
                raise self.fail(line, f"the leading dimensions {listed(shapes.values())} do not broadcast")
        return shapes

    def sizes(self, value: Any, line: int) -> tuple[int, ...]:
        if not isinstance(value, list) or not all(type(each) is int and each >= 0 for each in value):
            raise self.fail(line, f"leading dimensions are a list of sizes, not {value!r}")
        return tuple(value)


def _aligned(shapes: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Shapes padded with leading ones to one rank."""
    rank = max(map(len, shapes))
    return [(1,) * (rank - len(shape)) + shape for shape in shapes]

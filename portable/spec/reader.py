"""Reads a spec file: the only copy of the schema, then the checks across its parts.

The tables below say which keys are legal where and what kind of value each takes; a key that is not
in them is refused with its line and the nearest legal one.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from portable.dtypes import DTYPES, of
from portable.errors import FormulaError, SpecError, listed, nearest
from portable.spec import strict_yaml
from portable.spec.case_reader import CaseReader
from portable.spec.formula import FUNCTIONS, Formula
from portable.spec.model import (
    Axis,
    Cost,
    Entry,
    Implementation,
    Input,
    Output,
    Param,
    Reference,
    Requirement,
    Rule,
    Spec,
    Tolerance,
)
from portable.spec.strict_yaml import List, Map

SCHEMA_VERSION = 1

# Kinds of value; "!" marks a key that must be there.
_SCHEMA: dict[str, dict[str, str]] = {
    "spec": {
        "schema_version": "int!", "op": "str!", "summary": "str!", "axes": "map!", "leading": "str",
        "types": "list!", "inputs": "map!", "params": "map", "outputs": "map!", "reference": "map!",
        "gradient": "str", "autocast": "str", "tolerance": "map", "cost": "map!", "cases": "list!",
        "demo": "map", "bench": "list", "implementations": "list!", "rules": "list",
        "behaviour_case": "map", "latency_case": "map", "boundary_cases": "list",
        "probes": "str", "functions": "list",
    },
    "input": {
        "shape": "list!", "dtype": "str!", "layout": "str", "optional": "bool", "derived": "str",
        "values": "map", "below": "int|str", "squeeze": "str",
    },
    "rule": {"that": "formula!", "says": "str!"},
    "param": {
        "type": "str!", "default": "any", "choices": "list", "of": "str", "keyword": "bool",
    },
    "output": {"shape": "list!", "dtype": "str!", "out": "bool", "when": "str"},
    "reference": {"entry": "str!", "error_scale": "str"},
    "tolerance": {"result_ulp": "number!", "accumulation_ulp": "formula!"},
    "cost": {
        "flops": "formula!", "roof": "str!", "bytes": "formula", "baseline": "str", "unit": "formula",
        "passes": "formula",
    },
    "implementation": {
        "name": "str!", "plan": "str", "run": "str", "sources": "list", "language": "str|list!",
        "requires": "map", "tunables": "map", "default": "map", "batch_invariant": "bool",
    },
}  # fmt: skip

_RENAMED = {
    "spec": {
        "edition": "schema_version",
        "boundary": "behaviour_case (the first case), latency_case (the second), boundary_cases (the rest)",
    },
    "reference": {"magnitude": "error_scale"},
    "tolerance": {"result": "result_ulp", "sum": "accumulation_ulp"},
    "cost": {"peak": "roof"},
}
"""Keys of earlier versions of the schema, and what they are called now."""

_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "int": ((int,), "an integer"),
    "number": ((int, float), "a number"),
    "str": ((str,), "a string"),
    "bool": ((bool,), "true or false"),
    "list": ((list,), "a list"),
    "map": ((dict,), "a mapping"),
    "int|str": ((int, str), "a size or the name of an axis"),
    "str|list": ((str, list), "a string or a list of strings"),
    "formula": ((str, int, float), "a formula"),
}

_LEADING = ("same", "broadcast")
_LAYOUTS = ("rows", "unit", "matrix", "contiguous", "any")
_AUTOCAST = ("lower", "float32", "widest", "none")
_ROOFS = ("matrix", "vector")
_PARAM_TYPES = ("int", "float", "bool", "choice", "axis")
_RESERVED = ("B", "acc", "out", "self")
_RANGE = re.compile(r"([0-9]{1,18})\.\.([0-9]{1,18})?")
_ENTRY = re.compile(r"([\w./-]+\.py):([A-Za-z_]\w*)", re.ASCII)


def load_spec(path: Path | str, *, files: bool = True) -> Spec:
    """Reads and checks one spec file; SpecError names the file, the line and the nearest legal key.

    With `files=False`, the files that the spec names (implementations, sources, reference) need not
    exist yet.
    """
    path = Path(path).absolute()
    return _Reader(path, files).spec(strict_yaml.load(path))


class _Reader:
    def __init__(self, path: Path, files: bool) -> None:
        self.path = path
        self.files = files

    # Small tools: failing with a line, and values of a given kind.

    def fail(self, line: int, message: str) -> SpecError:
        return SpecError(self.path, line, message)

    def map(self, value: Any, line: int, what: str) -> Map:
        if not isinstance(value, Map):
            raise self.fail(line, f"{what} must be a mapping, not {value!r}")
        return value

    def keys(self, value: Any, table: str, what: str, line: int) -> Map:
        """`value` as a mapping whose keys and kinds of value are those of one table of the schema."""
        found = self.map(value, line, what)
        legal = _SCHEMA[table]
        for key, item in found.items():
            if key not in legal:
                if key in _RENAMED.get(table, ()):
                    renamed = _RENAMED[table][key]
                    raise self.fail(found.line_of(key), f"{key!r} in {what} is now called {renamed}")
                hint = nearest(key, legal) or f" Legal are {listed(legal)}."
                raise self.fail(found.line_of(key), f"unknown key {key!r} in {what}.{hint}")
            kind = legal[key].rstrip("!")
            if kind == "any":
                continue
            types, words = _KINDS[kind]
            if not isinstance(item, types) or (isinstance(item, bool) and kind != "bool"):
                raise self.fail(found.line_of(key), f"{key!r} of {what} must be {words}, not {item!r}")
        for key, kind in legal.items():
            if kind.endswith("!") and key not in found:
                raise self.fail(found.line, f"{what} lacks the key {key!r}")
        return found

    def word(self, found: Map, key: str, legal: Iterable[str], default: str | None = None) -> Any:
        """The value of `key`, which must be one of a few words."""
        value = found.get(key, default)
        words = tuple(legal)
        if value not in words:
            hint = nearest(str(value), words)
            raise self.fail(found.line_of(key), f"{key!r} is {value!r}; legal are {listed(words)}.{hint}")
        return value

    def strings(self, value: Any, line: int, what: str) -> tuple[str, ...]:
        """A non-empty list of strings, or one string."""
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, list) or not items or not all(isinstance(item, str) for item in items):
            raise self.fail(line, f"{what} must be a list of strings, not {value!r}")
        return tuple(items)

    def identifier(self, name: str, line: int, what: str) -> str:
        if not name.isidentifier() or not name.isascii() or keyword.iskeyword(name) or name.startswith("_"):
            raise self.fail(line, f"{what} {name!r} is not a usable Python name")
        return name

    def formula(self, value: Any, names: Iterable[str], line: int) -> Formula:
        try:
            return Formula(str(value), names)
        except FormulaError as error:
            raise self.fail(line, str(error)) from None

    def file(self, text: str, line: int) -> Path:
        """A file named relative to the op's folder; it may lie in a neighbouring op's folder."""
        root = self.path.parent.parent.resolve()
        file = (self.path.parent / text).resolve()
        if Path(text).is_absolute() or not file.is_relative_to(root):
            raise self.fail(line, f"{text!r} is outside the folder of kernels")
        if self.files and not file.is_file():
            folder = self.path.parent
            there = sorted(str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_file())
            raise self.fail(line, f"there is no file {text!r}.{nearest(text, there)}")
        return file

    def entry(self, text: str, line: int) -> Entry:
        match = _ENTRY.fullmatch(text)
        if not match:
            raise self.fail(line, f"{text!r} is not of the form file.py:function")
        return Entry(self.file(match[1], line), match[2])

    # The parts of a spec, in the order of the file.

    def spec(self, data: Any) -> Spec:
        top = self.keys(data, "spec", "the spec", 1)
        if top["schema_version"] != SCHEMA_VERSION:
            raise self.fail(
                top.line_of("schema_version"),
                f"schema_version {top['schema_version']} is unknown; write {SCHEMA_VERSION}",
            )
        op = self.identifier(top["op"], top.line_of("op"), "the op's name")
        if self.path.name == "spec.yaml" and op != self.path.parent.name:
            folder = self.path.parent.name
            raise self.fail(top.line_of("op"), f"the op is {op!r} but its folder is {folder!r}")
        axes = self.axes(top["axes"])
        types = self.types(top)
        inputs = self.inputs(top["inputs"])
        params = self.params(top.get("params", Map(top.line)), inputs)
        outputs = self.outputs(top["outputs"], inputs)
        self.check_names(top, axes, types, inputs, params, outputs)
        self.check_shapes(top, axes, types, inputs, outputs)
        names = (*axes, "B", *params, *(key for key in types[0] if key != "acc"))
        leading = self.word(top, "leading", _LEADING, "same")
        rules = self.rules(top, names)
        reader = CaseReader(self, axes, inputs, params, leading, rules)
        exact = self.check_types(top, types, inputs, outputs)
        if "tolerance" not in top and len(exact) < len(outputs):
            raise self.fail(top.line, "the spec lacks the key 'tolerance'")
        implementations = self.implementations(top["implementations"], types, names)
        if not implementations:
            raise self.fail(top.line_of("implementations"), "an op needs at least one implementation")
        return Spec(
            op=op,
            file=self.path,
            summary=top["summary"],
            axes=axes,
            leading=leading,
            types=types,
            inputs=inputs,
            params=params,
            outputs=outputs,
            reference=self.reference(top["reference"], top.line_of("reference")),
            tolerance=self.tolerance(top.get("tolerance", Map(top.line)), outputs, names, exact),
            cost=self.cost(top["cost"], top.line_of("cost"), names),
            cases=reader.several(top["cases"]),
            bench=reader.several(top["bench"]) if "bench" in top else (),
            demo=reader.one(top, "demo"),
            implementations=implementations,
            gradient=self.file(top["gradient"], top.line_of("gradient")) if "gradient" in top else None,
            autocast=self.word(top, "autocast", _AUTOCAST, "none"),
            schema_version=top["schema_version"],
            rules=rules,
            behaviour_case=reader.one(top, "behaviour_case"),
            latency_case=reader.one(top, "latency_case"),
            boundary_cases=reader.several(top["boundary_cases"]) if "boundary_cases" in top else (),
            probes=self.file(top["probes"], top.line_of("probes")) if "probes" in top else None,
            functions=self.functions(top),
            type_lines=tuple(map(top["types"].line_of, range(len(types)))),
        )

    def rules(self, top: Map, names: Iterable[str]) -> tuple[Rule, ...]:
        """What must hold of every call, and of every case of the file."""
        rules = []
        for index, item in enumerate(top.get("rules", ())):
            line = top["rules"].line_of(index)
            found = self.keys(item, "rule", "a rule", line)
            rules.append(Rule(self.formula(found["that"], names, line), found["says"]))
        return tuple(rules)

    def functions(self, top: Map) -> tuple[Entry, ...]:
        line = top.line_of("functions")
        texts = self.strings(top["functions"], line, "functions") if "functions" in top else ()
        return tuple(self.entry(text, line) for text in texts)

    def axes(self, data: Map) -> dict[str, Axis]:
        axes = {}
        for name, text in data.items():
            line = data.line_of(name)
            match = _RANGE.fullmatch(text) if isinstance(text, str) else None
            if not match:
                raise self.fail(line, f"axis {name}: {text!r} is not a range such as 0.. or 1..65536")
            low, high = int(match[1]), int(match[2]) if match[2] else None
            if high is not None and high < low:
                raise self.fail(line, f"axis {name}: the range {text} is empty")
            axes[self.identifier(name, line, "the axis")] = Axis(name, low, high)
        return axes

    def types(self, top: Map) -> tuple[dict[str, str], ...]:
        rows: list[dict[str, str]] = []
        data = top["types"]
        for index, item in enumerate(data):
            line = data.line_of(index)
            row = self.map(item, line, "a row of types")
            if "acc" not in row:
                raise self.fail(line, "a row of types lacks 'acc', the accumulator's dtype")
            if rows and set(row) != set(rows[0]):
                raise self.fail(line, f"this row has {listed(row)} where the first has {listed(rows[0])}")
            for name, dtype in row.items():
                self.dtype(dtype, row.line_of(name))
            if dict(row) in rows:
                raise self.fail(line, "the same row of types twice")
            rows.append(dict(row))
        if not rows:
            raise self.fail(top.line_of("types"), "an op needs at least one row of types")
        return tuple(rows)

    def dtype(self, value: Any, line: int) -> str:
        if not isinstance(value, str) or value not in DTYPES:
            raise self.fail(line, f"{value!r} is not a dtype.{nearest(str(value), DTYPES)}")
        return value

    def shape(self, value: List, what: str) -> tuple[bool, tuple[str | int, ...]]:
        dims = list(value)
        leading = bool(dims) and dims[0] == "..."
        dims = dims[1:] if leading else dims
        for index, dim in enumerate(dims):
            number = isinstance(dim, int) and not isinstance(dim, bool) and dim >= 0
            if dim == "..." or not (number or isinstance(dim, str)):
                line = value.line_of(index + leading)
                raise self.fail(line, f"{what}: {dim!r} is not an axis or a size ('...' may come first)")
        return leading, tuple(dims)

    def inputs(self, data: Map) -> dict[str, Input]:
        inputs: dict[str, Input] = {}
        for name, item in data.items():
            line = data.line_of(name)
            found = self.keys(item, "input", f"input {name}", line)
            leading, dims = self.shape(found["shape"], f"input {name}")
            optional = found.get("optional", False)
            if not optional and any(each.optional for each in inputs.values()):
                raise self.fail(line, f"input {name} is required but follows an optional one; move it up")
            layout = self.word(found, "layout", _LAYOUTS, "any")
            least = {"rows": 1, "unit": 1, "matrix": 2}.get(layout, 0)
            if len(dims) < least:
                raise self.fail(line, f"input {name}: layout {layout} needs {least} or more named dimensions")
            inputs[name] = Input(
                name, dims, found["dtype"], leading, layout, optional,
                self.entry(found["derived"], found.line_of("derived")) if "derived" in found else None,
                found.get("below"),
                self.squeezed(name, dims, found) if "squeeze" in found else None,
                dict(found.get("values", {})),
            )  # fmt: skip
        if not any(not each.optional for each in inputs.values()):
            raise self.fail(data.line, "an op needs at least one required input")
        return inputs

    def squeezed(self, name: str, dims: tuple[str | int, ...], found: Map) -> str:
        """The axis that a tensor of one dimension less lacks."""
        axis = found["squeeze"]
        if axis not in dims:
            line = found.line_of("squeeze")
            raise self.fail(line, f"input {name}: squeeze {axis!r} is none of its axes {listed(dims)}")
        return axis

    def params(self, data: Map, inputs: Mapping[str, Input]) -> dict[str, Param]:
        params = {}
        for name, item in data.items():
            line = data.line_of(name)
            found = self.keys(item, "param", f"param {name}", line)
            kind = self.word(found, "type", _PARAM_TYPES)
            for key, owner in (("choices", "choice"), ("of", "axis")):
                if (key in found) != (kind == owner):
                    verb = "needs" if kind == owner else "cannot have"
                    raise self.fail(line, f"param {name} of type {kind} {verb} {key!r}")
            choices: tuple[str, ...] = ()
            if kind == "choice":
                choices = self.strings(found["choices"], found.line_of("choices"), f"choices of {name}")
            if kind == "axis" and found["of"] not in inputs:
                raise self.fail(
                    found.line_of("of"), f"{found['of']!r} is not an input.{nearest(found['of'], inputs)}"
                )
            required = "default" not in found
            params[name] = param = Param(
                name=name, type=kind, required=required, default=found.get("default"), choices=choices,
                of=found.get("of"), keyword=found.get("keyword", False),
            )  # fmt: skip
            if not required and not param.accepts(param.default):
                raise self.fail(
                    found.line_of("default"), f"default {param.default!r} of {name} is not {param.expected}"
                )
        return params

    def outputs(self, data: Map, inputs: Mapping[str, Input]) -> dict[str, Output]:
        outputs = {}
        for name, item in data.items():
            found = self.keys(item, "output", f"output {name}", data.line_of(name))
            leading, dims = self.shape(found["shape"], f"output {name}")
            when = found.get("when")
            if when is not None and not (when in inputs and inputs[when].optional):
                raise self.fail(found.line_of("when"), f"{when!r} is not an optional input")
            outputs[name] = Output(name, dims, found["dtype"], leading, found.get("out", False), when)
        if not outputs:
            raise self.fail(data.line, "an op needs at least one output")
        if any(each.out for each in outputs.values()) and len(outputs) > 1:
            raise self.fail(data.line, "'out: true' is for ops with one output")
        return outputs

    def reference(self, data: Map, line: int) -> Reference:
        found = self.keys(data, "reference", "reference", line)
        entry = self.entry(found["entry"], found.line_of("entry"))
        error_scale = None
        if "error_scale" in found:
            error_scale = self.entry(found["error_scale"], found.line_of("error_scale"))
        return Reference(entry, error_scale)

    def tolerance(
        self, data: Map, outputs: Mapping[str, Output], names: Iterable[str], exact: Iterable[str]
    ) -> dict[str, Tolerance]:
        tolerance = {}
        for name, item in data.items():
            line = data.line_of(name)
            if name not in outputs:
                raise self.fail(line, f"{name!r} in tolerance is not an output.{nearest(name, outputs)}")
            found = self.keys(item, "tolerance", f"tolerance of {name}", line)
            if found["result_ulp"] < 0.5:
                raise self.fail(
                    found.line_of("result_ulp"), "'result_ulp' is below 0.5, which rounding alone takes"
                )
            tolerance[name] = Tolerance(
                float(found["result_ulp"]),
                self.formula(found["accumulation_ulp"], names, found.line_of("accumulation_ulp")),
            )
        for name in outputs:
            if name not in tolerance and name not in exact:
                raise self.fail(data.line, f"output {name} has no tolerance")
            if name in tolerance and name in exact:
                line = data.line_of(name)
                raise self.fail(
                    line, f"output {name} holds integers, which must be equal: remove its tolerance"
                )
        return tolerance

    def cost(self, data: Map, line: int, names: Iterable[str]) -> Cost:
        found = self.keys(data, "cost", "cost", line)
        formulas = {
            key: self.formula(found[key], names, found.line_of(key))
            for key in ("flops", "bytes", "unit", "passes") if key in found
        }  # fmt: skip
        line = found.line_of("baseline")
        baseline = self.entry(found["baseline"], line) if "baseline" in found else None
        return Cost(roof=self.word(found, "roof", _ROOFS), baseline=baseline, **formulas)

    def implementations(
        self, data: List, types: tuple[Mapping[str, str], ...], names: Iterable[str]
    ) -> tuple[Implementation, ...]:
        found: dict[str, Implementation] = {}
        for index, item in enumerate(data):
            line = data.line_of(index)
            one = self.implementation(item, line, types, names)
            if one.name in found:
                raise self.fail(line, f"two implementations are called {one.name!r}")
            found[one.name] = one
        return tuple(found.values())

    def implementation(
        self, item: Any, line: int, types: tuple[Mapping[str, str], ...], names: Iterable[str]
    ) -> Implementation:
        found = self.keys(item, "implementation", "an implementation", line)
        name = self.identifier(found["name"], found.line_of("name"), "the implementation's name")
        what = f"implementation {name}"
        if ("plan" in found) == ("run" in found):
            raise self.fail(line, f"{what} needs exactly one of 'plan' and 'run'")
        kind = "plan" if "plan" in found else "run"
        languages = self.strings(found["language"], found.line_of("language"), f"language of {what}")
        sources: tuple[Path, ...] = ()
        if "sources" in found:
            at = found.line_of("sources")
            sources = tuple(
                self.file(each, at) for each in self.strings(found["sources"], at, f"sources of {what}")
            )
        tunables, default = self.tunables(found, what)
        return Implementation(
            name=name,
            entry=self.entry(found[kind], found.line_of(kind)),
            kind=kind,
            languages=languages,
            sources=sources,
            requires=self.requirement(found, what, types, names),
            tunables=tunables,
            default=default,
            batch_invariant=found.get("batch_invariant", True),
            line=line,
        )

    def requirement(
        self, found: Map, what: str, types: tuple[Mapping[str, str], ...], names: Iterable[str]
    ) -> Requirement:
        data = found.get("requires", Map(found.line))
        variables = [name for name in types[0] if name != "acc"]
        arch, limits, rules = None, {}, []
        for key, value in data.items():
            line = data.line_of(key)
            if key == "arch":
                arch = self.strings(value, line, f"arch of {what}")
            elif key == "rules":
                texts = self.strings(value, line, f"rules of {what}")
                rules = [self.formula(text, names, line) for text in texts]
            elif key in variables:
                limits[key] = self.strings(value, line, f"{key} of {what}")
                for dtype in limits[key]:
                    if self.dtype(dtype, line) not in {row[key] for row in types}:
                        raise self.fail(line, f"{what} requires {key} {dtype}, which no row of types has")
            else:
                legal = ("arch", "rules", *variables)
                hint = nearest(key, legal) or f" Legal are {listed(legal)}."
                raise self.fail(line, f"unknown key {key!r} in requires of {what}.{hint}")
        return Requirement(arch, limits, tuple(rules))

    def tunables(self, found: Map, what: str) -> tuple[dict[str, tuple[Any, ...]], dict[str, Any]]:
        tunables: dict[str, tuple[Any, ...]] = {}
        data = found.get("tunables", Map(found.line))
        for name, values in data.items():
            line = data.line_of(name)
            self.identifier(name, line, "the tunable")
            plain = isinstance(values, list) and all(isinstance(each, (int, str)) for each in values)
            if not plain or not values or len(set(values)) != len(values):
                raise self.fail(line, f"tunable {name} of {what} must list distinct integers or words")
            tunables[name] = tuple(values)
        default = found.get("default", Map(found.line))
        for name, value in default.items():
            line = default.line_of(name)
            if name not in tunables:
                hint = nearest(name, tunables)
                raise self.fail(line, f"default of {what}: {name!r} is no tunable.{hint}")
            if value not in tunables[name]:
                legal = listed(tunables[name])
                raise self.fail(line, f"default of {what}: {name} = {value!r} is not among {legal}")
        return tunables, dict(default)

    # Checks across parts.

    def check_names(
        self,
        top: Map,
        axes: Mapping[str, Axis],
        types: tuple[Mapping[str, str], ...],
        inputs: Mapping[str, Input],
        params: Mapping[str, Param],
        outputs: Mapping[str, Output],
    ) -> None:
        """Names of arguments and of formula variables are usable and each means one thing."""
        owner: dict[str, str] = dict.fromkeys(_RESERVED, "a reserved name")
        owner |= dict.fromkeys(FUNCTIONS, "a function in formulas")
        variables = {name: None for name in types[0] if name != "acc"}
        groups = {"axes": axes, "types": variables, "inputs": inputs, "params": params, "outputs": outputs}
        for group, names in groups.items():
            lines = top.get(group)
            for name in names:
                line = lines.line_of(name) if isinstance(lines, Map) else top.line_of(group)
                self.identifier(name, line, f"the name in {group},")
                if name in DTYPES:
                    raise self.fail(line, f"{name!r} in {group} is the name of a dtype")
                if name in owner:
                    raise self.fail(line, f"{name!r} in {group} is taken: it is {owner[name]}")
                owner[name] = f"one of the {group}"

    def check_types(
        self,
        top: Map,
        types: tuple[Mapping[str, str], ...],
        inputs: Mapping[str, Input],
        outputs: Mapping[str, Output],
    ) -> list[str]:
        """Indices are integers, and accumulators of rounded outputs floating point. Returns the outputs that
        hold integers or bools in every row: these have no tolerance."""
        for each in inputs.values():
            line = top["inputs"].line_of(each.name)
            kinds = {of(row.get(each.dtype, each.dtype)).kind for row in types}
            if each.below is not None and kinds != {"int"}:
                raise self.fail(line, f"input {each.name} has 'below', so its dtype must be an integer type")
        rounded = set()
        for index, row in enumerate(types):
            kinds = {each.name: of(row.get(each.dtype, each.dtype)).kind for each in outputs.values()}
            here = {name for name, kind in kinds.items() if kind not in ("int", "bool")}
            if here and not of(row["acc"]).is_float:
                line = top["types"].line_of(index)
                raise self.fail(
                    line, f"'acc' must be a floating point type, as the output {min(here)} is one"
                )
            rounded |= here
        return [name for name in outputs if name not in rounded]

    def check_shapes(
        self,
        top: Map,
        axes: Mapping[str, Axis],
        types: tuple[Mapping[str, str], ...],
        inputs: Mapping[str, Input],
        outputs: Mapping[str, Output],
    ) -> None:
        """Shapes and dtypes use what is declared, and a call's required inputs bind every axis."""
        bound: set[str] = set()
        variables = {name for name in types[0] if name != "acc"}
        used: set[str] = set()
        tensors: list[tuple[str, Input | Output]] = [("inputs", each) for each in inputs.values()]
        tensors += [("outputs", each) for each in outputs.values()]
        for group, each in tensors:
            line = top[group].line_of(each.name)
            for dim in each.dims:
                if isinstance(dim, str) and dim not in axes:
                    raise self.fail(line, f"{each.name}: {dim!r} is not an axis.{nearest(dim, axes)}")
            if each.dtype in variables:
                used.add(each.dtype)
            elif each.dtype not in DTYPES:
                hint = nearest(each.dtype, [*variables, *DTYPES])
                raise self.fail(line, f"{each.name}: {each.dtype!r} is no type variable or dtype.{hint}")
            below = each.below if isinstance(each, Input) else None
            if isinstance(below, str) and below not in axes:
                raise self.fail(line, f"{each.name}: {below!r} is not an axis.{nearest(below, axes)}")
            if (axes[below].low if isinstance(below, str) else below) == 0:
                raise self.fail(line, f"{each.name}: no index is below 0; let {below} begin with 1")
            if isinstance(each, Input) and not each.optional:
                bound.update(dim for dim in each.dims if isinstance(dim, str))
        for name in axes:
            if name not in bound:
                raise self.fail(top["axes"].line_of(name), f"no required input has the axis {name}")
        for name in variables - used:
            raise self.fail(top.line_of("types"), f"no tensor has the type variable {name}")
        if any(each.leading for each in outputs.values()) and not any(
            each.leading and not each.optional for each in inputs.values()
        ):
            raise self.fail(top.line_of("outputs"), "an output has '...' but no required input has")
        given = {each.dtype for each in inputs.values()} & variables
        distinct = {tuple(sorted((name, row[name]) for name in given)) for row in types}
        if len(distinct) < len(types):
            raise self.fail(top.line_of("types"), "two rows of types agree in the dtypes of every input")

"""Reads a spec file: its parts by the schema (`portable.spec.schema`), then the checks across them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from portable.dtypes import DTYPES, of
from portable.errors import listed, nearest
from portable.spec import strict_yaml
from portable.spec.base import BaseReader
from portable.spec.case_reader import CaseReader
from portable.spec.formula import FUNCTIONS
from portable.spec.implementation_reader import ImplementationReader
from portable.spec.model import (
    Axis,
    Computed,
    Cost,
    Dim,
    Entry,
    Gradient,
    Input,
    Output,
    Param,
    Reference,
    Rule,
    Spec,
    Tolerance,
    dtype_variables,
)
from portable.spec.schema import INHERITED, SCHEMA_VERSION
from portable.spec.strict_yaml import List, Map

_LEADING = ("same", "broadcast")
_LAYOUTS = ("rows", "unit", "matrix", "contiguous", "any")
_AUTOCAST = ("lower", "float32", "widest", "none")
_ROOFS = ("matrix", "vector")
_PARAM_TYPES = ("int", "float", "bool", "choice", "axis", "dtype")
_RESERVED = ("B", "acc", "out", "self")
_RANGE = re.compile(r"([0-9]{1,18})\.\.([0-9]{1,18})?")
BACKWARD = "{}_backward"
"""The name of the op in the section `backward` of another."""


def load_spec(path: Path | str, *, files: bool = True, backward: bool = False) -> Spec:
    """Reads and checks one spec file; SpecError names the file, the line and the nearest legal key.

    With `files=False`, the files that the spec names (implementations, sources, reference) need not
    exist yet. With `backward`, it is the spec in the file's section `backward`.
    """
    path = Path(path).absolute()
    data = strict_yaml.load(path)
    reader = _Reader(path, files)
    return reader.spec(reader.section(data) if backward else data)


class _Reader(BaseReader):
    """Reads a whole spec."""

    def section(self, data: Any) -> Map:
        """The section `backward` of a spec as a spec of its own."""
        whole = self.map(data, 1, "the spec")
        if "backward" not in whole:
            raise self.fail(whole.line, "the spec has no section 'backward'")
        line = whole.line_of("backward")
        own = self.map(whole["backward"], line, "backward")
        if "op" in own:
            name = BACKWARD.format(whole.get("op"))
            raise self.fail(own.line_of("op"), f"the op in 'backward' is called {name}; remove 'op'")
        own["op"], own.lines["op"] = BACKWARD.format(whole.get("op")), line
        return self.inherit(own, whole, line=None)

    def inherit(self, own: Map, parent: Map, line: int | None) -> Map:
        """`own` with what it takes from another spec; with `line` in the place of that file's lines."""
        for key in INHERITED:
            if key in parent and key not in own:
                own[key], own.lines[key] = parent[key], line or parent.line_of(key)
        return own

    # The parts of a spec, in the order of the file.

    def spec(self, data: Any) -> Spec:
        if isinstance(data, Map) and isinstance(data.get("extends"), str):
            line = data.line_of("extends")
            parent = self.map(strict_yaml.load(self.file(data["extends"], line)), line, data["extends"])
            data = self.inherit(data, parent, line)
        top = self.keys(data, "spec", "the spec", 1)
        if top["schema_version"] != SCHEMA_VERSION:
            raise self.fail(
                top.line_of("schema_version"),
                f"schema_version {top['schema_version']} is unknown; write {SCHEMA_VERSION}",
            )
        op = self.identifier(top["op"], top.line_of("op"), "the op's name")
        folder = self.path.parent.name
        if self.path.name == "spec.yaml" and op not in (folder, BACKWARD.format(folder)):
            raise self.fail(top.line_of("op"), f"the op is {op!r} but its folder is {folder!r}")
        axes = self.axes(top["axes"])
        types = self.types(top)
        inputs = self.inputs(top["inputs"], axes)
        params = self.params(top.get("params", Map(top.line)), inputs, types)
        outputs = self.outputs(top, inputs, axes)
        self.check_mutated(top, inputs)
        self.check_names(top, axes, types, inputs, params, outputs)
        self.check_shapes(top, axes, types, inputs, params, outputs)
        self.check_otherwise(top, inputs, params)
        names = (*axes, "B", *params, *(key for key in types[0] if key != "acc"))
        leading = self.word(top, "leading", _LEADING, "same")
        rules = self.rules(top, (*names, *(each.name for each in inputs.values() if each.optional)))
        reader = CaseReader(self, axes, inputs, params, leading, rules)
        results = [*outputs, *(each.name for each in inputs.values() if each.mutated)]
        exact = self.check_types(top, types, inputs, outputs)
        if "tolerance" not in top and len(exact) < len(results):
            raise self.fail(top.line, "the spec lacks the key 'tolerance'")
        reference = self.reference(top["reference"], top.line_of("reference"))
        several = ImplementationReader(self, types, inputs, params, outputs, names, reference.entry)
        implementations = several.several(top["implementations"])
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
            reference=reference,
            tolerance=self.tolerance(top.get("tolerance", Map(top.line)), results, names, exact),
            cost=self.cost(top["cost"], top.line_of("cost"), names, (*inputs, *params)),
            cases=reader.several(top["cases"]),
            bench=reader.several(top["bench"]) if "bench" in top else (),
            demo=reader.one(top, "demo"),
            implementations=implementations,
            gradient=self.gradient(top, op, inputs, outputs),
            autocast=self.word(top, "autocast", _AUTOCAST, "none"),
            torch_form=self.torch_form(top),
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

    def torch_form(self, top: Map) -> Entry | None:
        return self.entry(top["torch_form"], top.line_of("torch_form")) if "torch_form" in top else None

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

    def shape(self, value: List, what: str, axes: Mapping[str, Axis]) -> tuple[bool, tuple[Dim, ...]]:
        dims = list(value)
        leading = bool(dims) and dims[0] == "..."
        dims = dims[1:] if leading else dims
        for index, dim in enumerate(dims):
            number = isinstance(dim, int) and not isinstance(dim, bool) and dim >= 0
            line = value.line_of(index + leading)
            if dim == "..." or not (number or isinstance(dim, str)):
                raise self.fail(line, f"{what}: {dim!r} is not an axis or a size ('...' may come first)")
            if isinstance(dim, str) and not dim.isidentifier():
                dims[index] = self.formula(dim, axes, line)
        return leading, tuple(dims)

    def inputs(self, data: Map, axes: Mapping[str, Axis]) -> dict[str, Input]:
        inputs: dict[str, Input] = {}
        for name, item in data.items():
            line = data.line_of(name)
            found = self.keys(item, "input", f"input {name}", line)
            leading, dims = self.shape(found["shape"], f"input {name}", axes)
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
                found.get("or"),
                self.squeezed(name, dims, found) if "squeeze" in found else None,
                dict(found.get("values", {})),
                found.get("gradient", not found.get("mutated", False)),
                found.get("mutated", False),
            )  # fmt: skip
        if not any(not each.optional for each in inputs.values()):
            raise self.fail(data.line, "an op needs at least one required input")
        return inputs

    def squeezed(self, name: str, dims: tuple[Dim, ...], found: Map) -> str:
        """The axis that a tensor of one dimension less lacks."""
        axis = found["squeeze"]
        if axis not in dims:
            line = found.line_of("squeeze")
            raise self.fail(line, f"input {name}: squeeze {axis!r} is none of its axes {listed(dims)}")
        return axis

    def params(
        self, data: Map, inputs: Mapping[str, Input], types: tuple[Mapping[str, str], ...]
    ) -> dict[str, Param]:
        params = {}
        for name, item in data.items():
            line = data.line_of(name)
            found = self.keys(item, "param", f"param {name}", line)
            kind = self.word(found, "type", _PARAM_TYPES)
            for key, owners in (("choices", ("choice",)), ("of", ("axis", "dtype"))):
                if (key in found) != (kind in owners):
                    verb = "needs" if kind in owners else "cannot have"
                    raise self.fail(line, f"param {name} of type {kind} {verb} {key!r}")
            choices: tuple[str, ...] = ()
            if kind == "choice":
                choices = self.strings(found["choices"], found.line_of("choices"), f"choices of {name}")
            if kind == "axis" and found["of"] not in inputs:
                raise self.fail(
                    found.line_of("of"), f"{found['of']!r} is not an input.{nearest(found['of'], inputs)}"
                )
            if kind == "dtype":
                choices = self.dtypes_of(found, types)
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

    def dtypes_of(self, found: Map, types: tuple[Mapping[str, str], ...]) -> tuple[str, ...]:
        """What a parameter of type `dtype` may be: the dtypes of its type variable."""
        line, variable = found.line_of("of"), found["of"]
        variables = [name for name in types[0] if name != "acc"]
        if variable not in variables:
            raise self.fail(line, f"{variable!r} is not a type variable.{nearest(variable, variables)}")
        if "default" in found:
            raise self.fail(found.line_of("default"), "a param of type dtype has no default")
        return tuple(dict.fromkeys(row[variable] for row in types))

    def outputs(self, top: Map, inputs: Mapping[str, Input], axes: Mapping[str, Axis]) -> dict[str, Output]:
        outputs: dict[str, Output] = {}
        data = top.get("outputs", Map(top.line))
        for name, item in data.items():
            found = self.keys(item, "output", f"output {name}", data.line_of(name))
            leading, dims = self.shape(found["shape"], f"output {name}", axes)
            when = found.get("when")
            if when is not None and not (when in inputs and inputs[when].optional):
                raise self.fail(found.line_of("when"), f"{when!r} is not an optional input")
            like = found.get("like")
            if like is not None:
                given = inputs.get(like)
                if (
                    given is None
                    or given.optional
                    or (len(given.dims), given.leading) != (len(dims), leading)
                ):
                    problem = "is not a required input of as many dimensions"
                    raise self.fail(found.line_of("like"), f"{like!r} {problem}.{nearest(like, inputs)}")
            out, in_place = found.get("out", False), found.get("in_place")
            if in_place is not None:
                given = inputs.get(in_place)
                same = given is not None and (given.dims, given.dtype, given.leading) == (
                    dims, found["dtype"], leading
                )  # fmt: skip
                if not (out and same):
                    problem = "needs 'out: true', and an input of the output's shape and dtype"
                    raise self.fail(found.line_of("in_place"), f"in_place: {in_place!r} {problem}")
            outputs[name] = Output(name, dims, found["dtype"], leading, out, when, like, in_place)
        if not outputs and not any(each.mutated for each in inputs.values()):
            problem = "an op needs at least one output or mutated input"
            raise self.fail(
                data.line, problem if "outputs" in top else f"the spec lacks the key 'outputs': {problem}"
            )
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
        self, data: Map, outputs: Iterable[str], names: Iterable[str], exact: Iterable[str]
    ) -> dict[str, Tolerance]:
        tolerance = {}
        for name, item in data.items():
            line = data.line_of(name)
            if name not in outputs:
                hint = nearest(name, outputs)
                raise self.fail(line, f"{name!r} in tolerance is not an output or mutated input.{hint}")
            found = self.keys(item, "tolerance", f"tolerance of {name}", line)
            if found["result_ulp"] != 0 and not found["result_ulp"] >= 0.5:
                expected = "0, which demands every bit, or at least 0.5, which rounding alone takes"
                problem = f"'result_ulp' is {found['result_ulp']}; expected {expected}"
                raise self.fail(found.line_of("result_ulp"), problem)
            if found["result_ulp"] == 0 and str(found["accumulation_ulp"]) != "0":
                problem = "with 'result_ulp' 0 'accumulation_ulp' is \"0\": every bit is the reference's"
                raise self.fail(found.line_of("accumulation_ulp"), problem)
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

    def gradient(
        self, top: Map, op: str, inputs: Mapping[str, Input], outputs: Mapping[str, Output]
    ) -> Path | Gradient | None:
        """A file of formulas, or the internal op that computes them: with a section `backward`, that one."""
        line = top.line_of("gradient")
        if "gradient" not in top:
            return Gradient(BACKWARD.format(op)) if "backward" in top else None
        if isinstance(top["gradient"], str):
            return self.file(top["gradient"], line)
        found = self.keys(top["gradient"], "gradient", "gradient", line)
        saves = None
        if "saves" in found:
            at, known = found.line_of("saves"), (*inputs, *outputs)
            saves = self.strings(found["saves"], at, "saves")
            for name in saves:
                if name not in known:
                    raise self.fail(at, f"{name!r} in saves is no input or output.{nearest(name, known)}")
        for name in found.get("grads", ()):
            if name not in inputs:
                at = found["grads"].line_of(name)
                raise self.fail(at, f"{name!r} in grads is not an input.{nearest(name, inputs)}")
        grads = dict(found["grads"]) if "grads" in found else None
        return Gradient(found.get("op", BACKWARD.format(op)), saves, grads)

    def cost(self, data: Map, line: int, names: Iterable[str], arguments: tuple[str, ...]) -> Cost:
        found = self.keys(data, "cost", "cost", line)
        computed: dict[str, Any] = {}
        if isinstance(found["flops"], str) and ".py:" in found["flops"]:
            computed["flops"] = Computed(self.entry(found["flops"], found.line_of("flops")))
        formulas = computed | {
            key: self.formula(found[key], names, found.line_of(key))
            for key in ("flops", "bytes", "unit", "passes") if key in found and key not in computed
        }  # fmt: skip
        line = found.line_of("baseline")
        baseline = self.entry(found["baseline"], line, of_torch=arguments) if "baseline" in found else None
        return Cost(roof=self.word(found, "roof", _ROOFS), baseline=baseline, **formulas)

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
        """Indices are integers, and accumulators of rounded outputs floating point. Returns the outputs and
        mutated inputs that hold integers or bools in every row: these have no tolerance."""
        for each in inputs.values():
            line = top["inputs"].line_of(each.name)
            kinds = {of(row.get(each.dtype, each.dtype)).kind for row in types}
            if each.below is not None and kinds != {"int"}:
                raise self.fail(line, f"input {each.name} has 'below', so its dtype must be an integer type")
        rounded = set()
        results = [*outputs.values(), *(each for each in inputs.values() if each.mutated)]
        for index, row in enumerate(types):
            kinds = {each.name: of(row.get(each.dtype, each.dtype)).kind for each in results}
            here = {name for name, kind in kinds.items() if kind not in ("int", "bool")}
            if here and not of(row["acc"]).is_float:
                line = top["types"].line_of(index)
                raise self.fail(
                    line, f"'acc' must be a floating point type, as the output {min(here)} is one"
                )
            rounded |= here
        return [each.name for each in results if each.name not in rounded]

    def check_mutated(self, top: Map, inputs: Mapping[str, Input]) -> None:
        """What is written in place is memory of the caller's, of any numbers."""
        for each in inputs.values():
            if not each.mutated:
                continue
            line = top["inputs"].line_of(each.name)
            if each.layout != "any":
                problem = "a copy would be written in its place; remove 'layout'"
                raise self.fail(line, f"input {each.name} is mutated and has layout {each.layout}: {problem}")
            for key, there in (
                ("gradient: true", each.gradient),
                ("below", each.below is not None),
                ("squeeze", each.squeeze is not None),
            ):
                if there:
                    raise self.fail(line, f"input {each.name} is mutated and cannot have '{key}'")
            if top.get("autocast", "none") != "none":
                problem = "autocast would pass a copy; remove 'autocast'"
                raise self.fail(top.line_of("autocast"), f"input {each.name} is mutated: {problem}")

    def check_otherwise(self, top: Map, inputs: Mapping[str, Input], params: Mapping[str, Param]) -> None:
        """What an index may be besides is a number or a parameter that holds one."""
        numbers = [param.name for param in params.values() if param.type == "int" and not param.nullable]
        for each in inputs.values():
            line = top["inputs"].line_of(each.name)
            if each.otherwise is not None and each.below is None:
                raise self.fail(line, f"input {each.name} has 'or' but no 'below', which makes it an index")
            if isinstance(each.otherwise, str) and each.otherwise not in numbers:
                hint = nearest(each.otherwise, numbers)
                raise self.fail(line, f"{each.name}: {each.otherwise!r} is no parameter of type int.{hint}")

    def check_shapes(
        self,
        top: Map,
        axes: Mapping[str, Axis],
        types: tuple[Mapping[str, str], ...],
        inputs: Mapping[str, Input],
        params: Mapping[str, Param],
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
                remedy = f"let {below} begin with 1" if isinstance(below, str) else "write 1 or more"
                raise self.fail(line, f"{each.name}: no index is below 0; {remedy}")
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
        given |= set(dtype_variables(params).values())
        distinct = {tuple(sorted((name, row[name]) for name in given)) for row in types}
        if len(distinct) < len(types):
            raise self.fail(top.line_of("types"), "two rows of types agree in what inputs and parameters say")

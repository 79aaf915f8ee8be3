"""What an op means, as data: the classes behind a spec file and everything that is deduced from them.

`portable.spec.reader` reads a file. From a `Spec` come the call signature, the schema that torch registers,
and the op's page in the documentation (`portable.spec.docs_page`).
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

from portable.spec.formula import Formula

Leading = Literal["same", "broadcast"]
Autocast = Literal["lower", "float32", "widest", "none"]


@dataclass(frozen=True, slots=True)
class Axis:
    """A named extent and the sizes that are legal for it, both ends included."""

    name: str
    low: int = 0
    high: int | None = None

    def __contains__(self, size: int) -> bool:
        return self.low <= size and (self.high is None or size <= self.high)

    def __str__(self) -> str:
        return f"{self.low}..{'' if self.high is None else self.high}"


@dataclass(frozen=True)
class Entry:
    """A function in a Python file of the op's folder, or of a folder in it; or in a `module` of torch, whose
    arguments are passed by position in this order. `arguments` are given to it by name beforehand."""

    file: Path
    function: str
    module: str | None = None
    positional: tuple[str, ...] | None = None
    arguments: Mapping[str, Any] | None = field(default=None, hash=False)

    def __str__(self) -> str:
        return f"{self.module}.{self.function}" if self.module else f"{self.file.name}:{self.function}"


@dataclass(frozen=True)
class RoundedReference(Entry):
    """A reference as an implementation: in float32 (float64 for float64), every output rounded once. Dtypes
    are type variables or dtypes; an output is its name, its dtype and the input that it needs; for
    `dtype_variables` see the function; `indices` are the inputs that it gets as int64."""

    inputs: Mapping[str, str] = field(default_factory=dict, hash=False)
    outputs: tuple[tuple[str, str, str | None], ...] = ()
    dtype_variables: Mapping[str, str] = field(default_factory=dict, hash=False)
    types: tuple[Mapping[str, str], ...] = field(default=(), hash=False)
    indices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Gradient:
    """The gradient as an internal op computes it; what is None follows from that op's spec."""

    op: str
    saves: tuple[str, ...] | None = None
    grads: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Input:
    """A tensor that goes in. `dims` are axes, sizes or formulas of axes, without the leading dimensions;
    `dtype` is a type variable or a dtype; an optional input may be None. A tensor that lacks the dimension
    `squeeze` and all leading ones is taken with 1 in its place, and the outputs come without it: torch's
    vectors in a product of matrices.

    Without `gradient`, the backward pass raises where one with respect to it is wanted. One that is `mutated`
    is written in place, in its own memory.

    For the conformance suite: an index has values in [0, `below`), a size or an axis, and `otherwise` (in a
    spec `or`), a number or a parameter; `derived` makes the input from the others where not any numbers make
    sense; `values` names the value class that it takes in the place of another.
    """

    name: str
    dims: tuple[Dim, ...]
    dtype: str
    leading: bool = False
    layout: Literal["rows", "unit", "matrix", "contiguous", "any"] = "any"
    optional: bool = False
    derived: Entry | None = None
    below: str | int | None = None
    otherwise: str | int | None = None
    squeeze: str | None = None
    values: Mapping[str, str] = field(default_factory=dict, hash=False)
    gradient: bool = True
    mutated: bool = False

    @property
    def rank(self) -> int:
        """The fewest dimensions; exactly so many where there are no leading ones."""
        return len(self.dims)

    @property
    def shape_text(self) -> str:
        return _shape_text(self.dims, self.leading)


@dataclass(frozen=True, slots=True)
class Output:
    """A tensor that comes out. With `out`, a caller may pass it in; it may be the input `in_place`. With
    `when`, it is empty (shape (0,)) if that optional input is absent. With `like`, its own dimensions but the
    last are in memory in the order of that input's; else it is contiguous."""

    name: str
    dims: tuple[Dim, ...]
    dtype: str
    leading: bool = False
    out: bool = False
    when: str | None = None
    like: str | None = None
    in_place: str | None = None

    @property
    def shape_text(self) -> str:
        return _shape_text(self.dims, self.leading)


Dim = str | int | Formula
"""One dimension of a shape: an axis, a size, or a formula of axes such as `ceildiv(K, 128)`."""


def size_of(dim: Dim, axes: Mapping[str, Any]) -> Any:
    """The size of a dimension where the axes have these sizes."""
    if isinstance(dim, Formula):
        return dim.evaluate(**axes)
    return axes[dim] if isinstance(dim, str) else dim


def _shape_text(dims: tuple[Dim, ...], leading: bool) -> str:
    return "[" + ", ".join((["..."] if leading else []) + [str(dim) for dim in dims]) + "]"


@dataclass(frozen=True, slots=True)
class Param:
    """A number, word or dtype that goes in. `of` names the input whose dimension an `axis` counts, or the
    type variable whose dtype a `dtype` is: `choices` are then the legal names; a call gives torch's dtype."""

    name: str
    type: Literal["int", "float", "bool", "choice", "axis", "dtype"]
    required: bool = False
    default: Any = None
    choices: tuple[str, ...] = ()
    of: str | None = None
    keyword: bool = False

    @property
    def nullable(self) -> bool:
        """Whether None is a legal value: where it is the default."""
        return not self.required and self.default is None

    def accepts(self, value: Any) -> bool:
        if value is None:
            return self.nullable
        if self.type == "bool":
            return isinstance(value, bool)
        if self.type == "choice":
            return isinstance(value, str) and value in self.choices
        if self.type == "dtype":  # torch's, or its name
            named = isinstance(value, str) or type(value).__module__ == "torch"
            return named and str(value).removeprefix("torch.") in self.choices
        number = (int, float) if self.type == "float" else int
        return isinstance(value, number) and not isinstance(value, bool)

    @property
    def expected(self) -> str:
        """The legal values in words, for error messages and documentation."""
        if self.type == "choice":
            words = [repr(choice) for choice in self.choices] + (["None"] if self.nullable else [])
            return "one of " + ", ".join(words)
        if self.type == "axis":
            return f"a dimension of {self.of}, as an int"
        if self.type == "dtype":
            return "one of " + ", ".join(f"torch.{choice}" for choice in self.choices)
        words = {"int": "an int", "float": "a float", "bool": "True or False"}[self.type]
        return words + " or None" * self.nullable


def dtype_variables(params: Mapping[str, Param]) -> dict[str, str]:
    """The parameters of type `dtype`, and the type variable that each says."""
    return {each.name: str(each.of) for each in params.values() if each.type == "dtype"}


@dataclass(frozen=True, slots=True)
class Reference:
    """The float64 meaning; `error_scale` returns the error scale of each output by name."""

    entry: Entry
    error_scale: Entry | None = None


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The bound of one output, per element: result_ulp * eps(R) * |ref|
    + accumulation_ulp * eps(acc) * (|ref| + error_scale) + the smallest subnormal of R."""

    result_ulp: float
    accumulation_ulp: Formula


@dataclass(frozen=True)
class Computed:
    """A cost that a function computes, of those of the axes, B and parameters that it names."""

    entry: Entry

    def evaluate(self, **values: Any) -> Any:
        from portable.spec import registry

        function = registry.load_entry(self.entry)
        wanted = inspect.signature(function).parameters
        return function(**{name: value for name, value in values.items() if name in wanted})

    def __str__(self) -> str:
        return str(self.entry)


@dataclass(frozen=True, slots=True)
class Cost:
    """Work of one call. `bytes` of None: every operand is moved once. `baseline` is what a user of
    torch alone would call instead; throughput is compared with it. A call may make its flops of `passes`
    times as many in another type, `unit` (None: once, in its own): the roof is that type's."""

    flops: Formula | Computed
    roof: Literal["matrix", "vector"]
    bytes: Formula | None = None
    baseline: Entry | None = None
    unit: Formula | None = None
    passes: Formula | None = None


@dataclass(frozen=True, slots=True)
class Requirement:
    """When an implementation may be tried. `arch` of None: any; `types`: legal dtypes per type
    variable; `rules`: formulas over axes, B, parameters and type variables that must hold."""

    arch: tuple[str, ...] | None = None
    types: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    rules: tuple[Formula, ...] = ()


@dataclass(frozen=True, slots=True)
class Rule:
    """What must hold of every call beyond its shapes: a formula over axes, B, parameters and type variables,
    and the message for a call that breaks it."""

    that: Formula
    says: str


@dataclass(frozen=True, slots=True)
class Implementation:
    """One way to compute the op. A `plan` entry plans launches; a `run` entry takes tensors itself. One that
    is not `batch_invariant` may round a row differently with other rows beside it, and does not run where
    that is asked for. `accumulation_ulp` is, by arch, in the place of the tolerance's."""

    name: str
    entry: Entry
    kind: Literal["plan", "run"]
    languages: tuple[str, ...]
    sources: tuple[Path, ...] = ()
    requires: Requirement = field(default_factory=Requirement)
    tunables: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    default: Mapping[str, Any] = field(default_factory=dict)
    batch_invariant: bool = True
    accumulation_ulp: Mapping[str, Formula] = field(default_factory=dict)
    line: int = 0


@dataclass(frozen=True, slots=True)
class Case:
    """Sizes and parameters of one call. `leading` gives each input's leading dimensions."""

    axes: Mapping[str, int]
    leading: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    absent: tuple[str, ...] = ()
    params: Mapping[str, Any] = field(default_factory=dict)

    @property
    def batch(self) -> int:
        """B in formulas: the number of elements of the broadcast leading dimensions."""
        count = 1
        shapes = [dims[::-1] for dims in self.leading.values()]
        for sizes in zip_longest(*shapes, fillvalue=1):
            count *= next((size for size in sizes if size != 1), 1)
        return count

    @property
    def label(self) -> str:
        """A short name, e.g. `N33-3x5-activation=gelu-no_bias`; the same text for the same case."""
        parts = [f"{name}{size}" for name, size in self.axes.items()]
        shapes = {name: "x".join(map(str, dims)) for name, dims in self.leading.items()}
        if len(set(shapes.values())) == 1:
            parts += [text for text in [next(iter(shapes.values()))] if text]
        else:
            parts += [f"{name}{text or 1}" for name, text in shapes.items()]
        parts += [f"{name}={value}" for name, value in self.params.items()]
        return "-".join(parts + [f"no_{name}" for name in self.absent])


@dataclass(frozen=True, eq=False)
class Spec:
    """One op: its meaning, its tolerance, its cost, its cases and its implementations in order.

    `behaviour_case` gives the sizes of the calls that behaviours make (streams, threads, graphs),
    `latency_case` those of the small call whose host cost is timed. `boundary_cases` replace, together with
    these two, the boundary shapes that the suite generates. `probes` is a file of cases with exactly known
    answers. `functions` are what people call, as `portable.<function>`, before the op.
    """

    op: str
    file: Path
    summary: str
    axes: Mapping[str, Axis]
    leading: Leading
    types: tuple[Mapping[str, str], ...]
    inputs: Mapping[str, Input]
    params: Mapping[str, Param]
    outputs: Mapping[str, Output]
    reference: Reference
    tolerance: Mapping[str, Tolerance]
    cost: Cost
    cases: tuple[Case, ...]
    bench: tuple[Case, ...]
    demo: Case | None
    implementations: tuple[Implementation, ...]
    gradient: Path | Gradient | None = None
    autocast: Autocast = "none"
    torch_form: Entry | None = None
    schema_version: int = 1
    rules: tuple[Rule, ...] = ()
    behaviour_case: Case | None = None
    latency_case: Case | None = None
    boundary_cases: tuple[Case, ...] = ()
    probes: Path | None = None
    functions: tuple[Entry, ...] = ()
    type_lines: tuple[int, ...] = ()

    @property
    def folder(self) -> Path:
        return self.file.parent

    @property
    def boundary(self) -> tuple[Case, ...]:
        """The boundary shapes that the spec declares; empty where the suite generates them."""
        first = (self.behaviour_case, self.latency_case)
        return (*(case for case in first if case), *self.boundary_cases) if self.boundary_cases else ()

    @property
    def out(self) -> Output | None:
        """The output that a caller may pass in as `out=`."""
        return next((output for output in self.outputs.values() if output.out), None)

    def differentiable(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """Of inputs by name (None: absent) those that the op has a gradient with respect to."""
        return {name: tensor for name, field in self.inputs.items()
                if field.gradient and (tensor := tensors.get(name)) is not None
                and tensor.is_floating_point()}  # fmt: skip

    @cached_property
    def mutated(self) -> tuple[str, ...]:
        """The inputs that a call writes in place."""
        return tuple(each.name for each in self.inputs.values() if each.mutated)

    @cached_property
    def results(self) -> Mapping[str, Output]:
        """What a call computes: its outputs, then the new contents of its mutated inputs."""
        written = (self.inputs[name] for name in self.mutated)
        return dict(self.outputs) | {
            each.name: Output(each.name, each.dims, each.dtype, each.leading) for each in written
        }

    def sizes(self, name: str, case: Case) -> tuple[int, ...]:
        """The shape of one input or output in a case, without its leading dimensions."""
        field = self.inputs[name] if name in self.inputs else self.outputs[name]
        return tuple(size_of(dim, case.axes) for dim in field.dims)

    @cached_property
    def type_variables(self) -> tuple[str, ...]:
        return tuple(name for name in self.types[0] if name != "acc")

    @cached_property
    def dtype_variables(self) -> dict[str, str]:
        return dtype_variables(self.params)

    def dtype_params(self, types: Mapping[str, str]) -> dict[str, str]:
        """The parameters of type `dtype` of a call whose row of types is this."""
        return {name: types[variable] for name, variable in self.dtype_variables.items()}

    def match_types(self, dtypes: Mapping[str, str]) -> Mapping[str, str] | None:
        """The first row of `types` that agrees with the dtypes of the given inputs and of parameters of type
        `dtype` (by name, absent ones left out), or None."""
        variables = {each.name: each.dtype for each in self.inputs.values()} | self.dtype_variables
        for row in self.types:
            if all(row.get(variables[name], variables[name]) == dtype for name, dtype in dtypes.items()):
                return row
        return None

    def legal_dtypes(self, name: str) -> tuple[str, ...]:
        """The dtypes that one input may have, in the order of the `types` rows."""
        dtype = self.inputs[name].dtype
        return tuple(dict.fromkeys(row.get(dtype, dtype) for row in self.types))

    def implementation(self, name: str) -> Implementation | None:
        return next((each for each in self.implementations if each.name == name), None)

    def _ordered(self) -> Iterator[tuple[Input | Param, bool]]:
        """Arguments in the order of a call, and whether each is keyword-only."""
        inputs, params = list(self.inputs.values()), list(self.params.values())
        yield from ((each, False) for each in inputs if not each.optional)
        yield from ((each, False) for each in params if each.required and not each.keyword)
        yield from ((each, False) for each in inputs if each.optional)
        yield from ((each, False) for each in params if not each.required and not each.keyword)
        yield from ((each, True) for each in params if each.keyword)

    @cached_property
    def signature(self) -> inspect.Signature:
        """How `portable.<op>` is called; inputs default to None where optional, `out=` comes last."""
        parameters = []
        for each, keyword in self._ordered():
            default: Any = inspect.Parameter.empty
            if isinstance(each, Input):
                default = None if each.optional else default
            elif not each.required:
                default = each.default
            kind = inspect.Parameter.KEYWORD_ONLY if keyword else inspect.Parameter.POSITIONAL_OR_KEYWORD
            parameters.append(inspect.Parameter(each.name, kind, default=default))
        if self.out:
            parameters.append(inspect.Parameter("out", inspect.Parameter.KEYWORD_ONLY, default=None))
        return inspect.Signature(parameters)

    def torch_schema(self) -> str:
        """The schema for torch.library.define, e.g. `op(Tensor x, int dim=-1) -> Tensor`."""
        arguments: list[str] = []
        for each, keyword in self._ordered():
            if keyword and "*" not in arguments:
                arguments.append("*")
            if isinstance(each, Input):
                kind = "Tensor"
                if each.mutated:  # each has its own letter: none is a view of another
                    kind += f"({_LETTERS[self.mutated.index(each.name)]}!)"
                arguments.append(f"{kind}? {each.name}=None" if each.optional else f"{kind} {each.name}")
                continue
            kind = _SCHEMA_TYPES.get(each.type, each.type) + "?" * each.nullable
            default = "" if each.required else f"={_schema_literal(each.default)}"
            arguments.append(f"{kind} {each.name}{default}")
        count = len(self.outputs)
        result = "Tensor" if count == 1 else f"({', '.join(['Tensor'] * count)})"
        return f"{self.op}({', '.join(arguments)}) -> {result}"


_SCHEMA_TYPES = {"axis": "int", "choice": "str", "dtype": "ScalarType"}
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def _schema_literal(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)

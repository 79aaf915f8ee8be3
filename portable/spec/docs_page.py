"""Writes an op's page of the documentation from its spec, in Markdown."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence

from portable.spec import registry
from portable.spec.model import Implementation, Spec


def page(spec: Spec) -> str:
    """The page: call, meaning, tensors, dtypes, parameters, accuracy, implementations, errors."""
    parts = [
        f"# {spec.op}",
        spec.summary,
        *_call(spec),
        *_tensors(spec),
        *_types(spec),
        *_params(spec),
        *_semantics(spec),
        *_accuracy(spec),
        *_implementations(spec),
        *_errors(spec),
    ]
    return "\n\n".join(parts) + "\n"


def _call(spec: Spec) -> list[str]:
    if not spec.functions:
        return [f"```python\nportable.{spec.op}{spec.signature}\n```", *_torch_form(spec)]
    names = " and ".join(f"`portable.{each.function}`" for each in spec.functions)
    text = f"The public functions are {names}; see their `help()`. This page describes the op that they call:"
    return [text, f"```python\ntorch.ops.portable.{spec.op}{spec.signature}\n```"]


def _torch_form(spec: Spec) -> list[str]:
    if spec.torch_form is None:
        return []
    signature = inspect.signature(registry.load_entry(spec.torch_form))
    bare = [each.replace(annotation=each.empty) for each in signature.parameters.values()]
    return [f"Torch's form is accepted too: `{spec.op}{inspect.Signature(bare)}`."]


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [[str(cell).replace("|", "\\|") for cell in line] for line in [head, ["---"] * len(head), *rows]]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _tensors(spec: Spec) -> list[str]:
    rows = [
        (
            f"`{each.name}`",
            "input",
            f"`{each.shape_text}`",
            each.dtype,
            "; ".join(
                ["may be None"] * each.optional
                + ["written in place"] * each.mutated
                + ["no gradient"] * (not each.gradient)
            ),
        )
        for each in spec.inputs.values()
    ]
    for each in spec.outputs.values():
        notes = ["may be passed as `out=`"] if each.out else []
        notes += [f"empty if `{each.when}` is None"] if each.when else []
        notes += [f"in memory as `{each.like}`"] if each.like else []
        rows.append((f"`{each.name}`", "output", f"`{each.shape_text}`", each.dtype, "; ".join(notes)))
    sizes = ", ".join(f"`{axis.name}` in {axis}" for axis in spec.axes.values())
    leading = {
        "same": "Leading dimensions (`...`) are the same for every tensor that has them.",
        "broadcast": "Leading dimensions (`...`) broadcast.",
    }[spec.leading]
    notes = [f"Sizes: {sizes}."] if sizes else []
    if any(each.leading for each in spec.inputs.values()):
        notes.append(leading)
    table = _table(["name", "kind", "shape", "dtype", "note"], rows)
    parts = ["## Tensors", table, " ".join(notes)] if notes else ["## Tensors", table]
    if spec.rules:
        rules = (f"- `{rule.that}`: {rule.says}" for rule in spec.rules)
        parts.append("\n".join(["Rules of every call:", "", *rules]))
    return parts


def _types(spec: Spec) -> list[str]:
    head = [*spec.type_variables, "accumulated in"]
    rows = [[*(row[name] for name in spec.type_variables), row["acc"]] for row in spec.types]
    return ["## Dtypes", _table(head, rows)]


def _params(spec: Spec) -> list[str]:
    if not spec.params:
        return []
    rows = [
        (
            f"`{each.name}`",
            each.expected,
            "required" if each.required else f"`{each.default!r}`",
            "keyword only" if each.keyword else "",
        )
        for each in spec.params.values()
    ]
    return ["## Parameters", _table(["name", "value", "default", "note"], rows)]


def _semantics(spec: Spec) -> list[str]:
    autocast = {
        "lower": "Under autocast the inputs are converted to the autocast dtype.",
        "float32": "Under autocast the inputs are converted to float32.",
        "widest": "Under autocast the inputs are converted to the widest of their dtypes.",
        "none": "Autocast does not change the inputs.",
    }[spec.autocast]
    composed = any(each.kind == "run" for each in spec.implementations)
    gradient = "It has a gradient." if spec.gradient or composed else "It has no gradient."
    if not spec.tolerance or not any(each.gradient for each in spec.inputs.values()):  # or integers alone
        gradient = "It has no gradient."
    if spec.mutated:
        gradient = "It has no gradient" + (", where it writes in place." if spec.outputs else ".")
    reference = f"The float64 reference is `{spec.reference.entry}` in the op's folder."
    return ["## Semantics", " ".join([reference, gradient, autocast])]


def _accuracy(spec: Spec) -> list[str]:
    if not spec.tolerance:
        return ["## Accuracy", "The outputs are integers, equal to the reference's."]
    rows = [
        (f"`{name}`", each.result_ulp, f"`{each.accumulation_ulp}`") for name, each in spec.tolerance.items()
    ]
    text = (
        "Against float64 from the same input bits, every element is within"
        " `result_ulp * eps(dtype) * |ref| + accumulation_ulp * eps(acc) * (|ref| + error_scale)`"
        " plus one smallest subnormal. `B` is the product of the leading dimensions."
    )
    head = ["output or mutated input" if spec.mutated else "output", "result_ulp", "accumulation_ulp"]
    return ["## Accuracy", text, _table(head, rows)]


def _implementations(spec: Spec) -> list[str]:
    rows = [
        (f"`{each.name}`", ", ".join(each.languages), _requires(each), ", ".join(each.tunables))
        for each in spec.implementations
    ]
    text = "In order of preference; the first that takes the call runs."
    return ["## Implementations", text, _table(["name", "language", "requires", "tunables"], rows)]


def _requires(each: Implementation) -> str:
    parts = [", ".join(each.requires.arch)] if each.requires.arch else []
    parts += [f"{name}: {', '.join(dtypes)}" for name, dtypes in each.requires.types.items()]
    parts += [f"`{rule}`" for rule in each.requires.rules]
    return "; ".join(parts)


def _errors(spec: Spec) -> list[str]:
    required = [each.name for each in spec.inputs.values()]
    rows = [
        ("`NotATensorError`", f"one of {', '.join(required)} is not a tensor"),
        ("`DtypeError`", "the dtypes are not a row of the table above"),
        ("`RankError`, `ShapeError`", "the shapes do not fit each other or the table above"),
        ("`DeviceError`", "the tensors are not on one device"),
    ]
    if spec.params:
        rows.append(("`ParameterError`", "a parameter has an illegal value"))
    if spec.out:
        when = "`out` has the wrong shape or dtype, overlaps an input or needs a gradient"
        rows.append(("`OutputError`", when))
    if spec.mutated:
        which = " or ".join(f"`{name}`" for name in spec.mutated)
        rows.append(
            ("`OutputError`", f"elements of {which} share memory, with each other or with an argument")
        )
        rows.append(("`UnsupportedGradientError`", f"{which} is given and an argument wants a gradient"))
    rows.append(("`NoImplementationError`", "no implementation takes the call on this device"))
    return ["## Errors", _table(["error", "when"], rows)]

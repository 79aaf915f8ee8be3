"""The options `--shape`, `--param` and `--dtype`, which describe calls to `explain`, `trace` and `tune`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from portable.errors import PortableError, listed, nearest
from portable.spec.model import Spec

Shape = tuple[int, ...]
SHORT = {"fp16": "float16", "fp32": "float32", "fp64": "float64", "bf16": "bfloat16"}


def add_shape(parser: argparse.ArgumentParser, default: str) -> None:
    """`default` says what is taken without the option."""
    parser.add_argument(
        "--shape",
        action="append",
        default=[],
        help="a call: its inputs' shapes in order, joined by commas, - for an absent one, e.g. "
        f"4096x4096,4096x8192; several times for several calls (default: {default}). Without commas one per "
        "input, for ops that need more than one",
    )


def add_param(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--param", action="append", default=[], metavar="NAME=VALUE", help="a parameter of the call"
    )


def calls(texts: Sequence[str], spec: Spec, least: int = 0) -> list[dict[str, Shape | None]]:
    """The inputs' shapes of each call, by name; None: absent. No size is below `least`."""
    needed = sum(1 for each in spec.inputs.values() if not each.optional)
    if texts and needed > 1 and not any("," in text for text in texts):
        texts = [",".join(texts)]
    return [named(spec, [_shape(part, least) for part in text.split(",")]) for text in texts]


def named(spec: Spec, shapes: Sequence[Shape | None]) -> dict[str, Shape | None]:
    """The shapes by input, in the spec's order; what is left out is absent. Raises PortableError."""
    if len(shapes) > len(spec.inputs):
        raise PortableError(f"{spec.op} takes {listed(spec.inputs)}; {len(shapes)} shapes came")
    found = dict(zip(spec.inputs, [*shapes, *[None] * len(spec.inputs)], strict=False))
    for name, field in spec.inputs.items():
        if found[name] is None and not field.optional:
            raise PortableError(f"{spec.op}: the shape of {name} is missing; it takes {listed(spec.inputs)}")
    return found


def _shape(text: str, least: int) -> Shape | None:
    parts = text.strip().lower().split("x")
    if parts == ["-"]:
        return None
    if not all(part.isdecimal() and len(part) < 19 and int(part) >= least for part in parts):
        raise PortableError(
            f"--shape {text!r}: expected sizes from {least} on joined by x, as 512x768; - for none"
        )
    return tuple(int(part) for part in parts)


def params(texts: Sequence[str], spec: Spec) -> dict[str, Any]:
    """The parameters of `--param` by name."""
    found = {}
    for text in texts:
        name, equals, given = text.partition("=")
        if not equals or name not in spec.params:
            raise PortableError(f"--param {text!r}: expected NAME=VALUE of {listed(spec.params)}")
        found[name] = value(given)
        if not spec.params[name].accepts(found[name]):
            raise PortableError(f"--param {text!r}: {name} is {spec.params[name].expected}")
    return found


def value(text: str) -> Any:
    """None, True, False, an int, a float or the text itself."""
    words = {"none": None, "null": None, "true": True, "false": False}
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def types(spec: Spec, name: str | None = None, given: Mapping[str, Any] | None = None) -> Mapping[str, str]:
    """The dtype of every input and parameter that says one: `name` is that of the first type variable, the
    others are of the first row of `types` that has it and what the `given` parameters say. Where none has
    it, all are `name`, for the op to refuse. None is float32, or the first type of an op without float32."""
    import torch

    if name is None:
        first = [row[spec.type_variables[0]] for row in spec.types]
        name = "float32" if "float32" in first else first[0]
    if not isinstance(getattr(torch, name, None), torch.dtype):
        hint = f" Did you mean {SHORT[name]!r}?" if name in SHORT else nearest(name, _known(spec))
        raise PortableError(f"--dtype {name!r} is no dtype of torch.{hint}")
    rows = [row for row in spec.types if row[spec.type_variables[0]] == name]
    given = given or {}
    said = {key: str(given[key]).removeprefix("torch.") for key in spec.dtype_variables if key in given}
    row = next(
        (row for row in rows if said.items() <= spec.dtype_params(row).items()), rows[0] if rows else None
    )
    of_row = dict.fromkeys(spec.types[0], name) if row is None else row
    found = {each.name: of_row.get(each.dtype, each.dtype) for each in spec.inputs.values()}
    return found | spec.dtype_params(of_row)


def types_and_params(
    spec: Spec, dtype: str | None, texts: Sequence[str]
) -> tuple[Mapping[str, str], dict[str, Any]]:
    """The dtypes and the parameters of `--dtype` and `--param`, those that say a dtype among both."""
    given = params(texts, spec)
    found = types(spec, dtype, given)
    return found, {name: found[name] for name in spec.dtype_variables} | given


def _known(spec: Spec) -> list[str]:
    return sorted({dtype for row in spec.types for dtype in row.values()})

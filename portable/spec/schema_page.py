"""docs/spec.md: every key of a spec file with its meaning, from the schema."""

from __future__ import annotations

from portable import dtypes
from portable.spec import schema
from portable.spec.formula import FUNCTIONS
from portable.spec.schema import Key

_HEAD = """# The spec of an op

Written by `make docs` from `portable/spec/schema.py`. A folder with a `spec.yaml` is an op; other YAML files
beside it are its internal ops. A key that is not listed, or is given twice, is refused with its file,
its line and the nearest legal key. `portable new-op NAME` writes a folder to start from.

YAML traps are refused as well: `on`, `yes` and `no` are not booleans, and `1e-6` is a number.

Formulas are strings over axes, B (the number of leading elements), parameters and type variables: arithmetic,
comparisons, `and`, `or`, `not`, `x if c else y`, and {functions}.

Dtypes: {dtypes}. A packed type has two elements in a byte, and its shapes count bytes.
"""

_TITLES = {
    "spec": "A spec",
    "input": "An input",
    "output": "An output",
    "param": "A parameter",
    "rule": "A rule",
    "reference": "`reference`",
    "tolerance": "The tolerance of an output",
    "cost": "`cost`",
    "gradient": "`gradient`, as a mapping",
    "implementation": "An implementation",
    "kernel": "`kernel`, for a shared plan",
    "tile": "A tile of `kernel`",
    "case": "A case",
}


def page() -> str:
    """The text of docs/spec.md."""
    functions = ", ".join(f"`{name}`" for name in sorted(FUNCTIONS))
    names = ", ".join(f"`{name}`" for name in dtypes.DTYPES)
    parts = [_HEAD.format(functions=functions, dtypes=names)]
    for table, title in _TITLES.items():
        parts += [f"## {title}\n", _table({**schema.TABLES, "case": schema.CASE}[table])]
    renamed = [(old, new) for table in schema.RENAMED.values() for old, new in table.items()]
    lines = "".join(f"| `{old}` | {new} |\n" for old, new in renamed)
    parts += ["## Renamed keys\n", f"| was | is |\n|---|---|\n{lines}"]
    return "\n".join(parts)


def _table(keys: dict[str, Key]) -> str:
    lines = ["| key (* required) | value | meaning | example |", "|---|---|---|---|"]
    for name, key in keys.items():
        star, words = " *" if key.required else "", schema.KINDS[key.kind][1]
        lines.append(f"| `{name}`{star} | {words} | {key.meaning} | `{key.example}` |")
    return "\n".join(lines) + "\n"

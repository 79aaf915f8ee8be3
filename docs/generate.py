"""Writes the pages that are deduced: one per op from its spec, the spec's keys from the schema, the page of
batch invariance from the specs, and the page of errors from the classes."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

import portable
from portable import errors
from portable.runtime import detect
from portable.spec import docs_page, registry, schema_page
from portable.spec.model import Implementation

HEAD = """# Errors

Every error is a subclass of `portable.errors.PortableError`, and each says which op and argument, what
came, what was expected and what to do. The facts are attributes as well. An error of torch's kind is
also a subclass of Python's: a wrong dtype is a `TypeError`, a wrong shape a `ValueError`.

| error | also a | when |
|---|---|---|
"""


INVARIANCE = """# Batch-invariant implementations

Written by `make docs` from the specs: which implementations promise a row the same bits whatever rows are
beside it, and so run within `portable.using(batch_invariant=True)`
([the guide](guide.md#batch-invariance)), in the order in which they are tried. In brackets the architectures
and types that they are for: `16-bit` are float16 and bfloat16, and where no type is named the op's own but
float64, which is torch's alone.

| ops | CUDA | ROCm | CPU |
|---|---|---|---|
"""
_HALVES = frozenset({"float16", "bfloat16"})
_TYPES = {_HALVES: ["16-bit"], _HALVES | {"float32"}: []}
_VENDORS = {"cuda": "sm_", "rocm": "gfx", "cpu": ""}


def _invariant(each: Implementation, vendor: str) -> str | None:
    """An implementation as the table names it; None where it promises nothing or is not for the vendor."""
    languages = detect.backend_class(vendor)(registry.vendors()[vendor]).languages
    own = [arch for arch in each.requires.arch or () if arch.startswith(_VENDORS[vendor])]
    if not each.batch_invariant or not set(languages) & set(each.languages):
        return None
    if each.requires.arch and not own:
        return None
    types = list(dict.fromkeys(name for legal in each.requires.types.values() for name in legal))
    words = _TYPES.get(frozenset(types), types)
    limits = ", ".join([*own, *words])
    return f"{each.name} ({limits})" if limits else each.name


def invariance_page() -> str:
    """Which implementations of each op promise batch invariance; ops with the same ones share a line."""
    lines: dict[tuple[str, ...], list[str]] = {}
    for op in sorted(registry.op_folders()):
        found = [
            [_invariant(each, vendor) for each in registry.spec(op).implementations] for vendor in _VENDORS
        ]
        cells = tuple("; ".join(filter(None, names)) or "none" for names in found)
        lines.setdefault(cells, []).append(f"`{op}`")
    rows = [f"| {', '.join(ops)} | {' | '.join(cells)} |" for cells, ops in lines.items()]
    return INVARIANCE + "\n".join(rows) + "\n"


def error_page() -> str:
    """A table of the public error classes in their order in the source."""
    rows = []
    for name, cls in vars(errors).items():
        if inspect.isclass(cls) and issubclass(cls, errors.PortableError) and not name.startswith("_"):
            python = [base.__name__ for base in cls.__mro__ if base.__module__ == "builtins"]
            also = [each for each in python if each not in ("Exception", "BaseException", "object")]
            text = " ".join((inspect.getdoc(cls) or "").split()).replace("|", "\\|")
            rows.append(f"| `{name}` | {', '.join(f'`{each}`' for each in also)} | {text} |")
    return HEAD + "\n".join(rows) + "\n"


def write(folder: Path) -> None:
    """Write `errors.md`, `spec.md`, `batch_invariance.md` and `ops/<op>.md` under `folder`."""
    (folder / "ops").mkdir(parents=True, exist_ok=True)
    (folder / "errors.md").write_text(error_page())
    (folder / "batch_invariance.md").write_text(invariance_page())
    (folder / "spec.md").write_text(schema_page.page())
    for old in (folder / "ops").glob("*.md"):
        old.unlink()
    for op in portable.ops():
        (folder / "ops" / f"{op}.md").write_text(docs_page.page(registry.spec(op)))


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)

"""Writes the pages that are deduced: one per op from its spec, the spec's keys from the schema,
and the page of errors from the classes."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

import portable
from portable import errors
from portable.spec import docs_page, registry, schema_page

HEAD = """# Errors

Every error is a subclass of `portable.errors.PortableError`, and each says which op and argument, what
came, what was expected and what to do. The facts are attributes as well. An error of torch's kind is
also a subclass of Python's: a wrong dtype is a `TypeError`, a wrong shape a `ValueError`.

| error | also a | when |
|---|---|---|
"""


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
    """Write `errors.md`, `spec.md` and `ops/<op>.md` under `folder`."""
    (folder / "ops").mkdir(parents=True, exist_ok=True)
    (folder / "errors.md").write_text(error_page())
    (folder / "spec.md").write_text(schema_page.page())
    for old in (folder / "ops").glob("*.md"):
        old.unlink()
    for op in portable.ops():
        (folder / "ops" / f"{op}.md").write_text(docs_page.page(registry.spec(op)))


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)

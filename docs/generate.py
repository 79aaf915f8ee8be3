"""Writes the pages that are deduced: one per op from its spec, the spec's keys from the schema, the page of
batch invariance from the specs and a record, and the page of errors from the classes."""

from __future__ import annotations

import inspect
import statistics
import sys
from pathlib import Path
from typing import Any

import portable
from portable import errors
from portable.conformance import stats
from portable.conformance.models import configs, measure, record
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
COST = """
## What it costs

Steps of a model of Llama's shape (four layers) on one {device}, both in turn under load; a decode step is a
graph ([record]({link}), {date}):

```console
$ {command}
```

As called, decode steps promise constant weights. Up to 64 rows are `skinny`'s there and `mma`'s within the
block; other products and attention run the same kernels. In brackets the milliseconds of products and of
attention.

| step | as called, ms | within the block, ms | times |
|---|--:|--:|--:|
"""
_RECORD = "conformance/results/h200/models-llama-invariant.json.gz"
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
    return INVARIANCE + "\n".join(rows) + "\n" + invariance_cost()


def invariance_cost() -> str:
    """What a step takes within the block, of the record: medians, and the median of the rounds' ratios."""
    found = record.read(Path(__file__).parents[1] / _RECORD)
    rows = []
    for timed in found["steps"]:
        by_name = {each["name"]: each for each in timed["candidates"]}
        without, within = by_name["portable"], by_name["portable.batch_invariant"]
        step = configs.steps()[timed["step"]]
        sizes = f"{step.kind}, {step.sequences} x {step.tokens}"
        ratio = stats.ratio_interval(without["us"], within["us"]).value
        rows.append(f"| {sizes} | {_parts(without)} | {_parts(within)} | {ratio:.2f} |")
    header = found["header"]
    said = {"device": header["device"], "command": header["command"], "date": header["date"][:10]}
    return COST.format(link=f"../{_RECORD}", **said) + "\n".join(rows) + "\n"


def _parts(candidate: dict[str, Any]) -> str:
    parts = measure.parts(candidate)
    of_parts = ", ".join(f"{parts[name] / 1e3:.2f}" for name in ("GEMM", "attention"))
    return f"{statistics.median(candidate['us']) / 1e3:.2f} ({of_parts})"


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

"""`portable model`: the time of a call by the timing model of an emulated GPU, for each implementation."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

import portable
from portable.backend import Modelled
from portable.dispatch import dispatcher
from portable.errors import PortableError
from portable.runtime import detect
from portable.spec.model import Spec
from portable.tune.problem import Problem


@dataclass(frozen=True)
class Row:
    """One implementation: its launches, one after the other, or the reason why there are none."""

    implementation: str
    launches: Sequence[Modelled]
    flops: float
    bytes: int
    reason: str = ""

    @property
    def seconds(self) -> float:
        return sum(each.seconds for each in self.launches)


def rows(
    spec: Spec,
    tensors: Mapping[str, torch.Tensor],
    types: Mapping[str, str],
    params: Mapping[str, Any],
    impl: str | None,
) -> list[Row]:
    """A row for each implementation that the device can build, or for `impl` alone, in the spec's order."""
    shapes = {name: tuple(tensors[name].shape) if name in tensors else None for name in spec.inputs}
    dtypes = {name: types[name] for name in spec.inputs}
    with detect.main_backend().model():
        found = []  # raised by now where the device has no model
    candidates = dispatcher.candidates(spec.op)
    problem = Problem(spec.op, candidates[0], shapes, dtypes, dict(params))
    for name in [impl] if impl else candidates:
        try:
            launches = launched(spec.op, tensors, params, name)
        except PortableError as error:
            if impl:
                raise
            found.append(Row(name, [], 0, 0, str(error).splitlines()[0]))
            continue
        found.append(Row(name, launches, problem.flops, problem.bytes))
    return found


def launched(
    op: str, tensors: Mapping[str, torch.Tensor], params: Mapping[str, Any], impl: str
) -> list[Modelled]:
    """The launches of one call, pinned to an implementation or language."""
    with detect.main_backend().model() as launches, portable.using(**{op: impl}):
        dispatcher.op(op)(**tensors, **params)
    return launches


def show(op: str, tensors: Mapping[str, torch.Tensor], found: Sequence[Row]) -> None:
    """A table on a terminal, one line per implementation elsewhere."""
    call = " ".join(f"{name} {'x'.join(map(str, each.shape))}" for name, each in tensors.items())
    accuracy = next((row.launches[0].accuracy for row in found if row.launches), "")
    title = f"{op} {call} on {portable.device()}: modelled, {accuracy}"
    if sys.stdout.isatty():
        _table(title, found)
        return
    print(title)
    for row in found:
        cells = [f"{label} {text}" for label, text in _cells(row)] if row.launches else [row.reason]
        print(f"    {row.implementation:<12} {', '.join(cells)}")


def _cells(row: Row) -> list[tuple[str, str]]:
    longest = max(row.launches, key=lambda each: each.seconds)
    waits = sorted(((share, name) for name, share in longest.waves.items() if name != "issue"), reverse=True)
    return [
        ("us", f"{row.seconds * 1e6:.4g}"),
        ("TFLOP/s", f"{row.flops / row.seconds / 1e12:.4g}"),
        ("GB/s", f"{row.bytes / row.seconds / 1e9:.4g}"),
        ("bound", f"{longest.bound:.2f}"),
        ("GHz", f"{longest.ghz:.2f}"),
        ("matrix pipe", f"{longest.matrix_share:.2f}"),
        ("vector pipe", f"{longest.vector_share:.2f}"),
        ("waves wait for", ", ".join(f"{name} {share:.2f}" for share, name in waits[:2] if share >= 0.01)),
        ("launches", f"{len(row.launches)}"),
    ]


def _table(title: str, found: Sequence[Row]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table("implementation", title=escape(title), title_justify="left")
    labels = next(([label for label, _ in _cells(row)] for row in found if row.launches), [])
    for label in labels:
        table.add_column(label, justify="left" if label == "waves wait for" else "right")
    for row in found:
        cells = [text for _, text in _cells(row)] if row.launches else [""] * max(0, len(labels) - 2)
        table.add_row(row.implementation, *map(escape, cells if row.launches else [*cells, row.reason]))
    Console().print(table)


def as_data(op: str, tensors: Mapping[str, torch.Tensor], found: Sequence[Row]) -> dict[str, Any]:
    """A modelled call for JSON."""
    return {
        "op": op,
        "inputs": {
            name: {"shape": list(each.shape), "dtype": str(each.dtype).removeprefix("torch.")}
            for name, each in tensors.items()
        },
        "implementations": [
            {
                "implementation": row.implementation,
                "reason": row.reason,
                "seconds": row.seconds if row.launches else None,
                "launches": [asdict(each) for each in row.launches],
            }
            for row in found
        ],
    }

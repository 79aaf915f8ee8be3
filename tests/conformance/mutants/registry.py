"""What a mutant is, and how the modules of this folder add one."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Edit:
    """A change of one file below kernels/: `old`, found exactly `times` times, becomes `new`.

    `$name` in `old` stands for any identifier, with its members (`c.N`), and for the same one in `new`: a
    renamed variable leaves the mutant whole. Blanks inside `old` stand for any blanks.
    """

    file: str
    old: str
    new: str
    times: int = 1

    def applied(self, text: str) -> str:
        """`text` with the change; ValueError where `old` is not there `times` times."""
        seen: set[str] = set()
        pattern = ""
        inner = self.old.strip()
        for part in re.split(r"(\$\w+|\s+)", inner):
            if part.isspace():
                pattern += r"\s+"
            elif part.startswith("$"):
                name = part[1:]
                pattern += rf"(?P={name})" if name in seen else rf"(?P<{name}>\b[A-Za-z_][\w.]*)"
                seen.add(name)
            else:
                pattern += re.escape(part)
        head, _, tail = self.old.partition(inner)
        pattern = re.escape(head) + pattern + re.escape(tail)
        found = len(re.findall(pattern, text))
        if found != self.times:
            raise ValueError(f"{self.file} has {self.old!r} {found} times, not {self.times}")
        return re.sub(pattern, lambda match: re.sub(r"\$(\w+)", lambda name: match[name[1]], self.new), text)


@dataclass(frozen=True)
class Mutant:
    """One wrong kernel.

    `kind` says how it takes the place of a right one: "torch" (`function` instead of the op's torch
    implementation, on the CPU), "call" (`function` around the op as callers see it) or "source" (`edits`
    of the files of the implementation `impl`, run on the emulated GPU `arch`). With
    `claims_batch_invariance` it is asked for that where the right one's spec denies it.
    """

    op: str
    name: str
    kind: str
    function: Callable[..., Any] | None = None
    edits: tuple[Edit, ...] = ()
    impl: str = "torch"
    arch: str = ""
    claims_batch_invariance: bool = False

    @property
    def id(self) -> str:
        where = f"{self.impl} on {self.arch}: " if self.arch else ""
        return f"{self.op}: {where}{self.name}"


found: list[Mutant] = []


def mutant(op: str, name: str, kind: str = "torch") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds the decorated function to the catalogue."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        found.append(Mutant(op, name, kind, function))
        return function

    return add


def adder(op: str) -> Callable[..., Callable[[type], type]]:
    """A decorator of classes by a mutant's name: an instance stands for the op's torch implementation."""

    def named(name: str, **fields: Any) -> Callable[[type], type]:
        def add(kind: type) -> type:
            found.append(Mutant(op, name, "torch", kind(), **fields))
            return kind

        return add

    return named


def source(op: str, impl: str, arch: str, name: str, *edits: Edit) -> None:
    """Adds a change of an implementation's source to the catalogue."""
    found.append(Mutant(op, name, "source", None, edits, impl, arch))

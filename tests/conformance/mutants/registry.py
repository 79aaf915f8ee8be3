"""What a mutant is, and how the modules of this folder add one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Edit:
    """A textual change of one file below kernels/: `old`, found exactly `times` times, becomes `new`."""

    file: str
    old: str
    new: str
    times: int = 1


@dataclass(frozen=True)
class Mutant:
    """One wrong kernel.

    `kind` says how it takes the place of a right one: "torch" (`function` instead of the op's torch
    implementation, on the CPU), "call" (`function` around the op as callers see it) or "source" (`edits`
    of the files of the implementation `impl`, run on the emulated card `arch`).
    """

    op: str
    name: str
    kind: str
    function: Callable[..., Any] | None = None
    edits: tuple[Edit, ...] = ()
    impl: str = "torch"
    arch: str = ""

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


def adder(op: str) -> Callable[[str], Callable[[type], type]]:
    """A decorator of classes by a mutant's name: an instance stands for the op's torch implementation."""

    def named(name: str) -> Callable[[type], type]:
        def add(kind: type) -> type:
            found.append(Mutant(op, name, "torch", kind()))
            return kind

        return add

    return named


def source(op: str, impl: str, arch: str, name: str, *edits: Edit) -> None:
    """Adds a change of an implementation's source to the catalogue."""
    found.append(Mutant(op, name, "source", None, edits, impl, arch))

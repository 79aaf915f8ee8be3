"""What the suite says to people: failures as paragraphs, tables, how a process ended."""

from __future__ import annotations

import io
import math
import os
import re
import shlex
import signal
import sys
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


class UsageError(Exception):
    """A user's mistake; printed as one sentence, exit code 2."""


def paragraph(result: Any, again: str, count: int = 1, note: str = "") -> str:
    """One failing case as text, with the command or call that runs exactly it again; of `count` equal ones
    the first. `note` is what else is known of it."""
    message = "\n".join(filter(None, (plain(result.message), note))).replace("\n", "\n  ")
    equal = f" in {count:,} cases, the first" if count > 1 else ":"
    return f"\n{result.state}{equal} {result.case.id} on {result.impl}\n  {message}\n  again: {again}"


def plain(text: str) -> str:
    """`text` without what a terminal would obey: colours, control characters but tab and newline."""
    return _CONTROL.sub("", text)


def kind(impl: str, state: str, message: str) -> tuple[str, str, str]:
    """What failures of one kind share; numbers, indices and strides set no two messages apart, nor do dtypes
    and addresses those of exceptions. An exception's place does: an assertion may say nothing else."""
    message = message.partition(f"\n{NOT_CONTIGUOUS}")[0]
    if state in EXCEPTIONS:
        message, place = _split_place(message)
        message = _DTYPES.sub("DTYPE", _ADDRESSES.sub("#", message))
        state = f"{state} {place}"
    return impl, state, _NUMBERS.sub("#", message[: 2 * COMPARED])[:COMPARED]


def grouped(failures: Iterable[tuple[str, str, str, T]]) -> list[list[T]]:
    """Failures of one kind together, in the order of the first of each. A failure comes as (implementation,
    state, message, itself)."""
    found: dict[tuple[str, str, str], list[T]] = {}
    for impl, state, message, failure in failures:
        found.setdefault(kind(impl, state, message), []).append(failure)
    return list(found.values())


def alike(others: Sequence[str]) -> str:
    """A line on the ids of further failures of one kind, "" for none."""
    if not others:
        return ""
    named = ", ".join(others[:SHOWN_ALIKE])
    rest = len(others) - SHOWN_ALIKE
    more = f" and {rest} more" if rest > 0 else ""
    verb = "fails" if len(others) == 1 else "fail"
    return f"{len(others)} more {verb} in this way: {named}{more}"


def _split_place(message: str) -> tuple[str, str]:
    """An exception's message without its place in the function's file, and the place."""
    found = _PLACE.search(message)
    return (message[: found.start()], found[1]) if found else (message, "")


EXCEPTIONS = frozenset({"Crash", "CompileError", "ResourceError"})
"""The states of a case in which the implementation raised."""
NOT_CONTIGUOUS = "not contiguous: "
"""Begins the line of a failure's message that has the strides of its inputs."""
SHOWN_ALIKE = 3
COMPARED = 300
"""Characters by which two messages are told apart."""
_NUMBERS = re.compile(r"\[[^\]]*\]|\([\d, x]*\)|[-+]?(?:\b(?:nan|inf)\b|\d[\d.,_]*(?:e[-+]?\d+)?)")
_ADDRESSES = re.compile(r"\b0x[0-9a-fA-F]+")
_DTYPES = re.compile(
    r"(?:torch\.)?\b(?:b?float(?:\d+\w*)?|bf16|[fi]p?(?:8|16|32|64)|u?int\d+|bool|"
    r"BFloat16|Half|Float|Double|Char|Byte|Short|Int|Long)\b"
)
"""Element types as torch, Triton and C++ name them in their messages."""
_PLACE = re.compile(r" \(([^()\s]+:\d+)\)$")
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def escape_unencodable() -> None:
    """Let standard output take every text: what its encoding lacks is printed as an escape."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def discard_stdout() -> None:
    """Discard further output: the reader has closed the pipe, or the disk is full."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    except (OSError, ValueError):  # standard output is no file
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115


def rerun(case: str, impl: str, options: Sequence[str]) -> str:
    """The command that runs one case again; `options` name its device."""
    return shlex.join(["portable-conformance", "rerun", case, "--impl", impl, *options])


def ended(code: int | None, said: Sequence[str] = ()) -> str:
    """How a process ended, by its exit code (None: it had to be killed), and its last output."""
    if code is None:
        text = "the worker hung"
    elif code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        text = f"the worker was killed by {name}"
        if name == "SIGKILL":
            text += " (the system's out-of-memory killer does that)"
    else:
        text = f"the worker ended with exit code {code}"
    return text + "".join(f"\n{line}" for line in said)


def pluralize(count: int, noun: str) -> str:
    """`1 result`, `7,614 results`; a noun in -y gets -ies."""
    if count == 1:
        return f"1 {noun}"
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{count:,} {plural}"


def number(value: float | str | None, digits: int = 3) -> str:
    """`value` in few digits; a dash for None. Records hold NaN and Inf as strings."""
    if value is None:
        return "–"
    value = float(value)
    if not math.isfinite(value):
        return str(value)
    if value and not 1e-3 <= abs(value) < 1e6:
        return f"{value:.{digits - 1}e}"
    whole = len(str(int(abs(value)))) if abs(value) >= 1 else 0
    return f"{value:,.{max(digits - whole, 0)}f}" if value else "0"


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A rich table on a terminal, aligned columns elsewhere."""
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table

        table = Table(*head)
        for row in rows:
            table.add_row(*map(_escape, row))
        Console().print(table)
        return
    widths = [max(len(str(row[place])) for row in (head, *rows)) for place in range(len(head))]
    for row in (head, *rows):
        print("  ".join(str(text).ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())


def _escape(text: object) -> str:
    """Text in which rich finds no markup."""
    return re.sub(r"\[", r"\\[", str(text))

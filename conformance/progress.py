"""How far a run is: a bar for a person at a terminal, now and then a plain line elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Any, TextIO

EVERY = 20.0
"""Seconds between two plain lines; they also say how long the rest takes at the pace so far."""


class Progress:
    """Counts results; `say` prints above the bar. `stream` is standard output unless another is given; the
    first plain line comes after `first` seconds."""

    def __init__(self, total: int, done: int = 0, stream: TextIO | None = None, first: float = EVERY):
        self._total, self._done, self._failed = total, done, 0
        self._stream, self._done_before = stream, done
        self._bar: Any = None
        self._start = time.monotonic()
        self._next = self._start + min(EVERY, first)
        if (stream or sys.stdout).isatty():
            import rich.progress as rich
            from rich.console import Console

            self._bar = rich.Progress(
                rich.TextColumn("{task.description:<22}"),
                rich.BarColumn(),
                rich.MofNCompleteColumn(),
                rich.TextColumn("{task.fields[failed]}"),
                rich.TimeElapsedColumn(),
                rich.TimeRemainingColumn(),
                console=Console(file=stream),
                transient=True,
            )
            self._task = self._bar.add_task("", total=total, completed=done, failed="")

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, op: str, failed: bool) -> None:
        """One more result, of `op`."""
        self._done += 1
        self._failed += failed
        words = f"{self._failed} failing" if self._failed else ""
        if self._bar is not None:
            self._bar.update(self._task, advance=1, description=op, failed=words)
        elif time.monotonic() >= self._next:
            self._next = time.monotonic() + EVERY
            parts = [f"{self._done} of {self._total} results", op, words, self._left()]
            print(f"  {', '.join(filter(None, parts))}", file=self._stream, flush=True)

    def _left(self) -> str:
        """How long the rest takes at the pace so far, in words; "" at the end."""
        pace = (time.monotonic() - self._start) / (self._done - self._done_before)
        seconds = pace * (self._total - self._done)
        if self._done >= self._total:
            return ""
        return f"about {seconds:.0f} s left" if seconds < 100 else f"about {seconds / 60:.0f} min left"

    def say(self, text: str) -> None:
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False, emoji=False, soft_wrap=True)
        else:
            print(text, file=self._stream, flush=True)

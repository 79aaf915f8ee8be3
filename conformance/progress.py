"""How far a run is: a bar for a person at a terminal, now and then a plain line elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Any

EVERY = 20.0
"""Seconds between two plain lines."""


class Progress:
    """Counts results; `say` prints above the bar."""

    def __init__(self, total: int, done: int = 0):
        self._total, self._done, self._failed = total, done, 0
        self._bar: Any = None
        self._next = time.monotonic() + EVERY
        if sys.stdout.isatty():
            import rich.progress as rich

            self._bar = rich.Progress(
                rich.TextColumn("{task.description:<22}"),
                rich.BarColumn(),
                rich.MofNCompleteColumn(),
                rich.TextColumn("{task.fields[failed]}"),
                rich.TimeElapsedColumn(),
                rich.TimeRemainingColumn(),
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
            print(f"  {self._done} of {self._total} results, {op}" + f", {words}" * bool(words), flush=True)

    def say(self, text: str) -> None:
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False, emoji=False, soft_wrap=True)
        else:
            print(text, flush=True)

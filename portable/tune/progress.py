"""How far tuning is: a line that moves where a person watches, now and then a plain line elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Any

EVERY = 10.0
"""Seconds between two plain lines."""


class Progress:
    """Results go to standard output, how far it is to standard error."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._next = time.monotonic() + EVERY

    def __enter__(self) -> Progress:
        if sys.stderr.isatty():
            import rich.progress as rich
            from rich.console import Console

            self._bar = rich.Progress(
                rich.TextColumn("{task.description:<28}"),
                rich.BarColumn(),
                rich.MofNCompleteColumn(),
                rich.TimeElapsedColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._task = self._bar.add_task("", total=None)
            self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def step(self, what: str, done: int, total: int) -> None:
        if self._bar is not None:
            self._bar.update(self._task, description=what, completed=done, total=total)
        elif time.monotonic() >= self._next:
            self._next = time.monotonic() + EVERY
            print(f"  {what}: {done} of {total}", file=sys.stderr, flush=True)

    def say(self, text: str) -> None:
        if self._bar is not None and sys.stdout.isatty():
            self._bar.console.file.flush()
            self._bar.stop()
            print(text, flush=True)
            self._bar.start()
        else:
            print(text, flush=True)

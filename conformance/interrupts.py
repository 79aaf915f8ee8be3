"""What ends a run from outside: Ctrl-C, SIGTERM and SIGHUP, each of them a KeyboardInterrupt."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Interrupts:
    """The handler of signals that end a run: KeyboardInterrupt, but once in a moment, and not when `ending`,
    ignored while the record is being written."""

    MOMENT = 0.5

    def __init__(self) -> None:
        self.ending = False
        self._last = -self.MOMENT

    def __call__(self, number: int, frame: object) -> None:
        now = time.monotonic()
        if not self.ending and now - self._last >= self.MOMENT:
            self._last = now
            raise KeyboardInterrupt


@contextmanager
def interrupts() -> Iterator[Interrupts]:
    """SIGTERM and SIGHUP interrupt as Ctrl-C does; one that is ignored (nohup) stays so."""
    handler = Interrupts()
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for name in ("SIGINT", "SIGTERM", "SIGHUP"):
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, handler)
    try:
        yield handler
    finally:
        for number, old in before.items():
            signal.signal(number, old)

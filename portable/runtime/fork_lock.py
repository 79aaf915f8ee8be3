"""Locks that a fork waits for: none is ever held by a thread that the child has not.

What they protect may be half done in C++ (a compiler, a registry of torch), so new locks would not do.
"""

from __future__ import annotations

import os
import threading
from typing import Any

_locks: list[Any] = []


class _Forking(threading.local):
    """What this thread holds while it forks."""

    def __init__(self) -> None:
        self.taken: list[Any] = []

    def take_all(self) -> None:
        """Takes all locks, or holds none while it waits, so that threads may take them in any order."""
        while True:
            for lock in list(_locks):
                if not lock.acquire(blocking=False):
                    self.release_all()
                    with lock:
                        break
                self.taken.append(lock)
            else:
                return

    def release_all(self) -> None:
        while self.taken:
            self.taken.pop().release()


_forking = _Forking()


def fork_lock() -> Any:
    """A new re-entrant lock."""
    if not _locks and hasattr(os, "register_at_fork"):
        release = _forking.release_all
        os.register_at_fork(before=_forking.take_all, after_in_parent=release, after_in_child=release)
    _locks.append(threading.RLock())
    return _locks[-1]

"""A worker process's end of its pipes: requests on standard input, answers on standard output."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, TextIO

Send = Callable[[dict[str, Any]], None]
"""Writes an answer as one line of JSON."""


def die_with_parent() -> None:
    """A hung kernel must not outlive the run (Linux: PR_SET_PDEATHSIG)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def claim_stdio() -> tuple[TextIO, Send]:
    """The tasks, and how to answer. From then on kernels read nothing, and print to standard error."""
    tasks = os.fdopen(os.dup(0), encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)

    def send(message: dict[str, Any]) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    return tasks, send

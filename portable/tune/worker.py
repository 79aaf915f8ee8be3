"""A process that compiles or runs kernels for the tuner, so that a crash ends it and not the tuner.

One request is one line of JSON, and so is its answer; lines {"begin": ...} before it name what the process is
about to do, so that a crash is attributed to it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

PROGRAM = (sys.executable, "-m", "portable.tune.trial_worker")
KILL_SECONDS = 10.0


class Died(Exception):
    """The process ended, or was killed, before it answered; the text is how, `doing` is what it had begun."""

    def __init__(self, how: str, doing: str):
        super().__init__(how)
        self.doing = doing


class Worker:
    """One process, used by the thread that made it."""

    def __init__(self, program: Sequence[str] = PROGRAM):
        self._words = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
        self._process = subprocess.Popen(
            list(program),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._words,
            start_new_session=True,  # Ctrl-C is for the parent alone
        )
        self._rest = b""

    def request(self, message: dict[str, Any], seconds: float) -> dict[str, Any]:
        """The answer to one request. Raises Died where none comes within so many seconds."""
        until, doing = time.monotonic() + seconds, ""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        while True:
            line = self._line(until, doing)
            try:
                answer = json.loads(line)
            except ValueError:
                raise Died(f"it sent a line that is no JSON: {line[:80]!r}", doing) from None
            if "begin" not in answer:
                return answer
            doing = answer["begin"]

    def _line(self, until: float, doing: str) -> bytes:
        assert self._process.stdout is not None
        handle = self._process.stdout.fileno()
        while b"\n" not in self._rest:
            left = until - time.monotonic()
            if left <= 0:
                raise Died("it did not answer in time", doing)
            if not select.select([handle], [], [], min(left, 1.0))[0]:
                continue
            chunk = os.read(handle, 1 << 16)
            if not chunk:
                raise Died(self._end(), doing)
            self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def _end(self) -> str:
        """How it ended, with the last line it printed."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(KILL_SECONDS)
        code = self._process.returncode or 0
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        self._words.seek(0)
        said = self._words.read()[-4000:].decode(errors="replace").strip().splitlines()
        return f"{how}: {said[-1]}" if said else how

    def kill(self) -> None:
        """End it and all that it started; any thread may."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        self.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(KILL_SECONDS)
        for stream in (self._process.stdin, self._process.stdout, self._words):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

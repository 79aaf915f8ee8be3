"""A worker's process and the pipes to it: lines of JSON out and in, its standard error, its end."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from portable.conformance.text import ended

PROGRAM = (sys.executable, "-m", "portable.conformance.workers.worker")
LONGEST = 1 << 24
"""Bytes of one line: more is no message but a flood."""
LAST_WORDS = 4000
"""Bytes of standard error that are kept."""
KILL_SECONDS = 10.0
"""For a killed process to go. One that a driver holds does not, and is left behind."""
_LOOK = 1.0
"""Seconds between two looks at whether a silent worker lives: what it forked may hold its pipe open."""


class ProtocolError(Exception):
    """The worker sent what is no valid message; the text says why."""


class Worker:
    """One process. One thread sends and receives; any may `kill` it."""

    def __init__(self, program: Sequence[str]):
        self._process = subprocess.Popen(
            list(program),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # an interrupt from the terminal is for the parent alone
        )
        assert self._process.stdout is not None and self._process.stderr is not None
        self._out, self._err = self._process.stdout.fileno(), self._process.stderr.fileno()
        self._poll = select.poll()  # select.select takes no file descriptor from 1024 on
        for handle in (self._out, self._err):
            self._poll.register(handle, select.POLLIN)
        self._rest = bytearray()
        self._words = b""
        self._silent = False

    def send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has died; receive says so
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()

    def receive(self, until: float) -> dict[str, Any] | None:
        """The next message; None when the worker has ended. Raises TimeoutError at `until`, by the clock of
        time.monotonic, and ProtocolError for what is no message."""
        seen, late = 0, False
        while (end := self._rest.find(b"\n", seen)) < 0:
            if self._silent:
                return None
            if len(self._rest) > LONGEST:
                raise ProtocolError(f"a line of more than {LONGEST} bytes")
            left = until - time.monotonic()
            if left <= 0:
                if late:
                    raise TimeoutError
                late = True  # one look more: this process may have been asleep
            seen = len(self._rest)
            if not self._read(max(0.0, min(left, _LOOK))) and self._has_ended():
                self._silent = True
        line = bytes(self._rest[:end])
        del self._rest[: end + 1]
        return _parsed(line)

    def _read(self, seconds: float) -> bool:
        """Read what arrives within so many seconds; False where nothing did."""
        found = self._poll.poll(seconds * 1000)
        for handle, _ in found:
            chunk = os.read(handle, 1 << 16)
            if handle == self._out:
                self._rest += chunk
            else:
                self._words = (self._words + chunk)[-LAST_WORDS:]
            if not chunk:
                self._poll.unregister(handle)
                self._silent = self._silent or handle == self._out
        return bool(found)

    def _has_ended(self) -> bool:
        """Whether the process has ended. It stays a zombie, so that its number stays its own."""
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        try:
            return os.waitid(os.P_PID, self._process.pid, flags) is not None
        except ChildProcessError:
            return True

    def end(self) -> str:
        """How it ended, with the last lines of its standard error; kills it if it has not."""
        until = time.monotonic() + 2.0
        while not self._has_ended() and time.monotonic() < until:
            if not self._read(0.02):
                time.sleep(0.01)
        hung = not self._has_ended()
        while self._read(0.0) and time.monotonic() < until:
            pass
        self.close()
        said = self._words.decode(errors="replace").strip().splitlines()
        return ended(None if hung else self._process.returncode, said[-3:])

    def kill(self) -> None:
        """Kill its whole session: what the worker started itself too."""
        if self._process.returncode is None:  # else its number may be another's by now
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Kill it and give back its pipes; to be called by the thread that speaks to it."""
        self.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(KILL_SECONDS)
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        message = json.loads(line, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise ProtocolError(f"no JSON: {line[:80]!r}") from None
    if not isinstance(message, dict):
        raise ProtocolError(f"no object: {line[:80]!r}")
    return message


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")

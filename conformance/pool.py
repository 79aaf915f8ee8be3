"""Runs cases in worker processes: a crash, a hang or a lost device is the result of one case, and the run
goes on in a fresh worker.

`run` answers with what happened as it happens. A worker is `worker.py`, spoken to over pipes in lines of
JSON; here are its deadline, its death and what they make of the case that was under way.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from portable.conformance.words import ended

START_SECONDS = 180.0
"""For a worker to import torch and find its device."""
STARTS = 2
"""Starts in a row that may fail before the device counts as lost."""


@dataclass(frozen=True)
class Task:
    """One line for a worker: `op` for keeping alike work together, `impls` that it is asked of, and `seconds`
    that it may take beyond the limit of a single result."""

    op: str
    ask: dict[str, Any]
    case: str = ""
    impls: tuple[str, ...] = ()
    seconds: float = 0.0

    def without(self, done: Sequence[str]) -> Task:
        """The same case, of the implementations that are not `done`."""
        left = tuple(name for name in self.impls if name not in done)
        return replace(self, impls=left, ask={**self.ask, "impls": list(left)})


def case_task(op: str, case: str, impls: Sequence[str]) -> Task:
    return Task(op, {"case": case, "impls": list(impls)}, case, tuple(impls))


@dataclass
class _Queue:
    """Tasks by op: a worker stays with its op while that has any, so that what it compiled and loaded is used
    again, and then takes the op with the most left that fewest others are at."""

    tasks: dict[str, list[Task]] = field(default_factory=dict)
    at: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def put(self, tasks: Sequence[Task]) -> None:
        with self.lock:
            for op in dict.fromkeys(task.op for task in tasks):
                self.tasks.setdefault(op, []).extend(task for task in reversed(tasks) if task.op == op)

    def take(self, op: str) -> Task | None:
        with self.lock:
            self.at[op] -= 1
            left = [name for name, tasks in self.tasks.items() if tasks]
            if not left:
                return None
            if op not in left:
                op = min(left, key=lambda name: (self.at[name], -len(self.tasks[name])))
            self.at[op] += 1
            return self.tasks[op].pop()


class Worker:
    """One process and the pipe to it."""

    def __init__(self, options: Sequence[str]):
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-m", "portable.conformance.worker", *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            start_new_session=True,  # an interrupt from the terminal is for the parent alone
        )
        self._rest = b""

    def ask(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has died; receive says so
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()

    def receive(self, until: float) -> dict[str, Any] | None:
        """The next message; None when the worker has ended. Raises TimeoutError at `until`, by the clock of
        time.monotonic."""
        assert self._process.stdout is not None
        handle = self._process.stdout.fileno()
        while b"\n" not in self._rest:
            left = until - time.monotonic()
            if left <= 0 or not select.select([handle], [], [], left)[0]:
                raise TimeoutError
            chunk = os.read(handle, 1 << 16)
            if not chunk:
                return None
            self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\n")
        return json.loads(line)

    def end(self) -> str:
        """How it ended, with the last words of its standard error; kills it if it has not."""
        try:
            code: int | None = self._process.wait(2.0)
        except subprocess.TimeoutExpired:
            code = None
        self.close()
        self._stderr.seek(0)
        said = self._stderr.read()[-4000:].decode(errors="replace").strip().splitlines()
        return ended(code, said[-3:])

    def kill(self) -> None:
        """Kills its whole session: what the worker started itself too."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Kills it and gives back its pipes; to be called by the thread that speaks to it."""
        self.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


def here(tasks: Sequence[Task], excuse: Any) -> Iterator[dict[str, Any]]:
    """The same in this process, for a debugger: a crash takes the run with it."""
    from portable.conformance import runner, worker

    lost = ""
    for task in tasks:
        said: list[dict[str, Any]] = []
        try:
            if not lost:
                worker.perform(task.ask, runner.torch_device(), excuse, said.append)
        except runner.DeviceLost as error:
            lost = f"the device was lost in {error.result.case.id} on {error.result.impl}"
            said.append({"result": error.result.entry()})
        yield from said
        answered = [message["result"]["impl"] for message in said if "result" in message]
        for name in task.without(answered).impls if lost else ():
            yield {"result": {"case": task.case, "impl": name, "state": "NotRun", "message": lost}}


class Pool:
    """`jobs` workers with `options` (the device) that share out tasks; `timeout` seconds for each result."""

    def __init__(self, options: Sequence[str], jobs: int, timeout: float):
        self._options = list(options)
        self._jobs = jobs
        self._timeout = timeout
        self._messages: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._stop = threading.Event()
        self._workers: set[Worker] = set()
        self._lost = ""

    def run(self, tasks: Sequence[Task]) -> Iterator[dict[str, Any]]:
        """What the workers say, and {"result": ...} for what they cannot say. Every case of every task has a
        result in the end. Closing the iterator kills the workers."""
        work = _Queue()
        work.put(tasks)
        count = max(1, min(self._jobs, len(tasks)))
        threads = [threading.Thread(target=self._serve, args=(work,), daemon=True) for _ in range(count)]
        for thread in threads:
            thread.start()
        try:
            going = count
            while going:
                message = self._messages.get()
                if message is None:
                    going -= 1
                else:
                    yield message
        finally:
            self._stop.set()
            for worker in list(self._workers):
                worker.kill()
            for thread in threads:
                thread.join()

    # One thread per worker -------------------------------------------------------------------------

    def _serve(self, work: _Queue) -> None:
        worker: Worker | None = None
        op = ""
        try:
            while not self._stop.is_set():
                task = work.take(op)
                if task is None:
                    break
                op = task.op
                worker = worker or self._start()
                if worker is None:
                    self._say_of_all(task.impls, task, "NotRun", self._lost)
                    continue
                left = self._ask(worker, task)
                if left is None:
                    continue
                self._discard(worker)
                worker = None
                if left.impls:
                    work.put([left])
        except Exception as error:
            if not self._stop.is_set():
                self._messages.put({"fault": f"the pool failed: {type(error).__name__}: {error}"})
        finally:
            if worker is not None:
                self._discard(worker)
            self._messages.put(None)

    def _discard(self, worker: Worker) -> None:
        worker.close()
        self._workers.discard(worker)

    def _start(self) -> Worker | None:
        """A worker that is ready; None when the device is lost."""
        why = ""
        for _ in range(STARTS):
            if self._lost or self._stop.is_set():
                return None
            worker = Worker(self._options)
            self._workers.add(worker)
            try:
                if worker.receive(time.monotonic() + START_SECONDS) is not None:
                    return worker
                why = worker.end()
            except TimeoutError:
                why = f"it was not ready after {START_SECONDS:.0f} s"
            self._discard(worker)
        self._lost = f"no worker starts on the device any more: {why}"
        return None

    def _ask(self, worker: Worker, task: Task) -> Task | None:
        """Put one task to a worker. None when it was done; else what is left, and the worker is to go."""
        worker.ask(task.ask)
        seconds = self._timeout + task.seconds
        case, impl, answered = task.case, "", []
        while True:
            state = why = ""
            try:
                message = worker.receive(time.monotonic() + seconds)
                if message is None:
                    state, why = "Crash", worker.end()
            except TimeoutError:
                message = None
                state, why = "Timeout", f"no answer after {seconds:g} s; the worker was killed"
            if self._stop.is_set():
                return None
            if message is None:
                if impl:
                    self._say(case, impl, state, why)
                    return task.without([*answered, impl])
                left = task.without(answered)
                self._say_of_all(left.impls, task, "InternalError", f"before any implementation ran: {why}")
                return task.without(task.impls)
            if "done" in message:
                return None
            if "begin" in message:
                case, impl = message["begin"]
            elif "result" in message:
                answered.append(message["result"]["impl"])
                impl = ""
            self._messages.put(message)
            if message.get("lost"):
                return task.without(answered)

    def _say(self, case: str, impl: str, state: str, why: str) -> None:
        self._messages.put({"result": {"case": case, "impl": impl, "state": state, "message": why}})

    def _say_of_all(self, impls: Sequence[str], task: Task, state: str, why: str) -> None:
        """One result for each implementation; for a task that is no case, a fault of the run."""
        for name in impls:
            self._say(task.case, name, state, why)
        if not task.case:
            self._messages.put({"fault": f"{next(iter(task.ask))} of {task.op}: {why}"})

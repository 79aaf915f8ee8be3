"""Runs cases in worker processes: a crash, a hang or a lost device is the result of one case, and the run
goes on in a fresh worker.

`run` answers with what happened as it happens. A worker is `worker.py`, spoken to over pipes in lines of
JSON (`process.py`); this module has its deadline, its crash, and the result of the case that was running.
Messages that do not match the outstanding request end the worker.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from portable.conformance.cases.case import op_of
from portable.conformance.records.schema import OPTIONAL_FIELDS, RESULT_FIELDS
from portable.conformance.states import STATES
from portable.conformance.workers.process import PROGRAM, ProtocolError, Worker

START_SECONDS = 180.0
"""For a worker to import torch and find its device."""
STARTS = 2
"""Starts in a row that may fail before a worker is given up; the device is lost with the last of them."""


@dataclass(frozen=True)
class Task:
    """One request to a worker: tasks of one `op` go to one worker, `impls` run it. An answer may take
    `seconds` beyond the limit of a single result, all answers together `whole` seconds."""

    op: str
    request: dict[str, Any]
    case: str = ""
    impls: tuple[str, ...] = ()
    seconds: float = 0.0
    whole: float = math.inf

    def without(self, done: Sequence[str]) -> Task:
        """The same case, of the implementations that are not `done`."""
        left = tuple(name for name in self.impls if name not in done)
        return replace(
            self, impls=left, request={**self.request, "impls": list(left)} if self.case else self.request
        )


def case_task(op: str, case: str, impls: Sequence[str]) -> Task:
    return Task(op, {"case": case, "impls": list(impls)}, case, tuple(impls))


@dataclass
class _Queue:
    """Tasks by op: a worker stays with its op while that has any, so that what it compiled and loaded is used
    again, and then takes the op with the most left that fewest others are at."""

    tasks: dict[str, list[Task]] = field(default_factory=dict)
    at: Counter[str] = field(default_factory=Counter)
    takers: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def put(self, tasks: Sequence[Task]) -> None:
        with self.lock:
            for op in dict.fromkeys(task.op for task in tasks):
                self.tasks.setdefault(op, []).extend(task for task in reversed(tasks) if task.op == op)

    def take(self, op: str) -> Task | None:
        """The next task of one of the `takers`, which was at `op`. None: there is no more, and it is one no
        longer."""
        with self.lock:
            self.at[op] -= 1
            left = [name for name, tasks in self.tasks.items() if tasks]
            if not left:
                self.takers -= 1
                return None
            if op not in left:
                op = min(left, key=lambda name: (self.at[name], -len(self.tasks[name])))
            self.at[op] += 1
            return self.tasks[op].pop()

    def waiting(self) -> bool:
        with self.lock:
            return any(self.tasks.values())

    def leave(self, op: str) -> bool:
        """Leave what waits to the other takers; False where there is none."""
        with self.lock:
            if self.takers <= 1:
                return False
            self.takers -= 1
            self.at[op] -= 1
            return True


@dataclass
class _Answers:
    """What has been answered of a task: `case` and `impl` are under way (impl "": none), `done` have their
    results. `hear` raises ProtocolError for a message that does not match the task."""

    task: Task
    case: str = ""
    impl: str = ""
    done: list[str] = field(default_factory=list)
    inputs: bool = False

    @property
    def left(self) -> Task:
        """The task but for what is answered and what is under way."""
        return self.task.without([*self.done, self.impl])

    def hear(self, message: dict[str, Any]) -> None:
        kind = next(iter(message), "")
        check = {"begin": self._begin, "inputs": self._inputs, "result": self._result, "done": self._done}
        if kind in check:
            check[kind](message[kind])
        elif self.task.case or kind not in ("fuzzed", "timing", "roof", "modelled", "fault"):
            raise ProtocolError(f"{kind!r} was not requested")

    def _begin(self, said: Any) -> None:
        case, impl = self._pair(said)
        if self.task.case and (case != self.task.case or self.impl or impl not in self.left.impls):
            raise ProtocolError(f"it began {case} on {impl}")
        if not self.task.case and [op_of(case), impl] != self.task.request.get("fuzz"):
            raise ProtocolError(f"it fuzzed {case} on {impl}")
        self.case, self.impl = case, impl

    def _inputs(self, said: Any) -> None:
        case, _ = self._pair(said)
        if not self.task.case or case != self.task.case or self.inputs:
            raise ProtocolError(f"the inputs of {case} were not requested")
        self.inputs = True

    def _result(self, said: Any) -> None:
        if not is_result(said):
            raise ProtocolError(f"no result: {str(said)[:80]}")
        case, impl = said["case"], said["impl"]
        if self.task.case:
            wanted = case == self.task.case and impl in ([self.impl] if self.impl else self.left.impls)
        else:
            wanted = [op_of(case), impl] == self.task.request.get("fuzz")
        if not wanted:
            raise ProtocolError(f"{case} on {impl} was not requested")
        self.done.append(impl)
        self.impl = ""

    def _done(self, said: Any) -> None:
        if self.task.case and (self.impl or self.left.impls):
            raise ProtocolError("it was done before every implementation had a result")

    @staticmethod
    def _pair(said: Any) -> tuple[str, str]:
        if isinstance(said, list) and len(said) == 2 and all(isinstance(each, str) for each in said):
            return said[0], said[1]
        raise ProtocolError(f"expected two texts, got {str(said)[:80]}")


def is_result(entry: Any) -> bool:
    """Whether `entry` is a valid result of a record."""
    known = {**RESULT_FIELDS, **OPTIONAL_FIELDS}
    if not isinstance(entry, dict) or not RESULT_FIELDS.keys() <= entry.keys() <= known.keys():
        return False
    for name, value in entry.items():
        if not isinstance(value, known[name]) or (isinstance(value, bool) and known[name] is not bool):
            return False
        if isinstance(value, float) and not math.isfinite(value):
            return False
    return entry["state"] in STATES


def run_in_process(tasks: Sequence[Task], apply_waivers: Any) -> Iterator[dict[str, Any]]:
    """The same in this process, for a debugger: a crash takes the run with it."""
    from portable.conformance.execute import runner
    from portable.conformance.workers import worker

    lost = ""
    for task in tasks:
        said: list[dict[str, Any]] = []
        state, why = "NotRun", lost
        try:
            if not lost:
                worker.perform(task.request, runner.torch_device(), apply_waivers, said.append)
        except runner.DeviceLost as error:
            why = lost = f"the device was lost in {error.result.case.id} on {error.result.impl}"
            said.append({"result": error.result.entry()})
        except Exception as error:
            state, why = "InternalError", f"{type(error).__name__}: {error}"
        yield from said
        if why:
            answered = [message["result"]["impl"] for message in said if "result" in message]
            yield from _for_all(task.without(answered), state, why)


def _for_all(task: Task, state: str, why: str) -> Iterator[dict[str, Any]]:
    """One result for each implementation of a task; for one that is no case, a fault of the run."""
    for name in task.impls:
        yield {"result": {"case": task.case, "impl": name, "state": state, "message": why}}
    if not task.case:
        yield {"fault": f"{next(iter(task.request))} of {task.op}: {why}"}


class Pool:
    """`jobs` workers with `options` (the device) that share out tasks; `timeout` seconds for each result.
    `program` is the worker's command line without the options."""

    def __init__(self, options: Sequence[str], jobs: int, timeout: float, program: Sequence[str] = PROGRAM):
        self._command = [*program, *options]
        self._jobs = jobs
        self._timeout = timeout
        self._messages: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._stop = threading.Event()
        self._workers: set[Worker] = set()
        self._lock = threading.Lock()

    def run(self, tasks: Sequence[Task]) -> Iterator[dict[str, Any]]:
        """What the workers say, and {"result": ...} for what they cannot say. Every case of every task has
        one result in the end. Closing the iterator kills the workers."""
        count = max(1, min(self._jobs, len(tasks)))
        work = _Queue(takers=count)
        work.put(tasks)
        threads = [threading.Thread(target=self._serve, args=(work,), daemon=True) for _ in range(count)]
        missing = {(task.case, name): None for task in tasks for name in task.impls}
        try:
            for thread in threads:
                thread.start()
            while count:
                message = self._messages.get()
                if message is None:
                    count -= 1
                    continue
                if "result" in message:
                    missing.pop((message["result"]["case"], message["result"]["impl"]), None)
                yield message
            for case, name in missing:  # only a fault of the pool leaves any
                yield {"result": {"case": case, "impl": name, "state": "NotRun", "message": "not reached"}}
        finally:
            with self._lock:
                self._stop.set()
                for worker in self._workers:
                    worker.kill()
            for thread in threads:
                if thread.ident is not None:
                    thread.join()

    @contextmanager
    def asking(self) -> Iterator[Callable[[Task], list[dict[str, Any]]]]:
        """A function that puts one task after the other to a worker and gives what it said; a worker that
        ends makes room for a fresh one. It is for one thread, and apart from `run`."""
        worker: Worker | None = None

        def ask(task: Task) -> list[dict[str, Any]]:
            nonlocal worker
            lost = ""
            if worker is None:
                worker, lost = self._start()
            if worker is None:
                return list(_for_all(task, "NotRun", lost))
            if self._run_task(worker, task) is not None:
                self._discard(worker)
                worker = None
            said: list[dict[str, Any]] = []
            while not self._messages.empty():
                said += filter(None, [self._messages.get()])
            return said

        try:
            yield ask
        finally:
            if worker is not None:
                self._discard(worker)

    # One thread per worker -------------------------------------------------------------------------

    def _serve(self, work: _Queue) -> None:
        worker: Worker | None = None
        op = lost = ""
        try:
            while not self._stop.is_set():
                if worker is None and not lost and work.waiting():
                    worker, lost = self._start()
                    if lost and work.leave(op):
                        break
                task = work.take(op)
                if task is None:
                    break
                op = task.op
                if worker is None:
                    if lost:
                        self._say(_for_all(task, "NotRun", lost))
                    else:  # it has come back from another worker just now
                        work.put([task])
                    continue
                left = self._run_task(worker, task)
                if left is None:
                    continue
                self._discard(worker)
                worker = None
                if left.impls:
                    work.put([left])
        except Exception as error:
            self._messages.put({"fault": f"the pool failed: {type(error).__name__}: {error}"})
            work.leave(op)
        finally:
            if worker is not None:
                self._discard(worker)
            self._messages.put(None)

    def _open(self) -> Worker:
        worker = Worker(self._command)
        with self._lock:
            self._workers.add(worker)
            if self._stop.is_set():
                worker.kill()
        return worker

    def _discard(self, worker: Worker) -> None:
        worker.close()
        with self._lock:
            self._workers.discard(worker)

    def _start(self) -> tuple[Worker | None, str]:
        """A worker that is ready, or why there is none."""
        why = ""
        for _ in range(STARTS):
            if self._stop.is_set():
                break
            worker = None
            try:
                worker = self._open()
                message = worker.receive(time.monotonic() + START_SECONDS)
                if message is not None and "ready" in message:
                    return worker, ""
                why = worker.end() if message is None else f"expected ready, got {message}"
            except TimeoutError:
                why = f"it was not ready after {START_SECONDS:.0f} s"
            except ProtocolError as error:
                why = f"expected ready, got {error}"
            except OSError as error:  # no memory, no process, no file descriptor
                why = str(error)
            if worker is not None:
                self._discard(worker)
        return None, f"no worker starts on the device any more: {why}"

    def _run_task(self, worker: Worker, task: Task) -> Task | None:
        """Put one task to a worker. None when it was done; else what is left, and the worker is to go."""
        worker.send(task.request)
        answers = _Answers(task, task.case)
        end = time.monotonic() + task.whole
        while True:
            seconds = self._timeout + task.seconds
            try:
                message = worker.receive(min(time.monotonic() + seconds, end))
                if message is not None:
                    answers.hear(message)
                    if "done" in message:
                        return None
                    if "begin" not in message:
                        self._messages.put(message)
                    elif time.monotonic() >= end:
                        raise TimeoutError
                    if message.get("lost"):
                        return answers.left
                    continue
                state, why = "Crash", worker.end()
            except TimeoutError:
                state, why = "Timeout", f"no answer after {seconds:g} s; the worker was killed"
                if time.monotonic() >= end:
                    state, why = "", f"no end after {task.whole:g} s; the worker was killed"
            except ProtocolError as error:
                state, why = "Crash", f"the worker broke the protocol and was killed: {error}"
            if self._stop.is_set():
                return None
            return self._broken(answers, state, why)

    def _broken(self, answers: _Answers, state: str, why: str) -> Task:
        """A task whose worker ended: the case that was running gets a result; what is left goes to a fresh
        worker, unless the worker reached nothing."""
        task = answers.task
        if answers.impl and state:
            result = {"case": answers.case, "impl": answers.impl, "state": state, "message": why}
            self._messages.put({"result": result})
        elif not answers.done or not task.case:
            before = "before any implementation ran: " * bool(task.case)
            self._say(_for_all(task, "InternalError", before + why))
            return task.without(task.impls)
        return answers.left

    def _say(self, messages: Iterator[dict[str, Any]]) -> None:
        for message in messages:
            self._messages.put(message)

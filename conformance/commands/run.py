"""The command `run`: its phases (cases, fuzzing, timing, modelling), interruption, and the verdict."""

from __future__ import annotations

import errno
import sys
import time
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import portable
from portable.conformance.commands import run_options
from portable.conformance.commands.run_state import Run
from portable.conformance.commands.selection import chosen_impls, selected
from portable.conformance.execute import device, manifest, waivers
from portable.conformance.interrupts import interrupts
from portable.conformance.progress import Progress
from portable.conformance.records import record
from portable.conformance.report.summary import modelled_times, table, timings, verdict, written
from portable.conformance.text import (
    UsageError,
    discard_stdout,
    escape_unencodable,
    pluralize,
)
from portable.conformance.workers.pool import Pool, Task, run_in_process
from portable.runtime import detect
from portable.spec import registry

CHECKPOINT_SECONDS = 30.0
"""Between two partial records: what a power cut loses."""
BENCH_SECONDS = 900.0
"""That the timing of one case may take: the baselines compile too."""
FUZZ_SECONDS = 900.0
"""What fuzzing may take beyond its time: the last calls drawn, and shrinking a failure."""


def run_command(args: Any) -> int:
    """Run, report and judge; answers the exit code."""
    escape_unencodable()
    info = portable.device()
    cases = selected(args)
    ops = list(dict.fromkeys(case.op for case in cases))
    impls = chosen_impls(args.impl, ops)
    on_gpu = not info.emulated and info.vendor != "cpu"
    run_options.check(args, on_gpu)
    known = waivers.Waivers((), "") if args.no_waivers else waivers.active()
    options = device.arguments() + ["--no-waivers"] * args.no_waivers
    head = record.header(
        info, args.arguments, args.tier, ops=ops, impls=impls, k=args.k, fraction=args.fraction
    )
    run = Run(head, cases, known, options)
    if not run.total:
        raise UsageError("none of the chosen ops has an implementation that this device builds")
    if args.resume:
        run.resume(args.record)
    workers = run_options.jobs(args.jobs, on_gpu)
    with interrupts() as stop:
        try:
            _announce(run, args, workers)
            _cases(run, args, workers)
            if args.fuzz:
                _fuzz(run, args, workers)
            if args.bench or args.sweep is not None:
                _bench(run, args, workers)
            if args.model:
                _model(run, args, workers)
            end = _finish(run, args)
        except KeyboardInterrupt:
            stop.ending = True
            return _interrupted(run, args, "interrupted")
        except OSError as error:  # the reader has closed the pipe, or the disk is full
            stop.ending = True
            discard_stdout()
            gone = error.errno == errno.EPIPE
            code = _interrupted(run, args, f"stopped ({error.strerror or error})", sys.stderr)
            return code if gone else 2
        except Exception:  # a fault of the suite: what was found is kept
            if args.record and not run.written:
                _save(run, args)
            raise
        stop.ending = True
        return end.print_summary()


def _announce(run: Run, args: Any, workers: int) -> None:
    info = portable.device()
    print(
        f"{info}: {pluralize(len(run.cases), 'case')} of {pluralize(len(run.impls), 'op')}, "
        f"tier {args.tier}, {pluralize(workers, 'worker')}"
        + (f", shard {args.fraction[0]} of {args.fraction[1]}" if args.fraction[1] > 1 else "")
        + (f", {pluralize(len(run.results), 'result')} taken over" if run.results else ""),
        flush=True,
    )
    if info.emulated:
        print(
            f"Emulated: the CPU executes {info.arch} code. No timings on an emulated device"
            + ("; times by the model are not measured." if args.model else ".")
        )


class Checkpoint:
    """Writes the partial record when the last one is old; a failure to write it is printed once."""

    def __init__(self, run: Run, args: Any, say: Callable[[str], object]) -> None:
        self._run, self._args, self._say = run, args, say
        self._warned, self._at = "", time.monotonic()

    def __call__(self) -> None:
        if not self._args.record or time.monotonic() - self._at <= CHECKPOINT_SECONDS:
            return
        why = _save(self._run, self._args)
        if why and why != self._warned:
            self._say(f"{why}; the run goes on")
        self._warned, self._at = why, time.monotonic()


def _cases(run: Run, args: Any, workers: int) -> None:
    shared, alone = run.tasks()
    with Progress(run.total, run.done) as progress:
        checkpoint = Checkpoint(run, args, progress.say)
        for tasks, count in ((shared, workers), (alone, min(workers, 1))):
            with closing(_messages(run, tasks, count, args.timeout)) as messages:
                for message in messages:
                    result = run.take(message)
                    if result is not None:
                        progress.advance(result.case.op, not result.conforms)
                        if not result.conforms and (text := run.describe(result)):
                            progress.say(text)
                    checkpoint()


def _messages(
    run: Run, tasks: list[Task], workers: int, timeout: float
) -> Generator[dict[str, Any], None, None]:
    """What the tasks' workers say; with none, this process does the work."""
    if tasks and workers:
        threads = max(1, run_options.jobs(None, False) // workers)
        yield from Pool([*run.options, "--threads", str(threads)], workers, timeout).run(tasks)
    elif tasks:
        yield from run_in_process(tasks, run.known.apply_waivers)


def _fuzz(run: Run, args: Any, workers: int) -> None:
    """Draw further calls; a failure is printed, kept and written as a line for `regressions.txt`."""
    from portable.conformance.execute import fuzz

    pairs = [(op, name) for op, impls in run.impls.items() for name in impls]
    share = args.fuzz * max(workers, 1) / len(pairs)
    whole = share + args.timeout + FUZZ_SECONDS
    tasks = [Task(op, {"fuzz": [op, name], "seconds": share}, whole=whole) for op, name in pairs]
    count, failures, lines = 0, 0, 0
    with closing(_messages(run, tasks, workers, args.timeout)) as messages:
        for message in messages:
            count += message.get("fuzzed", 0)
            result = run.take(message)
            if result is not None and not result.conforms:
                failures += 1
                if text := run.describe(result):
                    print(text, flush=True)
                try:
                    with open(args.failures_file, "a", encoding="utf-8", errors="backslashreplace") as file:
                        file.write(fuzz.as_regression_line(result))
                    lines += 1
                except OSError as error:
                    run.faults.append(f"--failures-file {args.failures_file}: {error.strerror or error}")
    print(f"fuzzed {pluralize(count, 'additional input')}, {failures} of them failing")
    if lines:
        print(f"{args.failures_file}: each of them as a line for conformance/cases/regressions.txt")


def _bench(run: Run, args: Any, workers: int) -> None:
    for groups in [None] * args.bench + [args.sweep] * (args.sweep is not None):
        ops = [op for op in run.impls if groups is not None or registry.spec(op).bench]
        request = {"bench": ops, "impls": run.head["selection"]["impls"], "groups": groups,
                   "seconds": args.sustained}  # fmt: skip
        parts = [{"prepare": [first, workers], **request} for first in range(workers)]
        checkpoint = Checkpoint(run, args, print)
        for requests, count in ((parts, workers), ([request], 1)):
            tasks = [Task("bench", each, seconds=BENCH_SECONDS) for each in requests]
            with closing(_messages(run, tasks, count, args.timeout)) as messages:
                for message in messages:
                    run.take(message)
                    if timed := message.get("timing"):
                        print(f"  timed {timed['case']} on {timed['impl']}", flush=True)
                        checkpoint()
    timings(run.timings, run.roof or {})


def _model(run: Run, args: Any, workers: int) -> None:
    """The bench cases by the timing model, each in the worker that is free."""
    from portable.conformance.perf import bench

    roof = detect.main_backend().modelled_roof()
    assert roof is not None  # the arguments were checked
    run.modelled = {"accuracy": roof.accuracy, "roof": dict(roof.rates), "times": []}
    impls = run.head["selection"]["impls"]
    tasks = [
        Task(op, {"model": [op, number], "impls": impls}, seconds=BENCH_SECONDS)
        for op in run.impls
        for number in range(len(bench.bench_cases(registry.spec(op))))
    ]
    checkpoint = Checkpoint(run, args, print)
    with closing(_messages(run, tasks, workers, args.timeout)) as messages:
        for message in messages:
            run.take(message)
            if timed := message.get("modelled"):
                print(f"  modelled {timed['case']} on {timed['impl']}", flush=True)
                checkpoint()
    order = {op: number for number, op in enumerate(run.impls)}
    run.modelled["times"].sort(key=lambda each: (order[each["op"]], each["case"]))
    modelled_times(run.modelled)


# The end ------------------------------------------------------------------------------------------


def _save(run: Run, args: Any) -> str:
    """Write the partial record; answers why it cannot be written, in a sentence, or ""."""
    try:
        record.write(args.record, run.record(complete=False))
    except OSError as error:
        return f"--record {args.record} cannot be written: {error.strerror or error}"
    return ""


def _interrupted(run: Run, args: Any, why: str, to: Any = None) -> int:
    """Keep what there is, and say so on `to`, standard output where it is None."""
    text = f"{why} after {run.done} of {run.total} results"
    if run.written:
        text += f"; {args.record} holds them all"
    elif args.record:
        text += f"; {_save(run, args) or f'{args.record} holds them, --resume goes on from it'}"
    try:
        alike = run.alike() if to is None else []
        print("", *alike, f"portable-conformance: {text}", sep="\n", file=to, flush=True)
    except OSError:
        discard_stdout()
    return 130


@dataclass
class _End:
    """A finished run with its files written: what to print, and the exit code."""

    args: Any
    found: dict[str, Any]
    alike: list[str]
    lines: list[str]
    faults: list[str]
    unwritten: list[str]

    def print_summary(self) -> int:
        """Print it; answers the exit code: 0 where everything conforms, 2 where a file is not written."""
        conforming = record.conforming(self.found)
        code = 2 if self.unwritten else 0 if conforming else 1
        try:
            if self.alike:
                print("", *self.alike, sep="\n")
            if not self.args.k:
                table(self.found)
            for line in (*self.lines, *self.faults):
                print(line)
            print(f"{verdict(self.found)}, on {portable.device()}", flush=True)
        except OSError:  # the reader has closed the pipe; the files are written
            discard_stdout()
        for line in self.unwritten:
            print(f"portable-conformance: {line}", file=sys.stderr)
        return code


def _finish(run: Run, args: Any) -> _End:
    """Judge the run and write its files."""
    picked = args.k is not None or args.fraction[1] > 1  # what an entry needs may be elsewhere
    results = list(run.results)
    faults = [*run.faults, *run.known.settle(results, picked)]
    found = run.record(complete=True, results=results)
    ids = {case.id for case in run.cases}  # fuzzing goes beyond them
    cases = [each for each in found["results"] if each["case"] in ids]
    faults += manifest.faults({**found, "results": cases})
    if faults:
        found["faults"] = faults
    lines, unwritten = [], []
    for option, path, error in written(found, args):
        run.written = run.written or (option == "record" and error is None)
        if error is None:
            lines.append(f"{option}: {path}")
        else:
            unwritten.append(f"--{option} {path}: {error.strerror or error}")
    return _End(args, found, run.alike(), lines, faults, unwritten)

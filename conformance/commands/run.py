"""The command `run`: what is asked, of which implementations, and what becomes of the answers."""

from __future__ import annotations

import argparse
import errno
import os
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import portable
from portable.conformance import files
from portable.conformance.cases import generate
from portable.conformance.cases.case import Case, UnknownCase
from portable.conformance.execute import behaviour, case_ids, device, manifest, runner, waivers
from portable.conformance.execute.pool import Pool, Task, case_task, run_in_process
from portable.conformance.execute.result import Result
from portable.conformance.interrupts import interrupts
from portable.conformance.perf import sweep
from portable.conformance.progress import Progress
from portable.conformance.records import record
from portable.conformance.report.summary import table, verdict, written
from portable.conformance.states import KNOWN
from portable.conformance.text import (
    UsageError,
    discard_stdout,
    escape_unencodable,
    paragraph,
    pluralize,
    print_table,
    rerun,
)
from portable.errors import PortableError, nearest
from portable.spec import registry

CHECKPOINT_SECONDS = 30.0
"""Between two partial records: what a power cut loses."""
BENCH_SECONDS = 900.0
"""That the timing of one case may take: the baselines compile too."""
FUZZ_SECONDS = 900.0
"""What fuzzing may take beyond its time: the last calls drawn, and shrinking a failure."""
SAME = (
    "device", "vendor", "arch", "emulated", "multiprocessors", "driver", "toolkit", "versions", "commit",
    "dirty", "tier", "fraction", "selection", "specs",
)  # fmt: skip
"""What two halves of one run must share."""

AGAIN = frozenset({"NotRun", "XPass", *KNOWN})
"""States in which a resumed run does not take a result over."""
ALONE = frozenset({"beyond_2_31"})
"""Behaviours that want the device's memory for themselves."""

Asked: TypeAlias = Case | behaviour.Behaviour


# What is asked ------------------------------------------------------------------------------------


def chosen_ops(text: str | None) -> list[str]:
    """The ops of `--ops`; all without it. Raises UsageError."""
    known = sorted(registry.op_folders())
    if text is None:
        return known
    wanted = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for name in wanted:
        if name not in known:
            raise UsageError(
                f"--ops {name}: no such op.{nearest(name, known)} The ops are {', '.join(known)}"
            )
    if not wanted:
        raise UsageError("--ops names no op")
    return wanted


def chosen_impls(text: str | None, ops: Sequence[str]) -> list[str] | None:
    """The implementations of `--impl`; None, which is all, without it. Raises UsageError."""
    if text is None:
        return None
    wanted = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    here = sorted({name for op in ops for name in runner.implementations(op)})
    everywhere = sorted({each.name for op in ops for each in registry.spec(op).implementations})
    for name in wanted:
        if name not in everywhere:
            raise UsageError(f"--impl {name}: no such implementation.{nearest(name, everywhere)} "
                          f"There are {', '.join(everywhere)}")  # fmt: skip
        if name not in here:
            raise UsageError(
                f"--impl {name}: it cannot run on {portable.device()}; here run {', '.join(here)}"
            )
    if not wanted:
        raise UsageError("--impl names no implementation")
    return wanted


def selected(args: Any) -> list[Asked]:
    """The cases and behaviours that the arguments choose, op by op. Raises UsageError where there is none."""
    found: list[Asked] = []
    for op in chosen_ops(args.ops):
        asked = [*generate.cases(registry.spec(op), args.tier), *behaviour.cases([op])]
        found += [case for case in asked if args.k is None or args.k in case.id]
    if not found:
        raise UsageError(f"no case's id contains {args.k!r}; `portable-conformance list` prints them")
    shard = generate.shard(found, *args.fraction)
    if not shard:
        i, n = args.fraction
        chosen = pluralize(len(found), "case")
        raise UsageError(f"--fraction {i},{n}: this shard has no case; {chosen} in all")
    return shard


def jobs(wanted: int | None, on_gpu: bool) -> int:
    """How many workers: as asked, else one for each core, half of them and at most eight beside a GPU."""
    if wanted is not None:
        return wanted
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores // 2, 8)) if on_gpu else max(1, cores)


# The run ------------------------------------------------------------------------------------------


@dataclass
class Run:
    """A run under way: everything that its record will hold."""

    head: dict[str, Any]
    asked: list[Asked]
    known: waivers.Waivers
    options: list[str]
    results: list[Result] = field(default_factory=list)
    inputs: dict[str, str] = field(default_factory=dict)
    timings: list[dict[str, Any]] = field(default_factory=list)
    roof: dict[str, Any] | None = None
    faults: list[str] = field(default_factory=list)
    written: bool = False
    """Whether the whole record is written."""

    def __post_init__(self) -> None:
        self._places: dict[tuple[str, str], int] = {}
        self._cases = {case.id: case for case in self.asked}
        wanted = self.head["selection"]["impls"]
        self.impls = {
            op: [name for name in runner.implementations(op) if wanted is None or name in wanted]
            for op in dict.fromkeys(case.op for case in self.asked)
        }

    @property
    def total(self) -> int:
        return sum(len(self.impls[case.op]) for case in self.asked)

    @property
    def done(self) -> int:
        """How many of `total` have their result; fuzzing adds others."""
        return sum(result.case.id in self._cases for result in self.results)

    def tasks(self) -> tuple[list[Task], list[Task]]:
        """What has no result yet: the tasks to share out, and those that want the device for themselves."""
        done = self._places
        shared, alone = [], []
        for case in self.asked:
            left = [name for name in self.impls[case.op] if (case.id, name) not in done]
            if left:
                heavy = isinstance(case, behaviour.Behaviour) and case.name in ALONE
                (alone if heavy else shared).append(case_task(case.op, case.id, left))
        return shared, alone

    def take(self, message: dict[str, Any]) -> Result | None:
        """Keep what a worker said; answers the result, excused where it is known, if it was one."""
        if "inputs" in message:
            self.inputs.update([message["inputs"]])
        elif "timing" in message:
            self.timings.append(message["timing"])
        elif "roof" in message:
            self.roof = (self.roof or {}) | message["roof"]
        elif "fault" in message:
            self.faults.append(message["fault"])
        elif "result" in message:
            entry = message["result"]
            case = self._cases.get(entry["case"]) or case_ids.case(entry["case"])
            result = self.known.apply_waivers(Result.of(case, entry))
            self.keep(result)
            return result
        return None

    def keep(self, result: Result) -> None:
        """Add a result. Fuzzing may draw a call that has one: then a failure stays."""
        place = self._places.setdefault((result.case.id, result.impl), len(self.results))
        if place == len(self.results):
            self.results.append(result)
        elif self.results[place].conforms and not result.conforms:
            self.results[place] = result

    def words(self, result: Result) -> str:
        """A failure as a paragraph, with the command that runs it again."""
        return paragraph(result, rerun(result.case.id, result.impl, self.options))

    def resume(self, path: str) -> None:
        """Take over the results of a partial record, what fuzzing found too. What did not run is asked
        again, and so is what was excused: the known failures may be others by now. Raises UsageError where it
        is not of this very run, or holds a result twice or of what was not asked."""
        try:
            there = record.read(path)
        except FileNotFoundError:
            return
        except record.RecordError as error:
            raise UsageError(f"--resume: {error}") from None
        if there["header"]["complete"]:
            raise UsageError(f"--resume: {path} is complete; there is nothing to go on from")
        for name in SAME:
            if there["header"][name] != self.head[name]:
                raise UsageError(
                    f"--resume: {path} is of another run: its {name} is {there['header'][name]!r}, "
                    f"now it is {self.head[name]!r}"
                )
        for entry in there["results"]:
            where = f"{entry['case']} on {entry['impl']}"
            try:
                case = self._cases.get(entry["case"]) or case_ids.case(entry["case"])
            except (UnknownCase, PortableError) as error:
                raise UsageError(f"--resume: {path} holds a result of an unknown case: {error}") from None
            if entry["impl"] not in self.impls.get(case.op, ()):
                raise UsageError(f"--resume: {path} holds a result that this run does not ask: {where}")
            if (case.id, entry["impl"]) in self._places:
                raise UsageError(f"--resume: {path} holds two results of {where}")
            if entry["state"] not in AGAIN:
                self.keep(self.known.apply_waivers(Result.of(case, entry)))
        self.inputs.update({case: sha256 for case, sha256 in there["inputs"].items() if case in self._cases})

    def record(self, complete: bool, results: Sequence[Result] | None = None) -> dict[str, Any]:
        """The record of what there is so far, or of `results`, in the order in which they were asked."""
        results = self.results if results is None else results
        place = {case.id: number for number, case in enumerate(self.asked)}
        order = {op: {name: number for number, name in enumerate(impls)} for op, impls in self.impls.items()}
        ordered = sorted(
            results,
            key=lambda each: (
                place.get(each.case.id, len(place)),
                each.case.id,
                order.get(each.case.op, {}).get(each.impl, 0),
            ),
        )
        head = {**self.head, "complete": complete}
        entries = [each.entry() for each in ordered]
        return record.build(head, entries, self.inputs, self.timings, self.roof, self.known.used(results))


def run_command(args: Any) -> int:
    """Run, report and judge; answers the exit code."""
    escape_unencodable()
    info = portable.device()
    asked = selected(args)
    ops = list(dict.fromkeys(case.op for case in asked))
    impls = chosen_impls(args.impl, ops)
    on_gpu = not info.emulated and info.vendor != "cpu"
    _check(args, on_gpu)
    known = waivers.Waivers((), "") if args.no_waivers else waivers.active()
    options = device.arguments() + ["--no-waivers"] * args.no_waivers
    head = record.header(
        info, args.arguments, args.tier, ops=ops, impls=impls, k=args.k, fraction=args.fraction
    )
    run = Run(head, asked, known, options)
    if not run.total:
        raise UsageError("none of the chosen ops has an implementation that this device builds")
    if args.resume:
        run.resume(args.record)
    workers = jobs(args.jobs, on_gpu)
    with interrupts() as stop:
        try:
            _announce(run, args, workers)
            _cases(run, args, workers)
            if args.fuzz:
                _fuzz(run, args, workers)
            if args.bench or args.sweep is not None:
                _bench(run, args, workers)
            end = _finish(run, args)
        except KeyboardInterrupt:
            stop.ending = True
            return _interrupted(run, args, "interrupted")
        except OSError as error:  # nobody reads on, or the disk below standard output is full
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
        return end.tell()


def _announce(run: Run, args: Any, workers: int) -> None:
    info = portable.device()
    print(
        f"{info}: {pluralize(len(run.asked), 'case')} of {pluralize(len(run.impls), 'op')}, "
        f"tier {args.tier}, {pluralize(workers, 'worker')}"
        + (f", shard {args.fraction[0]} of {args.fraction[1]}" if args.fraction[1] > 1 else "")
        + (f", {pluralize(len(run.results), 'result')} taken over" if run.results else ""),
        flush=True,
    )
    if info.emulated:
        print(f"Emulated: the CPU executes {info.arch} code. No timings on an emulated device.")


def _check(args: Any, on_gpu: bool) -> None:
    """What can be wrong with the arguments, found before anything runs."""
    if (args.bench or args.sweep is not None) and not on_gpu:
        option = "--bench" if args.bench else "--sweep"
        raise UsageError(f"{option} needs a GPU: no timings on {portable.device()}")
    if args.sweep:
        try:
            sweep.chosen(args.sweep)
        except ValueError as error:
            raise UsageError(f"--sweep: {error}") from None
    if args.resume and not args.record:
        raise UsageError("--resume goes on from a partial record: name it with --record")
    taken: dict[str, str] = {}
    for option in ("record", "junit", "html", *["failures-file"] * bool(args.fuzz)):
        path = getattr(args, option.replace("-", "_"))
        if not path:
            continue
        real = os.path.realpath(path)
        if not os.path.isdir(os.path.dirname(real)):
            raise UsageError(f"--{option} {path}: there is no such folder")
        try:
            files.try_write(path)
        except OSError as error:
            raise UsageError(f"--{option} {path}: {error.strerror or error}") from None
        if os.path.isfile(real) or not os.path.exists(real):
            other = taken.setdefault(real, option)
            if other != option:
                raise UsageError(f"--{option} {path}: --{other} names the same file")
    if args.fuzz:
        try:
            import hypothesis  # noqa: F401
        except ModuleNotFoundError:
            raise UsageError("--fuzz needs hypothesis: pip install hypothesis") from None


class Checkpoint:
    """Writes the partial record when the last one is old; a record that cannot be written is told once."""

    def __init__(self, run: Run, args: Any, say: Callable[[str], object]) -> None:
        self._going, self._args, self._say = run, args, say
        self._told, self._at = "", time.monotonic()

    def __call__(self) -> None:
        if not self._args.record or time.monotonic() - self._at <= CHECKPOINT_SECONDS:
            return
        why = _save(self._going, self._args)
        if why and why != self._told:
            self._say(f"{why}; the run goes on")
        self._told, self._at = why, time.monotonic()


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
                        if not result.conforms:
                            progress.say(run.words(result))
                    checkpoint()


def _messages(
    run: Run, tasks: list[Task], workers: int, timeout: float
) -> Generator[dict[str, Any], None, None]:
    """What the tasks' workers say; with none, this process does the work."""
    if tasks and workers:
        threads = max(1, jobs(None, False) // workers)
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
                print(run.words(result), flush=True)
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
    from portable.conformance.perf import bench

    for groups in [None] * args.bench + [args.sweep] * (args.sweep is not None):
        ops = [op for op in run.impls if groups is not None or registry.spec(op).bench]
        ask = {"bench": ops, "impls": run.head["selection"]["impls"], "groups": groups}
        parts = [{"prepare": [first, workers], **ask} for first in range(workers)]
        checkpoint = Checkpoint(run, args, print)
        for asks, count in ((parts, workers), ([ask], 1)):
            tasks = [Task("bench", each, seconds=BENCH_SECONDS) for each in asks]
            with closing(_messages(run, tasks, count, args.timeout)) as messages:
                for message in messages:
                    run.take(message)
                    if timed := message.get("timing"):
                        print(f"  timed {timed['case']} on {timed['impl']}", flush=True)
                        checkpoint()
    head, rows, notes = bench.table(run.timings, run.roof or {})
    print_table(head, rows)
    print("\n".join(notes))


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
        print(f"\nportable-conformance: {text}", file=to, flush=True)
    except OSError:
        discard_stdout()
    return 130


@dataclass
class _End:
    """A run at its end, its files written: what is to be said, and the exit code."""

    args: Any
    found: dict[str, Any]
    lines: list[str]
    faults: list[str]
    unwritten: list[str]

    def tell(self) -> int:
        """Print it; answers the exit code: 0 where everything conforms, 2 where a file is not written."""
        conforming = record.conforming(self.found)
        code = 2 if self.unwritten else 0 if conforming else 1
        try:
            if not self.args.k:
                table(self.found)
            for line in (*self.lines, *self.faults):
                print(line)
            print(f"{verdict(self.found)}, on {portable.device()}", flush=True)
        except OSError:  # nobody reads on; the files are there
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
    ids = {case.id for case in run.asked}  # fuzzing goes beyond them
    asked = [each for each in found["results"] if each["case"] in ids]
    faults += manifest.faults({**found, "results": asked})
    if faults:
        found["faults"] = faults
    lines, unwritten = [], []
    for option, path, error in written(found, args):
        run.written = run.written or (option == "record" and error is None)
        if error is None:
            lines.append(f"{option}: {path}")
        else:
            unwritten.append(f"--{option} {path}: {error.strerror or error}")
    return _End(args, found, lines, faults, unwritten)


# Its options --------------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `run` beyond what it asks and the device."""
    parser.add_argument(
        "-j", "--jobs", type=_jobs, metavar="N", help="worker processes; 0: run in this one, for a debugger"
    )
    parser.add_argument(
        "--timeout",
        type=_seconds,
        default=300.0,
        metavar="SECONDS",
        help="per-case timeout in seconds (default 300)",
    )
    parser.add_argument("--bench", action="store_true", help="time the bench cases too (needs a GPU)")
    parser.add_argument(
        "--sweep", nargs="*", metavar="GROUP",
        help="time the sizes of sweep.yaml, or those of the groups named (needs a GPU)",
    )  # fmt: skip
    parser.add_argument(
        "--fuzz", type=_seconds, default=0.0, metavar="SECONDS", help="fuzz additional inputs for SECONDS"
    )
    parser.add_argument(
        "--failures-file",
        default="found_cases.txt",
        metavar="FILE",
        help="append failing inputs to FILE (default found_cases.txt)",
    )
    parser.add_argument("--record", metavar="FILE.json", help="write what was found to this file")
    parser.add_argument("--resume", action="store_true", help="go on from an interrupted --record")
    parser.add_argument("--junit", metavar="FILE.xml", help="write it for a CI system")
    parser.add_argument("--html", metavar="FILE.html", help="write it as one page to look at")


def fraction(text: str) -> tuple[int, int]:
    """`I,N` as numbers, 1 <= I <= N."""
    parts = text.split(",")
    if len(parts) == 2 and all(part.strip().isdecimal() for part in parts):
        i, n = map(int, parts)
        if 1 <= i <= n:
            return i, n
    raise argparse.ArgumentTypeError(f"{text} is not I,N with 1 <= I <= N")


def _jobs(text: str) -> int:
    if not text.isdecimal() or int(text) > 256:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 0 to 256")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds")
    return value

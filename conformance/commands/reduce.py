"""The command `reduce`: a failing case made as small as it goes, and the command that runs that one again."""

from __future__ import annotations

import argparse
import runpy
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import portable
from portable.conformance.cases.case import Case
from portable.conformance.checker.api import judge_of
from portable.conformance.commands import run_options, selection
from portable.conformance.execute import case_ids, device, runner
from portable.conformance.execute import reduce as reducing
from portable.conformance.execute.result import Result
from portable.conformance.progress import Progress
from portable.conformance.text import UsageError, rerun
from portable.conformance.workers.pool import Pool, Task, case_task, run_in_process
from portable.errors import BackendError, nearest
from portable.spec import registry

DEFAULT = reducing.Limits()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("case", metavar="CASE", help="the id of a failing case, as `run` prints it")
    parser.add_argument("--impl", help="implementations, comma separated (default: all); the first to fail")
    parser.add_argument(
        "--function",
        metavar="FILE.py:NAME",
        help="in place of an implementation: this function, as `portable.conformance.check` runs it",
    )
    parser.add_argument(
        "--budget",
        type=run_options.seconds,
        default=DEFAULT.seconds,
        metavar="SECONDS",
        help=f"begin no further run after SECONDS (default {DEFAULT.seconds:g})",
    )
    parser.add_argument(
        "--max-runs",
        type=_runs,
        default=DEFAULT.runs,
        metavar="N",
        help=f"run N cases at most (default {DEFAULT.runs})",
    )
    parser.add_argument(
        "-j", "--jobs", type=int, choices=(0, 1), default=1, help="0: run in this process, for a debugger"
    )


def _runs(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 1 on")
    return int(text)


def reduce_command(args: Any) -> int:
    """0: the case conforms, there is nothing to reduce; 1: it fails, and the smallest one is printed."""
    case = case_ids.case(args.case)
    if not isinstance(case, Case):
        raise UsageError(f"{case.id} is a behaviour: it has no sizes to reduce")
    if args.function is not None:
        return _of_function(case, args)
    impls = selection.chosen_impls(args.impl, [case.op]) or runner.implementations(case.op)
    options = [*device.arguments(), "--no-waivers"]
    with _asking(args, options) as ask:
        for impl in impls:
            again = partial(rerun, impl=impl, options=options)
            if _reduced(case, partial(_judged, ask, impl), again, args):
                return 1
    print(f"nothing to reduce: {case.id} fails on none of {', '.join(impls)} on {portable.device()}")
    return 0


def _of_function(case: Case, args: Any) -> int:
    """The same of a function in a file, which runs in this process as `check` runs it."""
    if args.impl is not None:
        raise UsageError("--function judges a function, --impl an implementation: name one of them")
    function = load_function(args.function)

    def again(case_id: str) -> str:
        command = ["portable-conformance", "reduce", case_id, "--function", args.function]
        return shlex.join([*command, *device.arguments(), "--max-runs", "1"])

    if _reduced(case, judge_of(function, case.op), again, args):
        return 1
    print(f"nothing to reduce: {case.id} does not fail in {args.function} on {portable.device()}")
    return 0


def load_function(text: str) -> Callable[..., Any]:
    """The function that `FILE.py:NAME` names. Raises UsageError."""
    path, _, name = text.rpartition(":")
    if not path.endswith(".py") or not Path(path).is_file():
        raise UsageError(f"--function {text}: expected FILE.py:NAME, with a file that is there")
    sys.path.insert(0, str(Path(path).resolve().parent))
    try:
        found = runpy.run_path(path)
    except (Exception, SystemExit) as error:
        raise UsageError(f"--function {text}: importing it: {type(error).__name__}: {error}") from error
    if not callable(found.get(name)):
        raise UsageError(f"--function {text}: {path} has no function {name!r}.{nearest(name, found)}")
    return found[name]


Ask = Callable[[Task], Sequence[dict[str, Any]]]


@contextmanager
def _asking(args: Any, options: Sequence[str]) -> Iterator[Ask]:
    """Asks a worker, which may crash or hang, or this process. Known failures fail, too."""
    if not args.jobs:
        yield lambda task: list(run_in_process([task], runner.no_waivers))
        return
    with Pool(options, 1, run_options.TIMEOUT).asking() as ask:
        yield ask


def _judged(ask: Ask, impl: str, case: Case) -> Result:
    """One case on one implementation."""
    said = ask(case_task(case.op, case.id, [impl]))
    (entry,) = (message["result"] for message in said if "result" in message)
    return Result.of(case, entry)


def _reduced(case: Case, judge: reducing.Run, again: Callable[[str], str], args: Any) -> bool:
    """Print the reduction of a case that fails as `judge` runs it; False where it does not. `again` is the
    command that runs a case again."""
    start, spec = time.monotonic(), registry.spec(case.op)
    with Progress(args.max_runs) as progress:

        def run(each: Case) -> Result:
            result = judge(each)
            progress.advance(f"{each.op} on {result.impl}", not result.conforms)
            if each == case:
                progress.say(f"{case.id} on {result.impl}, {portable.device()}: {reducing.failure(result)}")
            return result

        def step(way: str, result: Result) -> None:
            progress.say(f"  {way}: {result.case.id}")

        limits = reducing.Limits(args.max_runs, args.budget)
        found = reducing.reduce(case, spec, run, limits, step, reducing.torch_on_cpu(spec))
    if found.result.conforms:
        return False
    if found.result.state == "NotRun":
        raise BackendError(found.result.message)
    print("\n".join(reducing.summary(found, time.monotonic() - start, again(found.case.id))))
    return True

"""The command `reduce`: a failing case made as small as it goes, and the command that runs that one again."""

from __future__ import annotations

import argparse
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import portable
from portable.conformance.cases.case import Case
from portable.conformance.commands import run_options, selection
from portable.conformance.execute import case_ids, device, runner
from portable.conformance.execute import reduce as reducing
from portable.conformance.execute.result import Result
from portable.conformance.progress import Progress
from portable.conformance.text import UsageError, plain, pluralize, rerun
from portable.conformance.workers.pool import Pool, Task, case_task, run_in_process
from portable.spec import registry

DEFAULT = reducing.Limits()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("case", metavar="CASE", help="the id of a failing case, as `run` prints it")
    parser.add_argument("--impl", help="implementations, comma separated (default: all); the first to fail")
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
    impls = selection.chosen_impls(args.impl, [case.op]) or runner.implementations(case.op)
    with _asking(args) as ask:
        for impl in impls:
            if _reduced(case, impl, ask, args):
                return 1
    print(f"nothing to reduce: {case.id} fails on none of {', '.join(impls)} on {portable.device()}")
    return 0


Ask = Callable[[Task], Sequence[dict[str, Any]]]


@contextmanager
def _asking(args: Any) -> Iterator[Ask]:
    """Asks a worker, which may crash or hang, or this process. Known failures fail, too."""
    if not args.jobs:
        yield lambda task: list(run_in_process([task], runner.no_waivers))
        return
    options = [*device.arguments(), "--no-waivers"]
    with Pool(options, 1, min(args.budget, run_options.TIMEOUT)).asking() as ask:
        yield ask


def _reduced(case: Case, impl: str, ask: Ask, args: Any) -> bool:
    """Print the reduction of a case that fails on one implementation; False where it does not."""
    start = time.monotonic()
    with Progress(args.max_runs) as progress:

        def run(each: Case) -> Result:
            said = ask(case_task(each.op, each.id, [impl]))
            (entry,) = (message["result"] for message in said if "result" in message)
            result = Result.of(each, entry)
            progress.advance(f"{each.op} on {impl}", not result.conforms)
            if each == case:
                progress.say(f"{case.id} on {impl}, {portable.device()}: {reducing.failure(result)}")
            return result

        def step(way: str, result: Result) -> None:
            progress.say(f"  {way}: {result.case.id}")

        limits = reducing.Limits(args.max_runs, args.budget)
        found = reducing.reduce(case, registry.spec(case.op), run, limits, step)
    if found.result.conforms:
        return False
    took = f"{pluralize(found.runs, 'run')} in {time.monotonic() - start:.1f} s"
    if found.stopped:
        print(f"stopped by {found.stopped}: {took}; a smaller case may fail too. So far:")
    else:
        print(f"smallest, {took}:")
    print(textwrap.indent(plain(found.result.message), "  "))
    print(rerun(found.case.id, impl, [*device.arguments(), "--no-waivers"]))
    return True

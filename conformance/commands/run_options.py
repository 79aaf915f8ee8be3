"""The options of the command `run`, and what can be wrong with them before anything runs."""

from __future__ import annotations

import argparse
import os
from typing import Any

import portable
from portable.conformance.perf import sweep
from portable.conformance.text import UsageError
from portable.runtime import detect, files

TIMEOUT = 300.0
"""Seconds that a case may take by default."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `run` besides the selection and the device."""
    add_jobs(parser)
    parser.add_argument(
        "--timeout",
        type=seconds,
        default=TIMEOUT,
        metavar="SECONDS",
        help=f"per-case timeout in seconds (default {TIMEOUT:g})",
    )
    parser.add_argument("--bench", action="store_true", help="time the bench cases too (needs a GPU)")
    parser.add_argument(
        "--sweep", nargs="*", metavar="GROUP",
        help="time the sizes of the sweep, or those of the groups named (needs a GPU)",
    )  # fmt: skip
    parser.add_argument(
        "--sustained", type=seconds, metavar="SECONDS",
        help="time each candidate back to back for so long in each round: a hot GPU's clock and energy",
    )  # fmt: skip
    parser.add_argument(
        "--model",
        action="store_true",
        help="time the bench cases by the timing model of an emulated GPU: not measured",
    )
    parser.add_argument(
        "--fuzz", type=seconds, default=0.0, metavar="SECONDS", help="fuzz additional inputs for SECONDS"
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


def add_jobs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-j", "--jobs", type=_jobs, metavar="N", help="worker processes; 0: run in this one, for a debugger"
    )


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


def seconds(text: str) -> float:
    """A number of seconds, more than 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds")
    return value


def check(args: Any, on_gpu: bool) -> None:
    """What can be wrong with the arguments, found before anything runs."""
    if (args.bench or args.sweep is not None) and not on_gpu:
        option = "--bench" if args.bench else "--sweep"
        raise UsageError(f"{option} needs a GPU: no timings on {portable.device()}")
    if args.sustained and not args.bench and args.sweep is None:
        raise UsageError("--sustained is how --bench and --sweep time: name one of them")
    if args.model and detect.main_backend().modelled_roof() is None:
        raise UsageError(f"--model needs an emulated GPU: {portable.device()} has no timing model")
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


def jobs(wanted: int | None, on_gpu: bool) -> int:
    """The number of workers: `wanted`, else one per core; on a GPU one per two cores, at most eight."""
    if wanted is not None:
        return wanted
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores // 2, 8)) if on_gpu else max(1, cores)

"""`portable-conformance`: run the cases on a device, list them, run one again, compare and report.

The parser, and the commands of a few lines each; `run` is in `run.py`.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import portable
from portable.conformance.cases.case import UnknownCase
from portable.conformance.cases.generate import TIERS
from portable.conformance.commands import models, reduce, run, run_options, selection, weather
from portable.conformance.execute import case_ids, device, runner, waivers
from portable.conformance.execute.behaviour import Behaviour
from portable.conformance.execute.result import Result
from portable.conformance.judge import reference
from portable.conformance.records import record
from portable.conformance.report import summary
from portable.conformance.text import UsageError, discard_stdout, escape_unencodable, number, plain
from portable.conformance.workers.pool import case_task, run_in_process
from portable.errors import BackendError, PortableError
from portable.spec import registry

CONFORMING, NOT_CONFORMING, USAGE, NO_DEVICE, INTERRUPTED = 0, 1, 2, 3, 130


def main(argv: Sequence[str] | None = None) -> int:
    """The command's entry; answers the exit code: 0 conforming, 1 not, 2 usage, 3 no such device."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or (arguments[0].startswith("-") and arguments[0] not in ("-h", "--help")):
        arguments.insert(0, "run")
    args = _parser().parse_args(arguments)
    args.arguments = arguments
    escape_unencodable()
    try:
        if hasattr(args, "device"):
            device.choose(args)
        code = args.command(args)
        sys.stdout.flush()
        return code
    except BackendError as error:
        print(f"portable-conformance: {error}", file=sys.stderr)
        return NO_DEVICE
    except (UsageError, UnknownCase, PortableError, record.RecordError) as error:
        print(f"portable-conformance: {error}", file=sys.stderr)
        return USAGE
    except BrokenPipeError:  # `| head`: the reader has closed the pipe
        discard_stdout()
        return INTERRUPTED
    except OSError as error:
        discard_stdout()  # standard output itself may be what is full
        place = f"{error.filename}: " if error.filename else ""
        print(f"portable-conformance: {place}{error.strerror or error}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        print("portable-conformance: interrupted", file=sys.stderr)
        return INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="portable-conformance",
        description="Does every implementation compute what its spec says, on this device?",
        epilog="Without a command: run. Exit codes: 0 conforming, 1 not, 2 usage, 3 no such device.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, function: Callable[[Any], int], text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(command=function)
        return sub

    running = command(
        "run", run.run_command, "Run the cases of every op on every implementation the device builds."
    )
    listing = command("list", list_command, "Print the ids of the cases and behaviours.")
    changing = command(
        "weather",
        weather.weather_command,
        "Judge the implementations in Triton as several releases of Triton compile them.",
    )
    whole = command(
        "models", models.models_command, "Judge and time training and decode steps of whole models."
    )
    device.add_arguments(whole)
    models.add_arguments(whole)
    for sub in (running, listing, changing):
        sub.add_argument("--ops", help="ops, comma separated (default: all, gradients included)")
        sub.add_argument("--tier", choices=TIERS, default="core", help="how many cases")
        sub.add_argument("-k", metavar="TEXT", help="only cases whose id contains TEXT")
    for sub in (running, listing):
        sub.add_argument(
            "--fraction",
            type=run_options.fraction,
            default=(1, 1),
            metavar="I,N",
            help="the I-th of N shards",
        )
    again = command("rerun", rerun_command, "Run one case again, in this process, and print what is seen.")
    again.add_argument("case", metavar="CASE")
    reducing = command(
        "reduce",
        reduce.reduce_command,
        "Reduce a failing case to the smallest that fails in the same way, and print its rerun.",
    )
    device.add_arguments(reducing)
    reduce.add_arguments(reducing)
    for sub in (running, again):
        device.add_arguments(sub)
        sub.add_argument("--impl", help="implementations, comma separated (default: all)")
        sub.add_argument(
            "--no-waivers", action="store_true", help=f"as if the vendor's {waivers.FILE} were empty"
        )
    run_options.add_arguments(running)
    weather.add_arguments(changing)

    comparing = command("compare", compare_command, "Say whether two records agree, case by case.")
    comparing.add_argument("records", nargs=2, metavar="FILE.json")
    comparing.add_argument(
        "--parity",
        type=_threshold,
        metavar="RATIO",
        help="require this share of A's roofline efficiency",
    )
    comparing.add_argument("--html", metavar="FILE.html", help="write it as one page to look at")
    merging = command("merge", merge_command, "Make one record of the shards of a run.")
    merging.add_argument("out", metavar="OUT.json")
    merging.add_argument("records", nargs="+", metavar="SHARD.json")
    reporting = command("report", report_command, "Print a record, or write it as a page or for a CI system.")
    reporting.add_argument("record_file", metavar="FILE.json")
    reporting.add_argument("--junit", metavar="FILE.xml")
    reporting.add_argument("--html", metavar="FILE.html")
    submitting = command("verify-submission", submission_command, "Check a folder that a vendor hands in.")
    submitting.add_argument("folder", metavar="FOLDER")
    return parser


def _threshold(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 10:
        raise argparse.ArgumentTypeError(f"{text} is no ratio")
    return value


# Commands -----------------------------------------------------------------------------------------


def list_command(args: Any) -> int:
    try:
        for case in selection.selected(args):
            print(case.id)
        sys.stdout.flush()
    except BrokenPipeError:
        discard_stdout()
    return CONFORMING


def rerun_command(args: Any) -> int:
    case = case_ids.case(args.case)
    impls = selection.chosen_impls(args.impl, [case.op]) or runner.implementations(case.op)
    apply_waivers = runner.no_waivers if args.no_waivers else waivers.active().apply_waivers
    print(f"{case.id} on {portable.device()}")
    if not isinstance(case, Behaviour):
        _print_inputs(case)
    worst = CONFORMING
    for message in run_in_process([case_task(case.op, case.id, impls)], apply_waivers):
        if "result" not in message:
            continue
        result = apply_waivers(Result.of(case, message["result"]))
        figures = f", |error|/bound {number(result.worst)}, largest |error| {number(result.max_abs)}"
        print(f"{result.impl}: {result.state}" + figures * bool(result.digest))
        if result.message:
            print(textwrap.indent(plain(result.message), "  "))
        worst = worst if result.conforms else NOT_CONFORMING
    return worst


def _print_inputs(case: Any) -> None:
    try:
        materialized = reference.materialize(case, registry.spec(case.op))
    except Exception as error:  # the result says it too: of what does not fit the memory, say
        print(f"  no inputs: {type(error).__name__}: {error}")
        return
    for name, made in materialized.inputs.items():
        dtype = str(made.buffer.dtype).removeprefix("torch.")
        print(f"  {name}: {dtype}{list(made.shape)}, strides {list(made.strides)}, sha256 {made.sha256}")


def compare_command(args: Any) -> int:
    from portable.conformance.records import compare
    from portable.conformance.report import html

    one, other = (record.read(path) for path in args.records)
    lines, agree = compare.report(one, other, args.parity)
    print("\n".join(lines))
    if args.html:
        html.write(Path(args.html), one, other, compare.data(one, other, args.parity))
        print(f"html: {args.html}")
    return CONFORMING if agree else NOT_CONFORMING


def merge_command(args: Any) -> int:
    from portable.conformance.records import merge

    shards = [record.read(path) for path in args.records]
    merged = merge.merge(shards)
    record.write(args.out, merged)
    print(f"{args.out}: {summary.verdict(merged)}")
    for notice in merge.notices(shards):
        print(notice)
    return CONFORMING if record.conforming(merged) else NOT_CONFORMING


def report_command(args: Any) -> int:
    found = record.read(args.record_file)
    summary.write_reports(found, args)
    if not (args.junit or args.html):
        summary.table(found)
        if found["timings"]:
            summary.timings(found["timings"], found["roof"])
        if found.get("modelled"):
            summary.modelled_times(found["modelled"])
        print(f"{summary.verdict(found)}, on {found['header']['device']}")
    return CONFORMING if record.conforming(found) else NOT_CONFORMING


def submission_command(args: Any) -> int:
    from portable.conformance.records import submission

    faults = submission.verify(Path(args.folder))
    print("\n".join(faults) or f"{args.folder}: a valid submission")
    return NOT_CONFORMING if faults else CONFORMING


if __name__ == "__main__":
    sys.exit(main())

"""`portable-conformance`: run the cases on a device, list them, run one again, time the ops."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

import torch

import portable
from portable import catalog, machine
from portable.conformance import behaviour, oracle, record, runner, waivers
from portable.conformance.cases import Case, UnknownCase, cases, parse
from portable.errors import BackendError, PortableError, nearest

CONFORMING, NOT_CONFORMING, USAGE, NO_DEVICE = 0, 1, 2, 3


class Mistake(Exception):
    """A user's mistake; printed as one sentence, exit code 2."""


def main(argv: Sequence[str] | None = None) -> int:
    """The command's entry; answers the exit code: 0 conforming, 1 not, 2 usage, 3 no such device."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    args = _parser().parse_args(arguments)
    args.arguments = arguments
    try:
        _choose_device(args)
        return args.command(args)
    except BackendError as error:
        print(f"portable-conformance: {error}", file=sys.stderr)
        return NO_DEVICE
    except (Mistake, UnknownCase, PortableError, OSError) as error:
        print(f"portable-conformance: {error}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        print("portable-conformance: interrupted; nothing was recorded", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="portable-conformance",
        description="Does every implementation compute what its spec says, on this device?",
        epilog="Exit codes: 0 conforming, 1 not conforming, 2 usage, 3 no such device.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, function: Callable[[Any], int], text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(command=function)
        return sub

    run = command("run", run_command, "Run the cases of every op on every implementation the device builds.")
    listing = command("list", list_command, "Print the ids of the cases.")
    for sub in (run, listing):
        sub.add_argument("--ops", help="ops, comma separated (default: all, gradients included)")
        sub.add_argument("--tier", choices=("smoke", "core"), default="core", help="how many cases")
        sub.add_argument("-k", metavar="TEXT", help="only cases whose id contains TEXT")
    again = command("rerun", rerun_command, "Run one case again and print what the judge sees.")
    again.add_argument("case", metavar="CASE")
    for sub in (run, again):
        sub.add_argument(
            "--device",
            metavar="VENDOR[:ARCH]",
            help=f"one of {', '.join(catalog.vendors())}; an AMD card that is not there is emulated",
        )
        software = sub.add_mutually_exclusive_group()
        software.add_argument("--emulate", action="store_true", help="use a card made of software")
        software.add_argument(
            "--require-hardware", action="store_true", help="never use one: exit code 3 without the card"
        )
        sub.add_argument("--impl", help="implementations, comma separated (default: all)")
        sub.add_argument(
            "--no-waivers", action="store_true", help=f"as if the vendor's {waivers.FILE} were empty"
        )
    compared = command("compare", compare_command, "Say whether two records agree, case by case.")
    compared.add_argument("records", nargs=2, metavar="FILE.json")
    run.add_argument("--bench", action="store_true", help="time the bench cases too (needs a GPU)")
    run.add_argument(
        "--explore", type=_seconds, default=0.0, metavar="SECONDS", help="draw further calls so long"
    )
    run.add_argument("--record", metavar="FILE.json", help="write what was found to this file")
    return parser


def compare_command(args: argparse.Namespace) -> int:
    from portable.conformance import compare, record

    try:
        one, other = (record.read(path) for path in args.records)
    except record.RecordError as error:
        raise Mistake(str(error)) from error
    lines, agree = compare.report(one, other)
    print("\n".join(lines))
    return 0 if agree else 1


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds")
    return value


def _choose_device(args: Any) -> None:
    """Make the card that the arguments name the active one; without any, the environment's choice or the
    card that is there."""
    name = getattr(args, "device", None)
    hardware = getattr(args, "require_hardware", False)
    emulate = True if getattr(args, "emulate", False) else False if hardware else None
    if name is None:
        if emulate is not None:
            machine.choose(emulate=emulate)
    else:
        _choose_named(name, emulate)
    if hardware and machine.main_backend().device_type == "cpu":
        raise BackendError(f"--require-hardware: {portable.device()} is no card")


def _choose_named(name: str, emulate: bool | None) -> None:
    vendor, _, arch = name.partition(":")
    if vendor not in catalog.vendors():
        known = ", ".join(catalog.vendors())
        raise Mistake(f"--device {name}: expected one of {known}.{nearest(vendor, catalog.vendors())}")
    if not arch:
        if emulate is not None or os.environ.get("PORTABLE_BACKEND") != vendor:
            machine.choose(vendor, emulate=emulate)
        return
    cards = machine.backend_class(vendor)(catalog.vendors()[vendor]).targets()
    if arch not in [card.arch for card in cards]:
        known = ", ".join(card.arch for card in cards) or "no architecture by name"
        raise Mistake(f"--device {name}: {vendor} has {known}")
    machine.choose(vendor, arch, emulate)
    chosen = machine.selection()
    if chosen.error is not None or portable.device().arch == arch:
        return
    if emulate is False:
        raise BackendError(f"--device {name} --require-hardware: the card here is {portable.device()}")
    machine.choose(vendor, arch, emulate=True)


def _ops(text: str | None) -> list[str]:
    known = sorted(catalog.op_folders())
    if text is None:
        return known
    wanted = [name.strip() for name in text.split(",") if name.strip()]
    for name in wanted:
        if name not in known:
            raise Mistake(f"--ops {name}: no such op.{nearest(name, known)} The ops are {', '.join(known)}")
    if not wanted:
        raise Mistake("--ops names no op")
    return wanted


def _selected(args: Any) -> list[Case]:
    found = [case for op in _ops(args.ops) for case in cases(catalog.spec(op), args.tier)]
    if args.k:
        found = [case for case in found if args.k in case.id]
    if not found:
        raise Mistake(f"no case's id contains {args.k!r}; `portable-conformance list` prints them")
    return found


def _impls(text: str | None, ops: Sequence[str]) -> list[str] | None:
    if text is None:
        return None
    wanted = [name.strip() for name in text.split(",") if name.strip()]
    here = sorted({name for op in ops for name in runner.implementations(op)})
    everywhere = sorted({each.name for op in ops for each in catalog.spec(op).implementations})
    for name in wanted:
        if name not in everywhere:
            raise Mistake(f"--impl {name}: no such implementation.{nearest(name, everywhere)} "
                          f"There are {', '.join(everywhere)}")  # fmt: skip
        if name not in here:
            raise Mistake(f"--impl {name}: it cannot run on {portable.device()}; here run {', '.join(here)}")
    return wanted


# Commands -----------------------------------------------------------------------------------------


def list_command(args: Any) -> int:
    try:
        for case in _selected(args):
            print(case.id)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return CONFORMING


def run_command(args: Any) -> int:
    info = portable.device()
    device = runner.torch_device()
    selected = _selected(args)
    ops = list(dict.fromkeys(case.op for case in selected))
    impls = _impls(args.impl, ops)
    if args.bench and (device.type == "cpu" or info.emulated):
        raise Mistake(f"--bench needs a GPU; {info} tells no time")
    if args.record and not os.path.isdir(os.path.dirname(os.path.abspath(args.record))):
        raise Mistake(f"--record {args.record}: there is no such folder")
    print(f"{info}, {len(selected)} cases of {len(ops)} ops, tier {args.tier}")
    if info.emulated:
        print(f"Emulated: the machine code for {info.arch} is executed by the CPU. It tells no time.")
    asked = [*selected, *_behaviours(args, ops)]
    total = sum(
        1 for case in asked for name in runner.implementations(case.op) if impls is None or name in impls
    )
    suffix = _suffix(args)
    known = _waivers(args)
    with _Progress(total) as progress:

        def show(result: runner.Result) -> None:
            progress.advance(result.case.op)
            if not result.conforms:
                progress.print(paragraph(result, suffix))

        groups, hashes = runner.run(selected, device, impls, show, known.excuse)
        _behave(args, groups, device, show, known.excuse)
    if not total:
        raise Mistake("none of the chosen ops has an implementation that this device builds")
    failures = [result for group in groups for result in group.results if not result.conforms]
    if args.explore:
        failures += _explore(args, ops, device, impls, groups, suffix, known.excuse)
    faults = known.settle(groups, picked=args.k is not None)
    _table(groups)
    timings: list[dict[str, Any]] = []
    roof = None
    if args.bench:
        timings, roof = _bench([op for op in ops if catalog.spec(op).bench], impls, device)
    if args.record:
        head = record.header(info, args.arguments, args.tier)
        record.write(
            args.record, record.build(head, [each.record() for each in groups], hashes, timings, roof)
        )
        print(f"recorded in {args.record}")
    above = [entry for entry in timings if entry["above_roof"]]
    if faults:
        print("\n".join(faults))
    conforming = not failures and not above and not faults
    print(("" if conforming else "NOT ") + f"conforming: {_counted(groups)}, on {info}")
    return CONFORMING if conforming else NOT_CONFORMING


def _counted(groups: Sequence[runner.Group]) -> str:
    """`258 of 264 results as the specs say, 6 known failures`."""
    results = [result for group in groups for result in group.results]
    known = sum(result.state in runner.KNOWN for result in results)
    good = sum(result.conforms for result in results) - known
    failures = f", {known} known failure{'s' * (known > 1)}" if known else ""
    return f"{good} of {len(results)} results as the specs say{failures}"


def _waivers(args: Any) -> waivers.Waivers:
    return waivers.Waivers((), "") if args.no_waivers else waivers.active()


def _behaviours(args: Any, ops: Sequence[str]) -> list[behaviour.Behaviour]:
    return [case for case in behaviour.cases(ops) if args.k is None or args.k in case.id]


def _behave(
    args: Any,
    groups: list[runner.Group],
    device: torch.device,
    show: runner.Progress,
    excuse: runner.Excuse,
) -> None:
    """Ask the behaviours of every implementation that has been run."""
    for group in groups:
        for case in _behaviours(args, [group.op]):
            result = excuse(behaviour.run(case, group.impl, device))
            group.results.append(result)
            show(result)


def _rerun_behaviour(case: behaviour.Behaviour, args: Any) -> int:
    impls = _impls(args.impl, [case.op])
    excuse = _waivers(args).excuse
    worst = CONFORMING
    for name in runner.implementations(case.op):
        if impls is None or name in impls:
            result = excuse(behaviour.run(case, name, runner.torch_device()))
            print(f"{name}: {result.state} {result.message}".rstrip())
            worst = worst if result.conforms else NOT_CONFORMING
    return worst


def rerun_command(args: Any) -> int:
    asked = behaviour.parse(args.case)
    if asked is not None:
        return _rerun_behaviour(asked, args)
    op = args.case.partition("/")[0]
    spec = catalog.spec(_ops(op)[0])
    case = parse(args.case, spec)
    impls = _impls(args.impl, [op])
    excuse = _waivers(args).excuse
    question = oracle.ask(case, spec)
    print(f"{case.id} on {portable.device()}")
    for name, made in question.inputs.items():
        dtype = str(made.buffer.dtype).removeprefix("torch.")
        print(f"  {name}: {dtype}{list(made.shape)}, strides {list(made.strides)}, sha256 {made.sha256}")
    worst = CONFORMING
    for name in runner.implementations(op):
        if impls is not None and name not in impls:
            continue
        result = excuse(runner.run_case(question, name, runner.torch_device()))
        print(
            f"{name}: {result.state}, |error|/bound {result.worst:.3f}, largest |error| {result.max_abs:.3g}"
        )
        if result.message:
            print(textwrap.indent(result.message, "  "))
        if not result.conforms:
            worst = NOT_CONFORMING
    return worst


# Output -------------------------------------------------------------------------------------------


def _suffix(args: Any) -> str:
    device = f" --device {args.device}" if args.device else ""
    return device + " --emulate" * args.emulate + " --no-waivers" * args.no_waivers


def paragraph(result: runner.Result, suffix: str = "") -> str:
    """One failing case in words, with the command that runs it again."""
    command = f"portable-conformance rerun {shlex.quote(result.case.id)} --impl {result.impl}{suffix}"
    return f"\n{result.state}: {result.case.id} on {result.impl}\n  {result.message}\n  again: {command}\n"


class _Progress:
    """A bar on a terminal, nothing elsewhere; `print` writes above the bar."""

    def __init__(self, total: int):
        self._bar: Any = None
        if sys.stdout.isatty():
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

            columns = (
                TextColumn("{task.description:<22}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
            )
            self._bar = Progress(*columns, transient=True)
            self._task = self._bar.add_task("", total=total)

    def __enter__(self) -> _Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, what: str) -> None:
        if self._bar is not None:
            self._bar.update(self._task, advance=1, description=what)

    def print(self, text: str) -> None:
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False)
        else:
            print(text, flush=True)


def _table(groups: list[runner.Group]) -> None:
    rows = []
    for group in groups:
        worst = group.worst
        states = ", ".join(f"{state} {count}" for state, count in sorted(group.states.items()))
        ratio = f"{worst.worst:.3f}" if worst else "-"
        rows.append((group.op, group.impl, states, ratio, worst.case.id if worst else "-"))
    print_table(("op", "implementation", "states", "worst |err|/bound", "in case"), rows)


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A rich table on a terminal, aligned columns elsewhere."""
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table

        table = Table(*head)
        for row in rows:
            table.add_row(*map(_escape, row))
        Console().print(table)
        return
    widths = [max(len(str(row[place])) for row in (head, *rows)) for place in range(len(head))]
    for row in (head, *rows):
        print("  ".join(str(text).ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())


def _escape(text: object) -> str:
    """Text in which rich finds no markup."""
    return re.sub(r"\[", r"\\[", str(text))


def _explore(
    args: Any,
    ops: list[str],
    device: torch.device,
    impls: list[str] | None,
    groups: list[runner.Group],
    suffix: str,
    excuse: runner.Excuse,
) -> list[runner.Result]:
    try:
        from portable.conformance.explore import explore
    except ModuleNotFoundError as error:
        raise Mistake(f"--explore needs {error.name}: pip install {error.name}") from None
    failures, count = explore(ops, device, args.explore, impls, excuse)
    by_name = {(group.op, group.impl): group for group in groups}
    for result in failures:
        by_name[result.case.op, result.impl].results.append(result)
        print(paragraph(result, suffix))
    print(f"explored {count} further calls, {len(failures)} of them failing")
    return failures


def _bench(
    ops: list[str], impls: list[str] | None, device: torch.device
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    from portable.conformance.bench import bench

    def spread(ratio: dict[str, float] | None) -> str:
        return f"{ratio['median']:.3f} ({ratio['minimum']:.3f}..{ratio['maximum']:.3f})" if ratio else "-"

    timings, roof = bench(ops, impls, device)
    rows = [
        (
            entry["case"].removesuffix("/normal/bench"),
            entry["impl"],
            f"{entry['device_us']:.1f}",
            f"{entry['bytes_per_s'] / 1e12:.2f}",
            f"{entry['flop_per_s'] / 1e12:.1f}",
            f"{entry['of_roof']:.3f}",
            spread(entry["vs_torch"]),
            spread(entry["vs_copy"]),
            *(
                "-" if each is None else f"{each:.1f}"
                for each in (entry["launch_us"], entry["baseline_launch_us"])
            ),
        )
        for entry in timings
    ]
    head = "case implementation us TB/s TFLOP/s of_roof x_torch x_copy launch_us torch's_launch_us"
    print_table([word.replace("_", " ") for word in head.split()], rows)
    for case, fault in {each["case"]: each["baseline_error"] for each in timings}.items():
        if fault:
            print(f"no baseline for {case}: {fault}")
    for name, value in roof.items():
        print(f"roof measured in this run: {name} {value:.4g}")
    for entry in (entry for entry in timings if entry["above_roof"]):
        ratio = f"{entry['of_roof']:.2f}"
        print(f"InternalError: {entry['case']} on {entry['impl']} is above the measured roof ({ratio})")
    return timings, roof


if __name__ == "__main__":
    sys.exit(main())

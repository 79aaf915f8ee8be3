"""The command `models`: whole models' training and decode steps, judged against float32 and timed."""

from __future__ import annotations

import argparse
import sys
from typing import Any

import torch

import portable
from portable.conformance.models import configs, measure, modelled, record, steps
from portable.conformance.perf import sustained
from portable.conformance.report import models as page
from portable.conformance.text import UsageError, plain, print_table
from portable.runtime import detect, files

_SLOWEST = 8
"""Kernels of a modelled step that are shown."""
_WITHOUT_GPU = (steps.TORCH, "portable")
"""Candidates where none are named and no GPU is there: compiling for a CPU says nothing of a GPU's."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options besides those of the device."""
    names = {
        "--models": configs.models(), "--steps": configs.steps(), "--candidates": steps.CANDIDATES,
    }  # fmt: skip
    for option, known in names.items():
        parser.add_argument(option, metavar="NAMES", help=f"comma separated, of {', '.join(known)}")
    parser.add_argument(
        "--tiny", action="store_true", help="the same models with two small layers; without a GPU always"
    )
    parser.add_argument(
        "--modelled",
        action="store_true",
        help="time this package's steps by the timing model of an emulated GPU: not measured, not judged",
    )
    parser.add_argument(
        "--seconds",
        type=_seconds,
        default=sustained.SECONDS,
        help="of a candidate in each round, back to back",
    )
    parser.add_argument("--record", metavar="FILE.json", help="write what was found to this file")
    parser.add_argument(
        "--html", metavar="FILE.html", help="write it as one page with a picture of the steps"
    )


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 60:
        raise argparse.ArgumentTypeError(f"{text}: expected seconds, from above 0 to 60")
    return value


def models_command(args: Any) -> int:
    """Judge and time, or model; 0 where every candidate of this package is right."""
    for path in filter(None, (args.record, args.html)):
        files.try_write(path)
    device = torch.device(detect.main_backend().device_type)
    gpu = device.type == "cuda"
    try:
        chosen = configs.chosen(configs.models(), args.models, "--models")
        wanted = configs.chosen(configs.steps(), args.steps, "--steps")
        names = args.candidates if args.candidates or gpu else ",".join(_WITHOUT_GPU)
        candidates = configs.chosen(steps.CANDIDATES, names, "--candidates")
    except ValueError as error:
        raise UsageError(str(error)) from None
    if not any(each.takes(step) for each in candidates for step in wanted):
        raise UsageError(
            f"--candidates {names}: none of these takes one of --steps: quantised ones take decode steps, a "
            "batch-invariant one those without gradients"
        )
    tiny = args.tiny or not (gpu or args.modelled)
    shrink = configs.tiny if tiny else None
    if args.modelled:
        entries = modelled.modelled(chosen, wanted, shrink, _say)
    else:
        if not gpu:
            print(f"{portable.device()}: small models, judged and not timed", file=sys.stderr)
        entries = measure.measured(chosen, wanted, candidates, device, shrink, args.seconds, _say)
    found = []
    for entry in entries:
        found.append(entry)
        _show(entry)
    made = record.build(portable.device(), args.arguments, tiny, found)
    if args.record:
        record.write(args.record, made)
        print(f"record: {args.record}")
    if args.html:
        files.write_text(args.html, page.page(made))
        print(f"html: {args.html}")
    print(page.verdict(made))
    return 0 if args.modelled or record.conforming(made) else 1


def _say(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


def _show(entry: measure.Entry) -> None:
    print(f"\n{entry['model']}, {entry['step']}")
    print_table(*page.shown(entry))
    for each in entry["candidates"]:
        if each["message"]:
            print(f"{each['state']}: {each['name']}: {plain(each['message'])}")
        if each["state"] == measure.MODELLED:
            print_table(["part", "launches", "ms", "share", "floor ms"], page.by_part(entry, each))
            print_table(["slowest", "part", "launches", "ms", "share"], page.slowest(each, _SLOWEST))
    sys.stdout.flush()

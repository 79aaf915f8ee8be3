"""`portable tune`: parses arguments into problems, prints results, writes the entries and a record."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from portable.backend import Backend
from portable.configs import lookup
from portable.dispatch import select
from portable.errors import PortableError, listed, nearest
from portable.plan import Device
from portable.runtime import detect, files
from portable.spec import registry
from portable.spec.model import Spec
from portable.tune import call_options, problem, session, store
from portable.tune.progress import Progress

SHOWN = 6
"""Configs that fell out, named one by one; the record holds all."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("op")
    call_options.add_shape(parser, "the spec's bench cases")
    parser.add_argument("--dtype", default="bfloat16", help="types, comma separated (default: bfloat16)")
    call_options.add_param(parser)
    parser.add_argument("--columns", default="", metavar="INPUT,...", help="column-major matrices")
    parser.add_argument("--impl", help="the implementation to tune (default: all that have tunables)")
    parser.add_argument(
        "--budget", type=_count, default=session.TRIALS, metavar="N",
        help=f"timed configs per shape class (default: {session.TRIALS})",
    )  # fmt: skip
    parser.add_argument("--among", action="append", default=[], metavar="NAME=V,V",
                        help="only these values of a tunable")  # fmt: skip
    parser.add_argument(
        "--file", help="where entries go (default: the vendor's tuned.yaml in a checkout, else the user's)"
    )
    parser.add_argument("--dry-run", action="store_true", help="print what is found, file nothing")
    parser.add_argument(
        "--exhaustive",
        action="store_true",
        help="then time every legal config too, and report how near the result is to the best",
    )
    parser.add_argument("--record", metavar="FILE.json", help="write all that was measured or modelled")
    parser.add_argument(
        "--by",
        choices=("measurement", "model"),
        default="measurement",
        help="where times are from: runs on this machine's GPU (default), or an emulated GPU's timing model",
    )
    parser.add_argument(
        "--arch", help="with --by model: which GPU to emulate (default: the vendor's own choice)"
    )
    parser.add_argument("-j", type=_count, default=os.cpu_count() or 1, help="kernels to compile at once")


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 on")
    return int(text)


def run(args: argparse.Namespace, make_worker: Callable[[], Any] | None = None) -> int:
    """The exit code: 0 where every call was tuned, 1 where one was not, 130 after Ctrl-C."""
    spec = registry.spec(args.op)
    backend, device = detect.main_backend(), _device(args)
    problems = _problems(args, spec, backend, device)
    among = _among(args, problems)
    file = Path(args.file) if args.file else store.place(backend.name, backend.folder)
    if not args.dry_run:
        _try_file(file)
    made: list[dict[str, Any]] = []
    failed = 0
    found = session.versions(backend)
    with Progress() as progress:
        tuner = session.Session(backend, device, args.j, progress, make_worker, args.by == "model")
        try:
            for each in problems:
                progress.say(f"{each}: {each.shape_class}")
                _warn(progress, each, backend, device)
                mine = {name: values for name, values in among.items() if name in each.imp.tunables}
                try:
                    result = tuner.tune(each, args.budget, mine)
                except PortableError as error:
                    progress.say(f"  not tuned: {error}")
                    failed += 1
                    continue
                entry = result.entry(device, found)
                _report(progress, result, entry)
                if result.accuracy:
                    _table(progress, result)
                if not args.dry_run:
                    _file(file, entry)
                made.append(_recorded(args, result, entry) | {"among": mine, "exhaustive": None})
                _write_record(args.record, device, found, made)
                if args.exhaustive:
                    made[-1]["exhaustive"] = _swept(progress, tuner, result, mine)
                    failed += made[-1]["exhaustive"] is None
                    _write_record(args.record, device, found, made)
        except KeyboardInterrupt:
            progress.say(f"interrupted; {_filed(args, file, len(made))}")
            return 130
        finally:
            tuner.close()
    print(_filed(args, file, len(made)))
    return 1 if failed else 0


def _warn(progress: Progress, each: problem.Problem, backend: Backend, device: Device) -> None:
    """Hand-written configs that follow the batch size are hidden by a class that may not."""
    if not each.imp.batch_invariant:
        return
    for file in lookup.files(backend):
        for entry in lookup.entries(file).of(each.spec, each.imp).get(device.arch, ()):
            if entry.times is None and re.search(r"\bB\b", entry.when):
                name = f"{each.op}.{each.implementation}"
                progress.say(
                    f"  the class holds for every batch size, as {name} says that it is batch invariant; "
                    f"configs that follow B ({file.name}:{entry.line}) are no longer taken in it"
                )
                return


def _swept(
    progress: Progress, tuner: session.Session, result: session.Result, among: Mapping[str, Any]
) -> dict[str, Any] | None:
    try:
        found = tuner.sweep(result, among)
    except PortableError as error:
        progress.say(f"  not swept: {error}")
        return None
    best = session.name_of(found["best"]["config"])
    progress.say(f"  {found['of_best']:.3f} of the best of {found['timed']} configs ({best})")
    return found


def _device(args: argparse.Namespace) -> Device:
    """The device to tune on: one that can be timed, or with `--by model` one that has a timing model."""
    found = detect.device()
    if args.by == "model":
        with detect.main_backend().model():  # raises where the device has none
            return found
    if args.arch is not None:
        raise PortableError(f"--arch {args.arch} names a GPU to emulate: it goes with --by model")
    if found.emulated:
        raise PortableError(f"{found} has no timings, so nothing can be measured on it. {_OFFER}")
    return found


_OFFER = "--by model chooses by an emulated GPU's timing model instead, not measured"


def _offer() -> str:
    """What to do on a machine without a GPU, to end an error with."""
    return f". {_OFFER}" if detect.main_backend().device_type == "cpu" else ""


def _problems(
    args: argparse.Namespace, spec: Spec, backend: Backend, device: Device
) -> list[problem.Problem]:
    """The problems that the arguments select, one of each shape class."""
    rows = [problem.type_row(spec, name.strip()) for name in args.dtype.split(",") if name.strip()]
    columns = [name.strip() for name in args.columns.split(",") if name.strip()]
    params = call_options.params(args.param, spec)
    calls = call_options.calls(args.shape, spec, least=1)
    found: dict[tuple[str, str], problem.Problem] = {}
    for name in _implementations(args, spec, backend, device):
        for row in rows:
            if args.shape:
                chosen = [
                    problem.of_shapes(spec, name, list(shapes.values()), row, params, columns)
                    for shapes in calls
                ]
            else:
                chosen = [problem.of_case(spec, name, case, row, columns) for case in spec.bench]
            for each in chosen:
                found.setdefault((each.implementation, each.shape_class), each)
    return list(found.values())


def _implementations(args: argparse.Namespace, spec: Spec, backend: Backend, device: Device) -> list[str]:
    """Names of the implementations with tunables that this device can build."""
    if args.impl:
        chosen = spec.implementation(args.impl)
        if chosen is None:
            known = [each.name for each in spec.implementations]
            problem = f"{spec.op} has no implementation {args.impl!r}.{nearest(args.impl, known)}"
            raise PortableError(f"{problem} It has {listed(known)}")
        reason = select.static_reason(chosen, backend, device)
        if reason is not None:
            raise PortableError(f"{spec.op}.{chosen.name} cannot run on this device: {reason}{_offer()}")
        if not chosen.tunables:
            raise PortableError(f"{spec.op}.{chosen.name} has no tunables")
        return [chosen.name]
    able = [
        each.name
        for each in spec.implementations
        if each.tunables and select.static_reason(each, backend, device) is None
    ]
    if not able:
        raise PortableError(f"no implementation of {spec.op} that {device} can run has tunables{_offer()}")
    return able


def _among(args: argparse.Namespace, problems: Sequence[problem.Problem]) -> dict[str, tuple[Any, ...]]:
    found = {}
    for text in args.among:
        name, equals, values = text.partition("=")
        legal = [each.imp.tunables[name] for each in problems if name in each.imp.tunables]
        if not equals or not legal:
            known = {each for one in problems for each in one.imp.tunables}
            raise PortableError(f"--among {text!r}: expected NAME=VALUE,... of {listed(sorted(known))}")
        chosen = tuple(call_options.value(value) for value in values.split(","))
        wrong = [value for value in chosen if any(value not in each for each in legal)]
        if wrong:
            raise PortableError(f"--among {text!r}: {wrong[0]!r} is not one of {listed(legal[0])}")
        found[name] = chosen
    return found


# Files ------------------------------------------------------------------------------------------------


def _try_file(file: Path) -> None:
    """Before any work: the file must be one that can be merged into."""
    lookup.parse(file, None)
    folder = next(each for each in (file.parent, *file.parent.parents) if each.exists())
    if not os.access(folder, os.W_OK) or (file.exists() and not os.access(file, os.W_OK)):
        raise PortableError(f"{file} cannot be written; name another with --file, or --dry-run")


def _file(file: Path, entry: lookup.Entry) -> None:
    try:
        store.merge(file, [entry])
    except OSError as error:
        raise PortableError(f"{file} cannot be written: {error.strerror}; name another with --file") from None


def _filed(args: argparse.Namespace, file: Path, count: int) -> str:
    noun = "class" if count == 1 else "classes"
    if args.dry_run:
        return f"{count} {noun} {'modelled' if args.by == 'model' else 'measured'}, nothing filed"
    return f"{count} {noun} filed in {file}"


def _write_record(
    name: str | None, device: Device, versions: Mapping[str, str], made: Sequence[Mapping[str, Any]]
) -> None:
    if name is None:
        return
    record = {
        "record": "tune", "schema_version": 1, "date": datetime.date.today().isoformat(),
        "device": device.name, "arch": device.arch, "multiprocessors": device.multiprocessors,
        "versions": dict(versions), "calls": list(made),
    }  # fmt: skip
    try:
        files.write_text(name, json.dumps(record, indent=1) + "\n")
    except OSError as error:
        raise PortableError(f"--record {name!r}: {error.strerror}") from None


def _recorded(args: argparse.Namespace, result: session.Result, entry: lookup.Entry) -> dict[str, Any]:
    assert entry.times is not None
    return {
        "by": args.by,
        "op": entry.op, "implementation": entry.implementation, "class": entry.shape_class,
        "call": result.problem.as_json(), "config": dict(entry.config), "us": entry.times.us,
        "before": dict(result.before), "before_us": entry.times.before_us,
        "default_us": entry.times.default_us, "gain": entry.times.gain, "bits": result.bits,
        "trials": result.trials, "legal": result.legal, "trial_us": result.microseconds,
        "dropped": {each.name: each.why for each in result.dropped},
    }  # fmt: skip


def _report(progress: Progress, result: session.Result, entry: lookup.Entry) -> None:
    assert entry.times is not None
    for each in result.dropped[:SHOWN]:
        progress.say(f"  dropped {each.name}: {each.why}")
    if len(result.dropped) > SHOWN:
        progress.say(f"  and {len(result.dropped) - SHOWN} more dropped")
    changed = {name: value for name, value in entry.config.items() if result.before.get(name) != value}
    values = ", ".join(f"{name}={value}" for name, value in changed.items()) or "the config before stays"
    bits = {"same": "bits as the default's", "differ": "bits differ from the default's",
            "unknown": "the default was not timed"}[result.bits]  # fmt: skip
    if result.accuracy:
        bits = f"modelled {result.accuracy}, not measured; no output was checked"
    progress.say(
        f"  {entry.times.us:g} us, {entry.times.gain:.3f} times the speed before, "
        f"in {result.trials} trials: {values}; {bits}"
    )


def _table(progress: Progress, result: session.Result) -> None:
    """Every config that was modelled, the fastest first."""
    progress.say("  modelled us  config")
    chosen = session.name_of(result.best)
    for name, us in sorted(result.microseconds.items(), key=lambda pair: pair[1]):
        progress.say(f"  {us:11.4g}  {name}{'  <- chosen' * (name == chosen)}")

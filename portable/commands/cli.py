"""`portable`: what this machine is, which implementation runs and why, and what compiles for which device."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import portable
from portable.commands import emulate as emulation
from portable.commands import new_op
from portable.errors import PortableError
from portable.runtime import detect
from portable.tune import call_options

if TYPE_CHECKING:
    from portable.spec.model import Spec


def main(argv: Sequence[str] | None = None) -> int:
    """The command's entry; returns the exit code: 0 done, 1 found something wrong, 2 usage."""
    parser = _parser()
    args = parser.parse_args(argv)
    try:
        if getattr(args, "emulate", False):
            detect.override_backend(emulate=True)
        return args.command(args)
    except PortableError as error:
        print(f"portable: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    judging = "To judge and time kernels and models: portable-conformance (run, reduce, weather, models)."
    parser = argparse.ArgumentParser(prog="portable", description=__doc__, epilog=judging)
    parser.add_argument("--version", action="version", version=f"portable {portable.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, function: Callable[[Any], int], text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(command=function)
        return sub

    informed = command("info", info, "Print the machine, the backends and the ops.")
    explained = command("explain", explain, "Print which implementation runs a call, and why.")
    traced = command("trace", trace, "Run one call on an emulated GPU and print what it did.")
    timed = command("model", model, "Print the time of a call by an emulated GPU's timing model.")
    for sub in (explained, traced, timed):
        sub.add_argument("op")
        call_options.add_shape(sub, "the spec's demo, or a small case of it")
        call_options.add_param(sub)
        sub.add_argument(
            "--dtype", help="the first input's type (default: float32, or the first that the op has)"
        )
    traced.add_argument("--impl", help="the implementation or language to run (default: the chosen one)")
    timed.add_argument("--impl", help="the implementation or language to model (default: each)")
    for sub in (traced, timed):
        sub.add_argument("--arch", help="which device to emulate (default: the vendor's own choice)")
        sub.add_argument("--json", action="store_true", help="print JSON")
    for sub in (informed, explained, traced, timed):
        sub.add_argument("--emulate", action="store_true", help="use an emulated GPU")
    emulation.add_arguments(
        command("emulate", emulation.run, "Run a program that was written for a GPU on emulated ones.")
    )
    checked = command("check", check, "Compile every implementation for every device, with no device needed.")
    checked.add_argument("--target", help="architectures or vendors, comma separated (default: all)")
    checked.add_argument("--ops", help="ops, comma separated (default: all, internal ops included)")
    checked.add_argument("--quick", action="store_true", help="one case and one dtype of each op")
    checked.add_argument("-j", type=_workers, default=os.cpu_count() or 1, help="kernels to compile at once")
    checked.add_argument("--markdown", help="write the table to this file")
    warmed = command(
        "warm", warm, "Compile the kernels of ops for this machine's device ahead of their first call."
    )
    warmed.add_argument("ops", nargs="*", help="ops (default: all)")
    tune_arguments(command("tune", tune, "Find the fastest configs for shapes, measured or modelled."))
    documented = command("docs", docs, "Print an op's page, deduced from its spec.")
    documented.add_argument("op")
    new_op.add_arguments(command("new-op", new_op.new_op, "Write the folder of a new op, to be filled in."))
    return parser


def info(args: argparse.Namespace) -> int:
    import torch

    from portable.configs import lookup
    from portable.runtime import disk_cache
    from portable.spec import registry

    chosen = detect.selection()
    rows = [
        ("portable", portable.__version__),
        ("python", platform.python_version()),
        (
            "torch",
            f"{torch.__version__} (CUDA {torch.version.cuda}, HIP {getattr(torch.version, 'hip', None)})",
        ),
    ]
    for name, detection in chosen.detections.items():
        state = "in use" if any(b.name == name for b in chosen.backends.values()) else "not in use"
        rows.append((f"backend {name}", f"{state}: {detection.reason}"))
    for backend in chosen.backends.values():
        rows += backend.info()
    rows.append(("kernel cache", str(disk_cache.directory())))
    for backend in chosen.backends.values():
        for file in lookup.files(backend):
            count = _entry_count(lookup.entries(file)) if file.exists() else "not there"
            rows.append(("tuned configs", f"{file}: {count}"))
    rows.append(("ops", ", ".join(portable.ops())))
    internal = sorted(set(registry.op_folders()) - set(portable.ops()))
    rows.append(("internal ops", ", ".join(internal)))
    for what, value in rows:
        print(f"{what:<16} {value}")
    if chosen.error is not None:
        print(f"portable: {chosen.error}", file=sys.stderr)
        return 1
    return 0


def _entry_count(entries: Sequence[Any]) -> str:
    modelled = sum(1 for each in entries if each.modelled)
    return f"{len(entries)} entries" + f", {modelled} of them modelled, not measured" * (modelled > 0)


def explain(args: argparse.Namespace) -> int:
    from portable.commands import trace as tracing
    from portable.spec import registry

    spec = registry.spec(args.op)
    types, params = call_options.types_and_params(spec, args.dtype, args.param)
    device = detect.main_backend().device_type
    calls = call_options.calls(args.shape, spec)
    if not calls:
        case = spec.demo or spec.cases[0]
        calls, params = [dict(tracing.shapes(spec, case))], {**case.params, **params}
    for shapes in calls:
        tensors = {
            name: _empty(shape, types[name], device) for name, shape in shapes.items() if shape is not None
        }
        print(portable.explain(args.op, **tensors, **params))
    return 0


def trace(args: argparse.Namespace) -> int:
    from portable.commands import trace as tracing

    found = []
    for spec, _, params, inputs in _emulated_calls(args):
        traces = tracing.run(spec, inputs, params, args.impl)
        if args.json:
            found.append(tracing.as_data(spec.op, inputs, traces))
            continue
        print(f"{spec.op} on {portable.device()}, launches: {len(traces)}")
        tracing.show(traces)
    if args.json:
        _print_calls(found)
    return 0


def model(args: argparse.Namespace) -> int:
    from portable.commands import model as modelling

    found = []
    for spec, types, params, inputs in _emulated_calls(args):
        rows = modelling.rows(spec, inputs, types, params, args.impl)
        if args.json:
            found.append(modelling.as_data(spec.op, inputs, rows))
        else:
            modelling.show(spec.op, inputs, rows)
    if args.json:
        _print_calls(found)
    return 0


def _emulated_calls(
    args: argparse.Namespace,
) -> Iterator[tuple[Spec, Mapping[str, str], dict[str, Any], dict[str, Any]]]:
    """Spec, dtypes, params and inputs of each call that the arguments name, or of a small case of the spec.
    Makes the emulated GPU the active device."""
    from portable.commands import trace as tracing
    from portable.spec import registry

    spec = registry.spec(args.op)
    types, params = call_options.types_and_params(spec, args.dtype, args.param)
    calls = call_options.calls(args.shape, spec)
    tracing.choose(args.arch)
    if not calls:
        case = tracing.small_case(spec)
        calls, params = [dict(tracing.shapes(spec, case))], {**case.params, **params}
    for shapes in calls:
        inputs = tracing.inputs(spec, shapes, types)
        yield spec, types, params, tracing.with_derived(spec, inputs, types, params)


def _print_calls(found: Sequence[Any]) -> None:
    print(json.dumps({"schema": 1, "device": str(portable.device()), "calls": found}, indent=1))


def _empty(shape: tuple[int, ...], dtype: str, device: str) -> Any:
    import torch

    try:
        return torch.empty(shape, dtype=getattr(torch, dtype), device=device)
    except (RuntimeError, OverflowError) as error:
        text = "x".join(map(str, shape))
        raise PortableError(f"--shape {text!r}: {str(error).splitlines()[0]}") from None


def _workers(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 on")
    return int(text)


def _listed(text: str | None) -> list[str] | None:
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]


def check(args: argparse.Namespace) -> int:
    from portable.commands import check as checking
    from portable.runtime import files
    from portable.spec import registry

    problems = checking.tuned_problems()
    chosen = checking.targets(_listed(args.target))
    ops = sorted(registry.op_folders()) if args.ops is None else _listed(args.ops)
    if not ops:
        raise PortableError(f"--ops {args.ops!r} names no op")
    work = checking.jobs(ops, chosen, args.quick)
    outcomes = list(_progress(checking.run_all(work, args.j), "compiling"))
    outcomes.sort(key=lambda o: (o.op, o.implementation, o.arch, o.kernel))
    lacking = checking.uncompiled(ops, chosen, outcomes)
    for sentence in lacking:
        print(f"portable: {sentence}", file=sys.stderr)
    if not outcomes:
        return 1
    table = _check_table(outcomes)
    print(table)
    if args.markdown:
        try:
            files.write_text(args.markdown, table + "\n")
        except OSError as error:
            raise PortableError(f"--markdown {args.markdown!r}: {error.strerror}") from None
    failed = [outcome for outcome in outcomes if outcome.state != "Pass"]
    missing = Counter((each.arch, each.detail) for each in failed if each.state == "NoCompiler")
    for (arch, why), count in missing.items():
        print(f"NoCompiler: {arch}: {count} kernels not compiled: {why}")
    for outcome in failed:
        if outcome.state == "NoCompiler":
            continue
        print(f"{outcome.state}: {outcome.op}.{outcome.implementation} for {outcome.arch}: {outcome.kernel}")
        print(f"    {outcome.detail}")
    for problem in problems:
        print(f"TunedFile: {problem}")
    passed = len(outcomes) - len(failed)
    print(f"{passed} kernels compile, {len(failed)} do not pass, {len(problems)} file problems")
    return 1 if failed or problems or lacking else 0


def _check_table(outcomes: Sequence[Any]) -> str:
    """One row per op, implementation and device: how many kernels, the most that any of them takes, all their
    spills, and the most in a matrix kernel's main loop (`MainLoop`)."""
    columns = (
        "op",
        "implementation",
        "device",
        "kernels",
        "registers",
        "shared bytes",
        "stack bytes",
        "spills",
        "vector per matrix instruction",
        "LDS bytes per FLOP",
    )
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    groups: dict[tuple[str, str, str], list[Any]] = {}
    for outcome in outcomes:
        groups.setdefault((outcome.op, outcome.implementation, outcome.arch), []).append(outcome)
    for (op, implementation, arch), rows in groups.items():
        found = [row.resources for row in rows if row.resources is not None]
        figures: list[Any] = ["-"] * 6
        loops = [row.main_loop for row in rows if row.main_loop is not None]
        if found:
            figures = [
                max(each.registers for each in found),
                max(row.shared for row in rows),
                max(each.stack for each in found),
                sum(each.spills for each in found),
                f"{max(each.vector / each.matrix for each in loops):.2f}" if loops else "-",
                f"{max(each.lds_read_bytes / each.flops for each in loops):.3f}" if loops else "-",
            ]
        lines.append("| " + " | ".join(map(str, (op, implementation, arch, len(rows), *figures))) + " |")
    return "\n".join(lines)


def _progress(items: Any, what: str) -> Any:
    """Items as they come, with a live count where a person watches."""
    if not sys.stderr.isatty():
        yield from items
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description} {task.completed}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=None)
        for item in items:
            progress.advance(task)
            yield item


def warm(args: argparse.Namespace) -> int:
    from portable.commands import check as checking
    from portable.runtime import build
    from portable.spec import registry

    backend, device = detect.main_backend(), portable.device()
    ops = args.ops or sorted(registry.op_folders())
    jobs = [job for job in checking.jobs(ops, [(backend, device)]) if isinstance(job, checking.Job)]
    if not jobs:
        print(f"nothing to compile: {device} runs the ops through torch")
        return 0
    for job in _progress(jobs, "warming"):
        build.code_object(job.launch, dict(job.dtypes), backend, device)
    print(f"{len(jobs)} kernels of {len(ops)} ops are compiled for {device}")
    return 0


def tune_arguments(parser: argparse.ArgumentParser) -> None:
    from portable.tune import command

    command.add_arguments(parser)


def tune(args: argparse.Namespace) -> int:
    from portable.tune import command

    if args.by == "model":
        from portable.commands import trace as tracing

        tracing.choose(args.arch)
    return command.run(args)


def docs(args: argparse.Namespace) -> int:
    from portable.spec import docs_page, registry

    print(docs_page.page(registry.spec(args.op)))
    return 0


if __name__ == "__main__":
    sys.exit(main())

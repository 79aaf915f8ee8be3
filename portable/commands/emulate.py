"""`portable emulate`: a program that was written for a GPU on emulated ones; what it did there."""

from __future__ import annotations

import argparse
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import portable
from portable.backend import Finding, Programs
from portable.commands import sarif
from portable.errors import PortableError
from portable.runtime import emulate as emulation

_COMPILER = {
    "-I": ("DIR", "-I{}", "where it includes files from"),
    "-D": ("NAME[=VALUE]", "-D{}", "a macro"),
    "-std": ("STANDARD", "-std={}", "as c++20"),
}
"""Options of `portable emulate` that the compiler gets: what one takes, how the compiler takes it, help."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--gpu", required=True, metavar="ARCH[,ARCH...]", help="which GPUs to emulate, each in a process"
    )
    parser.add_argument(
        "--extents",
        choices=emulation.EXTENTS,
        default=emulation.EXTENTS[0],
        help="what a kernel may access of a tensor (default: %(default)s)",
    )
    parser.add_argument(
        "--races", action="store_true", help="look for races of workgroups in global memory too: slower"
    )
    parser.add_argument("--sarif", metavar="FILE", help="write the findings to this file, as SARIF")
    for flag, (what, _, help) in _COMPILER.items():
        parser.add_argument(
            flag, metavar=what, action="append", default=[], help=f"of a compiled program: {help}"
        )
    parser.add_argument("-m", dest="module", action="store_true", help="PROGRAM is a module, as python -m")
    parser.add_argument("program", nargs=argparse.REMAINDER, metavar="PROGRAM [ARGUMENT...]")


def run(args: argparse.Namespace) -> int:
    """Run the program; returns its exit status, 1 where it raised or a kernel did something undefined."""
    if not args.program:
        raise PortableError("portable emulate: which program? For example: portable emulate --gpu ARCH x.py")
    archs = args.gpu.split(",")
    if len(archs) == 1:
        return _run(archs[0], args)
    options = ["--extents", args.extents, *["--races"] * args.races]
    options += [*["-m"] * args.module, *_compiler_options(args)]
    command = [sys.executable, "-m", "portable", "emulate", *options]
    return each_in_a_process(
        archs,
        args.sarif,
        lambda arch, file: [*command, "--gpu", arch, *_flag("--sarif", file), *args.program],
    )


def _compiler_options(args: argparse.Namespace) -> list[str]:
    return [
        form.format(value) for flag, (_, form, _) in _COMPILER.items() for value in getattr(args, flag[1:])
    ]


def _flag(name: str, value: str | None) -> list[str]:
    return [] if value is None else [name, value]


def each_in_a_process(
    archs: Sequence[str], file: str | None, command: Callable[[str, str | None], list[str]]
) -> int:
    """Run `command(arch, its SARIF file)` for one architecture after the other, for libraries keep what they
    found out about the GPU. Returns the first exit status that is not 0; `file` gets all findings."""
    statuses = []
    for arch in archs:
        emulation.backend(arch)
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, f"{arch}.sarif") for arch in archs]
        for arch, own in zip(archs, files, strict=True):
            statuses.append(subprocess.run(command(arch, str(own) if file else None)).returncode)
        if file:
            sarif.merge(files, file)
    return next((status for status in statuses if status), 0)


def _run(arch: str, args: argparse.Namespace) -> int:
    name = Path(args.program[0])
    device = emulation.backend(arch)
    if not args.module and name.suffix in device.program_suffixes:
        if not name.is_file():
            raise PortableError(f"portable emulate: there is no file {name}")
        program = device.host_program(name, _compiler_options(args), args.races)
        found = program.found
        print(f"portable: {found.header}", file=sys.stderr)
        status = program.run(args.program)
    else:
        with portable.emulated(arch, extents=args.extents, races=args.races) as found:
            print(f"portable: {found.header}", file=sys.stderr)
            status = _execute(args.program, args.module)
    sys.stdout.flush()
    for line in summary(found):
        print(f"portable: {line}", file=sys.stderr)
    if args.sarif:
        sarif.write(
            args.sarif,
            sarif.document({arch: [*found.findings, *found.warnings]}, portable.__version__, Path.cwd()),
        )
    return status or int(bool(found.findings))


def _execute(program: list[str], module: bool) -> int:
    """Run a script or module as Python does; returns its exit status."""
    former = sys.argv, sys.path[:]
    sys.argv = list(program)
    try:
        if module:
            sys.path.insert(0, os.getcwd())
            runpy.run_module(program[0], run_name="__main__", alter_sys=True)
        elif not Path(program[0]).is_file():
            raise PortableError(f"portable emulate: there is no file {program[0]}")
        else:
            sys.path.insert(0, str(Path(program[0]).resolve().parent))
            runpy.run_path(program[0], run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except PortableError as error:
        if error.__traceback__ is not None and error.__traceback__.tb_next is None:
            raise  # of this function
        traceback.print_exc()
        return 1
    except Exception:
        traceback.print_exc()
        return 1
    finally:
        sys.argv, sys.path[:] = former
    return 0


def summary(found: Programs) -> list[str]:
    """What the programs did, in lines: launches, autotuners, instructions, findings."""
    launches = sum(found.launches.values())
    lines = [f"{count(launches, 'launch', 'launches')} of {count(len(found.launches), 'kernel')}"]
    if found.tuned:
        tuned = count(sum(found.tuned.values()), "choice")
        lines.append(f"autotuning: {tuned} of the first configuration that fits; nothing is timed")
    if found.instructions:
        lines.append(found.fidelity())
    lines += found.notes
    for what, told in (("finding", found.findings), ("warning", found.warnings)):
        for finding, times in Counter(told).items():
            lines.append(f"{what}{f' ({times} times)' * (times > 1)}: {finding.message}")
            lines += excerpt(finding)
    return lines


def excerpt(finding: Finding) -> list[str]:
    """The line of source that a finding is at, if it can be read."""
    if finding.file is None or finding.line is None:
        return []
    try:
        source = Path(finding.file).read_text(encoding="utf-8", errors="replace").splitlines()
        return [f"  {finding.file}:{finding.line}:", f"    {source[finding.line - 1].strip()}"]
    except (OSError, IndexError):
        return []


def count(number: int, one: str, several: str | None = None) -> str:
    """A number and its noun."""
    return f"{number} {one if number == 1 else several or one + 's'}"

"""The command `weather`: kernels in Triton, compiled by several releases of Triton and judged.

Each corpus, release and GPU is a run of its own, in a process that finds that release first, with a record
of its own.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from portable.conformance.commands import run_options, selection
from portable.conformance.corpora import run as corpora
from portable.conformance.records import record
from portable.conformance.report import weather
from portable.conformance.text import UsageError
from portable.runtime import disk_cache, files
from portable.spec import registry

LANGUAGE = "triton"
CORPORA = (weather.OWN, *corpora.CORPORA)


@dataclass(frozen=True)
class Release:
    """A Triton: its version, and the folder that holds the package; None for the one that is installed."""

    version: str
    folder: Path | None

    @property
    def order(self) -> tuple[int, ...]:
        """By the numbers of its version."""
        return tuple(int(part) for part in re.findall(r"\d+", self.version.partition("+")[0]))


def weather_command(args: Any) -> int:
    """Run, or take from the folder what is there already; write the page. 0 where every result is safe."""
    folder, targets = Path(args.folder), _listed(args.targets)
    chosen = _corpora(args.corpus, targets)
    ops = _ops(args) if weather.OWN in chosen else []
    releases = sorted((release(text) for text in _listed(args.triton)), key=lambda each: each.order)
    if len({each.version for each in releases}) < len(releases):
        raise UsageError("--triton: two of them are one version")
    folder.mkdir(parents=True, exist_ok=True)
    found: list[dict[str, Any]] = []
    for corpus in chosen:
        for target in targets:
            records: dict[str, dict[str, Any]] = {}

            def judged(
                each: Release, corpus: str = corpus, target: str = target, records: dict[str, Any] = records
            ) -> dict[str, Any]:
                if each.version not in records:
                    if corpus == weather.OWN:
                        records[each.version] = _run(each, target, ops, folder, args)
                    else:
                        records[each.version] = _run_corpus(each, corpus, target, folder, args)
                return records[each.version]

            if args.bisect:
                bisect(releases, judged, weather.outcomes_of)
            else:
                for each in releases:
                    judged(each)
            found += [records[each.version] for each in releases if each.version in records]
    text = weather.page(found)
    if args.page:
        files.write_text(args.page, text)
        print(f"page: {args.page}")
    else:
        print(text, end="")
    return 0 if all(not weather.unsafe(each) for each in found) else 1


def _corpora(text: str, targets: Sequence[str]) -> list[str]:
    """The corpora that `--corpus` names. Raises UsageError."""
    chosen = _listed(text)
    for corpus in chosen:
        if corpus not in CORPORA:
            raise UsageError(f"--corpus {corpus}: there are {', '.join(CORPORA)}")
        if corpus == weather.OWN:
            continue
        for target in targets:
            if ":" not in target:
                raise UsageError(
                    f"--device {target}: {corpus} runs on emulated GPUs; name one, such as rocm:gfx942"
                )
        try:
            corpora.package(corpus)
        except metadata.PackageNotFoundError as error:
            raise UsageError(f"--corpus {corpus}: {error.name} is not installed") from None
    return chosen


def bisect(
    releases: Sequence[Release], judged: Callable[[Release], Any], outcomes: Callable[[Any], Any]
) -> None:
    """Judge the first and the last release, and between two with different outcomes the one in the middle,
    until each change lies between neighbours. A change that a later release takes back may stay unseen."""
    pending = [(0, len(releases) - 1)]
    while pending:
        low, high = pending.pop()
        first, last = outcomes(judged(releases[low])), outcomes(judged(releases[high]))
        if high - low > 1 and first != last:
            middle = (low + high) // 2
            pending += [(middle, high), (low, middle)]


def _listed(text: str) -> list[str]:
    found = list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not found:
        raise UsageError("--triton, --device and --corpus each name at least one")
    return found


# Releases -----------------------------------------------------------------------------------------


def release(text: str) -> Release:
    """The release that a version or a folder names; a version that is not here is installed into the cache.

    Raises UsageError where there is none."""
    if os.sep in text:
        version = version_in(Path(text))
        if version is None:
            raise UsageError(f"--triton {text}: no folder with an installed triton (pip install --target)")
        return Release(version, Path(text).resolve())
    if not re.fullmatch(r"\d+(\.\d+)+(\.?\w+)?", text):
        raise UsageError(
            f"--triton {text}: expected a version, such as 3.7.1, or a folder, such as ./triton-main"
        )
    if _installed() == text:
        return Release(text, None)
    folder = disk_cache.directory() / "triton" / text
    if version_in(folder) is None:
        _install(text, folder)
    return Release(text, folder)


def version_in(folder: Path) -> str | None:
    """The version of the triton that lies in a folder, None where none does."""
    if not (folder / "triton" / "__init__.py").is_file():
        return None
    found = [each.version for each in metadata.distributions(path=[str(folder)]) if each.name == "triton"]
    return found[0] if found else None


def _installed() -> str | None:
    try:
        return metadata.version("triton")
    except metadata.PackageNotFoundError:
        return None


def _install(version: str, folder: Path) -> None:
    """Beside the folder first, then renamed: a folder that is there is whole."""
    print(f"installing triton {version} into {folder}", flush=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = tempfile.mkdtemp(dir=folder.parent, prefix=f"{version}.")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps",
               "--target", temporary, f"triton=={version}"]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode:
            said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or [done.stderr]
            raise UsageError(f"--triton {version}: pip: {said[-1].strip()}")
        if version_in(folder) is None:  # else another process was first
            shutil.rmtree(folder, ignore_errors=True)
            os.rename(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


# Runs ---------------------------------------------------------------------------------------------


def _run(each: Release, target: str, ops: Sequence[str], folder: Path, args: Any) -> dict[str, Any]:
    """The record of a release on a target: the folder's, where it is whole and of the same cases."""
    path = folder / f"triton-{each.version}-{target.replace(':', '-')}.json"
    kept = record.read(path) if path.exists() else None
    if kept is not None and _is_of(kept, each, ops, args):
        print(f"{path}: {record.tally(kept)}")
        return kept
    print(f"triton {each.version} on {target}", flush=True)
    impls = {
        impl.name for op in ops for impl in registry.spec(op).implementations if LANGUAGE in impl.languages
    }
    command = [sys.executable, "-m", "portable.conformance.commands.cli", "run", "--device", target,
               "--tier", args.tier, "--ops", ",".join(ops), "--impl", ",".join(sorted(impls)), "--no-waivers",
               "--record", str(path)]  # fmt: skip
    command += ["-k", args.k] * bool(args.k)
    command += ["-j", str(args.jobs)] * (args.jobs is not None)
    _execute(command, each, target)
    made = record.read(path)
    if not _is_of(made, each, ops, args):
        raise _another(path, made, each)
    return made


def _execute(command: Sequence[str], each: Release, target: str) -> None:
    """Run a command to whose process this Triton is the first."""
    environment = dict(os.environ)
    if each.folder is not None:
        paths = [str(each.folder), *filter(None, [environment.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL)
    if done.returncode not in (0, 1):  # conforming or not
        raise UsageError(f"the run of triton {each.version} on {target} ended with {done.returncode}")


def _another(path: Path, made: dict[str, Any], each: Release) -> UsageError:
    return UsageError(
        f"{path}: made by triton {made['header']['versions'].get('triton')}, not by {each.version}: "
        "is another one in front of it on the path?"
    )


def _run_corpus(each: Release, corpus: str, target: str, folder: Path, args: Any) -> dict[str, Any]:
    """As `_run`, of a corpus of other kernels."""
    arch = target.partition(":")[2]
    path = folder / f"{corpus}-triton-{each.version}-{arch}.json"
    expected = (each.version, corpora.digest(corpus), arch, args.k)

    def made() -> dict[str, Any] | None:
        found = json.loads(path.read_text()) if path.exists() else None
        head = found and found["header"]
        same = head and (head["versions"]["triton"], head["digest"], head["arch"], head["k"]) == expected
        return found if same else None

    if (kept := made()) is not None:
        print(f"{path}: {len(kept['results'])} programs")
        return kept
    print(f"triton {each.version} on {target}: {corpus}", flush=True)
    command = [sys.executable, "-m", corpora.__name__, "--corpus", corpus, "--arch", arch, "--out", str(path)]
    _execute([*command, *(["-k", args.k] * bool(args.k))], each, target)
    found = made()
    if found is None:
        raise _another(path, json.loads(path.read_text()), each)
    return found


def _is_of(kept: dict[str, Any], each: Release, ops: Sequence[str], args: Any) -> bool:
    """Whether a record is whole, of this release, and of the cases as they are today."""
    head = kept["header"]
    return (
        head["complete"]
        and (head["versions"].get("triton"), head["tier"]) == (each.version, args.tier)
        and head["selection"]["k"] == args.k
        and head["specs"] == {op: record.op_digest(op) for op in ops}
    )


def _ops(args: Any) -> list[str]:
    """The ops of the chosen cases that have an implementation in Triton. Raises UsageError where none has."""
    chosen = dict.fromkeys(case.op for case in selection.selected(args))
    found = [op for op in chosen if any(LANGUAGE in i.languages for i in registry.spec(op).implementations)]
    if not found:
        raise UsageError(f"{', '.join(chosen)}: no implementation in Triton")
    return found


def add_arguments(parser: Any) -> None:
    """The options of `weather`, besides those that choose cases."""
    parser.set_defaults(fraction=(1, 1))
    parser.add_argument(
        "folder", metavar="FOLDER", help="where the records are, and those that are not yet go"
    )
    parser.add_argument(
        "--triton",
        required=True,
        metavar="VERSIONS",
        help="versions or folders, comma separated: 3.6.0,3.7.1",
    )
    parser.add_argument(
        "--device",
        required=True,
        dest="targets",
        metavar="TARGETS",
        help="comma separated: rocm:gfx942,rocm:gfx1100",
    )
    parser.add_argument(
        "--corpus",
        default=weather.OWN,
        metavar="NAMES",
        help=f"whose kernels, comma separated: {', '.join(CORPORA)} (default: {weather.OWN})",
    )
    parser.add_argument(
        "--bisect", action="store_true", help="run only what finds the first release of a change"
    )
    parser.add_argument("--page", metavar="FILE.md", help="write the page to this file (default: print it)")
    run_options.add_jobs(parser)

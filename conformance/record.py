"""The record of a run: one JSON file, its schema versioned, written whole or not at all.

It names the device, the versions and the commit, and neither a host nor a user.
"""

from __future__ import annotations

import json
import math
import os
import platform
import shlex
import subprocess
import tempfile
from collections.abc import Sequence
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

SCHEMA = 2

HEADER_FIELDS: dict[str, type | tuple[type, ...]] = {
    "device": str,
    "vendor": str,
    "arch": str,
    "emulated": bool,
    "multiprocessors": int,
    "driver": (str, type(None)),
    "toolkit": (str, type(None)),
    "versions": dict,
    "commit": (str, type(None)),
    "dirty": (bool, type(None)),
    "command": str,
    "date": str,
    "tier": str,
}
GROUP_FIELDS: dict[str, type | tuple[type, ...]] = {
    "op": str,
    "impl": str,
    "states": dict,
    "worst_ratio": (float, int, type(None)),
    "worst_case": (str, type(None)),
    "problems": list,
    "not_supported": dict,
    "digests": dict,  # case id -> 16 digits of the SHA-256 of its outputs' bits
    "exact": list,  # ids of the cases whose outputs had to equal the reference bit for bit
}
PROBLEM_FIELDS: dict[str, type | tuple[type, ...]] = {"case": str, "state": str, "message": str}
TIMING_FIELDS: dict[str, type | tuple[type, ...]] = {
    "op": str,
    "impl": str,
    "case": str,
    "device_us": (float, int),
}


class RecordError(ValueError):
    """A record that is not what its schema says; the message names the place."""


def header(device: Any, argv: Sequence[str], tier: str) -> dict[str, Any]:
    """What the run ran on: `device` is a `portable.plan.Device`, `argv` the arguments after the program."""
    driver, toolkit = (None, None) if device.emulated else _driver_and_toolkit(device.vendor)
    commit, dirty = _commit()
    return {
        "device": device.name,
        "vendor": device.vendor,
        "arch": device.arch,
        "emulated": device.emulated,
        "multiprocessors": device.multiprocessors,
        "driver": driver,
        "toolkit": toolkit,
        "versions": _versions(),
        "commit": commit,
        "dirty": dirty,
        "command": shlex.join(["portable-conformance", *map(_without_folder, argv)]),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "tier": tier,
    }


def build(
    head: dict[str, Any],
    groups: list[dict[str, Any]],
    inputs: dict[str, Any],
    timings: list[dict[str, Any]],
    roof: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The whole record. `groups` has one entry per op and implementation; `inputs` maps a case id to
    the SHA-256 of each of its tensors."""
    record = {
        "schema": SCHEMA,
        "header": head,
        "results": groups,
        "inputs": inputs,
        "timings": timings,
        "roof": roof,
    }
    return _finite(record)


def write(path: str | os.PathLike[str], record: dict[str, Any]) -> None:
    """Write `record` atomically: a temporary file beside `path`, flushed, then renamed over it."""
    validate(record)
    target = Path(path)
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=target.name, suffix=".part")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(record, file, indent=1, sort_keys=True, allow_nan=False)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The record at `path`, validated; RecordError says what is wrong with it."""
    try:
        record = json.loads(Path(path).read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise RecordError(f"{path}: not JSON: {error}") from error
    validate(record)
    return record


def validate(record: Any) -> None:
    """Check `record` against the schema; raise RecordError with the path of the first fault."""
    if not isinstance(record, dict):
        raise RecordError("record: expected an object")
    if record.get("schema") != SCHEMA:
        raise RecordError(
            f"schema: this program reads version {SCHEMA}, the record has {record.get('schema')!r}"
        )
    _fields(record.get("header"), HEADER_FIELDS, "header")
    for place, fields in (("results", GROUP_FIELDS), ("timings", TIMING_FIELDS)):
        entries = record.get(place)
        if not isinstance(entries, list):
            raise RecordError(f"{place}: expected a list")
        for index, entry in enumerate(entries):
            _fields(entry, fields, f"{place}[{index}]")
    for index, group in enumerate(record["results"]):
        for state, count in group["states"].items():
            if not isinstance(count, int) or isinstance(count, bool) or count < 0:
                raise RecordError(f"results[{index}].states.{state}: expected a count, got {count!r}")
        for number, problem in enumerate(group["problems"]):
            _fields(problem, PROBLEM_FIELDS, f"results[{index}].problems[{number}]")
    if not isinstance(record.get("inputs"), dict):
        raise RecordError("inputs: expected an object")


def _fields(entry: Any, fields: dict[str, type | tuple[type, ...]], place: str) -> None:
    if not isinstance(entry, dict):
        raise RecordError(f"{place}: expected an object")
    for name, kind in fields.items():
        if name not in entry:
            raise RecordError(f"{place}.{name}: missing")
        value = entry[name]
        kinds = kind if isinstance(kind, tuple) else (kind,)
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            expected = " or ".join("null" if one is type(None) else one.__name__ for one in kinds)
            raise RecordError(f"{place}.{name}: expected {expected}, got {value!r}")


def _finite(value: Any) -> Any:
    """JSON has no NaN and no Inf: they travel as strings."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


def _without_folder(argument: str) -> str:
    """An argument without the folders of a path, which may hold a user's name."""
    flag, equals, value = argument.partition("=")
    if argument.startswith("-") and equals:
        return f"{flag}={_without_folder(value)}"
    return Path(argument).name if os.path.isabs(argument) or argument.startswith(("~", "..")) else argument


def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {"python": platform.python_version()}
    names = {
        "portable": ("portable-kernels",),
        "torch": ("torch",),
        "numpy": ("numpy",),
        "triton": ("triton", "pytorch-triton", "pytorch-triton-rocm"),
        "cupy": ("cupy-cuda13x", "cupy-cuda12x", "cupy-rocm-7-0", "cupy"),
    }
    for key, distributions in names.items():
        found[key] = next((version for version in map(_version, distributions) if version), None)
    return found


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _driver_and_toolkit(vendor: str) -> tuple[str | None, str | None]:
    import torch

    toolkit = torch.version.cuda or getattr(torch.version, "hip", None)
    driver = None
    query = getattr(torch._C, "_cuda_getDriverVersion", None)
    if vendor != "cpu" and query is not None and torch.version.cuda:
        number = query()
        driver = f"{number // 1000}.{number % 1000 // 10}"
    return driver, toolkit


def _commit() -> tuple[str | None, bool | None]:
    """The checkout's commit and whether tracked files differ from it; nothing when installed from a wheel."""
    folder = Path(__file__).resolve().parent
    try:

        def git(*arguments: str) -> str:
            done = subprocess.run(
                ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=20
            )
            if done.returncode:
                raise OSError(done.stderr)
            return done.stdout.strip()

        if not (Path(git("rev-parse", "--show-toplevel")) / "conformance" / "record.py").exists():
            return None, None
        return git("rev-parse", "HEAD"), bool(git("status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.SubprocessError):
        return None, None

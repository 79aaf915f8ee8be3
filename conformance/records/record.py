"""The record of a run: one JSON file, its schema versioned, written whole or not at all.

It names the device, the versions and the commit, and neither a host nor a user. `record.schema.json` is
the published schema; `validate` says the same and names the first fault.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

from portable.conformance import files
from portable.spec import registry

SCHEMA = 3
TIERS = ("smoke", "core", "full")

STATES = (
    "Pass", "QualityWarning", "PerfWarning", "NotSupported", "ResourceError", "Waived", "XFail", "XPass",
    "Fail.value", "Fail.shape", "Fail.dtype", "Fail.nonfinite", "Fail.nondeterministic", "Fail.bounds_write",
    "Fail.behaviour", "CompileError", "Crash", "Timeout", "InternalError", "NotRun",
)  # fmt: skip
CONFORMING = frozenset({"Pass", "QualityWarning", "PerfWarning", "NotSupported", "Waived", "XFail", "XPass"})
"""Waived, XFail and XPass are made of others by `waivers`; an XPass conforms, the entry it shows does not."""
KNOWN = frozenset({"XFail", "Waived"})
"""Failures that are known, and so conform."""

Kinds = type | tuple[type, ...]
NONE = type(None)
NUMBER = (float, int)

HEADER_FIELDS: dict[str, Kinds] = {
    "device": str,
    "vendor": str,
    "arch": str,
    "emulated": bool,
    "multiprocessors": int,
    "driver": (str, NONE),
    "toolkit": (str, NONE),
    "versions": dict,
    "commit": (str, NONE),
    "dirty": (bool, NONE),
    "command": str,
    "date": str,
    "tier": str,
    "fraction": list,  # [i, n]: the i-th of n shards
    "selection": dict,  # what was asked for: "ops", and "impls" and "k" (null: all)
    "specs": dict,  # op -> digest of the question that its spec asks
    "complete": bool,  # False: interrupted, `--resume` goes on
}
RESULT_FIELDS: dict[str, Kinds] = {"case": str, "impl": str, "state": str}
OPTIONAL_FIELDS: dict[str, Kinds] = {
    "worst": (float, int, str),  # largest |error| / bound
    "max_abs": (float, int, str),  # largest |error|
    "ulp": (float, int, str),  # largest error in units in the last place, with its sign
    "digest": str,  # 16 digits of the SHA-256 of the outputs' bits
    "exact": bool,  # the outputs had to equal the reference bit for bit
    "message": str,
    "seconds": NUMBER,
}
TIMING_FIELDS: dict[str, Kinds] = {
    "op": str,
    "impl": str,
    "case": str,
    "device_us": NUMBER,
    "device_us_all": list,  # one per turn
    "graph": bool,  # False: events timed a plain loop
    "bytes": int,
    "flops": NUMBER,
    "floor_us": NUMBER,  # the least time that the measured roof allows
    "of_roof": NUMBER,  # floor_us / device_us
    "state": str,
    "message": str,
    "vs": dict,  # baseline -> {"median", "low", "high"} of its time / ours
    "baselines_us": dict,
    "baseline_errors": dict,
    "launch_us": (float, int, NONE),
    "baseline_launch_us": (float, int, NONE),
    "clocks": (dict, NONE),
}
WAIVER_FIELDS: dict[str, Kinds] = {"where": str, "kind": str, "used": int}


class RecordError(ValueError):
    """A record that is not what its schema says; the message names the place."""


@dataclass
class Summary:
    """All results of one implementation of one op, as the record holds them."""

    op: str
    impl: str
    results: list[dict[str, Any]] = field(default_factory=list)

    @property
    def states(self) -> Counter[str]:
        return Counter(result["state"] for result in self.results)

    @property
    def conforms(self) -> bool:
        return all(result["state"] in CONFORMING for result in self.results)

    @property
    def worst(self) -> dict[str, Any] | None:
        """The result that came closest to its bound, or went furthest beyond."""
        judged = [result for result in self.results if result["state"] == "Pass" or result.get("worst")]
        return max(judged, key=lambda result: float(result.get("worst", 0.0)), default=None)


def op_of(case: str) -> str:
    """The op of a case's id."""
    return case.partition("/")[0]


def summaries(record: Mapping[str, Any]) -> list[Summary]:
    """The results by op and implementation, in the order in which they first appear."""
    return summarize(record["results"])


def summarize(results: Iterable[dict[str, Any]]) -> list[Summary]:
    """The same, of results alone."""
    found: dict[tuple[str, str], Summary] = {}
    for result in results:
        key = op_of(result["case"]), result["impl"]
        found.setdefault(key, Summary(*key)).results.append(result)
    return list(found.values())


def conforming(record: Mapping[str, Any]) -> bool:
    """Whether the run is whole and without faults, every result conforms and no timing is above the roof."""
    return (
        record["header"]["complete"]
        and not record.get("faults")
        and all(result["state"] in CONFORMING for result in record["results"])
        and all(entry["state"] in CONFORMING for entry in record["timings"])
    )


# Making one ---------------------------------------------------------------------------------------


def header(
    device: Any,
    argv: Sequence[str],
    tier: str,
    *,
    ops: Sequence[str] = (),
    impls: Sequence[str] | None = None,
    k: str | None = None,
    fraction: tuple[int, int] = (1, 1),
) -> dict[str, Any]:
    """What the run ran on and was asked: `device` is a `portable.plan.Device`, `argv` the arguments after
    the program, the rest the run's selection."""
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
        "versions": versions(),
        "commit": commit,
        "dirty": dirty,
        "command": shlex.join(["portable-conformance", *map(_without_folder, argv)]),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "tier": tier,
        "fraction": list(fraction),
        "selection": {"ops": list(ops), "impls": None if impls is None else list(impls), "k": k},
        "specs": {op: question(op) for op in ops},
        "complete": True,
    }


def question(op: str) -> str:
    """16 digits that change with what the op's spec asks: everything in it but the implementations, what
    they cost and the documentation, and the file of its reference."""
    spec = registry.spec(op)
    entries = [entry for entry in (spec.reference.entry, spec.reference.error_scale) if entry is not None]
    asked = (
        spec.axes, spec.leading, spec.types, spec.inputs, spec.params, spec.outputs, spec.tolerance,
        [entry.function for entry in entries],
    )  # fmt: skip
    digest = hashlib.sha256(repr(asked).encode())
    for file in sorted({entry.file for entry in entries}):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def build(
    head: dict[str, Any],
    results: Iterable[dict[str, Any]],
    inputs: Mapping[str, str],
    timings: Sequence[dict[str, Any]] = (),
    roof: dict[str, Any] | None = None,
    waivers: Sequence[dict[str, Any]] = (),
) -> dict[str, Any]:
    """The whole record. `inputs` maps a case's id to the SHA-256 of its tensors."""
    record = {
        "schema": SCHEMA,
        "header": head,
        "results": list(results),
        "inputs": dict(inputs),
        "timings": list(timings),
        "roof": roof,
        "waivers": list(waivers),
    }
    return _finite(record)


def entry(case: str, impl: str, state: str, **others: Any) -> dict[str, Any]:
    """One result; fields that say nothing ("", 0, False, None) are left out, numbers get five digits."""
    kept = {
        name: float(f"{value:.5g}") if isinstance(value, float) and math.isfinite(value) else value
        for name, value in others.items()
        if value
    }
    if "message" in kept:
        kept["message"] = _without_place(str(kept["message"]))
    return _finite({"case": case, "impl": impl, "state": state, **kept})


def _without_place(message: str) -> str:
    """A message without the folders of the package, of Python and of the user."""
    package = str(Path(__file__).resolve().parents[2])
    for folder, name in ((package, ""), (sys.prefix, "python/"), (str(Path.home()), "~/")):
        if folder != "/":
            message = message.replace(folder.rstrip("/") + "/", name)
    return message


# Reading and writing ------------------------------------------------------------------------------


def write(path: str | os.PathLike[str], record: dict[str, Any]) -> None:
    """Write `record` atomically. RecordError where it is none, OSError where it cannot be written."""
    validate(record)
    files.write_text(path, text(record))


def text(record: Mapping[str, Any]) -> str:
    """The record as JSON with one result, one timing and one input a line, so that files can be compared
    line by line."""
    parts = []
    for name in ("schema", "header", "faults", "roof", "waivers", "timings", "results", "inputs"):
        if name not in record:
            continue
        value = record[name]
        if isinstance(value, list) and value:
            lines = ",\n  ".join(json.dumps(each, sort_keys=True, allow_nan=False) for each in value)
            parts.append(f'"{name}": [\n  {lines}\n ]')
        elif isinstance(value, dict) and value:
            lines = ",\n  ".join(
                f"{json.dumps(key)}: {json.dumps(value[key], sort_keys=True, allow_nan=False)}"
                for key in sorted(value)
            )
            parts.append(f'"{name}": {{\n  {lines}\n }}')
        else:
            parts.append(f'"{name}": {json.dumps(value)}')
    return "{\n " + ",\n ".join(parts) + "\n}\n"


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The record at `path`, validated; RecordError says what is wrong with it."""
    try:
        record = json.loads(Path(path).read_text(encoding="utf-8"), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:  # no JSON, no UTF-8, or a number of too many digits
        raise RecordError(f"{path}: not JSON: {error}") from error
    try:
        validate(record)
    except RecordError as error:
        raise RecordError(f"{path}: {error}") from None
    return record


RENAMED = {
    "native": "cpp",
    "split": "splitk",
    "packed": "realigned",
    "bulk": "tma",
    "decode_bulk": "decode_tma",
}
"""Implementations of this package that got another name on 2026-11-22, after the committed records."""


def with_current_names(record: dict[str, Any]) -> dict[str, Any]:
    """The record with the implementations' names of today, to be read beside today's specs. Changes it."""
    for each in [*record["results"], *record.get("timings", ())]:
        each["impl"] = RENAMED.get(each["impl"], each["impl"])
    return record


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


def validate(record: Any) -> None:
    """Check `record` against the schema; raise RecordError with the path of the first fault."""
    if not isinstance(record, dict):
        raise RecordError("record: expected an object")
    if record.get("schema") != SCHEMA:
        raise RecordError(
            f"schema: this program reads version {SCHEMA}, the record has {record.get('schema')!r}"
        )
    _fields(record.get("header"), HEADER_FIELDS, "header")
    if record["header"]["tier"] not in TIERS:
        raise RecordError(f"header.tier: {record['header']['tier']!r} is none of {', '.join(TIERS)}")
    _fraction(record["header"]["fraction"])
    _fields(record["header"]["selection"], {"ops": list, "impls": (list, NONE), "k": (str, NONE)},
            "header.selection")  # fmt: skip
    for place, fields in (
        ("results", RESULT_FIELDS), ("timings", TIMING_FIELDS), ("waivers", WAIVER_FIELDS)
    ):  # fmt: skip
        entries = record.get(place)
        if not isinstance(entries, list):
            raise RecordError(f"{place}: expected a list")
        for index, each in enumerate(entries):
            _fields(each, fields, f"{place}[{index}]")
    for index, result in enumerate(record["results"]):
        _fields(result, {k: v for k, v in OPTIONAL_FIELDS.items() if k in result}, f"results[{index}]")
        if result["state"] not in STATES:
            raise RecordError(f"results[{index}].state: {result['state']!r} is no state")
        unknown = result.keys() - RESULT_FIELDS.keys() - OPTIONAL_FIELDS.keys()
        if unknown:
            raise RecordError(f"results[{index}].{min(unknown)}: unknown field")
    for index, timing in enumerate(record["timings"]):
        if timing["state"] not in STATES:
            raise RecordError(f"timings[{index}].state: {timing['state']!r} is no state")
    faults = record.get("faults", [])
    if not isinstance(faults, list) or not all(isinstance(fault, str) for fault in faults):
        raise RecordError("faults: expected a list of sentences")
    inputs = record.get("inputs")
    if not isinstance(inputs, dict) or not all(isinstance(value, str) for value in inputs.values()):
        raise RecordError("inputs: expected an object of SHA-256 by case")
    if not isinstance(record.get("roof"), (dict, NONE)):
        raise RecordError("roof: expected an object or null")


def _fraction(value: list[Any]) -> None:
    whole = len(value) == 2 and all(isinstance(n, int) and not isinstance(n, bool) for n in value)
    if not whole or not 1 <= value[0] <= value[1]:
        raise RecordError(f"header.fraction: expected [i, n] with 1 <= i <= n, got {value!r}")


def _fields(entry: Any, fields: Mapping[str, Kinds], place: str) -> None:
    if not isinstance(entry, dict):
        raise RecordError(f"{place}: expected an object")
    for name, kind in fields.items():
        if name not in entry:
            raise RecordError(f"{place}.{name}: missing")
        value = entry[name]
        kinds = kind if isinstance(kind, tuple) else (kind,)
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            expected = " or ".join("null" if one is NONE else one.__name__ for one in kinds)
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


def versions() -> dict[str, str | None]:
    """The versions of Python and of what decides numbers and speed; None where it is not installed."""
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
    """The checkout's commit and whether tracked files differ from it, evidence like this record set aside;
    nothing when installed from a wheel."""
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
        evidence = [f":(exclude,top)conformance/{name}" for name in ("records", "calibration")]
        changed = git("status", "--porcelain", "--untracked-files=no", "--", ":(top)", *evidence)
        return git("rev-parse", "HEAD"), bool(changed)
    except (OSError, subprocess.SubprocessError):
        return None, None

"""The record of a run: one JSON file, its schema versioned, written whole or not at all; gzip where its name
ends in .gz, as those of `conformance/results` do.

It names the device, the versions and the commit, and neither a host nor a user. `record.schema.json` is
the published schema; `validate` says the same and names the first fault.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import re
import shlex
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

from portable.conformance.cases.case import op_of
from portable.conformance.execute.result import finite
from portable.conformance.records import compact
from portable.conformance.records.schema import SCHEMA, RecordError, validate
from portable.conformance.states import CONFORMING, Tally
from portable.runtime import files
from portable.spec import registry
from portable.spec.model import Spec


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
    def tally(self) -> Tally:
        return Tally.of(self.states)

    @property
    def conforms(self) -> bool:
        return all(result["state"] in CONFORMING for result in self.results)

    @property
    def worst(self) -> dict[str, Any] | None:
        """The result that came closest to its bound, or went furthest beyond."""
        judged = [result for result in self.results if result["state"] == "Pass" or result.get("worst")]
        return max(judged, key=lambda result: float(result.get("worst", 0.0)), default=None)


def tally(record: Mapping[str, Any]) -> Tally:
    """What the results amount to."""
    return Tally.of(result["state"] for result in record["results"])


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
    """Whether the run is whole and without faults, something was judged, every result conforms and no timing
    is above the roof. A run in which every case was declined does not conform."""
    return (
        record["header"]["complete"]
        and not record.get("faults")
        and tally(record).conforms
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
    """The run's device, versions, command and selection: `device` is a `portable.plan.Device`, `argv` the
    arguments after the program, the rest the run's selection."""
    driver, toolkit = (None, None) if device.emulated else _driver_and_toolkit(device.vendor)
    commit, dirty = checkout_commit()
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
        "specs": {op: op_digest(op) for op in ops},
        "complete": True,
    }


def op_digest(op: str) -> str:
    """16 hex digits over what the op's cases and results depend on: the spec but for implementations, cost
    and documentation, and the file of its reference."""
    return spec_digest(registry.spec(op), registry.op_folders()[op].parent)


_LATER_FIELDS = re.compile(
    r", otherwise=None|, gradient=True|, mutated=False|, like=(None|'\w+')|, in_place=None"
)
"""What specs can say since records were made: where they do not, those records are of the same spec. `like`
says where results lie, not what they are."""


def spec_digest(spec: Spec, folder: Path) -> str:
    """See `op_digest`; `folder` is the op's, whose path is left out."""
    entries = [entry for entry in (spec.reference.entry, spec.reference.error_scale) if entry is not None]
    contents = (
        spec.axes, spec.leading, spec.types, spec.inputs, spec.params, spec.outputs, spec.tolerance,
        [entry.function for entry in entries],
    )  # fmt: skip
    text = repr(contents).replace(f"{folder}/", "")
    text = _LATER_FIELDS.sub("", text)
    digest = hashlib.sha256(text.encode())
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
    modelled: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The whole record. `inputs` maps a case's id to the SHA-256 of its tensors; `modelled` is the part of
    that name, None where nothing was modelled."""
    record: dict[str, Any] = {
        "schema": SCHEMA,
        "header": head,
        "results": list(results),
        "inputs": dict(inputs),
        "timings": [_six_digits(each) for each in timings],
        "roof": roof,
        "waivers": list(waivers),
    }
    if modelled is not None:
        record["modelled"] = _six_digits(modelled)
    return finite(record)


# Reading and writing ------------------------------------------------------------------------------


RENAMED = {
    "native": "cpp",
    "split": "splitk",
    "packed": "realigned",
    "bulk": "tma",
    "decode_bulk": "decode_tma",
}
RENAMED_ON = "2026-11-22"
"""Implementations that got another name, and when: a record from before is read with the new names, and its
header says so (`renamed`). Its `command` and `selection` are as they were."""


def write(path: str | os.PathLike[str], record: dict[str, Any]) -> None:
    """Write `record` atomically. RecordError where it is none, OSError where it cannot be written."""
    validate(record)
    files.write_text(path, text(record))


def text(record: Mapping[str, Any]) -> str:
    """The content of its file, as `compact` describes it."""
    return compact.text(compact.pack(record))


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The record at `path`, validated; RecordError says what is wrong with it."""
    try:
        content = json.loads(files.read_text(path), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:  # no JSON, no UTF-8, or a number of too many digits
        raise RecordError(f"{path}: not JSON: {error}") from error
    try:
        return load(content)
    except RecordError as error:
        raise RecordError(f"{path}: {error}") from None


def load(content: Any) -> dict[str, Any]:
    """The record of a file's content, validated. One of schema 3, which listed its results, is read too."""
    if not isinstance(content, dict):
        raise RecordError("record: expected an object")
    if content.get("schema") == 3:
        record = _of_schema_3(content)
    elif content.get("schema") == SCHEMA:
        record = compact.unpack(content)
    else:
        raise RecordError(
            f"schema: this program reads versions 3 and {SCHEMA}, the record has {content.get('schema')!r}"
        )
    validate(record)
    return record


def _of_schema_3(content: dict[str, Any]) -> dict[str, Any]:
    """The same record as of today: hashes of 16 digits, implementations by the names that they have now."""
    record = {**content, "schema": SCHEMA}
    inputs = content.get("inputs")
    if isinstance(inputs, dict):
        record["inputs"] = {case: text[:16] for case, text in inputs.items() if isinstance(text, str)}
    renamed = False
    for name in ("results", "timings"):
        if isinstance(content.get(name), list):
            record[name] = [dict(each) if isinstance(each, dict) else each for each in content[name]]
            if name == "timings":
                record[name] = [_six_digits(each) for each in record[name]]
            for each in record[name]:
                if isinstance(each, dict) and each.get("impl") in RENAMED:
                    each["impl"], renamed = RENAMED[each["impl"]], True
    if renamed and isinstance(content.get("header"), dict):
        record["header"] = {**content["header"], "renamed": {"date": RENAMED_ON, "impls": RENAMED}}
    return record


def _six_digits(value: Any) -> Any:
    """Floats with six significant digits: more than any timer has."""
    if isinstance(value, float) and math.isfinite(value):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _six_digits(each) for key, each in value.items()}
    return [_six_digits(each) for each in value] if isinstance(value, (list, tuple)) else value


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


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


def checkout_commit() -> tuple[str | None, bool | None]:
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

        if not (Path(git("rev-parse", "--show-toplevel")) / "conformance" / "records" / "record.py").exists():
            return None, None
        evidence = [f":(exclude,top)conformance/{name}" for name in ("results", "calibration")]
        changed = git("status", "--porcelain", "--untracked-files=no", "--", ":(top)", *evidence)
        return git("rev-parse", "HEAD"), bool(changed)
    except (OSError, subprocess.SubprocessError):
        return None, None

"""The record of `portable-conformance models`: a JSON file, versioned and checked when it is read."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from portable.conformance.models.measure import ERROR, FAIL, MODELLED, PASS, UNAVAILABLE
from portable.conformance.records import record as records
from portable.conformance.records.schema import NONE, NUMBER, Kinds, RecordError, check_fields
from portable.runtime import files

SCHEMA = 1
_HEADER: dict[str, Kinds] = {
    "device": str, "vendor": str, "arch": str, "emulated": bool, "driver": (str, NONE), "versions": dict,
    "commit": (str, NONE), "dirty": (bool, NONE), "command": str, "date": str, "tiny": bool,
}  # fmt: skip
_STEP: dict[str, Kinds] = {
    "model": str,
    "step": str,
    "candidates": list,
    "roof": (dict, NONE),
    "floors": dict,
}
_CANDIDATE: dict[str, Kinds] = {"name": str, "state": str, "message": str, "errors": dict}
_TIMED: dict[str, Kinds] = {
    "us": list,  # of a step, one per round
    "sm_mhz": (*NUMBER, NONE), "watts": (*NUMBER, NONE), "joules": (*NUMBER, NONE), "peak_bytes": int,
    "kernels": list,
}  # fmt: skip
_MODELLED: dict[str, Kinds] = {"us": list, "accuracy": str, "kernels": list}
_KERNEL: dict[str, Kinds] = {"name": str, "part": str, "launches": int, "us": NUMBER}


def build(device: Any, argv: Sequence[str], tiny: bool, steps: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The record of a run on `device`, a `portable.plan.Device`."""
    head = records.header(device, argv, "full")
    kept = {key: value for key, value in head.items() if key in _HEADER}
    return {"schema": SCHEMA, "kind": "models", "header": {**kept, "tiny": tiny}, "steps": list(steps)}


def write(path: str | os.PathLike[str], record: Mapping[str, Any]) -> None:
    """Write it whole or not at all. RecordError where it is none, OSError where it cannot be written."""
    check(record)
    files.write_text(path, json.dumps(record, indent=1, allow_nan=False) + "\n")


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The record at `path`; RecordError says what is wrong with it."""
    try:
        record = json.loads(files.read_text(path))
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{path}: not JSON: {error}") from error
    try:
        check(record)
    except RecordError as error:
        raise RecordError(f"{path}: {error}") from None
    return record


def check(record: Any) -> None:
    """Raises RecordError with the place of the first fault."""
    check_fields(record, {"kind": str, "header": dict, "steps": list}, "record")
    if (record["kind"], record.get("schema")) != ("models", SCHEMA):
        raise RecordError(f"record: expected one of models with schema {SCHEMA}")
    check_fields(record["header"], _HEADER, "header")
    for index, step in enumerate(record["steps"]):
        check_fields(step, _STEP, f"steps[{index}]")
        for number, each in enumerate(step["candidates"]):
            place = f"steps[{index}].candidates[{number}]"
            timed = _MODELLED if each.get("state") == MODELLED else _TIMED if "us" in each else {}
            check_fields(each, _CANDIDATE | timed, place)
            if each["state"] not in (PASS, FAIL, ERROR, UNAVAILABLE, MODELLED):
                raise RecordError(f"{place}.state: {each['state']!r} is no state")
            if each["state"] not in (PASS, MODELLED) and "us" in each:
                raise RecordError(f"{place}: timed, though it does not pass")
            for one, kernel in enumerate(each.get("kernels", ())):
                check_fields(kernel, _KERNEL, f"{place}.kernels[{one}]")


def conforming(record: Mapping[str, Any]) -> bool:
    """Whether this package's candidates ran and are right, at least one; another's fault is only shown."""
    ours = [each["state"] for step in record["steps"] for each in step["candidates"]
            if each["name"].startswith("portable")]  # fmt: skip
    return bool(ours) and all(state == PASS for state in ours)

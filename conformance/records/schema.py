"""The fields of a record and what a valid one holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from portable.conformance.cases.generate import TIERS
from portable.conformance.states import STATES

SCHEMA = 4


class RecordError(ValueError):
    """A record that is not what its schema says; the message names the place."""


Kinds = type | tuple[type, ...]
NONE = type(None)
NUMBER = (float, int)

NOT_FINITE = ("inf", "-inf", "nan")  # JSON has no such numbers

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
    "selection": dict,  # "ops", and "impls" and "k" (null: all)
    "specs": dict,  # op -> digest of its spec and reference (record.op_digest)
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
    "device_us_all": list,  # one per round
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
MODELLED_FIELDS: dict[str, Kinds] = {
    "accuracy": str,  # how far the model is off, in words
    "roof": dict,  # by the model: rates per second, named as those that a GPU measured
    "times": list,
}
MODELLED_TIME_FIELDS: dict[str, Kinds] = {
    "op": str,
    "impl": str,
    "case": str,
    "modelled_us": (float, int, NONE),  # None where the model could not time it, and `message` says why
    "floor_us": (float, int, NONE),  # the least time that the model's roof allows; None: it has no such roof
    "bytes": int,
    "flops": NUMBER,
    "launches": int,
    "message": str,
}
WAIVER_FIELDS: dict[str, Kinds] = {"where": str, "kind": str, "used": int}


def validate(record: Any) -> None:
    """Check `record` against the schema; raise RecordError with the path of the first fault."""
    if not isinstance(record, dict):
        raise RecordError("record: expected an object")
    if record.get("schema") != SCHEMA:
        raise RecordError(
            f"schema: this program reads version {SCHEMA}, the record has {record.get('schema')!r}"
        )
    check_fields(record.get("header"), HEADER_FIELDS, "header")
    if record["header"]["tier"] not in TIERS:
        raise RecordError(f"header.tier: {record['header']['tier']!r} is none of {', '.join(TIERS)}")
    _fraction(record["header"]["fraction"])
    check_fields(record["header"]["selection"], {"ops": list, "impls": (list, NONE), "k": (str, NONE)},
            "header.selection")  # fmt: skip
    for place, fields in (
        ("results", RESULT_FIELDS), ("timings", TIMING_FIELDS), ("waivers", WAIVER_FIELDS)
    ):  # fmt: skip
        entries = record.get(place)
        if not isinstance(entries, list):
            raise RecordError(f"{place}: expected a list")
        for index, each in enumerate(entries):
            check_fields(each, fields, f"{place}[{index}]")
    for index, result in enumerate(record["results"]):
        check_fields(result, {k: v for k, v in OPTIONAL_FIELDS.items() if k in result}, f"results[{index}]")
        for name in ("worst", "max_abs", "ulp"):
            if isinstance(value := result.get(name), str) and value not in NOT_FINITE:
                raise RecordError(f"results[{index}].{name}: {value!r} is no number")
        if result["state"] not in STATES:
            raise RecordError(f"results[{index}].state: {result['state']!r} is no state")
        unknown = result.keys() - RESULT_FIELDS.keys() - OPTIONAL_FIELDS.keys()
        if unknown:
            raise RecordError(f"results[{index}].{min(unknown)}: unknown field")
    for index, timing in enumerate(record["timings"]):
        if timing["state"] not in STATES:
            raise RecordError(f"timings[{index}].state: {timing['state']!r} is no state")
    if "modelled" in record:
        _modelled(record["modelled"], record["header"]["emulated"])
    faults = record.get("faults", [])
    if not isinstance(faults, list) or not all(isinstance(fault, str) for fault in faults):
        raise RecordError("faults: expected a list of sentences")
    inputs = record.get("inputs")
    if not isinstance(inputs, dict) or not all(isinstance(value, str) for value in inputs.values()):
        raise RecordError("inputs: expected an object of SHA-256 by case")
    if not isinstance(record.get("roof"), (dict, NONE)):
        raise RecordError("roof: expected an object or null")


def _modelled(part: Any, emulated: bool) -> None:
    check_fields(part, MODELLED_FIELDS, "modelled")
    if not emulated:
        raise RecordError("modelled: only an emulated device has modelled times")
    if not part["accuracy"]:
        raise RecordError("modelled.accuracy: expected a sentence")
    for name, rate in part["roof"].items():
        if not _is_positive(rate):
            raise RecordError(f"modelled.roof.{name}: expected a rate, got {rate!r}")
    for index, each in enumerate(part["times"]):
        check_fields(each, MODELLED_TIME_FIELDS, f"modelled.times[{index}]")
        for name in ("modelled_us", "floor_us"):
            if each[name] is not None and not _is_positive(each[name]):
                raise RecordError(f"modelled.times[{index}].{name}: expected a time, got {each[name]!r}")


def _is_positive(value: Any) -> bool:
    return isinstance(value, NUMBER) and not isinstance(value, bool) and value > 0


def _fraction(value: list[Any]) -> None:
    whole = len(value) == 2 and all(isinstance(n, int) and not isinstance(n, bool) for n in value)
    if not whole or not 1 <= value[0] <= value[1]:
        raise RecordError(f"header.fraction: expected [i, n] with 1 <= i <= n, got {value!r}")


def check_fields(entry: Any, fields: Mapping[str, Kinds], place: str) -> None:
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

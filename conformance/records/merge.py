"""One record of the shards that `--fraction I,N` made of a run.

The merged record is what the whole run would have written, results and timings sorted. It covers the
whole, `fraction` [1, 1], only when all N shards are there. Otherwise it is incomplete, `fraction` stays
[i, N] with i the first shard that is there, and `shards` in the header lists those that are; such a record
cannot be merged further, so keep the shards' own records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from portable.conformance.cases.case import op_of
from portable.conformance.records import record
from portable.errors import PortableError, listed

SAME = (
    "device", "vendor", "arch", "emulated", "multiprocessors", "driver", "toolkit", "versions", "commit",
    "dirty", "tier", "selection", "specs",
)  # fmt: skip
"""Header fields that all shards of one run share."""

Record = Mapping[str, Any]


class MergeError(PortableError, ValueError):
    """Records that are not shards of one run; the message names the field or case, and both values."""


def merge(records: Sequence[Record]) -> dict[str, Any]:
    """The one record of `records`, whatever their order; `notices` says what it lacks.

    MergeError where headers differ, a shard is there twice, two shards hold the same case and
    implementation, their inputs differ, or two of them measured a roof.
    """
    if not records:
        raise MergeError("merge: no record given; name the records of the shards")
    for each in records:
        if "shards" in each["header"]:
            raise MergeError(
                f"a record is merged already, of shards {each['header']['shards']} of "
                f"{each['header']['fraction'][1]}; "
                f"merge the shards' own records"
            )
    shards = sorted(records, key=lambda each: each["header"]["fraction"][0])
    _same_run(shards)
    head = _header(shards)
    places = {op: place for place, op in enumerate(map(str, head["selection"]["ops"]))}

    def order(entry: Mapping[str, Any]) -> tuple[int, str, str]:
        return places.get(op_of(entry["case"]), len(places)), entry["case"], entry["impl"]

    merged = record.build(
        head,
        sorted(_united(shards, "results"), key=order),
        _inputs(shards),
        sorted(_united(shards, "timings"), key=order),
        _roof(shards),
        _waivers(shards),
        _modelled(shards),
    )
    if faults := [fault for each in shards for fault in each.get("faults", [])]:
        merged["faults"] = list(dict.fromkeys(faults))
    record.validate(merged)
    return merged


def notices(records: Sequence[Record]) -> list[str]:
    """Why the merged record is incomplete, one sentence each; none where it is whole."""
    held = sorted(each["header"]["fraction"][0] for each in records)
    count = records[0]["header"]["fraction"][1]
    missing = [shard for shard in range(1, count + 1) if shard not in held]
    lines = []
    if missing:
        noun, verb = ("shards", "are") if len(missing) > 1 else ("shard", "is")
        lines.append(
            f"{noun} {listed(missing)} of {count} {verb} missing; the merged record is marked incomplete"
        )
    for each in records:
        if not each["header"]["complete"]:
            lines.append(
                f"shard {each['header']['fraction'][0]} of {count} was interrupted; "
                f"the merged record is marked incomplete"
            )
    return lines


def _same_run(shards: Sequence[Record]) -> None:
    first = shards[0]["header"]
    for each in shards[1:]:
        head = each["header"]
        names = f"shards {first['fraction'][0]} and {head['fraction'][0]}"
        for name in SAME:
            if head[name] != first[name]:
                place, a, b = _difference(name, first[name], head[name])
                raise MergeError(f"{names} are of different runs: {place} is {a!r} and {b!r}")
        if head["fraction"][1] != first["fraction"][1]:
            raise MergeError(
                f"{names} are of different runs: fraction is of {first['fraction'][1]} "
                f"and of {head['fraction'][1]}"
            )
    held = [each["header"]["fraction"][0] for each in shards]
    for shard, following in pairwise(held):
        if shard == following:
            raise MergeError(f"shard {shard} of {first['fraction'][1]} is there twice; name each record once")


def _difference(name: str, a: Any, b: Any) -> tuple[str, Any, Any]:
    """Where two values of a header's field differ: within objects, the first key that does."""
    if isinstance(a, dict) and isinstance(b, dict):
        key = min(key for key in a.keys() | b.keys() if a.get(key) != b.get(key) or (key in a) != (key in b))
        return f"{name}.{key}", a.get(key), b.get(key)
    return name, a, b


def _header(shards: Sequence[Record]) -> dict[str, Any]:
    heads = [each["header"] for each in shards]
    count = heads[0]["fraction"][1]
    whole = len(shards) == count
    head = {
        **heads[0],
        "command": "; ".join(dict.fromkeys(each["command"] for each in heads)),
        "date": min(each["date"] for each in heads),
        "fraction": [1, 1] if whole else [heads[0]["fraction"][0], count],
        "complete": whole and all(each["complete"] for each in heads),
    }
    return head if whole else head | {"shards": [each["fraction"][0] for each in heads]}


def _modelled(shards: Sequence[Record]) -> dict[str, Any] | None:
    """The part of the shards that modelled times, by one model: they are runs of one commit and device."""
    parts = [each["modelled"] for each in shards if "modelled" in each]
    if not parts:
        return None
    timed = [
        {"header": each["header"], "times": each["modelled"]["times"]}
        for each in shards
        if "modelled" in each
    ]
    return {**parts[0], "times": _united(timed, "times")}


def _united(shards: Sequence[Record], place: str) -> list[dict[str, Any]]:
    """All results, timings or modelled times; a case and implementation may be in one shard only, and there
    once."""
    owner: dict[tuple[str, str], int] = {}
    found = []
    for each in shards:
        shard = each["header"]["fraction"][0]
        for entry in each[place]:
            key = entry["case"], entry["impl"]
            if key in owner:
                where = f"shards {owner[key]} and {shard}" if owner[key] != shard else f"shard {shard}, twice"
                raise MergeError(f"{place}: {key[0]} on {key[1]} is in {where}; expected it once")
            owner[key] = shard
            found.append(entry)
    return found


def _inputs(shards: Sequence[Record]) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in shards:
        for case, digest in each["inputs"].items():
            if found.setdefault(case, digest) != digest:
                raise MergeError(
                    f"inputs: {case} had different inputs in two shards ({found[case]} and {digest})"
                )
    return dict(sorted(found.items()))


def _roof(shards: Sequence[Record]) -> dict[str, Any] | None:
    """The roof of the shard that has timings; of none, the one that was measured."""
    timed = [each for each in shards if each["timings"]]
    measured = [each for each in timed or shards if each["roof"] is not None]
    for each in measured[1:]:
        if each["roof"] != measured[0]["roof"]:
            numbers = [one["header"]["fraction"][0] for one in (measured[0], each)]
            raise MergeError(
                f"roof: shards {numbers[0]} and {numbers[1]} measured different roofs, so their timings "
                f"cannot be merged into one record; give --bench to one shard only"
            )
    return measured[0]["roof"] if measured else None


def _waivers(shards: Sequence[Record]) -> list[dict[str, Any]]:
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for each in shards:
        for entry in each["waivers"]:
            key = entry["where"], entry["kind"]
            if key in found:
                found[key] = found[key] | {"used": found[key]["used"] + entry["used"]}
            else:
                found[key] = dict(entry)
    return [found[key] for key in sorted(found)]

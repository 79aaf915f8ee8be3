"""Times of the ops' implementations by the timing model, from modelled.csv (docs/modelled.py writes it)."""

from __future__ import annotations

import csv
import functools
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from portable.backends.rocm import pipe_model

FILE = Path(__file__).resolve().with_suffix(".csv")


@functools.cache
def rows() -> Mapping[tuple[str, str], Mapping[str, list[tuple[str, str]]]]:
    """By op and architecture, and call: (implementation, microseconds), in the spec's order."""
    found: dict[tuple[str, str], dict[str, list[tuple[str, str]]]] = defaultdict(lambda: defaultdict(list))
    with FILE.open(newline="") as file:
        for row in csv.DictReader(file):
            times = found[row["op"], row["arch"]][row["call"]]
            times.append((row["implementation"], row["microseconds"]))
    return found


def lines(op: str, arch: str) -> list[str]:
    """What `portable.explain` says: a line for each call that was modelled."""
    calls = rows().get((op, arch))
    if not calls:
        return []
    model = pipe_model.models()[arch]
    said = [f"modelled on {model.model}, not measured ({model.timing.accuracy}), bfloat16, us:"]
    for call, times in calls.items():
        said.append(f"    {call}: " + ", ".join(f"{name} {time}" for name, time in times))
    return said

"""What the reports share: text that every reader takes, numbers in few digits, the parts of a case's id."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from typing import Any

from portable.conformance import text as words

BEHAVIOUR = "behaviour"
"""The second part of a behaviour's id, which has no types."""

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def clean(text: object) -> str:
    """`text` with a replacement character for what XML and HTML cannot hold (control characters, lone
    surrogates), lines ending in a single newline."""
    return _NOT_XML.sub("\ufffd", str(text)).replace("\r\n", "\n").replace("\r", "\n")


def cut(text: str, length: int) -> str:
    """`text`, shortened to `length` characters, the last of them an ellipsis."""
    return text if len(text) <= length else text[: length - 1] + "…"


def types_of(case: str) -> str:
    """The types of a case's id (`bfloat16`, `bfloat16,W=float32`), "behaviour" for a behaviour's."""
    parts = case.split("/")
    return parts[1] if len(parts) > 1 else ""


def shape_of(case: str) -> str:
    """The shape and parameters of a case's id, "" where it has none."""
    parts = case.split("/")
    return parts[2] if len(parts) > 2 else ""


def listed(words: Iterable[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    *most, last = [str(word) for word in words] or [""]
    return f"{', '.join(most)} and {last}" if most else last


def scientific(value: float | str | None) -> str:
    """`value` as 1.23e-04; a dash for None."""
    return "–" if value is None else f"{float(value):.2e}" if float(value) else "0"


def quantity(value: float, unit: str) -> str:
    """`4.12 TB/s` of 4.12e12 and "B/s"."""
    if not math.isfinite(value) or value <= 0:
        return f"{value:g} {unit}"
    step = min(max(math.floor(math.log10(value) / 3), 0), 5)
    scaled = value / 1000**step
    if step < 5 and float(words.number(scaled).replace(",", "")) >= 1000:
        step, scaled = step + 1, 1.0
    return f"{words.number(scaled)} {['', 'k', 'M', 'G', 'T', 'P'][step]}{unit}"


def moment(date: str) -> str:
    """An ISO date and time as `2026-11-21 12:00 UTC`; what is none is left as it is."""
    try:
        when = datetime.fromisoformat(date)
    except ValueError:
        return date
    return (when.astimezone(timezone.utc) if when.tzinfo else when).strftime("%Y-%m-%d %H:%M UTC")


def rerun(result: Mapping[str, Any], header: Mapping[str, Any]) -> str:
    """The command that runs exactly this result's case again, on such a device."""
    options = ["--device", header["vendor"]]
    if header["emulated"]:
        options = ["--device", f"{header['vendor']}:{header['arch']}", "--emulate"]
    if "--no-waivers" in header["command"].split():
        options.append("--no-waivers")
    return words.rerun(clean(result["case"]), clean(result["impl"]), options)

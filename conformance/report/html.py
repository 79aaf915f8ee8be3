"""The record as one HTML page that needs nothing else: no network, no library, no fonts.

The verdict comes first. Everything but the list of all results is in the page as HTML and is read without
JavaScript; the list is JSON that `page.js` makes rows of when it is opened. A content security policy keeps
the page from loading anything and from running any script but `page.js`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from portable.conformance.records import record as records
from portable.conformance.report import sections
from portable.conformance.report.markup import Html, element, escape, join
from portable.conformance.report.wording import clean, cut, listed, moment
from portable.conformance.states import CONFORMING, NOT_JUDGED
from portable.conformance.text import number, pluralize
from portable.runtime import files

FOLDER = Path(__file__).parent
LISTED, ALL_LISTED = 160, 500_000
"""Characters of a message in the list of all results, and of all different messages together."""

Record = Mapping[str, Any]
Comparison = Mapping[str, Any]


def write(
    path: str | os.PathLike[str],
    record: Record,
    other: Record | None = None,
    comparison: Comparison | None = None,
) -> None:
    """Write the page of `record` to `path`, whole or not at all; OSError as `open` does.

    With `other` and `comparison` it is the page of two records. A comparison has "names" of both, "verdict",
    "agreement": [{"op", "impl", "cases", "exact", "equal", "problems"}] and "parity": [{"op", "case", "impl",
    "ratio", "low", "high", "verdict"}], as `compare.data` gives. It may have "notices" (sentences), "agree"
    (False: the mark is bad), "target", the required ratio (0.8), and "modelled" (`records.modelled.data`); a
    parity's case is "" for an op's mean.
    """
    files.write_text(path, page(record, other, comparison))


def page(record: Record, other: Record | None = None, comparison: Comparison | None = None) -> str:
    """The page's text."""
    if (other is None) != (comparison is None):
        raise ValueError("html.page: a page of two records takes both `other` and `comparison`")
    both = [record] if other is None else [record, other]
    names = [each["header"]["device"] for each in both] if comparison is None else comparison["names"]
    script = (FOLDER / "page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    content = [_verdict(both, names, comparison)]
    for name, title, body in _sections(both, names, comparison):
        if body:
            content.append(element("section", element("h2", title, id=f"{name}-title"), body, id=name,
                                   aria_labelledby=f"{name}-title"))  # fmt: skip
    made = record["header"]["versions"].get("portable")
    values = {
        "title": escape(f"Conformance: {' and '.join(names)}"),
        "device": escape(" and ".join(dict.fromkeys(each["header"]["device"] for each in both))),
        "policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
        f"script-src 'sha256-{digest}'",
        "style": (FOLDER / "page.css").read_text(encoding="utf-8"),
        "script": script,
        "content": join(content, "\n"),
        "contents": _contents(_sections(both, names, comparison)),
        "data": _data(both, names),
        "footer": escape(f"Made from a record of schema {record['schema']}, portable {made or 'unknown'}."),
    }
    template = (FOLDER / "page.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda match: values[match[1]], template)


def _sections(
    both: Sequence[Record], names: Sequence[str], comparison: Comparison | None
) -> list[tuple[str, str, Html]]:
    """Id, title and content of the sections in their order; empty ones are left out of the page."""

    def each(make: Callable[[Record], Html]) -> Html:
        made = [(name, make(record)) for name, record in zip(names, both, strict=True)]
        if len(made) == 1:
            return made[0][1]
        return join(join([element("h3", name), html]) for name, html in made if html)

    two = comparison is not None
    return [
        ("failures", "Failures", each(sections.failures)),
        ("agreement", "Agreement", sections.agreement(comparison) if two else Html("")),
        ("ops", "Ops", each(sections.ops)),
        ("worst", "Largest errors", each(sections.worst)),
        ("roofline", "Roofline", each(sections.roofline)),
        ("throughput", "Throughput", each(sections.throughput)),
        ("parity", "Parity", sections.parity(comparison) if two else Html("")),
        (
            "modelled",
            "Modelled, not measured",
            sections.modelled_beside(comparison) if two else each(sections.modelled),
        ),
        ("remarks", "Known failures and warnings", each(sections.warnings)),
        ("waivers", "Waivers used", each(sections.waivers)),
        ("not-supported", "Declined by rule", each(sections.not_supported)),
        ("run", "The run", each(sections.facts)),
    ]


def _contents(found: Sequence[tuple[str, str, Html]]) -> Html:
    links = [element("a", title, href=f"#{name}") for name, title, body in found if body]
    return join([*links, element("a", "All results", href="#results")], " ")


# The verdict --------------------------------------------------------------------------------------


def sentence(record: Record) -> tuple[str, str]:
    """The verdict in one sentence, and "good", "bad" or "none"."""
    head, results = record["header"], record["results"]
    tally = records.tally(record)
    device = head["device"] if head["device"].endswith(head["arch"]) else f"{head['device']} ({head['arch']})"
    reasons = []
    if tally.failed:
        states = Counter(each["state"] for each in results if each["state"] not in CONFORMING | NOT_JUDGED)
        kinds = listed(f"{count:,} {state}" for state, count in states.items())
        declined = f", {tally.declined:,} declined by rule" if tally.declined else ""
        reasons.append(f"{tally.failed:,} of {tally.judged:,} judged fail ({kinds}){declined}")
    if tally.not_run:
        reasons.append(f"{pluralize(tally.not_run, 'case')} not run")
    above = sum(each["state"] not in CONFORMING for each in record["timings"])
    if above:
        reasons.append(f"{pluralize(above, 'timing')} cannot be: above the measured roof or in error")
    if not head["complete"]:
        reasons.append(f"the run was interrupted after {pluralize(len(results), 'result')}")
    if faults := record.get("faults"):
        more = f" and {len(faults) - 1} more" if len(faults) > 1 else ""
        reasons.append(f"the run has a fault ({faults[0].rstrip('.')}){more}")
    if reasons:
        return f"Does not conform: on {device}, {listed(reasons)}.", "bad"
    if not tally.judged:
        return f"Does not conform: nothing was judged on {device}, {tally}.", "bad"
    return f"Conforms: {device}, {tally}.", "good"


def _verdict(both: Sequence[Record], names: Sequence[str], comparison: Comparison | None) -> Html:
    marks = {"good": "✓", "bad": "✗", "none": "–"}
    first, kind = sentence(both[0])
    if comparison is not None:
        first, kind = comparison["verdict"], _compared(comparison)
    parts = [element("h1", element("span", marks[kind], class_="mark", aria_hidden="true"), " ", first)]
    parts += [element("p", note, class_="notice") for note in (comparison or {}).get("notices", ())]
    for name, record in zip(names, both, strict=True):
        if comparison is not None:
            text, mark = sentence(record)
            parts.append(element("h2", element("span", marks[mark], class_=f"state {mark}"), f" {name}"))
            parts.append(element("p", text))
        parts += [element("p", note, class_="notice") for note in notices(record)]
        states = Counter(each["state"] for each in record["results"])
        counts = [element("li", element("b", f"{count:,}"), " ", state)
                  for state, count in states.most_common()]  # fmt: skip
        if counts:
            parts.append(element("ul", *counts, class_="states"))
        parts.append(element("p", _origin(record), class_="origin"))
    return element("section", *parts, id="verdict", class_=kind)


def _compared(comparison: Comparison) -> str:
    disagree = not comparison.get("agree", True) or any(each["problems"] for each in comparison["agreement"])
    below = any(each["verdict"] == "below" for each in comparison["parity"])
    if disagree or below:
        return "bad"
    unsure = any(each["verdict"] == "inconclusive" for each in comparison["parity"])
    return "none" if unsure or not comparison["agreement"] else "good"


def notices(record: Record) -> list[str]:
    """What a reader must know before believing the verdict."""
    head, selection = record["header"], record["header"]["selection"]
    found = []
    if not head["complete"]:
        found.append("Incomplete: the run was interrupted; `--resume` goes on from this record.")
    if head["emulated"]:
        found.append("Emulated: executed by the CPU, not hardware. No time is measured.")
    if head["fraction"][1] > 1:
        found.append("Shard {} of {}: other records have the other shards.".format(*head["fraction"]))
    parts = []
    if selection["impls"]:
        parts.append(f"implementations {listed(selection['impls'])}")
    if selection["k"]:
        parts.append(f"cases whose id contains {selection['k']!r}")
    if parts:
        found.append(f"Only a part was selected: {listed(parts)}.")
    if head["dirty"]:
        found.append("The checkout had changes that are not committed.")
    return found


def _origin(record: Record) -> Html:
    head, versions = record["header"], record["header"]["versions"]
    named = [f"{name} {versions[name]}" for name in ("portable", "torch", "triton") if versions.get(name)]
    seconds = sum(each.get("seconds", 0.0) for each in record["results"])
    return join([
        f"{head['vendor']} {head['arch']}, tier {head['tier']}, {', '.join(named)}, ",
        join(["commit ", element("code", head["commit"][:12]), ", "]) if head["commit"] else "",
        f"{moment(head['date'])}, {number(seconds)} s of cases",
    ])  # fmt: skip


# All results --------------------------------------------------------------------------------------


def _data(both: Sequence[Record], names: Sequence[str]) -> str:
    """The results as JSON for `page.js`; texts are held once, rows hold their numbers. Safe in a script
    element: it has no "<"."""
    texts: dict[str, int] = {}
    messages = {cut(each.get("message", ""), LISTED) for record in both for each in record["results"]}
    length = min(LISTED, max(40, ALL_LISTED // max(len(messages), 1)))

    def index(text: str) -> int:
        return texts.setdefault(clean(text), len(texts))

    rows = [
        [
            place, index(each["case"]), index(each["impl"]), index(each["state"]), number(each.get("worst")),
            number(each.get("seconds")), index(cut(each.get("message", ""), length)),
        ]
        for place, record in enumerate(both)
        for each in record["results"]
    ]  # fmt: skip
    data = {"names": [clean(name) for name in names], "texts": list(texts), "rows": rows}
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")

"""The page of `portable-conformance models`: a table for each step, and its kernels as bars beside the
floor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from portable.conformance import stats
from portable.conformance.models.configs import OTHER, parts
from portable.conformance.models.measure import MODELLED, PASS
from portable.conformance.models.measure import parts as parts_of
from portable.conformance.models.record import conforming
from portable.conformance.report.markup import Html, element, table
from portable.conformance.text import number, pluralize

HEAD = (
    "candidate",
    "state",
    "ms",
    "x torch",
    "x torch.compile",
    "x portable",
    "peak GiB",
    "kernels",
    "MHz",
    "W",
    "worst error",
)
_BASES = ("torch", "torch.compile", "portable")
_FLOOR = "floor"
_ROW, _LEFT, _WIDTH = 30, 150, 720  # of the picture, in its units
_COLOURS = ("#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#ff8ab7", "#a463f2", "#97bbf5", "#9c6b4e")

_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; } th, td { padding: .2rem .6rem; text-align: right; }
th:first-child, td:first-child, td:nth-child(2) { text-align: left; } tr { border-bottom: 1px solid #8884; }
svg text { font-size: 13px; fill: currentColor; } ul.legend { list-style: none; padding: 0; }
ul.legend li { display: inline-block; margin-right: 1rem; } ul.legend svg { vertical-align: middle; }
.scroll { overflow-x: auto; } caption.heard { position: absolute; clip-path: inset(50%); }
"""


def shown(entry: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Head and rows of a step's table, without the columns in which no candidate has anything."""
    made = rows(entry)
    kept = [index for index in range(len(HEAD)) if any(row[index] not in ("", "-") for row in made)]
    return [HEAD[index] for index in kept], [[row[index] for index in kept] for row in made]


def rows(entry: Mapping[str, Any]) -> list[list[str]]:
    """The candidates of a step as rows under `HEAD`: times are medians of the rounds, ratios of the same
    rounds, above 1 where the candidate is faster."""
    timed = {each["name"]: each for each in entry["candidates"] if "us" in each}
    found = []
    for each in entry["candidates"]:
        errors = number(max(each["errors"].values())) if each["errors"] else "-"
        if each["name"] not in timed:
            found.append([each["name"], each["state"], *["-"] * (len(HEAD) - 3), errors])
            continue
        found.append([
            each["name"], each["state"], f"{_median(each) / 1e3:.3f}",
            *(_ratio(each, timed.get(base)) for base in _BASES),
            f"{each['peak_bytes'] / 2**30:.2f}" if "peak_bytes" in each else "-",
            str(sum(one["launches"] for one in each["kernels"])),
            *("-" if each.get(key) is None else f"{each[key]:.0f}" for key in ("sm_mhz", "watts")), errors,
        ])  # fmt: skip
    if entry["floors"]:
        total = sum(entry["floors"].values()) / 1e3
        found.append([_FLOOR, "", f"{total:.3f}", *[""] * (len(HEAD) - 3)])
    return found


def by_part(entry: Mapping[str, Any], candidate: Mapping[str, Any]) -> list[list[str]]:
    """Rows of the parts of a candidate's step, the longest first: launches, ms, share, floor in ms."""
    shares, floor = parts_of(candidate), entry["floors"]
    total = sum(shares.values())
    launches = Counter[str]()
    for each in candidate["kernels"]:
        launches[each["part"]] += each["launches"]
    return [
        [part, str(launches[part]), f"{us / 1e3:.3f}", f"{us / total:.1%}",
         f"{floor[part] / 1e3:.3f}" if part in floor else "-"]
        for part, us in sorted(shares.items(), key=lambda each: -each[1])
    ]  # fmt: skip


def slowest(candidate: Mapping[str, Any], count: int) -> list[list[str]]:
    """Rows of a candidate's longest kernels: part, launches, ms, share."""
    total = sum(each["us"] for each in candidate["kernels"])
    return [
        [each["name"], each["part"], str(each["launches"]), f"{each['us'] / 1e3:.3f}",
         f"{each['us'] / total:.1%}"]
        for each in candidate["kernels"][:count]
    ]  # fmt: skip


def verdict(record: Mapping[str, Any]) -> str:
    """`CONFORMS: 4 of 4 steps of this package right, ...`, or what was modelled."""
    every = [each for step in record["steps"] for each in step["candidates"]]
    modelled = [each for each in every if each["state"] == MODELLED]
    if modelled:
        where = f"emulated {record['header']['arch']}, {modelled[0]['accuracy']}"
        return f"MODELLED: {pluralize(len(modelled), 'step')} on {where}; nothing is judged or measured"
    ours = [each for each in every if each["name"].startswith("portable")]
    right = sum(each["state"] == PASS for each in ours)
    others = [each for each in every if each["state"] != PASS and each not in ours]
    word = "CONFORMS" if conforming(record) else "DOES NOT CONFORM"
    beside = f"; {pluralize(len(others), 'other candidate')} not right or not there" if others else ""
    timed = sum("us" in each for each in every)
    kind = "emulated " if record["header"]["emulated"] else ""
    return (f"{word}: {right} of {pluralize(len(ours), 'step')} of this package right against float32, "
            f"{timed} timed{beside}, on {kind}{record['header']['arch']}")  # fmt: skip


def page(record: Mapping[str, Any]) -> str:
    """One HTML page that needs nothing else."""
    head = record["header"]
    versions = ", ".join(f"{name} {version}" for name, version in head["versions"].items() if version)
    made = element(
        "p", element("code", head["command"]), f", {head['date']}, commit {head['commit']}, {versions}"
    )
    body = [element("h1", f"Models on {head['device']}"), element("p", verdict(record)), made]
    for entry in record["steps"]:
        names, lines = shown(entry)
        body += [
            element("h2", f"{entry['model']}, {entry['step']}"),
            table("Candidates", [(name, "") for name in names], [lines]),
            *_messages(entry),
            picture(entry),
            _slowest(entry),
        ]  # fmt: skip
    title = element("title", f"Models on {head['device']}")
    meta = Html('<meta charset="utf-8"><meta name="viewport" content="width=device-width">')
    style = Html(f"<style>{_STYLE}</style>")
    whole = element("head", meta, title, style), element("body", *body)
    return f"<!doctype html>\n{element('html', *whole, lang='en')}\n"


def _messages(entry: Mapping[str, Any]) -> list[Html]:
    said = {each["name"]: each["message"] for each in entry["candidates"] if each["message"]}
    return [element("p", f"{name}: {message}") for name, message in said.items()]


def picture(entry: Mapping[str, Any]) -> Html:
    """A bar for each timed candidate, its kernels' time by part, with the floor of each part below; the mark
    is the step's own time, beyond the bar where the GPU waits and within it where kernels overlap."""
    bars: list[tuple[str, Mapping[str, float], float | None]] = [
        (each["name"], parts_of(each), _median(each)) for each in entry["candidates"] if "us" in each
    ]
    if not bars:
        return Html("")
    bars.append((_FLOOR, dict(entry["floors"]), None))
    names = [name for name in dict.fromkeys([*(part for part, _ in parts()), OTHER])
             if any(name in shares for _, shares, _ in bars)]  # fmt: skip
    longest = max(max(sum(shares.values()), own or 0.0) for _, shares, own in bars)
    drawn = [_bar(index, *bar, names, longest) for index, bar in enumerate(bars)]
    legend = element("ul", *(_legend(index, name) for index, name in enumerate(names)), class_="legend")
    size = f"0 0 {_LEFT + _WIDTH + 80} {_ROW * len(bars) + 8}"
    label = f"Kernel time by part, {entry['model']}, {entry['step']}"
    return element("figure", legend, element("svg", *drawn, viewBox=size, role="img", aria_label=label))


def _legend(index: int, part: str) -> Html:
    square = element("rect", width=12, height=12, fill=_COLOURS[index % len(_COLOURS)])
    return element("li", element("svg", square, width=12, height=12, aria_hidden="true"), f" {part}")


def _bar(
    index: int,
    name: str,
    shares: Mapping[str, float],
    own: float | None,
    names: Sequence[str],
    longest: float,
) -> Html:
    top, at, pieces = index * _ROW + 4, float(_LEFT), []
    for place, part in enumerate(names):
        width = shares.get(part, 0.0) / longest * _WIDTH
        if width > 0:
            tip = element("title", f"{part}: {shares[part]:.1f} us")
            pieces.append(element("rect", tip, x=f"{at:.1f}", y=top, width=f"{width:.1f}", height=_ROW - 8,
                                  fill=_COLOURS[place % len(_COLOURS)]))  # fmt: skip
            at += width
    total = own if own is not None else sum(shares.values())
    if own is not None:
        x = f"{_LEFT + own / longest * _WIDTH:.1f}"
        pieces.append(element("line", x1=x, x2=x, y1=top - 3, y2=top + _ROW - 5, stroke="currentColor",
                              stroke_width=2))  # fmt: skip
        at = max(at, float(x))
    pieces.append(element("text", name, x=_LEFT - 8, y=top + 16, text_anchor="end"))
    pieces.append(element("text", f"{total / 1e3:.3f} ms", x=f"{at + 6:.1f}", y=top + 16))
    return element("g", *pieces)


def _slowest(entry: Mapping[str, Any]) -> Html:
    """The longest kernels of every candidate, as a table that opens."""
    lines = [
        (each["name"], one["part"], one["name"][:90], one["launches"], f"{one['us']:.1f}")
        for each in entry["candidates"] for one in each.get("kernels", ())[:12]
    ]  # fmt: skip
    if not lines:
        return Html("")
    columns = [(name, "") for name in ("candidate", "part", "kernel", "launches", "us")]
    return element("details", element("summary", "Kernels"), table("Kernels", columns, [lines]))


def _median(entry: Mapping[str, Any]) -> float:
    ordered = sorted(entry["us"])
    return ordered[len(ordered) // 2]


def _ratio(entry: Mapping[str, Any], base: Mapping[str, Any] | None) -> str:
    if base is None or base is entry or base["state"] == MODELLED:
        return "-"
    ratio = stats.ratio_interval(entry["us"], base["us"])
    return f"{ratio.value:.3f} ({ratio.low:.3f}..{ratio.high:.3f})"

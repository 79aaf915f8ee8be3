"""Plots as inline SVG: rooflines with measured roofs, and ratios with their intervals.

Colours are classes that the style sheet gives for light and dark; shapes and text say the same. Every
figure is in the tables too, which is the text that a plot's alternative points to.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from portable.conformance.records.record import op_of
from portable.conformance.report.markup import Html, element, escape, join
from portable.conformance.report.wording import listed, quantity, shape_of, types_of
from portable.conformance.text import number, pluralize

WIDTH, HEIGHT = 620, 400
LEFT, RIGHT, TOP, BOTTOM = 62, 14, 26, 44
LINE, GLYPH = 14, 6.1
"""Height of a label's line and width of one of its characters, in the units of the drawing."""
LABELS = 24
"""Labels of one panel; further points are in the table only."""

SHAPES = (
    "M-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0-9 0z",
    "M-4 -4h8v8h-8z",
    "M0 -5.2L5 4H-5z",
    "M0 -5.6L5.6 0L0 5.6L-5.6 0z",
    "M0 5.2L5 -4H-5z",
    "M-1.5-5h3v3.5H5v3H1.5V5h-3V1.5H-5v-3h3.5z",
)


@dataclass
class Point:
    """One timed op: `x` in FLOP per byte, `y` in FLOP/s."""

    timing: Mapping[str, Any]
    x: float
    y: float


@dataclass
class Scale:
    """A logarithmic axis from `low` at `start` to `high` at `end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.start + share * (self.end - self.start)

    def decades(self) -> list[float]:
        first, last = math.ceil(math.log10(self.low)), math.floor(math.log10(self.high))
        return [10.0**power for power in range(first, last + 1)]


def implementations(timings: Sequence[Mapping[str, Any]]) -> list[str]:
    """The implementations in the order that fixes their shape and colour."""
    return list(dict.fromkeys(each["impl"] for each in timings))


def marker(index: int) -> Html:
    """The shape of the implementation with this index, at the origin."""
    return element("path", d=SHAPES[index % len(SHAPES)], class_=f"mark s{index % len(SHAPES)}")


def rooflines(record: Mapping[str, Any]) -> Html:
    """One figure with a panel per type; no figure where nothing was timed or no roof measured."""
    timings, roof = record["timings"], record["roof"] or {}
    bandwidth = roof.get("copy_bytes_per_s")
    if not timings or not bandwidth:
        return Html("")
    points = [
        Point(each, each["flops"] / each["bytes"], float(each["flop_per_s"]))
        for each in timings
        if each["bytes"] > 0 and each["flops"] > 0 and each["flop_per_s"] > 0
    ]
    impls = implementations(timings)
    kinds = dict.fromkeys(types_of(point.timing["case"]) for point in points)
    panels = []
    for kind in kinds:
        chosen = [point for point in points if types_of(point.timing["case"]) == kind]
        flop_rate = roof.get(f"matmul_{kind.partition(',')[0]}_flop_per_s")
        panels.append(_panel(kind, chosen, float(bandwidth), flop_rate and float(flop_rate), impls))
    left_out = len(timings) - len(points)
    caption = join([
        f"{record['header']['device']}: work per second over work per byte, both axes logarithmic. The "
        f"lines are roofs measured in this run: {quantity(bandwidth, 'B/s')} of a copy, and the library's "
        "matmul in each type. A point on the line cannot be faster. Point at a mark for its figures; the "
        "throughput table has them all.",
        f" {pluralize(left_out, 'timing')} without floating-point work left out." if left_out else "",
    ])  # fmt: skip
    legend = element(
        "ul",
        *(
            element("li", element("svg", marker(index), viewBox="-7 -7 14 14", width="14", height="14",
                                  aria_hidden="true"), " ", impl)
            for index, impl in enumerate(impls)
        ),
        class_="legend",
    )  # fmt: skip
    return element("figure", element("figcaption", caption), legend, element("div", *panels, class_="panels"))


def _panel(
    kind: str, points: list[Point], bandwidth: float, flop_rate: float | None, impls: list[str]
) -> Html:
    labels = _labelled(points)
    memory = [each for each in labels if flop_rate is None or each[0].x < flop_rate / bandwidth]
    compute = [each for each in labels if each not in memory]
    height = max(HEIGHT, TOP + BOTTOM + LINE * (len(memory) + len(compute) + 12))
    x, y = _scales(points, memory, compute, bandwidth, flop_rate, height)
    parts = [_grid(x, y, height), _roof(kind, x, y, bandwidth, flop_rate)]
    for group in (memory, compute):
        parts.append(_labels(group, x, y))
    for point in points:
        name = element("title", _tooltip(point.timing))
        place = f"translate({x(point.x):.1f} {y(point.y):.1f})"
        parts.append(element("g", name, marker(impls.index(point.timing["impl"])), transform=place))
    best = max(points, key=lambda point: point.timing["of_roof"])
    text = (
        f"Roofline in {kind}: {pluralize(len(points), 'timing')} of "
        f"{listed(dict.fromkeys(point.timing['op'] for point in points))}; the nearest to its roof is "
        f"{best.timing['op']} on {best.timing['impl']} at {100 * best.timing['of_roof']:.0f} %."
    )
    drawing = element("svg", *parts, viewBox=f"0 0 {WIDTH} {height}", role="img", aria_label=text)
    return element("div", element("p", kind, class_="panel-title"), drawing, class_="panel")


def _labelled(points: list[Point]) -> list[tuple[Point, str]]:
    """The fastest point of every case with its label: the op, with the sizes where it has several cases."""
    best: dict[str, Point] = {}
    for point in points:
        case = point.timing["case"]
        if case not in best or point.y > best[case].y:
            best[case] = point
    cases = Counter(op_of(case) for case in best)
    found = []
    for case, point in list(best.items())[:LABELS]:
        sizes = [part.partition("=")[2] for part in shape_of(case).split(",") if "=" in part]
        several = cases[op_of(case)] > 1
        found.append((point, f"{op_of(case)} {'×'.join(sizes)}" if several else op_of(case)))
    return found


def _scales(
    points: list[Point],
    memory: list[tuple[Point, str]],
    compute: list[tuple[Point, str]],
    bandwidth: float,
    flop_rate: float | None,
    height: float,
) -> tuple[Scale, Scale]:
    """Axes that leave room for the labels: left of the memory-bound points, above the flat roof."""
    least, most = min(point.x for point in points), max(point.x for point in points)
    last = 2.5 * max(most, flop_rate / bandwidth if flop_rate else most)
    room = max((GLYPH * len(label) for _, label in memory), default=0) + 46
    room = min(room, 0.6 * (WIDTH - LEFT - RIGHT))
    scale = math.log(last / least) / (WIDTH - LEFT - RIGHT - room)
    x = Scale(least * math.exp(-room * scale), last, LEFT, WIDTH - RIGHT)

    bottom = min(min(point.y for point in points) / 1.6, bandwidth * least / 12)
    top = max([flop_rate or bandwidth * most, *(point.y for point in points)])
    above = LINE * (len(compute) + 1) + 8
    scale = math.log(top / bottom) / (height - TOP - BOTTOM - above)
    return x, Scale(bottom, top * math.exp(above * scale), height - BOTTOM, TOP)


def _grid(x: Scale, y: Scale, height: float) -> Html:
    parts = []
    for value in x.decades():
        parts.append(_line(x(value), TOP, x(value), height - BOTTOM, "grid"))
        parts.append(_text(x(value), height - BOTTOM + 16, f"{value:g}", "tick", "middle"))
    for value in y.decades():
        parts.append(_line(LEFT, y(value), WIDTH - RIGHT, y(value), "grid"))
        parts.append(_text(LEFT - 6, y(value) + 4, _tick(value), "tick", "end"))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, height - 8, "FLOP per byte", "axis", "middle"))
    parts.append(_text(8, TOP - 10, "FLOP/s", "axis", "start"))
    return join(parts)


def _roof(kind: str, x: Scale, y: Scale, bandwidth: float, flop_rate: float | None) -> Html:
    knee = flop_rate / bandwidth if flop_rate else y.high / bandwidth
    start, end = max(x.low, y.low / bandwidth), min(x.high, knee)
    parts = [_line(x(start), y(start * bandwidth), x(end), y(end * bandwidth), "roof")]
    at = max(start * 1.6, x.low)
    parts.append(_text(x(at) + 10, y(at * bandwidth) + 8, f"copy {quantity(bandwidth, 'B/s')}", "roof-label",
                       "start"))  # fmt: skip
    if flop_rate:
        parts.append(_line(x.start, y(flop_rate), x(end), y(flop_rate), "roof far"))
        parts.append(_line(x(end), y(flop_rate), x.end, y(flop_rate), "roof"))
        name = f"matmul {kind.partition(',')[0]} {quantity(flop_rate, 'FLOP/s')}"
        parts.append(_text(LEFT + 6, y(flop_rate) - 6, name, "roof-label", "start"))
    return join(parts)


def _labels(group: list[tuple[Point, str]], x: Scale, y: Scale) -> Html:
    """The labels in a column left of their points, each above the one of the point below it, and lines."""
    if not group:
        return Html("")
    edge = min(x(point.x) for point, _ in group) - 34
    parts, last = [], math.inf
    for point, label in sorted(group, key=lambda each: (each[0].y, each[0].x)):
        last = min(y(point.y) - 16, last - LINE)
        parts.append(_line(edge + 3, last - 4, x(point.x), y(point.y), "leader"))
        parts.append(_text(edge, last, label, "label", "end"))
    return join(parts)


def _tick(value: float) -> str:
    """A power of ten: `100 T`."""
    step = min(max(math.floor(round(math.log10(value)) / 3), 0), 5)
    return f"{value / 1000**step:g} {['', 'k', 'M', 'G', 'T', 'P'][step]}".rstrip()


def _tooltip(timing: Mapping[str, Any]) -> str:
    return (
        f"{timing['op']} on {timing['impl']}\n{timing['case']}\n{number(timing['device_us'])} us, "
        f"{quantity(timing['bytes_per_s'], 'B/s')}, {quantity(timing['flop_per_s'], 'FLOP/s')}, "
        f"{100 * timing['of_roof']:.1f} % of the roof"
    )


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> Html:
    return Html(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"></line>')


def _text(x: float, y: float, text: str, kind: str, anchor: str) -> Html:
    return Html(f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(text)}</text>')


# Ratios -------------------------------------------------------------------------------------------

BAR = 220
"""Width of a bar's drawing."""


def ratio_bar(ratio: float, low: float, high: float, verdict: str, most: float, target: float) -> Html:
    """A bar to `ratio` with its interval, and lines at `target` and 1; the axis ends at `most`."""

    def at(value: float) -> float:
        return 2 + (BAR - 4) * min(max(value, 0.0), most) / most

    kind = verdict if verdict in ("parity", "below") else "inconclusive"
    parts = [
        Html(f'<rect x="2" y="5" width="{at(ratio) - 2:.1f}" height="8" class="bar {kind}"></rect>'),
        *(_line(at(value), 0, at(value), 18, "target") for value in (target, 1.0)),
        _line(at(low), 9, at(high), 9, "interval"),
        *(_line(at(value), 6, at(value), 12, "interval") for value in (low, high)),
    ]
    return element("svg", *parts, viewBox=f"0 0 {BAR} 18", width=BAR, height=18, aria_hidden="true")


def ratio_axis(most: float, target: float) -> Html:
    """The scale above the bars."""
    parts = [
        _text(2 + (BAR - 4) * value / most, 11, f"{value:g}", "tick", "start" if not value else "middle")
        for value in (0.0, target, 1.0)
    ]
    return element("svg", *parts, viewBox=f"0 0 {BAR} 14", width=BAR, height=14, role="img",
                   aria_label=f"scale from 0 to {most:g}, lines at {target:g} and 1")  # fmt: skip

"""The sections of the page, each a function of a record that gives HTML, empty where there is nothing."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from portable.conformance.cases.case import op_of
from portable.conformance.records import modelled as modelled_times
from portable.conformance.records import record as records
from portable.conformance.report import junit, plots
from portable.conformance.report.markup import Html, case_id, details, element, join, table
from portable.conformance.report.wording import (
    BEHAVIOUR,
    cut,
    listed,
    quantity,
    rerun,
    scientific,
    shape_of,
    types_of,
)
from portable.conformance.states import CONFORMING, GOOD, KNOWN, Tally
from portable.conformance.text import alike, grouped, number, pluralize

PARAGRAPHS = 100
EACH = 10
"""Kinds of failures shown with a paragraph, and those of one implementation; the list has the rest."""
MESSAGE = 2000
WORST = 12

Record = Mapping[str, Any]
Result = Mapping[str, Any]


def failures(record: Record) -> Html:
    """Every kind of failure with its first result, up to `PARAGRAPHS` of them, and every timing above its
    roof."""
    wrong = [each for each in record["results"] if each["state"] not in CONFORMING]
    timings = [each for each in record["timings"] if each["state"] not in CONFORMING]
    kinds = grouped(
        [
            (f"{op_of(each['case'])} {each['impl']}", each["state"], each.get("message", ""), each)
            for each in wrong
        ]
    )
    shown: list[list[Result]] = []
    seen: Counter[tuple[str, str]] = Counter()
    for kind in kinds:
        group = op_of(kind[0]["case"]), kind[0]["impl"]
        seen[group] += 1
        if seen[group] <= EACH:
            shown.append(kind)
    shown = shown[:PARAGRAPHS]
    parts = [_failure(each, record["header"]) for each in timings]
    parts += [_failure(first, record["header"], others) for first, *others in shown]
    rest = len(wrong) - sum(map(len, shown))
    if rest:
        parts.append(element("p", f"{pluralize(rest, 'further failure')} in the list of all results below; "
                             f"shown here are at most {EACH} kinds of an implementation."))  # fmt: skip
    return join(parts)


def _failure(result: Result, header: Mapping[str, Any], others: Sequence[Result] = ()) -> Html:
    command = rerun(result, header)
    timed = "device_us" in result
    again = "" if timed else element("p", element("code", command, class_="command"), class_="again")
    title = join([element("span", f"✗ {result['state']}", class_="state bad"), " ", case_id(result["case"]),
                  " on ", element("b", result["impl"])])  # fmt: skip
    message = cut(result.get("message", ""), MESSAGE)
    return element("article", element("h3", title), element("pre", message) if message else "", again,
                   element("p", alike([each["case"] for each in others])) if others else "",
                   class_="failure")  # fmt: skip


def warnings(record: Record) -> Html:
    """Results that conform and have something to say, known failures and waived ones among them."""
    kinds = ("XFail", "Waived", "XPass", "QualityWarning", "PerfWarning")
    rows = [
        (each["state"], element("code", each["case"]), each["impl"], number(each.get("worst")),
         cut(each.get("message", ""), 400))
        for kind in kinds for each in (*record["results"], *record["timings"]) if each["state"] == kind
    ]  # fmt: skip
    if not rows:
        return Html("")
    columns = [("state", ""), ("case", ""), ("implementation", ""), ("|error| / bound", "num"),
               ("message", "wide")]  # fmt: skip
    shown = table(f"{pluralize(len(rows), 'result')} with a remark", columns, [rows[:200]])
    more = element("p", f"{pluralize(len(rows) - 200, 'further one')} in the list of all results.")
    return join([shown, more]) if len(rows) > 200 else shown


# Ops ----------------------------------------------------------------------------------------------


def by_types(record: Record) -> dict[tuple[str, str, str], list[Result]]:
    """The results by op, implementation and types (behaviours apart), by op, then as they first appear."""
    found: dict[tuple[str, str, str], list[Result]] = {}
    for summary in sorted(records.summaries(record), key=lambda each: each.op):
        for result in summary.results:
            found.setdefault((summary.op, summary.impl, types_of(result["case"])), []).append(result)
    return found


def ops(record: Record) -> Html:
    """What passed of what was judged, and how close it came, by op, implementation and types."""
    groups: dict[str, list[Sequence[object]]] = {}
    last: tuple[str, str] | None = None
    for (op, impl, types), results in by_types(record).items():
        op_cell, verdict, impl_cell, *others = _op_row(op, impl, types, results)
        first = (op_cell, {"class_": "same" if op in groups else None})
        second = (impl_cell, {"class_": "same" if last == (op, impl) else None})
        groups.setdefault(op, []).append((first, verdict, second, *others))
        last = op, impl
    columns = [("op", ""), ("verdict", ""), ("implementation", ""), ("types", ""),
               ("passed / judged", "num"), ("worst |error| / bound", "num"),
               ("declined by rule", "num")]  # fmt: skip
    return table("Results by op, implementation and types", columns, groups.values())


def _op_row(op: str, impl: str, types: str, results: list[Result]) -> Sequence[object]:
    tally = Tally.of(each["state"] for each in results)
    states = Counter(each["state"] for each in results)
    ratios = [_size(each.get("worst", 0)) for each in results if each["state"] in GOOD or "worst" in each]
    worst = max(ratios, default=None) if types != BEHAVIOUR else None
    rules = Counter(each.get("message", "") for each in results if each["state"] == "NotSupported")
    return (
        op, _verdict(states, tally.judged), impl, types,
        f"{tally.passed:,} / {tally.judged:,}" if tally.judged else "–", number(worst),
        details(f"{tally.declined:,}", _rules(rules)) if rules else "",
    )  # fmt: skip


def _verdict(states: Counter[str], judged: int) -> Html:
    wrong = {state: count for state, count in states.items() if state not in CONFORMING}
    known = {state: count for state, count in states.items() if state in KNOWN}
    if wrong:
        return element("span", "✗ " + _states(wrong | known), class_="state bad")
    if known:
        return element("span", "~ " + _states(known), class_="state known")
    if not judged:
        return element("span", "– none judged", class_="state none")
    return element("span", "✓ conforms", class_="state good")


def _states(states: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {state}" for state, count in states.items())


def _rules(rules: Counter[str]) -> Html:
    return element("ul", *(element("li", f"{count:,} × {rule or 'no rule given'}")
                           for rule, count in rules.most_common(20)), class_="rules")  # fmt: skip


def _size(value: float | str) -> float:
    """The magnitude; NaN counts as the worst of all."""
    size = abs(float(value))
    return math.inf if math.isnan(size) else size


# Errors -------------------------------------------------------------------------------------------


def worst(record: Record) -> Html:
    """The largest |error| / bound, each with its case: of every op and types the worst, implementations that
    tie named together, and the first `WORST` of them; nothing where there is no error."""
    found: dict[tuple[str, str], list[Result]] = {}
    for result in record["results"]:
        if not _size(result.get("worst", 0)):
            continue
        key = op_of(result["case"]), types_of(result["case"])
        best = found.setdefault(key, [result])
        size, most = _size(result["worst"]), _size(best[0]["worst"])
        if size > most:
            found[key] = [result]
        elif size == most and best[0] is not result and best[0]["case"] == result["case"]:
            best.append(result)
    largest = sorted(found.values(), key=lambda each: -_size(each[0]["worst"]))[:WORST]
    if not largest:
        return Html("")
    rows = [
        (number(each[0]["worst"]), listed(result["impl"] for result in each),
         element("code", each[0]["case"]), scientific(each[0].get("max_abs")), each[0]["state"])
        for each in largest
    ]  # fmt: skip
    columns = [("ratio", "num"), ("implementation", ""), ("case", ""), ("largest |error|", "num"),
               ("state", "")]  # fmt: skip
    return table("Largest |error| / bound, by op and types", columns, [rows], titled=True)


# Speed --------------------------------------------------------------------------------------------


def roofline(record: Record) -> Html:
    return plots.rooflines(record)


def throughput(record: Record) -> Html:
    """Every timing with its share of the roof and its baselines."""
    timings, roof = record["timings"], record["roof"] or {}
    if not timings:
        return Html("")
    baselines = list(dict.fromkeys(name for each in timings for name in each["vs"]))
    columns = [("op", ""), ("verdict", ""), ("size", ""), ("types", ""), ("implementation", ""),
               ("us", "num"), ("rate", "num"), ("of roof", "num share"),
               *((f"× {name}", "num") for name in baselines), ("launch us", "num")]  # fmt: skip
    groups: dict[str, list[Sequence[object]]] = {}
    seen: set[str] = set()
    for each in timings:
        share = max(0.0, min(100 * each["of_roof"], 100.0))
        rate = (
            quantity(each["bytes_per_s"], "B/s")
            if _memory_bound(each, roof)
            else quantity(each["flop_per_s"], "FLOP/s")
        )
        mark = "good" if each["state"] in CONFORMING else "bad"
        groups.setdefault(each["case"], []).append((
            (each["op"], {"class_": "same" if each["op"] in seen else None}),
            element("span", f"{'✓' if mark == 'good' else '✗'} {each['state']}", class_=f"state {mark}"),
            element("code", shape_of(each["case"])), types_of(each["case"]), each["impl"],
            number(each["device_us"]), rate,
            (f"{100 * each['of_roof']:.1f} %", {"style": f"--share:{share:.1f}%"}),
            *(_interval(each["vs"].get(name)) for name in baselines),
            number(each["launch_us"]),
        ))  # fmt: skip
        seen.add(each["op"])
    faults: Counter[str] = Counter(
        f"{name}: {reason}" for each in timings for name, reason in each["baseline_errors"].items()
    )
    loops = sum(not each["graph"] for each in timings)
    notes = [
        "Device time, the median of interleaved rounds. × is the baseline's time over ours, above 1 where "
        "ours is faster, with its 95 % bootstrap interval. Rate is bytes where memory bounds the op, FLOP "
        "where the matrix units do.",
        f" {pluralize(loops, 'timing')} measured without a graph." if loops else "",
        _clocks(timings),
    ]
    parts = [element("p", *notes), table("Throughput", columns, groups.values())]
    if faults:
        parts.append(details(
            "Baselines that were not timed",
            element("ul", *(element("li", f"{text} ({pluralize(count, 'timing')})") for text, count in
                            faults.most_common(30))),
        ))  # fmt: skip
    return join(parts)


def _memory_bound(timing: Mapping[str, Any], roof: Mapping[str, Any]) -> bool:
    peak = roof.get(f"matmul_{types_of(timing['case']).partition(',')[0]}_flop_per_s")
    copy = roof.get("copy_bytes_per_s")
    if not peak or not copy or not timing["bytes"]:
        return True
    slow = timing["floor_us"] * 1e-6 * copy / timing["bytes"]
    return slow < 1.001  # the floor is the copy's: an op of the vector units never has another


def _interval(ratio: Mapping[str, float] | None) -> Html:
    if not ratio:
        return Html("–")
    return join([element("b", f"{ratio['median']:.2f}"), " ",
                 element("small", f"[{ratio['low']:.2f}, {ratio['high']:.2f}]")])  # fmt: skip


def _clocks(timings: Iterable[Mapping[str, Any]]) -> str:
    seen = [each["clocks"]["sm_mhz"] for each in timings if (each["clocks"] or {}).get("sm_mhz")]
    if not seen:
        return ""
    return f" SM clocks seen: {min(low for low, _ in seen)} to {max(high for _, high in seen)} MHz."


# Two records --------------------------------------------------------------------------------------


def agreement(comparison: Mapping[str, Any]) -> Html:
    """By op and implementation: cases in both, bit-equal ones, and every disagreement without a reason."""
    entries = comparison["agreement"]
    if not entries:
        return Html("")
    rows = [
        (each["op"],
         element("span", f"✗ {pluralize(len(each['problems']), 'disagreement')}", class_="state bad")
         if each["problems"] else element("span", "✓ agree", class_="state good"),
         each["impl"], f"{each['cases']:,}", f"{each['equal']:,}", f"{each['exact']:,}")
        for each in entries
    ]  # fmt: skip
    columns = [("op", ""), ("verdict", ""), ("implementation", ""), ("cases in both", "num"),
               ("bit-equal", "num"), ("required of", "num")]  # fmt: skip
    parts = []
    for each in entries:
        if each["problems"]:
            shown = each["problems"][:PARAGRAPHS]
            rest = len(each["problems"]) - len(shown)
            title = join([element("span", "✗ disagreement", class_="state bad"), f" {each['op']} on ",
                          element("b", each["impl"])])  # fmt: skip
            lines = [element("li", cut(problem, 600)) for problem in shown]
            if rest:
                lines.append(element("li", pluralize(rest, "further one")))
            parts.append(element("article", element("h3", title), element("ul", *lines), class_="failure"))
    return join([*parts, table("Agreement by op and implementation", columns, [rows])])


MARKS = {"parity": ("✓ parity", "good"), "below": ("✗ below", "bad"),
         "inconclusive": ("? inconclusive", "known")}  # fmt: skip


def parity(comparison: Mapping[str, Any]) -> Html:
    """The ratio of the two GPUs' roofline efficiencies, with its interval."""
    entries = comparison["parity"]
    if not entries:
        return Html("")
    target = float(comparison.get("target", 0.8))
    tops = [1.0, *(_size(each["high"]) for each in entries)]
    most = 1.1 * min(max(top for top in tops if math.isfinite(top)), 3.0)
    groups: dict[str, list[Sequence[object]]] = {}
    for each in entries:
        repeated = "same" if each["op"] in groups else None
        text, mark = MARKS.get(each["verdict"], (each["verdict"], "known"))
        bar = plots.ratio_bar(each["ratio"], each["low"], each["high"], each["verdict"], most, target)
        groups.setdefault(each["op"], []).append((
            (each["op"], {"class_": repeated}),
            element("span", text, class_=f"state {mark}"),
            element("code", shape_of(each["case"])) if each["case"] else "mean of its cases",
            types_of(each["case"]) or "–", each["impl"],
            f"{each['ratio']:.3f}", f"[{each['low']:.3f}, {each['high']:.3f}]", bar,
        ))  # fmt: skip
    columns = [("op", ""), ("verdict", ""), ("size", ""), ("types", ""), ("implementation", ""),
               ("ratio", "num"), ("95 % interval", "num"),
               (plots.ratio_axis(most, target), "plot")]  # fmt: skip
    first, second = comparison["names"]
    note = element("p", f"Ratio of the shares of the measured roof, {second} over {first}. The dashed lines "
                   f"are {target:g}, the required ratio, and 1.")  # fmt: skip
    return join([note, table("Parity by case", columns, groups.values())])


def modelled(record: Record) -> Html:
    """The times by the timing model, with how far it is off."""
    part = record.get("modelled")
    if part is None:
        return Html("")
    head, rows, notes = modelled_times.table(part)
    columns = [(name, "" if place < 2 else "num") for place, name in enumerate(head)]
    return join([*(element("p", note) for note in notes), table("Modelled times", columns, [rows])])


def modelled_beside(comparison: Mapping[str, Any]) -> Html:
    """The times of two records of which at least one is modelled. No verdict."""
    part = comparison.get("modelled")
    if part is None:
        return Html("")
    notes = [f"{label}: {text}." for label, text in zip("AB", part["sources"], strict=True)]
    note = element("p", " ".join(notes), " No verdict is made of them.")
    rows = [
        (
            element("code", each["case"]) if each["case"] else f"{each['op']}, mean of {each['cases']}",
            each["impl"],
            *("–" if value is None else number(value)
              for value in (*each["microseconds"], *each["of_roof"], each["ratio"])),
        )
        for each in part["rows"]
    ]  # fmt: skip
    columns = [(name, "" if place < 2 else "num") for place, name in enumerate(part["columns"])]
    return join([note, table("Modelled times of both", columns, [rows] if rows else [])])


# The run ------------------------------------------------------------------------------------------


def waivers(record: Record) -> Html:
    entries = record["waivers"]
    if not entries:
        return Html("")
    rows = [(each["where"], each["kind"], f"{each['used']:,}") for each in entries]
    return table(
        "Applied known failures and waivers",
        [("entry", ""), ("kind", ""), ("results", "num")],
        [rows],
    )


def not_supported(record: Record) -> Html:
    """The rules that say why a result is NotSupported, the most used first."""
    rules: dict[str, list[Result]] = {}
    for result in record["results"]:
        if result["state"] == "NotSupported":
            rules.setdefault(result.get("message", ""), []).append(result)
    if not rules:
        return Html("")
    ordered = sorted(rules.items(), key=lambda each: -len(each[1]))
    rows = [
        (cut(rule or "no rule given", 300), f"{len(results):,}",
         ", ".join(sorted({result["impl"] for result in results})),
         ", ".join(sorted({op_of(result["case"]) for result in results})))
        for rule, results in ordered[:200]
    ]  # fmt: skip
    columns = [("rule", "wide"), ("results", "num"), ("implementations", ""), ("ops", "wide")]
    total = sum(map(len, rules.values()))
    rest = f", {len(ordered) - 200:,} further rules in the list below" if len(ordered) > 200 else ""
    return details(f"{pluralize(len(rules), 'rule')}, {pluralize(total, 'result')}{rest}",
                   table("Declined, by rule", columns, [rows]))  # fmt: skip


def facts(record: Record) -> Html:
    """The header and the measured roof as terms and values."""
    entries = junit.properties(record["header"])
    entries |= {
        f"roof.{name}": quantity(float(value), "B/s" if name.endswith("bytes_per_s") else "FLOP/s")
        for name, value in (record["roof"] or {}).items() if isinstance(value, (int, float))
    }  # fmt: skip
    entries["schema"] = str(record["schema"])
    entries |= {name: text.replace(",", ", ") for name, text in entries.items() if "selection." in name}
    return element("dl", *(element("div", element("dt", name), element("dd", value))
                           for name, value in entries.items()))  # fmt: skip

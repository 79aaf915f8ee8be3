"""A record's outputs: its files, its table, its verdict."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from portable.conformance.perf import bench
from portable.conformance.records import modelled, record
from portable.conformance.text import number, print_table


def written(found: dict[str, Any], args: Any) -> Iterator[tuple[str, str, OSError | None]]:
    """Write the files that `--record`, `--junit` and `--html` name: the option, the path and what failed."""
    from portable.conformance.report import html, junit

    writers = {"record": record.write, "junit": junit.write, "html": html.write}
    for option, write in writers.items():
        path = getattr(args, option, None)
        if path:
            try:
                write(Path(path), found)
            except OSError as error:
                yield option, path, error
            else:
                yield option, path, None


def write_reports(found: dict[str, Any], args: Any) -> None:
    """The files that `--record`, `--junit` and `--html` name. OSError for the first that was not written."""
    for option, path, error in written(found, args):
        if error is not None:
            raise error
        print(f"{option}: {path}")


def verdict(found: dict[str, Any]) -> str:
    """`CONFORMS: 7,390 judged (all pass), 7,526 declined by rule`."""
    word = "CONFORMS" if record.conforming(found) else "DOES NOT CONFORM"
    return f"{word}: {record.tally(found)}"


def table(found: dict[str, Any]) -> None:
    """Print the results by op and implementation."""
    rows = []
    for each in record.summaries(found):
        worst = each.worst
        tally = each.tally
        states = ", ".join(
            f"{state} {count:,}" for state, count in sorted(each.states.items()) if state != "NotSupported"
        )
        ratio = number(worst.get("worst", 0)) if worst else "-"
        judged = f"{tally.judged:,}" if tally.judged else "none"
        case = worst["case"] if worst else "-"
        rows.append((each.op, each.impl, judged, f"{tally.declined:,}", states or "-", ratio, case))
    head = ("op", "implementation", "judged", "declined", "states", "worst |err|/bound", "in case")
    print_table(head, rows)


def timings(entries: Sequence[bench.Entry], roof: Mapping[str, float]) -> None:
    """Print what `--bench` or `--sweep` timed, and which bars were met."""
    _printed(*bench.table(entries, roof))


def modelled_times(found: Mapping[str, Any]) -> None:
    """Print what `--model` computed: not measured."""
    _printed(*modelled.table(found))


def _printed(head: Sequence[str], rows: list[list[str]], notes: Iterable[str]) -> None:
    print_table(head, rows)
    print("\n".join(notes))

"""Compares every pair of several records: the last job of a CI pipeline, run by `compare.sh`.

A pair agrees, disagrees, cannot be compared (different specs or inputs), or has nothing in common. Having
nothing in common is no failure: the CPU's record holds torch's implementations, which an emulated GPU does
not run, so it can only be compared with records of real GPUs. A pipeline that compares no pair at all fails.
"""

from __future__ import annotations

import argparse
import html
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

from portable.conformance.records import compare, record
from portable.conformance.report import html as page
from portable.conformance.text import pluralize
from portable.runtime import files

AGREE, DISAGREE, REFUSED = 0, 1, 2
SHOWN = 20
"""Disagreements per pair that the summary lists; the job's log and the pair's page have all."""

Record = Mapping[str, Any]
Records = Mapping[str, Record]


@dataclass
class Pair:
    """Two records by their names, A first. `verdict` is "agree", "disagree", "refused" or "apart";
    `sentence` states it; `lines` and `data` are those of `compare`, empty if nothing was compared."""

    one: str
    other: str
    verdict: str
    sentence: str
    lines: list[str] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.one} and {self.other}"

    def total(self, column: str) -> int:
        return sum(row[column] for row in self.data.get("agreement", ()))

    @property
    def problems(self) -> list[str]:
        return [text for row in self.data.get("agreement", ()) for text in row["problems"]]


def main(argv: Sequence[str] | None = None) -> int:
    """Compare, print and write. Returns 0 if all pairs agree, 1 for a disagreement or a missing record, 2 if
    a pair cannot be compared or there is no pair."""
    parser = argparse.ArgumentParser(description="Compare every two of the records in some folders.")
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="for summary and pages")
    parser.add_argument("--expect", nargs="*", default=[], metavar="NAME", help="records that must exist")
    args = parser.parse_args(argv)
    try:
        records = read(args.folders)
        missing = [name for name in args.expect if name not in records]
        found = pairs(records)
        args.out.mkdir(parents=True, exist_ok=True)
        for pair in found:
            if pair.data:
                one, other = records[pair.one], records[pair.other]
                file = args.out / f"{pair.one}--{pair.other}.html".replace("/", "-")
                page.write(file, one, other, pair.data)
        code, sentence = verdict(found, missing)
        files.write_text(args.out / "summary.md", summary(records, found, sentence))
    except (record.RecordError, OSError) as error:
        print(f"compare.sh: {error}", file=sys.stderr)
        return REFUSED
    for pair in found:
        print(f"\n{pair.name}")
        print("\n".join(f"  {line}" for line in pair.lines or [pair.sentence]))
    print(f"\n{sentence}")
    return code


def read(folders: Sequence[Path]) -> dict[str, dict[str, Any]]:
    """The records in the folders by file name, or by folder and file name if a name occurs twice.

    Records of the CPU and of emulated GPUs come first: they are A of their pairs. Raises RecordError for a
    file that is not a record and for two of one name, OSError for one that cannot be read.
    """
    files = []
    for folder in folders:
        if not folder.is_dir():
            raise NotADirectoryError(f"{folder}: there is no such folder")
        files += sorted([*folder.glob("*.json"), *folder.glob("*.json.gz")])
    names = [file.name.removesuffix(".gz").removesuffix(".json") for file in files]
    by_name: dict[str, Path] = {}
    for file, name in zip(files, names, strict=True):
        key = name if names.count(name) == 1 else f"{file.parent.name}/{name}"
        if key in by_name:
            raise record.RecordError(f"{file}: {by_name[key]} has the same name, {key!r}; rename one of them")
        by_name[key] = file
    found = {key: record.read(file) for key, file in by_name.items()}
    return dict(sorted(found.items(), key=lambda each: not _software(each[1])))


def _software(found: Record) -> bool:
    return found["header"]["emulated"] or found["header"]["vendor"] == "cpu"


def pairs(records: Records) -> list[Pair]:
    """Every two records, compared."""
    return [_pair(one, other, records) for one, other in combinations(records, 2)]


def _pair(one: str, other: str, records: Records) -> Pair:
    try:
        lines, agree = compare.report(records[one], records[other])
        data = compare.data(records[one], records[other])
    except compare.NothingInCommon:
        have = [f"{name} ran {', '.join(_impls(records[name]))}" for name in (one, other)]
        return Pair(one, other, "apart", f"No implementation ran on both: {'; '.join(have)}.")
    except compare.CompareError as error:
        return Pair(one, other, "refused", f"Cannot be compared: {error}")
    return Pair(one, other, "agree" if agree else "disagree", data["verdict"], lines, data)


def _impls(found: Record) -> list[str]:
    return sorted({result["impl"] for result in found["results"]})


def verdict(found: Sequence[Pair], missing: Sequence[str]) -> tuple[int, str]:
    """The exit code, and the verdict over all pairs in one sentence."""
    kinds = ("agree", "disagree", "refused")
    names = {kind: [pair.name for pair in found if pair.verdict == kind] for kind in kinds}
    compared = len(names["agree"]) + len(names["disagree"])
    faults = []
    if names["disagree"]:
        faults.append(f"of {pluralize(compared, 'pair')} compared disagree: {'; '.join(names['disagree'])}")
    if missing:
        faults.append(f"no record came from {', '.join(missing)}")
    if names["refused"]:
        faults.append(f"these cannot be compared: {'; '.join(names['refused'])}")
    elif not compared:
        faults.append("there are no two records with anything in common")
    if not faults:
        return AGREE, f"Agreement: {pluralize(compared, 'pair')} of records compared, no disagreement."
    return (DISAGREE if names["disagree"] or missing else REFUSED), f"NO agreement: {'. '.join(faults)}."


# The summary --------------------------------------------------------------------------------------


def summary(records: Records, found: Sequence[Pair], sentence: str) -> str:
    """The Markdown summary: the verdict, a row per record, a row per pair, and the disagreements."""
    lines = ["## Conformance", "", _cell(sentence), ""]
    lines += _table(
        ("record", "device", "tier", "judged", "declined", "known failures", "waived", "failing", "verdict"),
        [_record_row(name, each) for name, each in records.items()],
    )
    lines += _table(
        ("A", "B", "cases", "bit-equal", "required of", "behaviours", "disagreements", "verdict"),
        [_pair_row(pair) for pair in found],
    )
    for pair in found:
        notices = pair.data.get("notices", ())
        lines += [f"- {_cell(pair.name)}: {_cell(text)}" for text in notices]
        if pair.verdict in ("apart", "refused"):
            lines.append(f"- {_cell(pair.name)}: {_cell(pair.sentence)}")
    lines.append("")
    for pair in found:
        if pair.problems:
            lines += ["<details open>", f"<summary>{_cell(pair.name)}: {_cell(pair.sentence)}</summary>", ""]
            lines += [f"- <code>{_cell(text)}</code>" for text in pair.problems[:SHOWN]]
            rest = len(pair.problems) - SHOWN
            lines += [f"- and {rest} more"] * (rest > 0) + ["", "</details>", ""]
    return "\n".join(lines).rstrip() + "\n"


def _record_row(name: str, found: Record) -> list[str]:
    head = found["header"]
    tally = record.tally(found)
    said = "conforms" if record.conforming(found) else "**does not conform**"
    if not head["complete"]:
        said = "**incomplete**"
    shard = "" if head["fraction"] == [1, 1] else f", shard {head['fraction'][0]} of {head['fraction'][1]}"
    counts = (tally.judged, tally.declined, tally.known, tally.waived, tally.failed)
    return [_cell(name), _cell(head["device"]), _cell(head["tier"] + shard), *map(str, counts), said]


def _pair_row(pair: Pair) -> list[str]:
    names = [_cell(pair.one), _cell(pair.other)]
    if not pair.data:
        said = "no implementation ran on both" if pair.verdict == "apart" else "**cannot be compared**"
        return [*names, "-", "-", "-", "-", "-", said]
    counts = [str(pair.total(column)) for column in ("cases", "equal", "exact", "behaviours")]
    said = "agree" if pair.verdict == "agree" else "**disagree**"
    return [*names, *counts, str(len(pair.problems)), said]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return [*(f"| {' | '.join(line)} |" for line in lines), ""]


def _cell(text: str) -> str:
    """Text of a record with Markdown and HTML characters escaped."""
    escaped = html.escape(" ".join(str(text).split()))
    return "".join(f"&#{ord(char)};" if char in "|`*_[]\\~" else char for char in escaped)


if __name__ == "__main__":
    sys.exit(main())

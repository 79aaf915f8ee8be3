"""Write the page of every record, and of the H200 beside an emulated MI300: `python docs/records.py`."""

from __future__ import annotations

from pathlib import Path

from portable.conformance.records import compare, record
from portable.conformance.report import html

RECORDS = Path(__file__).resolve().parent.parent / "conformance" / "results"
PAIR = ("h200", "emulated-gfx942")


def pages() -> dict[Path, str]:
    """The pages by their paths."""
    files = [file for kind in ("*/core", "*/smoke", "h200/sweep-") for file in RECORDS.glob(f"{kind}*.json")]
    found = {file.with_suffix(".html"): html.page(record.read(file)) for file in files}
    one, other = (record.read(RECORDS / name / "core.json") for name in PAIR)
    name = f"{PAIR[0]}-and-{PAIR[1]}.html"
    return found | {RECORDS / name: html.page(one, other, compare.data(one, other))}


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8", newline="\n")

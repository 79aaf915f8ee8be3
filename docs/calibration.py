"""Write docs/calibration.md from the files of conformance/calibration: `python docs/calibration.py`.

The needs are what was measured; what is allowed is the spec's constant as it is now.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from portable.conformance.commands import calibrate
from portable.spec import registry

ROOT = Path(__file__).resolve().parent.parent
FILES = ROOT / "conformance" / "calibration"
PAGE = ROOT / "docs" / "calibration.md"
IN_SEQUENCE = "in-sequence"
EDGE, WIDE = 0.7, 0.1
"""Shares beyond which a constant is called near its edge, and below which wide."""

HEAD = """# How large `accumulation_ulp` must be

Written by `python docs/calibration.py` from `conformance/calibration/*.json.gz`. Each file was made by
`python -m portable.conformance.commands.calibrate --out FILE.json` on the device that it names.

The judge's bound is `result_ulp * eps(R) * |ref| + accumulation_ulp * eps(acc) * (|ref| + error_scale)` and
a little near zero; `accumulation_ulp` pays for the roundings of the accumulation, and is a formula of each
spec. Here is how much of it the implementations need, the largest over all elements, lengths, seeds, kinds
of data. The share is needed / allowed: above 1 a correct kernel fails, and far below 1 a wrong one may
pass. What a share leaves is for kernels that are not here: the formula has to allow sums in any order, and
matrix units that truncate inside. The widest order is one addition after the other; "in sequence" is that,
in float32 with NumPy (`tests/conformance/in_sequence.py`).

Kinds of data: *normal* N(0, 1); *uniform* [0, 1), where an accumulator that truncates leans to one side;
*mirrored*, N(0, 1) whose sums cancel exactly; *returning*, uniform sums that a last product takes back to
near zero. The last two show the accumulation behind a 16-bit output, whose own rounding is relative to the
result; where no axis is summed away, a 16-bit output shows little of it, and a need of 0 says no more than
that.
"""

EMULATED = """An emulated GPU is that GPU's machine code, executed by the CPU: **none of it ran on an AMD
GPU.** The matrix units of gfx942 add in the order and with the truncation that was measured on MI300X
(arXiv:2511.10909); those of gfx950 and gfx11 are assumptions. exp, log, rcp and rsq are rounded better than a
GPU has to (`backends/rocm/emulator/README.md`)."""

FORMULAS = f"""## The formulas

The largest share of every spec's formula. "Wide" where neither column reaches {WIDE}, "near its edge" where
one is above {EDGE}.
"""

RESULT = """## The last rounding

The largest |error| / (eps(R) * |ref|) of 16-bit outputs, where the accumulation may be 1 % of it at most.
Rounding to nearest needs 0.5; every spec allows 0.51. Truncation would need 1.
"""


def files() -> dict[str, dict[str, Any]]:
    """File name without its ending -> calibration; GPUs first."""
    paths = sorted(FILES.glob("*.json.gz"))
    found = {path.name.removesuffix(".json.gz"): calibrate.read(path) for path in paths}
    return dict(sorted(found.items(), key=lambda each: (each[1]["header"]["emulated"], each[0])))


def allowed(entry: dict[str, Any]) -> float:
    """The spec's constant of today at the entry's sizes."""
    return calibrate.allowed(entry)


def share(entry: dict[str, Any]) -> float:
    return max(entry["needed"].values()) / allowed(entry)


def cell(entries: list[dict[str, Any]]) -> str:
    """`15.2 of 64 (0.24) K=1024 mirrored`: the entry with the largest share."""
    if not entries:
        return ""
    entry = max(entries, key=share)
    values = max(entry["needed"], key=entry["needed"].__getitem__)
    need = entry["needed"][values]
    if need < 0.005:
        return "0"
    place = f" {entry['axis']}={entry['sizes'][entry['axis']]}" if entry["axis"] else ""
    ratio = f"**{share(entry):.2f}**" if share(entry) > EDGE else f"{share(entry):.2f}"
    return f"{need:.3g} of {allowed(entry):.3g} ({ratio}){place} {values}"


def _table(found: dict[str, dict[str, Any]], keys: tuple[str, ...], text: Any) -> list[str]:
    """One row per combination of `keys`, one column per device."""
    rows: dict[tuple[str, ...], dict[str, list[dict[str, Any]]]] = {}
    for name, each in found.items():
        for entry in each["entries"]:
            key = tuple(entry[part] for part in keys)
            rows.setdefault(key, {}).setdefault(name, []).append(entry)
    names = [title(each) for each in found.values()]
    lines = ["| " + " | ".join([*keys, *names]) + " |", "|" + "---|" * (len(keys) + len(names))]
    for key, cells in sorted(rows.items()):
        texts = [text(cells.get(name, [])) for name in found]
        if any(texts):
            lines.append("| " + " | ".join([*key, *texts]) + " |")
    return lines


def title(each: dict[str, Any]) -> str:
    header = each["header"]
    return f"emulated {header['arch']}" if header["emulated"] else header["device"]


def _rounding(entries: list[dict[str, Any]]) -> str:
    found = [entry["result"] for entry in entries if entry["result"] is not None]
    return f"{max(found):.4f}" if found else ""


def _formulas(found: dict[str, dict[str, Any]]) -> list[str]:
    """Per op and output: the formula, the largest share of the implementations and in sequence."""
    shares: dict[tuple[str, str], tuple[list[float], list[float]]] = {}
    for name, each in found.items():
        for entry in each["entries"]:
            both = shares.setdefault((entry["op"], entry["output"]), ([0.0], [0.0]))
            both[name == IN_SEQUENCE].append(share(entry))
    lines = [
        "| op | output | accumulation_ulp | implementations | in sequence | |",
        "|---|---|---|--:|--:|---|",
    ]
    for (op, output), both in sorted(shares.items()):
        here, widest = (max(each) for each in both)
        most = max(here, widest)
        note = "near its edge" if most > EDGE else "wide" if most < WIDE else ""
        formula = registry.spec(op).tolerance[output].accumulation_ulp
        texts = (f"{here:.3f}", f"{widest:.3f}" if len(both[1]) > 1 else "")
        lines.append(f"| {op} | {output} | `{formula}` | {' | '.join(texts)} | {note} |")
    return lines


def page() -> str:
    """The whole page."""
    found = files()
    lines = [HEAD, "| device | lengths | seeds | versions | date |", "|---|---|---|---|---|"]
    for each in found.values():
        header, settings = each["header"], each["settings"]
        versions = ", ".join(f"{name} {header['versions'].get(name)}" for name in ("torch", "triton"))
        lengths = ", ".join(map(str, settings["lengths"]))
        seeds = f"{settings['seeds'][0]} to {settings['seeds'][-1]}"
        lines.append(f"| {title(each)} | {lengths} | {seeds} | {versions} | {header['date'][:10]} |")
    if any(each["header"]["emulated"] for each in found.values()):
        lines += ["", EMULATED]
    lines += ["", FORMULAS, *_formulas(found)]
    keys = ("op", "output", "impl", "types")
    devices = {name: each for name, each in found.items() if name != IN_SEQUENCE}
    sequence = {name: each for name, each in found.items() if name == IN_SEQUENCE}
    lines += ["", "## Needed of allowed", "", *_table(devices, keys, cell)]
    lines += ["", "## In sequence", "", *_table(sequence, ("op", "output", "types"), cell)]
    lines += ["", RESULT, *_table(devices, keys, _rounding)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())

"""A record's file: the results by op and implementation in columns, each text and each case's id once.

In memory a record lists its results and the hash of each case's inputs, as the rest of the suite reads them.
The file holds the same:

- `cases`, by op: `parts` are the different texts at each place of an id (types, shape, values, layout, mode);
  `ids` has a word for each case, its parts' numbers joined by dots; `inputs` a hash for each, "-" for none.
- `results`, by op and implementation, over the op's cases in that order: `states` and `messages` (numbers of
  `messages`) are run lengths ("Pass 31 NotSupported 2", "-" for none); `seconds` has a number for each
  result; the other columns have one for each result that measured something, runs of which are `measured`
  ("+ 31 - 2").
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from portable.conformance.records.schema import RecordError

NONE = "-"
FIGURES = ("worst", "max_abs", "ulp", "digest", "exact")
"""The columns of results that measured something."""
MOST_CASES, MOST_RESULTS, MOST_CHARACTERS = 1 << 18, 1 << 21, 1 << 26
"""Beyond which a file is refused, so that a small one does not fill the memory."""

Result = dict[str, Any]


def pack(record: Mapping[str, Any]) -> dict[str, Any]:
    """The file's content of a valid record. Results come out op by op, case by case."""
    rows = _rows(record)
    messages: dict[str, int] = {}
    kept = {name: value for name, value in record.items() if name not in ("results", "inputs")}
    cases, results = {}, {}
    for op, (ids, cells) in rows.items():
        cases[op] = _cases(op, ids, record["inputs"])
        results[op] = {impl: _columns(column, len(ids), messages) for impl, column in cells.items()}
    return {**kept, "messages": list(messages), "cases": cases, "results": results}


def unpack(compacted: Mapping[str, Any]) -> dict[str, Any]:
    """The record that `pack` was given. RecordError where the columns do not fit together."""
    ids, inputs = _ids(_object(compacted, "cases", ""))
    results: list[Result] = []
    messages = compacted.get("messages")
    if not isinstance(messages, list) or not all(isinstance(each, str) for each in messages):
        raise RecordError("messages: expected a list of texts")
    columns = _object(compacted, "results", "")
    cells = sum(len(ids.get(op, ())) * len(impls) for op, impls in columns.items() if isinstance(impls, dict))
    if cells > MOST_RESULTS:
        raise RecordError(f"results: {cells} of them; at most {MOST_RESULTS} are read")
    for op in columns:
        if op not in ids:
            raise RecordError(f"results.{op}: the op has no cases")
        impls = _object(columns, op, "results")
        by_impl = [
            _cells(_object(impls, impl, f"results.{op}"), impl, ids[op], messages, f"results.{op}.{impl}")
            for impl in impls
        ]
        results += [each for row in zip(*by_impl, strict=True) for each in row if each is not None]
    kept = {name: value for name, value in compacted.items() if name not in ("messages", "cases", "results")}
    return {**kept, "results": results, "inputs": inputs}


def text(compacted: Mapping[str, Any]) -> str:
    """JSON with a column, a timing or a field of the header on each line."""
    parts = []
    for name in (
        "schema", "header", "faults", "roof", "waivers", "timings", "modelled", "messages", "cases", "results"
    ):  # fmt: skip
        if name in compacted:
            depth = {"modelled": 2, "cases": 2, "results": 3}.get(name, 1)
            parts.append(f"{json.dumps(name)}: {_lines(compacted[name], depth, ' ')}")
    return "{\n " + ",\n ".join(parts) + "\n}\n"


def _lines(value: Any, depth: int, indent: str) -> str:
    """`value` with its entries on separate lines, `depth` levels of them."""
    if not depth or not value or not isinstance(value, (dict, list)):
        spaces = (",", ":") if len(indent) > 2 else (", ", ": ")
        return json.dumps(value, sort_keys=True, allow_nan=False, separators=spaces)
    inner = indent + " "
    if isinstance(value, list):
        lines, ends = [_lines(each, depth - 1, inner) for each in value], "[]"
    else:
        items = sorted(value.items()) if depth == 1 else value.items()
        lines = [f"{json.dumps(key)}: {_lines(each, depth - 1, inner)}" for key, each in items]
        ends = "{}"
    return f"{ends[0]}\n{inner}" + f",\n{inner}".join(lines) + f"\n{indent}{ends[1]}"


# Packing ------------------------------------------------------------------------------------------


def _rows(record: Mapping[str, Any]) -> dict[str, tuple[list[str], dict[str, dict[int, Result]]]]:
    """By op: the ids, and by implementation the results by their row. A case that is listed twice with one
    implementation has two rows."""
    rows: dict[str, tuple[list[str], dict[str, dict[int, Result]]]] = {}
    places: dict[str, list[int]] = {}
    for result in record["results"]:
        case, impl = result["case"], result["impl"]
        ids, cells = rows.setdefault(case.partition("/")[0], ([], {}))
        column = cells.setdefault(impl, {})
        at = next((place for place in places.setdefault(case, []) if place not in column), None)
        if at is None:
            at = len(ids)
            ids.append(case)
            places[case].append(at)
        column[at] = result
    for case in record["inputs"]:
        if case not in places:
            rows.setdefault(case.partition("/")[0], ([], {}))[0].append(case)
    return rows


def _cases(op: str, ids: Sequence[str], inputs: Mapping[str, str]) -> dict[str, Any]:
    parts: list[dict[str, int]] = []
    words = []
    for case in ids:
        found = case.split("/")[1:]
        while len(parts) < len(found):
            parts.append({})
        numbers = [str(known.setdefault(part, len(known))) for known, part in zip(parts, found)]  # noqa: B905
        words.append(".".join(numbers) or NONE)
    return {
        "parts": [list(known) for known in parts],
        "ids": " ".join(words),
        "inputs": " ".join(inputs.get(case) or NONE for case in ids),
    }


def _columns(column: Mapping[int, Result], count: int, messages: dict[str, int]) -> dict[str, Any]:
    results = [column.get(row) for row in range(count)]
    there = [each for each in results if each is not None]
    measured = [any(name in each for name in FIGURES) for each in there]
    figures = [each for each, has in zip(there, measured, strict=True) if has]
    numbers = [messages.setdefault(each["message"], len(messages)) if each.get("message") else NONE
               for each in there]  # fmt: skip
    compacted: dict[str, Any] = {
        "states": _runs(NONE if each is None else each["state"] for each in results),
        "messages": _runs(map(str, numbers)),
        "seconds": [_number(float(f"{each.get('seconds', 0):.2g}")) for each in there],
        "measured": _runs("+" if has else "-" for has in measured),
        "digest": " ".join(each.get("digest") or NONE for each in figures),
        "exact": _runs("+" if each.get("exact") else "-" for each in figures),
    }
    for name in ("worst", "max_abs", "ulp"):
        compacted[name] = [_number(each.get(name, 0)) for each in figures]
    return compacted


def _number(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 1e9 else value


def _runs(words: Iterable[str]) -> str:
    parts: list[list[Any]] = []
    for word in words:
        if parts and parts[-1][0] == word:
            parts[-1][1] += 1
        else:
            parts.append([word, 1])
    return " ".join(f"{word} {count}" for word, count in parts)


# Unpacking ----------------------------------------------------------------------------------------


def _object(parent: Mapping[str, Any], name: str, place: str) -> dict[str, Any]:
    found = parent.get(name)
    if not isinstance(found, dict):
        raise RecordError(f"{place}{'.' * bool(place)}{name}: expected an object")
    return found


def _ids(cases: Mapping[str, Any]) -> tuple[dict[str, list[str]], dict[str, str]]:
    """The ids by op, and the inputs' hashes by id."""
    found: dict[str, list[str]] = {}
    inputs: dict[str, str] = {}
    total = characters = 0
    for op in cases:
        place = f"cases.{op}"
        entry = _object(cases, op, "cases")
        parts = entry.get("parts")
        if not isinstance(parts, list) or not all(
            isinstance(texts, list) and all(isinstance(text, str) for text in texts) for texts in parts
        ):
            raise RecordError(f"{place}.parts: expected lists of texts")
        words, hashes = (_words(entry, name, place) for name in ("ids", "inputs"))
        total += len(words)
        if total > MOST_CASES:
            raise RecordError(f"cases: {total} of them; at most {MOST_CASES} are read")
        if len(hashes) != len(words):
            raise RecordError(f"{place}.inputs: {len(hashes)} hashes of {len(words)} cases")
        ids = found[op] = []
        for word, sha256 in zip(words, hashes, strict=True):
            texts = [op] if word == NONE else [op, *_parts(word, parts, place)]
            characters += sum(map(len, texts)) + len(texts)
            if characters > MOST_CHARACTERS:
                raise RecordError(f"cases: ids of more than {MOST_CHARACTERS} characters in all")
            ids.append("/".join(texts))
            if sha256 != NONE:
                inputs[ids[-1]] = sha256
    return found, inputs


def _parts(word: str, parts: Sequence[Sequence[str]], place: str) -> Iterator[str]:
    numbers = word.split(".")
    if len(numbers) > len(parts):
        raise RecordError(f"{place}.ids: {word!r} has more parts than there are")
    for number, texts in zip(numbers, parts):  # noqa: B905
        if not number.isdecimal() or len(number) > 9 or int(number) >= len(texts):
            raise RecordError(f"{place}.ids: {word!r} names a part that does not exist")
        yield texts[int(number)]


def _words(entry: Mapping[str, Any], name: str, place: str) -> list[str]:
    found = entry.get(name)
    if not isinstance(found, str):
        raise RecordError(f"{place}.{name}: expected a text")
    return found.split()


def _spread(entry: Mapping[str, Any], name: str, count: int, place: str) -> list[str]:
    """Run lengths expanded to `count` words."""
    words = _words(entry, name, place)
    pairs = list(zip(words[::2], words[1::2]))  # noqa: B905
    if len(words) % 2 or not all(number.isdecimal() and len(number) < 10 for _, number in pairs):
        raise RecordError(f"{place}.{name}: expected words, each with its count")
    total = sum(int(number) for _, number in pairs)
    if total != count:
        raise RecordError(f"{place}.{name}: runs of {total} in all; expected {count}")
    return [word for word, number in pairs for _ in range(int(number))]


def _listed(entry: Mapping[str, Any], name: str, count: int, place: str) -> list[Any]:
    found = entry.get(name)
    if not isinstance(found, list) or len(found) != count:
        raise RecordError(f"{place}.{name}: expected a list of {count} numbers")
    return found


def _cells(
    entry: Mapping[str, Any], impl: str, ids: Sequence[str], messages: Sequence[str], place: str
) -> list[Result | None]:
    """The result of each case, None where there is none."""
    known = {"states", "messages", "seconds", "measured", *FIGURES}
    if unknown := entry.keys() - known:
        raise RecordError(f"{place}.{min(unknown)}: unknown column")
    states = _spread(entry, "states", len(ids), place)
    there = [row for row, state in enumerate(states) if state != NONE]
    numbers = _spread(entry, "messages", len(there), place)
    measured = _spread(entry, "measured", len(there), place)
    count = Counter(measured)["+"]
    columns: dict[str, Sequence[Any]] = {
        "digest": [None if word == NONE else word for word in _words(entry, "digest", place)],
        "exact": [word == "+" for word in _spread(entry, "exact", count, place)],
        **{name: _listed(entry, name, count, place) for name in ("worst", "max_abs", "ulp")},
    }
    if len(columns["digest"]) != count:
        raise RecordError(f"{place}.digest: {len(columns['digest'])} words; expected {count}")
    figures = iter(zip(*columns.values(), strict=True))
    cells: list[Result | None] = [None] * len(ids)
    seconds = _listed(entry, "seconds", len(there), place)
    for row, number, has, duration in zip(there, numbers, measured, seconds, strict=True):
        result: Result = {"case": ids[row], "impl": impl, "state": states[row]}
        if number != NONE:
            if not number.isdecimal() or len(number) > 9 or int(number) >= len(messages):
                raise RecordError(f"{place}.messages: {number!r} is the number of no message")
            result["message"] = messages[int(number)]
        if has == "+":
            result |= {name: value for name, value in zip(columns, next(figures), strict=True) if value}
        if duration:
            result["seconds"] = duration
        cells[row] = result
    return cells

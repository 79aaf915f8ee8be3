"""The package that a vendor hands in, and what is checked of it.

A folder with records (`*.json`), `statement.yaml`, `SHA256SUMS`, and nothing else. `verify` reads it as data
from a stranger: it executes nothing, follows no link, reads no file beyond its limit, and escapes what it
prints. The checks show that a package is whole and agrees with itself and with this suite; whether the
runs took place as recorded is shown only by running them again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from portable.conformance.cases.case import op_of
from portable.conformance.execute import manifest
from portable.conformance.records import record
from portable.conformance.records.compare import outside
from portable.conformance.states import CONFORMING, KNOWN
from portable.errors import PortableError, SpecError, listed, nearest
from portable.runtime import detect, files
from portable.spec import registry, strict_yaml

STATEMENT, SUMS = "statement.yaml", "SHA256SUMS"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
SUM_LINE = re.compile(r"([0-9a-f]{64}) [ *](.+)")
COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
MAIL = re.compile(r"[\w.+-]+@[\w-]+\.\w")
MAX_FILES = 32
MAX_RECORD = 32 * 2**20  # bytes
MAX_TEXT = 64 * 2**10  # bytes, of the statement and of the sums
TIERS = ("core", "full")
SHOWN = 3
LONGEST = 400

FIELDS: dict[str, str] = {
    "schema_version": "1",
    "vendor": "text",
    "product": "text",
    "device": "hardware or emulated",
    "kernel_changes": "none, or what was changed",
    "commit": "the commit's 40 hexadecimal digits, in quotes",
    "clean": "true",
    "manifest": "true",
    "waivers": "a list of {where, reason}, [] for none",
}
"""The statement's keys, all required, and what each holds."""


class SubmissionError(PortableError, ValueError):
    """A package that cannot be made of what was given; the message says why."""


class _Fault(Exception):
    """One sentence about one file."""


def make(folder: Path, records: Sequence[Path], statement: Mapping[str, Any]) -> list[str]:
    """Write the package into `folder`, which must not exist, and answer what `verify` says of it.

    `statement` holds `FIELDS` but `schema_version`. SubmissionError for records whose names are not allowed
    in a package, RecordError for one that is none. A record that is compressed is not, in the package.
    """
    names = [path.name.removesuffix(".gz") for path in records]
    for name in names:
        if not name.endswith(".json") or not NAME.fullmatch(name):
            raise SubmissionError(f"{name}: a record in a package is called like record.json")
    if not names or len(set(names)) != len(names):
        raise SubmissionError(f"records {listed(names)}: expected at least one, each with a different name")
    for path in records:
        record.read(path)
    contents = {name: files.read_text(path).encode() for name, path in zip(names, records, strict=True)}
    full = {"schema_version": 1, **statement}
    lines = [f"{key}: {json.dumps(value, ensure_ascii=False)}\n" for key, value in full.items()]
    contents[STATEMENT] = "".join(lines).encode()
    sums = [f"{hashlib.sha256(contents[name]).hexdigest()}  {name}\n" for name in sorted(contents)]
    contents[SUMS] = "".join(sums).encode()
    folder.mkdir(parents=True)
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return verify(folder)


def verify(folder: Path) -> list[str]:
    """The faults of the package in `folder`, one sentence each; none where it is valid.

    OSError where `folder` is no folder that can be read.
    """
    return check(folder)[0]


def check(folder: Path) -> tuple[list[str], str]:
    """The faults, and a line that says what the package holds."""
    names, faults = _listing(folder)
    contents: dict[str, bytes] = {}
    digests: dict[str, str] = {}
    records: dict[str, dict[str, Any]] = {}
    statement: dict[str, Any] | None = None
    for name in names:
        try:
            content = _content(folder, name, MAX_RECORD if name.endswith(".json") else MAX_TEXT)
            digests[name] = hashlib.sha256(content).hexdigest()
            if name.endswith(".json"):
                records[name] = _record(content)
            else:
                contents[name] = content
        except _Fault as error:
            faults.append(f"{name}: {error}")
    if SUMS in contents:
        faults += [f"{SUMS}: {fault}" for fault in _sum_faults(contents[SUMS], digests, names)]
    if STATEMENT in contents:
        statement, found = _statement(contents[STATEMENT])
        faults += [f"{STATEMENT}: {fault}" for fault in found]
    for name, each in records.items():
        faults += [f"{name}: {fault}" for fault in _record_faults(each)]
        if statement is not None:
            faults += [f"{name}: {fault}" for fault in _against(statement, each["header"], each["waivers"])]
    if statement is not None and records and len(records) == sum(name.endswith(".json") for name in names):
        used = {entry["where"] for each in records.values() for entry in each["waivers"]}
        faults += [
            f"{STATEMENT}: the waiver {where} is in no record; state only those that were used"
            for where in dict.fromkeys(entry["where"] for entry in statement["waivers"])
            if where not in used
        ]
    devices = dict.fromkeys(each["header"]["device"] for each in records.values())
    results = sum(len(each["results"]) for each in records.values())
    about = f"{statement['vendor']}, {statement['product']}: " if statement else ""
    about += f"{len(records)} record{'s' * (len(records) != 1)} of {listed(devices)}, {results} results"
    return list(map(_plain, faults)), _plain(about)


# Files --------------------------------------------------------------------------------------------


def _listing(folder: Path) -> tuple[list[str], list[str]]:
    """The names of the files to read, and the faults of the folder."""
    with os.scandir(folder) as entries:
        found = []
        for entry in entries:
            found.append(entry)
            if len(found) > MAX_FILES:
                return [], [f"the folder holds more than {MAX_FILES} files; a package holds its records and "
                            f"{STATEMENT} and {SUMS}"]  # fmt: skip
    names, faults = [], []
    for entry in sorted(found, key=lambda each: each.name):
        name = entry.name
        if entry.is_symlink():
            faults.append(f"{name}: a link; a package holds the files themselves")
        elif entry.is_dir(follow_symlinks=False):
            faults.append(f"{name}: a folder; a package has none")
        elif not entry.is_file(follow_symlinks=False):
            faults.append(f"{name}: no regular file")
        elif name in (STATEMENT, SUMS) or (name.endswith(".json") and NAME.fullmatch(name)):
            names.append(name)
        else:
            faults.append(f"{name}: unknown file; a package holds *.json, {STATEMENT} and {SUMS}")
    faults += [
        f"{name}: missing"
        for name in (STATEMENT, SUMS)
        if name not in names and all(entry.name != name for entry in found)
    ]
    if not any(name.endswith(".json") for name in names):
        faults.append("record.json: missing; a package holds at least one record")
    return names, faults


def _content(folder: Path, name: str, limit: int) -> bytes:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        with open(os.open(folder / name, flags), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise _Fault("no regular file")
            content = file.read(limit + 1)
    except OSError as error:
        raise _Fault(f"cannot be read: {error.strerror}") from error
    if len(content) > limit:
        raise _Fault(f"larger than {limit // 1024} KiB")
    return content


def _sum_faults(content: bytes, digests: Mapping[str, str], names: Sequence[str]) -> list[str]:
    """Every other file has exactly one line, as `sha256sum` writes it, and its sum is right."""
    faults, listed_names = [], set()
    for number, line in enumerate(content.decode("utf-8", "backslashreplace").splitlines(), 1):
        match = SUM_LINE.fullmatch(line)
        if match is None:
            faults.append(f"line {number}: expected 64 hexadecimal digits, two spaces and a name")
            continue
        digest, name = match.groups()
        if not NAME.fullmatch(name) or name == SUMS:
            faults.append(f"line {number}: {name!r} is no name of a file of this package")
        elif name in listed_names:
            faults.append(f"line {number}: {name} is there twice")
        elif name not in names:
            faults.append(f"line {number}: {name} is not in the package")
        elif name in digests and digests[name] != digest:
            faults.append(f"line {number}: {name} has another sum: {digests[name]}")
        listed_names.add(name)
    return faults + [f"{name} has no line" for name in names if name not in listed_names and name != SUMS]


def _record(content: bytes) -> dict[str, Any]:
    try:
        found = json.loads(content.decode(), object_pairs_hook=_unique, parse_constant=_no_constant)
        return record.load(found)
    except (ValueError, RecursionError) as error:  # RecordError and JSONDecodeError among them
        raise _Fault(f"no valid record: {error}") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ValueError(f"the key {twice!r} is in one object twice")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


# The statement ------------------------------------------------------------------------------------


def _statement(content: bytes) -> tuple[dict[str, Any] | None, list[str]]:
    """The statement where its schema holds, else None, and its faults."""
    try:
        found = strict_yaml.load(content.decode(), STATEMENT)
    except UnicodeDecodeError:
        return None, ["the file is not UTF-8"]
    except SpecError as error:
        text = str(error).removeprefix(f"{STATEMENT}:").strip()
        return None, [re.sub(r"^(\d+): ", r"line \1: ", text)]
    if not isinstance(found, strict_yaml.Map):
        return None, [f"expected a mapping of {listed(FIELDS)}"]
    faults = [
        f"line {found.line_of(key)}: unknown key {key!r}.{nearest(key, FIELDS)}"
        for key in found if key not in FIELDS
    ]  # fmt: skip
    faults += [f"{key} is missing; expected {what}" for key, what in FIELDS.items() if key not in found]
    for key, what in FIELDS.items():
        if key in found and not _fits(key, found[key]):
            shown = found[key] if isinstance(found[key], (str, int, float)) else type(found[key]).__name__
            faults.append(f"line {found.line_of(key)}: {key} is {shown!r}; expected {what}")
    texts = [(found.line_of(key), value) for key, value in found.items() if isinstance(value, str)]
    if not faults:
        texts += [(entry.line, entry["reason"]) for entry in found["waivers"]]
    faults += [
        f"line {line}: an e-mail address; a package names no person"
        for line, text in texts
        if MAIL.search(text)
    ]
    return (None if faults else found), faults


def _fits(key: str, value: Any) -> bool:
    if key == "schema_version":
        return value == 1 and not isinstance(value, bool)
    if key in ("clean", "manifest"):
        return value is True
    if key == "waivers":
        return isinstance(value, list) and all(
            isinstance(each, strict_yaml.Map)
            and set(each) == {"where", "reason"}
            and all(isinstance(text, str) and text.strip() for text in each.values())
            for each in value
        )
    if not isinstance(value, str) or not value.strip():
        return False
    if key == "device":
        return value in ("hardware", "emulated")
    return key != "commit" or COMMIT.fullmatch(value) is not None


# Records ------------------------------------------------------------------------------------------


def _record_faults(each: dict[str, Any]) -> list[str]:
    """What is wrong with one valid record."""
    head, results = each["header"], each["results"]
    faults = []
    if not head["complete"]:
        faults.append("incomplete: the run was interrupted; go on with --resume")
    if head["tier"] not in TIERS:
        faults.append(f"tier {head['tier']!r}; a package needs {' or '.join(TIERS)}")
    if head["fraction"] != [1, 1]:
        i, n = head["fraction"]
        faults.append(f"fraction {i} of {n}; run `portable-conformance merge` over all {n} shards")
    for name, option in (("impls", "--impl"), ("k", "-k")):
        if head["selection"][name] is not None:
            faults.append(f"only selected cases were run ({option}); run without {option}")
    if head["commit"] is None:
        faults.append("no commit; run from a git checkout")
    if head["dirty"] is not False:
        state = "differed from the commit" if head["dirty"] else "is not known to be the commit's"
        faults.append(f"the source {state}; commit, and run again")
    faults += _listed_faults("does not conform", [
        f"{result['case']} on {result['impl']} is {result['state']}"
        for result in results if result["state"] not in CONFORMING
    ])  # fmt: skip
    faults += _listed_faults("a timing does not conform", [
        f"{timing['case']} on {timing['impl']} is {timing['state']}"
        for timing in each["timings"] if timing["state"] not in CONFORMING
    ])  # fmt: skip
    if head["emulated"] and each["timings"]:
        faults.append("an emulated device has no timings, and the record holds some")
    good = [result for result in results if result["state"] in CONFORMING - KNOWN]
    faults += _listed_faults("passed outside its bound", [
        f"{result['case']} on {result['impl']}, |error| / bound {result['worst']}"
        for result in good if outside(result)
    ])  # fmt: skip
    faults += _listed_faults("no hash of its inputs", [
        result["case"]
        for result in good
        if result["state"] != "NotSupported"
        and "/behaviour/" not in result["case"]
        and result["case"] not in each["inputs"]
    ])  # fmt: skip
    excused = sum(result["state"] in KNOWN for result in results)
    if excused and not each["waivers"]:
        faults.append(f"{excused} results are XFail or Waived, and the record names no waiver")
    faults += _spec_faults(head["specs"], dict.fromkeys(op_of(result["case"]) for result in results))
    return faults + _manifest_faults(each)


def _spec_faults(specs: Mapping[str, Any], ops: Iterable[str]) -> list[str]:
    """The record is of this suite's specs and cases."""
    faults = []
    for op in ops:
        if op not in specs:
            faults.append(f"{op}: the header has no digest of its spec")
        elif op not in registry.op_folders():
            faults.append(f"{op}: no op of this suite")
        elif specs[op] != record.op_digest(op):
            faults.append(
                f"{op}: its spec differs from this suite's ({specs[op]}, not {record.op_digest(op)}); "
                f"verify with the suite of the record's commit, and see what changed"
            )
    return faults


def _manifest_faults(each: dict[str, Any]) -> list[str]:
    """Every op of the tier's manifest, every implementation that the device can run, every case."""
    head = each["header"]
    if head["tier"] not in TIERS:
        return []  # reported already
    try:
        ran = {(op_of(result["case"]), result["impl"]) for result in each["results"]}
        must = manifest.read(head["tier"])
        silent = [op for op in must if op not in {op for op, _ in ran}]
        faults = [f"{op}: no results; every op of the tier must run" for op in silent]
        for op in must:
            lacking = [] if op in silent else [impl for impl in can_run(head, op) if (op, impl) not in ran]
            if lacking:
                faults.append(f"{op}: no results of {listed(lacking)}, which {head['arch']} can run")
        return faults + _listed_faults("the manifest", list(manifest.faults(each)))
    except (PortableError, LookupError, TypeError, ValueError, AttributeError) as error:
        return [f"its cases cannot be held against the manifest: {type(error).__name__}: {error}"]


def can_run(head: Mapping[str, Any], op: str) -> list[str]:
    """The implementations of an op that a record's device can run, by the spec and the vendor's backend;
    torch's implementations run on the CPU there. LookupError for an unknown vendor."""
    folder = registry.vendors().get(head["vendor"])
    if folder is None:
        known = listed(registry.vendors())
        raise LookupError(f"vendor {head['vendor']!r} is none of this suite's, {known}")
    backend = detect.backend_class(head["vendor"])(folder)
    return [
        each.name
        for each in registry.spec(op).implementations
        if set(each.languages) & set(backend.languages)
        and not (head["emulated"] and each.kind == "run")
        and (
            not each.requires.arch
            or any(backend.arch_matches(pattern, head["arch"]) for pattern in each.requires.arch)
        )
    ]


def _against(
    statement: Mapping[str, Any], head: Mapping[str, Any], waivers: Iterable[Mapping[str, Any]]
) -> list[str]:
    """Where the statement and a record differ."""
    faults = []
    emulated = head["emulated"] or head["device"].startswith("emulated")
    if emulated and statement["device"] == "hardware":
        faults.append(f"{head['device']} is emulated, and the statement says hardware")
    if not emulated and statement["device"] == "emulated":
        faults.append(f"{head['device']} is no emulated device, and the statement says emulated")
    if head["commit"] is not None and head["commit"] != statement["commit"]:
        faults.append(f"of commit {head['commit']}, and the statement says {statement['commit']}")
    stated = {entry["where"] for entry in statement["waivers"]}
    return faults + [
        f"the waiver {where} was used {used} times and is not in the statement"
        for where, used in dict.fromkeys((entry["where"], entry["used"]) for entry in waivers)
        if where not in stated
    ]


def _listed_faults(what: str, found: list[str]) -> list[str]:
    rest = len(found) - SHOWN
    return [f"{what}: {each}" for each in found[:SHOWN]] + ([f"{what}: {rest} more"] if rest > 0 else [])


def _plain(text: str) -> str:
    """One line for a terminal: no control characters, not endless."""
    shown = "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
    return shown if len(shown) <= LONGEST else shown[: LONGEST - 3] + "..."

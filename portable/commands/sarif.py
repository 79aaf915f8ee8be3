"""Findings on an emulated GPU as SARIF 2.1.0, which code hosts show at the line of the kernel's source."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from portable.backend import Finding
from portable.errors import PortableError
from portable.runtime import files

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def document(findings: Mapping[str, Sequence[Finding]], version: str, root: Path) -> dict[str, Any]:
    """One run for each architecture. Paths below `root` are relative to it; equal findings are said once."""
    return {
        "$schema": _SCHEMA,
        "version": "2.1.0",
        "runs": [_run(arch, dict.fromkeys(found), version, root) for arch, found in findings.items()],
    }


def _run(arch: str, findings: Iterable[Finding], version: str, root: Path) -> dict[str, Any]:
    findings = list(findings)
    rules = [{"id": kind} for kind in sorted({each.kind for each in findings})]
    return {
        "tool": {"driver": {"name": "portable emulate", "version": version, "rules": rules}},
        "automationDetails": {"id": f"emulated/{arch}"},
        "results": [
            {
                "ruleId": each.kind,
                "level": each.level,
                "message": {"text": f"emulated {arch}: {each.message}"},
                "locations": _locations(each, root),
            }
            for each in findings
        ],
    }


def _locations(finding: Finding, root: Path) -> list[dict[str, Any]]:
    if finding.file is None:
        return []
    path = Path(finding.file)
    if path.is_relative_to(root):
        artifact = {"uri": path.relative_to(root).as_posix(), "uriBaseId": "%SRCROOT%"}
    else:
        artifact = {"uri": path.as_uri() if path.is_absolute() else path.as_posix()}
    place: dict[str, Any] = {"artifactLocation": artifact}
    if finding.line:
        place["region"] = {"startLine": finding.line}
    return [{"physicalLocation": place}]


def write(file: str, found: Mapping[str, Any]) -> None:
    """Write a document. Raises PortableError where that cannot be."""
    try:
        files.write_text(file, json.dumps(found, indent=1) + "\n")
    except OSError as error:
        raise PortableError(f"{file!r} cannot be written: {error.strerror}") from None


def merge(files: Sequence[Path], into: str) -> None:
    """Write one document with the runs of several."""
    documents = [json.loads(file.read_text(encoding="utf-8")) for file in files if file.is_file()]
    write(into, {**documents[0], "runs": [run for each in documents for run in each["runs"]]})

"""What a report adds to its verdict: what the failures have in common, and what to do about it.

`HINTS` speak of all results of a report; `Notes` of single cases, of which one of each kind is looked into.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from portable.conformance.cases.case import Case
from portable.conformance.execute.result import Result
from portable.conformance.judge import double_rounding
from portable.conformance.judge.reference import MaterializedCase
from portable.conformance.states import NOT_JUDGED
from portable.conformance.text import kind

FEWEST = 3
"""Cases of each of two kinds, one that passes and one that fails, before it is more than a coincidence."""
STRIDES_ALONE = (
    "Contiguous inputs pass and all others fail: a kernel that needs contiguous memory calls .contiguous() "
    "in its wrapper."
)


def strides_alone(results: Sequence[Result]) -> str:
    """Said where the contiguous cases pass and all others fail."""
    judged = _judged_cases(results)
    plain = [each.conforms for each in judged if each.case.layout == "contiguous"]
    others = [each.conforms for each in judged if each.case.layout != "contiguous"]
    said = min(len(plain), len(others)) >= FEWEST and all(plain) and not any(others)
    return STRIDES_ALONE if said else ""


def float64_alone(results: Sequence[Result]) -> str:
    """Said where every failure is of float64 and the other types pass: the `types=` to claim."""
    judged = _judged_cases(results)
    wide = [each for each in judged if "float64" in _dtypes(each.case)]
    others = [each for each in judged if "float64" not in _dtypes(each.case)]
    failing = sum(not each.conforms for each in wide)
    if min(failing, len(others)) < FEWEST or failing < sum(not each.conforms for each in results):
        return ""
    names = sorted({dtype for each in others for dtype in _dtypes(each.case)})
    return (
        f"float64 alone fails ({failing} of its {len(wide)} cases; all {len(others)} of the other types "
        f"pass): a function that computes in float32 claims the others, with types={names}."
    )


HINTS: tuple[Callable[[Sequence[Result]], str], ...] = (strides_alone, float64_alone)


def _judged_cases(results: Sequence[Result]) -> list[Result]:
    """The results that say something of a layout and of dtypes: a behaviour has none."""
    return [each for each in results if isinstance(each.case, Case) and each.state not in NOT_JUDGED]


def _dtypes(case: Case) -> set[str]:
    return {dtype for name, dtype in case.types if name != "acc"}


class Notes(dict[str, str]):
    """What is known of single failures beside their message, by the case's id."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: set[tuple[str, str, str]] = set()

    def look(self, result: Result, materialized: MaterializedCase, returned: Any) -> None:
        """Look into a case whose values are wrong, unless one of its kind was. `returned` is what the
        function gave."""
        key = kind(result.impl, result.state, result.message)
        if result.state not in ("Fail.value", "Fail.nonfinite") or key in self._seen:
            return
        self._seen.add(key)
        several = returned if isinstance(returned, tuple) else (returned,)
        outputs = dict(zip(materialized.spec.outputs, several, strict=False))
        if found := double_rounding.explain(materialized, outputs):
            self[result.case.id] = found

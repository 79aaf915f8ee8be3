"""The states of a result, and what a set of results amounts to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

STATES = (
    "Pass", "QualityWarning", "PerfWarning", "NotSupported", "ResourceError", "Waived", "XFail", "XPass",
    "Fail.value", "Fail.shape", "Fail.dtype", "Fail.nonfinite", "Fail.nondeterministic", "Fail.bounds_write",
    "Fail.behaviour", "CompileError", "Crash", "Timeout", "InternalError", "NotRun",
)  # fmt: skip
CONFORMING = frozenset({"Pass", "QualityWarning", "PerfWarning", "NotSupported", "Waived", "XFail", "XPass"})
"""`waivers` makes Waived, XFail and XPass of other states; an XPass conforms, but its entry is a fault."""
KNOWN = frozenset({"XFail", "Waived"})
"""Failures that are known, and so conform."""
NOT_JUDGED = frozenset({"NotSupported", "NotRun"})
"""The implementation declined the case by a rule, or the case was not run: nothing was compared."""
GOOD = CONFORMING - KNOWN - NOT_JUDGED
"""The implementation ran and did as the spec says."""


@dataclass(frozen=True)
class Tally:
    """How many results there are of each kind; `str()` says it in a line. `judged` = `passed` + `failed` +
    `known` + `waived`; the others are `declined` (by a rule) and `not_run`."""

    passed: int = 0
    warned: int = 0
    """Of `passed`, those with a warning."""
    failed: int = 0
    known: int = 0
    waived: int = 0
    declined: int = 0
    not_run: int = 0

    @staticmethod
    def of(states: Iterable[str] | Mapping[str, int]) -> Tally:
        """Of states, one for each result, or of a count for each state."""
        counts = Counter(states)
        return Tally(
            passed=sum(counts[state] for state in GOOD),
            warned=counts["QualityWarning"] + counts["PerfWarning"],
            failed=sum(count for state, count in counts.items() if state not in CONFORMING | NOT_JUDGED),
            known=counts["XFail"],
            waived=counts["Waived"],
            declined=counts["NotSupported"],
            not_run=counts["NotRun"],
        )

    @property
    def judged(self) -> int:
        return self.passed + self.failed + self.known + self.waived

    @property
    def conforms(self) -> bool:
        """Whether something was judged, nothing failed that is not known, and all was run."""
        return self.judged > 0 and not self.failed and not self.not_run

    def __str__(self) -> str:
        """`7,390 judged (all pass), 7,526 declined by rule`."""
        kinds = [
            f"{count:,} {text}"
            for count, text in (
                (self.failed, "fail"), (self.warned, "pass with a warning"),
                (self.known, "known failure" + "s" * (self.known != 1)), (self.waived, "waived"),
            )
            if count
        ]  # fmt: skip
        if self.passed == self.judged:
            kinds.insert(0, "all pass")
        elif self.passed:
            kinds.insert(0, f"{self.passed:,} pass")
        parts = [f"{self.judged:,} judged" + (f" ({', '.join(kinds)})" if self.judged else "")]
        parts += [f"{self.declined:,} declined by rule"] * bool(self.declined)
        parts += [f"{self.not_run:,} not run"] * bool(self.not_run)
        return ", ".join(parts)

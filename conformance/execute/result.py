"""A result: one case or behaviour on one implementation, and how a record holds it."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from portable.conformance.states import CONFORMING


@dataclass(frozen=True)
class Result:
    """The outcome of a case or behaviour on one implementation. `worst` is the largest |error| / bound,
    `ulp` the largest error in units in the last place, with its sign; `digest` is of the outputs' bits, and
    `exact` says that they had to equal the reference's."""

    case: Any
    impl: str
    state: str
    message: str = ""
    worst: float = 0.0
    max_abs: float = 0.0
    ulp: float = 0.0
    digest: str = ""
    exact: bool = False
    seconds: float = 0.0

    @property
    def conforms(self) -> bool:
        return self.state in CONFORMING

    def entry(self) -> dict[str, Any]:
        """The result as a record holds it."""
        fields = {name: value for name, value in vars(self).items() if name not in ("case", "impl", "state")}
        return entry(self.case.id, self.impl, self.state, **fields)

    @staticmethod
    def of(case: Any, entry: Mapping[str, Any]) -> Result:
        """The result that an entry of a record holds, of the case that it names."""
        return Result(case, **{name: value for name, value in entry.items() if name != "case"})


def entry(case: str, impl: str, state: str, **others: Any) -> dict[str, Any]:
    """One result; fields that say nothing ("", 0, False, None) are left out, numbers get five digits."""
    kept = {
        name: float(f"{value:.5g}") if isinstance(value, float) and math.isfinite(value) else value
        for name, value in others.items()
        if value
    }
    if "message" in kept:
        kept["message"] = _without_place(str(kept["message"]))
    return finite({"case": case, "impl": impl, "state": state, **kept})


def _without_place(message: str) -> str:
    """A message without the folders of the package, of Python and of the user."""
    package = str(Path(__file__).resolve().parents[2])
    for folder, name in ((package, ""), (sys.prefix, "python/"), (str(Path.home()), "~/")):
        if folder != "/":
            message = message.replace(folder.rstrip("/") + "/", name)
    return message


def finite(value: Any) -> Any:
    """JSON has no NaN and no Inf: they travel as strings."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value

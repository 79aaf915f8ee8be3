"""The conformance program: cases, runner, judge, timer, records, command line.

`check(function, op)` judges a function of anybody's, `Report` is its answer, and a function raises
`Unsupported` to decline a case.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from portable.conformance.checker.api import Report, check
    from portable.conformance.checker.argument_binding import Unsupported

__all__ = ["Report", "Unsupported", "check"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'portable.conformance' has no attribute {name!r}")
    from portable.conformance.checker import api

    found = globals()[name] = getattr(api, name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

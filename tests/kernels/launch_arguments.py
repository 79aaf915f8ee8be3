"""The arguments of a launch by name, those in a struct among them."""

from __future__ import annotations

from typing import Any

from portable.plan import Launch, Struct


def arguments_of(launch: Launch) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, argument in launch.args:
        found |= dict(argument.fields) if isinstance(argument, Struct) else {name: argument}
    return found

"""The configs of an implementation that a device could run for one call: those that its planner accepts."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from portable.backend import Backend
from portable.configs import lookup
from portable.dispatch import select
from portable.errors import PortableError
from portable.plan import Call, Device, Plan, Rejected
from portable.spec.model import Implementation
from portable.tune.problem import Problem

MOST = 8192
"""Configs that are looked at. Of more, a sample that is the same every time."""


@dataclass(frozen=True)
class Candidate:
    """A config with its plan. `name` lists its values in the tunables' order."""

    values: Mapping[str, Any]
    plan: Plan

    @property
    def name(self) -> str:
        return name_of(self.values)


def name_of(values: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in values.items())


def varied(
    problem: Problem, backend: Backend, among: Mapping[str, tuple[Any, ...]] | None = None
) -> dict[str, tuple[Any, ...]]:
    """The tunables to vary and their values: those of the default, a vendor's own that its entries name, and
    those of `among`, which narrows them."""
    implementation, chosen = problem.imp, dict(among or {})
    names = {*implementation.default, *chosen}
    for file in lookup.files(backend):
        for entry in lookup.entries(file):
            if (entry.op, entry.implementation) == (problem.op, implementation.name):
                names |= set(entry.config)
    return {name: chosen.get(name, legal) for name, legal in implementation.tunables.items() if name in names}


def planned(problem: Problem, values: Mapping[str, Any], device: Device) -> Plan | str:
    """The call's plan with this config, or why there is none."""
    signature = problem.signature
    planner = select.entry_function(problem.imp)
    try:
        plan = planner(Call(signature.tensors, signature.params, signature.axes, device, values))
    except PortableError:
        raise
    except Exception as error:  # a combination that the planner did not expect
        return f"the planner raised {type(error).__name__}: {error}"
    return plan.reason if isinstance(plan, Rejected) else plan


def space(
    problem: Problem, backend: Backend, device: Device, among: Mapping[str, tuple[Any, ...]] | None = None
) -> tuple[list[Candidate], int]:
    """Every config that has a plan, and how many configs there are; of more than MOST, those of a sample.
    Of configs with equal plans only the one nearest to the default is kept (they may differ for another call
    of the class)."""
    values, default = varied(problem, backend, among), problem.imp.default
    found: dict[str, tuple[int, Candidate]] = {}
    for config in _configs(values):
        plan = planned(problem, config, device)
        if isinstance(plan, str):
            continue
        away, identity = steps(problem.imp, config, default), repr(plan)
        if identity not in found or away < found[identity][0]:
            found[identity] = (away, Candidate(config, plan))
    return [candidate for _, candidate in found.values()], math.prod(len(each) for each in values.values())


def _configs(values: Mapping[str, Iterable[Any]]) -> Iterator[dict[str, Any]]:
    lists = [list(each) for each in values.values()]
    total = math.prod(len(each) for each in lists)
    if total <= MOST:
        for row in itertools.product(*lists):
            yield dict(zip(values, row, strict=True))
        return
    for number in sorted(random.Random(0).sample(range(total), MOST)):
        row = []
        for each in reversed(lists):
            number, place = divmod(number, len(each))
            row.append(each[place])
        yield dict(zip(values, reversed(row), strict=True))


def steps(implementation: Implementation, one: Mapping[str, Any], other: Mapping[str, Any]) -> int:
    """How many steps two configs are apart, in the lists of values."""
    total = 0
    for name, legal in implementation.tunables.items():
        if one.get(name) != other.get(name):
            known = name in one and name in other
            total += abs(legal.index(one[name]) - legal.index(other[name])) if known else 1
    return total

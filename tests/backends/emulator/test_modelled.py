"""The order of implementations on AMD GPUs agrees with the times of backends/rocm/modelled.csv."""

from __future__ import annotations

import pytest

from portable.backends.rocm import modelled
from portable.spec import registry

MOST_SLOWER = {"gfx942": 1.05, "gfx950": 1.05}
OTHERS = 1.1
"""What runs by default may take this share of the fastest's time: less than the model is off, which of the
other GPUs is held to no published time."""

CALLS = [
    pytest.param(op, times, MOST_SLOWER.get(arch, OTHERS), id=f"{op} {call} {arch}")
    for (op, arch), calls in modelled.rows().items()
    for call, times in calls.items()
]


@pytest.mark.parametrize(("op", "times", "most"), CALLS)
def test_what_runs_by_default_is_the_fastest_by_the_model(op: str, times: list[tuple[str, str]], most: float):
    names = [name for name, _ in times]
    # The first that can run the call runs it.
    assert names == [each.name for each in registry.spec(op).implementations if each.name in names]
    microseconds = [float(each) for _, each in times]
    assert microseconds[0] <= most * min(microseconds), times

"""Times an op's bench cases by the timing model of an emulated GPU: nothing is measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from portable.conformance.cases.case import Case
from portable.conformance.execute.runner import implementations
from portable.conformance.perf import bench, timing
from portable.errors import PinError, PortableError
from portable.runtime import detect
from portable.spec import registry


def times(case: Case, impls: Sequence[str] | None, device: torch.device) -> Iterator[dict[str, Any]]:
    """An entry of the record's `modelled` for each implementation that runs the case, or of `impls` alone.

    What torch runs has none: it launches nothing on the emulated GPU. Where the model stops (an access out of
    bounds, a missing wait), the entry has no time and says why.
    """
    spec, backend = registry.spec(case.op), detect.main_backend()
    tensors = bench.made(case, spec, device, 0)
    flops, unit, passes = bench.work(case, spec)
    moved = bench.moved_bytes(case, spec)
    roof = backend.modelled_roof()
    rates = {} if roof is None else roof.rates
    entry = {"op": case.op, "case": case.id, "bytes": moved, "flops": flops, "message": ""}
    matrix = flops * passes if spec.cost.roof == "matrix" else 0.0
    entry["floor_us"] = _floor_us(rates, moved, matrix, unit)
    for name in implementations(case.op):
        if impls is not None and name not in impls:
            continue
        try:
            with backend.model() as launches:
                bench.pinned(case, name)(tensors)
        except PinError:  # it does not run this type or size
            continue
        except PortableError as error:
            why = f"{type(error).__name__}: {str(error).splitlines()[0]}"
            yield {**entry, "impl": name, "modelled_us": None, "launches": 0, "message": why}
            continue
        if launches:
            us = 1e6 * sum(each.seconds for each in launches)
            yield {**entry, "impl": name, "modelled_us": us, "launches": len(launches)}


def _floor_us(rates: Mapping[str, float], moved: int, matrix_flops: float, unit: str) -> float | None:
    """The least microseconds that the model's roof allows; None where it has none for the flops' type."""
    floors = [moved / rates[timing.COPY_ROOF]]
    if matrix_flops:
        name = timing.matrix_roof(getattr(torch, unit))
        if name not in rates:
            return None
        floors.append(matrix_flops / rates[name])
    return 1e6 * max(floors)

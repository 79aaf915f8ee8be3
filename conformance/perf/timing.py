"""Host time of a call, and the roofs that device time is measured against.

Device time is measured by `portable.runtime.timing`, re-exported here; what is compared is the ratio
within each round (`stats.ratio_interval`).
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from portable.runtime.timing import (
    MIN_ROUND_US,
    ROUNDS,
    Sample,
    Timed,
    copy,
    interleaved,
    set_count,
    sm_clock,
)

__all__ = [
    "COPY_ROOF",
    "MIN_ROUND_US",
    "ROUNDS",
    "Roofs",
    "Sample",
    "Timed",
    "copy",
    "interleaved",
    "launch_cost",
    "matrix_roof",
    "set_count",
    "sm_clock",
]


def launch_cost(call: Callable[[], object], calls: int = 2000) -> float:
    """Host microseconds per call, the device never waited for: the best of five rounds.

    Rounds of `calls` / 5 with a synchronisation between keep the launch queue from filling up.
    """
    for _ in range(20):
        call()
    torch.cuda.synchronize()
    best, each = float("inf"), max(1, calls // 5)
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(each):
            call()
        best = min(best, (time.perf_counter() - start) / each)
        torch.cuda.synchronize()
    return best * 1e6


class Roofs:
    """What the GPU can do at most, timed in rotation with the candidates: a clock that drifts from case to
    case falls on the roof as well (measured once a run, one moved by 6 % within 20 minutes on an H200).

    `measured` holds the medians over the cases so far: `copy_bytes_per_s`, bytes read plus bytes written,
    and per type `matmul_<dtype>_flop_per_s` of the vendor library's square product on N(0, 1) data.
    """

    def __init__(self, device: torch.device, bytes_each_way: int = 1 << 30):
        self._device, self._bytes = device, bytes_each_way
        self._made: dict[str, tuple[Callable[[Any], object], Sequence[Any], float]] = {}
        self._found: dict[str, list[float]] = {}

    @property
    def measured(self) -> dict[str, float]:
        return {name: statistics.median(rates) for name, rates in self._found.items()}

    def candidates(
        self, dtype: torch.dtype | None
    ) -> dict[str, tuple[Callable[[Any], object], Sequence[Any]]]:
        """The roofs of one case, to be timed beside it: the copy's, and the product's of `dtype` if given."""
        names = [COPY_ROOF] + ([] if dtype is None else [matrix_roof(dtype)])
        for name in names:
            if name not in self._made:
                self._made[name] = self._copy() if name == COPY_ROOF else _product(self._device, dtype)
        return {name: self._made[name][:2] for name in names}

    def take(self, samples: dict[str, Sample]) -> dict[str, float]:
        """Takes the roofs out of a case's samples; answers their rates per second in that case."""
        rates = {}
        for name in [name for name in samples if name in self._made]:
            rates[name] = self._made[name][2] / (samples.pop(name).median * 1e-6)
            self._found.setdefault(name, []).append(rates[name])
        return rates

    def _copy(self) -> tuple[Callable[[Any], object], Sequence[Any], float]:
        size = min(self._bytes, torch.cuda.mem_get_info(self._device)[0] // 8) // 4
        source = torch.empty(size, dtype=torch.float32, device=self._device).normal_()
        return copy, [(source, torch.empty_like(source))], 8.0 * size


COPY_ROOF = "copy_bytes_per_s"


def matrix_roof(dtype: torch.dtype) -> str:
    """The roof's name in a record."""
    return f"matmul_{str(dtype).removeprefix('torch.')}_flop_per_s"


def _product(
    device: torch.device, dtype: torch.dtype | None
) -> tuple[Callable[[Any], object], Sequence[Any], float]:
    """A product that lasts a few milliseconds, and its flops; in 8 bits of a column-major right side, as the
    library takes it, in fp8 with one scale of 1 for each side and fast accumulation, its fastest. Matrix
    units multiply int8 as fast as fp8, and the library's product of int8 is far from it (H200: 0.96 and
    1.5 PFLOP/s), so fp8's stands for both."""
    size = 4096 if dtype is torch.float32 else 8192
    if dtype is torch.int8:
        found = _product(device, torch.float8_e4m3fn)
        with contextlib.suppress(RuntimeError):  # of a GPU without fp8
            found[0](None)
            return found
        left, right = (torch.randint(-128, 128, (size, size), device=device).to(dtype) for _ in range(2))
        product: Any = torch._int_mm  # pyright: ignore[reportPrivateImportUsage]
        return lambda _: product(left, right.t()), [None], 2.0 * size**3
    if dtype is not None and dtype.itemsize == 1:
        sides = [torch.randn(size, size, device=device).to(dtype) for _ in range(2)]
        one = torch.ones((), device=device)
        return (
            lambda _: torch.ops.aten._scaled_mm(
                sides[0], sides[1].t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=True
            ),
            [None],
            2.0 * size**3,
        )
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    result = torch.empty_like(left)
    return lambda _: torch.matmul(left, right, out=result), [None], 2.0 * size**3

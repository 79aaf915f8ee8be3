"""Bootstrap intervals of medians and ratios: how sure a timing is of what it says.

Every function is deterministic: the same samples and seed give the same interval on every machine. Ratios
are taken in logarithms, so that A over B and B over A give reciprocal intervals, and neither the unit of
time nor the order in which two vendors are named changes a verdict. The interval is that of the samples'
spread; an error that all samples share, such as a roof measured too low, is not in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

MIN_SAMPLES = 5
"""From the smallest to the largest of n samples holds the median with probability 1 - 2 ** (1 - n): no
interval of fewer than five samples comes near 95 %."""

DRAWS = 2000


@dataclass(frozen=True)
class Interval:
    """A statistic of samples and its confidence interval, `low <= value <= high`."""

    value: float
    low: float
    high: float


def interval(
    samples: Sequence[float],
    statistic: Callable[..., Any] = np.median,
    confidence: float = 0.95,
    draws: int = DRAWS,
    seed: int = 0,
) -> Interval:
    """The bootstrap percentile interval of a statistic of samples, in the unit of the samples.

    `statistic` takes an array and `axis` as NumPy's own do. Raises ValueError on fewer than five samples,
    or on one that is not finite.
    """
    values = _checked(samples, "samples")
    picks = np.random.default_rng(seed).integers(0, values.size, (draws, values.size))
    return _percentiles(float(statistic(values, axis=-1)), statistic(values[picks], axis=-1), confidence)


def ratio_interval(
    ours: Sequence[float], baseline: Sequence[float], *, confidence: float = 0.95, seed: int = 0
) -> Interval:
    """baseline time / ours for samples of the same rounds: above 1 ours is faster.

    Round by round, so that a clock that drifts from round to round cancels. Raises ValueError on lists of
    different lengths, on fewer than five rounds, or on a time that is not positive and finite.
    """
    if len(ours) != len(baseline):
        raise ValueError(
            f"paired rounds: ours has {len(ours)} samples and the baseline {len(baseline)}; expected as many"
        )
    rounds = _logs(baseline, "baseline times") - _logs(ours, "our times")
    return _exponential(interval(rounds.tolist(), confidence=confidence, seed=seed))


def efficiency_ratio(
    floor_a_us: float,
    times_a_us: Sequence[float],
    floor_b_us: float,
    times_b_us: Sequence[float],
    *,
    confidence: float = 0.95,
    seed: int = 0,
) -> Interval:
    """Roofline efficiency of A over B's, (floor_a / times_a) / (floor_b / times_b): above 1 A is better.

    A and B are measured apart, on two GPUs or on two days, so each list is resampled separately and may have
    its own length. Raises ValueError on fewer than five samples, or on a floor or time that is not positive
    and finite.
    """
    (a,), (b,) = _logs([floor_a_us], "floor of A", 1), _logs([floor_b_us], "floor of B", 1)
    times_a, times_b = _logs(times_a_us, "times of A"), _logs(times_b_us, "times of B")
    # Each half of the draws gives A and B the other's random numbers: exchanging A and B only changes the
    # sign.
    shape = (2, DRAWS // 2, max(times_a.size, times_b.size))
    first, second = np.random.default_rng(seed).random(shape)
    drawn = [
        _medians(times_b, for_b) - _medians(times_a, for_a)
        for for_a, for_b in ((first, second), (second, first))
    ]
    floors = a - b
    value = floors + float(np.median(times_b) - np.median(times_a))
    return _exponential(_percentiles(value, floors + np.concatenate(drawn), confidence))


def _medians(values: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """The median of one resampling of `values` per row of `uniform`, numbers in [0, 1)."""
    picks = (uniform[:, : values.size] * values.size).astype(np.int64)
    return np.median(values[picks], axis=-1)


def _percentiles(value: float, drawn: np.ndarray, confidence: float) -> Interval:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence {confidence}: expected a share between 0 and 1, such as 0.95")
    low, high = np.quantile(drawn, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(value, min(float(low), value), max(float(high), value))


def _exponential(logs: Interval) -> Interval:
    return Interval(*(float(np.exp(each)) for each in (logs.value, logs.low, logs.high)))


def _logs(samples: Sequence[float], what: str, least: int = MIN_SAMPLES) -> np.ndarray:
    values = _checked(samples, what, least)
    if values.min() <= 0:
        raise ValueError(f"{what}: {values.min():g} us; expected a time above 0")
    return np.log(values)


def _checked(samples: Sequence[float], what: str, least: int = MIN_SAMPLES) -> np.ndarray:
    values = np.asarray(samples, dtype=np.float64)
    if values.size < least:
        raise ValueError(f"{what}: {values.size} given; an interval needs at least {least}")
    if not np.isfinite(values).all():
        strange = values[~np.isfinite(values)][0]
        raise ValueError(f"{what}: {strange} is no measurement; expected finite numbers")
    return values

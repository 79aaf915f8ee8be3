"""The laws of intervals: units fall out, exchange gives the reciprocal, and a known median is covered."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from portable.conformance import stats
from portable.conformance.stats import Interval, efficiency_ratio, interval, ratio_interval

TIME = st.floats(0.5, 1e4)
TIMES = st.lists(TIME, min_size=5, max_size=30)
PAIRS = st.lists(st.tuples(TIME, TIME), min_size=5, max_size=30).map(
    lambda rounds: tuple(zip(*rounds, strict=True))
)
FEW = settings(max_examples=40, deadline=None)


def close(found: Interval, expected: Interval) -> bool:
    return all(
        math.isclose(getattr(found, name), getattr(expected, name), rel_tol=1e-9)
        for name in ("value", "low", "high")
    )


def reciprocal(one: Interval) -> Interval:
    return Interval(1 / one.value, 1 / one.high, 1 / one.low)


@FEW
@given(TIMES, st.floats(1e-3, 1e3), st.integers(0, 5))
def test_an_interval_is_in_the_unit_of_its_samples(times, unit, seed):
    plain = interval(times, seed=seed)
    scaled = interval([unit * each for each in times], seed=seed)
    assert close(scaled, Interval(*(unit * each for each in (plain.value, plain.low, plain.high))))
    assert min(times) <= plain.low <= plain.value <= plain.high <= max(times)
    assert plain.value == np.median(times) and interval(times, seed=seed) == plain


@FEW
@given(PAIRS, st.floats(1e-3, 1e3))
def test_a_ratio_of_rounds(pairs, unit):
    ours, baseline = pairs
    found = ratio_interval(ours, baseline)
    rounds = [theirs / mine for mine, theirs in zip(ours, baseline, strict=True)]
    assert found.low <= found.value <= found.high
    assert min(rounds) <= found.low * (1 + 1e-12) and found.high <= max(rounds) * (1 + 1e-12)
    assert close(ratio_interval([unit * each for each in ours], [unit * each for each in baseline]), found)
    assert close(ratio_interval(baseline, ours), reciprocal(found))


@FEW
@given(TIMES, TIMES, TIME, TIME, st.floats(1e-3, 1e3), st.integers(0, 5))
def test_a_ratio_of_efficiencies(a, b, floor_a, floor_b, unit, seed):
    found = efficiency_ratio(floor_a, a, floor_b, b, seed=seed)
    assert found.low <= found.value <= found.high
    assert close(efficiency_ratio(floor_b, b, floor_a, a, seed=seed), reciprocal(found))
    # A GPU of another speed, its roof and its times alike, has the same efficiency.
    assert close(efficiency_ratio(unit * floor_a, [unit * each for each in a], floor_b, b, seed=seed), found)
    assert close(efficiency_ratio(2 * floor_a, a, floor_b, b, seed=seed),
                 Interval(2 * found.value, 2 * found.low, 2 * found.high))  # fmt: skip


def test_a_ratio_means_what_it_says():
    """Twice the baseline's speed is 2; an efficiency of 0.5 over one of 0.25 is 2."""
    assert close(ratio_interval([1.0] * 5, [2.0] * 5), Interval(2.0, 2.0, 2.0))
    assert close(efficiency_ratio(5.0, [10.0] * 5, 5.0, [20.0] * 7), Interval(2.0, 2.0, 2.0))


def test_pairing_removes_a_drifting_clock():
    clock = np.linspace(1.0, 3.0, 25)
    found = ratio_interval(list(10 * clock), list(15 * clock))
    assert found.high - found.low < 1e-9
    apart = efficiency_ratio(1.0, list(10 * clock), 1.0, list(15 * clock))
    assert apart.high - apart.low > 0.3


def test_a_sample_list_beside_itself_is_not_certain():
    times = list(np.random.default_rng(0).normal(100, 10, 25))
    found = efficiency_ratio(1.0, times, 1.0, times)
    assert found.value == 1.0 and found.low < 0.98 and found.high > 1.02


@pytest.mark.parametrize("size", [5, 25])
def test_a_known_median_is_covered_as_often_as_said(size):
    """400 lists drawn from a skewed distribution of median 1: the interval holds it about 95 % of the time.

    Five standard errors of 400 draws are 5.4 points; a list of five covers 93.75 % at the most.
    """
    draws = np.random.default_rng(7).lognormal(0.0, 0.3, (400, size))
    held = [found.low <= 1.0 <= found.high for found in (interval(list(each), draws=400) for each in draws)]
    assert 0.90 <= np.mean(held) <= 0.995


def test_the_efficiency_ratio_covers_as_often_as_said():
    draws = np.random.default_rng(8).lognormal(0.0, 0.2, (150, 40))
    found = [efficiency_ratio(1.0, list(each[:25]), 2.0, list(each[25:])) for each in draws]
    assert 0.87 <= np.mean([each.low <= 0.5 <= each.high for each in found]) <= 1.0
    assert np.median([each.high / each.low for each in found]) < 1.6


def test_more_confidence_is_a_wider_interval():
    times = list(np.random.default_rng(0).normal(100, 10, 25))
    narrow, wide = interval(times, confidence=0.5), interval(times, confidence=0.99)
    assert wide.low < narrow.low < narrow.high < wide.high
    mean = interval(times, np.mean)
    assert mean.value == pytest.approx(np.mean(times)) and mean.low < mean.value < mean.high


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: interval([1.0] * 4), "samples: 4 given; an interval needs at least 5"),
        (lambda: interval([1.0] * 4 + [math.nan]), "nan is no measurement"),
        (lambda: interval([1.0] * 5, confidence=95), "confidence 95"),
        (lambda: ratio_interval([1.0] * 5, [1.0] * 6), "ours has 5 samples and the baseline 6"),
        (lambda: ratio_interval([1.0] * 4 + [0.0], [1.0] * 5), "our times: 0 us"),
        (lambda: efficiency_ratio(0.0, [1.0] * 5, 1.0, [1.0] * 5), "floor of A: 0 us"),
        (lambda: efficiency_ratio(1.0, [1.0] * 5, 1.0, [-1.0] * 5), "times of B: -1 us"),
    ],
)
def test_what_is_no_measurement_is_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_the_least_number_of_samples_is_what_the_law_needs():
    assert 1 - 2.0 ** (1 - stats.MIN_SAMPLES) > 0.93 > 1 - 2.0 ** (2 - stats.MIN_SAMPLES)

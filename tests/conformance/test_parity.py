"""parity.py: ratios of roofline efficiencies, their three verdicts, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from portable.conformance import stats
from portable.conformance.records import parity
from portable.conformance.records.parity import ParityError

from .sample_record import BENCH, COPY, sample_record, timing

MATMUL, SOFTMAX = BENCH[0][1], BENCH[1][1]


def gpu_record(shares=None, speed=1.0, **changes):
    """A record of a GPU whose implementations reach `shares` (impl -> share) of a roof `speed` times the
    sample's."""
    made = sample_record(**changes)
    made["timings"] = [
        timing(op, impl, case, float(flops), moved, share, peak)
        for op, case, peak, flops, moved in BENCH
        for impl, share in (shares or {"triton": 0.9, "torch": 0.8}).items()
    ]
    for each in made["timings"]:
        each["floor_us"] /= speed
        each["device_us_all"] = [time / speed for time in each["device_us_all"]]
    made["roof"] = {name: value * speed for name, value in made["roof"].items()}
    return made


AMD: dict[str, Any] = {"device": "AMD Instinct MI300X", "vendor": "rocm", "arch": "gfx942"}


def rows(found):
    return {(row.case, row.impl): row for row in found.rows}


def test_the_ratio_is_of_efficiencies_and_not_of_speed():
    """A GPU of twice the speed at the same share of its roof is at parity, exactly."""
    found = parity.parity(gpu_record(), gpu_record(speed=2.0, **AMD), 0.8)
    row = rows(found)[MATMUL, "triton"]
    assert row.ratio == pytest.approx(1.0) and row.low <= 1.0 <= row.high and row.verdict == "parity"
    assert row.of_roof == pytest.approx((0.9, 0.9), rel=0.01)
    assert found.passes and not found.same_device


@pytest.mark.parametrize(
    ("share", "verdict"), [(0.9, "parity"), (0.45, "below"), (0.72, "inconclusive"), (1.0, "parity")]
)
def test_three_verdicts(share, verdict):
    """A is at 0.9 of its roof; the rounds spread by a percent; the threshold is 0.8."""
    found = parity.parity(gpu_record({"triton": 0.9}), gpu_record({"triton": share}, **AMD), 0.8)
    assert {row.verdict for row in found.rows} == {verdict}
    assert rows(found)[MATMUL, "triton"].ratio == pytest.approx(share / 0.9)
    assert found.passes == (verdict != "below")


def test_the_verdict_is_of_the_whole_interval():
    """At the interval's own ends: low at the threshold is parity, high at it is not yet below."""
    one, other = gpu_record({"triton": 0.9}), gpu_record({"triton": 0.72}, **AMD)
    row = rows(parity.parity(one, other, 0.8))[MATMUL, "triton"]
    assert row.low < 0.8 < row.high
    for threshold, verdict in (
        (row.low, "parity"), (row.high, "inconclusive"), (math.nextafter(row.high, 2), "below")
    ):  # fmt: skip
        assert rows(parity.parity(one, other, threshold))[MATMUL, "triton"].verdict == verdict


def test_the_best_of_each_side_and_every_name_in_common():
    one = gpu_record({"wgmma": 0.95, "triton": 0.8, "torch": 0.7})
    other = gpu_record({"mfma": 0.6, "triton": 0.9}, **AMD)
    found = rows(parity.parity(one, other, 0.8))
    assert {impl for case, impl in found if case == MATMUL} == {"best (wgmma against triton)", "triton"}
    assert found[MATMUL, "best (wgmma against triton)"].ratio == pytest.approx(0.9 / 0.95)
    assert found[MATMUL, "triton"].ratio == pytest.approx(0.9 / 0.8)


def test_an_op_is_the_geometric_mean_of_its_cases():
    one, other = gpu_record({"triton": 0.8}), gpu_record({"triton": 0.8}, **AMD)
    op, case, peak, flops, moved = BENCH[0]
    for side, share in ((one, 0.8), (other, 0.4)):
        side["timings"].append(timing(op, "triton", f"{op}/second/bench", flops / 4, moved // 4, share, peak))
    found = parity.parity(one, other, 0.8)
    means = {(row.op, row.impl): row for row in found.rows if not row.case}
    assert means["matmul", "triton"].ratio == pytest.approx(math.sqrt(1.0 * 0.5))
    assert means["matmul", "triton"].cases == 2 and means["softmax", "triton"].cases == 1
    assert means["matmul", "best"].ratio == means["matmul", "triton"].ratio
    spread = [each.high / each.low for each in (means["matmul", "triton"], rows(found)[case, "triton"])]
    assert 1.0 < spread[0] < spread[1]  # a mean of two is surer than one
    assert means["softmax", "triton"].low == rows(found)[SOFTMAX, "triton"].low


def test_two_versions_on_one_gpu_are_a_regression_gate():
    old, new = gpu_record(), gpu_record({"triton": 0.6, "torch": 0.8})
    lines, passes = parity.report(old, new, 0.95)
    assert not passes and "same device" in lines[0]
    assert parity.report(old, old, 0.95)[1]
    assert "same device" not in parity.report(old, gpu_record(**AMD), 0.95)[0][0]


def test_the_report_prints_both_roofs_and_counts_every_verdict():
    lines, passes = parity.report(
        gpu_record(), gpu_record({"triton": 0.72, "torch": 0.3}, speed=2.0, **AMD), 0.8
    )
    assert not passes
    assert f"  roof of A, NVIDIA H200: copy_bytes_per_s {COPY:.4g}, matmul_bfloat16_flop_per_s 4e+14" in lines
    assert any(line.startswith(f"  roof of B, {AMD['device']}: copy_bytes_per_s 8e+12") for line in lines)
    assert lines[-1] == ("Parity does not hold at 0.8: of 12 ratios 0 parity, 4 below, 8 inconclusive.")


def test_inconclusive_does_not_fail_and_is_counted():
    lines, passes = parity.report(gpu_record({"triton": 0.9}), gpu_record({"triton": 0.72}, **AMD), 0.8)
    assert passes and lines[-1] == (
        "Parity is inconclusive at 0.8: of 8 ratios 0 parity, 0 below, 8 inconclusive."
    )


# Refusals -----------------------------------------------------------------------------------------


def test_what_tells_no_time_is_refused():
    emulated = gpu_record(device="emulated gfx942", vendor="rocm", emulated=True)
    cpu = gpu_record(device="CPU", vendor="cpu")
    for pair, words in (
        ((gpu_record(), emulated), r"B \(emulated gfx942\) is emulated and has no timings"),
        ((emulated, gpu_record()), r"A \(emulated gfx942\) is emulated"),
        ((gpu_record(), cpu), r"B \(CPU\) is no GPU"),
    ):
        with pytest.raises(ParityError, match=words):
            parity.parity(*pair, 0.8)


def test_a_record_without_timings_and_two_with_nothing_in_common_are_refused():
    with pytest.raises(ParityError, match=r"A .NVIDIA H200. holds no timings; run it with --bench"):
        parity.parity(gpu_record() | {"timings": []}, gpu_record(), 0.8)
    one, other = gpu_record(), gpu_record()
    one["timings"], other["timings"] = one["timings"][:2], other["timings"][2:]
    with pytest.raises(ParityError, match="no case in common"):
        parity.parity(one, other, 0.8)


@pytest.mark.parametrize("threshold", [0, -0.5, math.nan, math.inf, True])
def test_a_threshold_is_a_share_above_zero(threshold):
    with pytest.raises(ParityError, match="expected a share above 0"):
        parity.parity(gpu_record(), gpu_record(), threshold)


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"state": "InternalError"}, "torch is above the roof"),
        ({"state": "Timeout"}, "torch is Timeout"),
        ({"device_us_all": [1.0] * 4}, "4 given; an interval needs at least 5"),
        ({"device_us_all": [1.0, 1.0, 1.0, 1.0, "nan"]}, "nan is no measurement"),
        ({"device_us_all": [1.0, 1.0, 1.0, 1.0, {}]}, "torch: "),
        ({"floor_us": 0.0}, "expected a time above 0"),
        ({"floor_us": 10**400}, "torch: "),
        ({"bytes": 17}, "different bytes or flops"),
        ({"flops": 17.0}, "different bytes or flops"),
    ],
)
def test_a_case_that_cannot_be_judged_is_refused_whole_and_fails(side, fields, words):
    pair = [gpu_record(), gpu_record(**AMD)]
    (broken,) = (each for each in pair[side]["timings"] if (each["case"], each["impl"]) == (SOFTMAX, "torch"))
    broken.update(fields)
    one, other = pair
    found = parity.parity(one, other, 0.8)
    assert len(found.refused) == 1 and found.refused[0].startswith(SOFTMAX) and words in found.refused[0]
    assert {row.op for row in found.rows} == {"matmul"} and not found.counts["below"]
    lines, passes = parity.report(one, other, 0.8)
    assert not passes and f"  refused: {found.refused[0]}" in lines
    assert lines[-1] == (
        "Parity cannot be judged at 0.8: of 6 ratios 6 parity, 0 below, 0 inconclusive, 1 refused."
    )


def test_a_timing_that_stands_twice_is_refused():
    other = gpu_record()
    other["timings"].append(dict(other["timings"][0]))
    with pytest.raises(ParityError, match="B holds two timings of matmul"):
        parity.parity(gpu_record(), other, 0.8)


def test_cases_timed_on_one_side_are_named():
    one = gpu_record()
    one["timings"] = [each for each in one["timings"] if each["case"] != SOFTMAX]
    lines, passes = parity.report(one, gpu_record(**AMD), 0.8)
    assert passes and f"  timed only in B: {SOFTMAX}" in lines
    lines, _ = parity.report(gpu_record(), one, 0.8)
    assert f"  timed only in A: {SOFTMAX}" in lines


def test_the_data_is_plain():
    (first, *_) = parity.parity(gpu_record(), gpu_record(**AMD), 0.8).data()
    assert first["op"] == "matmul" and first["case"] == MATMUL and first["verdict"] == "parity"
    assert first["low"] <= first["ratio"] <= first["high"] and len(first["of_roof"]) == 2


# The mean -----------------------------------------------------------------------------------------

TIMES = st.lists(st.floats(1.0, 100.0), min_size=5, max_size=20)
CASE = st.tuples(st.floats(0.1, 10.0), TIMES, TIMES)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.lists(CASE, min_size=1, max_size=4))
def test_exchanging_the_sides_gives_the_reciprocal_interval(cases):
    there = parity.geometric_mean(cases)
    back = parity.geometric_mean([(1 / floors, a, b) for floors, b, a in cases])
    assert there.low <= there.value <= there.high
    assert back.value == pytest.approx(1 / there.value)
    assert (back.low, back.high) == pytest.approx((1 / there.high, 1 / there.low))


@settings(max_examples=40, deadline=None)
@given(CASE)
def test_the_mean_of_one_case_is_that_case(case):
    floors, times_b, times_a = case
    one = stats.efficiency_ratio(floors, times_b, 1.0, times_a)
    mean = parity.geometric_mean([case])
    assert mean.value == pytest.approx(one.value)


@settings(max_examples=20, deadline=None)
@given(CASE, st.integers(2, 4))
def test_the_mean_of_equal_cases_is_each_of_them(case, count):
    assert parity.geometric_mean([case] * count).value == pytest.approx(parity.geometric_mean([case]).value)


@pytest.mark.slow
def test_the_interval_of_the_mean_covers_what_it_should():
    """Two cases of true ratio 0.8 and 1.25, noise of five percent: 95 % of the intervals hold 1."""
    import numpy as np

    generator = np.random.default_rng(7)
    held = 0
    for seed in range(200):
        noise = np.exp(0.05 * generator.standard_normal((4, 25)))
        cases = [(0.8, noise[0], noise[1]), (1.25, noise[2], noise[3])]
        found = parity.geometric_mean(cases, seed=seed)
        held += found.low <= 1.0 <= found.high
    assert 180 <= held <= 199

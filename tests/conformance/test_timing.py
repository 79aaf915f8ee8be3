"""What of timing needs no card: ratios, and how many buffers to rotate over."""

from __future__ import annotations

from portable.conformance.timing import Sample, ratio, set_count

MB = 1 << 20


def test_ratios_are_taken_turn_by_turn():
    found = ratio(Sample("ours", (1.0, 2.0, 4.0), True), Sample("torch", (2.0, 4.0, 4.0), True))
    assert (found.median, found.minimum, found.maximum) == (2.0, 1.0, 2.0)
    assert Sample("ours", (3.0, 1.0, 2.0), True).median == 2.0


def test_the_buffers_together_outgrow_the_cache():
    assert set_count(10 * MB, 50 * MB, 10_000 * MB) * 10 * MB >= 150 * MB
    assert set_count(1000 * MB, 50 * MB, 100_000 * MB) == 2
    assert set_count(1000 * MB, 50 * MB, 1500 * MB) == 1
    assert set_count(1, 50 * MB, 10_000 * MB) == 64

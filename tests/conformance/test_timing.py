"""Timing without a GPU: the order of the rounds, the fallback from a graph, clocks and buffer counts."""

from __future__ import annotations

import pytest
import torch

from portable.conformance.perf import timing
from portable.conformance.perf.timing import Sample, set_count

MB = 1 << 20


@pytest.fixture
def gpu(monkeypatch):
    """A GPU of one stream whose time passes only in calls: 10 us each, a replay as long as what it holds."""
    state = {"now": 0.0, "recording": None}

    class Graph:
        def __init__(self):
            self.held = 0.0

        def replay(self):
            state["now"] += self.held

    class Recording:
        def __init__(self, graph):
            self.graph = graph

        def __enter__(self):
            state["recording"] = self.graph

        def __exit__(self, *error):
            state["recording"] = None

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            self.at = state["now"]

        def elapsed_time(self, other):
            return (other.at - self.at) * 1e-3

    def spend(microseconds=10.0):
        if state["recording"] is None:
            state["now"] += microseconds
        else:
            state["recording"].held += microseconds

    for name, value in (("CUDAGraph", Graph), ("graph", Recording), ("Event", Event)):
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "clock_rate", iter([1755, 1980, 1900]).__next__)
    spend.state = state
    return spend


def test_time_per_call_whatever_the_number_of_buffers(gpu):
    samples = timing.interleaved({
        "one": (lambda each: gpu(), [0]),
        "many": (lambda each: gpu(2.0 if each else 6.0), [0, 1, 2, 3]),
    })  # fmt: skip
    assert samples["one"].microseconds == pytest.approx([10.0] * timing.ROUNDS) and samples["one"].graph
    assert samples["many"].median == pytest.approx(3.0)


def test_a_round_lasts_long_enough_for_the_events(gpu):
    one = timing.Timed("short", lambda each: gpu(0.5), [0, 1])
    assert one._round() >= timing.MIN_ROUND_US * 0.4 and one._repeats == 128  # at most 256 calls in a graph
    assert timing.Timed("longer", lambda each: gpu(20.0), [0, 1])._round() >= timing.MIN_ROUND_US * 0.9
    assert timing.Timed("longest", lambda each: gpu(400.0), [0, 1])._repeats == 1


def test_the_candidates_rotate(gpu, monkeypatch):
    """Each round starts with the next candidate; the first three letters are from preparing them."""
    monkeypatch.setattr(timing.Timed, "_capture", lambda self: None)
    order = []

    def call(name):
        def run(each):
            gpu(500.0)
            if order[-1:] != [name]:
                order.append(name)

        return run

    timing.interleaved({name: (call(name), [0]) for name in "abc"}, rounds=4)
    assert "".join(order) == "abc" + "abc" + "bca" + "cab" + "abc"


def test_what_cannot_be_captured_is_timed_by_events(gpu):
    def call(each):
        if gpu.state["recording"] is not None:
            raise RuntimeError("operation not permitted when stream is capturing")
        gpu(7.0)

    sample = timing.interleaved({"loop": (call, [0, 1])})["loop"]
    assert not sample.graph and sample.median == pytest.approx(7.0)


def test_a_copy_is_never_captured(gpu):
    pair = (torch.ones(4), torch.zeros(4))
    assert not timing.interleaved({"copy": (timing.copy, [pair])}, rounds=1)["copy"].graph
    assert torch.equal(*pair)


def test_a_candidate_that_raises_is_reported_and_the_others_are_timed(gpu):
    def broken(each):
        raise RuntimeError("no memory left")

    failures = []
    candidates = {"broken": (broken, [0]), "sound": (lambda each: gpu(), [0])}
    samples = timing.interleaved(candidates, failed=lambda name, error: failures.append((name, str(error))))
    assert list(samples) == ["sound"] and failures == [("broken", "no memory left")]
    with pytest.raises(RuntimeError, match="no memory left"):
        timing.interleaved(candidates)


def test_clocks_are_read_before_and_after_the_rounds(gpu):
    sample = timing.interleaved({"one": (lambda each: gpu(), [0])}, rounds=3)["one"]
    assert sample.sm_mhz == (1755, 1980) and sample.clocks == {"sm_mhz": [1755, 1980]}
    assert Sample("ours", (1.0,), True, (1980, 1755)).clocks == {"sm_mhz": [1755, 1980]}
    assert Sample("ours", (1.0,), True).clocks is None


@pytest.mark.parametrize("error", [ModuleNotFoundError("pynvml"), RuntimeError("not supported")])
def test_an_unknown_clock_is_none(error, gpu, monkeypatch):
    def silent():
        raise error

    monkeypatch.setattr(torch.cuda, "clock_rate", silent)
    assert timing.sm_clock() is None
    assert timing.interleaved({"one": (lambda each: gpu(), [0])}, rounds=1)["one"].clocks is None
    monkeypatch.setattr(torch.cuda, "clock_rate", lambda: 0)  # amdsmi's word for unknown
    assert timing.sm_clock() is None


def test_the_median_of_the_rounds():
    assert Sample("ours", (3.0, 1.0, 2.0), True).median == 2.0


def test_the_buffers_together_outgrow_the_cache():
    assert set_count(10 * MB, 50 * MB, 10_000 * MB) * 10 * MB >= 150 * MB
    assert set_count(1000 * MB, 50 * MB, 100_000 * MB) == 2
    assert set_count(1000 * MB, 50 * MB, 1500 * MB) == 1
    assert set_count(1, 50 * MB, 10_000 * MB) == 64


def test_long_candidates_get_fewer_rounds_and_no_warming_up(gpu):
    def slow(_):
        gpu(150_000.0)

    samples = timing.interleaved({"slow": (slow, [None]), "fast": (lambda _: gpu(), [None])})
    rounds = len(samples["slow"].microseconds)
    assert 9 < rounds < timing.ROUNDS and len(samples["fast"].microseconds) == rounds
    medians = [samples[name].median for name in ("slow", "fast")]
    assert medians == pytest.approx([150_000.0, 10.0])
    slowest = timing.interleaved({"slow": (lambda _: gpu(1e6), [None])})["slow"]
    assert len(slowest.microseconds) == 9

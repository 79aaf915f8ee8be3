"""The bench table's arithmetic, with a clock that answers what it is told and no card."""

from __future__ import annotations

import pytest
import torch

from portable import catalog
from portable.conformance import bench, cli, timing
from portable.conformance.cases import make_shape


@pytest.fixture
def clock(monkeypatch):
    """Every call runs once on the CPU and is said to take 10 us, the baseline 20 us, a copy 5 us."""
    spent = {bench.BASELINE: 20.0, "copy": 5.0}

    def interleaved(candidates, turns=3):
        for call, sets in candidates.values():
            call(sets[0])
        return {name: timing.Sample(name, (spent.get(name, 10.0),) * turns, True) for name in candidates}

    monkeypatch.setattr(timing, "interleaved", interleaved)
    monkeypatch.setattr(timing, "launch_cost", lambda call, calls=1: (call(), 1.0)[1])
    monkeypatch.setattr(timing, "copy_roof", lambda device: 1e12)
    monkeypatch.setattr(timing, "matrix_roof", lambda device, dtype: 1e15)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1 << 30, 1 << 30))


@pytest.fixture
def small(monkeypatch):
    """Bench cases of 64 in every axis; answers how many an op has."""
    real = bench.bench_cases

    def cases(spec):
        params, absent = spec.bench[0].params, spec.bench[0].absent
        leading = (3,) if spec.leading == "same" else ()
        shape = make_shape(spec, dict.fromkeys(spec.axes, 64), leading, params, absent)
        return [type(case)(case.op, case.types, shape, layout="bench") for case in real(spec)]

    monkeypatch.setattr(bench, "bench_cases", cases)
    return lambda spec: len(real(spec))


@pytest.mark.parametrize("op", sorted(catalog.op_folders()))
def test_every_op_has_a_row(op, clock, small):
    entries, roof = bench.bench([op], ["torch"], torch.device("cpu"))
    assert len(entries) == small(catalog.spec(op)) and roof["copy_bytes_per_s"] == 1e12
    for entry in entries:
        assert entry["device_us"] == 10.0 and (entry["baseline_error"] or entry["vs_torch"]["median"] == 2.0)
        assert entry["bytes_per_s"] == pytest.approx(entry["bytes"] / 10e-6)
        assert entry["of_roof"] == pytest.approx(
            max(entry["bytes"] / 1e12, entry["flops"] / 1e15 if "matmul" in str(roof) else 0) / 10e-6
        )
        assert entry["vs_copy"] is None or entry["vs_copy"]["median"] == 0.5
        assert not entry["above_roof"]


def test_a_baseline_that_does_not_run_is_told(clock, small, monkeypatch, capsys):
    def broken(case, spec):
        def call(tensors):
            raise RuntimeError("not implemented for this device")

        return call

    monkeypatch.setattr(bench, "_baseline", broken)
    assert cli._bench(["swiglu"], ["torch"], torch.device("cpu"))[0][0]["vs_torch"] is None
    assert "no baseline for swiglu/" in capsys.readouterr().out


def test_bytes_of_a_row_op(clock):
    case = bench.bench_cases(catalog.spec("softmax"))[0]
    assert bench._bytes(case, catalog.spec("softmax")) == 2 * 2 * 16384 * 4096

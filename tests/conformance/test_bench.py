"""The timings' arithmetic, states and table, with a scripted clock and no GPU."""

from __future__ import annotations

import contextlib
import itertools
import re
from dataclasses import replace
from typing import Any

import pytest
import torch

import portable
from portable import errors
from portable.conformance.cases.case import Case, make_shape
from portable.conformance.perf import baselines, bench, libraries, sustained, sweep, timing
from portable.conformance.records import record
from portable.conformance.records.schema import TIMING_FIELDS
from portable.conformance.stats import Interval
from portable.spec import registry

from .sample_record import sample_record

OURS, TORCH, COPY = 10.0, 20.0, 5.0
CPU = torch.device("cpu")


class FixedRoofs(timing.Roofs):
    """Roofs that need no measuring."""

    product = 1e15

    def __init__(self, device):
        super().__init__(device)
        self.dtypes = []

    def candidates(self, dtype):
        self.dtypes.append(dtype)
        return {}

    def take(self, samples):
        rates = {timing.COPY_ROOF: 1e12}
        if self.dtypes[-1] is not None:
            rates[timing.matrix_roof(self.dtypes[-1])] = self.product
        for name, rate in rates.items():
            self._found.setdefault(name, []).append(rate)
        return rates


@pytest.fixture
def spent(monkeypatch):
    """Every call runs once on the CPU; the microseconds of each candidate are read from this dict."""
    times = {bench.BASELINE + "torch": TORCH, bench.BASELINE + "copy": COPY}

    def interleaved(candidates, rounds=25, failed=None):
        samples = {}
        for name, (call, sets) in candidates.items():
            try:
                call(sets[0])
            except Exception as error:
                assert failed is not None
                failed(name, error)
                continue
            drift = [1 + 0.1 * run_round / rounds for run_round in range(rounds)]
            spread = tuple(times.get(name, OURS) * each for each in drift)
            samples[name] = timing.Sample(name, spread, True, (1755, 1980))
        return samples

    monkeypatch.setattr(timing, "interleaved", interleaved)
    monkeypatch.setattr(timing, "launch_cost", lambda call, calls=1: (call(), 1.0)[1])
    monkeypatch.setattr(timing, "Roofs", FixedRoofs)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1 << 30, 1 << 30))
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    adapters = libraries.LIBRARIES["liger"][1]  # liger-kernel itself is installed with the tests
    kernels = {**baselines.KERNELS, "liger": ("no_such_package", adapters)}
    monkeypatch.setattr(baselines, "KERNELS", kernels)
    return times


@pytest.fixture
def small(monkeypatch):
    """Bench cases of 64 in every axis, or as an op's second boundary case; answers how many an op has."""
    real = bench.bench_cases

    def cases(spec):
        params, absent = spec.bench[0].params, spec.bench[0].absent
        leading = (3,) if spec.leading == "same" else ()
        axes = spec.latency_case.axes if spec.latency_case else dict.fromkeys(spec.axes, 64)
        shape = make_shape(spec, axes, leading, params, absent)
        return [type(case)(case.op, case.types, shape, layout="bench") for case in real(spec)]

    monkeypatch.setattr(bench, "bench_cases", cases)
    return lambda spec: len(real(spec))


@pytest.mark.parametrize("op", sorted(registry.op_folders()))
def test_every_op_has_entries_of_the_records_layout(op, spent, small):
    entries, roof = bench.bench([op], ["torch"], CPU)
    spec = registry.spec(op)
    assert len(entries) == small(spec) and roof["copy_bytes_per_s"] == 1e12
    for entry in entries:
        assert set(entry) == set(TIMING_FIELDS) | {"bytes_per_s", "flop_per_s", "buffer_sets"}
        for name, kinds in TIMING_FIELDS.items():
            assert isinstance(entry[name], kinds), name
        median = OURS * 1.048
        assert entry["device_us"] == pytest.approx(median) and len(entry["device_us_all"]) == 25
        assert entry["bytes_per_s"] == pytest.approx(entry["bytes"] / (median * 1e-6))
        peak = entry["flops"] / 1e15 if spec.cost.roof == "matrix" else 0
        assert entry["floor_us"] == pytest.approx(max(entry["bytes"] / 1e12, peak) * 1e6)
        assert entry["of_roof"] == pytest.approx(entry["floor_us"] / median)
        assert entry["state"] == "Pass" and entry["message"] == "" and entry["launch_us"] == 1.0
        assert entry["clocks"] == {"sm_mhz": [1755, 1980]}
        assert ("copy" in entry["vs"]) == (spec.cost.roof == "vector")
        assert entry["baseline_errors"]["liger"] in ("not installed", f"has no {op}")
        assert set(entry["vs"]) == set(entry["baselines_us"])


# torch's fused backward passes of the norms take the statistics of the GPU's forward passes, in float32.
NORMS = {"rms_norm_backward", "fused_add_rms_norm_backward", "layer_norm_backward"}


@pytest.mark.parametrize("op", sorted(set(registry.op_folders()) - NORMS))
def test_torchs_own_is_a_baseline_of_every_op(op, spent, small):
    for entry in bench.bench([op], ["torch"], CPU)[0]:
        assert "torch" not in entry["baseline_errors"]
        assert entry["vs"]["torch"] == {name: pytest.approx(2.0) for name in ("median", "low", "high")}
        assert entry["baselines_us"]["torch"] == pytest.approx(TORCH * 1.048)
        assert entry["vs"]["torch.compile"]["median"] == pytest.approx(1.0)
        assert entry["baseline_launch_us"] == 1.0


def test_under_sustained_load_no_candidate_always_follows_the_same(monkeypatch):
    """It goes on with that one's heat and clock: in a rotation two were 3 % apart, in other orders 0.5 %."""
    ran: list[str] = []
    monkeypatch.setattr(sustained, "_metered", lambda index: contextlib.nullcontext(sustained._Meter()))
    monkeypatch.setattr(sustained, "_once", lambda call: 1.0)
    monkeypatch.setattr(sustained, "_run", lambda call, repeats: ran.append(call()) or 1.0)
    names = list("abcdefg")
    sustained.sustained({name: lambda name=name: name for name in names}, 0.1, 7, torch.device("cpu"))
    rounds = [ran[at : at + 7] for at in range(0, len(ran), 7)]
    assert len(rounds) == 8 and all(sorted(each) == names for each in rounds)
    for name in names:
        before = {one for each in rounds for one, other in itertools.pairwise(each) if other == name}
        assert len(before) >= 3
    again, ran[:] = list(ran), []
    sustained.sustained({name: lambda name=name: name for name in names}, 0.1, 7, torch.device("cpu"))
    assert ran == again


def test_under_sustained_load_an_entry_has_its_clock_and_energy(spent, small, monkeypatch):
    def interleaved(candidates, seconds, device, failed):
        assert seconds == 0.5
        samples = timing.interleaved(candidates, 7, failed)
        joules = {name: 0.2 if name.startswith(bench.BASELINE) else 0.1 for name in samples}
        return samples, {
            name: {"seconds": 0.5, "sm_mhz": 1432.4, "watts": 690.2, "joules": joules[name]}
            for name in samples
        }

    monkeypatch.setattr(sustained, "interleaved", interleaved)
    entries, roof = bench.bench(["softmax"], ["torch"], CPU, seconds=0.5)
    found = entries[0]["sustained"]
    assert found["baselines_joules"].pop("torch") == 0.2
    assert {name: found[name] for name in ("seconds", "sm_mhz", "watts", "joules")} == {
        "seconds": 0.5, "sm_mhz": 1432.4, "watts": 690.2, "joules": 0.1}  # fmt: skip
    line = next(each for each in bench.table(entries, roof)[2] if each.startswith("sustained: "))
    assert "1,432 MHz, 690 W, 0.100 J a call (" in line


@pytest.mark.parametrize(
    ("torch_us", "state"), [(OURS, "Pass"), (0.91 * OURS, "Pass"), (0.89 * OURS, "PerfWarning")]
)
def test_slower_than_torch_is_a_warning(torch_us, state, spent, small):
    spent[bench.BASELINE + "torch"] = torch_us
    entry = bench.bench(["softmax"], ["torch"], CPU)[0][0]
    assert entry["state"] == state and bool(entry["message"]) == (state != "Pass")
    if state != "Pass":
        assert entry["message"] == "0.890 of the speed of torch's own (0.890 to 0.890), expected at least 0.9"


def test_an_unsure_slowness_is_no_warning():
    assert bench._state(0.5, Interval(0.8, 0.7, 0.95))[0] == "Pass"
    assert bench._state(0.5, Interval(0.8, 0.7, 0.89))[0] == "PerfWarning"
    assert bench._state(0.5, None) == ("Pass", "")


def test_above_the_roof_is_an_internal_error(spent, small):
    spent["torch"] = 1e-4
    entry = bench.bench(["softmax"], ["torch"], CPU)[0][0]
    assert entry["of_roof"] > bench.ABOVE_ROOF and entry["state"] == "InternalError"
    assert "of the measured roof" in entry["message"] and f"{entry['of_roof']:.2f}" in entry["message"]
    assert bench._state(1.09, None)[0] == "Pass" and bench._state(1.11, None)[0] == "InternalError"
    assert bench._state(1.11, Interval(0.5, 0.4, 0.6))[0] == "InternalError"


def test_a_matmul_is_held_against_the_higher_of_two_floors(spent, small, monkeypatch):
    monkeypatch.setattr(FixedRoofs, "product", 1e9)
    entries, roof = bench.bench(["matmul"], ["torch"], CPU)
    assert entries[0]["floor_us"] == pytest.approx(2 * 64**3 / 1e9 * 1e6)
    assert {"matmul_bfloat16_flop_per_s", "matmul_float32_flop_per_s"} < set(roof)


def test_a_baseline_that_does_not_run_is_told(spent, small, monkeypatch):
    def broken(spec):
        def call(**tensors):
            raise RuntimeError("not implemented for this device\nand more")

        return call

    monkeypatch.setattr(baselines, "torch_function", broken)
    entry = bench.bench(["swiglu"], ["torch"], CPU)[0][0]
    assert "torch" not in entry["vs"] and entry["baseline_launch_us"] is None
    assert entry["baseline_errors"]["torch"] == "RuntimeError: not implemented for this device"
    assert entry["state"] == "Pass" and "copy" in entry["vs"]


def test_a_baseline_that_computes_something_else_is_not_timed(spent, small, monkeypatch):
    monkeypatch.setattr(baselines, "torch_function", lambda spec: lambda gate, up: torch.sigmoid(gate) * up)
    for entry in bench.bench(["swiglu"], ["torch"], CPU)[0]:
        assert entry["baseline_errors"]["torch"].startswith("computes something else: output 0 differs")
        assert set(entry["vs"]) == {"copy"}


def test_a_baseline_that_fails_in_its_graph_is_told(spent, small, monkeypatch):
    calls = []

    def function(gate, up):
        calls.append(gate)
        if len(calls) % 2 == 0:
            raise torch.OutOfMemoryError("no memory left")
        return torch.nn.functional.silu(gate) * up

    monkeypatch.setattr(baselines, "torch_function", lambda spec: function)
    monkeypatch.setattr(baselines, "_compiled", lambda function: 1 / 0)
    entry = bench.bench(["swiglu"], ["torch"], CPU)[0][0]
    assert entry["baseline_errors"]["torch"] == "OutOfMemoryError: no memory left"
    assert entry["baseline_errors"]["torch.compile"] == "ZeroDivisionError: division by zero"


def broken_pin(monkeypatch, error):
    """The second implementation, torch's under another name, raises; the first runs."""
    real = bench.pinned

    def pinned(case, name):
        def call(tensors):
            if name == "second":
                raise error
            return real(case, "torch")(tensors)

        return call

    monkeypatch.setattr(bench, "pinned", pinned)
    monkeypatch.setattr(bench, "implementations", lambda op: ("torch", "second"))


def test_an_implementation_that_fails_is_told_and_the_others_go_on(spent, small, monkeypatch):
    broken_pin(monkeypatch, RuntimeError("illegal memory access"))
    failures = []
    entries, _ = bench.bench(["swiglu"], None, CPU, failed=lambda *failure: failures.append(failure))
    assert [entry["impl"] for entry in entries] == ["torch", "torch"]
    assert [(case, impl, str(error)) for case, impl, error in failures] == [
        (entry["case"], "second", "illegal memory access") for entry in entries
    ]
    with pytest.raises(RuntimeError, match="illegal memory"):
        bench.bench(["swiglu"], None, CPU)


def test_a_case_that_cannot_be_made_is_told_and_the_others_go_on(spent, small, monkeypatch):
    real, seen = bench.made, []

    def made(case, *rest):
        seen.append(case.id)
        if case.id == seen[0]:
            raise RuntimeError("no such heads")
        return real(case, *rest)

    monkeypatch.setattr(bench, "made", made)
    failures = []
    entries, _ = bench.bench(["swiglu"], ["torch"], CPU, failed=lambda *failure: failures.append(failure))
    assert [(case, impl, str(error)) for case, impl, error in failures] == [
        (seen[0], "any implementation", "no such heads")
    ]
    assert len(entries) == 1 and entries[0]["case"] != seen[0]
    with pytest.raises(RuntimeError, match="no such heads"):
        bench.bench(["swiglu"], ["torch"], CPU)


def test_an_implementation_that_computes_something_else_is_told_and_not_timed(spent, small, monkeypatch):
    real: Any = bench.pinned
    wrong = lambda case, name: lambda tensors: real(case, "torch")(tensors) * (1.1 if name == "second" else 1)  # noqa: E731
    monkeypatch.setattr(bench, "pinned", wrong)
    monkeypatch.setattr(bench, "implementations", lambda op: ("second", "torch"))
    failures = []
    entries, _ = bench.bench(["swiglu"], None, CPU, failed=lambda *failure: failures.append(failure))
    assert [entry["impl"] for entry in entries] == ["torch", "torch"]
    assert [impl for _, impl, _ in failures] == ["second", "second"]
    assert all(re.search("computes something else: .*relative error", str(error)) for *_, error in failures)


def test_an_implementation_that_rejects_a_case_has_no_entry(spent, small, monkeypatch):
    broken_pin(monkeypatch, errors.PinError("swiglu", "second", "float64 only", "torch"))
    failures = []
    entries, _ = bench.bench(["swiglu"], None, CPU, failed=lambda *failure: failures.append(failure))
    assert [entry["impl"] for entry in entries] == ["torch", "torch"] and not failures
    assert bench.bench(["swiglu"], ["second"], CPU)[0] == []


def test_ours_are_pinned(spent, small, monkeypatch):
    pins = []
    real = portable.using
    monkeypatch.setattr(portable, "using", lambda **pin: (pins.append(pin), real(**pin))[1])
    bench.bench(["softmax"], ["torch"], CPU)
    assert pins and all(pin == {"softmax": "torch"} for pin in pins)


def test_the_table(spent, small):
    spent[bench.BASELINE + "torch"] = 0.5 * OURS
    entries, roof = bench.bench(["softmax"], ["torch"], CPU)
    head, rows, notes = bench.table(entries, roof)
    assert [len(row) for row in rows] == [len(head)] * 2
    first = dict(zip(head, rows[0], strict=True))
    assert first["case"] == "softmax/bfloat16/N=64,lead=3" and first["implementation"] == "torch"
    assert first["x torch"] == "0.500 (0.500..0.500)" and first["x copy"] == "0.500 (0.500..0.500)"
    assert first["us"] == "10.5" and first["state"] == "PerfWarning" and "x liger" not in head
    assert "roof measured in this run: copy_bytes_per_s 1e+12" in notes
    assert "the GPU's clock over the rounds: 1755..1980 MHz" in notes
    assert "no baseline liger: not installed (every case)" in notes
    assert sum(note.startswith("PerfWarning: softmax/bfloat16/N=64,lead=3 on torch: ") for note in notes) == 1


def test_the_table_says_what_is_uncertain(spent, small):
    entries, roof = bench.bench(["softmax"], ["torch"], CPU)
    entries[0] |= {"clocks": None, "graph": False, "baseline_errors": {"quack": "ImportError: no cutlass"}}
    entries[1] |= {"clocks": None, "vs": {}, "launch_us": None}
    entries[1] |= {"bytes_per_s": 2e9, "flop_per_s": 3e9, "of_roof": 0.0004}
    head, rows, notes = bench.table(entries, roof)
    assert dict(zip(head, rows[1], strict=True))["x torch"] == "-" and "-" in rows[1]
    assert rows[1][3:6] == ["0.002", "0.003", "4.00e-04"], "small is not 0"
    assert any("clock" in note and "unknown" in note for note in notes)
    assert "no baseline quack: ImportError: no cutlass (softmax/bfloat16/N=64,lead=3)" in notes
    assert any(note.startswith("not captured into a graph") for note in notes)
    assert bench.table([], roof)[1] == []


def test_entries_make_a_valid_record(spent, small, tmp_path):
    made = sample_record()
    made["timings"], made["roof"] = bench.bench(["swiglu"], ["torch"], CPU)
    record.write(tmp_path / "F.json", made)
    assert record.read(tmp_path / "F.json")["timings"] == made["timings"]


def test_bytes_of_a_row_op():
    case = bench.bench_cases(registry.spec("softmax"))[0]
    assert bench.moved_bytes(case, registry.spec("softmax")) == 2 * 2 * 16384 * 4096
    assert replace(case, layout="contiguous").id != case.id


def test_float32_products_by_bf16x6_are_held_against_six_bfloat16_products():
    spec = registry.spec("matmul")
    found = {
        (case.types[0][1], case.params.get("precision")): bench.work(case, spec)[1:]
        for case in bench.bench_cases(spec)
    }
    assert found == {
        ("bfloat16", None): ("bfloat16", 1.0),
        ("float32", None): ("float32", 1.0),
        ("float32", "bf16x6"): ("bfloat16", 6.0),
        ("bfloat16", "bf16x6"): ("bfloat16", 1.0),
    }


LENGTHS = {"H": 2, "G": 1, "M": 300, "N": 300, "D": 16, "E": 16}


@pytest.mark.parametrize(
    ("op", "absent"), [("attention_varlen", "sinks"), ("attention_varlen_backward", "dlse")]
)
def test_a_tail_of_lengths_beside_dense_attention_of_the_same_work(op, absent, spent, monkeypatch):
    spent[bench.BASELINE + "dense"] = TORCH
    spec = registry.spec(op)
    shape = make_shape(spec, {"C": 8, **LENGTHS}, (), {}, (absent,))
    types = tuple(next(row for row in spec.types if row["T"] == "float32").items())
    case = Case(op, types, shape, layout="bench-tail")
    monkeypatch.setattr(bench, "timed_cases", lambda *_: [sweep.TimedCase(case, ["torch"], ("dense",))])
    (entry,) = bench.bench([op], None, CPU)[0]
    assert set(entry["vs"]) == {"dense"} and entry["vs"]["dense"]["median"] == pytest.approx(2.0)
    offsets = bench.made(case, spec, CPU, 0)["cu_seqlens_q"]
    assert offsets is not None
    lengths = offsets.diff().double()
    assert offsets[0] == 0 and offsets[-1] == 300 and lengths.max() > 10 * lengths.min() > 0
    products = {"attention_varlen": 2, "attention_varlen_backward": 5}[op]
    assert entry["flops"] == pytest.approx(2 * 2 * products * 16 * float((lengths**2).sum()))


def test_pages_beside_dense_attention_of_the_same_lengths(spent, monkeypatch):
    spec = registry.spec("attention_paged")
    axes = {"Z": 3, "M": 1, "H": 4, "G": 2, "D": 16, "E": 16, "P": 20, "S": 16, "W": 5}
    types = tuple(next(row for row in spec.types if row["T"] == "float32").items())
    case = Case("attention_paged", types, make_shape(spec, axes, (), {}, ("sinks",)), layout="bench")
    monkeypatch.setattr(bench, "timed_cases", lambda *_: [sweep.TimedCase(case, ["torch"], ("dense",))])
    (entry,) = bench.bench(["attention_paged"], None, CPU)[0]
    assert set(entry["vs"]) == {"dense"}
    beside = bench._beside_baseline(spec, "dense")(bench.made(case, spec, CPU, 0), bench._facts(case, spec))
    assert beside()[0].shape == (3, 4, 1, 16)


@pytest.mark.parametrize("op", [name for name in registry.op_folders() if registry.spec(name).bench])
def test_every_bench_size_is_timed(op):
    """In both types, products in fp8 in theirs: rows of 16 bits with an index were left out, as rope's."""
    spec = registry.spec(op)
    types = {row[spec.type_variables[0]] for row in spec.types} & {"bfloat16", "float32"}
    assert len(bench.bench_cases(spec)) == max(len(types), 1) * len(spec.bench)


def test_what_is_written_in_place_is_compared_and_put_back(spent, small):
    """Contents that differ are seen, and the next one to run does not find what the last one wrote."""
    spec = registry.spec("kv_cache_write")
    assert small(spec) == 4
    case = bench.bench_cases(spec)[0]
    tensors: dict[str, Any] = dict(bench.made(case, spec, CPU, 0))
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    assert baselines.results(spec, tensors, bench.pinned(case, "torch")(tensors)) != []
    written = [tensors[name] for name in spec.mutated]
    expected = [each.clone() for each in written]
    assert baselines.restored(tensors, before) == ["k_cache", "v_cache"]
    assert all(torch.equal(tensors[name], each) for name, each in before.items())
    found, reasons = baselines.ready(spec, [tensors], {}, expected, ["torch"])
    assert list(found) == ["torch"] and not reasons
    assert all(torch.equal(tensors[name], each) for name, each in before.items())
    wrong = [before[name] for name in spec.mutated]
    assert "output 0 differs" in baselines.ready(spec, [tensors], {}, wrong, ["torch"])[1]["torch"]

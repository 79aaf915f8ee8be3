"""`portable-conformance models`: whole models against float32, wrong ones found, the record and its page."""

from __future__ import annotations

import contextlib
import gc
import json
import weakref
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional

import portable
from portable.conformance.commands import cli
from portable.conformance.models import (
    configs,
    floors,
    functions,
    judge,
    measure,
    modelled,
    quantized,
    record,
    steps,
)
from portable.conformance.models.model import Model
from portable.conformance.perf import libraries, sustained, timing
from portable.conformance.records.schema import RecordError
from portable.conformance.report import models as page
from portable.dispatch import dispatcher, pins

CPU = torch.device("cpu")
TORCH = steps.CANDIDATES["torch"]
PAIRS = [(config, step) for config in configs.models().values() for step in configs.steps().values()
         if config.takes(step) and step.name in ("train", "prefill", "decode-1")]  # fmt: skip


def test_a_model_is_judged_and_recorded(tmp_path, capsys):
    file, html = tmp_path / "m.json", tmp_path / "m.html"
    chosen = ["--models", "llama", "--steps", "decode-1,decode-16"]  # one and the same where it is tiny
    assert cli.main(["models", "--device", "cpu", *chosen, "--record", str(file), "--html", str(html)]) == 0
    assert "CONFORMS: 1 of 1 step of this package right against float32, 0 timed" in capsys.readouterr().out
    (step,) = record.read(file)["steps"]
    assert [each["name"] for each in step["candidates"]] == ["torch", "portable"]
    assert 0 < step["candidates"][1]["errors"]["logits"] < 0.02 and step["roof"] is None
    assert "llama, decode-1" in html.read_text()


@pytest.mark.slow
@pytest.mark.parametrize(("config", "step"), PAIRS, ids=lambda each: each.name)
def test_every_model_is_as_near_to_float32_as_torch(config, step):
    found = measure.step_entry(*configs.tiny(config, step), [TORCH, steps.CANDIDATES["portable"]], CPU)
    assert [each["state"] for each in found["candidates"]] == ["Pass", "Pass"], found
    parameters = list(Model(configs.tiny(config, step)[0], 4, torch.Generator()).parameters())
    judged = 1 if step.kind != "train" else 1 + len(parameters)  # the logits, or loss and gradients
    assert len(found["candidates"][1]["errors"]) == judged


class RopeThenWrite(functions.Portable):
    """A step by the class's own rope."""

    def rope_qkv(self, qkv, heads, kv_heads, cos, sin, positions):
        return functions.Torch.rope_qkv(self, qkv, heads, kv_heads, cos, sin, positions)

    def rope_and_write(self, q, k, v, norms, cos, sin, positions, eps, caches, slots):
        q, k = self.rope(q, k, cos, sin, positions, False)
        portable.kv_cache_write(k[:, 0], v[:, 0], *caches, slots)
        return q


class WrongPairs(RopeThenWrite):
    def rope(self, q, k, cos, sin, positions, interleaved):
        return super().rope(q, k, cos, sin, positions, not interleaved)


class KeyOfTheNext(RopeThenWrite):
    def rope(self, q, k, cos, sin, positions, interleaved):
        return super().rope(q, k, cos, sin, (positions + 1) % len(cos), interleaved)[0], k


class HalfTheSoftcapOfScores(functions.Portable):
    def attention(self, q, k, v, scale, window, softcap):
        return super().attention(q, k, v, scale, window, softcap and softcap / 2)


class NoSoftcapOfLogits(functions.Portable):
    def loss(self, x, weight, target, softcap):
        return super().loss(x, weight, target, None)


class WindowOneMore(functions.Portable):
    def attention(self, q, k, v, scale, window, softcap):
        return super().attention(q, k, v, scale, window and window + 1, softcap)


class NoOffset(functions.Portable):
    def add_rms_norm(self, x, residual, weight, eps, offset):
        return super().add_rms_norm(x, residual, weight, eps, 0.0)


class HalfOfTheLoss(functions.Portable):
    def loss(self, x, weight, target, softcap):
        return super().loss(x[::2], weight, target[::2], softcap)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "step", "wrong"),
    [
        ("llama", "train", WrongPairs),
        ("llama", "decode-1", WrongPairs),
        ("llama", "decode-1", KeyOfTheNext),
        ("gemma-2-9b", "train", HalfTheSoftcapOfScores),
        ("gemma-2-9b", "decode-1", HalfTheSoftcapOfScores),
        ("gemma-2-9b", "train", NoSoftcapOfLogits),
        ("gemma-2-9b", "train", WindowOneMore),
        ("gemma-2-9b", "train", NoOffset),
        ("llama", "train", HalfOfTheLoss),
    ],
)
def test_a_wrong_model_is_found(model, step, wrong):
    small = configs.tiny(configs.models()[model], configs.steps()[step])
    (found,) = measure.step_entry(*small, [steps.Candidate("portable", wrong)], CPU)["candidates"]
    assert found["state"] == "Fail" and "against float32, torch's own" in found["message"]


class NextZeroPoint(quantized.Int4):
    """Codes less 9, not 8."""

    def product(self, x, weight):
        return portable.int4_mm(x, *weight[:2], torch.full_like(weight.scale, 9, dtype=torch.uint8))


class TwiceTheScale(quantized.Fp8Rows):
    def product_of(self, x, weight, dtype):
        return super().product_of(x, (weight[0], 2 * weight[1]), dtype)


@pytest.mark.parametrize("model", ["llama", "gemma-2-9b"])
@pytest.mark.parametrize("name", ["portable.int4", "portable.fp8", "portable.fp8_kv"])
def test_a_quantised_step_is_as_near_as_torchs_of_the_same_operands(name, model):
    small = configs.tiny(configs.models()[model], configs.steps()["decode-1"])
    wanted = [steps.CANDIDATES["portable"], steps.CANDIDATES[name]]
    found = measure.step_entry(*small, wanted, CPU)["candidates"]
    assert [(each["name"], each["state"]) for each in found] == [("portable", "Pass"), (name, "Pass")]


class ValuesScaledAsKeys(quantized.PortableFp8Cache):
    def attention(self, q, k, *given):
        coded = self._caches[k]
        scales = dict.fromkeys(coded.scales, 2 * coded.scales["k_scale"])
        self._caches[k] = replace(coded, scales=scales)
        return super().attention(q, k, *given)


@pytest.mark.parametrize(
    "functions, wrong",
    [
        (quantized.Portable, NextZeroPoint),
        (quantized.PortableFp8, TwiceTheScale),
        (ValuesScaledAsKeys, lambda: quantized.Fp8Rows(cache=True)),
    ],
)
def test_a_wrong_quantised_step_is_found(functions, wrong):
    small = configs.tiny(configs.models()["llama"], configs.steps()["decode-1"])
    candidate = steps.Candidate("portable", functions, scheme=wrong())
    (found,) = measure.step_entry(*small, [candidate], CPU)["candidates"]
    assert found["state"] == "Fail" and "against float32, torch's own" in found["message"]


def test_a_graph_keeps_what_its_call_holds(monkeypatch):
    """2026-11-27: quantised weights were freed before the replays, which was an illegal memory access."""

    class Graph:
        def replay(self):
            assert alive() is not None

    def nothing(*_):
        return contextlib.nullcontext()

    stream = SimpleNamespace(wait_stream=lambda other: None)
    for name, fake in {
        "Stream": lambda: stream, "current_stream": lambda: stream, "stream": nothing, "graph": nothing,
        "CUDAGraph": Graph,
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, fake)

    def made():
        weight = torch.ones(3)
        return weakref.ref(weight), measure.graphed(lambda: weight.sum())

    alive, replay = made()
    gc.collect()
    assert replay() == 3


def test_a_training_step_has_no_quantised_candidate():
    small = configs.tiny(configs.models()["llama"], configs.steps()["train"])
    wanted = [TORCH, steps.CANDIDATES["portable.int4"], steps.CANDIDATES["portable.batch_invariant"]]
    found = measure.step_entry(*small, wanted, CPU)["candidates"]
    assert [each["name"] for each in found] == ["torch"]


@pytest.mark.slow
@pytest.mark.parametrize("step", ["prefill", "decode-1"])
def test_a_batch_invariant_step_is_right_and_asks_for_it(step, device_of_command, monkeypatch):
    """On an emulated GPU: no product of 16 bits promises it on a CPU."""
    asked = set()
    linear = portable.linear
    monkeypatch.setattr(
        portable, "linear", lambda *args: (asked.add(pins.batch_invariant()), linear(*args))[1]
    )
    chosen = ["--models", "llama", "--steps", step, "--tiny", "--candidates", "portable.batch_invariant"]
    assert cli.main(["models", "--device", "rocm:gfx942", *chosen]) == 0
    assert asked == {True}


def test_time_in_which_kernels_overlap_is_the_earlier_ones():
    spans = [
        (12.0, 20.0, "waits for the product"),
        (0.0, 15.0, "product"),
        (1.0, 4.0, "within"),
        (22.0, 23.0, "next"),
    ]
    assert list(measure.own_times(spans)) == [
        ("product", 15.0), ("within", 0.0), ("waits for the product", 5.0), ("next", 1.0)]  # fmt: skip


def test_a_prefill_step_has_the_last_logits_of_the_training_forward():
    config, step = configs.tiny(configs.models()["llama"], configs.steps()["prefill"])
    ready = steps.Ready(config, step, CPU)
    assert ready.tokens.shape == (2, step.tokens)
    logits = ready.outcome(ready.call(TORCH))["logits"]
    every = ready.model._hidden(functions.Torch(), ready.tokens, torch.arange(step.tokens).expand(2, -1))
    assert torch.equal(logits, functional.linear(every, ready.model.head)[:, -1].float())


def test_a_candidate_that_is_not_there_or_raises_is_said(monkeypatch):
    def absent(name):
        raise libraries.Unsupported("not installed")

    monkeypatch.setattr(libraries, "installed", absent)

    class Broken(functions.Torch):
        def linear(self, x, weight):
            raise ValueError("no")

    small = configs.tiny(configs.models()["llama"], configs.steps()["decode-1"])
    both = [steps.CANDIDATES["liger"], steps.Candidate("portable", Broken)]
    found = measure.step_entry(*small, both, CPU)["candidates"]
    assert [(each["state"], each["message"]) for each in found] == [
        ("NotAvailable", "not installed"), ("Error", "ValueError: no")]  # fmt: skip


def test_nan_is_beyond_every_bound():
    nan = judge.errors({"x": torch.tensor([float("nan")])}, {"x": torch.ones(1)})
    assert judge.verdict(nan, {"x": 0.01}).fault and not judge.verdict({"x": 0.016}, {"x": 0.01}).fault
    assert judge.verdict({"x": 0.018}, {"x": 0.01}).fault


@pytest.mark.parametrize("name", configs.models())
def test_the_floors_count_every_matrix(name):
    config, step = configs.tiny(configs.models()[name], configs.steps()["train"])
    model = Model(config, 4, torch.Generator())
    matrices = sum(each.numel() for each in model.parameters() if each.dim() == 2) - model.embedding.numel()
    work = floors.train(config, step)
    assert work["GEMM"][0] == 6 * step.sequences * step.tokens * matrices
    if config.latent is None:
        assert floors.decode(config, replace(step, kind="decode"))["GEMM"][1] == 2 * matrices


@pytest.mark.parametrize(
    ("kernel", "part"),
    [
        ("nvjet_tst_256x128_64x4_2x1_v_bz_coopA_TNT", "GEMM"),
        ("void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128>>", "attention"),
        ("void at::native::(anonymous namespace)::CatArrayBatchedCopy", "copy"),
        ("fused_add_rms_norm", "norm"),
        ("qk_norm_rope", "rotary"),
        ("cross_entropy_backward", "loss"),
        ("gather_rows", "embedding"),
        ("vectorized_elementwise_kernel<add>", "other"),
    ],
)
def test_a_kernel_belongs_to_a_part(kernel, part):
    assert configs.part_of(kernel) == part


KERNELS = [
    {"name": "wgmma", "part": "GEMM", "launches": 3, "us": 80.0},
    {"name": "rope", "part": "rotary", "launches": 1, "us": 5.0},
]
HEADER = {
    "device": "GPU", "vendor": "cuda", "arch": "sm_90a", "emulated": False, "driver": None,
    "versions": {"torch": "2.11"}, "commit": None, "dirty": None, "command": "portable-conformance models",
    "date": "2026-11-24", "tiny": False,
}  # fmt: skip


def timed(name, us, **more):
    right = {"name": name, "state": "Pass", "message": "", "errors": {"loss": 1e-4}, "us": us}
    meter = {"sm_mhz": 1450.0, "watts": 690.0, "joules": None, "peak_bytes": 2**30}
    return {**right, **meter, "kernels": [dict(each) for each in KERNELS], **more}


def made(*candidates):
    step = {"model": "llama", "step": "train", "candidates": list(candidates)}
    step |= {"roof": {"copy_bytes_per_s": 4e12}, "floors": {"GEMM": 70.0, "rotary": 2.0}}
    return {"schema": 1, "kind": "models", "header": HEADER, "steps": [step]}


@pytest.mark.slow
def test_a_step_is_timed_by_the_model_of_an_emulated_gpu(device_of_command, tmp_path, capsys):
    file, html = tmp_path / "m.json", tmp_path / "m.html"
    chosen = ["--models", "llama", "--steps", "train", "--tiny", "--record", str(file), "--html", str(html)]
    assert cli.main(["models", "--device", "rocm:gfx942", "--modelled", *chosen]) == 0
    said = capsys.readouterr().out
    assert "MODELLED: 1 step on emulated gfx942, +-" in said and "nothing is judged or measured" in said
    found = record.read(file)
    assert found["header"]["emulated"] and not record.conforming(found)
    ((ours,),) = [step["candidates"] for step in found["steps"]]
    assert ours["state"] == "Modelled" and ours["errors"] == {} and ours["accuracy"].startswith("+-")
    assert ours["us"] == [pytest.approx(sum(each["us"] for each in ours["kernels"]), abs=1)]
    launched = {each["part"]: each["launches"] for each in ours["kernels"] if each["part"] != "torch"}
    assert {"GEMM", "attention", "norm", "rotary", "activation", "loss", "embedding"} <= launched.keys()
    assert all(each["us"] > each["launches"] for each in ours["kernels"] if each["part"] != "torch")
    assert "Modelled" in html.read_text()


def test_a_device_without_a_timing_model_says_so(device_of_command, capsys):
    assert cli.main(["models", "--device", "cpu", "--modelled", "--models", "llama"]) == 2
    assert "has no timing model" in capsys.readouterr().err


def test_torch_s_operators_are_counted_by_what_they_read_and_write():
    x, y = torch.ones(10, 4), torch.ones(4)
    with modelled.TorchOperators([]) as operators:
        (x + y).view(40)[:3].clone()
        torch.empty(100)
    assert operators.bytes == {"aten::add": [160 + 16 + 160], "aten::clone": [12 + 12]}
    (add, clone) = operators.kernels(1e6)
    assert (add["us"], add["launches"], add["part"]) == (336.0, 1, "torch") and clone["us"] == 24.0


def test_times_are_ratios_of_the_same_rounds_and_drawn():
    found = made(timed("torch", [100.0, 110, 120, 100, 100]), timed("portable", [50.0, 55, 60, 50, 50]))
    record.check(found)
    head, rows = page.shown(found["steps"][0])
    assert head[:4] == ["candidate", "state", "ms", "x torch"] and rows[1][3] == "2.000 (2.000..2.000)"
    assert rows[1][head.index("kernels")] == "4" and rows[2][:3] == ["floor", "", "0.072"]
    text = page.page(found)
    assert text.count("<rect") == 3 * 2 + 2 and "rotary: 5.0 us" in text and "0.050 ms" in text
    assert "CONFORMS: 1 of 1 step" in text and "2 timed" in text


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda one: one.update(state="Fine"), "state: 'Fine' is no state"),
        (lambda one: one.update(state="Fail"), "timed, though it does not pass"),
        (lambda one: one.update(peak_bytes="much"), "peak_bytes: expected int, got 'much'"),
        (lambda one: one["kernels"][0].pop("part"), r"kernels\[0\].part: missing"),
    ],
)
def test_a_damaged_record_is_refused(tmp_path, change, fault):
    one = timed("portable", [1.0] * 5)
    change(one)
    file = tmp_path / "m.json"
    file.write_text(json.dumps(made(one)))
    with pytest.raises(RecordError, match=fault):
        record.read(file)


def test_another_s_fault_is_shown_and_ours_decides():
    fails = {"name": "liger", "state": "Fail", "message": "far", "errors": {"loss": 1.0}}
    assert record.conforming(made(timed("portable", [1.0] * 5), fails))
    assert not record.conforming(made(timed("torch", [1.0] * 5), {**fails, "name": "portable.compile"}))
    assert not record.conforming(made(timed("torch", [1.0] * 5)))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--models", "lama"], "Did you mean 'llama'?"),
        (["--steps", "fly"], "--steps fly: there are train, prefill, decode-1"),
        (["--candidates", "torchh"], "Did you mean 'torch'?"),
        (
            ["--models", "deepseek-v3-attention", "--steps", "decode-1"],
            "none of these models has one of these steps",
        ),
        (["--html", "/nowhere/at/all.html"], "/nowhere/at"),
        (
            ["--candidates", "portable.int4", "--steps", "train"],
            "none of these takes one of --steps",
        ),
    ],
)
def test_a_wrong_option_is_a_sentence(arguments, said, capsys):
    assert cli.main(["models", "--device", "cpu", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_under_load_candidates_take_turns_in_every_order(monkeypatch):
    order = []
    monkeypatch.setattr(sustained, "_once", lambda call: call.seconds)
    monkeypatch.setattr(
        sustained, "_run", lambda call, repeats: order.append((call.name, repeats)) or call.seconds
    )

    class Call:
        def __init__(self, name, seconds):
            self.name, self.seconds = name, seconds

        def __call__(self):
            raise AssertionError("timed by what stands in")

    calls = {"a": Call("a", 0.1), "b": Call("b", 0.3)}
    found = sustained.sustained(calls, seconds=0.6, rounds=2, device=CPU)
    assert order == [
        ("b", 2),
        ("a", 6),
        ("a", 6),
        ("b", 2),
        ("b", 2),
        ("a", 6),
    ]  # the first round is not counted
    assert found["a"].microseconds == (0.1, 0.1)


def test_the_meter_leaves_out_what_is_still_the_one_before():
    meter = sustained._Meter()
    meter.read(["1980, 300.5\n", "[N/A], [N/A]\n"])
    meter.lines = [(0.1, 1980.0, 100.0), (0.5, 1400.0, 690.0), (0.9, 1500.0, 700.0), (1.5, 1000.0, 1.0)]
    assert meter.between([(0.0, 1.0)]) == (1450.0, 695.0) and meter.between([(5.0, 6.0)]) == (None, None)


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("chosen", [functions.Torch, functions.Portable])
def test_new_keys_go_to_their_place_alone(chosen, normed):
    caches = torch.zeros(3, 5, 2, 4), torch.zeros(3, 5, 2, 4)
    q, k, v = torch.randn(3, 1, 4, 4), torch.randn(3, 1, 2, 4), torch.randn(3, 1, 2, 4)
    slots = chosen().slots(torch.tensor([3]), 3, 5)
    norms = (torch.rand(4), torch.rand(4)) if normed else None
    angles, positions = torch.rand(5, 2), torch.full((3, 1), 3)
    rest = norms, angles.cos(), angles.sin(), positions, 1e-6
    q_rotated = chosen().rope_and_write(q, k, v, *rest, caches, slots)
    spare = torch.zeros(3, 5, 2, 4), torch.zeros(3, 5, 2, 4)
    expected = functions.Torch().rope_and_write(q, k, v, *rest, spare, torch.tensor([3]))
    torch.testing.assert_close(q_rotated, expected)
    torch.testing.assert_close(caches, spare)
    assert torch.equal(caches[1][:, 3:4], v) and caches[0][:, 3].all()
    assert not any(cache[:, [0, 1, 2, 4]].any() for cache in caches)


def test_timing_fills_the_entries_and_the_floors(monkeypatch, tmp_path):
    """On a GPU, of which nothing but the numbers stands in here."""
    times = {"torch": 200.0, "portable": 100.0}

    def rounds(calls, seconds, rounds, device):
        assert seconds == 0.25
        for call in calls.values():
            call()
        return {
            name: sustained.Sustained(name, (times.get(name, 50.0),) * rounds, 1400.0, 700.0)
            for name in calls
        }

    class Roofs(timing.Roofs):
        def candidates(self, dtype):
            assert dtype is not None
            self._made = {
                timing.COPY_ROOF: (timing.copy, [(torch.zeros(2), torch.zeros(2))], 50e6),
                timing.matrix_roof(dtype): (lambda _: None, [None], 100e6),
            }
            return {name: made[:2] for name, made in self._made.items()}

    monkeypatch.setattr(timing, "Roofs", Roofs)
    monkeypatch.setattr(sustained, "sustained", rounds)
    monkeypatch.setattr(measure, "_peak", lambda call: 2**31)
    monkeypatch.setattr(measure, "graphed", lambda call: call)
    monkeypatch.setattr(measure, "kernels", lambda call: [dict(each) for each in KERNELS])
    config, step = configs.tiny(configs.models()["llama"], configs.steps()["decode-1"])
    judged = measure.step_entry(config, step, [TORCH, steps.CANDIDATES["portable"]], CPU)
    calls = {each["name"]: lambda: None for each in judged["candidates"]}
    found = judged | measure._timed(config, step, calls, judged["candidates"], CPU, 0.25, lambda text: None)
    assert found["roof"] == pytest.approx({"copy_bytes_per_s": 1e12, "matmul_bfloat16_flop_per_s": 2e12})
    ours = found["candidates"][1]
    assert ours["us"] == [100.0] * sustained.ROUNDS and ours["joules"] == pytest.approx(0.07)
    matrices = floors.decode(config, step)["GEMM"]
    assert found["floors"]["GEMM"] == pytest.approx(1e6 * max(matrices[0] / 2e12, matrices[1] / 1e12))
    made = record.build(portable.device(), ["models"], True, [found])
    record.write(tmp_path / "m.json", made)
    assert page.shown(record.read(tmp_path / "m.json")["steps"][0])[1][1][3] == "2.000 (2.000..2.000)"


def test_a_decode_step_promises_constant_weights_where_a_kernel_takes_the_promise(monkeypatch):
    with functions.Portable().serving(decode=True):
        assert (pins.pin("linear"), pins.pin("gated_linear")) == (None, None)  # on a CPU
    monkeypatch.setattr(dispatcher, "candidates", lambda op: ("skinny", "skinny_constant_weight", "torch"))
    with functions.Portable().serving(decode=True):
        assert (pins.pin("linear"), pins.pin("gated_linear")) == ("skinny_constant_weight",) * 2
    with functions.Portable().serving(decode=False):  # 2026-11-27: a prefill step has too many rows
        assert pins.pin("linear") is None
    assert pins.pin("linear") is None

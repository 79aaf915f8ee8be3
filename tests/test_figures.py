"""The README's measured table is what the committed record says."""

from __future__ import annotations

import importlib
import re
import runpy
import statistics
import sys
from itertools import chain
from operator import truediv
from pathlib import Path

import pytest

from portable.conformance.cases.case import op_of
from portable.conformance.models import record as models
from portable.conformance.records import compare, record
from portable.spec import registry

from .conformance import toy_gpu_faults

ROOT = Path(__file__).resolve().parent.parent
RECORD = record.read(ROOT / "conformance/results/h200/core.json.gz")
SPEED = runpy.run_path(str(ROOT / "docs/speed.py"))
SWEEPS = [each.found for each in SPEED["sweeps"]()]
TIMINGS = {(each["case"], each["impl"]): each for each in SPEED["timings"]()}
SEQUENCES = "H=16,G=16,M=8192,N=8192,D=128,E=128,lead=2,causal=True"
ROWS = {
    "matmul 4096 x 4096 x 4096": ("matmul/bfloat16/M=4096,N=4096,K=4096", "wgmma", "torch"),
    "linear + gelu 4096 x 14336 x 4096": (
        "linear/bfloat16/N=14336,K=4096,lead=4096,activation=gelu",
        "wgmma",
        "torch",
    ),
    "softmax 16384 x 4096": ("softmax/bfloat16/N=4096,lead=16384", "cpp", "copy"),
    "rms_norm 16384 x 4096": ("rms_norm/bfloat16/N=4096,lead=16384", "cpp", "copy"),
    "layer_norm 16384 x 4096": ("layer_norm/bfloat16/N=4096,lead=16384", "cpp", "copy"),
    "swiglu 16384 x 4096": ("swiglu/bfloat16/N=4096,lead=16384", "cpp", "copy"),
    "attention, 2 x 16": (f"attention/bfloat16,L=float32/{SEQUENCES},no=bias+sinks", "wgmma", "cudnn"),
    "attention's gradient": (
        f"attention_backward/bfloat16,L=float32/{SEQUENCES},no=bias+dlse",
        "wgmma",
        "cudnn",
    ),
}


def measured(case: str, impl: str, baseline: str) -> str:
    """Of the newest record that timed it."""
    return f"{TIMINGS[f'{case}/normal/bench', impl]['vs'][baseline]['median']:.2f}"


@pytest.mark.parametrize("row", ROWS)
def test_the_readme_states_what_was_measured(row):
    line = next(each for each in (ROOT / "README.md").read_text().splitlines() if each.startswith(f"| {row}"))
    triton, native = re.findall(r"\d+\.\d\d", line)
    case, impl, baseline = ROWS[row]
    assert (triton, native) == (measured(case, "triton", baseline), measured(case, impl, baseline))


def test_the_record_is_of_a_gpu_and_conforms():
    readme = (ROOT / "README.md").read_text()
    for each in (RECORD, *SWEEPS):
        assert each["header"]["device"] == "NVIDIA H200" and not each["header"]["emulated"]
        assert each["header"]["complete"] and not each.get("faults")
    assert record.conforming(RECORD) and RECORD["header"]["dirty"] is False
    assert {each["state"] for each in RECORD["results"]} <= {"Pass", "NotSupported"}
    (row,) = (line for line in readme.splitlines() if line.startswith("| NVIDIA H200"))
    assert f"{record.tally(RECORD)}: " in row
    for name in ("core-changed", "core-changed-2"):
        changed = record.read(ROOT / f"conformance/results/h200/{name}.json.gz")
        assert record.conforming(changed) and changed["header"]["dirty"] is False
        ops, commit = len(changed["header"]["selection"]["ops"]), changed["header"]["commit"][:7]
        newer = f"{ops} ops whose kernels are newer, of {commit}: {record.tally(changed)} (`{name}.json.gz`)"
        assert newer in row


def test_the_h100_s_row_is_the_record_s():
    found = record.read(ROOT / "conformance/results/h100/core.json.gz")
    assert record.conforming(found) and found["header"]["dirty"] is False
    (row,) = (line for line in (ROOT / "README.md").read_text().splitlines() if "| NVIDIA H100" in line)
    assert f"{record.tally(found)}: " in row
    part = record.read(ROOT / "conformance/results/h100/core-part.json.gz")
    assert not part["header"]["complete"] and part["header"]["dirty"] is False
    assert {each["state"] for each in part["results"]} == {"Pass", "NotSupported"}
    commit, count = part["header"]["commit"][:7], f"{len(part['results']):,}"
    stopped = f"of {commit}, stopped by a time limit at {count} of 84,170 results"
    assert f"{stopped}: {record.tally(part)} (`core-part.json.gz`)" in row


LOW_PRECISION = {
    "scaled_mm": "`scaled_mm` in fp8, a scale per row",
    "scaled_mm_block": "`scaled_mm` in fp8, scales of blocks",
    "int8_scaled_mm": "`int8_scaled_mm`",
}


@pytest.mark.parametrize("op", LOW_PRECISION)
def test_the_readme_s_products_of_8_bits_are_those_of_the_record(op):
    lines = (ROOT / "README.md").read_text().splitlines()
    (row,) = (line for line in lines if line.startswith(f"| {LOW_PRECISION[op]}"))
    means = []
    for impl in ("triton", "wgmma"):
        timed = [one for one in TIMINGS.values() if one["op"] == op and one["impl"] == impl]
        means.append(statistics.geometric_mean(one["vs"]["torch"]["median"] for one in timed))
    assert row.split("|")[2:4] == [f" {mean:.2f} " for mean in means]


TRAINING = "models-llama-train-2"
MODEL_ROWS = {
    "the Llama shape, training step": (TRAINING, "train"),
    "Llama 3 8B, training step": ("models-llama-3-8b", "train"),
    "Llama 3 8B, decode step": ("models-llama-3-8b", "decode-1"),
    "Qwen 3 8B, training step": ("models-qwen3-8b", "train"),
    "Qwen 3 8B, decode step": ("models-qwen3-8b", "decode-1"),
    "Gemma 2 9B, training step": ("models-gemma-2-9b", "train"),
    "Gemma 2 9B, decode step": ("models-gemma-2-9b", "decode-1"),
    "DeepSeek V3's attention, training step": ("models-deepseek-v3-attention", "train"),
}
BESIDE_COMPILE = ("torch", "liger", "portable", "portable.compile")


def _h200_step(record: str, step: str) -> dict[str, dict]:
    """Its candidates by name, all of them right."""
    found = models.read(ROOT / f"conformance/results/h200/{record}.json.gz")
    assert found["header"]["device"] == "NVIDIA H200" and found["header"]["dirty"] is False
    (timed,) = (each for each in found["steps"] if each["step"] == step)
    assert {each["state"] for each in timed["candidates"]} == {"Pass"}
    return {each["name"]: each for each in timed["candidates"]}


def _readme_row(title: str) -> list[str]:
    lines = (ROOT / "README.md").read_text().splitlines()
    (row,) = (line for line in lines if line.startswith(f"| {title}"))
    return [cell.strip() for cell in row.strip("|").split("|")]


@pytest.mark.parametrize("title", MODEL_ROWS)
def test_the_readme_s_models_are_those_of_the_records(title):
    us = {name: each["us"] for name, each in _h200_step(*MODEL_ROWS[title]).items()}
    ratios = [statistics.median(map(truediv, us["torch.compile"], us[name])) for name in BESIDE_COMPILE]
    assert _readme_row(title)[1:] == [f"{ratio:.2f}" for ratio in ratios]


def test_the_readme_s_memory_of_a_training_step_is_the_record_s():
    peaks = {name: each["peak_bytes"] / 2**30 for name, each in _h200_step(TRAINING, "train").items()}
    title, *cells = _readme_row("peak memory of the first row")
    assert f"(torch.compile {peaks['torch.compile']:.2f})" in title
    assert cells == [f"{peaks[name]:.2f}" for name in BESIDE_COMPILE]


DECODE_STEPS = {
    "decode-1": "1 sequence of 4096 tokens", "decode-16": "16 sequences of 4096",
    "decode-64": "64 sequences of 8192",
}  # fmt: skip


@pytest.mark.parametrize("step", DECODE_STEPS)
def test_the_readme_s_decode_steps_are_those_of_the_record(step):
    us = {name: each["us"] for name, each in _h200_step("models-llama", step).items()}
    names = ("portable", "portable.int4", "portable.fp8", "portable.fp8_kv")
    ratios = [statistics.median(map(truediv, us["torch.compile"], us[name])) for name in names]
    assert _readme_row(f"{DECODE_STEPS[step]} |")[1:] == [f"{ratio:.2f}" for ratio in ratios]


def test_the_guide_s_cost_of_batch_invariance_is_the_record_s():
    found = models.read(ROOT / "conformance/results/h200/models-llama-invariant.json.gz")
    assert found["header"]["device"] == "NVIDIA H200" and found["header"]["dirty"] is False
    times = {}
    for timed in found["steps"]:
        assert {each["state"] for each in timed["candidates"]} == {"Pass"}
        us = {one["name"]: one["us"] for one in timed["candidates"]}
        times[timed["step"]] = statistics.median(map(truediv, us["portable.batch_invariant"], us["portable"]))
    guide = " ".join((ROOT / "docs/guide.md").read_text().split())
    decode = f"{times['decode-16']:.2f} to {times['decode-1']:.2f} times as long"
    assert f"{decode}, its prefill {times['prefill']:.2f}" in guide


def test_the_readme_s_mutants_are_those_of_the_page():
    page, readme = ((ROOT / name).read_text() for name in ("docs/mutants.md", "README.md"))
    (count,) = re.findall(r"^(\d+) mutants, \1 rejected, \*\*0 survived\*\*", page, re.M)
    assert f"[{count} mutants](docs/mutants.md)" in readme


def test_what_the_page_of_speed_names_conforms():
    assert {each["state"] for each in TIMINGS.values()} <= {"Pass", "PerfWarning"}
    newest = {(each["op"], each["impl"]): one for one in SWEEPS for each in one["timings"]}
    states = {
        each["state"]
        for pair, one in newest.items()
        for each in one["results"]
        if (op_of(each["case"]), each["impl"]) == pair
    }
    assert "Pass" in states and states <= {"Pass", "NotSupported"}


def test_the_first_speed_bars_are_met():
    """0.6 of torch for a large matmul, 0.8 of the copy for the forward row ops, in both languages."""
    for case, impl, baseline in ROWS.values():
        for name in ("triton", impl):
            assert float(measured(case, name, baseline)) >= (0.6 if baseline == "torch" else 0.8)


def test_the_page_of_speed_is_what_the_record_says():
    page = SPEED["page"]()
    assert (ROOT / "docs/speed.md").read_text() == page, "run python docs/speed.py"


def test_the_page_of_emulated_gpus_is_what_the_records_say():
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        emulated = importlib.import_module("emulated")
    finally:
        sys.path.pop(0)
    assert (ROOT / "docs/emulated.md").read_text() == emulated.page(), "run python docs/emulated.py"
    readme = (ROOT / "README.md").read_text()
    for arch, found in emulated.emulated_records().items():
        assert found["header"]["emulated"] and found["header"]["arch"] == arch
        assert f"emulated: {record.tally(found)}" in next(
            line for line in readme.splitlines() if line.startswith("| AMD") and f"({arch})" in line
        )


@pytest.mark.parametrize(
    ("arch", "unit"),
    [("gfx90a", "mfma"), ("gfx942", "mfma"), ("gfx950", "mfma"), ("gfx1100", "wmma"), ("gfx1201", "wmma")],
)
def test_the_core_tier_of_attention_conforms_on_emulated_gpus(arch, unit):
    """Forward, gradients, decode, pages and varlen sequences, in HIP C++ and Triton."""
    found = record.read(ROOT / f"conformance/results/emulated-{arch}/core-attention.json.gz")
    head, results = found["header"], found["results"]
    assert head["emulated"] and head["arch"] == arch and head["complete"] and not head["dirty"]
    assert record.conforming(found) and head["tier"] == "core" and head["fraction"] == [1, 1]
    passed = {(op_of(each["case"]), each["impl"]) for each in results if each["state"] == "Pass"}
    ops = ("attention", "attention_backward", "attention_dbias", "attention_paged", "attention_varlen")
    asked = {(op, impl) for op in (*ops, "attention_varlen_backward") for impl in (unit, "triton")}
    assert passed == asked | {("attention", f"decode_{unit}"), ("attention", "decode")}
    known = {"XFail"} if arch == "gfx90a" else set()
    assert {each["state"] for each in results} == {"Pass", "NotSupported", *known}
    assert f"on {arch} {record.tally(found)}" in " ".join((ROOT / "README.md").read_text().split())


@pytest.mark.parametrize(
    ("arch", "differ"), [("gfx90a", 21), ("gfx942", 21), ("gfx950", 5), ("gfx1100", 24), ("gfx1201", 24)]
)
def test_an_h100_and_an_emulated_gpu_agree(arch, differ):
    """But for zeros of the other sign, in float16 results of Triton's (docs/emulated.md)."""
    one = record.read(ROOT / "conformance/results/h100/core.json.gz")
    other = record.read(ROOT / f"conformance/results/emulated-{arch}/core.json.gz")
    found = compare.agreements(one, other)
    assert sum(each.cases for each in found) > 15000
    problems = [(each.op, each.impl, text) for each in found for text in each.problems]
    assert len(problems) == differ, problems
    ops = {"softmax_backward", "rope", "rope_backward", "gated_linear", "qk_norm_rope_kv_write"}
    for op, impl, text in problems:
        assert op in ops and impl == "triton", text
        assert "/float16" in text and text.endswith("must be bit-equal, and is not"), text


@pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201"])
def test_the_other_ops_conform_on_emulated_gpus(arch):
    found = record.read(ROOT / f"conformance/results/emulated-{arch}/core.json.gz")
    head = found["header"]
    assert head["emulated"] and head["arch"] == arch and head["complete"] and not head["dirty"]
    assert record.conforming(found) and head["tier"] == "core" and head["fraction"] == [1, 1]
    assert {op_of(each["case"]) for each in found["results"]} >= {
        op
        for op in registry.public_ops()
        if not op.startswith("attention")
        and op not in {*IN_FP8, *QUANTISED_PRODUCTS, *chain(*LOW_PRECISION_ON_AMD.values())}
    }
    (row,) = (line for line in (ROOT / "README.md").read_text().splitlines() if f"({arch})" in line)
    assert f"emulated: {record.tally(found)}" in row


IN_FP8 = ("quantize_fp8", "scaled_mm")
LOW_PRECISION_ON_AMD = {
    "core-low-precision": (
        *("int_mm", "int8_scaled_mm", "sparse_mm", "rms_norm_quant", "fused_add_rms_norm_quant"),
        *("silu_and_mul_quant", "silu_and_mul_quant_1x128", "dequantize_int8"),
        *("dequantize_fp8", "dequantize_fp8_1x128", "dequantize_fp8_128x128"),
    ),
    "core-quantisers": (
        *("quantize_fp8_columns", "quantize_mx", "quantize_mxfp4", "quantize_nvfp4"),
        *("quantize_int8", "quantize_int8_asymmetric", "quantize_int8_static"),
        *("quantize_int4", "quantize_int4_asymmetric", "int4_mm"),
        *("dequantize_mx", "dequantize_mxfp4", "dequantize_nvfp4"),
    ),
    "core-rope-qkv": ("rope_qkv", "rope_qkv_backward"),
}
"""By record, of the emulated gfx942 alone."""
QUANTISED_PRODUCTS = (
    *("attention_fp8", "int4_mm", "int8_int4_mm", "sparse_mm", "sparse_scaled_mm"),
    *("scaled_mm", "scaled_mm_block", "scaled_mm_mx", "scaled_mm_mxfp4", "scaled_mm_nvfp4"),
    *("quantize_int4", "quantize_int4_asymmetric"),
)


@pytest.mark.parametrize("arch", ["gfx942", "gfx950", "gfx1201"])
def test_products_of_quantised_operands_conform_on_emulated_gpus(arch):
    found = record.read(ROOT / f"conformance/results/emulated-{arch}/core-quantised-products.json.gz")
    head = found["header"]
    assert head["emulated"] and head["arch"] == arch and head["complete"] and not head["dirty"]
    assert record.conforming(found) and head["tier"] == "core" and head["fraction"] == [1, 1]
    judged = {(op_of(each["case"]), each["impl"]) for each in found["results"] if each["state"] == "Pass"}
    assert {op for op, _ in judged} == set(QUANTISED_PRODUCTS)
    languages = {op: {impl for of, impl in judged if of == op} for op in QUANTISED_PRODUCTS}
    assert all("triton" in each and len(each - {"triton", "torch"}) > 0 for each in languages.values())
    readme = " ".join((ROOT / "README.md").read_text().split())
    assert "`core-quantised-products`" in readme and f"on {arch} {record.tally(found)}" in readme


@pytest.mark.parametrize("name", LOW_PRECISION_ON_AMD)
def test_ops_of_low_precision_conform_on_an_emulated_gpu(name):
    found = record.read(ROOT / f"conformance/results/emulated-gfx942/{name}.json.gz")
    head = found["header"]
    assert head["emulated"] and head["arch"] == "gfx942" and head["complete"] and not head["dirty"]
    assert record.conforming(found) and head["tier"] == "core" and head["fraction"] == [1, 1]
    assert {op_of(each["case"]) for each in found["results"]} == set(LOW_PRECISION_ON_AMD[name])
    assert f"(`{name}`) {record.tally(found)}" in " ".join((ROOT / "README.md").read_text().split())


@pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201"])
def test_products_in_fp8_conform_on_emulated_gpus(arch):
    found = record.read(ROOT / f"conformance/results/emulated-{arch}/core-fp8.json.gz")
    head = found["header"]
    assert head["emulated"] and head["arch"] == arch and head["complete"] and not head["dirty"]
    assert record.conforming(found) and head["tier"] == "core" and head["fraction"] == [1, 1]
    assert {op_of(each["case"]) for each in found["results"]} >= set(IN_FP8)
    readme = " ".join((ROOT / "README.md").read_text().split())
    assert re.search(rf"on {arch}(, [a-zA-Z0-9 ]+,)? {re.escape(str(record.tally(found)))}", readme)


def test_a_killed_a_hung_and_a_starved_kernel_left_a_whole_record():
    """On an H200: tests/conformance/toy_gpu_faults.py made them."""
    found = record.read(ROOT / "conformance/results/h200/faults.json.gz")
    assert found["header"]["device"] == "NVIDIA H200" and found["header"]["complete"]
    by_case: dict[str, dict[str, str]] = {}
    for each in found["results"]:
        by_case.setdefault(each["case"], {})[each["impl"]] = each["state"]
    assert len(by_case) == 2 and all(states == toy_gpu_faults.EXPECTED for states in by_case.values())

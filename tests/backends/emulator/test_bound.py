"""The bound of a launch: busy cycles by pipe, and the share of the roof that the busiest allows."""

from __future__ import annotations

import json
import os
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from portable.backends.rocm import pipe_model
from portable.backends.rocm.emulator import abi
from portable.backends.rocm.emulator.bound import Launched, bound
from portable.commands import cli
from portable.runtime import detect

MFMA = ("v_mfma_f32_32x32x8_bf16", "matrix", 16384)
WMMA = ("v_wmma_f32_16x16x16_bf16", "matrix", 8192)
FMA = ("v_fma_f32", "vector", 0)
EXP = ("v_exp_f32", "transcendental", 0)
PACKED = ("v_pk_fma_f32", "vector", 0)
STORE = ("global_store_dwordx4", "global memory", 0)


def launched(
    *ran: tuple[tuple[str, str, int], int], wave: int = 64, waves: int = 2, nbytes: int = 0, **memory: int
):
    """A launch that executes each instruction so often; `memory` are the counts of the last one."""
    ops = [
        SimpleNamespace(name=name, cls=abi.CLASSES.index(kind), work=work) for (name, kind, work), _ in ran
    ]
    program: Any = SimpleNamespace(
        ops=ops, addresses=list(range(0, 8 * len(ops), 8)), instruction=lambda _: None
    )
    counts = [abi.MemCount() for _ in ran]
    for name, value in memory.items():
        setattr(counts[-1], name, value)
    return Launched(
        program, [count for _, count in ran], counts, wave, waves, nbytes, lambda index: f"line {index}"
    )


def cycles(arch: str, *args: Any, **kwargs: Any) -> dict[str, int]:
    return {
        pipe.name: pipe.cycles for pipe in bound(pipe_model.models()[arch], launched(*args, **kwargs)).pipes
    }


@pytest.fixture
def own_device():
    """The command makes its device the process's, by variables that other programs get too."""
    with mock.patch.dict(os.environ):
        yield
    detect.reset()


def test_four_simds_share_the_work_and_the_busiest_pipe_sets_the_bound():
    found = bound(pipe_model.models()["gfx942"], launched((MFMA, 100), (FMA, 1600)))
    assert {pipe.name: pipe.cycles for pipe in found.pipes} == {"vector": 1600, "matrix": 800, "memory": 0}
    assert (found.roof, found.roof_cycles, found.share) == ("matrix", 800, 0.5)
    assert found.pipes[0].lines == [("line 1", 1600)]


def test_transcendental_instructions_have_their_own_rate():
    assert cycles("gfx942", (EXP, 100))["vector"] == 400
    assert cycles("gfx950", (EXP, 100))["vector"] == 200


def test_packed_float32_waits_for_the_matrix_pipe_on_cdna():
    assert cycles("gfx942", (MFMA, 100), (PACKED, 100)) == {"matrix": 900, "memory": 0}


def test_one_wave_hides_vector_instructions_in_the_shadow_of_its_own_matrix_ones():
    serial = "matrix and vector, one after the other"
    hidden = cycles("gfx942", (MFMA, 100), (FMA, 700), waves=1)
    assert serial not in hidden
    exposed = cycles("gfx942", (MFMA, 100), (FMA, 800), waves=1)
    assert exposed[serial] == 800 + 100
    assert serial not in cycles("gfx942", (MFMA, 100), (FMA, 800), waves=2)


def test_a_wmma_blocks_the_vector_pipe():
    found = bound(pipe_model.models()["gfx1100"], launched((WMMA, 100), (FMA, 400), wave=32))
    assert (found.pipes[0].name, found.pipes[0].cycles) == ("matrix and vector, one after the other", 1800)
    assert found.share == pytest.approx(1600 / 1800)


def test_a_wave_of_64_takes_two_vector_cycles_on_rdna():
    assert cycles("gfx1100", (FMA, 100), wave=64)["vector"] == 100


def test_the_second_half_of_a_dual_instruction_is_free():
    both = launched((FMA, 100), (FMA, 100), wave=32)
    both.program.addresses[1] = both.program.addresses[0]
    assert bound(pipe_model.models()["gfx1100"], both).pipes[0].cycles == 50


def test_without_matrix_work_the_roof_is_the_memory():
    model = pipe_model.models()["gfx942"]
    found = bound(model, launched((STORE, 10), nbytes=4_200_000, cache_lines=100, sectors=200))
    memory = round(1e-6 * model.peak_ghz * 1e9 * model.compute_units)
    assert (found.roof, found.roof_cycles, found.share) == ("memory", memory, 1.0)
    assert {pipe.name: pipe.cycles for pipe in found.pipes} == {
        "memory": memory, "L1": 100, "L2 stores": round(200 * 64 / model.l2_store_bytes)
    }  # fmt: skip


@pytest.mark.slow
def test_trace_prints_the_bound_and_the_same_as_json(own_device, capsys):
    call = [
        "trace",
        "matmul",
        "--shape",
        "128x128,128x128",
        "--dtype",
        "bfloat16",
        "--impl",
        "mfma",
        "--arch",
        "gfx942",
    ]
    assert cli.main(call) == 0
    text = capsys.readouterr().out
    assert "bound: at most" in text and "matrix pipe:" in text
    assert cli.main([*call, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    launch = found["calls"][0]["launches"][0]
    matrix = next(pipe for pipe in launch["bound"]["pipes"] if pipe["name"] == "matrix")
    assert launch["matrix_flops"] == 2 * 128**3 and matrix["cycles"] == 2 * 128**3 / 2048
    assert 0 < found["calls"][0]["share"] <= 1
    assert sum(launch["instructions"].values()) == sum(count for _, count in launch["source_lines"])

"""The timing model: cycles of small kernels that one pipe, one wait or one barrier decides."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import sys
from pathlib import Path
from unittest import mock

import pytest
import torch
from assembly import assemble, module_text
from instructions import Text, memory, waits, wave

import portable
from portable.backends.rocm import modelled as table
from portable.backends.rocm import pipe_model
from portable.backends.rocm.emulator import timing
from portable.backends.rocm.emulator.code_object import CodeObject
from portable.backends.rocm.emulator.launch import Buffer, KernelLaunch
from portable.commands import cli
from portable.runtime import detect
from portable.spec import registry

CDNA = ("gfx942", "gfx950")


def modelled(arch: str, body: str, *, waves: int = 1, groups: int = 1, lds: int = 0, blocks: int = 0):
    """`body`, by `waves` waves of each of `groups` workgroups; s[4:5] holds the address of `blocks` bytes."""
    text = Text(
        "k", f"s_load_dwordx2 s[4:5], s[0:1], 0x0\n{waits(arch)}{body}\ns_endpgm\n", wave(arch), lds=lds
    )
    code = CodeObject(assemble(arch, module_text(arch, [text])))
    block = memory(max(64, blocks))
    kernarg = ctypes.addressof(block).to_bytes(8, "little").ljust(64, b"\0")
    buffers = [Buffer("block", ctypes.addressof(block), len(bytes(block)))]
    block_size = (waves * wave(arch), 1, 1)
    return timing.model(KernelLaunch(code.kernels["k"], (groups, 1, 1), block_size, 0, kernarg, buffers))


def cycles(arch: str, body: str, **options: int) -> float:
    """Cycles that `body` adds to an empty kernel."""
    return modelled(arch, body, **options).cycles - modelled(arch, "", **options).cycles


MFMA = "v_mfma_f32_32x32x8f16 a[0:15], v[2:3], v[4:5], a[0:15]\n"
SETUP = "v_mov_b32 v2, 0\nv_mov_b32 v3, 0\nv_mov_b32 v4, 0\nv_mov_b32 v5, 0\n" + "".join(
    f"v_accvgpr_write_b32 a{i}, 0\n" for i in range(16)
)
FMA, EXP = "v_fma_f32 v6, v2, v3, v4\n", "v_exp_f32 v7, v2\n"


@pytest.mark.parametrize("arch", CDNA)
def test_a_matrix_instruction_takes_its_pipe_so_many_cycles(arch):
    once = cycles(arch, SETUP + 20 * MFMA)
    assert cycles(arch, SETUP + 120 * MFMA) - once == 100 * 32


def test_four_waves_use_four_simds_and_eight_share_them():
    body = SETUP + 120 * MFMA
    assert cycles("gfx942", body, waves=4) == pytest.approx(cycles("gfx942", body), rel=0.03)
    assert cycles("gfx942", body, waves=8) == pytest.approx(2 * cycles("gfx942", body), rel=0.05)


@pytest.mark.parametrize("arch, hidden", [("gfx942", 7), ("gfx950", 6)])
def test_vector_instructions_hide_behind_their_own_waves_matrix_instructions(arch, hidden):
    def loop(vector: int) -> float:
        pair = MFMA + vector * FMA
        return (cycles(arch, SETUP + 60 * pair) - cycles(arch, SETUP + 20 * pair)) / 40

    assert loop(0) == loop(hidden) == 32
    assert loop(hidden + 3) == 32 + 3 * 4


def test_another_wave_fills_the_vector_pipe_while_one_multiplies():
    half = SETUP + "v_readfirstlane_b32 s8, v0\ns_lshr_b32 s8, s8, 8\ns_barrier\ns_cmp_eq_u32 s8, 0\n"
    body = half + "s_cbranch_scc1 1f\n" + 100 * MFMA + "s_branch 2f\n1:\n" + 800 * FMA + "2:\n"
    both = cycles("gfx942", body, waves=8)
    assert both == pytest.approx(3200, rel=0.05)


def test_the_older_of_two_waves_issues_first():
    """A younger wave's vector instructions wait for those of an older one, unless its priority is higher."""
    half = SETUP + "v_readfirstlane_b32 s8, v0\ns_lshr_b32 s8, s8, 8\ns_barrier\ns_cmp_eq_u32 s8, 0\n"
    young = 10 * FMA + 100 * MFMA

    def both(raised: str) -> float:
        body = half + f"s_cbranch_scc1 1f\n{raised}{young}s_branch 2f\n1:\n" + 800 * FMA + "2:\n"
        return cycles("gfx942", body, waves=8)

    assert both("") == pytest.approx(6400, rel=0.05)
    assert both("s_setprio 1\n") == pytest.approx(3200, rel=0.05)


@pytest.mark.parametrize("arch, rate", [("gfx942", 16), ("gfx950", 8)])
def test_transcendental_instructions_have_their_own_rate(arch, rate):
    assert (cycles(arch, SETUP + 120 * EXP) - cycles(arch, SETUP + 20 * EXP)) / 100 == rate


def test_lds_serves_all_waves_of_a_compute_unit():
    read = "v_mov_b32 v1, 0\nv_lshlrev_b32 v1, 4, v0\nv_and_b32 v1, 0x3f0, v1\n"
    fill = read + "".join(f"v_mov_b32 v{i}, 0\n" for i in range(2, 6)) + "ds_write_b128 v1, v[2:5]\n"
    fill += "s_waitcnt lgkmcnt(0)\ns_barrier\n"
    reads = "ds_read_b128 v[8:11], v1\n"
    few, many = (
        cycles("gfx942", fill + n * reads + "s_waitcnt lgkmcnt(0)", waves=4, lds=4096) for n in (10, 60)
    )
    assert many - few == pytest.approx(50 * 4 * 8, rel=0.02)  # 1,024 bytes at 128 a cycle


def test_a_wait_takes_as_long_as_the_load():
    model = pipe_model.models()["gfx942"].timing
    load = "v_mov_b32 v1, 0\nglobal_load_dword v40, v1, s[4:5]\n"
    waited = cycles("gfx942", load + "s_waitcnt vmcnt(0)\n") - cycles("gfx942", load)
    assert waited == pytest.approx(model.l2_latency + 64 / 192 * model.memory_ns * 2.1, abs=700)
    overlapped = cycles("gfx942", SETUP + load + 10 * MFMA + "s_waitcnt vmcnt(0)\n")
    assert overlapped < cycles("gfx942", load + "s_waitcnt vmcnt(0)\n") + 120


def test_a_barrier_waits_for_the_slowest_wave():
    slow = "v_readfirstlane_b32 s8, v0\ns_cmp_eq_u32 s8, 0\ns_cbranch_scc0 1f\n" + SETUP + 50 * MFMA + "1:\n"
    found = modelled("gfx942", slow + "s_barrier\n", waves=4)
    assert found.waves["barriers"] > 0.5
    assert cycles("gfx942", slow + "s_barrier\n" + SETUP + 50 * MFMA, waves=4) > 2 * 50 * 32


def test_a_barrier_in_two_halves_opens_to_the_waves_that_wait_later():
    """gfx12: a wave may come to its wait when all have signalled and the first has passed: it never did."""
    slow = "v_readfirstlane_b32 s8, v0\ns_cmp_eq_u32 s8, 0\ns_cbranch_scc0 1f\n"
    late = slow + 40 * "v_exp_f32 v2, v2\n" + "1:\n"
    turn = "s_barrier_signal -1\n" + late + "s_barrier_wait -1\n"
    one, three = (cycles("gfx1201", "v_mov_b32 v2, 0\n" + n * turn, waves=4) for n in (1, 3))
    assert three > 2 * one


def test_workgroups_beyond_the_compute_units_take_another_round():
    units = pipe_model.models()["gfx942"].compute_units
    body = SETUP + 400 * MFMA
    one, two = (modelled("gfx942", body, waves=8, groups=n) for n in (units, units + 1))
    assert one.resident == 1  # 256 registers: two waves a SIMD
    assert two.cycles == pytest.approx(2 * one.cycles, rel=0.05)
    assert (two.recorded, two.workgroups) == (timing.SAMPLES, units + 1)


@pytest.mark.parametrize("arch", ["gfx1100", "gfx1201"])
def test_rdnas_matrix_instruction_blocks_the_vector_pipe(arch):
    rows = {"gfx1100": 8, "gfx1201": 4}[arch]
    setup = "".join(f"v_mov_b32 v{i}, 0\n" for i in range(2, 40))
    last = 2 + rows - 1
    wmma = f"v_wmma_f32_16x16x16_bf16 v[20:27], v[2:{last}], v[2:{last}], v[20:27]\n"
    took = {"gfx1100": 32, "gfx1201": 16}[arch]

    def loop(vector: int) -> float:
        pair = wmma + vector * "v_fma_f32 v30, v2, v3, v4\n"
        return (cycles(arch, setup + 60 * pair) - cycles(arch, setup + 20 * pair)) / 40

    assert loop(0) == took
    assert loop(10) == took + 10


@pytest.mark.parametrize("arch", CDNA)
def test_the_clock_falls_as_the_matrix_pipes_fill(arch):
    busy, idle = modelled(arch, SETUP + 2000 * MFMA, waves=4, groups=2432), modelled(arch, "", groups=2)
    assert busy.matrix_share > 0.9
    assert busy.ghz < 0.9 * idle.ghz <= pipe_model.models()[arch].peak_ghz
    assert sum(busy.waves.values()) == pytest.approx(1, abs=0.02)


# Published times ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def published():
    path = Path(__file__).parents[3] / "docs" / "timing_model.py"
    spec = importlib.util.spec_from_file_location("timing_model", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["timing_model"] = module  # where its dataclasses look for it
    spec.loader.exec_module(module)
    yield module
    del sys.modules["timing_model"]


def test_the_clock_is_fitted_to_the_published_times_and_says_how_far_they_are(published):
    for arch in CDNA:
        rows, model = [row for row in published.read() if row.arch == arch], pipe_model.models()[arch]
        t = model.timing
        fitted = published.fit(rows, model.peak_ghz)
        assert fitted == pytest.approx((t.matrix_power, t.vector_power), abs=6e-4)
        off = published.rms(published.without_own_kernel(rows, model.peak_ghz))
        kernels = len({row.kernel for row in rows})
        assert t.accuracy == f"+-{off:.0%} over {len(rows)} published times of {kernels} kernels"
    assert published.PAGE.read_text() == published.page(published.read())


# `portable model` -----------------------------------------------------------------------------------


@pytest.fixture
def own_device():
    """The command makes its device the process's, by variables that other programs get too."""
    with mock.patch.dict(os.environ):
        yield
    detect.reset()


CALL = ["model", "matmul", "--shape", "300x64,64x256", "--dtype", "bfloat16", "--arch", "gfx950"]


def test_the_command_models_each_implementation(own_device, capsys):
    assert cli.main([*CALL, "--json"]) == 0
    (call,) = json.loads(capsys.readouterr().out)["calls"]
    found = {each["implementation"]: each for each in call["implementations"]}
    assert {"mfma", "triton"} <= found.keys()
    assert 1e-6 < found["mfma"]["seconds"] < 1e-4
    assert "float32" in found["simt"]["reason"] and found["simt"]["seconds"] is None
    (launch,) = found["mfma"]["launches"]
    assert launch["recorded"] <= launch["workgroups"] and launch["accuracy"].startswith("+-")


def test_rows_picked_from_a_table_are_what_memory_moves(own_device, capsys):
    """One of 16 MB of rows: 4 us would be the whole table's."""
    call = ["model", "embedding", "--shape", "1,4096x2048", "--dtype", "bfloat16", "--arch", "gfx942"]
    assert cli.main([*call, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["calls"]
    times = [each["seconds"] for each in found["implementations"] if each["launches"]]
    assert len(times) > 1 and all(time < 3e-6 for time in times)


def test_it_says_that_it_is_a_model_and_how_far_off_it_is(own_device, capsys):
    assert cli.main([*CALL, "--impl", "mfma"]) == 0
    head, row = capsys.readouterr().out.splitlines()
    assert "on emulated gfx950: modelled, +-" in head and "published times" in head
    assert "us " in row and "GHz " in row


def test_a_device_without_a_model_is_an_error(own_device, capsys, monkeypatch):
    monkeypatch.setenv("PORTABLE_BACKEND", "cpu")
    detect.reset()
    assert cli.main(["model", "softmax"]) != 0
    assert "models no times" in capsys.readouterr().err


# What explain says of it ----------------------------------------------------------------------------


def test_explain_says_the_modelled_times_of_the_device(own_device, monkeypatch):
    a = torch.empty(64, 64, dtype=torch.bfloat16)
    detect.override_backend("rocm", "gfx942", emulate=True)
    text = str(portable.explain("matmul", a, a))
    assert "modelled on MI300X, not measured (+-" in text
    assert "4096x4096 4096x4096: mfma " in text
    monkeypatch.delenv("PORTABLE_EMULATE", raising=False)
    detect.override_backend("cpu", emulate=False)
    assert "modelled" not in str(portable.explain("matmul", a, a))


def test_the_table_names_implementations_in_the_specs_order():
    for (op, _), calls in table.rows().items():
        order = [each.name for each in registry.spec(op).implementations]
        for times in calls.values():
            places = [order.index(name) for name, _ in times]
            assert places == sorted(places)
            assert all(float(time) > 0 for _, time in times)

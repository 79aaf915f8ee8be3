"""The pipe model of AMD's GPUs: cycles of matrix instructions as the vendor's calculator has them, peaks."""

from __future__ import annotations

import pytest

from portable.backends.rocm import pipe_model
from portable.backends.rocm.backend import TARGETS
from portable.backends.rocm.emulator import abi, native_build

# (mnemonic, FLOPs, cycles on gfx90a, gfx942, gfx950; None where the GPU has none): ROCm's matrix instruction
# calculator.
CYCLES = [
    ("v_mfma_f32_32x32x8_bf16_1k", 16384, 64, 32, 32),
    ("v_mfma_f32_32x32x8_f16", 16384, 64, 32, 32),
    ("v_mfma_f32_16x16x16_f16", 8192, 32, 16, 16),
    ("v_mfma_f32_16x16x16bf16_1k", 8192, 32, 16, 16),
    ("v_mfma_f32_4x4x4_16b_f16", 2048, 16, 8, 8),
    ("v_mfma_f32_32x32x2_f32", 4096, 64, 64, 64),
    ("v_mfma_f32_16x16x4_f32", 2048, 32, 32, 32),
    ("v_mfma_f32_32x32x4bf16", 8192, 64, None, None),
    ("v_mfma_i32_32x32x8i8", 16384, 64, None, None),
    ("v_mfma_f32_32x32x16_fp8_fp8", 32768, None, 32, 32),
    ("v_mfma_f32_16x16x32_bf8_fp8", 16384, None, 16, 16),
    ("v_mfma_i32_32x32x16_i8", 32768, None, 32, 32),
    ("v_mfma_f32_32x32x4_xf32", 8192, None, 32, None),
    ("v_mfma_f32_32x32x16_bf16", 32768, None, None, 32),
    ("v_mfma_f32_16x16x32_f16", 16384, None, None, 16),
    ("v_mfma_i32_32x32x32_i8", 65536, None, None, 32),
    ("v_mfma_f64_16x16x4_f64", 2048, 32, 32, 64),
    ("v_mfma_scale_f32_32x32x64_f8f6f4", 131072, None, None, 64),
    ("v_mfma_f32_16x16x128_f8f6f4", 65536, None, None, 32),
    ("v_smfmac_f32_16x16x32_bf16", 16384, None, 16, None),  # AMD's calculator
    ("v_smfmac_f32_32x32x16_f16", 32768, None, 32, None),
    ("v_smfmac_f32_16x16x64_fp8_fp8", 32768, None, 16, None),
    ("v_smfmac_f32_32x32x32_fp8_bf8", 65536, None, 32, None),
]


@pytest.mark.parametrize(("name", "flops", "gfx90a", "gfx942", "gfx950"), CYCLES)
def test_cycles_of_a_matrix_instruction(name, flops, gfx90a, gfx942, gfx950):
    for arch, expected in (("gfx90a", gfx90a), ("gfx942", gfx942), ("gfx950", gfx950)):
        if expected is not None:
            assert pipe_model.models()[arch].matrix(name, flops)[0] == expected, arch


@pytest.mark.parametrize(
    ("arch", "name", "flops", "cycles"),
    [
        ("gfx1100", "v_wmma_f32_16x16x16_bf16", 8192, 32),
        ("gfx1100", "v_wmma_i32_16x16x16_iu8", 8192, 32),
        ("gfx1201", "v_wmma_f32_16x16x16_f16", 8192, 16),
        ("gfx1201", "v_wmma_f32_16x16x16_fp8_bf8", 8192, 8),
        ("gfx1201", "v_wmma_i32_16x16x32_iu4", 16384, 8),
    ],
)
def test_cycles_of_wmma(arch, name, flops, cycles):
    assert pipe_model.models()[arch].matrix(name, flops)[0] == cycles


def test_fp4_operands_take_half_the_cycles_of_fp8():
    matrix = pipe_model.models()["gfx950"].matrix
    assert matrix("v_mfma_f32_32x32x64_f8f6f4", 131072, (4, 4)) == (32, 32)
    assert matrix("v_mfma_f32_32x32x64_f8f6f4", 131072, (4, 0)) == (64, 64)


def test_an_older_shape_is_held_against_the_peak_of_its_type():
    assert pipe_model.models()["gfx950"].matrix("v_mfma_f32_32x32x8_bf16_1k", 16384) == (32, 16)


def test_what_the_model_does_not_know_is_an_error():
    with pytest.raises(ValueError, match="gfx1100 has no rate for f64"):
        pipe_model.models()["gfx1100"].matrix("v_mfma_f64_16x16x4_f64", 2048)


# TFLOP/s at the peak clock, as the vendor publishes them.
@pytest.mark.parametrize(
    ("arch", "kind", "teraflops"),
    [
        ("gfx90a", "bf16", 191.5), ("gfx942", "bf16", 1307.4), ("gfx942", "fp8", 2614.9),
        ("gfx942", "f32", 163.4),
        ("gfx950", "f16", 2516.6), ("gfx950", "f64", 78.6), ("gfx1100", "f16", 123), ("gfx1201", "bf16", 195),
    ],
)  # fmt: skip
def test_peaks_are_the_published_ones(arch, kind, teraflops):
    model = pipe_model.models()[arch]
    peak = model.flops_per_cycle[kind] * model.compute_units * model.peak_ghz / 1e3
    assert peak == pytest.approx(teraflops, rel=0.01)


def test_every_gpu_that_can_be_emulated_has_a_model():
    assert set(pipe_model.models()) == {target.arch for target in TARGETS}


def test_the_model_knows_every_matrix_instruction_of_its_architecture():
    names = {
        op.name: op.work for op in native_build.library().ops.values() if abi.CLASSES[op.cls] == "matrix"
    }
    known = dict.fromkeys(names, 0)
    for model in pipe_model.models().values():
        for name, work in names.items():
            try:
                cycles, best = model.matrix(name, work)
            except ValueError:
                continue
            assert 0 < best <= cycles
            known[name] += 1
    assert [name for name, count in known.items() if not count] == []


def test_the_roof_is_that_of_the_clock_under_load():
    """MI300X: 304 units of 2048 FLOPs a cycle at the 1.07 GHz that a busy matrix pipe leaves."""
    rates = pipe_model.models()["gfx942"].roof()
    assert rates["matmul_bfloat16_flop_per_s"] == pytest.approx(665e12, rel=0.01)
    assert rates["copy_bytes_per_s"] == 4.2e12
    assert "matmul_float32_flop_per_s" not in rates

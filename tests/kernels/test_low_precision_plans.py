"""How kernels from and to low precision cut their work, and what is not in their machine code for Hopper."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from portable.plan import Call, Device, TensorInfo
from portable.spec import registry
from tests.kernels.matmul.test_plans import H200
from tests.kernels.plan_parts import compiled, constants, defines, launch_of, planner

GFX942 = Device("rocm", "gfx942", "toy", 0, 304, 64, 64 * 1024, 512)
ROWS, COLUMNS = 256, 4096


def info(*shape: int, dtype: str = "bfloat16", alignment: int = 16) -> TensorInfo:
    return TensorInfo(shape, (shape[-1], 1) if len(shape) == 2 else (1,), dtype, alignment)


def call(op: str, tensors: dict[str, TensorInfo], device: Device = H200, implementation: str = "cpp") -> Call:
    spec = registry.spec(op)
    found = spec.implementation(implementation)
    assert found is not None
    params = {name: each.default for name, each in spec.params.items()}
    return Call({**dict.fromkeys(spec.inputs), **tensors}, params, {}, device, dict(found.default))


def by_row(op: str, device: Device = H200, **more: TensorInfo) -> dict[str, Any]:
    """The defines of an op that gives a scale per row."""
    kind = "int8" if "int8" in op else "float8_e4m3fn"
    x, scale = info(ROWS, COLUMNS), info(ROWS, 1, dtype="float32")
    tensors = {"x": x, "q": info(ROWS, COLUMNS, dtype=kind), "scale": scale, **more}
    return defines(launch_of(planner(op)(call(op, tensors, device))))


def from_fp4(op: str, columns: int, output: str = "bfloat16", alignment: int = 16) -> Call:
    group, kind = (16, "float8_e4m3fn") if op == "dequantize_nvfp4" else (32, "float8_e8m0fnu")
    tensors = {
        "q": info(ROWS, columns // 2, dtype="uint8", alignment=alignment),
        "scale": info(ROWS, -(-columns // group), dtype=kind),
        "y": info(ROWS, columns, dtype=output),
    }
    if group == 16:
        tensors["global_scale"] = info(1, dtype="float32")
    return call(op, tensors, implementation="triton")


def test_a_lane_has_as_many_vectors_as_were_fastest():
    zero, row = info(ROWS, 1, dtype="int32"), info(ROWS, COLUMNS)
    assert by_row("quantize_int8_asymmetric", zero_point=zero)["CHUNKS"] == 4
    assert by_row("quantize_int8_asymmetric", GFX942, zero_point=zero)["CHUNKS"] == 2
    assert by_row("quantize_int8")["CHUNKS"] == 2
    assert by_row("rms_norm_quant")["CHUNKS"] == 4
    assert by_row("rms_norm_quant", GFX942)["CHUNKS"] == 2
    assert by_row("fused_add_rms_norm_quant", residual=row, new_residual=row)["CHUNKS"] == 2


@pytest.mark.parametrize("op", ["quantize_fp8_static", "quantize_int8_static"])
def test_two_vectors_of_x_by_a_given_scale(op):
    kind = "int8" if "int8" in op else "float8_e4m3fn"
    tensors = {
        "x": info(ROWS, COLUMNS),
        "q": info(ROWS, COLUMNS, dtype=kind),
        "scale": info(1, dtype="float32"),
    }
    assert defines(launch_of(planner(op)(call(op, tensors))))["CHUNKS"] == 2
    assert defines(launch_of(planner(op)(call(op, tensors, GFX942))))["CHUNKS"] == 1
    launch = launch_of(planner(op, "triton")(call(op, tensors, implementation="triton")))
    assert 2 * 8 * launch.kernel.num_warps * 32 == constants(launch)["BLOCK"]


@pytest.mark.parametrize("op", ["dequantize_mxfp4", "dequantize_nvfp4"])
def test_words_of_codes_are_of_whole_groups(op):
    plan = planner(op, "triton")
    words, groups = "dequantize_fp4_words", "dequantize_fp4_groups"
    assert launch_of(plan(from_fp4(op, COLUMNS))).kernel.name == words
    assert launch_of(plan(from_fp4(op, COLUMNS + 8))).kernel.name == groups
    assert launch_of(plan(from_fp4(op, COLUMNS, alignment=8))).kernel.name == groups
    apart = from_fp4(op, COLUMNS)
    q = replace(apart["q"], strides=(COLUMNS, 1))
    apart = replace(apart, tensors={**apart.tensors, "q": q})
    assert launch_of(plan(apart)).kernel.name == groups


@pytest.mark.slow
@pytest.mark.parametrize("output", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("op", ["dequantize_mxfp4", "dequantize_nvfp4"])
def test_words_of_codes_stay_in_their_lanes(op, output):
    """No shared memory; y by 16 bytes; in 16 bits at most 14 instructions an element."""
    of_fp4 = from_fp4(op, COLUMNS, output)
    launch = launch_of(planner(op, "triton")(of_fp4))
    code = compiled(launch, of_fp4)
    assert not [name for name in code if name.startswith(("STS", "LDS", "BAR"))]
    assert {name for name in code if name.startswith("STG")} == {"STG.E.128"}
    elements = ROWS * COLUMNS / (launch.grid[0] * launch.kernel.num_warps * 32)
    assert output == "float32" or len([name for name in code if name != "NOP"]) <= 14 * elements


@pytest.mark.slow
@pytest.mark.parametrize("op", ["silu_and_mul_quant", "silu_and_mul_quant_1x128"])
def test_products_by_silu_are_rounded_two_at_once(op):
    """F2F rounds one, in the unit that has the exponential and the root."""
    across = 1 if op == "silu_and_mul_quant" else COLUMNS // 128
    x = TensorInfo((ROWS, 2, COLUMNS), (2 * COLUMNS, COLUMNS, 1), "bfloat16", 16)
    q, scale = info(ROWS, COLUMNS, dtype="float8_e4m3fn"), info(ROWS, across, dtype="float32")
    gated = call(op, {"x": x, "q": q, "scale": scale}, implementation="triton")
    code = compiled(launch_of(planner(op, "triton")(gated)), gated)
    assert not [name for name in code if name.startswith("F2F.")]
    assert [name for name in code if name.startswith("F2FP.BF16")]

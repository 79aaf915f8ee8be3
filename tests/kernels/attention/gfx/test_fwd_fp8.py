"""attention_fp8 in HIP C++ on AMD's matrix units: its plans, and what its codes are to emulated GPUs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import portable
from portable.backends.rocm import compile as hip
from portable.backends.rocm.emulator.code_object import CodeObject
from portable.backends.rocm.emulator.main_loop import body
from portable.backends.rocm.metadata import resources
from portable.kernels._lib import minifloat
from portable.kernels.attention.gfx import plan_fp8
from tests.kernels.attention.gfx.test_fwd import DEVICES
from tests.kernels.plan_parts import accepted, arguments_of, defines
from tests.kernels.test_attention_fp8 import FNUZ, FP8, given, made_call, wide

NATIVE = {("gfx942", FP8), ("gfx942", FNUZ), ("gfx950", FP8), ("gfx1201", FP8)}
NAMES = {"gfx1100": "wmma", "gfx1201": "wmma"}


def planned(arch: str, kind: torch.dtype = FP8, **changes: Any) -> Any:
    name = NAMES.get(arch, "mfma")
    return accepted(plan_fp8.forward(made_call(DEVICES[arch], name, kind, **changes))).launches[0]


@pytest.mark.parametrize("arch", DEVICES)
@pytest.mark.parametrize("kind", [FP8, FNUZ])
def test_instructions_take_codes_where_there_are_such(arch, kind):
    made = defines(planned(arch, kind))
    assert made["NATIVE"] == ((arch, kind) in NATIVE)
    assert made["FORMAT"] == minifloat.format_type(minifloat_name(kind)) and made["ELEMENT"] == "bf16"


def minifloat_name(kind: torch.dtype) -> str:
    return str(kind).removeprefix("torch.")


@pytest.mark.parametrize("arch", DEVICES)
@pytest.mark.parametrize("D", [1, 16, 40, 64, 96, 128, 200, 256])
def test_operands_are_whole(arch, D):
    made = defines(planned(arch, D=D, E=D))
    unit = 64 if made["NATIVE"] else 32
    assert made["HEAD_D"] == -(-D // unit) * unit and made["HEAD_E"] == -(-D // 32) * 32
    assert made["EVEN_D"] == (made["HEAD_D"] == D) and made["SCALE_ONLY"]
    chunk = 16 if made["NATIVE"] else 8
    assert made["BUFFER_LOADS"] == (arch.startswith("gfx9") and D % chunk == 0)


def test_bits_do_not_follow_from_strides():
    """Rows that no buffer holds go through the same instructions."""
    call = made_call(DEVICES["gfx942"], "mfma", M=4, N=4, D=48, E=48)
    made = defines(accepted(plan_fp8.forward(call)).launches[0])
    assert made["NATIVE"] and made["BUFFER_LOADS"]
    odd = defines(planned("gfx942", M=4, N=4, D=47, E=48))
    assert odd["NATIVE"] and not odd["BUFFER_LOADS"]


@pytest.mark.parametrize(("one", "steps"), [(False, (2, 1)), (True, (0, 0))])
def test_steps_of_scales(one, steps):
    args = arguments_of(planned("gfx950", one_scale=one))
    for scale in ("q_scale", "k_scale", "v_scale"):
        assert (args[f"{scale}_batch"].value, args[f"{scale}_head"].value) == steps


@pytest.mark.slow
@pytest.mark.parametrize("arch", DEVICES)
@pytest.mark.parametrize("D", [64, 128, 256])
def test_nothing_spills(arch, D):
    """But for gfx1100 with the largest heads: nine registers, where the 16-bit kernel spills more."""
    kernel = planned(arch, D=D, E=D, causal=True).kernel
    made = resources(hip.compile(kernel.source, kernel.defines, arch))[kernel.entry]
    largest = arch == "gfx1100" and D == 256
    assert made["vgpr_spills"] <= 9 * largest and made["sgpr_spills"] == 0
    assert largest or made["scratch"] == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arch", "kind", "products"),
    [
        ("gfx942", FP8, "v_mfma_f32_16x16x32_fp8_fp8"),
        ("gfx942", FNUZ, "v_mfma_f32_16x16x32_fp8_fp8"),
        ("gfx950", FP8, "v_mfma_f32_16x16x128_f8f6f4 v_mfma_f32_16x16x32_fp8_fp8"),  # of scores, and with v
        ("gfx1201", FP8, "v_wmma_f32_16x16x16_fp8_fp8"),
        ("gfx90a", FP8, "v_mfma_f32_16x16x16f16"),
        ("gfx1100", FP8, "v_wmma_f32_16x16x16_f16"),
    ],
)
def test_products_are_of_codes_or_of_float16(arch, kind, products):
    kernel = planned(arch, kind).kernel
    loop = body(CodeObject(hip.compile(kernel.source, kernel.defines, arch)), kernel.entry)
    names = {each.name.lower() for each in loop or ()}
    assert {each for each in names if each.startswith(("v_mfma", "v_wmma"))} == set(products.split())


# --- on emulated GPUs -------------------------------------------------------------------------------------

EMULATED = [("gfx942", FP8), ("gfx942", FNUZ), ("gfx950", FP8), ("gfx950", FNUZ), ("gfx1100", FP8)]


def of(arch: str) -> Any:
    return portable.using(attention_fp8=NAMES.get(arch, "mfma"))


@pytest.mark.slow
@pytest.mark.parametrize(("arch", "kind"), EMULATED)
def test_a_nan_of_any_operand_is_one(emulate, arch, kind):
    """Both of OCP's NaN codes, which fnuz instructions take for 240 and -240, and fnuz's own."""
    emulate(arch)
    for code in (0x80,) if kind == FNUZ else (0x7F, 0xFF):
        for name, at in (("q", (0, 1, 5, 7)), ("k", (1, 0, 33, 9)), ("v", (1, 1, 64, 3))):
            call = given(kind)
            whole = call[name].clone()
            whole.view(torch.uint8)[at] = code
            with of(arch):
                o = portable.attention_fp8(**call | {name: whole})
            expected = portable.attention(**wide(call | {name: whole})).isnan()
            assert torch.equal(o.isnan(), expected) and expected.any() and not expected.all()


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["gfx942", "gfx950", "gfx1201", "gfx1100"])
def test_a_negative_zero_is_zero(emulate, arch):
    """0x80, which is NaN to fnuz instructions."""
    emulate(arch)
    call = given()
    for name in "qkv":
        call[name] = call[name].clone()
        call[name].view(torch.uint8)[..., ::3] = 0x80
    with of(arch):
        o = portable.attention_fp8(**call)
    torch.testing.assert_close(o.float(), portable.attention(**wide(call)), atol=0.1, rtol=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(("arch", "kind"), EMULATED)
@pytest.mark.parametrize("scale", [-1.5, 0.0, float("nan")])
def test_any_scale(emulate, arch, kind, scale):
    """The sign goes to q's codes: with NaN among them, and none of a key that is hidden."""
    emulate(arch)
    call = given(kind) | {"k_scale": torch.tensor([[scale, 0.5], [2.0, scale]])}
    call["q"].view(torch.uint8)[1, 1, 4, 2] = 0x80 if kind == FNUZ else 0xFF
    with of(arch):
        o, lse = portable.attention_fp8(**call, window=(20, 3), return_lse=True)
    expected, expected_lse = portable.attention(**wide(call), window=(20, 3), return_lse=True)
    torch.testing.assert_close(o.float(), expected, atol=0.15, rtol=0.1, equal_nan=True)
    torch.testing.assert_close(lse, expected_lse, atol=1e-4, rtol=1e-4, equal_nan=True)

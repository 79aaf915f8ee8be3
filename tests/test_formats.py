"""docs/formats.md: what a GPU multiplies a format in."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def formats():
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        return importlib.import_module("formats")
    finally:
        sys.path.remove(str(ROOT / "docs"))


@pytest.mark.parametrize(
    ("mnemonic", "kind"),
    [
        ("QGMMA.64x256x32.F32.E4M3.E4M3", "fp8"),
        ("QGMMA.SP.64x64x64.F32.E4M3.E4M3", "fp8, 2:4"),
        ("IGMMA.64x256x32.S8.S8", "int8"),
        ("HGMMA.64x128x16.F32.BF16", "bfloat16"),
        ("HGMMA.64x128x8.F32.TF32", "tf32"),
        ("HMMA.16816.F32", "float16"),
        ("HFMA2.MMA", None),
        ("LDG.E", None),
        ("v_mfma_f32_16x16x32_fp8_fp8", "fp8"),
        ("v_mfma_f32_16x16x32_bf8_fp8", "fp8"),
        ("v_mfma_f32_32x32x8_bf16_1k", "bfloat16"),
        ("v_mfma_f32_32x32x8f16", "float16"),
        ("v_mfma_scale_f32_16x16x128_f8f6f4", "f8f6f4"),
        ("v_mfma_scale_f32_16x16x128_f8f6f4 fp4 fp4", "f8f6f4/fp4"),
        ("v_mfma_scale_f32_16x16x128_f8f6f4 bf8 fp8", "f8f6f4/fp8"),
        ("v_mfma_f32_32x32x64_f8f6f4 fp8 fp4", "f8f6f4/fp8/fp4"),
        ("v_smfmac_f32_16x16x32_bf16", "bfloat16, 2:4"),
        ("v_wmma_i32_16x16x16_iu8", "int8"),
        ("v_fma_f32", None),
    ],
)
def test_what_an_instruction_multiplies(formats, mnemonic, kind):
    assert formats.operands(mnemonic) == kind


@pytest.mark.slow
@pytest.mark.parametrize(
    ("op", "inside"),
    [
        ("scaled_mm_mx", "**f8f6f4/fp8**"),
        ("scaled_mm_mxfp4", "**f8f6f4/fp4**"),
        ("scaled_mm_nvfp4", "bfloat16"),
    ],
)
def test_gfx950_multiplies_mx_as_it_is(formats, op, inside):
    row = next(each for each in formats.FORMATS if each.op == op)
    assert formats.cell(row, "gfx950") == f"`mfma`: {inside}"


@pytest.mark.slow
@pytest.mark.parametrize(("op", "arch"), [("int_mm", "sm_90a"), ("scaled_mm_block", "gfx942")])
def test_the_page_says_what_the_machine_code_has(formats, op, arch):
    row = next(each for each in formats.FORMATS if each.op == op)
    (line,) = (
        each for each in formats.PAGE.read_text().splitlines() if each.startswith(f"| {row.title} | `{op}`")
    )
    assert line.split(" | ")[2 + formats.GPUS.index(arch)].rstrip(" |") == formats.cell(row, arch)


def test_every_op_of_low_precision_products_has_a_row(formats):
    named = {row.op for row in formats.FORMATS}
    assert named >= {op for op in formats.registry.op_folders() if "_mm" in op}

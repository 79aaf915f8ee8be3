"""The table of element types against torch, Triton, struct and the preludes."""

from __future__ import annotations

import re
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

import portable
from portable import dtypes
from portable.plan import ScalarKind

ROOT = Path(portable.__file__).resolve().parent.parent
IN_TORCH = [each for each in dtypes.DTYPES.values() if each.in_torch]


@pytest.mark.parametrize("dtype", IN_TORCH, ids=lambda each: each.name)
def test_torch_agrees(dtype):
    kind = dtype.torch
    assert kind is not None and kind.itemsize == dtype.itemsize and dtypes.of(kind) is dtype
    if dtype.kind == "float":
        info = torch.finfo(kind)
        assert info.bits == dtype.bits
        if dtype.itemsize > 1:
            assert info.eps == 2.0**-dtype.mantissa
        else:  # torch 2.13's finfo gives float8_e5m2fnuz an eps of 1/8; its values are 1/4 apart
            values = torch.arange(256, dtype=torch.uint8).view(kind).float()
            above = values[values > 1].min() - 1
            assert above == 2.0**-dtype.mantissa
            assert bool(values.isinf().any()) == dtype.has_infinity
            assert bool(values.isnan().any()) == dtype.has_nan
            assert bool((values < 0).any()) == dtype.signed
    elif dtype.kind == "int":
        info = torch.iinfo(kind)
        assert info.bits == dtype.bits and (info.min < 0) == dtype.signed


@pytest.mark.parametrize("dtype", dtypes.DTYPES.values(), ids=lambda each: each.name)
def test_names_of_languages(dtype):
    if dtype.struct is not None:
        assert struct.calcsize(f"<{dtype.struct}") == dtype.itemsize
    for prelude in (ROOT / "backends").glob("*/prelude.h"):
        declared = rf"(typedef .*|struct alignas\(\d+\)) {dtype.c}\b"
        assert dtype.c in ("double", "bool") or re.search(declared, prelude.read_text()), prelude


def test_triton_knows_the_names():
    from triton.language import str_to_ty

    for dtype in dtypes.DTYPES.values():
        made: Any = str_to_ty("*" + dtype.triton, None)
        assert made.element_ty.primitive_bitwidth in (dtype.itemsize * 8, 1), dtype


def test_tma_knows_the_names():
    import cuda.bindings.driver as driver

    for dtype in dtypes.DTYPES.values():
        assert dtype.tma is None or hasattr(
            driver.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{dtype.tma}"
        )


def test_packed_types_count_bytes():
    fp4, int4 = dtypes.of("float4_e2m1fn_x2"), dtypes.of("int4_x2")
    assert (fp4.itemsize, fp4.per_item, int4.itemsize, int4.per_item) == (1, 2, 1, 2)
    assert int4.torch is None and int4.storage is torch.uint8


def test_scalar_kinds():
    for kind in get_args(ScalarKind):
        assert dtypes.scalar(kind).short == kind and dtypes.scalar(kind).struct
    with pytest.raises(KeyError):
        dtypes.of("float31")


def test_the_table_imports_nothing_heavy():
    code = (
        "import importlib.util, sys\n"
        f"spec = importlib.util.spec_from_file_location('dtypes', {str(ROOT / 'portable/dtypes.py')!r})\n"
        "sys.modules['dtypes'] = module = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(module)\n"
        "print(sorted({'torch', 'triton', 'numpy'} & set(sys.modules)), module.itemsize('float32'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["[]", "4"], done.stderr

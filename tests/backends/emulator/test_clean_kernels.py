"""Correct kernels raise nothing and compute what their definitions say: HIP C++ and Triton, whole kernels."""

from __future__ import annotations

import pytest

from .clean_kernels import CASES
from .kernels.harness import Launcher, arches, wave_of
from .kernels.matrix_layouts import mfmas, wmmas
from .kernels.triton_cases import CASES as TRITON_CASES
from .kernels.triton_cases import Triton

HIP = [
    pytest.param(arch, file, check, id=f"{arch}-{check.__name__}")
    for file, check, only in CASES
    for arch in arches()
    if arch in only
]
TRITON = [
    pytest.param(arch, check, id=f"{arch}-{name}")
    for name, check, only in TRITON_CASES
    for arch in arches()
    if arch in (only or arches())
]
MATRIX = [
    pytest.param(arch, case, id=f"{arch}-{case.name}")
    for arch in arches()
    for case in (mfmas(arch) if wave_of(arch) == 64 else wmmas(gfx11=arch == "gfx1100"))
]


@pytest.mark.parametrize(("arch", "file", "check"), HIP)
def test_clean(file, check, arch):
    check(Launcher(file, arch))


@pytest.mark.parametrize(("arch", "case"), MATRIX)
def test_matrix_instruction(arch, case):
    if wave_of(arch) == 64:
        case.run(Launcher(case.file, arch), fnuz=arch == "gfx942")
    else:
        case.run(Launcher("matrix.hip", arch), gfx11=arch == "gfx1100")


@pytest.mark.slow
@pytest.mark.parametrize(("arch", "check"), TRITON)
def test_triton(check, arch):
    check(Triton(arch))

"""AttentionParams and the C struct of device/params.h are one layout."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from portable.backends.cuda.backend import TARGETS, CudaBackend
from portable.errors import CompileError
from portable.kernels.attention import params
from portable.kernels.attention.sm80 import plan as sm80
from portable.plan import Plan
from portable.runtime import build
from tests.kernels.attention.sm90.test_fwd import build_folder, square


def test_the_header_is_what_the_fields_say():
    header = Path(params.__file__).parent / "device/params.h"
    assert header.read_text() == params.header()


def test_a_kernel_compiled_for_another_layout_is_refused():
    asked = square(1, 1, 1, 8, 8, 64)
    plan = sm80.forward(asked)
    assert isinstance(plan, Plan)
    (launch,) = plan.launches
    defines = tuple(
        (name, value + (name == "PARAMS_LAYOUT")) if isinstance(value, int) else (name, value)
        for name, value in launch.kernel.defines  # type: ignore[union-attr]
    )
    other = dataclasses.replace(launch, kernel=dataclasses.replace(launch.kernel, defines=defines))
    dtypes = {name: x.dtype for name, x in asked.tensors.items() if x is not None}
    with pytest.raises(CompileError, match=r"portable\.kernels\.attention\.params"):
        build.code_object(other, dtypes, CudaBackend(build_folder()), TARGETS[0])

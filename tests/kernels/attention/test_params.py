"""AttentionParams and the C struct of device/params.h are one layout."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from portable.backends.cuda.backend import TARGETS, CudaBackend
from portable.errors import CompileError
from portable.kernels.attention import params
from portable.kernels.attention.sm80 import plan as sm80
from portable.plan import Plan, Pointer, Scalar, Struct
from portable.runtime import build
from tests.kernels.attention.sm80.test_bwd import make_call, make_varlen_call
from tests.kernels.attention.sm90.test_fwd import build_folder, square


def test_the_header_is_what_the_fields_say():
    header = Path(params.__file__).parent / "device/params.h"
    assert header.read_text() == params.header()


def test_a_kernel_compiled_for_another_layout_is_refused():
    call = square(1, 1, 1, 8, 8, 64)
    plan = sm80.forward(call)
    assert isinstance(plan, Plan)
    (launch,) = plan.launches
    defines = tuple(
        (name, value + (name == "PARAMS_LAYOUT")) if isinstance(value, int) else (name, value)
        for name, value in launch.kernel.defines  # type: ignore[union-attr]
    )
    other = dataclasses.replace(launch, kernel=dataclasses.replace(launch.kernel, defines=defines))
    dtypes = {name: x.dtype for name, x in call.tensors.items() if x is not None}
    with pytest.raises(CompileError, match=r"portable\.kernels\.attention\.params"):
        build.code_object(other, dtypes, CudaBackend(build_folder()), TARGETS[0])


@pytest.mark.parametrize("make", [make_call, make_varlen_call])
def test_a_side_of_a_window_that_hides_no_key_is_none(make):
    def sides(**window: Any) -> tuple[int | None, int | None]:
        sizes = (1, 2, 2, 30, 50, 64) if make is make_call else (30, 50, 2, 2, 64)
        found = params.of_call(make(*sizes, **window))
        return found.left, found.right

    assert sides() == (None, None)
    assert sides(window_left=48, window_right=28) == (48, 28)
    assert sides(window_left=49, window_right=29) == (None, None)
    assert sides(window_left=2**40, window_right=7, causal=True) == (None, 0)


def test_a_launch_has_no_pointer_that_it_does_not_use():
    """Tables of varlen, sinks and pages are null in a call without them, whatever a kernel's list says."""
    _, struct = params.of_call(make_call(1, 2, 2, 30, 50, 64)).struct("q dout sinks bounds block_table")
    assert isinstance(struct, Struct)
    pointers = {name: each.tensor for name, each in struct.fields if isinstance(each, Pointer)}
    assert pointers == {"q": "q", "dout": "do"}
    _, struct = params.of_call(make_varlen_call(30, 50, 2, 2, 64)).struct("q bounds tile_list")
    assert isinstance(struct, Struct)
    pointers = {name: each.tensor for name, each in struct.fields if isinstance(each, Pointer)}
    assert pointers == {"q": "q", "bounds": "bounds", "tile_list": "tile_list"}


def test_replacing_a_field_changes_what_kernels_get():
    def keys(p: params.AttentionParams) -> Any:
        _, struct = p.struct("")
        assert isinstance(struct, Struct)
        return dict(struct.fields)["seqlen_k"]

    p = params.of_call(make_call(1, 2, 2, 30, 50, 64))
    assert keys(p) == Scalar("i32", 50)
    assert keys(dataclasses.replace(p, N=70)) == Scalar("i32", 70)

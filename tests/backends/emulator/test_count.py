"""`count`: one launch of a code object that portable did not compile itself."""

from __future__ import annotations

import struct

import pytest
import torch

from portable.backends.rocm import compile as rocm
from portable.backends.rocm.emulator.count import count
from portable.backends.rocm.emulator.faults import EmulatorError, KernelFault

SOURCE = """#include "prelude.h"
struct Scale { float by; const float *offsets; };
extern "C" __global__ void scaled(const float *x, float *y, Scale scale, int n) {
    const int i = __builtin_amdgcn_workgroup_id_x() * 64 + __builtin_amdgcn_workitem_id_x();
    if (i < n) y[i] = x[i] * scale.by + scale.offsets[i];
}
"""


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    source = tmp_path_factory.mktemp("count") / "scaled.hip"
    source.write_text(SOURCE)
    return rocm.compile(source, (), "gfx942")


def arguments(n: int = 100):
    x, offsets = torch.arange(float(n)), torch.full((n,), 0.5)
    y = torch.zeros(n)
    return [x, y, struct.pack("<f4xQ", 2.0, offsets.data_ptr()), n], offsets


def test_a_launch_with_pointers_a_struct_and_a_number(image: bytes):
    given, offsets = arguments()
    trace = count(image, "scaled", (2, 1, 1), (64, 1, 1), given, pointed_to={"offsets": offsets})
    assert torch.equal(given[1], given[0] * 2 + 0.5)
    assert trace.figures["memory"]["global stores"]["bytes"] == 400
    assert trace.bound is not None and trace.bound.roof == "memory"


def test_only_the_given_tensors_can_be_reached(image: bytes):
    with pytest.raises(KernelFault, match="out-of-bounds"):
        count(image, "scaled", (2, 1, 1), (64, 1, 1), arguments()[0])


def test_what_does_not_fit_the_kernel(image: bytes):
    given, _ = arguments()
    with pytest.raises(EmulatorError, match="3 arguments; the kernel takes 4"):
        count(image, "scaled", (2, 1, 1), (64, 1, 1), given[:3])
    with pytest.raises(EmulatorError, match="argument 2 is 3 bytes; the kernel takes 16"):
        count(image, "scaled", (2, 1, 1), (64, 1, 1), [*given[:2], b"abc", 100])
    with pytest.raises(EmulatorError, match="'other' is not in the code object, which has scaled"):
        count(image, "other", (2, 1, 1), (64, 1, 1), given)

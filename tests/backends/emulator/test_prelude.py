"""What the HIP prelude's helpers compute, in machine code."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from portable.backends.rocm.compile import compile

SOURCE = """
#include "prelude.h"
KERNEL(64) void product(unsigned short* out, const float* a, const float* b) {
    out[thread_x()] = from_float<f16>(a[thread_x()] * b[thread_x()]).bits;
}
"""


@pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx1100"])
def test_a_rounded_product_keeps_the_sign_of_zero(arch, tmp_path):
    """clang makes fma_mixlo(a, b, +0) of it unless the product is hidden, and -0 + 0 is +0."""
    from portable.backends.rocm.emulator.code_object import CodeObject
    from portable.backends.rocm.emulator.launch import Buffer, KernelLaunch, launch

    source = tmp_path / "product.hip"
    source.write_text(SOURCE)
    image = compile(source, (("T", "f32"),), arch)
    rng = np.random.default_rng()
    a = rng.standard_normal(64).astype(np.float32)
    b = rng.standard_normal(64).astype(np.float32)
    a[:8], b[:8] = [0.0, -0.0, 0.0, -0.0, 1e-9, -1e-9, 1e-9, -1e-9], [1, 1, -1, -1, 1e-9, 1e-9, -1e-9, -1e-9]
    out = np.full(64, 0x7E55, np.uint16)
    arrays = (out, a, b)
    buffers = [Buffer(f"arg{i}", x.ctypes.data, x.nbytes, i == 0) for i, x in enumerate(arrays)]
    kernel = CodeObject(image).kernels["product"]
    kernarg = struct.pack("<3Q", *(x.ctypes.data for x in arrays))
    launch(KernelLaunch(kernel, (1, 1, 1), (64, 1, 1), 0, kernarg, buffers))
    expected = (a * b).astype(np.float16).view(np.uint16)
    assert out.tolist() == expected.tolist()

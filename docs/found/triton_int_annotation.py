"""Triton's own `test_int_annotation` (python/test/unit/language/test_annotations.py) writes behind its
tensor.

The kernel stores `v` at `X + v`; the test hands in a tensor of one element and 3. As one bit the 3 is 1: the
write lies 4 or 12 bytes behind the start of 4 bytes. torch's allocator rounds a GPU's tensors up to 512
bytes, so that nothing is seen there.

    pytest --gpu gfx942 docs/found/triton_int_annotation.py

It passes where the tensor has the element: `torch.empty(4)`.
"""

import torch
import triton
import triton.language as tl


@triton.jit
def store_at_its_own_value(X, v):
    tl.store(X + v, v)


def test_int_annotation_stays_in_its_tensor():
    x = torch.empty(1, device="cuda")  # as the test has it; torch.empty(4) passes
    store_at_its_own_value[(1,)](x, 3)

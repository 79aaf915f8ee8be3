"""FlagGems 5.0.2: `argmin` along the last axis reads beyond each row where its length is no power of two.

`argmin_kernel_opt_k1` in `flag_gems/ops/argmin.py` loads blocks of BLOCK_N, the next power of two, with
`mask=True`: the first numbers of the next row count as numbers of this one, and the last row's come from
behind the tensor.

    GEMS_VENDOR=amd pytest --gpu gfx942 docs/found/flaggems_argmin.py

It passes for rows of 8 numbers.
"""

import pytest
import torch


@pytest.mark.parametrize("length", [5, 8])
def test_argmin_of_rows(flag_gems, length):
    rows = torch.arange(length, device="cuda").float() + torch.tensor([[9.0], [0.0]], device="cuda")
    padded = torch.full((4 * length + 64,), 99.0, device="cuda")  # room, so that the values show it as well
    x = padded[: 4 * length].view(4, length)
    x.copy_(rows.repeat(2, 1))
    assert flag_gems.argmin(x, dim=-1).tolist() == [0, 0, 0, 0]

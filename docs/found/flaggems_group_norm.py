"""FlagGems 5.0.2: `group_norm` takes channels of the next group in where a group's size is no power of two.

`group_norm_kernel` in `flag_gems/ops/groupnorm.py` has BLOCK_GROUP_SIZE channels, the next power of two, and
masks those beyond C, the number of all channels, not those beyond the group: mean and variance are of too
many numbers, and two programs write the same results. `group_norm_backward_kernel` has the same mask.

    GEMS_VENDOR=amd pytest --gpu gfx942 docs/found/flaggems_group_norm.py

It passes for groups of 4 channels.
"""

import pytest
import torch


@pytest.mark.parametrize("channels", [3, 4])
def test_group_norm(flag_gems, channels):
    torch.manual_seed(0)
    x = torch.randn(1, 2 * channels, 4, device="cuda")
    ones, zeros = torch.ones(2 * channels, device="cuda"), torch.zeros(2 * channels, device="cuda")
    y, _, _ = flag_gems.group_norm(x, ones, zeros, 1, 2 * channels, 4, 2, 1e-5)
    torch.testing.assert_close(y.cpu(), torch.nn.functional.group_norm(x.cpu(), 2))

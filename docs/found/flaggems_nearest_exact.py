"""FlagGems 5.0.2: `_upsample_nearest_exact1d` computes `nearest`, not `nearest-exact`.

`_upsample_nearest_exact1d_kernel` in `flag_gems/ops/_upsample_nearest_exact1d.py` takes element
`ow * IW // OW`; nearest-exact is the element at the middle, `floor((ow + 0.5) * IW / OW)`.

    GEMS_VENDOR=amd pytest --gpu gfx942 docs/found/flaggems_nearest_exact.py

It passes where the output is a multiple of the input.
"""

import pytest
import torch


@pytest.mark.parametrize("size", [3, 8])
def test_nearest_exact(flag_gems, size):
    x = torch.arange(4.0, device="cuda").view(1, 1, 4)
    found = flag_gems._upsample_nearest_exact1d(x, [size], None)
    right = torch.nn.functional.interpolate(x.cpu(), size=size, mode="nearest-exact")
    assert found.flatten().tolist() == right.flatten().tolist()

"""FlagGems 5.0.2: `vector_norm` of a negative order is 0 where a row is shorter than its block.

`v_norm_kernel` in `flag_gems/ops/vector_norm.py` loads 0 beyond a row and adds `pow(0, ord)`,
infinite for a negative order; the infinite sum to the power of 1 / ord is 0.

    GEMS_VENDOR=amd pytest --gpu gfx942 docs/found/flaggems_vector_norm.py

It passes for positive orders.
"""

import pytest
import torch


@pytest.mark.parametrize("order", [-1, 3])
def test_vector_norm(flag_gems, order):
    torch.manual_seed(0)
    x = torch.rand(2, 5, device="cuda") + 0.5
    found = flag_gems.vector_norm(x, order, [1])
    torch.testing.assert_close(found.cpu(), torch.linalg.vector_norm(x.cpu(), order, 1))

"""FlagGems 5.0.2: `vdot` of complex numbers writes two floats for each program into room for one.

`flag_gems/ops/vdot.py` allocates `partial_real_sums = torch.empty(grid_size, ...)`, `grid_size` floats. Its
kernel `vdot_kernel_complex` stores a real and an imaginary part at `2 * pid` and `2 * pid + 1`: the second
half of the programs write behind the tensor. Whether a GPU shows it depends on what lies there.

    GEMS_VENDOR=amd pytest --gpu gfx942 docs/found/flaggems_vdot_complex.py

It passes where the partial sums have `2 * grid_size` elements.
"""

import pytest
import torch


@pytest.mark.parametrize("n", [64, 5000])
def test_vdot_of_complex_numbers_writes_only_its_partial_sums(n):
    flag_gems = pytest.importorskip("flag_gems")
    torch.manual_seed(0)
    x = torch.randn(n, dtype=torch.complex64, device="cuda")
    y = torch.randn(n, dtype=torch.complex64, device="cuda")
    found = flag_gems.vdot(x, y)
    torch.testing.assert_close(
        found.to(torch.complex128), torch.vdot(x.to(torch.complex128), y.to(torch.complex128))
    )

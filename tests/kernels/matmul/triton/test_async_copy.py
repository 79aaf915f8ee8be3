"""Triton's large tiles on gfx950, whose loads go straight to LDS: the emulated GPU faults a missing wait and
a race in LDS."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import portable
from portable.configs import lookup
from portable.dispatch import dispatcher
from portable.kernels.matmul.triton.plan import ASYNC_COPY, plan
from portable.plan import Call
from tests.kernels.matmul.gfx.test_mfma import DEVICES
from tests.kernels.matmul.test_plans import info
from tests.kernels.plan_parts import launch_of

CONFIG = {"BLOCK_M": 256, "BLOCK_N": 256, "BLOCK_K": 32, "GROUP_M": 4, "num_warps": 8, "num_stages": 3,
          "matrix_instr_nonkdim": 16, "waves_per_eu": 2, "kpack": 1}  # fmt: skip


def integers(rows: int, cols: int, layout: str) -> torch.Tensor:
    shape = (rows, cols) if layout == "n" else (cols, rows)
    made = torch.randint(-3, 4, shape).bfloat16()
    return made if layout == "n" else made.mT


def kernel_of(arch: str, M: int = 4096, N: int = 4096, K: int = 4096, stages: int = 3) -> Any:
    made = {"a": (M, K), "b": (K, N), "c": (M, N)}
    tensors = {name: info(torch.empty(*shape, dtype=torch.bfloat16)) for name, shape in made.items()}
    config = {**CONFIG, "num_stages": stages}
    return launch_of(plan(Call(tensors, {"precision": "ieee"}, {}, DEVICES[arch], config))).kernel


@pytest.mark.parametrize("sizes", [(4096, 4096, 4096), (256, 256, 64)], ids=str)
def test_whole_tiles_on_gfx950(sizes):
    kernel = kernel_of("gfx950", *sizes)
    assert dict(kernel.options).get(ASYNC_COPY) and kernel.num_stages == 3
    assert ASYNC_COPY not in dict(kernel_of("gfx942", *sizes, stages=2).options)


@pytest.mark.parametrize(
    "sizes",
    [(4088, 4096, 4096), (4096, 4088, 4096), (4096, 4096, 4072), (4096, 4096, 32), (4096, 4096, 4095)],
    ids=str,
)
def test_what_a_mask_may_leave_nothing_goes_through_registers(sizes):
    """Triton 3.7 jumps over a load that no lane of a wave takes, but its waits count it: a race in LDS."""
    kernel = kernel_of("gfx950", *sizes)
    assert ASYNC_COPY not in dict(kernel.options) and kernel.num_stages == 2


@pytest.mark.parametrize("layouts", ["nn", "nt", "tn", "tt"])
def test_sums_of_integers_are_exact(emulate, layouts):
    """As few steps as the loop loads before it, and more; and over both edges, through registers."""
    emulate("gfx950")
    torch.manual_seed(0)
    for M, N, K in ((256, 256, 64), (512, 256, 96), (256, 512, 224), (264, 136, 72)):
        a, b = integers(M, K, layouts[0]), integers(K, N, layouts[1])
        with lookup.forcing("matmul", "triton", CONFIG), portable.using(matmul="triton"):
            dispatcher.clear_caches()
            found = portable.matmul(a, b)
        assert torch.equal(found, (a.double() @ b.double()).bfloat16()), (M, N, K)

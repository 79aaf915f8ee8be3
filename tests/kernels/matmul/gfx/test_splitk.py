"""Split-K on CDNA: where it is chosen, what it computes on an emulated GPU."""

from __future__ import annotations

from unittest import mock

import pytest
import torch

import portable
from portable.dispatch import dispatcher
from portable.kernels.matmul.gfx import plan, splitk_plan
from portable.plan import Call, Plan, Rejected
from tests.kernels.matmul.gfx.test_mfma import DEVICES, matrix
from tests.kernels.matmul.test_plans import info


def planned(M: int, N: int, K: int, arch: str = "gfx942", layouts: str = "nt") -> Plan | Rejected:
    tensors = {"a": info(matrix(M, K, layouts[0])), "b": info(matrix(K, N, layouts[1]))}
    tensors["c"] = info(matrix(M, N, "n"))
    return splitk_plan.plan(Call(tensors, {"precision": "ieee"}, {}, DEVICES[arch], {}))


@pytest.mark.parametrize("arch", DEVICES)
@pytest.mark.parametrize("sizes", [(512, 512, 8192), (16, 8192, 8192), (64, 4096, 4096), (256, 256, 16384)])
def test_few_tiles_and_a_long_k_fill_the_gpu(arch, sizes):
    M, N, K = sizes
    found = planned(M, N, K, arch)
    assert isinstance(found, Plan)
    tiles, parts, _ = found.launches[0].grid
    assert parts > 1
    assert 0.4 < tiles * parts / DEVICES[arch].multiprocessors <= 2  # two blocks fit a compute unit


@pytest.mark.parametrize(
    "sizes", [(4096, 4096, 4096), (1000, 1000, 1000), (512, 512, 512), (16, 65536, 4096)]
)
def test_products_that_need_none(sizes):
    assert isinstance(planned(*sizes), Rejected)


def test_unaligned_lines_are_left_to_the_whole_product():
    assert isinstance(planned(512, 512, 8190), Rejected)


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx950"])
@pytest.mark.parametrize("tile", [plan.ALIGNED[3][0], plan.ALIGNED[4][0]], ids=["128x128", "64x64"])
def test_parts_of_uneven_length_with_an_epilogue(emulate, arch, tile):
    """Three parts, the last one shorter; edges in M, N and K; the same bits every time."""
    emulate(arch)
    torch.manual_seed(0)
    x, weight, bias = (torch.randn(*shape).bfloat16() for shape in ((70, 328), (90, 328), (90,)))
    split = splitk_plan.Split(tile, 128)
    found = []
    with mock.patch.object(splitk_plan, "split_of", lambda *_: split), portable.using(linear="mfma_splitk"):
        dispatcher.clear_caches()
        for _ in range(2):
            found.append(portable.linear(x, weight, bias, activation="silu"))
    assert torch.equal(*found)
    want = torch.nn.functional.silu(x.double() @ weight.double().T + bias.double())
    assert (found[0].double() - want).abs().max() < 0.02 * want.abs().max()

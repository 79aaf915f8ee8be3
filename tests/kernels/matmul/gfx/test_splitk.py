"""Split-K on CDNA: where it is chosen, what it computes on an emulated GPU."""

from __future__ import annotations

from unittest import mock

import pytest
import torch

import portable
from portable.dispatch import dispatcher
from portable.kernels.matmul.gfx import plan, splitk_plan
from portable.plan import Call, Plan, Rejected, Scalar
from tests.kernels.matmul.gfx.test_mfma import DEVICES, matrix
from tests.kernels.matmul.test_plans import info
from tests.kernels.plan_parts import defines


def planned(M: int, N: int, K: int, arch: str = "gfx942", layouts: str = "nt") -> Plan | Rejected:
    tensors = {"a": info(matrix(M, K, layouts[0])), "b": info(matrix(K, N, layouts[1]))}
    tensors["c"] = info(matrix(M, N, "n"))
    return splitk_plan.plan(Call(tensors, {"precision": "ieee"}, {}, DEVICES[arch], {}))


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
@pytest.mark.parametrize("sizes", [(512, 512, 8192), (16, 8192, 8192), (64, 4096, 4096), (256, 256, 16384)])
def test_few_tiles_and_a_long_k_fill_the_gpu(arch, sizes):
    M, N, K = sizes
    found = planned(M, N, K, arch)
    assert isinstance(found, Plan)
    tiles, parts, _ = found.launches[0].grid
    assert parts > 1
    blocks = tiles * parts / DEVICES[arch].multiprocessors
    assert 0.6 < blocks <= 4  # of 64x64, four fit a compute unit


@pytest.mark.parametrize(
    ("arch", "sizes"),
    [
        ("gfx942", (4096, 4096, 4096)),
        ("gfx942", (1024, 1024, 1024)),
        ("gfx942", (512, 512, 512)),
        ("gfx950", (1024, 1024, 1024)),
        ("gfx950", (512, 512, 512)),
        ("gfx950", (2048, 2048, 1024)),
        ("gfx950", (16, 65536, 4096)),
    ],
    ids=str,
)
def test_products_that_need_none(arch, sizes):
    assert isinstance(planned(*sizes, arch=arch), Rejected)


@pytest.mark.parametrize(
    ("arch", "sizes", "tile", "parts"),
    [
        ("gfx942", (256, 4096, 4096), (64, 64), 3),
        ("gfx942", (64, 4096, 4096), (64, 64), 8),
        ("gfx950", (512, 512, 8192), (64, 64), 12),
        ("gfx950", (1536, 1536, 4096), (256, 128), 3),
        ("gfx950", (256, 4096, 4096), (128, 128), 4),
    ],
    ids=str,
)
def test_tile_and_parts_of_the_least_clocks(arch, sizes, tile, parts):
    """docs/notes/matmul.md has the modelled times. A part waits at every step; the reduction reads four parts
    at once."""
    found = planned(*sizes, arch=arch)
    assert isinstance(found, Plan)
    made = defines(found.launches[0])
    assert ((made["TILE_M"], made["TILE_N"]), found.launches[0].grid[1]) == (tile, parts)


def test_unaligned_lines_are_left_to_the_whole_product():
    assert isinstance(planned(512, 512, 8190), Rejected)


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx950"])
@pytest.mark.parametrize("tile", plan.ALIGNED[3:5], ids=["128x128", "64x64"])
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


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx950"])
@pytest.mark.parametrize(("layouts", "K"), [("nn", 3848), ("tt", 4040)])
def test_a_shorter_last_part_is_exact(emulate, arch, layouts, K):
    """As the plan itself cuts K: now into parts of 256 and one of 8, and of 256 and one of 200. Sums of
    integers have no error, so nothing beyond K may be added, and nothing of it left out."""
    found = planned(64, 64, K, arch, layouts)
    assert isinstance(found, Plan)
    k_step = dict(found.launches[0].args)["k_step"]
    assert isinstance(k_step, Scalar) and K % int(k_step.value) > 0
    emulate(arch)
    assert torch.equal(*integers(layouts, K))


def integers(layouts: str, K: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A product of integers by split-K, and what it is."""
    generator = torch.Generator().manual_seed(0)

    def operand(rows: int, cols: int, layout: str) -> torch.Tensor:
        shape = (rows, cols) if layout == "n" else (cols, rows)
        made = torch.randint(-3, 4, shape, generator=generator).bfloat16()
        return made if layout == "n" else made.mT

    a, b = operand(64, K, layouts[0]), operand(K, 64, layouts[1])
    with portable.using(matmul="mfma_splitk"):
        dispatcher.clear_caches()
        return portable.matmul(a, b), (a.double() @ b.double()).bfloat16()

"""RDNA's matrix kernel: a product's tile, what its loop holds, its edges on emulated GPUs."""

from __future__ import annotations

from collections import Counter
from typing import Any
from unittest import mock

import pytest
import torch

import portable
from portable.backends.rocm import compile as hip
from portable.backends.rocm.emulator import main_loop
from portable.backends.rocm.emulator.code_object import CodeObject
from portable.backends.rocm.metadata import resources
from portable.dispatch import dispatcher
from portable.kernels.matmul.gfx import plan
from portable.plan import Call, Device
from tests.kernels.matmul.gfx.test_mfma import matrix
from tests.kernels.matmul.test_plans import info
from tests.kernels.plan_parts import defines, launch_of

DEVICES = {
    "gfx1100": Device("rocm", "gfx1100", "toy", 0, 96, 32, 64 * 1024, 256),
    "gfx1201": Device("rocm", "gfx1201", "toy", 0, 64, 32, 64 * 1024, 256),
}


def launch(M: int, N: int, K: int, arch: str = "gfx1100", *, layouts: str = "nt", pitch: int = 0) -> Any:
    tensors = {
        "a": info(matrix(M, K, layouts[0], pitch=pitch)),
        "b": info(matrix(K, N, layouts[1])),
        "c": info(matrix(M, N, "n")),
    }
    return launch_of(plan.wmma(Call(tensors, {"precision": "ieee"}, {}, DEVICES[arch], {})))


@pytest.mark.parametrize(
    ("sizes", "tile"),
    [
        ((4096, 4096, 4096), (128, 128, 32)),
        ((512, 512, 8192), (64, 64, 64)),
        ((32, 65536, 4096), (32, 128, 64)),
    ],
)
def test_the_tile(sizes, tile):
    made = defines(launch(*sizes))
    assert (made["TILE_M"], made["TILE_N"], made["TILE_K"]) == tile


@pytest.mark.parametrize(("pitch", "far"), [(4096, 0), (2**24 - 8, 0), (2**24, 1)])
def test_lines_2_gigabytes_apart_take_offsets_of_64_bits(pitch, far):
    """A tile of 128 lines of 2^25 bytes ends at 2^32."""
    assert defines(launch(4096, 4096, 4096, pitch=pitch))["FAR"] == far


@pytest.mark.slow
@pytest.mark.parametrize("layouts", ["nt", "nn", "tt", "tn"])
@pytest.mark.parametrize(
    ("arch", "reads", "transposed_writes"),
    [
        ("gfx1100", 64, {"ds_store_b16": 32, "ds_store_b16_d16_hi": 32}),
        ("gfx1201", 32, {"ds_store_b128": 8}),
    ],
)
def test_the_loop_has_nothing_beside_the_products(arch, reads, transposed_writes, layouts):
    """Two steps: no other vector instruction in any layout."""
    kernel = launch(4096, 4096, 4096, arch, layouts=layouts).kernel
    image = hip.compile(kernel.source, kernel.defines, arch)
    made = resources(image)[kernel.entry]
    assert made["vgpr_spills"] == made["sgpr_spills"] == made["scratch"] == 0
    loop = main_loop.body(CodeObject(image), kernel.entry)
    assert loop is not None
    found = Counter(each.name for each in loop)
    assert {n: count for n, count in found.items() if n.startswith("v_")} == {"v_wmma_f32_16x16x16_bf16": 64}
    writes: Counter[str] = Counter()
    for along_k in (layouts[0] == "n", layouts[1] == "t"):
        writes.update({"ds_store_b128": 8} if along_k else transposed_writes)
    assert {n: count for n, count in found.items() if n.startswith("ds_")} == {
        "ds_load_b128": reads,
        **writes,
    }
    assert sum(count for n, count in found.items() if n.startswith("global_load")) == 16
    assert found["s_barrier"] + found["s_barrier_wait"] == 2


def strided(rows: int, cols: int, layout: str, pitch: int = 0) -> torch.Tensor:
    """Random numbers in a matrix whose lines are `pitch` elements longer than they need to be."""
    rows, cols = (rows, cols) if layout == "n" else (cols, rows)
    made = torch.randn(rows, cols + pitch).bfloat16()[:, :cols]
    return made if layout == "n" else made.mT


TILES = (plan.WMMA_LARGE, plan.WMMA_SMALL, plan.WMMA_FEW_ROWS)


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["gfx1100", "gfx1201"])
@pytest.mark.parametrize("layouts", ["nt", "nn", "tt", "tn"])
def test_edges_in_every_layout(emulate, arch, layouts):
    """Tiles over both edges of c; no loop, its tail alone, several rounds, odd ends and lines; every tile,
    and wide offsets, bit for bit the same."""
    emulate(arch)
    torch.manual_seed(0)
    for M, N, K, pitch in ((136, 72, 8, 0), (129, 131, 32, 0), (131, 203, 161, 3), (40, 136, 256, 0)):
        a, b = strided(M, K, layouts[0], pitch), strided(K, N, layouts[1], pitch)
        found = []
        for tile, far in ((plan.WMMA_LARGE, True), *((tile, False) for tile in TILES)):
            with (
                mock.patch.object(plan, "wmma_tile", lambda *_, tile=tile: tile),
                mock.patch.object(plan, "_far", lambda *_, far=far: far),
                portable.using(matmul="wmma"),
            ):
                dispatcher.clear_caches()
                found.append(portable.matmul(a, b, out=torch.full((M, N), float("nan"), dtype=a.dtype)))
        assert all(torch.equal(found[0], each) for each in found[1:]), (M, N, K)
        want = a.double() @ b.double()
        assert (found[0].double() - want).abs().max() < 0.01 * K**0.5 * 4


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["gfx1100", "gfx1201"])
def test_lines_that_overlap(emulate, arch):
    """A row repeated along k: what lies behind its end is not there to be loaded."""
    emulate(arch)
    torch.manual_seed(0)
    a, row = torch.randn(40, 100).bfloat16(), torch.randn(70).bfloat16()
    with portable.using(matmul="wmma"):
        c = portable.matmul(a, row.expand(100, 70))
    want = a.double() @ row.double().expand(100, 70)
    assert (c.double() - want).abs().max() < 0.4

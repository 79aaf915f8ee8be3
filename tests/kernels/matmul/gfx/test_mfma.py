"""CDNA's matrix kernels: a product's tile, what the ping-pong loop holds, its edges on emulated GPUs."""

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
from portable.backends.rocm.emulator.isa.inst import Inst
from portable.backends.rocm.metadata import resources
from portable.dispatch import dispatcher
from portable.kernels.matmul.gfx import plan
from portable.plan import Call, Device
from tests.kernels.matmul.test_plans import info
from tests.kernels.plan_parts import defines, launch_of

DEVICES = {
    "gfx90a": Device("rocm", "gfx90a", "toy", 0, 104, 64, 64 * 1024, 512),
    "gfx942": Device("rocm", "gfx942", "toy", 0, 304, 64, 64 * 1024, 512),
    "gfx950": Device("rocm", "gfx950", "toy", 0, 256, 64, 160 * 1024, 512),
}
LARGE, WIDE = (tile for tile, _ in plan.PING_PONG)


def matrix(rows: int, cols: int, layout: str, *, pitch: int = 0) -> torch.Tensor:
    """ "n" row-major, "t" column-major, as BLAS names them; `pitch` elements from one line to the next."""
    rows, cols = (rows, cols) if layout == "n" else (cols, rows)
    found = torch.empty(rows, pitch or cols, dtype=torch.bfloat16, device="meta")[:, :cols]
    return found if layout == "n" else found.mT


def launch(
    M: int, N: int, K: int, arch: str = "gfx942", *, layouts: str = "nt", pitch: int = 0, base: int = 16
) -> Any:
    a, b = matrix(M, K, layouts[0], pitch=pitch), matrix(K, N, layouts[1])
    tensors = {"a": info(a, base), "b": info(b), "c": info(matrix(M, N, "n"))}
    return launch_of(plan.mfma(Call(tensors, {"precision": "ieee"}, {}, DEVICES[arch], {})))


def tile_of(*args: Any, **kwargs: Any) -> tuple[int, int, int]:
    made = defines(launch(*args, **kwargs))
    return made["TILE_M"], made["TILE_N"], made["PING_PONG"]


@pytest.mark.parametrize(
    ("sizes", "tile"),
    [
        ((4096, 4096, 4096), (256, 256, 1)),
        ((2040, 4088, 328), (256, 128, 1)),
        ((2048, 2048, 2048), (128, 128, 0)),
        ((512, 512, 8192), (64, 64, 0)),
        ((32, 65536, 4096), (32, 128, 0)),
    ],
)
def test_the_tile_whose_rounds_end_first(sizes, tile):
    assert tile_of(*sizes) == tile


@pytest.mark.parametrize(
    "given",
    [
        {"base": 8},
        {"pitch": 4100},
        {"K": 4092},
        {"layouts": "tt", "M": 4095, "pitch": 4096},
        {"layouts": "tt", "K": 270000},
        {"K": 0},
    ],
    ids=str,
)
def test_what_the_ping_pong_loop_cannot_load(given):
    """Lines that are not a multiple of 16 bytes, an end inside a load, offsets past 2^31, nothing to load."""
    sizes = [given.pop(name, 4096) for name in "MNK"]
    assert tile_of(*sizes, **given)[2] == 0


@pytest.mark.parametrize("layouts", ["nn", "tn", "tt"])
def test_any_layout_takes_it(layouts):
    assert tile_of(4096, 4096, 4096, layouts=layouts) == (256, 256, 1)


def waits_for_memory(loop: list[Inst]) -> list[int]:
    """How many of its accesses each `s_waitcnt vmcnt` leaves outstanding."""
    waits = [each.fields["simm16"] & 0xFFFF for each in loop if each.name == "s_waitcnt"]
    counts = [wait & 15 | wait >> 14 << 4 for wait in waits]
    return [count for count in counts if count != 63]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arch", "layouts", "products", "reads", "vector"),
    [
        ("gfx90a", "nt", 128, {"ds_read_b128": 24}, {}),
        ("gfx942", "nt", 128, {"ds_read_b128": 24}, {}),
        ("gfx942", "nn", 128, {"ds_read_b128": 24}, {}),
        ("gfx90a", "nn", 128, {"ds_read_b128": 24}, {}),
        ("gfx942", "tt", 128, {"ds_read_b128": 24}, {}),
        ("gfx942", "tn", 128, {"ds_read_b128": 24}, {}),
        ("gfx950", "nt", 128, {"ds_read_b128": 48}, {}),
        ("gfx950", "nn", 128, {"ds_read_b128": 32, "ds_read_b64_tr_b16": 32}, {}),
        ("gfx950", "tn", 128, {"ds_read_b64_tr_b16": 96}, {}),
    ],
)
def test_the_loop_has_nothing_beside_the_products(arch, layouts, products, reads, vector):
    kernel = launch(8192, 8192, 8192, arch, layouts=layouts).kernel
    image = hip.compile(kernel.source, kernel.defines, arch)
    made = resources(image)[kernel.entry]
    assert made["vgpr_spills"] == made["sgpr_spills"] == made["scratch"] == 0
    assert made["vgprs"] <= 256  # two waves a SIMD
    loop = main_loop.body(CodeObject(image), kernel.entry)
    assert loop is not None
    found = Counter(each.name for each in loop)
    assert sum(count for name, count in found.items() if "mfma" in name) == products
    assert {name: count for name, count in found.items() if name.startswith("ds_read")} == reads
    assert {n: count for n, count in found.items() if n.startswith("v_") and "mfma" not in n} == vector
    if arch == "gfx950":
        # Once a step, all but three half tiles. A compiler that knows less of aliases waits for all at
        # each read of LDS.
        assert waits_for_memory(loop) == [6, 6]


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
@pytest.mark.parametrize("tile", [LARGE, WIDE], ids=["256x256", "256x128"])
@pytest.mark.parametrize("layouts", ["nt", "nn", "tt", "tn"])
def test_edges_in_every_layout(emulate, arch, tile, layouts):
    """Tiles over both edges of c; one step, an early end, several steps; bit for bit as the small tiles."""
    emulate(arch)
    torch.manual_seed(0)
    for M, N, K in ((264, 136, 8), (256, 264, 64), (520, 136, 392)):
        a, b = (
            torch.randn(*shape).bfloat16().as_strided(shape, stride)
            for shape, stride in (
                ((M, K), (K, 1) if layouts[0] == "n" else (1, M)),
                ((K, N), (N, 1) if layouts[1] == "n" else (1, K)),
            )
        )
        found = []
        for entry in (lambda *_: tile, plan.wmma_tile):
            with mock.patch.object(plan, "mfma_tile", entry), portable.using(matmul="mfma"):
                dispatcher.clear_caches()
                found.append(portable.matmul(a, b, out=torch.full((M, N), float("nan"), dtype=a.dtype)))
        assert torch.equal(*found), (M, N, K)
        want = a.double() @ b.double()
        assert (found[0].double() - want).abs().max() < 0.01 * K

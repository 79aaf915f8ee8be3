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
from portable.kernels.matmul.gfx import align_copy, plan
from portable.plan import Call, Device
from tests.kernels.matmul.test_plans import info
from tests.kernels.plan_parts import defines, launch_of

DEVICES = {
    "gfx90a": Device("rocm", "gfx90a", "toy", 0, 104, 64, 64 * 1024, 512),
    "gfx942": Device("rocm", "gfx942", "toy", 0, 304, 64, 64 * 1024, 512),
    "gfx950": Device("rocm", "gfx950", "toy", 0, 256, 64, 160 * 1024, 512),
}
TILES = {f"{tile.m}x{tile.n}": tile for tile in plan.ALIGNED}


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
    return made["TILE_M"], made["TILE_N"], made["ALIGNED"]


FULL = "full compute units: the fewest bytes of LDS and exposed waits for its products"
FEW = "fewer tiles than compute units: a step waits for its loads, so the shortest step"


@pytest.mark.parametrize(
    ("sizes", "gfx942", "gfx950", "why"),
    [
        ((4096, 4096, 4096), (256, 256), (256, 256), FULL),
        ((4096, 4096, 512), (256, 256), (256, 256), FULL),
        ((2816, 4096, 2048), (256, 256), (256, 256), FULL),
        ((2040, 4088, 328), (256, 128), (256, 128), "one round; twice as many in half the tile, none idle"),
        ((2048, 2048, 1024), (64, 64), (128, 128), "four small blocks or a large one for each compute unit"),
        ((1024, 1024, 1024), (64, 64), (64, 64), FEW),
        ((1000, 1000, 1000), (64, 64), (64, 64), FEW),
        ((512, 512, 512), (64, 64), (64, 64), FEW),
        ((16, 65536, 4096), (32, 128), (128, 256), "memory sets the time of several: who waits least"),
    ],
    ids=str,
)
def test_the_tile_of_the_least_clocks(sizes, gfx942, gfx950, why):
    """docs/notes/matmul.md has the modelled times."""
    assert tile_of(*sizes, "gfx942") == (*gfx942, 1), why
    assert tile_of(*sizes, "gfx950") == (*gfx950, 1), why


def test_unaligned_operands_have_tiles_of_their_own(monkeypatch):
    monkeypatch.setattr(align_copy, "_WORTH", 0.0)
    assert tile_of(4097, 4096, 511) == (128, 128, 0)
    assert tile_of(32, 4096, 511) == (32, 128, 0)


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
def test_what_is_not_aligned(given, monkeypatch):
    """Lines that are not a multiple of 16 bytes, an end inside a load, offsets past 2^31, nothing to load."""
    monkeypatch.setattr(align_copy, "_WORTH", 0.0)
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
    ("arch", "layouts", "sizes", "products", "reads"),
    [
        ("gfx90a", "nt", (8192, 8192), 128, {"ds_read_b128": 24}),
        ("gfx90a", "nn", (8192, 8192), 128, {"ds_read_b128": 24}),
        ("gfx942", "nt", (8192, 8192), 128, {"ds_read_b128": 24}),
        ("gfx942", "tt", (8192, 8192), 128, {"ds_read_b128": 24}),
        ("gfx942", "tn", (8192, 8192), 128, {"ds_read_b128": 24}),
        ("gfx942", "nn", (2560, 2048), 64, {"ds_read_b128": 16}),
        ("gfx942", "nt", (512, 512), 16, {"ds_read_b128": 8}),
        ("gfx942", "nt", (32, 8192), 16, {"ds_read_b128": 8}),
        ("gfx950", "nt", (8192, 8192), 128, {"ds_read_b128": 48}),
        ("gfx950", "nn", (8192, 8192), 128, {"ds_read_b128": 32, "ds_read_b64_tr_b16": 32}),
        ("gfx950", "tn", (8192, 8192), 128, {"ds_read_b64_tr_b16": 96}),
        ("gfx950", "nn", (128, 65536), 64, {"ds_read_b128": 16, "ds_read_b64_tr_b16": 32}),
        ("gfx950", "tn", (2048, 2048), 64, {"ds_read_b64_tr_b16": 64}),
    ],
)
def test_the_loop_has_no_vector_instruction_beside_the_products(arch, layouts, sizes, products, reads):
    kernel = launch(sizes[0], sizes[1], 8192, arch, layouts=layouts).kernel
    made_for = dict(kernel.defines)
    image = hip.compile(kernel.source, kernel.defines, arch)
    made = resources(image)[kernel.entry]
    assert made["vgpr_spills"] == made["sgpr_spills"] == made["scratch"] == 0
    assert made["vgprs"] <= 256  # two waves a SIMD
    loop = main_loop.body(CodeObject(image), kernel.entry)
    assert loop is not None
    found = Counter(each.name for each in loop)
    assert sum(count for name, count in found.items() if "mfma" in name) == products
    assert {name: count for name, count in found.items() if name.startswith("ds_read")} == reads
    assert not [name for name in found if name.startswith("v_") and "mfma" not in name]
    if arch == "gfx950":
        # Once a step, all but three half tiles. A compiler that knows less of aliases waits for all at
        # each read of LDS.
        a, b = (made_for[f"TILE_{side}"] // 2 * 64 * 2 // 16 // made_for["THREADS"] for side in "MN")
        assert waits_for_memory(loop) == [a + 2 * b] * 2


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx950"])
@pytest.mark.parametrize("layouts", ["nt", "nn", "tn"])
def test_small_tiles_wait_once_a_step(arch, layouts):
    """All loads of the next step are issued before the first of them is waited for. Permutations that had
    moved up, with their wait, made it two trips to memory: 1024^3 nn took 17.0 us on gfx942, not 11.2."""
    kernel = launch(512, 512, 8192, arch, layouts=layouts).kernel
    assert dict(kernel.defines)["PING_PONG"] == 0
    loop = main_loop.body(CodeObject(hip.compile(kernel.source, kernel.defines, arch)), kernel.entry)
    names = [each.name for each in loop or ()]
    loads = [index for index, name in enumerate(names) if name.startswith("buffer_load")]
    reads = [index for index, name in enumerate(names) if name.startswith("ds_read")]
    assert len(loads) == 4
    assert loads[-1] < reads[0]
    permutations = [index for index, name in enumerate(names) if name == "v_perm_b32"]
    products = [index for index, name in enumerate(names) if "mfma" in name]
    assert not permutations or products[-1] < permutations[0]


@pytest.mark.slow
def test_small_tiles_transpose_in_registers_for_lds():
    """Which is their busiest pipe: 8 words of two k, not 16 stores of 2 bytes."""
    kernel = launch(512, 512, 8192, layouts="nn").kernel
    loop = main_loop.body(CodeObject(hip.compile(kernel.source, kernel.defines, "gfx942")), kernel.entry)
    found = Counter(each.name for each in loop or ())
    assert (found["v_perm_b32"], found["ds_write_b32"], found["ds_write_b16"]) == (8, 8, 0)


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
@pytest.mark.parametrize("tile", TILES.values(), ids=TILES)
@pytest.mark.parametrize("layouts", ["nt", "tn"])
def test_edges_of_both_layouts_of_both_operands(emulate, arch, tile, layouts):
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
        for entry in (lambda *_: tile, lambda problem, device: plan._deeper(plan._SMALL, device)):
            with mock.patch.object(plan, "mfma_tile", entry), portable.using(matmul="mfma"):
                dispatcher.clear_caches()
                found.append(portable.matmul(a, b, out=torch.full((M, N), float("nan"), dtype=a.dtype)))
        assert torch.equal(*found), (M, N, K)
        want = a.double() @ b.double()
        assert (found[0].double() - want).abs().max() < 0.01 * K

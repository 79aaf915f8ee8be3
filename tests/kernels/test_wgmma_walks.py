"""What wgmma.cu's blocks walk: one tile each, narrow tiles at the edge, parts of k; each sum exactly once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from portable import build, catalog
from portable.backends.cuda.backend import CudaBackend
from portable.kernels.matmul import native
from portable.plan import Launch, NativeKernel, Plan, Rejected
from tests.kernels.test_matmul_native import H200, call, half


def product(M: int, N: int, K: int, batch: int = 1, config: dict[str, int] | None = None) -> Launch:
    """The launch of wgmma.cu for a row-major a and a column-major b."""
    a, b = half(batch, M, K), half(batch, N, K).mT
    plan = native.wgmma(replace(call(a, b), config=config or {}))
    assert isinstance(plan, Plan), plan
    (launch,) = plan.launches
    return launch


def native_kernel(launch: Launch) -> NativeKernel:
    assert isinstance(launch.kernel, NativeKernel)
    return launch.kernel


def walked(launch: Launch) -> dict[tuple[int, int, int], list[tuple[int, int]]]:
    """(batch, row, column) of every piece of c that is multiplied, and who does it: (block, columns)."""
    defines: dict[str, Any] = dict(native_kernel(launch).defines)
    args: dict[str, Any] = dict(launch.args)
    m, n = args["m"].value, args["n"].value
    batches = args["outer_batches"].value * args["inner_batches"].value
    rows, columns, edge = defines["TILE_M"], defines["TILE_N"], defines["EDGE"]
    cluster_m, cluster_n = defines["CLUSTER_M"], defines["CLUSTER_N"]
    height, width = rows * cluster_m, columns * cluster_n
    across = n // width if edge else -(-n // width)
    down = -(-m // height)
    found: dict[tuple[int, int, int], list[tuple[int, int]]] = {}

    def cluster_tiles(batch: int, i: int, j: int, block: int) -> None:
        for rank in range(cluster_m * cluster_n):
            at = (batch, i * height + rank % cluster_m * rows, j * width + rank // cluster_m * columns)
            found.setdefault(at, []).append((block + rank, columns))

    if defines["ONCE"]:
        assert launch.grid == (down * cluster_m * cluster_n, across, batches)
        for batch in range(batches):
            for i in range(down):
                for j in range(across):
                    cluster_tiles(batch, i, j, 0)
        return found
    blocks, cluster = launch.grid[0], cluster_m * cluster_n
    assert blocks % cluster == 0 and blocks <= H200.multiprocessors
    for first in range(0, blocks, cluster):
        for index in range(first // cluster, down * across * batches, blocks // cluster):
            batch, within = divmod(index, down * across)
            cluster_tiles(batch, within // across, within % across, first)
    if edge:
        first_edge, count = args["first_edge"].value, -(-m // rows) * batches
        for block in range(first_edge, blocks):
            for index in range(block - first_edge, count, blocks - first_edge):
                batch, i = divmod(index, -(-m // rows))
                found.setdefault((batch, i * rows, across * width), []).append((block, edge))
    return found


@pytest.mark.parametrize(
    ("M", "N", "K", "batch", "config"),
    [
        (4095, 4097, 4099 // 8 * 8, 1, {}),
        (4096, 4160, 4096, 1, {}),
        (2049, 4200, 520, 1, {"TILE_N": 256, "STAGES": 4, "CLUSTER_M": 2, "EDGE": 128}),
        (513, 520, 136, 7, {"TILE_N": 128, "STAGES": 6, "EDGE": 64}),
        (1111, 2222, 3328, 1, {"TILE_N": 160, "STAGES": 4, "CLUSTER_M": 1, "CLUSTER_N": 1}),
        (1111, 2312, 40, 1, {"TILE_N": 256, "STAGES": 4, "CLUSTER_M": 2, "CLUSTER_N": 1, "EDGE": 64}),
        (130, 257, 72, 5, {}),
        (65, 8, 2048, 1, {}),
        (1024, 1024, 1024, 1, {}),
        (1000, 1032, 264, 1, {"TILE_M": 192, "TILE_N": 192, "STAGES": 3, "CLUSTER_M": 2}),
        (3000, 3000, 200, 1, {"TILE_M": 192, "TILE_N": 128, "STAGES": 4, "CLUSTER_M": 1, "CLUSTER_N": 1}),
        (2048, 2048, 2048, 1, {"TILE_N": 256, "STAGES": 4, "CLUSTER_M": 2, "CLUSTER_N": 1}),
        (8192, 8192, 512, 1, {}),
        (300, 264, 64, 60, {}),
    ],
)
def test_every_element_is_multiplied_once(M, N, K, batch, config):
    launch = product(M, N, K, batch, config)
    rows = int(dict(native_kernel(launch).defines)["TILE_M"])
    covered = torch.zeros(batch, M, N, dtype=torch.int8)
    for (index, row, col), who in walked(launch).items():
        assert len(who) == 1
        covered[index, row : row + rows, col : col + who[0][1]] += 1
    assert bool((covered == 1).all())


def test_narrow_tiles_run_where_the_last_wave_leaves_blocks_idle():
    """4097 columns: 512 whole tiles in four waves less 16 blocks, which take the 32 narrow ones."""
    launch = product(4095, 4097, 4096)
    defines: dict[str, Any] = dict(native_kernel(launch).defines)
    args: dict[str, Any] = dict(launch.args)
    assert (defines["TILE_N"], defines["CLUSTER_M"], defines["EDGE"]) == (256, 2, 64)
    assert args["first_edge"].value == 512 - 3 * 132 and launch.grid == (132, 1, 1)
    assert args["map_edge"].box == (64, 64, 1, 1) and args["map_edge"].tensor == "b"
    busiest = max(
        sum(columns for pieces in walked(launch).values() for who, columns in pieces if who == block)
        for block in range(132)
    )
    assert busiest == 4 * 256


def test_narrow_tiles_are_left_out_where_they_save_no_wave():
    assert dict(native_kernel(product(4096, 4096, 4096)).defines)["EDGE"] == 0
    assert dict(native_kernel(product(1024, 1032, 1024)).defines)["EDGE"] == 0


def test_one_tile_a_block_has_stages_for_the_buffers_of_a_second():
    """Measured 2026-11-21: 1024^3 with four stages 0.84 of torch, with eight 0.95."""
    once, walk = product(1024, 1024, 1024), product(8192, 1024, 1024, config={"TILE_M": 64, "TILE_N": 128})
    assert (
        dict(native_kernel(once).defines)["STAGES"] == 9 and dict(native_kernel(walk).defines)["STAGES"] == 8
    )
    for launch in (once, walk):
        stage = (64 + 128) * 128
        assert H200.shared_memory - stage < native_kernel(launch).shared <= H200.shared_memory


def test_tiles_of_160_columns_are_for_lines_along_k_and_threads_that_store():
    """160 columns end within 64 of c's columns, and within lines of a row-major b."""
    config = {"TILE_N": 160, "STAGES": 4, "CLUSTER_M": 1, "CLUSTER_N": 1}
    for a, b, taken in (
        (half(1111, 3328), half(2222, 3328).mT, True),
        (half(1111, 3328), half(2224, 3328).mT, False),
        (half(1111, 3328), half(3328, 2224)[:, :2222], False),
    ):
        assert isinstance(native.wgmma(replace(call(a, b), config=config)), Plan if taken else Rejected)
    packed = native.packed(call(half(1111, 3333), half(2222, 3333).mT))
    assert isinstance(packed, Plan)
    assert dict(native_kernel(packed.launches[1]).defines)["TILE_N"] == 160
    assert packed.launches[1].grid == (9, 14, 1)


def test_an_edge_that_does_not_fit_is_refused():
    asked = replace(call(half(4096, 512), half(512, 4224)), config={"TILE_N": 256, "EDGE": 64})
    answer = native.wgmma(asked)
    assert isinstance(answer, Rejected) and "narrow tiles" in answer.reason


def split(M: int, N: int, K: int) -> Plan | Rejected:
    return native.split(call(half(M, K), half(K, N)))


DIVIDED = [
    (300, 304, 20008),
    (512, 512, 16384),
    (129, 1032, 2056),
    (256, 256, 4096),
    (768, 3072, 16384),
    (3000, 3000, 3000),
]


@pytest.mark.parametrize(("M", "N", "K"), DIVIDED)
def test_divided_tiles_fill_the_card(M, N, K):
    plan = split(M, N, K)
    assert isinstance(plan, Plan), plan
    first, second = plan.launches
    defines: dict[str, Any] = dict(native_kernel(first).defines)
    assert defines["DIVIDED"] == 1 and defines["ONCE"] == defines["EDGE"] == 0
    assert H200.multiprocessors // 2 <= first.grid[0] <= H200.multiprocessors
    (sums,) = plan.workspaces
    area = defines["TILE_M"] * defines["TILE_N"]
    assert sums.shape == (first.grid[0] * 2 * area,) and sums.dtype == "float32"
    for name in ("TILE_M", "TILE_N", "CLUSTER_M", "CLUSTER_N", "GROUP", "C_TOUCHES"):
        assert dict(native_kernel(second).defines)[name] == defines[name]
    threads = native_kernel(second).threads
    assert second.grid[1] * threads * 4 == area and threads % 128 == 0


@pytest.mark.parametrize(("M", "N", "K"), DIVIDED)
def test_each_step_of_a_divided_tile_is_summed_once_and_in_order(M, N, K):
    """wgmma_division.h, as wgmma.cu writes the parts and wgmma_sum.cu reads them."""
    plan = split(M, N, K)
    assert isinstance(plan, Plan), plan
    first, second = plan.launches
    defines: dict[str, Any] = dict(native_kernel(first).defines)
    args: dict[str, Any] = dict(second.args)
    cluster = defines["CLUSTER_M"] * defines["CLUSTER_N"]
    clusters, tiles, steps = args["clusters"].value, second.grid[0] // cluster, -(-K // 64)
    assert clusters * cluster == first.grid[0] and tiles <= clusters
    assert dict(first.args)["whole"] == args["whole"]
    down = -(-M // (defines["TILE_M"] * defines["CLUSTER_M"]))
    across = -(-N // (defines["TILE_N"] * defines["CLUSTER_N"]))
    assert args["whole"].value + tiles == down * across
    assert args["whole"].value % clusters == 0

    def start(number: int) -> int:
        return tiles * steps * number // clusters

    def owner(step: int) -> int:
        return ((step + 1) * clusters - 1) // (tiles * steps)

    written: dict[int, list[tuple[int, int]]] = {}
    for number in range(clusters):
        at = begin = start(number)
        assert start(number + 1) - begin >= 4
        while at < start(number + 1):
            count = min(steps - at % steps, start(number + 1) - at)
            slot = number * 2 + (at != begin)
            assert slot not in written
            written[slot] = [(at // steps, step) for step in range(at % steps, at % steps + count)]
            at += count
    for tile in range(tiles):
        low, high = owner(tile * steps), owner(tile * steps + steps - 1)
        slots = [low * 2 + (start(low) < tile * steps), *(2 * number for number in range(low + 1, high + 1))]
        summed = [piece for slot in slots for piece in written.pop(slot)]
        assert summed == [(tile, step) for step in range(steps)]
    assert not written


def test_operands_of_a_split_are_packed_where_they_are_not_aligned():
    plan = split(300, 301, 20003)
    assert isinstance(plan, Plan), plan
    names = [launch.kernel.name for launch in plan.launches]
    assert names == ["matmul_pack", "matmul_wgmma", "matmul_wgmma_sum"]
    assert [space.name for space in plan.workspaces] == ["a_packed", "b_packed", "sums"]


@pytest.mark.parametrize(
    ("M", "N", "K", "reason"),
    [
        (4096, 4096, 4096, "keep the card busy"),
        (1024, 1024, 1024, "keep the card busy"),
        (256, 256, 128, "keep the card busy"),
        (64, 4096, 4096, "leave most of one empty"),
    ],
)
def test_what_a_split_leaves_whole(M, N, K, reason):
    answer = split(M, N, K)
    assert isinstance(answer, Rejected) and reason in answer.reason


@pytest.mark.parametrize(("batch", "M", "N"), [(0, 200, 264), (3, 200, 0), (0, 4096, 4104), (2, 0, 200)])
def test_products_without_elements_launch_nothing(batch, M, N):
    asked = call(half(batch, M, 4096), half(batch, 4096, N))
    assert isinstance(native.split(asked), Rejected)
    plan = native.wgmma(asked)
    assert isinstance(plan, Rejected) or 0 in plan.launches[0].grid


@pytest.mark.parametrize(
    "plan",
    [
        lambda: native.wgmma(call(half(4095, 4096), half(4097, 4096).mT)),
        lambda: native.wgmma(call(half(1024, 1024), half(1024, 1024))),
        lambda: split(300, 301, 20003),
        lambda: split(512, 512, 16384),
    ],
    ids=["edge", "once", "split, packed", "split"],
)
def test_kernels_compile_without_spills(plan):
    pytest.importorskip("cuda.bindings.nvrtc")
    backend = CudaBackend(catalog.vendors()["cuda"])
    for launch in plan().launches:
        dtypes = {"sums": "float32", "a_packed": "bfloat16", "b_packed": "bfloat16"}
        found = backend.resources(build.code_object(launch, dtypes, backend, H200))
        assert (found.stack, found.spills) == (0, 0)

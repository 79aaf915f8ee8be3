"""Plans of wgmma.cu: tiles and grids, narrow tiles at the edge, split-K.

That each element of c is summed once is for the conformance suite on a GPU to say.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from portable.backends.cuda.backend import CudaBackend
from portable.kernels.matmul.problem import Problem, from_matmul
from portable.kernels.matmul.sm90 import realigned_plan, splitk_plan, wgmma_plan
from portable.plan import Launch, Plan, Rejected
from portable.runtime import build
from portable.spec import registry
from tests.kernels.matmul.test_plans import H200, half, make_call
from tests.kernels.plan_parts import accepted, launch_of, native_kernel


def product(M: int, N: int, K: int, batch: int = 1, config: dict[str, int] | None = None) -> Launch:
    """The launch of wgmma.cu for a row-major a and a column-major b."""
    a, b = half(batch, M, K), half(batch, N, K).mT
    return launch_of(wgmma_plan.plan(replace(make_call(a, b), config=config or {})))


@pytest.mark.parametrize(
    ("M", "N", "K", "batch", "config"),
    [
        (4095, 4097, 4099 // 8 * 8, 1, {}),
        (4096, 4160, 4096, 1, {}),
        (2049, 4200, 520, 1, {"TILE_N": 256, "STAGES": 4, "CLUSTER_M": 2, "N_TAIL": 128}),
        (513, 520, 136, 7, {"TILE_N": 128, "STAGES": 6, "N_TAIL": 64}),
        (1111, 2222, 3328, 1, {"TILE_N": 160, "STAGES": 4, "CLUSTER_M": 1, "CLUSTER_N": 1}),
        (1111, 2312, 40, 1, {"TILE_N": 256, "STAGES": 4, "CLUSTER_M": 2, "CLUSTER_N": 1, "N_TAIL": 64}),
        (130, 257, 72, 5, {}),
        (65, 8, 2048, 1, {}),
        (1024, 1024, 1024, 1, {}),
        (1000, 1032, 264, 1, {"TILE_M": 192, "TILE_N": 192, "STAGES": 3, "CLUSTER_M": 2}),
        (384, 4096, 512, 1, {}),
        (3000, 3000, 200, 1, {"TILE_M": 192, "TILE_N": 128, "STAGES": 4, "CLUSTER_M": 1, "CLUSTER_N": 1}),
        (2048, 2048, 2048, 1, {"TILE_N": 256, "STAGES": 4, "CLUSTER_M": 2, "CLUSTER_N": 1}),
        (8192, 8192, 512, 1, {}),
        (300, 264, 64, 60, {}),
        (72, 4096, 512, 1, {}),
        (1000, 1000, 1000, 1, {"TILE_M": 64, "TILE_N": 96, "CLUSTER_M": 2}),
        (2304, 2304, 136, 1, {"TILE_M": 64, "TILE_N": 208, "CLUSTER_M": 2}),
    ],
)
def test_the_grid_has_whole_clusters_for_all_tiles_of_c(M, N, K, batch, config):
    launch = product(M, N, K, batch, config)
    defines: dict[str, Any] = dict(native_kernel(launch).defines)
    args: dict[str, Any] = dict(launch.args)
    m, n = args["m"].value, args["n"].value
    assert args["outer_batches"].value * args["inner_batches"].value == batch
    cluster = defines["CLUSTER_M"] * defines["CLUSTER_N"]
    height, width = defines["TILE_M"] * defines["CLUSTER_M"], defines["TILE_N"] * defines["CLUSTER_N"]
    narrow = n % width if defines["N_TAIL"] else 0
    assert narrow <= defines["N_TAIL"]
    tiles = -(-m // height) * -(-(n - narrow) // width) * batch
    if defines["NON_PERSISTENT"]:  # a cluster for each tile, all at once
        assert launch.grid == (-(-m // height) * cluster, -(-n // width), batch)
        assert tiles * cluster <= H200.multiprocessors
        return
    blocks = launch.grid[0]
    assert launch.grid[1:] == (1, 1) and blocks % cluster == 0 and blocks <= H200.multiprocessors
    n_tails = -(-m // defines["TILE_M"]) * batch if narrow else 0
    assert blocks > H200.multiprocessors - cluster or blocks // cluster >= tiles
    assert 0 <= args["first_n_tail"].value < blocks or not n_tails


@pytest.mark.parametrize(
    ("M", "rows", "pair", "last"),
    [(128, 64, 2, 64), (96, 64, 2, 32), (65, 64, 2, 8), (121, 64, 2, 64), (999, 128, 1, 104)],
)
def test_the_last_rows_are_a_box_of_their_own(M, rows, pair, last):
    """Rows beyond an operand take TMA longer than those within."""
    config = {"TILE_M": rows, "TILE_N": 128, "CLUSTER_M": pair}
    launch = product(M, 1024, 512, config=config)
    args: dict[str, Any] = dict(launch.args)
    assert dict(native_kernel(launch).defines)["M_TAIL"] == 1
    assert args["map_m_tail"].box == (64, last, 1, 1) and args["map_m_tail"].sizes == args["map_a"].sizes
    shared = product(M, 1024, 512, config={**config, "TILE_M": 128, "CLUSTER_M": 1, "CLUSTER_N": 2})
    assert dict(native_kernel(shared).defines)["M_TAIL"] == 0 and "map_m_tail" not in dict(shared.args)


def test_narrow_tiles_run_where_the_last_wave_leaves_blocks_idle():
    """4097 columns: 512 whole tiles in four waves less 16 blocks, which take the 32 narrow ones."""
    launch = product(4095, 4097, 4096)
    defines: dict[str, Any] = dict(native_kernel(launch).defines)
    args: dict[str, Any] = dict(launch.args)
    assert (defines["TILE_N"], defines["CLUSTER_M"], defines["N_TAIL"]) == (256, 2, 64)
    assert args["first_n_tail"].value == 512 - 3 * 132 and launch.grid == (132, 1, 1)
    assert args["map_n_tail"].box == (64, 64, 1, 1) and args["map_n_tail"].tensor == "b"


def test_narrow_tiles_are_left_out_where_they_save_no_wave():
    assert dict(native_kernel(product(4096, 4096, 4096)).defines)["N_TAIL"] == 0
    assert dict(native_kernel(product(1024, 1032, 1024)).defines)["N_TAIL"] == 0


def test_one_tile_a_block_has_stages_for_the_buffers_of_a_second():
    """Measured 2026-11-21: 1024^3 with four stages 0.84 of torch, with eight 0.95."""
    once, walk = product(1024, 1024, 1024), product(8192, 1024, 1024, config={"TILE_M": 64, "TILE_N": 128})
    assert (
        dict(native_kernel(once).defines)["STAGES"] == 9 and dict(native_kernel(walk).defines)["STAGES"] == 8
    )
    for launch in (once, walk):
        stage = (64 + 128) * 128
        assert H200.shared_memory - stage < native_kernel(launch).shared <= H200.shared_memory


def test_widths_between_multiples_of_64_are_for_lines_along_k():
    """Blocks of 64 columns of a row-major b do not end with 160."""
    config = {"TILE_N": 160, "STAGES": 4, "CLUSTER_M": 1, "CLUSTER_N": 1}
    for a, b, taken in (
        (half(1111, 3328), half(2222, 3328).mT, True),
        (half(1111, 3328), half(2224, 3328).mT, True),
        (half(1111, 3328), half(3328, 2224)[:, :2222], False),
    ):
        assert isinstance(
            wgmma_plan.plan(replace(make_call(a, b), config=config)), Plan if taken else Rejected
        )
    realigned = realigned_plan.plan(make_call(half(1111, 3333), half(2222, 3333).mT))
    assert isinstance(realigned, Plan)
    assert dict(native_kernel(realigned.launches[1]).defines)["TILE_N"] == 160
    assert realigned.launches[1].grid == (9, 14, 1)


def test_a_row_major_b_has_such_widths_in_a_flipped_product():
    """c.T = b.T @ a.T: TMA stores boxes of 16 columns of the tile, which are rows of c."""
    launch = wgmma_plan.plan(make_call(half(1536, 1536), half(1536, 1536)))
    assert isinstance(launch, Plan)
    defines: dict[str, Any] = dict(native_kernel(launch.launches[0]).defines)
    args: dict[str, Any] = dict(launch.launches[0].args)
    assert (defines["C_COL_MAJOR"], defines["C_BOX_COLS"], defines["TILE_N"]) == (1, 16, 144)
    assert args["map_c"].box == (64, 16, 1, 1) and args["map_a"].tensor == "b"
    for a, b in (
        (half(1536, 1536), half(1536, 1536).mT),  # any width without it
        (half(1536, 1536).mT, half(1536, 1536)),  # neither operand has lines along k
        (half(1536, 1536), half(1536, 1544)[:, :1541]),  # threads store c
    ):
        plan = wgmma_plan.plan(make_call(a, b))
        assert isinstance(plan, Plan)
        assert dict(native_kernel(plan.launches[0]).defines)["C_COL_MAJOR"] == 0


@pytest.mark.parametrize("k_major", [True, False])
def test_few_columns_are_rows_of_a_flipped_product(k_major):
    b = half(104, 8192).mT if k_major else half(8192, 104)
    plan = wgmma_plan.plan(make_call(half(8192, 8192), b))
    assert isinstance(plan, Plan)
    defines: dict[str, Any] = dict(native_kernel(plan.launches[0]).defines)
    args: dict[str, Any] = dict(plan.launches[0].args)
    assert (defines["C_COL_MAJOR"], defines["TILE_M"], defines["CLUSTER_M"]) == (1, 64, 2)
    assert (args["m"].value, args["n"].value, args["map_b"].tensor) == (104, 8192, "a")


NOWHERE = 2**31 - 1


@pytest.mark.parametrize(
    ("b", "config", "last"),
    [
        (half(3000, 512).mT, {"TILE_N": 192}, 3000 - 192),
        # Lines at multiples of 16 bytes: some start in sectors.
        (half(512, 3000), {"TILE_N": 192}, 3000 - 192),
        (half(512, 3008)[:, :3000], {"TILE_N": 192}, NOWHERE),  # none does, and none is to
        (half(512, 3008), {"TILE_N": 192}, 3008 - 192),
        (half(3001, 512).mT, {"TILE_N": 192}, NOWHERE),  # threads store c
        (half(136, 512).mT, {"TILE_N": 192}, NOWHERE),  # a single tile
        (half(3136, 512).mT, {"TILE_N": 256, "N_TAIL": 64}, NOWHERE),
    ],
)
def test_the_last_tile_ends_at_the_last_column(b, config, last):
    """Lines of a box outside b take TMA longer than those within: 1520^3 was 10 % slower with them."""
    launch = launch_of(wgmma_plan.plan(replace(make_call(half(1000, 512), b), config=config)))
    args: dict[str, Any] = dict(launch.args)
    assert args["last_col"].value == last
    if last != NOWHERE:  # every column has a tile
        starts = {min(col, last) for col in range(0, b.shape[1], config["TILE_N"])}
        assert {col + i for col in starts for i in range(config["TILE_N"])} == set(range(b.shape[1]))


@pytest.mark.parametrize(
    ("M", "N", "K", "batch", "stays"),
    [
        (8192, 28672, 4096, 1, 1),
        (8192, 14336, 4096, 1, 0),  # narrow tiles
        (8192, 4096, 4096, 1, 1),
        (8192, 28672, 4104, 1, 0),  # the rows of a group are more than 16 MiB
        (8192, 4096, 14336, 1, 0),
        (4096, 4096, 4096, 1, 0),  # too short to meet the power limit
        (4096, 4096, 4096, 2, 0),
        (8192, 28673, 4096, 1, 0),  # threads store c
    ],
)
def test_rows_that_a_raster_group_reads_again_stay_in_l2(M, N, K, batch, stays):
    """Measured under load 2026-11-27: 8192x28672x4096 1.5 % faster; rows of 131 MB 1.5 % slower."""
    launch = product(M, N, K, batch)
    defines: dict[str, Any] = dict(native_kernel(launch).defines)
    assert defines["STRIP_IN_L2"] == stays
    if stays:
        rows = defines["GROUP_M"] * defines["CLUSTER_M"] * defines["TILE_M"]
        assert rows * K * 2 <= 16 << 20 and defines["C_TMA"] and not defines["NON_PERSISTENT"]


@pytest.mark.parametrize(
    ("a", "b", "first"),
    [
        (half(8192, 32000), half(32000, 4096), "b"),
        (half(8192, 28672).mT, half(8192, 4096), "b"),
        (half(8192, 4096), half(6144, 4096).mT, "b"),  # whose rows stay in L2
        (half(8192, 14336), half(4096, 14336).mT, "a"),
        (half(8192, 4096), half(4096, 14336), "a"),
        (half(4096, 8192).mT.contiguous(), half(4096, 4096), "b"),
        (half(4096, 4096), half(4096, 2048), "a"),  # short
    ],
)
def test_long_products_walk_their_longer_side_last(a, b, first):
    """Measured under load 2026-11-27: 28672x4096x8192 tn 1.3 % faster with A and B swapped."""
    args: dict[str, Any] = dict(launch_of(wgmma_plan.plan(make_call(a, b))).args)
    assert args["map_a"].tensor == first


@pytest.mark.slow
@pytest.mark.parametrize("row_major", [(False, False), (False, True), (True, False), (True, True)])
def test_a_product_whose_rows_stay_in_l2_fits_its_registers(row_major):
    backend = CudaBackend(registry.vendors()["cuda"])
    a, b = half(8192, 4096), half(4096, 28672)
    a, b = (x if rows else half(*reversed(x.shape)).mT for x, rows in zip((a, b), row_major, strict=True))
    launch = launch_of(wgmma_plan.plan(make_call(a, b)))
    assert dict(native_kernel(launch).defines)["STRIP_IN_L2"] == 1
    types = dict.fromkeys([*"abc"], "bfloat16")
    found = backend.resources(build.code_object(launch, types, backend, H200))
    assert found.spills == found.stack == 0


def test_an_n_tail_that_does_not_fit_is_refused():
    call = replace(make_call(half(4096, 512), half(512, 4224)), config={"TILE_N": 256, "N_TAIL": 64})
    answer = wgmma_plan.plan(call)
    assert isinstance(answer, Rejected) and "narrow tiles" in answer.reason


def split(M: int, N: int, K: int) -> Plan | Rejected:
    return splitk_plan.plan(make_call(half(M, K), half(K, N)))


SPLITK = [(300, 304, 20008), (512, 512, 16384), (256, 256, 16384), (512, 1024, 16384), (768, 3072, 16384)]
CLUSTERS = [(256, 256, 4096), (1024, 1024, 8192), (128, 3584, 18944), (129, 1032, 2056), (80, 5120, 13824)]


@pytest.mark.parametrize(("M", "N", "K"), SPLITK)
def test_tiles_that_do_not_fill_a_wave_are_divided_along_k(M, N, K):
    """Whole tiles come in full waves; of each other one, every part is a cluster's."""
    plan = accepted(split(M, N, K))
    first, second = plan.launches
    defines: dict[str, Any] = dict(native_kernel(first).defines)
    args: dict[str, Any] = dict(first.args)
    assert (
        defines["SPLITK"] == 1
        and defines["NON_PERSISTENT"] == defines["N_TAIL"] == defines["C_COL_MAJOR"] == 0
    )
    cluster = defines["CLUSTER_M"] * defines["CLUSTER_N"]
    whole, k_splits, clusters = args["whole"].value, args["k_splits"].value, first.grid[0] // cluster
    assert H200.multiprocessors // 3 <= first.grid[0] <= H200.multiprocessors
    assert whole % clusters == 0
    assert 2 <= k_splits <= -(-K // 64) // 4
    down = -(-M // (defines["TILE_M"] * defines["CLUSTER_M"]))
    across = -(-N // (defines["TILE_N"] * defines["CLUSTER_N"]))
    divided = down * across - whole
    assert divided * k_splits <= clusters
    (sums,) = plan.workspaces
    area = defines["TILE_M"] * defines["TILE_N"]
    assert sums.shape == (divided * k_splits * cluster * area,) and sums.dtype == "float32"
    for name in ("TILE_M", "TILE_N", "CLUSTER_M", "CLUSTER_N", "GROUP_M", "C_CONTIGUOUS"):
        assert dict(native_kernel(second).defines)[name] == defines[name]
    assert dict(second.args)["whole"] == args["whole"] and dict(second.args)["k_splits"] == args["k_splits"]
    threads = native_kernel(second).threads
    assert second.grid == (divided * cluster, area // 4 // threads, 1) and threads % 128 == 0


@pytest.mark.parametrize(("M", "N", "K"), CLUSTERS)
def test_a_cluster_divides_a_tile_along_k_in_one_launch_of_one_wave(M, N, K):
    plan = accepted(split(M, N, K))
    (launch,) = plan.launches
    defines: dict[str, Any] = dict(native_kernel(launch).defines)
    parts = defines["CLUSTER_K"]
    assert not plan.workspaces and parts in (2, 4)
    assert defines["NON_PERSISTENT"] == 1 and defines["SPLITK"] == defines["N_TAIL"] == 0
    assert defines["CLUSTER_M"] == defines["CLUSTER_N"] == 1
    tiles = -(-M // defines["TILE_M"]) * -(-N // defines["TILE_N"])
    assert launch.grid == (tiles * parts, 1, 1)
    assert tiles * parts <= (132 if parts == 2 else 112)
    assert 16 * parts <= -(-K // 64)
    assert defines["TILE_N"] // parts % 16 == 0
    stages = defines["STAGES"] * (defines["TILE_M"] + defines["TILE_N"]) * 128
    assert defines["TILE_M"] * defines["TILE_N"] * 4 < stages


@pytest.mark.parametrize("K", [1024, 1984])
def test_short_products_are_not_divided_in_clusters(K):
    plan = split(128, 1024, K)
    assert isinstance(plan, Rejected) or [space.name for space in plan.workspaces] == ["partials"]


def test_a_preactivation_is_not_computed_in_clusters():
    """The blocks of a cluster store one output."""
    a, b = half(256, 4096), half(4096, 256)
    call = make_call(a, b)
    problem = from_matmul(call)
    assert isinstance(problem, Problem)
    split = splitk_plan.splitk_config(replace(problem, preactivation=call["c"]), call)
    assert isinstance(split, splitk_plan.SplitKConfig)


def test_the_last_wave_of_a_long_product_is_divided_along_k():
    """28672x4096x8192 is 27.15 waves of clusters: the ten tiles left are in six parts each."""
    plan = accepted(splitk_plan.plan(make_call(half(8192, 28672).mT, half(8192, 4096))))
    args: dict[str, Any] = dict(plan.launches[0].args)
    assert args["map_a"].tensor == "b"  # swapped as without
    assert (args["whole"].value, args["k_splits"].value) == (27 * 66, 6)
    (partials,) = plan.workspaces
    assert partials.shape == (10 * 6 * 256 * 256,)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (half(8192, 14336), half(4096, 14336).mT),  # 7.76 waves: too many tiles are left for equal parts
        (half(8192, 32000).mT, half(8192, 4096)),  # 30.3 waves: 1.8 % by the costs, measured as nothing
    ],
)
def test_a_last_wave_that_is_as_fast_whole_is_not_divided(a, b):
    answer = splitk_plan.plan(make_call(a, b))
    assert isinstance(answer, Rejected) and "split-K not needed" in answer.reason


def test_a_long_product_whose_rows_stay_in_l2_is_not_divided():
    answer = splitk_plan.plan(make_call(half(8192, 4096), half(4096, 4096).mT))
    assert isinstance(answer, Rejected) and "split-K not needed" in answer.reason


def test_unaligned_operands_of_splitk_are_realigned():
    plan = split(300, 301, 20003)
    assert isinstance(plan, Plan), plan
    names = [launch.kernel.name for launch in plan.launches]
    assert names == ["matmul_align_copy", "matmul_wgmma", "matmul_splitk_reduce"]
    assert [space.name for space in plan.workspaces] == ["a_realigned", "b_realigned", "partials"]


@pytest.mark.parametrize(
    ("M", "N", "K", "reason"),
    [
        (4096, 4096, 4096, "split-K not needed"),
        (1024, 1024, 1024, "split-K not needed"),
        (256, 256, 128, "split-K not needed"),
        (64, 4096, 4096, "too small for this kernel"),
    ],
)
def test_what_a_split_leaves_whole(M, N, K, reason):
    answer = split(M, N, K)
    assert isinstance(answer, Rejected) and reason in answer.reason


@pytest.mark.parametrize(("batch", "M", "N"), [(0, 200, 264), (3, 200, 0), (0, 4096, 4104), (2, 0, 200)])
def test_products_without_elements_launch_nothing(batch, M, N):
    call = make_call(half(batch, M, 4096), half(batch, 4096, N))
    assert isinstance(splitk_plan.plan(call), Rejected)
    plan = wgmma_plan.plan(call)
    assert isinstance(plan, Rejected) or 0 in plan.launches[0].grid


@pytest.mark.slow
@pytest.mark.parametrize(
    "plan",
    [
        lambda: wgmma_plan.plan(make_call(half(4095, 4096), half(4097, 4096).mT)),
        lambda: wgmma_plan.plan(make_call(half(1024, 1024), half(1024, 1024))),
        lambda: split(300, 301, 20003),
        lambda: split(512, 512, 16384),
        lambda: split(256, 256, 4096),
        lambda: split(128, 3584, 18944),
    ],
    ids=["n_tail", "non_persistent", "splitk, realigned", "splitk", "cluster, 64 rows", "cluster, 128 rows"],
)
def test_kernels_compile_without_spills(plan):
    backend = CudaBackend(registry.vendors()["cuda"])
    for launch in plan().launches:
        dtypes = {"partials": "float32", "a_realigned": "bfloat16", "b_realigned": "bfloat16"}
        found = backend.resources(build.code_object(launch, dtypes, backend, H200))
        assert (found.stack, found.spills) == (0, 0)

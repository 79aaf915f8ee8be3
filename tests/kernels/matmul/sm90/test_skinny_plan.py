"""Plans of products with few rows: who is served, how the work is divided, what the copies bring."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from portable.backends.cuda.backend import CudaBackend
from portable.kernels.matmul.sm90 import skinny_plan
from portable.plan import Call, Plan, Rejected, Scalar
from portable.runtime import build
from portable.spec import registry
from tests.kernels.matmul.test_plans import H200, half, info, make_call
from tests.kernels.plan_parts import launch_of

SHAPES = [(8192, 8192), (14336, 4096), (4096, 14336), (28672, 8192), (520, 1000), (64, 64)]


def single(*shape: int) -> torch.Tensor:
    return torch.empty(*shape, dtype=torch.float32, device="meta")


def defines_of(plan: Plan | Rejected) -> dict[str, Any]:
    return dict(launch_of(plan).kernel.defines)


@pytest.mark.parametrize("make", [half, single])
@pytest.mark.parametrize("M", [1, 5, 8, 16, 31, 32])
@pytest.mark.parametrize(("N", "K"), SHAPES)
def test_blocks_fit_the_gpu(make, M, N, K):
    for b in (make(K, N), make(N, K).mT):
        launch = launch_of(skinny_plan.plan(make_call(make(M, K), b)))
        defines = dict(launch.kernel.defines)
        assert launch.grid[0] == -(-N // defines["TILE_N"]) * defines["K_SPLITS"]
        assert defines["TILE_M"] >= M
        assert launch.kernel.threads == (defines["CONSUMERS"] + 1) * 32
        assert (launch.kernel.shared + 1024) * defines["RESIDENT"] <= H200.shared_memory + 1024
        sums = defines["TILE_M"] * (defines["TILE_N"] + 4) * 4  # staged where the ring was
        assert launch.kernel.shared >= 1024 + sums
        assert defines["STAGES"] >= 2


@pytest.mark.parametrize("M", [1, 16, 64])
@pytest.mark.parametrize(("N", "K"), SHAPES[:3])
def test_one_wave_gives_most_multiprocessors_a_block(M, N, K):
    launch = launch_of(skinny_plan.plan(make_call(half(M, K), half(N, K).mT)))
    defines = dict(launch.kernel.defines)
    assert 0.75 * H200.multiprocessors <= launch.grid[0] <= defines["RESIDENT"] * H200.multiprocessors


@pytest.mark.parametrize("make", [half, single])
def test_clusters_leave_no_multiprocessor_two_blocks(make):
    """Clusters of more than two crowd: they get half of the GPU."""
    shapes = (*SHAPES, (512, 8192), (1024, 4096), (4096, 4096), (7000, 4096), (20000, 512))
    for M in (1, 16, 31):
        for N, K in shapes:
            launch = launch_of(skinny_plan.plan(make_call(make(M, K), make(K, N))))
            split = dict(launch.kernel.defines)["K_SPLITS"]
            assert split == 1 or launch.grid[0] <= H200.multiprocessors // (1 if split == 2 else 2)


def test_few_rows_of_a_large_product_wait_for_deep_rings():
    """Measured 2026-11-21: with 128 rows, then its own, three stages reach 0.80 of torch, seven 0.96."""
    for M, N, K in ((64, 14336, 4096), (64, 8192, 8192), (33, 14336, 4096)):
        defines = defines_of(skinny_plan.plan(make_call(half(M, K), half(K, N))))
        assert defines["RESIDENT"] == 1 and defines["STAGES"] >= 7


@pytest.mark.parametrize("M", [1, 8, 16])
def test_a_block_of_the_next_product_starts_beside_one_that_drains(M):
    """But never two of the wide: the next product's blocks would crowd. Measured 2026-11-27 on an H200: with
    two blocks of 256 columns on a multiprocessor 72 us for 59."""
    system = 1024  # bytes of every block
    room = H200.shared_memory + system

    def block(N: int) -> Any:
        return launch_of(skinny_plan.plan(make_call(half(M, 4096), half(N, 4096).mT)))

    narrow, wide = block(6144 if M == 1 else 8192), block(28672)
    assert dict(narrow.kernel.defines)["TILE_N"] == 64 and dict(wide.kernel.defines)["TILE_N"] == 224
    assert narrow.kernel.shared + wide.kernel.shared + 2 * system <= room < 2 * (wide.kernel.shared + system)


def test_a_constant_weight_fills_the_whole_pipeline():
    for M, N, K in ((1, 4096, 4096), (16, 28672, 4096)):
        call = make_call(half(M, K), half(N, K).mT)
        launch = launch_of(skinny_plan.plan(call, constant_weight=True))
        defines = dict(launch.kernel.defines)
        assert defines["CONSTANT_W"] == 1 and launch.kernel.pdl
        assert launch.kernel.shared > H200.shared_memory * 0.85
        assert defines_of(skinny_plan.plan(call))["CONSTANT_W"] == 0


def test_what_streams_in_a_flipped_product_is_no_weight():
    flipped = skinny_plan.plan(make_call(half(4096, 1024), half(16, 1024).mT), constant_weight=True)
    assert defines_of(flipped)["CONSTANT_W"] == 0


@pytest.mark.parametrize("op", ["linear", "gated_linear"])
def test_a_constant_weight_is_promised_by_a_pin_alone(op):
    """What it takes `skinny` takes as well, and is asked before it."""
    names = [each.name for each in registry.spec(op).implementations]
    assert names.index("skinny") < names.index("skinny_constant_weight")


def test_k_is_divided_among_no_more_blocks_than_it_has_work_for():
    assert defines_of(skinny_plan.plan(make_call(half(16, 64), half(64, 512))))["K_SPLITS"] == 1
    assert defines_of(skinny_plan.plan(make_call(half(16, 8192), half(8192, 512))))["K_SPLITS"] == 8


@pytest.mark.parametrize("transposed", [False, True])
def test_maps_cover_the_operands(transposed):
    b = half(768, 1024).mT if transposed else half(1024, 768)
    plan = skinny_plan.plan(make_call(half(20, 1024), b))
    args, defines = dict(launch_of(plan).args), defines_of(plan)
    assert defines["W_K_MAJOR"] == int(transposed) and defines["X_K_MAJOR"] == 1
    assert args["map_w"].sizes == ((1024, 768, 1, 1) if transposed else (768, 1024, 1, 1))
    assert args["map_w"].box == (64, defines["TILE_N"] if transposed else 64, 1, 1)
    assert args["map_x"].sizes == (1024, 20, 1, 1) and args["map_x"].box == (64, 24, 1, 1)


@pytest.mark.parametrize(("M", "lines"), [(1, 8), (8, 8), (9, 16), (17, 24), (41, 48), (64, 64)])
def test_rows_are_copied_up_to_the_next_eight(M, lines):
    """Found 2026-11-22: 96x8192x8192 took longer than 128x8192x8192, for lines beyond x."""
    launch = launch_of(skinny_plan.plan(make_call(half(M, 1024), half(1024, 768))))
    assert dict(launch.args)["map_x"].box == (64, lines, 1, 1)
    assert lines <= dict(launch.kernel.defines)["TILE_M"]


def test_float32_lines_hold_half_as_many():
    args = dict(launch_of(skinny_plan.plan(make_call(single(5, 1024), single(1024, 768)))).args)
    assert args["map_w"].box == (32, 32, 1, 1) and args["map_x"].box == (32, 8, 1, 1)


def test_a_repeated_operand_has_one_matrix_in_its_map():
    plan = skinny_plan.plan(make_call(half(2, 1, 9, 128), half(1, 3, 128, 256)))
    args = dict(launch_of(plan).args)
    assert args["map_x"].sizes == (128, 9, 1, 2) and args["map_w"].sizes == (256, 128, 3, 1)
    assert launch_of(plan).grid[0] % 6 == 0


@pytest.mark.parametrize("N", [1, 8, 16, 60])
def test_few_columns_are_few_rows_of_the_transposed_product(N):
    launch = launch_of(skinny_plan.plan(make_call(half(4096, 1024), half(N, 1024).mT)))
    args = dict(launch.args)
    assert (args["map_w"].tensor, args["map_x"].tensor) == ("a", "b")
    assert (args["m"].value, args["n"].value) == (N, 4096)


def test_rows_that_lie_side_by_side_come_64_at_a_time():
    plan = skinny_plan.plan(make_call(half(4096, 1024), half(1024, 16)))
    assert defines_of(plan)["X_K_MAJOR"] == 0 and defines_of(plan)["TILE_M"] == 64
    assert dict(launch_of(plan).args)["map_x"].sizes == (16, 1024, 1, 1)
    plan = skinny_plan.plan(make_call(single(4096, 1024), single(1024, 16)))
    assert defines_of(plan)["X_K_MAJOR"] == 0 and defines_of(plan)["TILE_M"] == 16


@pytest.mark.parametrize(
    ("a", "b", "reason"),
    [
        (half(65, 1024), half(1024, 1024), "limit of 64"),
        (single(33, 1024), single(1024, 1024), "limit of 32"),
        (half(16, 0), half(0, 1024), "K = 0"),
        (half(16, 1021), half(1021, 1024), "16-byte aligned"),
        (half(16, 1024), half(1024, 1021), "16-byte aligned"),
        (half(1, 512).expand(16, 512), half(512, 512), "overlap"),
        (half(16, 64, 2)[..., 0], half(64, 512), "contiguous"),
    ],
)  # fmt: skip
def test_what_it_leaves_to_others(a, b, reason):
    answer = skinny_plan.plan(make_call(a, b))
    assert isinstance(answer, Rejected) and reason in answer.reason


def test_tf32_is_for_tensor_cores():
    a, b = single(8, 64), single(64, 64)
    assert isinstance(skinny_plan.plan(make_call(a, b, precision="tf32")), Rejected)
    assert isinstance(skinny_plan.plan(make_call(a, b, precision="bf16x6")), Plan)  # IEEE products are closer


def test_no_rows_launch_nothing():
    assert launch_of(skinny_plan.plan(make_call(half(0, 64), half(64, 512)))).grid[0] == 0


def test_nearby_shapes_share_a_kernel():
    first = launch_of(skinny_plan.plan(make_call(half(17, 4104), half(4104, 7800)))).kernel
    assert first == launch_of(skinny_plan.plan(make_call(half(32, 8192), half(8192, 8000)))).kernel


@pytest.mark.parametrize("bias", [False, True])
def test_linear_is_matmul_with_an_epilogue(bias):
    x, weight, shift, y = half(2, 8, 1024), half(256, 1024), half(256), half(2, 8, 256)
    tensors = {"x": info(x), "weight": info(weight), "bias": info(shift) if bias else None, "y": info(y)}
    launch = launch_of(skinny_plan.plan(Call(tensors, {"activation": "gelu"}, {}, H200, {})))
    defines, args = dict(launch.kernel.defines), dict(launch.args)
    assert (defines["BIAS"], defines["ACTIVATION"], defines["W_K_MAJOR"]) == (int(bias), 2, 1)
    assert args["m"].value == 16
    assert (args["bias"] == Scalar("i64", 0)) is not bias


@pytest.mark.parametrize("op", ["matmul", "linear"])
def test_it_is_asked_first(op):
    assert registry.spec(op).implementations[0].name == "skinny"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("a", "b"),
    [
        (half(1, 4096), half(4096, 1024).mT.contiguous().mT),
        (half(64, 4096), half(4096, 1024)),
        (half(4096, 1024), half(1024, 16)),
        (single(16, 4096), single(4096, 1024)),
        (single(16, 4096), single(1024, 4096).mT),
    ],
    ids=["row", "limit of 64", "along rows", "float32", "float32 along k"],
)
def test_kernels_compile_without_spills(a, b):
    launch = launch_of(skinny_plan.plan(make_call(a, b)))
    backend = CudaBackend(registry.vendors()["cuda"])
    found = backend.resources(build.code_object(launch, {}, backend, H200))
    assert (found.stack, found.spills) == (0, 0)

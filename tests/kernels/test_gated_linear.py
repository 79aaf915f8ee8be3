"""gated_linear against torch, its gradient and errors; its plans; its edges on emulated GPUs."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F

import portable
from portable import errors
from portable.dispatch import dispatcher
from portable.kernels.matmul.gfx import plan as gfx_plan
from portable.kernels.matmul.problem import from_gated_linear
from portable.plan import Call, Device, Plan, TensorInfo, TensorMap
from tests.kernels.plan_parts import accepted, arguments_of, constants, defines, launch_of, planner, reason

OP = "gated_linear"
H200 = Device("cuda", "sm_90a", "H200", 0, 132, 32, 227 * 1024, 255)
A100 = Device("cuda", "sm_80", "A100", 0, 108, 32, 163 * 1024, 255)
MI300 = Device("rocm", "gfx942", "MI300X", 0, 304, 64, 64 * 1024, 512)
RX7000 = Device("rocm", "gfx1100", "RX 7000", 0, 96, 32, 64 * 1024, 256)
TRITON = {"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 64, "GROUP_M": 8, "num_warps": 8, "num_stages": 4}
ACTIVATIONS = {"silu": F.silu, "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh")}


def torchs(x, w_gate_up, activation):
    gate, up = F.linear(x, w_gate_up).chunk(2, dim=-1)
    return ACTIVATIONS[activation](gate) * up


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_it_is_torchs_and_so_is_its_gradient(activation):
    x = torch.randn(2, 3, 10, dtype=torch.float64, requires_grad=True)
    w = torch.randn(14, 10, dtype=torch.float64, requires_grad=True)
    dy = torch.randn(2, 3, 7, dtype=torch.float64)
    ours, theirs = (function(x, w, activation) for function in (portable.gated_linear, torchs))
    torch.testing.assert_close(ours, theirs)
    for got, expected in zip(*(torch.autograd.grad(y, (x, w), dy) for y in (ours, theirs)), strict=True):
        torch.testing.assert_close(got, expected)


def test_second_derivatives():
    x, w = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in ((1, 2), (2, 2)))
    assert torch.autograd.gradgradcheck(lambda *given: portable.gated_linear(*given, "silu"), (x, w))


def test_one_gradient_alone_and_a_transposed_weight():
    x, w = torch.randn(5, 8, dtype=torch.float64), torch.randn(8, 12, dtype=torch.float64).mT
    for wanted in (x, w):
        wanted.requires_grad_()
        ours, theirs = (torch.autograd.grad(function(x, w, "silu").sum(), wanted)[0]
                        for function in (portable.gated_linear, torchs))  # fmt: skip
        torch.testing.assert_close(ours, theirs)
        wanted.requires_grad_(False)


def test_it_compiles():
    compiled = torch.compile(portable.gated_linear, fullgraph=True, backend="eager")
    x, w = torch.randn(3, 8), torch.randn(6, 8)
    assert torch.equal(compiled(x, w, "silu"), portable.gated_linear(x, w, "silu"))


@pytest.mark.parametrize(
    ("error", "text", "x", "w", "activation"),
    [
        (errors.ShapeError, r"w_gate_up.*\(7, 4\).*even", (2, 4), (7, 4), "silu"),
        (errors.ShapeError, r"w_gate_up.*\(8, 5\).*rows of 4", (2, 4), (8, 5), "silu"),
        (errors.RankError, "w_gate_up.*3 dimensions", (2, 4), (2, 3, 4), "silu"),
        (errors.RankError, "x.*0 dimensions", (), (6, 4), "silu"),
        (errors.ParameterError, "activation.*relu", (2, 4), (6, 4), "relu"),
    ],
)
def test_errors_name_the_argument(error, text, x, w, activation):
    with pytest.raises(error, match=f"gated_linear.*{text}"):
        portable.gated_linear(torch.zeros(x), torch.zeros(w), activation)
    with pytest.raises(errors.NotATensorError, match=r"gated_linear.*w_gate_up"):
        portable.gated_linear(torch.zeros(2, 4), None, "silu")


def call(M: int, N: int, K: int, device: Device = H200, *, transposed: bool = False, **config: Any) -> Call:
    """A call of x [M, K] and a packed weight [2 N, K], or that weight transposed in memory."""
    strides = (N, 1, 2 * N) if transposed else (N * K, K, 1)
    tensors: dict[str, TensorInfo | None] = {
        "x": TensorInfo((M, K), (K, 1), "bfloat16"),
        "w_gate_up": TensorInfo((2, N, K), strides, "bfloat16"),
        "y": TensorInfo((M, N), (N, 1), "bfloat16"),
    }
    return Call(tensors, {"activation": "silu"}, {"N": N, "K": K, "B": M}, device, config)


def plan(implementation: str, *args: Any, **kwargs: Any) -> Any:
    return planner(OP, implementation)(call(*args, **kwargs))


def test_the_product_has_the_columns_of_gate_and_up():
    problem = from_gated_linear(call(16, 24, 40))
    assert (problem.M, problem.N, problem.K, problem.product.N) == (16, 24, 40, 48)
    assert problem.b.batch == (24 * 40, 0) and problem.batch_of(problem.b) == (2, 1)
    assert problem.batch_of(problem.a) == (1, 1) and not problem.transposable
    with pytest.raises(ValueError, match="gated"):
        problem.transposed()


@pytest.mark.parametrize(
    ("implementation", "sizes", "device"),
    [
        ("skinny", (1, 14336, 4096), H200),
        ("skinny", (16, 14336, 4096), H200),
        ("wgmma", (4096, 14336, 4096), H200),
        ("mma", (4096, 14336, 4096), A100),
        ("mma", (1, 14336, 4096), A100),
        ("mfma", (4096, 14336, 4096), MI300),
        ("wmma", (4096, 14336, 4096), RX7000),
    ],
)
def test_a_call_is_one_launch_without_a_workspace(implementation, sizes, device):
    made = accepted(plan(implementation, *sizes, device))
    assert len(made.launches) == 1 and not made.workspaces
    given = defines(made.launches[0])
    assert given["GATED"] == 1 and given["ACTIVATION"] == 4


def lines_loaded(box: TensorMap, matrices: int, columns: int) -> int:
    """Lines of b that one TMA load of a K-major tile brings, which must be as many of gate as of up."""
    assert box.box[0] == 64 and box.box[3] == matrices and box.sizes[3] == 2
    assert box.box[1] == columns
    return box.box[1] * box.box[3]


@pytest.mark.parametrize("M", [100, 512, 4096, 8192])
def test_wgmma_loads_as_much_of_gate_as_of_up(M):
    launch = launch_of(plan("wgmma", M, 14336, 4096))
    given, map_b = defines(launch), arguments_of(launch)["map_b"]
    columns = given["TILE_N"] // 2
    assert given["TILE_N"] % 128 == 0 and given["N_TAIL"] == given["SPLITK"] == 0
    assert map_b.sizes == (4096, 14336, 1, 2) and map_b.strides[2] == 14336 * 4096 * 2
    assert lines_loaded(map_b, 2 // given["CLUSTER_M"], columns) * given["CLUSTER_M"] == given["TILE_N"]
    map_c = arguments_of(launch)["map_c"]
    assert map_c.sizes[:2] == (14336, M) and map_c.box == (64, 64, 1, 1)


def test_a_transposed_weight_is_loaded_in_squares():
    launch = launch_of(plan("wgmma", 4096, 14336, 4096, transposed=True))
    map_b = arguments_of(launch)["map_b"]
    assert map_b.sizes == (14336, 4096, 1, 2) and map_b.box == (64, 64, 1, 1)
    assert map_b.strides[0] == 2 * 14336 * 2 and map_b.strides[2] == 14336 * 2
    launch = launch_of(plan("skinny", 16, 14336, 4096, transposed=True))
    assert defines(launch)["TILE_N"] == 256 and arguments_of(launch)["map_w"].box == (64, 64, 1, 1)


def test_tiles_are_those_of_a_product_of_twice_the_columns():
    """Wherever c's tile is half of the product's, there are as many."""
    for M, N in ((4096, 14336), (300, 1000)):
        launch = launch_of(plan("wgmma", M, N, 4096))
        given = defines(launch)
        width, height = given["TILE_N"] // 2 * given["CLUSTER_N"], given["TILE_M"] * given["CLUSTER_M"]
        clusters = math.ceil(N / width) * math.ceil(M / height)
        cluster = given["CLUSTER_M"] * given["CLUSTER_N"]
        assert math.prod(launch.grid) == min(clusters, H200.multiprocessors // cluster) * cluster
        launch = launch_of(plan("mma", M, N, 4096, A100))
        given = defines(launch)
        assert launch.grid[0] == math.ceil(N / (given["TILE_N"] // 2)) * math.ceil(M / given["TILE_M"])


def test_few_rows_have_a_block_for_every_half_tile():
    launch = launch_of(plan("skinny", 16, 14336, 4096))
    given = defines(launch)
    assert launch.grid[0] == math.ceil(14336 / (given["TILE_N"] // 2)) * given["K_SPLITS"]
    assert lines_loaded(arguments_of(launch)["map_w"], 2, given["TILE_N"] // 2) == given["TILE_N"]


def test_gate_and_up_that_are_one_matrix_are_no_pair_of_matrices_for_tma():
    one = call(4096, 14336, 4096)
    weight = one["w_gate_up"]
    tensors = {**one.tensors, "w_gate_up": replace(weight, strides=(0, *weight.strides[1:]))}
    for implementation in ("wgmma", "skinny"):
        made = planner(OP, implementation)(replace(one, tensors=tensors))
        assert "one matrix" in reason(made) or "M = 4096" in reason(made)


def test_unaligned_rows_are_copied_of_both():
    made = accepted(plan("realigned", 4096, 14336, 4095))
    assert len(made.launches) == 2
    (weight,) = (each for each in made.workspaces if each.name == "w_gate_up_realigned")
    assert math.prod(weight.shape) == 2 * 14336 * 4096


def test_amd_needs_contiguous_rows_of_the_weight():
    assert "contiguous" in reason(plan("mfma", 128, 128, 128, MI300, transposed=True))
    assert "contiguous" in reason(plan("wmma", 128, 128, 128, RX7000, transposed=True))


def test_split_k_adds_sums_of_gate_and_of_up():
    made = accepted(plan("mfma_splitk", 16, 260, 8192, MI300))
    product, reduction = made.launches
    assert defines(product)["GATED"] == defines(reduction)["GATED"] == 1
    parts = arguments_of(reduction)["parts"].value
    assert made.workspaces[0].shape == (parts * 16 * 520,)


@pytest.mark.parametrize("transposed", [False, True])
def test_triton_keeps_half_of_a_tile_for_up(transposed):
    launch = launch_of(plan("triton", 4096, 14336, 4096, transposed=transposed, **TRITON))
    given = constants(launch)
    assert (
        given["GATED"] and given["BLOCK_N"] == 128 and launch.kernel.function.__name__ == "matmul_descriptors"
    )
    other = launch_of(plan("triton", 4096, 14336, 4096, MI300, **{**TRITON, "num_stages": 1}))
    given = constants(other)
    assert given["GATED"] and given["BLOCK_N"] == 128 and other.kernel.function.__name__ == "matmul_tile"


def test_a_large_weight_takes_pointers_of_64_bits():
    """Up 2^31 bytes behind gate is beyond the offsets of a buffer."""
    assert defines(launch_of(plan("mfma", 4096, 53248, 16384, MI300)))["ALIGNED"] == 1
    assert defines(launch_of(plan("mfma", 4096, 65536, 16384, MI300)))["ALIGNED"] == 0
    assert defines(launch_of(plan("wmma", 4096, 65536, 32768, RX7000)))["FAR"] == 1


EMULATED = [("mfma", each) for each in ("gfx90a", "gfx942", "gfx950")]
EMULATED += [("wmma", "gfx1100"), ("wmma", "gfx1201"), ("triton", "gfx942")]


@pytest.mark.parametrize(("implementation", "arch"), EMULATED)
@pytest.mark.parametrize(("M", "N", "K"), [(33, 72, 72), (5, 13, 40)])
def test_gate_meets_up_at_every_column(implementation, arch, M, N, K, emulate):
    """Small integers: every sum is exact, so a swapped or shifted column shows."""
    emulate(arch)
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(-2, 3, (M, K), generator=generator).to(torch.bfloat16)
    w = torch.randint(-2, 3, (2 * N, K), generator=generator).to(torch.bfloat16)
    with portable.using(gated_linear=implementation):
        y = portable.gated_linear(x, w, "gelu_tanh")
    torch.testing.assert_close(y.double(), torchs(x.double(), w.double(), "gelu_tanh"), rtol=2**-8, atol=1e-4)


def test_a_weight_that_is_not_finite_reaches_its_column_alone(emulate):
    emulate("gfx942")
    x, w = torch.randn(20, 32).bfloat16(), torch.randn(48, 32).bfloat16()
    w[3, 5], w[24 + 7, 0] = math.nan, math.inf
    with portable.using(gated_linear="mfma"):
        y = portable.gated_linear(x, w, "silu")
    expected = torchs(x.float(), w.float(), "silu")
    assert y[:, 3].isnan().all() and torch.equal(y[:, 7].float(), expected[:, 7].bfloat16().float())
    others = [n for n in range(24) if n not in (3, 7)]
    assert y[:, others].isfinite().all()


def test_explain_chooses_skinny_for_a_decode_step_and_wgmma_for_a_prefill():
    for rows, chosen in ((1, "skinny"), (16, "skinny"), (4096, "wgmma")):
        taken = [name for name in ("skinny", "wgmma") if isinstance(plan(name, rows, 14336, 4096), Plan)]
        assert taken[0] == chosen


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
@pytest.mark.parametrize("tile", gfx_plan.ALIGNED, ids=lambda tile: f"{tile.m}x{tile.n}")
def test_gate_meets_up_in_every_tile(tile, arch, emulate):
    """The planner takes the large ones for large products alone."""
    emulate(arch)
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(-2, 3, (261, 200), generator=generator).to(torch.bfloat16)
    w = torch.randint(-2, 3, (2 * 148, 200), generator=generator).to(torch.bfloat16)
    dispatcher.clear_caches()
    with mock.patch.object(gfx_plan, "ALIGNED", (tile,)), portable.using(gated_linear="mfma"):
        given = defines(launch_of(plan("mfma", 261, 148, 200, replace(MI300, arch=arch))))
        y = portable.gated_linear(x, w, "gelu_tanh")
    assert (given["TILE_M"], given["TILE_N"], given["ALIGNED"]) == (tile.m, tile.n, 1)
    dispatcher.clear_caches()
    torch.testing.assert_close(y.double(), torchs(x.double(), w.double(), "gelu_tanh"), rtol=2**-8, atol=1e-4)

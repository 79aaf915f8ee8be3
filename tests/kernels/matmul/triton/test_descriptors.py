"""Plans of the Triton product whose tiles TMA loads, of its split sums and of packed operands."""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from portable.backends.cuda.disassembly import disassembled
from portable.errors import CompileError
from portable.kernels.gated_linear import triton_impl as gated_linear
from portable.kernels.linear import triton_impl as linear
from portable.kernels.matmul.triton import plan as matmul
from portable.kernels.matmul.triton import tile
from portable.plan import (
    Call,
    Device,
    Launch,
    Plan,
    Rejected,
    TensorInfo,
    TritonDescriptor,
    TritonKernel,
)
from portable.runtime import triton_build
from tests.kernels.plan_parts import accepted, constants, scalar

KB = 1024
HOPPER = Device("cuda", "sm_90a", "GPU", multiprocessors=132, warp_size=32, shared_memory=227 * KB)
AMPERE = Device("cuda", "sm_80", "GPU", multiprocessors=108, warp_size=32, shared_memory=163 * KB)
CDNA = Device("rocm", "gfx942", "GPU", multiprocessors=304, warp_size=64, shared_memory=64 * KB)
CONFIG = {"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 64, "GROUP_M": 8, "num_warps": 8, "num_stages": 4}
SMALL = {**CONFIG, "BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4}
DTYPES = {torch.bfloat16: "bfloat16", torch.float32: "float32"}


def half(*shape: int) -> torch.Tensor:
    return torch.empty(*shape, dtype=torch.bfloat16, device="meta")


def info(x: torch.Tensor, alignment: int = 16) -> TensorInfo:
    return TensorInfo(tuple(x.shape), tuple(x.stride()), DTYPES[x.dtype], alignment)


def product(
    a: torch.Tensor,
    b: torch.Tensor,
    config: Mapping[str, int] = CONFIG,
    device: Device = HOPPER,
    alignment: int = 16,
) -> Plan:
    c = torch.matmul(a, b)
    tensors = {"a": info(a, alignment), "b": info(b), "c": info(c)}
    return accepted(matmul.plan(Call(tensors, {"precision": "ieee"}, {}, device, config)))


def matrix(rows: int, cols: int, order: str, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    shape = (rows, cols) if order == "n" else (cols, rows)
    made = torch.empty(shape, dtype=dtype, device="meta")
    return made if order == "n" else made.mT


def names(plan: Plan) -> list[str]:
    return [launch.kernel.name for launch in plan.launches]


def maps(launch: Launch) -> dict[str, TritonDescriptor]:
    return {name: arg for name, arg in launch.args if isinstance(arg, TritonDescriptor)}


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_descriptors_walk_each_operand_along_its_lines(layout):
    (launch,) = product(matrix(1024, 512, layout[0]), matrix(512, 768, layout[1])).launches
    found = maps(launch)
    sizes = {"nn": (512, 1024), "t": (1024, 512)}
    assert found["a"].sizes == sizes["nn" if layout[0] == "n" else "t"]
    assert found["a"].block == ((128, 64) if layout[0] == "n" else (64, 128))
    assert found["b"].block == ((64, 256) if layout[1] == "n" else (256, 64))
    assert found["c"].block == (128, 128) and found["c"].sizes == (768, 1024)
    for each in found.values():
        assert each.box[0] * 2 == 128 and all(size <= 256 for size in each.box)
        assert all(stride % 16 == 0 for stride in each.strides)


def test_sizes_and_strides_follow_each_descriptor():
    (launch,) = product(half(3, 136, 72), half(3, 72, 264)).launches
    order = [name for name, _ in launch.args]
    assert order[:9] == ["a", *(f"a.size{i}" for i in range(4)), *(f"a.stride{i}" for i in range(4))]
    assert scalar(launch, "a.size3") == 72 and scalar(launch, "a.stride2") == 72
    assert scalar(launch, "a.stride3") == 1
    kept = [name for name in launch.kernel.function.arg_names if name not in constants(launch)]  # type: ignore[union-attr]
    assert [name for name in order if "." not in name] == kept


def test_a_batch_that_does_not_step_has_size_one():
    (launch,) = product(half(2, 1, 128, 64), half(1, 3, 64, 128)).launches
    found = maps(launch)
    assert found["a"].sizes == (64, 128, 1, 2) and found["b"].sizes == (128, 64, 3, 1)
    assert constants(launch)["STEPS"] == 0b1001 and constants(launch)["BATCHED"]
    assert scalar(launch, "work") == 6


@pytest.mark.parametrize(("config", "per_sm"), [(CONFIG, 1), (SMALL, 3)], ids=["one", "three"])
@pytest.mark.parametrize("size", [128, 1000, 4096])
def test_programs_are_as_many_as_the_gpu_holds(size, config, per_sm):
    (launch,) = product(half(size, 512), half(512, size), config).launches
    work = math.ceil(size / config["BLOCK_M"]) * math.ceil(size / config["BLOCK_N"])
    assert scalar(launch, "work") == work
    assert launch.grid == (min(work, 132 * per_sm), 1, 1) and scalar(launch, "programs") == launch.grid[0]


@pytest.mark.parametrize(
    ("M", "N", "K_major", "clamped"),
    [
        (72, 4096, "ab", "M"),
        (128, 4100, "ab", "N"),
        (100, 4096, "b", ""),
        (64, 64, "ab", ""),
        (63, 40, "ab", ""),
        (72, 4104, "a", "M"),
        (72, 4104, "b", "N"),
    ],
)
def test_the_last_tile_ends_where_an_operand_along_k_does(M, N, K_major, clamped):
    """Lines of a box outside an operand take TMA longer than those inside it; columns outside do not."""
    K = 256
    a = half(M, K) if "a" in K_major else half(K, (M + 7) // 8 * 8).mT[:M]
    b = half(N, K).mT if "b" in K_major else half(K, N)
    found = constants(product(a, b, SMALL).launches[0])
    assert (found["CLAMP_M"], found["CLAMP_N"]) == ("M" in clamped, "N" in clamped)


def test_what_the_engine_cannot_walk_goes_by_pointers():
    assert names(product(half(512, 1021), half(1021, 512), SMALL)) == ["matmul_tile"]
    assert names(product(half(512, 0), half(0, 512), SMALL)) == ["matmul_tile"]
    assert names(product(half(1, 512).expand(512, 512), half(512, 512), SMALL)) == ["matmul_tile"]
    assert names(product(half(512, 512), half(512, 512), SMALL, alignment=8)) == ["matmul_tile"]
    assert names(product(half(512, 512), half(512, 512), SMALL, AMPERE)) == ["matmul_tile"]
    low, thin = {**SMALL, "num_stages": 2}, {**SMALL, "BLOCK_M": 16}
    assert names(product(half(512, 512), half(512, 512), low, CDNA)) == ["matmul_tile"]
    assert names(product(half(16, 512), half(512, 512), thin)) == ["matmul_tile"]


def test_an_output_that_the_engine_cannot_walk_is_stored_by_pointers():
    (launch,) = product(half(512, 64), matrix(64, 1001, "t")).launches
    assert set(maps(launch)) == {"a", "b"} and constants(launch)["c"] is None
    assert scalar(launch, "c_row") == 1001


@pytest.mark.parametrize("K", [1024, 1000, 8200, 65536])
@pytest.mark.parametrize("N", [64, 512, 2048])
def test_slices_of_k_cover_it_once_where_tiles_are_few(N, K):
    plan = product(half(16, K), half(K, N), SMALL)
    launch = plan.launches[0]
    splits, slice = scalar(launch, "k_splits"), scalar(launch, "k_per_split")
    assert names(plan) == ["matmul_descriptors", "splitk_reduce"] and 2 <= splits <= 16
    assert slice % 64 == 0 and slice >= 256 and (splits - 1) * slice < K <= splits * slice
    (space,) = plan.workspaces
    assert space.shape == (splits, 16, N) and space.dtype == "float32"
    assert scalar(plan.launches[1], "k_splits") == splits
    assert plan.launches[1].grid[1] * constants(plan.launches[1])["BLOCK"] >= N
    assert scalar(launch, "work") == splits * N // 64 <= 132


def test_k_is_whole_where_tiles_or_batches_fill_the_gpu_or_it_is_short():
    assert len(product(half(16, 8192), half(8192, 8192), SMALL).launches) == 1
    assert len(product(half(16, 512), half(512, 512), SMALL).launches) == 1
    assert len(product(half(9, 16, 8192), half(9, 8192, 512), SMALL).launches) == 1


def test_bias_and_activation_come_after_the_last_split():
    x, weight, bias = half(16, 4096), half(512, 4096), half(512)
    tensors = {"x": info(x), "weight": info(weight), "bias": info(bias), "y": info(half(16, 512))}
    plan = linear.plan(Call(tensors, {"activation": "gelu"}, {}, HOPPER, SMALL))
    assert isinstance(plan, Plan)
    first, second = (constants(launch) for launch in plan.launches)
    assert first["ACTIVATION"] is None and first["bias_ptr"] is None
    assert second["ACTIVATION"] == "gelu" and "bias_ptr" in dict(plan.launches[1].args)


def test_too_much_shared_memory_is_refused():
    tensors = {"a": info(half(512, 512)), "b": info(half(512, 512)), "c": info(half(512, 512))}
    config = {**CONFIG, "BLOCK_K": 128}
    refused = matmul.plan(Call(tensors, {"precision": "ieee"}, {}, HOPPER, config))
    assert isinstance(refused, Rejected) and "shared memory" in refused.reason


def compiled(launch: Launch, plan: Plan) -> Any:
    dtypes = dict.fromkeys(("a", "b", "c"), "bfloat16") | {w.name: w.dtype for w in plan.workspaces}
    assert isinstance(launch.kernel, TritonKernel)
    types = triton_build.signature(launch, dtypes)
    return triton_build.compile_triton(launch.kernel, types, ("cuda", 90, 32))


@pytest.mark.slow
def test_it_compiles_to_what_the_launcher_passes():
    plan = product(half(512, 256), matrix(256, 512, "t"))
    built = compiled(plan.launches[0], plan)
    entry = built.asm["ptx"].split(".entry", 1)[1].split(")", 1)[0]
    assert entry.count(".param") == len(plan.launches[0].args) + 2  # and Triton's two scratch pointers
    assert "cp.async.bulk.tensor" in built.asm["ptx"] and "wgmma" in built.asm["ptx"]
    assert built.metadata.global_scratch_size == 0 and built.metadata.shared <= 227 * KB


def products_and_waits(order: str) -> tuple[int, int]:
    """HGMMAs of gated_linear's kernel by the order of its weights, and how many of them are waited for."""
    x, y = half(4096, 4096), half(4096, 14336)
    weights = half(2, 14336, 4096) if order == "n" else half(2, 4096, 14336).mT
    tensors = {"x": info(x), "w_gate_up": info(weights), "y": info(y)}
    plan = accepted(gated_linear.plan(Call(tensors, {"activation": "silu"}, {}, HOPPER, CONFIG)))
    (launch,) = plan.launches
    assert isinstance(launch.kernel, TritonKernel)
    types = triton_build.signature(launch, dict.fromkeys(tensors, "bfloat16"))
    built = triton_build.compile_triton(launch.kernel, types, ("cuda", 90, 32))
    lines = [line for line in disassembled(built.asm["cubin"]).splitlines() if "HGMMA" in line]
    return len(lines), sum("gsb0" in line for line in lines)


@pytest.mark.slow
@pytest.mark.parametrize("order", ["n", "t"])
def test_products_of_gate_and_up_are_not_waited_for_one_by_one(order):
    """2026-11-27, H200, weights not along k: ptxas serialised the two dots of a flattened loop (C7515), and
    4096x14336x4096 took 2,028 us; 1,434 in a loop that is not flattened."""
    products, waited = products_and_waits(order)
    assert 0 < waited <= products // 4


@pytest.mark.slow
def test_split_sums_compile():
    plan = product(half(16, 8192), matrix(8192, 512, "t"), SMALL)
    assert len(plan.launches) == 2
    for launch in plan.launches:
        assert compiled(launch, plan).metadata.shared <= 227 * KB


@pytest.mark.slow
def test_a_tile_narrower_than_the_swizzle_is_a_compile_error():
    plan = product(half(512, 256), half(256, 512), SMALL)
    (launch,) = plan.launches
    assert isinstance(launch.kernel, TritonKernel)
    blocks = {"b": (64, 32), "c": (64, 32)}
    args = tuple(
        (name, dataclasses.replace(arg, block=blocks[name])) if name in blocks else (name, arg)  # type: ignore[type-var]
        for name, arg in launch.args
    )
    fixed = tuple((name, 32 if name == "BLOCK_N" else value) for name, value in launch.kernel.constants)
    kernel = dataclasses.replace(launch.kernel, constants=fixed)
    with pytest.raises(CompileError, match="swizzle"):
        compiled(dataclasses.replace(launch, kernel=kernel, args=args), plan)


FLOAT32 = {**SMALL, "BLOCK_K": 16, "num_stages": 2}


def test_k_major_float32_operands_are_transposed_first():
    a = torch.empty(2, 1024, 1000, device="meta")
    b = torch.empty(2, 2040, 1000, device="meta").mT
    plan = product(a, b, FLOAT32)
    assert names(plan) == ["align_copy_matrix", "align_copy_matrix", "matmul_tile"]
    of_a, of_b = plan.workspaces
    assert of_a.shape == (2 * 1000 * 1024,) and of_b.shape == (2 * 1000 * 2048,)
    assert plan.launches[0].grid == (16 * 16 * 2, 1, 1) and plan.launches[1].grid == (16 * 32 * 2, 1, 1)
    product_of = plan.launches[2]
    assert constants(product_of)["A_UNIT"] == "row" and constants(product_of)["B_UNIT"] == "col"
    assert scalar(product_of, "a_col") == 1024 and scalar(product_of, "b_row") == 2048
    assert scalar(product_of, "b_inner") == 1000 * 2048
    assert names(product(a, b, FLOAT32, CDNA)) == ["matmul_tile"]
    assert names(product(a.mT.contiguous().mT, b.contiguous(), FLOAT32)) == ["matmul_tile"]
    assert names(product(a[:, :8], b, FLOAT32)) == ["matmul_tile"]  # little work: packing would not pay


def test_a_broadcast_operand_is_realigned_once():
    b = torch.empty(2048, 1024, device="meta").mT.expand(4, 3, 1024, 2048)
    a = torch.empty(4, 3, 1024, 1024, device="meta").transpose(1, 0)
    plan = product(a.transpose(1, 0)[:, :, :1000], b, FLOAT32)
    assert [w.shape for w in plan.workspaces if w.name == "b_realigned"] == [(1024 * 2048,)]


COPY = "align_copy_matrix"


def loaded(plan: Plan) -> list[TritonDescriptor]:
    """What TMA loads."""
    found = dict(plan.launches[-1].args)
    maps = [found[name] for name in "ab"]
    return [each for each in maps if isinstance(each, TritonDescriptor)]


def steps(plan: Plan) -> list[int]:
    """Bytes between two lines of what TMA loads."""
    return [each.strides[0] for each in loaded(plan)]


def test_operands_that_tma_cannot_load_are_copied_where_it_pays():
    plan = product(half(4095, 4099), half(4099, 4097))
    assert names(plan) == [COPY, COPY, "matmul_descriptors"] and steps(plan) == [8320, 8320]
    shifted = product(half(4096, 4096), half(4096, 4096), alignment=2)  # a's base alone
    assert names(shifted) == [COPY, "matmul_descriptors"] and shifted.workspaces[0].name == "a_realigned"
    column_major = product(half(4099, 4095).mT, half(4097, 4099).mT)
    assert names(column_major) == [COPY, COPY, "matmul_descriptors"]
    assert constants(column_major.launches[-1])["A_UNIT"] == "row"
    assert names(product(half(257, 259), half(259, 129))) == ["matmul_tile"]  # little work
    assert names(product(half(16, 8191), half(8191, 8193))) == ["matmul_tile"]  # the copy is all the bytes
    assert names(product(half(4095, 4099), half(4099, 4097), device=AMPERE)) == ["matmul_tile"]
    assert names(product(half(4095, 4099), half(4099, 4097), SMALL | {"BLOCK_M": 32})) == ["matmul_tile"]


def test_lines_that_start_inside_sectors_of_l2_are_copied_where_it_pays():
    """b's, of which a tile has twice as many: with a's uneven the product takes 2 to 4 % more."""
    plan = product(half(4000, 5000), half(12000, 5000).mT)
    assert names(plan) == [COPY, "matmul_descriptors"] and steps(plan) == [10000, 10112]
    small = product(half(3000, 3000), half(3000, 3000))
    assert names(small) == [COPY, "matmul_descriptors"] and steps(small) == [6000, 6016]
    assert [each.promotion for each in loaded(small)] == [128, 256]
    flat = product(half(1000, 1000), half(1000, 3000))
    assert names(flat) == ["matmul_descriptors"] and [each.promotion for each in loaded(flat)] == [128, 128]
    for size in (4096, 6000):  # lines of 12000 bytes start at L2's sectors
        even = product(half(size, size), half(size, size))
        assert names(even) == ["matmul_descriptors"]
        assert [each.promotion for each in loaded(even)] == [256, 256]
    one = product(half(8192, 8192), half(8192, 8200))
    assert names(one) == [COPY, "matmul_descriptors"] and one.workspaces[0].name == "b_realigned"


def test_short_gelu_is_close_everywhere():
    """The kernel's own arithmetic, in float32 on the CPU."""

    def fma(a: Any, b: Any, c: Any) -> torch.Tensor:
        return (torch.as_tensor(a).double() * b + c).float()

    language = types.SimpleNamespace(abs=torch.abs, fma=fma, exp2=torch.exp2, where=torch.where,
                                     minimum=lambda a, b: torch.clamp(a, max=b))  # fmt: skip
    gelu = types.FunctionType(tile.gelu_short.fn.__code__, {"tl": language})
    x = torch.linspace(-40, 40, 200001)
    got, want = gelu(x).double(), torch.nn.functional.gelu(x.double())
    assert (got - want).abs().max() < 1.2e-6  # half a unit in the last place of 20 is 1e-6
    near = (x > -6) & (x < 6)
    assert (got - want).abs()[near].max() < 4e-7
    assert ((got - want).abs() <= 8e-5 * want.abs() + 1e-12)[near].all()
    odd = gelu(torch.tensor([float("inf"), -float("inf"), float("nan"), 0.0]))
    assert odd[0] == float("inf") and odd[1].isnan() and odd[2].isnan() and odd[3] == 0

"""float32 matmul on Hopper: the arithmetic of bf16x6, and the plans of its kernels and of simt.cu."""

from __future__ import annotations

import math
import struct
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import portable
from portable.backends.cuda.backend import CudaBackend
from portable.kernels.matmul.problem import Problem, from_matmul
from portable.kernels.matmul.simt import simt_plan
from portable.kernels.matmul.sm80 import mma_plan
from portable.kernels.matmul.sm90 import bf16x6_plan
from portable.kernels.matmul.sm90.transpose_plan import transposed_operands
from portable.plan import Call, Device, Launch, Plan, Pointer, Rejected, Scalar, TensorInfo, TensorMap
from portable.runtime import build
from portable.spec import registry
from tests.kernels.plan_parts import accepted

H200 = Device("cuda", "sm_90a", "toy", 0, 132, 32, 227 * 1024, 255)
SMALLEST = 2.0**-149
LARGEST = float(np.finfo(np.float32).max)


def info(x: torch.Tensor, alignment: int = 16) -> TensorInfo:
    return TensorInfo(tuple(x.shape), tuple(x.stride()), "float32", alignment)


def make_call(a: torch.Tensor, b: torch.Tensor, precision: str = "bf16x6", alignment: int = 16) -> Call:
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    c = torch.empty((*batch, a.shape[-2], b.shape[-1]), device="meta")
    tensors = {"a": info(a, alignment), "b": info(b, alignment), "c": info(c)}
    return Call(tensors, {"precision": precision}, {}, H200, {})


def wide(*shape: int) -> torch.Tensor:
    return torch.empty(*shape, device="meta")


def planned(*args: Any, **options: Any) -> Any:
    return accepted(bf16x6_plan.plan(make_call(*args, **options)))


# --- split_bf16x3.cu's arithmetic, in NumPy ---


def rounded(x: np.ndarray) -> np.ndarray:
    """split_bf16x3.cu's `rounded`: finite float32 values as bfloat16 ones."""
    bits = x.view(np.uint32).astype(np.uint64)
    nearest = bits + 0x7FFF + (bits >> 16 & 1)
    kept = np.where((nearest & 0x7F800000) == 0x7F800000, bits, nearest)
    return (kept & 0xFFFF0000).astype(np.uint32).view(np.float32)


def planes(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    x = np.ascontiguousarray(x, np.float32)
    finite = np.isfinite(x)
    safe = np.where(finite, x, np.float32(0))
    first = rounded(safe)
    rest = (safe - first) * np.float32(256)
    second = rounded(rest)
    last = (rest - second) * np.float32(256)
    third = rounded(last)
    assert np.array_equal(third, last)
    first = np.select([np.isinf(x), np.isnan(x)], [np.copysign(np.float32(1), x), x], first)
    return first, second, np.where(np.isinf(x), x, third)


def random_bits(count: int, seed: int) -> np.ndarray:
    """Float32 of every exponent, finite."""
    bits = np.random.default_rng(seed).integers(0, 2**32, count, dtype=np.uint32)
    values = bits.view(np.float32)
    return values[np.isfinite(values)]


EDGES = [
    *(0.0, -0.0, SMALLEST, -SMALLEST, 2.0**-134, 2.0**-133, 2.0**-126, 2.0**-126 - SMALLEST),
    *(1.0, 1.00390625, 1.9999999, 3.3895314e38, 3.3961775e38, LARGEST * (1 - 2.0**-24), LARGEST, -LARGEST),
]


def test_three_planes_hold_every_finite_float32_exactly():
    subnormals = np.random.default_rng(1).integers(0, 2**23, 10_000, dtype=np.uint32).view(np.float32)
    x = np.concatenate([random_bits(200_000, 0), subnormals, np.array(EDGES, np.float32)])
    first, second, third = planes(x)
    total = first.astype(np.float64) + second.astype(np.float64) / 2**8 + third.astype(np.float64) / 2**16
    assert np.array_equal(total, x.astype(np.float64))
    assert np.all((np.sign(first) == np.sign(x)) | (np.abs(x) <= 2.0**-134))
    for plane in (first, second, third):
        assert np.all(plane.view(np.uint32) & 0xFFFF == 0)
        assert np.all(np.isfinite(plane))


def test_planes_of_infinities_multiply_as_ieee():
    inf, nan = np.inf, np.nan
    numbers = [inf, -inf, nan, 0.0, -0.0, 1.0, -1.5, 2.0**-133, -(2.0**-126), 1.00390625, 1e18]
    values = np.array(numbers, np.float32)
    with np.errstate(all="ignore"):
        for x in values:
            for y in values:
                a, b = planes(np.array([x], np.float32)), planes(np.array([y], np.float32))
                large = a[0] * b[0]
                small = a[0] * b[1] + a[1] * b[0]
                smaller = a[0] * b[2] + a[1] * b[1] + a[2] * b[0]
                got, want = (large + small / 2**8 + smaller / 2**16)[0], x * y
                assert np.isnan(got) == np.isnan(want) and np.isinf(got) == np.isinf(want), (x, y, got)
                assert not np.isinf(want) or got == want, (x, y, got)


def cut(x: np.ndarray, exponent: np.ndarray) -> np.ndarray:
    """Cut towards zero to multiples of 2^exponent."""
    unit = np.ldexp(1.0, exponent)
    return np.trunc(x / unit) * unit


def tensor_core_sum(products: np.ndarray, total: np.ndarray) -> np.ndarray:
    """One wgmma step over the last axis as the GPU does it: addends are cut 24 bits below the largest."""
    addends = np.concatenate([products, total[..., None]], axis=-1)
    top = np.frexp(np.abs(addends).max(axis=-1))[1] - 1
    result = cut(addends, (top - 24)[..., None]).sum(axis=-1)
    return cut(result, np.frexp(result)[1] - 24)


def bf16x6(a: np.ndarray, b: np.ndarray, part: int = 64) -> np.ndarray:
    """bf16x6.cu's sums of a [M, K] @ b [K, N], in its order; K is a multiple of `part`."""
    a_planes = [p.astype(np.float64) for p in planes(a)]
    b_planes = [p.astype(np.float64) for p in planes(b)]
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    groups = ((((2, 0), (0, 2), (1, 1)), 16), (((1, 0), (0, 1)), 8), (((0, 0),), 0))
    for start in range(0, a.shape[1], part):
        for pairs, shift in groups:
            held = np.zeros(total.shape)
            for i, j in pairs:
                for k in range(start, start + part, 16):
                    rows, cols = a_planes[i][:, None, k : k + 16], b_planes[j].T[None, :, k : k + 16]
                    held = tensor_core_sum(rows * cols, held)
            exact = total.astype(np.float64) + held / 2**shift  # one fma: rounded once
            total = exact.astype(np.float32)
    return total


@pytest.mark.parametrize("kind", ["normal", "uniform", "mirrored"])
@pytest.mark.parametrize("K", [64, 512])
def test_error_is_within_the_spec_of_float32(kind, K):
    rng = np.random.default_rng(K)
    make = rng.standard_normal if kind != "uniform" else rng.random
    a, b = make((8, K)).astype(np.float32), make((K, 8)).astype(np.float32)
    if kind == "mirrored":
        a[:, K // 2 :], b[K // 2 :] = a[:, : K // 2], -b[: K // 2]
    reference = a.astype(np.float64) @ b.astype(np.float64)
    spread = np.sqrt(np.square(a, dtype=np.float64) @ np.square(b, dtype=np.float64))
    bound = 2 * math.sqrt(K) * 2.0**-23 * (np.abs(reference) + spread)
    assert np.max(np.abs(bf16x6(a, b) - reference) / bound) < 0.25


def test_the_three_products_left_out_are_below_a_unit_of_float32():
    x = random_bits(200_000, 3)
    x = x[(np.abs(x) > 2.0**-100) & (np.abs(x) < 2.0**100)]
    _, second, third = (p.astype(np.float64) for p in planes(x))
    r1, r2 = np.abs(second / 2**8 / x).max(), np.abs(third / 2**16 / x).max()
    assert r1 <= 2.0**-8 and r2 <= 2.0**-17
    assert 2 * r1 * r2 + r2**2 < 1.01 * 2.0**-24


# --- plans ---


def test_planes_are_split_then_multiplied():
    plan = planned(wide(512, 1000), wide(1000, 768))
    split, product = plan.launches
    assert [space.name for space in plan.workspaces] == ["a_planes", "b_planes"]
    assert plan.workspaces[0].shape == (3 * 512 * 1024,) and plan.workspaces[1].shape == (3 * 1000 * 768,)
    args = dict(split.args)
    assert args["from0"] == Pointer("a") and args["to1"] == Pointer("b_planes", aligned=True)
    vectors = [args[f"vectors{i}"].value for i in (0, 1)]
    assert vectors == [512 * 125, 1000 * 96]
    assert split.grid[0] == args["blocks0"].value + args["blocks1"].value
    assert args["blocks0"].value * 512 >= vectors[0] > (args["blocks0"].value - 1) * 512
    assert product.kernel.shared <= H200.shared_memory


@pytest.mark.parametrize("transposed", [False, True])
def test_maps_cover_planes_and_leave_out_the_padding(transposed):
    b = wide(768, 1000).mT if transposed else wide(1000, 768)
    args = dict(planned(wide(512, 1000), b).launches[1].args)
    line, plane = 1024 * 2, 1024 * 2 * 512
    defines = dict(planned(wide(512, 1000), b).launches[1].kernel.defines)
    rows = 64 * defines["CONSUMERS"]
    sizes, strides = (1000, 512, 1, 3), (line, plane, plane)
    assert args["map_a"] == TensorMap("a_planes", "bfloat16", sizes, strides, (64, rows, 1, 1))
    assert args["map_b"].sizes == ((1000, 768, 1, 3) if transposed else (768, 1000, 1, 3))
    assert args["map_b"].box[1] == (defines["TILE_N"] if transposed else 64)


def test_each_distinct_matrix_is_split_once():
    plan = planned(wide(2, 1, 128, 64), wide(1, 3, 64, 128))
    args = dict(plan.launches[1].args)
    assert args["map_a"].sizes[2] == 2 and args["map_b"].sizes[2] == 3
    strides = [args[name].value for name in ("a_outer", "a_inner", "b_outer", "b_inner")]
    assert strides == [1, 0, 0, 1]
    split = dict(plan.launches[0].args)
    assert split["inner_count0"].value == 1 and split["inner_count1"].value == 3


def test_any_alignment_and_row_length_is_split():
    for shape in ((129, 257), (511, 1021)):
        a, b = wide(*shape), wide(shape[1], 131)
        assert planned(a, b, alignment=4).launches[0].kernel == planned(a, b).launches[0].kernel


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (wide(16, 512), wide(512, 512)),
        (wide(512, 32), wide(32, 512)),
        (wide(512, 0), wide(0, 512)),
        (wide(65536, 32768), wide(32768, 1024)),
    ],
    ids=["few rows", "short sum", "empty sum", "planes too large"],
)
def test_simt_serves_what_bf16x6_refuses(a, b):
    call = make_call(a, b)
    assert isinstance(bf16x6_plan.plan(call), Rejected)
    assert isinstance(simt_plan.plan(call), Plan)


@pytest.mark.parametrize(("size", "tile"), [(256, (64, 64)), (1024, (128, 64)), (4096, (128, 128))])
def test_tiles_shrink_until_every_multiprocessor_has_one(size, tile):
    product = planned(wide(size, 512), wide(512, size)).launches[1]
    defines = dict(product.kernel.defines)
    assert (64 * defines["CONSUMERS"], defines["TILE_N"]) == tile
    assert product.grid[0] <= H200.multiprocessors
    assert product.kernel.threads == 128 * (1 + defines["CONSUMERS"])


def simt_tile(
    a: torch.Tensor, b: torch.Tensor, alignment: int = 16, device: Device = H200
) -> tuple[Any, Any]:
    call = replace(make_call(a, b, "ieee", alignment), device=device)
    launch = accepted(simt_plan.plan(call)).launches[-1]
    defines = dict(launch.kernel.defines)
    rows, cols = -(-a.shape[-2] // defines["TILE_M"]), -(-b.shape[-1] // defines["TILE_N"])
    assert launch.grid == (rows * cols * math.prod(a.shape[:-2]), 1, 1)
    copying = 128 if launch.kernel.name == "matmul_simt_tma" else 0
    assert launch.kernel.threads == defines["THREADS_M"] * defines["THREADS_N"] + copying
    return defines["TILE_M"], defines["TILE_N"]


@pytest.mark.parametrize(
    ("a", "b", "tile"),
    [
        (wide(4096, 4096), wide(4096, 4096), (128, 256)),
        (wide(4096, 4096), wide(4096, 4096).mT, (128, 256)),
        (wide(4096, 4099), wide(4099, 4096), (256, 128)),
        (wide(4095, 4099), wide(4099, 4097), (256, 128)),
        (wide(1408, 512), wide(512, 1408), (128, 128)),
        (wide(512, 512), wide(512, 512), (64, 64)),
        (wide(16, 300, 64), wide(16, 64, 200), (64, 64)),
    ],
    ids=["large", "b along k", "odd lines of a", "unaligned", "square", "few tiles", "batch"],
)
def test_simt_tiles_follow_size_and_layout(a, b, tile):
    assert simt_tile(a, b) == tile


def simt_launches(a: torch.Tensor, b: torch.Tensor) -> tuple[Launch, ...]:
    plan = simt_plan.plan(make_call(a, b, "ieee"))
    assert isinstance(plan, Plan), plan
    return plan.launches


def test_k_major_operands_are_transposed_for_tma():
    a, b = wide(3, 4095, 4096), wide(3, 4096, 4096).mT
    turn_a, turn_b, product = simt_launches(a, b)
    assert [launch.kernel.name for launch in (turn_a, turn_b)] == ["matmul_transpose"] * 2
    assert product.kernel.name == "matmul_simt_tma"
    found = {name: arg.value for name, arg in turn_a.args if isinstance(arg, Scalar)}
    strides = {"line": 4096, "inner": 4095 * 4096, "outer": 0, "pitch": 4096}
    assert found == {**strides, "lines": 4095, "length": 4096, "inner_count": 3}
    assert turn_a.grid == turn_b.grid == (64 * 64 * 3, 1, 1)
    strides = (4096 * 4, 4096 * 4096 * 4, 4096 * 4)
    maps: dict[str, Any] = dict(product.args)
    assert maps["map_a"] == TensorMap("a_transposed", "float32", (4095, 4096, 3, 1), strides, (32, 32, 1, 1))
    assert maps["map_b"] == TensorMap("b_transposed", "float32", (4096, 4096, 3, 1), strides, (32, 32, 1, 1))


def test_a_broadcast_operand_is_transposed_once():
    a = wide(4096, 4096).expand(2, 3, 4096, 4096)
    turn, product = simt_launches(a, wide(2, 3, 4096, 512))
    maps: dict[str, Any] = dict(product.args)
    assert turn.grid == (64 * 64, 1, 1)
    assert maps["map_a"].sizes[2:] == (1, 1) and maps["map_b"].tensor == "b"


def test_operands_along_rows_and_columns_stay_where_they_are():
    (product,) = simt_launches(wide(4096, 4096).mT, wide(4096, 4096))
    maps: dict[str, Any] = dict(product.args)
    assert (maps["map_a"].tensor, maps["map_b"].tensor) == ("a", "b")


def test_small_products_are_not_worth_the_turn():
    (product,) = simt_launches(wide(1024, 1024), wide(1024, 1024))
    assert product.kernel.name == "matmul_simt"


@pytest.mark.slow
@pytest.mark.parametrize("transposed_b", [False, True])
def test_float32_tma_kernels_compile_without_spills(transposed_b):
    backend = CudaBackend(registry.vendors()["cuda"])
    b = wide(4096, 4096).mT if transposed_b else wide(4096, 4096)
    for launch in simt_launches(wide(4096, 4096), b):
        code = build.code_object(
            launch, dict.fromkeys(("a", "b", "c", "a_transposed", "b_transposed"), "float32"), backend, H200
        )
        found = backend.resources(code)
        assert (found.stack, found.spills) == (0, 0)
        assert code.shared + found.shared <= H200.shared_memory


@pytest.mark.slow
def test_simt_tiles_of_another_vendor_fit_its_registers():
    device = Device("rocm", "gfx942", "toy", 0, 304, 64, 64 * 1024, 512)
    assert simt_tile(wide(8192, 512), wide(512, 8192), device=device) == (128, 128)
    assert simt_tile(wide(512, 512), wide(512, 512), device=device) == (64, 64)


def test_each_precision_has_its_kernel():
    a, b = wide(512, 512), wide(512, 512)
    assert isinstance(bf16x6_plan.plan(make_call(a, b, "ieee")), Rejected)
    assert isinstance(bf16x6_plan.plan(make_call(a, b, "tf32")), Rejected)
    assert isinstance(mma_plan.plan(make_call(a, b, "bf16x6")), Rejected)
    assert isinstance(simt_plan.plan(make_call(a, b, "bf16x6")), Plan)
    assert isinstance(simt_plan.plan(make_call(a, b, "tf32")), Rejected)


def test_bf16x6_is_served_without_its_kernel():
    a, b = torch.randn(70, 65), torch.randn(65, 66)
    assert torch.equal(portable.matmul(a, b, precision="bf16x6"), portable.matmul(a, b))


def test_gradients_keep_the_precision():
    a = torch.randn(9, 5, requires_grad=True)
    portable.matmul(a, torch.randn(5, 7), precision="bf16x6").sum().backward()
    assert a.grad is not None


@pytest.mark.parametrize(
    ("a_shape", "b_shape"),
    [((130, 72), (72, 65)), ((2, 3, 33, 76), (3, 76, 130)), ((1, 64), (64, 128)), ((5, 68), (3, 68, 67))],
    ids=["odd", "b for two", "one row", "a for three"],
)
def test_transposed_operands(a_shape, b_shape):
    """Emulated: transpose.cu uses what every vendor's prelude.h has. Both operands lie along k."""
    from portable.backends.rocm import compile as rocm
    from portable.backends.rocm.emulator.code_object import CodeObject
    from portable.backends.rocm.emulator.launch import Buffer, KernelLaunch
    from portable.backends.rocm.emulator.launch import launch as run

    generator = np.random.default_rng(7)
    arrays = {"a": generator.standard_normal(a_shape, np.float32)}
    arrays["b"] = generator.standard_normal((*b_shape[:-2], b_shape[-1], b_shape[-2]), np.float32)
    problem = from_matmul(make_call(wide(*a_shape), wide(*arrays["b"].shape).mT, "ieee"))
    assert isinstance(problem, Problem)
    found: Any = transposed_operands(problem)
    for space in found.workspaces:
        arrays[space.name] = np.full(space.shape, np.nan, np.float32)
    assert [launch.kernel.name for launch in found.launches] == ["matmul_transpose"] * 2
    for launch in found.launches:
        kernel = CodeObject(rocm.compile(launch.kernel.source, (), "gfx942")).kernels["matmul_transpose"]
        sizes = {"i64": "<q", "i32": "<i"}
        kernarg = b"".join(
            struct.pack("<Q", arrays[arg.tensor].ctypes.data) if isinstance(arg, Pointer)
            else struct.pack(sizes[arg.kind], arg.value)
            for _, arg in launch.args
        )  # fmt: skip
        buffers = [Buffer(name, x.ctypes.data, x.nbytes, "transposed" in name) for name, x in arrays.items()]
        run(KernelLaunch(kernel, launch.grid, (launch.kernel.threads, 1, 1), 0, kernarg, buffers))
    matrices = {"a": (found.problem.a, arrays["a"]), "b": (found.problem.b, arrays["b"].swapaxes(-2, -1))}
    for name, (operand, expected) in matrices.items():
        assert operand.tensor == f"{name}_transposed"
        shape = (*problem.batch, *expected.shape[-2:])
        strides = [4 * stride for stride in (*operand.batch, operand.row, operand.col)]
        got = np.lib.stride_tricks.as_strided(arrays[operand.tensor], shape, strides)
        assert np.array_equal(got, np.broadcast_to(expected, shape))

"""portable.int_mm and int8_scaled_mm: exact sums, quantised linears end to end, torch's own, wrong calls."""

from __future__ import annotations

from functools import partial

import pytest
import torch

import portable
from portable import errors, int8_scaled_mm, int_mm, quantize_int8
from portable.backends.cuda.disassembly import mnemonics
from portable.kernels.int_mm import torch_impl, triton_impl
from portable.kernels.int_mm.gfx import plan as gfx_plan
from portable.kernels.int_mm.sm90 import plan as sm90_plan
from portable.layout import TensorInfo
from portable.plan import Call, Device, Launch, NativeKernel, Plan, Rejected
from portable.runtime import build, detect
from portable.spec import registry
from tests.kernels.plan_parts import constants, launch_of

OPS = ("int_mm", "int8_scaled_mm")


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-128, 128, shape, generator=generator, dtype=torch.int8)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def exact(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a.double() @ b.double()).long().to(torch.int32)


@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 5, 2000), (40, 64, 72), (17, 1, 33), (2, 3, 0), (0, 4, 5)])
def test_sums_are_exact(sizes):
    m, n, k = sizes
    a, b = drawn(m, k), drawn(k, n, seed=1)
    c = int_mm(a, b)
    assert (c.dtype, c.shape) == (torch.int32, (m, n)) and torch.equal(c, exact(a, b))
    assert torch.equal(int_mm(a.t().contiguous().t(), b.t().contiguous().t()), c)


@pytest.mark.parametrize("vnni", [True, False])
def test_torch_s_own_and_products_in_float32_are_both_exact(vnni, monkeypatch):
    """Sums of 1025 greatest products are beyond 2^24, and those of 131072 wrap."""
    monkeypatch.setattr(
        torch.cpu, "_is_vnni_supported", lambda: vnni and torch.backends.mkldnn.is_available()
    )
    for m, k, n in ((5, 3000, 7), (2, 131072, 2), (4, 1025, 4)):
        a, b = torch.full((m, k), -128, dtype=torch.int8), torch.full((k, n), -128, dtype=torch.int8)
        a[0], b[:, 0] = drawn(k), drawn(k, seed=1)
        assert torch.equal(torch_impl.int_mm(a, b), exact(a, b))


def test_torch_s_own_product_is_not_asked_for_what_it_gets_wrong():
    """torch 2.13 on the CPU: strides of 0, and those of a size of 1, are misread."""
    row, column = drawn(1, 33).expand(4, 33), drawn(33, 1, seed=1).expand(33, 5)
    assert torch.equal(int_mm(row, column), exact(row, column))
    single = drawn(1, 7).t()
    assert torch.equal(int_mm(single, drawn(1, 65)), exact(single, drawn(1, 65)))


@pytest.mark.parametrize("symmetric", [True, False])
def test_a_quantised_linear_is_near_the_linear(symmetric):
    """int8 of rows of activations, with and without zero points, and of rows of a weight."""
    x, weight, bias = normal(50, 300) + 0.5, normal(64, 300, seed=1), normal(64, seed=2)
    q, scale, *zero = quantize_int8(x, symmetric=symmetric)
    codes, of_weight = quantize_int8(weight)
    y = int8_scaled_mm(q, codes.t(), scale, of_weight.t(), bias, *zero, output_dtype=torch.float32)
    wanted = torch.nn.functional.linear(x, weight, bias)
    assert ((y - wanted).norm() / wanted.norm()) < 0.015
    point = zero[0] if zero else 0
    meant = ((q.double() - point) * scale.double()) @ (codes.double() * of_weight.double()).t() + bias
    assert torch.allclose(y.double(), meant, rtol=1e-6, atol=1e-5)


def test_one_number_stands_for_all_rows_and_columns():
    a, b = drawn(6, 40), drawn(40, 9, seed=1)
    of_a, of_b, zero = torch.tensor(0.5), torch.tensor([[0.25]]), torch.tensor([3], dtype=torch.int32)
    c = int8_scaled_mm(a, b, of_a, of_b, a_zero_point=zero, output_dtype=torch.float32)
    assert torch.equal(c.double(), ((a.double() - 3) @ b.double()) / 8)
    full = int8_scaled_mm(a, b, of_a.expand(6, 1), of_b.expand(1, 9), None, zero.expand(6, 1))
    assert full.dtype == torch.bfloat16 and torch.equal(full, c.bfloat16())


def test_scales_go_in_order_and_each_step_is_rounded():
    a, b, bias = drawn(30, 700), drawn(700, 20, seed=1), normal(20)
    of_a, of_b = normal(30, 1, seed=1).abs(), normal(1, 20, seed=2).abs()
    c, acc = int8_scaled_mm(a, b, of_a, of_b, bias, output_dtype=torch.float32), exact(a, b).float()
    assert torch.equal(c, acc * of_a * of_b + bias)
    assert not torch.equal(c, acc * (of_a * of_b) + bias)
    assert not torch.equal(c, ((acc * of_a).double() * of_b + bias).float())


@pytest.mark.parametrize(
    ("arch", "name"),
    [
        ("gfx942", "triton"),
        ("gfx1201", "triton"),
        *(
            ("gfx90a", "mfma"),
            ("gfx942", "mfma"),
            ("gfx950", "mfma"),
            ("gfx1100", "wmma"),
            ("gfx1201", "wmma"),
        ),
    ],
)
def test_kernels_give_the_same_bits(emulate, arch, name):
    x, weight, bias = normal(33, 200) + 1, normal(48, 200, seed=1), normal(48, seed=2).bfloat16()
    q, scale, zero = quantize_int8(x, symmetric=False)
    codes, of_weight = quantize_int8(weight)
    call = partial(int8_scaled_mm, q, codes.t(), scale, of_weight.t(), bias, zero)
    scaled, sums = call(), int_mm(q, codes.t())
    emulate(arch)
    pins: dict[str, str] = dict.fromkeys(OPS, name)
    with portable.using(**pins):
        assert torch.equal(call(), scaled) and torch.equal(int_mm(q, codes.t()), sums)


@pytest.mark.parametrize("arch", ["gfx90a", "gfx1100"])
def test_sums_of_matrix_units_wrap_around(emulate, arch):
    """So do the zero points' parts, and sums of columns over what several lanes hold."""
    a, b = torch.full((3, 700), -128, dtype=torch.int8), torch.full((700, 20), -128, dtype=torch.int8)
    b[1, :] = drawn(20)
    zero = torch.tensor([[2**31 - 1], [-(2**31)], [77_777_777]], dtype=torch.int32)
    call = partial(int8_scaled_mm, a, b, ONE, ONE, None, zero, output_dtype=torch.float32)
    acc = exact(a, b).long() - zero.long() * b.long().sum(0)
    emulate(arch)
    with portable.using(int8_scaled_mm="wmma" if arch == "gfx1100" else "mfma"):
        assert torch.equal(call(), acc.to(torch.int32).float())


AMD = Device("rocm", "gfx942", "M", 0, 304, 64, 64 * 1024)
HOPPER = Device("cuda", "sm_90a", "H", 0, 132, 32, 227 * 1024)


def call_of(m, n, k, result, device, config=None, row_major=False, **absent):
    """int_mm where the result is int32, else int8_scaled_mm; b is column-major."""
    a, b = ("a", "b") if result == "int32" else ("mat_a", "mat_b")
    tensors: dict[str, TensorInfo | None] = {
        a: TensorInfo((m, k), (k, 1), "int8"),
        b: TensorInfo((k, n), (n, 1) if row_major else (1, k), "int8"),
        "c": TensorInfo((m, n), (n, 1), result),
    }
    if result != "int32":
        tensors |= {
            "scale_a": TensorInfo((m, 1), (1, 1), "float32"),
            "scale_b": TensorInfo((1, n), (1, 1), "float32"),
            "bias": TensorInfo((n,), (1,), result),
            "a_zero_point": TensorInfo((m, 1), (1, 1), "int32"),
        } | absent
    return Call(tensors, {"output_dtype": result}, {"M": m, "N": n, "K": k}, device, config or {})


def launches_of(plan: Plan | Rejected) -> list[tuple[Launch, dict[str, int | str]]]:
    assert isinstance(plan, Plan)
    found = []
    for launch in plan.launches:
        assert isinstance(launch.kernel, NativeKernel)
        found.append((launch, dict(launch.kernel.defines)))
    return found


@pytest.mark.parametrize(
    "arch, length, divided", [("sm_80", 131072, True), ("sm_80", 131071, False), ("gfx942", 131072, False)]
)
def test_triton_divides_sums_that_mma_sync_would_saturate(arch, length, divided):
    """Its int8 mma.sync has .satfinite: on an H200 the greatest sum stayed at 2^31 - 1."""
    vendor, lanes, shared = ("rocm", 64, 64) if arch.startswith("gfx") else ("cuda", 32, 163)
    device = Device(vendor, arch, "GPU", multiprocessors=108, warp_size=lanes, shared_memory=shared * 1024)
    tensors = {
        "a": TensorInfo((2, length), (length, 1), "int8"),
        "b": TensorInfo((length, 3), (1, length), "int8"),
        "c": TensorInfo((2, 3), (3, 1), "int32"),
    }
    implementation = registry.spec("int_mm").implementation("triton")
    assert implementation is not None
    sizes = {"M": 2, "N": 3, "K": length}
    launch = launch_of(triton_impl.int_mm(Call(tensors, {}, sizes, device, dict(implementation.default))))
    assert constants(launch)["LONG"] == divided


@pytest.mark.parametrize(("k", "aligned"), [(64, 1), (72, 0)])
def test_hip_reads_whole_lines_of_16_bytes_where_they_are_aligned(k, aligned):
    ((_, defines),) = launches_of(gfx_plan.int_mm(call_of(48, 32, k, "int32", AMD)))
    assert defines["ALIGNED"] == aligned and (defines["R"], defines["SCALED"]) == ("int32_t", 0)


def test_hopper_adds_up_columns_for_zero_points_alone_and_keeps_whole_tiles_of_them():
    for n, tile in ((250, 192), (257, 256), (8192, 128)):
        plan = sm90_plan.int8_scaled_mm(call_of(512, n, 512, "bfloat16", HOPPER, {"TILE_N": tile}))
        (sums, _), (_, defines) = launches_of(plan)
        assert (sums.kernel.name, defines["TILE_N"], defines["HAS_ZERO_POINT"]) == ("column_sums", tile, 1)
        assert isinstance(plan, Plan) and plan.workspaces[0].shape[0] >= -(-n // tile) * tile
    plan = sm90_plan.int8_scaled_mm(call_of(512, 64, 512, "bfloat16", HOPPER, a_zero_point=None))
    assert len(launches_of(plan)) == 1 and isinstance(plan, Plan) and not plan.workspaces


def test_hopper_reads_operands_along_k_alone():
    plan = sm90_plan.int_mm(call_of(64, 64, 64, "int32", HOPPER, row_major=True))
    assert isinstance(plan, Rejected) and "along K; b" in plan.reason
    plan = sm90_plan.int_mm(call_of(64, 64, 72, "int32", HOPPER))
    assert isinstance(plan, Rejected) and "16-byte" in plan.reason


@pytest.mark.slow
@pytest.mark.parametrize("result", ["int32", "bfloat16", "float32"])
def test_hopper_s_tiles_fit_the_registers_and_fuse_nothing(result):
    """Compiled, not run."""
    backend = detect.backend_class("cuda")(registry.vendors()["cuda"])
    entry = sm90_plan.int_mm if result == "int32" else sm90_plan.int8_scaled_mm
    for config in ({"TILE_N": 64, "TILE_M": 64}, {"TILE_N": 128}, {"TILE_N": 192}, {"TILE_N": 256}):
        call = call_of(512, 512, 1024, result, HOPPER, config)
        types = {name: each.dtype for name, each in call.tensors.items() if each} | {"column_sums": "int32"}
        for launch, _ in launches_of(entry(call)):
            code = build.code_object(launch, types, backend, HOPPER)
            found = backend.resources(code)
            assert found.spills == found.stack == 0
            names = mnemonics(code.binary)
            assert "FFMA" not in names and sum(each.startswith("IGMMA") for each in names) % 4 == 0


A, B = drawn(4, 8), drawn(8, 6, seed=1)
ONE = torch.ones(())


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        (lambda: int_mm(A, B.short()), errors.DtypeError, "'b'.*int8"),
        (lambda: int_mm(A.float(), B), errors.DtypeError, "'a'.*int8"),
        (lambda: int_mm(A, A), errors.ShapeError, "'b'"),
        (lambda: int_mm(A[0], B), errors.RankError, "'a'"),
        (lambda: int8_scaled_mm(A[0], B, ONE, ONE), errors.RankError, "'mat_a'.*mat_b"),
        (lambda: int8_scaled_mm(A, A, ONE, ONE), errors.ShapeError, "'mat_b'"),
        (lambda: int8_scaled_mm(A, B.float(), ONE, ONE), errors.DtypeError, "'mat_b'.*int8"),
        (lambda: int8_scaled_mm(A, B, ONE.half(), ONE), errors.DtypeError, "'scale_a'.*float32"),
        (lambda: int8_scaled_mm(A, B, ONE.expand(1, 4), ONE), errors.ShapeError, r"'scale_a'.*\(4, 1\)"),
        (lambda: int8_scaled_mm(A, B, ONE, ONE.expand(6)), errors.ShapeError, r"'scale_b'.*\(1, 6\)"),
        (lambda: int8_scaled_mm(A, B, 1.0, ONE), errors.NotATensorError, "'scale_a'"),
        (lambda: int8_scaled_mm(A, B, ONE, ONE, torch.zeros(6)), errors.DtypeError, "'bias'"),
        (
            lambda: int8_scaled_mm(A, B, ONE, ONE, a_zero_point=torch.zeros(4, 1)),
            errors.DtypeError,
            "'a_zero_point'.*int32",
        ),
        (
            lambda: int8_scaled_mm(A, B, ONE, ONE, a_zero_point=torch.zeros(6, dtype=torch.int32)),
            errors.ShapeError,
            r"'a_zero_point'.*\(4, 1\)",
        ),
        (lambda: int8_scaled_mm(A, B, ONE, ONE, output_dtype=torch.int32), errors.ParameterError, "bfloat16"),
        (lambda: int8_scaled_mm(A, B, ONE, ONE, azp=ONE), errors.SignatureError, "a_zero_point here"),
    ],
)
def test_wrong_calls(wrong, error, words):
    with pytest.raises(error, match=words):
        wrong()


def test_fake_tensors_have_the_shapes():
    a, b = (each.to("meta") for each in (A, B))
    one = torch.ones((), device="meta")
    assert (int_mm(a, b).shape, int_mm(a, b).dtype) == ((4, 6), torch.int32)
    c = int8_scaled_mm(a, b, one, one, output_dtype=torch.float16)
    assert (c.shape, c.dtype, c.device.type) == ((4, 6), torch.float16, "meta")


@pytest.mark.slow
def test_torch_compile_takes_them_whole():
    def call(a, b):
        return int_mm(a, b), int8_scaled_mm(a, b, ONE, ONE, output_dtype=torch.float32)

    compiled = torch.compile(call, backend="eager", fullgraph=True)
    assert all(torch.equal(*pair) for pair in zip(compiled(A, B), call(A, B), strict=True))

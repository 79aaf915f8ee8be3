"""portable.int8_int4_mm (W4A8): int8 rows by weights in 4 bits, against exact sums; plans; errors."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

import portable
from portable import errors, int4_mm, int8_int4_mm, quantize_int4, quantize_int8
from portable.kernels.int4_mm import int8_baseline, int8_triton_impl
from portable.kernels.int4_mm.reference import numbers
from portable.kernels.int4_mm.sm90 import int8_plan
from portable.layout import TensorInfo
from portable.plan import Call, Device
from tests.kernels.plan_parts import (
    arguments_of,
    compiled,
    constants,
    defines,
    launch_of,
    reason,
    scalar,
)

H200 = Device("cuda", "sm_90a", "NVIDIA H200", 0, 132, 32, 227 * 1024)
MI300X = Device("rocm", "gfx942", "MI300X", 0, 304, 64, 64 * 1024)


def drawn(m=5, n=24, k=128, group=32, symmetric=True):
    """Quantised rows of activations, and a quantised weight: mat_a, weight, scale_a, scale, zero_point."""
    g = torch.Generator().manual_seed(m + n + k)
    a, scale_a = quantize_int8(torch.randn(m, k, generator=g))[:2]
    w = quantize_int4(torch.randn(n, k, generator=g), group, symmetric=symmetric)
    return [a, w[0], scale_a, w[1], None if symmetric else w[2]]


def exact(a, weight, scale_a, scale, zero_point=None):
    """In float64, whose sums of groups are exact."""
    groups = scale.shape[1]
    w = numbers(weight.unflatten(1, (groups, -1)), zero_point).double() * scale.double().unsqueeze(-1)
    return a.double() @ w.flatten(1).T * scale_a.double()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("group, symmetric", [(32, True), (64, False), (128, False)])
def test_the_product_of_what_quantised_numbers_stand_for(group, symmetric, dtype):
    call = drawn(group=group, symmetric=symmetric)
    bias = torch.arange(24).to(dtype)
    for added in (None, bias):
        c = int8_int4_mm(*call, added, output_dtype=dtype)
        ref = exact(*call) + (0 if added is None else added.double())
        assert (c.shape, c.dtype) == ((5, 24), dtype)
        torch.testing.assert_close(c.double(), ref, rtol=torch.finfo(dtype).eps, atol=1e-4)


def test_it_is_int4_mm_of_rows_that_were_quantised():
    a, weight, scale_a, scale, zero_point = drawn(symmetric=False)
    x = a.float() * scale_a
    ours = int8_int4_mm(a, weight, scale_a, scale, zero_point).float()
    torch.testing.assert_close(ours, int4_mm(x, weight, scale, zero_point), rtol=1e-2, atol=1e-2)


def test_a_group_s_sum_is_exact_where_float32_is_not():
    a = torch.full((1, 32768), 127, dtype=torch.int8)
    a[0, 16384:] = -127
    weight = torch.full((1, 16384), 0xFF, dtype=torch.uint8)
    a[0, 0], a[0, -1] = 126, -126
    weight[0, 0] = 0xFE  # 6 * 126 of the first k; the last has 7 * -126
    assert int8_int4_mm(a, weight, torch.ones(1), torch.ones(1, 1)).item() == -126


def test_one_number_is_the_scale_of_every_row():
    a, weight, _, scale, _ = drawn()
    rows = torch.full((5, 1), 0.25)
    assert torch.equal(
        int8_int4_mm(a, weight, torch.tensor(0.25), scale), int8_int4_mm(a, weight, rows, scale)
    )


@pytest.mark.parametrize(
    "change, error, says",
    [
        ({0: torch.ones(5, 64).to(torch.int8)}, errors.ShapeError, r"mat_a' has shape \(5, 64\).*\(M, 128\)"),
        ({0: torch.ones(2, 5, 128).to(torch.int8)}, errors.RankError, "mat_a' has 3 dimensions"),
        ({0: torch.ones(5, 128)}, errors.DtypeError, "mat_a' has dtype float32; expected int8"),
        ({1: torch.ones(24, 64)}, errors.DtypeError, "weight' has dtype .*float32; expected torch.uint8"),
        ({1: torch.ones(24, 4, 16).byte()}, errors.RankError, "weight' has 3 dimensions"),
        ({2: torch.ones(5)}, errors.ShapeError, r"scale_a' has shape \(5,\).*\(5, 1\), or one number"),
        ({2: torch.ones(5, 1).half()}, errors.DtypeError, "scale_a' has dtype"),
        (
            {3: torch.ones(24, 3)},
            errors.ShapeError,
            r"scale' has shape.*\(N, K / group\) for a weight of K = 128",
        ),
        ({3: torch.ones(24, 4).double()}, errors.DtypeError, "scale' has dtype"),
        ({4: torch.ones(24, 4)}, errors.DtypeError, "zero_point' has dtype"),
        ({5: torch.ones(24)}, errors.DtypeError, "bias' has dtype.*as output_dtype says"),
    ],
)
def test_what_it_refuses_and_says(change, error, says):
    call = [*drawn(), None]
    for at, value in change.items():
        call[at] = value
    with pytest.raises(error, match=says):
        int8_int4_mm(*call)


def test_timings_are_held_to_products_of_the_same_numbers():
    a, weight, scale_a, scale, _ = drawn(32, 32, 64, 64)
    op_weight = weight.unflatten(1, (1, -1))
    given = {
        "mat_a": a,
        "weight": op_weight,
        "scale_a": scale_a,
        "scale": scale,
        "zero_point": None,
        "bias": None,
    }
    ours, facts = int8_int4_mm(a, weight, scale_a, scale), {"R": "bfloat16"}
    for other in (int8_baseline.wide, int8_baseline.dense):
        torch.testing.assert_close(other(given, facts)(), ours, rtol=1e-2, atol=3e-2)
    written = int8_baseline.int8_int4_mm(a, op_weight, scale_a, scale, output_dtype=torch.bfloat16)
    torch.testing.assert_close(written, ours, rtol=2e-2, atol=5e-2)


@pytest.mark.slow
def test_torch_compile_takes_it_whole():
    call = drawn()
    compiled = torch.compile(portable.int8_int4_mm, backend="eager", fullgraph=True)
    assert torch.equal(compiled(*call), int8_int4_mm(*call))


# --- plans --------------------------------------------------------------------------------------------------


def call_of(m, n, g, p, zero=False, bias=False, device=H200, **config):
    k, wide = 2 * g * p, "bfloat16"
    tensors: dict[str, TensorInfo | None] = {
        "mat_a": TensorInfo((m, k), (k, 1), "int8"),
        "weight": TensorInfo((n, g, p), (g * p, p, 1), "uint8"),
        "scale_a": TensorInfo((m, 1), (0, 0), "float32"),
        "scale": TensorInfo((n, g), (1, n), "float32"),
        "zero_point": TensorInfo((n, g), (g, 1), "uint8") if zero else None,
        "bias": TensorInfo((n,), (1,), wide) if bias else None,
        "c": TensorInfo((m, n), (n, 1), wide),
    }
    default = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 64, "GROUP_M": 8, "num_warps": 4, "num_stages": 2}
    return Call(tensors, {}, {"M": m, "N": n, "G": g, "P": p}, device, config or default)


def changed(call, name, **change):
    return replace(call, tensors={**call.tensors, name: replace(call.tensors[name], **change)})


@pytest.mark.parametrize(
    "half, chunk, chunks", [(64, 128, 1), (32, 64, 1), (16, 32, 1), (48, 32, 3), (96, 64, 3), (2048, 128, 32)]
)
def test_a_chunk_is_the_longest_that_divides_a_group(half, chunk, chunks):
    launch = launch_of(int8_plan.wgmma(call_of(64, 64, 2, half, OTHER=0)))
    made = defines(launch)
    assert (made["CHUNK"], scalar(launch, "chunks"), made["ONE_CHUNK"]) == (chunk, chunks, int(chunks == 1))
    assert scalar(launch, "count") == 2 and (scalar(launch, "scale_row"), scalar(launch, "scale_col")) == (
        1,
        64,
    )


@pytest.mark.parametrize("cluster", [1, 2])
@pytest.mark.parametrize("m", [64, 128])
def test_stages_fit_shared_memory_and_blocks_fill_clusters(m, cluster):
    launch = launch_of(int8_plan.wgmma(call_of(1000, 1000, 4, 64, TILE_M=m, CLUSTER=cluster)))
    made, maps = defines(launch), arguments_of(launch)
    assert (made["TILE_M"], made["CLUSTER"]) == (m, cluster) and made["STAGES"] >= 4
    assert launch.kernel.shared <= H200.shared_memory and launch.grid[0] % cluster == 0
    assert scalar(launch, "tiles") == -(-1000 // m) * -(-1000 // (128 * cluster))
    assert maps["map_x"].box == (128, m // cluster, 1, 1) and maps["map_values"].box == (128, 128, 1, 1)
    assert maps["map_values"].strides == (256,) * 3 and maps["map_x"].strides == (512,) * 3  # bytes


@pytest.mark.parametrize(
    "call, says",
    [
        (call_of(0, 64, 1, 64), "nothing to multiply"),
        (call_of(4, 64, 2, 24), "groups of 48: no multiple of 32"),
        (call_of(4, 64, 1, 2**16), "groups of 131072: no multiple of 32 up to 65536"),
        (call_of(4, 68, 1, 64), "TMA stores c in rows of 16-byte multiples; N = 68"),
        (changed(call_of(4, 64, 1, 64), "mat_a", strides=(136, 1)), "rows of mat_a .* 136 apart"),
        (changed(call_of(4, 64, 1, 64), "weight", alignment=8), "that of weight is not"),
        (call_of(2**31, 64, 1, 64), "must be at most"),
    ],
)
def test_what_wgmma_declines(call, says):
    assert re.search(says, reason(int8_plan.wgmma(call)))


@pytest.mark.parametrize("device", [H200, MI300X])
@pytest.mark.parametrize(
    "half, block, whole, even", [(64, 64, 1, 1), (16, 16, 1, 1), (12, 16, 1, 0), (136, 64, 0, 0)]
)
def test_triton_s_steps_are_no_longer_than_a_group(half, block, whole, even, device):
    made = constants(launch_of(int8_triton_impl.product(call_of(40, 64, 2, half, device=device))))
    assert made["UNIT"] == (16 if half % 16 == 0 else 1) and made["z_ptr"] is None
    if made["UNIT"] == 16:
        assert (made["BLOCK_K"], made["WHOLE"], made["EVEN"]) == (block, whole, even)
    assert "groups of 1048576" in reason(int8_triton_impl.product(call_of(4, 64, 1, 2**19, device=device)))


@pytest.mark.slow
@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("m, cluster", [(64, 1), (128, 1), (128, 2)])
@pytest.mark.parametrize("half", [64, 16, 48])
def test_a_consumer_s_sums_and_numbers_fit_its_registers(half, m, cluster, zero):
    call = call_of(512, 512, 4, half, zero, True, TILE_M=m, CLUSTER=cluster)
    names = compiled(launch_of(int8_plan.wgmma(call)), call)
    # Of 256 k 8 products, and of the codes of 128 k, which are made thrice in the code, 16 loads.
    assert sum(each.startswith("IGMMA") for each in names) == 8
    assert sum(each.startswith("LDS.U16") for each in names) == 48

"""portable.sparse_scaled_mm: fp8 products of weights with 2:4 sparsity, against float64; plans; errors."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

import portable
from portable import errors, pack_sparse_24, prune_24, sparse_scaled_mm
from portable.kernels.sparse_mm import baseline, triton_impl
from portable.kernels.sparse_mm.gfx import plan as gfx
from portable.kernels.sparse_mm.sm90 import wgmma_plan as sm90
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
A100 = Device("cuda", "sm_80", "A100", 0, 108, 32, 163 * 1024)
GFX942 = Device("rocm", "gfx942", "MI300X", 0, 304, 64, 64 * 1024)
GFX1201 = Device("rocm", "gfx1201", "RX 9070", 0, 64, 32, 64 * 1024)
FP8 = torch.float8_e4m3fn


def drawn(m=5, n=24, k=64):
    """mat_a, values, meta, scale_a and scale_b of quantised rows, and the numbers that these stand for."""
    g = torch.Generator().manual_seed(m + n + k)
    a, scale_a = portable.quantize_fp8(torch.randn(m, k, generator=g))
    w, scale_w = portable.quantize_fp8(prune_24(torch.randn(n, k, generator=g)))
    call = [a, *pack_sparse_24(w), scale_a, scale_w.t()]
    return call, a.double() * scale_a.double(), w.double() * scale_w.double()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_product_of_what_quantised_rows_stand_for(dtype):
    call, a, w = drawn()
    bias = torch.arange(24).to(dtype)
    for added in (None, bias):
        c = sparse_scaled_mm(*call, added, output_dtype=dtype)
        ref = a @ w.T + (0 if added is None else added.double())
        assert (c.shape, c.dtype) == ((5, 24), dtype)
        torch.testing.assert_close(c.double(), ref, rtol=torch.finfo(dtype).eps, atol=1e-3)


def test_one_number_is_the_scale_of_every_row():
    (a, values, meta, _, _), *_ = drawn()
    one = torch.tensor(0.25)
    rows = torch.full((5, 1), 0.25), torch.full((1, 24), 0.25)
    assert torch.equal(
        sparse_scaled_mm(a, values, meta, one, one[None]), sparse_scaled_mm(a, values, meta, *rows)
    )


@pytest.mark.parametrize(
    "change, error, says",
    [
        (
            {0: torch.ones(5, 72).to(FP8)},
            errors.ShapeError,
            r"mat_a' has shape \(5, 72\).*\(M, 64\), as meta",
        ),
        ({0: torch.ones(2, 5, 64).to(FP8)}, errors.RankError, "mat_a' has 3 dimensions"),
        ({0: torch.ones(5, 64)}, errors.DtypeError, "mat_a' has dtype"),
        ({1: torch.ones(24, 30).to(FP8)}, errors.ShapeError, "values' has shape|meta' has shape"),
        ({2: torch.zeros(24, 8).short()}, errors.DtypeError, "meta' has dtype"),
        ({3: torch.ones(5)}, errors.ShapeError, r"scale_a' has shape \(5,\).*\(5, 1\), or one number"),
        ({4: torch.ones(24, 1)}, errors.ShapeError, r"scale_b' has shape.*\(1, 24\), or one number"),
        (
            {4: torch.ones(1, 24).half()},
            errors.DtypeError,
            r"scale_b' has dtype.*scale_b.to\(torch.float32\)",
        ),
        ({5: torch.ones(24)}, errors.DtypeError, "bias' has dtype.*as output_dtype says"),
    ],
)
def test_what_it_refuses_and_says(change, error, says):
    call = [*drawn()[0], None]
    for at, value in change.items():
        call[at] = value
    with pytest.raises(error, match=says):
        sparse_scaled_mm(*call)


def test_timings_are_held_to_the_product_of_the_same_weight():
    call, *_ = drawn(32, 32, 64)
    names = ("mat_a", "values", "meta", "scale_a", "scale_b")
    given = dict(zip(names, call, strict=True)) | {"bias": None}
    ours = sparse_scaled_mm(*call)
    torch.testing.assert_close(baseline.dense(given, {"R": "bfloat16"})(), ours, rtol=0, atol=0)
    torch.testing.assert_close(
        baseline.sparse_scaled_mm(*call, output_dtype=torch.bfloat16), ours, rtol=1e-2, atol=1e-2
    )


# --- plans --------------------------------------------------------------------------------------------------


def call_of(m, n, j, bias=False, device=H200, **config):
    fp8, wide = "float8_e4m3fn", "bfloat16"
    tensors: dict[str, TensorInfo | None] = {
        "mat_a": TensorInfo((m, 8 * j), (8 * j, 1), fp8),
        "values": TensorInfo((n, 4 * j), (4 * j, 1), fp8),
        "meta": TensorInfo((n, j), (j, 1), "uint8"),
        "scale_a": TensorInfo((m, 1), (0, 0), "float32"),
        "scale_b": TensorInfo((1, n), (n, 1), "float32"),
        "bias": TensorInfo((n,), (1,), wide) if bias else None,
        "c": TensorInfo((m, n), (n, 1), wide),
    }
    default = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 8, "GROUP_M": 8, "num_warps": 4, "num_stages": 2}
    return Call(tensors, {}, {"M": m, "N": n, "J": j}, device, config or default)


def changed(call, name, **change):
    return replace(call, tensors={**call.tensors, name: replace(call.tensors[name], **change)})


@pytest.mark.parametrize(
    "m, n, j, tile", [(8192, 8192, 1024, 192), (256, 8192, 1024, 128), (16, 8192, 1024, 64)]
)
def test_tiles_by_the_waves_that_they_make(m, n, j, tile):
    launch = launch_of(sm90.scaled(call_of(m, n, j, OTHER=0)))
    assert defines(launch)["TILE_M"] == tile


@pytest.mark.parametrize("cluster", [1, 2])
@pytest.mark.parametrize("m", [64, 128, 192])
def test_stages_fit_shared_memory_and_blocks_fill_clusters(m, cluster):
    launch = launch_of(sm90.scaled(call_of(1000, 1000, 64, TILE_M=m, CLUSTER=cluster)))
    made, maps = defines(launch), arguments_of(launch)
    assert (made["TILE_M"], made["CLUSTER"], made["ELEMENT"]) == (m, cluster, "e4m3")
    assert made["STAGES"] >= 4 and made["VALUE_STAGES"] >= 3
    assert launch.kernel.shared <= H200.shared_memory and launch.grid[0] % cluster == 0
    assert scalar(launch, "tiles") == -(-1000 // m) * -(-1000 // (128 * cluster))
    assert maps["map_x"].box == (128, m // cluster, 1, 1) and maps["map_values"].box == (128, 128, 1, 1)
    assert maps["map_values"].strides == (256,) * 3 and maps["map_x"].strides == (512,) * 3  # bytes
    assert (scalar(launch, "scale_a_row"), scalar(launch, "scale_b_col")) == (0, 1)


@pytest.mark.parametrize(
    "call, says",
    [
        (call_of(0, 64, 16), "nothing to multiply"),
        (call_of(4, 64, 24), "K = 192: rows of metadata do not start at multiples of 16 bytes"),
        (call_of(4, 68, 16), "TMA stores c in rows of 16-byte multiples; N = 68"),
        (changed(call_of(4, 64, 16), "mat_a", strides=(136, 1)), "rows of mat_a .* 136 apart"),
        (changed(call_of(4, 64, 16), "values", alignment=8), "that of values is not"),
        (call_of(4, 64, 16, TILE_M=256), "the config's tile does not fit the registers"),
    ],
)
def test_what_wgmma_declines(call, says):
    assert re.search(says, reason(sm90.scaled(call)))


@pytest.mark.parametrize("device, decoded", [(H200, False), (A100, True), (GFX942, True), (GFX1201, False)])
def test_triton_multiplies_codes_where_the_gpu_does(device, decoded):
    launch = launch_of(triton_impl.scaled(call_of(40, 64, 32, device=device)))
    made, given = constants(launch), arguments_of(launch)
    assert made["CODES"] and (made["FORMAT"] is not None) == decoded
    assert made["PROMOTE"] == (None if decoded else 64) and "sa_ptr" not in made
    assert given["x_ptr"].dtype == ("uint8" if decoded else None) and given["values_ptr"].dtype == "uint8"


@pytest.mark.parametrize("device, waves", [(GFX942, (2, 2)), (GFX1201, (4, 2))])
@pytest.mark.parametrize("rows, m", [(32, 32), (33, 128)])
def test_amd_s_matrix_instructions_take_codes(rows, m, device, waves):
    call = call_of(rows, 200, 32, True, device=device)
    launch = launch_of(gfx.scaled(call))
    made = defines(launch)
    assert (made["ELEMENT"], made["RESULT"], made["HAS_BIAS"]) == ("uint8_t", "bf16", 1)
    assert (made["TILE_M"], made["TILE_N"], launch.grid[0]) == (m, 128, 2 * -(-rows // m))
    assert made["WAVES_M"] == (1 if m == 32 else waves[1])
    assert [scalar(launch, f"scale_{name}_step") for name in "xw"] == [0, 1]
    assert "must be at most" in reason(gfx.scaled(call_of(2**31, 64, 16, device=device)))


@pytest.mark.parametrize(
    "call, aligned, unit",
    [
        (call_of(4, 64, 16, device=GFX942), 1, 16),
        (call_of(4, 64, 18, device=GFX942), 0, 2),  # values of a row are 72 bytes
        (call_of(4, 64, 12, device=GFX942), 1, 4),
        (changed(call_of(4, 64, 16, device=GFX942), "mat_a", strides=(136, 1)), 0, 16),
        (changed(call_of(4, 64, 16, device=GFX942), "values", alignment=8), 0, 16),
        (changed(call_of(4, 64, 16, device=GFX942), "meta", alignment=1), 1, 1),
    ],
)
def test_loads_of_whole_chunks_need_aligned_rows(call, aligned, unit):
    made = defines(launch_of(gfx.scaled(call)))
    assert (made["ALIGNED"], made["META_UNIT"]) == (aligned, unit)


@pytest.mark.slow
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("m, cluster", [(64, 1), (128, 2), (192, 1), (192, 2)])
def test_a_consumer_s_sums_and_metadata_fit_its_registers(m, cluster, bias):
    call = call_of(512, 512, 64, bias, TILE_M=m, CLUSTER=cluster)
    names = compiled(launch_of(sm90.scaled(call)), call)
    # 4 sparse products of 64 k for each 256 k, and a thread's 16 bytes of metadata, twice.
    assert sum(each.startswith("QGMMA.SP") for each in names) == 4
    assert sum(each.startswith("LDG.E.128") for each in names) == 2

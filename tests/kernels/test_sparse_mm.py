"""portable.sparse_mm: products of weights with 2:4 sparsity, against float64; packing; plans; wrong calls."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch

from portable import errors, pack_sparse_24, prune_24, sparse_mm, unpack_sparse_24
from portable.kernels.sparse_mm import baseline, reference, triton_impl
from portable.kernels.sparse_mm.gfx import plan as gfx
from portable.kernels.sparse_mm.sm80 import plan as sm80
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
MI300X = Device("rocm", "gfx942", "MI300X", 0, 304, 64, 64 * 1024)
RX7900 = Device("rocm", "gfx1100", "RX 7900 XTX", 0, 48, 32, 64 * 1024)


def drawn(rows=(3,), n=20, k=64, dtype=torch.bfloat16):
    """x, a dense weight with 2:4 sparsity, and a bias."""
    g = torch.Generator().manual_seed(n + k)
    w = prune_24(torch.randn(n, k, generator=g).to(dtype))
    x, bias = torch.randn(*rows, k, generator=g), torch.randn(n, generator=g)
    return x.to(dtype), w, bias.to(dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_product_of_the_dense_weight(dtype):
    x, w, bias = drawn((2, 3), dtype=dtype)
    values, meta = pack_sparse_24(w)
    for added in (None, bias):
        y = sparse_mm(x, values, meta, added)
        ref = x.double() @ w.double().T + (0 if added is None else added.double())
        assert (y.shape, y.dtype) == ((2, 3, 20), dtype)
        torch.testing.assert_close(y.double(), ref, rtol=torch.finfo(dtype).eps, atol=1e-3)


def test_the_metadata_are_as_documented():
    w = torch.zeros(2, 16)
    w[0, [0, 3]] = torch.tensor([1.0, 2.0])  # group 0: places 0 and 3
    w[0, [5, 6]] = torch.tensor([3.0, 4.0])  # group 1: 1 and 2
    w[0, 11] = 5.0  # group 2: place 3, and the first zero before it
    w[1, [14, 15]] = torch.tensor([6.0, torch.nan])  # group 3: 2 and 3
    values, meta = pack_sparse_24(w)
    assert meta.dtype == torch.uint8 and meta.tolist() == [[0x9C, 0x4C], [0x44, 0xE4]]
    assert values[0].tolist() == [1, 2, 3, 4, 0, 5, 0, 0]
    assert values[1, :7].tolist() == [0, 0, 0, 0, 0, 0, 6] and values[1, 7].isnan()
    assert torch.equal(unpack_sparse_24(values, meta).nan_to_num(7.0), w.nan_to_num(7.0))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_packing_keeps_every_bit(dtype):
    w = prune_24(torch.randn(33, 72, generator=torch.Generator().manual_seed(0)))
    w = w.to(dtype)
    values, meta = pack_sparse_24(w)
    assert (values.shape, meta.shape, values.dtype) == ((33, 36), (33, 9), dtype)
    assert torch.equal(unpack_sparse_24(values, meta), w)
    assert pack_sparse_24(w[:0]).values.shape == (0, 36) and pack_sparse_24(w[:, :0]).meta.shape == (33, 0)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz])
def test_codes_of_8_bits_are_pruned_and_packed_as_they_are(dtype):
    codes = torch.randint(256, (64, 72), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    w = prune_24(codes.view(dtype))
    wide = codes.view(dtype).float()
    assert torch.equal(w.float().nan_to_num(-1.0), prune_24(wide).nan_to_num(-1.0))
    values, meta = pack_sparse_24(w)
    assert values.dtype == dtype and torch.equal(meta, pack_sparse_24(w.float()).meta)
    found, given = unpack_sparse_24(values, meta), w.float().nan_to_num(-1.0)
    assert found.dtype == dtype and torch.equal(found.float().nan_to_num(-1.0), given)
    if dtype != torch.float8_e4m3fnuz:  # whose code of -0 elsewhere is NaN here
        zeros = torch.full((1, 8), 0x80, dtype=torch.uint8).view(dtype)
        assert pack_sparse_24(zeros).meta.tolist() == [[0x44]]  # -0 is 0


def test_pruning_keeps_the_two_largest_magnitudes_of_each_four():
    w = torch.tensor([[1.0, -3.0, 2.0, 0.5, 1.0, 1.0, -1.0, 1.0], [0, torch.nan, torch.inf, -9, 0, 0, 0, 4]])
    kept = prune_24(w)
    assert kept[0].tolist() == [0, -3, 2, 0, 1, 1, 0, 0]
    assert kept[1].nan_to_num(-1.0, -2.0).tolist() == [0, -1, -2, 0, 0, 0, 0, 4]
    assert (prune_24(torch.randn(40, 64)).unflatten(1, (16, 4)) != 0).sum(-1).le(2).all()


def test_pairs_of_places_are_those_of_the_ptx_isa():
    assert {first + 4 * second for first, second in reference.PLACES} == {0x4, 0x8, 0xC, 0x9, 0xD, 0xE}


@pytest.mark.parametrize(
    "function, given, error, says",
    [
        (pack_sparse_24, torch.ones(4, 16), errors.ParameterError,
         r"4 numbers in row 0, columns 0 to 3'; expected at most two"),
        (pack_sparse_24, torch.tensor([[0.0] * 12 + [1, 0, 2, 3]] * 2), errors.ParameterError,
         "3 numbers in row 0, columns 12 to 15"),
        (pack_sparse_24, torch.ones(4, 12), errors.ShapeError, r"\(N, K\) with K a multiple of 8"),
        (pack_sparse_24, torch.ones(4, 8).int(), errors.DtypeError, "floating point numbers"),
        (prune_24, torch.ones(4, 8).to(torch.float8_e8m0fnu), errors.DtypeError, "numbers of 8 to 64 bits"),
        (pack_sparse_24, torch.ones(16), errors.RankError, "1 dimensions; expected 2"),
        (pack_sparse_24, 1.0, errors.NotATensorError, "weight' is a float"),
        (prune_24, torch.ones(4, 12), errors.ShapeError, "multiple of 8"),
    ],
)  # fmt: skip
def test_what_the_helpers_refuse(function, given, error, says):
    with pytest.raises(error, match=says) as caught:
        function(given)
    assert str(caught.value).startswith(f"portable.{function.__name__}: ")


@pytest.mark.parametrize(
    "change, error, says",
    [
        ({"meta": torch.full((20, 8), 0x41).byte()}, errors.ParameterError,
         "1 and 0 in row 0, group 0'; expected two places of 0 to 3, the lower one first"),
        ({"meta": torch.full((20, 8), 0x44).short()}, errors.DtypeError, "meta' has dtype"),
        ({"values": torch.ones(20, 30)}, errors.ShapeError, r"values' has shape \(20, 30\).*\(20, 32\)"),
        ({"values": torch.ones(32)}, errors.RankError, "values' has 1 dimensions"),
    ],
)  # fmt: skip
def test_what_unpacking_refuses(change, error, says):
    given = {"values": torch.ones(20, 32), "meta": torch.full((20, 8), 0x44).byte()} | change
    with pytest.raises(error, match=says):
        unpack_sparse_24(**given)


@pytest.mark.parametrize(
    "error, says, at, value",
    [
        (errors.DtypeError, "meta' has dtype int16; expected uint8", 2, torch.zeros(20, 8).short()),
        (errors.ShapeError, "x' has shape", 0, torch.ones(3, 72).bfloat16()),
        (errors.ShapeError, "values' has shape|meta' has shape", 1, torch.ones(20, 16).bfloat16()),
        (errors.ShapeError, "bias' has shape", 3, torch.ones(21).bfloat16()),
    ],
)
def test_what_it_refuses_and_says(error, says, at, value):
    x, w, bias = drawn()
    call = [x, *pack_sparse_24(w), bias]
    call[at] = value
    with pytest.raises(error, match=says):
        sparse_mm(*call)


def test_there_is_no_gradient():
    x, w, _ = drawn()
    with pytest.raises(errors.UnsupportedGradientError, match="sparse_mm: no gradient"):
        sparse_mm(x.requires_grad_(), *pack_sparse_24(w)).sum().backward()


def test_timings_are_held_to_the_product_of_the_same_weight():
    x, w, bias = drawn()
    values, meta = pack_sparse_24(w)
    given = {"x": x, "values": values, "meta": meta, "bias": bias}
    ours = sparse_mm(x, values, meta, bias)
    torch.testing.assert_close(baseline.dense(given, {})(), ours, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(baseline.sparse_mm(x, values, meta, bias), ours, rtol=1e-2, atol=1e-2)
    made = baseline.derived({"values": values}, {"N": 20, "J": 8})["meta"]
    assert made.shape == (20, 8) and (unpack_sparse_24(values, made) != 0).sum() == (values != 0).sum()


@pytest.mark.slow
def test_torch_compile_takes_it_whole():
    x, w, bias = drawn()
    call = (x, *pack_sparse_24(w), bias)
    assert torch.equal(torch.compile(sparse_mm, backend="eager", fullgraph=True)(*call), sparse_mm(*call))


# --- plans --------------------------------------------------------------------------------------------------


def call_of(rows, n, j, bias=False, device=H200, dtype="bfloat16", **config):
    shapes = {"x": (rows, 8 * j), "values": (n, 4 * j), "meta": (n, j), "y": (rows, n)}
    tensors: dict[str, TensorInfo | None] = {
        name: TensorInfo(shape, (shape[1], 1), "uint8" if name == "meta" else dtype)
        for name, shape in shapes.items()
    }
    tensors["bias"] = TensorInfo((n,), (1,), dtype) if bias else None
    default = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 8, "GROUP_M": 8, "num_warps": 4, "num_stages": 2}
    return Call(tensors, {}, {"N": n, "J": j}, device, config or default)


def changed(call, name, **change):
    return replace(call, tensors={**call.tensors, name: replace(call.tensors[name], **change)})


def wgmma(*args, **config):
    return sm90.wgmma(call_of(*args, **{"OTHER": 0, **config}))


@pytest.mark.parametrize(
    "rows, n, j, m",
    [(8192, 8192, 1024, 256), (4096, 14336, 512, 256), (256, 8192, 1024, 128), (16, 8192, 1024, 64)],
)
def test_tiles_by_the_waves_that_they_make(rows, n, j, m):
    assert defines(launch_of(wgmma(rows, n, j)))["TILE_M"] == m


@pytest.mark.parametrize("cluster", [1, 2])
@pytest.mark.parametrize("m", [64, 128, 192, 256])
def test_stages_fit_shared_memory_and_blocks_fill_clusters(m, cluster):
    launch = launch_of(wgmma(1000, 1000, 64, TILE_M=m, CLUSTER=cluster))
    made = defines(launch)
    assert (made["TILE_M"], made["CLUSTER"], made["OVERLAP"]) == (m, cluster, 1)
    assert made["STAGES"] >= 4 and made["VALUE_STAGES"] >= 3
    assert launch.kernel.shared <= H200.shared_memory and launch.grid[0] % cluster == 0
    assert scalar(launch, "tiles") == -(-1000 // m) * -(-1000 // (128 * cluster))
    assert made["BOX_ROWS"] * cluster == m


def test_few_rows_of_x_are_loaded_alone():
    launch = launch_of(wgmma(17, 64, 16))
    assert launch.grid == (1, 1, 1) and defines(launch)["BOX_ROWS"] == 24
    assert defines(launch)["OVERLAP"] == 0  # 128 k: fewer stages than blocks of y
    call = changed(call_of(1, 64, 16, OTHER=0), "x", strides=(3, 1))
    assert arguments_of(launch_of(sm90.wgmma(call)))["map_x"].strides == (256, 256, 256)


@pytest.mark.parametrize(
    "call, says",
    [
        (call_of(0, 64, 16), "nothing to multiply"),
        (call_of(4, 0, 16), "nothing to multiply"),
        (call_of(4, 64, 0), "nothing to multiply"),
        (call_of(4, 64, 24), "K = 192: rows of metadata do not start at multiples of 16 bytes"),
        (call_of(4, 68, 16), "N = 68 is no multiple of 8"),
        (changed(call_of(4, 64, 16), "x", strides=(132, 1)), "rows of x .* 132 apart"),
        (changed(call_of(4, 64, 16), "x", strides=(0, 1)), "rows of x .* 0 apart"),
        (changed(call_of(4, 64, 16), "meta", alignment=8), "that of meta is not"),
        (changed(call_of(4, 64, 16), "y", alignment=8), "that of y is not"),
    ],
)
def test_what_wgmma_declines(call, says):
    assert re.search(says, reason(sm90.wgmma(call)))


@pytest.mark.parametrize("device", [H200, A100])
@pytest.mark.parametrize("rows, m", [(1, 16), (16, 16), (17, 32), (64, 64), (65, 128), (5000, 128)])
def test_every_element_has_a_block_of_mma_and_its_stages_fit(rows, m, device):
    launch = launch_of(sm80.mma(call_of(rows, 1000, 6, device=device)))
    made = defines(launch)
    assert made["TILE_M"] == m and launch.grid[0] == -(-rows // m) * -(-1000 // made["TILE_N"])
    assert launch.kernel.shared <= device.shared_memory
    assert launch.kernel.threads == 32 * made["WARPS_N"] * made["WARPS_M"]
    assert made["VECTOR"] == 8 and defines(launch_of(sm80.mma(call_of(rows, 1001, 6))))["VECTOR"] == 1


@pytest.mark.parametrize(
    "call, says",
    [
        (call_of(4, 64, 7), "K = 56: values of a row do not start at multiples of 16 bytes"),
        (changed(call_of(4, 64, 16), "x", strides=(132, 1)), "rows of x .* 132 apart"),
        (changed(call_of(4, 64, 16), "values", alignment=8), "aligned to 16 bytes is needed; that of values"),
        (changed(call_of(4, 64, 16), "meta", alignment=1), "aligned to 2 bytes is needed; that of meta"),
        (call_of(2**31, 64, 16), "must be at most"),
    ],
)
def test_what_mma_declines(call, says):
    assert re.search(says, reason(sm80.mma(call)))


@pytest.mark.parametrize("device", [MI300X, RX7900])
@pytest.mark.parametrize("rows, m", [(1, 32), (32, 32), (33, 128), (1000, 128)])
def test_amd_s_matrix_instructions_take_any_alignment(rows, m, device):
    call = changed(call_of(rows, 1001, 7, device=device), "x", strides=(61, 1), alignment=2)
    launch = launch_of(gfx.matrix(call))
    made = defines(launch)
    assert made["TILE_M"] == m and launch.grid[0] == -(-rows // m) * 8
    assert launch.kernel.threads == device.warp_size * made["WAVES_N"] * made["WAVES_M"]
    assert "must be at most" in reason(gfx.matrix(call_of(2**31, 64, 16, device=device)))


def test_triton_knows_rows_at_multiples_of_16_and_steps_that_fill_k():
    fixed = constants(launch_of(triton_impl.product(call_of(40, 64, 32))))
    assert fixed["UNIT"] == 16 and fixed["EVEN"] and fixed["bias_ptr"] is None
    odd = constants(launch_of(triton_impl.product(call_of(40, 64, 33, bias=True))))
    assert odd["UNIT"] == 1 and not odd["EVEN"] and "bias_ptr" not in odd


@pytest.mark.parametrize(
    "device, j, tile",
    [(H200, 32, (128, 64, 8)), (A100, 32, (64, 64, 8)), (H200, 33, (32, 64, 4)), (MI300X, 32, (128, 64, 8))],
)
def test_triton_s_tiles_fit_registers_and_shared_memory(device, j, tile):
    config: dict[str, Any] = {
        "BLOCK_M": 128,
        "BLOCK_N": 64,
        "BLOCK_K": 8,
        "GROUP_M": 8,
        "num_warps": 4,
        "num_stages": 3,
    }
    for rows in (1, 5000):  # a row's bits do not depend on the number of rows
        launch = launch_of(triton_impl.product(call_of(rows, 64, j, device=device, **config)))
        made = constants(launch)
        assert tuple(made[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K")) == tile
    few: dict[str, Any] = {
        "BLOCK_M": 128,
        "BLOCK_N": 128,
        "BLOCK_K": 16,
        "GROUP_M": 1,
        "num_warps": 8,
        "num_stages": 1,
    }
    small = replace(device, shared_memory=16 * 1024)
    assert "shared memory" in reason(triton_impl.product(call_of(40, 64, 32, device=small, **few)))


@pytest.mark.slow
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("m, cluster", [(64, 1), (128, 2), (192, 1), (256, 1), (256, 2)])
def test_a_consumer_s_sums_and_metadata_fit_its_registers(m, cluster, bias):
    call = call_of(512, 512, 64, bias, TILE_M=m, CLUSTER=cluster)
    names = compiled(launch_of(sm90.wgmma(call)), call)
    # 8 sparse products of 32 k for each 256 k, and of a thread's two rows 16 bytes of metadata, twice.
    assert sum(each.startswith("HGMMA.SP") for each in names) == 8
    assert sum(each.startswith("LDG.E.128") for each in names) == 4

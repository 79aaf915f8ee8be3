"""The gradient of attention's bias in Triton: its plan, and what emulated GPUs answer."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import portable
from portable.kernels.attention.semantics import reference
from portable.kernels.attention.triton import plan as triton_plan
from portable.plan import Device, Launch, Plan, Pointer, Rejected, Scalar, TensorInfo, TritonKernel
from portable.spec import registry
from tests.kernels.attention.calls import DEFAULTS, dbias_call
from tests.kernels.attention.triton.test_plans import (
    AMPERE,
    CDNA,
    HOPPER,
    RDNA,
    RDNA3,
    compiled,
    info,
    maps,
)
from tests.kernels.plan_parts import accepted, constants, scalar

FAR = 2**31
FAR_ROWS = (64, 32, FAR // 2 + 64, 1)
CONFIG = {"BLOCK_M": 64, "BLOCK_N": 64, "COLUMNS": 64, "num_warps": 4, "num_stages": 1}
ORDER = ("do", "q", "k", "v", "o", "lse", "bias", "dlse")


def dbias(device: Device = HOPPER, config: dict[str, Any] = CONFIG, **options: Any) -> Plan | Rejected:
    return triton_plan.dbias(dbias_call(device=device, config=config, **options))


def planned(**call: Any) -> Plan:
    return accepted(dbias(**call))


def blocks(**call: Any) -> Launch:
    rows, found = planned(**call).launches
    assert (rows.kernel.name, found.kernel.name) == ("attention_bwd_preprocess", "attention_dbias")
    return found


@pytest.mark.parametrize("device", [HOPPER, AMPERE, CDNA, RDNA], ids=lambda device: device.arch)
@pytest.mark.parametrize(
    "call",
    [
        {},
        {"causal": True, "dlse": True},
        {"window_left": 40, "window_right": 3, "softcap": 9.0},
        {"D": 50, "E": 33},
        {"alignment": 2, "N": 77},
        {"M": 0},
        {"N": 0},
        {"dtype": "float16", "H": 3, "G": 3},
    ],
    ids=str,
)
def test_arguments_follow_the_kernels_parameters(call, device):
    for launch in planned(device=device, **call).launches:
        fixed = constants(launch)
        assert isinstance(launch.kernel, TritonKernel)
        given = [name for name, _ in launch.args if "." not in name]
        assert given == [name for name in launch.kernel.function.arg_names if name not in fixed]
        assert set(fixed) <= set(launch.kernel.function.arg_names)


@pytest.mark.parametrize(("M", "N"), [(1, 1), (64, 65), (129, 4096), (0, 9), (9, 0)])
def test_a_program_for_each_block_of_each_head(M, N):
    launch = blocks(M=M, N=N)
    assert launch.grid == (math.ceil(M / 64) * math.ceil(N / 64) * 8, 1, 1)
    assert (scalar(launch, "row_tiles"), scalar(launch, "key_tiles")) == (-(-M // 64), -(-N // 64))


@pytest.mark.parametrize("block_m", [32, 64, 128])
def test_the_workspaces_hold_whole_blocks_of_queries(block_m):
    plan = planned(M=300, config={**CONFIG, "BLOCK_M": block_m})
    padded = scalar(plan.launches[1], "padded")
    assert {each.name: each.shape for each in plan.workspaces} == {
        "lse_log2": (8, padded),
        "delta": (8, padded),
    }
    assert padded >= -(-300 // block_m) * block_m
    rows = plan.launches[0]
    assert scalar(rows, "padded") == padded == scalar(rows, "tiles") * constants(rows)["BLOCK_M"]


def test_rows_of_heads_come_in_pieces_but_are_summed_whole():
    """The kernel takes 64 columns at a time; the sum of do * o all of a row."""
    rows, found = planned(D=192, E=256).launches
    assert {name: each.block for name, each in maps(found).items()} == dict.fromkeys(
        ("do", "q", "k", "v"), (1, 1, 64, 64)
    )
    assert (constants(found)["BLOCK_D"], constants(found)["BLOCK_E"]) == (64, 64)
    assert constants(rows)["BLOCK_E"] == 256
    narrow = constants(blocks(D=13, E=29, device=CDNA))
    assert (narrow["BLOCK_D"], narrow["BLOCK_E"]) == (16, 32)


def test_blocks_are_smaller_where_elements_come_one_by_one():
    """With a pointer and a mask for each, blocks of 64 by 64 spill on most GPUs, and 64 columns on gfx9."""
    for call in ({"alignment": 2}, {"D": 60}):
        launch = blocks(M=65, N=96, **call)
        fixed = constants(launch)
        assert (fixed["UNIT"], fixed["BLOCK_M"], fixed["BLOCK_N"], fixed["BLOCK_D"]) == (1, 32, 32, 32)
        assert launch.grid[0] == 3 * 3 * 8


def test_heads_of_256_are_served_on_every_gpu():
    for device in (HOPPER, AMPERE, CDNA, RDNA3, RDNA):
        planned(D=256, device=device)


@pytest.mark.parametrize(
    ("call", "unit"),
    [
        ({}, 8),
        ({"N": 500}, 1),
        ({"alignment": 2}, 8),  # that of q, k and v
        ({"bias": info(2, 4, 300, 512, alignment=8)}, 1),
        ({"bias": TensorInfo((2, 4, 300, 512), (300 * 2064, 300 * 516, 516, 1), "bfloat16", 16)}, 1),
        ({"bias": TensorInfo((2, 4, 300, 512), (0, 0, 520, 1), "bfloat16", 16)}, 8),
    ],
)
def test_blocks_of_the_bias_are_read_eight_at_a_time_where_all_its_rows_allow(call, unit):
    launch = blocks(device=CDNA, **call)
    assert constants(launch)["BIAS_UNIT"] == unit
    for name in ("bias_ptr", "dbias_ptr"):
        pointer = dict(launch.args)[name]
        assert isinstance(pointer, Pointer) and pointer.aligned is (unit == 8)
    steps = [f"{name}_{step}" for name in ("bias", "dbias") for step in ("batch", "head", "row")]
    assert all(scalar(launch, name) % unit == 0 for name in (*steps, "N"))


def test_strides_have_64_bits():
    launch = blocks(device=CDNA, bias=TensorInfo((2, 4, 300, 512), (2**44, 2**42, 2**33, 1), "bfloat16", 16))
    steps = [arg for name, arg in launch.args if name.endswith(("_batch", "_head", "_row"))]
    assert len(steps) == 18 and all(isinstance(arg, Scalar) and arg.kind == "i64" for arg in steps)
    assert scalar(launch, "bias_row") == 2**33


def test_sizes_that_cannot_run_are_refused():
    refused = dbias(B=1, H=1, G=1, M=8, N=2**30, device=CDNA)
    assert isinstance(refused, Rejected) and "32 bits" in refused.reason
    refused = dbias(B=2**12, H=2**4, G=1, M=2**14, N=2**14, device=CDNA)
    assert isinstance(refused, Rejected) and "blocks" in refused.reason
    lying = TensorInfo((2, 4, 300, 512), (4 * 300 * 512, 300 * 512, 1, 300), "bfloat16", 16)
    refused = dbias(bias=lying)
    assert isinstance(refused, Rejected) and "bias's last dimension" in refused.reason


def test_the_default_config_is_the_specs():
    triton = registry.spec("attention_dbias").implementation("triton")
    assert triton is not None and triton.default == CONFIG


@pytest.mark.slow
def test_it_compiles_with_products_by_wgmma_and_wide_stores():
    plan = planned(D=128, causal=True)
    ptx = compiled(plan, plan.launches[1]).asm["ptx"]
    assert "wgmma" in ptx and "cp.async.bulk.tensor" in ptx and "st.global.v4" in ptx


# What emulated GPUs answer -----------------------------------------------------------------------


def given_of(dtype: torch.dtype, H: int, G: int, M: int, N: int, D: int, E: int, **params: Any) -> Any:
    """The inputs of one call, and its gradient in float64."""
    torch.manual_seed(1)
    made = {"do": (H, M, E), "q": (H, M, D), "k": (G, N, D), "v": (G, N, E), "bias": (H, M, N)}
    given = {name: torch.randn(2, *shape).to(dtype) for name, shape in made.items()}
    given["dlse"] = torch.randn(2, H, M)
    wide = {name: given[name].double() for name in ("q", "k", "v", "bias")}
    o, lse = reference.attention(**wide, **params)
    given |= {"o": o.to(dtype), "lse": lse.float()}
    return given, reference.attention_dbias(**{name: x.double() for name, x in given.items()}, **params)


def answered(given: dict[str, torch.Tensor], **params: Any) -> torch.Tensor:
    with portable.using(attention_dbias="triton"):
        return portable.attention_dbias(*(given[name] for name in ORDER), **params)


@pytest.mark.parametrize(
    ("arch", "dtype"), [("gfx942", torch.float16), ("gfx942", torch.bfloat16), ("gfx1100", torch.bfloat16)]
)
@pytest.mark.parametrize(
    ("sizes", "params"),
    [
        ((4, 2, 90, 77, 72, 24), {"causal": True, "window_left": 40, "softcap": 9.0}),
        ((2, 1, 65, 136, 16, 80), {"window_left": 30, "window_right": 2, "scale": -0.5}),
        ((1, 1, 3, 72, 13, 29), {}),
    ],
    ids=["causal", "window", "odd"],
)
def test_dbias_on_an_emulated_gpu(emulate, arch, dtype, sizes, params):
    """Several blocks and pieces, shared heads, a cap; what a query does not see is 0, and so are the first
    13 rows of the first case, which see nothing."""
    given, wanted = given_of(dtype, *sizes, **DEFAULTS | params)
    emulate(arch)
    found = answered(given, **params)
    assert found.shape == wanted.shape and found.dtype == dtype
    torch.testing.assert_close(found.double(), wanted, rtol=0.51 * torch.finfo(dtype).eps, atol=2e-5)
    assert not found[wanted == 0].any()
    assert torch.equal(found, answered(given, **params))
    if params.get("causal"):
        assert not wanted[:, :, :13].any()


def test_tensors_of_any_strides(emulate):
    """Heads between the rows, a bias that repeats, one whose rows lie apart: the same bits."""
    sizes = (4, 2, 33, 40, 24, 24)
    given, _ = given_of(torch.bfloat16, *sizes, **DEFAULTS)
    emulate("gfx942")
    given["bias"] = given["bias"][:, :1].expand(2, 4, 33, 40)
    wanted = answered({name: x.contiguous() for name, x in given.items()})
    for name in ("do", "q", "k", "v", "o"):
        given[name] = given[name].transpose(1, 2).contiguous().transpose(1, 2)
    assert torch.equal(answered(given), wanted)
    apart = torch.full((2, 4, 35, 51), math.nan, dtype=torch.bfloat16)
    apart[:, :, :33, 3:43] = given["bias"]
    given["bias"] = apart[:, :, :33, 3:43]
    assert torch.equal(answered(given), wanted)


@pytest.mark.parametrize(
    ("name", "strides"),
    [("bias", (96, FAR + 64, 16, 1)), ("bias", FAR_ROWS), ("q", FAR_ROWS)],
)
def test_offsets_past_2_31_elements(emulate, name, strides):
    given, _ = given_of(torch.bfloat16, 2, 1, 3, 16, 16, 16, **DEFAULTS)
    emulate("gfx942")
    wanted = answered(given)
    near = given[name]
    span = 1 + sum((size - 1) * stride for size, stride in zip(near.shape, strides, strict=True))
    assert span > FAR
    given[name] = torch.empty(span, dtype=torch.bfloat16).as_strided(near.shape, strides)
    given[name].copy_(near)
    assert torch.equal(answered(given), wanted)


def test_a_hidden_pair_is_0_whatever_its_key_holds(emulate):
    params = {"window_left": 8, "window_right": 8}
    given, _ = given_of(torch.bfloat16, 1, 1, 130, 130, 16, 16, **DEFAULTS | params)
    emulate("gfx942")
    given["v"][:, :, 129] = math.nan
    found = answered(given, **params)
    places = torch.arange(130)
    assert not found[:, :, (places - places[:, None]).abs() > 8].any()
    assert found[:, :, 121:, 129].isnan().all()

"""attention in HIP C++ on AMD's matrix units: plans without a GPU, and small calls on emulated GPUs."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

import portable
from portable.backends.rocm import compile as hip
from portable.backends.rocm.emulator.code_object import CodeObject
from portable.backends.rocm.emulator.main_loop import body, main_loop
from portable.backends.rocm.metadata import resources
from portable.kernels.attention.gfx.plan import HEAD_UNIT, forward, forward_tile
from portable.layout import ceil_div
from portable.plan import Call, Device, Rejected, Scalar, TensorInfo
from portable.spec import registry
from tests.kernels.attention.calls import DEFAULTS
from tests.kernels.attention.sm90.test_fwd import heads, info
from tests.kernels.plan_parts import arguments_of, defines, launch_of

DEVICES = {
    "gfx90a": Device("rocm", "gfx90a", "toy", 0, 104, 64, 64 * 1024, 512),
    "gfx942": Device("rocm", "gfx942", "toy", 0, 304, 64, 64 * 1024, 512),
    "gfx950": Device("rocm", "gfx950", "toy", 0, 256, 64, 160 * 1024, 512),
    "gfx1100": Device("rocm", "gfx1100", "toy", 0, 48, 32, 64 * 1024, 256),
    "gfx1201": Device("rocm", "gfx1201", "toy", 0, 32, 32, 64 * 1024, 256),
}


def make_call(
    M: int, N: int, D: int, E: int | None = None, *, B: int = 2, H: int = 4, G: int = 2, arch: str = "gfx942",
    bias: bool = False, sinks: bool = False, dtype: torch.dtype = torch.bfloat16, **given: Any,
) -> Call:  # fmt: skip
    E = E or D
    tensors: dict[str, TensorInfo | None] = {
        "q": info(heads(B, H, M, D, dtype=dtype)),
        "k": info(heads(B, G, N, D, dtype=dtype)),
        "v": info(heads(B, G, N, E, dtype=dtype)),
        "bias": info(heads(B, H, M, N, dtype=dtype)) if bias else None,
        "sinks": info(heads(H, dtype=torch.float32)) if sinks else None,
        "o": info(heads(B, H, M, E, dtype=dtype)),
        "lse": info(heads(B, H, M, dtype=torch.float32)),
    }
    axes = {"H": H, "G": G, "M": M, "N": N, "D": D, "E": E}
    return Call(tensors, {**DEFAULTS, **given}, axes, DEVICES[arch], {})


@pytest.mark.parametrize("arch", DEVICES)
@pytest.mark.parametrize("D", [1, 32, 64, 72, 128, 160, 192, 256])
def test_a_tile_fits_its_gpu(arch, D):
    device, size = DEVICES[arch], ceil_div(D, HEAD_UNIT) * HEAD_UNIT
    tile = forward_tile(device, size, size)
    launch = launch_of(forward(make_call(300, 500, D, arch=arch)))
    assert launch.kernel.threads == tile.waves * device.warp_size == 256
    assert tile.shared(size, size) <= 64 * 1024
    assert launch.grid == (-(-300 // tile.m) * 2 * 4, 1, 1)


def test_an_absent_operand_is_null():
    args = arguments_of(launch_of(forward(make_call(64, 64, 64))))
    assert args["bias"] == args["sinks"] == Scalar("i64", 0) and args["bias_row"].value == 0


def test_the_sides_of_a_window():
    args = arguments_of(launch_of(forward(make_call(40, 100, 64, causal=True, window_left=7))))
    assert (args["left"].value, args["right"].value) == (7, 0)
    made = defines(launch_of(forward(make_call(40, 100, 64, causal=True, window_left=7))))
    assert (made["LEFT"], made["RIGHT"]) == (1, 1)
    made = defines(launch_of(forward(make_call(40, 100, 64, window_left=99, window_right=39))))
    assert (made["LEFT"], made["RIGHT"]) == (0, 0)


@pytest.mark.parametrize("given", [{"bias": True}, {"softcap": 3.0}, {"scale": 0.0}, {"scale": -1.0}])
def test_only_a_positive_scale_of_the_products_is_folded_into_the_exponent(given):
    assert defines(launch_of(forward(make_call(64, 64, 64, **given))))["SCALE_ONLY"] == 0
    assert defines(launch_of(forward(make_call(64, 64, 64, scale=2.0))))["SCALE_ONLY"] == 1


def test_lengths_share_a_kernel():
    first, second = (launch_of(forward(make_call(M, N, 64))).kernel for M, N in ((17, 900), (4000, 31)))
    assert first == second


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (make_call(64, 64, 64, dtype=torch.float32), "no matrix instruction"),
        (make_call(2**29 + 1, 64, 64), "queries, keys or offsets"),
        (make_call(2**20, 64, 64, B=2**9, H=8), "more than one launch takes"),
    ],
    ids=["float32", "rows", "blocks"],
)
def test_what_it_does_not_run(call, says):
    plan = forward(call)
    assert isinstance(plan, Rejected) and says in plan.reason


def test_nothing_to_do_launches_nothing():
    assert launch_of(forward(make_call(0, 64, 64))).grid[0] == 0
    assert launch_of(forward(make_call(64, 0, 64))).grid[0] > 0  # zeros and -inf


def test_each_matrix_unit_has_an_implementation():
    found = [each.name for each in registry.spec("attention").implementations if each.languages == ("hip",)]
    assert found == ["decode_mfma", "decode_wmma", "mfma", "wmma"]


@pytest.mark.parametrize(
    ("D", "row", "arch", "taken"),
    [
        (64, 64, "gfx942", 1),
        (72, 72, "gfx950", 1),
        (64, 2**24 - 8, "gfx90a", 1),
        (64, 2**24, "gfx942", 0),
        (64, 65, "gfx942", 0),
        (64, 0, "gfx942", 0),
        (36, 36, "gfx942", 0),
        (64, 64, "gfx1100", 0),
    ],
    ids=["rows", "chunks", "far", "too far", "odd", "one row for all", "half a chunk", "RDNA"],
)
def test_keys_come_by_buffer_descriptors_where_a_tile_of_rows_allows_it(D, row, arch, taken):
    call = make_call(64, 64, D, arch=arch)
    k = call.tensors["k"]
    assert k is not None
    tensors = {**call.tensors, "k": replace(k, strides=(*k.strides[:-2], row, 1))}
    assert defines(launch_of(forward(replace(call, tensors=tensors))))["BUFFER_LOADS"] == taken


@pytest.mark.slow
@pytest.mark.parametrize("bits", [0x7FC0, 0x7FFF, -1])
@pytest.mark.parametrize("arch", ["gfx942", "gfx950", "gfx1100"])
def test_a_query_that_is_nan_gets_nan_and_no_other(emulate, arch, bits):
    """P are rounded as if none were NaN, where a NaN of many ones could become zero."""
    torch.manual_seed(3)
    q, k, v = (torch.randn(1, 1, n, 64).to(torch.bfloat16) for n in (40, 130, 130))
    q.view(torch.int16)[0, 0, 7, 5] = bits
    emulate(arch)
    with portable.using(attention="wmma" if arch == "gfx1100" else "mfma"):
        o, lse = portable.attention(q, k, v, return_lse=True)
        all_nan = portable.attention(q, k.view(torch.int16).fill_(bits).view(torch.bfloat16), v)
    rows = torch.arange(40) == 7
    assert torch.equal(o.isnan()[0, 0], rows[:, None].expand(40, 64))
    assert torch.equal(lse.isnan()[0, 0], rows)
    assert all_nan.isnan().all()


@pytest.mark.slow
@pytest.mark.parametrize("bits", [0x7FC00000, 0x7FFFFFFF, -1])
def test_a_sink_that_is_nan_makes_its_head_nan(emulate, bits):
    q, k, v = (torch.randn(1, 2, n, 32).to(torch.bfloat16) for n in (9, 11, 11))
    sinks = torch.zeros(2)
    sinks.view(torch.int32)[1] = bits
    emulate("gfx942")
    with portable.using(attention="mfma"):
        o = portable.attention(q, k, v, sinks=sinks)
    assert o[:, 1].isnan().all() and not o[:, 0].isnan().any()


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["gfx942", "gfx950", "gfx1100"])
def test_infinite_scores_are_nan(emulate, arch):
    """A key whose score is +inf, and queries for which it comes before and after other blocks of keys."""
    q, k, v = (torch.ones(1, 1, n, 64).to(torch.bfloat16) for n in (4, 200, 200))
    k[0, 0, 70, 0] = torch.inf
    emulate(arch)
    with portable.using(attention="wmma" if arch == "gfx1100" else "mfma"):
        o, lse = portable.attention(q, k, v, return_lse=True)
        hidden, _ = portable.attention(-q, k, v, return_lse=True)
    assert o.isnan().all() and lse.isnan().all()
    assert torch.equal(hidden, torch.ones_like(hidden))


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["mfma", "decode_mfma"])
def test_p_below_the_normal_numbers_of_float16_count(emulate, implementation):
    """MI200's products take subnormal operands for zero. P of 2^-20 beside one of 1, whose value is 0."""
    q, k, v = (torch.zeros(1, 1, n, 32, dtype=torch.float16) for n in (1, 2, 2))
    q[..., 0], k[0, 0, 1, 0], v[0, 0, 1] = 1, -20, 2**12
    emulate("gfx90a")
    with portable.using(attention=implementation):
        o, lse = portable.attention(q, k, v, scale=math.log(2), return_lse=True)
    assert torch.equal(o, torch.full_like(o, 2**-8))
    assert lse.abs().max() < 2e-6


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["gfx942", "gfx1100"])
@pytest.mark.parametrize("bias", [False, True])
def test_nothing_spills(arch, bias):
    kernel = launch_of(forward(make_call(512, 512, 128, arch=arch, causal=True, bias=bias))).kernel
    made = resources(hip.compile(kernel.source, kernel.defines, arch))[kernel.entry]
    assert made["vgpr_spills"] == made["sgpr_spills"] == made["scratch"] == 0
    assert made["lds"] == forward_tile(DEVICES[arch], 128, 128, bias).shared(128, 128)


@pytest.mark.parametrize("arch", ["gfx942", "gfx1100"])
def test_a_problem_of_one_step_takes_one_wave(arch):
    """Many heads of a few queries and keys: no wave of a block is without queries."""
    warp = DEVICES[arch].warp_size
    for M, N, D, waves in ((16, 32, 64, 1), (17, 32, 64, None), (16, 33, 64, None), (16, 32, 96, None)):
        launch = launch_of(forward(make_call(M, N, D, arch=arch)))
        assert (launch.kernel.threads == warp) is (waves == 1), (M, N, D)
        assert launch.grid[0] == 2 * 4 or M > 16


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arch", "D", "products", "vector", "transcendental"),
    [
        ("gfx942", 128, 64, 2.4, 0.5),  # 32x32x8, or as many of its FLOPs
        ("gfx950", 128, 32, 3.2, 1.0),  # 32x32x16
        ("gfx942", 64, 32, 3.4, 1.0),
        ("gfx950", 64, 16, 4.3, 2.0),
    ],
)
def test_few_instructions_stand_beside_the_products(arch, D, products, vector, transcendental):
    kernel = launch_of(forward(make_call(4096, 4096, D, arch=arch, causal=True))).kernel
    code = hip.compile(kernel.source, kernel.defines, arch)
    loop = main_loop(code, kernel.entry)
    assert loop is not None
    assert loop.flops == products * 2 * 32 * 32 * (16 if arch == "gfx950" else 8)
    assert loop.vector <= vector * products and loop.transcendental <= transcendental * products
    assert loop.lds_read_bytes <= 0.032 * loop.flops
    assert resources(code)[kernel.entry]["vgprs"] <= (168 if D == 64 else 256)  # 3, and 2, waves of a SIMD


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arch", "D", "products"), [("gfx950", 128, 1), ("gfx942", 128, 1), ("gfx950", 64, 0), ("gfx942", 64, 0)]
)
def test_priority_of_a_waves_products_and_its_softmax(arch, D, products):
    """Products come first with heads above 64; up to 64 the softmax."""
    kernel = launch_of(forward(make_call(4096, 4096, D, arch=arch, causal=True))).kernel
    loop = body(CodeObject(hip.compile(kernel.source, kernel.defines, arch)), kernel.entry)
    assert loop is not None
    priority, of = 0, {"v_mfma": set(), "v_exp": set()}
    for again in (False, True):  # a loop's priority at first is its last
        for inst in loop:
            if inst.name == "s_setprio":
                priority = inst.fields["simm16"]
            elif again and (kind := inst.name[: inst.name.find("_", 2)]) in of:
                of[kind].add(priority)
    assert of == {"v_mfma": {products}, "v_exp": {1 - products}}

"""The gradient of attention's bias on AMD's matrix units: what its plan launches and refuses; emulated."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

import portable
from portable.backends.rocm import compile
from portable.kernels.attention.gfx import plan as gfx_plan
from portable.kernels.attention.params import UNBOUNDED
from portable.kernels.attention.semantics import reference
from portable.plan import Call
from portable.spec import registry
from tests.kernels.attention.calls import DEFAULTS
from tests.kernels.attention.gfx.test_bwd import DEVICES
from tests.kernels.attention.gfx.test_bwd import make_call as backward_call
from tests.kernels.attention.sm90.test_bwd import changed, info
from tests.kernels.plan_parts import accepted, arguments_of, reason

ORDER = ("do", "q", "k", "v", "o", "lse", "bias", "dlse")


def make_call(B: int, H: int, G: int, M: int, N: int, D: int, E: int | None = None, **options: Any) -> Call:
    call = backward_call(B, H, G, M, N, D, E, bias=True, **options)
    tensors = {name: x for name, x in call.tensors.items() if name not in ("dq", "dk", "dv")}
    return replace(call, tensors=tensors | {"dbias": info((B, H, M, N), call["q"].dtype)})


def planned(call: Call) -> Any:
    return accepted(gfx_plan.dbias(call))


def arguments(call: Call) -> dict[str, Any]:
    return arguments_of(planned(call).launches[1])


def defines(call: Call) -> dict[str, Any]:
    return dict(planned(call).launches[1].kernel.defines)


@pytest.mark.parametrize("arch", DEVICES)
def test_a_block_takes_a_tile_of_queries_by_keys(arch):
    rows, tiles = planned(make_call(3, 8, 2, 300, 500, 64, arch=arch)).launches
    assert rows.grid == (24 * 19, 1, 1)
    assert tiles.grid == (24 * 3 * 4, 1, 1)
    args = dict(tiles.args)
    assert (args["key_tiles"].value, args["tiles"].value, args["blocks"].value) == (4, 12, 288)
    found = dict(tiles.kernel.defines)
    assert (found["TILE"], found["TILE_K"], tiles.kernel.threads) == (128, 64, 256)


@pytest.mark.parametrize("arch", DEVICES)
def test_a_small_problem_takes_one_small_tile(arch):
    for M, N, tile in ((1, 1, 64), (64, 64, 64), (64, 65, 128), (65, 2, 128)):
        launch = planned(make_call(3, 8, 2, M, N, 64, arch=arch)).launches[1]
        found = dict(launch.kernel.defines)
        assert (found["TILE"], found["TILE_K"], launch.grid[0]) == (tile, tile // 2, 24)
        assert launch.kernel.threads == (256 if tile == 128 else 64)


def test_heads_of_any_size_take_the_same_build():
    found = {
        (D % 64, E % 64, planned(make_call(1, 2, 2, 64, 99, D, E)).launches[1].kernel.defines)
        for D in (1, 64, 80, 128, 192, 256)
        for E in (7, 64, 128, 256)
    }
    assert len({built for _, _, built in found}) == 2
    assert all(dict(built)["EVEN_HEADS"] == (d == e == 0) for d, e, built in found)


@pytest.mark.parametrize(
    ("params", "left", "right"),
    [
        ({}, UNBOUNDED, UNBOUNDED),
        ({"causal": True}, UNBOUNDED, 0),
        ({"window_left": 90, "window_right": 7}, 90, 7),
        ({"window_left": 50, "window_right": 7, "causal": True}, 50, 0),
    ],
)
def test_which_keys_are_seen(params, left, right):
    args = arguments(make_call(1, 2, 2, 100, 200, 64, **params))
    assert (args["left"].value, args["right"].value) == (left, right)


def test_scores_are_in_base_two():
    args = arguments(make_call(1, 2, 2, 64, 64, 64, scale=0.5))
    assert (
        args["score_scale"].value == pytest.approx(0.5 * math.log2(math.e))
        and args["softcap_log2"].value == 0
    )
    args = arguments(make_call(1, 2, 2, 64, 64, 64, scale=0.5, softcap=20.0))
    assert args["score_scale"].value == pytest.approx(2 * 0.5 / 20 * math.log2(math.e))
    assert args["softcap_log2"].value == pytest.approx(20 * math.log2(math.e))
    assert [defines(make_call(1, 2, 2, 64, 64, 64, softcap=cap))["SOFTCAP"] for cap in (None, 20.0)] == [0, 1]


def test_strides_reach_the_kernel_as_they_lie():
    call = make_call(2, 8, 8, 300, 300, 64)
    call = changed(call, "q", strides=(300 * 8 * 65, 65, 8 * 65, 1), alignment=2)
    call = changed(call, "bias", strides=(300 * 301, 0, 301, 1), alignment=2)
    args = arguments(call)
    assert [args[f"q_{field}"].value for field in ("batch", "head", "row")] == [300 * 520, 65, 520]
    assert [args[f"bias_{field}"].value for field in ("batch", "head", "row")] == [300 * 301, 0, 301]
    assert [args[f"dbias_{field}"].value for field in ("batch", "head", "row")] == [720000, 90000, 300]


def test_nothing_to_do_is_no_blocks():
    for sizes in ((2, 4, 2, 0, 9, 64), (2, 4, 2, 9, 0, 64), (0, 4, 2, 9, 9, 64)):
        assert planned(make_call(*sizes)).launches[1].grid[0] == 0


def test_what_is_left_to_others():
    call = make_call(1, 2, 2, 64, 64, 64)
    strides = (1 << 20, 1 << 16, 4096, 64, 1)
    assert "leading" in reason(gfx_plan.dbias(changed(call, "do", shape=(2, 3, 2, 64, 64), strides=strides)))
    assert "stride" in reason(gfx_plan.dbias(changed(call, "bias", strides=(8192, 4096, 1, 64))))
    assert "queries, keys or offsets" in reason(gfx_plan.dbias(make_call(1, 1, 1, 1, 2**28 + 1, 64)))
    assert "blocks" in reason(gfx_plan.dbias(make_call(2**20, 32, 32, 64, 64, 64)))
    assert "softcap" in reason(gfx_plan.dbias(make_call(1, 2, 2, 64, 64, 64, softcap=0.0)))


def test_the_spec_lists_one_for_each_unit_before_triton():
    names = [each.name for each in registry.spec("attention_dbias").implementations]
    assert names.index("mfma") < names.index("triton") and names.index("wmma") < names.index("triton")


@pytest.mark.slow
@pytest.mark.parametrize(("N", "D", "lds"), [(300, 128, 32768), (300, 80, 32768), (40, 40, 8192)])
@pytest.mark.parametrize("arch", ["gfx942", "gfx1100"])
def test_nothing_spills(arch, N, D, lds):
    kernel = planned(make_call(1, 2, 1, 60, N, D, arch=arch, causal=True)).launches[1].kernel
    found = compile.resources(compile.compile(kernel.source, kernel.defines, arch))[kernel.entry]
    assert found["vgpr_spills"] == found["sgpr_spills"] == found["scratch"] == 0
    assert found["lds"] == lds


def gradient(dtype: torch.dtype, H: int, G: int, M: int, N: int, D: int, E: int, **params: Any):
    """The inputs of one call, and dbias in float64."""
    torch.manual_seed(1)
    made = {"do": (H, M, E), "q": (H, M, D), "k": (G, N, D), "v": (G, N, E), "bias": (H, M, N)}
    given = {name: torch.randn(shape).to(dtype) for name, shape in made.items()}
    given["dlse"] = torch.randn(H, M)
    exact = {name: x.double() for name, x in given.items()}
    o, lse = reference.attention(*(exact[name] for name in ("q", "k", "v", "bias")), **DEFAULTS | params)
    given |= {"o": o.to(dtype), "lse": lse.float()}
    exact |= {"o": given["o"].double(), "lse": given["lse"].double()}
    return given, reference.attention_dbias(**exact, **DEFAULTS | params)


def answered(given: dict[str, torch.Tensor], implementation: str, **params: Any) -> torch.Tensor:
    with portable.using(attention_dbias=implementation):
        return portable.attention_dbias(*(given[name] for name in ORDER), **params)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arch", "implementation", "dtype"),
    [("gfx942", "mfma", torch.float16), ("gfx1100", "wmma", torch.bfloat16)],
)
@pytest.mark.parametrize(
    ("sizes", "params"),
    [
        ((4, 2, 150, 141, 72, 24), {"causal": True, "window_left": 40, "softcap": 9.0}),
        ((2, 1, 65, 264, 256, 192), {"window_left": 30, "window_right": 2, "scale": -0.5}),
        ((1, 1, 3, 72, 13, 29), {}),
        ((4, 2, 61, 50, 40, 72), {"causal": True, "window_left": 30}),
    ],
    ids=["causal", "window", "odd", "small"],
)
def test_dbias_on_an_emulated_gpu(emulate, arch, implementation, dtype, sizes, params):
    """Several tiles along queries, keys and the head, shared heads, a cap. Pairs that are not seen are 0, and
    so are the first 9 rows where they see nothing."""
    given, wanted = gradient(dtype, *sizes, **params)
    emulate(arch)
    found = answered(given, implementation, **params)
    assert found.shape == wanted.shape and found.dtype == dtype
    torch.testing.assert_close(found.double(), wanted, rtol=0.51 * torch.finfo(dtype).eps, atol=2e-5)
    assert not found[wanted == 0].any()
    assert torch.equal(found, answered(given, implementation, **params))
    if params.get("causal"):
        assert not wanted[:, :9].any()


@pytest.mark.slow
def test_a_hidden_pair_is_0_whatever_it_holds(emulate):
    """Keys, values and biases that no query sees are NaN, in a tile that is read and in one that is not."""
    given, _ = gradient(torch.bfloat16, 1, 1, 20, 300, 32, 32, window_right=0, window_left=50)
    for name in ("k", "v", "bias"):
        given[name].narrow(-2 if name != "bias" else -1, 0, 230).fill_(math.nan)
    emulate("gfx942")
    found = answered(given, "mfma", window_right=0, window_left=50)
    assert not found[..., :230].any() and not found.isnan().any() and found[..., 230:].any()


def test_rows_that_lie_anywhere(emulate):
    """Heads between the rows, a bias that repeats, one whose rows begin at odd elements: the same bits."""
    given, _ = gradient(torch.bfloat16, 4, 2, 33, 40, 24, 24)
    given["bias"] = given["bias"][:1].expand(4, 33, 40)
    emulate("gfx1100")
    wanted = answered({name: x.contiguous() for name, x in given.items()}, "wmma")
    for name in ("do", "q", "k", "v"):
        given[name] = given[name].transpose(0, 1).contiguous().transpose(0, 1)
    apart = torch.full((4, 35, 51), math.nan, dtype=torch.bfloat16)
    apart[:, :33, 3:43] = given["bias"]
    given["bias"] = apart[:, :33, 3:43]
    assert torch.equal(answered(given, "wmma"), wanted)

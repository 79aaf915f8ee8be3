"""attention's gradient on AMD's matrix units: what its plans launch and refuse; emulated runs."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

import portable
from portable.backends.rocm import compile
from portable.backends.rocm.backend import TARGETS
from portable.backends.rocm.emulator.main_loop import main_loop
from portable.kernels.attention.gfx import plan as gfx_plan
from portable.kernels.attention.params import UNBOUNDED
from portable.kernels.attention.semantics import reference
from portable.plan import Call
from portable.spec import registry
from tests.kernels.attention.calls import DEFAULTS
from tests.kernels.attention.sm90.test_bwd import changed
from tests.kernels.attention.sm90.test_bwd import make_call as hopper_call
from tests.kernels.plan_parts import accepted, arguments_of, reason

DEVICES = {target.arch: target for target in TARGETS}
SIZES = (1, 13, 32, 64, 80, 96, 128, 160, 192, 200, 256)


def make_call(*sizes: Any, arch: str = "gfx942", **options: Any) -> Call:
    return replace(hopper_call(*sizes, **options), device=DEVICES[arch])


def planned(call: Call) -> Any:
    return accepted(gfx_plan.backward(call))


def launch_of(call: Call, name: str) -> Any:
    (found,) = (each for each in planned(call).launches if each.kernel.name == f"attention_bwd_{name}")
    return found


def arguments(call: Call, name: str) -> dict[str, Any]:
    return arguments_of(launch_of(call, name))


def defines(call: Call, name: str) -> dict[str, Any]:
    return dict(launch_of(call, name).kernel.defines)


def own_rows_in(launch: Any) -> int:
    found = dict(launch.kernel.defines)
    return found["WAVES"] * found["TILES_PER_WAVE"] * 16


def own_rows_of(call: Call, name: str) -> int:
    return own_rows_in(launch_of(call, name))


@pytest.mark.parametrize("arch", DEVICES)
def test_blocks_cover_rows_keys_and_queries(arch):
    call = make_call(3, 8, 2, 300, 500, 64, arch=arch)
    rows, keys, queries = planned(call).launches
    assert rows.grid == (24 * 19, 1, 1)
    assert keys.grid == (6 * -(-500 // own_rows_of(call, "dkdv")), 1, 1)
    assert queries.grid == (24 * -(-300 // own_rows_of(call, "dq")), 1, 1)
    for launch in (keys, queries):
        assert dict(launch.args)["blocks"].value == launch.grid[0]
        assert launch.kernel.threads == dict(launch.kernel.defines)["WAVES"] * DEVICES[arch].warp_size
    assert {w.name: (w.shape, w.dtype) for w in planned(call).workspaces} == {
        "stats": ((24 * 300 + 32, 2), "float32"),
    }


def lds_of(found: dict[str, Any], arch: str = "") -> int:
    """What the sources declare: the streamed rows, as they lie and transposed, and the own ones. gfx950's are
    not transposed where they come by buffer descriptors, but padded."""
    D, E = found["HEAD_D"], found["HEAD_E"]
    if arch == "gfx950" and found["BUFFER_LOADS"]:
        return sum(2 * found["STREAM_ROWS"] * (width + 32 * (width % 64 == 0)) for width in (D, E))
    rows = D + (E if found["ACC_D"] else 0)
    passing = 2 * found["STREAM_ROWS"] * (rows + (D if found["ACC_D"] else 0) + (E if found["ACC_E"] else 0))
    own = 0 if found["OWN_IN_REGISTERS"] else 2 * found["WAVES"] * found["TILES_PER_WAVE"] * 16 * rows
    return passing + own


def found_by(plan: Any) -> list[str]:
    """What each launch behind the first writes."""
    names: dict[Any, str] = {(1, 1, 1): "dk dv", (1, 1, 0): "dk", (1, 0, 1): "dv", (0, 1, 0): "dq"}
    kernels = [dict(launch.kernel.defines) for launch in plan.launches[1:]]
    return [names[found["OWNS_KEYS"], found["ACC_D"], found["ACC_E"]] for found in kernels]


@pytest.mark.parametrize("arch", DEVICES)
def test_blocks_fit_a_compute_unit(arch):
    wide = DEVICES[arch].warp_size == 64
    for D in SIZES:
        for E in SIZES:
            plan = planned(make_call(1, 2, 2, 200, 200, D, E, arch=arch))
            for launch in plan.launches[1:]:
                found = dict(launch.kernel.defines)
                assert lds_of(found, arch) <= DEVICES[arch].shared_memory
                for size, name in ((D, "D"), (E, "E")):
                    held = found[f"HEAD_{name}"]
                    assert size <= held and held % 32 == 0
                    assert held - 32 < size or (held == 256 and not wide and D + E > 352)
                    assert found[f"EVEN_{name}"] == (size == held)


@pytest.mark.parametrize("arch", DEVICES)
def test_dk_and_dv_of_large_heads_have_launches_of_their_own_on_rdna(arch):
    for D, E in ((64, 64), (128, 128), (96, 160), (192, 128), (256, 256)):
        together = DEVICES[arch].warp_size == 64 or D + E <= 256
        plan = planned(make_call(1, 2, 2, 200, 200, D, E, arch=arch))
        assert found_by(plan) == (["dk dv", "dq"] if together else ["dk", "dv", "dq"])


@pytest.mark.parametrize(
    ("params", "left", "right"),
    [
        ({}, UNBOUNDED, UNBOUNDED),
        ({"causal": True}, UNBOUNDED, 0),
        ({"window_left": 90, "window_right": 7}, 90, 7),
        ({"window_left": 50, "window_right": 7, "causal": True}, 50, 0),
        ({"window_left": 2**40}, UNBOUNDED, UNBOUNDED),
    ],
)
def test_which_keys_are_seen(params, left, right):
    for name in ("dkdv", "dq"):
        args = arguments(make_call(1, 2, 2, 100, 200, 64, **params), name)
        assert (args["left"].value, args["right"].value) == (left, right)


def test_scores_are_in_base_two():
    args = arguments(make_call(1, 2, 2, 64, 64, 64, scale=0.5), "dkdv")
    assert args["score_scale"].value == pytest.approx(0.5 * math.log2(math.e)) and args["scale"].value == 0.5
    args = arguments(make_call(1, 2, 2, 64, 64, 64, scale=0.5, softcap=20.0), "dq")
    assert args["score_scale"].value == pytest.approx(2 * 0.5 / 20 * math.log2(math.e))
    assert args["softcap_log2"].value == pytest.approx(20 * math.log2(math.e))
    assert args["scale"].value == 0.5


def test_what_is_absent_is_null():
    for given in (False, True):
        call = make_call(1, 2, 2, 64, 64, 64, bias=given, dlse=given)
        assert hasattr(arguments(call, "preprocess")["dlse"], "tensor") == given
        assert hasattr(arguments(call, "dkdv")["bias"], "tensor") == given
        assert defines(call, "preprocess")["DLSE"] == defines(call, "dq")["BIAS"] == given


def test_strides_reach_the_kernels_as_they_lie():
    """(batch, sequence, heads, dim) in memory, a bias that repeats over the heads, rows of any alignment."""
    call = make_call(2, 8, 8, 300, 300, 64, bias=True)
    for name in ("q", "do", "dq"):
        call = changed(call, name, strides=(300 * 8 * 65, 65, 8 * 65, 1), alignment=2)
    call = changed(call, "bias", strides=(300 * 301, 0, 301, 1))
    args = arguments(call, "dq")
    assert [args[f"dout_{field}"].value for field in ("batch", "head", "row")] == [300 * 520, 65, 520]
    assert [args[f"bias_{field}"].value for field in ("batch", "head", "row")] == [300 * 301, 0, 301]
    assert [args[f"dq_{field}"].value for field in ("batch", "head", "row")] == [300 * 520, 65, 520]


def test_nothing_to_do_is_no_blocks():
    assert [each.grid[0] for each in planned(make_call(2, 4, 2, 0, 9, 64)).launches] == [0, 4, 0]
    assert [each.grid[0] for each in planned(make_call(2, 4, 2, 9, 0, 64)).launches] == [8, 0, 8]
    assert [each.grid[0] for each in planned(make_call(0, 4, 2, 9, 9, 64)).launches] == [0, 0, 0]


def test_what_is_left_to_others():
    call = make_call(1, 2, 2, 64, 64, 64)
    strides = (1 << 20, 1 << 16, 4096, 64, 1)
    five = changed(call, "do", shape=(2, 3, 2, 64, 64), strides=strides)
    assert "leading" in reason(gfx_plan.backward(five))
    assert "stride" in reason(gfx_plan.backward(changed(call, "v", strides=(8192, 4096, 1, 64))))
    assert "queries, keys or offsets" in reason(gfx_plan.backward(make_call(1, 1, 1, 1, 2**28 + 1, 64)))
    assert "blocks" in reason(gfx_plan.backward(make_call(2**20, 32, 32, 64, 64, 64)))


def test_the_spec_lists_one_for_each_unit_before_triton():
    names = [each.name for each in registry.spec("attention_backward").implementations]
    assert names.index("mfma") < names.index("triton") and names.index("wmma") < names.index("triton")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arch", "D", "E"),
    [("gfx942", 128, 128), ("gfx950", 128, 128), ("gfx90a", 128, 128), ("gfx1100", 128, 128),
     ("gfx1100", 192, 128), ("gfx1100", 256, 256), ("gfx1201", 256, 256)],
)  # fmt: skip
def test_nothing_spills(arch, D, E):
    for launch in planned(make_call(1, 2, 1, 200, 300, D, E, arch=arch, causal=True)).launches[1:]:
        kernel = launch.kernel
        found = compile.resources(compile.compile(kernel.source, kernel.defines, arch))[kernel.entry]
        assert found["vgpr_spills"] == found["sgpr_spills"] == found["scratch"] == 0
        assert found["lds"] == lds_of(dict(kernel.defines), arch)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arch", "D", "name", "products", "vector"),
    [  # products of 16x16x16 (gfx950: 16x16x32) of a wave's iteration; vector instructions for each
        ("gfx942", 128, "dkdv", 128, 1.25),
        ("gfx942", 128, "dq", 96, 1.1),
        ("gfx942", 64, "dkdv", 64, 2.2),
        ("gfx942", 64, "dq", 48, 1.75),
        ("gfx950", 128, "dkdv", 64, 0.9),
        ("gfx950", 128, "dq", 48, 0.95),
        ("gfx950", 64, "dkdv", 32, 1.7),
        ("gfx950", 64, "dq", 24, 1.75),
    ],
)
def test_few_instructions_stand_beside_the_products(arch, D, name, products, vector):
    kernel = launch_of(make_call(1, 1, 1, 4096, 4096, D, arch=arch, causal=True), name).kernel
    loop = main_loop(compile.compile(kernel.source, kernel.defines, arch), kernel.entry)
    assert loop is not None
    assert loop.matrix == products
    assert loop.vector <= vector * products and loop.transcendental == 16
    assert loop.lds_read_bytes <= 0.032 * loop.flops


def test_odd_heads_come_by_loads_of_their_own():
    plain = make_call(1, 2, 2, 200, 200, 128)
    assert [defines(plain, each)["BUFFER_LOADS"] for each in ("dkdv", "dq")] == [1, 1]
    for odd in (make_call(1, 2, 2, 200, 200, 124), make_call(1, 2, 2, 200, 200, 128, arch="gfx1100")):
        assert [defines(odd, each)["BUFFER_LOADS"] for each in ("dkdv", "dq")] == [0, 0]
    far = changed(plain, "q", strides=(2**24 * 200, 2**24 * 100, 2**24, 1))
    assert [defines(far, each)["BUFFER_LOADS"] for each in ("dkdv", "dq")] == [0, 1]


def test_waves_own_32_keys_of_128_columns_where_scores_are_plain():
    cases: list[tuple[dict[str, Any], int]] = [({}, 2), ({"softcap": 9.0}, 1), ({"bias": True}, 1)]
    for options, rows in cases:
        call = make_call(1, 2, 2, 200, 200, 128, **options)
        assert defines(call, "dkdv")["TILES_PER_WAVE"] == rows


def gradients(dtype: torch.dtype, H: int, G: int, M: int, N: int, D: int, E: int, **params: Any):
    """The inputs of one call, and its gradients in float64."""
    torch.manual_seed(1)
    made = {"do": (H, M, E), "q": (H, M, D), "k": (G, N, D), "v": (G, N, E), "bias": (H, M, N)}
    given = {name: torch.randn(shape).to(dtype) for name, shape in made.items()}
    given["dlse"] = torch.randn(H, M)
    exact = {name: x.double() for name, x in given.items()}
    all_params = DEFAULTS | params
    o, lse = reference.attention(exact["q"], exact["k"], exact["v"], exact["bias"], **all_params)
    given |= {"o": o.to(dtype), "lse": lse.float()}
    exact |= {"o": given["o"].double(), "lse": given["lse"].double()}
    return given, reference.attention_backward(**exact, **all_params)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arch", "implementation", "dtype"),
    [("gfx942", "mfma", torch.float16), ("gfx1100", "wmma", torch.bfloat16)],
)
def test_gradients_on_an_emulated_gpu(emulate, arch, implementation, dtype):
    """Several tiles, shared heads, odd sizes, a window, a cap, a bias; rows without keys get zeros."""
    params = {"causal": True, "window_left": 40, "softcap": 9.0}
    given, wanted = gradients(dtype, 4, 2, 150, 141, 40, 24, **params)
    emulate(arch)
    order = ("do", "q", "k", "v", "o", "lse", "bias", "dlse")
    with portable.using(attention_backward=implementation):
        found = portable.attention_backward(*(given[name] for name in order), **params)
        again = portable.attention_backward(*(given[name] for name in order), **params)
    for one, other, right in zip(found, again, wanted, strict=True):
        assert torch.equal(one, other)
        assert (one.double() - right).norm() < (8e-3 if dtype == torch.bfloat16 else 1e-3) * right.norm()
    assert not found[0][:, :9].any()


@pytest.mark.slow
@pytest.mark.parametrize(("D", "E"), [(256, 256), (192, 128), (60, 250)])
@pytest.mark.parametrize("arch", ["gfx1100", "gfx1201"])
def test_large_heads_on_emulated_rdna(emulate, arch, D, E):
    """dk and dv of launches of their own, 16 or 32 streamed rows at a time."""
    given, wanted = gradients(torch.bfloat16, 2, 1, 70, 77, D, E, causal=True)
    emulate(arch)
    with portable.using(attention_backward="wmma"):
        order = ("do", "q", "k", "v", "o", "lse", "bias", "dlse")
        found = portable.attention_backward(*(given[name] for name in order), causal=True)
    for one, right in zip(found, wanted, strict=True):
        assert (one.double() - right).norm() < 8e-3 * right.norm()


@pytest.mark.parametrize("arch", ["gfx942", "gfx1100"])
def test_a_problem_of_one_step_takes_one_wave(arch):
    sizes = ((16, 16, 64, 1, 1), (32, 16, 64, 1, 0), (16, 32, 64, 0, 1), (16, 16, 96, 0, 0))
    for M, N, D, keys, queries in sizes:
        call = make_call(2, 4, 2, M, N, D, arch=arch)
        for name, one in (("dkdv", keys), ("dq", queries)):
            threads = launch_of(call, name).kernel.threads
            assert (threads == DEVICES[arch].warp_size) is bool(one), (M, N, D, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lse", "dlse"])
@pytest.mark.parametrize("bits", [0x7FFFFFFF, -1, 0x7FC00000])
def test_nan_of_many_ones_stays_nan(emulate, name, bits):
    """What a NaN of a query's is: dS are rounded as if none had more than the upper bits set."""
    given, _ = gradients(torch.bfloat16, 1, 1, 40, 50, 32, 32)
    given[name].view(torch.int32)[0, 11] = bits
    order = ("do", "q", "k", "v", "o", "lse", "bias", "dlse")
    emulate("gfx942")
    with portable.using(attention_backward="mfma"):
        dq, dk, dv = portable.attention_backward(*(given[each] for each in order))
    assert dk.isnan().all() and dq[0, 11].isnan().all() and not dq[0, 12].isnan().any()
    assert dv.isnan().all() == (name == "lse")

"""Plans of attention's mma.sync kernel: who is served, with which tile; that it compiles everywhere."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from portable.backends.cuda.backend import OTHERS, TARGETS, CudaBackend
from portable.kernels.attention.params import UNBOUNDED
from portable.kernels.attention.sm80 import plan as sm80
from portable.kernels.attention.sm80.plan import HEAD_UNIT, Tile
from portable.layout import ceil_div
from portable.plan import Plan, Scalar
from portable.runtime import build
from portable.spec import registry
from tests.kernels.attention.calls import WINDOWS_OF_300_BY_500
from tests.kernels.attention.sm90.test_fwd import (
    build_folder,
    defines,
    heads,
    make_call,
    reason,
    square,
)
from tests.kernels.plan_parts import arguments_of, launch_of

DEVICES = {device.arch: device for device in TARGETS + OTHERS}


def padded(size: int) -> int:
    return ceil_div(size, HEAD_UNIT) * HEAD_UNIT


@pytest.mark.parametrize(
    ("D", "M", "tile"),
    [
        (64, 300, Tile(64, 4, 2)),
        (64, 64, Tile(64, 4, 1)),
        (128, 65, Tile(48, 4, 2)),
        (128, 1, Tile(48, 4, 1)),
        (130, 300, Tile(64, 4, 1)),
        (256, 1, Tile(64, 4, 1)),
    ],
)
def test_tiles(D, M, tile):
    launch = launch_of(sm80.forward(square(2, 4, 2, M, 500, D)))
    found = dict(launch.kernel.defines)
    assert (found["TILE_N"], found["WARPS"], found["M_TILES"]) == tile
    assert launch.kernel.threads == 32 * tile.warps
    assert launch.kernel.shared == tile.shared(padded(D), padded(D))
    assert launch.grid == (-(-M // tile.m) * 2 * 4, 1, 1)


@pytest.mark.parametrize("E", [1, 7, 64, 72, 128, 200, 256])
@pytest.mark.parametrize("D", [1, 13, 40, 64, 96, 128, 192, 256])
def test_every_head_size_fits_the_smallest_gpu(D, E):
    smallest = min(DEVICES.values(), key=lambda device: device.shared_memory)
    call = replace(square(2, 2, 1, 300, 300, D, E), device=smallest)
    kernel = launch_of(sm80.forward(call)).kernel
    found = dict(kernel.defines)
    assert D <= found["HEAD_D"] < D + 16 and E <= found["HEAD_E"] < E + 16
    assert found["HEAD_D"] % 16 == found["HEAD_E"] % 16 == 0
    assert kernel.shared <= smallest.shared_memory


@pytest.mark.parametrize(("arch", "most"), [("sm_80", 164), ("sm_90a", 228)])
def test_two_blocks_fit_a_multiprocessor(arch, most):
    for D in (64, 128, 160, 192, 256):
        call = replace(square(2, 2, 1, 300, 300, D), device=DEVICES[arch])
        assert 2 * (launch_of(sm80.forward(call)).kernel.shared + 1024) <= most * 1024


def test_memory_holds_what_is_copied_and_then_o():
    assert Tile(64, 4, 2).shared(128, 64) == 128 * 272 + 64 * 272 + 64 * 144
    assert Tile(16, 4, 2).shared(16, 256) == 128 * 528


@pytest.mark.parametrize("given", [{}, {"causal": True}, {"window_left": 500}], ids=str)
@pytest.mark.parametrize("D", [64, 128, 256])
def test_a_row_is_rounded_the_same_in_any_batch(D, given):
    for S in (1, 100, 2048):
        found = [defines(launch_of(sm80.forward(square(B, 8, 8, S, S, D, **given)))) for B in (1, 2, 64)]
        assert all(each == found[0] for each in found)


def test_arguments():
    launch = launch_of(sm80.forward(square(3, 8, 2, 300, 500, 128, 64, causal=True, window_left=7)))
    args = arguments_of(launch)
    assert all(args[name].tensor == name for name in ("q", "k", "v", "o", "lse"))
    assert args["sinks"] == Scalar("i64", 0)
    values = {name: arg.value for name, arg in args.items() if isinstance(arg, Scalar)}
    sizes = {"seqlen_q": 300, "seqlen_k": 500, "head_dim": 128, "head_dim_v": 64, "heads": 8, "tiles": 3}
    sizes |= {"qheads_per_kvhead": 4, "left": 7, "right": 0}
    assert values.items() >= sizes.items()
    assert (values["q_batch"], values["q_head"], values["q_row"]) == (8 * 300 * 128, 300 * 128, 128)
    assert (values["k_batch"], values["v_batch"]) == (2 * 500 * 128, 2 * 500 * 64)
    assert (values["lse_batch"], values["lse_head"], values["lse_row"]) == (2400, 300, 1)
    assert all(args[name].kind == "i64" for name in values if name.endswith(("_batch", "_head", "_row")))


@pytest.mark.parametrize(("given", "left", "right"), WINDOWS_OF_300_BY_500)
def test_bounds(given, left, right):
    plan = sm80.forward(square(1, 2, 2, 300, 500, 64, **given))
    found, args = defines(launch_of(plan)), arguments_of(launch_of(plan))
    assert (found["LEFT"], found["RIGHT"]) == (int(left is not None), int(right is not None))
    assert (args["left"].value, args["right"].value) == tuple(
        UNBOUNDED if side is None else side for side in (left, right)
    )


@pytest.mark.parametrize(
    ("given", "scaled", "capped", "scale", "inner"),
    [
        ({}, 0, 0, 1 / 8, 0.0),
        ({"scale": 0.0}, 1, 0, None, 0.0),
        ({"scale": -0.5}, 1, 0, None, -0.5),
        ({"softcap": 20.0, "scale": -0.5}, 0, 1, 20.0, 2 * -0.5 / 20),
    ],
)
def test_scores_are_powers_of_two(given, scaled, capped, scale, inner):
    plan = sm80.forward(square(1, 1, 1, 8, 8, 64, **given))
    found, args = defines(launch_of(plan)), arguments_of(launch_of(plan))
    assert (found["SCALED"], found["SOFTCAP"]) == (scaled, capped)
    products = inner if scaled or capped else scale
    assert args["score_scale"].value == pytest.approx(products * math.log2(math.e))
    assert args["softcap_log2"].value == pytest.approx(scale * math.log2(math.e) if capped else 0.0)


def test_sinks_and_types_reach_the_kernel():
    half = heads(1, 2, 8, 64, dtype=torch.float16)
    plan = sm80.forward(make_call(half, half, half, sinks=True))
    assert defines(launch_of(plan))["SINKS"] == 1 and defines(launch_of(plan))["ELEMENT"] == "f16"
    assert arguments_of(launch_of(plan))["sinks"].tensor == "sinks"


def widths(plan):
    found = defines(launch_of(plan))
    return found["COPY_BYTES"], found["STORE_BYTES"]


def test_rows_that_are_not_aligned_are_copied_by_the_element():
    call = square(1, 2, 1, 9, 9, 64)
    assert widths(sm80.forward(call)) == (16, 16)
    assert widths(sm80.forward(square(1, 2, 1, 9, 9, 13, 24))) == (2, 16)
    assert widths(sm80.forward(square(1, 2, 1, 9, 9, 24, 7))) == (2, 2)
    for name, expected in (("q", (2, 16)), ("k", (2, 16)), ("v", (2, 16)), ("o", (16, 2))):
        moved = replace(call, tensors={**call.tensors, name: replace(call[name], alignment=8)})
        assert widths(sm80.forward(moved)) == expected


def test_a_head_size_of_any_number_may_lie_in_aligned_rows():
    part = heads(1, 2, 9, 64)[..., :61]
    assert defines(launch_of(sm80.forward(make_call(part, part, part))))["COPY_BYTES"] == 16
    assert defines(launch_of(sm80.forward(make_call(part, part, part))))["HEAD_D"] == 64


def test_strides_of_one_row_do_not_matter():
    q = torch.empty_strided((1, 1, 1, 64), (3, 5, 7, 1), dtype=torch.bfloat16, device="meta")
    launch = launch_of(sm80.forward(make_call(q, heads(1, 1, 50, 64), heads(1, 1, 50, 64))))
    assert defines(launch)["COPY_BYTES"] == 16


def test_nothing_to_do():
    assert 0 in launch_of(sm80.forward(square(0, 2, 2, 129, 8, 64))).grid
    assert 0 in launch_of(sm80.forward(square(1, 2, 2, 0, 8, 64))).grid
    # Without keys, zeros and -inf are to be written.
    assert 0 not in launch_of(sm80.forward(square(1, 2, 2, 5, 0, 64))).grid


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (square(1, 1, 1, 8, 8, 64, bias=heads(1, 1, 8, 8)), "bias"),
        (make_call(*(heads(1, 1, 8, 64, dtype=torch.float32),) * 3), "float32"),
        (square(1, 1, 1, 8, 8, 64, scale=math.nan), "scale"),
        (square(1, 1, 1, 8, 8, 64, scale=1e31), "scale"),
        (square(1, 1, 1, 8, 8, 64, softcap=1e-35), "scale"),
        (square(1, 1, 1, 8, 8, 64, softcap=-1.0), "softcap"),
        (square(1, 1, 1, 2**31, 8, 64), "more than"),
        (square(2**26, 1, 1, 8192, 8, 64), "one launch"),
        (make_call(heads(1, 1, 64, 8).transpose(2, 3), heads(1, 1, 8, 64), heads(1, 1, 8, 64)), "stride"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_left_to_others(call, word):
    assert word in reason(sm80.forward(call))


def test_a_config_that_does_not_fit_is_rejected():
    call = square(1, 1, 1, 300, 8, 256, config={"TILE_N": 64, "WARPS": 8, "M_TILES": 2})
    assert isinstance(sm80.forward(call), Plan)
    assert "bytes" in reason(sm80.forward(replace(call, device=DEVICES["sm_80"])))


def test_config_is_heeded():
    config = {"TILE_N": 32, "WARPS": 8, "M_TILES": 1}
    launch = launch_of(sm80.forward(square(1, 1, 1, 300, 8, 128, config=config)))
    assert dict(launch.kernel.defines).items() >= config.items()
    assert launch.kernel.threads == 256 and launch.grid == (3, 1, 1)


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100"])
@pytest.mark.parametrize(
    "call",
    [
        square(1, 2, 1, 300, 300, 64, window_left=5, window_right=5, softcap=5.0, sinks=True),
        square(1, 2, 1, 300, 300, 128, causal=True),
        square(1, 2, 1, 300, 300, 256, window_left=9, scale=-1.0),
        square(1, 2, 1, 30, 300, 125, causal=True),
    ],
    ids=["64, window, cap, sinks", "128, causal", "256, window, negative scale", "125, few queries"],
)
def test_it_compiles_without_spills(call, arch):
    backend = CudaBackend(build_folder())
    launch = launch_of(sm80.forward(call))
    dtypes = {name: x.dtype for name, x in call.tensors.items() if x is not None}
    resources = backend.resources(build.code_object(launch, dtypes, backend, DEVICES[arch]))
    assert resources.stack == 0 and resources.spills == 0


def test_the_spec_lists_it_behind_triton_from_sm_80_on():
    implementations = registry.spec("attention").implementations
    names = [each.name for each in implementations]
    assert names.index("triton") < names.index("mma") < names.index("torch")
    pattern = (implementations[names.index("mma")].requires.arch or ("",))[0]
    backend = CudaBackend(build_folder())
    assert {arch: backend.arch_matches(pattern, arch) for arch in ("sm_75", "sm_80", "sm_90a", "sm_120")} == {
        "sm_75": False, "sm_80": True, "sm_90a": True, "sm_120": True,
    }  # fmt: skip

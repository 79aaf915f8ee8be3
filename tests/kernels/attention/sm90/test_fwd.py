"""Plans of attention's wgmma kernel: who is served, what the copies bring, which keys a tile walks."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from portable.backends.cuda.backend import CudaBackend
from portable.kernels.attention.params import UNBOUNDED
from portable.kernels.attention.sm90 import plan as sm90
from portable.kernels.attention.sm90.plan import HEAD_UNIT, Tile
from portable.layout import ceil_div
from portable.plan import Call, Device, TensorInfo, TensorMap
from portable.runtime import build
from portable.spec import registry
from tests.kernels.attention.calls import DEFAULTS, WINDOWS_OF_300_BY_500
from tests.kernels.plan_parts import arguments_of, defines, launch_of, reason, scalar

H200 = Device("cuda", "sm_90a", "toy", 0, 132, 32, 227 * 1024, 255, l2_bytes=50 << 20)


def padded(size: int) -> int:
    return ceil_div(size, HEAD_UNIT) * HEAD_UNIT


def info(x: torch.Tensor, alignment: int = 16) -> TensorInfo:
    return TensorInfo(tuple(x.shape), tuple(x.stride()), str(x.dtype).removeprefix("torch."), alignment)


def heads(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


def make_call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, config: Any = None, **given: Any) -> Call:
    *leading, H, M, D = q.shape
    G, N, E = v.shape[-3:]
    tensors: dict[str, TensorInfo | None] = {name: info(x) for name, x in (("q", q), ("k", k), ("v", v))}
    tensors["bias"] = info(given.pop("bias")) if "bias" in given else None
    tensors["sinks"] = info(heads(H, dtype=torch.float32)) if given.pop("sinks", False) else None
    tensors["o"] = info(heads(*leading, H, M, E, dtype=q.dtype))
    tensors["lse"] = info(heads(*leading, H, M, dtype=torch.float32))
    axes = {"H": H, "G": G, "M": M, "N": N, "D": D, "E": E}
    return Call(tensors, {**DEFAULTS, **given}, axes, H200, config or {})


def square(B: int, H: int, G: int, M: int, N: int, D: int, E: int | None = None, **given: Any) -> Call:
    return make_call(heads(B, H, M, D), heads(B, G, N, D), heads(B, G, N, E or D), **given)


def test_maps_cover_the_operands():
    args = arguments_of(launch_of(sm90.forward(square(3, 8, 2, 300, 500, 128))))
    assert args["map_q"] == TensorMap(
        "q", "bfloat16", (128, 300, 8, 3), (256, 256 * 300, 256 * 2400), (64, 128, 1, 1)
    )
    assert args["map_k"].sizes == args["map_v"].sizes == (128, 500, 2, 3)
    assert args["map_k"].box == args["map_v"].box == (64, 128, 1, 1)
    assert args["qheads_per_kvhead"].value == 4 and args["all_heads"].value == 24
    assert args["tma_steps"].value == 63


def test_heads_between_the_rows():
    """(batch, sequence, heads, dim) in memory reaches the maps as it lies."""
    q = heads(2, 300, 8, 64).transpose(1, 2)
    args = arguments_of(launch_of(sm90.forward(make_call(q, q, q))))
    assert args["map_q"].sizes == (64, 300, 8, 2)
    assert args["map_q"].strides == (8 * 128, 128, 300 * 8 * 128)
    assert args["o_row"].value == 64


def test_repeated_dimensions_do_not_step():
    q = heads(2, 8, 300, 64)
    k = heads(1, 1, 500, 64).expand(2, 8, 500, 64)
    args = arguments_of(launch_of(sm90.forward(make_call(q, k, k))))
    assert args["map_k"].sizes == (64, 500, 1, 1)
    assert args["tma_steps"].value == 0b000011
    assert all(stride % 16 == 0 and stride > 0 for stride in args["map_k"].strides)


def test_a_dimension_of_one_may_have_any_stride():
    q = torch.empty_strided((1, 1, 1, 64), (3, 5, 7, 1), dtype=torch.bfloat16, device="meta")
    args = arguments_of(launch_of(sm90.forward(make_call(q, heads(1, 1, 50, 64), heads(1, 1, 50, 64)))))
    assert all(stride % 16 == 0 for stride in args["map_q"].strides)


@pytest.mark.parametrize("E", [8, 40, 64, 72, 128, 192, 200, 256])
@pytest.mark.parametrize("D", [8, 40, 64, 72, 96, 128, 192, 256])
def test_every_head_size_fits(D, E):
    launch = launch_of(sm90.forward(square(2, 2, 1, 300, 300, D, E)))
    found = dict(launch.kernel.defines)
    assert found["HEAD_D"] == padded(D) and found["HEAD_E"] == padded(E)
    most = {2: 190, 3: 130, 4: 80}[found["CONSUMERS"]]
    assert found["HEAD_E"] // 2 + found["TILE_N"] * 3 // 4 <= most
    assert launch.kernel.shared <= H200.shared_memory
    assert found["Q_STAGES"] in (1, 2) and found["TILE_N"] % 16 == 0
    assert launch.kernel.threads == 128 * (1 + found["CONSUMERS"])


@pytest.mark.parametrize(("given", "left", "right"), WINDOWS_OF_300_BY_500)
def test_bounds(given, left, right):
    plan = sm90.forward(square(1, 2, 2, 300, 500, 64, **given))
    found, args = defines(launch_of(plan)), arguments_of(launch_of(plan))
    assert (found["LEFT"], found["RIGHT"]) == (int(left is not None), int(right is not None))
    sides = (UNBOUNDED if side is None else side for side in (left, right))
    assert (args["left"].value, args["right"].value) == tuple(sides)


def test_scale_and_cap_are_powers_of_two():
    args = arguments_of(launch_of(sm90.forward(square(1, 1, 1, 8, 8, 64))))
    assert args["score_scale"].value == pytest.approx(math.log2(math.e) / 8)
    assert args["softcap_log2"].value == 0
    plan = sm90.forward(square(1, 1, 1, 8, 8, 64, softcap=20.0, scale=-0.5))
    args = arguments_of(launch_of(plan))
    assert defines(launch_of(plan))["SOFTCAP"] == 1
    assert args["softcap_log2"].value == pytest.approx(20 * math.log2(math.e))
    assert args["score_scale"].value == pytest.approx(2 * -0.5 / 20 * math.log2(math.e))


def test_blocks_are_as_many_as_tiles_or_multiprocessors():
    plan = sm90.forward(square(1, 2, 2, 300, 8, 64))
    assert launch_of(plan).grid == (-(-300 // (64 * defines(launch_of(plan))["CONSUMERS"])) * 2, 1, 1)
    assert launch_of(sm90.forward(square(4, 32, 8, 4096, 4096, 128))).grid == (132, 1, 1)
    assert 0 in launch_of(sm90.forward(square(0, 2, 2, 129, 8, 64))).grid
    assert 0 in launch_of(sm90.forward(square(1, 2, 2, 0, 8, 64))).grid


@pytest.mark.parametrize(
    ("D", "B", "H", "S", "pairs"),
    [
        (128, 32, 16, 512, True),
        (128, 8, 16, 2048, True),
        (128, 2, 16, 8192, False),
        (128, 1, 2, 300, False),
        (256, 8, 8, 2048, True),
        (256, 2, 8, 8192, False),
    ],
)
def test_falling_costs(D, B, H, S, pairs):
    """Pairs where many heads' keys would be under way at once and leave L2, else all heads together."""
    launch = launch_of(sm90.forward(square(B, H, H, S, S, D, causal=True)))
    assert arguments_of(launch)["heads_per_band"].value == (0 if pairs else B * H)
    assert launch.grid[0] <= 132


def test_an_odd_number_of_tiles_makes_no_pairs():
    launch = launch_of(sm90.forward(square(32, 16, 16, 380, 380, 128, causal=True)))
    assert scalar(launch, "heads_per_band") == 512


@pytest.mark.parametrize("given", [{}, {"causal": True}, {"window_left": 500}], ids=str)
@pytest.mark.parametrize("D", [64, 128, 256])
def test_a_row_is_rounded_the_same_in_any_batch(D, given):
    """The tile decides about the order of sums."""
    for S in (1, 100, 512, 1000, 2048, 4096, 10000):
        found = [defines(launch_of(sm90.forward(square(B, 8, 8, S, S, D, **given)))) for B in (1, 2, 7, 64)]
        assert all(each == found[0] for each in found)


@pytest.mark.parametrize(
    ("D", "S", "given", "consumers", "keys"),
    [
        (128, 512, {}, 2, 128),
        (128, 8192, {}, 3, 80),
        (128, 2048, {}, 2, 128),
        (128, 2048, {"causal": True}, 2, 128),
        (128, 8192, {"causal": True}, 3, 80),
        (128, 8192, {"causal": True, "window_left": 1023}, 2, 128),
        (64, 512, {}, 4, 64),
        (64, 512, {"causal": True}, 2, 128),
        (64, 1024, {}, 4, 64),
        (64, 2048, {}, 4, 64),
        (64, 2048, {"causal": True}, 4, 64),
        (64, 4096, {"causal": True}, 4, 64),
        (64, 8192, {"causal": True}, 4, 64),
        (64, 8192, {}, 3, 128),
        (256, 512, {}, 2, 64),
        (256, 8192, {"causal": True}, 2, 80),
    ],
)
def test_tiles_are_those_that_measured_best(D, S, given, consumers, keys):
    found = defines(launch_of(sm90.forward(square(2, 16, 16, S, S, D, **given))))
    assert (found["CONSUMERS"], found["TILE_N"]) == (consumers, keys)


def test_equal_costs_are_walked_in_order():
    assert scalar(launch_of(sm90.forward(square(2, 32, 8, 8192, 8192, 128))), "heads_per_band") == 1
    window = sm90.forward(square(2, 32, 8, 8192, 8192, 128, causal=True, window_left=128))
    assert arguments_of(launch_of(window))["heads_per_band"].value == 1


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (square(1, 1, 1, 8, 8, 64, bias=heads(1, 1, 8, 8)), "bias"),
        (square(1, 1, 1, 8, 0, 64), "no keys"),
        (square(1, 1, 1, 8, 8, 12), "multiple of 8"),
        (square(1, 1, 1, 8, 8, 64, 7), "multiple of 8"),
        (square(1, 1, 1, 8, 8, 64, scale=0.0), "scale"),
        (square(1, 1, 1, 8, 8, 64, scale=-1.0), "scale"),
        (square(1, 1, 1, 8, 8, 64, scale=math.nan), "scale"),
        (
            make_call(heads(1, 1, 8, 64), heads(1, 1, 8, 65)[..., :64], heads(1, 1, 8, 64)),
            "multiples of 16 bytes",
        ),
        (
            make_call(heads(1, 1, 8, 64), heads(1, 1, 8, 64), heads(1, 1, 1, 64).expand(1, 1, 8, 64)),
            "overlap",
        ),
        (square(1, 1, 1, 2**31, 8, 64), "more than"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_left_to_others(call, word):
    assert word in reason(sm90.forward(call))


def test_unaligned_bases_are_left_to_others():
    call = square(1, 1, 1, 8, 8, 64)
    tensors = dict(call.tensors)
    tensors["k"] = replace(call["k"], alignment=8)
    assert "k has rows" in reason(sm90.forward(replace(call, tensors=tensors)))


def test_config_is_heeded():
    config = {"TILE_N": 96, "CONSUMERS": 2, "PINGPONG": 1, "HEADS_PER_BAND": 4}
    plan = sm90.forward(square(1, 1, 1, 8, 8, 128, config=config, causal=True))
    found = defines(launch_of(plan))
    assert (found["TILE_N"], found["PINGPONG"], found["CONSUMERS"]) == (96, 1, 2)
    assert arguments_of(launch_of(plan))["heads_per_band"].value == 4
    assert arguments_of(launch_of(plan))["map_k"].box == (64, 96, 1, 1)


def test_a_tile_knows_its_memory():
    assert Tile(128, 2, 0).shared(128, 128, 1) == 1024 + 32768 + 4 * 32768 + 80
    assert Tile(64, 4, 1, stages=4).shared(64, 64, 2) == 1024 + 2 * 32768 + 8 * 8192 + 160


@pytest.mark.slow
@pytest.mark.parametrize(
    "call",
    [
        square(1, 2, 1, 300, 300, 128, causal=True),
        square(1, 2, 1, 300, 300, 64, window_left=5, window_right=5, softcap=5.0, sinks=True),
        square(1, 2, 1, 300, 300, 256),
        square(1, 2, 1, 2048, 2048, 64, causal=True),
    ],
    ids=["causal", "window, cap, sinks", "256", "four consumers"],
)
def test_it_compiles(call):
    backend = CudaBackend(build_folder())
    launch = launch_of(sm90.forward(call))
    dtypes = {name: x.dtype for name, x in call.tensors.items() if x is not None}
    code = build.code_object(launch, dtypes, backend, H200)
    assert code.threads == launch.kernel.threads and code.shared == launch.kernel.shared
    assert backend.resources(code).stack <= 256  # between tiles; none in the loop over keys


def build_folder():
    from pathlib import Path

    import portable.backends.cuda as package

    return Path(package.__path__[0])


def test_the_spec_lists_it_before_triton():
    names = [each.name for each in registry.spec("attention").implementations]
    assert names.index("wgmma") < names.index("triton")

"""Plans of attention_backward's wgmma kernels: who is served, what the copies bring, what lies between."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import portable.backends.cuda as cuda
from portable.backends.cuda.backend import CudaBackend
from portable.kernels.attention.sm90 import plan as sm90
from portable.plan import Call, Device, TensorInfo, TensorMap
from portable.runtime import build
from portable.spec import registry
from tests.kernels.attention.calls import DEFAULTS
from tests.kernels.plan_parts import accepted, arguments_of, reason

H200 = Device("cuda", "sm_90a", "toy", 0, 132, 32, 227 * 1024, 255, l2_bytes=50 << 20)


def info(
    shape: tuple[int, ...], dtype: str = "bfloat16", strides: tuple[int, ...] | None = None
) -> TensorInfo:
    return TensorInfo(shape, strides or torch.empty(shape, device="meta").stride(), dtype)


def make_call(
    B: int, H: int, G: int, M: int, N: int, D: int, E: int | None = None, config: Any = None,
    dtype: str = "bfloat16", bias: bool = False, dlse: bool = False, **params: Any,
) -> Call:  # fmt: skip
    E = E or D
    shapes = {
        "do": (B, H, M, E), "q": (B, H, M, D), "k": (B, G, N, D), "v": (B, G, N, E), "o": (B, H, M, E),
        "dq": (B, H, M, D), "dk": (B, G, N, D), "dv": (B, G, N, E),
    }  # fmt: skip
    tensors: dict[str, TensorInfo | None] = {name: info(shape, dtype) for name, shape in shapes.items()}
    tensors["lse"] = info((B, H, M), "float32")
    tensors["bias"] = info((B, H, M, N), dtype) if bias else None
    tensors["dlse"] = info((B, H, M), "float32") if dlse else None
    axes = {"H": H, "G": G, "M": M, "N": N, "D": D, "E": E}
    return Call(tensors, DEFAULTS | params, axes, H200, config or {})


def changed(call: Call, name: str, **fields: Any) -> Call:
    return replace(call, tensors={**call.tensors, name: replace(call[name], **fields)})


def planned(call: Call) -> Any:
    return accepted(sm90.backward(call))


def main_arguments(call: Call) -> dict[str, Any]:
    return arguments_of(planned(call).launches[1])


@pytest.mark.parametrize(("D", "queries"), [(128, 64), (64, 128)])
def test_three_launches_and_what_lies_between_them(D, queries):
    plan = planned(make_call(3, 8, 2, 300, 500, D))
    assert [launch.kernel.name for launch in plan.launches] == [
        "attention_bwd_preprocess_sm90", "attention_bwd_sm90", "attention_bwd_postprocess_sm90"
    ]  # fmt: skip
    blocks = -(-300 // queries)
    assert [launch.grid for launch in plan.launches] == [
        (24 * blocks, 1, 1), (6 * 4, 1, 1), (24 * blocks, 1, 1)
    ]  # fmt: skip
    assert arguments_of(plan.launches[1])["tiles_of_keys"].value == 6 * 4
    assert {w.name: (w.shape, w.dtype) for w in plan.workspaces} == {
        "stats": ((24, blocks, 2 * queries), "float32"),
        "semaphore": ((24, blocks), "int32"),
        "claimed": ((1,), "int32"),
        "dq_accum": ((24, blocks, queries * D), "float32"),
    }
    assert dict(plan.launches[1].kernel.defines)["QUERIES"] == queries
    assert plan.launches[1].kernel.shared <= H200.shared_memory


@pytest.mark.parametrize(("D", "blocks"), [(64, 132), (128, 2048)])
def test_heads_of_64_claim_tiles(D, blocks):
    """As many blocks as multiprocessors claim the tiles; with heads of 128 each block has its own."""
    main = planned(make_call(2, 16, 16, 8192, 8192, D)).launches[1]
    assert main.grid == (blocks, 1, 1)
    assert dict(main.kernel.defines)["PERSISTENT"] == (D == 64)
    assert arguments_of(main)["tiles_of_keys"].value == 2 * 16 * 64


@pytest.mark.parametrize(
    ("D", "E", "head"), [(8, 8, 64), (40, 64, 64), (72, 72, 128), (64, 96, 128), (128, 8, 128)]
)
def test_heads_are_padded(D, E, head):
    """Copies bring zeros beyond the columns, and leave out what lies there."""
    plan = planned(make_call(1, 2, 2, 200, 100, D, E))
    args = [arguments_of(launch) for launch in plan.launches]
    assert dict(plan.launches[1].kernel.defines)["HEAD"] == head
    assert [args[1][f"map_{name}"].sizes[0] for name in ("q", "k", "dk")] == [D, D, D]
    assert [args[1][f"map_{name}"].sizes[0] for name in ("v", "dout", "dv")] == [E, E, E]
    assert args[0]["head_dim_v"].value == E and args[2]["head_dim"].value == D


def test_maps_cover_operands_and_results():
    args = main_arguments(make_call(3, 8, 2, 300, 500, 128))
    assert args["map_q"] == TensorMap(
        "q", "bfloat16", (128, 300, 8, 3), (256, 256 * 300, 256 * 2400), (64, 64, 1, 1)
    )
    assert args["map_dout"].sizes == args["map_q"].sizes
    for name in ("k", "v", "dk", "dv"):
        assert args[f"map_{name}"].sizes == (128, 500, 2, 3)
    assert args["map_k"].box == args["map_v"].box == (64, 128, 1, 1)
    assert args["map_dk"].box == args["map_dv"].box == (64, 64, 1, 1)
    assert args["qheads_per_kvhead"].value == 4 and args["kv_heads"].value == 2


def test_heads_between_the_rows():
    """(batch, sequence, heads, dim) in memory reaches maps and strides as it lies."""
    call = make_call(2, 8, 8, 300, 300, 64)
    strides = (300 * 8 * 64, 64, 8 * 64, 1)
    for name in ("q", "do", "o"):
        call = changed(call, name, strides=strides)
    assert main_arguments(call)["map_q"].strides == (2 * 512, 2 * 64, 2 * 300 * 512)
    prepare = arguments_of(planned(call).launches[0])
    found = [prepare[f"dout_{field}"].value for field in ("batch", "head", "row")]
    assert found == [300 * 512, 64, 512]


def test_a_dimension_of_one_may_have_any_stride():
    call = changed(make_call(1, 1, 1, 1, 40, 64), "q", strides=(3, 5, 7, 1))
    assert all(step % 16 == 0 for step in main_arguments(call)["map_q"].strides)


@pytest.mark.parametrize(
    ("params", "left", "right"),
    [
        ({}, 2**29, 2**29),
        ({"causal": True}, 2**29, 0),
        ({"window_left": 100, "window_right": 7}, 100, 7),
        ({"window_left": 100, "window_right": 7, "causal": True}, 100, 0),
        ({"window_left": 2**40}, 2**29, 2**29),
    ],
)
def test_windows(params, left, right):
    args = main_arguments(make_call(1, 2, 2, 100, 200, 64, **params))
    assert (args["left"].value, args["right"].value) == (left, right)


def test_scores_are_in_base_two():
    args = main_arguments(make_call(1, 2, 2, 64, 64, 64, scale=0.5))
    assert args["score_scale"].value == pytest.approx(0.5 * math.log2(math.e)) and args["scale"].value == 0.5
    args = main_arguments(make_call(1, 2, 2, 64, 64, 64, scale=0.5, softcap=20.0))
    assert args["score_scale"].value == pytest.approx(2 * 0.5 / 20 * math.log2(math.e))
    assert args["softcap_log2"].value == pytest.approx(20 * math.log2(math.e))
    assert args["scale"].value == 0.5


def test_dlse_is_read_where_it_is_given():
    for given in (False, True):
        prepare = planned(make_call(1, 2, 2, 64, 64, 64, dlse=given)).launches[0]
        assert dict(prepare.kernel.defines)["DLSE"] == given
        assert hasattr(arguments_of(prepare)["dlse"], "tensor") == given


def test_key_heads_walked_together():
    assert main_arguments(make_call(1, 7, 7, 64, 64, 64))["kv_heads_per_band"].value == 16
    assert main_arguments(make_call(1, 7, 7, 64, 64, 64, causal=True))["kv_heads_per_band"].value == 32
    call = make_call(1, 7, 7, 64, 64, 64, config={"KV_HEADS_PER_BAND": 4})
    assert main_arguments(call)["kv_heads_per_band"].value == 4


@pytest.mark.parametrize(
    ("share", "queries", "causal", "inside"),
    [(4, 2048, True, 1), (8, 1024, True, 1), (8, 2048, True, 0), (1, 512, True, 0), (4, 512, False, 0)],
)
def test_heads_go_inside_blocks_of_queries_where_few_rows_are_under_way(share, queries, causal, inside):
    plan = planned(make_call(2, 8, 8 // share, queries, queries, 128, causal=causal))
    assert dict(plan.launches[1].kernel.defines)["HEADS_INSIDE"] == inside


@pytest.mark.parametrize("shape", [(1, 2, 2, 1, 1, 64), (1, 2, 1, 63, 65, 128), (2, 2, 1, 1000, 1, 64)])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_odd_shapes_are_served(shape, dtype):
    planned(make_call(*shape, dtype=dtype, causal=True))


def test_what_is_left_to_others():
    assert "bias" in reason(sm90.backward(make_call(1, 2, 2, 64, 64, 64, bias=True)))
    for D, E in ((264, 64), (60, 64), (64, 7)):
        assert "multiples of 8 up to 256" in reason(sm90.backward(make_call(1, 2, 2, 64, 64, D, E)))
    assert "0 queries" in reason(sm90.backward(make_call(1, 2, 2, 0, 64, 64)))
    assert "0 keys" in reason(sm90.backward(make_call(1, 2, 2, 64, 0, 64)))
    assert "no heads" in reason(sm90.backward(make_call(0, 2, 2, 64, 64, 64)))
    call = make_call(1, 2, 2, 64, 64, 64)
    assert "multiples of 16 bytes" in reason(sm90.backward(changed(call, "k", alignment=8)))
    assert "multiples of 16 bytes" in reason(sm90.backward(changed(call, "o", strides=(9000, 4500, 68, 1))))
    assert "a stride of 0" in reason(sm90.backward(changed(call, "v", strides=(0, 0, 64, 1))))
    assert "overlap" in reason(sm90.backward(changed(call, "q", strides=(9216, 4608, 32, 1))))
    assert "leading" in reason(
        sm90.backward(changed(call, "do", shape=(2, 3, 2, 64, 64), strides=(1 << 20, 1 << 16, 4096, 64, 1)))
    )


def test_less_shared_memory_than_it_takes():
    call = replace(make_call(1, 2, 2, 64, 64, 64), device=replace(H200, shared_memory=100 * 1024))
    assert "shared memory" in reason(sm90.backward(call))


def test_the_spec_lists_it_first():
    first = registry.spec("attention_backward").implementations[0]
    assert first.name == "wgmma"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "most_stack"),
    [
        (make_call(1, 4, 2, 200, 300, 128, causal=True, dlse=True), 0),
        (make_call(1, 4, 2, 200, 300, 64, dtype="float16"), 32),  # once a tile
        (make_call(1, 4, 2, 200, 300, 128, softcap=20.0), 128),
    ],
)
def test_it_compiles_with_little_spilled(call, most_stack):
    backend = CudaBackend(Path(cuda.__path__[0]))
    plan = planned(call)
    dtypes = {name: x.dtype for name, x in call.tensors.items() if x is not None}
    dtypes |= {w.name: w.dtype for w in plan.workspaces}
    for launch in plan.launches:
        code = build.code_object(launch, dtypes, backend, H200)
        assert code.threads == launch.kernel.threads and code.shared == launch.kernel.shared
        assert backend.resources(code).stack <= most_stack

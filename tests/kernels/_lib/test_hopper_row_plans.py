"""Native row kernels on Hopper: clusters for long rows, rings for the gradients of the norms."""

from __future__ import annotations

import dataclasses
import inspect
from pathlib import Path
from typing import Any

import pytest

from portable.backends.cuda.backend import TARGETS, CudaBackend
from portable.plan import Call, Launch, Plan, Scalar, TensorInfo
from portable.runtime import build
from tests.kernels.plan_parts import defines, native_kernel, planner

HOPPER = next(device for device in TARGETS if device.arch == "sm_90a")
OTHER = next(device for device in TARGETS if device.arch == "sm_100")
WEIGHTS = ("weight", "bias", "dweight", "dbias")
OPS: dict[str, tuple[str, ...]] = {
    "softmax": ("x", "y"),
    "softmax_backward": ("dy", "y", "dx"),
    "rms_norm": ("x", "weight", "y"),
    "layer_norm": ("x", "weight", "bias", "y"),
    "rms_norm_backward": ("dy", "x", "weight", "dx", "dweight"),
    "layer_norm_backward": ("dy", "x", "weight", "bias", "dx", "dweight", "dbias"),
}
NORM_GRADIENTS = ("rms_norm_backward", "layer_norm_backward")
FORWARDS = ("softmax", "rms_norm", "layer_norm")


def plan(
    op: str,
    rows: int,
    length: int,
    *,
    dtype: str = "bfloat16",
    weight: str | None = None,
    stride: int | None = None,
    device: Any = HOPPER,
) -> Plan:
    row = TensorInfo((rows, length), (length if stride is None else stride, 1), dtype)
    vector = TensorInfo((length,), (1,), weight or dtype)
    tensors = {name: vector if name in WEIGHTS else row for name in OPS[op]}
    planned = planner(op)(Call(tensors, {"eps": 1e-5}, {"N": length}, device, {}))
    assert isinstance(planned, Plan), planned
    return planned


@pytest.mark.parametrize("op", ["softmax", "softmax_backward", "rms_norm", "layer_norm"])
@pytest.mark.parametrize("length", [32768, 33000, 65536, 131072, 200000, 262144])
@pytest.mark.parametrize("rows", [1, 7, 1000])
def test_a_cluster_holds_a_long_row(op: str, length: int, rows: int) -> None:
    (launch,) = plan(op, rows, length).launches
    parts = defines(launch)
    assert not native_kernel(launch).entry.endswith("_stream")
    assert parts["CLUSTER"] in (2, 4, 8, 16)
    assert parts["LANES"] == parts["THREADS"] * parts["CLUSTER"]
    assert parts["LANES"] * parts["CHUNKS"] * parts["VEC"] >= length
    if "SLOTS" in parts:
        check_ring(op, launch, rows)
    else:
        assert launch.grid == (rows * parts["CLUSTER"], 1, 1)


def check_ring(op: str, launch: Launch, rows: int) -> None:
    """What a kernel over a ring needs: its helping threads, its slots, a grid that fits at once."""
    parts = defines(launch)
    cluster = parts.get("CLUSTER", 1)
    tensors = len(OPS[op]) - 1 if op == "softmax" else 1 + op.endswith("backward")
    assert native_kernel(launch).threads == parts["THREADS"] + 64 <= 1024
    assert parts["SLOTS"] > parts["CHUNKS"] * (1 + op.endswith("backward"))
    assert 0 <= parts.get("HOLD", 0) <= parts["CHUNKS"] * (2 if op == "layer_norm" else 1)
    slots = parts["SLOTS"] * tensors * parts["THREADS"] * 16
    shared = native_kernel(launch).shared
    assert slots <= shared <= slots + 16
    assert shared != 48 * 1024  # static shared memory on top would need an opt-in nobody asks for
    assert (shared + 3 * 1024) * parts["RESIDENT"] <= 228 * 1024
    blocks = dict(launch.args)["blocks"]
    assert isinstance(blocks, Scalar)
    assert 1 <= blocks.value <= rows
    assert launch.grid == (blocks.value * cluster, 1, 1)
    # What fits at once on an H200, by the driver's answer (2026-11-21): a cluster more would run alone.
    assert blocks.value <= {1: 132, 2: 66, 4: 30, 8: 15}[cluster] * parts["RESIDENT"]


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("length", [4096, 32768, 65536, 262144])
def test_other_gpus_and_unaligned_rows_have_no_clusters(op: str, length: int) -> None:
    planned = [plan(op, 9, length, device=OTHER), plan(op, 9, length, stride=length + 1)]
    for launch in (launch for one in planned for launch in one.launches):
        assert "CLUSTER" not in defines(launch)
        assert "SLOTS" not in defines(launch)
        assert native_kernel(launch).shared == 0


@pytest.mark.parametrize("op", OPS)
def test_the_number_of_rows_does_not_choose_the_kernel(op: str) -> None:
    for length in (64, 4096, 16384, 65536, 131072):
        kernels = {plan(op, rows, length).launches[0].kernel for rows in (1, 5, 500, 100000)}
        assert len(kernels) == 1


@pytest.mark.parametrize("op", NORM_GRADIENTS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("length", [4096, 8192, 16384, 32768, 65536])
@pytest.mark.parametrize("rows", [1, 100, 20000])
def test_gradients_walk_their_rows_through_a_ring(op: str, dtype: str, length: int, rows: int) -> None:
    planned = plan(op, rows, length, dtype=dtype)
    first, last = planned.launches
    parts = defines(first)
    assert native_kernel(first).entry.endswith("_backward_ring")
    assert parts["LANES"] * parts["CHUNKS"] * parts["VEC"] >= length
    check_ring(op, first, rows)
    blocks = dict(first.args)["blocks"]
    assert isinstance(blocks, Scalar)
    columns = next(space for space in planned.workspaces if space.name == "columns")
    assert columns.shape == (2 if op == "layer_norm_backward" else 1, blocks.value, length)
    assert dict(last.args)["blocks"] == blocks


@pytest.mark.parametrize("op", NORM_GRADIENTS)
@pytest.mark.parametrize("length,weight", [(4095, None), (4096, "float32"), (1024, None), (262144, None)])
def test_rings_take_whole_vectors_and_plain_weights(op: str, length: int, weight: str | None) -> None:
    first = plan(op, 100, length, weight=weight, stride=length + length % 8).launches[0]
    assert "SLOTS" not in defines(first)


@pytest.mark.parametrize("op", (*FORWARDS, *NORM_GRADIENTS))
def test_no_rows_need_no_ring(op: str) -> None:
    for launch in plan(op, 0, 65536).launches[:1]:
        assert "SLOTS" not in defines(launch)
        assert 0 in launch.grid


@pytest.mark.parametrize("op", FORWARDS)
def test_forward_blocks_fill_a_multiprocessor(op: str) -> None:
    parts = defines(plan(op, 100, 4096).launches[0])
    assert (parts["LANES"], parts["CHUNKS"]) == (256, 2)
    assert parts["RESIDENT"] * parts["THREADS"] == (1536 if op == "rms_norm" else 2048)
    assert "RESIDENT" not in defines(plan(op, 100, 4096, device=OTHER).launches[0])


@pytest.mark.parametrize(
    ("op", "dtype", "shape"), [("softmax", "bfloat16", (512, 4, 3)), ("layer_norm", "float32", (512, 8, 2))]
)
def test_several_blocks_share_a_multiprocessor_at_16384_columns(
    op: str, dtype: str, shape: tuple[int, int, int]
) -> None:
    parts = defines(plan(op, 100, 16384, dtype=dtype).launches[0])
    assert "CLUSTER" not in parts and parts["LANES"] == parts["THREADS"]
    assert (parts["THREADS"], parts["CHUNKS"], parts["RESIDENT"]) == shape


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("length", [1024, 4096])
def test_a_lane_of_the_softmax_gradient_takes_one_vector_of_each_tensor(dtype: str, length: int) -> None:
    parts = defines(plan("softmax_backward", 100, length, dtype=dtype).launches[0])
    assert parts["CHUNKS"] == 1 and parts["LANES"] * parts["VEC"] == length
    assert parts["RESIDENT"] * parts["THREADS"] == 2048


@pytest.mark.parametrize("op", ["rms_norm", "layer_norm"])
def test_parameters_that_no_block_can_hold_find_room_in_l1(op: str) -> None:
    launch = plan(op, 1000, 262144, dtype="float32").launches[0]
    parts = defines(launch)
    assert parts["HOLD"] < parts["CHUNKS"]
    # With 1 KB for the system and the static part, the carve-out below the greatest, of 196 KB.
    assert native_kernel(launch).shared + 1024 + 2048 <= 196 * 1024


@pytest.mark.slow
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("length", [4096, 16384, 32768, 65536, 131072, 262144])
def test_kernels_keep_to_their_registers(op: str, dtype: str, length: int) -> None:
    backend = CudaBackend(Path(inspect.getfile(CudaBackend)).parent)
    launch = plan(op, 1000, length, dtype=dtype).launches[0]
    code = build.code_object(launch, {}, backend, HOPPER)
    resources = backend.resources(code)
    assert (resources.stack, resources.spills) == (0, 0)
    blocks = defines(launch).get("RESIDENT", 1)
    assert resources.registers * code.threads * blocks <= 65536


def test_devices_are_told_apart_by_architecture() -> None:
    renamed = dataclasses.replace(HOPPER, name="another")
    assert plan("softmax", 3, 65536, device=renamed) == plan("softmax", 3, 65536)

"""Triton plans: one kernel per class, grids that cover, promises that hold. Nothing is compiled."""

from __future__ import annotations

import importlib
import random
from pathlib import Path
from typing import Any

import pytest

from portable.dtypes import itemsize
from portable.layout import rows
from portable.plan import Call, Device, Plan, Pointer, Rejected, Scalar, TensorInfo, TritonKernel
from portable.spec import strict_yaml
from tests.kernels.plan_parts import accepted, constants, planner, scalar

KB = 1024
HOPPER = Device("cuda", "sm_90a", "GPU", multiprocessors=132, warp_size=32, shared_memory=227 * KB)
CDNA = Device("rocm", "gfx942", "GPU", multiprocessors=304, warp_size=64, shared_memory=64 * KB)
RDNA = Device("rocm", "gfx1100", "GPU", multiprocessors=48, warp_size=32, shared_memory=64 * KB)
DEVICES = [HOPPER, CDNA, RDNA]
CONFIG = {"BLOCK_M": 64, "BLOCK_N": 128, "BLOCK_K": 32, "GROUP_M": 8, "num_warps": 8, "num_stages": 2}
TYPES = ("bfloat16", "float16", "float32")
OUTPUTS = {"y", "dx", "dz", "dgate", "dup"}
ROW_OPS = {
    ("softmax", "forward"): ("x", "y"),
    ("softmax", "backward"): ("dy", "y", "dx"),
    ("rms_norm", "forward"): ("x", "y"),
    ("rms_norm", "backward"): ("dy", "x", "dx"),
    ("layer_norm", "forward"): ("x", "y"),
    ("layer_norm", "backward"): ("dy", "x", "dx"),
    ("swiglu", "forward"): ("gate", "up", "y"),
    ("swiglu", "backward"): ("dy", "gate", "up", "dgate", "dup"),
    ("linear", "activation_backward"): ("dy", "z", "dz"),
}
LINE_TENSORS = ("weight", "bias", "dweight", "dbias")


def dense(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def info(*shape: int, dtype: str = "bfloat16", stride: int | None = None, alignment: int = 16) -> TensorInfo:
    strides = dense(shape) if stride is None else (stride, 1)
    return TensorInfo(shape, strides, dtype, alignment)


def planned(op: str, entry: str, call: Call) -> Plan:
    name = entry if op == "linear" else f"{op}_backward" if entry == "backward" else op
    return accepted(planner(name, "triton")(call))


def row_call(op: str, entry: str, count: int, length: int, device: Device = HOPPER, **layout: Any) -> Call:
    tensors: dict[str, TensorInfo | None] = {
        name: info(count, length, **layout) for name in ROW_OPS[op, entry]
    }
    if op.endswith("norm"):
        dtype = layout.get("dtype", "bfloat16")
        tensors |= dict.fromkeys(LINE_TENSORS, info(length, dtype=dtype))
        if op == "rms_norm":
            tensors |= {"bias": None, "dbias": None}
    return Call(tensors, {"eps": 1e-5, "activation": "gelu"}, {}, device, {})


def matmul_call(M: int, N: int, K: int, a: str = "row", b: str = "row", device: Device = CDNA) -> Call:
    """A product by pointers; matmul/triton/test_descriptors.py has those with TMA."""

    def matrix(rows: int, cols: int, order: str) -> TensorInfo:
        strides = (max(cols, 1), 1) if order == "row" else (1, max(rows, 1))
        return TensorInfo((rows, cols), strides, "bfloat16")

    tensors = {"a": matrix(M, K, a), "b": matrix(K, N, b), "c": matrix(M, N, "row")}
    return Call(tensors, {"precision": "ieee"}, {}, device, CONFIG)


def kernels(plan: Plan) -> tuple[Any, ...]:
    """What decides a compilation: each launch's kernel, argument kinds and promises."""
    identity = []
    for launch in plan.launches:
        kinds = [(name, arg.aligned if isinstance(arg, Pointer) else (arg.kind, arg.divisible))
                 for name, arg in launch.args if isinstance(arg, Pointer | Scalar)]  # fmt: skip
        identity.append((launch.kernel, tuple(kinds)))
    return tuple(identity)


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.arch)
@pytest.mark.parametrize(("op", "entry"), ROW_OPS, ids=lambda part: part)
def test_one_kernel_for_50_shapes_of_a_class(op: str, entry: str, device: Device) -> None:
    draw = random.Random(1)
    aligned, unaligned = set(), set()
    for _ in range(50):
        count = draw.randrange(2, 3000)
        call = row_call(op, entry, count, draw.randrange(257, 512) * 8, device)
        aligned.add(kernels(planned(op, entry, call)))
        call = row_call(op, entry, 2 * count + 1, draw.randrange(1025, 2048) * 2 - 1, device)
        unaligned.add(kernels(planned(op, entry, call)))
    assert (len(aligned), len(unaligned)) == (1, 1)


@pytest.mark.parametrize("layout", [("row", "row"), ("row", "col"), ("col", "row"), ("col", "col")])
def test_one_matmul_kernel_for_50_shapes_of_a_class(layout: tuple[str, str]) -> None:
    draw = random.Random(2)
    even, uneven = set(), set()
    for _ in range(50):
        M, N = draw.randrange(1, 400) * 8, draw.randrange(1, 400) * 8
        even.add(kernels(planned("matmul", "plan", matmul_call(M, N, draw.randrange(1, 99) * 32, *layout))))
        K = draw.randrange(1, 99) * 32 + 8
        uneven.add(kernels(planned("matmul", "plan", matmul_call(M, N, K, *layout))))
    assert (len(even), len(uneven)) == (1, 1)


@pytest.mark.parametrize("length", [1, 15, 64, 1000, 4096, 8191, 32768, 40000, 262144])
@pytest.mark.parametrize(("op", "entry"), ROW_OPS, ids=lambda part: part)
def test_grids_cover_every_element(op: str, entry: str, length: int) -> None:
    count = 77
    for extra in (0, 8, 5):
        plan = planned(op, entry, row_call(op, entry, count, length, stride=length + extra))
        fixed, grid = constants(plan.launches[0]), plan.launches[0].grid
        assert grid[1:] == (1, 1)
        name = plan.launches[0].kernel.name
        if name.endswith("_elements"):
            chunks, seen_rows, seen_length = (
                scalar(plan.launches[0], key) for key in ("chunks", "count", "length")
            )
            assert seen_rows * seen_length == count * length
            assert chunks * fixed["BLOCK"] >= seen_length
            assert grid[0] // chunks * fixed["ROWS"] >= seen_rows
        elif name == "norm_backward_rows":
            assert fixed["BLOCK"] >= length  # programs take tiles in turn, as many as there are
            assert 1 <= grid[0] <= -(-count // fixed["ROWS"])
        elif name.endswith(("_stream", "_stats")):
            assert grid[0] == count
        else:
            assert fixed["BLOCK"] >= length and grid[0] * fixed["ROWS"] >= count
        for launch in plan.launches:
            if launch.kernel.name == "norm_backward_columns":
                lines, chunks = scalar(launch, "lines"), scalar(launch, "chunks")
                assert launch.grid[0] == lines * chunks and lines <= count
                assert chunks * constants(launch)["BLOCK"] >= length
            if launch.kernel.name == "sum_partials":
                assert launch.grid[0] * constants(launch)["BLOCK"] >= length
                assert {w.shape for w in plan.workspaces if "partials" in w.name} == {
                    (scalar(launch, "lines"), length)
                }


@pytest.mark.parametrize(("M", "N", "K"), [(1, 1, 1), (64, 128, 32), (65, 129, 33), (4095, 4097, 0)])
def test_matmul_grid_covers(M: int, N: int, K: int) -> None:
    plan = planned("matmul", "plan", matmul_call(M, N, K))
    assert plan.launches[0].grid == (scalar(plan.launches[0], "tiles"), 1, 1)
    assert scalar(plan.launches[0], "tiles") == -(-M // 64) * -(-N // 128)


def check_promises(plan: Plan, call: Call) -> None:
    """Alignment, divisibility and UNIT are true of the call's tensors."""
    workspaces = {w.name for w in plan.workspaces}
    for launch in plan.launches:
        unit = constants(launch)["UNIT"]
        for name, arg in launch.args:
            if isinstance(arg, Pointer) and arg.aligned and arg.tensor not in workspaces:
                assert call[arg.tensor].alignment >= 16, (launch.kernel.name, name)
            if isinstance(arg, Scalar):
                assert not arg.divisible or arg.value % 16 == 0
                if name == "length" or name.endswith("_stride"):
                    assert arg.value % unit == 0, (launch.kernel.name, name)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("op", "entry"), ROW_OPS, ids=lambda part: part)
def test_row_promises_are_true(op: str, entry: str, dtype: str) -> None:
    unit = 16 // itemsize(dtype)
    for length in (1, 4, 8, 33, 1000, 1004, 70000):
        for extra in (0, 4, 8, 3):
            for alignment in (16, 8, 2):
                call = row_call(op, entry, 9, length, stride=length + extra, dtype=dtype, alignment=alignment)
                plan = planned(op, entry, call)
                check_promises(plan, call)
                if alignment == 16 and length % unit == 0 and extra % unit == 0:
                    assert constants(plan.launches[0])["UNIT"] == unit
                elif alignment < 16:
                    assert constants(plan.launches[0])["UNIT"] == 1


def test_a_misaligned_weight_costs_the_vector_class() -> None:
    call = row_call("rms_norm", "forward", 4, 64)
    tensors = {**call.tensors, "weight": info(64, alignment=2)}
    plan = planned("rms_norm", "forward", Call(tensors, call.params, {}, HOPPER, {}))
    assert constants(plan.launches[0])["UNIT"] == 1


@pytest.mark.parametrize("sizes", [(64, 64, 64), (64, 64, 65), (65, 64, 64), (64, 65, 64), (1, 1000, 8)])
@pytest.mark.parametrize("layout", [("row", "row"), ("row", "col"), ("col", "row"), ("col", "col")])
def test_matmul_promises_are_true(sizes: tuple[int, int, int], layout: tuple[str, str]) -> None:
    call = matmul_call(*sizes, *layout)
    plan = planned("matmul", "plan", call)
    fixed = constants(plan.launches[0])
    unit = fixed["UNIT"]
    M, N, K = (scalar(plan.launches[0], name) for name in "MNK")
    a_length = K if fixed["A_UNIT"] == "col" else M
    b_length = N if fixed["B_UNIT"] == "col" else K
    assert all(length % unit == 0 for length in (a_length, b_length, N))
    for name, arg in plan.launches[0].args:
        if isinstance(arg, Scalar) and name.endswith(("_row", "_col", "_outer", "_inner")):
            assert arg.value % unit == 0
    assert fixed["EVEN_K"] == (K % fixed["BLOCK_K"] == 0)


def test_arguments_follow_the_kernels_parameters() -> None:
    plans = [planned(op, entry, row_call(op, entry, 8, n)) for op, entry in ROW_OPS for n in (33, 100000)]
    orders = [(a, b) for a in ("row", "col") for b in ("row", "col")]
    plans += [planned("matmul", "plan", matmul_call(8, 9, 10, a, b)) for a, b in orders]
    for plan in plans:
        for launch in plan.launches:
            assert isinstance(launch.kernel, TritonKernel)
            fixed = dict(launch.kernel.constants)
            names = launch.kernel.function.arg_names
            assert [name for name, _ in launch.args] == [name for name in names if name not in fixed]
            assert set(fixed) <= set(names)


def test_backward_programs_depend_on_device_and_class_alone() -> None:
    calls = [row_call("layer_norm", "backward", count, 4096) for count in (5000, 90000)]
    plans = [planned("layer_norm", "backward", call) for call in calls]
    assert plans[0].launches[0].grid == plans[1].launches[0].grid
    assert plans[0].launches[0].grid[0] % HOPPER.multiprocessors == 0


def test_sizes_that_cannot_run_are_rejected() -> None:
    softmax = planner("softmax", "triton")
    assert isinstance(softmax(row_call("softmax", "forward", 1, 2**31)), Rejected)
    assert isinstance(softmax(row_call("softmax", "forward", 2**31, 4096)), Rejected)
    call = matmul_call(4096, 4096, 4096, device=CDNA)
    big = {**CONFIG, "BLOCK_M": 256, "BLOCK_N": 256, "BLOCK_K": 64, "num_stages": 3}
    refused = planner("matmul", "triton")(Call(call.tensors, call.params, {}, CDNA, big))
    assert isinstance(refused, Rejected) and "65536" in refused.reason


def test_rows_views_agree_with_the_plan() -> None:
    call = row_call("softmax", "forward", 6, 40, stride=48)
    plan = planned("softmax", "forward", call)
    assert scalar(plan.launches[0], "x_stride") == rows(call["x"]).stride == 48


@pytest.mark.parametrize("vendor", ["cuda", "rocm"])
def test_tuned_entries_end_with_one_that_always_matches(vendor: str) -> None:
    module = importlib.import_module(f"portable.backends.{vendor}.backend")
    data = strict_yaml.load(Path(str(module.__file__)).with_name("tuned.yaml"))
    last: dict[tuple[str, str, str], str] = {}
    for entry in data["entries"]:
        for op in [entry["op"]] if isinstance(entry["op"], str) else entry["op"]:
            last[op, entry["implementation"], entry["arch"]] = entry.get("when", "")
    triton = {key: when for key, when in last.items() if key[1] == "triton"}
    assert triton and set(triton.values()) == {""}

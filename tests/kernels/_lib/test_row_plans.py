"""What native row kernels are planned to do, without a GPU: which kernel, which grid, which arguments."""

from __future__ import annotations

import math
from typing import Any

import pytest

from portable.kernels._lib.plans.row_class import power_of_two
from portable.plan import Call, Device, Launch, Plan, Pointer, Scalar, TensorInfo
from tests.kernels.plan_parts import defines, native_kernel, planner

DEVICE = Device("vendor", "arch", "name", multiprocessors=132)
OPS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "softmax": (("x", "y"), {}),
    "softmax_backward": (("dy", "y", "dx"), {}),
    "rms_norm": (("x", "weight", "y"), {"eps": 1e-6}),
    "rms_norm_backward": (("dy", "x", "weight", "dx", "dweight"), {"eps": 1e-6}),
    "layer_norm": (("x", "weight", "bias", "y"), {"eps": 1e-5}),
    "layer_norm_backward": (
        ("dy", "x", "weight", "bias", "dx", "dweight", "dbias"),
        {"eps": 1e-5},
    ),
    "swiglu": (("gate", "up", "y"), {}),
    "swiglu_backward": (("dy", "gate", "up", "dgate", "dup"), {}),
    "activation_backward": (("dy", "z", "dz"), {"activation": "gelu"}),
}
ROW_OPS = [name for name in OPS if name not in ("swiglu", "swiglu_backward", "activation_backward")]
SPACES = ("columns", "saved")
LENGTHS = (1, 8, 31, 64, 1000, 4096, 8192, 16384, 32768, 65536, 65537, 262144, 300001)
VECTORS = ("weight", "bias", "dweight", "dbias")


def call(
    op: str,
    rows: int,
    length: int,
    *,
    stride: int | None = None,
    dtype: str = "bfloat16",
    alignment: int = 16,
    absent: tuple[str, ...] = (),
) -> Call:
    names, params = OPS[op]
    row = TensorInfo((rows, length), (length if stride is None else stride, 1), dtype, alignment)
    vector = TensorInfo((length,), (1,), dtype, alignment)
    tensors = {name: vector if name in VECTORS else row for name in names}
    return Call({**tensors, **dict.fromkeys(absent)}, params, {"N": length}, DEVICE, {})


def plan(op: str, *shape: int, **layout: Any) -> Plan:
    planned = planner(op)(call(op, *shape, **layout))
    assert isinstance(planned, Plan), planned
    return planned


def value(launch: Launch, name: str) -> int | float:
    argument = dict(launch.args)[name]
    assert isinstance(argument, Scalar)
    return argument.value


@pytest.mark.parametrize("op", OPS)
def test_one_kernel_serves_a_class(op: str) -> None:
    kernels = [
        tuple(launch.kernel for launch in plan(op, rows, length).launches)
        for rows in (1, 7, 500, 16384, 100000)
        for length in range(2056, 4097, 8)
    ]
    assert len(kernels) >= 50
    assert len(set(kernels)) == 1


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(
    "dtype", [*(pytest.param(each, marks=pytest.mark.slow) for each in ("bfloat16", "float16")), "float32"]
)
def test_classes_are_few(op: str, dtype: str) -> None:
    for alignment in (16, 4):
        kernels = {
            launch.kernel
            for length in (*range(1, 600), *range(600, 300000, 997))
            for launch in plan(op, 64, length, alignment=alignment, dtype=dtype).launches
        }
        assert len(kernels) <= 2 * 22 * max(len(plan(op, 64, 4096).launches), 1)


@pytest.mark.parametrize("op", ROW_OPS)
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("rows", [1, 3, 129, 70001])
def test_every_element_has_a_thread(op: str, rows: int, length: int) -> None:
    first = plan(op, rows, length).launches[0]
    parts = defines(first)
    assert parts["THREADS"] == native_kernel(first).threads <= 1024
    held = parts["LANES"] * parts["CHUNKS"] * parts["VEC"]
    per_block = parts["THREADS"] // parts["LANES"]
    if native_kernel(first).entry.endswith("_stream"):
        assert first.grid == (rows, 1, 1)
    else:
        assert held >= length
        blocks = math.ceil(rows / per_block)
        if "blocks" in dict(first.args) and value(first, "blocks"):
            blocks = min(value(first, "blocks"), blocks)
            assert value(first, "blocks") == first.grid[0]
        assert first.grid == (blocks, 1, 1)


@pytest.mark.parametrize("op", ["swiglu", "swiglu_backward", "activation_backward"])
@pytest.mark.parametrize(
    "rows,length,stride", [(7, 33, 33), (7, 33, 40), (5, 4096, 5000), (1, 100003, 100003)]
)
def test_elementwise_grids_cover_the_rows(op: str, rows: int, length: int, stride: int) -> None:
    (launch,) = plan(op, rows, length, stride=stride).launches
    parts = defines(launch)
    across = value(launch, "across")
    assert across * parts["LANES"] * parts["CHUNKS"] * parts["VEC"] >= value(launch, "length")
    groups = math.ceil(value(launch, "rows") / (parts["THREADS"] // parts["LANES"]))
    assert launch.grid == (across * groups, 1, 1)
    assert value(launch, "rows") * value(launch, "length") == rows * length


@pytest.mark.parametrize(
    "op, names", [("gated_activation", "xy"), ("gated_activation_backward", ("dy", "x", "dx"))]
)
def test_gate_and_up_are_one_row_of_work(op: str, names: tuple[str, ...]) -> None:
    """The forward pass had as many idle blocks as busy ones (0.75 of a copy on an H100, 2026-11-26)."""
    rows, length = 300, 14336
    pair = TensorInfo((rows, 2, length), (2 * length, length, 1), "bfloat16", 16)
    single = TensorInfo((rows, length), (length, 1), "bfloat16", 16)
    tensors = {name: pair if name.endswith("x") else single for name in names}
    found = planner(op)(Call(tensors, {"activation": "silu"}, {"N": length}, DEVICE, {}))
    assert isinstance(found, Plan), found
    (launch,) = found.launches
    given = defines(launch)
    blocks = -(-length // (given["LANES"] * given["CHUNKS"] * given["VEC"]))
    assert launch.grid == (rows * blocks, 1, 1)


@pytest.mark.parametrize("op", ["swiglu", "activation_backward"])
def test_contiguous_tensors_are_one_row(op: str) -> None:
    (launch,) = plan(op, 1000, 4097).launches
    assert (value(launch, "rows"), value(launch, "length")) == (1, 1000 * 4097)
    assert defines(launch)["VEC"] == 8


@pytest.mark.parametrize("op", OPS)
def test_strides_are_64_bits_wide(op: str) -> None:
    stride = 3 * 2**30
    for launch in plan(op, 5, 4096, stride=stride).launches:
        for name, argument in launch.args:
            if name.endswith("_stride"):
                assert argument == Scalar("i64", stride)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(
    "layout,vector",
    [({}, 8), ({"alignment": 8}, 1), ({"stride": 4097}, 1), ({"stride": 4104}, 8), ({"dtype": "float32"}, 4)],
)
def test_vectors_need_aligned_rows(op: str, layout: dict[str, Any], vector: int) -> None:
    first = plan(op, 100, 4096, **layout).launches[0]
    assert defines(first)["VEC"] == vector
    promised = {a.aligned for _, a in first.args if isinstance(a, Pointer) and a.tensor not in SPACES}
    assert promised == {layout.get("alignment", 16) == 16}


@pytest.mark.parametrize("op", ROW_OPS)
@pytest.mark.parametrize("length", [129, 4095, 4096, 65537])
def test_one_row_is_cut_as_many_are(op: str, length: int) -> None:
    """A row's bits follow the order of its additions, so they must not depend on the number of rows."""

    def cut(rows: int, stride: int) -> Any:
        found = defines(plan(op, rows, length, stride=stride).launches[0])
        return [found.get(name) for name in ("VEC", "LANES", "CHUNKS", "CLUSTER", "TAIL")]

    for stride in (length, length + 1, -(-length // 8) * 8 + 8):
        assert cut(1, stride) == cut(100, stride)


@pytest.mark.parametrize("op", ["rms_norm_backward", "layer_norm_backward"])
@pytest.mark.parametrize("length", [64, 4096, 16384, 65537])
def test_parameter_gradients_are_summed_in_a_fixed_order(op: str, length: int) -> None:
    planned = plan(op, 16384, length)
    last = planned.launches[-1]
    columns = next(space for space in planned.workspaces if space.name == "columns")
    sums = 2 if op == "layer_norm_backward" else 1
    assert native_kernel(last).entry == "column_sum"
    assert columns.shape == (sums, value(last, "blocks"), length)
    assert last.grid == (math.ceil(length / 32), sums, 1)
    assert planned == plan(op, 16384, length)


@pytest.mark.parametrize("op", ["rms_norm_backward", "layer_norm_backward"])
def test_without_parameters_there_is_one_launch(op: str) -> None:
    absent = tuple(name for name in OPS[op][0] if name in VECTORS)
    planned = plan(op, 100, 4096, absent=absent)
    assert len(planned.launches) == 1
    assert planned.workspaces == ()
    assert dict(planned.launches[0].args)["weight"] == Scalar("i64", 0)


def test_power_of_two() -> None:
    assert [power_of_two(n) for n in (1, 2, 3, 4, 5, 1024, 1025)] == [1, 2, 4, 4, 8, 1024, 2048]

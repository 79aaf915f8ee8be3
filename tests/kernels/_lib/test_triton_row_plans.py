"""The row ops' Triton plans: who takes which rows, what stays in registers, and that it fits there."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from portable.backend import Backend
from portable.dispatch import select
from portable.plan import Call, Device, Plan, TensorInfo
from portable.runtime import build, detect
from portable.spec import registry
from tests.kernels.plan_parts import constants, scalar, triton_kernel

FLAT = ("swiglu", "swiglu_backward", "activation_backward")
ROW_OPS = (
    "softmax",
    "softmax_backward",
    "rms_norm",
    "layer_norm",
    "rms_norm_backward",
    "layer_norm_backward",
)
BACKWARD = ["rms_norm_backward", "layer_norm_backward"]
SM90 = "sm_90a"
HOPPER_REGISTERS = 65536


@functools.cache
def backend_and_device(arch: str = SM90) -> tuple[Backend, Device]:
    for vendor, folder in registry.vendors().items():
        backend = detect.backend_class(vendor)(folder)
        for device in backend.targets():
            if device.arch == arch:
                return backend, device
    raise AssertionError(arch)


def signature_of(op: str, count: int, length: int, dtype: str, offset: bool = False) -> select.CallSignature:
    """A call of the op on `count` rows, contiguous; with `offset`, of bases that no 16 bytes divide."""
    spec = registry.spec(op)

    def info(name: str) -> TensorInfo:
        lines = name in ("weight", "bias", "dweight", "dbias")
        shape, strides = ((length,), (1,)) if lines else ((count, length), (length, 1))
        return TensorInfo(shape, strides, dtype, 2 if offset else 16)

    tensors = {name: info(name) for name in (*spec.inputs, *spec.outputs)}
    params = {name: param.default for name, param in spec.params.items()} | {"activation": "gelu"}
    types = dict.fromkeys(spec.types[0], dtype)
    return select.CallSignature(spec, tensors, params, {"N": length, "B": count}, types)


def planned(
    op: str, count: int, length: int, dtype: str = "bfloat16", arch: str = SM90, **config: Any
) -> Plan:
    """The plan that the tuned config gives, or with `config` over the spec's default."""
    signature = signature_of(op, count, length, dtype, config.pop("offset", False))
    backend, device = backend_and_device(arch)
    implementation = registry.spec(op).implementation("triton")
    assert implementation is not None
    if config:
        values = {**implementation.default, **config}
        call = Call(signature.tensors, signature.params, signature.axes, device, values)
        plan = select.entry_function(implementation)(call)
    else:
        plan = select.evaluate(implementation, signature, backend, device, static=False).plan
    assert isinstance(plan, Plan), plan
    return plan


@pytest.mark.parametrize("op", ROW_OPS)
@pytest.mark.parametrize("length", [64, 4096, 12000, 16384, 65536])
def test_sums_of_products_are_never_fused(op: str, length: int) -> None:
    for launch in planned(op, 77, length).launches:
        assert dict(triton_kernel(launch).options)["enable_fp_fusion"] is False


@pytest.mark.parametrize("op", FLAT)
@pytest.mark.parametrize(("dtype", "unit"), [("bfloat16", 8), ("float16", 8), ("float32", 4)])
def test_elementwise_threads_take_16_bytes_of_each_tensor(op: str, dtype: str, unit: int) -> None:
    (launch,) = planned(op, 64, 4096, dtype).launches
    tile = 512 if (op, dtype) == ("swiglu_backward", "float32") else 2048
    assert constants(launch)["ROWS"] * constants(launch)["BLOCK"] == tile
    assert triton_kernel(launch).num_warps == tile // unit // 32
    fused = (op, dtype) != ("activation_backward", "float32")
    assert dict(triton_kernel(launch).options).get("enable_fp_fusion", True) is fused


@pytest.mark.parametrize("op", ["softmax", "rms_norm", "layer_norm"])
@pytest.mark.parametrize("count", [1, 5, 1000])
def test_programs_that_load_ahead_stay_and_others_take_one_tile(op: str, count: int) -> None:
    (plain,) = planned(op, count, 4096, AHEAD=0).launches
    (ahead,) = planned(op, count, 4096, AHEAD=1, THREADS=512).launches
    assert plain.grid == (count, 1, 1) and constants(plain)["AHEAD"] is False
    assert ahead.grid == (min(count, 2 * 132), 1, 1) and constants(ahead)["AHEAD"] is True


@pytest.mark.parametrize("op", ["softmax", "rms_norm", "layer_norm"])
@pytest.mark.parametrize("length", [16384, 32768])
def test_loading_ahead_is_for_rows_of_a_whole_multiprocessor(op: str, length: int) -> None:
    (half,) = planned(op, 4096, length).launches
    assert constants(half)["AHEAD"] is ((op == "layer_norm") == (length == 16384))
    assert half.grid[0] == (132 if constants(half)["AHEAD"] else 4096)
    (whole,) = planned(op, 4096, length // 2, "float32").launches
    assert constants(whole)["AHEAD"] is False


def test_elements_per_thread_give_the_warps() -> None:
    for elements, warps in ((8, 16), (16, 8), (32, 4)):
        (launch,) = planned("softmax", 9, 4096, ELEMENTS=elements).launches
        assert triton_kernel(launch).num_warps == warps
    (launch,) = planned("softmax", 9, 4096, ELEMENTS=32, arch="gfx942").launches
    assert triton_kernel(launch).num_warps == 4  # of 64 lanes


@pytest.mark.parametrize("op", ["softmax", "softmax_backward", "rms_norm", "layer_norm"])
def test_long_rows_go_in_chunks_of_512_or_more_threads(op: str) -> None:
    for offset in (False, True):
        (launch,) = planned(op, 7, 262144, offset=offset, CHUNK=8192).launches
        assert launch.grid == (7, 1, 1)
        assert constants(launch)["BLOCK"] == (4096 if offset else 8192)
        assert triton_kernel(launch).num_warps == 16
        assert constants(launch).get("UNROLL", 1) == (4 if "norm" in op and not offset else 1)


@pytest.mark.parametrize(
    ("op", "dtype"), [("layer_norm", "float32"), ("rms_norm", "float32"), ("softmax_backward", "bfloat16")]
)
def test_registers_are_cut_on_hopper_so_that_two_rows_share_a_multiprocessor(op: str, dtype: str) -> None:
    (held,) = planned(op, 4096, 16384, dtype).launches
    kernel = triton_kernel(held)
    assert dict(kernel.options)["maxnreg"] * kernel.num_warps * 32 * 2 == HOPPER_REGISTERS
    for other in (
        planned(op, 4096, 16384, dtype, arch="gfx942"),
        planned(op, 4096, 65536, dtype),
        planned(op, 4096, 16383, dtype),  # without whole vectors the row is read twice
        planned(op, 4096, 4096, dtype),
    ):
        assert "maxnreg" not in dict(triton_kernel(other.launches[0]).options)


@pytest.mark.parametrize("op", ["rms_norm", "layer_norm"])
def test_l2_keeps_the_long_float32_rows_that_a_hopper_has_in_hand(op: str) -> None:
    (launch,) = planned(op, 1000, 65536, "float32").launches
    # more than one program per multiprocessor takes 64 registers
    assert triton_kernel(launch).num_warps == 32
    (launch,) = planned(op, 1000, 65536).launches
    assert triton_kernel(launch).num_warps == 16


@pytest.mark.parametrize("op", ["softmax", "rms_norm", "layer_norm"])
@pytest.mark.parametrize("length", [64, 512, 1024, 4096])
def test_two_float32_loads_per_thread_are_under_way_on_hopper(op: str, length: int) -> None:
    (launch,) = planned(op, 4096, length, "float32").launches
    parts = constants(launch)
    assert parts["ROWS"] * parts["BLOCK"] == triton_kernel(launch).num_warps * 32 * 8
    assert parts["ROWS"] * parts["BLOCK"] == max(length, 1024)


@pytest.mark.parametrize("op", BACKWARD)
def test_16_bit_gradients_load_the_next_row_ahead(op: str) -> None:
    assert constants(planned(op, 999, 4096).launches[0])["AHEAD"] is True
    assert constants(planned(op, 999, 4096, "float32").launches[0])["AHEAD"] is False


def test_the_weight_is_loaded_again_where_two_sums_fill_the_registers() -> None:
    for op, length, again in (
        ("rms_norm_backward", 4096, False),
        ("layer_norm_backward", 1024, False),
        ("layer_norm_backward", 2048, True),
        ("layer_norm_backward", 4096, True),
    ):
        assert constants(planned(op, 999, length).launches[0])["RELOAD"] is again, (op, length)


@pytest.mark.parametrize("op", BACKWARD)
@pytest.mark.parametrize(("length", "dtype"), [(64, "bfloat16"), (4096, "bfloat16"), (8192, "float32")])
def test_partial_sums_have_a_line_per_program(op: str, length: int, dtype: str) -> None:
    for count in (1, 100, 100000):
        plan = planned(op, count, length, dtype)
        first, last = plan.launches
        threads = triton_kernel(first).num_warps * 32
        tiles = -(-count // constants(first)["ROWS"])
        assert first.grid[0] == min(tiles, 132 * (512 // threads))
        assert {work.shape for work in plan.workspaces} == {(first.grid[0], length)}
        assert scalar(last, "lines") == first.grid[0]
        assert last.grid[0] == -(-length // constants(last)["BLOCK"])


def test_three_programs_where_four_do_not_fit() -> None:
    assert planned("layer_norm_backward", 10**6, 512).launches[0].grid == (3 * 132, 1, 1)
    assert planned("layer_norm_backward", 10**6, 256).launches[0].grid == (4 * 132, 1, 1)


def test_rms_norm_keeps_sums_of_rows_up_to_16384_in_registers() -> None:
    plan = planned("rms_norm_backward", 1000, 12000)
    first, last = plan.launches
    assert first.kernel.name == "norm_backward_parts" and first.grid == (132, 1, 1)
    assert constants(first)["PARTS"] * constants(first)["BLOCK"] == 16384
    assert plan.workspaces[0].shape == (132, 12000) and scalar(last, "lines") == 132
    for other in (
        planned("rms_norm_backward", 1000, 16392),
        planned("rms_norm_backward", 1000, 12001),
        planned("layer_norm_backward", 1000, 12000),
    ):
        assert [launch.kernel.name for launch in other.launches] == [
            "norm_backward_stats", "norm_backward_columns", "sum_partials",
        ]  # fmt: skip


@pytest.mark.parametrize("length", [16400, 65536, 262144])
def test_columns_of_long_rows_fill_the_gpu_and_cover_the_row(length: int) -> None:
    plan = planned("layer_norm_backward", 5000, length)
    columns = plan.launches[1]
    chunks, lines = scalar(columns, "chunks"), scalar(columns, "lines")
    assert chunks * constants(columns)["BLOCK"] >= length
    assert columns.grid == (chunks * lines, 1, 1) and columns.grid[0] >= 132 * 3
    assert planned("layer_norm_backward", 2, length).launches[1].grid[0] == 2 * chunks


@pytest.mark.slow
@pytest.mark.parametrize(
    ("op", "length", "dtype"),
    [
        ("rms_norm", 32768, "bfloat16"),
        ("layer_norm", 16384, "bfloat16"),
        ("layer_norm", 65536, "bfloat16"),
        ("rms_norm_backward", 4096, "bfloat16"),
        ("rms_norm_backward", 16384, "bfloat16"),
        ("rms_norm_backward", 16384, "float32"),
        ("layer_norm_backward", 512, "bfloat16"),
        ("layer_norm_backward", 4096, "bfloat16"),
        ("layer_norm_backward", 8192, "float32"),
    ],
)
def test_programs_that_stay_fit_a_hopper_together(op: str, length: int, dtype: str) -> None:
    backend, device = backend_and_device()
    plan = planned(op, 10**5, length, dtype)
    types = {name: info.dtype for name, info in signature_of(op, 9, length, dtype).tensors.items() if info}
    types |= {work.name: work.dtype for work in plan.workspaces}
    launch = plan.launches[0]
    found = backend.resources(build.code_object(launch, types, backend, device))
    assert found.stack == found.spills == 0
    together = launch.grid[0] // 132 if launch.grid[0] < 1000 else 1
    assert found.registers * triton_kernel(launch).num_warps * 32 * together <= HOPPER_REGISTERS

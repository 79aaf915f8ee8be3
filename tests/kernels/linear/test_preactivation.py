"""linear with its preactivation and the sums of its activation's gradient, as plans: no GPU."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from portable import using
from portable.backends.cuda.backend import CudaBackend
from portable.configs import lookup
from portable.dispatch import select
from portable.kernels.linear import activation, gradient, triton_impl
from portable.kernels.linear import preactivation_gradient as formula
from portable.kernels.matmul.gfx import plan as gfx_plan
from portable.kernels.matmul.problem import Problem, from_linear
from portable.kernels.matmul.simt import simt_plan
from portable.kernels.matmul.sm80 import mma_plan
from portable.kernels.matmul.sm90 import realigned_plan, skinny_plan, wgmma_plan
from portable.plan import Call, Device, Launch, NativeKernel, Plan, Pointer, Scalar, TensorInfo, TritonKernel
from portable.spec import registry

H200 = Device("cuda", "sm_90a", "H200", 0, 132, 32, 227 * 1024, 255)
MI300 = Device("rocm", "gfx942", "MI300X", 0, 304, 64, 64 * 1024, 512)
TRITON = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64, "GROUP_M": 8, "num_warps": 8, "num_stages": 3}
OP = "linear_with_preactivation"


def dense(shape: tuple[int, ...], dtype: str) -> TensorInfo:
    strides = tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
    return TensorInfo(shape, strides, dtype)


def call(
    M: int, N: int, K: int, *, z: bool, dtype: str = "bfloat16", device: Device = H200, **config: Any
) -> Call:
    tensors = {"x": dense((M, K), dtype), "weight": dense((N, K), dtype), "bias": dense((N,), dtype)}
    tensors["y"] = dense((M, N), dtype)
    if z:
        tensors["z"] = dense((M, N), dtype)
    return Call(tensors, {"activation": "gelu"}, {"N": N, "K": K, "B": M}, device, config)


PLANS = {
    "skinny": (skinny_plan.plan, (16, 4096, 4096), {}),
    "skinny_f32": (skinny_plan.plan, (16, 4096, 4096), {"dtype": "float32"}),
    "wgmma": (wgmma_plan.plan, (4096, 14336, 4096), {}),
    "wgmma by threads": (wgmma_plan.plan, (4300, 4105, 256), {}),
    "realigned": (realigned_plan.plan, (4096, 6144, 4095), {}),
    "mma": (mma_plan.plan, (512, 513, 100), {}),
    "simt": (simt_plan.plan, (100, 300, 65), {"dtype": "float32"}),
    "mfma": (gfx_plan.mfma, (300, 500, 65), {"device": MI300}),
    "wmma": (gfx_plan.wmma, (300, 500, 65), {"device": replace(MI300, arch="gfx1100")}),
}


@pytest.mark.parametrize("name", PLANS)
def test_a_second_output_changes_no_sum(name):
    planner, sizes, more = PLANS[name]
    plain, both = (planner(call(*sizes, z=z, **more)) for z in (False, True))
    assert isinstance(plain, Plan) and isinstance(both, Plan)
    assert both.workspaces == plain.workspaces and both.launches[:-1] == plain.launches[:-1]
    one, two = plain.launches[-1], both.launches[-1]
    # Blocks with one tile have no room for z; no sum depends on these.
    sums = ("NON_PERSISTENT", "STORE_STEPS", "GROUP_M")
    assert isinstance(one.kernel, NativeKernel) and isinstance(two.kernel, NativeKernel)
    defines = [{k: v for k, v in kernel.defines if k not in sums} for kernel in (one.kernel, two.kernel)]
    assert defines[1] == {**defines[0], "PREACTIVATION": 1}
    assert [arg for arg in two.args if arg[0] not in ("z", "map_z")] == list(one.args)
    z = dict(two.args)["z"]
    assert isinstance(z, Pointer) and z.tensor == "z"
    names = [arg[0] for arg in two.args]
    assert names.index("z") == names.index("c") + 1
    if "map_c" in names:
        args = dict(two.args)
        assert replace(args["map_c"], tensor="z") == args["map_z"]  # type: ignore[type-var]
        assert names.index("map_z") == names.index("map_c") + 1


@pytest.mark.parametrize(
    "sizes", [(512, 512, 512), (512, 513, 512), (128, 256, 8192), (100, 77, 65)],
    ids=["by TMA", "by pointers", "split", "unaligned"],
)  # fmt: skip
def test_triton_has_a_second_output_too(sizes):
    plain, both = (triton_impl.plan(call(*sizes, z=z, **TRITON)) for z in (False, True))
    assert isinstance(plain, Plan) and isinstance(both, Plan)
    assert len(plain.launches) == len(both.launches)
    for launch in plain.launches:
        assert parts_of(launch)["z_ptr"] is None and not any(name.startswith("z") for name, _ in launch.args)
    writes = [name for launch in both.launches for name, _ in launch.args if name in ("z", "z_ptr")]
    assert len(writes) == 1


def test_z_lies_as_y_does_in_a_transposed_product():
    asked = call(300, 1, 64, z=True)
    problem = from_linear(replace(asked, tensors={**asked.tensors, "bias": None}))
    assert isinstance(problem, Problem) and problem.transposed().preactivation == "z"


def test_the_internal_op_takes_its_op_s_configs():
    backend = CudaBackend(registry.vendors()["cuda"])
    for name in ("triton", "wgmma"):
        specs = [registry.spec(op) for op in ("linear", OP)]
        for batch, T in ((4096, "bfloat16"), (16, "float16"), (700, "float32")):
            facts = {"N": 14336, "K": 4096, "B": batch, "T": T, "activation": "gelu", "weight_order": "row"}
            one, two = (
                lookup.resolve(spec, spec.implementation(name), backend, H200, facts)  # type: ignore[arg-type]
                for spec in specs
            )
            assert one == two
    other = registry.spec("softmax_backward")
    assert lookup._main_of(other, other.implementations[0]) is None


@pytest.mark.parametrize("pin", ["wgmma", "mma", "triton", "skinny", "torch"])
def test_a_pin_of_linear_holds_for_the_internal_op(pin):
    with using(linear=pin):
        found = select.pinned(registry.spec(OP))
        assert found is not None and found[1] == {pin}


def sums_call(rows: int, length: int, stride: int | None = None, dtype: str = "bfloat16") -> Call:
    row = TensorInfo((rows, length), (stride or length, 1), dtype)
    tensors = {"dy": row, "z": row, "dz": row, "dbias": TensorInfo((length,), (1,), dtype)}
    return Call(tensors, {"activation": "silu"}, {"N": length}, H200, {})


def parts_of(launch: Launch) -> dict[str, Any]:
    """What the kernel is built with, and the numbers that it gets."""
    kernel = launch.kernel
    fixed = kernel.constants if isinstance(kernel, TritonKernel) else kernel.defines
    return dict(fixed) | {name: arg.value for name, arg in launch.args if isinstance(arg, Scalar)}


SIZES = [(1, 1), (0, 8), (15, 33), (4096, 14336), (100000, 24), (10**7, 8), (3, 300001), (257, 1001)]


@pytest.mark.parametrize("rows,length", SIZES)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_blocks_cover_rows_and_columns(rows, length, dtype):
    plan = activation.sums(sums_call(rows, length, dtype=dtype))
    assert isinstance(plan, Plan)
    first, second = plan.launches
    parts = parts_of(first)
    across, most = parts["across"], parts["most"]
    width = parts["LANES"] * parts["CHUNKS"] * parts["VEC"]
    assert (across - 1) * width < length <= across * width
    groups = first.grid[0] // across
    assert groups * most >= rows and (groups - 1) * most < max(rows, 1)
    assert most % (parts["THREADS"] // parts["LANES"] * parts["UNROLL"]) == 0
    assert groups * across <= activation.MOST_BLOCKS * H200.multiprocessors + across
    assert plan.workspaces[0].shape == (1, groups, length)
    assert parts_of(second)["blocks"] == groups
    assert second.grid[0] * 32 >= length


@pytest.mark.parametrize("rows,length", SIZES)
def test_triton_programs_cover_rows_and_columns(rows, length):
    plan = triton_impl.activation_backward_sums(sums_call(rows, length))
    assert isinstance(plan, Plan)
    first, second = plan.launches
    parts, groups = parts_of(first), plan.workspaces[0].shape[0]
    assert first.grid[0] == parts["chunks"] * groups
    assert groups * parts["most"] >= rows and parts["chunks"] * parts["BLOCK"] >= length
    assert parts["most"] % parts["ROWS"] == 0
    assert parts_of(second)["lines"] == groups and second.grid[0] * 64 >= length


def test_sums_do_not_depend_on_how_rows_lie():
    dense_plan, padded = (activation.sums(sums_call(700, 4096, stride)) for stride in (None, 5000))
    assert isinstance(dense_plan, Plan) and isinstance(padded, Plan)
    assert [launch.kernel for launch in dense_plan.launches] == [launch.kernel for launch in padded.launches]


def test_the_gradient_asks_for_sums_where_the_bias_wants_them(monkeypatch):
    launched = []

    def activation_backward(dy, z, kind):
        launched.append("dz")
        return dy

    def activation_backward_sums(dy, z, kind):
        launched.append("sums")
        return dy, dy.sum(0)

    stand_in = SimpleNamespace(
        matmul=torch.matmul,
        activation_backward=activation_backward,
        activation_backward_sums=activation_backward_sums,
    )
    monkeypatch.setattr(gradient, "portable", stand_in)
    x, w, b, z = torch.ones(3, 4), torch.ones(5, 4), torch.ones(5), torch.ones(3, 5)
    saved = formula.save({"x": x, "weight": w, "bias": b}, (z, z), {})
    needs: dict[str, bool] = {"x": True, "weight": True, "bias": True}
    params = {"activation": "gelu"}
    formula.backward(saved, params, needs, z, None)
    formula.backward(saved, params, {**needs, "bias": False}, z, None)
    both = formula.backward(saved, params, needs, z, z)
    assert launched == ["sums", "dz", "dz"]
    assert both["bias"] is not None and torch.equal(both["bias"], torch.full((5,), 6.0))
    only_z = formula.backward(saved, params, needs, None, z)
    assert only_z["bias"] is not None and torch.equal(only_z["bias"], torch.full((5,), 3.0))
    assert len(launched) == 3
    assert formula.backward(saved, params, needs, None, None) == {}

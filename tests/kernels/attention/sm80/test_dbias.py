"""Plans of the bias's own gradient by mma.sync: tiles, chunks of keys, how rows are read; they compile."""

from __future__ import annotations

import math
from typing import Any

import pytest

from portable.backends.cuda.backend import OTHERS, TARGETS, CudaBackend
from portable.kernels.attention.sm80 import plan as sm80
from portable.plan import Launch, Plan, Pointer, Rejected, Scalar, TensorInfo
from portable.runtime import build
from portable.spec import registry
from tests.kernels.attention.calls import dbias_call
from tests.kernels.attention.sm90.test_fwd import build_folder
from tests.kernels.attention.triton.test_plans import info
from tests.kernels.plan_parts import accepted, arguments_of, defines, native_kernel

DEVICES = {device.arch: device for device in TARGETS + OTHERS}


def dbias(arch: str = "sm_80", **options: Any) -> Plan | Rejected:
    return sm80.dbias(dbias_call(device=DEVICES[arch], **options))


def launch_of(**call: Any) -> Launch:
    plan = accepted(dbias(**call))
    assert not plan.workspaces
    (launch,) = plan.launches
    return launch


def numbers(launch: Launch) -> dict[str, Any]:
    return {name: arg.value for name, arg in arguments_of(launch).items() if isinstance(arg, Scalar)}


def test_arguments():
    for dlse in (False, True):
        args = arguments_of(launch_of(dlse=dlse))
        assert isinstance(args["dlse"], Pointer) is dlse
    for name, tensor in {"dout": "do", "o": "o", "bias": "bias", "dbias": "dbias", "lse": "lse"}.items():
        assert args[name].tensor == tensor


@pytest.mark.parametrize("E", [1, 7, 64, 72, 128, 200, 256])
@pytest.mark.parametrize("D", [1, 13, 64, 96, 128, 192, 256])
def test_every_head_size_fits_the_smallest_gpu(D, E):
    for arch, device in DEVICES.items():
        launch = launch_of(D=D, E=E, arch=arch)
        kernel, found = native_kernel(launch), defines(launch)
        assert D <= found["HEAD_D"] < D + 16 and E <= found["HEAD_E"] < E + 16
        lines = 16 * found["WARPS"] * found["M_TILES"] + found["TILE_N"]
        line = 2 * found["HEAD_D"] + 2 * found["HEAD_E"] + 32
        assert kernel.shared == lines * line <= device.shared_memory
        assert kernel.threads == 32 * found["WARPS"] and found["TILE_N"] % 32 == 0


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_two_blocks_share_a_multiprocessor_at_128(arch):
    shared = native_kernel(launch_of(arch=arch)).shared
    assert 2 * (shared + 1024) <= DEVICES[arch].shared_memory + 1024


@pytest.mark.parametrize(
    ("call", "groups"),
    [
        ({}, 2),
        ({"D": 64}, 1),
        ({"N": 77}, 1),
        ({"D": 256}, 1),
        ({"arch": "sm_80"}, 1),
        ({"arch": "sm_100"}, 1),
    ],
)
def test_two_groups_where_they_were_measured_to_win(call, groups):
    assert defines(launch_of(**{"arch": "sm_90a", **call}))["M_TILES"] == groups


@pytest.mark.parametrize(("M", "N"), [(1, 1), (64, 65), (129, 4096), (4096, 4095), (300, 20000)])
def test_blocks_cover_all_queries_and_keys(M, N):
    for H in (2, 512):
        launch = launch_of(M=M, N=N, H=H)
        values, found = numbers(launch), defines(launch)
        assert values["chunk"] % found["TILE_N"] == 0
        assert values["chunk"] * (values["chunks"] - 1) < N <= values["chunk"] * values["chunks"]
        size = 16 * found["WARPS"] * found["M_TILES"]
        assert values["tiles"] == -(-M // size)
        assert launch.grid == (values["tiles"] * values["chunks"] * 2 * H, 1, 1)


def test_many_keys_a_block_where_there_are_many_blocks():
    def steps(**call: Any) -> int:
        launch = launch_of(B=1, **call)
        return numbers(launch)["chunk"] // defines(launch)["TILE_N"]

    assert steps(M=64, N=4096) == 1
    assert 1 < steps(H=16, M=1024, N=1024) < steps(H=16, M=4096, N=4096)
    assert steps(H=16, M=4096, N=4096) == steps(H=64, M=8192, N=8192)
    assert steps(M=64, N=4096, config={"STEPS": 4}) == 4


@pytest.mark.parametrize(
    ("call", "rows", "bias"),
    [
        ({}, 16, 16),
        ({"N": 500}, 16, 2),
        ({"alignment": 8}, 2, 16),
        ({"D": 60, "E": 64}, 2, 16),
        ({"D": 64, "E": 60}, 2, 16),  # o is read by the thread, not copied with a length
        ({"bias": info(2, 4, 300, 512, alignment=8)}, 16, 2),
        ({"bias": TensorInfo((2, 4, 300, 512), (300 * 2064, 300 * 516, 516, 1), "bfloat16", 16)}, 16, 2),
        ({"bias": TensorInfo((2, 4, 300, 512), (0, 0, 520, 1), "bfloat16", 16)}, 16, 16),
    ],
)
def test_rows_are_read_16_bytes_at_a_time_where_they_allow(call, rows, bias):
    found = defines(launch_of(**call))
    assert (found["COPY_BYTES"], found["BIAS_BYTES"]) == (rows, bias)


def test_strides_have_64_bits():
    far = TensorInfo((2, 4, 300, 512), (2**44, 2**42, 2**33, 1), "bfloat16", 16)
    launch = launch_of(bias=far)
    steps = [arg for name, arg in arguments_of(launch).items() if name.endswith(("_batch", "_head", "_row"))]
    assert all(isinstance(arg, Scalar) and arg.kind == "i64" for arg in steps)
    assert numbers(launch)["bias_row"] == 2**33 and numbers(launch)["dlse_row"] == 0


@pytest.mark.parametrize(
    ("given", "scale", "inner"),
    [
        ({}, 128**-0.5, 0.0),
        ({"scale": 0.0}, 0.0, 0.0),
        ({"scale": -0.5, "softcap": 20.0}, 20.0, 2 * -0.5 / 20),
    ],
)
def test_scores_are_powers_of_two(given, scale, inner):
    launch = launch_of(**given)
    assert numbers(launch)["score_scale"] == pytest.approx((inner or scale) * math.log2(math.e))
    assert numbers(launch)["softcap_log2"] == pytest.approx((scale if inner else 0.0) * math.log2(math.e))
    assert defines(launch)["SOFTCAP"] == int("softcap" in given)


def test_bounds():
    found = defines(launch_of(causal=True, window_left=7))
    assert (found["LEFT"], found["RIGHT"]) == (1, 1)
    found = defines(launch_of(window_left=2**40, window_right=2**40))
    assert (found["LEFT"], found["RIGHT"]) == (0, 0)


def test_nothing_to_do():
    for call in ({"M": 0}, {"N": 0}, {"B": 0}):
        assert launch_of(**call).grid[0] == 0


@pytest.mark.parametrize(
    ("call", "word"),
    [
        ({"dtype": "float32"}, "float32"),
        ({"scale": 1e31}, "scale"),
        ({"M": 2**31}, "more than"),
        ({"B": 2**20, "M": 2**14, "N": 2**14}, "one launch"),
        ({"D": 256, "config": {"TILE_N": 64, "WARPS": 8, "M_TILES": 2}}, "bytes"),
        ({"bias": TensorInfo((2, 4, 300, 512), (300 * 2048, 300 * 512, 1, 300), "bfloat16", 16)}, "bias"),
    ],
)
def test_what_is_left_to_others(call, word):
    plan = dbias(**call)
    assert isinstance(plan, Rejected) and word in plan.reason


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100"])
@pytest.mark.parametrize(
    "call",
    [
        {"D": 64, "window_left": 3, "window_right": 2, "softcap": 2.0, "dlse": True},
        {},
        {"causal": True},
        {"D": 256},
        {"D": 128, "N": 77, "window_left": 3, "window_right": 2, "softcap": 2.0},
        {"D": 50, "E": 33, "N": 77, "dtype": "float16"},
    ],
    ids=str,
)
def test_it_compiles_without_spills(call, arch):
    backend, call = CudaBackend(build_folder()), dbias_call(device=DEVICES[arch], **call)
    plan = sm80.dbias(call)
    assert isinstance(plan, Plan)
    dtypes = {name: x.dtype for name, x in call.tensors.items() if x is not None}
    resources = backend.resources(build.code_object(plan.launches[0], dtypes, backend, DEVICES[arch]))
    assert resources.stack == 0 and resources.spills == 0


def test_the_spec_lists_it_behind_triton_from_sm_80_on():
    implementations = registry.spec("attention_dbias").implementations
    assert [each.name for each in implementations][-3:] == ["triton", "mma", "torch"]
    assert implementations[-2].requires.arch == ("sm_80+",)

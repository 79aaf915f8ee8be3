"""Plans of attention's Triton kernels: what they are given, what they refuse, what they leave in memory."""

from __future__ import annotations

import itertools
import math
import re
from typing import Any

import pytest

from portable.commands import check
from portable.dispatch import select
from portable.kernels.attention.triton import plan as triton_plan
from portable.plan import (
    Call,
    Device,
    Launch,
    Plan,
    Pointer,
    Rejected,
    TensorInfo,
    TritonDescriptor,
    TritonKernel,
)
from portable.runtime import triton_build
from portable.spec import registry
from portable.spec.model import Case
from tests.kernels.attention.calls import DEFAULTS
from tests.kernels.plan_parts import accepted, constants, scalar

KB = 1024
HOPPER = Device("cuda", "sm_90a", "GPU", multiprocessors=132, warp_size=32, shared_memory=227 * KB)
AMPERE = Device("cuda", "sm_80", "GPU", multiprocessors=108, warp_size=32, shared_memory=163 * KB)
CDNA = Device("rocm", "gfx942", "GPU", multiprocessors=304, warp_size=64, shared_memory=64 * KB)
RDNA3 = Device("rocm", "gfx1100", "GPU", multiprocessors=96, warp_size=32, shared_memory=64 * KB)
RDNA = Device("rocm", "gfx1201", "GPU", multiprocessors=64, warp_size=32, shared_memory=64 * KB)
FORWARD = {"BLOCK_M": 128, "BLOCK_N": 64, "num_warps": 8, "num_stages": 2}
BACKWARD = {**FORWARD, "BLOCK_M": 64, "BLOCK_N": 128, "DQ_BLOCK_M": 128, "DQ_BLOCK_N": 64}


def info(
    *shape: int, dtype: str = "bfloat16", alignment: int = 16, order: tuple[int, ...] = ()
) -> TensorInfo:
    """A tensor whose dimensions lie in memory in `order`, outermost first."""
    strides, step = [0] * len(shape), 1
    for axis in reversed(order or tuple(range(len(shape)))):
        strides[axis] = step
        step *= max(shape[axis], 1)
    return TensorInfo(shape, tuple(strides), dtype, alignment)


def plan_or_rejection(
    B: int = 2, H: int = 4, G: int = 2, M: int = 300, N: int = 500, D: int = 64, E: int = 0, *,
    backward: bool = False, device: Device = HOPPER, alignment: int = 16, dtype: str = "bfloat16",
    sequence_first: bool = False, bias: bool = False, sinks: bool = False, dlse: bool = False,
    config: dict[str, Any] | None = None, **params: Any,
) -> Plan | Rejected:  # fmt: skip
    E = E or D
    order = (0, 2, 1, 3) if sequence_first else ()

    def heads(count: int, rows: int, size: int) -> TensorInfo:
        return info(B, count, rows, size, dtype=dtype, alignment=alignment, order=order)

    tensors: dict[str, TensorInfo | None] = {"q": heads(H, M, D), "k": heads(G, N, D), "v": heads(G, N, E)}
    tensors |= {"o": heads(H, M, E), "lse": info(B, H, M, dtype="float32")}
    tensors["bias"] = info(B, H, M, N, dtype=dtype) if bias else None
    if backward:
        tensors |= {"do": heads(H, M, E), "dlse": info(B, H, M, dtype="float32") if dlse else None}
        tensors |= {"dq": heads(H, M, D), "dk": heads(G, N, D), "dv": heads(G, N, E)}
    else:
        tensors["sinks"] = info(H, dtype="float32") if sinks else None
    axes = {"H": H, "G": G, "M": M, "N": N, "D": D, "E": E}
    entry = triton_plan.backward if backward else triton_plan.forward
    given = config or (BACKWARD if backward else FORWARD)
    return entry(Call(tensors, {**DEFAULTS, **params}, axes, device, given))


def planned(**call: Any) -> Plan:
    return accepted(plan_or_rejection(**call))


def names(plan: Plan) -> list[str]:
    return [launch.kernel.name for launch in plan.launches]


def maps(launch: Launch) -> dict[str, TritonDescriptor]:
    return {name: arg for name, arg in launch.args if isinstance(arg, TritonDescriptor)}


CALLS: list[dict[str, Any]] = [
    {},
    {"causal": True, "sinks": True},
    {"bias": True, "softcap": 30.0, "dlse": True},
    {"window_left": 40, "window_right": 3},
    {"D": 50, "E": 33},
    {"D": 192, "E": 128, "sequence_first": True},
    {"alignment": 2},
    {"M": 0},
    {"N": 0},
    {"dtype": "float16", "H": 3, "G": 3},
]


@pytest.mark.parametrize("device", [HOPPER, AMPERE, CDNA, RDNA], ids=lambda device: device.arch)
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("call", CALLS, ids=str)
def test_arguments_follow_the_kernels_parameters(call, backward, device):
    call = {name: value for name, value in call.items() if name != ("sinks" if backward else "dlse")}
    for launch in planned(device=device, backward=backward, **call).launches:
        fixed = constants(launch)
        assert isinstance(launch.kernel, TritonKernel)
        given = [name for name, _ in launch.args if "." not in name]
        assert given == [name for name in launch.kernel.function.arg_names if name not in fixed]
        assert set(fixed) <= set(launch.kernel.function.arg_names)


@pytest.mark.parametrize("M", [1, 128, 129, 4096])
def test_a_program_for_each_tile_of_each_head(M):
    (launch,) = planned(M=M).launches
    assert launch.grid == (math.ceil(M / 128) * 8, 1, 1) and scalar(launch, "tiles") == math.ceil(M / 128)


def test_bounds_count_from_the_diagonal_of_the_last_query_and_key():
    (launch,) = planned(M=300, N=500, causal=True).launches
    assert scalar(launch, "high") == 200 and constants(launch)["HIGH"] and not constants(launch)["LOW"]
    (launch,) = planned(M=500, N=300, window_left=7, window_right=2).launches
    assert (scalar(launch, "low"), scalar(launch, "high")) == (-207, -198)
    (launch,) = planned(M=300, N=500, causal=True, window_right=9, window_left=2**40).launches
    assert scalar(launch, "high") == 200 and not constants(launch)["LOW"]


def test_scale_and_cap_are_in_base_two():
    (launch,) = planned(D=64).launches
    assert (
        scalar(launch, "scale") == pytest.approx(math.log2(math.e) / 8)
        and constants(launch)["SCALE_IN_EXPONENT"]
    )
    (launch,) = planned(D=64, softcap=20.0, scale=0.5).launches
    assert scalar(launch, "scale") == pytest.approx(2 * math.log2(math.e) * 0.5 / 20)
    assert scalar(launch, "cap") == pytest.approx(20 * math.log2(math.e))
    # The largest product belongs to the largest score only if the scale is positive.
    for call in ({"scale": 0.0}, {"scale": -1.0}, {"softcap": 5.0}, {"bias": True}):
        assert not constants(planned(**call).launches[0])["SCALE_IN_EXPONENT"]


def test_tiles_come_by_descriptor_where_the_engine_can_walk_every_tensor():
    (launch,) = planned(D=192, E=128, sequence_first=True).launches
    found = maps(launch)
    assert found["q"].sizes == (192, 300, 4, 2) and found["k"].sizes == (192, 500, 2, 2)
    assert found["q"].strides == (4 * 192 * 2, 192 * 2, 300 * 4 * 192 * 2)
    assert found["q"].block == (1, 1, 128, 128) and found["v"].block == (1, 1, 64, 128)
    assert all(each.box[0] == 64 and each.box[1] <= 256 for each in found.values())
    fixed = constants(launch)
    assert fixed["q_ptr"] is None and "o_ptr" in fixed and "lse_ptr" in dict(launch.args)


@pytest.mark.parametrize("device", [HOPPER, AMPERE, CDNA], ids=lambda device: device.arch)
@pytest.mark.parametrize(("D", "rest"), [(128, 0), (136, 64), (192, 64), (200, 0)])
def test_heads_between_two_powers_of_two_are_read_in_two_pieces(device, D, rest):
    (launch,) = planned(D=D, device=device).launches
    fixed, found = constants(launch), maps(launch)
    assert (fixed["REST_D"], fixed["BLOCK_D"]) == (rest, 256 if D == 200 else 128)
    if device is HOPPER and rest:
        assert found["k_rest"].block == (1, 1, 64, 64) and found["q_rest"].block == (1, 1, 128, 64)
        assert found["k_rest"].sizes == found["k"].sizes
    else:
        assert fixed["q_rest"] is None and fixed["k_rest"] is None
    keys = planned(D=D, device=device, backward=True).launches[1]
    assert constants(keys)["BLOCK_D"] >= D


def test_blocks_that_need_a_mask_have_loops_of_their_own_only_where_stages_run_ahead():
    one = {**FORWARD, "num_stages": 1}
    for call, masks in (({"causal": True}, True), ({"N": 512}, False), ({"N": 500}, True)):
        (ahead,), (alone,) = planned(**call).launches, planned(config=one, **call).launches
        assert (constants(ahead)["MASKING"], constants(alone)["MASKING"]) == ((3, 2) if masks else (0, 0))


@pytest.mark.parametrize(
    "call", [{"alignment": 8}, {"D": 60}, {"E": 12}, {"N": 0}, {"device": AMPERE}, {"device": CDNA}], ids=str
)
def test_what_the_engine_cannot_walk_comes_through_pointers(call):
    (launch,) = planned(**call).launches
    assert not maps(launch) and constants(launch)["q"] is None and "q_ptr" in dict(launch.args)


def test_alignment_is_promised_only_where_every_row_has_it():
    aligned, odd = planned(device=CDNA).launches[0], planned(device=CDNA, D=50).launches[0]
    assert constants(aligned)["UNIT"] == 8 and constants(odd)["UNIT"] == 1
    for launch, promise in ((aligned, True), (odd, False)):
        pointer = dict(launch.args)["k_ptr"]
        assert isinstance(pointer, Pointer) and pointer.aligned is promise


def test_far_rows_have_offsets_of_64_bits():
    call = {"B": 1, "H": 1, "G": 1, "device": CDNA}
    assert not constants(planned(**call).launches[0])["WIDE"]
    q = TensorInfo((1, 1, 300, 64), (2**40, 2**36, 2**24, 1), "bfloat16", 16)
    tensors = {"q": q, "k": info(1, 1, 500, 64), "v": info(1, 1, 500, 64), "bias": None, "sinks": None}
    tensors |= {"o": info(1, 1, 300, 64), "lse": info(1, 1, 300, dtype="float32")}
    axes = {"H": 1, "G": 1, "M": 300, "N": 500, "D": 64, "E": 64}
    plan = triton_plan.forward(Call(tensors, DEFAULTS, axes, CDNA, FORWARD))
    assert isinstance(plan, Plan) and constants(plan.launches[0])["WIDE"]


@pytest.mark.parametrize(("backward", "most"), [(False, 128), (True, 64)], ids=["forward", "backward"])
def test_heads_that_the_registers_of_gfx11_do_not_hold_are_refused(backward, most):
    planned(backward=backward, device=RDNA3, D=most)
    refused = plan_or_rejection(backward=backward, device=RDNA3, D=most, E=most + 8)
    assert isinstance(refused, Rejected) and "registers" in refused.reason
    assert isinstance(plan_or_rejection(backward=backward, device=RDNA3, D=192, E=64), Rejected)


@pytest.mark.parametrize("device", [HOPPER, AMPERE, CDNA, RDNA], ids=lambda device: device.arch)
def test_blocks_shrink_until_their_tiles_fit(device):
    for backward, bias in itertools.product((False, True), repeat=2):
        config = dict.fromkeys((*BACKWARD, "DQ_BLOCK_M", "DQ_BLOCK_N"), 128)
        config |= {"num_warps": 8, "num_stages": 4}
        plan = planned(backward=backward, device=device, D=256, window_left=9, bias=bias, config=config)
        for launch in plan.launches:
            fixed = constants(launch)
            if "BLOCK_D" in fixed:
                tile = min(fixed["BLOCK_M"], fixed["BLOCK_N"]) * 256 * 2
                assert tile * launch.kernel.num_stages <= device.shared_memory  # type: ignore[union-attr]


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
def test_sizes_beyond_32_bits_are_refused(backward):
    refused = plan_or_rejection(B=1, H=1, G=1, M=8, N=2**30, backward=backward, device=CDNA)
    assert isinstance(refused, Rejected) and "32 bits" in refused.reason
    refused = plan_or_rejection(B=2**20, H=2**10, G=1, M=300, N=8, backward=backward, device=CDNA)
    assert isinstance(refused, Rejected) and "blocks" in refused.reason


def test_the_gradient_keeps_ds_of_as_many_heads_as_fit_the_workspace():
    plan = planned(backward=True, B=2, H=16, G=16, M=8192, N=8192, D=128, causal=True)
    assert names(plan)[:3] == ["attention_bwd_preprocess", "attention_bwd_dkdv", "attention_bwd_dq_from_ds"]
    space = {each.name: each.shape for each in plan.workspaces}
    slots = space["ds"][0]
    assert math.prod(space["ds"]) * 2 <= triton_plan.DS_BYTES and space["lse_log2"] == (32, 8192)
    begun = [int(scalar(each, "begin")) for each in plan.launches if each.kernel.name == "attention_bwd_dkdv"]
    counts = [each.grid[0] // 64 for each in plan.launches if each.kernel.name == "attention_bwd_dkdv"]
    assert begun == list(range(0, 32, slots)) and sum(counts) == 32 and max(counts) == slots


def test_the_gradients_scores_are_computed_again_where_ds_is_too_large_or_windows_leave_most_of_it_empty():
    again = ["attention_bwd_preprocess", "attention_bwd_dkdv", "attention_bwd_dq"]
    assert names(planned(backward=True, B=1, H=1, G=1, M=65536, N=65536, D=128)) == again
    assert names(planned(backward=True, window_left=64)) == again
    assert names(planned(backward=True, device=CDNA)) == again
    plan = planned(backward=True, device=CDNA, M=0)
    assert names(plan) == again and plan.launches[2].grid[0] == 0 and plan.launches[1].grid[0] > 0


def test_query_heads_of_a_group_share_its_slot():
    plan = planned(backward=True, B=1, H=6, G=2, M=256, N=640)
    keys, products = plan.launches[1:]
    assert scalar(keys, "qheads_per_kvhead") == 3 and keys.grid[0] == 5 * 2 and products.grid[0] == 2 * 6
    assert maps(keys)["ds"].sizes == (256, 640, 6) == maps(products)["ds"].sizes


def compiled(plan: Plan, launch: Launch) -> Any:
    dtypes = dict.fromkeys(("q", "k", "v", "o", "do", "dq", "dk", "dv", "bias", "dbias"), "bfloat16")
    dtypes |= {"lse": "float32"} | {each.name: each.dtype for each in plan.workspaces}
    assert isinstance(launch.kernel, TritonKernel)
    types = triton_build.signature(launch, dtypes)
    return triton_build.compile_triton(launch.kernel, types, ("cuda", 90, 32))


@pytest.mark.slow
def test_it_compiles_to_what_the_launcher_passes():
    plan = planned(D=64, config={**FORWARD, "BLOCK_M": 64, "num_warps": 4}, causal=True)
    built = compiled(plan, plan.launches[0])
    entry = built.asm["ptx"].split(".entry", 1)[1].split(")", 1)[0]
    assert entry.count(".param") == len(plan.launches[0].args) + 2  # and Triton's two scratch pointers
    assert "cp.async.bulk.tensor" in built.asm["ptx"] and "wgmma" in built.asm["ptx"]
    assert built.metadata.global_scratch_size == 0 and built.metadata.shared <= 227 * KB


@pytest.mark.slow
def test_the_gradient_compiles():
    plan = planned(backward=True, D=64, M=4096, N=4096, causal=True)
    for launch in plan.launches[:3]:
        built = compiled(plan, launch)
        assert built.metadata.shared <= 227 * KB
        assert ("wgmma" in built.asm["ptx"]) == (launch.kernel.name != "attention_bwd_preprocess")


@pytest.mark.parametrize(("D", "E"), [(256, 256), (192, 128)])
def test_two_blocks_of_wide_heads_share_a_multiprocessor_on_hopper(D, E):
    """As measured: two or three blocks of 4 warps and one stage are faster than one of 8 warps and two stages
    (docs/notes/attention.md)."""
    spec = registry.spec("attention")
    ((backend, device),) = check.targets(["sm_90a"])
    sizes = {"H": 8, "G": 8, "M": 8192, "N": 8192, "D": D, "E": E}
    case = Case(sizes, {name: (2,) for name, each in spec.inputs.items() if each.leading}, ("bias", "sinks"))
    signature = check.call_signature(spec, case, spec.types[0], True)
    triton = spec.implementation("triton")
    assert triton is not None
    plan = select.evaluate(triton, signature, backend, device, static=False).plan
    assert plan is not None
    (launch,) = plan.launches
    built = compiled(plan, launch)
    blocks = device.shared_memory // (built.metadata.shared + KB)
    assert launch.kernel.num_warps == 4 and blocks >= 2  # type: ignore[union-attr]
    assert built.asm["ptx"].count("wgmma.mma_async") == D // 16 + 128 // 16  # no product of padding


TWO_WARPGROUPS = {**BACKWARD, "BLOCK_N": 64, "num_warps": 8, "num_stages": 1}
WGMMA = re.compile(r"wgmma\.mma_async\S+\s+\{[^}]*\}\s*,\s*(\{?)")


@pytest.mark.slow
@pytest.mark.parametrize("call", [{}, {"causal": True}, {"window_left": 64}], ids=str)
def test_two_warpgroups_share_the_products_of_64_keys_instead_of_doing_them_twice(call):
    plan = planned(backward=True, D=256, M=4096, N=4096, config=TWO_WARPGROUPS, **call)
    built = compiled(plan, plan.launches[1])
    scores, sums = 2 * 256 // 16, 2 * 64 // 16
    assert built.asm["ptx"].count("wgmma.mma_async") == scores + sums
    assert constants(plan.launches[1])["MASK_DP"]


def test_a_product_of_one_warpgroup_or_of_a_gpu_without_descriptors_is_left_as_it_is():
    for call in ({"device": CDNA, "config": TWO_WARPGROUPS}, {"config": {**TWO_WARPGROUPS, "num_warps": 4}}):
        launch = planned(backward=True, D=256, **call).launches[1]
        assert not constants(launch)["MASK_DP"] and not constants(launch)["HIGH"]


@pytest.mark.parametrize(
    ("D", "E", "block_m", "block_n", "holds"),
    [(128, 128, 64, 64, (1, 1)), (192, 128, 128, 64, (0, 1)), (256, 256, 128, 32, (1, 0))],
)
def test_dq_holds_in_registers_what_fits_and_has_a_third_stage_in_its_place(D, E, block_m, block_n, holds):
    tile = {"BLOCK_M": block_m, "BLOCK_N": block_n, "num_warps": block_m // 16, "num_stages": 3}
    config = {**BACKWARD, **{f"DQ_{name}": value for name, value in tile.items()}, "KEEP_DS": False}
    launch = planned(backward=True, D=D, E=E, M=4096, N=4096, config=config, causal=True).launches[2]
    assert (constants(launch)["Q_IN_REGISTERS"], constants(launch)["DO_IN_REGISTERS"]) == holds
    assert isinstance(launch.kernel, TritonKernel) and launch.kernel.num_stages == 3


@pytest.mark.slow
def test_what_dq_holds_is_a_register_operand_and_no_shared_memory():
    config = {**BACKWARD, "DQ_BLOCK_M": 64, "DQ_num_warps": 4, "KEEP_DS": False}
    plan = planned(backward=True, D=128, M=4096, N=4096, config=config, causal=True)
    built = compiled(plan, plan.launches[2])
    assert WGMMA.findall(built.asm["ptx"]) == ["{"] * 2 * (2 * 128 // 16 + 64 // 16)
    tiles = 2 * 2 * 64 * 128 * 2  # keys and values in two stages
    assert tiles <= built.metadata.shared < tiles + KB


@pytest.mark.parametrize(
    "call",
    [{"D": 64, "causal": True}, {"D": 128, "device": CDNA}, {"D": 128, "N": 512}],
    ids=["more blocks", "no descriptors", "one loop"],
)
def test_dq_holds_nothing_where_it_does_not_pay(call):
    launch = planned(backward=True, config={**BACKWARD, "KEEP_DS": False}, **call).launches[2]
    assert not constants(launch)["Q_IN_REGISTERS"] and not constants(launch)["DO_IN_REGISTERS"]

"""Plans that pack operands before wgmma multiplies them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from portable.kernels.matmul.sm90 import realigned_plan
from portable.plan import Call, Plan, Rejected, Scalar
from tests.kernels.matmul.test_plans import H200, info, make_call
from tests.kernels.plan_parts import accepted


def half(*shape: int, pitch: int = 0, offset: int = 0) -> torch.Tensor:
    """A tensor whose rows lie `pitch` elements apart, on the meta device."""
    if not pitch:
        return torch.empty(*shape, dtype=torch.bfloat16, device="meta")
    strides = [pitch, 1]
    for size in reversed(shape[1:-1]):
        strides.insert(0, strides[0] * size)
    return torch.empty_strided(shape, strides, dtype=torch.bfloat16, device="meta")


def realigned(plan: Plan | Rejected) -> dict[str, Any]:
    assert isinstance(plan, Plan), plan
    return {
        name: arg.value if isinstance(arg, Scalar) else getattr(arg, "tensor", None)
        for name, arg in plan.launches[0].args
    }


def test_both_operands_are_realigned_by_one_launch():
    plan = accepted(realigned_plan.plan(make_call(half(4095, 4099), half(4099, 4097))))
    found = realigned(plan)
    assert [launch.kernel.name for launch in plan.launches] == ["matmul_align_copy", "matmul_wgmma"]
    assert (found["from0"], found["to0"]) == ("a", "a_realigned")
    assert (found["from1"], found["to1"]) == ("b", "b_realigned")
    assert [found[n + "0"] for n in ("line", "length", "lines", "pitch")] == [4099, 4099, 4095, 520]
    assert [found[n + "1"] for n in ("line", "length", "lines", "pitch")] == [4097, 4097, 4099, 520]
    assert plan.launches[0].grid[0] == found["blocks0"] + found["blocks1"]
    assert [(w.name, w.shape) for w in plan.workspaces] == [
        ("a_realigned", (4095 * 4160,)), ("b_realigned", (4099 * 4160,))
    ]  # fmt: skip
    maps = dict(plan.launches[1].args)
    assert maps["map_a"].sizes == (4099, 4095, 1, 1) and maps["map_a"].strides[0] == 4160 * 2
    assert maps["map_a"].tensor == "a_realigned" and maps["map_b"].tensor == "b_realigned"


def test_an_aligned_operand_stays_where_it_is():
    plan = accepted(realigned_plan.plan(make_call(half(4096, 4096, pitch=4097), half(4096, 4096))))
    found = realigned(plan)
    assert found["from0"] == "a" and found["from1"] == 0 and found["blocks1"] == 0
    assert dict(plan.launches[1].args)["map_b"].tensor == "b"


def test_column_major_operands_are_realigned_by_column():
    found = realigned(realigned_plan.plan(make_call(half(4099, 4095).mT, half(4097, 4099).mT)))
    assert (found["length0"], found["lines0"]) == (4095, 4099)
    assert (found["length1"], found["lines1"]) == (4099, 4097)


def test_a_broadcast_matrix_is_realigned_once():
    plan = accepted(realigned_plan.plan(make_call(half(8, 515, 517), half(517, 1021))))
    found = realigned(plan)
    assert (found["lines0"], found["lines1"]) == (8 * 515, 517)  # a's batch is more rows of one matrix
    plan = accepted(realigned_plan.plan(make_call(half(4, 1, 515, 517), half(3, 517, 1021))))
    found = realigned(plan)
    assert (found["inner_count0"], found["lines0"], found["vectors0"]) == (1, 515, 4 * 515 * 65)
    assert (found["inner_count1"], found["vectors1"]) == (3, 3 * 517 * 128)


@pytest.mark.parametrize(
    ("a", "b", "reason"),
    [
        (half(4096, 4096), half(4096, 4096), "no realignment needed"),
        (half(65, 33), half(33, 65), "cost more than it saves"),
        (half(64, 8191), half(8191, 8192), "too small for this kernel"),
        (half(70_001, 32_771), half(32_771, 4097), "need a workspace of"),
    ],
)
def test_refusals(a, b, reason):
    plan = realigned_plan.plan(make_call(a, b))
    assert isinstance(plan, Rejected) and reason in plan.reason


def test_linear_packs_x_and_weight():
    tensors = {"x": info(half(4096, 4096), alignment=2), "weight": info(half(4097, 4096)),
               "bias": None, "y": info(half(4096, 4097))}  # fmt: skip
    plan = realigned_plan.plan(Call(tensors, {"activation": None}, {}, H200, {}))
    found = realigned(plan)
    assert found["from0"] == "x" and found["from1"] == 0

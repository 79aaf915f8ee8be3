"""MX products on Hopper as products in bfloat16: both operands times their scales first, which is exact.

Hopper multiplies bfloat16 at half the rate of fp8, and scales of 32 along k on the way cost more: with
many rows two passes over the operands, by dequantize_fp8's kernel, and matmul's own kernel are fastest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from portable.kernels.dequantize_fp8 import native
from portable.kernels.matmul.problem import Operand, Problem
from portable.kernels.matmul.sm90.wgmma_plan import plan_wgmma
from portable.kernels.scaled_mm.problem import product_of
from portable.layout import ceil_div
from portable.plan import Argument, Call, Launch, Plan, Pointer, Rejected, TensorInfo, Workspace

WIDE = "bfloat16"
FEWEST_ROWS = {1: 512, 2: 65}
"""By the numbers in a byte: with fewer the passes cost more than what the product gains."""


def mx(call: Call) -> Plan | Rejected:
    """scaled_mm_mx: a byte is a number."""
    return _plan(call, 1)


def mxfp4(call: Call) -> Plan | Rejected:
    """scaled_mm_mxfp4: a byte is two numbers."""
    return _plan(call, 2)


def _plan(call: Call, each: int) -> Plan | Rejected:
    problem = product_of(call)
    rows, least = problem.M, FEWEST_ROWS[each]
    if rows < least:
        return Rejected(f"M = {rows}: fewer than {least} rows do not pay for wider operands")
    launches: list[Launch] = []
    spaces: list[Workspace] = []
    operands: list[Operand] = []
    length = problem.K * each
    for operand, lines, scale in ((problem.a, problem.M, "scale_a"), (problem.b, problem.N, "scale_b")):
        along = "col" if operand is problem.a else "row"
        if operand.unit_stride != along or length % 8:
            return Rejected(f"{operand.tensor} does not lie along K, or K is no multiple of 8")
        made = _dequantized(call, operand, (lines, problem.K), scale, each)
        if isinstance(made, Rejected):
            return made
        name = f"wide_{operand.tensor}"
        launches += made
        spaces.append(Workspace(name, (lines, length), WIDE))
        steps = (length, 1) if along == "col" else (1, length)
        operands.append(Operand(name, WIDE, *steps, (0, 0), 16))
    wide: Problem = replace(problem, a=operands[0], b=operands[1], K=length)
    product = plan_wgmma(wide, call)
    return product if isinstance(product, Rejected) else Plan((*launches, *product.launches), tuple(spaces))


def _dequantized(
    call: Call, operand: Operand, sizes: tuple[int, int], scale: str, each: int
) -> tuple[Launch, ...] | Rejected:
    """The launch that writes the operand's lines, times their scales, to its workspace."""
    lines, stored = sizes
    groups = ceil_div(stored * each, native.MX_GROUP)
    if lines > 1 and call[scale].strides != (groups, 1):
        return Rejected(f"{scale} is not contiguous")
    length = stored * each
    tensors = {
        "q": TensorInfo((lines, stored), (operand.leading, 1), operand.dtype, operand.alignment),
        "scale": TensorInfo((lines, groups), (groups, 1), call[scale].dtype, call[scale].alignment),
        "y": TensorInfo((lines, length), (length, 1), WIDE),
    }
    own = Call(tensors, {}, {}, call.device, {})
    made = native.mx(own) if each == 1 else native.mxfp4(own)
    if isinstance(made, Rejected):
        return made
    names = {"q": operand.tensor, "scale": scale, "y": f"wide_{operand.tensor}"}
    return tuple(
        replace(launch, args=tuple((name, _renamed(arg, names)) for name, arg in launch.args))
        for launch in made.launches
    )


def _renamed(argument: Argument, names: Mapping[str, str]) -> Argument:
    return replace(argument, tensor=names[argument.tensor]) if isinstance(argument, Pointer) else argument

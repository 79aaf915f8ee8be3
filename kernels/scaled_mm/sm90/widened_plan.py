"""MX and NVFP4 products on Hopper in bfloat16: operands times their groups' scales first, which is exact.
NVFP4's scales of the whole multiply the sums.

Hopper multiplies bfloat16 at half the rate of fp8, and scales of 32 along k on the way cost more: with
many rows two passes over the operands, by dequantize_fp8's kernel, and matmul's own kernel are fastest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from portable.kernels.dequantize_fp8 import native
from portable.kernels.dequantize_fp8.reference import MX_GROUP, NV_GROUP
from portable.kernels.matmul.problem import Operand, Problem
from portable.kernels.matmul.sm90.wgmma_plan import plan_wgmma
from portable.kernels.scaled_mm.problem import product_of
from portable.layout import ceil_div
from portable.plan import Argument, Call, Launch, Plan, Pointer, Rejected, TensorInfo, Workspace

WIDE = "bfloat16"
FEWEST_ROWS = {1: 512, 2: 65}
"""By the numbers in a byte: with fewer the passes cost more than what the product gains."""


@dataclass(frozen=True)
class _Format:
    """Numbers in a byte, and of a group, whose lines `dequantize` multiplies by their scales; the scales of
    the whole."""

    each: int
    group: int
    dequantize: Callable[[Call], Plan | Rejected]
    alphas: tuple[str, ...] = ()


_MX = _Format(1, MX_GROUP, native.mx)
_MXFP4 = _Format(2, MX_GROUP, native.mxfp4)
_NVFP4 = _Format(2, NV_GROUP, native.nvfp4, ("global_a", "global_b"))


def mx(call: Call) -> Plan | Rejected:
    """scaled_mm_mx: a byte is a number."""
    return _plan(call, _MX)


def mxfp4(call: Call) -> Plan | Rejected:
    """scaled_mm_mxfp4: a byte is two numbers."""
    return _plan(call, _MXFP4)


def nvfp4(call: Call) -> Plan | Rejected:
    """scaled_mm_nvfp4: a byte is two numbers; the sums meet the scales of the whole."""
    return _plan(call, _NVFP4)


def _plan(call: Call, kind: _Format) -> Plan | Rejected:
    problem = product_of(call)
    rows, least = problem.M, FEWEST_ROWS[kind.each]
    if rows < least:
        return Rejected(f"M = {rows}: fewer than {least} rows do not pay for wider operands")
    launches: list[Launch] = []
    spaces: list[Workspace] = []
    operands: list[Operand] = []
    length = problem.K * kind.each
    for operand, lines, scale in ((problem.a, problem.M, "scale_a"), (problem.b, problem.N, "scale_b")):
        along = "col" if operand is problem.a else "row"
        if operand.unit_stride != along or length % 8:
            return Rejected(f"{operand.tensor} does not lie along K, or K is no multiple of 8")
        made = _dequantized(call, operand, (lines, problem.K), scale, kind)
        if isinstance(made, Rejected):
            return made
        name = f"wide_{operand.tensor}"
        launches += made
        spaces.append(Workspace(name, (lines, length), WIDE))
        steps = (length, 1) if along == "col" else (1, length)
        operands.append(Operand(name, WIDE, *steps, (0, 0), 16))
    wide: Problem = replace(problem, a=operands[0], b=operands[1], K=length, alphas=kind.alphas)
    product = plan_wgmma(wide, call)
    return product if isinstance(product, Rejected) else Plan((*launches, *product.launches), tuple(spaces))


def _dequantized(
    call: Call, operand: Operand, sizes: tuple[int, int], scale: str, kind: _Format
) -> tuple[Launch, ...] | Rejected:
    """The launch that writes the operand's lines, times their scales, to its workspace."""
    lines, stored = sizes
    length = stored * kind.each
    groups = ceil_div(length, kind.group)
    row, along = call[scale].strides
    if (lines > 1 and row != groups) or (groups > 1 and along != 1):
        return Rejected(f"{scale} is not contiguous")
    tensors = {
        "q": TensorInfo((lines, stored), (operand.leading, 1), operand.dtype, operand.alignment),
        "scale": TensorInfo((lines, groups), (groups, 1), call[scale].dtype, call[scale].alignment),
        "y": TensorInfo((lines, length), (length, 1), WIDE),
    }
    made = kind.dequantize(Call(tensors, {}, {}, call.device, {}))
    if isinstance(made, Rejected):
        return made
    names = {"q": operand.tensor, "scale": scale, "y": f"wide_{operand.tensor}"}
    return tuple(
        replace(launch, args=tuple((name, _renamed(arg, names)) for name, arg in launch.args))
        for launch in made.launches
    )


def _renamed(argument: Argument, names: Mapping[str, str]) -> Argument:
    return replace(argument, tensor=names[argument.tensor]) if isinstance(argument, Pointer) else argument

"""Entries of matmul's native implementations; each kernel's plan is in the file of its name.

The `plan_` functions plan a canonical `Problem`, so that linear shares them.
"""

from __future__ import annotations

from collections.abc import Callable

from portable.kernels.matmul.gfx import plan
from portable.kernels.matmul.problem import Problem, from_matmul
from portable.kernels.matmul.simt.simt_plan import plan_simt
from portable.kernels.matmul.sm80.mma_plan import plan_mma
from portable.kernels.matmul.sm90.bf16x6_plan import plan_bf16x6
from portable.kernels.matmul.sm90.realigned_plan import plan_packed
from portable.kernels.matmul.sm90.skinny_plan import plan_skinny
from portable.kernels.matmul.sm90.splitk_plan import plan_split
from portable.kernels.matmul.sm90.wgmma_plan import plan_wgmma
from portable.plan import Call, Plan, Rejected

Planner = Callable[[Problem, Call], "Plan | Rejected"]


def skinny(call: Call) -> Plan | Rejected:
    return _planned(call, plan_skinny)


def wgmma(call: Call) -> Plan | Rejected:
    return _planned(call, plan_wgmma)


def split(call: Call) -> Plan | Rejected:
    return _planned(call, plan_split)


def packed(call: Call) -> Plan | Rejected:
    return _planned(call, plan_packed)


def bf16x6(call: Call) -> Plan | Rejected:
    return _planned(call, plan_bf16x6)


def mma(call: Call) -> Plan | Rejected:
    return _planned(call, plan_mma)


def simt(call: Call) -> Plan | Rejected:
    return _planned(call, plan_simt)


def mfma(call: Call) -> Plan | Rejected:
    return _planned(call, plan.mfma)


def wmma(call: Call) -> Plan | Rejected:
    return _planned(call, plan.wmma)


def _planned(call: Call, planner: Planner) -> Plan | Rejected:
    problem = from_matmul(call)
    return problem if isinstance(problem, Rejected) else planner(problem, call)

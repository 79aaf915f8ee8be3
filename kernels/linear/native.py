"""Plans for linear's native kernels: matmul's, with bias and activation in the epilogue."""

from __future__ import annotations

from portable.kernels.matmul import native
from portable.kernels.matmul.gfx import plan
from portable.kernels.matmul.problem import from_linear
from portable.plan import Call, Plan, Rejected


def _planned(call: Call, planner: native.Planner) -> Plan | Rejected:
    problem = from_linear(call)
    return problem if isinstance(problem, Rejected) else planner(problem, call)


def skinny(call: Call) -> Plan | Rejected:
    return _planned(call, native.plan_skinny)


def wgmma(call: Call) -> Plan | Rejected:
    return _planned(call, native.plan_wgmma)


def packed(call: Call) -> Plan | Rejected:
    return _planned(call, native.plan_packed)


def mma(call: Call) -> Plan | Rejected:
    return _planned(call, native.plan_mma)


def mfma(call: Call) -> Plan | Rejected:
    return _planned(call, plan.mfma)


def wmma(call: Call) -> Plan | Rejected:
    return _planned(call, plan.wmma)


def simt(call: Call) -> Plan | Rejected:
    return _planned(call, native.plan_simt)

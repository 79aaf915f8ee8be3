"""gated_linear in Triton: matmul's kernels, which keep a second sum for up."""

from __future__ import annotations

from portable.kernels.matmul.problem import from_gated_linear
from portable.kernels.matmul.triton.plan import plan_problem
from portable.plan import Call, Plan, Rejected


def plan(call: Call) -> Plan | Rejected:
    """Plan y = activation(x @ gate.T) * (x @ up.T); x [*, K], w_gate_up [2, N, K], y [*, N]."""
    return plan_problem(from_gated_linear(call), call)

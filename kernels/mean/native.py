"""The plan of mean.cu."""

from __future__ import annotations

from pathlib import Path

from portable.kernels._lib.plans.log_sum_exp_plan import scan_plan
from portable.plan import Call, Plan, Rejected

_SOURCE = Path(__file__).with_name("mean.cu")


def forward(call: Call) -> Plan | Rejected:
    """y from x: one launch, of a block per row or of several rows per block."""
    return scan_plan(call, ("x", "y"), _SOURCE, "mean_forward", (), ())

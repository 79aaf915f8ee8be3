"""The plans of selected_logprob.cu."""

from __future__ import annotations

from pathlib import Path

from portable.kernels._lib.plans.log_sum_exp_plan import Arguments, gradient_plan, scan_plan
from portable.plan import Call, Plan, Rejected, Scalar

_SOURCE = Path(__file__).with_name("selected_logprob.cu")
FORWARD = ("logits", "index", "logprob", "entropy", "lse")
BACKWARD = ("dlogprob", "dentropy", "logits", "index", "entropy", "lse", "dlse", "dlogits")


def forward(call: Call) -> Plan | Rejected:
    """logprob, entropy and lse from logits and index: one launch."""
    defines = (("PASS", "FORWARD"),)
    return scan_plan(call, FORWARD, _SOURCE, "selected_logprob_forward", defines, numbers(call))


def backward(call: Call) -> Plan | Rejected:
    """dlogits from the gradients of the three, logits, index, entropy and lse: one launch."""
    defines = (("PASS", "BACKWARD"),)
    return gradient_plan(call, BACKWARD, _SOURCE, "selected_logprob_backward", defines, numbers(call))


def numbers(call: Call) -> Arguments:
    """The kernels' arguments besides tensors and sizes."""
    return (("inverse_temperature", Scalar("f32", 1.0 / call.params["temperature"])),)

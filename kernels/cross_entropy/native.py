"""The plans of cross_entropy.cu."""

from __future__ import annotations

from pathlib import Path

from portable.kernels._lib.plans.log_sum_exp_plan import Arguments, gradient_plan, scan_plan
from portable.plan import Call, Plan, Rejected, Scalar

_SOURCE = Path(__file__).with_name("cross_entropy.cu")


def forward(call: Call) -> Plan | Rejected:
    """loss and lse from logits, target and weight: one launch."""
    names = ("logits", "target", "weight", "loss", "lse")
    defines = ("PASS", "FORWARD"), *_defines(call)
    return scan_plan(call, names, _SOURCE, "cross_entropy_forward", defines, _numbers(call))


def backward(call: Call) -> Plan | Rejected:
    """dlogits from dloss, dlse, logits, target, the weights and lse: one launch."""
    names = ("dloss", "dlse", "logits", "target", "weight", "weight_mean", "lse", "dlogits")
    defines = ("PASS", "BACKWARD"), *_defines(call)
    return gradient_plan(call, names, _SOURCE, "cross_entropy_backward", defines, _numbers(call))


def _defines(call: Call) -> tuple[tuple[str, int], ...]:
    """What the kernel leaves out where it is not asked for."""
    capped = call.params["softcap"] is not None
    smoothed = call.params["label_smoothing"] != 0.0
    weighted = call.has("weight") or call.has("weight_mean")
    return ("SOFTCAP", int(capped)), ("SMOOTHING", int(smoothed)), ("WEIGHT", int(weighted))


def _numbers(call: Call) -> Arguments:
    given = call.params
    return (
        ("ignore_index", Scalar("i64", given["ignore_index"])),
        ("label_smoothing", Scalar("f32", given["label_smoothing"])),
        ("softcap", Scalar("f32", 0.0 if given["softcap"] is None else given["softcap"])),
        ("z_loss", Scalar("f32", given["z_loss"])),
    )

"""Plans of rope's C++ kernel with VALUES: heads of v, copied behind those of q and k."""

from __future__ import annotations

from portable.kernels._lib.plans.row_class import pointer
from portable.kernels.rope.native import plan_heads, vector_of
from portable.plan import Argument, Call, Plan, Rejected, Scalar

FORWARD = ("q", "k", "v", "q_rotated", "k_rotated", "v_copied")
BACKWARD = ("dq_rotated", "dk_rotated", "dv_copied", "dqkv", "dqkv", "dqkv")
"""The tensors of q, k and v that are read, and those that are written."""


def forward(call: Call) -> Plan | Rejected:
    """Plan q_rotated, k_rotated and v_copied."""
    return _planned(call, FORWARD)


def backward(call: Call) -> Plan | Rejected:
    """Plan dqkv."""
    return _planned(call, BACKWARD)


def placed(call: Call) -> list[tuple[str, Argument]]:
    """How far apart tokens are in the results of q, k and v, and where those of k and v begin in theirs."""
    q, k = call.axes["H"] * call.axes["D"], call.axes["G"] * call.axes["D"]
    joined = q + 2 * k
    found = (joined, joined, joined, q, q + k) if call.has("dqkv") else (q, k, k, 0, 0)
    names = ("q_row", "k_row", "v_row", "k_first", "v_first")
    return [(name, Scalar("i64", number)) for name, number in zip(names, found, strict=True)]


def _planned(call: Call, names: tuple[str, ...]) -> Plan | Rejected:
    q, k, v, to_q, to_k, to_v = names
    more: list[tuple[str, Argument]] = [("v", pointer(call, v)[1]), ("v_copied", pointer(call, to_v)[1])]
    more += [
        (f"v_{part}", Scalar("i64", stride))
        for part, stride in zip(("sequence", "token", "head"), call[v].strides, strict=False)
    ]
    return plan_heads(
        call,
        (q, k, to_q, to_k),
        more=(*more, *placed(call)),
        backward=names is BACKWARD,
        vector=vector_of(call, names),
        more_defines=(("VALUES", 1),),
        more_heads=call.axes["G"],
    )

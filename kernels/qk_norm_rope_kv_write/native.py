"""Plans of qk_norm_rope's C++ kernel that writes keys and values into a cache."""

from __future__ import annotations

from portable import dtypes
from portable.kernels._lib.plans.row_class import MAX_GRID, pointer
from portable.kernels.kv_cache_write.native import unit_of
from portable.kernels.qk_norm_rope.native import SOURCE
from portable.kernels.rope.native import plan_heads, vector_of
from portable.layout import ceil_div
from portable.plan import Argument, Call, Plan, Rejected, Scalar

WEIGHTS = ("q_weight", "k_weight")
CACHES = ("k_cache", "v_cache")


def vector(call: Call) -> int:
    """Elements of all tensors per access: 16 bytes' worth where all are aligned for it, else 1."""
    weights = tuple(name for name in WEIGHTS if call.has(name))
    return min(vector_of(call, ("q", "k", "q_rotated"), weights), unit_of(call, ("v", *CACHES)))


def too_large(call: Call) -> Rejected | None:
    """A rejection where the numbers of slots leave 32 bits."""
    places = call.axes["N"] * call.axes["S"]
    return Rejected(f"{places} slots: their numbers are 32-bit") if places > MAX_GRID else None


def steps(call: Call) -> list[tuple[str, Argument]]:
    """The steps of v, the caches and the slots, but between elements, and the counts of the cache."""
    names = {"v": ("sequence", "token", "head"), "k_cache": ("page", "place", "head")}
    names |= {"v_cache": names["k_cache"], "slots": ("sequence", "token")}
    args: list[tuple[str, Argument]] = [
        (f"{name}_{step}", Scalar("i64", stride))
        for name, own in names.items()
        for step, stride in zip(own, call[name].strides, strict=False)
    ]
    page, places = call.axes["S"], call.axes["N"] * call.axes["S"]
    return [*args, ("page", Scalar("i32", page)), ("places", Scalar("i32", places))]


def forward(call: Call) -> Plan | Rejected:
    """Plan q_rotated and the writes, where the lanes of one warp hold a head of neighbouring elements."""
    if rejected := too_large(call):
        return rejected
    unit = vector(call)
    lanes = ceil_div(call.axes["C"], unit)
    if lanes > call.device.warp_size:
        return Rejected(f"a head takes {lanes} lanes; a warp has {call.device.warp_size}")
    for name in CACHES:
        if call[name].shape[-1] > 1 and call[name].strides[-1] != 1:
            return Rejected(f"the elements of a head of {name} are {call[name].strides[-1]} apart; needs 1")
    more: list[tuple[str, Argument]] = [pointer(call, name) for name in WEIGHTS]
    more.append(("eps", Scalar("f32", call.params["eps"])))
    more += [pointer(call, name) for name in ("v", "v_cache", "slots")]
    defines: tuple[tuple[str, int | str], ...] = (
        ("CACHED", 8 * dtypes.itemsize(call["slots"].dtype)),
        ("V_UNITS", call.axes["E"] // unit),
        ("NORM", int(call.has("q_weight"))),
    )
    return plan_heads(
        call, ("q", "k", "q_rotated", "k_cache"), SOURCE, "qk_norm_rope", (*more, *steps(call)),
        vector=unit, more_defines=defines,
    )  # fmt: skip

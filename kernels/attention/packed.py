"""A call of attention over packed sequences as the planners see it."""

from __future__ import annotations

from portable.kernels.attention.problem import Heads, Problem
from portable.plan import Call, Rejected, TensorInfo

_MOST_NUMBERS = 2**31 - 1


def packed(call: Call) -> Problem | Rejected:
    """The call as a problem of one batch: all tokens as one sequence."""
    axes, params = call.axes, call.params
    right = params["window_right"]
    if params["causal"]:
        right = 0 if right is None else min(right, 0)
    most = 2 * (axes["M"] + axes["N"])
    if most + axes["C"] + 1024 > _MOST_NUMBERS:
        return Rejected("token numbers of 32 bits do not hold this size")
    heads = {name: _heads(name, info) for name, info in call.tensors.items() if info is not None}
    return Problem(
        dtype=call["q"].dtype,
        B=1,
        **{name: axes[name] for name in ("H", "G", "M", "N", "D", "E")},
        scale=axes["D"] ** -0.5 if params["scale"] is None else params["scale"],
        softcap=params["softcap"],
        left=_least(params["window_left"], most),
        right=_least(right, most),
        heads={name: each for name, each in heads.items() if each is not None},
    )


def entries_of(tokens: int, offsets: int, tile: int) -> int:
    """As many tiles as sequences can have, however the offsets cut the tokens."""
    return tokens // tile + offsets + 1


def _least(bound: int | None, most: int) -> int | None:
    return None if bound is None else min(bound, most)


def _heads(name: str, info: TensorInfo) -> Heads | None:
    if len(info.shape) == 3:  # tokens, heads, columns
        return Heads(name, 0, info.strides[1], info.strides[0], info.alignment)
    if len(info.shape) == 2:  # heads, tokens
        return Heads(name, 0, info.strides[0], info.strides[1], info.alignment)
    return None

"""A call of attention over packed sequences as the planners see it, and the tables of its tiles."""

from __future__ import annotations

from pathlib import Path

from portable.kernels.attention.problem import Heads, Problem
from portable.plan import (
    Argument,
    Call,
    Launch,
    NativeKernel,
    Pointer,
    Rejected,
    Scalar,
    TensorInfo,
    Workspace,
)

_TABLES = Path(__file__).resolve().parent / "device/varlen_tiles.cu"
_MOST_NUMBERS = 2**31 - 1
MOST_TOKENS = 2**28  # where places and windows, at most 2 * (M + N), are added in 32 bits


def packed(call: Call, most_tokens: int = _MOST_NUMBERS) -> Problem | Rejected:
    """The call as a problem of one batch: all tokens as one sequence, `most_tokens` or offsets at most."""
    axes, params = call.axes, call.params
    right = params["window_right"]
    if params["causal"]:
        right = 0 if right is None else min(right, 0)
    most = 2 * (axes["M"] + axes["N"])
    if most + axes["C"] + 1024 > _MOST_NUMBERS:
        return Rejected("token numbers of 32 bits do not hold this size")
    if max(axes["M"], axes["N"], axes["C"]) > most_tokens:
        return Rejected(f"more than {most_tokens} tokens or sequences")
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


def _least(bound: int | None, most: int) -> int | None:
    return None if bound is None else min(bound, most)


def _heads(name: str, info: TensorInfo) -> Heads | None:
    if len(info.shape) == 3:  # tokens, heads, columns
        return Heads(name, 0, info.strides[1], info.strides[0], info.alignment)
    if len(info.shape) == 2:  # heads, tokens
        return Heads(name, 0, info.strides[0], info.strides[1], info.alignment)
    return None


def entries_of(tokens: int, offsets: int, tile: int) -> int:
    """As many tiles as sequences can have, however the offsets cut the tokens."""
    return tokens // tile + offsets + 1


def tables(call: Call, tokens: int, tile: int) -> tuple[Workspace, ...]:
    """What `plan_tables` fills, for tiles of `tile` of the tokens."""
    sequences = call.axes["C"] + 1
    return (
        Workspace("bounds", (sequences, 4), "int32"),
        Workspace("ranks", (sequences,), "int32"),
        Workspace("firsts", (sequences + 1,), "int32"),
        Workspace("tiles", (entries_of(tokens, call.axes["C"], tile), 2), "int32"),
        Workspace("counts", (2,), "int32"),
    )


def plan_tables(
    call: Call, problem: Problem, tile: int, *, of_keys: bool, together: int, backwards: bool
) -> Launch:
    """The launch of varlen_tiles.cu. A window bounds how many tokens of the other kind a tile meets."""
    reach = _MOST_NUMBERS
    if problem.left is not None and problem.right is not None:
        reach = max(0, min(reach, problem.left + problem.right + tile))
    numbers = {
        "count": call.axes["C"], "queries": problem.M, "keys": problem.N, "tile": tile,
        "of_keys": int(of_keys), "reach": reach, "together": together, "backwards": int(backwards),
    }  # fmt: skip
    names = ("cu_seqlens_q", "cu_seqlens_k", "bounds", "ranks", "firsts", "tiles", "counts")
    args: list[tuple[str, Argument]] = [(name, Pointer(name)) for name in names]
    args += [(name, Scalar("i32", value)) for name, value in numbers.items()]
    return Launch(NativeKernel(_TABLES, "attention_ragged_tiles", 256), (1, 1, 1), tuple(args))

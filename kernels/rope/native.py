"""Plans of rope's C++ kernel: who takes which heads and columns of a token."""

from __future__ import annotations

from pathlib import Path

from portable import dtypes
from portable.kernels._lib.plans.row_class import MAX_GRID, pointer, power_of_two, vector_length
from portable.layout import ceil_div
from portable.plan import Argument, Call, Launch, NativeKernel, Plan, Rejected, Scalar, TensorInfo

SOURCE = Path(__file__).with_name("rope.cu")
THREADS = 256
MOST_HEADS, FEW_HEADS = 8, 2
"""Heads of a token that a thread takes at most, with two loads of each in flight; few while all threads are
fewer than `FILLED` per multiprocessor."""
FILLED = 1024


def forward(call: Call) -> Plan | Rejected:
    """Plan q_rotated and k_rotated of q and k."""
    return plan_heads(call, ("q", "k", "q_rotated", "k_rotated"))


def backward(call: Call) -> Plan | Rejected:
    """Plan dq and dk of dq_rotated and dk_rotated."""
    return plan_heads(call, ("dq_rotated", "dk_rotated", "dq", "dk"), backward=True)


def widest_stride(info: TensorInfo) -> list[tuple[TensorInfo, int]]:
    """The tensor with each stride that a kernel goes by, for `vector_length`."""
    strides = [stride for size, stride in zip(info.shape[:-1], info.strides[:-1], strict=True) if size > 1]
    return [(info, stride) for stride in strides] or [(info, 0)]


def vector_of(call: Call, names: tuple[str, ...], weights: tuple[str, ...] = ()) -> int:
    """Elements of q and k per access: 16 bytes' worth where all tensors, and both parts of a head, are
    aligned for it."""
    present = [call[name] for name in (*names, "cos", "sin", *weights) if call[name].numel]
    dtype = call[names[0]].dtype
    vector = vector_length(dtype, [each for info in present for each in widest_stride(info)])
    return vector if call.axes["C"] % vector == 0 and call.axes["D"] % vector == 0 else 1


def plan_heads(
    call: Call,
    names: tuple[str, str, str, str],
    source: Path = SOURCE,
    entry: str = "rope",
    more: tuple[tuple[str, Argument], ...] = (),
    backward: bool = False,
    vector: int | None = None,
    more_defines: tuple[tuple[str, int | str], ...] = (),
    more_heads: int = 0,
) -> Plan | Rejected:
    """One launch over the heads of all tokens (heads.h), with the arguments `more` after the shared ones.
    `vector` is `vector_of` the call where the kernel has no more tensors, `more_heads` how many heads of a
    token are neither of q nor of k."""
    axes = call.axes
    weights = tuple(name for name in ("q_weight", "k_weight") if call.has(name))
    vector = vector or vector_of(call, names, weights)
    tokens, heads = axes["Z"] * axes["M"], axes["H"] + axes["G"] + more_heads
    if tokens > MAX_GRID:
        return Rejected(f"{tokens} tokens: their numbers are 32-bit")
    lanes = min(power_of_two(ceil_div(axes["C"], vector)), THREADS)
    filled = tokens * lanes * ceil_div(heads, MOST_HEADS) >= FILLED * call.device.multiprocessors
    most = MOST_HEADS if filled else FEW_HEADS
    slots = min(power_of_two(ceil_div(heads, most)), THREADS // lanes)
    held = min(ceil_div(heads, slots), most)
    kinds = {name: call[name].dtype for name in (names[0], "cos")}
    defines: tuple[tuple[str, int | str], ...] = (
        ("T", dtypes.of(kinds[names[0]]).c),
        ("W", dtypes.of(kinds["cos"]).c),
        ("VEC", vector),
        ("THREADS", THREADS),
        ("LANES", lanes),
        ("SLOTS", slots),
        ("CHUNKS", held),
        ("INTERLEAVED", int(call.params["interleaved"])),
        ("INDEX", 8 * dtypes.itemsize(call["positions"].dtype) if call.has("positions") else 0),
        ("BACKWARD", int(backward)),
        *more_defines,
    )
    own: dict[str, str] = dict(zip(("q", "k", "q_rotated", "k_rotated"), names, strict=True))
    args: list[tuple[str, Argument]] = [
        (name, pointer(call, own.get(name, name))[1])
        for name in ("q", "k", "cos", "sin", "positions", "q_rotated", "k_rotated")
    ]
    for name in ("q", "k"):
        args += [
            (f"{name}_{part}", Scalar("i64", stride))
            for part, stride in zip(("sequence", "token", "head"), call[own[name]].strides, strict=False)
        ]
    args += [(f"{name}_row", Scalar("i64", call[name].strides[0])) for name in ("cos", "sin")]
    strides = call["positions"].strides if call.has("positions") else (0, 0)
    args += [
        ("positions_sequence", Scalar("i64", strides[0])),
        ("positions_token", Scalar("i64", strides[1])),
    ]
    numbers = {"tokens": tokens, "length": axes["M"], "q_heads": axes["H"], "k_heads": axes["G"]}
    numbers |= {"size": axes["D"], "pairs": axes["C"]}
    args += [(name, Scalar("i32", number)) for name, number in numbers.items()]
    grid = ceil_div(tokens, THREADS // lanes // slots)
    return Plan(
        (Launch(NativeKernel(source, entry, THREADS, defines, pdl=True), (grid, 1, 1), (*args, *more)),)
    )

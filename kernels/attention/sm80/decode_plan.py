"""Plans `decode.cu` and `decode_tma.cu`: few queries against a long cache in CUDA. Triton merges chunks."""

from __future__ import annotations

from pathlib import Path

import triton

from portable.backends.cuda.tensor_map import TensorMap
from portable.kernels.attention.cached import (
    Cached,
    Strides,
    contiguous_of,
    numbers,
    page_arguments,
    paged_of,
)
from portable.kernels.attention.plan_arguments import ELEMENTS
from portable.kernels.attention.triton.decode_plan import merge_launch
from portable.plan import Argument, Call, Launch, NativeKernel, Plan, Pointer, Rejected, Scalar

HERE = Path(__file__).parent
ROWS = 16
KEYS = 16  # of a tile
BESIDE = (
    3072  # bytes at most beside the rings: 1024 that bring them to a multiple of that, tops, totals, barriers
)
RESERVED = 1024  # bytes of shared memory that the system takes of every block's


def paged(call: Call) -> Plan | Rejected:
    """attention_paged, by copies of 16 bytes a lane."""
    found = paged_of(call)
    return found if isinstance(found, Rejected) else by_lanes(call, found)


def bulk_paged(call: Call) -> Plan | Rejected:
    """attention_paged, by the copy engine."""
    found = paged_of(call)
    return found if isinstance(found, Rejected) else by_engine(call, found)


def bulk_contiguous(call: Call) -> Plan | Rejected:
    """attention with few queries, by the copy engine."""
    found = contiguous_of(call)
    return found if isinstance(found, Rejected) else by_engine(call, found)


def by_lanes(call: Call, c: Cached) -> Plan | Rejected:
    if c.D % 8 or c.E % 8 or any(call[n].alignment < 16 for n in c.names) or any(s % 8 for s in (*c.k, *c.v)):
        return Rejected("rows of keys or values are not made of aligned pieces of 16 bytes")
    padded = (c.D + 15) // 16 * 16 + (c.E + 15) // 16 * 16
    stage = KEYS * (2 * padded + 32)
    operands: list[tuple[str, Argument]] = []
    for name, tensor, three in (("k", c.names[1], c.k), ("v", c.names[2], c.v)):
        operands.append((name, Pointer(tensor)))
        operands += numbers((f"{name}_page", f"{name}_head", f"{name}_row"), three)
    return launches(call, c, HERE / "decode.cu", stage, operands)


def by_engine(call: Call, c: Cached) -> Plan | Rejected:
    maps: list[tuple[str, Argument]] = []
    for name, tensor, steps in (("map_k", c.names[1], c.k), ("map_v", c.names[2], c.v)):
        made = map_of(call, c, tensor, steps)
        if isinstance(made, Rejected):
            return made
        maps.append((name, made))
    stage = KEYS * 128 * (triton.cdiv(c.D, 64) + triton.cdiv(c.E, 64))
    return launches(call, c, HERE / "decode_tma.cu", stage, maps)


def map_of(call: Call, c: Cached, name: str, steps: Strides) -> TensorMap | Rejected:
    """Boxes of 64 columns of a tile's keys of one head in one page, or in one sequence.

    With a promotion of 256 bytes the copies of both halves of a row ask for all of it: 3 % slower over 64
    sequences, 5 % over one (H200, 2026-11-22).
    """
    info, (page, head, row) = call[name], steps
    columns, sizes = info.shape[-1], (c.G, c.page or c.capacity, info.shape[0] if c.paged else c.Z)
    walked = [step for size, step in zip(sizes, (head, row, page), strict=True) if size > 1]
    if 0 in sizes:
        return Rejected("no keys to copy")
    if columns % 8 or info.alignment < 16 or any(step % 8 for step in walked):
        return Rejected(f"{name} has rows that do not start at multiples of 16 bytes")
    if any(not columns <= step < 2**39 for step in walked):
        return Rejected(f"{name} has strides that a tensor map does not take")
    strides = tuple(
        2 * (s if size > 1 else columns) for size, s in zip(sizes, (head, row, page), strict=True)
    )
    return TensorMap(name, info.dtype, (columns, *sizes), strides, (64, 1, KEYS, 1), promotion=128)


def launches(
    call: Call, c: Cached, source: Path, stage: int, operands: list[tuple[str, Argument]]
) -> Plan | Rejected:
    """A plan whose blocks hold `stage` bytes a warp and stage. `operands`: the kernel's first arguments, keys
    and values. Fewer stages, then fewer warps, where they do not fit."""
    if any(s % 2 for s in c.q) or call["q"].alignment < 4:
        return Rejected("rows of queries are not aligned to 4 bytes")
    if c.page % 16:
        return Rejected(f"pages of {c.page} keys are no multiple of 16")
    config, space = call.config, call.device.shared_memory
    warps, chunk = config["WARPS"], config["CHUNK"]
    tiles = triton.cdiv(c.M * c.share, ROWS)
    while warps > 1 and space - BESIDE < 2 * warps * stage:
        warps //= 2
    stages = min(config["STAGES"], (space - BESIDE) // (warps * stage))
    if stages < 2:
        return Rejected("two tiles do not fit shared memory")
    shared = warps * stages * stage
    resident = max(1, (space + RESERVED) // (shared + BESIDE + RESERVED))
    most = max(1, resident * call.device.multiprocessors // max(1, c.G * tiles))
    slots = max(1, min(most, triton.cdiv(c.capacity, chunk)))
    # A paged cache's slots follow from its table's width, which is not to change a sequence's bits.
    direct = slots == 1 and not c.paged and not call.has("sinks")
    blocks = c.Z * c.G * tiles * slots
    if blocks > 2**31 - 1:
        return Rejected(f"{blocks} blocks are more than one launch takes")
    kernel = NativeKernel(
        source,
        "attention_decode",
        threads=32 * warps,
        defines=(
            ("ELEMENT", ELEMENTS[call["q"].dtype]),
            ("D", c.D),
            ("E", c.E),
            ("PAGE", c.page),
            ("WARPS", warps),
            ("STAGES", stages),
            ("CHUNK", chunk),
            *c.windows,
            ("DIRECT", int(direct)),
        ),
        shared=shared + 1024,
    )
    args = [*operands, ("q", Pointer("q")), *numbers(("q_batch", "q_head", "q_row"), c.q)]
    args += page_arguments(call, c)
    args += [("o", Pointer("o")), *numbers(("o_batch", "o_head", "o_row"), c.o), ("lse", Pointer("lse"))]
    for name, partial in (("parts", "part"), ("tops", "part_m"), ("totals", "part_l")):
        args.append((name, Scalar("i64", 0) if direct else Pointer(partial)))
    sizes = {
        "pages": call[c.names[1]].shape[0], "capacity": c.capacity, "queries": c.M, "share": c.share,
        "tiles": tiles, "heads": c.G, "slots": slots, "most": most, **c.reach,
    }  # fmt: skip
    args += [(name, Scalar("i32", value)) for name, value in sizes.items()]
    args += c.score_factors
    first = Launch(kernel, (blocks, 1, 1), tuple(args))
    if direct:
        return Plan((first,))
    return Plan((first, merge_launch(call, c, slots, most, chunk)), c.parts(slots))

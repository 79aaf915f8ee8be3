"""Plans `decode.hip`: attention_paged, and attention where queries are few, on AMD's matrix units."""

from __future__ import annotations

import math
from pathlib import Path

from portable.kernels.attention.cached import (
    Cached,
    bounded,
    contiguous_of,
    numbers,
    paged_of,
)
from portable.plan import (
    Argument,
    Call,
    Launch,
    NativeKernel,
    Plan,
    Pointer,
    Rejected,
    Scalar,
    Workspace,
)

_LOG2_E = math.log2(math.e)
_HERE = Path(__file__).resolve().parent
_ELEMENTS = {"bfloat16": "bf16", "float16": "f16"}
_COLUMNS = 16  # queries, times heads that share a key head, of a block
_WAVES = 4
_RESIDENT = 2  # blocks that a compute unit holds
_MERGE_THREADS = 256
_MERGE_COLUMNS = 32
_MOST_THREADS = 2**32 - 1  # of a launch along one dimension


def paged(call: Call) -> Plan | Rejected:
    """attention_paged."""
    found = paged_of(call)
    return found if isinstance(found, Rejected) else launches(call, found)


def contiguous(call: Call) -> Plan | Rejected:
    """attention with few queries."""
    found = contiguous_of(call)
    return found if isinstance(found, Rejected) else launches(call, found)


def launches(call: Call, c: Cached) -> Plan | Rejected:
    """The chunks of all sequences, and their merge. How many keys a chunk has follows from a sequence's own
    length and the card, so that a sequence gets the same bits whatever lies beside it in the batch."""
    tiles = -(-c.M * c.share // _COLUMNS)
    chunk = call.config["CHUNK"]
    most = max(1, _RESIDENT * call.device.multiprocessors // (c.G * max(tiles, 1)))
    slots = max(1, min(most, -(-c.capacity // chunk)))
    threads = _WAVES * call.device.warp_size
    blocks, rows = c.Z * c.G * tiles * slots, c.Z * c.M * c.G * c.share
    if max(blocks * threads, rows * _MERGE_THREADS) > _MOST_THREADS:
        return Rejected(f"{blocks} chunks of {rows} queries are more than one launch takes")
    shape = (c.Z, c.G * c.share, c.M, slots)
    spaces = [Workspace("part", (*shape, c.E), "float32")]
    spaces += [Workspace(name, shape, "float32") for name in ("part_m", "part_l")]
    chunks = {"capacity": c.capacity, "queries": c.M, "slots": slots, "most": most}
    chunks["left"] = bounded(c.left, c.capacity + c.M)
    blocks = (c.Z * c.G * tiles * slots, 1, 1), (rows, -(-c.E // _MERGE_COLUMNS), 1)
    first = Launch(_split(call, c, chunk, threads), blocks[0], _split_arguments(call, c, chunks, tiles))
    last = Launch(_merge(call, c, chunk), blocks[1], _merge_arguments(call, c, chunks))
    return Plan((first, last), tuple(spaces))


def _split(call: Call, c: Cached, chunk: int, threads: int) -> NativeKernel:
    right = _right(c)
    defines = (
        ("T", _ELEMENTS[call["q"].dtype]),
        ("D", c.D),
        ("E", c.E),
        ("PAGE", c.page),
        ("CHUNK", chunk),
        ("LEFT", int(c.left is not None)),
        ("RIGHT", int(right is not None and not (right == 0 and c.M == 1))),
        ("CAP", int(c.softcap is not None)),
    )
    return NativeKernel(_HERE / "decode.hip", "attention_decode", threads, defines)


def _split_arguments(
    call: Call, c: Cached, chunks: dict[str, int], tiles: int
) -> tuple[tuple[str, Argument], ...]:
    args: list[tuple[str, Argument]] = []
    for name, tensor, strides in zip("qkv", c.names, (c.q, c.k, c.v), strict=True):
        args.append((name, Pointer(tensor)))
        batch = "batch" if name == "q" else "page"
        args += numbers((f"{name}_{batch}", f"{name}_head", f"{name}_row"), strides)
    if c.paged:
        args.append(("table", Pointer("block_table")))
        args += numbers(("table_row",), call["block_table"].strides[:1])
        args.append(("lens", Pointer("seq_lens")))
    else:
        args += [(name, Scalar("i64", 0)) for name in ("table", "table_row", "lens")]
    args += [(name, Pointer(space)) for name, space in _SPACES]
    sizes = chunks | {
        "pages": call[c.names[1]].shape[0], "share": c.share, "tiles": tiles, "heads": c.G,
        "right": bounded(_right(c), c.capacity + c.M),
    }  # fmt: skip
    args += [(name, Scalar("i32", value)) for name, value in sizes.items()]
    scale, cap = c.scale * _LOG2_E, 0.0
    if c.softcap is not None:
        scale, cap = 2 * _LOG2_E * c.scale / c.softcap, _LOG2_E * c.softcap
    return (*args, ("scale", Scalar("f32", scale)), ("cap", Scalar("f32", cap)))


_SPACES = (("parts", "part"), ("tops", "part_m"), ("totals", "part_l"))


def _right(c: Cached) -> int | None:
    """How many keys behind its own a query sees, None where that hides none."""
    return None if c.right is None or c.right >= c.M else c.right


def _merge(call: Call, c: Cached, chunk: int) -> NativeKernel:
    defines = (
        ("T", _ELEMENTS[call["q"].dtype]),
        ("E", c.E),
        ("CHUNK", chunk),
        ("LEFT", int(c.left is not None)),
        ("SINKS", int(call.has("sinks"))),
    )
    return NativeKernel(_HERE / "decode_merge.cu", "attention_merge", _MERGE_THREADS, defines)


def _merge_arguments(call: Call, c: Cached, chunks: dict[str, int]) -> tuple[tuple[str, Argument], ...]:
    none = Scalar("i64", 0)
    args: list[tuple[str, Argument]] = [("o", Pointer("o")), *numbers(("o_batch", "o_head", "o_row"), c.o)]
    args += [("lse", Pointer("lse")), *((name, Pointer(space)) for name, space in _SPACES)]
    args.append(("sinks", Pointer("sinks") if call.has("sinks") else none))
    args.append(("lens", Pointer("seq_lens") if c.paged else none))
    sizes = chunks | {"heads": c.G * c.share}
    return (*args, *((name, Scalar("i32", value)) for name, value in sizes.items()))

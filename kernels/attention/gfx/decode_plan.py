"""Plans `decode.hip`: attention_paged, and attention where queries are few, on AMD's matrix units."""

from __future__ import annotations

from pathlib import Path

from portable.kernels.attention.cached import Cached, contiguous_of, numbers, page_arguments, paged_of
from portable.kernels.attention.plan_arguments import ELEMENTS
from portable.plan import Argument, Call, Launch, NativeKernel, Plan, Pointer, Rejected, Scalar

_HERE = Path(__file__).resolve().parent
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
    chunks = {"capacity": c.capacity, "queries": c.M, "slots": slots, "most": most}
    chunks["left"] = c.reach["left"]
    blocks = (c.Z * c.G * tiles * slots, 1, 1), (rows, -(-c.E // _MERGE_COLUMNS), 1)
    first = Launch(_split(call, c, chunk, threads), blocks[0], _split_arguments(call, c, chunks, tiles))
    last = Launch(_merge(call, c, chunk), blocks[1], _merge_arguments(call, c, chunks))
    return Plan((first, last), c.parts(slots))


def _split(call: Call, c: Cached, chunk: int, threads: int) -> NativeKernel:
    defines = (
        ("T", ELEMENTS[call["q"].dtype]),
        ("D", c.D),
        ("E", c.E),
        ("PAGE", c.page),
        ("CHUNK", chunk),
        *c.windows,
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
    args += page_arguments(call, c)
    args += [(name, Pointer(space)) for name, space in _SPACES]
    sizes = chunks | {
        "pages": call[c.names[1]].shape[0], "share": c.share, "tiles": tiles, "heads": c.G,
        "right": c.reach["right"],
    }  # fmt: skip
    args += [(name, Scalar("i32", value)) for name, value in sizes.items()]
    return (*args, *c.score_factors)


_SPACES = (("parts", "part"), ("tops", "part_m"), ("totals", "part_l"))


def _merge(call: Call, c: Cached, chunk: int) -> NativeKernel:
    defines = (
        ("T", ELEMENTS[call["q"].dtype]),
        ("E", c.E),
        ("CHUNK", chunk),
        ("LEFT", int(c.left is not None)),
        ("SINKS", int(call.has("sinks"))),
    )
    return NativeKernel(_HERE.parent / "device/decode_combine.cu", "attention_merge", _MERGE_THREADS, defines)


def _merge_arguments(call: Call, c: Cached, chunks: dict[str, int]) -> tuple[tuple[str, Argument], ...]:
    none = Scalar("i64", 0)
    args: list[tuple[str, Argument]] = [("o", Pointer("o")), *numbers(("o_batch", "o_head", "o_row"), c.o)]
    args += [("lse", Pointer("lse")), *((name, Pointer(space)) for name, space in _SPACES)]
    args.append(("sinks", Pointer("sinks") if call.has("sinks") else none))
    args.append(("lens", Pointer("seq_lens") if c.paged else none))
    sizes = chunks | {"heads": c.G * c.share}
    return (*args, *((name, Scalar("i32", value)) for name, value in sizes.items()))

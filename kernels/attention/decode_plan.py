"""Plans `decode.cu`: attention_paged in CUDA. The chunks are merged by the Triton kernel."""

from __future__ import annotations

from pathlib import Path

import triton

from portable.kernels.attention.cached import LOG2_E, Cached, bounded, numbers, paged_of
from portable.kernels.attention.triton_paged import merge_launch
from portable.plan import Argument, Call, Launch, NativeKernel, Plan, Pointer, Rejected, Scalar, Workspace

HERE = Path(__file__).parent
ELEMENTS = {"bfloat16": "bf16", "float16": "f16"}
ROWS = 16


def paged(call: Call) -> Plan | Rejected:
    """attention_paged."""
    found = paged_of(call)
    return found if isinstance(found, Rejected) else launches(call, found)


def launches(call: Call, c: Cached) -> Plan | Rejected:
    config = call.config
    if c.D % 8 or c.E % 8 or any(call[n].alignment < 16 for n in c.names) or any(s % 8 for s in (*c.k, *c.v)):
        return Rejected("rows of keys or values are not made of aligned pieces of 16 bytes")
    if any(s % 2 for s in c.q):
        return Rejected("rows of queries are not aligned to 4 bytes")
    if c.page % 16:
        return Rejected(f"pages of {c.page} keys are no multiple of 16")
    tiles = triton.cdiv(c.M * c.share, ROWS)
    warps, stages, chunk = config["WARPS"], config["STAGES"], config["CHUNK"]
    padded = (c.D + 15) // 16 * 16 + (c.E + 15) // 16 * 16
    stage = 16 * (2 * padded + 32)
    stages = min(stages, (call.device.shared_memory - 128 * warps) // (warps * stage))
    if stages < 2:
        return Rejected(f"two tiles for each of {warps} warps do not fit shared memory")
    shared = warps * stages * stage
    resident = max(1, call.device.shared_memory // (shared + 1024))
    most = max(1, resident * call.device.multiprocessors // (c.G * tiles))
    slots = max(1, min(most, triton.cdiv(c.capacity, chunk)))
    blocks = c.Z * c.G * tiles * slots
    if blocks > 2**31 - 1:
        return Rejected(f"{blocks} blocks are more than one launch takes")
    right = None if c.right is None or c.right >= c.M else c.right
    kernel = NativeKernel(
        HERE / "decode.cu",
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
            ("LEFT", int(c.left is not None)),
            ("RIGHT", int(right is not None and not (right == 0 and c.M == 1))),
            ("CAP", int(c.softcap is not None)),
        ),
        shared=shared,
    )
    q, k, v = c.names
    part, m, l = "part", "part_m", "part_l"  # noqa: E741
    scale, cap = c.scale * LOG2_E, 0.0
    if c.softcap is not None:
        scale, cap = 2 * LOG2_E * c.scale / c.softcap, LOG2_E * c.softcap
    reach = c.capacity + c.M
    args: list[tuple[str, Argument]] = []
    for name, tensor, three in (("q", q, c.q), ("k", k, c.k), ("v", v, c.v)):
        batch = "batch" if name == "q" else "page"
        args.append((name, Pointer(tensor)))
        args += numbers((f"{name}_{batch}", f"{name}_head", f"{name}_row"), three)
    args += [("table", Pointer("block_table")), *numbers(("table_row",), call["block_table"].strides[:1])]
    args += [("lens", Pointer("seq_lens")), ("parts", Pointer(part))]
    args += [("tops", Pointer(m)), ("totals", Pointer(l))]
    sizes = {
        "capacity": c.capacity, "pages": call[k].shape[0], "queries": c.M, "share": c.share, "tiles": tiles,
        "heads": c.G, "slots": slots, "most": most, "left": bounded(c.left, reach),
        "right": bounded(right, reach),
    }  # fmt: skip
    args += [(name, Scalar("i32", value)) for name, value in sizes.items()]
    args += [("scale", Scalar("f32", scale)), ("cap", Scalar("f32", cap))]
    first = Launch(kernel, (blocks, 1, 1), tuple(args))
    shape = (c.Z, c.G * c.share, c.M, slots)
    spaces = [Workspace(part, (*shape, c.E), "float32")]
    spaces += [Workspace(name, shape, "float32") for name in (m, l)]
    return Plan((first, merge_launch(call, c, slots, most, chunk)), tuple(spaces))

"""Plans a few queries against a long cache: attention_paged, and attention where queries are few."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import triton

from portable.dtypes import itemsize
from portable.kernels._lib.triton.rows import MAX_GRID
from portable.kernels.attention.cached import (
    LOG2_E,
    MAX_ROWS,
    Cached,
    bounded,
    contiguous_of,
    numbers,
    paged_of,
)
from portable.kernels.attention.triton.decode import (
    MERGE_COLUMNS,
    MERGE_SPLITS,
    MERGE_WARPS,
    decode_merge,
    decode_split,
)
from portable.plan import Argument, Call, Launch, Plan, Pointer, Rejected, Scalar, TritonKernel, Workspace

PROGRAMS = 2
"""Programs that a multiprocessor holds. A sequence is not cut into more chunks than fill the card once."""


def plan(call: Call) -> Plan | Rejected:
    """attention_paged."""
    found = paged_of(call)
    return found if isinstance(found, Rejected) else launches(call, found)


def fitted(
    config: Mapping[str, Any], block_m: int, block_d: int, block_e: int, unit: int, most: int
) -> dict[str, Any]:
    """The config with fewer stages, then smaller tiles, where what is in flight does not fit."""
    config = dict(config)
    if unit == 1:  # every element has a pointer and a mask
        config["BLOCK_N"], config["num_stages"] = 16, 1

    def needed() -> int:
        tiles = config["BLOCK_N"] * (block_d + block_e) * max(1, config["num_stages"] - 1)
        return 2 * (tiles + block_m * (block_d + config["BLOCK_N"])) + 4096

    while needed() > most and (config["num_stages"] > 2 or config["BLOCK_N"] > 16):
        if config["num_stages"] > 2:
            config["num_stages"] -= 1
        else:
            config["BLOCK_N"] //= 2
    return config


def launches(call: Call, c: Cached) -> Plan | Rejected:
    rows = c.M * c.share
    block_m = max(16, min(MAX_ROWS, triton.next_power_of_2(rows)))
    tiles = triton.cdiv(rows, block_m)
    block_d, block_e = (max(16, triton.next_power_of_2(size)) for size in (c.D, c.E))
    strides = (*c.q, *c.k, *c.v)
    unit = 16 // itemsize(call["q"].dtype)
    if any(call[n].alignment < 16 for n in c.names) or any(s % unit for s in strides):
        unit = 1
    config = fitted(call.config, block_m, block_d, block_e, unit, call.device.shared_memory)
    chunk = config["CHUNK"]
    most = max(1, PROGRAMS * call.device.multiprocessors // max(1, c.G * tiles))
    slots = max(1, min(most, triton.cdiv(c.capacity, chunk)))
    sinks = call.has("sinks")
    direct = slots == 1 and not sinks
    each = c.Z * c.G * tiles
    programs = each * slots
    if max(programs, c.Z * c.M * c.G * c.share) > MAX_GRID:
        return Rejected(f"{programs} programs are more than one launch takes ({MAX_GRID})")

    right = None if c.right is None or c.right >= c.M else c.right
    constants: dict[str, Any] = {
        "D": c.D, "E": c.E, "PAGE": c.page, "UNIT": unit, "LEFT": c.left is not None,
        "RIGHT": right is not None and not (right == 0 and c.M == 1), "CAP": c.softcap is not None,
        "DIRECT": direct, "CHUNK": chunk, "BLOCK_M": block_m,
        "BLOCK_N": config["BLOCK_N"], "BLOCK_D": block_d, "BLOCK_E": block_e,
    }  # fmt: skip
    q, k, v = c.names
    part, m, l = ("o", "lse", "lse") if direct else ("part", "part_m", "part_l")  # noqa: E741
    scale, cap = c.scale * LOG2_E, 0.0
    if c.softcap is not None:
        scale, cap = 2 * LOG2_E * c.scale / c.softcap, LOG2_E * c.softcap
    reach = c.capacity + c.M
    args: list[tuple[str, Argument]] = []
    for name, tensor, three in (("q", q, c.q), ("k", k, c.k), ("v", v, c.v)):
        args.append((f"{name}_ptr", Pointer(tensor, unit > 1)))
        batch = "batch" if name == "q" else "page"
        args += numbers((f"{name}_{batch}", f"{name}_head", f"{name}_row"), three, narrow=True)
    if c.paged:
        args += [
            ("table_ptr", Pointer("block_table")),
            *numbers(("table_row",), call["block_table"].strides[:1]),
        ]
        args.append(("lens_ptr", Pointer("seq_lens")))
    else:
        constants |= {"table_ptr": None, "table_row": None, "lens_ptr": None}
    args.append(("o_ptr", Pointer(part)))
    args += numbers(("o_batch", "o_head", "o_row"), c.o)
    args += [("m_ptr", Pointer(m)), ("l_ptr", Pointer(l))]
    sizes = {
        "capacity": c.capacity, "pages": call[k].shape[0], "M": c.M, "share": c.share, "tiles": tiles,
        "heads": c.G, "slots": slots, "most": most, "left": bounded(c.left, reach),
        "right": bounded(right, reach),
    }  # fmt: skip
    args += [(name, Scalar("i32", value)) for name, value in sizes.items()]
    args += [("scale", Scalar("f32", scale)), ("cap", Scalar("f32", cap))]
    split = kernel_of(decode_split, constants, config)
    first = Launch(split, (programs, 1, 1), tuple(args))
    if direct:
        return Plan((first,))
    shape = (c.Z, c.G * c.share, c.M, slots)
    spaces = (
        Workspace(part, (*shape, c.E), "float32"),
        Workspace(m, shape, "float32"),
        Workspace(l, shape, "float32"),
    )
    return Plan((first, merge_launch(call, c, slots, most, chunk)), spaces)


def merge_launch(call: Call, c: Cached, slots: int, most: int, chunk: int) -> Launch:
    block_e = min(MERGE_COLUMNS, triton.next_power_of_2(c.E))
    constants: dict[str, Any] = {
        "E": c.E, "LEFT": c.left is not None, "CHUNK": chunk,
        "BLOCK_S": max(8, min(MERGE_SPLITS, triton.next_power_of_2(most))), "BLOCK_E": block_e,
    }  # fmt: skip
    args: list[tuple[str, Argument]] = [
        ("o_ptr", Pointer("o")),
        *numbers(("o_batch", "o_head", "o_row"), c.o),
    ]
    args += [("lse_ptr", Pointer("lse")), ("part_ptr", Pointer("part", True))]
    args += [("m_ptr", Pointer("part_m", True)), ("l_ptr", Pointer("part_l", True))]
    for name, tensor, there in (("sinks_ptr", "sinks", call.has("sinks")), ("lens_ptr", "seq_lens", c.paged)):
        if there:
            args.append((name, Pointer(tensor)))
        else:
            constants[name] = None
    sizes = {
        "capacity": c.capacity, "M": c.M, "heads": c.G * c.share, "slots": slots, "most": most,
        "left": bounded(c.left, c.capacity + c.M),
    }  # fmt: skip
    args += [(name, Scalar("i32", value)) for name, value in sizes.items()]
    kernel = TritonKernel(decode_merge, tuple(constants.items()), MERGE_WARPS, 2)
    grid = c.Z * c.M * c.G * c.share, triton.cdiv(c.E, block_e), 1
    return Launch(kernel, grid, tuple(args))


def kernel_of(function: Any, constants: Mapping[str, Any], config: Mapping[str, Any]) -> TritonKernel:
    ours = ("CHUNK", "BLOCK_N", "num_warps", "num_stages")
    options = tuple((name, value) for name, value in config.items() if name not in ours)
    return TritonKernel(
        function, tuple(constants.items()), config["num_warps"], config["num_stages"], options
    )


def plan_decode(call: Call) -> Plan | Rejected:
    """attention with few queries."""
    found = contiguous_of(call)
    return found if isinstance(found, Rejected) else launches(call, found)

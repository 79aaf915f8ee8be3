"""Plans of attention's Triton decode kernels: attention_paged, and attention with few queries."""

from __future__ import annotations

from typing import Any

from portable.kernels.attention.params import DECODE_ROWS, AttentionParams, Heads, require_decode
from portable.kernels.attention.planning import Splits, finished, kv_splits, partial_workspaces, planner
from portable.kernels.attention.triton.decode import (
    COMBINE_COLUMNS,
    COMBINE_SPLITS,
    COMBINE_WARPS,
    decode_combine,
    decode_split,
)
from portable.kernels.attention.triton.operands import Config, Values, i32, launch_of
from portable.layout import ceil_div, next_power_of_2
from portable.plan import Call, Launch, Plan, Pointer, Scalar

DECODE_PROGRAMS = 2
"""Programs that a multiprocessor holds. A sequence is not cut into more splits than fill the GPU once."""


@planner
def decode(call: Call, p: AttentionParams) -> Plan:
    """The splits of all sequences' keys, and their combination where there are more than one."""
    require_decode(call, p)
    rows = p.M * p.qheads_per_kvhead
    block_m = max(16, min(DECODE_ROWS, next_power_of_2(rows)))
    tiles = ceil_div(rows, block_m)
    block_d, block_e = (max(16, next_power_of_2(size)) for size in (p.D, p.E))
    unit = 8 if all(p.heads[role].aligned for role in "qkv") else 1
    config = fit_decode_config(call.config, block_m, block_d, block_e, unit, call.device.shared_memory)
    splits = kv_splits(call, p, tiles, DECODE_PROGRAMS, config["CHUNK"])
    direct = splits.count == 1 and not p.sinks
    values = _values(call, p, splits, config["CHUNK"]) | {
        "UNIT": unit, "DIRECT": direct, "BLOCK_M": block_m, "BLOCK_D": block_d, "BLOCK_E": block_e,
        "tiles": i32(tiles), "pages": i32(call[p.heads["k"].tensor].shape[0]),
    }  # fmt: skip
    for name in "qkv":
        heads = p.heads[name]
        values[f"{name}_ptr"] = Pointer(heads.tensor, unit > 1)
        values |= _strides(name, heads, "batch" if name == "q" else "page", narrow=True)
    if not direct:
        values |= {"o_ptr": Pointer("part"), "m_ptr": Pointer("part_m"), "l_ptr": Pointer("part_l")}
    first = launch_of(decode_split, values, config, p.B * p.G * tiles * splits.count)
    if direct:
        return finished(call.device, [first])
    launches = first, combine_launch(call, p, splits, config["CHUNK"])
    return finished(call.device, launches, partial_workspaces(p, splits.count))


def fit_decode_config(
    config: Config, block_m: int, block_d: int, block_e: int, unit: int, shared_memory: int
) -> dict[str, Any]:
    """The config with fewer stages, then smaller tiles, where what is in flight does not fit."""
    config = dict(config)
    if unit == 1:  # every element has a pointer and a mask
        config["BLOCK_N"], config["num_stages"] = 16, 1

    def needed() -> int:
        tiles = config["BLOCK_N"] * (block_d + block_e) * max(1, config["num_stages"] - 1)
        return 2 * (tiles + block_m * (block_d + config["BLOCK_N"])) + 4096

    while needed() > shared_memory and (config["num_stages"] > 2 or config["BLOCK_N"] > 16):
        if config["num_stages"] > 2:
            config["num_stages"] -= 1
        else:
            config["BLOCK_N"] //= 2
    return config


def combine_launch(call: Call, p: AttentionParams, splits: Splits, chunk: int) -> Launch:
    """decode_combine over the partial results of the splits; sm80's decode launches it too."""
    block_e = min(COMBINE_COLUMNS, next_power_of_2(p.E))
    values = _values(call, p, splits, chunk) | {
        "part_ptr": Pointer("part", True), "m_ptr": Pointer("part_m", True), "l_ptr": Pointer("part_l", True),
        "BLOCK_S": max(8, min(COMBINE_SPLITS, next_power_of_2(splits.most))), "BLOCK_E": block_e,
    }  # fmt: skip
    config = {"num_warps": COMBINE_WARPS, "num_stages": 2}
    return launch_of(decode_combine, values, config, p.B * p.M * p.H, ceil_div(p.E, block_e))


def _values(call: Call, p: AttentionParams, splits: Splits, chunk: int) -> Values:
    """What both kernels take."""
    table = p.heads.get("block_table")
    return {
        "D": p.D, "E": p.E, "PAGE": p.page, **p.flags("LEFT RIGHT SOFTCAP"), "CHUNK": chunk,
        "table_ptr": Pointer("block_table") if table else None,
        "table_row": _stride(table.row) if table else None,
        "lens_ptr": Pointer("seq_lens") if p.page else None,
        "sinks_ptr": Pointer("sinks") if p.sinks else None,
        "o_ptr": Pointer("o"), **_strides("o", p.heads["o"]), "lse_ptr": Pointer("lse"),
        "m_ptr": Pointer("lse"), "l_ptr": Pointer("lse"), "capacity": i32(p.N), "M": i32(p.M),
        "heads": i32(p.H), "kv_heads": i32(p.G), "qheads_per_kvhead": i32(p.qheads_per_kvhead),
        "splits": i32(splits.count), "max_splits": i32(splits.most), "left": i32(p.left or 0),
        "right": i32(p.right or 0), "scale": Scalar("f32", p.score_scale),
        "cap": Scalar("f32", p.softcap_log2),
    }  # fmt: skip


def _strides(name: str, heads: Heads, outer: str = "batch", narrow: bool = False) -> Values:
    names = (f"{name}_{outer}", f"{name}_head", f"{name}_row")
    return {name: _stride(step, narrow) for name, step in zip(names, heads.strides, strict=True)}


def _stride(step: int, narrow: bool = False) -> Scalar:
    """With `narrow` in 32 bits where it fits: a product of 32 bits is one instruction."""
    return Scalar("i32" if narrow and step < 2**31 else "i64", step, step % 16 == 0)

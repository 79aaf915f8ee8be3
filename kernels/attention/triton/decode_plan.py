"""Plans of attention's Triton decode kernels: attention_paged, and attention with few queries."""

from __future__ import annotations

from typing import Any

from portable import dtypes
from portable.kernels.attention import params
from portable.kernels.attention.params import DECODE_ROWS, AttentionParams, Heads
from portable.kernels.attention.triton.decode import (
    COMBINE_COLUMNS,
    COMBINE_SPLITS,
    COMBINE_WARPS,
    decode_combine,
    decode_split,
)
from portable.kernels.attention.triton.plan import Arguments, Config, i32s, too_many_programs
from portable.layout import ceil_div, next_power_of_2
from portable.plan import Call, Launch, Plan, Pointer, Rejected, Scalar, TritonKernel

DECODE_PROGRAMS = 2
"""Programs that a multiprocessor holds. A sequence is not cut into more splits than fill the GPU once."""


def paged(call: Call) -> Plan | Rejected:
    """attention_paged."""
    p = params.paged(call)
    return p if isinstance(p, Rejected) else _decode(call, p)


def decode(call: Call) -> Plan | Rejected:
    """attention with few queries."""
    p = params.decode(call)
    return p if isinstance(p, Rejected) else _decode(call, p)


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


def _decode(call: Call, p: AttentionParams) -> Plan | Rejected:
    q, k, v = (p.heads[role] for role in "qkv")
    rows = p.M * p.qheads_per_kvhead
    block_m = max(16, min(DECODE_ROWS, next_power_of_2(rows)))
    tiles = ceil_div(rows, block_m)
    block_d, block_e = (max(16, next_power_of_2(size)) for size in (p.D, p.E))
    unit = 16 // dtypes.of(p.dtype).itemsize
    if any(each.alignment < 16 or any(step % unit for step in each.strides) for each in (q, k, v)):
        unit = 1
    config = fit_decode_config(call.config, block_m, block_d, block_e, unit, call.device.shared_memory)
    max_splits = max(1, DECODE_PROGRAMS * call.device.multiprocessors // max(1, p.G * tiles))
    splits = max(1, min(max_splits, ceil_div(p.N, config["CHUNK"])))
    direct = splits == 1 and not call.has("sinks")
    programs = p.B * p.G * tiles * splits
    refused = too_many_programs(max(programs, p.B * p.M * p.H), programs)
    if refused is not None:
        return refused
    constants: dict[str, Any] = {
        "D": p.D, "E": p.E, "PAGE": p.page, "UNIT": unit, "LEFT": p.left is not None,
        "RIGHT": p.right is not None, "SOFTCAP": p.softcap is not None, "DIRECT": direct,
        "CHUNK": config["CHUNK"], "BLOCK_M": block_m, "BLOCK_N": config["BLOCK_N"], "BLOCK_D": block_d,
        "BLOCK_E": block_e,
    }  # fmt: skip
    args: Arguments = []
    for name, heads in (("q", q), ("k", k), ("v", v)):
        args.append((f"{name}_ptr", Pointer(heads.tensor, unit > 1)))
        args += _decode_strides(name, heads, "batch" if name == "q" else "page", narrow=True)
    if p.page:
        args += [("table_ptr", Pointer("block_table")), ("table_row", _stride(p.heads["block_table"].row))]
        args.append(("lens_ptr", Pointer("seq_lens")))
    else:
        constants |= {"table_ptr": None, "table_row": None, "lens_ptr": None}
    o, m, l = ("o", "lse", "lse") if direct else ("part", "part_m", "part_l")  # noqa: E741
    args += [("o_ptr", Pointer(o)), *_decode_strides("o", p.heads["o"])]
    args += [("m_ptr", Pointer(m)), ("l_ptr", Pointer(l))]
    args += i32s(
        capacity=p.N, pages=call[k.tensor].shape[0], M=p.M, qheads_per_kvhead=p.qheads_per_kvhead,
        tiles=tiles, kv_heads=p.G, splits=splits, max_splits=max_splits, left=p.left or 0, right=p.right or 0,
    )  # fmt: skip
    args += [("scale", Scalar("f32", p.score_scale)), ("cap", Scalar("f32", p.softcap_log2))]
    options = tuple(
        (name, value)
        for name, value in config.items()
        if name not in ("CHUNK", "BLOCK_N", "num_warps", "num_stages")
    )
    split = TritonKernel(
        decode_split, tuple(constants.items()), config["num_warps"], config["num_stages"], options
    )
    first = Launch(split, (programs, 1, 1), tuple(args))
    if direct:
        return Plan((first,))
    combine = combine_launch(call, p, splits, max_splits, config["CHUNK"])
    return Plan((first, combine), params.partial_workspaces(p, splits))


def combine_launch(call: Call, p: AttentionParams, splits: int, max_splits: int, chunk: int) -> Launch:
    """decode_combine over the partial results of `splits` splits; sm80's decode launches it too."""
    block_e = min(COMBINE_COLUMNS, next_power_of_2(p.E))
    constants: dict[str, Any] = {
        "E": p.E, "LEFT": p.left is not None, "CHUNK": chunk,
        "BLOCK_S": max(8, min(COMBINE_SPLITS, next_power_of_2(max_splits))), "BLOCK_E": block_e,
    }  # fmt: skip
    args: Arguments = [("o_ptr", Pointer("o")), *_decode_strides("o", p.heads["o"])]
    args += [("lse_ptr", Pointer("lse")), ("part_ptr", Pointer("part", True))]
    args += [("m_ptr", Pointer("part_m", True)), ("l_ptr", Pointer("part_l", True))]
    for name, tensor, there in (
        ("sinks_ptr", "sinks", call.has("sinks")),
        ("lens_ptr", "seq_lens", p.page > 0),
    ):
        if there:
            args.append((name, Pointer(tensor)))
        else:
            constants[name] = None
    args += i32s(
        capacity=p.N, M=p.M, heads=p.H, splits=splits, max_splits=max_splits, left=p.left or 0
    )  # fmt: skip
    kernel = TritonKernel(decode_combine, tuple(constants.items()), COMBINE_WARPS, 2)
    return Launch(kernel, (p.B * p.M * p.H, ceil_div(p.E, block_e), 1), tuple(args))


def _decode_strides(name: str, heads: Heads, outer: str = "batch", narrow: bool = False) -> Arguments:
    names = (f"{name}_{outer}", f"{name}_head", f"{name}_row")
    return [(name, _stride(step, narrow)) for name, step in zip(names, heads.strides, strict=True)]


def _stride(step: int, narrow: bool = False) -> Scalar:
    """With `narrow` in 32 bits where it fits: a product of 32 bits is one instruction."""
    return Scalar("i32" if narrow and step < 2**31 else "i64", step, step % 16 == 0)

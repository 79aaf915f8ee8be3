"""AttentionParams: a call of attention, its gradients, varlen or over a KV cache, as planners and kernels
see it.

`dense`, `varlen`, `paged` and `decode` make it of a call. `AttentionParams.struct` is the C struct of the
same name (device/params.h) that CUDA C++ kernels take by value. `python -m
portable.kernels.attention.params` writes that header; a kernel compiled against another layout than that of
FIELDS fails a static_assert on PARAMS_LAYOUT.

Query i of M sees key j of N where -left <= j - i - (N - M) <= right: the last query stands at the last key.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from portable import dtypes
from portable.layout import collapsible
from portable.plan import (
    Argument,
    Call,
    Launch,
    NativeKernel,
    Pointer,
    Rejected,
    Scalar,
    Struct,
    TensorInfo,
    Workspace,
)

LOG2_E = math.log2(math.e)
ELEMENTS = {name: dtypes.of(name).c for name in ("bfloat16", "float16")}
"""The element types of the matrix units, as the preludes name them."""
UNBOUNDED = 2**29
"""A window's side that hides no key, as 32-bit sums hold it."""
MAX_TOKENS = 2**28
"""Of varlen and of gradients: sums of positions and window sides, at most 2 * (M + N), are 32 bits."""
MAX_BLOCKS = 2**31 - 1
"""Blocks of one launch."""
DECODE_ROWS = 64
"""Most rows, queries times the heads that share a key head, of a call that decode kernels take."""
_MAX_INT = 2**31 - 1
_MAX_KEYS = 2**30
_MAX_FACTOR = 2.0**100  # a score times more may leave float32
_TILES = Path(__file__).resolve().parent / "device/varlen_tiles.cu"

Arguments = tuple[tuple[str, Argument], ...]


@dataclass(frozen=True, slots=True)
class Heads:
    """A tensor in memory: element (b, h, i, d) lies at `b * batch + h * head + i * row + d` elements from
    its base. A stride of 0 repeats; of a paged cache `batch` is from page to page."""

    tensor: str
    batch: int
    head: int
    row: int
    alignment: int

    @property
    def strides(self) -> tuple[int, int, int]:
        return self.batch, self.head, self.row


@dataclass(frozen=True, slots=True)
class AttentionParams:
    """One call: B batches (sequences, of a paged cache) of H query and G key heads, M queries and N keys
    (varlen: all tokens; paged: the most keys of a sequence), head sizes D of q and k and E of v. `left` and
    `right` of None bound nothing; `causal` is folded into `right`. `offsets` is the length of cu_seqlens, 0
    unless varlen; `page` the keys of a page, 0 unless paged. `heads` are tensors by role: q, k, v, o, lse,
    bias, do, dlse and the gradients."""

    dtype: str
    B: int
    H: int
    G: int
    M: int
    N: int
    D: int
    E: int
    scale: float
    softcap: float | None
    left: int | None
    right: int | None
    heads: Mapping[str, Heads]
    offsets: int = 0
    page: int = 0

    @property
    def qheads_per_kvhead(self) -> int:
        return self.H // self.G

    @property
    def is_varlen(self) -> bool:
        return self.offsets > 0

    @property
    def score_scale(self) -> float:
        """What q @ k.T is multiplied by: for scores in base 2, or with a softcap for the exponent of its
        tanh, tanh(x) = 1 - 2 / (1 + exp2(2 * x * log2(e)))."""
        return self.scale * LOG2_E * (1 if self.softcap is None else 2 / self.softcap)

    @property
    def softcap_log2(self) -> float:
        """What the tanh is multiplied by, for scores in base 2; 0 without a softcap."""
        return 0.0 if self.softcap is None else self.softcap * LOG2_E

    def has(self, name: str) -> bool:
        return name in self.heads

    def rows_of(self, name: str) -> tuple[int, int, int, int]:
        """Columns, rows, heads and batches of a tensor."""
        columns = self.E if name in ("v", "o", "do", "dv") else self.D
        if name in ("k", "v", "dk", "dv"):
            return columns, self.N, self.G, self.B
        return self.N if name in ("bias", "dbias") else columns, self.M, self.H, self.B

    def copy_bytes(self, *names: str) -> int:
        """How wide rows of these tensors may be copied: 16 bytes where all are aligned to that, else an
        element."""
        for name in names:
            heads, (_, rows, count, batches) = self.heads[name], self.rows_of(name)
            steps = zip((batches, count, rows), heads.strides, strict=True)
            if heads.alignment < 16 or any(size > 1 and step % 8 for size, step in steps):
                return 2
        return 16

    def tma_unsupported(self, name: str) -> Rejected | None:
        """Why no TMA descriptor covers a tensor, if none does."""
        heads, (columns, *sizes) = self.heads[name], self.rows_of(name)
        strides = (heads.row, heads.head, heads.batch)
        steps = [step for size, step in zip(sizes, strides, strict=True) if size > 1]
        if heads.alignment < 16 or any(step % 8 for step in steps):
            return Rejected(f"{heads.tensor} has rows that do not start at multiples of 16 bytes")
        if sizes[0] > 1 and heads.row < columns:
            return Rejected(f"{heads.tensor} has rows that overlap")
        if any(step < 0 or step >= 2**39 for step in steps):
            return Rejected(f"{heads.tensor} has strides that a tensor map does not take")
        return None

    def unsupported(self, max_rows: int) -> Rejected | None:
        """Why no kernel of the matrix units takes the call, if none does."""
        if self.dtype not in ELEMENTS:
            return Rejected(f"{self.dtype} has no matrix instruction here; bfloat16 and float16 have")
        if max(self.M, self.N, self.offsets) > max_rows:
            return Rejected(f"more than {max_rows} queries, keys or offsets")
        if self.softcap is not None and not self.softcap > 0:
            return Rejected(f"a softcap of {self.softcap} is not positive")
        if not all(abs(each) < _MAX_FACTOR for each in (self.scale, self.score_scale, self.softcap_log2)):
            return Rejected(f"a scale of {self.scale} or its cap leaves float32")
        return None

    def struct(self, *pointers: str, **others: Argument) -> tuple[str, Argument]:
        """The argument `params` of a kernel: all sizes and strides, and of the pointers those that it reads
        or writes. `others` gives pointers whose field and tensor are named differently."""
        values: dict[str, Pointer | Scalar] = {}
        for name in pointers:
            role = "do" if name == "dout" else name
            found = self.heads.get(role)
            if found is not None or name in WORKSPACES or name in _INPUTS:
                values[name] = Pointer(found.tensor if found else WORKSPACES.get(name, name), True)
        values |= others  # type: ignore[arg-type]
        ints = {
            "heads": self.H, "kv_heads": self.G, "qheads_per_kvhead": self.qheads_per_kvhead,
            "seqlen_q": self.M, "seqlen_k": self.N, "head_dim": self.D, "head_dim_v": self.E,
            "left": UNBOUNDED if self.left is None else self.left,
            "right": UNBOUNDED if self.right is None else self.right, "offsets": self.offsets,
        }  # fmt: skip
        floats = {"scale": self.scale, "score_scale": self.score_scale, "softcap_log2": self.softcap_log2}
        absent = Heads("", 0, 0, 0, 16)
        for name, kind, _ in FIELDS:
            if name in values:
                continue
            if kind == "i64" and "_" in name:
                tensor, side = name.rsplit("_", 1)
                heads = self.heads.get("do" if tensor == "dout" else tensor, absent)
                values[name] = Scalar("i64", getattr(heads, side))
            elif kind == "pointer":
                values[name] = Scalar("i64", 0)
            else:
                values[name] = Scalar(kind, ints[name] if kind == "i32" else floats[name])  # type: ignore[arg-type]
        return "params", Struct(tuple((name, values[name]) for name, _, _ in FIELDS))


# --- the C struct ----------------------------------------------------------------------------------------

_STRIDED = ("q", "k", "v", "o", "lse", "bias", "dout", "dlse", "dq", "dk", "dv", "dbias")
_INPUTS = ("sinks", "block_table", "seq_lens")
WORKSPACES = {
    "stats": "stats", "bounds": "bounds", "tile_list": "tiles", "tile_counts": "counts", "o_partial": "part",
    "max_partial": "part_m", "sum_partial": "part_l",
}  # fmt: skip
"""Fields that point to workspaces, which may have another name in a plan."""
_C_TYPES = {
    "q": "const void*", "k": "const void*", "v": "const void*", "bias": "const void*", "o": "void*",
    "lse": "float*", "sinks": "const float*", "dout": "const void*", "dlse": "const float*", "dq": "void*",
    "dk": "void*", "dv": "void*", "dbias": "void*", "block_table": "const int*", "seq_lens": "const int*",
    "stats": "float*", "bounds": "const int*", "tile_list": "const int*", "tile_counts": "uint32_t*",
    "o_partial": "float*", "max_partial": "float*", "sum_partial": "float*",
}  # fmt: skip
_INTS = (
    "heads", "kv_heads", "qheads_per_kvhead", "seqlen_q", "seqlen_k", "head_dim", "head_dim_v", "left",
    "right", "offsets",
)  # fmt: skip
FIELDS: tuple[tuple[str, str, str], ...] = (
    *((name, "pointer", kind) for name, kind in _C_TYPES.items()),
    *((f"{name}_{side}", "i64", "int64_t") for name in _STRIDED for side in ("batch", "head", "row")),
    ("block_table_row", "i64", "int64_t"),
    *((name, "i32", "int") for name in _INTS),
    *((name, "f32", "float") for name in ("scale", "score_scale", "softcap_log2")),
)
"""Name, kind of argument and C type of each field, in order."""
_SIZES = {"pointer": 8, "i64": 8, "i32": 4, "f32": 4}


def _offsets() -> tuple[tuple[str, str, int], ...]:
    found, offset = [], 0
    for name, kind, c_type in FIELDS:
        offset += -offset % _SIZES[kind]
        found.append((name, c_type, offset))
        offset += _SIZES[kind]
    return tuple(found)


LAYOUT = zlib.crc32(repr(_offsets()).encode()) & 0x7FFFFFFF
"""What PARAMS_LAYOUT is where kernels are compiled; device/params.h holds the same number."""
DEFINES: tuple[tuple[str, int | str], ...] = (("PARAMS_LAYOUT", LAYOUT),)

_HEADER = """\
// The C struct of params.py's AttentionParams, which CUDA C++ kernels take by value. Written by
// `python -m portable.kernels.attention.params`: change FIELDS there.
//
// Strides count elements: element (b, h, i, d) of a tensor lies at b * batch + h * head + i * row + d. A
// pointer that a launch does not use is null. Query i sees key j where
// -left <= j - i - (seqlen_k - seqlen_q) <= right; 2^29 bounds nothing. `score_scale` is scale * log2(e), or
// with a softcap 2 / softcap times that, and `softcap_log2` is softcap * log2(e).
//
// Defines: PARAMS_LAYOUT, the layout that the launch packs.
#pragma once

#include "prelude.h"

#ifdef __CUDACC_RTC__  // NVRTC has no offsetof
#define PARAMS_OFFSET(field) __INTADDR__(&static_cast<AttentionParams*>(0)->field)
#else
#define PARAMS_OFFSET(field) __builtin_offsetof(AttentionParams, field)
#endif

struct AttentionParams {
%s
};

static_assert(PARAMS_LAYOUT == %d, "run python -m portable.kernels.attention.params");
%s
"""


def header() -> str:
    """The text of device/params.h."""
    fields = "\n".join(f"    {c_type} {name};" for name, _, c_type in FIELDS)
    checks = "\n".join(
        f'static_assert(PARAMS_OFFSET({name}) == {offset}, "{name}");' for name, _, offset in _offsets()
    )
    return _HEADER % (fields, LAYOUT, checks)


# --- from a call -----------------------------------------------------------------------------------------


def dense(call: Call) -> AttentionParams | Rejected:
    """Of attention, attention_backward or attention_dbias; Rejected where leading dimensions have no single
    stride, or a last dimension is not contiguous."""
    heads: dict[str, Heads] = {}
    for name, info in call.tensors.items():
        if info is None or name == "sinks":
            continue
        rank = 2 if name in ("lse", "dlse") else 3
        batch = collapsible(info.shape[:-rank], info.strides[:-rank])
        if batch is None:
            return Rejected(f"the leading dimensions of {name} cannot be walked with one stride")
        if rank == 2:
            head, row = info.strides[-2:]
            heads[name] = Heads(name, batch, head, row, info.alignment)
        elif (reason := _no_row(name, info)) is not None:
            return reason
        else:
            head, row = info.strides[-3:-1]
            heads[name] = Heads(name, batch, head, row, info.alignment)
    a = call.axes
    left, right = _bounds(call, a["M"], a["N"])
    return _params(call, heads, B=math.prod(call["q"].shape[:-3]), M=a["M"], N=a["N"], left=left, right=right)


def varlen(call: Call, max_tokens: int = _MAX_INT) -> AttentionParams | Rejected:
    """Of attention_varlen or its gradient: one batch of all tokens."""
    a = call.axes
    most = 2 * (a["M"] + a["N"])
    if most + a["C"] + 1024 > _MAX_INT:
        return Rejected("token numbers of 32 bits do not hold this size")
    if max(a["M"], a["N"], a["C"]) > max_tokens:
        return Rejected(f"more than {max_tokens} tokens or sequences")
    heads = {}
    for name, info in call.tensors.items():
        if info is not None and len(info.shape) == 3:  # tokens, heads, columns
            heads[name] = Heads(name, 0, info.strides[1], info.strides[0], info.alignment)
        elif info is not None and len(info.shape) == 2:  # heads, tokens
            heads[name] = Heads(name, 0, info.strides[0], info.strides[1], info.alignment)
    left, right = _bounds(call, a["M"], a["N"])
    return _params(call, heads, B=1, M=a["M"], N=a["N"], left=left, right=right, offsets=a["C"])


def paged(call: Call) -> AttentionParams | Rejected:
    """Of attention_paged: q [B, M, H, D], caches [pages, page, G, D] and [pages, page, G, E], block_table
    [B, W]."""
    a, heads = call.axes, {}
    for role, name in (("q", "q"), ("k", "k_cache"), ("v", "v_cache"), ("o", "o")):
        info = call[name]
        heads[role] = Heads(name, info.strides[0], info.strides[2], info.strides[1], info.alignment)
    batch, head, row = call["lse"].strides
    heads["lse"] = Heads("lse", batch, head, row, call["lse"].alignment)
    table = call["block_table"]
    heads["block_table"] = Heads("block_table", 0, 0, table.strides[0], table.alignment)
    N = a["W"] * a["S"] if a["P"] else 0
    left, _ = _bounds(call, a["M"], N)
    found = _params(
        call, heads, B=a["Z"], M=a["M"], N=N, left=left, right=0 if a["M"] > 1 else None, page=a["S"]
    )  # fmt: skip
    return _cached(call, found)


def decode(call: Call) -> AttentionParams | Rejected:
    """Of attention with few queries against many keys."""
    found = dense(call)
    if isinstance(found, Rejected):
        return found
    if found.M * found.qheads_per_kvhead > DECODE_ROWS:
        return Rejected(f"more than {DECODE_ROWS} queries share a key head")
    return Rejected("it has no bias") if call.has("bias") else _cached(call, found)


def _cached(call: Call, p: AttentionParams) -> AttentionParams | Rejected:
    for role in ("q", "k", "v"):
        if (reason := _no_row(p.heads[role].tensor, call[p.heads[role].tensor])) is not None:
            return reason
    return Rejected(f"{p.N} keys: key numbers are 32-bit") if p.N + p.M > _MAX_KEYS else p


def _no_row(name: str, info: TensorInfo) -> Rejected | None:
    if info.shape[-1] > 1 and info.strides[-1] != 1:
        return Rejected(f"{name}'s last dimension has a stride of {info.strides[-1]}, not 1")
    return None


def _bounds(call: Call, M: int, N: int) -> tuple[int | None, int | None]:
    """The window's sides, `causal` among them; None where a side hides no key."""
    left, right = call.params["window_left"], call.params.get("window_right")
    if call.params.get("causal"):
        right = 0 if right is None else min(right, 0)
    return None if left is None or left >= N - 1 else left, None if right is None or right >= M - 1 else right


def _params(
    call: Call, heads: dict[str, Heads], *, B: int, M: int, N: int, left: int | None, right: int | None,
    offsets: int = 0, page: int = 0,
) -> AttentionParams:  # fmt: skip
    a, scale = call.axes, call.params["scale"]
    return AttentionParams(
        call["q"].dtype, B, a["H"], a["G"], M, N, a["D"], a["E"], a["D"] ** -0.5 if scale is None else scale,
        call.params["softcap"], left, right, heads, offsets, page,
    )  # fmt: skip


# --- varlen: the table of tiles --------------------------------------------------------------------------


def max_tiles(tokens: int, offsets: int, tile: int) -> int:
    """The most tiles that sequences can have, however the offsets cut the tokens."""
    return tokens // tile + offsets + 1


def tile_table(
    p: AttentionParams, tile: int, *, of_keys: bool, kv_heads_per_band: int = 1, backwards: bool = False
) -> Launch:
    """The launch of varlen_tiles.cu. A window bounds how many tokens of the other kind a tile meets."""
    reach = _MAX_INT
    if p.left is not None and p.right is not None:
        reach = max(0, min(reach, p.left + p.right + tile))
    numbers = {
        "count": p.offsets, "queries": p.M, "keys": p.N, "tile": tile, "of_keys": int(of_keys),
        "reach": reach, "together": kv_heads_per_band, "backwards": int(backwards),
    }  # fmt: skip
    names = ("cu_seqlens_q", "cu_seqlens_k", "bounds", "ranks", "firsts", "tiles", "counts")
    args: list[tuple[str, Argument]] = [(name, Pointer(name)) for name in names]
    args += [(name, Scalar("i32", value)) for name, value in numbers.items()]
    return Launch(NativeKernel(_TILES, "attention_ragged_tiles", 256), (1, 1, 1), tuple(args))


def tile_workspaces(p: AttentionParams, tokens: int, tile: int) -> tuple[Workspace, ...]:
    """What `tile_table` fills, for tiles of `tile` of the tokens."""
    sequences = p.offsets + 1
    return (
        Workspace("bounds", (sequences, 4), "int32"),
        Workspace("ranks", (sequences,), "int32"),
        Workspace("firsts", (sequences + 1,), "int32"),
        Workspace("tiles", (max_tiles(tokens, p.offsets, tile), 2), "int32"),
        Workspace("counts", (2,), "int32"),
    )


def partial_workspaces(p: AttentionParams, splits: int) -> tuple[Workspace, ...]:
    """acc_o, row_max and row_sum of every query's `splits` splits, until they are combined."""
    shape = (p.B, p.H, p.M, splits)
    sizes = {"part": (*shape, p.E), "part_m": shape, "part_l": shape}
    return tuple(Workspace(name, each, "float32") for name, each in sizes.items())


def ints(**values: int) -> Arguments:
    return tuple((name, Scalar("i32", value)) for name, value in values.items())


if __name__ == "__main__":
    (Path(__file__).resolve().parent / "device/params.h").write_text(header(), encoding="utf-8")

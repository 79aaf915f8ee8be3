"""AttentionParams: a call of attention, its gradients, varlen or over a KV cache, as planners and kernels
see it.

`of_call` makes it. `AttentionParams.struct` is the C struct of the same name (device/params.h) that CUDA and
HIP C++ kernels take by value. `python -m portable.kernels.attention.params` writes that header; a kernel
compiled against another layout than that of FIELDS fails a static_assert on PARAMS_LAYOUT.

Query i of M sees key j of N where -left <= j - i - (N - M) <= right: the last query stands at the last key.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from portable import dtypes
from portable.layout import ceil_div, collapsible
from portable.plan import Argument, Call, Pointer, Scalar, Struct, TensorInfo, TensorMap

LOG2_E = math.log2(math.e)
ELEMENTS = {name: dtypes.of(name).c for name in ("bfloat16", "float16")}
"""The element types of the matrix units, as the preludes name them."""
UNBOUNDED = 2**29
"""A window's side that hides no key, as 32-bit sums hold it."""
MAX_TOKENS = 2**28
"""Of varlen and of gradients: sums of positions and window sides, at most 2 * (M + N), are 32 bits."""
DECODE_ROWS = 64
"""Most rows, queries times the heads that share a key head, of a call that decode kernels take."""
_FAR = 2**30
_MAX_KEYS = 2**30
_MAX_FACTOR = 2.0**100  # a score times more may leave float32

Arguments = tuple[tuple[str, Argument], ...]


class Unsupported(Exception):
    """Why a planner does not take a call."""


@dataclass(frozen=True, slots=True)
class Heads:
    """A tensor in memory: element (b, h, i, d) lies at `b * batch + h * head + i * row + d` elements from
    its base. A stride of 0 repeats; of a paged cache `batch` is from page to page. `itemsize`: bytes of an
    element, 2 of the matrix units' operands, 1 of a cache in 8 bits."""

    tensor: str
    batch: int
    head: int
    row: int
    alignment: int
    itemsize: int = 2

    @property
    def strides(self) -> tuple[int, int, int]:
        return self.batch, self.head, self.row

    @property
    def aligned(self) -> bool:
        """Whether every row starts at a multiple of 16 bytes."""
        return self.alignment >= 16 and all(step * self.itemsize % 16 == 0 for step in self.strides)


@dataclass(frozen=True, slots=True)
class AttentionParams:
    """One call: B batches (sequences, of a paged cache) of H query and G key heads, M queries and N keys
    (varlen: all tokens; paged: the most keys of a sequence), head sizes D of q and k and E of v. `left` and
    `right` of None bound nothing; `causal` is folded into `right`. `offsets` is the length of cu_seqlens, 0
    unless varlen; `page` the keys of a page and `pages` their number, 0 unless paged. `heads` are tensors by
    role: q, k, v, o, lse, bias, do, dlse and the gradients. `dtype` is that of o; `codes` that of operands in
    8 bits, a cache or q, k and v, "" where there are none; `scales` are theirs, each with the steps from key
    head to key head and, unless paged, from batch to batch."""

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
    pages: int = 0
    sinks: bool = False
    codes: str = ""
    scales: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

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

    @property
    def low(self) -> int:
        """Query i sees key j where low <= j - i <= high, between -2^30 and 2^30. Kernels of varlen add each
        sequence's N - M."""
        return -_FAR if self.left is None else max(self._diagonal - self.left, -_FAR)

    @property
    def high(self) -> int:
        return _FAR if self.right is None else min(self._diagonal + self.right, _FAR)

    @property
    def _diagonal(self) -> int:
        return 0 if self.is_varlen else self.N - self.M

    def padded(self, unit: int) -> tuple[int, int]:
        """The head sizes as kernels hold them: multiples of `unit`."""
        return ceil_div(self.D, unit) * unit, ceil_div(self.E, unit) * unit

    def has(self, name: str) -> bool:
        return name in self.heads

    def flags(self, names: str) -> dict[str, bool]:
        """Defines of kernels: whether the call has these, of LEFT, RIGHT, SOFTCAP, SINKS, VARLEN, and tensors
        that may be absent."""
        known = {
            "LEFT": self.left is not None, "RIGHT": self.right is not None,
            "SOFTCAP": self.softcap is not None, "SINKS": self.sinks, "VARLEN": self.is_varlen,
        }  # fmt: skip
        return {name: known[name] if name in known else self.has(name.lower()) for name in names.split()}

    def columns(self, name: str) -> int:
        if name in ("bias", "dbias"):
            return self.N
        return self.E if name in ("v", "o", "do", "dv") else self.D

    def dims(self, name: str) -> tuple[tuple[int, int], ...]:
        """Size and stride of a tensor's rows, heads and batches, of a paged cache pages."""
        sizes = self.M, self.H, self.B
        if name in ("k", "v", "dk", "dv"):
            sizes = (self.page, self.G, self.pages) if self.page else (self.N, self.G, self.B)
        return tuple(zip(sizes, reversed(self.heads[name].strides), strict=True))

    def _rows_of_16_bytes(self, name: str) -> bool:
        """Whether every row that there is starts at a multiple of 16 bytes."""
        own, steps = self.heads[name], (step for size, step in self.dims(name) if size > 1)
        return own.alignment >= 16 and all(step * own.itemsize % 16 == 0 for step in steps)

    def copy_bytes(self, *names: str) -> int:
        """How wide rows of these tensors may be copied: 16 bytes where all are aligned to that, else an
        element."""
        return 16 if all(self._rows_of_16_bytes(name) for name in names) else 2

    def tensor_map(
        self, name: str, dims: Sequence[tuple[int, int]], box: Sequence[int], promotion: int = 256
    ) -> TensorMap:
        """The map of a tensor's columns and then `dims`, sizes and strides, in boxes of 128 bytes by `box`.
        A dimension that does not step has size 1, and one of size 1 a stride that the driver takes."""
        columns, sizes = self.columns(name), [size if step else 1 for size, step in dims]
        steps = [step if size > 1 else columns for size, (_, step) in zip(sizes, dims, strict=True)]
        own = self.heads[name]
        strides = tuple(own.itemsize * step for step in steps)
        dtype = self.codes if own.itemsize == 1 else self.dtype
        return TensorMap(
            own.tensor, dtype, (columns, *sizes), strides, (128 // own.itemsize, *box), promotion
        )

    def require_tma(self, names: str, repeats: bool = False) -> None:
        """Unsupported where no tensor map covers one of the tensors. `repeats`: heads and batches may have a
        stride of 0."""
        for name in names.split():
            tensor, columns, dims = self.heads[name].tensor, self.columns(name), self.dims(name)
            steps = [step for size, step in dims if size > 1]
            if columns * self.heads[name].itemsize % 16 or not self._rows_of_16_bytes(name):
                raise Unsupported(f"{tensor} has rows that do not start at multiples of 16 bytes")
            if dims[0][0] > 1 and dims[0][1] < columns:
                raise Unsupported(f"{tensor} has rows that overlap")
            if any(step < 0 or step >= 2**39 for step in steps):
                raise Unsupported(f"{tensor} has strides that a tensor map does not take")
            if 0 in steps and not repeats:
                raise Unsupported(f"{tensor} has a stride of 0")

    @property
    def scale_arguments(self) -> Arguments:
        """What kernels of operands in 8 bits take beside the struct: their scales and the steps of these."""
        found: list[tuple[str, Argument]] = []
        for name, steps in self.scales.items():
            found.append((name, Pointer(name)))
            found += [(f"{name}_{side}", Scalar("i64", step)) for side, step in steps.items()]
        return tuple(found)

    def require(self, max_rows: int) -> None:
        """Unsupported where no kernel of the matrix units takes the call."""
        if self.dtype not in ELEMENTS:
            raise Unsupported(f"{self.dtype} has no matrix instruction here; bfloat16 and float16 have")
        if max(self.M, self.N, self.offsets) > max_rows:
            raise Unsupported(f"more than {max_rows} queries, keys or offsets")
        if self.softcap is not None and not self.softcap > 0:
            raise Unsupported(f"a softcap of {self.softcap} is not positive")
        if not all(abs(each) < _MAX_FACTOR for each in (self.scale, self.score_scale, self.softcap_log2)):
            raise Unsupported(f"a scale of {self.scale} or its cap leaves float32")

    def struct(self, pointers: str) -> tuple[str, Argument]:
        """The argument `params` of a kernel: all sizes and strides, and of the pointers those that it reads
        or writes; null, or strides of 0, where the call has none."""
        unused = _C_TYPES.keys() - set(pointers.split())
        values = ((name, _NULL if name in unused else value) for name, value in _values_of(self))
        return "params", Struct(tuple(values))


# --- the C struct ----------------------------------------------------------------------------------------

_NULL = Scalar("i64", 0)
_ABSENT = Heads("", 0, 0, 0, 16)
_ROLES = {"dout": "do"}
"""A tensor by its field, where its name is a keyword of C++."""
_STRIDED = ("q", "k", "v", "o", "lse", "bias", "dout", "dlse", "dq", "dk", "dv", "dbias")
TABLES = "bounds tile_list tile_counts"
"""The workspaces that varlen's kernels read: the table of tiles."""
PARTIALS = "o_partial max_partial sum_partial"
"""The workspaces of acc_o, row_max and row_sum of every query's splits, until they are combined."""
WORKSPACES = {"stats", *TABLES.split(), *PARTIALS.split()}
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
_FLOATS = ("scale", "score_scale", "softcap_log2")
FIELDS: tuple[tuple[str, str, str], ...] = (
    *((name, "pointer", kind) for name, kind in _C_TYPES.items()),
    *((f"{name}_{side}", "i64", "int64_t") for name in _STRIDED for side in ("batch", "head", "row")),
    ("block_table_row", "i64", "int64_t"),
    *((name, "i32", "int") for name in _INTS),
    *((name, "f32", "float") for name in _FLOATS),
)
"""Name, kind of argument and C type of each field, in order."""


def _values_of(p: AttentionParams) -> Iterator[tuple[str, Pointer | Scalar]]:
    """Every field, in order."""
    absent = () if p.is_varlen else TABLES.split()
    given = {"sinks"} if p.sinks else set()
    given |= {"block_table", "seq_lens"} if p.page else set()
    for name in _C_TYPES:
        heads = p.heads.get(_ROLES.get(name, name))
        if name in WORKSPACES:
            yield name, _NULL if name in absent else Pointer(name, True)
        elif heads is not None or name in given:
            yield name, Pointer(heads.tensor if heads else name)
        else:
            yield name, _NULL
    for name in _STRIDED:
        heads = p.heads.get(_ROLES.get(name, name), _ABSENT)
        for side, stride in zip(("batch", "head", "row"), heads.strides, strict=True):
            yield f"{name}_{side}", Scalar("i64", stride)
    yield "block_table_row", Scalar("i64", p.heads.get("block_table", _ABSENT).row)
    sides = (UNBOUNDED if side is None else side for side in (p.left, p.right))
    ints = p.H, p.G, p.qheads_per_kvhead, p.M, p.N, p.D, p.E, *sides, p.offsets
    yield from ((name, Scalar("i32", n)) for name, n in zip(_INTS, ints, strict=True))
    for name, value in zip(_FLOATS, (p.scale, p.score_scale, p.softcap_log2), strict=True):
        yield name, Scalar("f32", value)


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

_HEADER = """\
// The C struct of params.py's AttentionParams, which CUDA and HIP C++ kernels take by value.
// Written by `python -m portable.kernels.attention.params`: change FIELDS there.
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


def of_call(call: Call) -> AttentionParams:
    """Of a call of any op of this folder. Unsupported where the struct cannot describe it."""
    if call.has("block_table"):
        return _paged(call)
    return _varlen(call) if call.has("cu_seqlens_q") else _dense(call)


def _dense(call: Call) -> AttentionParams:
    """Unsupported where leading dimensions have no single stride, or a last dimension is not contiguous."""
    heads: dict[str, Heads] = {}
    scales: dict[str, dict[str, int]] = {}
    codes = call["q"].dtype if call.has("q_scale") else ""
    for name, info in call.tensors.items():
        if info is None or name == "sinks":
            continue
        rank = 1 if name.endswith("_scale") else 2 if name in ("lse", "dlse") else 3
        batch = collapsible(info.shape[:-rank], info.strides[:-rank])
        if batch is None:
            raise Unsupported(f"the leading dimensions of {name} cannot be walked with one stride")
        if rank == 1:
            scales[name] = {"batch": batch, "head": info.strides[-1]}
            continue
        if rank == 3:
            _require_contiguous_rows(name, info)
        head, row = info.strides[len(info.shape) - rank :][:2]
        heads[name] = Heads(name, batch, head, row, info.alignment, 1 if codes and name in "qkv" else 2)
    a = call.axes
    own = {"codes": codes, "scales": scales} if codes else {}
    return _params(call, heads, B=math.prod(call["q"].shape[:-3]), M=a["M"], N=a["N"], **own)


def _varlen(call: Call) -> AttentionParams:
    """One batch of all tokens."""
    a = call.axes
    if max(a["M"], a["N"], a["C"]) > MAX_TOKENS:
        raise Unsupported(f"more than {MAX_TOKENS} tokens or sequences")
    heads = {}
    for name, info in call.tensors.items():
        if info is not None and len(info.shape) == 3:  # tokens, heads, columns
            heads[name] = Heads(name, 0, info.strides[1], info.strides[0], info.alignment)
        elif info is not None and len(info.shape) == 2:  # heads, tokens
            heads[name] = Heads(name, 0, info.strides[0], info.strides[1], info.alignment)
    return _params(call, heads, B=1, M=a["M"], N=a["N"], offsets=a["C"])


def _paged(call: Call) -> AttentionParams:
    """q [B, M, H, D], caches [pages, page, G, D] and [pages, page, G, E], block_table [B, W]."""
    a, heads, scales = call.axes, {}, {}
    cache = call["k_cache"].dtype if call.has("k_scale") else ""
    sizes = dict.fromkeys("kv", 1) if cache else {}
    for role, name in (("q", "q"), ("k", "k_cache"), ("v", "v_cache"), ("o", "o")):
        info = call[name]
        heads[role] = Heads(
            name, info.strides[0], info.strides[2], info.strides[1], info.alignment, sizes.get(role, 2)
        )
    batch, head, row = call["lse"].strides
    heads["lse"] = Heads("lse", batch, head, row, call["lse"].alignment)
    table = call["block_table"]
    heads["block_table"] = Heads("block_table", 0, 0, table.strides[0], table.alignment)
    for name in ("k_scale", "v_scale") if cache else ():
        scales[name] = {"head": call[name].strides[0]}
    N = a["W"] * a["S"] if a["P"] else 0
    own = {"page": a["S"], "pages": a["P"], "codes": cache, "scales": scales}
    return _params(call, heads, B=a["Z"], M=a["M"], N=N, **own)


def _require_contiguous_rows(name: str, info: TensorInfo) -> None:
    if info.strides[-1] != 1 and info.shape[-1] > 1:
        raise Unsupported(f"{name}'s last dimension has a stride of {info.strides[-1]}, not 1")


def require_decode(call: Call, p: AttentionParams) -> None:
    """Unsupported where no decode kernel takes the call: few queries against a cache, in pages or not."""
    if not p.page and p.M * p.qheads_per_kvhead > DECODE_ROWS:
        raise Unsupported(f"more than {DECODE_ROWS} queries share a key head")
    if p.has("bias"):
        raise Unsupported("it has no bias")
    for role in ("q", "k", "v"):
        _require_contiguous_rows(p.heads[role].tensor, call[p.heads[role].tensor])
    if p.N + p.M > _MAX_KEYS:
        raise Unsupported(f"{p.N} keys: key numbers are 32-bit")


def _params(call: Call, heads: dict[str, Heads], *, B: int, M: int, N: int, **more: Any) -> AttentionParams:
    """`causal` is one side of the window; a side that hides no key is None. Paged is causal."""
    a, given = call.axes, call.params
    left, right = given["window_left"], given.get("window_right")
    if given.get("causal") or "page" in more:
        right = 0 if right is None else min(right, 0)
    return AttentionParams(
        call["o" if call.has("q_scale") else "q"].dtype, B, a["H"], a["G"], M, N, a["D"], a["E"],
        a["D"] ** -0.5 if given["scale"] is None else given["scale"], given["softcap"],
        None if left is None or left >= N - 1 else left, None if right is None or right >= M - 1 else right,
        heads, sinks=call.has("sinks"), **more,
    )  # fmt: skip


if __name__ == "__main__":
    (Path(__file__).resolve().parent / "device/params.h").write_text(header(), encoding="utf-8")

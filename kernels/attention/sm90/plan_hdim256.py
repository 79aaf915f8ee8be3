"""Plans of attention's gradient on Hopper for heads above 128: bwd_hdim256.cu writes dS to memory in
chunks, and bwd_dq_hdim256.cu makes dq of it. A chunk's blocks are planned here, or for varlen found on the
GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from portable.kernels.attention.params import Arguments, AttentionParams, Unsupported
from portable.kernels.attention.planning import (
    finished,
    ints,
    max_tiles,
    tile_table,
    tile_workspaces,
    tiles_of,
)
from portable.kernels.attention.sm90 import plan as sm90
from portable.kernels.attention.sm90.plan import TABLES, kernel, optional, padded
from portable.plan import Call, Launch, NativeKernel, Plan, Workspace

TILE = 64  # keys of a block, and queries of a step
DS_ELEMENTS = TILE * TILE  # of a block of scores
# Of dS in memory at a time. Measured 2026-11-22 on 2 x 8 heads of 256 and 8192: half as much is 6 % slower
# causal, a quarter 13 %; full attention is within 2 %.
_DS_BYTES = 1 << 30
_FEWEST_BLOCKS = 128  # of keys in a chunk that does not take all: about as many as there are multiprocessors
_DQ_STAGES = 4
CONSUMERS = 2
# Of a thread's 240, for accumulators and for rows of k or v. Measured 2026-11-22 against no rows: heads of
# 192 and 128 are 3 to 7 % faster, of 256 with 64 columns 1 to 3 %, with 128 columns -1 to 2 %.
_REGISTERS = 144
_KV_HEADS = 8  # key heads in a band; 1 to 16 are within 3 %
# Varlen: those of a query head over 32768 tokens, causal, in one sequence. Measured 2026-11-22 on a long
# tail of 74 lengths in 32768 tokens, 1, 1.125, 2 and 4 GiB, of the dense kernel for the same work: heads of
# 192 and 128, causal 0.86, 0.87, 0.85, 0.87, full 0.86, 0.90, 0.87, 0.85; of 256, causal 0.91, 0.91, 0.91,
# 0.92, full 0.86, 0.88, 0.94, 0.95.
_VARLEN_DS_BYTES = 9 << 27
_MAX_DS_BLOCKS = 2**30  # blocks of scores of a head are counted in 32 bits
# Varlen: of keys in a part of a head, at the longest lengths. Measured 2026-11-22, 8 heads of 256 on one,
# 32768 tokens causal, of which 36 blocks are a part: one sequence 0.89 of Triton, a long tail 1.77; 72
# blocks, one sequence of 65536, 1.49.
_VARLEN_FEWEST_BLOCKS = 32
_MAX_CHUNKS = 512  # of which most are empty where sequences are short: 6 us each


class Chunk(NamedTuple):
    """What is in memory at a time: the blocks of keys of some key heads, counted over all batches."""

    line: int
    lines: int
    block: int
    blocks: int


def dense(call: Call, p: AttentionParams) -> Plan:
    """Statistics; then per chunk dk, dv and dS, and dq."""
    blocks, key_blocks = -(-p.M // TILE), -(-p.N // TILE)
    lines, most = p.B * p.G, most_blocks(p)
    each = p.qheads_per_kvhead * most * DS_ELEMENTS * 2
    chunks = tuple(chunks_of(lines, key_blocks, _DS_BYTES // each))
    if not chunks:
        raise Unsupported(f"gradients of scores take {each} bytes a block of keys")
    accumulated = chunks[0].blocks < key_blocks
    launches = _Launches(call, p, accumulated, call.config.get("KV_HEADS_PER_BAND") or _KV_HEADS)
    found = [sm90.preprocess(p, _defines(p), blocks)]
    for chunk in chunks:
        dq_blocks = chunk.lines * p.qheads_per_kvhead * -(-blocks // CONSUMERS)
        found += launches.of(chunk.lines * chunk.blocks, dq_blocks, chunk, most=most)
    heads, rows = chunks[0].lines * p.qheads_per_kvhead, -(-blocks // CONSUMERS) * CONSUMERS * TILE
    spaces = [
        Workspace("stats", (p.B * p.H, blocks, TILE * 2), "float32"),
        Workspace("ds_workspace", (heads, chunks[0].blocks, most, DS_ELEMENTS), p.dtype),
    ]
    if accumulated:
        spaces.append(Workspace("dq_accum", (heads * rows * padded(p.D),), "float32"))
    return finished(call.device, found, spaces)


def varlen(call: Call, p: AttentionParams) -> Plan:
    """Tables of tiles, offsets into the dS workspace, statistics; then as `dense`. Lengths are not known
    here: there are as many chunks as any lengths may need, of which those that the GPU finds no work for
    end at once."""
    share, reach = p.qheads_per_kvhead, most_blocks(p)
    most = most_ds_blocks(p, reach)
    if most > _MAX_DS_BLOCKS:
        raise Unsupported(f"up to {most} blocks of scores a head exceed {_MAX_DS_BLOCKS}")
    slots = min(_VARLEN_DS_BYTES // (DS_ELEMENTS * 2), most * share * p.G)
    chunks = varlen_chunks(p.G, share, most, reach, slots)
    if chunks is None:
        size = share * reach * DS_ELEMENTS * 2
        raise Unsupported(f"gradients of scores take up to {size} bytes a block of keys")
    if chunks > _MAX_CHUNKS:
        raise Unsupported(f"gradients of scores may take {chunks} chunks")
    rows, tiles = (max_tiles(p.M, p.offsets, tile) for tile in (TILE, CONSUMERS * TILE))
    key_blocks = tiles_of(p, TILE, of_keys=True)
    accumulated = most * share > slots
    band = sm90.varlen_kv_heads_per_band(call, p)
    launches = _Launches(call, p, accumulated, band)
    found = [
        tile_table(p, TILE, of_keys=True, kv_heads_per_band=band),
        _workspace_offsets(p, reach, slots),
        sm90.preprocess(p, _defines(p), rows),
    ]
    for number in range(chunks):
        key_heads = max(1, p.G // (number + 1))  # as many as are left to the number-th of equal chunks
        found += launches.of(
            key_blocks * key_heads, tiles * key_heads * share, number=number, rows=rows, tiles=tiles,
            reach=reach,
        )  # fmt: skip
    spaces = [
        Workspace("stats", (p.H, rows, TILE * 2), "float32"),
        Workspace("ds_workspace", (slots, DS_ELEMENTS), p.dtype),
        Workspace("workspace_offsets", (p.offsets + 1,), "int32"),
        Workspace("chunk_layout", (4,), "int32"),
        *tile_workspaces(p, p.N, TILE),
    ]
    if accumulated:
        held = share * tiles * CONSUMERS * TILE * padded(p.D)
        spaces.append(Workspace("dq_accum", (held,), "float32"))
    return finished(call.device, found, spaces)


class _Launches:
    """The launches of a chunk: dk, dv and dS, then dq. All of a call share their kernels and most of their
    arguments."""

    def __init__(self, call: Call, p: AttentionParams, accumulated: bool, band: int) -> None:
        self.kernels, self.band = _kernels(p, call.device.shared_memory), band
        maps = sm90.descriptors(p, dict.fromkeys(("q", "k", "v", "do", "dk", "dv"), TILE))
        offsets = optional(workspace_offsets=p.is_varlen, chunk_layout=p.is_varlen)
        ds, accum = optional(ds_workspace=True), optional(dq_accum=accumulated)
        self.main: Arguments = (*maps, p.struct(f"stats dk dv {TABLES}"), *ds, *offsets)
        maps = sm90.descriptors(p, {"k": TILE, "dq": TILE})
        self.dq: Arguments = (*maps, p.struct("dq bounds"), *ds, *accum, *offsets)

    def of(
        self, blocks: int, dq_blocks: int, chunk: Chunk | None = None, *, most: int = 0,
        number: int = 0, rows: int = 0, tiles: int = 0, reach: int = 0,
    ) -> tuple[Launch, Launch]:  # fmt: skip
        """Dense calls say which `chunk`, varlen its `number`."""
        last = ints(**(chunk or Chunk(0, 0, 0, 0))._asdict(), most=most)
        main = ints(kv_heads_per_band=self.band, number=number, rows=rows, reach=reach)
        dq = ints(number=number, tiles=tiles, reach=reach)
        return (
            Launch(self.kernels[0], (blocks, 1, 1), (*self.main, *main, *last)),
            Launch(self.kernels[1], (dq_blocks, 1, 1), (*self.dq, *dq, *last)),
        )


def _workspace_offsets(p: AttentionParams, reach: int, slots: int) -> Launch:
    made = sm90.small_kernel(p, "attention_varlen_workspace_offsets", _defines(p), False)
    written = optional(workspace_offsets=True, chunk_layout=True)
    return Launch(made, (1, 1, 1), (p.struct("bounds"), *written, *ints(reach=reach, slots=slots)))


def _defines(p: AttentionParams) -> dict[str, Any]:
    """What all kernels of a plan are compiled for."""
    return {"HEAD": next(size for size in (64, 128, 256) if size >= p.E), "KEYS": TILE, "QUERIES": TILE}


def _kernels(p: AttentionParams, shared_memory: int) -> tuple[NativeKernel, NativeKernel]:
    """The main kernel, with as many stages as fit, and dq's. Varlen takes further barriers."""
    d, e = padded(p.D), padded(p.E)
    stages = 3 if _shared(d, e, 3) <= shared_memory else 2
    columns = {**_defines(p), "HEADS_INSIDE": 0, "HEAD_D": d, "HEAD_E": e}
    of_main = {"HELD_D": held(d, e), "HELD_E": held(e, d), "STAGES": stages, **p.flags("SOFTCAP")}
    dq_shared = _DQ_STAGES * (TILE * d * 2 + CONSUMERS * DS_ELEMENTS * 2 + 16) + 8 * p.is_varlen
    shared = _shared(d, e, stages) + (16 + stages * 16) * p.is_varlen
    if shared > shared_memory:
        raise Unsupported(f"it takes {shared} bytes of shared memory")
    main = kernel(p, "bwd_hdim256.cu", "attention_bwd_hdim256", 384, columns | of_main, shared)
    of_dq, threads = columns | {"STAGES": _DQ_STAGES}, (1 + CONSUMERS) * 128
    return main, kernel(p, "bwd_dq_hdim256.cu", "attention_bwd_dq_hdim256", threads, of_dq, dq_shared)


def chunks_of(lines: int, key_blocks: int, slots: int) -> Iterator[Chunk]:
    """All key heads with all blocks of keys, in chunks of about one size of at most `slots` blocks; none
    where chunks would be too small."""
    if slots >= key_blocks:
        count = -(-lines // (slots // key_blocks))
        each = -(-lines // count)
        for line in range(0, lines, each):
            yield Chunk(line, min(each, lines - line), 0, key_blocks)
    elif slots >= _FEWEST_BLOCKS:
        each = -(-key_blocks // -(-key_blocks // slots))
        for line in range(lines):
            for block in range(0, key_blocks, each):
                yield Chunk(line, 1, block, min(each, key_blocks - block))


def varlen_chunks(kv_heads: int, share: int, most: int, reach: int, slots: int) -> int | None:
    """The most chunks of `slots` blocks of scores; None where those of a part of a head would be too
    small."""
    room = slots // share
    if most <= room:
        return -(-kv_heads // min(kv_heads, room // most))
    if room < _VARLEN_FEWEST_BLOCKS * reach:
        return None
    return kv_heads * -(-most // (room - reach))


def most_blocks(p: AttentionParams) -> int:
    """The most blocks of queries that see a block of keys."""
    whole = -(-p.M // TILE)
    if p.left is None or p.right is None:
        return whole
    return min(whole, (p.left + p.right + 2 * TILE - 2) // TILE + 1)


def most_ds_blocks(p: AttentionParams, reach: int) -> int:
    """The most blocks of scores of a query head that any offsets lead to."""
    M, N, sequences = p.M, p.N, max(p.offsets - 1, 0)
    rest, blocks = TILE - 1, N // TILE + sequences
    bounds = [reach * blocks, (M * N + rest * (M + N) + rest * rest * sequences) // (TILE * TILE)]
    if p.left is None and p.right is not None:
        # Of a row after the first seen by all, one block less than of the one before it; at its end 2, and
        # what the right shows beyond the diagonal. No cut of M x N into sequences leaves more than one does.
        seen = M * N - M * M // 2 if M <= N else N * N // 2
        beside = blocks * (2 - (-p.right // TILE))
        bounds.append((seen + rest * N) // (TILE * TILE) + sequences + 2 + beside)
    return max(1, min(bounds))


def held(columns: int, accumulated: int) -> int:
    """How many columns of k, or of v, a warpgroup's registers hold beside its accumulator, dv or dk."""
    return min(columns, (_REGISTERS - accumulated // 2) * 4)


def _shared(columns_d: int, columns_e: int, stages: int) -> int:
    """K, v, the stages of q, do and statistics, two buffers of P and of dS, barriers."""
    rows = TILE * (columns_d + columns_e) * 2
    return rows + stages * (rows + TILE * 8 + 32) + 4 * DS_ELEMENTS * 2 + 48

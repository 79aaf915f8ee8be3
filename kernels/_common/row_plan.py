"""How row ops cut their rows: the class of a call, which fixes the kernel, and what follows from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from portable.layout import Rows
from portable.plan import Argument, Launch, NativeKernel, Scalar, TensorInfo

ITEMSIZE = {"float16": 2, "bfloat16": 2, "float32": 4}
TYPE_NAME = {"float16": "f16", "bfloat16": "bf16", "float32": "f32"}
ACCESS_BYTES = 16
MAX_GRID = 2**31 - 1
MIN_THREADS = 128
MAX_THREADS = 1024


@dataclass(frozen=True, slots=True)
class RowClass:
    """The compile-time shape of a row kernel: `lanes` threads hold a row, `chunks` vectors of `vector`
    elements each; a row that does not fit is streamed, `chunks` vectors per lane at a time."""

    dtype: str
    vector: int
    tail: bool
    threads: int
    lanes: int
    chunks: int
    resident: bool
    cluster: int = 1

    @property
    def rows_per_block(self) -> int:
        return max(self.threads // self.lanes, 1)

    def kernel(self, source: Path, entry: str, *defines: tuple[str, int | str]) -> NativeKernel:
        """`entry` of `source`, built for this class with further `defines`."""
        own = (
            ("T", TYPE_NAME[self.dtype]),
            ("VEC", self.vector),
            ("TAIL", int(self.tail)),
            ("THREADS", self.threads),
            ("LANES", self.lanes),
            ("CHUNKS", self.chunks),
        )
        if self.cluster > 1:
            own += (("CLUSTER", self.cluster),)
        return NativeKernel(source, entry, self.threads, own + defines)


def power_of_two(value: int) -> int:
    """The least power of two that is not below `value`."""
    return 1 << max(value - 1, 0).bit_length()


def vector_length(dtype: str, tensors: Sequence[tuple[TensorInfo, int]]) -> int:
    """Elements per access: 16 bytes' worth where every (tensor, row stride) is aligned for it, else 1."""
    vector = ACCESS_BYTES // ITEMSIZE[dtype]
    aligned = all(
        info.alignment >= min(ACCESS_BYTES, vector * ITEMSIZE[info.dtype])
        and stride * ITEMSIZE[info.dtype] % ACCESS_BYTES == 0
        for info, stride in tensors
    )
    return vector if aligned else 1


def row_class(
    dtype: str,
    length: int,
    tensors: Sequence[tuple[TensorInfo, int]],
    *,
    chunks: int,
    most_chunks: int,
    streamed: int = 4,
    most_lanes: int = MAX_THREADS,
    threads: int = MIN_THREADS,
) -> RowClass:
    """The class of rows of `length` elements.

    `chunks` 16-byte vectors per lane are aimed at: enough loads in flight, few enough registers for a high
    occupancy. Rows longer than `most_lanes` lanes hold so take up to `most_chunks`; longer ones are streamed,
    `streamed` vectors per lane at a time.
    """
    vector = vector_length(dtype, tensors)
    tail = length % vector != 0
    if vector == 1:
        # A scalar load moves little: more of them per lane, and a full warp per row before lanes share less.
        chunks, most_chunks, streamed = 2 * chunks, 2 * most_chunks, 2 * streamed
        narrowest = 32
    else:
        narrowest = 4
    vectors = power_of_two(-(-length // vector))
    lanes = min(max(vectors // chunks, narrowest), vectors, most_lanes)
    held = vectors // lanes
    if held > most_chunks:
        if tail:
            # The masks of a tail's elements would spill scalar registers on wave64.
            streamed = max(streamed // 2, 1)
        return RowClass(dtype, vector, tail, MAX_THREADS, MAX_THREADS, streamed, False)
    return RowClass(dtype, vector, tail, max(lanes, threads), lanes, held, True)


def row_launch(
    kernel: NativeKernel, kind: RowClass, rows: Rows, args: Sequence[tuple[str, Argument]]
) -> Launch:
    """One block per `kind.rows_per_block` rows, or one cluster of blocks per row."""
    return Launch(kernel, (-(-rows.count // kind.rows_per_block) * kind.cluster, 1, 1), tuple(args))


def length_argument(kind: RowClass, length: int) -> tuple[str, Scalar]:
    """A resident row's length is an int, a streamed one's 64 bits wide."""
    return "length", Scalar("i32" if kind.resident else "i64", length)


def row_count_argument(kind: RowClass, count: int) -> tuple[tuple[str, Scalar], ...]:
    """Streaming kernels have one row per block and need no count."""
    return (("rows", Scalar("i64", count)),) if kind.resident else ()

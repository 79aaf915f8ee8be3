"""How row ops cut their rows: the class of a call, which fixes the kernel, and what follows from it."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from portable import dtypes
from portable.layout import Rows
from portable.plan import Argument, Call, Device, Launch, NativeKernel, Pointer, Scalar, TensorInfo

ACCESS_BYTES = 16
MAX_GRID = 2**31 - 1
MIN_THREADS = 128
MAX_THREADS = 1024
MULTIPROCESSOR_THREADS = 2048
HOPPER = "sm_90a"
AMD = "rocm"
HELD_BYTES = 256
"""What a lane of an AMD GPU's block of 1024 holds of its rows at most: half of its 128 registers."""
COMPILED = ("weight_offset",)
"""Numbers that are compiled into a kernel instead of given to it: models use 0, which costs nothing, or 1."""
HELD_ELEMENTS = 64


@dataclass(frozen=True, slots=True)
class RowClass:
    """The compile-time shape of a row kernel: `lanes` threads hold a row, `chunks` vectors of `vector`
    elements each; a row that does not fit is streamed, `chunks` vectors per lane at a time. With a `tail`
    the last vector is not whole; of rows that are reduced, only unaligned ones have it.

    With `unaligned` vectors may lie at any element.

    `cluster` blocks of `threads` threads share one row where that is more than one; `occupancy` blocks per
    multiprocessor get the registers they need.
    """

    dtype: str
    vector: int
    tail: bool
    threads: int
    lanes: int
    chunks: int
    resident: bool
    cluster: int = 1
    occupancy: int = 1
    unaligned: bool = False

    @property
    def rows_per_block(self) -> int:
        return max(self.threads // self.lanes, 1)

    def kernel(
        self,
        source: Path,
        entry: str,
        defines: Iterable[tuple[str, int | str]] = (),
        variant: str = "",
    ) -> NativeKernel:
        """`entry` of `source`, built for this class with further `defines`; a `variant` of it, such as
        `_stream`, has that behind its name and behind its PASS. All start by `enter_pdl()` (rows.h)."""
        own = (
            ("T", dtypes.of(self.dtype).c),
            ("VEC", self.vector),
            ("TAIL", int(self.tail)),
            ("THREADS", self.threads),
            ("LANES", self.lanes),
            ("CHUNKS", self.chunks),
        )
        if self.cluster > 1:
            own += (("CLUSTER", self.cluster),)
        if self.occupancy > 1:
            own += (("RESIDENT", self.occupancy),)
        if self.unaligned:
            own += (("ALIGN", dtypes.itemsize(self.dtype)),)
        own += tuple(
            (name, f"{value}{variant.upper()}" if name == "PASS" else value) for name, value in defines
        )
        return NativeKernel(source, entry + variant, self.threads, own, pdl=True)


def power_of_two(value: int) -> int:
    """The least power of two that is not below `value`."""
    return 1 << max(value - 1, 0).bit_length()


def vector_length(dtype: str, tensors: Sequence[tuple[TensorInfo, int]]) -> int:
    """Elements per access: 16 bytes' worth where every (tensor, row stride) is aligned for it, else 1."""
    vector = ACCESS_BYTES // dtypes.itemsize(dtype)
    aligned = True
    for info, stride in tensors:
        size = dtypes.itemsize(info.dtype)
        access = min(ACCESS_BYTES, vector * size)
        aligned &= info.alignment >= access and stride * size % access == 0
    return vector if aligned else 1


def row_vector_length(dtype: str, length: int, tensors: Sequence[tuple[TensorInfo, int]]) -> int:
    """`vector_length` of kernels that reduce rows of `length` elements. The order of a row's additions, and
    so its bits, depend on it: of rows that no vector divides only the first is aligned: all are scalars."""
    vector = vector_length(dtype, tensors)
    return vector if length % vector == 0 else 1


def row_class(
    device: Device,
    dtype: str,
    length: int,
    tensors: Sequence[tuple[TensorInfo, int]],
    *,
    most_chunks: int,
    streamed: int = 4,
    most_lanes: int = MAX_THREADS,
    threads: int = MIN_THREADS,
    aimed: int = 2,
) -> RowClass:
    """The class of rows of `length` elements.

    `aimed` 16-byte vectors per lane are aimed at, two of most ops: loads enough in flight, and registers few
    enough for a full multiprocessor (16384x4096, softmax in bfloat16: one vector 0.75 of the copy, two 1.00,
    four 0.98; H200, 2026-11-21). Rows of more than 512 lanes so take up to four, and those that `most_lanes`
    lanes do not hold so up to `most_chunks`; longer rows are streamed, `streamed` vectors per lane at a time.
    """
    vector = row_vector_length(dtype, length, tensors)
    unaligned = vector == 1 and device.vendor == AMD
    if unaligned:
        # A vector at any element costs AMD GPUs a cache line more in eight. Loads of one element cost the
        # vector pipe more than the memory takes (gfx942, softmax of 5003 columns in bfloat16: 1.25 of its
        # time, 1.00 by vectors; counted on the emulated GPU, 2026-11-23).
        vector = ACCESS_BYTES // dtypes.itemsize(dtype)
    tail = unaligned and length % vector != 0
    if vector == 1:
        # A scalar load moves little: more of them per lane, and a full warp per row before lanes share less.
        chunks, most_chunks, streamed = 8, 2 * most_chunks, 2 * streamed
        narrowest = 32
    else:
        chunks, narrowest = aimed, 4
    vectors = power_of_two(-(-length // vector))
    lanes = min(max(vectors // chunks, narrowest), vectors, most_lanes)
    if vector > 1 and most_chunks >= 4 and lanes == MAX_THREADS and vectors // 4 <= MAX_THREADS // 2:
        lanes = MAX_THREADS // 2
    held = vectors // lanes
    if held > most_chunks:
        return RowClass(dtype, vector, tail, MAX_THREADS, MAX_THREADS, streamed, False, unaligned=unaligned)
    return RowClass(dtype, vector, tail, max(lanes, threads), lanes, held, True, unaligned=unaligned)


def held_chunks(device: Device, dtype: str, rows: int, otherwise: int) -> int:
    """The most 16-byte vectors of each of `rows` rows that a lane holds; `otherwise` but on AMD GPUs, which
    have no clusters: a block holds all that its registers can."""
    if device.vendor != AMD:
        return otherwise
    return min(HELD_BYTES // rows, HELD_ELEMENTS * dtypes.itemsize(dtype)) // ACCESS_BYTES


def fully_occupied(kind: RowClass, device: Device) -> RowClass:
    """`kind` with the registers cut so that its blocks fill a multiprocessor of Hopper, where its row
    leaves room for that (layer_norm, 16384x4096 in bfloat16: 47 registers 0.89 of the copy, 32 0.99;
    65536x1024 0.94 and 1.00; H200, 2026-11-21)."""
    if device.arch != HOPPER or not kind.resident or kind.vector == 1:
        return kind
    if kind.chunks > 2 or kind.lanes <= device.warp_size:
        return kind
    return replace(kind, occupancy=MULTIPROCESSOR_THREADS // kind.threads)


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


def pointer(call: Call, name: str) -> tuple[str, Argument]:
    """The tensor's address, or null where it is absent."""
    if not call.has(name):
        return name, Scalar("i64", 0)
    return name, Pointer(name, aligned=call[name].alignment >= 16)


def stride_arguments(views: Mapping[str, Rows]) -> tuple[tuple[str, Argument], ...]:
    return tuple((f"{name}_stride", Scalar("i64", view.stride)) for name, view in views.items())


def scalar_arguments(call: Call, names: Iterable[str]) -> tuple[tuple[str, Argument], ...]:
    """The op's numbers, in float32, without those that are COMPILED."""
    return tuple((name, Scalar("f32", call.params[name])) for name in names if name not in COMPILED)


def parameter_defines(call: Call, dtype: str, names: Sequence[str]) -> tuple[tuple[str, int | str], ...]:
    """W, the dtype of the op's weight and bias, whether each is there, and how a weight acts where that is
    not as by default."""
    if not names:
        return ()
    kind = next((call[name].dtype for name in names if call.has(name)), dtype)
    found = (("W", dtypes.of(kind).c), *((f"HAS_{name.upper()}", int(call.has(name))) for name in names))
    return (*found, *_weight_defines(call)) if call.has("weight") else found


def _weight_defines(call: Call) -> tuple[tuple[str, int | str], ...]:
    found: tuple[tuple[str, int | str], ...] = ()
    if offset := call.params.get("weight_offset", 0.0):
        bits = ctypes.c_uint32.from_buffer(ctypes.c_float(offset)).value
        found += (("WEIGHT_OFFSET", f"{bits:#010x}u"),)
    if call.params.get("cast_before_weight", False):
        found += (("CAST_BEFORE_WEIGHT", 1),)
    return found

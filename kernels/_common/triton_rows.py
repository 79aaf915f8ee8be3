"""Row kernels in Triton: size classes, argument packing, and the device functions they share.

A tile is ROWS x BLOCK elements. BLOCK is the power of two that holds a row, ROWS how many short rows
one program takes. Compiled code depends on the class alone (`RowTile`), never on exact sizes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl

from portable.layout import rows
from portable.plan import Argument, Call, Device, Launch, Plan, Pointer, Rejected, Scalar, TritonKernel

ITEMSIZE = {"bfloat16": 2, "float16": 2, "float32": 4}
MAX_THREADS = 1024
MAX_GRID = 2**31 - 1
MIN_BLOCK = 16
DEFAULTS = {"TILE": 2048, "ELEMENTS": 16, "RESIDENT": 65536, "CHUNK": 4096, "CHUNK_ELEMENTS": 16, "UNROLL": 1, "FUSED": False, "MAXREG": 0, "COLUMN_PROGRAMS": 2, "PROGRAM_THREADS": 1024, "STAGES": 1, "AHEAD_THREADS": 512, "PARTS_RESIDENT": 0, "PART": 4096, "PART_ELEMENTS": 8, "HINTS": 0, "THREADS": 512, "AHEAD": True, "RELOAD": False, "PARTIAL": (512, 16), "PARTIAL_ELEMENTS": 32, "BACK_RESIDENT": 8192}


@dataclass(frozen=True, slots=True)
class RowTile:
    """The class of a row call: all that its compiled kernel may depend on besides dtypes.

    `unit` elements (16 bytes) divide every row stride and the length, and every base is aligned to 16
    bytes; or `unit` is 1 and nothing is promised. `streams` says that a row is longer than the tile.
    """

    rows: int
    block: int
    unit: int
    num_warps: int
    streams: bool
    hints: int = 0
    unroll: int = 1
    fused: bool = False
    maxreg: int = 0
    parts: int = 0
    stages: int = 1
    ahead: bool = False

    def kernel(
        self, function: Any, *constants: tuple[str, Any], options: tuple[tuple[str, Any], ...] = ()
    ) -> TritonKernel:
        """`function` with its constexprs fixed by this class and by `constants`; kernels that stream take
        one row per program and have no ROWS."""
        own = (("UNIT", self.unit), ("ROWS", self.rows), ("BLOCK", self.block), ("HINTS", self.hints), ("UNROLL", self.unroll), ("PARTS", self.parts), ("STAGES", self.stages), ("AHEAD", self.ahead))
        fixed = tuple(pair for pair in own if pair[0] in function.arg_names)
        if not function.__name__.endswith("elements") and not self.fused:
            options = (("enable_fp_fusion", False),)
        if self.maxreg and "backward" in function.__name__:
            options += (("maxnreg", self.maxreg),)
        return TritonKernel(function, constants + fixed, self.num_warps, num_stages=2, options=options)


def warps(device: Device, threads: int) -> int:
    """Warps of at least four, and at most 1024 threads, that come to `threads`."""
    return max(4, min(threads, MAX_THREADS) // device.warp_size)


def unit_of(call: Call, names: Iterable[str], row_names: Iterable[str], length: int) -> int:
    """Elements of 16 bytes if all of `names` can be accessed so, else 1.

    `names` are tensors of rows or of one row of `length`; those in `row_names` have a row stride.
    """
    names, row_names = list(names), list(row_names)
    unit = 16 // ITEMSIZE[call[row_names[0]].dtype]
    strides = [rows(call[name]).stride for name in row_names]
    aligned = all(call[name].alignment >= 16 for name in names)
    return unit if aligned and all(n % unit == 0 for n in (length, *strides)) else 1


def setting(call: Call, name: str) -> Any:
    return call.config.get(name, DEFAULTS[name])


def row_tile(call: Call, length: int, unit: int, resident: int) -> RowTile:
    """The tile for rows of `length`: the whole row up to `resident` elements, a part of it beyond.

    Each thread takes 16 elements while 1024 threads suffice: two 16-byte loads of bfloat16 in flight for
    each tensor, in 16 registers as float32. Element by element (`unit` 1) every access needs a pointer
    and a mask of its own, so that both limits are halved; without, kernels spill on some card.
    """
    device = call.device
    per_thread, resident = setting(call, "ELEMENTS"), min(resident, setting(call, "RESIDENT"))
    tile = setting(call, "TILE")
    if unit == 1:
        resident, per_thread = resident // 2, min(8, per_thread)
    streams = length > resident
    if streams:
        block, per_thread = setting(call, "CHUNK"), setting(call, "CHUNK_ELEMENTS")
        if unit == 1:
            block = block // 2
            per_thread = min(8, per_thread)
    else:
        block = max(MIN_BLOCK, triton.next_power_of_2(length))
    count = 1 if streams else max(1, tile // block)
    return RowTile(count, block, unit, warps(device, count * block // per_thread), streams, setting(call, "HINTS"), setting(call, "UNROLL"), setting(call, "FUSED"), setting(call, "MAXREG"))


def too_large(count: int, length: int, tile: RowTile) -> Rejected | None:
    """A rejection where program or column numbers would leave 32 bits."""
    if length > 2**31 - 1 - 2 * tile.block:
        return Rejected(f"rows of {length} elements: column numbers are 32-bit")
    if triton.cdiv(count, tile.rows) > MAX_GRID:
        return Rejected(f"{count} rows: more than {MAX_GRID} programs of {tile.rows}")
    return None


def row_args(call: Call, names: Iterable[str], aligned: bool) -> list[tuple[str, Argument]]:
    """`<name>_ptr` and `<name>_stride` of each tensor of rows, in that order."""
    args: list[tuple[str, Argument]] = []
    for name in names:
        args.append((f"{name}_ptr", Pointer(name, aligned)))
        args.append((f"{name}_stride", Scalar("i64", rows(call[name]).stride)))
    return args


def plan_rows(
    call: Call,
    names: tuple[str, ...],
    whole: Any,
    streaming: Any,
    resident: int,
    options: tuple[tuple[str, Any], ...] = (),
) -> Plan | Rejected:
    """One launch over tensors of rows alone: `whole` takes tiles of whole rows of at most `resident`
    elements, `streaming` one row per program.

    Both take `<name>_ptr, <name>_stride` for each of `names`; then `whole` takes count and length,
    `streaming` length.
    """
    count, length, _ = rows(call[names[0]])
    unit = unit_of(call, names, names, length)
    tile = row_tile(call, length, unit, resident)
    if rejected := too_large(count, length, tile):
        return rejected
    args = row_args(call, names, aligned=unit > 1)
    tile, programs = persistent(call, tile, count, "AHEAD" in whole.arg_names)
    if not tile.streams or "count" in streaming.arg_names:
        args.append(("count", Scalar("i64", count)))
    args.append(("length", Scalar("i32", length)))
    kernel = tile.kernel(streaming if tile.streams else whole, options=options)
    return Plan((Launch(kernel, (programs, 1, 1), tuple(args)),))


def persistent(call: Call, tile: RowTile, count: int, ahead: bool = True) -> tuple[RowTile, int]:
    from dataclasses import replace
    threads = tile.num_warps * call.device.warp_size
    programs = triton.cdiv(count, tile.rows)
    most = call.device.multiprocessors * max(1, setting(call, "PROGRAM_THREADS") // threads)
    if tile.streams:
        return replace(tile, stages=setting(call, "STAGES")), min(programs, most)
    if ahead and threads >= setting(call, "AHEAD_THREADS"):
        return replace(tile, ahead=True), min(programs, most)
    return tile, programs


def plan_elementwise(
    call: Call, names: tuple[str, ...], function: Any, *constants: tuple[str, Any]
) -> Plan | Rejected:
    """One launch of `function` over tiles of SHORT_TILE elements of tensors of rows, all of one shape.

    Tensors without gaps between rows are taken as one long row: one class then serves every shape. The
    kernel takes `<name>_ptr, <name>_stride` for each of `names`, count, length and chunks (tiles per row).
    """
    SHORT_TILE = setting(call, "TILE")
    views = {name: rows(call[name]) for name in names}
    count, length, _ = views[names[0]]
    strides = {name: view.stride for name, view in views.items()}
    if count == 1 or all(stride == length for stride in strides.values()):
        count, length, block = 1, count * length, SHORT_TILE
        strides = dict.fromkeys(names, 0)
    else:
        block = min(SHORT_TILE, max(MIN_BLOCK, triton.next_power_of_2(length)))
    unit = 16 // ITEMSIZE[call[names[0]].dtype]
    if any(call[name].alignment < 16 for name in names) or any(n % unit for n in (length, *strides.values())):
        unit = 1
    tile = RowTile(SHORT_TILE // block, block, unit, warps(call.device, SHORT_TILE // call.config.get("ELEMENTS", 16 // ITEMSIZE[call[names[0]].dtype])), length > block)
    chunks = triton.cdiv(length, block)
    programs = chunks * triton.cdiv(count, tile.rows)
    if programs > MAX_GRID:
        return Rejected(f"{programs} tiles of {SHORT_TILE} elements: more than {MAX_GRID}")
    args: list[tuple[str, Argument]] = []
    for name, stride in strides.items():
        args += [(f"{name}_ptr", Pointer(name, unit > 1)), (f"{name}_stride", Scalar("i64", stride))]
    args += [("count", Scalar("i64", count)), ("length", Scalar("i64", length))]
    args.append(("chunks", Scalar("i32", chunks)))
    return Plan((Launch(tile.kernel(function, *constants), (programs, 1, 1), tuple(args)),))


@triton.jit
def divisible(value, UNIT: tl.constexpr):
    """`value`, a multiple of UNIT, in a form from which the compiler sees that it is one."""
    return value // UNIT * UNIT


@triton.jit
def row_starts(ptr, row, stride, UNIT: tl.constexpr):
    """Pointers [ROWS, 1] to the first element of each of the rows `row`, which are 64-bit numbers."""
    return ptr + (row * divisible(stride, UNIT))[:, None]


@triton.jit
def element_tile(count, length, chunks, UNIT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """(row [ROWS], col [1, BLOCK], mask [ROWS, BLOCK]) of this program's tile; all numbers are 64-bit."""
    pid = tl.program_id(0)
    row = (pid // chunks).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    start = (pid % chunks).to(tl.int64) * BLOCK
    lane = tl.arange(0, BLOCK)[None, :]
    left = tl.minimum(length - start, BLOCK).to(tl.int32)
    return row, start + lane, (row < count)[:, None] & (lane < divisible(left, UNIT))

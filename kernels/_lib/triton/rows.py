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

from portable.dtypes import itemsize
from portable.kernels._lib.triton.pdl import pdl_constant
from portable.layout import ceil_div, next_power_of_2, rows
from portable.plan import Argument, Call, Device, Launch, Plan, Pointer, Rejected, Scalar, TritonKernel

MAX_THREADS = 1024
MAX_GRID = 2**31 - 1
MIN_BLOCK = 16
DEFAULTS = {
    "TILE": 2048, "ELEMENTS": 16, "CHUNK": 8192, "AHEAD": 0, "THREADS": 512, "REGISTERS": 0,
}  # fmt: skip
"""Of the tunables: elements a program takes, in several rows where one is shorter; elements of a row, or of a
part of it, that a thread takes; elements of a long row at a time; whether a program loads its next tile while
it works on one; threads that share a multiprocessor where programs stay; the most registers of a thread that
holds its part of a row, or 0 for as many as the compiler wants (NVIDIA)."""
UNFUSED = (("enable_fp_fusion", False),)
"""For kernels that add up products. Of two products that two lanes hold, each lane would fuse its own into
the sum, and so find another sum; and of a tile's rows only some would be fused (2026-11-21, on an emulated
gfx942). Elementwise kernels need it where a product is added to: one class fuses what another does not
(activation_backward, gelu in float32, 2026-11-23)."""


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

    def kernel(
        self, function: Any, *constants: tuple[str, Any], options: tuple[tuple[str, Any], ...] = UNFUSED
    ) -> TritonKernel:
        """`function` with its constexprs fixed by this class and by `constants`; kernels that stream take
        one row per program and have no ROWS."""
        own = (("UNIT", self.unit), ("ROWS", self.rows), ("BLOCK", self.block))
        fixed = tuple(pair for pair in (*constants, *own) if pair[0] in function.arg_names)
        return TritonKernel(function, fixed, self.num_warps, num_stages=2, options=options)

    def programs(self, call: Call, count: int) -> int:
        """How many persistent programs process the tiles of `count` rows."""
        threads = self.num_warps * call.device.warp_size
        most = call.device.multiprocessors * max(1, setting(call, "THREADS") // threads)
        return min(most, ceil_div(count, self.rows))


def setting(call: Call, name: str) -> Any:
    """A tunable's value for this call."""
    return call.config.get(name, DEFAULTS[name])


def warps(device: Device, threads: int) -> int:
    """Warps of at least four, and at most 1024 threads, that come to `threads`."""
    return max(4, min(threads, MAX_THREADS) // device.warp_size)


def unit_of(call: Call, names: Iterable[str], row_names: Iterable[str], length: int) -> int:
    """Elements of 16 bytes if all of `names` can be accessed so, else 1.

    `names` are tensors of rows or of one row of `length`; those in `row_names` have a row stride.
    """
    names, row_names = list(names), list(row_names)
    unit = 16 // itemsize(call[row_names[0]].dtype)
    strides = [rows(call[name]).stride for name in row_names]
    aligned = all(call[name].alignment >= 16 for name in names)
    return unit if aligned and all(n % unit == 0 for n in (length, *strides)) else 1


def row_tile(call: Call, length: int, unit: int, resident: int, on_amd: int | None = None) -> RowTile:
    """The tile for rows of `length`: the whole row up to `resident` elements, a part of it beyond; aligned
    rows on AMD GPUs up to `on_amd`, where 1024 threads without a spill hold more.

    A thread's 16 elements are two 16-byte loads of bfloat16 in flight for each tensor, in 16 registers as
    float32. Element by element (`unit` 1) every access needs a pointer and a mask of its own, so that limits
    are halved; without, kernels spill on some GPU.
    """
    per_thread, chunk = setting(call, "ELEMENTS"), setting(call, "CHUNK")
    if on_amd is not None and unit > 1 and call.device.vendor == "rocm":
        resident = on_amd
    if unit == 1:
        resident, per_thread, chunk = resident // 2, min(8, per_thread), chunk // 2
    streams = length > resident
    if streams:
        block, per_thread = min(chunk, resident), min(16, per_thread)
    else:
        block = max(MIN_BLOCK, next_power_of_2(length))
    count = 1 if streams else max(1, setting(call, "TILE") // block)
    return RowTile(count, block, unit, warps(call.device, count * block // per_thread), streams)


def too_large(count: int, length: int, tile: RowTile) -> Rejected | None:
    """A rejection where program or column numbers would leave 32 bits."""
    if length > 2**31 - 1 - 2 * tile.block:
        return Rejected(f"rows of {length} elements: column numbers are 32-bit")
    if ceil_div(count, tile.rows) > MAX_GRID:
        return Rejected(f"{count} rows: more than {MAX_GRID} programs of {tile.rows}")
    return None


def row_args(call: Call, names: Iterable[str], aligned: bool) -> list[tuple[str, Argument]]:
    """`<name>_ptr` and `<name>_stride` of each tensor of rows, in that order."""
    args: list[tuple[str, Argument]] = []
    for name in names:
        args.append((f"{name}_ptr", Pointer(name, aligned)))
        args.append((f"{name}_stride", Scalar("i64", rows(call[name]).stride)))
    return args


def renamed_row_args(call: Call, arg: str, name: str, aligned: bool) -> list[tuple[str, Argument]]:
    """`row_args` of one tensor, as `<arg>_ptr` and `<arg>_stride`."""
    kinds = ("ptr", "stride")
    return [
        (f"{arg}_{kind}", value)
        for kind, (_, value) in zip(kinds, row_args(call, [name], aligned), strict=True)
    ]


def plan_rows(
    call: Call,
    names: tuple[str, ...],
    whole: Any,
    streaming: Any,
    resident: int,
    on_amd: int,
    *constants: tuple[str, Any],
) -> Plan | Rejected:
    """One launch over tensors of rows alone: `whole` takes tiles of whole rows of at most `resident`
    elements (`on_amd` on AMD GPUs), `streaming` one row per program.

    Both take `<name>_ptr, <name>_stride` for each of `names`; then `whole` takes count and length,
    `streaming` length. Both take `constants`.
    """
    count, length, _ = rows(call[names[0]])
    unit = unit_of(call, names, names, length)
    tile = row_tile(call, length, unit, resident, on_amd)
    if rejected := too_large(count, length, tile):
        return rejected
    args = row_args(call, names, aligned=unit > 1)
    if not tile.streams:
        args.append(("count", Scalar("i64", count)))
    args.append(("length", Scalar("i32", length)))
    return Plan((tile_launch(call, tile, streaming if tile.streams else whole, args, count, *constants),))


def tile_launch(
    call: Call,
    tile: RowTile,
    function: Any,
    args: list[tuple[str, Argument]],
    count: int,
    *constants: tuple[str, Any],
) -> Launch:
    """One program per tile; or, with AHEAD and a kernel that knows it, persistent programs."""
    ahead = "AHEAD" in function.arg_names and bool(setting(call, "AHEAD"))
    programs = tile.programs(call, count) if ahead else ceil_div(count, tile.rows)
    most = 0 if tile.streams else setting(call, "REGISTERS")
    options = (*UNFUSED, ("maxnreg", most)) if most else UNFUSED
    kernel = tile.kernel(function, *constants, ("AHEAD", ahead), pdl_constant(call.device), options=options)
    return Launch(kernel, (programs, 1, 1), tuple(args))


def plan_elementwise(
    call: Call,
    names: tuple[str, ...],
    function: Any,
    *constants: tuple[str, Any],
    options: tuple[tuple[str, Any], ...] = (),
    accesses: int = 1,
) -> Plan | Rejected:
    """One launch of `function`, built with `options`, over tiles of TILE elements, `accesses` times 16 bytes
    a thread, of tensors of rows that are all of one shape.

    Tensors without gaps between rows are one long row: one class then covers every shape. A tensor may have
    several rows where the others have one; its stride is from one of its own rows to the next. The kernel
    takes `<name>_ptr, <name>_stride` for each of `names`, count, length and chunks (tiles per row).
    """
    size = setting(call, "TILE")
    views = {name: rows(call[name]) for name in names}
    count, length, _ = min(views.values(), key=lambda view: view.count)
    strides = {name: view.stride for name, view in views.items()}
    alike = all(view.count == count for view in views.values())
    if alike and (count == 1 or all(stride == length for stride in strides.values())):
        count, length, block = 1, count * length, size
        strides = dict.fromkeys(names, 0)
    else:
        block = min(size, max(MIN_BLOCK, next_power_of_2(length)))
    per_thread = 16 // itemsize(call[names[0]].dtype)
    unit = per_thread
    if any(call[name].alignment < 16 for name in names) or any(n % unit for n in (length, *strides.values())):
        unit = 1
    threads = size // (per_thread * accesses)
    tile = RowTile(size // block, block, unit, warps(call.device, threads), length > block)
    chunks = ceil_div(length, block)
    programs = chunks * ceil_div(count, tile.rows)
    if programs > MAX_GRID:
        return Rejected(f"{programs} tiles of {size} elements: more than {MAX_GRID}")
    args: list[tuple[str, Argument]] = []
    for name, stride in strides.items():
        args += [(f"{name}_ptr", Pointer(name, unit > 1)), (f"{name}_stride", Scalar("i64", stride))]
    args += [("count", Scalar("i64", count)), ("length", Scalar("i64", length))]
    args.append(("chunks", Scalar("i32", chunks)))
    kernel = tile.kernel(function, *constants, pdl_constant(call.device), options=options)
    return Plan((Launch(kernel, (programs, 1, 1), tuple(args)),))


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

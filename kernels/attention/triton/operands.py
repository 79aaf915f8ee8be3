"""How attention's Triton kernels reach their tensors: by descriptor (Hopper's TMA) or through pointers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from portable import dtypes
from portable.kernels.attention.packed import entries_of
from portable.kernels.attention.problem import Problem
from portable.kernels.attention.triton.varlen import FAR, VARLEN_TILE
from portable.layout import ceil_div, next_power_of_2
from portable.plan import Argument, Device, Pointer, Scalar, TritonDescriptor

SWIZZLE_ELEMENTS = 64  # 16-bit elements in TMA's swizzle
HEAD_BLOCK, HEAD_REST = 128, 64
ROW_LIMIT = 256  # rows of a tile at most, for offsets within it
UNBOUNDED = 2**31 - 2**16  # elements along a dimension without bounds check
KEY_TENSORS = ("k", "v", "dk", "dv")
E_TENSORS = ("v", "dv", "o", "do")


class Operands:
    """The tensors of one problem, of which `tiled` are read or written in tiles of rows.

    A tile has `block_d` columns of q and k, and `block_e` of v: powers of two. With `pieces`, 129 to 192
    columns of q and k are two tiles, of `block_d` and `rest_d` columns, instead of one of 256. No tile has
    over `most` columns: for kernels that take `most` columns of a head at a time.
    """

    def __init__(
        self, problem: Problem, device: Device, tiled: tuple[str, ...], sinks: bool = False,
        pieces: bool = False, most: int = 256,
    ) -> None:  # fmt: skip
        self.problem, self.tiled, self.sinks = problem, tiled, sinks
        itemsize = dtypes.itemsize(problem.dtype)
        heads = [problem.heads[name] for name in dict.fromkeys((*tiled, "o"))]
        per_line = 16 // itemsize
        aligned = all(each.aligned_to(16, itemsize) for each in heads)
        aligned = aligned and problem.D % per_line == 0 and problem.E % per_line == 0
        self.unit = per_line if aligned else 1
        self.by_descriptor = (
            device.arch.startswith("sm_9")
            and itemsize == 2
            and aligned
            and 0 not in (problem.B, problem.M, problem.N)
            and all(self._walkable(name) for name in tiled)
        )
        least = SWIZZLE_ELEMENTS if self.by_descriptor else 16
        self.block_d, self.rest_d = min(max(least, next_power_of_2(problem.D)), most), 0
        if pieces and HEAD_BLOCK < problem.D <= HEAD_BLOCK + HEAD_REST:
            self.block_d, self.rest_d = HEAD_BLOCK, HEAD_REST
        self.columns = self.block_d + self.rest_d
        self.block_e = min(max(least, next_power_of_2(problem.E)), most)
        self.wide = any(each.row * ROW_LIMIT + ROW_LIMIT >= 2**31 for each in heads)

    def _sizes(self, name: str) -> tuple[int, int, int, int]:
        p = self.problem
        keyed = name in KEY_TENSORS
        return p.E if name in E_TENSORS else p.D, p.N if keyed else p.M, p.G if keyed else p.H, p.B

    def _walkable(self, name: str) -> bool:
        """Whether TMA can walk the tensor: rows that do not overlap, no stride of 0."""
        heads = self.problem.heads[name]
        length, rows, count, batches = self._sizes(name)
        steps = ((rows, heads.row), (count, heads.head), (batches, heads.batch))
        most = 2**32 if self.problem.offsets else 2**38
        return all(size == 1 or length <= stride < most for size, stride in steps)

    def descriptors(
        self,
        blocks: Mapping[str, int],
        args: list[tuple[str, Argument]] | None = None,
        constants: list[tuple[str, Any]] | None = None,
    ) -> tuple[list[tuple[str, Argument]], list[tuple[str, Any]]]:
        """Arguments and constants with a descriptor of tiles of so many rows for each name, such as "k" or,
        for the rest of its columns, "k_rest". None as a constant where pointers are used, or there is no
        rest. New lists, or those given."""
        into: list[tuple[str, Argument]] = [] if args is None else args
        fixed: list[tuple[str, Any]] = [] if constants is None else constants
        for name, rows in blocks.items():
            tensor = name.removesuffix("_rest")
            cols = self.block_e if tensor in E_TENSORS else self.block_d if tensor == name else self.rest_d
            if not (self.by_descriptor and cols):
                fixed.append((name, None))
                continue
            heads, sizes = self.problem.heads[tensor], self._sizes(tensor)
            steps = zip((heads.row, heads.head, heads.batch), sizes[1:], strict=True)
            strides = tuple(2 * (step if size > 1 else 8) for step, size in steps)
            if self.problem.offsets:  # see `scores.tile_coordinates`; 2**34 * FAR is 2**64
                sizes = (sizes[0], FAR.value, sizes[2], UNBOUNDED, UNBOUNDED)
                strides = (*strides[:2], strides[0], 2**34 - strides[0])
            ones = (1,) * (len(sizes) - 2)
            made = TritonDescriptor(
                tensor,
                self.problem.dtype,
                sizes,
                strides,
                (SWIZZLE_ELEMENTS, rows, *ones),
                block=(*ones, rows, cols),
            )
            into += made.arguments(name)
        return into, fixed

    def tile_arguments(
        self, of: str, block: int, args: list[tuple[str, Argument]], constants: list[tuple[str, Any]]
    ) -> int:
        """Adds the arguments and constants of `varlen.work_tile`, for tiles of `block` queries ("q"), keys
        ("k") or rows of the workspaces ("workspace"); returns the number of programs."""
        p = self.problem
        rows, heads = (p.N, p.G) if of == "k" else (p.M, p.H)
        if p.offsets:
            args.append(("tiles_ptr", Pointer("k_tiles" if of == "k" else "q_tiles", True)))
            constants.append(("tiles", 0))
            return entries_of(rows, p.offsets, VARLEN_TILE.value) * (VARLEN_TILE.value // block) * heads
        constants.append(("tiles_ptr", None))
        if of == "workspace":
            rows = ceil_div(rows, VARLEN_TILE.value) * VARLEN_TILE.value
        tiles = ceil_div(rows, block)
        args.append(("tiles", Scalar("i32", tiles)))
        return tiles * p.B * heads

    def pointers(
        self,
        name: str,
        args: list[tuple[str, Argument]],
        constants: list[tuple[str, Any]],
        plain: bool = False,
        aligned: bool = False,
    ) -> None:
        """Adds pointer and strides of a tensor, as constants where it is absent or has a descriptor.
        `aligned`: the caller knows it to be."""
        steps = [f"{name}_{step}" for step in ("batch", "head", "row")]
        described = self.by_descriptor and name in self.tiled and not plain
        if name == "sinks":
            steps = []
        heads = self.problem.heads.get(name)
        if name == "sinks" and self.sinks:
            args.append(("sinks_ptr", Pointer("sinks")))
        elif heads is None or described:
            constants += [(f"{name}_ptr", None), *((step, 0) for step in steps)]
        else:
            aligned = aligned or (self.unit > 1 and name in (*self.tiled, "o"))
            args.append((f"{name}_ptr", Pointer(name, aligned)))
            strides = (heads.batch, heads.head, heads.row)
            args += [(step, Scalar("i64", stride)) for step, stride in zip(steps, strides, strict=True)]

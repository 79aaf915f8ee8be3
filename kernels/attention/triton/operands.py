"""How attention's Triton kernels reach their tensors: by descriptor (Hopper's TMA) or through pointers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from portable.kernels._lib.triton.minifloat import converts, format_of
from portable.kernels.attention.params import AttentionParams, Unsupported
from portable.kernels.attention.planning import max_tiles
from portable.kernels.attention.triton.tiles import FAR, VARLEN_TILE
from portable.layout import ceil_div, next_power_of_2
from portable.plan import Device, Launch, Pointer, Scalar, TritonDescriptor, TritonKernel

SWIZZLE_ELEMENTS = 64  # 16-bit elements in TMA's swizzle
HEAD_BLOCK, HEAD_REST = 128, 64
ROW_LIMIT = 256  # rows of a tile at most, for offsets within it
ROW_PADDING = VARLEN_TILE.value  # a head's rows in the workspaces fill blocks of any config
UNBOUNDED = 2**31 - 2**16  # elements along a dimension without bounds check
GFX11_COLUMNS = {"forward": 128, "backward": 64}
"""Larger heads spill: gfx11's matrix instructions hold each operand element twice in a wave's registers."""
TENSORS = ("q", "k", "v", "o", "lse", "bias", "do", "dlse", "dq", "dk", "dv", "dbias")
SCALES = ("q_scale", "k_scale", "v_scale")
OPTIONS = ("waves_per_eu", "matrix_instr_nonkdim", "kpack", "maxnreg", "enable_fp_fusion")

Config = Mapping[str, Any]
Values = dict[str, Any]
"""Of a kernel's parameters by name: arguments, and constants for what is neither Pointer, Scalar nor
descriptor."""


def i32(value: int, divisible: bool = False) -> Scalar:
    return Scalar("i32", value, divisible)


def launch_of(function: Any, values: Mapping[str, Any], config: Config, *grid: int) -> Launch:
    """The launch of a Triton kernel: its parameters are among `values`, else the config's."""
    args, constants = [], []
    for name in function.arg_names:
        value = values[name] if name in values else config[name]
        if isinstance(value, TritonDescriptor):
            args += value.arguments(name)
        else:
            (args if isinstance(value, (Pointer, Scalar)) else constants).append((name, value))
    options = tuple((name, config[name]) for name in OPTIONS if name in config)
    kernel = TritonKernel(function, tuple(constants), config["num_warps"], config["num_stages"], options)
    return Launch(kernel, (grid[0], grid[1] if len(grid) > 1 else 1, 1), tuple(args))


class Operands:
    """The tensors of one call, of which `tiled` are read or written in tiles of rows.

    A tile has `block_d` columns of q and k, and `block_e` of v: powers of two. With `pieces`, 129 to 192
    columns of q and k are two tiles, of `block_d` and `rest_d` columns, instead of one of 256. No tile has
    over `most` columns: for kernels that take `most` columns of a head at a time. Of varlen a row's stride
    is a batch's too.
    """

    def __init__(
        self, p: AttentionParams, device: Device, tiled: str, pieces: bool = False, most: int = 256
    ) -> None:
        if 2 * (p.M + p.N) + 1024 > 2**31 - 1:
            raise Unsupported("row and key numbers of 32 bits do not hold this size")
        if p.is_varlen:
            p = replace(p, heads={name: replace(each, batch=each.row) for name, each in p.heads.items()})
        self.p, self.device, self.tiled = p, device, tuple(tiled.split())
        heads = [p.heads[name] for name in dict.fromkeys((*self.tiled, "o"))]
        aligned = all(each.aligned for each in heads) and p.D % 8 == p.E % 8 == 0
        self.unit = 8 if aligned else 1
        self.by_descriptor = (
            device.arch.startswith("sm_9")
            and p.dtype != "float32"
            and not p.codes
            and aligned
            and 0 not in (p.B, p.M, p.N)
            and all(self._walkable(name) for name in self.tiled)
        )
        least = SWIZZLE_ELEMENTS if self.by_descriptor else 16
        self.block_d, self.rest_d = min(max(least, next_power_of_2(p.D)), most), 0
        if pieces and HEAD_BLOCK < p.D <= HEAD_BLOCK + HEAD_REST:
            self.block_d, self.rest_d = HEAD_BLOCK, HEAD_REST
        self.columns = self.block_d + self.rest_d
        self.block_e = min(max(least, next_power_of_2(p.E)), most)
        self.wide = any(each.row * ROW_LIMIT + ROW_LIMIT >= 2**31 for each in heads)

    def require_registers(self, which: str) -> None:
        most = max(self.columns, self.block_e)
        if self.device.arch.startswith("gfx11") and most > GFX11_COLUMNS[which]:
            heads = max(self.p.D, self.p.E)
            raise Unsupported(f"{self.device.arch} has too few registers for heads of {heads}")

    def _walkable(self, name: str) -> bool:
        """Whether TMA can walk the tensor: rows that do not overlap, no stride of 0."""
        columns, most = self.p.columns(name), 2**32 if self.p.is_varlen else 2**38
        return all(size == 1 or columns <= stride < most for size, stride in self.p.dims(name))

    @property
    def padded(self) -> int:
        """Rows of a head in the workspaces of its queries: whole tiles, of varlen for any offsets."""
        p = self.p
        tiles = max_tiles(p.M, p.offsets, ROW_PADDING) if p.is_varlen else ceil_div(p.M, ROW_PADDING)
        return tiles * ROW_PADDING

    def values(self, tiles: Mapping[str, int], aligned: bool = False) -> Values:
        """What kernels take of the call, with descriptors of tiles of so many rows for "k" or, for the rest
        of its columns, "k_rest"; without `tiles` through pointers alone. None where pointers are used, or
        there is no rest. `aligned`: so are bias and dbias."""
        p = self.p
        found: Values = {
            "H": i32(p.H), "G": i32(p.G), "qheads_per_kvhead": i32(p.qheads_per_kvhead), "M": i32(p.M),
            "N": i32(p.N), "low": i32(p.low), "high": i32(p.high), "padded": i32(self.padded, True),
            "scale": Scalar("f32", p.score_scale), "cap": Scalar("f32", p.softcap_log2),
            "factor": Scalar("f32", p.scale), "SOFTCAP": p.softcap is not None, "LOW": p.left is not None,
            "HIGH": p.right is not None, "D": p.D, "E": p.E, "BLOCK_D": self.block_d, "REST_D": self.rest_d,
            "BLOCK_E": self.block_e, "UNIT": self.unit, "WIDE": self.wide, "PRECISION": "ieee",
            "sinks_ptr": Pointer("sinks") if p.sinks else None,
            "lse_log2_ptr": Pointer("lse_log2", True), "delta_ptr": Pointer("delta", True),
            "FORMAT": format_of(p.codes) if p.codes else None,
            "CONVERT": bool(p.codes) and converts(self.device, p.codes),
        }  # fmt: skip
        for name in SCALES:
            steps = p.scales.get(name, {})
            found[f"{name}_ptr"] = Pointer(name) if steps else None
            found |= {
                f"{name}_{side}": Scalar("i64", steps[side]) if steps else 0 for side in ("batch", "head")
            }
        for name in TENSORS:
            heads = p.heads.get(name)
            if heads is None or (self.by_descriptor and tiles and name in self.tiled):
                found |= {f"{name}_ptr": None, f"{name}_batch": 0, f"{name}_head": 0, f"{name}_row": 0}
                continue
            own = aligned and name in ("bias", "dbias")
            aligned_to_16 = own or (self.unit > 1 and name in (*self.tiled, "o"))
            found[f"{name}_ptr"] = Pointer(name, aligned_to_16, "uint8" if heads.itemsize == 1 else None)
            for side, stride in zip(("batch", "head", "row"), heads.strides, strict=True):
                found[f"{name}_{side}"] = Scalar("i64", stride)
        return found | {name: self._descriptor(name, rows) for name, rows in tiles.items()}

    def _descriptor(self, name: str, rows: int) -> TritonDescriptor | None:
        tensor = name.removesuffix("_rest")
        columns = self.block_e if tensor in ("v", "dv", "o", "do") else self.block_d
        columns = columns if tensor == name else self.rest_d
        if not (self.by_descriptor and columns):
            return None
        dims = self.p.dims(tensor)
        sizes = (self.p.columns(tensor), *(size for size, _ in dims))
        strides = tuple(2 * (step if size > 1 else 8) for size, step in dims)
        if self.p.is_varlen:  # see `tiles.tile_coordinates`; 2**34 * FAR is 2**64
            sizes = (sizes[0], FAR.value, sizes[2], UNBOUNDED, UNBOUNDED)
            strides = (*strides[:2], strides[0], 2**34 - strides[0])
        ones = (1,) * (len(sizes) - 2)
        box = (SWIZZLE_ELEMENTS, rows, *ones)
        return TritonDescriptor(tensor, self.p.dtype, sizes, strides, box, block=(*ones, rows, columns))

    def tiles(self, of: str, block: int) -> tuple[Values, int]:
        """What `tiles.work_tile` takes for tiles of `block` queries ("q"), keys ("k") or rows of the
        workspaces ("workspace"), and the number of programs."""
        p = self.p
        rows, heads = (p.N, p.G) if of == "k" else (p.M, p.H)
        if p.is_varlen:
            tiles = max_tiles(rows, p.offsets, VARLEN_TILE.value) * (VARLEN_TILE.value // block)
            table = Pointer("k_tiles" if of == "k" else "q_tiles", True)
            return {"tiles_ptr": table, "tiles": 0}, tiles * heads
        tiles = ceil_div(self.padded if of == "workspace" else rows, block)
        return {"tiles_ptr": None, "tiles": i32(tiles)}, tiles * p.B * heads

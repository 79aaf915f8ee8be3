"""The arguments of a Triton launch as the bytes and buffers that a kernel of an emulated GPU gets.

Tensors, numbers, tuples of them, host tensor descriptors and objects with `data_ptr()`. The memory behind an
address is that of a tensor of this process: given with it, or found among the live ones. A kernel that gets
64-bit integers that are addresses of live tensors (a grouped product's table) may access these too.
"""

from __future__ import annotations

import gc
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from portable.backends.rocm.emulator.launch import Buffer
from portable.errors import LaunchError

# Triton's scalar types as struct formats; bfloat16 is packed by hand.
FORMATS = {
    "i1": "?", "i8": "b", "i16": "h", "i32": "i", "i64": "q",
    "u1": "?", "u8": "B", "u16": "H", "u32": "I", "u64": "Q",
    "fp16": "e", "bf16": "H", "fp32": "f", "f32": "f", "fp64": "d",
}  # fmt: skip
C_TYPES = {
    "i1": "int8_t", "i8": "int8_t", "i16": "int16_t", "i32": "int32_t", "i64": "int64_t",
    "u1": "uint8_t", "u8": "uint8_t", "u16": "uint16_t", "u32": "uint32_t", "u64": "uint64_t",
    "fp16": "double", "bf16": "double", "fp32": "double", "f32": "double", "fp64": "double",
}  # fmt: skip
_DESCRIPTOR = re.compile(r"tensordesc<([^\[>]*)\[([^\]]*)\]")
_LONGEST_TABLE = 1 << 16  # elements of a tensor that is searched for addresses
_LOWEST_ADDRESS = 1 << 20  # a smaller integer is a number


@dataclass(frozen=True)
class Packed:
    """The argument segment and the memory that the kernel may access; `kept` lives as long as the launch."""

    kernarg: bytes
    buffers: list[Buffer]
    kept: list[torch.Tensor]


class Arguments:
    """How one compiled kernel takes its arguments. Raises LaunchError for a kind that is not emulated."""

    def __init__(self, kernel: str, signature: Mapping[Any, Any], metadata: Any):
        self._kernel = kernel
        self._signature = {str(name): kind for name, kind in signature.items()}
        described = any(getattr(metadata, "tensordesc_meta", None) or ())
        for name, kind in self._signature.items():
            self._check(name, kind, described)
        self._scratch = [
            (what, getattr(metadata, f"{what}_size", 0) or 0, getattr(metadata, f"{what}_align", 1) or 1)
            for what in ("global_scratch", "profile_scratch")
        ]

    def _check(self, name: str, kind: Any, described: bool) -> None:
        if isinstance(kind, tuple):
            for i, each in enumerate(kind):
                self._check(f"{name}[{i}]", each, described)
        elif not (kind == "constexpr" or kind.startswith("*") or kind in FORMATS) and (
            described or not kind.startswith("tensordesc<")
        ):
            what = "a descriptor of the tensor data mover" if described else f"a {kind}"
            raise LaunchError(
                self._kernel, f"argument {name!r} is {what}, which the emulator does not support"
            )

    def pack(self, grid: tuple[int, int, int], args: Sequence[Any], extents: str) -> Packed:
        """Each argument aligned to its size, then the two scratch pointers. Constants at the end may be left
        out, as Triton's own drivers allow. Raises LaunchError."""
        left_out = list(self._signature.values())[len(args) :]
        if len(args) > len(self._signature) or any(kind != "constexpr" for kind in left_out):
            expected = f"expected {len(self._signature)} ({', '.join(self._signature)})"
            raise LaunchError(self._kernel, f"it was given {len(args)} arguments, {expected}")
        data, packed = bytearray(), Packed(b"", [], [])
        tables: list[torch.Tensor] = []
        pairs = zip(self._signature.items(), args, strict=False)
        for name, kind, value in self._flat((name, kind, value) for (name, kind), value in pairs):
            if not kind.startswith("*"):
                _append(data, self._scalar(name, kind, value))
                continue
            address, tensor = self._pointer(name, value)
            if tensor is not None:
                of = Buffer.of_storage(name, tensor) if extents == "storage" else Buffer.of(name, tensor)
                if of.nbytes:
                    packed.buffers.append(Buffer(name, of.address, of.nbytes, not kind.startswith("*k")))
                if kind[-3:] in ("i64", "u64"):
                    tables.append(tensor)
            _append(data, struct.pack("<Q", address))
        packed.buffers.extend(_named_in(tables, packed.buffers))
        for name, size, alignment in self._scratch:
            address = 0
            if size:
                nbytes = size * grid[0] * grid[1] * grid[2]
                space = torch.empty(nbytes + alignment, dtype=torch.uint8)
                address = -(-space.data_ptr() // alignment) * alignment
                packed.buffers.append(Buffer(name, address, nbytes))
                packed.kept.append(space)
            _append(data, struct.pack("<Q", address))
        return Packed(bytes(data), packed.buffers, packed.kept)

    def _flat(self, given: Iterator[tuple[str, Any, Any]]) -> Iterator[tuple[str, str, Any]]:
        """The arguments that the kernel gets: tuples and descriptors taken apart, constants left out."""
        for name, kind, value in given:
            if isinstance(kind, tuple):
                inner = zip(range(len(kind)), kind, value, strict=True)
                yield from self._flat((f"{name}[{i}]", each, part) for i, each, part in inner)
            elif kind.startswith("tensordesc"):
                yield from self._descriptor(name, kind, value)
            elif kind != "constexpr":
                yield name, kind, value

    def _descriptor(self, name: str, kind: str, value: Any) -> Iterator[tuple[str, str, Any]]:
        """A host tensor descriptor as Triton's driver passes it: taken apart, shape and strides again."""
        found = _DESCRIPTOR.match(kind)
        if found is None or not hasattr(value, "base"):
            raise LaunchError(self._kernel, f"argument {name!r} is no {kind} but a {type(value).__name__}")
        sizes = [(f"{name}.shape", size) for size in value.shape]
        steps = [(f"{name}.strides", step) for step in value.strides]
        yield name, "*" + found[1], value.base
        yield from ((part, "i64", number) for part, number in (*sizes, *steps))
        yield f"{name}.padding", "i1", getattr(value, "padding", "zero") == "nan"
        if hasattr(value, "round_f32_to_tf32"):  # from Triton 3.7
            yield f"{name}.round_f32_to_tf32", "i1", bool(value.round_f32_to_tf32)
        yield from ((part, "i32", number) for part, number in sizes)
        yield from ((part, "i64", number) for part, number in steps)

    def _scalar(self, name: str, kind: str, value: Any) -> bytes:
        try:
            if kind == "bf16":
                return struct.pack("<h", torch.tensor(value, dtype=torch.bfloat16).view(torch.int16).item())
            return struct.pack("<" + FORMATS[kind], value)
        except (struct.error, TypeError) as error:
            raise LaunchError(self._kernel, f"argument {name!r} is {value!r}, no {kind}: {error}") from None

    def _pointer(self, name: str, value: Any) -> tuple[int, torch.Tensor | None]:
        """An argument's address, and the tensor in whose memory it is; no tensor for null and empty ones."""
        if value is None or (isinstance(value, int) and value == 0):
            return 0, None
        tensor = _wrapped(value)
        locate = getattr(value, "data_ptr", None)
        if tensor is None and locate is not None:
            address = locate()
            tensor = _holding(address, vars(value).values() if hasattr(value, "__dict__") else ())
            tensor = tensor if tensor is not None else _holding(address, _live())
            if tensor is not None:
                return address, tensor
        if tensor is None:
            what = f"argument {name!r} is a {type(value).__name__}, whose extent is not known"
            raise LaunchError(self._kernel, what)
        if tensor.device.type != "cpu":
            where = f"argument {name!r} is on {tensor.device}"
            raise LaunchError(self._kernel, f"{where}; an emulated GPU takes CPU tensors")
        return tensor.data_ptr(), tensor


def _wrapped(value: Any) -> torch.Tensor | None:
    """The tensor that an argument is, or that `triton.reinterpret` wrapped."""
    for each in (value, getattr(value, "base", None)):
        if isinstance(each, torch.Tensor):
            return each
    return None


def _holding(address: int, candidates: Any) -> torch.Tensor | None:
    """The tensor in whose storage an address is."""
    for each in candidates:
        if isinstance(each, torch.Tensor) and each.device.type == "cpu" and each.layout == torch.strided:
            storage = each.untyped_storage()
            if storage.data_ptr() <= address < storage.data_ptr() + storage.nbytes():
                return each
    return None


def _live() -> list[torch.Tensor]:
    """The CPU tensors of this process that Python knows."""
    return [
        each
        for each in gc.get_objects()
        if issubclass(type(each), torch.Tensor) and each.device.type == "cpu" and each.layout == torch.strided
    ]


def _named_in(tables: Sequence[torch.Tensor], known: Sequence[Buffer]) -> Iterator[Buffer]:
    """The storages of the live tensors whose addresses stand in `tables`."""
    values = {
        value
        for table in tables
        if table.numel() <= _LONGEST_TABLE
        for value in set(table.flatten().tolist())
        if value >= _LOWEST_ADDRESS and not any(b.address <= value < b.address + b.nbytes for b in known)
    }
    if not values:
        return
    seen = set()
    for tensor in _live():
        found = Buffer.of_storage("a tensor by its address", tensor)
        inside = any(found.address <= value < found.address + found.nbytes for value in values)
        if inside and found.address not in seen:
            seen.add(found.address)
            yield found


def _append(data: bytearray, value: bytes) -> None:
    data.extend(bytes(-len(data) % len(value)) + value)

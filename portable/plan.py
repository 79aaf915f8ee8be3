"""What an implementation hands to a backend: which kernels to build and how to launch them.

An implementation's `plan(call)` looks at shapes, strides, dtypes and the device, never at data. It
answers with a `Plan`: plain values that a backend builds and launches on a GPU or on an emulated
one, that `portable.explain` prints, and that `portable check` compiles with no GPU there. A plan is
made once per distinct call signature and memoised; what repeats per call is packing the pointers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from portable import dtypes

ScalarKind = Literal["i32", "i64", "u32", "f32"]


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU, or the CPU, as far as planning and compiling need to know it.

    `shared_memory` is the most bytes of shared memory (LDS) one block may use; `registers` the
    most 32-bit registers a thread may hold. `emulated` says the numbers come from software.
    """

    vendor: str
    arch: str
    name: str
    index: int = 0
    multiprocessors: int = 1
    warp_size: int = 32
    shared_memory: int = 48 * 1024
    registers: int = 255
    l2_bytes: int = 0
    emulated: bool = False

    def __str__(self) -> str:
        return f"emulated {self.arch}" if self.emulated else f"{self.name} ({self.arch})"


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor without its data. Strides count elements; `alignment` is the largest power of two,
    at most 16, that divides the address of its first element in bytes."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    alignment: int = 16

    @property
    def numel(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def span(self) -> int:
        """Elements from the first to the last in memory, both counted; 0 where there are none."""
        if self.numel == 0:
            return 0
        return 1 + sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))


@dataclass(frozen=True, slots=True)
class Call:
    """A call as an implementation's planner gets it: every tensor of the spec by name (None where an optional
    one is absent), outputs included; the bound axes; the parameters; the device and the config."""

    tensors: Mapping[str, TensorInfo | None]
    params: Mapping[str, Any]
    axes: Mapping[str, int]
    device: Device
    config: Mapping[str, Any]

    def __getitem__(self, name: str) -> TensorInfo:
        info = self.tensors[name]
        if info is None:
            raise KeyError(f"{name} is absent from this call")
        return info

    def has(self, name: str) -> bool:
        return self.tensors.get(name) is not None


@dataclass(frozen=True, slots=True)
class Pointer:
    """The address of a tensor or workspace. `aligned` promises a multiple of 16 bytes. `dtype` is what a
    Triton kernel takes its elements for, where that is not the tensor's own: codes as uint8, where a GPU has
    no such type."""

    tensor: str
    aligned: bool = False
    dtype: str | None = None


@dataclass(frozen=True, slots=True)
class Scalar:
    """A number passed by value. `divisible` promises a multiple of 16 (integers)."""

    kind: ScalarKind
    value: int | float
    divisible: bool = False


class ByValueArgument(Protocol):
    """An argument whose bytes depend on a tensor's address: the backend's `encoder` makes them."""

    @property
    def tensor(self) -> str: ...
    @property
    def size(self) -> int: ...
    @property
    def alignment(self) -> int: ...


@dataclass(frozen=True)
class TensorMap:
    """A tensor map (TMA descriptor) of `tensor`, passed by value: 128 bytes, aligned to 64.

    `sizes` and `box` count elements from the innermost dimension, whose stride is one element; `strides` are
    the bytes between neighbours along the other dimensions, multiples of 16. A load brings a box of `box`
    elements, with zeros where it is out of bounds, into shared memory with the 128-byte swizzle; the
    innermost box is 128 bytes at most. `promotion` is the L2 promotion in bytes, 128 or 256."""

    tensor: str
    dtype: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    promotion: int = 256
    size: int = 128
    alignment: int = 64


@dataclass(frozen=True)
class TritonDescriptor(TensorMap):
    """A tensor map as an argument of a Triton kernel: a descriptor of tiles of `block` elements, outermost
    dimension first. Triton divides tiles wider than the swizzle into boxes and passes the tensor's sizes and
    strides beside the map."""

    block: tuple[int, ...] = ()

    @property
    def triton_type(self) -> str:
        return f"tensordesc<{dtypes.of(self.dtype).triton}{list(self.block)}>"

    def arguments(self, name: str) -> list[tuple[str, Any]]:
        """The map and the parameters that follow it."""
        itemsize = dtypes.itemsize(self.dtype)
        sizes = [(f"{name}.size{i}", Scalar("i32", size)) for i, size in enumerate(reversed(self.sizes))]
        steps = [stride // itemsize for stride in reversed(self.strides)] + [1]
        return [(name, self), *sizes, *((f"{name}.stride{i}", Scalar("i64", s)) for i, s in enumerate(steps))]


@dataclass(frozen=True, slots=True)
class Struct:
    """A C struct passed by value, of a native kernel: `fields` are (name, argument) in order, each aligned to
    its size as C aligns it, and the whole to 8 bytes."""

    fields: tuple[tuple[str, Pointer | Scalar], ...]


Argument = Pointer | Scalar | ByValueArgument | Struct


@dataclass(frozen=True, slots=True)
class TritonKernel:
    """A `@triton.jit` function with its constexprs fixed; a constexpr of None drops a pointer.

    `options` holds compiler options that one vendor alone understands, e.g. ("waves_per_eu", 2), and settings
    of Triton while it compiles, e.g. ("knob.amd.use_async_copy", True). One with a true constant PDL is
    launched as NativeKernel's `pdl` says.
    """

    function: Any
    constants: tuple[tuple[str, Any], ...]
    num_warps: int = 4
    num_stages: int = 2
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def name(self) -> str:
        return self.function.__name__

    @property
    def pdl(self) -> bool:
        return ("PDL", True) in self.constants


@dataclass(frozen=True, slots=True)
class NativeKernel:
    """One `extern "C"` entry of a .cu or .hip file, built with the given preprocessor defines.

    `threads` is the block size; `shared` the dynamic shared memory in bytes. `pdl` requests programmatic
    dependent launch: blocks may start before the previous launch on the stream has ended, and the source
    itself waits for that (`grid_dependency_wait()`) before it reads or writes global memory. A backend
    without it ignores the flag.
    """

    source: Path
    entry: str
    threads: int
    defines: tuple[tuple[str, int | str], ...] = ()
    shared: int = 0
    pdl: bool = False

    @property
    def name(self) -> str:
        return self.entry


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel launch. `args` are (parameter name, argument) in the kernel's own order; a Triton
    kernel's constexprs are left out. A grid with a 0 in it has no blocks, and launches nothing."""

    kernel: TritonKernel | NativeKernel
    grid: tuple[int, int, int]
    args: tuple[tuple[str, Argument], ...]


@dataclass(frozen=True, slots=True)
class KernelArgument:
    """The place of one argument of a bound launch in the argument buffer, by C's layout rules: `size` bytes
    from byte `offset`. A pointer may be followed for `extent` bytes; only outputs and workspaces are
    `written`."""

    name: str
    offset: int
    size: int
    is_pointer: bool = False
    extent: int = 0
    written: bool = False
    fields: tuple[KernelArgument, ...] = ()

    def pointers(self) -> tuple[KernelArgument, ...]:
        """The pointers in it: itself, or those among a struct's fields."""
        return (self,) if self.is_pointer else tuple(each for each in self.fields if each.is_pointer)


@dataclass(frozen=True, slots=True)
class Workspace:
    """Device memory that lives for one call, uninitialised."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class Plan:
    """The launches of one call, in order, on one stream."""

    launches: tuple[Launch, ...]
    workspaces: tuple[Workspace, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class Rejected:
    """The reason for refusal. The dispatcher then tries the next implementation."""

    reason: str

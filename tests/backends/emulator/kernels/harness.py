"""Compiles a file of kernels and launches one of them in the emulator on NumPy arrays.

Every array gets memory of its own with a guard on both sides, checked after the launch; outputs are
filled with random bytes before it. Kernel arguments are packed as the code object's metadata says,
hidden ones included (LLVM's AMDGPU usage guide, "Code Object V5 Metadata").
"""

from __future__ import annotations

import functools
import os
import secrets
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from portable.backends.rocm import compile as rocm
from portable.runtime import disk_cache

HERE = Path(__file__).resolve().parent
ALL = ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201")
BY_DEFAULT = ("gfx942", "gfx1100")
SEED = int(os.environ.get("PORTABLE_EMULATOR_SEED", secrets.randbits(32)))
GUARD = 256
ALIGNMENT = 256


def arches() -> tuple[str, ...]:
    """The two that every run covers; all five with PORTABLE_EMULATOR_ALL=1."""
    return ALL if os.environ.get("PORTABLE_EMULATOR_ALL") == "1" else BY_DEFAULT


def wave_of(arch: str) -> int:
    return 64 if arch.startswith("gfx9") else 32


def image(file: str, arch: str) -> bytes:
    """The code object of `kernels/<file>` with line tables, from the disk cache where it is there."""
    source = HERE / file
    prelude = Path(rocm.__file__).with_name("prelude.h")
    name = disk_cache.key(
        "emulator-test", rocm.toolchain().name, arch, str(source), source.read_bytes(), prelude.read_bytes()
    )
    return disk_cache.get(name, lambda: rocm.compile(source, (), arch, debug=True))


@functools.cache
def code(file: str, arch: str) -> Any:
    from portable.backends.rocm.emulator.code_object import CodeObject

    return CodeObject(image(file, arch))


@dataclass(frozen=True)
class Out:
    """An output that the kernel writes whole; it starts as random bytes."""

    shape: int | tuple[int, ...]
    dtype: Any


@dataclass(frozen=True)
class InOut:
    """An array that the kernel reads and writes; a copy of `array` is given to it."""

    array: np.ndarray


class Memory:
    """A copy of an array between two guards, at an aligned address."""

    def __init__(self, array: np.ndarray, rng: np.random.Generator, writable: bool) -> None:
        n = array.nbytes
        self.raw = rng.integers(0, 256, n + 2 * GUARD + ALIGNMENT, dtype=np.uint8)
        first = -self.raw.ctypes.data % ALIGNMENT + GUARD
        self.before, self.after = slice(0, first), slice(first + n, None)
        self.bytes = self.raw[first : first + n]
        self.bytes[:] = np.frombuffer(array.tobytes(), np.uint8)
        self.array = self.bytes.view(array.dtype).reshape(array.shape)
        self.address = self.raw.ctypes.data + first
        self.writable = writable
        self.copy = self.raw.copy()

    def check(self, name: str) -> None:
        """The guards, and a read-only array, are what they were."""
        for part in (self.before, self.after) + (() if self.writable else (slice(None),)):
            assert np.array_equal(self.raw[part], self.copy[part]), f"{name}: memory outside was written"


def pack(kernel: Any, values: list[bytes], grid: tuple, block: tuple, shared: int) -> bytes:
    """The kernel argument segment."""
    hidden = {
        "hidden_block_count_x": struct.pack("<I", grid[0]),
        "hidden_block_count_y": struct.pack("<I", grid[1]),
        "hidden_block_count_z": struct.pack("<I", grid[2]),
        "hidden_group_size_x": struct.pack("<H", block[0]),
        "hidden_group_size_y": struct.pack("<H", block[1]),
        "hidden_group_size_z": struct.pack("<H", block[2]),
        "hidden_grid_dims": struct.pack("<H", 3),
        "hidden_dynamic_lds_size": struct.pack("<I", shared),
    }
    segment = bytearray(kernel.kernarg_size)
    waiting = list(values)
    for argument in kernel.arguments:
        kind, offset, size = argument[".value_kind"], argument[".offset"], argument[".size"]
        value = hidden.get(kind, b"") if kind.startswith("hidden_") else waiting.pop(0)
        if not kind.startswith("hidden_"):
            assert len(value) == size, f"{kernel.name}: an argument of {size} bytes was given {len(value)}"
        segment[offset : offset + len(value)] = value
    assert not waiting, f"{kernel.name}: {len(waiting)} arguments too many"
    return bytes(segment)


def triple(size: int | tuple[int, ...]) -> tuple[int, int, int]:
    sizes = (size,) if isinstance(size, int) else size
    return (*sizes, 1, 1, 1)[:3]  # type: ignore[return-value]


class Launcher:
    """Launches kernels of one file on one architecture; `memories` are those of the latest launch."""

    def __init__(self, file: str, arch: str, seed: int = SEED) -> None:
        self.file, self.arch, self.wave = file, arch, wave_of(arch)
        self.rng = np.random.default_rng(seed)
        self.memories: list[Memory] = []
        self.races = False  # of workgroups

    def kernel(self, name: str) -> Any:
        return code(self.file, self.arch).kernels[name]

    def __call__(self, name: str, grid: Any, block: Any, *args: Any, shared: int = 0, **options: Any) -> Any:
        """Its outputs in the order of the arguments: one array, or a tuple of several."""
        return self.start(self.kernel(name), grid, block, *args, shared=shared, **options)

    def start(self, kernel: Any, grid: Any, block: Any, *args: Any, shared: int = 0, **options: Any) -> Any:
        from portable.backends.rocm.emulator.faults import KernelFault
        from portable.backends.rocm.emulator.launch import Buffer, KernelLaunch, launch

        grid, block = triple(grid), triple(block)
        values, buffers, outputs = [], [], []
        self.memories = []
        for index, arg in enumerate(args):
            if isinstance(arg, bytes | np.generic):
                values.append(arg if isinstance(arg, bytes) else arg.tobytes())
                continue
            if isinstance(arg, Out):
                size = int(np.prod(arg.shape)) * np.dtype(arg.dtype).itemsize
                poison = self.rng.integers(0, 256, size, dtype=np.uint8)
                array, writable = poison.view(arg.dtype).reshape(arg.shape), True
            else:
                array, writable = (arg.array, True) if isinstance(arg, InOut) else (arg, False)
            memory = Memory(array, self.rng, writable)
            self.memories.append(memory)
            buffers.append(Buffer(f"arg{index}", memory.address, memory.bytes.size, writable))
            values.append(struct.pack("<Q", memory.address))
            if writable:
                outputs.append(memory.array)
        kernarg = pack(kernel, values, grid, block, shared)
        try:
            given = KernelLaunch(kernel, grid, block, shared, kernarg, buffers, races=self.races)
            launch(given, **options)
        except KernelFault as fault:
            if add_note := getattr(fault, "add_note", None):  # Python 3.11
                add_note(f"PORTABLE_EMULATOR_SEED={SEED}")
            raise
        finally:
            for buffer, memory in zip(buffers, self.memories, strict=True):
                memory.check(f"{kernel.name}, {buffer.name}")
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

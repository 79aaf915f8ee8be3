"""The answers to a HIP program's calls: one method for each that native/api.cpp hands on, by its name.

Arguments are words (integers; addresses for pointers). A method returns a hipError_t, None for hipSuccess.
Everything has happened when a call returns: streams and events only have to exist.
"""

from __future__ import annotations

import ctypes
import itertools
import struct
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

from portable.backend import Finding, Programs
from portable.backends.rocm.emulator.code_object import Kernel
from portable.backends.rocm.emulator.faults import EmulatorError, KernelFault
from portable.backends.rocm.emulator.found import listener
from portable.backends.rocm.emulator.hip import modules, rtc
from portable.backends.rocm.emulator.hip.memory import DEVICE, HOST, MANAGED, Memory, Piece, load, store
from portable.backends.rocm.emulator.launch import Buffer
from portable.backends.rocm.emulator.runtime import EmulatedRuntime
from portable.errors import LaunchError

# Values of hipError_t.
INVALID_VALUE, OUT_OF_MEMORY, INVALID_SYMBOL, INVALID_FUNCTION, INVALID_DEVICE = 1, 2, 13, 98, 101
INVALID_CONFIGURATION, INVALID_IMAGE, FILE_NOT_FOUND, INVALID_HANDLE, NOT_FOUND = 9, 200, 301, 400, 500
LAUNCH_FAILURE, TOO_LARGE, UNKNOWN = 719, 720, 999

_HOST_TO_HOST, _DEFAULT = 0, 4  # of hipMemcpyKind
_PRINT_BYTES = 16 << 20
_PITCH = 256
# What a program may still do after a fault of a kernel; all else then is hipErrorLaunchFailure.
_AFTER_FAULT = {"hipFree", "hipFreeAsync", "hipHostFree", "hipStreamDestroy", "hipEventDestroy", "properties"}


class Api:
    """The GPU of one program. `found` is entered into; `arch` is the emulated architecture."""

    def __init__(self, runtime: EmulatedRuntime, found: Programs, print_records: Callable[[int], int]):
        self.arch = runtime.target.arch
        self.found = found
        self.memory = Memory()
        self.rtc = rtc.Compiler(self.arch)
        self._runtime = runtime
        self._listen = listener(found, modules.demangled)
        self._print_records = print_records
        self._print_to = ctypes.create_string_buffer(16 + _PRINT_BYTES)
        struct.pack_into("<QQ", self._print_to, 0, 0, _PRINT_BYTES)
        self._running = threading.Lock()  # held by a launch: those of several threads are one after the other
        self._faulted = False
        self._timed = 0
        self._handles = itertools.count(0x1000, 16)
        self._live: dict[int, str] = {}  # streams and events by handle
        self._modules: dict[int, modules.Module] = {}
        self._functions: dict[int, tuple[modules.Module, str]] = {}  # by the host's stub, or by handle
        self._symbols: dict[int, Piece] = {}  # by the host's shadow

    def call(self, name: str, arguments: Any) -> int:
        """Answer a call. What Python raises does not reach the program: it is printed, an error returned."""
        if self._faulted and name not in _AFTER_FAULT:
            return LAUNCH_FAILURE
        method = getattr(self, name, None) or getattr(self.rtc, name)
        code = method.__func__.__code__
        count = code.co_argcount - 1 - len(method.__func__.__defaults__ or ())
        try:
            return method(*arguments[:count]) or 0
        except KernelFault:
            self._faulted = True
            return LAUNCH_FAILURE
        except (LaunchError, EmulatorError) as error:
            print(f"portable: {error}", file=sys.stderr)
            return INVALID_CONFIGURATION
        except Exception:
            traceback.print_exc()
            return UNKNOWN

    def notes(self) -> list[str]:
        """What to say of the program besides its findings."""
        asked = f"hipEventElapsedTime, {self._timed} times: NaN, for an emulated GPU has no timings"
        return [asked] if self._timed else []

    def nothing(self) -> None:
        """hipDeviceSynchronize and its like: a launch of another thread may run still."""
        with self._running:
            pass

    # Device.

    def hipGetDeviceCount(self, count: int) -> None:
        store(count, "<i", 1)

    def hipGetDevice(self, device: int) -> None:
        store(device, "<i", 0)

    def hipSetDevice(self, device: int) -> int | None:
        return INVALID_DEVICE if device else None

    def hipDeviceGet(self, device: int, ordinal: int) -> int | None:
        store(device, "<i", 0)
        return INVALID_DEVICE if ordinal else None

    def hipDeviceTotalMem(self, nbytes: int, device: int) -> int | None:
        store(nbytes, "<Q", self.memory.total)
        return INVALID_DEVICE if device else None

    def hipDeviceCanAccessPeer(self, can: int, device: int, peer: int) -> int | None:
        store(can, "<i", 0)
        return INVALID_DEVICE if device or peer else None

    def hipDeviceEnablePeerAccess(self, peer: int) -> int:
        return INVALID_DEVICE

    def hipDeviceDisablePeerAccess(self, peer: int) -> int:
        return INVALID_DEVICE

    def properties(self, figures: int, arch: int, device: int) -> int | None:
        """For hipGetDeviceProperties: 10 figures, and the architecture's name."""
        if device:
            return INVALID_DEVICE
        store(figures, "<10Q", *self._figures().values())
        store(arch, "<256s", self.arch.encode())
        return None

    def _figures(self) -> dict[str, int]:
        found = self._runtime.properties(0)
        digits = self.arch.removeprefix("gfx")
        return {
            "threads": found["max_threads"],
            "processors": found["multiprocessors"],
            "lds": found["shared_memory"],
            "wave": found["warp_size"],
            "l2": found["l2_bytes"],
            "memory": self.memory.total,
            "major": int(digits[:-2]),
            "minor": int(digits[-2], 16),
            "threads per processor": 2048,
            "cooperative": 1,
        }

    def hipDeviceGetAttribute(self, value: int, attribute: int, device: int) -> int | None:
        figures = self._figures()
        most = figures["threads"]
        # In the order of hipDeviceAttribute_t.
        values = [0, 1, 0, 0, 1, 0, figures["cooperative"], 0, 0, 0, figures["l2"], 1, most, most, most]
        values += [2**31 - 1, 65535, 65535, 65536, figures["lds"], most, figures["threads per processor"]]
        values += [0, 0, figures["major"], figures["minor"], figures["processors"], 2**31 - 1]
        values += [min(figures["memory"], 2**31 - 1), 1, figures["wave"]]
        if device or attribute >= len(values):
            return INVALID_DEVICE if device else INVALID_VALUE
        store(value, "<i", values[attribute])
        return None

    # Memory.

    def hipMalloc(self, pointer: int, nbytes: int) -> int | None:
        return self._allocate("hipMalloc", pointer, nbytes, DEVICE)

    def hipMallocAsync(self, pointer: int, nbytes: int) -> int | None:
        return self._allocate("hipMallocAsync", pointer, nbytes, DEVICE)

    def hipMallocManaged(self, pointer: int, nbytes: int) -> int | None:
        return self._allocate("hipMallocManaged", pointer, nbytes, MANAGED)

    def hipHostMalloc(self, pointer: int, nbytes: int) -> int | None:
        return self._allocate("hipHostMalloc", pointer, nbytes, HOST)

    def hipMallocPitch(self, pointer: int, pitch: int, width: int, height: int) -> int | None:
        row = width + -width % _PITCH
        store(pitch, "<Q", row)
        return self._allocate("hipMallocPitch", pointer, row * height, DEVICE)

    def _allocate(self, function: str, pointer: int, nbytes: int, kind: int) -> int | None:
        if not pointer:
            return INVALID_VALUE
        address = self.memory.allocate(function, nbytes, kind)
        if address is None:
            return OUT_OF_MEMORY
        store(pointer, "<Q", address)
        return None

    def hipFree(self, pointer: int) -> int | None:
        return None if not pointer or self.memory.remove(pointer) else INVALID_VALUE

    hipFreeAsync = hipHostFree = hipHostUnregister = hipFree

    def hipHostRegister(self, pointer: int, nbytes: int) -> int | None:
        if not pointer or not nbytes:
            return INVALID_VALUE
        self.memory.add(Piece(f"the {nbytes} bytes of hipHostRegister", pointer, nbytes, HOST, None))
        return None

    def hipHostGetDevicePointer(self, device: int, host: int) -> int | None:
        if self.memory.at(host) is None:
            return INVALID_VALUE
        store(device, "<Q", host)
        return None

    def hipMemGetInfo(self, free: int, total: int) -> None:
        store(free, "<Q", self.memory.total - self.memory.used)
        store(total, "<Q", self.memory.total)

    def pointer(self, found: int, pointer: int) -> int | None:
        piece = self._at(pointer)
        if piece is None:
            return INVALID_VALUE
        store(found, "<QQ", piece.kind, piece.kind != DEVICE)
        return None

    def hipMemcpy(self, to: int, source: int, nbytes: int, kind: int) -> int | None:
        """Whether the copy may be made; the caller makes it."""
        self.nothing()
        if nbytes == 0:
            return None
        wrote = self._extent("hipMemcpy", "writes", to, nbytes)
        read = self._extent("hipMemcpy", "reads", source, nbytes)
        if wrote is None or read is None:
            return INVALID_VALUE
        known = wrote or read
        return None if known or kind in (_HOST_TO_HOST, _DEFAULT) else INVALID_VALUE

    def hipMemset(self, to: int, value: int, width: int, count: int) -> int | None:
        if count == 0:
            return None
        if not self._extent("hipMemset", "writes", to, width * count):
            return INVALID_VALUE
        if width == 1:
            ctypes.memset(to, value, count)
        else:
            pattern = (value & (1 << 8 * width) - 1).to_bytes(width, "little") * count
            ctypes.memmove(to, pattern, len(pattern))
        return None

    def _extent(self, what: str, does: str, address: int, nbytes: int) -> bool | None:
        """Whether the GPU's memory holds the bytes at `address`; None, and a finding, if only the first."""
        piece = self._at(address)
        if piece is None:
            return False
        offset = address - piece.address
        if offset + nbytes <= piece.nbytes:
            return True
        detail = f"{does} {nbytes} bytes at offset {offset} of {piece.name}, which has {piece.nbytes}"
        message = f"{what}: out-of-bounds: {detail}"
        self.found.findings.append(Finding("out-of-bounds", what, message, None, None))
        return None

    def _at(self, address: int) -> Piece | None:
        piece = self.memory.at(address)
        if piece is None:
            pieces = (each for module in self._modules.values() for each in module.variables.values())
            piece = next((p for p in pieces if p.address <= address < p.address + p.nbytes), None)
        return piece

    # Streams and events.

    def hipStreamCreate(self, stream: int) -> None:
        self._new(stream, "stream")

    def hipEventCreate(self, event: int) -> None:
        self._new(event, "event")

    def _new(self, pointer: int, what: str) -> None:
        handle = next(self._handles)
        self._live[handle] = what
        store(pointer, "<Q", handle)

    def hipStreamDestroy(self, stream: int) -> int | None:
        return None if self._live.pop(stream, None) == "stream" else INVALID_HANDLE

    def hipEventDestroy(self, event: int) -> int | None:
        return None if self._live.pop(event, None) == "event" else INVALID_HANDLE

    def hipStreamSynchronize(self, stream: int) -> int | None:
        return None if stream < 3 or self._live.get(stream) == "stream" else INVALID_HANDLE

    def hipEventSynchronize(self, event: int) -> int | None:
        return None if self._live.get(event) == "event" else INVALID_HANDLE

    def hipStreamWaitEvent(self, stream: int, event: int) -> int | None:
        return self.hipStreamSynchronize(stream) or self.hipEventSynchronize(event)

    def hipEventRecord(self, event: int, stream: int) -> int | None:
        return self.hipStreamWaitEvent(stream, event)

    def hipEventElapsedTime(self, start: int, stop: int) -> int | None:
        self._timed += 1
        return self.hipEventSynchronize(start) or self.hipEventSynchronize(stop)

    # Modules.

    # The program's own code, registered before main. Where it cannot be loaded its kernels are unknown.

    def register_binary(self, module: int, binary: int) -> None:
        self._load(module, binary)

    def register_function(self, module: int, stub: int, name: int) -> None:
        if module in self._modules:
            self._functions[stub] = (self._modules[module], ctypes.string_at(name).decode())

    def register_variable(self, module: int, shadow: int, name: int) -> None:
        variables = self._modules[module].variables if module in self._modules else {}
        piece = variables.get(ctypes.string_at(name).decode())
        if piece is not None:
            self._symbols[shadow] = piece

    def hipModuleLoadData(self, module: int, image: int) -> int | None:
        return self._load(module, image)

    def hipModuleLoad(self, module: int, file: int) -> int | None:
        try:
            with open(ctypes.string_at(file), "rb") as opened:
                image = ctypes.create_string_buffer(opened.read() + bytes(64))
        except OSError:
            return FILE_NOT_FOUND
        return self._load(module, ctypes.addressof(image))

    def _load(self, module: int, image: int) -> int | None:
        try:
            code = modules.image_at(image, self.arch)
            loaded = modules.load(self._runtime, code, ctypes.addressof(self._print_to))
        except (LaunchError, EmulatorError) as error:
            print(f"portable: {error}", file=sys.stderr)
            return INVALID_IMAGE
        handle = next(self._handles)
        self._modules[handle] = loaded
        store(module, "<Q", handle)
        return None

    def hipModuleUnload(self, module: int) -> int | None:
        found = self._modules.pop(module, None)
        if found is None:
            return INVALID_HANDLE
        self._runtime.unload_module(found.handle)
        return None

    def hipModuleGetFunction(self, function: int, module: int, name: int) -> int | None:
        found, wanted = self._modules.get(module), ctypes.string_at(name).decode()
        if found is None:
            return INVALID_HANDLE
        if wanted not in found.code.kernels:
            return NOT_FOUND
        handle = next(self._handles)
        self._functions[handle] = (found, wanted)
        store(function, "<Q", handle)
        return None

    def hipModuleGetGlobal(self, pointer: int, nbytes: int, module: int, name: int) -> int | None:
        found = self._modules.get(module)
        if found is None:
            return INVALID_HANDLE
        piece = found.variables.get(ctypes.string_at(name).decode())
        if piece is None:
            return NOT_FOUND
        for place, value in ((pointer, piece.address), (nbytes, piece.nbytes)):
            if place:
                store(place, "<Q", value)
        return None

    def hipGetSymbolAddress(self, pointer: int, symbol: int) -> int | None:
        piece = self._symbols.get(symbol)
        if piece is None:
            return INVALID_SYMBOL
        store(pointer, "<Q", piece.address)
        return None

    def hipGetSymbolSize(self, nbytes: int, symbol: int) -> int | None:
        piece = self._symbols.get(symbol)
        if piece is None:
            return INVALID_SYMBOL
        store(nbytes, "<Q", piece.nbytes)
        return None

    # Kernels.

    def launch(
        self,
        function: int,
        gx: int,
        gy: int,
        gz: int,
        bx: int,
        by: int,
        bz: int,
        shared: int,
        stream: int,
        arguments: int,
        extra: int,
        cooperative: int,
    ) -> int | None:
        """For every launch: the arguments each at an address of its own, or with `extra` in one piece."""
        found = self._functions.get(function)
        if found is None:
            return INVALID_FUNCTION
        kernel = found[0].code.kernels[found[1]]
        most = self._runtime.most_at_once(kernel, (bx, by, bz), shared)
        if cooperative and gx * gy * gz > most:
            held = f"a cooperative launch of {gx * gy * gz} blocks; {most} can be held at once"
            print(f"portable: {held}", file=sys.stderr)
            return TOO_LARGE
        kernarg = _in_one_piece(extra) if extra else _gathered(kernel, arguments)
        if kernarg is None:
            return INVALID_VALUE
        return self._launch(found, (gx, gy, gz), (bx, by, bz), shared, stream, kernarg, bool(cooperative))

    def _launch(
        self,
        found: tuple[modules.Module, str],
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared: int,
        stream: int,
        kernarg: bytearray,
        cooperative: bool = False,
    ) -> int | None:
        module, name = found
        if self.hipStreamSynchronize(stream):
            return INVALID_HANDLE
        function = module.functions.get(name)
        if function is None:
            function = module.functions[name] = self._runtime.get_function(module.handle, name)
        kernel = self._runtime.kernel(function, name)
        names = _names(kernel, kernarg)
        pieces = [*self.memory.pieces, *module.variables.values()]
        buffers = [Buffer(names.get(p.address, p.name), p.address, p.nbytes, p.writable) for p in pieces]
        buffers.append(Buffer("the text of printf", ctypes.addressof(self._print_to), len(self._print_to)))
        try:
            with self._running, self._listen(kernel, None):
                self._runtime.launch(
                    function, grid, block, shared, 0, kernarg, name, buffers=buffers, cooperative=cooperative
                )
        finally:
            if self._print_records(ctypes.addressof(self._print_to)):
                print(
                    f"portable: {name}: printf: more than {_PRINT_BYTES} bytes; the rest is lost",
                    file=sys.stderr,
                )
        return None

    def hipFuncSetAttribute(self, function: int, attribute: int, value: int) -> int | None:
        return None if function in self._functions else INVALID_FUNCTION

    def attributes(self, figures: int, function: int) -> int | None:
        """For hipFuncGetAttributes: registers, static LDS, scratch (bytes), most threads."""
        kernel = self._kernel(function)
        if kernel is None:
            return INVALID_FUNCTION
        store(figures, "<4Q", kernel.vgprs, kernel.lds, kernel.scratch, kernel.max_threads)
        return None

    def hipOccupancyMaxActiveBlocksPerMultiprocessor(
        self, blocks: int, function: int, threads: int, shared: int
    ) -> int | None:
        kernel = self._kernel(function)
        if kernel is None or not 0 < threads <= kernel.max_threads:
            return INVALID_FUNCTION if kernel is None else INVALID_VALUE
        store(blocks, "<i", kernel.workgroups(shared, threads))
        return None

    def hipOccupancyMaxPotentialBlockSize(
        self, grid: int, block: int, function: int, shared: int, limit: int
    ) -> int | None:
        kernel = self._kernel(function)
        if kernel is None:
            return INVALID_FUNCTION
        most = min(kernel.max_threads, limit or kernel.max_threads)
        sizes = range(kernel.wave, most + 1, kernel.wave) or [most]
        best = max(sizes, key=lambda threads: (threads * kernel.workgroups(shared, threads), threads))
        groups = kernel.workgroups(shared, best) * self._figures()["processors"]
        store(block, "<i", best)
        store(grid, "<i", groups)
        return None

    def _kernel(self, function: int) -> Kernel | None:
        found = self._functions.get(function)
        return None if found is None else found[0].code.kernels[found[1]]


def _gathered(kernel: Kernel, places: int) -> bytearray:
    """The explicit arguments of a kernel, from an array of their addresses."""
    kernarg = bytearray(kernel.explicit_size)
    given = [each for each in kernel.arguments if not each.get(".value_kind", "").startswith("hidden_")]
    for index, each in enumerate(given):
        at, size = each[".offset"], each[".size"]
        kernarg[at : at + size] = ctypes.string_at(load(places + 8 * index), size)
    return kernarg


def _in_one_piece(extra: int) -> bytearray | None:
    """The bytes that the pairs of a key and a value at `extra` name; None if they name none."""
    given: dict[int, int] = {}
    while (key := load(extra)) != 3:  # HIP_LAUNCH_PARAM_END
        given[key] = load(extra + 8)
        extra += 16
    return bytearray(ctypes.string_at(given[1], load(given[2]))) if given.keys() >= {1, 2} else None


def _names(kernel: Kernel, kernarg: bytearray) -> dict[int, str]:
    """The names of the kernel's arguments that are pointers, by what they point to."""
    found: dict[int, str] = {}
    for number, each in enumerate(kernel.arguments):
        if each.get(".value_kind") == "global_buffer" and each[".size"] == 8:
            (address,) = struct.unpack_from("<Q", kernarg, each[".offset"])
            found.setdefault(address, each.get(".name", f"argument {number + 1}"))
    return found

"""Launches a kernel on the native library: initial registers, kernel arguments, threads, faults.

The initial state follows the "User Guide for AMDGPU Backend" of LLVM, section Initial Kernel Execution
State; the hidden arguments are those of code object version 5 (Implicit Arguments).
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from portable.backends.rocm.emulator import abi, hostcall
from portable.backends.rocm.emulator.code_object import CodeObject, Kernel
from portable.backends.rocm.emulator.counters import Counters
from portable.backends.rocm.emulator.dwarf import SourceLines
from portable.backends.rocm.emulator.faults import EmulatorError, KernelFault, warned
from portable.backends.rocm.emulator.native_build import library
from portable.backends.rocm.emulator.translate import Program, translate
from portable.runtime.fork_lock import fork_lock

BUDGET = 200_000_000
"""Instructions that one wave may execute: about ten seconds."""

_LDS = {"gfx950": 160 * 1024}
_SYSTEM = {
    "workgroup_id_x": 0,
    "workgroup_id_y": 1,
    "workgroup_id_z": 2,
    "workgroup_info": 3,
    "scratch_wave_offset": 4,
}
_PRIVATE_APERTURE = 1 << 49
_NO_ADDRESS = 0xFFFFFFFFFFFFFFFF


@dataclass(frozen=True)
class Buffer:
    """One live tensor of a launch: host memory that the kernel may read, and may write if `writable`."""

    name: str
    address: int
    nbytes: int
    writable: bool = True

    @classmethod
    def of(cls, name: str, tensor: Any, writable: bool = True) -> Buffer:
        """The memory of a CPU tensor, from its first element to its last."""
        if tensor.numel() == 0:
            return cls(name, tensor.data_ptr(), 0, writable)
        span = 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
        return cls(name, tensor.data_ptr(), span * tensor.element_size(), writable)

    @classmethod
    def of_storage(cls, name: str, tensor: Any) -> Buffer:
        """All memory of a CPU tensor's storage, of which the tensor may be a part."""
        storage = tensor.untyped_storage()
        return cls(name, storage.data_ptr(), storage.nbytes())


@dataclass(frozen=True)
class KernelLaunch:
    """A kernel on `grid` workgroups of `block` work-items, with `shared` bytes of dynamic LDS.

    `kernarg` holds the explicit arguments; pointers are host addresses. The kernel may access nothing outside
    `buffers`. The workgroups of a `cooperative` one, which may wait for each other, run in turn. With `races`
    those of workgroups in global memory are looked for."""

    kernel: Kernel
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    kernarg: bytes
    buffers: Sequence[Buffer]
    cooperative: bool = False
    races: bool = False

    @property
    def workgroups(self) -> int:
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def threads(self) -> int:
        """Work-items of a workgroup."""
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def operand_bytes(self) -> int:
        """Bytes of the buffers; one that is passed twice counts once."""
        return sum({each.address: each.nbytes for each in self.buffers}.values())


class LinkedProgram:
    """A translated code object with handler addresses filled in, and its loaded memory; both at fixed host
    addresses."""

    def __init__(self, code: CodeObject):
        self.program: Program = translate(code, library())
        self.insts = _AlignedMemory(self.program.encoded)
        arch = abi.ARCHES.index(code.arch)
        if library().handle.emulator_link(self.insts.address, self.program.count, arch) != -1:
            raise EmulatorError("the translated program does not fit the native library")
        self.memory = _AlignedMemory(b"", len(code.memory))
        ctypes.memmove(self.memory.address, bytes(code.loaded_at(self.memory.address)), len(code.memory))
        self.index_of = (ctypes.c_uint32 * max(1, len(self.program.index_of) // 4)).from_buffer_copy(
            self.program.index_of or b"\0\0\0\0"
        )
        self.source_lines = SourceLines(code.image)
        self._sources: dict[int, str | None] = {}

    def source(self, index: int) -> str | None:
        """The source line of an instruction; each is looked up once, as every counted launch asks for all."""
        if index not in self._sources:
            inst = self.program.instruction(index)
            self._sources[index] = None if inst is None else self.source_lines.at(inst.address)
        return self._sources[index]

    def path(self, index: int) -> str | None:
        """The path of the source file of an instruction, as the compiler was given it."""
        inst = self.program.instruction(index)
        return None if inst is None else self.source_lines.path(inst.address)

    def inline_chain(self, index: int) -> tuple[str, ...]:
        """The source line, and those of the calls it was inlined through; empty if there is none."""
        inst = self.program.instruction(index)
        return () if inst is None else self.source_lines.inline_chain(inst.address)


class _AlignedMemory:
    """A copy of some bytes in host memory, aligned as a GPU allocation is."""

    def __init__(self, data: bytes | bytearray, size: int = 0, alignment: int = 256):
        size = max(size, len(data))
        self.buffer = ctypes.create_string_buffer(size + alignment)
        start = ctypes.addressof(self.buffer)
        self.address = start + -start % alignment
        self.size = size
        ctypes.memmove(self.address, bytes(data), len(data))


_link_lock = fork_lock()


@functools.lru_cache(maxsize=512)
def _link(code: CodeObject) -> LinkedProgram:
    return LinkedProgram(code)


def linked_program(code: CodeObject) -> LinkedProgram:
    """The linked program of a code object, made once and kept. Raises CodeObjectError."""
    with _link_lock:
        return _link(code)


def launch(
    given: KernelLaunch, *, budget: int = BUDGET, threads: int | None = None, count: bool = False
) -> Counters | None:
    """Run a launch on `threads` threads of the CPU; `budget` is the most instructions of one wave.

    Returns counters if `count`. Raises KernelFault; EmulatorError for sizes no GPU supports.
    """
    __tracebackhide__ = True
    prepared = _Prepared(given, budget)
    executed = memory = None
    if count:
        executed, memory = prepared.count()
    workers = min(given.workgroups, threads or len(os.sched_getaffinity(0)))
    if given.cooperative:
        prepared.state.resident = -(-given.workgroups // workers)
    prepared.run(workers)
    if executed is None or memory is None:
        return None
    return Counters(
        given.kernel,
        prepared.linked.program,
        prepared.linked.source,
        list(executed),
        list(memory),
        given.shared,
        given.workgroups,
        given.block,
        given.operand_bytes,
        prepared.state.unordered,
    )


def record(given: KernelLaunch, *, group: int, cache_lines: int, budget: int = BUDGET) -> Recorded:
    """Run the one workgroup of number `group`, x first, and record what it executes; as `launch` otherwise.
    `cache_lines` are those of its compute unit's first-level cache."""
    prepared = _Prepared(given, budget)
    executed, memory = prepared.count()
    recorded = Recorded(-(-given.threads // given.kernel.wave), cache_lines)
    state = prepared.state
    state.recording = ctypes.pointer(recorded.recording)
    state.next_group, state.end_group = group, group + 1
    prepared.run(1)
    recorded.finish(list(executed), list(memory))
    return recorded


class Recorded:
    """A recorded workgroup of `waves` waves. `stream` is its address for the timing model; `executed` and
    `memory` are its counts, as `counters.Counters` has them."""

    def __init__(self, waves: int, cache_lines: int):
        self.waves, self.stream = waves, 0
        self.recording = abi.Recording(cache_lines=cache_lines)
        self.executed: list[int] = []
        self.memory: list[Any] = []

    def finish(self, executed: list[int], memory: list[Any]) -> None:
        self.executed, self.memory = executed, memory
        self.stream = library().handle.emulator_stream(ctypes.byref(self.recording), self.waves) or 0
        if self.recording.full or not self.stream:
            raise MemoryError("the instructions of a recorded workgroup do not fit into memory")

    def __del__(self) -> None:
        handle = library().handle
        if self.stream:
            handle.emulator_free_stream(self.stream)
        handle.emulator_forget(ctypes.byref(self.recording))


class _Prepared:
    """A launch whose memory and initial registers are laid out."""

    def __init__(self, given: KernelLaunch, budget: int):
        self.kernel = kernel = given.kernel
        self.looks_for_races = given.races
        code = kernel.code
        _check(given)
        self.linked = linked = linked_program(code)
        packets = 0
        if _asks_host(kernel):  # a packet for each wave that a host thread may hold
            held = given.workgroups if given.cooperative else len(os.sched_getaffinity(0))
            packets = 1 << (held * -(-given.threads // kernel.wave)).bit_length()
        calls = _AlignedMemory(b"", hostcall.nbytes(packets) if packets else 0)
        if packets:
            data = hostcall.buffer(calls.address, packets)
            ctypes.memmove(calls.address, data, len(data))
        segment = _AlignedMemory(_arguments(given, calls.address if packets else 0), alignment=64)
        packet = _AlignedMemory(_packet(given, segment.address), alignment=64)
        buffers = [each for each in given.buffers if each.nbytes]
        self.names = [each.name for each in buffers]
        rows = [(each.address, each.nbytes, int(each.writable)) for each in buffers]
        own = {
            "the kernel's arguments": segment,
            "the code object": linked.memory,
            "the dispatch packet": packet,
        }
        for name, memory in own.items():
            pieces = _without(memory, buffers)
            self.names += [name] * len(pieces)
            rows += [(address, size, 0) for address, size in pieces]
        if packets:
            self.names.append("the buffer of its calls to the host")
            rows.append((calls.address, calls.size, 1))
        ranges = (abi.Range * len(rows))(*(abi.Range(*row, i) for i, row in enumerate(rows)))
        self._kept = (segment, packet, calls)
        self.state = state = abi.Launch(
            abi=abi.ABI,
            arch=abi.ARCHES.index(code.arch),
            wave_size=kernel.wave,
            instructions=linked.program.count,
            program=linked.insts.address,
            ranges=ranges,
            range_count=len(rows),
            entry=_entry(linked, kernel),
            grid=given.grid,
            block=given.block,
            lds_bytes=kernel.lds + given.shared,
            scratch_bytes=kernel.scratch,
            float_mode=kernel.float_mode,
            ids=kernel.workitem_ids,
            dx10_clamp=kernel.dx10_clamp,
            ieee=kernel.ieee_mode,
            ids_in_ttmp=kernel.workgroup_ids_in_ttmp,
            code_base=linked.memory.address - code.base,
            text_start=code.text[0],
            text_end=code.text[1],
            index_of=linked.index_of,
            budget=budget,
            end_group=0xFFFFFFFF,
            resident=1,
            drops_waits=code.drops_waits,
            hostcall=calls.address if packets else None,
        )
        _user_sgprs(state, kernel, segment, packet)
        system = [_SYSTEM[name] for name in kernel.system_sgprs]
        state.system_count = len(system)
        state.system[: len(system)] = system

    def count(self) -> tuple[Any, Any]:
        """Count executions and memory accesses: the two arrays, by instruction."""
        executed = (ctypes.c_uint64 * self.state.instructions)()
        memory = (abi.MemCount * self.state.instructions)()
        self.state.executed, self.state.memory = executed, memory
        return executed, memory

    def run(self, threads: int) -> None:
        """Run the workgroups. Raises KernelFault."""
        __tracebackhide__ = True
        handle = library().handle
        if self.looks_for_races:
            self.state.races = handle.emulator_races(ctypes.byref(self.state))
            if not self.state.races:
                raise MemoryError("the marks of global memory do not fit into memory")
        try:
            _run(self.state, threads)
        finally:
            handle.emulator_races_free(self.state.races)
            hostcall.show(self.state)
            handle.emulator_forget_said(ctypes.byref(self.state))
        if self.state.fault_taken:
            raise _fault(self.kernel, self.linked, self.state.fault, self.names)
        if self.state.warning_taken:
            warned(_fault(self.kernel, self.linked, self.state.warning, self.names))


def _without(memory: _AlignedMemory, buffers: Sequence[Buffer]) -> list[tuple[int, int]]:
    """(address, bytes) of what is left of `memory` without the buffers in it: variables of a code object."""
    at, end = memory.address, memory.address + memory.size
    pieces = []
    inside = [each for each in buffers if at <= each.address < end]
    for each in sorted(inside, key=lambda each: each.address):
        pieces.append((at, each.address - at))
        at = each.address + each.nbytes
    return [(start, size) for start, size in (*pieces, (at, end - at)) if size > 0]


def _check(given: KernelLaunch) -> None:
    kernel, grid, block = given.kernel, given.grid, given.block
    items = min(1024, kernel.max_threads)
    if min(*grid, *block) < 1 or given.threads > items or max(grid) >= 1 << 31:
        raise EmulatorError(
            f"{kernel.name}: grid {grid}, block {block}: expected at least 1 each way and at most "
            f"{items} work-items to a block"
        )
    most = _LDS.get(kernel.code.arch, 64 * 1024)
    if given.shared < 0 or kernel.lds + given.shared > most:
        raise EmulatorError(
            f"{kernel.name}: {kernel.lds} + {given.shared} bytes of LDS: "
            f"a block of {kernel.code.arch} has {most}"
        )


def _entry(linked: LinkedProgram, kernel: Kernel) -> int:
    start = kernel.code.text[0]
    index = linked.index_of[(kernel.entry - start) // 4]
    if index == 0xFFFFFFFF:
        raise EmulatorError(f"{kernel.name}: its entry {kernel.entry:#x} is not the start of an instruction")
    return index


def _dimensions(given: KernelLaunch) -> int:
    _, y, z = (groups * items for groups, items in zip(given.grid, given.block, strict=True))
    return 3 if z > 1 else 2 if y > 1 else 1


def _hidden(given: KernelLaunch, calls: int) -> dict[str, int]:
    """The hidden arguments, which the runtime adds to the explicit ones. Workgroups are never partial."""
    values = {"hidden_grid_dims": _dimensions(given), "hidden_hostcall_buffer": calls}
    for axis, name in enumerate("xyz"):
        values[f"hidden_block_count_{name}"] = given.grid[axis]
        values[f"hidden_group_size_{name}"] = given.block[axis]
        values[f"hidden_remainder_{name}"] = 0
        values[f"hidden_global_offset_{name}"] = 0
    values["hidden_dynamic_lds_size"] = given.shared
    values["hidden_private_base"] = _PRIVATE_APERTURE >> 32
    values["hidden_shared_base"] = (1 << 48) >> 32
    return values


def _arguments(given: KernelLaunch, calls: int) -> bytearray:
    kernel, kernarg = given.kernel, given.kernarg
    size = max(kernel.kernarg_size, len(kernarg))
    segment = bytearray(size + -size % 16)
    segment[: len(kernarg)] = kernarg
    values = _hidden(given, calls)
    for argument in kernel.arguments:
        kind = argument.get(".value_kind", "")
        offset, width = argument.get(".offset"), argument.get(".size")
        if not kind.startswith("hidden_") or not isinstance(offset, int) or not isinstance(width, int):
            continue
        if 0 <= offset <= size - width and 0 < width <= 8:
            value = values.get(kind, 0) & ((1 << 8 * width) - 1)
            segment[offset : offset + width] = value.to_bytes(width, "little")
    return segment


def _packet(given: KernelLaunch, kernarg: int) -> bytes:
    """hsa_kernel_dispatch_packet_t of the HSA runtime specification."""
    kernel, lds = given.kernel, given.kernel.lds + given.shared
    items = [min(g * b, 0xFFFFFFFF) for g, b in zip(given.grid, given.block, strict=True)]
    return struct.pack(
        "<HH3HH3IIIQQQQ",
        *(2 | 1 << 8, _dimensions(given), *given.block, 0, *items, kernel.scratch, lds, 0, kernarg, 0, 0),
    )


def _user_sgprs(state: abi.Launch, kernel: Kernel, segment: _AlignedMemory, packet: _AlignedMemory) -> None:
    # gfx90a's swizzled V# of the private segment (element size, stride by thread): native/buffer.c recognises
    # it by its swizzle and add-thread-id bits; its base is the segment's start.
    private = [0, 1 << 31, 0xFFFFFFFF, 0x00E80000]
    words = {
        "private_segment_buffer": private,
        "dispatch_ptr": _halves(packet.address),
        "queue_ptr": [0, 0],
        "kernarg_ptr": _halves(segment.address),
        "dispatch_id": [0, 0],
        "flat_scratch_init": [0, 0],
        "private_segment_size": [kernel.scratch],
    }
    arguments = ctypes.string_at(segment.address, segment.size)
    given: dict[str, int] = {}
    state.user_count = len(kernel.user_sgprs)
    for i, name in enumerate(kernel.user_sgprs):
        kind, _, dword = name.partition(":")
        if kind == "preload":
            at = 4 * int(dword)
            value = struct.unpack_from("<I", arguments, at)[0] if at + 4 <= len(arguments) else None
        else:
            part = given[kind] = given.get(kind, -1) + 1
            value = words[kind][part] if kind in words else None
        if value is not None:
            state.user[i] = value
            state.user_known |= 1 << i


def _halves(address: int) -> list[int]:
    return [address & 0xFFFFFFFF, address >> 32]


def _run(state: abi.Launch, threads: int) -> None:
    """Run all workgroups on `threads` threads of the CPU; an interrupt stops them."""
    run, pointer = library().handle.emulator_run, ctypes.byref(state)
    statuses: list[int] = []
    workers = [
        threading.Thread(target=lambda: statuses.append(run(pointer)), daemon=True) for _ in range(threads)
    ]
    for worker in workers:
        worker.start()
    try:
        for worker in workers:
            worker.join()
    except BaseException:
        state.stop = 1
        for worker in workers:
            worker.join()
        raise
    if any(statuses):
        raise MemoryError("the emulator's waves do not fit into memory")


def _asks_host(kernel: Kernel) -> bool:
    """Whether a kernel has the buffer through which printf and assert call the host."""
    return any(each.get(".value_kind") == "hidden_hostcall_buffer" for each in kernel.arguments)


def _fault(kernel: Kernel, linked: LinkedProgram, fault: abi.Fault, names: list[str]) -> KernelFault:
    program = linked.program

    def where(found: re.Match[str]) -> str:
        index = int(found[1])
        text, chain = program.text(index), linked.inline_chain(index)
        calls = ", ".join(f"inlined at {line}" for line in chain[1:])
        return f"`{text}`" + (f" at {chain[0]}" if chain else "") + (f" ({calls})" if calls else "")

    detail = re.sub(r"@(\d+)", lambda found: names[int(found[1])], fault.detail.decode(errors="replace"))
    detail = re.sub(r"instruction #(\d+)", where, detail)
    instruction = program.text(fault.inst) if fault.inst >= 0 else None
    chain = linked.inline_chain(fault.inst)
    kind = abi.FAULTS[fault.kind]
    return KernelFault(
        kind,
        kernel.name,
        detail,
        source=chain[0] if chain else None,
        path=linked.path(fault.inst),
        inlined_at=chain[1:],
        instruction=instruction,
        pc=fault.pc if fault.inst >= 0 else None,
        workgroup=tuple(fault.group),
        wave=fault.wave if fault.wave >= 0 else None,
        lane=fault.lane if fault.lane >= 0 else None,
        address=None if fault.address == _NO_ADDRESS else fault.address,
    )

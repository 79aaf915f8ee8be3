"""The structs that Python and the native library exchange; each mirrors one of native/wave.h."""

from __future__ import annotations

import ctypes
import struct
from typing import Any

from portable.errors import CompileError

ABI = 7

# Inst, a decoded instruction: step, fn, address, flags, imm, aux[4], op, sources, results, length, pad[3],
# then 2 + 5 operands of kind, mods, sel, type, index, pad, value, then the flight.h part.
INST_HEAD = struct.Struct("<QQQIi4IHBBB3x")
OPERAND = struct.Struct("<BBBBHHQ")
FLIGHT = struct.Struct("<88x")  # filled in by emulator_link
INST = struct.Struct(INST_HEAD.format + OPERAND.format[1:] * 7 + FLIGHT.format[1:])
NO_OPERAND = (0, 0, 6, 0, 0, 0, 0)

NONE, VGPR, SGPR, CONSTANT, NOTHING, SCC_BIT, VCCZ_BIT, EXECZ_BIT = range(8)
NEG, ABS, UPPER, NEG_HI, UPPER_HI, SEXT = (1 << bit for bit in range(6))
CLAMP, SDWA, DPP, DPP8, DUAL, DST_UPPER, DST_ZERO, OFFEN, IDXEN, TO_LDS, RETURNS, WRITES_EXEC, SHARED = (
    1 << bit for bit in range(13)
)
OFF_THE_CODE, UNKNOWN = 0xFFFF, 0xFFFE
"""Values of Inst.op: the end of the code, and an instruction that the emulator does not support."""

CLASSES = (
    *("scalar", "vector", "transcendental", "matrix", "global memory", "LDS", "scratch", "scalar memory"),
    *("branch", "barrier", "wait", "other"),
)  # fmt: skip
FAULTS = (
    *("", "out-of-bounds", "misaligned", "uninitialised", "lds-race", "barrier", "budget", "inactive-lane"),
    *("unsupported", "trap", "unwaited", "rounding", "global-race", "benign-race"),
)  # fmt: skip
ARCHES = ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201")


class OpInfo(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("signature", ctypes.c_char_p),
        ("step", ctypes.c_void_p),
        ("fn", ctypes.c_void_p),
        ("cls", ctypes.c_int),
        ("work", ctypes.c_uint32),
    )


class Range(ctypes.Structure):
    _fields_ = (
        ("base", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
        ("writable", ctypes.c_uint32),
        ("name", ctypes.c_uint32),
    )


class Fault(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_int32),
        ("lane", ctypes.c_int32),
        ("wave", ctypes.c_int32),
        ("group", ctypes.c_uint32 * 3),
        ("address", ctypes.c_uint64),
        ("pc", ctypes.c_uint64),
        ("inst", ctypes.c_int32),
        ("detail", ctypes.c_char * 400),
    )


MEM_COUNTS = ("lanes", "bytes", "cache_lines", "fewest_cache_lines", "sectors", "fewest_sectors")
LDS_ACCESSES = ("reads", "writes", "atomics", "exchanges")
LDS_COUNTS = ("lanes", "bytes", "conflicts", "cycles")


class LdsCount(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in LDS_COUNTS)


class MemCount(ctypes.Structure):
    """Of one instruction: accesses to global memory and scratch, and to LDS by LDS_ACCESSES."""

    _fields_ = (
        *((name, ctypes.c_uint64) for name in MEM_COUNTS),
        ("lds", LdsCount * len(LDS_ACCESSES)),
    )


_U32, _U64 = ctypes.c_uint32, ctypes.c_uint64


class Recording(ctypes.Structure):
    """A workgroup's executed instructions, for the timing model."""

    _fields_ = (
        ("events", ctypes.c_void_p),
        ("count", _U64),
        ("capacity", _U64),
        ("cache_lines", _U32),
        ("full", _U32),
        ("cache", ctypes.c_void_p),
    )


TIMED = (
    *("free", "vector", "matrix", "both", "LDS", "memory", "scalar load", "wait", "nop", "priority", "delay"),
    *("barrier", "signal", "barrier wait"),
)  # fmt: skip
STALLS = (
    *("vector pipe", "matrix pipe", "LDS queue", "memory queue", "memory", "LDS", "scalar loads", "barriers"),
    "dependencies",
)  # fmt: skip
COST = struct.Struct("<BBBxHH")
"""Of an instruction: kind (TIMED), whether transcendental, whether it stores, cycles, issue cycles."""


class Timing(ctypes.Structure):
    _fields_ = (
        ("program", ctypes.c_void_p),
        ("cost", ctypes.c_char_p),
        ("groups", ctypes.POINTER(ctypes.c_void_p)),
        *((name, _U32) for name in ("arch", "instructions", "group_count", "resident")),
        *((name, _U32) for name in ("simds", "lds_queue", "memory_queue", "matrix_blocks_vector")),
        *(
            (name, ctypes.c_double)
            for name in (
                *("lds_scale", "lds_latency", "line_cycles", "l1_latency", "l2_latency", "store_latency"),
                *("scalar_latency", "l2_bytes", "store_bytes", "in_flight_bytes", "barrier", "group_start"),
                *("wave_start", "vector_latency", "transcendental_latency"),
                *("cycles", "matrix_cycles", "vector_cycles", "loaded_bytes", "wave_cycles", "issue_cycles"),
            )
        ),
        ("stall", ctypes.c_double * len(STALLS)),
    )


class Launch(ctypes.Structure):
    _fields_ = (
        *((name, _U32) for name in ("abi", "arch", "wave_size", "instructions")),
        ("program", ctypes.c_void_p),
        ("ranges", ctypes.POINTER(Range)),
        ("range_count", _U32),
        ("entry", _U32),
        ("grid", _U32 * 3),
        ("block", _U32 * 3),
        *((name, _U32) for name in ("lds_bytes", "scratch_bytes", "float_mode", "ids")),
        *((name, _U32) for name in ("dx10_clamp", "ieee", "ids_in_ttmp", "system_count")),
        ("system", _U32 * 8),
        ("user_count", _U32),
        ("user_known", _U32),
        ("user", _U32 * 32),
        *((name, _U64) for name in ("code_base", "text_start", "text_end")),
        ("index_of", ctypes.POINTER(_U32)),
        ("budget", _U64),
        ("executed", ctypes.POINTER(_U64)),
        ("memory", ctypes.POINTER(MemCount)),
        ("recording", ctypes.POINTER(Recording)),
        ("next_group", _U32),
        ("end_group", _U32),
        ("resident", _U32),
        ("stop", _U32),
        ("fault_taken", _U32),
        ("drops_waits", _U32),
        ("unordered", _U64),
        ("warning_taken", _U32),
        ("aside", _U32),
        ("suspect", _U64),
        ("suspect_inst", ctypes.c_int32),
        ("races", ctypes.c_void_p),
        ("watched", _U32),
        ("hostcall", ctypes.c_void_p),
        ("said", ctypes.POINTER(_U64)),
        *((name, _U64) for name in ("said_count", "said_capacity", "messages")),
        ("answering", ctypes.c_char),
        ("fault", Fault),
        ("warning", Fault),
    )


def check(handle: Any) -> None:
    """Raise CompileError if the library's structs have other sizes than these."""
    sizes = [
        INST.size,
        OPERAND.size,
        ctypes.sizeof(Launch),
        ctypes.sizeof(Range),
        ctypes.sizeof(Fault),
        ctypes.sizeof(MemCount),
        ctypes.sizeof(Recording),
        ctypes.sizeof(Timing),
        COST.size,
    ]
    found = [handle.emulator_size(which) for which in range(len(sizes))]
    if handle.emulator_abi() != ABI or found != sizes:
        raise CompileError("the emulator", f"its structs have sizes {found}, expected {sizes}")

"""The main loop of a matrix kernel, read from its machine code: what one wave executes in an iteration."""

from __future__ import annotations

import re

from portable.backend import MainLoop
from portable.backends.rocm.emulator.code_object import CodeObject, Kernel
from portable.backends.rocm.emulator.faults import CodeObjectError
from portable.backends.rocm.emulator.isa.decode import Inst, decode

_MATRIX = re.compile(r"v_(?:mfma|smfmac|wmma)_(?:scale_)?\w+?_(\d+)x(\d+)x(\d+)_?(?:(\d+)b_)?")
_TRANSCENDENTAL = re.compile(r"v_(s_)?(exp|log|rcp|rsq|sqrt|sin|cos)(_iflag|_legacy)?_f\d+")
_LDS = re.compile(r"ds_(read|load|write|store)(?:_?(2(?:addr|st64)?))?(?:_stride64|_addtid)?_[a-z]+(\d+)")
_GLOBAL = ("buffer_", "global_", "flat_")


def main_loop(image: bytes, entry: str) -> MainLoop | None:
    """The counts of a kernel's main loop; None where it has none. CodeObjectError for what is no code
    object."""
    code = CodeObject(image)
    found = body(code, entry)
    return None if found is None else _count(found, code.wave)


def body(code: CodeObject, entry: str) -> list[Inst] | None:
    """Of the innermost loops with matrix instructions the one with the most FLOPs; None where there is none:
    no matrix instruction, or none in a loop."""
    kernel = code.kernels.get(entry)
    if kernel is None:
        raise CodeObjectError(f"the code object has no kernel {entry!r}")
    instructions = _instructions(code, kernel)
    index_of = {inst.address: index for index, inst in enumerate(instructions)}
    loops = [
        range(index_of[target], index + 1)
        for index, inst in enumerate(instructions)
        if (target := inst.fields.get("target")) is not None and index_of.get(target, index + 1) <= index
    ]
    flops = [0]  # of the instructions before each
    for inst in instructions:
        flops.append(flops[-1] + _flops(inst.name))
    work = {loop: done for loop in loops if (done := flops[loop.stop] - flops[loop.start])}
    innermost = [
        loop
        for loop in work
        if not any(loop.start <= each.start and each.stop <= loop.stop and each != loop for each in work)
    ]
    best = max(innermost, key=work.__getitem__, default=None)
    return None if best is None else instructions[best.start : best.stop]


def _flops(name: str) -> int:
    """Of a matrix instruction; 0 of any other."""
    shape = _MATRIX.match(name)
    if shape is None:
        return 0
    rows, columns, depth, blocks = (int(each or 1) for each in shape.groups())
    return 2 * rows * columns * depth * blocks


def _instructions(code: CodeObject, kernel: Kernel) -> list[Inst]:
    """From the kernel's entry to the next kernel's, or to the first bytes that are no instruction."""
    starts = [each.entry for each in code.kernels.values() if each.entry > kernel.entry]
    address, end = kernel.entry, min(starts, default=code.text[1])
    text = memoryview(code.memory)[: code.text[1] - code.base]
    found = []
    while address < end:
        try:
            inst = decode(text, address - code.base, address, code.arch)
        except CodeObjectError:
            break
        found.append(inst)
        address += inst.size
    return found


def _count(instructions: list[Inst], wave: int) -> MainLoop:
    count = dict.fromkeys(MainLoop.__dataclass_fields__, 0)
    for inst in instructions:
        name = inst.name
        if flops := _flops(name):
            count["matrix"] += 1
            count["flops"] += flops
        elif _TRANSCENDENTAL.fullmatch(name):
            count["transcendental"] += 1
        elif name.startswith("v_"):
            count["vector"] += 1
        elif access := _LDS.match(name):
            if access[1] in ("read", "load"):
                count["lds_reads"] += 1
                count["lds_read_bytes"] += int(access[3]) // 8 * (2 if access[2] else 1) * wave
            else:
                count["lds_writes"] += 1
        elif name.startswith(_GLOBAL):
            count["global_accesses"] += 1
        elif name.startswith("s_barrier"):
            count["barriers"] += 1
        elif name.startswith("s_wait"):
            count["waits"] += 1
        elif name.startswith("s_") and not name.startswith("s_nop"):
            count["scalar"] += 1
    return MainLoop(**count)

"""A process of its own that launches damaged code objects, so that a crash is seen and not shared.

    python fuzz_worker.py FOLDER

Each line of input is one case as JSON; the reply is one line, "ended", "refused ..." or "fault ...", or
"wrong ..." with what should not happen. A case by hand: echo CASE | python fuzz_worker.py FOLDER.
"""

from __future__ import annotations

import json
import resource
import struct
import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np

GUARD, SIZE, BUFFERS = 4096, 2048, 3
BUDGET = 3000


def damaged(images: dict[str, bytes], case: dict[str, Any]) -> bytes:
    """The image of the case with its edits made one after the other."""
    data = bytearray(images[case["image"]])
    for kind, at, value, other in case["edits"]:
        at %= max(1, len(data))
        if not data:
            break
        if kind == "flip":
            data[at] ^= 1 << value % 8
        elif kind == "byte":
            data[at] = value % 256
        elif kind == "word":
            at -= at % 4
            data[at : at + 4] = struct.pack("<I", value % 2**32)
        elif kind == "cut":
            del data[at:]
        elif kind == "remove":
            del data[at : at + value % 64]
        elif kind == "splice":
            source = images[other]
            start = value % len(source)
            length = 4 + value // 7 % 400
            data[at : at + length] = source[start : start + length]
    return bytes(data)


class Arena:
    """Buffers with guards between and around, filled anew for each case."""

    def __init__(self) -> None:
        self.raw = np.zeros(BUFFERS * (SIZE + GUARD) + GUARD, np.uint8)
        self.starts = [GUARD + k * (SIZE + GUARD) for k in range(BUFFERS)]
        self.addresses = [self.raw.ctypes.data + start for start in self.starts]
        self.guards = np.ones(self.raw.size, bool)
        for start in self.starts[:2]:
            self.guards[start : start + SIZE] = False  # the third buffer is read-only

    def fill(self, seed: int) -> None:
        self.raw[:] = np.random.default_rng(seed).integers(0, 256, self.raw.size, dtype=np.uint8)
        self.before = self.raw[self.guards].copy()

    def untouched(self) -> bool:
        return np.array_equal(self.before, self.raw[self.guards])


def launched(image: bytes, case: dict[str, Any], arena: Arena) -> str:
    """How the case ended; an exception that is not the project's own escapes."""
    from portable.backends.rocm.emulator.code_object import CodeObject
    from portable.backends.rocm.emulator.faults import KernelFault
    from portable.backends.rocm.emulator.launch import Buffer, KernelLaunch, launch
    from portable.errors import PortableError

    arena.fill(case["seed"])
    buffers = [Buffer(f"b{k}", a, SIZE, k < 2) for k, a in enumerate(arena.addresses)]
    try:
        code = CodeObject(image)
        if not code.kernels:
            return "refused: no kernel"
        kernel = list(code.kernels.values())[case["kernel"] % len(code.kernels)]
        kernarg = bytearray(bytes.fromhex(case["kernarg"]))
        for k, which in enumerate(case["pointers"]):
            if which is not None:
                kernarg[8 * k : 8 * k + 8] = struct.pack("<Q", arena.addresses[which])
        grid, block = tuple(case["grid"]), tuple(case["block"])
        launch(KernelLaunch(kernel, grid, block, case["shared"], bytes(kernarg), buffers), budget=BUDGET)
    except KernelFault as fault:
        return f"fault: {fault.kind}: {str(fault).splitlines()[0]}"
    except PortableError as error:
        return f"refused: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return "ended"


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
    images = {file.stem: file.read_bytes() for file in Path(sys.argv[1]).glob("*.co")}
    arena = Arena()
    for line in sys.stdin:
        case = json.loads(line)
        try:
            reply = launched(damaged(images, case), case, arena)
            if not arena.untouched():
                reply = f"wrong: memory outside the buffers was written ({reply})"
        except BaseException:
            reply = "wrong: " + traceback.format_exc().replace("\n", " | ")
        print(reply[:4000].replace("\n", " "), flush=True)


if __name__ == "__main__":
    main()

"""Times of the emulator itself: `python -m portable.backends.rocm.emulator.bench [--interpreter] [ARCH ...]`.

Seconds on this CPU. They say nothing about any GPU. Two tables: this package's kernels, and Triton programs
through `portable.emulated` (bench_programs.py), with `--interpreter` against Triton's own interpreter.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time

import torch

import portable
from portable.backends.rocm.emulator import bench_programs, launch, native_build
from portable.backends.rocm.emulator.backend import EmulatedRocmBackend
from portable.backends.rocm.emulator.code_object import CodeObject
from portable.backends.rocm.emulator.runtime import runtime
from portable.backends.rocm.emulator.translate import translate
from portable.dispatch import dispatcher, pins
from portable.errors import PinError, PortableError
from portable.runtime import detect
from portable.spec import registry

_REPEATS = 5
_CASES = {
    "matmul 512x512x512 bf16": lambda: ("matmul", (_random(512, 512), _random(512, 512))),
    "rms_norm 256x4096 bf16": lambda: ("rms_norm", (_random(256, 4096), _random(4096))),
}


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape).to(torch.bfloat16)


def main(arguments: list[str]) -> int:
    """Print a row per case, implementation and architecture, then one per Triton program and architecture."""
    parser = argparse.ArgumentParser(
        prog="python -m portable.backends.rocm.emulator.bench", description=__doc__
    )
    parser.add_argument("--interpreter", action="store_true", help="time Triton's interpreter too")
    parser.add_argument("arches", nargs="*", metavar="ARCH", help="default: gfx942 gfx1100")
    options = parser.parse_args(arguments)
    arches = options.arches or ["gfx942", "gfx1100"]
    _kernels(arches)
    _programs(arches, bench_programs.interpreted() if options.interpreter else {})
    return 0


def _kernels(arches: list[str]) -> None:
    """This package's kernels: seconds, the median of five."""
    start = time.perf_counter()
    native_build.library()
    print(
        f"library: {time.perf_counter() - start:.2f} s to build or load; {len(os.sched_getaffinity(0))} cores"
    )
    print(f"{'case':<26} {'arch':<8} {'implementation':<15} {'instructions':>12} {'translate':>9} {'run':>7}")
    for arch in arches:
        backend = EmulatedRocmBackend(registry.vendors()["rocm"], arch)
        detect.reset(detect.Selection({"cpu": backend}, {}))
        for label, case in _CASES.items():
            op, arguments = case()
            spec = registry.spec(op)
            for name in dispatcher.candidates(op):
                implementation = spec.implementation(name)
                # torch's implementations run no GPU machine code
                if implementation is not None and implementation.kind == "plan":
                    with pins.using(**{op: name}):
                        _row(label, arch, op, name, arguments)
    detect.reset()


def _programs(arches: list[str], interpreted: dict[str, bench_programs.Times]) -> None:
    """Triton programs after the first call: the least of seven; millions of wave instructions per second of
    processor time, so of one core; the interpreter's ms and the ratio are of processor time too."""
    head = f"{'instructions':>12} {'ms':>8} {'processor ms':>12} {'M/s of a core':>13}"
    print(
        f"\n{'Triton program':<26} {'arch':<8} {head}  {'interpreter ms':>14} {'ratio':>6}"
        if interpreted
        else f"\n{'Triton program':<26} {'arch':<8} {head}"
    )
    for arch in arches:
        with portable.emulated(arch):
            for label, program in bench_programs.PROGRAMS.items():
                with runtime(arch).trace() as traces:
                    program()[0]()
                count = sum(traces[0].figures["instructions"].values())
                wall, processor = bench_programs.times(label, 7)
                rate = count / processor / 1e6
                row = f"{count:>12,} {wall * 1e3:>8.2f} {processor * 1e3:>12.2f} {rate:>13.1f}"
                if label in interpreted:
                    other = interpreted[label].processor
                    row += f"  {other * 1e3:>14.0f} {other / processor:>5.0f}x"
                print(f"{label:<26} {arch:<8} {row}")


def _row(label: str, arch: str, op: str, name: str, arguments: tuple) -> None:
    seen: list[CodeObject] = []
    former = launch.linked_program
    launch.linked_program = lambda code: (seen.append(code), former(code))[1]
    call = dispatcher.op(op)
    try:
        call(*arguments)
    except PinError:  # not for this dtype
        return
    except PortableError as error:
        print(f"{label:<26} {arch:<8} {name:<15} {error}")
        return
    finally:
        launch.linked_program = former
    codes = list(dict.fromkeys(seen))
    start = time.perf_counter()
    programs = [translate(code, native_build.library()) for code in codes]
    translating = time.perf_counter() - start
    times = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        call(*arguments)
        times.append(time.perf_counter() - start)
    count = sum(program.count for program in programs)
    running = statistics.median(times)
    print(f"{label:<26} {arch:<8} {name:<15} {count:>12,} {translating:>9.3f} {running:>7.3f}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

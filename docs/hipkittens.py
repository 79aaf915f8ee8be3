"""HipKittens' GEMM and attention forward from a checkout of its sources, built for emulated AMD GPUs.

Used by docs/peers.py. Nothing of HipKittens is kept here: its kernels are read from the checkout, their
compile-time sizes replaced, their Python binding cut off, and compiled as its Makefiles do (C++20, -O3,
KITTENS_CDNA3 or 4) with the clang that backends/rocm/compile.py finds and AMD's public HIP headers.
"""

from __future__ import annotations

import os
import re
import struct
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from portable.backends.rocm import compile as rocm

ENTRY = re.compile(r"\n(template<int D>\s*\n)?void dispatch_micro")


@dataclass(frozen=True)
class Headers:
    """Folders: HIP's public headers (`hip/hip_runtime.h` with `hip/amd_detail` and `hip/hip_version.h`) and
    clang's own (`__clang_hip_runtime_wrapper.h`)."""

    hip: Path
    clang: Path


@dataclass(frozen=True)
class Wait:
    """A wait that the published kernel lacks: before its barrier number `barrier`, counted in the source."""

    barrier: int
    text: str


@dataclass(frozen=True)
class Source:
    """A published kernel: file, architecture, dynamic LDS, and what it lacks under the ISA's rules."""

    path: str
    arch: str
    shared: int
    lacks: tuple[Wait, ...] = ()


# The emulated GPU stops at each of these as `unwaited`: a register or LDS word is used while its load or
# write is in flight. On hardware the distance in cycles hides it. Counts differ by the waits themselves.
GEMM = {
    "gfx942": Source(
        "kernels/gemm/bf16fp32/mi325x/8192_256_256_64_16/256_256_64_16.cpp",
        "gfx942",
        65536,
        (Wait(7, "s_waitcnt lgkmcnt(0)"), Wait(9, "s_waitcnt lgkmcnt(0)")),
    ),
    "gfx950": Source(
        "kernels/gemm/bf16fp32/mi350x/256_256_64_32_with16x32.cpp",
        "gfx950",
        160000,
        (Wait(8, "s_waitcnt vmcnt(10)"),),
    ),
}
ATTENTION = {
    False: Source("kernels/attn/gqa/kernel.cpp", "gfx950", 160000),
    True: Source("kernels/attn/gqa_causal/kernel.cpp", "gfx950", 160000),
}


@dataclass(frozen=True)
class Launch:
    """One launch: everything `emulator.count.count` takes, and the result's tensor."""

    image: bytes
    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    argument: bytes
    tensors: dict[str, torch.Tensor]
    result: torch.Tensor


def gemm(
    checkout: Path, headers: Headers, arch: str, m: int, n: int, k: int, *, as_published: bool
) -> Launch:
    """c = a @ b.T in bfloat16; the sizes are multiples of 256 and 64."""
    source = GEMM[arch]
    image = _build(checkout, headers, source, {"M": m, "N": n, "K": k}, as_published)
    a, b = _normal(m, k), _normal(n, k)
    c = torch.empty(m, n, dtype=torch.bfloat16)
    argument = _layout(a) + _layout(b) + _layout(c) + bytes(8)  # the last: a stream
    grid = ((m // 256) * (n // 256), 1, 1)
    tensors = {"a": a, "b": b, "c": c}
    return Launch(image, _kernel(image), grid, (512, 1, 1), source.shared, argument, tensors, c)


def attention(
    checkout: Path, headers: Headers, batch: int, heads: int, kv_heads: int, length: int, *, causal: bool
) -> Launch:
    """o of heads of 128 in bfloat16, (batch, length, heads, 128); gfx950 alone is published."""
    source = ATTENTION[causal]
    sizes = {"ATTN_B": batch, "ATTN_H": heads, "ATTN_H_KV": kv_heads, "ATTN_N": length}
    image = _build(checkout, headers, source, sizes, as_published=True)
    q, k, v = (_normal(batch, length, each, 128) for each in (heads, kv_heads, kv_heads))
    o = torch.empty_like(q)
    lse = torch.empty(batch, heads, 1, length)
    argument = b"".join(map(_layout, (q, k, v, o, lse))) + bytes(8)
    grid = (heads, -(-(length // 32) // 8), batch)
    tensors = {"q": q, "k": k, "v": v, "o": o, "lse": lse}
    return Launch(image, _kernel(image), grid, (512, 1, 1), source.shared, argument, tensors, o)


def _normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape).to(torch.bfloat16)


def _layout(tensor: torch.Tensor) -> bytes:
    """kittens::gl with four sizes known at run time: pointer, sizes, an empty member."""
    shape = (1,) * (4 - tensor.dim()) + tuple(tensor.shape)
    return struct.pack("<5Q8x", tensor.data_ptr(), *shape)


def _kernel(image: bytes) -> str:
    return next(iter(rocm.resources(image)))


def _build(
    checkout: Path, headers: Headers, source: Source, sizes: dict[str, int], as_published: bool
) -> bytes:
    text = (checkout / source.path).read_text().replace('#include "pyutils/pyutils.cuh"', "")
    cut = ENTRY.search(text)
    if cut is None:
        raise SystemExit(f"{source.path}: not the version of HipKittens that docs/peers.md names")
    text = text[: cut.start()]
    for name, value in sizes.items():
        for pattern in (rf"(#define {name} )\d+", rf"(constexpr int {name} = )\d+"):
            text = re.sub(pattern, rf"\g<1>{value}", text)
    if not as_published:
        text = _with_waits(text, source.lacks)
    if "attend_ker" in text:
        text += "\ntemplate __global__ void attend_ker<ATTN_D>(const attn_globals<ATTN_D>);\n"
    return _compile(text, checkout, headers, source.arch)


def _with_waits(text: str, waits: tuple[Wait, ...]) -> str:
    barriers = [found.start() for found in re.finditer(r"__builtin_amdgcn_s_barrier\(\);", text)]
    for wait in sorted(waits, key=lambda each: -each.barrier):
        at = barriers[wait.barrier - 1]
        text = f'{text[:at]}asm volatile("{wait.text}"); {text[at:]}'
    return text


def _compile(text: str, checkout: Path, headers: Headers, arch: str) -> bytes:
    tools = rocm.toolchain()
    target = ["-target", "amdgcn-amd-amdhsa", f"-mcpu={arch}", "-mcode-object-version=5", "-c"]
    generation = {"gfx942": "KITTENS_CDNA3", "gfx950": "KITTENS_CDNA4"}[arch]
    with tempfile.TemporaryDirectory(prefix="hipkittens-") as folder:
        source, controls, assembly, relocatable, linked = (
            os.path.join(folder, name) for name in ("k.cpp", "c.bc", "k.s", "k.o", "k.co")
        )
        Path(source).write_text(text)
        device_libs = Path(rocm.__file__).parent / "device_libs.c"
        version = f"-DISA_VERSION={rocm._isa_version(arch)}"
        _run(*tools.clang, *target, "-emit-llvm", version, "-nogpulib", str(device_libs), "-o", controls)
        flags: list[Any] = [
            "-x",
            "hip",
            "--cuda-device-only",
            "--no-gpu-bundle-output",
            f"--offload-arch={arch}",
        ]
        flags += ["-nogpulib", "-nogpuinc", "-fuse-cuid=none", "-O3", "-std=c++20", "-w"]
        flags += ["-mcode-object-version=5", f"-D{generation}", "-D__HIP_PLATFORM_AMD__"]
        # Newer clang: the macro is gone, and a constexpr function that cannot be one is an error.
        flags += ["-D__AMDGCN_WAVEFRONT_SIZE=64", "-Wno-invalid-constexpr"]
        flags += ["-isystem", headers.hip, "-isystem", headers.hip / "hip", "-idirafter", headers.clang]
        flags += [f"-I{checkout / 'include'}", "-include", "__clang_hip_runtime_wrapper.h"]
        for library in (*tools.bitcode, controls):
            flags += ["-Xclang", "-mlink-builtin-bitcode", "-Xclang", library]
        _run(*tools.clang, *flags, "-S", source, "-o", assembly)
        _run(*tools.clang, *target, "-x", "assembler", assembly, "-o", relocatable)
        _run(*tools.lld, "-shared", "--no-undefined", relocatable, "-o", linked)
        return Path(linked).read_bytes()


def _run(*command: Any) -> None:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)

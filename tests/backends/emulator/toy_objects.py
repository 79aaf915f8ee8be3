"""Code objects made by the assembler from directives, one per architecture, for the tests of the loader."""

from __future__ import annotations

import struct
import subprocess
import sys
import time

import pytest
from hypothesis import HealthCheck, settings

from portable.backends.rocm.emulator.code_object import LARGEST, CodeObject
from portable.backends.rocm.emulator.dwarf import SourceLines
from portable.backends.rocm.emulator.faults import CodeObjectError

ASSEMBLY = """
.amdgcn_target "amdgcn-amd-amdhsa--{arch}"
.amdhsa_code_object_version {version}
.file 1 "folder/toy.s"
.text
.globl toy
.p2align 8
.type toy,@function
toy:
.loc 1 41 1
{prologue}
  s_nop 0
  s_nop 0
.loc 1 0 1
  s_nop 0
.loc 1 43 1
  s_endpgm
.Lend:
.size toy, .Lend-toy
.section .rodata,"a"
.p2align 6
.amdhsa_kernel toy
  .amdhsa_next_free_vgpr {vgprs}
  .amdhsa_next_free_sgpr 30
  .amdhsa_group_segment_fixed_size 1536
  .amdhsa_private_segment_fixed_size 48
  .amdhsa_kernarg_size 24
  .amdhsa_user_sgpr_dispatch_ptr 1
  .amdhsa_user_sgpr_kernarg_segment_ptr 1
  .amdhsa_system_sgpr_workgroup_id_x 1
  .amdhsa_system_sgpr_workgroup_id_y 0
  .amdhsa_system_sgpr_workgroup_id_z 1
  .amdhsa_system_vgpr_workitem_id 1
  .amdhsa_float_round_mode_32 1
  .amdhsa_float_round_mode_16_64 2
  .amdhsa_float_denorm_mode_32 0
  .amdhsa_float_denorm_mode_16_64 3
  {scratch} 1
  {own}
.end_amdhsa_kernel
.data
.globl inner
.protected inner
.globl outer
.p2align 3
.type inner,@object
inner:
  .quad inner + 5
.size inner, 8
.type outer,@object
outer:
  .quad outer + 7
.size outer, 8
.amdgpu_metadata
---
amdhsa.version: [1, 2]
amdhsa.target: amdgcn-amd-amdhsa--{arch}
amdhsa.kernels:
  - .name: toy
    .symbol: toy.kd
    .kernarg_segment_size: 24
    .kernarg_segment_align: 8
    .group_segment_fixed_size: 1536
    .private_segment_fixed_size: 48
    .wavefront_size: {wave}
    .sgpr_count: 30
    .vgpr_count: {vgprs}
    .max_flat_workgroup_size: 256
    .args:
      - {{.offset: 0, .size: 8, .value_kind: global_buffer, .address_space: global}}
      - {{.offset: 8, .size: 4, .value_kind: by_value}}
...
.end_amdgpu_metadata
"""

_OFFSET_SCRATCH = ".amdhsa_system_sgpr_private_segment_wavefront_offset"
_ARCHITECTED = ".amdhsa_enable_private_segment"
_SEPARATE = """.amdhsa_accum_offset 52
  .amdhsa_user_sgpr_private_segment_buffer 1"""
_PRELOAD = """.amdhsa_accum_offset {accum}
  .amdhsa_user_sgpr_kernarg_preload_length 3
  .amdhsa_user_sgpr_kernarg_preload_offset 1
  .amdhsa_ieee_mode 0"""
_PADDED = """.amdhsa_user_sgpr_count 13
  .amdhsa_wavefront_size32 1
  .amdhsa_dx10_clamp 0
  .amdhsa_workgroup_processor_mode 1"""
_WAVE64 = """.amdhsa_wavefront_size32 0
  .amdhsa_workgroup_processor_mode 0"""

# arch -> (wave, VGPRs in the directive, code object version, scratch directive, own directives)
TARGETS = {
    "gfx90a": (64, 90, 4, _OFFSET_SCRATCH, _SEPARATE),
    "gfx942": (64, 130, 5, _ARCHITECTED, _PRELOAD.format(accum=64)),
    "gfx950": (64, 64, 6, _ARCHITECTED, _PRELOAD.format(accum=64)),
    "gfx1100": (32, 100, 5, _ARCHITECTED, _PADDED),
    "gfx1201": (64, 50, 5, _ARCHITECTED, _WAVE64),
}


@pytest.fixture(scope="session")
def images(tmp_path_factory):
    """The toy for every architecture, without metadata ("bare") and unlinked ("object") once each."""
    folder = tmp_path_factory.mktemp("toys")
    zig = [sys.executable, "-m", "ziglang"]
    made = {}

    def build(name, text, arch):
        source, unlinked, linked = (folder / f"{name}.{end}" for end in ("s", "o", "co"))
        source.write_text(text)
        command = [*zig, "clang", "-target", "amdgcn-amd-amdhsa", f"-mcpu={arch}", "-c", "-x", "assembler"]
        dwarf = "-gdwarf-4" if arch == "gfx90a" else "-gdwarf-5"
        for step in (
            [*command, dwarf, str(source), "-o", str(unlinked)],
            [*zig, "ld.lld", "-shared", str(unlinked), "-o", str(linked)],
        ):
            done = subprocess.run(step, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
        made[name] = linked.read_bytes()
        return unlinked.read_bytes()

    for arch, (wave, vgprs, version, scratch, own) in TARGETS.items():
        prologue = ".fill 64, 4, 0xbf800000" if "preload" in own else ""
        text = ASSEMBLY.format(
            arch=arch, wave=wave, vgprs=vgprs, version=version, scratch=scratch, own=own, prologue=prologue
        )
        made["object"] = build(arch, text, arch)
        if arch == "gfx90a":
            build("bare", text[: text.index(".amdgpu_metadata")], arch)
    return made


def sections(image):
    (start,) = struct.unpack_from("<Q", image, 40)
    return [start + 64 * index for index in range(struct.unpack_from("<H", image, 60)[0])]


QUICK = settings(
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    derandomize=True,
    database=None,
)


def attempt(image):
    started = time.process_time()
    try:
        code = CodeObject(image)
    except CodeObjectError as error:
        assert str(error)
        code = None
    if code is not None:
        assert len(code.memory) <= LARGEST
        for kernel in code.kernels.values():
            assert code.text[0] <= kernel.entry < code.text[1]
            assert len(kernel.user_sgprs) <= 16
            kernel.occupancy()
    lines = SourceLines(image)
    for address in (-1, 0, 0x1000, 0x1100, 1 << 63, 1 << 70):
        found = lines.at(address)
        assert found is None or ":" in found
    assert time.process_time() - started < 2

"""Assembly of the instruction tests: what each architecture calls an instruction, kernels, code objects."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass

from portable.runtime import disk_cache

GFX9 = ("gfx90a", "gfx942", "gfx950")
GFX94 = ("gfx942", "gfx950")
GFX11 = ("gfx1100", "gfx1201")
ARCHS = GFX9 + GFX11

# What gfx11 and gfx12 call the instructions of gfx9 (LLVM's names). gfx12's come on top of gfx11's.
_GFX11_NAMES = {
    "v_add_u32": "v_add_nc_u32", "v_sub_u32": "v_sub_nc_u32", "v_subrev_u32": "v_subrev_nc_u32",
    "v_addc_co_u32": "v_add_co_ci_u32", "v_subb_co_u32": "v_sub_co_ci_u32",
    "v_subbrev_co_u32": "v_subrev_co_ci_u32", "v_add_i32": "v_add_nc_i32", "v_sub_i32": "v_sub_nc_i32",
    "v_add_u16": "v_add_nc_u16", "v_sub_u16": "v_sub_nc_u16", "v_add_i16": "v_add_nc_i16",
    "v_sub_i16": "v_sub_nc_i16", "v_ffbh_u32": "v_clz_i32_u32", "v_ffbl_b32": "v_ctz_i32_b32",
    "v_ffbh_i32": "v_cls_i32", "v_cvt_flr_i32_f32": "v_cvt_floor_i32_f32",
    "v_cvt_rpi_i32_f32": "v_cvt_nearest_i32_f32", "v_cvt_pkrtz_f16_f32": "v_cvt_pk_rtz_f16_f32",
    "v_cvt_pknorm_i16_f32": "v_cvt_pk_norm_i16_f32", "v_cvt_pknorm_u16_f32": "v_cvt_pk_norm_u16_f32",
    "s_andn2_b32": "s_and_not1_b32", "s_andn2_b64": "s_and_not1_b64", "s_orn2_b32": "s_or_not1_b32",
    "s_orn2_b64": "s_or_not1_b64", "s_andn2_saveexec_b64": "s_and_not1_saveexec_b64",
    "s_orn2_saveexec_b64": "s_or_not1_saveexec_b64", "s_andn1_saveexec_b64": "s_and_not0_saveexec_b64",
    "s_orn1_saveexec_b64": "s_or_not0_saveexec_b64", "s_andn1_wrexec_b64": "s_and_not0_wrexec_b64",
    "s_andn2_wrexec_b64": "s_and_not1_wrexec_b64", "s_ff1_i32_b32": "s_ctz_i32_b32",
    "s_ff1_i32_b64": "s_ctz_i32_b64", "s_flbit_i32_b32": "s_clz_i32_u32", "s_flbit_i32_b64": "s_clz_i32_u64",
    "s_flbit_i32": "s_cls_i32", "s_flbit_i32_i64": "s_cls_i32_i64",
    "s_mul_lo_i32": "s_mul_i32", "v_dot4_i32_i8": "v_dot4_i32_iu8", "v_dot8_i32_i4": "v_dot8_i32_iu4",
}  # fmt: skip
_GFX12_NAMES = {
    "s_add_u32": "s_add_co_u32", "s_sub_u32": "s_sub_co_u32", "s_add_i32": "s_add_co_i32",
    "s_sub_i32": "s_sub_co_i32", "s_addc_u32": "s_add_co_ci_u32", "s_subb_u32": "s_sub_co_ci_u32",
    "s_addk_i32": "s_addk_co_i32", "v_mad_u64_u32": "v_mad_co_u64_u32", "v_mad_i64_i32": "v_mad_co_i64_i32",
    **{f"v_{w}_{t}": f"v_{w}_num_{t}" for w in ("min", "max", "min3", "max3", "med3", "minmax", "maxmin")
       for t in ("f32", "f16", "f64")},
    **{f"v_pk_{w}_f16": f"v_pk_{w}_num_f16" for w in ("min", "max")},
    "v_cvt_pk_norm_i16_f32": "v_cvt_pk_norm_i16_f32",
}  # fmt: skip
_SIZES = {"ubyte": "u8", "sbyte": "i8", "ushort": "u16", "sshort": "i16", "dword": "b32", "dwordx2": "b64",
          "dwordx3": "b96", "dwordx4": "b128"}  # fmt: skip
_STORES = {
    "byte": "b8",
    "short": "b16",
    "dword": "b32",
    "dwordx2": "b64",
    "dwordx3": "b96",
    "dwordx4": "b128",
}


def spelling(name: str, arch: str) -> str:
    """LLVM's name on `arch` of the instruction that gfx9 calls `name`."""
    if arch in GFX9:
        return name
    name = _GFX11_NAMES.get(name, name)
    if arch == "gfx1201":
        name = _GFX12_NAMES.get(name, name)
    if found := re.fullmatch(r"(global|flat|buffer|scratch|s)_(s?_?buffer_)?(load|store)_(\w+)", name):
        space, mid, way, rest = found.groups()
        if space == "s":
            widths = {"dword": 32, "dwordx2": 64, "dwordx4": 128, "dwordx8": 256, "dwordx16": 512}
            return f"s_{mid or ''}{way}_b{widths[rest]}" if rest in widths else name
        d16 = {"ubyte_d16": "d16_u8", "ubyte_d16_hi": "d16_hi_u8", "sbyte_d16": "d16_i8",
               "sbyte_d16_hi": "d16_hi_i8", "short_d16": "d16_b16", "short_d16_hi": "d16_hi_b16"}  # fmt: skip
        if way == "store":
            rest = {"byte_d16_hi": "d16_hi_b8", "short_d16_hi": "d16_hi_b16"}.get(
                rest, _STORES.get(rest, rest)
            )
        else:
            rest = d16.get(rest, _SIZES.get(rest, rest))
        return f"{space}_{way}_{rest}"
    if found := re.fullmatch(r"ds_(read|write)(2?)(st64)?_(\w+)", name):
        way, two, far, rest = found.groups()
        way = "load" if way == "read" else "store"
        if two:
            return f"ds_{way}_2addr_{'stride64_' if far else ''}{rest}"
        return f"ds_{way}_{rest}"
    return name


def respell(text: str, arch: str) -> str:
    """Assembly with gfx9's mnemonics, in the names of `arch`. `_b64` of exec masks becomes `_b32` on wave32
    only where the writer asks for it with {w}."""
    return re.sub(r"(?m)^(\s*)([a-z]\w+)", lambda m: m[1] + spelling(m[2], arch), text)


def wave(arch: str) -> int:
    return 64 if arch in GFX9 else 32


def vreg(first: int, count: int) -> str:
    return f"v{first}" if count == 1 else f"v[{first}:{first + count - 1}]"


def sreg(first: int, count: int) -> str:
    return f"s{first}" if count == 1 else f"s[{first}:{first + count - 1}]"


def waits(arch: str) -> str:
    if arch == "gfx1201":
        return "s_wait_loadcnt 0x0\ns_wait_storecnt 0x0\ns_wait_dscnt 0x0\ns_wait_kmcnt 0x0\n"
    text = "s_waitcnt vmcnt(0) lgkmcnt(0)\n"
    return text + ("s_waitcnt_vscnt null, 0x0\n" if arch == "gfx1100" else "")


def moves(arch: str, way: str, register: int, count: int, offset: int, base: str, address: str) -> str:
    """Loads or stores of `count` dwords, as few as there are."""
    text = ""
    while count:
        step = 4 if count >= 4 else count
        suffix = {1: "dword", 2: "dwordx2", 3: "dwordx3", 4: "dwordx4"}[step]
        name = spelling(f"global_{way}_{suffix}", arch)
        value = vreg(register, step)
        operands = f"{value}, {address}, {base}" if way == "load" else f"{address}, {value}, {base}"
        text += f"{name} {operands} offset:{offset}\n"
        register, count, offset = register + step, count - step, offset + 4 * step
    return text


HEADER = """
.globl {name}
.p2align 8
.type {name},@function
{name}:
"""
DESCRIPTOR = """
s_endpgm
.L_{name}_end:
.size {name}, .L_{name}_end-{name}
.rodata
.p2align 6
.amdhsa_kernel {name}
  .amdhsa_user_sgpr_count 2
  .amdhsa_user_sgpr_kernarg_segment_ptr 1
  .amdhsa_kernarg_size {kernarg}
  .amdhsa_group_segment_fixed_size {lds}
  .amdhsa_private_segment_fixed_size {scratch}
  .amdhsa_system_sgpr_workgroup_id_x 1
  .amdhsa_system_vgpr_workitem_id 0
  .amdhsa_next_free_vgpr {vgprs}
  .amdhsa_next_free_sgpr 96
  .amdhsa_float_denorm_mode_32 {denorm32}
  .amdhsa_float_denorm_mode_16_64 {denorm64}
  .amdhsa_float_round_mode_32 {round32}
  .amdhsa_float_round_mode_16_64 {round64}
{extra}.end_amdhsa_kernel
.text
"""
METADATA = """  - .name: {name}
    .symbol: {name}.kd
    .kernarg_segment_size: {kernarg}
    .kernarg_segment_align: 8
    .group_segment_fixed_size: {lds}
    .private_segment_fixed_size: {scratch}
    .wavefront_size: {wave}
    .sgpr_count: 96
    .vgpr_count: {vgprs}
    .max_flat_workgroup_size: 1024
    .args: []
"""


@dataclass(frozen=True)
class Text:
    """A kernel in assembly, with what its descriptor must say."""

    name: str
    body: str
    wave: int
    lds: int = 0
    scratch: int = 0
    kernarg: int = 64
    mode: int = 0xF0

    def assembly(self, arch: str) -> str:
        extra = ""
        if arch in GFX9:
            extra += "  .amdhsa_accum_offset 128\n"
            if self.scratch:
                extra += "  .amdhsa_system_sgpr_private_segment_wavefront_offset 1\n"
                if arch == "gfx90a":
                    pass
        else:
            extra += f"  .amdhsa_wavefront_size32 {int(self.wave == 32)}\n"
            if self.scratch:
                extra += "  .amdhsa_enable_private_segment 1\n"
        if arch != "gfx1201":
            extra += "  .amdhsa_ieee_mode 1\n  .amdhsa_dx10_clamp 1\n"
        if arch in GFX94 and self.scratch:
            extra = extra.replace("system_sgpr_private_segment_wavefront_offset", "enable_private_segment")
        return HEADER.format(name=self.name) + respell(self.body, arch) + DESCRIPTOR.format(
            name=self.name, kernarg=self.kernarg, lds=self.lds, scratch=self.scratch,
            vgprs=256, denorm32=self.mode >> 4 & 3, denorm64=self.mode >> 6 & 3,
            round32=self.mode & 3, round64=self.mode >> 2 & 3, extra=extra,
        )  # fmt: skip

    def metadata(self) -> str:
        return METADATA.format(
            name=self.name,
            kernarg=self.kernarg,
            lds=self.lds,
            scratch=self.scratch,
            wave=self.wave,
            vgprs=256,
        )


def module_text(arch: str, texts: Sequence[Text]) -> str:
    """One assembly file with all the kernels."""
    assert len({text.name for text in texts}) == len(texts), "two kernels of one name"
    return "".join(
        [
            f'.amdgcn_target "amdgcn-amd-amdhsa--{arch}"\n.text\n',
            *(text.assembly(arch) for text in texts),
            ".amdgpu_metadata\n---\namdhsa.version:\n  - 1\n  - 2\n",
            f"amdhsa.target: amdgcn-amd-amdhsa--{arch}\n",
            "amdhsa.kernels:\n",
            *(text.metadata() for text in texts),
            "...\n.end_amdgpu_metadata\n",
        ]
    )


def assemble(arch: str, text: str) -> bytes:
    """The linked code object of an assembly file, kept in the cache of compiled kernels."""
    key = disk_cache.key("instruction tests", arch, text)
    if (found := disk_cache.read(key)) is not None:
        return found
    with tempfile.TemporaryDirectory() as folder:
        source, relocatable, linked = (os.path.join(folder, f"probes.{end}") for end in ("s", "o", "co"))
        with open(source, "w") as file:
            file.write(text)
        zig = [sys.executable, "-m", "ziglang"]
        target = ["-target", "amdgcn-amd-amdhsa", f"-mcpu={arch}", "-mcode-object-version=5"]
        if arch in GFX11:  # 16-bit registers as halves; the default differs between the two
            target += ["-Xclangas", "-target-feature", "-Xclangas", "+real-true16"]
        for command in (
            [*zig, "clang", *target, "-c", "-x", "assembler", source, "-o", relocatable],
            [*zig, "ld.lld", "-shared", relocatable, "-o", linked],
        ):
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise AssertionError(f"{arch}: {' '.join(command[2:4])} failed:\n{done.stderr[:4000]}")
        with open(linked, "rb") as file:
            image = file.read()
    disk_cache.write(key, image)
    return image

"""One mnemonic per instruction: gfx11's and gfx12's new mnemonics mapped to those of the native library.

The library uses gfx9's mnemonic where gfx9 has the instruction (LLVM's AMDGPU operand and instruction pages).
"""

from __future__ import annotations

import functools
import re

_EXACT = {
    "v_add_nc_u32": "v_add_u32",
    "v_sub_nc_u32": "v_sub_u32",
    "v_subrev_nc_u32": "v_subrev_u32",
    "v_add_nc_i32": "v_add_i32",
    "v_sub_nc_i32": "v_sub_i32",
    "v_add_nc_u16": "v_add_u16",
    "v_sub_nc_u16": "v_sub_u16",
    "v_add_nc_i16": "v_add_i16",
    "v_sub_nc_i16": "v_sub_i16",
    "v_add_co_ci_u32": "v_addc_co_u32",
    "v_sub_co_ci_u32": "v_subb_co_u32",
    "v_subrev_co_ci_u32": "v_subbrev_co_u32",
    "v_mad_co_u64_u32": "v_mad_u64_u32",
    "v_mad_co_i64_i32": "v_mad_i64_i32",
    "v_cvt_pk_rtz_f16_f32": "v_cvt_pkrtz_f16_f32",
    "v_cvt_nearest_i32_f32": "v_cvt_rpi_i32_f32",
    "v_cvt_floor_i32_f32": "v_cvt_flr_i32_f32",
    "v_mul_dx9_zero_f32": "v_mul_legacy_f32",
    "v_fma_dx9_zero_f32": "v_fma_legacy_f32",
    "v_fmac_dx9_zero_f32": "v_fmac_legacy_f32",
    "v_clz_i32_u32": "v_ffbh_u32",
    "v_ctz_i32_b32": "v_ffbl_b32",
    "v_cls_i32": "v_ffbh_i32",
    "v_dot2acc_f32_f16": "v_dot2c_f32_f16",
    "v_dot2acc_f32_bf16": "v_dot2c_f32_bf16",
    "v_min3_num_f32": "v_min3_f32",
    "v_max3_num_f32": "v_max3_f32",
    "s_add_co_u32": "s_add_u32",
    "s_sub_co_u32": "s_sub_u32",
    "s_add_co_i32": "s_add_i32",
    "s_sub_co_i32": "s_sub_i32",
    "s_add_co_ci_u32": "s_addc_u32",
    "s_sub_co_ci_u32": "s_subb_u32",
    "s_addk_co_i32": "s_addk_i32",
    "s_add_nc_u64": "s_add_u64",
    "s_sub_nc_u64": "s_sub_u64",
    "s_ctz_i32_b32": "s_ff1_i32_b32",
    "s_ctz_i32_b64": "s_ff1_i32_b64",
    "s_clz_i32_u32": "s_flbit_i32_b32",
    "s_clz_i32_u64": "s_flbit_i32_b64",
    "s_cls_i32": "s_flbit_i32",
    "s_cls_i32_i64": "s_flbit_i32_i64",
    "buffer_load_lds_b32": "buffer_load_dword",
}

_DWORDS = {
    "32": "dword",
    "64": "dwordx2",
    "96": "dwordx3",
    "128": "dwordx4",
    "256": "dwordx8",
    "512": "dwordx16",
}
_SMALL = {"u8": "ubyte", "i8": "sbyte", "u16": "ushort", "i16": "sshort", "b8": "byte", "b16": "short"}
_ATOMICS = {
    "add_u": "add", "sub_u": "sub", "min_i": "smin", "max_i": "smax", "min_u": "umin", "max_u": "umax",
    "and_b": "and", "or_b": "or", "xor_b": "xor", "swap_b": "swap", "cmpswap_b": "cmpswap",
    "inc_u": "inc", "dec_u": "dec", "csub_u": "csub",
}  # fmt: skip
_MEMORY = re.compile(r"(global|flat|scratch|buffer)_(load|store|atomic)_(.+)$")


@functools.cache
def library_mnemonic(name: str) -> str:
    """The library's mnemonic of the instruction that the decoder calls `name`."""
    if name in _EXACT:
        return _EXACT[name]
    if name.startswith("v_dual_"):
        return library_mnemonic("v_" + name[7:])
    if name.startswith("v_"):
        return re.sub(r"^(v_(?:pk_)?(?:min|max|med3|min3|max3|minmax|maxmin))_num_", r"\1_", name)
    if name.startswith("s_"):
        name = re.sub(r"_(and|or)_not([01])_", _not_name, name)
        return re.sub(r"^(s_(?:buffer_)?load)_b(\d+)$", lambda m: f"{m[1]}_{_DWORDS[m[2]]}", name)
    if name.startswith("ds_"):
        return _lds(name)
    found = _MEMORY.match(name)
    return name if found is None else _memory(*found.groups())


def _not_name(found: re.Match[str]) -> str:
    """`s_and_not1` negates its second operand, `not0` its first: gfx9's andn2 and andn1."""
    return f"_{found[1]}n{2 if found[2] == '1' else 1}_"


def _lds(name: str) -> str:
    name = re.sub(r"^ds_load_2addr(_stride64)?_", lambda m: f"ds_read2{'st64' if m[1] else ''}_", name)
    name = re.sub(r"^ds_store_2addr(_stride64)?_", lambda m: f"ds_write2{'st64' if m[1] else ''}_", name)
    name = re.sub(r"^ds_storexchg_", "ds_wrxchg_", name)
    name = re.sub(r"^ds_(min|max)_num_(rtn_)?", lambda m: f"ds_{m[1]}_{m[2] or ''}", name)
    name = name.replace("ds_load_", "ds_read_").replace("ds_store_", "ds_write_")
    return name


def _memory(space: str, action: str, rest: str) -> str:
    prefix = f"{space}_{action}_"
    if action == "atomic":
        if found := re.match(r"(\w+?_[iub])(32|64)$", rest):
            short = _ATOMICS.get(found[1])
            if short is not None:
                return prefix + short + ("_x2" if found[2] == "64" else "")
        return prefix + re.sub(r"^(min|max)_num_", r"\1_", rest)
    if found := re.match(r"b(32|64|96|128)$", rest):
        return prefix + _DWORDS[found[1]]
    if found := re.match(r"lds_(b32|b64|b96|b128|u8|i8|u16|i16)$", rest):
        kind = found[1]
        return prefix + "lds_" + (_DWORDS[kind[1:]] if kind[0] == "b" else _SMALL[kind])
    if rest in _SMALL:
        return prefix + _SMALL[rest]
    if found := re.match(r"d16_(hi_)?(u8|i8|b16|b8)$", rest):
        return (
            prefix + _SMALL[found[2]] + "_d16" * (action == "load" or bool(found[1])) + "_hi" * bool(found[1])
        )
    return prefix + rest

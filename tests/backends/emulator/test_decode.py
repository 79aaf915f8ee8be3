"""Machine code decodes to what was assembled: every instruction of this project's kernels, and the corners.

`assembly/<arch>.s` holds one line for each instruction and encoding that the kernels of this project
compile to. LLVM's assembler makes the bytes, so what is compared is LLVM's reading and ours.
"""

from __future__ import annotations

import functools
import re
import struct
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from portable.backends.rocm.compile import toolchain
from portable.backends.rocm.emulator.faults import CodeObjectError
from portable.backends.rocm.emulator.isa.decode import TARGETS, Inst, decode, disassemble, text
from portable.backends.rocm.emulator.isa.tables import isa_of

ARCHS = ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201")
V, A, VCC, NULL, M0, EXEC, LITERAL = 256, 512, 106, 124, 125, 126, 255


def assembled(lines: tuple[str, ...], arch: str) -> bytes:
    """The machine code of lines of assembly."""
    # True16 is what the compilers use on gfx12; the assembler needs an option for it.
    feature = ["-Xclangas", "-target-feature", "-Xclangas", "+real-true16"] if arch == "gfx1201" else []
    command = [*toolchain().clang, "-target", "amdgcn-amd-amdhsa", f"-mcpu={arch}", *feature]
    command += ["-c", "-x", "assembler", "-", "-o", "-"]
    done = subprocess.run(command, input="\n".join((*lines, "")).encode(), capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    return section(done.stdout, b".text")


def section(elf: bytes, wanted: bytes) -> bytes:
    """The bytes of a section of a 64-bit ELF file."""
    (headers,), (size, count, names) = struct.unpack_from("<Q", elf, 40), struct.unpack_from("<HHH", elf, 58)
    rows = [struct.unpack_from("<II4Q", elf, headers + size * index) for index in range(count)]
    start = rows[names][4]
    for name, _, _, _, offset, length in rows:
        if elf[start + name :].split(b"\0", 1)[0] == wanted:
            return elf[offset : offset + length]
    raise AssertionError(f"no section {wanted!r}")


@functools.cache
def one(line: str, arch: str) -> Inst:
    code = assembled((line,), arch)
    inst = decode(code, 0, 0x1000, arch)
    assert inst.size == len(code)
    return inst


# ---- reading a line of assembly -------------------------------------------------------------------------

_REGISTER = re.compile(r"(v|s|a|ttmp)(?:\[(\d+)(?::\d+)?\]|(\d+))(\.[lh])?")
_BASE = {"v": V, "s": 0, "a": A, "ttmp": 108}
_NAMED = {
    "vcc": VCC, "vcc_lo": VCC, "vcc_hi": 107, "null": NULL, "off": NULL, "m0": M0, "exec": EXEC,
    "exec_lo": EXEC, "exec_hi": 127, "src_shared_base": 235, "src_private_base": 237, "0.5": 240,
    "-0.5": 241, "1.0": 242, "-1.0": 243, "2.0": 244, "-2.0": 245, "4.0": 246, "-4.0": 247,
    "0.15915494": 248, "src_scc": 253, "scc": 253,
}  # fmt: skip
_ENCODINGS = re.compile("_(e64_dpp|e32|e64|dpp|sdwa)$")
_BITS = ("op_sel", "op_sel_hi", "neg_lo", "neg_hi")
_SELECTIONS = ("BYTE_0", "BYTE_1", "BYTE_2", "BYTE_3", "WORD_0", "WORD_1", "DWORD")
_UNUSED = ("UNUSED_PAD", "UNUSED_SEXT", "UNUSED_PRESERVE")


def number(word: str) -> int:
    return int(word, 0)


def field_of(word: str) -> tuple[str, int] | None:
    """The field that a modifier sets; None for one that is written in words of its own (messages, th:...)."""
    name, _, value = word.partition(":")
    if name in _BITS:
        bits = sum(int(bit) << place for place, bit in enumerate(value.strip("[]").split(",")))
        return {"neg_lo": "neg"}.get(name, name), bits
    if name in ("dst_sel", "src0_sel", "src1_sel"):
        return name, _SELECTIONS.index(value)
    if name == "dst_unused":
        return name, _UNUSED.index(value)
    if name == "mul":
        return "omod", {"2": 1, "4": 2}[value]
    if name == "quad_perm":
        lanes = [int(lane) for lane in value.strip("[]").split(",")]
        return "dpp_ctrl", sum(lane << 2 * place for place, lane in enumerate(lanes))
    dpp = {"row_shl": 0x100, "row_shr": 0x110, "row_ror": 0x120, "row_newbcast": 0x150, "row_share": 0x150,
           "row_xmask": 0x160}  # fmt: skip
    if name in dpp:
        return "dpp_ctrl", dpp[name] + int(value)
    if name == "row_bcast":
        return "dpp_ctrl", {"15": 0x142, "31": 0x143}[value]
    if name == "scope":
        return name, ("SCOPE_CU", "SCOPE_SE", "SCOPE_DEV", "SCOPE_SYS").index(value)
    if name in ("row_half_mirror", "row_mirror"):
        return "dpp_ctrl", {"row_mirror": 0x140, "row_half_mirror": 0x141}[name]
    if name in ("th", "format", "dpp8") or "(" in word:
        return None
    return (name, number(value)) if value else (name, 1)


def read(line: str) -> tuple[str, list[int], dict[str, int], list[int], int]:
    """(name, operand codes, fields, plain numbers, neg and abs of every operand as two bits each)."""
    mnemonic, _, rest = line.partition(" ")
    codes: list[int] = []
    fields: dict[str, int] = {}
    literals: list[int] = []
    signs = 0
    for place, part in enumerate(re.split(r",\s*(?![^\[(]*[\])])", rest) if rest else ()):
        words = re.split(r"\s+(?![^\[(]*[\])])", part)
        word = words[0]
        negative = word.startswith("-") and word[1:2] in "vsa|m" and word not in _NAMED
        word = word.removeprefix("-") if negative else word
        if word.startswith("neg("):  # of a number, whose own minus sign would be part of it
            negative, word = True, word[4:-1]
        absolute = word.startswith("|")
        word = word.strip("|")
        register = _REGISTER.fullmatch(word)
        if register:
            codes.append(_BASE[register[1]] + int(register[2] or register[3]))
        elif word in _NAMED:
            codes.append(_NAMED[word])
        elif re.fullmatch(r"-?\d+", word) and -16 <= int(word) <= 64:
            codes.append(128 + int(word) if int(word) >= 0 else 192 - int(word))
            literals.append(int(word))
        elif re.fullmatch(r"-?(0x[0-9a-f]+|\d+)", word):
            codes.append(LITERAL)
            literals.append(number(word))
        else:
            words = ["", *words]
        signs |= (negative | absolute << 1) << 2 * place
        for modifier in words[1:]:
            found = field_of(modifier)
            if found is not None:
                fields[found[0]] = found[1]
    return _ENCODINGS.sub("", mnemonic), codes, fields, literals, signs


# ---- a decoded instruction in the same terms ------------------------------------------------------------

_READS_OLD = re.compile(
    r"v_(mac|fmac|dot\w+c|pk_fmac|smfmac|swmmac)_|v_dual_(fmac|dot2acc)_|s_fmac_|s_bitset"
)


def printed(inst: Inst) -> list[int]:
    """The operands as assembly lists them: without implied ones, and in its order for stores."""
    dst, src = list(inst.dst), list(inst.src)
    if _READS_OLD.match(inst.name):
        src.pop()
    if "swap_" in inst.name and inst.name.startswith("v_"):
        src = []
    if inst.name.startswith("v_cmpx") and dst == [EXEC]:
        dst = []
    if inst.name == "v_dual_cndmask_b32":
        src.pop()
    if inst.format in ("GLOBAL", "SCRATCH", "FLAT") and len(src) == 3:
        src = [src[0], src[2], src[1]]
    if inst.format == "FLAT" and src:
        src.pop()
    if inst.format in ("MUBUF", "MTBUF") and len(src) == 4:
        src = [src[3], *src[:3]]
    if inst.format == "SMEM" and src:
        src = [code for code in src if code != NULL]
    return dst + src


def agree(inst: Inst, line: str, second: Inst | None = None) -> str | None:
    """What is wrong with `inst` as the decoding of `line`; None when nothing is."""
    name, codes, fields, literals, signs = read(line)
    if inst.name != name:
        return f"name {inst.name}"
    if inst.format == "SOPP" or name.startswith(("s_getreg", "s_setreg", "s_sendmsg_rtn")):
        plain = "simm16" not in inst.fields or not literals or "target" in inst.fields
        if "literal" in inst.fields:
            return None if inst.fields["literal"] == literals[-1] else f"{inst.fields}"
        return None if plain or (inst.fields["simm16"] - literals[-1]) % 65536 == 0 else f"{inst.fields}"
    if inst.format == "SMEM":
        if literals:
            codes = codes[:-1]
        if inst.fields.get("offset", 0) != (fields.pop("offset", 0) or [0, *literals][-1]):
            return f"offset {inst.fields}"
        codes = [code for code in codes if code != NULL]
    if inst.format == "SOPK":
        codes = codes[:-1]
        if (inst.fields["simm16"] - literals[-1]) % 65536:
            return f"immediate {inst.fields}"
        return None if codes == list(inst.dst or inst.src) else f"operands {inst}"
    if codes != printed(inst):
        return f"operands {printed(inst)} for {codes}"
    if LITERAL in codes:
        value = inst.fields.get("literal")
        # A 64-bit float's literal is its upper half.
        if value not in {literal >> 32 if literal >= 2**32 else literal % 2**32 for literal in literals}:
            return f"literal {inst.fields}"
    if inst.format.startswith("VOP") and inst.format not in ("VOPD", "VOP3P"):
        implied = len(inst.dst) if inst.dst != (EXEC,) or not name.startswith("v_cmpx") else 0
        for place in range(len(codes) - implied):
            both = signs >> 2 * (place + implied) & 3
            neg, absolute = (inst.fields.get(key, 0) >> place & 1 for key in ("neg", "abs"))
            if both != neg | absolute << 1:
                return f"signs of source {place}: {inst.fields}"
    for key, value in fields.items():
        mask = 7 if key in ("op_sel_hi", "neg_hi") else -1
        count = min(3, len(codes) - len(inst.dst))
        if key == "op_sel" and inst.format == "VOP3":
            # The list's last bit is the destination's, whatever the number of sources.
            value = value & (1 << count) - 1 | (value >> count & 1) << 3
        elif key == "op_sel_hi":
            mask = (1 << count) - 1
        if (inst.fields.get(key, 0) ^ value) & mask:
            return f"{key}: {inst.fields}"
    return None


@pytest.mark.parametrize("arch", ARCHS)
def test_every_instruction_of_the_kernels(arch):
    lines = (Path(__file__).parent / "assembly" / f"{arch}.s").read_text().splitlines()
    assert len(lines) > 200
    listing = disassemble(assembled(tuple(lines), arch), 0x4000, arch)
    wrong = []
    for inst, line in zip(listing, lines, strict=True):
        halves = line.split(" :: ")
        assert (inst.second is not None) == (len(halves) == 2), line
        reason = agree(inst, halves[0]) or (inst.second and agree(inst.second, halves[1]))
        if reason:
            wrong.append(f"{line}: {reason}")
        assert inst.name in text(inst, arch)
    assert wrong == []


def test_the_comparison_can_fail():
    inst = one("v_fma_f32 v1, -v2, |s3|, 1.0 clamp", "gfx942")
    assert agree(inst, "v_fma_f32 v1, -v2, |s3|, 1.0 clamp") is None
    for line in ("v_fma_f32 v1, -v2, |s4|, 1.0 clamp", "v_fma_f32 v1, v2, |s3|, 1.0 clamp",
                 "v_fma_f32 v1, -v2, |s3|, 2.0 clamp", "v_fma_f16 v1, -v2, |s3|, 1.0 clamp",
                 "v_fma_f32 v1, -v2, |s3|, 1.0 mul:2"):  # fmt: skip
        assert agree(inst, line), line


# (targets, assembly, destination, sources, fields). The fields are compared whole.
G9, G94, G11 = ("gfx90a", "gfx942", "gfx950"), ("gfx942", "gfx950"), ("gfx1100", "gfx1201")
CORNERS = [
    # gfx9's M0 is 124; constants; literals
    (G9, "s_mov_b32 m0, s3", (M0,), (3,), {}),
    (G11, "s_mov_b32 m0, s3", (M0,), (3,), {}),
    (G11, "s_mov_b32 null, s3", (NULL,), (3,), {}),
    (ARCHS, "s_mov_b64 s[4:5], 0x12345678", (4,), (LITERAL,), {"literal": 0x12345678}),
    (ARCHS, "s_and_b64 s[4:5], vcc, exec", (4,), (VCC, EXEC), {}),
    (ARCHS, "s_bitset1_b32 s1, s2", (1,), (2, 1), {}),
    (ARCHS, "s_cmp_lg_u32 s1, -16", (), (1, 208), {}),
    (ARCHS, "s_getpc_b64 s[6:7]", (6,), (), {}),
    (ARCHS, "s_setpc_b64 s[6:7]", (), (6,), {}),
    (ARCHS, "s_movk_i32 s1, 0x8000", (1,), (), {"simm16": -32768}),
    (("gfx942", "gfx1100"), "s_addk_i32 s1, 5", (1,), (1,), {"simm16": 5}),
    (G9, "s_cmpk_lg_u32 s1, 5", (), (1,), {"simm16": 5}),
    (ARCHS, "s_setreg_imm32_b32 hwreg(1, 4, 2), 7", (), (LITERAL,), {"simm16": 0x901, "literal": 7}),
    (ARCHS, "s_setreg_b32 hwreg(1, 4, 2), s7", (), (7,), {"simm16": 0x901}),
    (ARCHS, "s_getreg_b32 s7, hwreg(1, 4, 2)", (7,), (), {"simm16": 0x901}),
    (ARCHS, "s_branch -2", (), (), {"simm16": -2, "target": 0x1000 + 4 - 8}),
    (ARCHS, "s_cbranch_execz 3", (), (), {"simm16": 3, "target": 0x1000 + 4 + 12}),
    (ARCHS, "s_call_b64 s[4:5], 3", (4,), (), {"simm16": 3, "target": 0x1010}),
    (("gfx1100",), "s_waitcnt_vscnt null, 1", (), (NULL,), {"simm16": 1}),
    (("gfx1201",), "s_barrier_signal -1", (), (193,), {}),
    (("gfx1201",), "s_barrier_wait -1", (), (), {"simm16": -1}),
    (("gfx1201",), "s_wait_loadcnt_dscnt 0x102", (), (), {"simm16": 0x102}),
    (("gfx1201",), "s_fmac_f32 s1, s2, s3", (1,), (2, 3, 1), {}),
    (("gfx1201",), "s_fmamk_f32 s1, s2, 0x40490fdb, s3", (1,), (2, LITERAL, 3), {"literal": 0x40490FDB}),
    # scalar memory
    (G9, "s_load_dwordx2 s[2:3], s[4:5], -0x8", (2,), (4, NULL), {"offset": -8}),
    (G9, "s_load_dwordx2 s[2:3], s[4:5], s6", (2,), (4, 6), {}),
    (G9, "s_load_dwordx2 s[2:3], s[4:5], s6 offset:0x10 glc", (2,), (4, 6), {"offset": 16, "glc": 1}),
    (G9, "s_buffer_load_dword s2, s[4:7], 0x14", (2,), (4, NULL), {"offset": 20}),
    (G9, "s_memtime s[2:3]", (2,), (), {}),
    (G9, "s_dcache_wb", (), (), {}),
    (("gfx1100",), "s_load_b64 s[2:3], s[4:5], m0 offset:-0x10 dlc",
     (2,), (4, M0), {"offset": -16, "dlc": 1}),
    (("gfx1201",), "s_load_b96 s[4:6], s[2:3], -0x400000", (4,), (2, NULL), {"offset": -0x400000}),
    (("gfx1201",), "s_prefetch_data s[2:3], 0x40, s7, 3", (), (2, 7), {"offset": 64, "length": 3}),
    # short vector encodings and their implied operands
    (ARCHS, "v_nop", (), (), {}),
    (ARCHS, "v_mov_b32 v255, 0x3e9af3c1", (V + 255,), (LITERAL,), {"literal": 0x3E9AF3C1}),
    (ARCHS, "v_readfirstlane_b32 s9, v1", (9,), (V + 1,), {}),
    (G9, "v_cndmask_b32_e32 v1, 2, v3, vcc", (V + 1,), (130, V + 3, VCC), {}),
    (G9, "v_add_co_u32_e32 v1, vcc, 7, v3", (V + 1, VCC), (135, V + 3), {}),
    (G9, "v_addc_co_u32_e32 v1, vcc, v2, v3, vcc", (V + 1, VCC), (V + 2, V + 3, VCC), {}),
    (G11, "v_add_co_ci_u32_e32 v1, vcc_lo, v2, v3, vcc_lo", (V + 1, VCC), (V + 2, V + 3, VCC), {}),
    (("gfx90a",), "v_mac_f32_e32 v1, s2, v3", (V + 1,), (2, V + 3, V + 1), {}),
    (ARCHS, "v_fmac_f32_e32 v1, s2, v3", (V + 1,), (2, V + 3, V + 1), {}),
    (ARCHS, "v_fmac_f32_e64 v1, |s2|, -v3", (V + 1,), (2, V + 3, V + 1), {"abs": 1, "neg": 2}),
    (("gfx90a", "gfx1100"), "v_fma_f32 v1, v2, v3, 2.0 clamp mul:4", (V + 1,), (V + 2, V + 3, 244),
     {"omod": 2, "clamp": 1}),
    (("gfx950", "gfx1201"), "v_fmaak_f32 v1, v2, v3, 0x42",
     (V + 1,), (V + 2, V + 3, LITERAL), {"literal": 0x42}),
    (G11, "v_fmamk_f16 v1.h, v2.l, 0x42, v3.h",
     (V + 1,), (V + 2, LITERAL, V + 3), {"literal": 0x42, "op_sel": 12}),
    (("gfx942",), "v_madmk_f16 v1, v2, 0x42, v3", (V + 1,), (V + 2, LITERAL, V + 3), {"literal": 0x42}),
    (G9, "v_cmp_lt_f32_e32 vcc, s2, v3", (VCC,), (2, V + 3), {}),
    (G9, "v_cmpx_lt_f32_e32 vcc, s2, v3", (VCC,), (2, V + 3), {}),
    (G9, "v_cmp_lt_f32_e64 s[4:5], s2, -v3", (4,), (2, V + 3), {"neg": 2}),
    (G11, "v_cmpx_lt_f32_e32 s2, v3", (EXEC,), (2, V + 3), {}),
    (G11, "v_cmpx_lt_f32_e64 s2, s3", (EXEC,), (2, 3), {}),
    (G11, "v_cmp_lt_f16_e32 vcc_lo, v2.h, v3.h", (VCC,), (V + 2, V + 3), {"op_sel": 3}),
    (G11, "v_add_f16_e32 v1.h, v2.l, v3.h", (V + 1,), (V + 2, V + 3), {"op_sel": 10}),
    (G11, "v_add_f16_e64 v129.h, v2.l, v3.h", (V + 129,), (V + 2, V + 3), {"op_sel": 10}),
    (G11, "v_cvt_f32_f16_e32 v200, v100.h", (V + 200,), (V + 100,), {"op_sel": 1}),
    (G9, "v_swap_b32 v1, v2", (V + 1, V + 2), (V + 2, V + 1), {}),
    (("gfx950",), "v_permlane32_swap_b32 v1, v2", (V + 1, V + 2), (V + 2, V + 1), {}),
    (("gfx950",), "v_permlane16_swap_b32_e64 v1, v2 bound_ctrl:1 fi:1",
     (V + 1, V + 2), (V + 2, V + 1), {"op_sel": 3}),
    # SDWA and DPP
    (G9, "v_add_f32_dpp v1, -v2, |v3| row_shr:3 row_mask:0xa bank_mask:0x5 bound_ctrl:0",
     (V + 1,), (V + 2, V + 3),
     {"dpp": 1, "dpp_ctrl": 0x113, "row_mask": 10, "bank_mask": 5, "bound_ctrl": 1, "neg": 1, "abs": 2}),
    (G9, "v_mov_b32_dpp v1, v2 quad_perm:[3,2,1,0] row_mask:0xf bank_mask:0xf", (V + 1,), (V + 2,),
     {"dpp": 1, "dpp_ctrl": 0x1B, "row_mask": 15, "bank_mask": 15}),
    (G9,
     "v_and_b32_sdwa v1, v2, s3 dst_sel:BYTE_1 dst_unused:UNUSED_PRESERVE src0_sel:WORD_1 src1_sel:BYTE_3",
     (V + 1,), (V + 2, 3), {"sdwa": 1, "dst_sel": 1, "dst_unused": 2, "src0_sel": 5, "src1_sel": 3}),
    (G9, "v_cmp_eq_f32_sdwa s[6:7], -v2, |v3| src0_sel:WORD_0 src1_sel:DWORD", (6,), (V + 2, V + 3),
     {"sdwa": 1, "src0_sel": 4, "src1_sel": 6, "neg": 1, "abs": 2}),
    (G9, "v_add_u32_sdwa v1, sext(v2), v3 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:BYTE_0 src1_sel:DWORD",
     (V + 1,), (V + 2, V + 3), {"sdwa": 1, "dst_sel": 6, "dst_unused": 0, "src0_sel": 0, "src1_sel": 6,
                               "src0_sext": 1}),
    (G11, "v_mov_b32_dpp v1, v2 dpp8:[7,6,5,4,3,2,1,0] fi:1", (V + 1,), (V + 2,),
     {"dpp8": 1, "lane_sel": 0o01234567, "fi": 1}),
    (G11, "v_add_f32_e64_dpp v1, v2, |v3| clamp row_share:4 row_mask:0x3 bank_mask:0x1 fi:1", (V + 1,),
     (V + 2, V + 3),
     {"dpp": 1, "dpp_ctrl": 0x154, "row_mask": 3, "bank_mask": 1, "fi": 1, "abs": 2, "clamp": 1}),
    # long encodings
    (G9, "v_div_scale_f32 v1, s[4:5], v2, v3, -v4", (V + 1, 4), (V + 2, V + 3, V + 4), {"neg": 4}),
    (("gfx1100",), "v_mad_u64_u32 v[2:3], null, v4, s5, v[6:7]", (V + 2, NULL), (V + 4, 5, V + 6), {}),
    (G11, "v_fma_f32 v1, v2, 0x40490fdb, s3", (V + 1,), (V + 2, LITERAL, 3), {"literal": 0x40490FDB}),
    (G9, "v_readlane_b32 s4, v5, m0", (4,), (V + 5, M0), {}),
    (ARCHS, "v_writelane_b32 v4, s5, 3", (V + 4,), (5, 131), {}),
    (G9, "v_mad_u16 v1, v2, v3, v4 op_sel:[0,1,0,1]", (V + 1,), (V + 2, V + 3, V + 4), {"op_sel": 10}),
    (("gfx950",), "v_bitop3_b32 v1, v2, s3, v4 bitop3:0xca", (V + 1,), (V + 2, 3, V + 4), {"bitop3": 0xCA}),
    (("gfx950",), "v_bitop3_b16 v1, v2, v3, v4 bitop3:0x27 op_sel:[1,0,0,1]", (V + 1,), (V + 2, V + 3, V + 4),
     {"bitop3": 0x27, "op_sel": 9}),
    (("gfx950",), "v_cvt_scalef32_pk_fp8_f32 v1, v2, v3, s4 op_sel:[0,0,0,1]", (V + 1,), (V + 2, V + 3, 4),
     {"op_sel": 8}),
    (("gfx950",), "v_ashr_pk_i8_i32 v1, v2, v3, 5", (V + 1,), (V + 2, V + 3, 133), {}),
    (("gfx950",), "v_prng_b32 v1, v2", (V + 1,), (V + 2,), {}),
    (ARCHS,
     "v_pk_fma_f16 v1, v2, s3, v4 op_sel:[1,0,0] op_sel_hi:[0,1,1] neg_lo:[0,1,0] neg_hi:[0,0,1] clamp",
     (V + 1,), (V + 2, 3, V + 4), {"op_sel": 1, "op_sel_hi": 6, "neg": 2, "neg_hi": 4, "clamp": 1}),
    (G9, "v_pk_add_f32 v[2:3], s[4:5], v[6:7]", (V + 2,), (4, V + 6), {"op_sel_hi": 7}),
    (("gfx1100",), "v_wmma_f32_16x16x16_f16 v[0:7], v[8:15], v[16:23], v[0:7]", (V,), (V + 8, V + 16, V),
     {"op_sel_hi": 7}),
    (("gfx1201",), "v_wmma_f32_16x16x16_f16 v[0:7], v[8:11], v[16:19], v[0:7]", (V,), (V + 8, V + 16, V),
     {"op_sel_hi": 7}),
    (("gfx1201",), "v_swmmac_f32_16x16x32_f16 v[0:7], v[8:11], v[16:23], v24 index_key:1", (V,),
     (V + 8, V + 16, V + 24, V), {"op_sel": 1, "op_sel_hi": 7}),
    # matrix instructions
    (("gfx90a",), "v_mfma_f32_32x32x8bf16_1k a[0:15], v[2:3], a[4:5], a[0:15] cbsz:1 abid:2 blgp:3", (A,),
     (V + 2, A + 4, A), {"cbsz": 1, "abid": 2, "blgp": 3}),
    (G94, "v_mfma_f32_32x32x8_bf16 v[0:15], a[2:3], v[4:5], 1.0", (V,), (A + 2, V + 4, 242), {}),
    (G94, "v_smfmac_f32_16x16x32_f16 a[0:3], v[4:5], v[8:11], v12 cbsz:2 abid:1",
     (A,), (V + 4, V + 8, V + 12, A),
     {"cbsz": 2, "abid": 1}),
    (("gfx950",), "v_mfma_f32_16x16x32_bf16 v[0:3], v[4:7], v[8:11], 0", (V,), (V + 4, V + 8, 128), {}),
    (("gfx950",),
     "v_mfma_scale_f32_16x16x128_f8f6f4 v[0:3], v[4:9], v[12:19], v[20:23], v24, v25 op_sel:[1,0,0] "
     "op_sel_hi:[0,1,0] cbsz:2", (V,), (V + 4, V + 12, V + 20, V + 24, V + 25),
     {"cbsz": 2, "op_sel": 1, "op_sel_hi": 2}),
    (G9, "v_accvgpr_read_b32 v1, a2", (V + 1,), (A + 2,), {}),
    (G9, "v_accvgpr_write_b32 a1, v2", (A + 1,), (V + 2,), {}),
    (G9, "v_accvgpr_write_b32 a1, 1.0", (A + 1,), (242,), {}),
    (G9, "v_accvgpr_mov_b32 a1, a2", (A + 1,), (A + 2,), {}),
    # LDS
    (G9, "ds_read_b128 a[4:7], v1 offset:65520", (A + 4,), (V + 1,), {"offset": 65520}),
    (G9, "ds_write2st64_b64 v1, v[2:3], v[4:5] offset0:1 offset1:255", (), (V + 1, V + 2, V + 4),
     {"offset0": 1, "offset1": 255}),
    (G9, "ds_cmpst_rtn_b32 v0, v1, v2, v3", (V,), (V + 1, V + 2, V + 3), {}),
    (ARCHS, "ds_bpermute_b32 v0, v1, v2", (V,), (V + 1, V + 2), {}),
    (ARCHS, "ds_add_u32 v1, v2 offset:4", (), (V + 1, V + 2), {"offset": 4}),
    (ARCHS, "ds_append v1 offset:8", (V + 1,), (), {"offset": 8}),
    (("gfx950",), "ds_read_b64_tr_b16 v[0:1], v2 offset:8", (V,), (V + 2,), {"offset": 8}),
    # global, flat and scratch memory
    (ARCHS[:2], "global_load_dword v0, v[2:3], off offset:-4096", (V,), (V + 2, NULL), {"offset": -4096}),
    (G94, "global_store_dwordx4 v1, a[4:7], s[2:3] sc0 nt sc1",
     (), (V + 1, 2, A + 4), {"sc0": 1, "nt": 1, "sc1": 1}),
    (("gfx90a",), "global_atomic_add v0, v1, v2, s[2:3] glc", (V,), (V + 1, 2, V + 2), {"glc": 1}),
    (("gfx90a",), "global_atomic_add v1, v2, s[2:3] slc scc", (), (V + 1, 2, V + 2), {"slc": 1, "scc": 1}),
    (G94, "flat_atomic_add_f32 v0, v[2:3], v4 offset:4095 sc0", (V,), (V + 2, NULL, V + 4),
     {"offset": 4095, "sc0": 1}),
    (G94, "global_load_lds_dword v[2:3], off offset:16", (), (V + 2, NULL), {"offset": 16, "lds": 1}),
    (("gfx950",), "global_load_lds_dwordx4 v1, s[2:3]", (), (V + 1, 2), {"lds": 1}),
    (G9, "scratch_load_dword v0, off, s3 offset:8", (V,), (NULL, 3), {"offset": 8}),
    (G9, "scratch_store_dword v1, v0, off", (), (V + 1, NULL, V), {}),
    (G94, "scratch_store_dword off, v0, off", (), (NULL, NULL, V), {}),
    (G94, "scratch_load_dword v0, v1, s3", (V,), (V + 1, 3), {}),
    (G11, "scratch_load_b32 v0, v1, s3 offset:-4", (V,), (V + 1, 3), {"offset": -4}),
    (G11, "scratch_store_b32 off, v0, s3", (), (NULL, 3, V), {}),
    (("gfx1100",), "global_atomic_add_u32 v0, v1, v2, s[2:3] glc", (V,), (V + 1, 2, V + 2), {"glc": 1}),
    (("gfx1100",), "global_load_addtid_b32 v0, s[2:3]", (V,), (NULL, 2), {}),
    (("gfx1201",),
     "global_atomic_add_u32 v0, v1, v2, s[2:3] offset:-8388608 th:TH_ATOMIC_RETURN scope:SCOPE_DEV",
     (V,), (V + 1, 2, V + 2), {"offset": -8388608, "th": 1, "scope": 2}),
    (("gfx1201",), "global_atomic_add_u32 v[2:3], v4, off", (), (V + 2, NULL, V + 4), {}),
    (("gfx1201",), "global_inv scope:SCOPE_SE", (), (), {"scope": 1}),
    (("gfx1201",), "flat_store_b128 v[2:3], v[4:7] offset:12", (), (V + 2, NULL, V + 4), {"offset": 12}),
    (("gfx1201",), "global_load_tr_b128 v[4:7], v[2:3], off", (V + 4,), (V + 2, NULL), {}),
    # buffers
    (G94, "buffer_load_dwordx4 a[4:7], v1, s[8:11], 0 offen offset:4095 sc0", (A + 4,), (V + 1, 8, 128),
     {"offen": 1, "offset": 4095, "sc0": 1}),
    (G94, "buffer_load_dword off, s[8:11], s3 lds", (), (NULL, 8, 3), {"lds": 1}),
    (("gfx90a",), "buffer_store_dword v0, v[2:3], s[8:11], m0 idxen offen glc", (), (V + 2, 8, M0, V),
     {"idxen": 1, "offen": 1, "glc": 1}),
    (("gfx90a",), "buffer_atomic_add v0, off, s[8:11], s3 glc", (V,), (NULL, 8, 3, V), {"glc": 1}),
    (("gfx90a",), "buffer_wbinvl1_vol", (), (), {}),
    (G94, "buffer_inv sc1", (), (), {"sc1": 1}),
    (("gfx1100",), "buffer_load_b32 v0, v1, s[8:11], null offen slc",
     (V,), (V + 1, 8, NULL), {"offen": 1, "slc": 1}),
    (("gfx1100",), "buffer_gl0_inv", (), (), {}),
    (("gfx1201",), "buffer_load_b128 v[0:3], v1, s[8:11], null offen offset:8388607 th:TH_LOAD_NT", (V,),
     (V + 1, 8, NULL), {"offen": 1, "offset": 8388607, "th": 1}),
    (("gfx1201",), "buffer_atomic_add_u32 v0, off, s[8:11], s3 th:TH_ATOMIC_RETURN", (V,), (NULL, 8, 3, V),
     {"th": 1}),
    (("gfx1100",), "ds_add_u32 v1, v2 gds", (), (V + 1, V + 2), {"gds": 1}),
    (("gfx1100",), "tbuffer_load_format_x v0, off, s[8:11], s3 format:22",
     (V,), (NULL, 8, 3), {"format": 22}),
]  # fmt: skip


@pytest.mark.parametrize("arch", ARCHS)
def test_the_corners(arch):
    cases = [case for case in CORNERS if arch in case[0]]
    listing = disassemble(assembled(tuple(case[1] for case in cases), arch), 0x1000, arch)
    assert len(listing) == len(cases)
    wrong = []
    for inst, (_, line, dst, src, fields) in zip(listing, cases, strict=True):
        expected = dict(fields)
        if "target" in expected:  # written down for an instruction at 0x1000
            expected["target"] += inst.address - 0x1000
        if (inst.name, inst.dst, inst.src, inst.fields) != (read(line)[0], dst, src, expected):
            wrong.append((line, inst))
    assert wrong == []


@pytest.mark.parametrize("arch", ARCHS[3:])
def test_both_halves_of_a_dual_instruction(arch):
    line = "v_dual_fmac_f32 v0, s1, v2 :: v_dual_fmamk_f32 v3, v4, 0x40490fdb, v5"
    x = one(line, arch)
    assert (x.name, x.format, x.dst, x.src) == ("v_dual_fmac_f32", "VOPD", (V,), (1, V + 2, V))
    y = x.second
    assert y is not None and y.second is None
    assert (y.name, y.dst, y.src) == ("v_dual_fmamk_f32", (V + 3,), (V + 4, LITERAL, V + 5))
    assert y.fields == {"literal": 0x40490FDB} and x.size == 12
    x = one("v_dual_cndmask_b32 v1, v3, v2 :: v_dual_mov_b32 v0, 1.0", arch)
    assert x.second is not None
    assert (x.src, x.second.src) == ((V + 3, V + 2, VCC), (242,))
    assert text(x, arch) == "v_dual_cndmask_b32 v1, v3, v2, vcc_lo :: v_dual_mov_b32 v0, 1.0"


def test_targets_of_one_family_share_tables():
    code = assembled(("v_mfma_f32_32x32x8_bf16 v[0:15], v[2:3], v[4:5], 0",), "gfx942")
    assert decode(code, 0, 0, "gfx940") == decode(code, 0, 0, "gfx942")
    with pytest.raises(CodeObjectError, match="VOP3P"):
        decode(assembled(("v_mfma_f32_16x16x32_bf16 v[0:3], v[4:7], v[8:11], 0",), "gfx950"), 0, 0, "gfx942")


def test_an_unknown_target_and_an_unknown_opcode_are_named():
    with pytest.raises(CodeObjectError, match=r"unknown architecture 'gfx906'.*gfx942"):
        decode(bytes(8), 0, 0, "gfx906")
    with pytest.raises(CodeObjectError, match=r"gfx942: unknown .* at 0x40: format SOP1, opcode 0xff"):
        decode(struct.pack("<I", 0xBE80FF00), 0, 0x40, "gfx942")
    with pytest.raises(CodeObjectError, match="negative offset"):
        decode(bytes(8), -4, 0, "gfx942")


@pytest.mark.parametrize("arch", TARGETS)
def test_a_short_form_and_its_long_form_have_one_name(arch):
    ops = isa_of(arch).ops
    shift = 0x140 if isa_of(arch).generation == 9 else 0x180
    for form, base in (("VOP2", 0x100), ("VOP1", shift), ("VOPC", 0)):
        for opcode, op in ops[form].items():
            long = ops["VOP3"].get(base + opcode)
            assert long is None or long.name == op.name, (form, opcode)


@pytest.mark.parametrize("arch", ARCHS)
def test_cut_short_is_an_error_at_every_length(arch):
    lines = (Path(__file__).parent / "assembly" / f"{arch}.s").read_text().splitlines()[::7]
    code = assembled(tuple(lines), arch)
    for inst in disassemble(code, 0, arch):
        whole = code[inst.address : inst.address + inst.size]
        assert decode(whole, 0, inst.address, arch) == inst
        for length in range(inst.size):
            with pytest.raises(CodeObjectError, match="truncated"):
                decode(whole[:length], 0, 0, arch)


@settings(max_examples=3 * settings().max_examples, deadline=None)
@given(st.sampled_from(ARCHS), st.binary(min_size=0, max_size=20), st.integers(0, 63) | st.none())
@example("gfx950", struct.pack("<4I", 0xD3AC0000, 0, 0xD3AD0000, 0), None)
@example("gfx1100", struct.pack("<3I", 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF), None)
@example("gfx1201", b"\x00\x00\x00\xc4\x00\xa2\x01" + bytes(5), None)  # a descriptor beyond the registers
@example("gfx90a", b"\xf9\x00\x00\x02\x00\x00\x00\x00", 11)  # v_madmk_f32 with SDWA's marker
@example("gfx90a", struct.pack("<2I", 0x020000F9, 0x068600FF | 1 << 23), None)  # a literal inside SDWA
def test_random_bytes_decode_or_are_refused(arch, code, top):
    """Any bytes give an Inst within them or a CodeObjectError; `top` steers to a format."""
    if top is not None and len(code) >= 4:
        code = code[:3] + bytes([top << 2 | code[3] & 3]) + code[4:]
    try:
        inst = decode(code, 0, 0x100, arch)
    except CodeObjectError:
        return
    assert inst.size in (4, 8, 12, 16) and inst.size <= len(code)
    half: Inst | None = inst
    while half is not None:
        for register in (*half.dst, *half.src):
            assert 0 <= register < 768 and (register not in range(209, 235)), half
        assert LITERAL not in half.src or "literal" in half.fields
        assert half.name in text(half, arch)
        half = half.second


def test_twenty_thousand_instructions_are_decoded_in_a_moment():
    lines = (Path(__file__).parent / "assembly" / "gfx942.s").read_text().splitlines()
    code = assembled(tuple(lines), "gfx942")
    disassemble(code, 0, "gfx942")  # the tables are read once
    start = time.process_time()
    count = sum(len(disassemble(code, 0, "gfx942")) for _ in range(20))
    assert (time.process_time() - start) / count < 100e-6  # it is 3 microseconds on a machine at rest

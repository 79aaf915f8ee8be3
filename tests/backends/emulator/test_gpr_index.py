"""Indexed registers: s_set_gpr_idx_on, _idx, _mode and _off of gfx9 by the CDNA3 ISA guide, v_movrel* and
v_swaprel_b32 of gfx11 and gfx12 by RDNA3's, s_movrel* of all."""

from __future__ import annotations

import pytest
from instructions import ARCHS, GFX9, GFX11, Suite, Text, memory, run_kernel, waits, wave

from portable.backends.rocm.emulator.faults import KernelFault

SUITE = Suite("gpr_index")
# v10 to v17 hold 100 to 107, v20 to v27 200 to 207, and v40 is the result.
HEAD = """
s_load_dwordx4 s[4:7], s[0:1], 0x0
s_waitcnt lgkmcnt(0)
v_lshlrev_b32 v1, 2, v0
s_load_dword s8, s[4:5], 0x0
s_waitcnt lgkmcnt(0)
""" + "".join(f"v_mov_b32 v{base + n}, {10 * base + n}\n" for base in (10, 20) for n in range(8))
TAIL = "global_store_dword v1, v40, s[6:7]\n"
# What follows "s_set_gpr_idx_on s8" up to "s_set_gpr_idx_off"; s8 is the index.
SUB = "v_sub_u32 v40, v10, v20"
BODIES = {
    "src0": ("SRC0", SUB),
    "src1": ("SRC1", SUB),
    "src2": ("SRC2", "v_mad_u32_u24 v40, v10, v20, v20"),
    "all": ("SRC0,SRC1,DST", "v_add_u32 v10, v10, v20"),
    "pair": ("SRC0", "v_lshlrev_b64 v[40:41], 0, v[10:11]; v_mov_b32 v40, v10"),
    "another": ("SRC0", "s_add_u32 s9, s8, 2; s_set_gpr_idx_idx s9; v_mov_b32 v40, v10"),
    "mode": ("SRC0", f"s_set_gpr_idx_mode gpr_idx(SRC1); {SUB}"),
    "m0": ("SRC0,DST", "s_mov_b32 s9, m0"),
    "constant": ("SRC0", "v_add_u32 v40, 7, v20"),
    "off": ("SRC0", ""),
    "beyond": ("SRC0", "s_set_gpr_idx_idx 0xff; v_mov_b32 v40, v10"),
    "in_flight": ("SRC0", "v_mov_b32 v40, v10"),
    "not_in_flight": ("SRC0", "v_mov_b32 v40, v10"),
    "a_load": ("SRC0", "global_load_dword v40, v1, s[4:5]"),
}
BEFORE = {
    "m0": "s_mov_b32 m0, 0xabcd0f00\ns_add_u32 s8, s8, 0x100\n",  # M0 keeps its other bits, the index has 8
    "in_flight": "global_load_dword v13, v1, s[4:5]\n",
    "not_in_flight": "global_load_dword v10, v1, s[4:5]\n",
}
AFTER = {"all": "v_mov_b32 v40, v13\n", "m0": "v_mov_b32 v40, s9\n", "off": "v_mov_b32 v40, v10\n"}


def kernel(name: str) -> None:
    mode, body = BODIES[name]
    body = f"s_set_gpr_idx_on s8, gpr_idx({mode})\n" + body.replace("; ", "\n") + "\ns_set_gpr_idx_off\n"
    body = HEAD + BEFORE.get(name, "") + body + AFTER.get(name, "") + TAIL
    SUITE.kernel(GFX9, lambda arch: Text(name, body, 64, 0))


for _name in BODIES:
    kernel(_name)


def result(arch: str, name: str, index: int = 3) -> int:
    out = memory(256)
    run_kernel(SUITE, arch, name, [memory(256, index.to_bytes(4, "little") * 64), out], 1, 64)
    lanes = {int.from_bytes(bytes(out[4 * i : 4 * i + 4]), "little") for i in range(64)}
    assert len(lanes) == 1
    return lanes.pop()


@pytest.mark.parametrize("arch", GFX9)
def test_the_index_is_added_to_the_registers_that_the_mode_selects(arch):
    word = 1 << 32
    want = {
        "src0": (103 - 200) % word,
        "src1": (100 - 203) % word,
        "src2": 100 * 200 + 203,
        "all": 103 + 203,
        "pair": 103,
        "off": 100,
        "another": 105,
        "mode": (100 - 203) % word,
        "m0": 0xABCD9F03,
        "constant": 207,
    }
    assert {name: result(arch, name) for name in want} == want
    assert result(arch, "src0", 0) == (100 - 200) % word


@pytest.mark.parametrize("arch", GFX9)
def test_the_registers_meant_are_those_that_are_checked(arch):
    assert result(arch, "not_in_flight") == 103
    for name, kind, words in (
        ("in_flight", "unwaited", "it names v13"),
        ("beyond", "unsupported", "beyond the vector registers"),
        ("a_load", "unsupported", "up to s_set_gpr_idx_off"),
    ):
        with pytest.raises(KernelFault) as caught:
            result(arch, name)
        assert (caught.value.kind, words in caught.value.detail) == (kind, True), caught.value


# v10 to v17 and s10 to s17 hold 100 to 107, v20 to v27 and s20 to s27 200 to 207; M0 is what was loaded.
MOVES = {
    "v_movrels_b32": ("v_movrels_b32 v40, v10", 3, 103),
    "v_movreld_b32": ("v_movreld_b32 v38, v11", 2, 101),
    "v_movreld_constant": ("v_movreld_b32 v38, 7", 2, 7),
    "v_movrelsd_b32": ("v_movrelsd_b32 v38, v10", 2, 102),
    "v_movrelsd_2_b32": ("v_movrelsd_2_b32 v38, v20", 2 << 16 | 5, 205),
    "v_swaprel_b32": ("v_mov_b32 v40, v12; v_swaprel_b32 v38, v21", 2 << 16 | 3, 204),
    "v_swaprel_other": ("v_swaprel_b32 v10, v20; v_mov_b32 v40, v23", 2 << 16 | 3, 102),
    "v_beyond": ("v_movrels_b32 v40, v10", 250, "beyond the registers"),
    "v_in_flight": ("global_load_b32 v13, v1, s[4:5]; v_movrels_b32 v40, v10", 3, "it names v13"),
    "v_not_in_flight": ("global_load_b32 v10, v1, s[4:5]; v_movrels_b32 v40, v10", 3, 103),
    "s_movrels_b32": ("s_movrels_b32 s9, s10; v_mov_b32 v40, s9", 3, 103),
    "s_movrels_b64": ("s_movrels_b64 s[28:29], s[10:11]; v_mov_b32 v40, s29", 4, 105),
    "s_movreld_b32": ("s_movreld_b32 s22, s11; v_mov_b32 v40, s25", 3, 101),
    "s_movreld_b64": ("s_movreld_b64 s[20:21], s[12:13]; v_mov_b32 v40, s25", 4, 103),
    "s_movrelsd_2_b32": ("s_movrelsd_2_b32 s20, s10; v_mov_b32 v40, s22", 2 << 16 | 6, 106),
    "s_beyond": ("s_movrels_b32 s9, s10; v_mov_b32 v40, s9", 96, "beyond the registers"),
}


def _moves(name: str) -> tuple[str, ...]:
    return ARCHS if name.startswith("s_") and "_2_" not in name else GFX11


def move(name: str) -> None:
    def text(arch: str) -> Text:
        load = "s_load_dword" if arch in GFX9 else "s_load_b32"
        load4 = "s_load_dwordx4" if arch in GFX9 else "s_load_b128"
        store = "global_store_dword" if arch in GFX9 else "global_store_b32"
        ready = waits(arch)
        lines = [f"{load4} s[4:7], s[0:1], 0x0", ready, "v_lshlrev_b32 v1, 2, v0"]
        lines += [f"{load} s8, s[4:5], 0x0", ready, "s_mov_b32 m0, s8"]
        for base in (10, 20):
            lines += [f"v_mov_b32 v{base + n}, {10 * base + n}" for n in range(8)]
            lines += [f"s_movk_i32 s{base + n}, {10 * base + n}" for n in range(8)]
        lines += [*MOVES[name][0].split("; "), ready, f"{store} v1, v40, s[6:7]"]
        return Text(name, "\n".join(lines) + "\n", wave(arch))

    SUITE.kernel(_moves(name), text, *([name] if name in MOVES[name][0] else []))


for _name in MOVES:
    move(_name)


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("name", MOVES)
def test_m0_moves_the_registers(name, arch):
    if arch not in _moves(name):
        return
    _, index, want = MOVES[name]
    if isinstance(want, int):
        assert result(arch, name, index) == want
        return
    with pytest.raises(KernelFault, match=want):
        result(arch, name, index)

"""The check of waits: a register, or a byte of LDS, whose load was not waited for is not there.

Kernels in assembly, right as they are; each line marked with a number is then left out, or a weaker wait put
in its place, and the fault must name what is not there."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import pytest
from assembly import assemble, module_text
from instructions import ARCHS, GFX9, Suite, Text, memory, run_kernel, spelling, waits, wave

from portable.backends.rocm.emulator import abi
from portable.backends.rocm.emulator.code_object import CodeObject
from portable.backends.rocm.emulator.faults import KernelFault
from portable.backends.rocm.emulator.launch import linked_program

SUITE = Suite("unwaited")


def wait(arch: str, counter: str, n: int = 0) -> str:
    """The wait for at most `n` outstanding of vector loads (V), LDS (D) or scalar loads (K)."""
    if arch == "gfx1201":
        return f"s_wait_{ {'V': 'loadcnt', 'D': 'dscnt', 'K': 'kmcnt'}[counter] } {n:#x}"
    return f"s_waitcnt {'vmcnt' if counter == 'V' else 'lgkmcnt'}({n})"


def counter(arch: str, which: str) -> str:
    found = re.search(r"\w+cnt(?=[ (])", wait(arch, which).replace("s_waitcnt", "").replace("s_wait_", ""))
    assert found
    return found[0]


def written(arch: str, body: str, without: int = 0) -> str:
    """`body` with the waits and barriers of `arch`: `V 1  #2` is the wait for vector loads, numbered 2."""
    lines = []
    for line in body.strip().splitlines():
        line, _, number = line.partition("#")
        if number and int(number) == without:
            continue
        if found := re.fullmatch(r"\s*([VDK]) (\d+)\s*", line):
            line = wait(arch, found[1], int(found[2]))
        elif line.strip() == "BARRIER":
            line = "s_barrier_signal -1\ns_barrier_wait -1" if arch == "gfx1201" else "s_barrier"
        lines.append(line.strip())
    return "\n".join(lines) + "\n"


HEAD = "s_load_dwordx4 s[4:7], s[0:1], 0x0\nK 0\nv_lshlrev_b32 v1, 2, v0\nv_mov_b32 v2, 0\nv_mov_b32 v9, 1\n"
DATA = [3 * i + 5 for i in range(1024)]


def kernel(archs, name: str, body: str, without: int = 0, lds: int = 4096) -> None:
    """Its results are v40 of every lane."""

    def make(arch: str) -> Text:
        store = f"{waits(arch)}{spelling('global_store_dword', arch)} v1, v40, s[6:7]\n"
        return Text(name, written(arch, body, without) + store, wave(arch), lds)

    SUITE.kernel(archs, make)


def result(arch: str, name: str, waves: int = 1) -> list[int]:
    lanes = waves * wave(arch)
    data = b"".join(value.to_bytes(4, "little") for value in DATA)
    out = memory(4 * lanes)
    run_kernel(SUITE, arch, name, [memory(len(data), data), out], 1, lanes)
    return [int.from_bytes(bytes(out[4 * i : 4 * i + 4]), "little") for i in range(lanes)]


def fault(arch: str, name: str, waves: int = 1) -> KernelFault:
    with pytest.raises(KernelFault) as caught:
        result(arch, name, waves)
    return caught.value


# Registers: a body up to its wait and then what needs it, the wait, weaker ones, and the register that is not
# there with these or with none.
LOAD = "global_load_dword v3, v1, s[4:5]\n"
NEXT = "global_load_dword v4, v1, s[4:5] offset:4\n"
STORE = "global_store_dword v1, v9, s[6:7]\n"
READ = "ds_write_b32 v1, v9\nds_read_b32 v3, v1\n"
ZERO = "".join(f"v_mov_b32 v{n}, 0\n" for n in range(4, 24))
MFMA = "v_mfma_f32_16x16x16f16 v[8:11], v[4:5], v[6:7], v[8:11]\ns_nop 15\nv_mov_b32 v40, 0"
ADD = "v_add_u32 v40, v3, v9"
WIDE = "global_load_dwordx4 v[4:7], v2, s[4:5]\nv_mov_b32 v8, 0\n"
PAIR = "ds_read2_b32 v[4:5], v1 offset0:1\n"
SCALARS = "s_load_dword s8, s[4:5], 0x0\ns_load_dwordx2 s[10:11], s[4:5], 0x8\n"
KEEP = "ds_write_b32 v3, v9\nv_mov_b32 v40, 0"
MOVE = "v_mov_b32 v40, v{}"
RDNA = ("gfx1100", "gfx1201")
LOADS = {
    "vector": (ARCHS, LOAD, ADD, "V 0", ["D 0"], "v3"),
    "vector_in_order": (ARCHS, LOAD + NEXT, ADD, "V 1", ["V 2", "D 0"], "v3"),
    "the_newest": (ARCHS, LOAD + NEXT, "v_mov_b32 v40, v4", "V 0", ["V 1"], "v4"),
    "wide": (ARCHS, WIDE, MOVE.format(7), "V 0", ["V 1"], "v7"),
    "overwritten": (ARCHS, LOAD, "v_mov_b32 v3, 7\nv_mov_b32 v40, v3", "V 0", ["V 1"], "v3"),
    "stored": (ARCHS, LOAD, "global_store_dword v1, v3, s[6:7]\nv_mov_b32 v40, 0", "V 0", ["D 0"], "v3"),
    "an_address": (ARCHS, LOAD.replace("v1", "v2"), KEEP, "V 0", ["D 0"], "v3"),
    "lds_in_order": (ARCHS, READ + PAIR, ADD, "D 1", ["D 2", "V 0"], "v3"),
    "lds_pair": (ARCHS, READ + "D 0\n" + PAIR, MOVE.format(5), "D 0", ["D 1", "V 0"], "v5"),
    "exchanged": (ARCHS, "ds_bpermute_b32 v3, v1, v9\n", ADD, "D 0", ["D 1"], "v3"),
    "scalar": (ARCHS, SCALARS, "v_mov_b32 v40, s11", "K 0", ["K 1", "V 0"], "s11"),
    "scalar_by_scalar": (ARCHS, SCALARS, "s_add_u32 s12, s10, 1\nv_mov_b32 v40, s12", "K 0", ["V 0"], "s10"),
    # A scalar load may be the one that has finished.
    "scalar_and_lds": (GFX9, READ + "s_load_dword s8, s[4:5], 0x0\n", ADD, "D 0", ["D 1"], "v3"),
    "stores_count_on_gfx9": (GFX9, LOAD + STORE, ADD, "V 1", ["V 2"], "v3"),
    "stores_have_their_own": (RDNA, LOAD + STORE, ADD, "V 0", ["V 1"], "v3"),
    "matrix_operand": (GFX9, ZERO + "global_load_dwordx2 v[6:7], v2, s[4:5]\n", MFMA, "V 0", ["V 1"], "v6"),
    "accumulator": (GFX9, READ.replace("v3", "a3"), "v_accvgpr_read_b32 v40, a3", "D 0", ["D 1"], "a3"),
}  # fmt: skip
WEAKER = []
for _name, (_archs, _before, _after, _last, _weaker, _register) in LOADS.items():
    for _n, _line in enumerate([_last, *_weaker, ""]):
        kernel(_archs, f"{_name}_{_n}", f"{HEAD}{_before}{_line}\n{_after}")
    WEAKER += [(arch, _name, _n) for arch in _archs for _n in range(len(_weaker) + 2)]


@pytest.mark.parametrize("arch", ARCHS)
def test_a_register_is_there_after_its_wait_and_not_before(arch):
    for on, name, n in WEAKER:
        if on != arch:
            continue
        if n == 0:
            result(arch, f"{name}_0")
            continue
        right, register = LOADS[name][3], LOADS[name][5]
        found = fault(arch, f"{name}_{n}")
        assert found.kind == "unwaited", found
        assert re.match(f"it names {register}, the result of `(global|ds|s)_", found.detail), found
        assert found.detail.endswith(f"a wait for its {counter(arch, right[0])}"), found


FLAT = "v_mov_b32 v5, s5\nv_mov_b32 v4, s4\nflat_load_dword v3, v[4:5]\n"
kernel(ARCHS, "flat", HEAD + FLAT + "V 0\nD 0\nv_mov_b32 v40, v3")
kernel(ARCHS, "flat_lds_only", HEAD + FLAT + "D 0\nv_mov_b32 v40, v3")
kernel(ARCHS, "flat_vector_only", HEAD + FLAT + "V 0\nv_mov_b32 v40, v3")
kernel(
    ARCHS,
    "twice",
    HEAD
    + "".join(f"global_load_dword v3, v1, s[4:5] offset:{4 * i}\n" for i in range(3))
    + "V 0\nv_mov_b32 v40, v3",
)
kernel(
    ARCHS, "twice_lds", HEAD + "ds_write_b32 v1, v9\n" + 2 * "ds_read_b32 v3, v1\n" + "D 0\nv_mov_b32 v40, v3"
)
# More than a counter can count: the hardware waits by itself.
kernel(ARCHS, "many", HEAD + 70 * "global_load_dword v3, v2, s[4:5]\nV 62\n" + "V 0\nv_mov_b32 v40, v3")


@pytest.mark.parametrize("arch", ARCHS)
def test_a_flat_load_needs_both_waits(arch):
    assert result(arch, "flat") == [DATA[0]] * wave(arch)
    assert counter(arch, "V") in fault(arch, "flat_lds_only").detail
    assert counter(arch, "D") in fault(arch, "flat_vector_only").detail


@pytest.mark.parametrize("arch", ARCHS)
def test_loads_of_one_kind_land_in_order(arch):
    assert result(arch, "twice_lds") == [1] * wave(arch)
    if arch == "gfx1201":
        assert fault(arch, "twice").kind == "unwaited"
    else:
        assert result(arch, "twice") == DATA[2 : 2 + wave(arch)]
        assert result(arch, "many") == [DATA[0]] * wave(arch)


# Halves of a register on gfx11 and gfx12: v3 is there, a load to one half of it is in flight, then `what`.
LOWER = "global_load_d16_b16 v3, v1, s[4:5]\n"
UPPER = "global_load_d16_hi_b16 v3, v1, s[4:5]\n"
AT_0 = "global_load_d16_hi_b16 v3, v2, s[4:5] offset:2\n"
LDS_LOWER = "ds_write_b32 v1, v1\nD 0\nds_load_u16_d16 v3, v1\n"
LDS_UPPER = LDS_LOWER.replace("d16", "d16_hi")
OUT = "global_store_{} v1, v3, s[6:7]\n"
HALVES = {  # the load, what follows it, and whether that needs the wait
    "store_upper": (LOWER, OUT.format("d16_hi_b16"), False),
    "store_upper_byte": (LOWER, OUT.format("d16_hi_b8"), False),
    "store_lower": (UPPER, OUT.format("b16"), False),
    "store_lower_byte": (UPPER, OUT.format("b8"), False),
    "store_same": (LOWER, OUT.format("b16"), True),
    "store_same_upper": (UPPER, OUT.format("d16_hi_b16"), True),
    "store_all": (LOWER, OUT.format("b32"), True),
    "store_after_a_word": (LOAD, OUT.format("d16_hi_b16"), True),
    "an_address_of_a_store": (AT_0, "global_store_b16 v3, v3, s[6:7]\n", True),
    "lds_store_upper": (LOWER, "ds_store_b16_d16_hi v1, v3\n", False),
    "lds_store_lower": (UPPER, "ds_store_b16 v1, v3\n", False),
    "lds_store_same": (UPPER, "ds_store_b16_d16_hi v1, v3\n", True),
    "lds_load_then_store_upper": (LDS_LOWER, OUT.format("d16_hi_b16"), False),
    "lds_load_then_store_same": (LDS_LOWER, OUT.format("b16"), True),
    "load_upper": (LOWER, UPPER, False),
    "load_lower": (UPPER, LOWER, False),
    "lds_load_upper": (LDS_LOWER, "ds_load_u16_d16_hi v3, v1\n", False),
    "load_of_another_queue": (LDS_LOWER, UPPER, True),
    "lds_load_of_another_queue": (LOWER, LDS_UPPER, True),
    "alu_reads_the_word": (LOWER, "v_add_u32 v4, v3, v3\n", True),
    "alu_reads_upper": (LOWER, "v_mov_b16 v4.l, v3.h\n", True),
    "alu_writes_upper": (LOWER, "v_mov_b16 v3.h, 0\n", True),
}  # fmt: skip
for _name, (_before, _after, _needs) in HALVES.items():
    for _waits in ("", "V 0\nD 0\n"):
        _body = f"{HEAD}v_mov_b32 v3, 0\n{_before}{_waits}{_after}V 0\nD 0\nv_mov_b32 v40, v3"
        kernel(RDNA, f"half_{_name}_{bool(_waits)}", _body)


@pytest.mark.parametrize("arch", RDNA)
@pytest.mark.parametrize("name", HALVES)
def test_a_memory_instruction_needs_a_wait_for_its_half_alone(arch, name):
    result(arch, f"half_{name}_True")
    if HALVES[name][2]:
        found = fault(arch, f"half_{name}_False")
        assert (found.kind, "it names v3" in found.detail) == ("unwaited", True), found
    else:
        result(arch, f"half_{name}_False")


# LDS between two waves, as in a loop with one stage: what the other wave wrote, then its second value.
STAGED = """
s_load_dwordx4 s[4:7], s[0:1], 0x0
K 0                                   #1
v_lshlrev_b32 v1, 2, v0
v_xor_b32 v2, WAVE, v1
global_load_dword v3, v1, s[4:5]
V 0                                   #2
ds_write_b32 v1, v3
D 0                                   #3
BARRIER
ds_read_b32 v4, v2
v_add_u32 v5, v3, v3
D 0                                   #4
BARRIER
ds_write_b32 v1, v5
D 0                                   #5
BARRIER
ds_read_b32 v6, v2
D 0                                   #6
v_add_u32 v40, v4, v6
"""
NOT_THERE = {1: "s4", 2: "v3", 3: "writes: no wait", 4: "reads: no wait", 5: "writes: no wait", 6: "v6"}


def of_wave(arch: str, text: str) -> str:
    return text.replace("WAVE", hex(4 * wave(arch)))


for _arch in ARCHS:
    for _n in range(7):
        kernel((_arch,), f"staged_{_n}", of_wave(_arch, STAGED), _n)


@pytest.mark.parametrize("arch", ARCHS)
def test_one_stage_of_lds_needs_each_of_its_waits(arch):
    lanes = wave(arch)
    assert result(arch, "staged_0", 2) == [3 * DATA[i ^ lanes] for i in range(2 * lanes)]
    for n, words in NOT_THERE.items():
        found = fault(arch, f"staged_{n}", 2)
        assert (found.kind, words in found.detail) == ("unwaited", True), (n, found)
        assert counter(arch, "K" if n == 1 else "V" if n == 2 else "D") in found.detail


def test_a_missing_wait_may_be_counted_in_place_of_a_fault(monkeypatch):
    code = SUITE.kernel_code("gfx1100", "staged_3")
    assert not code.drops_waits
    monkeypatch.setattr(code, "drops_waits", True)
    found = run_kernel(SUITE, "gfx1100", "staged_3", [memory(1024), memory(1024)], 1, 64, count=True)
    # Wave 0 reads what wave 1 wrote, and wave 1 what wave 0 did.
    assert found.unordered == 2
    assert dict(found.rows())["LDS unordered"].startswith("2 accesses")
    assert fault("gfx1100", "staged_2", 2).kind == "unwaited"


# gfx12 orders what came before the signal, not before the wait.
SPLIT = """
s_load_dwordx4 s[4:7], s[0:1], 0x0
K 0
v_lshlrev_b32 v1, 2, v0
v_xor_b32 v2, WAVE, v1
FIRST
s_barrier_signal -1
SECOND
s_barrier_wait -1
ds_read_b32 v40, v2
D 0
"""
WRITE = "ds_write_b32 v1, v1\nD 0"
for _name, _first, _second in (("early", WRITE, ""), ("late", "", WRITE), ("half", *WRITE.split("\n"))):
    kernel(
        ("gfx1201",),
        f"split_{_name}",
        of_wave("gfx1201", SPLIT.replace("FIRST", _first).replace("SECOND", _second)),
    )


def test_a_split_barrier_orders_what_came_before_its_signal():
    assert result("gfx1201", "split_early", 2) == [4 * (i ^ 32) for i in range(64)]
    for name in ("late", "half"):
        assert "writes: no wait" in fault("gfx1201", f"split_{name}", 2).detail


# Loads straight to LDS in two stages: m0 is the wave's part, the offset is added to both addresses.
DIRECT = """
s_load_dwordx4 s[4:7], s[0:1], 0x0
K 0
v_lshlrev_b32 v1, 2, v0
v_xor_b32 v2, WAVE, v1
v_and_b32 v3, 0xc0, v0
v_readfirstlane_b32 s8, v3
s_lshl_b32 s8, s8, 2
s_mov_b32 m0, s8
s_add_u32 s10, s4, 1024
s_addc_u32 s11, s5, 0
LOAD v1, s[4:5]
LOAD v1, s[4:5] offset:512
V 1                                   #1
BARRIER
ds_read_b32 v4, v2
D 0                                   #2
BARRIER
LOAD v1, s[10:11]
V 1                                   #3
BARRIER
ds_read_b32 v5, v2 offset:512
V 0                                   #4
BARRIER
ds_read_b32 v6, v2
D 0                                   #5
v_add_u32 v40, v4, v5
v_add_u32 v40, v40, v6
"""
ALONE = DIRECT[: DIRECT.index("LOAD v1, s[4:5] offset")].replace("v_xor_b32 v2, WAVE, v1", "v_mov_b32 v2, v1")
# The wave's wait comes behind the barrier; the second wave then reads what the first has waited for.
BEHIND = """
BARRIER
V 0
v_mov_b32 v40, 0
s_cmp_eq_u32 s8, 0
s_cbranch_scc1 1f
ds_read_b32 v40, v2
D 0
1:
"""


def loading(arch: str, text: str) -> str:
    text = re.sub(
        r"LOAD (.*)", r"global_load_dword \1 lds" if arch == "gfx90a" else r"global_load_lds_dword \1", text
    )
    return of_wave(arch, text)


for _arch in GFX9:
    for _n in range(6):
        kernel((_arch,), f"direct_{_n}", loading(_arch, DIRECT), _n)
    kernel(
        (_arch,),
        "no_barrier_after",
        loading(_arch, ALONE.replace("v_mov_b32 v2, v1", "v_xor_b32 v2, WAVE, v1") + BEHIND),
    )
    kernel((_arch,), "alone", loading(_arch, ALONE + "V 0\nds_read_b32 v40, v2\nD 0"))
    kernel((_arch,), "alone_unwaited", loading(_arch, ALONE + "ds_read_b32 v40, v2\nD 0"))
    _over = (
        "v_mov_b32 v9, 1\nds_write_b32 v1, v9\nds_read_b32 v40, v1\nWAITED\n" + "LOAD v1, s[4:5]\nV 0\nD 0\n"
    )
    _over = ALONE.replace("LOAD v1, s[4:5]\n", "") + _over
    kernel((_arch,), "over_own_read", loading(_arch, _over.replace("WAITED\n", "")))
    kernel((_arch,), "over_own_read_waited", loading(_arch, _over.replace("WAITED", "D 0")))


@pytest.mark.parametrize("arch", GFX9)
def test_two_stages_loaded_straight_to_lds_need_each_of_their_waits(arch):
    want = [sum(DATA[(i ^ 64) + at] for at in (0, 128, 256)) for i in range(128)]
    assert result(arch, "direct_0", 2) == want
    words = {1: "loads: no wait", 2: "reads: no wait", 3: "loads: no wait", 4: "loads: no wait", 5: "v5"}
    for n, each in words.items():
        found = fault(arch, f"direct_{n}", 2)
        assert (found.kind, each in found.detail) == ("unwaited", True), (n, found)
    found = fault(arch, "no_barrier_after", 2)
    assert (found.kind, found.wave) == ("lds-race", 1), found


@pytest.mark.parametrize("arch", GFX9)
def test_a_load_to_lds_is_not_there_for_its_own_wave_either(arch):
    assert result(arch, "alone") == DATA[:64]
    assert "of wave 0 loads: no wait for its vmcnt" in fault(arch, "alone_unwaited").detail
    # Nor does it wait for the reads of what it writes over.
    assert result(arch, "over_own_read_waited", 2) == [1] * 128
    assert "of this wave reads" in fault(arch, "over_own_read", 2).detail


# Each wave loads the same tile to the same bytes, as kernels do with a small operand that all waves read.
SHARED = """
s_load_dwordx4 s[4:7], s[0:1], 0x0
K 0
v_lshlrev_b32 v1, 2, v0
v_and_b32 v2, 0xfc, v1
s_mov_b32 m0, 0
LOAD v2, s[4:5]
BARRIER
V 0                                   #1
BARRIER
ds_read_b32 v40, v2
D 0
"""
for _arch in GFX9:
    for _n in range(2):
        kernel((_arch,), f"shared_{_n}", loading(_arch, SHARED), _n)
    kernel((_arch,), "shared_differs", loading(_arch, SHARED.replace("LOAD v2", "LOAD v1")))


@pytest.mark.parametrize("arch", GFX9)
def test_waves_may_load_the_same_values_to_the_same_place(arch):
    assert result(arch, "shared_0", 4) == DATA[:64] * 4
    assert "loads: no wait for its vmcnt" in fault(arch, "shared_1", 4).detail
    found = fault(arch, "shared_differs", 2)
    assert (found.kind, "writes" in found.detail) == ("unwaited", True), found


# Which registers an instruction names ----------------------------------------------------------------------

REGISTER = re.compile(r"(?<![\w.])([vsa])(?:\[(\d+):(\d+)\]|(\d+))(?![\w(:])")
FIRST = {"v": 0, "a": 256, "s": 512}
WORDS = 10  # of Flight.names, native/wave.h


def named(line: str) -> set[int]:
    found = [
        (FIRST[kind], int(low or one), int(high or one)) for kind, low, high, one in REGISTER.findall(line)
    ]
    return {first + register for first, low, high in found for register in range(low, high + 1)}


@pytest.mark.parametrize("arch", ARCHS)
def test_the_registers_of_every_instruction_are_those_of_its_assembly(arch):
    """LLVM's syntax says how many registers each operand of this project's instructions has."""
    lines = (Path(__file__).parent / "assembly" / f"{arch}.s").read_text().splitlines()
    lines = [line for line in lines if not re.match(r"\s*s_(c?branch|call)", line)]
    module = module_text(arch, [Text("every", "\n".join(lines) + "\n", wave(arch))])
    loaded = CodeObject(assemble(arch, module))
    linked = linked_program(loaded)
    index = linked.program.addresses.index(loaded.kernels["every"].entry)
    for line in lines:
        at = linked.insts.address + (index + 1) * abi.INST.size - abi.FLIGHT.size
        bits = int.from_bytes(ctypes.string_at(at, 8 * WORDS), "little")
        assert {bit for bit in range(512 + 106) if bits >> bit & 1} == named(line), line
        index += 1 + (linked.program.addresses[index + 1] == linked.program.addresses[index])
